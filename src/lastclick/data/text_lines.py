"""Text files as blocks of numbered lines, with memory bounded whatever the file holds."""

from __future__ import annotations

import codecs
import gzip
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import polars as pl
from tqdm import tqdm

from lastclick.errors import UserError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

BLOCK_BYTES = 16 << 20
_FIRST_BYTES = 1 << 16
MAX_LINE_BYTES = 16 << 20
# Real logs shrink up to about 30 times. What shrinks further and is large was made to fill a disk.
MAX_RATIO = 250
MAX_RATIO_APPLIES_FROM = 1 << 30

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
# What the first bytes of files that are no text say. Parquet's magic is text; a page or the footer,
# which follow it, begin with the byte 0x15.
_BINARY = {
    b"PAR1\x15": "a Parquet file: write `kind: parquet` in its raw: block, without the keys that "
    "are for text only (separator, quote, columns, encoding, missing)",
    b"PK\x03\x04": "a ZIP archive or an Excel workbook: export a workbook as CSV, and let the name "
    "of an archive end in .zip, or unpack it",
}
#: Said of an undecodable line. In another encoding than UTF-8, the whole file is refused instead.
NOT_UTF8 = "not utf-8 text; state its `encoding:` in the raw: block (cp1252 or latin-1, say)"
_UTF8_BOM, _UTF16_BOMS = codecs.BOM_UTF8, (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True)
class Block:
    """Some whole lines of a file, without their line ends (``\\n`` or ``\\r\\n``).

    ``text`` is the lines joined by ``\\n``; ``first_line`` counts from 1. ``undecodable`` are the
    numbers of lines that are not text in the file's encoding (their place in ``text`` is empty).
    ``unterminated`` is true when the file ends with the last of these lines, without a line end.
    """

    text: str
    first_line: int
    undecodable: tuple[int, ...] = ()
    unterminated: bool = False

    def lines(self) -> pl.DataFrame:
        """``line`` Int64 and ``text`` String, without the empty lines."""
        texts = pl.Series("text", [self.text]).str.split("\n").explode()
        numbers = pl.int_range(self.first_line, self.first_line + len(texts), eager=True)
        frame = pl.DataFrame({"line": numbers, "text": texts})
        return frame.filter(pl.col("text") != "")


def read_blocks(
    path: Path, encoding: str, *, block_bytes: int = BLOCK_BYTES, max_line: int = MAX_LINE_BYTES
) -> Iterator[Block]:
    """Cut the file at ``path`` into blocks of whole lines, unpacking gzip and zstd on the way.

    Raises UserError for a file that is empty, binary (Parquet, ZIP), cut short, packed to more than
    can be honest, not in ``encoding``, or that has a line longer than ``max_line`` bytes.
    """
    line = 1
    pending = b""
    empty = True
    for chunk in _text_chunks(path, encoding, block_bytes):
        if empty:
            chunk = chunk.removeprefix(_UTF8_BOM)
            empty = not chunk
        pending += chunk
        end = pending.rfind(b"\n") + 1
        if end:
            block, pending = pending[:end], pending[end:]
            yield _decode(block[:-1], line, path, max_line)
            line += block.count(b"\n")
        if len(pending) > max_line:
            raise _too_long(path, line, max_line)
    if empty:
        raise UserError(f"{path} is empty")
    if pending:
        yield _decode(pending, line, path, max_line, unterminated=True)


def first_line(path: Path) -> str:
    """What the file at ``path`` begins with, as far as that is UTF-8; "" where it is empty.

    For recognising a layout: nothing is refused. Raises UserError for a damaged packed file.
    """
    for chunk in _unpacked_chunks(path, _FIRST_BYTES):
        line = chunk.removeprefix(_UTF8_BOM).split(b"\n", 1)[0]
        return line.decode("utf-8", errors="replace").rstrip("\r")
    return ""


def _too_long(path: Path, line: int, max_line: int) -> UserError:
    return UserError(
        f"{path}, line {line}: longer than {max_line:,} bytes; this is not a file of one "
        "interaction a line (are its line ends missing?)"
    )


def _decode(
    block: bytes, first_line: int, path: Path, max_line: int, unterminated: bool = False
) -> Block:
    block = block.replace(b"\r\n", b"\n").removesuffix(b"\r")
    if len(block) > max_line:
        for number, line in enumerate(block.split(b"\n"), first_line):
            if len(line) > max_line:
                raise _too_long(path, number, max_line)
    try:
        return Block(block.decode("utf-8"), first_line, unterminated=unterminated)
    except UnicodeDecodeError:
        pass
    texts, undecodable = [], []
    for number, line in enumerate(block.split(b"\n"), first_line):
        try:
            texts.append(line.decode("utf-8"))
        except UnicodeDecodeError:
            texts.append("")
            undecodable.append(number)
    return Block("\n".join(texts), first_line, tuple(undecodable), unterminated)


def _text_chunks(path: Path, encoding: str, size: int) -> Iterator[bytes]:
    """UTF-8 bytes of the file: as they are, or converted from ``encoding``."""
    chunks = _without_binary(path, _unpacked_chunks(path, size))
    if encoding == "utf-8":
        for number, chunk in enumerate(chunks):
            if number == 0 and chunk.startswith(_UTF16_BOMS):
                raise UserError(
                    f"{path} is UTF-16 text (byte order mark), not UTF-8; "
                    "state `encoding: utf-16` in its raw: block"
                )
            yield chunk
        return
    decoder = codecs.getincrementaldecoder(encoding)("strict")
    try:
        for chunk in chunks:
            yield decoder.decode(chunk).encode("utf-8")
        yield decoder.decode(b"", final=True).encode("utf-8")
    except UnicodeError as error:
        raise UserError(f"{path} is not {encoding} text: {error}") from None


def _without_binary(path: Path, chunks: Iterator[bytes]) -> Iterator[bytes]:
    for number, chunk in enumerate(chunks):
        if number == 0:
            for magic, meaning in _BINARY.items():
                if chunk.startswith(magic):
                    raise UserError(f"{path} is {meaning}")
        yield chunk


def _unpacked_chunks(path: Path, size: int) -> Iterator[bytes]:
    packed_bytes = path.stat().st_size
    unpacked_bytes = 0
    with (
        path.open("rb") as file,
        tqdm(
            total=packed_bytes, desc=f"reading {path.name}", unit="B", unit_scale=True, disable=None
        ) as progress,
    ):
        reader = _reader(file)
        try:
            while chunk := reader.read(size):
                unpacked_bytes += len(chunk)
                if unpacked_bytes > max(MAX_RATIO_APPLIES_FROM, MAX_RATIO * packed_bytes):
                    raise UserError(
                        f"{path} unpacks to more than {MAX_RATIO} times its size: refused"
                    )
                yield chunk
                progress.update(file.tell() - progress.n)
        except EOFError:
            raise UserError(f"{path} is cut short: its packed data ends too early") from None
        except (gzip.BadGzipFile, zlib.error, zstd.ZstdError) as error:
            raise UserError(f"{path} is damaged: {error}") from None


def _reader(file: BinaryIO) -> BinaryIO:
    magic = file.read(4)
    file.seek(0)
    if magic.startswith(_GZIP):
        return gzip.GzipFile(fileobj=file)
    if magic == _ZSTD:
        return zstd.ZstdFile(file)
    return file

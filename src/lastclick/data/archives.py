"""One named file out of a zip archive or a wheel, without trusting the archive."""

from __future__ import annotations

import re
import shutil
import stat
import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from lastclick.errors import UserError

#: What zipfile raises for bytes that are no whole archive; ValueError for names that are no text.
DAMAGED = (zipfile.BadZipFile, NotImplementedError, OverflowError, ValueError, struct.error)


@dataclass(frozen=True)
class UnpackLimits:
    """What an honest archive stays under.

    A file may unpack to ``free_bytes`` whatever it was packed to, beyond that to at most ``ratio``
    times its packed size, and never to more than ``max_bytes``.
    """

    free_bytes: int = 64 << 20
    ratio: int = 200
    max_bytes: int = 100 << 30


def member_names(archive: Path) -> list[str]:
    """Names of the files in ``archive``, in its own order, folders and macOS leftovers left out.

    Raises UserError for a damaged archive and for one with a name that leads out of its folder.
    """
    with _opened(archive) as opened:
        return [
            info.filename
            for info in opened.infolist()
            if not info.is_dir() and not info.filename.startswith("__MACOSX/")
        ]


def extract_member(
    archive: Path, member: str, destination: Path, limits: UnpackLimits | None = None
) -> None:
    """Write the file called ``member`` in ``archive`` to the path ``destination``.

    No name in the archive decides where anything is written. Raises UserError for a damaged
    archive, one with names that lead out of its folder, a missing, repeated, encrypted or linked
    member, and a member that unpacks beyond ``limits``.
    """
    limits = limits or UnpackLimits()
    with _opened(archive) as opened:
        found = [info for info in opened.infolist() if info.filename == member]
        if len(found) != 1:
            problem = "does not hold" if not found else "holds more than one"
            raise UserError(f"{archive} {problem} {member!r}")
        info = found[0]
        if info.is_dir() or stat.S_ISLNK(info.external_attr >> 16):
            raise UserError(f"{archive}: {member!r} is a link or a folder, not a file: refused")
        if info.flag_bits & 0x1:
            raise UserError(f"{archive}: {member!r} is encrypted")
        allowed = min(max(limits.free_bytes, limits.ratio * info.compress_size), limits.max_bytes)
        if info.file_size > allowed:
            raise UserError(
                f"{archive}: {member!r} unpacks from {info.compress_size:,} to "
                f"{info.file_size:,} bytes: refused"
            )
        try:
            # zipfile stops at the size that the archive states, and checks its checksum.
            with opened.open(info) as source, destination.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
        except (*DAMAGED, zlib.error, EOFError) as error:
            destination.unlink(missing_ok=True)
            raise UserError(f"{archive}: {member!r} is damaged: {error}") from None


def _opened(archive: Path) -> zipfile.ZipFile:
    try:
        opened = zipfile.ZipFile(archive)
    except DAMAGED as error:
        raise UserError(f"{archive} is not a whole zip archive: {error}") from None
    for name in opened.namelist():
        path = PurePosixPath(name.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or re.match("[A-Za-z]:", name):
            opened.close()
            raise UserError(f"{archive}: the name {name!r} leads out of its folder: refused")
    return opened

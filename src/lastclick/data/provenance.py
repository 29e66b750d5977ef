"""The record of where a raw file came from, and how it is laid out, that lies beside it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from lastclick.data.raw_formats import RawFormat
from lastclick.errors import UserError

RECORD = "source.json"


@dataclass(frozen=True)
class Dropped:
    """A file of the incoming folder, as it was when it was taken."""

    file: str
    sha256: str
    size: int

    def has_changed(self, incoming: Path) -> bool:
        """Whether another file of this name lies in the folder ``incoming`` now."""
        path = incoming / self.file
        if not path.is_file():
            return False
        return path.stat().st_size != self.size or sha256_of(path) != self.sha256


@dataclass(frozen=True)
class Provenance:
    """What lies in ``data/raw/<dataset>`` and where it came from.

    ``file`` is its name there; ``raw`` its layout, where that is not the data set's own;
    ``dropped`` the file that it is a copy of, or was unpacked from, if a user dropped one in.
    """

    source: str
    file: str
    sha256: str
    size: int
    raw: RawFormat | None
    dropped: Dropped | None = None


def read_provenance(folder: Path) -> Provenance:
    """What was recorded in ``folder``; raises UserError when there is no such record."""
    try:
        content = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{folder} holds no {RECORD}: run the download stage first") from None
    raw = content.pop("raw")
    layout = None if raw is None else TypeAdapter(RawFormat).validate_python(raw)
    dropped = content.pop("dropped", None)  # older records have no such key
    return Provenance(**content, raw=layout, dropped=dropped and Dropped(**dropped))


def write_provenance(provenance: Provenance, folder: Path) -> None:
    """Record ``provenance`` in ``folder``."""
    content = {
        "source": provenance.source,
        "file": provenance.file,
        "sha256": provenance.sha256,
        "size": provenance.size,
        "raw": provenance.raw and provenance.raw.model_dump(mode="json", exclude_defaults=True),
        "dropped": provenance.dropped and asdict(provenance.dropped),
    }
    (folder / RECORD).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def sha256_of(path: Path) -> str:
    """The SHA-256 of the file at ``path``, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

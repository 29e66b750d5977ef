"""The record of where a raw file came from, and how it is laid out, that lies beside it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from lastclick.data.raw_formats import RawFormat
from lastclick.errors import UserError

RECORD = "source.json"


@dataclass(frozen=True)
class Provenance:
    """What lies in ``data/raw/<dataset>`` and where it came from.

    ``file`` is its name there; ``raw`` its layout, where that is not the data set's own.
    """

    source: str
    file: str
    sha256: str
    size: int
    raw: RawFormat | None


def read_provenance(folder: Path) -> Provenance:
    """What was recorded in ``folder``; raises UserError when there is no such record."""
    try:
        content = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{folder} holds no {RECORD}: run the download stage first") from None
    raw = content.pop("raw")
    layout = None if raw is None else TypeAdapter(RawFormat).validate_python(raw)
    return Provenance(**content, raw=layout)


def write_provenance(provenance: Provenance, folder: Path) -> None:
    """Record ``provenance`` in ``folder``."""
    content = {
        "source": provenance.source,
        "file": provenance.file,
        "sha256": provenance.sha256,
        "size": provenance.size,
        "raw": provenance.raw and provenance.raw.model_dump(mode="json", exclude_defaults=True),
    }
    (folder / RECORD).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

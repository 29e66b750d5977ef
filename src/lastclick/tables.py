"""The schemas of all tables, and the only reads and writes of files between stages.

A table is checked against its schema when it is written and when it is read, and every file
appears whole or not at all: it is written beside its place and then moved there.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import polars as pl
from safetensors import SafetensorError

from lastclick.errors import UserError

Schema = Mapping[str, pl.DataType | type[pl.DataType]]

#: Sorted by user, time, source order. Items are 1..n_items, 0 is padding; seconds, UTC.
INTERACTIONS: Schema = {"user_id": pl.Int32, "item_id": pl.Int32, "timestamp": pl.Int64}
#: The raw ids behind the dense ones: ``kind`` is "user" or "item".
IDS: Schema = {"kind": pl.String, "id": pl.Int32, "raw_id": pl.String}
#: As INTERACTIONS; whole evaluation sequences, input then target. ``target_index`` numbers the
#: targets of one user (always 0 unless the split asks for several targets a user).
EVALUATION: Schema = {**INTERACTIONS, "target_index": pl.Int32}

_RANKS: Schema = {
    "offset": pl.Int32,
    "target_rank": pl.Int32,
    "target_rank_unfiltered": pl.Int32,
    "last_item_rank": pl.Int32,
    "second_last_item_rank": pl.Int32,
}
_EVALUATED: Schema = {
    "partition": pl.String,
    "user_id": pl.Int32,
    "target_index": pl.Int32,
    "input_length": pl.Int32,
}
#: One row per evaluated sequence, order of its input and seed of that order (null: chronological).
#: ``offset`` is 0 (the output at the final position L). Ranks are 1-based over the whole
#: catalogue, without filter-seen except ``target_rank`` where the data set filters; null where the
#: position does not exist. ``input_length`` counts the whole input, before truncation.
SHUFFLES: Schema = {**_EVALUATED, "order": pl.String, "order_seed": pl.Int32, **_RANKS}
#: One row per evaluated sequence, residual scale ``alpha``, scaled ``layers`` ("all" or a layer
#: number as text) and ``offset`` (0 for L, 1 for L-1, …; offsets above 0 at alpha = 1 only, and
#: there the ranks of input items are null). The mixing ratios are those of level attn_res_ln, by
#: definition, averaged over the ``n_positions`` real positions and all layers; null at offsets
#: above 0.
SCALES: Schema = {
    **_EVALUATED,
    "alpha": pl.Float64,
    "layers": pl.String,
    **_RANKS,
    "n_positions": pl.Int32,
    "mixing_ratio_norm_of_sum": pl.Float64,
    "mixing_ratio_sum_of_norms": pl.Float64,
}
#: What every reported number is made of: each metric is sum(numerator) / sum(weight) over users.
OBSERVATIONS: Schema = {
    "metric": pl.String,
    "user_id": pl.Int32,
    "numerator": pl.Float64,
    "weight": pl.Float64,
}
#: Mean over the sequences that have both positions, by layer and offset from L. ``map`` is
#: "weights" (attention weights, mean over heads) or a level of the decomposition.
HEATMAPS: Schema = {
    "layer": pl.Int32,
    "map": pl.String,
    "output_offset": pl.Int32,
    "input_offset": pl.Int32,
    "n_sequences": pl.Int64,
    "mean": pl.Float64,
}


def read_table(path: Path, schema: Schema) -> pl.DataFrame:
    """Read a Parquet table; raises UserError when it is absent, damaged or of another schema."""
    try:
        frame = pl.read_parquet(path, glob=False)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; run `dvc repro` to make it") from None
    except pl.exceptions.PolarsError as error:
        raise UserError(
            f"{path} cannot be read as Parquet ({error}); delete it and run again"
        ) from None
    _check(frame.schema, schema, path)
    return frame


def scan_table(path: Path, schema: Schema) -> pl.LazyFrame:
    """As ``read_table``, lazily; only the schema is checked."""
    if not path.exists():
        raise UserError(f"{path} does not exist; run `dvc repro` to make it")
    try:
        frame = pl.scan_parquet(path, glob=False)
        found = frame.collect_schema()
    except pl.exceptions.PolarsError as error:
        raise UserError(
            f"{path} cannot be read as Parquet ({error}); delete it and run again"
        ) from None
    _check(found, schema, path)
    return frame


def write_table(frame: pl.DataFrame, path: Path, schema: Schema) -> None:
    """Write a Parquet table; raises ValueError when the frame is not of that schema."""
    if frame.schema != pl.Schema(schema):
        raise ValueError(f"{path}: expected columns {dict(schema)}, got {dict(frame.schema)}")
    with replacing(path) as temporary:
        frame.write_parquet(temporary, statistics=False)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; raises UserError when it is absent or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; run `dvc repro` to make it") from None
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}); delete it and run again") from None


def write_json(content: Mapping[str, Any], path: Path) -> None:
    """Write strict JSON; raises ValueError for a number that is not finite, naming its key."""
    _refuse_non_finite(content, "")
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    with replacing(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def read_csv(path: Path, schema: Schema) -> pl.DataFrame:
    """Read the columns of ``schema`` from a CSV that ``write_csv`` wrote.

    Raises UserError when the file or one of the columns is absent, or does not hold such values.
    """
    try:
        frame = pl.read_csv(path, columns=list(schema), schema_overrides=dict(schema), glob=False)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; run `dvc repro` to make it") from None
    except pl.exceptions.PolarsError as error:
        raise UserError(
            f"{path} cannot be read as CSV ({error}); delete it and run again"
        ) from None
    return frame.select(*schema)


def write_csv(frame: pl.DataFrame, path: Path) -> None:
    """Write a tidy CSV with a header line; nulls are empty."""
    with replacing(path) as temporary:
        frame.write_csv(temporary)


def write_text(text: str, path: Path) -> None:
    """Write UTF-8 text."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path to write to, which replaces ``path`` when the block ends without an error.

    Raises UserError where the system cannot write it (no room, no permission, …); ``path`` is then
    what it was before.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with temporary.open("rb+") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    except (OSError, pl.exceptions.PolarsError, SafetensorError) as error:
        raise UserError(
            f"{path} cannot be written ({error}); mend that and run again: what was finished "
            "before stays"
        ) from None
    finally:
        with suppress(OSError):
            temporary.unlink()


def _check(found: Mapping[str, pl.DataType], schema: Schema, path: Path) -> None:
    if dict(found) != dict(pl.Schema(schema)):
        raise UserError(
            f"{path} has columns {dict(found)}, expected {dict(schema)}; "
            "delete it and run `dvc repro` again"
        )


def _refuse_non_finite(content: Any, key: str) -> None:
    if isinstance(content, Mapping):
        for name, value in content.items():
            _refuse_non_finite(value, f"{key}.{name}" if key else str(name))
    elif isinstance(content, list | tuple):
        for index, value in enumerate(content):
            _refuse_non_finite(value, f"{key}[{index}]")
    elif isinstance(content, float) and not math.isfinite(content):
        raise ValueError(f"{key} is {content}: a metric that cannot be computed is left out")

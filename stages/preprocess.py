"""From raw rows to dense, filtered sequences."""

import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from lastclick import params, tables
from lastclick.data.filtering import compare_with_expected, preprocess
from lastclick.data.formats import RawTable, read_interactions, sample_users
from lastclick.data.provenance import Provenance, read_provenance
from lastclick.data.raw_formats import Raw, RawFormat
from lastclick.errors import UserError
from stages.command import incoming_folder, run

FOLDER = Path("data/interactions")


def main(dataset: str) -> None:
    """Read the raw file of one data set, filter it to its core, and number users and items."""
    settings = params.load()
    definition = settings.dataset(dataset)
    source = Path("data/raw") / dataset
    provenance = read_provenance(source)
    declared = params.validate_section(Raw, definition.raw, f"datasets.{dataset}.raw").root
    layout = provenance.raw or declared
    FOLDER.mkdir(parents=True, exist_ok=True)
    # Beside the outputs and not in the system's temporary folder, which may be memory.
    with tempfile.TemporaryDirectory(dir=FOLDER, prefix=f".{dataset}.") as scratch:
        table = _read(dataset, source, provenance, layout, Path(scratch))
        rows = table.frame
        if declared.sample_users:
            rows = sample_users(rows, declared.sample_users)
        found = preprocess(
            rows,
            ticks_per_second=table.ticks_per_second,
            progress=dataset,
            **settings.preprocess.model_dump(),
        )
    tables.write_table(found.interactions, FOLDER / f"{dataset}.parquet", tables.INTERACTIONS)
    tables.write_table(found.ids, FOLDER / f"{dataset}.ids.parquet", tables.IDS)
    counts = {**asdict(found.report), "n_rows_rejected": table.n_rejected}
    tables.write_json(counts, FOLDER / f"{dataset}.json")
    print(
        f"{dataset}: {found.report.n_users:,} users, {found.report.n_items:,} items, "
        f"{found.report.n_interactions:,} interactions; {found.report.tie_share:.0%} of "
        f"neighbours share their timestamp; {table.n_rejected:,} rows rejected"
    )
    if definition.expected:
        for difference in compare_with_expected(found.report, **definition.expected.model_dump()):
            print(
                f"warning: {dataset}: {difference} (datasets.{dataset}.expected)", file=sys.stderr
            )


def _read(
    dataset: str, source: Path, provenance: Provenance, layout: RawFormat, scratch: Path
) -> RawTable:
    """The raw file's rows; UserErrors name the dropped file, which DVC does not watch."""
    path = source / provenance.file
    if provenance.dropped is None:
        return read_interactions(path, layout, scratch)
    dropped = incoming_folder() / provenance.dropped.file
    take_anew = f"`dvc repro -f download@{dataset}` and then `dvc repro`"
    if provenance.dropped.has_changed(dropped.parent):
        raise UserError(
            f"{dropped} has changed since {path} was taken from it: run {take_anew} "
            f"(or move {dropped} away to go on with what was taken)"
        )
    try:
        return read_interactions(path, layout, scratch)
    except UserError as error:
        raise UserError(
            f"{error}\n{path} was taken from {dropped}: if you mend that file, run {take_anew}"
        ) from None


if __name__ == "__main__":
    run(main)

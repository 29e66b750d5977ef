"""Get the raw file of one data set."""

from pathlib import Path

from pydantic import RootModel

from lastclick import params
from lastclick.data.raw_formats import Raw
from lastclick.data.sources import Source, fetch
from stages.command import incoming_folder, run


class Sources(RootModel[tuple[Source, ...]]):
    """``datasets.<name>.sources`` of params.yaml."""


def main(dataset: str) -> None:
    """Fill data/raw: with a file dropped into data/incoming, or from the first source that works.

    The environment variable INCOMING_DIR names another folder for dropped files.
    """
    definition = params.load().dataset(dataset)
    key = f"datasets.{dataset}"
    sources = params.validate_section(Sources, definition.sources, f"{key}.sources").root
    # Hardly needed here, but better found wrong before the download than after.
    declared = params.validate_section(Raw, definition.raw, f"{key}.raw").root
    folder = Path("data/raw") / dataset
    provenance = fetch(dataset, sources, folder, incoming_folder(), declared=declared)
    print(f"{dataset}: {provenance.file} ({provenance.size:,} bytes) from {provenance.source}")


if __name__ == "__main__":
    run(main)

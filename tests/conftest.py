"""Fixtures that several folders share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import settings

from stages import plot, report
from stages import tables as tables_stage
from tests.synthetic import DataSet, write_run

# Time per example is the machine's business: a busy one must not fail a test.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# Few users, so that it is quick; the two differ in everything.
SMALL = {
    "toys": DataSet(307, accuracy=0.1, mixing=0.12, tie_share=0.47, mean_length=8.6),
    "ml-100k": DataSet(211, accuracy=0.4, mixing=0.33, tie_share=0.02, mean_length=23.0),
}
MODELS = ("gru4rec", "bert4rec", "sasrec")
SEEDS = (17, 19)


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """The current directory is ``folder`` while the block lasts."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@pytest.fixture(scope="session")
def results(tmp_path_factory) -> Path:
    """A folder with params.yaml and the results of every cell of a made-up run."""
    root = tmp_path_factory.mktemp("results")
    write_run(
        root, tuple(SMALL), MODELS, SEEDS, bootstrap_draws=97, formats=("svg",), made_up=SMALL
    )
    return root


@pytest.fixture(scope="session")
def tabulated(results) -> Path:
    """The same folder after the stage ``tables``; to be read only."""
    with working_in(results):
        tables_stage.main()
    return results


@pytest.fixture(scope="session")
def reported(tabulated) -> Path:
    """The same folder after the stages ``plot`` and ``report``; to be read only."""
    with working_in(tabulated):
        plot.main()
        report.main()
    return tabulated

"""Runs of other shapes than the default go through DVC to the report."""

import json

import polars as pl
import pytest

from tests.toy_project import DATASET, SEED, Project

pytestmark = pytest.mark.slow

SPLITS = {
    "first": {"split.target": "first"},
    "random": {"split.target": "random"},
    "successive": {"split.target": "successive"},
    "all": {"split.target": "all"},
    "leave_one_out": {"split.protocol": "leave_one_out", "split.validation": "last_train_item"},
    "by_user": {"split.validation": "by_user", "split.validation_users": 10},
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project.create(tmp_path_factory.mktemp("targets"))


@pytest.mark.parametrize("name", SPLITS)
def test_a_split_goes_through_to_the_report(project, name):
    project.run("git", "checkout", "--quiet", "params.yaml")
    project.set_params(SPLITS[name] | {"train.max_epochs": 1})
    (project.folder / "report/index.html").unlink(missing_ok=True)
    project.run("dvc", "repro", "--quiet")
    counts = json.loads((project.folder / f"data/splits/{DATASET}/split.json").read_text())
    scored = pl.read_parquet(
        project.folder / f"scores/{DATASET}/sasrec/{SEED}/scales.parquet"
    ).filter(pl.col("layers") == "all", pl.col("alpha") == 1, pl.col("offset") == 0)
    for partition in ("validation", "test"):
        rows = scored.filter(pl.col("partition") == partition)
        assert rows.height == counts[f"n_{partition}_targets"] > 0
        assert rows["user_id"].n_unique() == counts[f"n_{partition}_users"]
    if name in ("successive", "all"):
        assert counts["n_test_targets"] > counts["n_test_users"]
    assert "HRLI" in (project.folder / "report/index.html").read_text()


def test_a_run_without_attention_models_goes_through_to_the_report(tmp_path):
    project = Project.create(tmp_path)
    project.set_params(
        {"run.models": ["gru4rec"], "run.attention_models": [], "train.max_epochs": 1}
    )
    project.run("dvc", "repro", "--quiet")
    assert "not applicable: a recurrent" in (project.folder / "report/index.html").read_text()

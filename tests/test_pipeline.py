"""The whole DAG on a toy data set: what it writes, and what an edit makes it run again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.toy_project import Project


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project.reproduced(tmp_path_factory.mktemp("project"))


@pytest.fixture
def edited(project: Project) -> Iterator[Project]:
    """The same project, for a test that edits tracked files: they are put back afterwards."""
    yield project
    project.run("git", "checkout", "--quiet", "HEAD", "--", ".")


def test_a_run_ends_in_metrics_tables_figures_and_a_report(project):
    for path in (project.folder / "metrics").glob("*.json"):
        assert json.loads(path.read_text())
    accuracy = json.loads((project.folder / "metrics/accuracy.json").read_text())
    assert set(accuracy["toy"]) == {"gru4rec", "sasrec"}
    for model in accuracy["toy"].values():
        assert 0 <= model["HR@10_low"] <= model["HR@10"] <= model["HR@10_high"] <= 1
    assert (project.folder / "report/index.html").stat().st_size > 10_000
    assert list((project.folder / "plots/figures").glob("*.png"))


def test_every_declared_output_is_there_and_nothing_else_is_tracked_by_git(project):
    assert project.run("dvc", "status").stdout.strip() == "Data and pipelines are up to date."
    assert project.run("git", "status", "--porcelain").stdout == ""
    tracked = project.run("git", "ls-files").stdout.splitlines()
    big = (
        "data/",
        "models/",
        "scores/",
        "results/",
        "tables/",
        "report/",
        "plots/figures/",
        ".ckpt/",
    )
    assert not [name for name in tracked if name.startswith(big)]


def test_the_second_run_has_nothing_to_do(project):
    done = project.run("dvc", "repro")
    assert "Running stage" not in done.stdout
    assert "up to date" in done.stdout


def kinds(stages: set[str]) -> set[str]:
    return {stage.partition("@")[0] for stage in stages}


AGGREGATES = {"tables", "plot", "report"}
BEHAVIOURAL = {"score_shuffles", "shuffle", "last_item"}
SCALED = {"score_scales", "scale", "non_final", "recover", "select"}
TRAINED = {"choose_dropout", "train", "decompose"} | BEHAVIOURAL | SCALED


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"selection.epsilons": [0.0, 0.1]}, {"select"} | AGGREGATES),
        ({"scaling.alphas": [0.2, 0.3, 1.0]}, SCALED | AGGREGATES),
        ({"shuffle.seeds": [0, 1, 2]}, BEHAVIOURAL | AGGREGATES),
        ({"plots.dpi": 50}, {"plot", "report"}),
        ({"decompose.recent": 3}, {"decompose"} | AGGREGATES),
        ({"preprocess.ties": "shuffled"}, {"preprocess", "split"} | TRAINED | AGGREGATES),
        ({"split.quantile": 0.8}, {"split"} | TRAINED | AGGREGATES),
        ({"train.patience": 11}, TRAINED | AGGREGATES),
        ({"compute.device": "cpu", "compute.devices": 2}, set()),
        ({"models.bert4rec.hidden_size": 2}, set()),
        ({"datasets.beauty.filter_seen": False}, {"report"}),  # it names licences and citations
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_a_changed_parameter_invalidates_what_depends_on_it(edited, changes, expected):
    edited.set_params(changes)
    changed, after = edited.invalidated()
    assert kinds(changed | after) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("src/lastclick/plotting/recovery.py", {"plot", "report"}),
        ("src/lastclick/diagnostics/select.py", {"select"} | AGGREGATES),
        ("src/lastclick/published.yaml", AGGREGATES),
        ("src/lastclick/data/https.py", set()),
        ("stages/download.py", set()),
        ("src/lastclick/params.py", set()),
        ("README.md", set()),
    ],
)
def test_an_edited_file_invalidates_what_uses_it(edited, path, expected):
    with (edited.folder / path).open("a") as file:
        file.write("\n# edited\n")
    changed, after = edited.invalidated()
    assert kinds(changed | after) == expected


def test_a_models_parameters_and_file_concern_that_model_alone(edited):
    edited.set_params({"models.sasrec.n_heads": 1})
    by_parameter = set.union(*edited.invalidated())
    edited.run("git", "checkout", "--quiet", "--", "params.yaml")
    with (edited.folder / "src/lastclick/models/sasrec.py").open("a") as file:
        file.write("\n# edited\n")
    by_file = set.union(*edited.invalidated())
    for stages in (by_parameter, by_file):
        assert "train@toy-sasrec-1" in stages
        assert not [stage for stage in stages if "gru4rec" in stage]
        assert kinds(stages) == TRAINED | AGGREGATES


def test_another_data_sets_batch_size_trains_nothing_anew(edited):
    edited.set_params({"train.batch_size_of": {"beauty": 16}})
    done = edited.run("dvc", "repro", "train@toy-sasrec-1")
    assert "Running stage 'choose_dropout@toy-sasrec'" in done.stdout
    assert "Running stage 'train@" not in done.stdout

    edited.set_params({"train.batch_size_of": {"toy": 16}})
    edited.run("dvc", "repro", "choose_dropout@toy-sasrec")
    assert "train@toy-sasrec-1" in edited.run("dvc", "status", "train@toy-sasrec-1").stdout
    edited.run("git", "checkout", "--quiet", "HEAD", "--", ".")
    edited.run("dvc", "checkout", "--quiet")


def test_an_added_seed_runs_its_own_cells_and_the_aggregates(edited):
    edited.set_params({"run.seeds": [1, 2]})
    stages = set.union(*edited.invalidated())
    cells = {stage for stage in stages if "@" in stage}
    assert not [stage for stage in cells if not stage.endswith("-2")]
    assert {"train@toy-sasrec-2", "select@toy-sasrec-2"} <= cells


def test_an_added_data_set_runs_its_own_cells_and_the_aggregates(edited):
    path = edited.folder / "params.yaml"
    content = yaml.safe_load(path.read_text())
    content["datasets"]["other"] = content["datasets"]["toy"]
    content["run"]["datasets"] = ["toy", "other"]
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    stages = set.union(*edited.invalidated())
    assert "download@other" in stages
    assert not [stage for stage in stages if "@toy" in stage]
    assert {stage for stage in stages if "@" not in stage} == AGGREGATES


def test_a_failed_run_leaves_the_results_that_git_tracks(edited):
    edited.set_params({"run.seeds": [1, 1]})
    failed = edited.run("dvc", "repro", "tables", check=False)
    assert failed.returncode != 0
    assert "run.seeds: names 1 more than once" in failed.stderr + failed.stdout
    assert edited.run("git", "status", "--porcelain").stdout.split() == ["M", "params.yaml"]


def test_a_stage_runs_the_code_of_the_copy_it_is_in(project):
    script = "import stages, lastclick; print(lastclick.__file__)"
    found = Path(project.run("python", "-c", script).stdout.strip())
    assert found.is_relative_to(project.folder)


def test_a_run_that_is_done_again_from_nothing_writes_the_same(project, tmp_path):
    again = Project.create(tmp_path / "again")
    again.run("dvc", "repro", "--quiet")
    for pattern in ("metrics/*.json", "plots/data/*.csv"):
        files = sorted(project.folder.glob(pattern))
        assert files
        for file in files:
            other = again.folder / file.relative_to(project.folder)
            assert other.read_bytes() == file.read_bytes(), file
    shutil.rmtree(again.folder)

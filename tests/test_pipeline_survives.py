"""Killed runs, and DVC's experiments, on the toy project. Minutes each: run by hand."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.toy_project import Project

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project.reproduced(tmp_path_factory.mktemp("project"))


def results(folder: Path) -> dict[str, bytes]:
    paths = [*folder.glob("metrics/*.json"), *folder.glob("plots/data/*.csv")]
    assert paths
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def mend_the_files_of_dvc(project: Project) -> None:
    """The README's steps where DVC was killed while it wrote one of its files, in place."""
    locks = project.folder / ".dvc/tmp/rwlock"
    with suppress(FileNotFoundError):
        try:
            json.loads(locks.read_text())
        except json.JSONDecodeError:
            locks.unlink()
    if project.run("dvc", "stage", "list", check=False).returncode:
        (project.folder / "dvc.lock").unlink()


@pytest.mark.parametrize("seed", range(3))
def test_a_run_killed_at_any_moment_ends_in_the_same_results(project, tmp_path, seed):
    killed = Project.create(tmp_path / "killed")
    rng = random.Random(seed)
    for _ in range(6):
        running = killed.start("dvc", "repro", "--quiet")
        try:
            running.wait(timeout=rng.uniform(2, 15))
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
            mend_the_files_of_dvc(killed)
    killed.run("dvc", "repro")
    assert results(killed.folder) == results(project.folder)
    left = [path for path in killed.folder.rglob("*.partial") if ".dvc" not in path.parts]
    assert left == []


def test_half_a_file_of_dvc_costs_no_finished_stage(project):
    lock, locks = project.folder / "dvc.lock", project.folder / ".dvc/tmp/rwlock"
    before, whole = results(project.folder), lock.read_text()
    locks.write_text("")
    assert "Unable to read RWLock-file" in project.run("dvc", "repro", check=False).stderr
    lock.write_text(whole[: whole.rindex("path:") + len("path:")])
    failed = project.run("dvc", "repro", check=False)
    assert "'./dvc.lock' validation failed" in failed.stderr
    mend_the_files_of_dvc(project)
    project.run("dvc", "commit", "--force", "download@toy")
    done = project.run("dvc", "repro")
    ran = re.findall("^Running stage '(.+)'", done.stdout, flags=re.MULTILINE)
    assert ran == ["tables"]  # has persistent outputs, and of such runs DVC keeps no record
    assert lock.read_text() == whole
    assert results(project.folder) == before


def training_process(project: Project, running: subprocess.Popen) -> psutil.Process:
    """The one that trains in the project, as soon as ``running`` has come to start it."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        for writer in (project.folder / ".ckpt").glob("**/writer"):
            if pid := writer.read_text():
                return psutil.Process(int(pid))
        assert running.poll() is None, "it ended and trained nothing"
        time.sleep(0.02)
    raise AssertionError("no training began")


def wait_for_the_end_of(process: psutil.Process) -> None:
    deadline = time.monotonic() + 300
    with suppress(psutil.NoSuchProcess):
        while process.status() != psutil.STATUS_ZOMBIE:  # a zombie where nobody collects orphans
            assert time.monotonic() < deadline, f"{process} does not end"
            time.sleep(0.1)


def test_only_dvc_killed_leaves_no_second_writer_behind(tmp_path):
    # The stage goes on as an orphan; the next run is refused while it lives, and then finds it
    # done. It is held still meanwhile, so that it outlives that run on any machine.
    killed = Project.create(tmp_path / "orphaned")
    killed.set_params({"train.max_epochs": 100, "train.patience": 100})
    repro = ("dvc", "repro", "--quiet", "train@toy-sasrec-1")
    running = killed.start(*repro)
    try:
        first = training_process(killed, running)
        running.kill()
        running.wait()
        first.suspend()
        second = killed.run(*repro, check=False)
        assert second.returncode
        assert f"process {first.pid} is already training" in second.stderr
        first.resume()
        wait_for_the_end_of(first)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
    [trained] = killed.folder.glob(".ckpt/**/final.safetensors")
    before = trained.stat().st_mtime_ns
    killed.run(*repro)
    assert trained.stat().st_mtime_ns == before


def alphas_of(metrics: Path) -> set[str]:
    found = json.loads(metrics.read_text())["toy"]["sasrec"]["all"]
    return {name for name in found if name.startswith("alpha=")}


def test_an_experiment_in_the_workspace_reruns_the_scaled_scores(project):
    done = project.run("dvc", "exp", "run", "-S", "scaling.alphas=[0.0,0.5,1.0]")
    assert "train@" not in done.stdout.replace("Stage 'train@", "")
    assert alphas_of(project.folder / "metrics/scale.json") == {"alpha=0", "alpha=0.5", "alpha=1"}
    project.run("git", "checkout", "--quiet", "--", ".")
    project.run("dvc", "checkout", "--quiet")


def test_experiments_in_copies_run_their_own_code_and_parameters(project):
    before = results(project.folder)
    project.run("dvc", "exp", "run", "--temp", "--name", "temporary", "-S", "scaling.alphas=[0.4]")
    for number, epsilons in enumerate(("[0.05]", "[0.15]")):
        project.run(
            "dvc", "exp", "run", "--queue", "--name", f"queued-{number}",
            "-S", f"selection.epsilons={epsilons}",
        )  # fmt: skip
    project.run("dvc", "queue", "start", "--jobs", "2")
    project.run("dvc", "queue", "logs", "--follow", "queued-1", check=False)
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        status = project.run("dvc", "queue", "status").stdout
        if "Running" not in status and "Queued" not in status:
            break
        time.sleep(2)
    assert status.count("Success") == 2, status
    assert results(project.folder) == before
    shown = json.loads(project.run("dvc", "exp", "show", "--json").stdout)
    names = {
        experiment["name"] for commit in shown for experiment in commit.get("experiments") or []
    }
    assert {"temporary", "queued-0", "queued-1"} <= names
    diff = project.run("dvc", "metrics", "diff", "HEAD", "temporary", "--json").stdout
    assert "alpha=0.4" in diff


def test_branches_are_compared_by_metrics_and_plots(project):
    project.run("git", "checkout", "--quiet", "-b", "variant")
    project.set_params({"selection.epsilons": [0.0, 0.9]})
    project.run("dvc", "repro", "--quiet")
    project.commit("another epsilon")
    difference = json.loads(project.run("dvc", "metrics", "diff", "main", "--json").stdout)
    changed = {path for path in difference}
    assert changed == {"metrics/select.json"}
    assert "epsilon=0.9" in json.dumps(difference)
    plots = project.run("dvc", "plots", "diff", "main", "--out", "compared")
    page = project.folder / "compared" / "index.html"
    assert page.exists(), plots.stdout
    project.run("git", "checkout", "--quiet", "main")
    project.run("dvc", "checkout", "--quiet")

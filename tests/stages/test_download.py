"""The download stage: one data set, from a dropped file or its sources, in ``data/raw``."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest
import yaml

from lastclick import params
from lastclick.data.provenance import read_provenance
from lastclick.errors import UserError
from stages.download import Raw, Sources, main

ROOT = Path(__file__).parents[2]
DATA_SETS = yaml.safe_load((ROOT / "params.yaml").read_text())["datasets"]
CSV = "user_id,item_id,timestamp\n1,2,1700000000\n"


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A folder with the repository's params.yaml, and one of one's own data sets in it."""
    content = yaml.safe_load((ROOT / "params.yaml").read_text())
    content["datasets"]["shop"] = {
        "sources": [],
        "raw": {"kind": "delimited", "separator": ",", "user": "u", "item": "i", "time": "t"},
        "filter_seen": True,
    }
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(content))
    (tmp_path / "data/incoming").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("INCOMING_DIR", raising=False)
    return tmp_path


def edit(repository, change):
    path = repository / "params.yaml"
    content = yaml.safe_load(path.read_text())
    change(content["datasets"])
    path.write_text(yaml.safe_dump(content))


def test_a_file_in_the_incoming_folder_wins(repository, capsys):
    (repository / "data/incoming/beauty.csv").write_text(CSV)
    main("beauty")
    assert read_provenance(repository / "data/raw/beauty").raw.kind == "delimited"
    assert (repository / "data/raw/beauty/beauty.csv").read_text() == CSV
    assert "beauty: beauty.csv" in capsys.readouterr().out


def test_the_environment_names_another_incoming_folder(repository, monkeypatch, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    pl.DataFrame({"user_id": [1], "item_id": [2], "timestamp": [3]}).write_parquet(
        tmp_path / "elsewhere/zvuk.parquet"
    )
    monkeypatch.setenv("INCOMING_DIR", str(tmp_path / "elsewhere"))
    main("zvuk")
    assert read_provenance(repository / "data/raw/zvuk").raw.kind == "parquet"


def test_ones_own_data_set_needs_no_source(repository):
    (repository / "data/incoming/shop.csv").write_text("u,i,t\n1,2,3\n")
    main("shop")
    assert read_provenance(repository / "data/raw/shop").raw is None


def test_ones_own_missing_file_is_asked_for_with_its_columns(repository):
    with pytest.raises(UserError, match=r"datasets\.shop\.raw .* with the columns 'u', 'i', 't'"):
        main("shop")


def test_ones_own_layout_wins_over_columns_with_the_usual_names(repository):
    (repository / "data/incoming/shop.csv").write_text(
        "session_id,user_id,item_id,timestamp\n1,2,3,4\n"
    )
    main("shop")
    assert read_provenance(repository / "data/raw/shop").raw is None


def test_an_unknown_data_set_names_the_nearest(repository):
    with pytest.raises(UserError, match="no data set 'beuaty'; did you mean 'beauty'"):
        main("beuaty")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda sets: sets["ml-100k"]["sources"][0].update(url="http://example.org/x"),
            r"params.yaml:\d+: datasets.ml-100k.sources.0.url.url: .*https://",
        ),
        (
            lambda sets: sets["ml-100k"]["sources"].append({"uri": "https://example.org"}),
            "datasets.ml-100k.sources.2: a source has one of the keys url, wheel, file, manual",
        ),
        (
            lambda sets: sets["ml-100k"]["raw"].pop("user"),
            r"params.yaml:\d+: datasets.ml-100k.raw.delimited.user: missing key",
        ),
        (
            lambda sets: sets["ml-100k"]["raw"].update(seperator=","),
            r"datasets.ml-100k.raw.delimited.seperator: unknown key",
        ),
    ],
)
def test_a_slip_in_the_definition_names_its_key(repository, change, message):
    edit(repository, change)
    with pytest.raises(UserError, match=message):
        main("ml-100k")
    assert not (repository / "data/raw").exists()


@pytest.mark.parametrize("name", DATA_SETS)
def test_every_data_set_is_defined_soundly(name):
    definition = params.load(ROOT / "params.yaml").datasets[name]
    sources = Sources.model_validate(definition.sources).root
    assert sources
    Raw.model_validate(definition.raw)
    assert definition.citation
    assert definition.licence
    assert definition.homepage.startswith("https://")
    # Those that have to be fetched by hand, or may have to be, say what to do.
    automatic = [source for source in sources if getattr(source, "wheel", None)]
    assert automatic or any(getattr(source, "manual", None) for source in sources)


def process(repository, dataset):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-m", "stages.download", dataset],
        cwd=repository,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_mistake_is_one_message_without_traceback(repository):
    stage = process(repository, "diginetica")
    _, message = stage.communicate()
    assert stage.returncode == 1
    assert message.startswith("error: data set 'diginetica': it has to be fetched by hand.")
    assert "data/incoming/diginetica.<extension>" in message
    assert "Traceback" not in message
    assert not (repository / "data/raw/diginetica").exists()


def test_a_stage_that_was_killed_leaves_nothing_and_runs_again(repository):
    dropped = repository / "data/incoming/shop.csv"
    with dropped.open("w") as file:
        file.write("u,i,t\n1,2,3\n")
        file.truncate(4 << 30)  # a hole: copying and hashing take seconds, the file no disk
    stage = process(repository, "shop")
    partial = repository / "data/raw/.shop.partial/new/shop.csv"
    deadline = time.monotonic() + 60
    while not (partial.exists() and partial.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.01)
    stage.send_signal(signal.SIGKILL)
    stage.communicate()
    assert partial.exists()
    assert not (repository / "data/raw/shop").exists()
    dropped.write_text("u,i,t\n1,2,3\n")
    main("shop")
    assert sorted(path.name for path in (repository / "data/raw").iterdir()) == ["shop"]
    assert (repository / "data/raw/shop/shop.csv").read_text() == "u,i,t\n1,2,3\n"
    shutil.rmtree(repository / "data")

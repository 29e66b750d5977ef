"""params.yaml: what is read from it, and what a slip in it says."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from lastclick import params
from lastclick.errors import UserError

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "params.yaml").read_text()


def load(tmp_path: Path, text: str) -> params.Params:
    path = tmp_path / "params.yaml"
    path.write_text(text)
    return params.load(path)


def load_with(tmp_path: Path, key: str, value: object) -> params.Params:
    """Load the repository's params.yaml with one key set, as ``dvc exp run -S`` sets it."""
    content = yaml.safe_load(TEXT)
    *parents, last = key.split(".")
    section = content
    for parent in parents:
        section = section[parent]
    section[last] = value
    return load(tmp_path, yaml.safe_dump(content, sort_keys=False))


def test_the_repositorys_own_file_is_valid(tmp_path):
    assert load(tmp_path, TEXT).run.seeds == (17,)


@pytest.mark.parametrize("name", ["my shop", "my.shop", "my-shop@v2", "-shop", "шоп"])
def test_a_data_set_has_a_name_that_files_and_stages_can_have(tmp_path, name):
    content = yaml.safe_load(TEXT)
    content["datasets"][name] = content["datasets"]["toys"]
    with pytest.raises(UserError, match=f"datasets: '{name}' cannot name a data set"):
        load(tmp_path, yaml.safe_dump(content, allow_unicode=True))


def test_all_nine_data_sets_of_the_study_and_the_default_are_defined(tmp_path):
    names = set(load(tmp_path, TEXT).datasets)
    study = {
        "beauty",
        "sports",
        "toys",
        "video",
        "ml-1m",
        "steam",
        "beeradvocate",
        "diginetica",
        "zvuk",
    }
    assert {"ml-100k"} | study <= names


@pytest.mark.parametrize("alphas", [[0.0, 0.5, 1.0], [0.5, 0.0], ["0.5", "0"], []])
def test_the_trained_model_is_always_in_the_alpha_grid(tmp_path, alphas):
    grid = load_with(tmp_path, "scaling.alphas", alphas).scaling.alphas
    assert 1.0 in grid
    assert list(grid) == sorted({*map(float, alphas), 1.0})


def test_a_number_that_yaml_reads_as_text_is_a_number(tmp_path):
    # `-S selection.epsilons=[0.000001]` arrives as 1e-06, which YAML 1.1 takes for text.
    assert load_with(tmp_path, "selection.epsilons", ["1e-06"]).selection.epsilons == (1e-6,)


@pytest.mark.parametrize("value", ["nan", "inf", float("nan"), float("-inf"), "many", True, None])
@pytest.mark.parametrize("key", ["scaling.alphas", "selection.epsilons"])
def test_a_grid_value_that_is_no_finite_number_is_named(tmp_path, key, value):
    with pytest.raises(UserError, match=rf"params.yaml:\d+: {key}\.1: "):
        load_with(tmp_path, key, [0.5, value])


def test_a_grid_given_as_text_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"scaling\.alphas: .*found '0.0,0.5'"):
        load_with(tmp_path, "scaling.alphas", "0.0,0.5")


@pytest.mark.parametrize(
    ("key", "names", "hint"),
    [
        ("run.datasets", ["ml-100"], "did you mean 'ml-100k'"),
        ("run.models", ["sasrek"], "did you mean 'sasrec'"),
        ("run.attention_models", ["bsarec"], "unknown run model 'bsarec'"),
        ("dropout.models", ["sasrc"], "did you mean 'sasrec'"),
        ("train.batch_size_of", {"ml-100": 32}, "did you mean 'ml-100k'"),
    ],
)
def test_an_unknown_name_says_the_nearest(tmp_path, key, names, hint):
    with pytest.raises(UserError, match=hint) as error:
        load_with(tmp_path, key, names)
    assert key in str(error.value)


def test_a_misspelt_key_is_named_with_its_line_and_the_nearest(tmp_path):
    text = TEXT.replace("  patience: 10", "  patiense: 10")
    line = text.splitlines().index("  patiense: 10") + 1
    with pytest.raises(UserError) as error:
        load(tmp_path, text)
    message = str(error.value)
    assert f"params.yaml:{line}: train.patiense: unknown key; did you mean 'patience'?" in message
    assert "train.patience: missing key; did you mean 'patiense'?" in message


def test_a_misspelt_key_of_a_data_set_says_the_nearest(tmp_path):
    with pytest.raises(UserError, match=r"ml-100k\.filter_sean.*did you mean 'filter_seen'"):
        load_with(tmp_path, "datasets.ml-100k.filter_sean", True)


def test_every_slip_is_reported_at_once(tmp_path):
    text = TEXT.replace("k_core: 5", "k_core: -5").replace("patience: 10", "patience: ten")
    with pytest.raises(UserError) as error:
        load(tmp_path, text)
    assert "preprocess.k_core" in str(error.value)
    assert "train.patience" in str(error.value)


def test_a_repeated_name_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"run\.seeds.*17 more than once"):
        load_with(tmp_path, "run.seeds", [17, 17])


@pytest.mark.parametrize("alphas", [[0.5, 0.50000001], [1.0000001]])
def test_numbers_that_would_share_a_name_are_refused(tmp_path, alphas):
    with pytest.raises(UserError, match=r"scaling.* more than once"):
        load_with(tmp_path, "scaling.alphas", alphas)


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "run: [unclosed"])
def test_a_file_without_sections_is_refused(tmp_path, text):
    with pytest.raises(UserError, match=r"params\.yaml"):
        load(tmp_path, text)


def test_a_missing_file_says_where_it_was_looked_for(tmp_path):
    with pytest.raises(UserError, match="run from the root of the repository"):
        params.load(tmp_path / "params.yaml")


def test_a_model_section_is_validated_with_its_key_and_line(tmp_path, monkeypatch):
    class Config(params.Section):
        hidden_size: int

    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text("models:\n  sasrec:\n    hiden_size: 64\n")
    content = {"hiden_size": 64}
    with pytest.raises(UserError) as error:
        params.validate_section(Config, content, "models.sasrec")
    assert (
        "params.yaml:3: models.sasrec.hiden_size: unknown key; did you mean 'hidden_size'?"
        in str(error.value)
    )

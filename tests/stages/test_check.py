"""stages.check: slips in params.yaml that no stage of a given run would have read."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from lastclick.errors import UserError
from stages import check, score_scales

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(autouse=True)
def workspace(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


def write_with(*keys: str, value: object) -> None:
    """Write the repository's params.yaml with the value at ``keys`` changed."""
    content = yaml.safe_load((ROOT / "params.yaml").read_text())
    section = content
    for key in keys[:-1]:
        section = section[key]
    section[keys[-1]] = value
    Path("params.yaml").write_text(yaml.safe_dump(content, sort_keys=False))


def test_the_repositorys_own_file_has_no_slip(capsys):
    Path("params.yaml").write_text((ROOT / "params.yaml").read_text())
    check.main()
    assert capsys.readouterr().out == "params.yaml: no slip found\n"


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (("run", "seeds"), [17, 17], r"run\.seeds: names 17 more than once"),
        (("run", "models"), ["sasreq"], "unknown model 'sasreq'; did you mean 'sasrec'"),
        (("models", "sasrec", "block"), "pre_ln", r"models\.sasrec\.block"),  # imported.py's alone
        (("models", "sasrec.big"), {}, r"models\.sasrec\.big: there is no file src/"),
        (("models", "duorec", "cross", "wait"), 0.1, r"models\.duorec\.cross\.wait: unknown key"),
        (("models", "duorec", "cross", "weight"), math.inf, r"cross\.weight: .* finite"),
        (("models", "sasrec", "n_heads"), 3, r"models\.sasrec: n_heads 3 does not divide"),
        (("models", "bert4rec", "n_layers"), True, r"models\.bert4rec\.n_layers: .* integer"),
        (("models", "gru4rec", "dropout"), "0,5", r"models\.gru4rec\.dropout: .* number"),
        (("train", "batch_size"), True, r"train\.batch_size: .* integer"),
        (("datasets", "toys", "raw", "kind"), "jason_lines", r"datasets\.toys\.raw"),
        (("datasets", "toys", "sources"), [{"uri": "x"}], r"datasets\.toys\.sources"),
        (("run", "attention_models"), ["gru4rec"], r"run\.attention_models names gru4rec"),
        (("models", "imported", "checkpoints"), 3, r"models\.imported\.checkpoints"),
    ],
    ids=lambda value: ".".join(value) if isinstance(value, tuple) else "",
)
def test_a_slip_is_named(keys, value, message):
    write_with(*keys, value=value)
    with pytest.raises(UserError, match=message):
        check.main()


def test_small_numbers_are_read_as_dvc_writes_them():
    # `-S models.duorec.cross.weight=0.00001` arrives as 1e-05, which YAML 1.1 takes for text.
    write_with("models", "duorec", "cross", "weight", value="1e-05")
    check.main()


def test_a_trained_model_without_an_attention_residual_is_not_scaled(tmp_path):
    write_with("run", "attention_models", value=["gru4rec"])
    with pytest.raises(UserError, match=r"run\.attention_models names gru4rec"):
        score_scales.main("ml-100k", "gru4rec", 17)


def test_a_wrong_call_names_the_script():
    command = [sys.executable, "-m", "stages.download", "my", "shop"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    found = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert found.returncode == 2
    assert "python -m stages.download: error: unrecognized arguments: shop" in found.stderr

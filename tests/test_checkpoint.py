"""Keys, atomic files, the lock, and what happens to old keys."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

from lastclick.checkpoint import Checkpoints, key_of, source_digest
from lastclick.errors import UserError


def test_the_key_depends_on_every_part_and_not_on_their_order():
    parts = {"name": "sasrec", "sizes": {"b": 3, "a": 5}, "items": np.arange(7, dtype=np.int32)}
    reordered = {"items": parts["items"], "sizes": {"a": 5, "b": 3}, "name": "sasrec"}
    assert key_of(parts) == key_of(reordered)
    others = [
        {**parts, "name": "gru4rec"},
        {**parts, "sizes": {"b": 3, "a": 6}},
        {**parts, "items": np.arange(7, dtype=np.int64)},
        {**parts, "items": np.arange(7, dtype=np.int32)[::-1]},
        {**parts, "items": np.arange(7, dtype=np.int32)[:, None]},
    ]
    assert len({key_of(other) for other in [parts, *others]}) == len(others) + 1


def test_the_digest_of_code_follows_imports_inside_the_package(tmp_path, monkeypatch):
    package = tmp_path / "lastclick_copy"
    package.mkdir()
    files = {
        "__init__": "",
        "used": "VALUE = 1\n",
        "unused": "VALUE = 2\n",
        "main": "import numpy\nfrom lastclick_copy.used import VALUE\n",
    }
    for name, text in files.items():
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("lastclick.checkpoint.PACKAGE", "lastclick_copy")
    before = source_digest("lastclick_copy.main")
    (package / "unused.py").write_text("VALUE = 3\n")
    assert source_digest("lastclick_copy.main") == before
    (package / "used.py").write_text("VALUE = 4\n")
    assert source_digest("lastclick_copy.main") != before


def test_the_digest_of_code_ignores_comments_docstrings_and_layout(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "described.py"

    def digest(code: str) -> str:
        file.write_text(code)
        return source_digest("described")

    before = digest('"""Doc."""\ndef f(x):\n    """Add."""\n    return x + 1\n')
    assert (
        digest('"""Other."""\n\n\ndef f(x):  # why\n    """Plus."""\n    return (x + 1)\n')
        == before
    )
    assert digest('"""Doc."""\ndef f(x):\n    """Add."""\n    return x + 2\n') != before
    assert digest('"""Doc."""\ndef f(x):\n    "Add.", x\n    return x + 1\n') != before


def test_states_and_finals_come_back_as_they_were_saved(tmp_path):
    checkpoints = Checkpoints(tmp_path / "cell", "key")
    assert checkpoints.load_state() is None
    assert checkpoints.load_final() is None
    tensors = {"b": torch.randn(3, 5), "a": torch.tensor(7.0, dtype=torch.float64)}
    numbers = {"epoch": 2, "history": [{"loss": 0.1 + 0.2, "ndcg": None}]}
    checkpoints.save_state(tensors, numbers)
    loaded, loaded_numbers = checkpoints.load_state()
    assert loaded_numbers == numbers
    assert {name: tensor.dtype for name, tensor in loaded.items()} == {
        "a": torch.float64,
        "b": torch.float32,
    }
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)


def test_finishing_drops_the_unfinished_state_and_other_keys(tmp_path):
    cell = tmp_path / "cell"
    tensors = {"w": torch.ones(2)}
    for key in ("old", "new"):
        Checkpoints(cell, key).save_state(tensors, {})
    with Checkpoints(cell, "new").only_writer():
        Checkpoints(cell, "new").save_final(tensors, {"best_epoch": 3})
    assert [path.name for path in cell.iterdir() if path.is_dir()] == ["new"]
    assert Checkpoints(cell, "new").load_state() is None
    assert Checkpoints(cell, "new").load_final()[1] == {"best_epoch": 3}


def test_a_damaged_file_is_named(tmp_path):
    checkpoints = Checkpoints(tmp_path / "cell", "key")
    checkpoints.save_state({"w": torch.ones(101)}, {})
    path = tmp_path / "cell" / "key" / "state.safetensors"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(UserError, match=r"state\.safetensors is damaged"):
        checkpoints.load_state()


HOLD_THE_LOCK = """
    import sys, time
    from pathlib import Path
    sys.path.insert(0, sys.argv[1])
    from lastclick.checkpoint import Checkpoints
    with Checkpoints(Path(sys.argv[2]), "key").only_writer():
        print("held", flush=True)
        time.sleep(60)
"""


def test_a_second_writer_is_refused_while_the_first_lives_and_only_then(tmp_path):
    cell = tmp_path / "cell"
    source = os.path.join(os.path.dirname(__file__), "..", "src")
    script = [sys.executable, "-c", textwrap.dedent(HOLD_THE_LOCK), source, str(cell)]
    with subprocess.Popen(script, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout.readline() == "held\n"
        with (
            pytest.raises(UserError, match=rf"process {first.pid} is already training"),
            Checkpoints(cell, "key").only_writer(),
        ):
            raise AssertionError("two writers")
        first.kill()
    (cell / "key").mkdir()
    leftover = cell / "key" / ".state.safetensors.1.partial"
    leftover.write_bytes(b"half")
    with Checkpoints(cell, "key").only_writer():
        assert not leftover.exists()
        assert (cell / "writer").read_text() == str(os.getpid())

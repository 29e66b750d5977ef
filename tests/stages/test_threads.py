"""How a stage's threads wait for each other is settled before torch is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPT = "import os, sys, stages; print('torch' in sys.modules, os.environ.get('GOMP_SPINCOUNT'))"


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({}, "False 5000"),
        ({"GOMP_SPINCOUNT": "7"}, "False 7"),
        ({"OMP_WAIT_POLICY": "active"}, "False None"),
    ],
    ids=["nothing chosen", "count chosen", "policy chosen"],
)
def test_threads_wait_briefly_unless_the_user_chose(chosen, expected):
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    inherited = {name: value for name, value in os.environ.items() if name not in names}
    found = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=ROOT, env=inherited | chosen, text=True, capture_output=True, check=True,
    )  # fmt: skip
    assert found.stdout.strip() == expected

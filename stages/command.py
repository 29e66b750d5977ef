"""How every stage script is started, and what its environment says."""

from __future__ import annotations

import argparse
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path

from lastclick.errors import UserError


def run(stage: Callable[..., None]) -> None:
    """Call ``stage`` with the positional arguments of the command line.

    A UserError ends the process with status 1 and its message alone: the user has something to
    mend, and a traceback would hide what.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m stages.{Path(inspect.getfile(stage)).stem}",
        description=inspect.getdoc(stage),
    )
    for name, parameter in inspect.signature(stage, eval_str=True).parameters.items():
        parser.add_argument(name, type=parameter.annotation)
    arguments = vars(parser.parse_args())
    try:
        stage(**arguments)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


def incoming_folder() -> Path:
    """Where users drop their files; the environment variable INCOMING_DIR names another folder."""
    return Path(os.environ.get("INCOMING_DIR") or "data/incoming")

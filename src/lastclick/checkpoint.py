"""Checkpoints of one cell's training that survive being killed at any moment.

A cell is one folder, and in it every set of parameters, data and code has a folder of its own,
named by a hash of them: a training that was interrupted is only ever continued by one that would
have done the same. Files are safetensors, which cannot execute anything when loaded, with their
numbers and texts as one JSON string in the header; they appear whole or not at all.

    <cell>/lock                        held by the one writer while it lives
    <cell>/writer                      its process id, for the message that refuses a second one
    <cell>/<key>/state.safetensors     an unfinished training
    <cell>/<key>/final.safetensors     a finished one
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from lastclick.errors import UserError
from lastclick.tables import replacing

PACKAGE = __name__.partition(".")[0]
# Modules that a training imports and whose code cannot change its weights: what tables hold and how
# errors are told.
_WITHOUT_INFLUENCE = {f"{PACKAGE}.errors", f"{PACKAGE}.tables"}


def key_of(parts: Mapping[str, Any]) -> str:
    """A hash of named numbers, texts, lists, mappings and arrays, in whatever order they come."""
    digest = hashlib.sha256()
    for name, value in sorted(parts.items()):
        digest.update(f"{name}:".encode())
        if isinstance(value, np.ndarray):
            digest.update(f"{value.dtype.str}{value.shape}".encode())
            digest.update(np.ascontiguousarray(value).tobytes())
        else:
            digest.update(json.dumps(value, sort_keys=True, allow_nan=False).encode())
        digest.update(b"\n")
    return digest.hexdigest()[:32]


def source_digest(*modules: str) -> str:
    """A hash of the code of ``modules`` and of all modules of this package that they import.

    Code is as much part of a result's identity as parameters are: a model whose file was edited
    must not continue, or stand in for, what the old file trained. Comments, docstrings and layout
    are no part of it.
    """
    codes: dict[str, str] = {}
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if module in codes or module in _WITHOUT_INFLUENCE:
            continue
        tree = ast.parse(Path(importlib.util.find_spec(module).origin).read_bytes())
        codes[module] = ast.dump(_without_docstrings(tree))
        waiting += _imported_modules(tree)
    digest = hashlib.sha256()
    for module, code in sorted(codes.items()):
        digest.update(f"{module} {len(code)}\n{code}".encode())
    return digest.hexdigest()


def _without_docstrings(tree: ast.Module) -> ast.Module:
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            node.body[0].value = ast.Constant(None)
    return tree


def _imported_modules(tree: ast.Module) -> list[str]:
    """The modules of this package that a module imports (absolute imports, as everywhere here)."""
    named = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            named += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            # `from a import b` may name a module a.b or something inside a.
            named += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return [name for name in named if name.partition(".")[0] == PACKAGE and _is_module(name)]


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the parent is a module, not a package
        return False


class Checkpoints:
    """The saved states of one training, ``key``, in the folder ``cell``."""

    def __init__(self, cell: Path, key: str):
        self.cell = cell
        self._folder = cell / key
        self._state = self._folder / "state.safetensors"
        self._final = self._folder / "final.safetensors"

    @contextmanager
    def only_writer(self) -> Iterator[None]:
        """Hold the cell's lock; raises UserError while another living process holds it.

        The system releases the lock when its holder dies, however it dies.
        """
        self.cell.mkdir(parents=True, exist_ok=True)
        lock, writer = FileLock(self.cell / "lock"), self.cell / "writer"
        try:
            lock.acquire(timeout=0)
        except Timeout:
            holder = writer.read_text() if writer.exists() else "unknown"
            raise UserError(
                f"process {holder} is already training {self.cell}; wait until it ends, or end it "
                f"with `kill {holder}` and run again: training continues from its last checkpoint"
            ) from None
        try:
            writer.write_text(str(os.getpid()))
            # What a killed writer had not finished writing.
            for partial in self.cell.glob("*/.*.partial"):
                partial.unlink()
            yield
        finally:
            lock.release()

    def load_state(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Tensors and numbers of the unfinished training, or None where there is none."""
        return _load(self._state)

    def save_state(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Replace the state of the unfinished training."""
        _save(self._state, tensors, numbers)

    def load_final(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Tensors and numbers of the finished training, or None where there is none."""
        return _load(self._final)

    def save_final(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Keep the finished training, and drop its state and what other keys left in the cell."""
        _save(self._final, tensors, numbers)
        self._state.unlink(missing_ok=True)
        for folder in self.cell.iterdir():
            if folder.is_dir() and folder != self._folder:
                shutil.rmtree(folder)


def _save(path: Path, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
    with replacing(path) as temporary:
        # One metadata entry only: safetensors writes several in no fixed order.
        metadata = {"numbers": json.dumps(numbers, allow_nan=False)}
        contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
        save_file(contiguous, temporary, metadata=metadata)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename itself
    finally:
        os.close(folder)


def _load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            return tensors, json.loads(file.metadata()["numbers"])
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}); delete it and run again") from None

"""Each stage of dvc.yaml lists exactly the code that it uses.

An undeclared module would leave stale results behind after an edit; a declared one that is not
used would retrain models for nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
STAGES = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]

# Code that cannot change a result: what it reads is declared as parameters, or it only says what
# went wrong, or where files lie (and a moved file is a changed dependency anyway).
HARMLESS = {
    "src/lastclick/__init__.py",
    "src/lastclick/errors.py",
    "src/lastclick/params.py",
    "stages/__init__.py",
    "stages/command.py",
}
MODEL = "src/lastclick/models/${item.model}.py"


def file_of(module: str) -> str | None:
    """The repository's file that ``import module`` runs, or None for anybody else's module."""
    for base in ("src", "."):
        path = Path(base, *module.split("."))
        for candidate in (path.with_suffix(".py"), path / "__init__.py"):
            if (ROOT / candidate).exists():
                return candidate.as_posix()
    return None


def imported_files(path: str) -> set[str]:
    """Files that ``path`` imports directly, wherever in it the import stands."""
    found = set()
    tree = ast.parse((ROOT / path).read_text())
    for node in walk_what_runs(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        found |= {file for module in modules if module and (file := file_of(module))}
    return {file for file in found if not is_empty(file)}


def walk_what_runs(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those that only a type checker reads."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", None) == "TYPE_CHECKING":
            continue
        yield node
        yield from walk_what_runs(node)


def is_empty(path: str) -> bool:
    return not (ROOT / path).read_text().strip()


def closure(*starts: str) -> set[str]:
    """``starts`` and all that they import, followed through the repository."""
    seen: set[str] = set()
    waiting = set(starts)
    while waiting:
        path = waiting.pop()
        if path not in seen and path not in HARMLESS:
            seen.add(path)
            waiting |= imported_files(path)
    return seen


def declared(stage: str) -> set[str]:
    deps = STAGES[stage].get("deps", [])
    code = {dep for dep in deps if dep.endswith(".py")}
    for folder in (ROOT / dep for dep in deps if dep.startswith(("src/", "stages/"))):
        if folder.is_dir():
            code |= {path.relative_to(ROOT).as_posix() for path in folder.rglob("*.py")}
    return {dep for dep in code if not (ROOT / dep).is_file() or not is_empty(dep)}


def test_model_files_import_nothing_that_a_training_stage_leaves_out():
    for path in (ROOT / "src/lastclick/models").glob("*.py"):
        used = closure(path.relative_to(ROOT).as_posix())
        assert used - {path.relative_to(ROOT).as_posix()} <= declared("train"), path


@pytest.mark.parametrize("stage", [name for name in STAGES if name != "download"])
def test_a_stage_declares_the_code_it_imports_and_no_more(stage):
    script = f"stages/{stage}.py"
    used = closure(script)
    if MODEL in declared(stage):
        # The model's file is found by name; what model files share is declared for all of them.
        used |= {MODEL} | closure("src/lastclick/models/sasrec.py") - {
            "src/lastclick/models/sasrec.py"
        }
    assert declared(stage) == used


def test_every_stage_has_a_script_of_its_name():
    for name, stage in STAGES.items():
        assert stage["cmd"].startswith(f"python -m stages.{name}")
        assert (ROOT / "stages" / f"{name}.py").exists()


def test_downloading_depends_on_no_code():
    assert "deps" not in STAGES["download"]


def test_the_report_declares_its_templates_and_the_data_sets_it_names():
    assert "src/lastclick/templates" in STAGES["report"]["deps"]
    assert "datasets" in STAGES["report"]["params"]

"""DVC's own plots: templates that name only columns that exist, for every file of plot data."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lastclick.plotting.data import SCHEMAS

TEMPLATES = sorted((Path(__file__).parents[1] / ".dvc/plots").glob("*.json"))
# What DVC itself adds to every row.
ADDED = {"rev"}


def file_of(template: Path) -> str:
    """The plot data that a template is for; two views of one file share its name."""
    return template.stem.removesuffix("_by_layer")


def values_of(content: Any, key: str) -> Iterator[Any]:
    """Every value that stands under ``key`` anywhere in the template."""
    if isinstance(content, dict):
        for name, value in content.items():
            if name == key:
                yield value
            yield from values_of(value, key)
    elif isinstance(content, list):
        for value in content:
            yield from values_of(value, key)


def test_every_file_of_plot_data_has_a_template():
    assert {file_of(template) for template in TEMPLATES} == set(SCHEMAS)


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_a_template_names_only_columns_that_exist(template):
    content = json.loads(template.read_text(encoding="utf-8"))
    made = set()
    for names in values_of(content, "as"):
        made |= set(names) if isinstance(names, list) else {names}
    known = set(SCHEMAS[file_of(template)]) | made | ADDED

    used = {field for field in values_of(content, "field") if isinstance(field, str)}
    formulas = [*values_of(content, "calculate"), *values_of(content, "filter")]
    for formula in formulas:
        used |= set(re.findall(r"datum\.(\w+)", formula))
        used |= set(re.findall(r"datum\['([^']+)'\]", formula))
    for columns in values_of(content, "fold"):
        used |= set(columns)

    assert used <= known, used - known
    assert {"dataset", "model"} & used or "cell" in used


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_a_template_draws_the_data_as_they_are_and_tells_revisions_apart(template):
    text = template.read_text(encoding="utf-8")

    assert '"values": "<DVC_METRIC_DATA>"' in text
    assert "loess" not in text
    assert "interpolate" not in text
    assert "<DVC_METRIC_COLOR>" in text or "datum.rev" in text

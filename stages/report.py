"""One page with the answer, every table and every figure."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path

from lastclick import params, tables
from lastclick.errors import UserError
from lastclick.report.page import Drawing, render
from lastclick.tabulation.contents import TABLES
from lastclick.tabulation.published import load_published
from stages.command import run

FIGURES = Path("plots/figures")
PAGE = Path("report/index.html")
PACKAGES = ("torch", "numpy", "polars", "matplotlib", "dvc")


def main() -> None:
    """Write report/index.html from tables/ and plots/figures/."""
    settings = params.load()
    page = render(
        settings=settings.model_dump(mode="json"),
        tables={
            name: tables.read_csv(Path("tables") / f"{name}.csv", layout.schema)
            for name, (layout, _) in TABLES.items()
        },
        drawings=drawings(settings),
        published=load_published(),
        versions={
            "Python": ".".join(platform.python_version_tuple()[:2]),
            **{package: version(package) for package in PACKAGES},
        },
    )
    tables.write_text(page, PAGE)
    print(PAGE)


def drawings(settings: params.Params) -> list[Drawing]:
    """The figures in the order of the run's data sets and models; SVG where it was drawn."""
    if not settings.plots.formats:
        return []
    kind = "svg" if "svg" in settings.plots.formats else settings.plots.formats[0]
    order = [
        f"_{dataset}_{model}"
        for dataset in settings.run.datasets
        for model in settings.run.attention_models
    ]
    paths = sorted(FIGURES.glob(f"*.{kind}"))
    if not paths:
        raise UserError(f"{FIGURES} holds no {kind} figure; run `dvc repro` to draw them")

    def place(path: Path) -> tuple[str, int]:
        for number, suffix in enumerate(order):
            if path.stem.endswith(suffix):
                return path.stem.removesuffix(suffix), number
        return path.stem, -1

    return [Drawing(path.stem, kind, path.read_bytes()) for path in sorted(paths, key=place)]


if __name__ == "__main__":
    run(main)

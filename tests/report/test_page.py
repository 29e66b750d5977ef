"""The page as a file: whole, self-contained, escaped, the same each time."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest

from lastclick import params, tables
from lastclick.errors import UserError
from lastclick.report.page import Drawing, render
from lastclick.report.sections import CAPTIONS, SECTIONS
from lastclick.tabulation.contents import TABLES
from lastclick.tabulation.published import load_published
from stages import plot
from stages import report as stage
from stages import tables as tables_stage
from tests.conftest import SMALL
from tests.synthetic import write_run

VOID = {"meta", "link", "img", "br", "hr"}


class Outline(HTMLParser):
    """Collects elements and checks that every one is closed where it was opened."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, (tag, self.getpos())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


@pytest.fixture(scope="module")
def text(reported: Path) -> str:
    return (reported / "report/index.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def outline(text: str) -> Outline:
    return Outline(text)


def test_every_element_is_closed_and_every_id_is_its_own(outline):
    assert outline.open == []
    ids = [attributes["id"] for _, attributes in outline.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    linked = {attributes["href"][1:] for attributes in outline.all("a")}
    assert linked <= set(ids)
    assert {section.anchor for section in SECTIONS} <= linked


def test_nothing_is_fetched_from_anywhere(outline, text):
    for _, attributes in outline.found:
        for name in ("src", "href"):
            if name in attributes:
                assert attributes[name].startswith(("data:", "#"))
    assert outline.all("script") == []
    assert "@import" not in text
    assert "url(" not in text


def test_every_figure_is_there_with_its_description(reported, outline):
    files = {path.read_bytes() for path in (reported / "plots/figures").glob("*.svg")}
    images = outline.all("img")

    shown = {base64.b64decode(image["src"].split(",", 1)[1]) for image in images}
    assert shown == files
    assert len(images) == len(files)
    assert all(len(image["alt"]) > 30 for image in images)


def test_every_table_with_rows_is_there_with_its_limits(reported, text):
    for name, (layout, _) in TABLES.items():
        rows = tables.read_csv(reported / "tables" / f"{name}.csv", layout.schema).height
        shown = f"<caption><span>{layout.title}</span></caption>" in text
        assert shown == (rows > 0), name


def test_tables_and_figures_are_all_in_some_section():
    named = [name for section in SECTIONS for name in (*section.tables, *section.folded)]
    assert sorted(named) == sorted(TABLES)
    drawn = [name for section in SECTIONS for name in (*section.figures, *section.folded_figures)]
    assert sorted(drawn) == sorted(CAPTIONS)


def test_rows_are_as_wide_as_their_heads(text):
    """Spans add up: every row of a table covers the same number of columns."""
    for table in re.findall(r"<table.*?</table>", text, re.DOTALL):
        carried: list[int] = []  # for each column, how many more rows a cell above covers it
        for row in re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL):
            cells = Outline(row).found
            cells = [attributes for tag, attributes in cells if tag in ("th", "td")]
            spans = [
                (int(cell.get("colspan") or 1), int(cell.get("rowspan") or 1)) for cell in cells
            ]
            width = sum(columns for columns, _ in spans) + sum(left > 0 for left in carried)
            if not carried:
                carried = [0] * width
            assert width == len(carried), table[:200]
            free = [place for place, left in enumerate(carried) if left == 0]
            carried = [max(left - 1, 0) for left in carried]
            for columns, rows in spans:
                for _ in range(columns):
                    carried[free.pop(0)] = rows - 1


def test_it_leads_with_the_question_and_the_answer(text):
    question = text.index("<h1>Does my recommender only look at the last click?</h1>")
    answer = text.index(
        "SASRec leans strongly on the last item; GRU4Rec and BERT4Rec lean but little"
    )
    assert question < answer < text.index("Read with care") < text.index("<figure>")


def test_warnings_and_reasons_are_there(text):
    assert f"ML-100K has only {SMALL['ml-100k'].n_users} test users" in text
    assert "47% of neighbouring interactions in Toys have equal timestamps" in text
    assert "the residual at the prediction position carries the mask token" in text
    assert text.count("a recurrent model has no attention block") >= 10


def test_rejected_rows_are_told_where_the_data_is_described(text):
    section = text[text.index('<section id="data"') :]
    rows = 11 + 5 + round(SMALL["toys"].n_users * 4 * SMALL["toys"].mean_length)

    assert f"<li>Toys leaves out 11 rejected rows of {rows:,} (" in section
    assert "rows rejected</th>" in section


def test_the_answer_gives_no_verdict_for_a_model_that_may_not_have_learnt(tabulated):
    training = tables.read_csv(tabulated / "tables/training.csv", TABLES["training"][0].schema)
    first = (pl.col("model") == "gru4rec") & (pl.col("quantity") == "best_epoch")
    training = training.with_columns(value=pl.when(first).then(1.0).otherwise("value"))

    page = rendered(tabulated, training=training)

    answer = page[: page.index("Read with care")]
    assert '<p class="lead">GRU4Rec on Toys may not have learnt anything: its best' in answer
    assert "BERT4Rec leans but little on the last item" in answer
    assert "GRU4Rec leans" not in answer
    assert answer.count('<td class="word">in doubt</td>') == 2 * len(SMALL)
    assert "On Toys no epoch was better than the first in the training of GRU4Rec" in page


def test_parameters_and_versions_are_there(text):
    assert "bootstrap_draws: 97" in text
    assert re.search(r"<dt>torch</dt><dd>\d+\.\d+", text)
    assert "arXiv 2608.14021" in text


def rendered(root: Path, training: pl.DataFrame | None = None, **changes) -> str:
    settings = params.load(root / "params.yaml").model_dump(mode="json")
    content = {
        "settings": settings,
        "tables": {
            name: tables.read_csv(root / "tables" / f"{name}.csv", layout.schema)
            for name, (layout, _) in TABLES.items()
        },
        "drawings": [],
        "published": load_published(),
        "versions": {"Python": "3"},
    }
    if training is not None:
        content["tables"]["training"] = training
    return render(**content | changes)


def test_what_comes_from_outside_is_escaped(tabulated):
    settings = params.load(tabulated / "params.yaml").model_dump(mode="json")
    settings["datasets"]["toys"] |= {"citation": "<script>alert(1)</script>", "title": "a & b"}

    page = rendered(tabulated, settings=settings, versions={"<b>": "1"})

    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "a &amp; b" in page
    assert "&lt;b&gt;" in page


def test_the_same_run_gives_the_same_page(tabulated):
    assert rendered(tabulated) == rendered(tabulated)


def test_a_run_without_figures_says_why(tabulated):
    assert "plots.formats in params.yaml names no format" in rendered(tabulated)


def test_figures_of_several_cells_are_named_and_folded(tabulated):
    drawings = [
        Drawing(f"figure3_heatmaps_{dataset}_sasrec", "png", dataset.encode()) for dataset in SMALL
    ]

    page = rendered(tabulated, drawings=drawings)

    assert "Figure 3. Who reads from whom: Toys · SASRec" in page
    assert "<summary>Figure 3. Who reads from whom: ML-100K · SASRec</summary>" in page
    assert page.count("data:image/png;base64,") == 2


def test_the_stage_names_figures_that_are_missing(tabulated, tmp_path, monkeypatch):
    for name in ("params.yaml", "tables"):
        (tmp_path / name).symlink_to(tabulated / name)
    monkeypatch.chdir(tmp_path)

    with pytest.raises(UserError, match=r"plots/figures holds no svg figure.*dvc repro"):
        stage.main()


def test_heatmaps_stand_in_the_order_of_the_run(reported, monkeypatch):
    monkeypatch.chdir(reported)

    names = [drawing.name for drawing in stage.drawings(params.load())]

    heatmaps = [name for name in names if name.startswith("figure3")]
    assert heatmaps == [f"figure3_heatmaps_{dataset}_sasrec" for dataset in SMALL]
    assert names.index("figure4_scaling") > names.index(heatmaps[-1])


def test_a_run_without_attention_models_is_tabulated_drawn_and_reported(tmp_path, monkeypatch):
    write_run(
        tmp_path, ("ml-100k",), ("gru4rec",), (17,), bootstrap_draws=53, formats=("png",),
        made_up=SMALL,
    )  # fmt: skip
    monkeypatch.chdir(tmp_path)

    for one in (tables_stage, plot, stage):
        one.main()

    page = Path("report/index.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 2
    assert "not applicable: a recurrent model has no attention block" in page
    assert "One training seed" in page
    assert "seeds ±" not in page

"""The figures: what they draw is what the data say, they can be read, and they are reproducible."""

from __future__ import annotations

import re
from itertools import combinations, pairwise, product
from pathlib import Path

import matplotlib
import numpy as np
import polars as pl
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text

from lastclick import tables
from lastclick.plotting import heatmaps, last_item, recovery, scaling, selection, shuffle, style
from lastclick.plotting.data import SCHEMAS

MODULES = {
    "shuffle": shuffle, "last_item": last_item, "heatmaps": heatmaps, "scaling": scaling,
    "recovery": recovery, "selection": selection,
}  # fmt: skip
MODELS = ("gru4rec", "bert4rec", "sasrec", "duorec", "bsarec")
DATASETS = (
    "beauty", "sports", "toys", "video", "diginetica", "ml-1m", "steam", "beeradvocate", "zvuk"
)  # fmt: skip
ALPHAS = (0.0, 0.1, 0.3, 1.0, 2.0)


def made_up(name: str, datasets: tuple[str, ...], models: tuple[str, ...]) -> pl.DataFrame:
    """Plot data with a different value in every mark."""
    axes = {
        "shuffle": {"metric": shuffle.METRICS, "order": tuple(shuffle.ORDERS)},
        "last_item": {"k": (1, 10), "item": tuple(last_item.ITEMS)},
        "heatmaps": {
            "layer": (1, 2), "map": heatmaps.MAPS, "output_offset": tuple(range(5)),
            "input_offset": tuple(range(5)),
        },
        "scaling": {
            "layers": ("all", "layer1", "layer2"), "alpha": ALPHAS,
            "metric": tuple(metric for panel in scaling.COLUMNS.values() for metric in panel),
        },
        "recovery": {"layers": ("all", "layer1"), "alpha": ALPHAS},
        "selection": {
            "epsilon": (0.0, 0.01, 0.1, 0.5), "chosen_on": ("validation", "test"),
            "metric": tuple(selection.COLUMNS),
        },
    }[name]  # fmt: skip
    keys = {"dataset": datasets, "model": models, **axes}
    rows = [dict(zip(keys, values, strict=True)) for values in product(*keys.values())]
    count = len(rows)
    value = 0.1 + 0.8 * np.arange(count) / count
    frame = pl.DataFrame(rows).with_columns(pl.Series("value", value))
    return frame.with_columns(
        low=pl.col("value") - 0.03, high=pl.col("value") + 0.05, mean=pl.col("value"),
        share=pl.col("value"), share_low=pl.col("value"), share_high=pl.col("value"),
        base_set=pl.lit(1231.0),
    ).select(pl.col(column).cast(kind) for column, kind in SCHEMAS[name].items())  # fmt: skip


def test_bars_are_as_high_as_the_data_say_and_intervals_as_long():
    marks = made_up("shuffle", ("toys", "ml-1m"), ("gru4rec", "sasrec"))

    figure = shuffle.figures(marks)["figure1_shuffle"]

    axes = figure.axes[3]  # second row: ml-1m, second column: NDCG@10
    expected = marks.filter(dataset="ml-1m", metric="NDCG@10")
    bars = sorted(axes.patches, key=lambda bar: bar.get_x())
    assert [bar.get_height() for bar in bars] == pytest.approx(expected["value"].to_list())
    ends = [line.get_segments()[0][:, 1] for line in axes.collections]
    assert np.allclose(ends, expected.select("low", "high").to_numpy())
    labels = [text.get_text() for text in axes.texts]
    assert labels == [f"{share:.0%}" for share in expected["share"]]


def test_pairs_of_bars_are_last_and_second_last_item():
    marks = made_up("last_item", ("toys",), ("gru4rec", "bert4rec", "sasrec"))

    figure = last_item.figures(marks)["figure2_last_item"]

    top_10 = marks.filter(k=10)
    bars = sorted(figure.axes[1].patches, key=lambda bar: bar.get_x())
    assert [bar.get_height() for bar in bars] == pytest.approx(top_10["value"].to_list())


def test_heatmaps_end_at_the_last_position():
    marks = made_up("heatmaps", ("toys",), ("sasrec",))

    figure = heatmaps.figures(marks)["figure3_heatmaps_toys_sasrec"]

    where = {"layer": 2, "map": "attn_res"}
    image = figure.axes[6].images[0].get_array()  # second row, third column
    value = marks.filter(**where, output_offset=0, input_offset=3)["mean"].item()
    assert image[4, 1] == pytest.approx(value)  # bottom row is L; L-3 is three from the right
    corner = marks.filter(**where, output_offset=4, input_offset=0)["mean"].item()
    assert image[0, 4] == pytest.approx(corner)
    assert [label.get_text() for label in figure.axes[6].get_xticklabels()] == ["L", "L−4"]


def test_positions_that_an_output_cannot_see_stay_blank():
    marks = made_up("heatmaps", ("toys",), ("sasrec",)).with_columns(
        mean=pl.when(pl.col("input_offset") < pl.col("output_offset")).then(0.0).otherwise("mean")
    )

    figure = heatmaps.figures(marks)["figure3_heatmaps_toys_sasrec"]

    mask = np.ma.getmaskarray(figure.axes[0].images[0].get_array())
    assert (mask == np.triu(np.ones((5, 5), dtype=bool), k=1)).all()


def test_curves_pass_through_the_data_and_bands_lie_between_the_ends():
    marks = made_up("scaling", ("toys",), ("sasrec", "duorec"))

    axes = scaling.figures(marks)["figure4_scaling"].axes[1]  # HRLI@1

    expected = marks.filter(model="duorec", layers="all", metric="HRLI@1")
    line = axes.lines[1]
    assert list(line.get_xdata()) == list(ALPHAS)
    assert list(line.get_ydata()) == expected["value"].to_list()
    band = axes.collections[1].get_paths()[0].get_extents()
    assert (band.y0, band.y1) == pytest.approx((expected["low"].min(), expected["high"].max()))


def test_both_definitions_of_the_mixing_ratio_are_drawn_apart():
    marks = made_up("scaling", ("toys",), ("sasrec",))

    norm_of_sum, sum_of_norms = scaling.figures(marks)["figure4_scaling"].axes[0].lines[:2]

    assert list(norm_of_sum.get_ydata()) != list(sum_of_norms.get_ydata())
    assert norm_of_sum.get_markerfacecolor() != sum_of_norms.get_markerfacecolor()


def test_single_layers_have_a_figure_of_their_own_where_they_were_scaled():
    marks = made_up("scaling", ("toys",), ("sasrec", "bsarec"))

    assert set(scaling.figures(marks)) == {"figure4_scaling", "figure4_scaling_by_layer"}
    assert set(scaling.figures(marks.filter(layers="all"))) == {"figure4_scaling"}


def test_recovery_names_the_size_of_its_base_sets():
    marks = made_up("recovery", ("toys", "ml-1m"), ("sasrec", "duorec"))

    axes = recovery.figures(marks)["figure5_recovery"].axes[0]

    assert axes.get_title(loc="left") == "base set: SASRec 1,231, DuoRec 1,231"


def test_selection_sets_the_oracle_apart_from_the_honest_choice():
    marks = made_up("selection", ("toys",), ("sasrec",))

    lines = selection.figures(marks)["figure6_selection"].axes[1].lines  # recovery

    for line, chosen_on in zip(lines, ("validation", "test"), strict=True):
        expected = marks.filter(metric="recovery", chosen_on=chosen_on)
        assert list(line.get_ydata()) == expected["value"].to_list()
    assert lines[0].get_markerfacecolor() != lines[1].get_markerfacecolor()
    assert lines[0].get_linestyle() != lines[1].get_linestyle()


@pytest.mark.parametrize("name", ["heatmaps", "scaling", "recovery", "selection"])
def test_a_run_without_attention_models_has_no_such_figure(name):
    assert MODULES[name].figures(pl.DataFrame(schema=SCHEMAS[name])) == {}


def lettering(figure: Figure) -> list[tuple[str, matplotlib.transforms.Bbox]]:
    """Headings, titles, numbers above bars and legends, with the boxes they fill."""
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()
    texts: list[Text] = []
    for axes in figure.axes:
        if axes.get_visible():
            texts += [axes.title, axes._left_title, axes._right_title, *axes.texts]
    boxes = [
        (text.get_text(), text.get_window_extent(renderer)) for text in texts if text.get_text()
    ]
    return boxes + [("legend", legend.get_window_extent(renderer)) for legend in figure.legends]


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("n_datasets", [1, 4])
def test_no_lettering_overlaps_or_leaves_the_figure(name, n_datasets):
    models = MODELS if name in ("shuffle", "last_item") else MODELS[2:]
    # The heatmaps of one data set and model are like those of the next.
    datasets = ("beeradvocate",) if name == "heatmaps" else DATASETS[-n_datasets:]
    drawn = MODULES[name].figures(made_up(name, datasets, models if n_datasets > 1 else models[:1]))

    for figure in drawn.values():
        with style.settings():
            boxes = lettering(figure)
        for (first, one), (second, other) in combinations(boxes, 2):
            apart = not one.padded(-1).overlaps(other.padded(-1))
            assert apart, (first, second)
        for text, box in boxes:
            assert figure.bbox.x0 <= box.x0, text
            assert box.x1 <= figure.bbox.x1, text
            assert box.y1 <= figure.bbox.y1, text


def test_models_differ_in_colour_marker_and_line_and_keep_them():
    found = style.looks([*MODELS, "mine", "theirs"])

    assert style.looks(["sasrec"])["sasrec"] == found["sasrec"]
    assert len({look.colour for look in found.values()}) == len(found)
    attention = [found[model] for model in ("sasrec", "duorec", "bsarec", "mine", "theirs")]
    assert len({look.marker for look in attention}) == len(attention)
    assert len({str(look.line) for look in found.values()}) == len(found)


def lightness(colour: object) -> float:
    """Relative luminance as printers turn it into grey."""
    red, green, blue = to_rgb(colour)
    return 0.299 * red + 0.587 * green + 0.114 * blue


@pytest.mark.parametrize("module", [shuffle.ORDERS, last_item.ITEMS])
def test_bars_of_one_model_differ_in_grey_and_hatch_neighbours(module):
    for look in style.looks(MODELS).values():
        greys = [lightness(style.tint(look.colour, strength)) for strength, *_ in module.values()]
        assert all(later - earlier > 0.08 for earlier, later in pairwise(greys))
    hatches = [hatch for _, hatch, *_ in module.values()]
    assert all(first != second for first, second in pairwise(hatches))


@pytest.mark.parametrize("name", MODULES)
def test_the_same_data_give_the_same_bytes_and_no_date(name, tmp_path):
    marks = made_up(name, ("toys",), ("sasrec",))

    for folder in ("first", "second"):
        style.save(MODULES[name].figures(marks), tmp_path / folder, ("svg", "png"), dpi=60)

    written = sorted((tmp_path / "first").iterdir())
    assert {path.suffix for path in written} == {".svg", ".png"}
    for path in written:
        assert path.read_bytes() == (tmp_path / "second" / path.name).read_bytes()
        assert b"<dc:date>" not in path.read_bytes()
        assert matplotlib.__version__.encode() not in path.read_bytes()


def test_text_in_svg_is_text(tmp_path):
    marks = made_up("last_item", ("toys",), ("bert4rec",))
    style.save(last_item.figures(marks), tmp_path, ("svg",), dpi=60)

    svg = (tmp_path / "figure2_last_item.svg").read_text(encoding="utf-8")
    texts = re.findall(r"<text[^>]*>([^<]+)</text>", svg)
    assert {"Toys", "BERT4Rec", "last input item (HRLI)"} <= set(texts)


def test_drawing_leaves_no_setting_behind():
    before = dict(matplotlib.rcParams)

    scaling.figures(made_up("scaling", ("toys",), ("sasrec",)))

    assert dict(matplotlib.rcParams) == before


def test_the_stage_draws_every_figure(reported: Path):
    names = {path.name for path in (reported / "plots/figures").iterdir()}
    expected = {
        "figure1_shuffle", "figure2_last_item", "figure3_heatmaps_toys_sasrec",
        "figure3_heatmaps_ml-100k_sasrec", "figure4_scaling", "figure4_scaling_by_layer",
        "figure5_recovery", "figure6_selection",
    }  # fmt: skip
    assert names == {f"{name}.svg" for name in expected}


def test_plot_data_of_the_stage_are_what_is_drawn(tabulated: Path):
    marks = tables.read_csv(tabulated / "plots/data/recovery.csv", SCHEMAS["recovery"])

    axes = recovery.figures(marks)["figure5_recovery"].axes[0]

    expected = marks.filter(dataset="toys", layers="all").sort("alpha")
    assert list(axes.lines[0].get_ydata()) == expected["value"].to_list()

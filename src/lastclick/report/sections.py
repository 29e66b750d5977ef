"""The sections of the report: which figures and tables stand together, and what to make of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Section:
    """``figures`` are names of files in plots/figures, or what the names of several start with;
    tables stand in this order. Those in ``folded_figures`` and ``folded`` wait behind a line to
    click."""

    anchor: str
    title: str
    question: str
    figures: tuple[str, ...] = ()
    folded_figures: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    folded: tuple[str, ...] = ()


@dataclass(frozen=True)
class Caption:
    """What a figure shows and does not show, and its description for those who cannot see it."""

    title: str
    shows: str
    does_not_show: str
    alt: str


SECTIONS = (
    Section(
        "order",
        "Does order matter?",
        "The same trained model reads the true sequence, the sequence with everything before the "
        "last item shuffled, and the sequence wholly shuffled. What the second keeps, the order of "
        "earlier items is not needed for; what only the third loses hangs on which item is last.",
        figures=("figure1_shuffle",),
        tables=("shuffle",),
        folded=("permutations",),
    ),
    Section(
        "last-item",
        "Is the last item its own first recommendation?",
        "With nothing filtered out, how often is the item just consumed itself in the top K, and "
        "how often the item before it?",
        figures=("figure2_last_item",),
        tables=("last_item",),
        folded=("last_item_by_k",),
    ),
    Section(
        "mixing",
        "How much do positions mix?",
        "Each attention block's output at a position is a sum of one part per input position. The "
        "mixing ratio is the share of the other positions in it.",
        figures=("figure3_heatmaps",),
        tables=("table2", "table3"),
        folded=("decomposition",),
    ),
    Section(
        "scaling",
        "What if the residual counts less?",
        "The residual of every attention block is multiplied by alpha at prediction time; the "
        "weights stay as they are.",
        figures=("figure4_scaling",),
        folded_figures=("figure4_scaling_by_layer",),
        folded=("scaling",),
    ),
    Section(
        "non-final",
        "Would an earlier position have hit?",
        "The model computes an output at every position but only the one at L is used. Here the "
        "outputs at L-1, L-2 and L-3 are asked for the same target.",
        tables=("table4",),
    ),
    Section(
        "recovery",
        "Can a smaller residual recover those misses?",
        "Of the sequences that miss at L but hit at an earlier position, how many hit at L when "
        "the residual is scaled?",
        figures=("figure5_recovery",),
        folded=("recovery",),
    ),
    Section(
        "selection",
        "Can alpha be chosen without looking at test?",
        "Alpha is chosen on validation for the highest recovery within an allowed loss of HR@10, "
        "and judged on test once.",
        figures=("figure6_selection",),
        folded=("selection",),
    ),
    Section(
        "accuracy",
        "How accurate are the models?",
        "The whole catalogue is ranked for every test user.",
        tables=("accuracy",),
        folded=("accuracy_by_k", "comparisons"),
    ),
    Section(
        "data",
        "What went in?",
        "Data sets after filtering, their split in time, and the training of each model.",
        tables=("table1", "splits", "training"),
        folded=("dropout",),
    ),
)

CAPTIONS = {
    "figure1_shuffle": Caption(
        "Figure 1. Accuracy under shuffled inputs",
        "HR@10 and NDCG@10 with the input in order, all but the last item shuffled, and all "
        "shuffled. Lines are intervals over users; percentages are the share of the accuracy in "
        "order.",
        "A high second bar does not mean that earlier items are unused, only that their order is.",
        "Bar charts of HR@10 and NDCG@10 under three input orders, by data set and model.",
    ),
    "figure2_last_item": Caption(
        "Figure 2. The last two input items among the recommendations",
        "Share of test sequences whose last (HRLI) and second-last (HRL2I) input item is in the "
        "model's top 1 and top 10.",
        "Being close to the last item is not the same as being inaccurate.",
        "Bar charts of HRLI and HRL2I at K = 1 and K = 10, by data set and model.",
    ),
    "figure3_heatmaps": Caption(
        "Figure 3. Who reads from whom",
        "Rows are output positions, columns input positions, both counted back from the last one, "
        "L. From left to right: attention weights, and the share of each input position in the "
        "block's output for attention alone (Attn), with the residual (+Res) and after the "
        "LayerNorm (+LN). A bright diagonal is a position that keeps itself.",
        "Means over sequences hide that single users may mix much more or less. Rows need not add "
        "up to 1: sequences may be longer than the window.",
        "Heatmaps of attention weights and contribution shares for the most recent positions, one "
        "row per layer.",
    ),
    "figure4_scaling": Caption(
        "Figure 4. Scaling the residual of all layers",
        "Mixing ratio after the LayerNorm (both definitions), HRLI@1, HR@10 and NDCG@10 against "
        "alpha. The dashed line is the trained model; bands are intervals over users.",
        "Accuracy lost away from alpha = 1 is not only lost context: later layers were trained for "
        "inputs scaled by 1.",
        "Curves of mixing ratio, HRLI@1, HR@10 and NDCG@10 against the residual scale.",
    ),
    "figure4_scaling_by_layer": Caption(
        "Figure 4, one layer at a time",
        "The same probe in single layers (grey and black) beside all layers at once (coloured); "
        "mixing ratio as norm of sum. Beyond the paper.",
        "Effects of single layers need not add up to that of all.",
        "Curves of the same measures when one layer's residual is scaled, a row per data set and "
        "model.",
    ),
    "figure5_recovery": Caption(
        "Figure 5. Recovery",
        "Share of the base set (miss at L, hit at L-1, L-2 or L-3, all at alpha = 1) that hits at "
        "L under alpha. Zero at alpha = 1 by definition.",
        "Hits that are lost elsewhere do not appear here.",
        "Curves of recovery against the residual scale, a panel per data set.",
    ),
    "figure6_selection": Caption(
        "Figure 6. Alpha chosen on validation",
        "For each allowed loss epsilon: change of HR@10 on test, recovery on test, and the alpha, "
        "chosen on validation (filled) and by an oracle on test (open).",
        "The oracle looked at test: a yardstick, not a result. A choice made on validation can "
        "recover more, where it loses more HR@10 on test than epsilon allows.",
        "Curves of the change of HR@10, recovery and chosen alpha against the allowed loss.",
    ),
}

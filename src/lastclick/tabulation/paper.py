"""Tables 1 to 4 of *residual dominance*, the split sizes and the accuracy of *time to split*."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product

from lastclick.tabulation.layout import Layout, Row, averaged, counted
from lastclick.tabulation.published import look_up
from lastclick.tabulation.study import Study

DEFINITIONS = ("norm_of_sum", "sum_of_norms")
LEVELS = ("attn", "attn_res", "attn_res_ln")
POSITIONS = ("L", "L-1", "L-2")

TABLE1 = Layout(
    name="table1",
    title="Table 1. Data sets after processing",
    side=("dataset",),
    across=("quantity",),
    digits={
        "users": 0, "items": 0, "interactions": 0, "average_length": 1, "density_percent": 2,
        "days": 0, "tie_share": 3, "rows_read": 0, "rows_rejected": 0,
    },
    shows="Size of each data set after consecutive repeats are dropped and users and items with "
    "few interactions are filtered out. Equal counts mean that the same data went in. Tie share "
    "is the share of neighbouring interactions of one user with equal timestamps. Rows read are "
    "those of the source before all that, without the rejected ones, which did not fit its layout.",
    does_not_show="Equal counts do not prove equal order: where many neighbours share their "
    "timestamp, the order inside it is a choice of the source file.",
    published="residual dominance, Table 1",
)  # fmt: skip

SPLITS = Layout(
    name="splits",
    title="Sizes of train, validation and test",
    side=("dataset",),
    across=("quantity",),
    digits={
        "train_interactions": 0, "train_users": 0, "validation_users": 0, "test_users": 0,
        "test_skipped": 0, "mean_holdout_length": 2,
    },
    shows="How many interactions and users train, validate and test. Skipped are users with "
    "interactions after the cut but none before it. The mean holdout length counts the "
    "interactions of a test user after the cut.",
    does_not_show="Every interval in this report is over the test users counted here; few of them "
    "make wide intervals.",
    published="time to split (global time split, quantile 0.9, last target)",
)  # fmt: skip

TABLE2 = Layout(
    name="table2",
    title="Table 2. Mixing ratios",
    side=("dataset", "model"),
    across=("definition", "level"),
    shows="How much of a block's output at a position comes from other positions, averaged over "
    "all real positions and layers: for attention alone (attn), after the residual is added "
    "(attn_res) and after the LayerNorm (attn_res_ln). A small ratio after the residual means that "
    "the position keeps itself.",
    does_not_show="A small ratio is not a proof that context is ignored: small contributions can "
    "carry information, and ranks may hang on them. norm_of_sum and sum_of_norms are two "
    "definitions; the first is never the larger one, and they must not be mixed.",
    published="residual dominance, Table 2 (post-LN block, seed 17)",
)

TABLE3 = Layout(
    name="table3",
    title="Table 3. Mixing ratio by layer and position",
    side=("dataset", "model", "layer"),
    across=("definition", "position"),
    shows="The ratio after the LayerNorm (attn_res_ln) for each layer, at the last position L and "
    "the two before it. Equal values along a row mean that the last position is treated like any "
    "other; what sets it apart is that the prediction is read there.",
    does_not_show="Layers are decomposed one by one. What a layer keeps of its input already "
    "holds what earlier layers mixed in.",
    published="residual dominance, Table 3 (SASRec, post-LN block, seed 17)",
)

TABLE4 = Layout(
    name="table4",
    title="Table 4. Hits that earlier positions would have made",
    side=("dataset", "model"),
    across=("row",),
    shows="Share of all test sequences whose target is in the top 10 read at L, and share that "
    "misses at L although the output at L-1, L-2 or L-3 has the target in its top 10.",
    does_not_show="The rows overlap and must not be added up. Nobody can know beforehand which "
    "position to read, so this is no accuracy that a recommender could reach. A sequence too short "
    "to have the position counts as no hit there.",
    published="residual dominance, Table 4 (SASRec, seed 17)",
)

ACCURACY = Layout(
    name="accuracy",
    title="Accuracy on the test partition",
    side=("dataset", "model"),
    across=("metric",),
    shows="Share of test users whose target is in the top K (HR), the same with hits discounted "
    "by rank (NDCG), mean reciprocal rank (MRR; MRR@K counts ranks beyond K as 0), and the share "
    "of the catalogue that appears in somebody's top K (coverage). The whole catalogue is ranked, "
    "never a sample.",
    does_not_show="The intervals are over users, for the models as trained; another training seed "
    "moves the values by the spread given where several seeds were run.",
    published="time to split, best printed dropout (SASRec there has the classic block)",
)


def table1(study: Study) -> Iterator[Row]:
    """Counts after preprocessing."""
    for dataset in study.datasets:
        report = study.data[dataset]["interactions"]
        found = {
            **{name.removeprefix("n_"): count for name, count in report.items()},
            "density_percent": 100 * report["density"],
        }
        yield from _counts(TABLE1, dataset, found, study.published.data_sets.values)


def splits(study: Study) -> Iterator[Row]:
    """Counts after splitting."""
    for dataset in study.datasets:
        report = study.data[dataset]["split"]
        found = {name.removeprefix("n_"): count for name, count in report.items()}
        found["mean_holdout_length"] = report["mean_test_holdout"]
        yield from _counts(SPLITS, dataset, found, study.published.splits.values)


def _counts(
    layout: Layout,
    dataset: str,
    found: Mapping[str, float],
    printed: Mapping[str, Mapping[str, float]],
) -> Iterator[Row]:
    """One row for each quantity that ``layout`` gives digits for."""
    for quantity in layout.digits:
        published = look_up(printed, dataset, quantity)
        keys = {"dataset": dataset, "quantity": quantity}
        yield keys | counted(found.get(quantity), published)


def table2(study: Study) -> Iterator[Row]:
    """Mixing ratios over all positions and layers."""
    printed = study.published.mixing_ratio.values
    for subject, definition, level in product(study.subjects("decompose"), DEFINITIONS, LEVELS):
        published = look_up(printed, subject.dataset, subject.model, level)
        keys = {"definition": definition, "level": level}
        yield subject.row(keys, f"mixing_ratio/{definition}/{level}", published)


def table3(study: Study) -> Iterator[Row]:
    """Mixing ratios after the LayerNorm, by layer and position."""
    for subject in study.subjects("decompose"):
        printed = study.published.mixing_ratio_by_layer.values if subject.model == "sasrec" else {}
        layers = layers_of(subject.found) or [None]
        for layer, definition, position in product(layers, DEFINITIONS, POSITIONS):
            published = look_up(printed, subject.dataset, layer, position)
            keys = {"layer": str(layer or "–"), "definition": definition, "position": position}
            path = f"by_layer/layer{layer}/{definition}/attn_res_ln/{position}"
            yield subject.row(keys, path, published)


def table4(study: Study) -> Iterator[Row]:
    """Hits at L, and hits at earlier positions that miss at L."""
    rows = {
        "L": ("HR@10 at L", "HR@10/L"),
        **{
            position: (f"hit at {position}, miss at L", f"HR@10/{position}_miss_L")
            for position in ("L-1", "L-2", "L-3")
        },
    }
    for subject in study.subjects("non_final"):
        printed = study.published.non_final_hits.values if subject.model == "sasrec" else {}
        for position, (row, path) in rows.items():
            yield subject.row({"row": row}, path, look_up(printed, subject.dataset, position))


def accuracy(study: Study) -> Iterator[Row]:
    """HR@1, HR@10, NDCG@10, MRR@10, MRR and coverage@10 of the chronological input."""
    for subject in study.subjects("shuffle"):
        published = study.published.best_accuracy(subject.dataset, subject.model)
        for metric in ("HR@1", "HR@10", "NDCG@10", "MRR@10", "MRR"):
            yield subject.row({"metric": metric}, f"chronological/{metric}", published.get(metric))
        covered = study.coverage(subject.dataset, subject.model)[10]
        yield subject.keys | {"metric": "coverage@10"} | averaged(covered)


def layers_of(paths: Iterable[str]) -> list[int]:
    """The layer numbers that metric paths name, ascending."""
    numbers = {
        int(part.removeprefix("layer"))
        for path in paths
        for part in path.split("/")
        if part.startswith("layer") and part.removeprefix("layer").isdigit()
    }
    return sorted(numbers)

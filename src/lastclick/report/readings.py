"""Sentences that say of a section's curves what the eye should find in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from lastclick.report.numbers import Numbers, percent, plural
from lastclick.tabulation.contents import TABLES
from lastclick.tabulation.published import Published
from lastclick.titles import title

#: Which of the two mixing ratios the paper prints.
PRINTED_DEFINITION = "norm_of_sum"

_RESIDUALS = {
    "post_ln": "the block's own input, before the LayerNorm (post-LN block, as in the paper)",
    "classic": "the normalised query, as the classic block adds it",
    "pre_ln": "the block's own input, which no LayerNorm touches on its way (pre-LN block)",
}


def mixing_readings(settings: Mapping[str, Any]) -> Iterator[str]:
    """Which residual is decomposed and scaled, for models that come with several blocks.

    ``settings``: params.yaml as a mapping.
    """
    for model in settings["run"]["attention_models"]:
        section = settings["models"][model]
        block = section.get("block")
        if block in _RESIDUALS:
            yield f"The residual of {title(model)} is {_RESIDUALS[block]}."
        # Weights that were given may have another block on every data set.
        for dataset in settings["run"]["datasets"]:
            checkpoint = section.get("checkpoints", {}).get(dataset)
            if checkpoint:
                yield (
                    f"The residual of {_name(dataset, model)} (layout {checkpoint['layout']}) is "
                    f"{_RESIDUALS[checkpoint['block']]}."
                )


@dataclass(frozen=True)
class Rejected:
    """Rows of a data set's source that did not fit and were left out.

    ``rows``: all rows of the source, or None where they are not known.
    """

    dataset: str
    count: float
    rows: float | None

    @property
    def share(self) -> float | None:
        """The share of all rows."""
        return None if self.rows is None else self.count / self.rows

    def __str__(self) -> str:
        of_all = "" if self.rows is None else f" of {self.rows:,.0f}"
        share = "" if self.share is None else f"{percent(self.share)}; "
        return (
            f"{title(self.dataset)} leaves out {plural(self.count, 'rejected row')}{of_all} "
            f"({share}rejects: lenient)"
        )


def rejected_rows(numbers: Numbers, settings: Mapping[str, Any], dataset: str) -> Rejected | None:
    """What was rejected of a data set; None if that is nothing, or was not recorded.

    ``settings``: params.yaml as a mapping.
    """
    keys = {"dataset": dataset}
    count = numbers.count("table1", **keys, quantity="rows_rejected")
    read = numbers.count("table1", **keys, quantity="rows_read")
    if not count or read is None:
        return None
    # Rows are rejected before users are sampled, and those read are counted after it.
    sampled = settings["datasets"][dataset]["raw"].get("sample_users")
    return Rejected(dataset, count, None if sampled else read + count)


def data_readings(numbers: Numbers, settings: Mapping[str, Any]) -> Iterator[str]:
    """How many rows of each data set were rejected, where any were."""
    for dataset in settings["run"]["datasets"]:
        rejected = rejected_rows(numbers, settings, dataset)
        if rejected is not None:
            yield f"{rejected}."


def scaling_readings(numbers: Numbers) -> Iterator[str]:
    """Which way mixing, last-item reliance and accuracy go as alpha grows."""
    for dataset, model in _cells(numbers, "scaling"):
        keys = {"dataset": dataset, "model": model, "layers": "all"}
        mixing = _curve(numbers, "scaling", **keys, metric="norm_of_sum")
        reliance = _curve(numbers, "scaling", **keys, metric="HRLI@1")
        hits = _curve(numbers, "scaling", **keys, metric="HR@10")
        if min(len(mixing), len(reliance), len(hits)) < 2:
            continue
        yield (
            f"{_name(dataset, model)}: as alpha grows from {_first(mixing)} to {_last(mixing)}, "
            f"the mixing ratio {_course([-value for _, value in mixing], 'falls')} "
            f"({mixing[0][1]:.3f} to {mixing[-1][1]:.3f}) and HRLI@1 "
            f"{_course([value for _, value in reliance], 'rises')} ({percent(reliance[0][1])} to "
            f"{percent(reliance[-1][1])}); HR@10 is highest at {_best(hits)}."
        )


def recovery_readings(numbers: Numbers, published: Published) -> Iterator[str]:
    """Where recovery peaks and what the same alpha costs."""
    for dataset, model in _cells(numbers, "recovery"):
        keys = {"dataset": dataset, "model": model, "layers": "all"}
        curve = _curve(numbers, "recovery", **keys, metric="recovery")
        if not curve:
            continue
        alpha, _ = _peak(curve)
        recovered = numbers.estimate("recovery", **keys, alpha=alpha, metric="recovery")
        base = numbers.count("recovery", **keys, alpha=alpha, metric="base set")
        cost = numbers.estimate("scaling", **keys, alpha=alpha, metric="HR@10 − alpha 1")
        if recovered is None or base is None or recovered.value == 0:
            continue
        sentence = (
            f"{_name(dataset, model)}: recovery is highest at alpha = {alpha}, where "
            f"{recovered.percent()} of {plural(base, 'recoverable miss', 'recoverable misses')} "
            "become hits"
        )
        if cost is not None:
            sentence += f"; over all users HR@10 changes by {cost.signed()} there"
        bound = published.recovery.peak_above.get(dataset)
        if bound is not None:
            sentence += f" (published: above {percent(bound)})"
        yield sentence + "."
    peak = published.recovery.peak_alpha
    yield f"The published curves peak at alpha {peak.lowest:g} to {peak.highest:g}."


def published_readings(numbers: Numbers, published: Published) -> Iterator[str]:
    """How many published values lie within this run's intervals, table by table."""
    compared = {
        name: [
            row["published_within_interval"]
            for row in numbers.rows(name)
            if row["published_within_interval"] is not None
            # The other definition is another quantity: each print is counted once.
            and row.get("definition", PRINTED_DEFINITION) == PRINTED_DEFINITION
        ]
        for name in TABLES
    }
    compared = {name: inside for name, inside in compared.items() if inside}
    ranges = list(_ranges(numbers, published))
    if not compared and not ranges:
        yield (
            "The papers print no value for the data sets and models of this run, so nothing can "
            "be set beside them."
        )
        return
    for name, inside in compared.items():
        yield (
            f"{TABLES[name][0].title}: {sum(inside)} of "
            f"{plural(len(inside), 'published value')} within the interval of ours."
        )
    distances = {
        definition: fmean(abs(row["difference"]) for row in rows)
        for definition in ("norm_of_sum", "sum_of_norms")
        if (
            rows := [
                row
                for row in numbers.rows("table2", definition=definition)
                if row["difference"] is not None
            ]
        )
    }
    if len(distances) == 2:
        nearer = min(distances, key=lambda definition: distances[definition])
        other = max(distances, key=lambda definition: distances[definition])
        yield (
            f"The printed mixing ratios lie nearer to {title(nearer)} (mean distance "
            f"{distances[nearer]:.4f}) than to {title(other)} ({distances[other]:.4f})."
        )
    yield from ranges


def _ranges(numbers: Numbers, published: Published) -> Iterator[str]:
    """Mixing ratios of which the paper prints a range over data sets only."""
    for level, bounds in published.mixing_ratio_ranges.values.items():
        keys = {"model": "sasrec", "definition": PRINTED_DEFINITION, "level": level}
        for row in numbers.rows("table2", **keys):
            if row["published"] is None and row["dataset"] in bounds.data_sets:
                yield (
                    f"{title(level)} of {_name(row['dataset'], 'sasrec')} is {row['value']:.3f} "
                    f"(norm of sum); the printed range is {bounds.lowest:g} to {bounds.highest:g}."
                )


def _cells(numbers: Numbers, table: str) -> Sequence[tuple[str, str]]:
    frame = numbers.tables[table].select("dataset", "model")
    return frame.unique(maintain_order=True).rows()


def _curve(numbers: Numbers, table: str, **keys: str) -> list[tuple[str, float]]:
    rows = [(row["alpha"], row["value"]) for row in numbers.rows(table, **keys)]
    return sorted(rows, key=lambda point: float(point[0]))


def _first(curve: Sequence[tuple[str, float]]) -> str:
    return curve[0][0]


def _last(curve: Sequence[tuple[str, float]]) -> str:
    return curve[-1][0]


def _peak(curve: Sequence[tuple[str, float]]) -> tuple[str, float]:
    return max(curve, key=lambda point: point[1])


def _best(hits: Sequence[tuple[str, float]]) -> str:
    alpha, highest = _peak(hits)
    if alpha == "1":
        return "alpha = 1, the trained model"
    return f"alpha = {alpha} ({highest:.4f}; {dict(hits)['1']:.4f} at alpha = 1)"


def _course(values: Sequence[float], verb: str) -> str:
    """Whether ``values``, two or more, rise; ``verb`` says it of what the reader is shown."""
    against = sum(later <= earlier for earlier, later in pairwise(values))
    if not against:
        return f"{verb} at every step"
    if values[-1] <= values[0]:
        return f"does not {verb[:-1]} overall"
    return f"{verb} at all but {plural(against, 'step')}"


def _name(dataset: str, model: str) -> str:
    return f"{title(model)} on {title(dataset)}"

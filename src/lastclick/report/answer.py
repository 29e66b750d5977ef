"""The question and the answer that this run gives, in plain words made from its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lastclick.report.numbers import Estimate, Numbers, listing, percent, percents
from lastclick.titles import title

# Words for the gap HRLI@1 - HRL2I@1: how much likelier the last input item is to be the first
# recommendation than the one before it. A reading aid with round limits, not a test.
STRONG, LITTLE = 0.5, 0.2

MAY_NOT_CONCLUDE = (
    "This is a structural account of what a trained model does at prediction time, not a proof of "
    "cause: the causal mask, position encoding, training objective, optimisation and the recency "
    "in the data itself may all contribute.",
    "Reliance on the last item need not be a fault. The last item is often the best single clue.",
    "HRLI is a diagnostic, not an accuracy.",
    "A smaller residual scale is a probe, not a better recommender: it costs overall accuracy, and "
    "recovery counts only sequences that were misses before.",
)


@dataclass(frozen=True)
class Answer:
    """One model on one data set; None where a number does not apply or could not be measured."""

    dataset: str
    model: str
    first_is_last: Estimate | None
    first_is_second_last: Estimate | None
    gap: Estimate | None
    kept_by_partial: Estimate | None
    kept_by_full: Estimate | None
    mixing_attention: Estimate | None
    mixing_block: Estimate | None

    @property
    def reliance(self) -> str | None:
        """ "strongly", "partly" or "little": how the model leans on the last item."""
        if self.gap is None:
            return None
        if self.gap.low >= STRONG:
            return "strongly"
        return "little" if self.gap.high < LITTLE else "partly"


def answers(numbers: Numbers, datasets: Sequence[str], models: Sequence[str]) -> list[Answer]:
    """What the run says of every model on every data set."""
    found = []
    for dataset in datasets:
        for model in models:
            keys = {"dataset": dataset, "model": model}
            order = {**keys, "metric": "HR@10"}
            mixing = {**keys, "definition": "norm_of_sum"}
            found.append(
                Answer(
                    dataset,
                    model,
                    first_is_last=numbers.estimate("last_item", **keys, metric="HRLI@1"),
                    first_is_second_last=numbers.estimate("last_item", **keys, metric="HRL2I@1"),
                    gap=numbers.estimate("last_item", **keys, metric="HRLI@1 − HRL2I@1"),
                    kept_by_partial=numbers.estimate("shuffle", **order, order="partial share"),
                    kept_by_full=numbers.estimate("shuffle", **order, order="full share"),
                    mixing_attention=numbers.estimate("table2", **mixing, level="attn"),
                    mixing_block=numbers.estimate("table2", **mixing, level="attn_res_ln"),
                )
            )
    return found


def short_answer(found: Sequence[Answer]) -> str:
    """One or two sentences on all models and data sets of the run."""
    datasets = list(dict.fromkeys(answer.dataset for answer in found))
    models = list(dict.fromkeys(answer.model for answer in found))
    where = "" if len(datasets) == 1 else " on every data set"
    groups: dict[str, list[str]] = {}
    mixed = []
    for model in models:
        words = {answer.reliance for answer in found if answer.model == model} - {None}
        if len(words) == 1:
            groups.setdefault(words.pop(), []).append(title(model))
        elif words:
            mixed.append(title(model))
    parts = [
        f"{listing(groups[word])} {_leans(word, len(groups[word]))} on the last item{where}"
        for word in ("strongly", "partly", "little")
        if word in groups
    ]
    if mixed:
        verb = "depends" if len(mixed) == 1 else "depend"
        parts.append(f"how far {listing(mixed)} {_does(len(mixed))} so {verb} on the data set")
    if not parts:
        return "This run cannot say: the reliance on the last item could not be measured."
    if list(groups) == ["strongly"] and not mixed:
        start = "Yes, mostly: "
    elif list(groups) == ["little"] and not mixed:
        start = "No: "
    else:
        start = "That depends: "
    return f"{start}{'; '.join(parts)}."


def paragraph(dataset: str, found: Sequence[Answer]) -> list[str]:
    """Sentences on one data set."""
    here = [answer for answer in found if answer.dataset == dataset]
    sentences = []
    for word in ("strongly", "partly", "little"):
        group = [answer for answer in here if answer.reliance == word]
        if group:
            sentences.append(_on_last_item(word, group))
    mixing = [answer for answer in here if answer.mixing_block and answer.mixing_attention]
    if mixing:
        names = listing([title(answer.model) for answer in mixing])
        attention = percents(answer.mixing_attention.value for answer in mixing)
        block = percents(answer.mixing_block.value for answer in mixing)
        sentences.append(
            f"Inside {names}, attention alone takes {attention} of its output from other "
            f"positions; once the residual is added and normalised, {block} is left (norm of sum, "
            "mean over positions and layers)."
        )
    return sentences


def _on_last_item(word: str, group: Sequence[Answer]) -> str:
    names = listing([title(answer.model) for answer in group])
    last = percents(answer.first_is_last.value for answer in group)
    second = percents(answer.first_is_second_last.value for answer in group)
    sentence = (
        f"{names} {_leans(word, len(group))} on the last item: it is itself the first "
        f"recommendation for {last} of the test sequences, the item before it for {second}."
    )
    kept = [answer for answer in group if answer.kept_by_partial and answer.kept_by_full]
    if kept:
        partial = percents(answer.kept_by_partial.value for answer in kept)
        full = percents(answer.kept_by_full.value for answer in kept)
        sentence += (
            f" With everything before the last item shuffled, {partial} of HR@10 is kept; with "
            f"the last item shuffled along, {full}."
        )
    return sentence


def _leans(word: str, count: int) -> str:
    verb = "leans" if count == 1 else "lean"
    return f"{verb} {'but little' if word == 'little' else word}"


def _does(count: int) -> str:
    return "does" if count == 1 else "do"


def limits() -> str:
    """How the words strongly, partly and little are meant."""
    return (
        f"Words for the gap between the two shares (HRLI@1 − HRL2I@1): strongly, if its interval "
        f"lies above {percent(STRONG)}; little, if below {percent(LITTLE)}; partly, otherwise. A "
        "reading aid, not a test."
    )

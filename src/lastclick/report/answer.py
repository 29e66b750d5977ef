"""The question and the answer that this run gives, in plain words made from its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lastclick.report.learning import doubts
from lastclick.report.numbers import Estimate, Numbers, listing, percent, percents
from lastclick.titles import title

# Words for the gap HRLI@1 - HRL2I@1: how much likelier the last input item is to be the first
# recommendation than the one before it. Reading aids with round limits, not tests.
STRONG, LITTLE = 0.5, 0.2
# Accuracy is "hardly" changed by a shuffle that keeps at least this share of it.
KEPT = 0.8
# In place of all these words, for a model that may not have learnt.
IN_DOUBT = "in doubt"

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
    """One model on one data set; None where a number does not apply or could not be measured.

    ``doubts``: why the model may not have learnt anything; with any, no other word is given.
    """

    dataset: str
    model: str
    last_item_hit_rate: Estimate | None
    second_last_item_hit_rate: Estimate | None
    gap: Estimate | None
    kept_by_partial: Estimate | None
    kept_by_full: Estimate | None
    mixing_ratio_attn: Estimate | None
    mixing_ratio_attn_res_ln: Estimate | None
    doubts: tuple[str, ...] = ()

    @property
    def echo(self) -> str | None:
        """ "strongly", "partly" or "little": how much the recommendations lean on the last item;
        or "in doubt"."""
        if self.gap is None:
            return None
        if self.doubts:
            return IN_DOUBT
        if self.gap.low >= STRONG:
            return "strongly"
        return "little" if self.gap.high < LITTLE else "partly"

    @property
    def order(self) -> str | None:
        """What of the order the accuracy needs: "last item", "none", "earlier too", "unclear";
        or "in doubt"."""
        if self.kept_by_partial is None or self.kept_by_full is None:
            return None
        if self.doubts:
            return IN_DOUBT
        if self.kept_by_partial.high < KEPT:
            return "earlier too"
        if self.kept_by_partial.low < KEPT:
            return "unclear"
        if self.kept_by_full.high < KEPT:
            return "last item"
        return "none" if self.kept_by_full.low >= KEPT else "unclear"


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
                    last_item_hit_rate=numbers.estimate("last_item", **keys, metric="HRLI@1"),
                    second_last_item_hit_rate=numbers.estimate(
                        "last_item", **keys, metric="HRL2I@1"
                    ),
                    gap=numbers.estimate("last_item", **keys, metric="HRLI@1 − HRL2I@1"),
                    kept_by_partial=numbers.estimate("shuffle", **order, order="partial share"),
                    kept_by_full=numbers.estimate("shuffle", **order, order="full share"),
                    mixing_ratio_attn=numbers.estimate("table2", **mixing, level="attn"),
                    mixing_ratio_attn_res_ln=numbers.estimate(
                        "table2", **mixing, level="attn_res_ln"
                    ),
                    doubts=doubts(numbers, dataset, model),
                )
            )
    return found


_ECHO = {
    "strongly": ("leans strongly on the last item", "lean strongly on the last item"),
    "partly": ("leans partly on the last item", "lean partly on the last item"),
    "little": ("leans but little on the last item", "lean but little on the last item"),
}
_ORDER = {
    "last item": (
        "needs to know which item is last, but hardly the order before it",
        "need to know which item is last, but hardly the order before it",
    ),
    "earlier too": (
        "also needs the order before the last item",
        "also need the order before the last item",
    ),
    "none": ("hardly needs any order", "hardly need any order"),
}


def short_answer(found: Sequence[Answer]) -> list[str]:
    """One sentence by what the models recommend, one by what shuffled inputs cost them.

    Before them, one for each model that may not have learnt: of it the two say nothing.
    """
    echo = _parts(found, [answer.echo for answer in found], _ECHO)
    order = _parts(found, [answer.order for answer in found], _ORDER)
    if any(answer.order == "unclear" for answer in found):
        order.append("the rest is unclear" if order else "this run cannot tell")
    sentences = [
        f"{title(answer.model)} on {title(answer.dataset)} may not have learnt anything: "
        f"{listing(answer.doubts)}. No verdict is given for it."
        for answer in found
        if answer.doubts
    ]
    if echo:
        sentences.append(f"Going by what they recommend, {'; '.join(echo)}.")
    if order:
        sentences.append(f"Going by what shuffling the input costs, {'; '.join(order)}.")
    return sentences or ["This run cannot say: neither diagnostic could be measured."]


def _parts(
    found: Sequence[Answer], words: Sequence[str | None], phrases: Mapping[str, tuple[str, str]]
) -> list[str]:
    """One clause for each word of ``phrases`` (singular, plural) that holds for somebody.

    A model for which it does not hold on every data set stands with those for which it does.
    """
    n_datasets = len({answer.dataset for answer in found})
    clauses = []
    for word, (singular, plural) in phrases.items():
        where: dict[str, list[str]] = {answer.model: [] for answer in found}
        for answer, holds in zip(found, words, strict=True):
            if holds == word:
                where[answer.model].append(title(answer.dataset))
        names = [
            title(model)
            if len(datasets) == n_datasets
            else f"{title(model)} ({', '.join(datasets)})"
            for model, datasets in where.items()
            if datasets
        ]
        if names:
            clauses.append(f"{listing(names)} {singular if len(names) == 1 else plural}")
    return clauses


def paragraph(dataset: str, found: Sequence[Answer]) -> list[str]:
    """Sentences on one data set."""
    here = [answer for answer in found if answer.dataset == dataset]
    sentences = []
    for word in ("strongly", "partly", "little", IN_DOUBT):
        group = [answer for answer in here if answer.echo == word]
        if group:
            sentences.append(_on_last_item(word, group))
    mixing = [
        answer for answer in here if answer.mixing_ratio_attn and answer.mixing_ratio_attn_res_ln
    ]
    if mixing:
        names = listing([title(answer.model) for answer in mixing])
        attention = percents(answer.mixing_ratio_attn.value for answer in mixing)
        block = percents(answer.mixing_ratio_attn_res_ln.value for answer in mixing)
        sentences.append(
            f"Inside {names}, attention alone takes {attention} of its output from other "
            f"positions; once the residual is added and normalised, {block} is left (norm of sum, "
            "mean over positions and layers)."
        )
    return sentences


def _on_last_item(word: str, group: Sequence[Answer]) -> str:
    names = listing([title(answer.model) for answer in group])
    last = percents(answer.last_item_hit_rate.value for answer in group)
    second = percents(answer.second_last_item_hit_rate.value for answer in group)
    if word == IN_DOUBT:
        opening = f"{names} may not have learnt anything; as trained, the last item is"
    else:
        opening = f"{names} {_ECHO[word][len(group) > 1]}: it is"
    sentence = (
        f"{opening} itself the first recommendation for {last} of the test sequences, the item "
        f"before it for {second}."
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


def limits() -> str:
    """How the words of the answer are meant."""
    return (
        "Words for the gap between the first two shares (HRLI@1 − HRL2I@1): strongly, if its "
        f"interval lies above {percent(STRONG)}; little, if below {percent(LITTLE)}; partly, "
        "otherwise. Words for shuffling: an order is hardly needed if the interval of what is "
        f"kept lies above {percent(KEPT)}, needed if below, unclear otherwise. Both are "
        f"{IN_DOUBT} for a model that may not have learnt anything. Reading aids, not tests."
    )

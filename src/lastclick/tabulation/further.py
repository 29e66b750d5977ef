"""Tables beyond the paper's four: everything else that the diagnostics found."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from lastclick.tabulation.layout import Layout, Row, averaged, counted, measured
from lastclick.tabulation.paper import DEFINITIONS, LEVELS, layers_of
from lastclick.tabulation.study import COMPARED, Study, Subject

#: Where an alpha of the diagnostic ``select`` was chosen -> what its metrics' names begin with.
CHOSEN_ON = {"validation": "", "test": "oracle_"}

ACCURACY_BY_K = Layout(
    name="accuracy_by_k",
    title="Accuracy at every K",
    side=("dataset", "model", "K"),
    across=("metric",),
    shows="Hit rate, NDCG, MRR and catalogue coverage for every cut-off K of the run.",
    does_not_show="Coverage is of the catalogue as a whole and has no interval over users.",
)

COMPARISONS = Layout(
    name="comparisons",
    title="Models against each other, paired by user",
    side=("dataset", "pair"),
    across=("metric",),
    shows="Difference of two models on the same users. An interval that does not hold 0 means "
    "that the difference is larger than the chance of which users were tested.",
    does_not_show="Several pairs and metrics are compared without correction for their number, "
    "and the training seed is a further source of chance.",
)

SHUFFLE = Layout(
    name="shuffle",
    title="Accuracy under shuffled inputs (Figure 1)",
    side=("dataset", "model", "metric"),
    across=("order",),
    shows="The same trained model reads the input in order (chronological), with everything "
    "before the last item permuted (partial) and wholly permuted (full), averaged over several "
    "permutations. share: accuracy under the order over chronological accuracy; change: the paired "
    "difference.",
    does_not_show="High accuracy under the partial shuffle does not mean that earlier items are "
    "unused, only that their order is little used.",
)

PERMUTATIONS = Layout(
    name="permutations",
    title="Accuracy under each permutation",
    side=("dataset", "model", "permutation"),
    across=("order", "metric"),
    shows="The same for each seed of the permutation alone, mean over training seeds: how much one "
    "shuffle differs from the next.",
    does_not_show="The spread over permutations is no interval over users.",
)

LAST_ITEM = Layout(
    name="last_item",
    title="How often the last two input items are themselves recommended (Figure 2)",
    side=("dataset", "model"),
    across=("metric",),
    shows="Share of test sequences whose last input item (HRLI) or second-last input item (HRL2I) "
    "is in the model's own top K, nothing filtered. A large gap between the two means that the "
    "output stays close to the last item alone.",
    does_not_show="A diagnostic, not an accuracy: recommending the last item again is mostly "
    "useless, and where users do consume repeatedly it can be right.",
)

LAST_ITEM_BY_K = Layout(
    name="last_item_by_k",
    title="HRLI and HRL2I at every K",
    side=("dataset", "model", "K"),
    across=("metric",),
    shows="The same for every cut-off K of the run.",
    does_not_show="At a large K most models have both items in their top K; the gap closes.",
)

SCALING = Layout(
    name="scaling",
    title="Residual scaling (Figure 4)",
    side=("dataset", "model", "layers", "alpha"),
    across=("metric",),
    shows="The residual of the attention blocks is multiplied by alpha at prediction time, in all "
    "layers or in one, weights untouched; 1 is the trained model. If the residual makes the last "
    "item dominate, a smaller alpha raises the mixing ratio and lowers HRLI.",
    does_not_show="An intervention on a trained model, not another training: accuracy falls when "
    "alpha leaves 1 also because the later layers never saw such inputs.",
)

RECOVERY = Layout(
    name="recovery",
    title="Recovery (Figure 5)",
    side=("dataset", "model", "layers", "alpha"),
    across=("metric",),
    shows="Base set: test sequences that miss at L under alpha = 1 but hit at L-1, L-2 or L-3. "
    "Recovery is the share of them that hits at L under alpha; 0 at alpha = 1 by definition.",
    does_not_show="Conditional on the base set, which is small, and blind to the hits that are "
    "lost outside it: see the change of HR@10 in the scaling table.",
    digits={"recovery": 4, "base set": 0, "sequences": 0},
)

SELECTION = Layout(
    name="selection",
    title="Alpha chosen on validation, judged on test (Figure 6)",
    side=("dataset", "model", "epsilon"),
    across=("quantity", "chosen on"),
    shows="On validation, the alpha with the highest recovery among those that lose at most the "
    "share epsilon of HR@10; then, once, its effect on test. The columns chosen on test are an "
    "oracle's.",
    does_not_show="The oracle is a yardstick, not a result; a choice made on validation can "
    "recover more where it breaks the limit on test. A gain in recovery beside a loss in HR@10 is "
    "no better recommender.",
)

DECOMPOSITION = Layout(
    name="decomposition",
    title="Mixing ratios in full",
    side=("dataset", "model", "positions", "layer"),
    across=("definition", "level"),
    shows="Both definitions at all three levels: over all positions, at single positions, and "
    "without the oldest position of each sequence, which has nobody to mix with; over all layers "
    "and for each.",
    does_not_show="See Table 2; single positions average over the users that have them, so rows "
    "differ a little in whom they count.",
)

TRAINING = Layout(
    name="training",
    title="Training",
    side=("dataset", "model", "seed"),
    across=("quantity",),
    shows="Dropout (chosen on validation where params.yaml asks for it), epochs until early "
    "stopping, the epoch whose weights were kept, and its NDCG@10 on the sampled validation users.",
    does_not_show="NDCG@10 on validation chose the epoch and perhaps the dropout; it is no "
    "estimate of test accuracy.",
    digits={"dropout": 2, "epochs": 0, "best_epoch": 0, "validation_NDCG@10": 4},
)

DROPOUT = Layout(
    name="dropout",
    title="Choice of dropout",
    side=("dataset", "model"),
    across=("dropout",),
    shows="NDCG@10 on all of validation for each dropout, first seed; the highest is used.",
    does_not_show="Neighbouring values often differ by less than a seed does.",
)


def comparisons(study: Study) -> Iterator[Row]:
    """Paired differences of every pair of models."""
    names = [name for _, measures in COMPARED.values() for name in measures]
    for (dataset, pair), found in study.comparisons.items():
        for name in names:
            keys = {"dataset": dataset, "pair": pair.replace("_minus_", " − "), "metric": name}
            yield keys | measured(found.get(name))


def shuffle(study: Study) -> Iterator[Row]:
    """Accuracy by order, with the share that is left and the paired difference."""
    columns = {
        "chronological": "chronological",
        "partial": "partial",
        "partial share": "partial_share_of_chronological",
        "partial change": "partial_minus_chronological",
        "full": "full",
        "full share": "full_share_of_chronological",
        "full change": "full_minus_chronological",
    }
    for subject, metric in product(study.subjects("shuffle"), ("HR@10", "NDCG@10")):
        for order, path in columns.items():
            yield subject.row({"metric": metric, "order": order}, f"{path}/{metric}")


def permutations(study: Study) -> Iterator[Row]:
    """Accuracy under every single permutation."""
    for subject in study.subjects("shuffle"):
        facts = study.facts["shuffle"][subject.dataset, subject.model]
        per_seed = [of_seed["by_order_seed"] for of_seed in facts]
        for order in ("partial", "full"):
            for permutation, metric in product(per_seed[0].get(order, {}), ("HR@10", "NDCG@10")):
                keys = {"permutation": permutation, "order": order, "metric": metric}
                values = [found[order][permutation][metric] for found in per_seed]
                yield subject.keys | keys | averaged(values)


def last_item(study: Study) -> Iterator[Row]:
    """HRLI, HRL2I and their difference at K = 1 and 10."""
    for subject, k in product(study.subjects("last_item"), (1, 10)):
        for path in (f"HRLI@{k}", f"HRL2I@{k}", f"HRLI@{k}_minus_HRL2I@{k}"):
            yield subject.row({"metric": path.replace("_minus_", " − ")}, path)


def last_item_by_k(study: Study) -> Iterator[Row]:
    """HRLI, HRL2I and their difference at every K."""
    templates = {
        "HRLI@K": "HRLI@{0}",
        "HRL2I@K": "HRL2I@{0}",
        "difference": "HRLI@{0}_minus_HRL2I@{0}",
    }
    for subject, k in product(study.subjects("last_item"), study.ks):
        for metric, template in templates.items():
            yield subject.row({"K": str(k), "metric": metric}, template.format(k))


def accuracy_by_k(study: Study) -> Iterator[Row]:
    """HR, NDCG, MRR and coverage at every K."""
    for subject, k in product(study.subjects("shuffle"), study.ks):
        for metric in ("HR", "NDCG", "MRR"):
            keys = {"K": str(k), "metric": f"{metric}@K"}
            yield subject.row(keys, f"chronological/{metric}@{k}")
        covered = study.coverage(subject.dataset, subject.model)[k]
        yield subject.keys | {"K": str(k), "metric": "coverage@K"} | averaged(covered)


def scaling(study: Study) -> Iterator[Row]:
    """The alpha grid, all layers and one at a time."""
    paths = {
        "HR@10": "HR@10", "HR@10 − alpha 1": "HR@10_minus_alpha_1", "NDCG@10": "NDCG@10",
        "HRLI@1": "HRLI@1", "HRLI@10": "HRLI@10", "HRL2I@1": "HRL2I@1",
        "norm_of_sum": "mixing_ratio/norm_of_sum", "sum_of_norms": "mixing_ratio/sum_of_norms",
    }  # fmt: skip
    for subject in study.subjects("scale"):
        for condition, prefix in conditions(subject):
            for metric, path in paths.items():
                yield subject.row(condition | {"metric": metric}, f"{prefix}/{path}")


def recovery(study: Study) -> Iterator[Row]:
    """Recovery over the alpha grid, with the size of its base set."""
    sizes = {"base set": "base_set", "sequences": "n_sequences"}
    # The conditions of scaling, not those with a recovery: without a base set there is none, and
    # that is to be said.
    for subject, scaled in zip(study.subjects("recover"), study.subjects("scale"), strict=True):
        for condition, prefix in conditions(scaled):
            yield subject.row(condition | {"metric": "recovery"}, f"{prefix}/recovery")
            for metric, fact in sizes.items():
                keys = condition | {"metric": metric}
                if subject.reason:
                    yield subject.keys | keys | {"note": subject.reason}
                else:
                    facts = study.facts["recover"][subject.dataset, subject.model]
                    yield subject.keys | keys | averaged([of_seed[fact] for of_seed in facts])


def selection(study: Study) -> Iterator[Row]:
    """Chosen alphas and what they do on test."""
    for subject in study.subjects("select"):
        if subject.reason:
            keys = {"epsilon": "–", "quantity": "alpha", "chosen on": "validation"}
            yield subject.keys | keys | {"note": subject.reason}
        for epsilon, alphas in chosen_alphas(study, subject).items():
            for chosen_on in CHOSEN_ON:
                keys = {"epsilon": epsilon, "quantity": "alpha", "chosen on": chosen_on}
                yield subject.keys | keys | averaged(alphas[chosen_on])
            for quantity in ("delta_HR@10", "recovery"):
                for chosen_on, prefix in CHOSEN_ON.items():
                    keys = {"epsilon": epsilon, "quantity": quantity, "chosen on": chosen_on}
                    yield subject.row(keys, f"epsilon={epsilon}/{prefix}{quantity}")


def decomposition(study: Study) -> Iterator[Row]:
    """Mixing ratios by definition and level, over sets of positions and layers."""
    for subject in study.subjects("decompose"):
        rows = [("all", "all", "mixing_ratio/{}/{}")]
        if not subject.reason:
            rows.append(("all but the oldest", "all", "without_first_position/{}/{}"))
        rows += [
            (position, str(layer), f"by_layer/layer{layer}/{{}}/{{}}/{position}")
            for layer in layers_of(subject.found)
            for position in ("all", "L", "L-1", "L-2")
        ]
        for (positions, layer, path), definition, level in product(rows, DEFINITIONS, LEVELS):
            keys = {
                "positions": positions, "layer": layer, "definition": definition, "level": level
            }  # fmt: skip
            yield subject.row(keys, path.format(definition, level))


def training(study: Study) -> Iterator[Row]:
    """Dropout, epochs and validation accuracy of every trained model."""
    for (dataset, model), descriptions in study.trained.items():
        for described in descriptions:
            values = {
                "dropout": described["config"].get("dropout"),
                "epochs": described["n_epochs"],
                "best_epoch": described["best_epoch"],
                "validation_NDCG@10": described["validation_NDCG@10"],
            }
            keys = {"dataset": dataset, "model": model, "seed": str(described["seed"])}
            for quantity, value in values.items():
                yield keys | {"quantity": quantity, **counted(value)}


def dropout(study: Study) -> Iterator[Row]:
    """Validation accuracy over the dropout grid, where dropout was chosen."""
    for (dataset, model), tuned in study.tuned.items():
        for value, found in tuned.get("grid", {}).items():
            keys = {"dataset": dataset, "model": model, "dropout": value}
            yield keys | counted(found["validation_NDCG@10"])


def chosen_alphas(study: Study, subject: Subject) -> dict[str, dict[str, list[float]]]:
    """epsilon -> where it was chosen (as in ``CHOSEN_ON``) -> the alpha of every training seed."""
    found: dict[str, dict[str, list[float]]] = {}
    for facts in study.facts.get("select", {}).get((subject.dataset, subject.model), ()):
        for epsilon, choice in facts["choices"].items():
            alphas = found.setdefault(epsilon, {"validation": [], "test": []})
            alphas["validation"].append(choice["alpha"])
            alphas["test"].append(choice["alpha_oracle"])
    return found


def conditions(subject: Subject) -> list[tuple[Row, str]]:
    """Layers and alpha of every residual scale, as keys, and what its metric paths begin with.

    Where residual scaling does not apply, one condition of dashes, to hold the reason.
    """
    if subject.reason:
        return [({"layers": "–", "alpha": "–"}, "")]
    prefixes = dict.fromkeys(
        "/".join(path.split("/")[:2]) for path in subject.found if "/alpha=" in path
    )
    return [
        (dict(zip(("layers", "alpha"), prefix.split("/alpha="), strict=True)), prefix)
        for prefix in prefixes
    ]

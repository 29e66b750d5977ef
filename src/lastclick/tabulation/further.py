"""Tables beyond the paper's four: everything else that the diagnostics found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Any

from lastclick.tabulation.layout import Layout, Row, counted, measured
from lastclick.tabulation.paper import DEFINITIONS, LEVELS, layers_of
from lastclick.tabulation.study import COMPARED, Study

ACCURACY_BY_K = Layout(
    name="accuracy_by_k",
    title="Accuracy at every K",
    side=("dataset", "model", "K"),
    across=("metric",),
    shows="Hit rate, NDCG and catalogue coverage for every cut-off K of the run.",
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
    does_not_show="The oracle is a bound, not a result. A gain in recovery beside a loss in HR@10 "
    "is no better recommender.",
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
    for dataset in study.datasets:
        for model in study.models:
            found = study.found("shuffle", dataset, model)
            for metric in ("HR@10", "NDCG@10"):
                for order, path in columns.items():
                    keys = {"dataset": dataset, "model": model, "metric": metric, "order": order}
                    yield keys | measured(found.get(f"{path}/{metric}"))


def permutations(study: Study) -> Iterator[Row]:
    """Accuracy under every single permutation."""
    for dataset in study.datasets:
        for model in study.models:
            per_seed = [cell["by_order_seed"] for cell in study.facts["shuffle"][dataset, model]]
            for order in ("partial", "full"):
                for permutation in per_seed[0].get(order, {}):
                    for metric in ("HR@10", "NDCG@10"):
                        value = fmean(cell[order][permutation][metric] for cell in per_seed)
                        yield {
                            "dataset": dataset, "model": model, "permutation": permutation,
                            "order": order, "metric": metric, **counted(value),
                            "n_seeds": len(per_seed),
                        }  # fmt: skip


def last_item(study: Study) -> Iterator[Row]:
    """HRLI, HRL2I and their difference at K = 1 and 10."""
    names = [
        name for k in (1, 10) for name in (f"HRLI@{k}", f"HRL2I@{k}", f"HRLI@{k}_minus_HRL2I@{k}")
    ]
    for dataset in study.datasets:
        for model in study.models:
            found = study.found("last_item", dataset, model)
            for name in names:
                keys = {"dataset": dataset, "model": model}
                yield keys | {"metric": name.replace("_minus_", " − "), **measured(found.get(name))}


def last_item_by_k(study: Study) -> Iterator[Row]:
    """HRLI, HRL2I and their difference at every K."""
    templates = {
        "HRLI@K": "HRLI@{0}",
        "HRL2I@K": "HRL2I@{0}",
        "difference": "HRLI@{0}_minus_HRL2I@{0}",
    }
    for dataset in study.datasets:
        for model in study.models:
            found = study.found("last_item", dataset, model)
            for k in study.ks:
                for metric, template in templates.items():
                    keys = {"dataset": dataset, "model": model, "K": str(k), "metric": metric}
                    yield keys | measured(found.get(template.format(k)))


def accuracy_by_k(study: Study) -> Iterator[Row]:
    """HR, NDCG and coverage at every K."""
    for dataset in study.datasets:
        for model in study.models:
            found = study.found("shuffle", dataset, model)
            coverage = study.coverage(dataset, model)
            for k in study.ks:
                keys = {"dataset": dataset, "model": model, "K": str(k)}
                for metric in ("HR", "NDCG"):
                    finding = found.get(f"chronological/{metric}@{k}")
                    yield keys | {"metric": f"{metric}@K", **measured(finding)}
                covered = counted(coverage[k]) | {"n_seeds": len(study.seeds)}
                yield keys | {"metric": "coverage@K", **covered}


def scaling(study: Study) -> Iterator[Row]:
    """The alpha grid, all layers and one at a time."""
    names = {
        "HR@10": "HR@10", "HR@10 − alpha 1": "HR@10_minus_alpha_1", "NDCG@10": "NDCG@10",
        "HRLI@1": "HRLI@1", "HRLI@10": "HRLI@10", "HRL2I@1": "HRL2I@1",
        "norm_of_sum": "mixing_ratio/norm_of_sum", "sum_of_norms": "mixing_ratio/sum_of_norms",
    }  # fmt: skip
    for keys, found, condition in conditions(study, "scale"):
        if condition is None:
            yield from (keys | {"metric": name} for name in names)
            continue
        for name, path in names.items():
            yield keys | {"metric": name, **measured(found.get(f"{condition}/{path}"))}


def recovery(study: Study) -> Iterator[Row]:
    """Recovery over the alpha grid, with the size of its base set."""
    for keys, found, condition in conditions(study, "recover"):
        if condition is None:
            yield from (keys | {"metric": metric} for metric in RECOVERY.digits)
            continue
        cell = study.facts["recover"][keys["dataset"], keys["model"]]
        yield keys | {"metric": "recovery", **measured(found.get(f"{condition}/recovery"))}
        sizes = {"base set": "base_set", "sequences": "n_sequences"}
        for name, fact in sizes.items():
            size = fmean(of_seed[fact] for of_seed in cell)
            yield keys | {"metric": name, **counted(size), "n_seeds": len(cell)}


def selection(study: Study) -> Iterator[Row]:
    """Chosen alphas and what they do on test."""
    for dataset in study.datasets:
        for model in study.models:
            if reason := study.why_not(model):
                yield {
                    "dataset": dataset, "model": model, "epsilon": "–", "quantity": "alpha",
                    "chosen on": "validation", "note": reason,
                }  # fmt: skip
                continue
            found = study.found("select", dataset, model)
            for epsilon, alphas in chosen_alphas(study, dataset, model).items():
                keys = {"dataset": dataset, "model": model, "epsilon": epsilon}
                for where, chosen in alphas.items():
                    value = counted(fmean(chosen)) | {"n_seeds": len(chosen)}
                    yield keys | {"quantity": "alpha", "chosen on": where, **value}
                for quantity in ("delta_HR@10", "recovery"):
                    for where, prefix in (("validation", ""), ("test", "oracle_")):
                        finding = found.get(f"epsilon={epsilon}/{prefix}{quantity}")
                        yield {
                            **keys, "quantity": quantity, "chosen on": where, **measured(finding)
                        }  # fmt: skip


def decomposition(study: Study) -> Iterator[Row]:
    """Mixing ratios by definition and level, over sets of positions and layers."""
    for dataset in study.datasets:
        for model in study.models:
            found = study.found("decompose", dataset, model)
            reason = study.why_not(model)
            rows = [("all", "all", "mixing_ratio/{}/{}")]
            if not reason:
                rows.append(("all but the oldest", "all", "without_first_position/{}/{}"))
                rows += [
                    (position, str(layer), f"by_layer/layer{layer}/{{}}/{{}}/{position}")
                    for layer in layers_of(found)
                    for position in ("all", "L", "L-1", "L-2")
                ]
            for positions, layer, template in rows:
                for definition in DEFINITIONS:
                    for level in LEVELS:
                        keys = {
                            "dataset": dataset, "model": model, "positions": positions,
                            "layer": layer, "definition": definition, "level": level,
                        }  # fmt: skip
                        if reason:
                            yield keys | {"note": reason}
                        else:
                            yield keys | measured(found.get(template.format(definition, level)))


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


def chosen_alphas(study: Study, dataset: str, model: str) -> dict[str, dict[str, list[float]]]:
    """epsilon -> "validation" and "test" (the oracle) -> the chosen alpha of every seed."""
    found: dict[str, dict[str, list[float]]] = {}
    for facts in study.facts.get("select", {}).get((dataset, model), ()):
        for epsilon, choice in facts["choices"].items():
            alphas = found.setdefault(epsilon, {"validation": [], "test": []})
            alphas["validation"].append(choice["alpha"])
            alphas["test"].append(choice["alpha_oracle"])
    return found


def conditions(
    study: Study, diagnostic: str
) -> Iterator[tuple[dict[str, Any], Mapping[str, Mapping[str, Any]], str | None]]:
    """Keys, cell and path prefix of every residual scale; prefix None where not applicable."""
    for dataset in study.datasets:
        for model in study.models:
            keys = {"dataset": dataset, "model": model}
            if reason := study.why_not(model):
                yield keys | {"layers": "–", "alpha": "–", "note": reason}, {}, None
                continue
            found = study.found(diagnostic, dataset, model)
            prefixes = dict.fromkeys(
                "/".join(path.split("/")[:2]) for path in found if "/alpha=" in path
            )
            for prefix in prefixes:
                layers, alpha = prefix.split("/alpha=")
                yield keys | {"layers": layers, "alpha": alpha}, found, prefix

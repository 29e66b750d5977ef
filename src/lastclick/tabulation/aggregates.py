"""The metric files that ``dvc metrics`` reads: one per diagnostic, data set -> model -> metric.

Only finite numbers and names, so that ``dvc metrics diff`` shows every change and nothing else: no
lists, no nulls, no text.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from lastclick.tabulation.study import BEHAVIOURAL, STRUCTURAL, Findings, Study

Tree = dict[str, Any]


def metric_files(study: Study) -> dict[str, Tree]:
    """The content of every metric file, by name."""
    return {
        **{name: nest(study.findings.get(name, {})) for name in (*BEHAVIOURAL, *STRUCTURAL)},
        "accuracy": _accuracy(study),
        "comparisons": nest(study.comparisons),
        "data": {
            dataset: {stage: numbers_of(counts) for stage, counts in stages.items()}
            for dataset, stages in study.data.items()
        },
        "training": _training(study),
    }


def nest(findings: Findings) -> Tree:
    """data set -> model -> metric path split at "/"; a metric X is X, X_low and X_high."""
    tree: Tree = {}
    for (dataset, model), metrics in findings.items():
        for path, finding in metrics.items():
            *branches, leaf = (dataset, model, *path.split("/"))
            node = tree
            for branch in branches:
                node = node.setdefault(branch, {})
            node[leaf] = finding["value"]
            node[f"{leaf}_low"] = finding["low"]
            node[f"{leaf}_high"] = finding["high"]
    return tree


def numbers_of(content: Mapping[str, Any]) -> Tree:
    """``content`` less everything that is not a number or a mapping of numbers."""
    kept: Tree = {}
    for key, value in content.items():
        if isinstance(value, Mapping):
            kept[str(key)] = numbers_of(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            kept[str(key)] = value
    return kept


def _accuracy(study: Study) -> Tree:
    prefix = "chronological/"
    tree = nest(
        {
            cell: {
                path.removeprefix(prefix): finding
                for path, finding in metrics.items()
                if path.startswith(prefix)
            }
            for cell, metrics in study.findings.get("shuffle", {}).items()
        }
    )
    for dataset, model in study.findings.get("shuffle", {}):
        for k, by_seed in study.coverage(dataset, model).items():
            tree[dataset][model][f"coverage@{k}"] = fmean(by_seed)
    return tree


def _training(study: Study) -> Tree:
    tree: Tree = {}
    for (dataset, model), descriptions in study.trained.items():
        for described in descriptions:
            wanted = {
                "best_epoch": described["best_epoch"],
                "n_epochs": described["n_epochs"],
                "validation_NDCG@10": described["validation_NDCG@10"],
                "dropout": described["config"].get("dropout"),
            }
            seeds = tree.setdefault(dataset, {}).setdefault(model, {})
            seeds[f"seed_{described['seed']}"] = numbers_of(wanted)
    return tree

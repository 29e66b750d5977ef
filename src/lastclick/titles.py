"""Names as they are printed: of models, data sets, levels and definitions."""

from __future__ import annotations

_TITLES = {
    "gru4rec": "GRU4Rec",
    "bert4rec": "BERT4Rec",
    "sasrec": "SASRec",
    "duorec": "DuoRec",
    "bsarec": "BSARec",
    "imported": "Imported SASRec",
    "beauty": "Beauty",
    "sports": "Sports",
    "video": "Video",
    "diginetica": "Diginetica",
    "toys": "Toys",
    "steam": "Steam",
    "beeradvocate": "BeerAdvocate",
    "ml-100k": "ML-100K",
    "ml-1m": "ML-1M",
    "zvuk": "Zvuk",
    "dataset": "data set",
    "average_length": "average length",
    "density_percent": "density (%)",
    "tie_share": "tie share",
    "rows_read": "rows read",
    "rows_rejected": "rows rejected",
    "train_interactions": "train interactions",
    "train_users": "train users",
    "validation_users": "validation users",
    "test_users": "test users",
    "test_skipped": "test users skipped",
    "mean_holdout_length": "mean holdout length",
    "best_epoch": "best epoch",
    "validation_NDCG@10": "validation NDCG@10",
    "delta_HR@10": "change of HR@10",
    "weights": "attention weights",
    "attn": "Attn",
    "attn_res": "+Res",
    "attn_res_ln": "+LN",
    "norm_of_sum": "norm of sum",
    "sum_of_norms": "sum of norms",
}


def title(name: str) -> str:
    """The printed form of a name of params.yaml or of a metric path; itself if it has none."""
    return _TITLES.get(name, name)

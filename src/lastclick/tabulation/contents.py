"""Which tables there are, in the order of the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import polars as pl

from lastclick.tabulation import further, paper
from lastclick.tabulation.layout import Layout, Row
from lastclick.tabulation.study import Study

TABLES: dict[str, tuple[Layout, Callable[[Study], Iterator[Row]]]] = {
    layout.name: (layout, rows)
    for layout, rows in (
        (paper.TABLE1, paper.table1),
        (paper.SPLITS, paper.splits),
        (further.TRAINING, further.training),
        (further.DROPOUT, further.dropout),
        (paper.ACCURACY, paper.accuracy),
        (further.ACCURACY_BY_K, further.accuracy_by_k),
        (further.COMPARISONS, further.comparisons),
        (further.SHUFFLE, further.shuffle),
        (further.PERMUTATIONS, further.permutations),
        (further.LAST_ITEM, further.last_item),
        (further.LAST_ITEM_BY_K, further.last_item_by_k),
        (paper.TABLE2, paper.table2),
        (paper.TABLE3, paper.table3),
        (further.DECOMPOSITION, further.decomposition),
        (further.SCALING, further.scaling),
        (paper.TABLE4, paper.table4),
        (further.RECOVERY, further.recovery),
        (further.SELECTION, further.selection),
    )
}


def tabulate(study: Study) -> dict[str, pl.DataFrame]:
    """Every table of the run as tidy cells, by name."""
    return {name: layout.frame(list(rows(study))) for name, (layout, rows) in TABLES.items()}

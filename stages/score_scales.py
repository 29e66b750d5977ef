"""Rank targets and input items under every residual scale, with the mixing ratios."""

from lastclick import params, tables
from lastclick.artifacts import require_decomposable
from lastclick.diagnostics.conditions import NON_FINAL_OFFSETS
from lastclick.scoring import score_scales
from stages.cells import Cell
from stages.command import run
from stages.trained import load_evaluation, load_trained


def main(dataset: str, model: str, seed: int) -> None:
    """Score validation and test of one trained model over the alpha grid."""
    settings = params.load()
    require_decomposable(model)  # it may have been trained before it was named for this
    cell = Cell(dataset, model, seed)
    scores = score_scales(
        load_trained(cell, settings.compute),
        [load_evaluation(cell, "validation"), load_evaluation(cell, "test")],
        alphas=settings.scaling.alphas,
        one_layer_at_a_time=settings.scaling.one_layer_at_a_time,
        offsets=NON_FINAL_OFFSETS,
        filter_seen=settings.dataset(dataset).filter_seen,
        progress=f"{cell.label}: scales",
    )
    tables.write_table(scores, cell.scores("scales.parquet"), tables.SCALES)


if __name__ == "__main__":
    run(main)

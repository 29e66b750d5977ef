"""Split every attention block's output into parts per input position."""

from lastclick import params, tables
from lastclick.artifacts import require_decomposable
from lastclick.diagnostics.decompose import decompose_all, decompose_observations
from stages.cells import Cell
from stages.command import run
from stages.results import write_results
from stages.trained import load_evaluation, load_trained


def main(dataset: str, model: str, seed: int) -> None:
    """Decompose one trained model over all real positions of the test partition."""
    settings = params.load()
    require_decomposable(model)  # it may have been trained before it was named for this
    cell = Cell(dataset, model, seed)
    users, heatmaps = decompose_all(
        load_trained(cell, settings.compute),
        load_evaluation(cell, "test").inputs,
        recent=settings.decompose.recent,
        progress=f"{cell.label}: decomposition",
    )
    write_results(cell, "decompose", decompose_observations(users), settings.evaluation)
    path = cell.results("decompose", ".heatmaps.parquet")
    tables.write_table(heatmaps.to_frame(), path, tables.HEATMAPS)


if __name__ == "__main__":
    run(main)

"""Choose dropout on validation over a grid, where params.yaml asks for it."""

from pathlib import Path

from lastclick import params, tables
from stages.command import run
from stages.trainable import Trainable, batch_size, is_given, model_config


def main(dataset: str, model: str) -> None:
    """Train with every dropout of the grid and the first seed; keep the best on validation.

    The best epochs are compared by NDCG@10 on the whole validation partition: early stopping's
    sample of it is too small to tell neighbouring dropouts apart, and flatters each of them.

    A data set or model that the section dropout does not name keeps its own value at once (null
    for a model that is given, not trained). What is trained here stays in the checkpoints, so that
    train has nothing left to do for that seed.

    The data set's batch size is noted with it: train depends on what is written here and not on
    the batch sizes of other data sets.
    """
    settings = params.load()
    settings.dataset(dataset)  # or nothing would notice a name that params.yaml does not define
    asked = dataset in settings.dropout.datasets and model in settings.dropout.models
    own = None if is_given(settings, model) else model_config(settings, model).dropout
    path = Path("tuning") / dataset / f"{model}.json"
    common = {"batch_size": batch_size(settings.train, dataset)}
    if own is None or not (asked and settings.dropout.grid):
        tables.write_json({"dropout": own, "chosen_on_validation": False, **common}, path)
        return
    trainable = Trainable.prepare(dataset, model, settings)
    seed = settings.run.seeds[0]
    fitted = {dropout: trainable.fit(dropout, seed) for dropout in settings.dropout.grid}
    ndcg = {
        dropout: trainable.validation_ndcg(trainable.fitted_model(found, dropout))
        for dropout, found in fitted.items()
    }
    if trainable.fabric.is_global_zero:
        tables.write_json(
            {
                # Among equals the first of the grid.
                "dropout": max(ndcg, key=ndcg.__getitem__),
                "chosen_on_validation": True,
                **common,
                "seed": seed,
                "grid": {
                    f"{dropout:g}": {
                        "validation_NDCG@10": ndcg[dropout],
                        "best_epoch": found.best_epoch,
                    }
                    for dropout, found in fitted.items()
                },
            },
            path,
        )


if __name__ == "__main__":
    run(main)

"""What choose_dropout and train share: a cell's data, model configuration and checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lightning_fabric import Fabric

from lastclick import params, tables
from lastclick.artifacts import (
    Fitted,
    build_model,
    load_weights,
    model_module,
    require_decomposable,
)
from lastclick.data.sequences import Sequences
from lastclick.models.base import ModelConfig, Recommender
from lastclick.training import Compute, Settings, Validation, fit, launch, validation_ndcg

# Outside DVC's outputs, which DVC deletes before it runs a stage.
CHECKPOINTS = Path(".ckpt")


def is_given(settings: params.Params, model: str) -> bool:
    """Whether the model's section of params.yaml names checkpoints and not sizes."""
    return "checkpoints" in settings.model(model)


def model_config(settings: params.Params, model: str) -> ModelConfig:
    """The section of a model that is trained here; raises UserError for a slip in it."""
    config = model_module(model).Config
    return params.validate_section(config, settings.model(model), f"models.{model}")


@dataclass(frozen=True)
class Trainable:
    """A data set and a model, ready to train with any seed and dropout."""

    dataset: str
    model: str
    config: ModelConfig
    n_items: int
    training: Sequences
    validation: Validation
    settings: Settings
    fabric: Fabric

    @classmethod
    def prepare(
        cls, dataset: str, model: str, settings: params.Params, config: ModelConfig | None = None
    ) -> Trainable:
        """Read the split of a data set, and start this process's part in training.

        ``config``: that of the model, if it is not in params.yaml. Raises UserError where a model
        is to be decomposed that cannot be: before hours of training, not after.
        """
        if model in settings.run.attention_models:
            require_decomposable(model)
        filter_seen = settings.dataset(dataset).filter_seen
        splits = Path("data/splits") / dataset
        config = config or model_config(settings, model)
        training = tables.read_table(splits / "train.parquet", tables.INTERACTIONS)
        validation = tables.read_table(splits / "validation.parquet", tables.EVALUATION)
        return cls(
            dataset,
            model,
            config,
            n_items=tables.read_json(splits / "split.json")["n_items"],
            training=Sequences.from_frame(training),
            validation=Validation.from_frame(validation, filter_seen=filter_seen),
            settings=training_settings(settings.train, dataset),
            fabric=launch(Compute(**settings.compute.model_dump()), settings.train.precision),
        )

    def configured(self, dropout: float) -> ModelConfig:
        """The model's configuration with this dropout."""
        return self.config.model_copy(update={"dropout": dropout})

    def fit(self, dropout: float, seed: int) -> Fitted:
        """Train, or continue, or take from its checkpoint what was trained before."""
        return fit(
            self.model,
            self.configured(dropout),
            self.training,
            self.validation,
            self.n_items,
            settings=self.settings,
            seed=seed,
            fabric=self.fabric,
            cell=CHECKPOINTS / self.dataset / self.model / str(seed) / f"dropout-{dropout:g}",
            label=f"{self.dataset} {self.model} seed {seed} dropout {dropout:g}",
        )

    def validation_ndcg(self, model: Recommender) -> float:
        """NDCG@10 over the whole validation partition, not the sample of early stopping."""
        return validation_ndcg(
            model.to(self.fabric.device).eval(),
            self.validation,
            batch_size=self.settings.batch_size,
            fabric=self.fabric,
        )

    def fitted_model(self, fitted: Fitted, dropout: float) -> Recommender:
        """The model that was trained with this dropout, as of its best epoch."""
        model = build_model(self.model, self.configured(dropout), self.n_items)
        load_weights(model, fitted.weights, f"the training with dropout {dropout:g}")
        return model


def training_settings(train: params.Train, dataset: str) -> Settings:
    """The settings of one data set: its own batch size, where it has one."""
    common = train.model_dump(exclude={"batch_size_of"})
    common["batch_size"] = batch_size(train, dataset)
    return Settings(**common)


def batch_size(train: params.Train, dataset: str) -> int:
    return train.batch_size_of.get(dataset, train.batch_size)

"""params.yaml, validated whole before any stage does anything.

Every stage reads only its own sections, but a slip anywhere in the file stops each of them at
once, with the key, its line and the nearest correct name, before hours are spent on half a run.
Nothing here has a default that changes a result: what counts is written in params.yaml, where DVC
sees it. The parameters of a model belong to its own file (``lastclick/models/<name>.py``) and are
validated by its ``Config``.
"""

from __future__ import annotations

import difflib
import importlib.util
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from lastclick.errors import UserError
from lastclick.fields import Count, CountOrZero, Number

PARAMS_FILE = Path("params.yaml")


def _distinct(values: tuple) -> tuple:
    repeated = sorted({str(value) for value in values if values.count(value) > 1})
    if repeated:
        raise ValueError(f"names {', '.join(repeated)} more than once")
    return values


def _distinct_names(values: tuple) -> tuple:
    """Numbers are filed under their first six digits."""
    _distinct(tuple(f"{value:g}" for value in values))
    return values


Names = Annotated[tuple[str, ...], AfterValidator(_distinct)]


class Section(BaseModel):
    """A section of params.yaml: every key is known, and none may be missing."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Run(Section):
    """What a run covers."""

    datasets: Annotated[Names, Field(min_length=1)]
    models: Annotated[Names, Field(min_length=1)]
    attention_models: Names
    seeds: Annotated[tuple[CountOrZero, ...], Field(min_length=1), AfterValidator(_distinct)]


class Preprocess(Section):
    """From raw rows to sequences."""

    k_core: CountOrZero
    ties: Literal["source", "shuffled"]
    ties_seed: CountOrZero


class Split(Section):
    """Which interactions train, validate and test."""

    protocol: Literal["global_time", "leave_one_out"]
    quantile: Annotated[Number, Field(gt=0, lt=1)]
    target: Literal["last", "first", "random", "successive", "all"]
    validation: Literal["global_time", "last_train_item", "by_user"]
    validation_users: Count
    seed: CountOrZero


class Train(Section):
    """Training, the same for every model; ``batch_size_of`` names data sets with another size."""

    batch_size: Count
    batch_size_of: dict[str, Count]
    learning_rate: Annotated[Number, Field(gt=0)]
    max_epochs: Count
    patience: Count
    validation_users: Count
    precision: Literal["fp32", "bf16"]
    loss_precision: Literal["fp32", "bf16"]


class Dropout(Section):
    """Where dropout is chosen on validation, and from what."""

    grid: Annotated[
        tuple[Annotated[Number, Field(ge=0, lt=1)], ...], AfterValidator(_distinct_names)
    ]
    datasets: Names
    models: Names


class Compute(Section):
    """Where and how fast; no part of a result's identity."""

    device: Literal["auto", "cpu", "cuda"]
    devices: Count
    threads: CountOrZero


class Shuffle(Section):
    """Input shuffling at prediction time."""

    seeds: Annotated[tuple[CountOrZero, ...], Field(min_length=1), AfterValidator(_distinct)]


class Scaling(Section):
    """The grid of residual scales; always holds 1, the trained model."""

    alphas: Annotated[tuple[Annotated[Number, Field(ge=0)], ...], AfterValidator(_distinct_names)]
    one_layer_at_a_time: bool

    @model_validator(mode="after")
    def _with_the_trained_model(self) -> Scaling:
        alphas = _distinct_names(tuple(sorted({*self.alphas, 1.0})))
        return self if alphas == self.alphas else self.model_copy(update={"alphas": alphas})


class Selection(Section):
    """Allowed relative loss of HR@10 on validation."""

    epsilons: Annotated[
        tuple[Annotated[Number, Field(ge=0, le=1)], ...],
        Field(min_length=1),
        AfterValidator(_distinct_names),
    ]


class Decompose(Section):
    """Norm decomposition."""

    recent: Count


class Evaluation(Section):
    """Cut-offs and the bootstrap over users."""

    ks: Annotated[tuple[Count, ...], Field(min_length=1), AfterValidator(_distinct)]
    bootstrap_draws: Count
    bootstrap_seed: CountOrZero
    confidence: Annotated[Number, Field(gt=0, lt=1)]

    @model_validator(mode="after")
    def _with_the_cut_offs_of_the_study(self) -> Evaluation:
        missing = {1, 10} - set(self.ks)
        if missing:
            raise ValueError(
                f"ks must hold 1 and 10, which the diagnostics use; missing: {missing}"
            )
        return self


class Plots(Section):
    """How figures are written."""

    formats: Annotated[tuple[Literal["svg", "png"], ...], AfterValidator(_distinct)]
    dpi: Count


class Expected(Section):
    """Published size after preprocessing (*residual dominance*, Table 1)."""

    users: Count
    items: Count
    interactions: Count


class DataSet(Section):
    """One data set.

    ``sources`` and ``raw`` as ``lastclick.data`` defines them. What describes a
    published data set may be left out of one's own; none of it touches a result.
    """

    title: str = ""
    homepage: str = ""
    citation: str = ""
    licence: str = ""
    sources: tuple[dict[str, Any], ...]
    raw: dict[str, Any]
    filter_seen: bool
    expected: Expected | None = None


class Params(Section):
    """The whole of params.yaml."""

    run: Run
    preprocess: Preprocess
    split: Split
    train: Train
    dropout: Dropout
    compute: Compute
    shuffle: Shuffle
    scaling: Scaling
    selection: Selection
    decompose: Decompose
    evaluation: Evaluation
    plots: Plots
    models: dict[str, dict[str, Any]]
    datasets: dict[str, DataSet]

    @model_validator(mode="after")
    def _names_are_defined(self) -> Params:
        for key, names, known, what in (
            ("run.datasets", self.run.datasets, self.datasets, "data set"),
            ("run.models", self.run.models, self.models, "model"),
            ("run.attention_models", self.run.attention_models, self.run.models, "run model"),
            ("dropout.datasets", self.dropout.datasets, self.datasets, "data set"),
            ("dropout.models", self.dropout.models, self.models, "model"),
            ("train.batch_size_of", self.train.batch_size_of, self.datasets, "data set"),
        ):  # fmt: skip
            for name in names:
                if name not in known:
                    raise ValueError(f"{key}: unknown {what} {name!r}{_nearest(name, known)}")
        for name in self.datasets:
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
                raise ValueError(
                    f"datasets: {name!r} cannot name a data set, since files and DVC's stages are "
                    "named after it; use letters, digits, - and _ (title: may say anything)"
                )
        for name in self.models:
            is_name = name.isidentifier()
            if not is_name or importlib.util.find_spec(f"lastclick.models.{name}") is None:
                raise ValueError(f"models.{name}: there is no file src/lastclick/models/{name}.py")
        return self

    def dataset(self, name: str) -> DataSet:
        """The definition of one data set; raises UserError where there is none."""
        return _defined(name, self.datasets, "data set")

    def model(self, name: str) -> dict[str, Any]:
        """The section of one model; raises UserError where there is none."""
        return _defined(name, self.models, "model")


def _defined(name: str, known: dict[str, Any], what: str) -> Any:
    if name not in known:
        raise UserError(f"{PARAMS_FILE} defines no {what} {name!r}{_nearest(name, known)}")
    return known[name]


def load(path: Path = PARAMS_FILE) -> Params:
    """Read and validate params.yaml.

    Raises UserError that lists every slip with its line, its key and, for a misspelt key or name,
    the nearest one that exists.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(
            f"{path} does not exist here ({Path.cwd()}); run from the root of the repository"
        ) from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: {error}") from None
    try:
        tree, content = yaml.compose(text), yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not valid YAML: {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} should hold sections (run:, train:, …), found {type(content)}")
    try:
        return Params.model_validate(content)
    except ValidationError as error:
        raise UserError(_explain(error, path, tree)) from None


def validate_section(
    model: type[BaseModel], content: Any, key: str, path: Path = PARAMS_FILE
) -> Any:
    """Validate one part of params.yaml (``models.sasrec``, say) that is defined elsewhere.

    Raises UserError as ``load`` does.
    """
    try:
        return model.model_validate(content)
    except ValidationError as error:
        tree = yaml.compose(path.read_text(encoding="utf-8")) if path.exists() else None
        raise UserError(_explain(error, path, tree, tuple(key.split(".")), model)) from None


def _explain(
    error: ValidationError,
    path: Path,
    tree: yaml.Node | None,
    prefix: tuple[str, ...] = (),
    model: type[BaseModel] | None = None,
) -> str:
    lines = []
    for slip in error.errors():
        location = (*prefix, *slip["loc"])
        key = ".".join(str(part) for part in location)
        message = slip["msg"].removeprefix("Value error, ")
        if slip["type"] == "extra_forbidden":
            message = "unknown key" + _nearest(
                str(location[-1]), _siblings(model or Params, slip["loc"])
            )
        elif slip["type"] == "missing":
            message = "missing key" + _nearest(str(location[-1]), _keys(tree, location[:-1]))
        elif slip["type"] != "value_error" or location:
            message += f" (found {slip['input']!r})" if not isinstance(slip["input"], dict) else ""
        where = f"{path}:{_line(tree, location)}"
        lines.append(f"{where}: {key}: {message}" if key else f"{where}: {message}")
    return "\n".join(lines)


def _nearest(name: str, known: Iterable[Any]) -> str:
    near = difflib.get_close_matches(name, [str(key) for key in known], n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def _siblings(model: Any, location: tuple) -> list[str]:
    """The keys that exist where the unknown key at ``location`` stands."""
    for part in location[:-1]:
        if get_origin(model) is dict:
            model = get_args(model)[1]
        elif field := getattr(model, "model_fields", {}).get(part):
            model = field.annotation
    return list(getattr(model, "model_fields", {}))


def _keys(tree: yaml.Node | None, location: tuple) -> list[str]:
    node = _node(tree, location)
    return [key.value for key, _ in node.value] if isinstance(node, yaml.MappingNode) else []


def _node(tree: yaml.Node | None, location: tuple) -> yaml.Node | None:
    """The deepest node on the way to ``location``."""
    node = tree
    for part in location:
        if isinstance(node, yaml.MappingNode):
            found = next((value for key, value in node.value if key.value == str(part)), None)
        elif (
            isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value)
        ):
            found = node.value[part]
        else:
            found = None
        if found is None:
            return node
        node = found
    return node


def _line(tree: yaml.Node | None, location: tuple) -> int:
    parent = _node(tree, location[:-1])
    if isinstance(parent, yaml.MappingNode) and location:
        for key, _ in parent.value:
            if key.value == str(location[-1]):
                return key.start_mark.line + 1
    node = _node(tree, location)
    return node.start_mark.line + 1 if node is not None else 1

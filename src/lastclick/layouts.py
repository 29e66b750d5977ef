"""Checkpoints that somebody else trained: read without executing anything, checked, converted.

A layout says which tensors of a file are which, and what its library computes that the file does
not say. Four are known; the names are those of the state dict:

``sasrec_pytorch``  the widely used PyTorch port of the authors' code (``item_emb``, ``pos_emb``,
    ``attention_layernorms``, ``attention_layers``, ``forward_layernorms``, ``forward_layers``,
    ``last_layernorm``). Item embeddings times sqrt(hidden size), ReLU, eps 1e-8. It pads on the
    left and its attention sees the padding. Until 2023 ``pos_emb`` had ``max_length`` rows and
    padding was set to zero before every block; since then it has one row more, row 0 being that of
    padding, and padding passes through the blocks. Its block was ``classic``; since 2024 it is
    ``pre_ln`` with ``norm_first`` and otherwise ``post_ln`` (but normalised at the end and not
    after the embeddings). The tensors look the same, so the block has to be given.
``recbole``  RecBole's SASRec: ``post_ln``, eps 1e-12, padded on the right and masked.
``rectools``  RecTools' SASRec: ``classic`` without the factor sqrt(hidden size), eps 1e-5 in blocks
    and 1e-8 at the end, positions counted from the newest item; padded on the left with zeros that
    attention sees, unless ``use_key_padding_mask``.
``plain``  safetensors with the names of ``models.imported``, and beside them ``config.json`` whose
    ``config`` is its Config: what this package itself writes for imported models and SASRec.

In every layout row 0 of the item table is padding.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import polars as pl
import torch
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from lastclick.data.archives import DAMAGED
from lastclick.errors import UserError
from lastclick.models.attention import Activation

Shape = tuple[int, ...]
Tensors = Mapping[str, Tensor]

_HASH_CHUNK = 1 << 20
_SHOWN = 5  # names in a message before "and n more"


class _Given(BaseModel):
    """What every checkpoint says.

    ``path``: the file of weights. ``sha256``: of that file and of those that belong to it
    (config.json, the item file), one after the other; it is how a changed file is noticed.
    ``items``: which row of the item table is which item: "raw_id" (row number = raw id),
    "dense_id" (the data set's own numbering 1..n_items) or a CSV, JSON or Parquet file of
    ``raw_id, row``. ``missing_items``: an item without a row stops the run, or gets the mean of all
    vectors.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: Path
    sha256: str = ""
    items: str = "raw_id"
    missing_items: Literal["refuse", "mean"] = "refuse"


class PortCheckpoint(_Given):
    layout: Literal["sasrec_pytorch"]
    block: Literal["classic", "post_ln", "pre_ln"]
    n_heads: PositiveInt
    max_length: PositiveInt


class RecBoleCheckpoint(_Given):
    layout: Literal["recbole"]
    block: Literal["post_ln"]
    n_heads: PositiveInt
    activation: Activation = "gelu"
    norm_eps: PositiveFloat = 1e-12


class RecToolsCheckpoint(_Given):
    layout: Literal["rectools"]
    block: Literal["classic"]
    n_heads: PositiveInt
    use_key_padding_mask: bool = False


class PlainCheckpoint(_Given):
    layout: Literal["plain"]
    block: Literal["classic", "post_ln", "pre_ln"]


Checkpoint = Annotated[
    PortCheckpoint | RecBoleCheckpoint | RecToolsCheckpoint | PlainCheckpoint,
    Field(discriminator="layout"),
]


class Section(BaseModel):
    """The section of params.yaml: the checkpoint of each data set."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    checkpoints: dict[str, Checkpoint]


@dataclass(frozen=True)
class Converted:
    """``config`` and ``weights`` of a ``models.imported`` model over the data set's items."""

    config: dict[str, Any]
    weights: dict[str, Tensor]


def read_checkpoint(given: Checkpoint, raw_ids: Sequence[str]) -> Converted:
    """Read, check and convert a checkpoint for the items ``raw_ids`` (item 1, 2, …).

    Raises UserError when a file is absent, changed, damaged or would execute code, when a tensor is
    missing, unexpected, misshapen or not finite (each is named), and for items without a row.
    """
    _check_digest(given)
    tensors = _read_tensors(given.path)
    convert = {
        "sasrec_pytorch": _port, "recbole": _recbole, "rectools": _rectools, "plain": _plain
    }[given.layout]  # fmt: skip
    config, weights = convert(given, tensors)
    table = weights["encoder.item_embedding.weight"]
    rows = _rows(given, raw_ids, n_rows=len(table))
    missing = [raw_id for raw_id, row in zip(raw_ids, rows, strict=True) if row == 0]
    if missing and given.missing_items == "refuse":
        raise UserError(
            f"{given.path} has no vector for {len(missing)} of {len(raw_ids)} items of the data "
            f"set: {_shortened(missing)}. Check `items`, or set `missing_items: mean`, which gives "
            "each of them the mean of all vectors"
        )
    index = torch.tensor([0, *rows])
    items = table[index]
    items[index == 0] = table[1:].mean(dim=0)
    items[0] = 0
    weights["encoder.item_embedding.weight"] = items
    return Converted(config | {"layout": given.layout, "n_mean_items": len(missing)}, weights)


def _files(given: Checkpoint) -> list[Path]:
    files = [given.path]
    if given.layout == "plain":
        files.append(given.path.with_name("config.json"))
    if given.items not in ("raw_id", "dense_id"):
        files.append(Path(given.items))
    return files


def _check_digest(given: Checkpoint) -> None:
    digest = hashlib.sha256()
    for path in _files(given):
        try:
            with path.open("rb") as file:
                while chunk := file.read(_HASH_CHUNK):
                    digest.update(chunk)
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from None
    if digest.hexdigest() != given.sha256:
        names = ", ".join(str(path) for path in _files(given))
        raise UserError(
            f"{names}: the contents are not those that params.yaml names. If they are what you "
            f"mean, write `sha256: {digest.hexdigest()}`; a changed file is noticed by this line"
        )


def _read_tensors(path: Path) -> dict[str, Tensor]:
    """The float32 tensors of a safetensors file, or of a state dict that torch.save wrote."""
    content = _read_torch(path) if zipfile.is_zipfile(path) else _read_safetensors(path)
    nested = content.get("state_dict", content.get("model_state_dict")) if content else None
    if isinstance(nested, Mapping):
        content = nested
    # Wrappers put their own name before all others: data parallelism, Lightning modules.
    for prefix in ("module.", "torch_model."):
        if all(str(name).startswith(prefix) for name in content):
            content = {name.removeprefix(prefix): value for name, value in content.items()}
    size = path.stat().st_size
    slips = []
    for name, value in content.items():
        if not isinstance(value, Tensor) or value.layout != torch.strided or value.is_complex():
            slips.append(f"{name}: not a dense tensor of real numbers")
        # A tensor may repeat its few numbers without end; an honest one is as large as it says.
        elif value.numel() * value.element_size() > size:
            slips.append(f"{name}: shape {tuple(value.shape)} is larger than the file")
        elif not bool(torch.isfinite(value).all()):
            slips.append(f"{name}: holds NaN or infinity")
    if slips:
        raise UserError(f"{path} is not a state dict of weights:\n  " + "\n  ".join(slips[:20]))
    return {str(name): value.float().contiguous() for name, value in content.items()}


def _read_safetensors(path: Path) -> dict[str, Any]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise UserError(
            f"{path} is neither safetensors ({error}) nor what torch.save of torch 1.6 or newer "
            "writes; bare pickles can execute code and are not read. Save the state dict once more "
            "where it was trained: torch.save(model.state_dict(), path)"
        ) from None


def _read_torch(path: Path) -> Mapping[Any, Any]:
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except DAMAGED as error:
        raise UserError(f"{path} is damaged: {error}") from None
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise UserError(f"{path} holds compressed members, which torch.save never writes: refused")
    try:
        # Others publish their weights in this form. `weights_only` is what makes reading it safe:
        # torch's own unpickler then builds tensors and containers, and calls nothing that a file
        # names beyond its short list of these.
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise UserError(
            f"{path} holds more than tensors, and loading that could execute code: refused. Where "
            "it was trained, save the weights alone: torch.save(model.state_dict(), path), or of a "
            'whole checkpoint torch.save(checkpoint["state_dict"], path)'
        ) from None
    except (RuntimeError, EOFError, LookupError, TypeError, AttributeError, *DAMAGED) as error:
        raise UserError(f"{path} is damaged: {error}") from None
    if not isinstance(content, Mapping):
        raise UserError(f"{path} holds a {type(content).__name__}, not a state dict")
    return content


def _rows(given: Checkpoint, raw_ids: Sequence[str], n_rows: int) -> list[int]:
    """The row of every item, 0 where it has none."""
    if given.items == "dense_id":
        known = {raw_id: number for number, raw_id in enumerate(raw_ids, start=1)}
        if n_rows - 1 != len(raw_ids):
            raise UserError(
                f"{given.path} has {n_rows - 1} items and the data set {len(raw_ids)}, so its rows "
                "are not numbered as the data set's items are (items: dense_id)"
            )
    elif given.items == "raw_id":
        known = {
            raw_id: int(raw_id)
            for raw_id in raw_ids
            if re.fullmatch("[1-9][0-9]{0,9}", raw_id) and int(raw_id) < n_rows
        }
    else:
        known = _read_item_file(Path(given.items), n_rows)
    return [known.get(raw_id, 0) for raw_id in raw_ids]


def _read_item_file(path: Path, n_rows: int) -> dict[str, int]:
    """Raw ids and their rows. Raises UserError unless both are there once and rows exist."""
    try:
        if path.suffix == ".json":
            pairs = json.loads(path.read_text(encoding="utf-8"))
            frame = pl.DataFrame({"raw_id": list(pairs), "row": list(pairs.values())})
        elif path.suffix == ".parquet":
            frame = pl.read_parquet(path, glob=False)
        else:
            frame = pl.read_csv(path, infer_schema=False, glob=False)
        frame = frame.select(pl.col("raw_id").cast(pl.String), pl.col("row").cast(pl.Int64))
    except (pl.exceptions.PolarsError, ValueError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} should hold the columns raw_id and row (CSV, Parquet) or be a JSON object "
            f"from raw ids to rows: {error}"
        ) from None
    for name in ("raw_id", "row"):
        repeated = frame.filter(pl.col(name).is_duplicated() | pl.col(name).is_null())[name]
        if len(repeated):
            raise UserError(f"{path}: {name} is empty or not unique: {_shortened(repeated)}")
    outside = frame.filter(~pl.col("row").is_between(1, n_rows - 1))["row"]
    if len(outside):
        raise UserError(f"{path}: rows outside 1 to {n_rows - 1}: {_shortened(outside)}")
    return dict(frame.iter_rows())


def _shortened(values: Iterable[Any]) -> str:
    values = list(values)
    shown = ", ".join(str(value) for value in values[:_SHOWN])
    return shown + (f" and {len(values) - _SHOWN} more" if len(values) > _SHOWN else "")


class _Fit:
    """Compares a checkpoint's tensors with what its layout expects, by name."""

    def __init__(self, given: Checkpoint, tensors: Tensors):
        self.given = given
        self.tensors = tensors

    def shape(self, name: str, n_dimensions: int = 2) -> Shape:
        """The shape of a tensor that the others' shapes follow from."""
        if name not in self.tensors:
            raise UserError(
                f"{self.given.path} does not have the layout {self.given.layout}: missing {name}; "
                f"it holds {_shortened(sorted(self.tensors))}"
            )
        shape = tuple(self.tensors[name].shape)
        if len(shape) != n_dimensions or 0 in shape:
            raise UserError(f"{self.given.path}: {name} has shape {shape}, which is no such table")
        return shape

    def count(self, pattern: str) -> int:
        """How many layers there are: one more than the largest number in ``pattern``."""
        numbers = {int(match[1]) for name in self.tensors if (match := re.match(pattern, name))}
        if not numbers:
            raise UserError(
                f"{self.given.path} does not have the layout {self.given.layout}: no tensor is "
                f"named like {pattern}; it holds {_shortened(sorted(self.tensors))}"
            )
        # A number out of all proportion must not become a list of that many missing names.
        return min(max(numbers) + 1, len(self.tensors))

    def check(self, expected: Mapping[str, Shape], n_heads: int) -> None:
        slips = [f"missing: {name}" for name in expected if name not in self.tensors]
        slips += [f"unexpected: {name}" for name in self.tensors if name not in expected]
        slips += [
            f"{name}: shape {tuple(self.tensors[name].shape)}, expected {shape}"
            for name, shape in expected.items()
            if name in self.tensors and tuple(self.tensors[name].shape) != shape
        ]
        if slips:
            raise UserError(
                f"{self.given.path} does not fit the layout {self.given.layout}:\n  "
                + "\n  ".join(slips)
            )
        hidden_size = self.tensors[next(iter(expected))].shape[1]
        if hidden_size % n_heads:
            raise UserError(
                f"{self.given.path}: n_heads {n_heads} does not divide its hidden size "
                f"{hidden_size}"
            )


def _affine(name: str, shape: Shape) -> dict[str, Shape]:
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}


def _copied(tensors: Tensors, names: Mapping[str, str]) -> dict[str, Tensor]:
    """Weights and biases under our names (the keys of ``names``)."""
    return {
        f"encoder.{ours}.{part}": tensors[f"{theirs}.{part}"]
        for ours, theirs in names.items()
        for part in ("weight", "bias")
    }


def _joint_attention(tensors: Tensors, theirs: str, ours: str) -> dict[str, Tensor]:
    """Torch's MultiheadAttention, whose query, key and value projections lie in one matrix."""
    weight, bias = tensors[f"{theirs}.in_proj_weight"], tensors[f"{theirs}.in_proj_bias"]
    size = weight.shape[1]
    return {
        f"encoder.{ours}.query.weight": weight[:size],
        f"encoder.{ours}.query.bias": bias[:size],
        f"encoder.{ours}.key_value.weight": weight[size:],
        f"encoder.{ours}.key_value.bias": bias[size:],
        **_copied(tensors, {f"{ours}.output": f"{theirs}.out_proj"}),
    }


def _joint_attention_shapes(name: str, size: int) -> dict[str, Shape]:
    return {
        f"{name}.in_proj_weight": (3 * size, size),
        f"{name}.in_proj_bias": (3 * size,),
        **_affine(f"{name}.out_proj", (size, size)),
    }


_Parts = tuple[dict[str, Any], dict[str, Tensor]]


def _port(given: PortCheckpoint, tensors: Tensors) -> _Parts:
    fit = _Fit(given, tensors)
    n_rows, size = fit.shape("item_emb.weight")
    n_positions = fit.shape("pos_emb.weight")[0]
    n_layers = fit.count(r"attention_layers\.(\d+)\.")
    expected: dict[str, Shape] = {
        "item_emb.weight": (n_rows, size),
        "pos_emb.weight": (n_positions, size),
        **_affine("last_layernorm", (size,)),
    }
    for i in range(n_layers):
        expected |= _affine(f"attention_layernorms.{i}", (size,))
        expected |= _joint_attention_shapes(f"attention_layers.{i}", size)
        expected |= _affine(f"forward_layernorms.{i}", (size,))
        expected |= _affine(f"forward_layers.{i}.conv1", (size, size, 1))
        expected |= _affine(f"forward_layers.{i}.conv2", (size, size, 1))
    fit.check(expected, given.n_heads)

    has_padding_row = n_positions == given.max_length + 1
    if not has_padding_row and (n_positions != given.max_length or given.block != "classic"):
        wanted = f"{given.max_length + 1}" + (
            f" or {given.max_length}" if given.block == "classic" else ""
        )
        raise UserError(
            f"{given.path}: pos_emb has {n_positions} rows; max_length {given.max_length} and "
            f"block {given.block} go with {wanted}"
        )
    # The newest item has the last position, whatever the length of its sequence.
    positions = tensors["pos_emb.weight"][int(has_padding_row) :].flip(0)
    weights = {
        "encoder.item_embedding.weight": tensors["item_emb.weight"],
        "encoder.position_embedding.weight": positions,
        **_copied(tensors, {"norm": "last_layernorm"}),
    }
    if has_padding_row:
        weights["encoder.padding_vector"] = (
            tensors["item_emb.weight"][0] * size**0.5 + tensors["pos_emb.weight"][0]
        )
    for i in range(n_layers):
        block = f"blocks.{i}"
        weights |= _joint_attention(tensors, f"attention_layers.{i}", f"{block}.attention")
        weights |= _copied(
            tensors,
            {
                f"{block}.attention_norm": f"attention_layernorms.{i}",
                f"{block}.feed_forward_norm": f"forward_layernorms.{i}",
                f"{block}.feed_forward.inner": f"forward_layers.{i}.conv1",
                f"{block}.feed_forward.outer": f"forward_layers.{i}.conv2",
            },
        )
        for part in ("inner", "outer"):
            name = f"encoder.{block}.feed_forward.{part}.weight"
            weights[name] = weights[name].squeeze(-1)
    config = {
        "block": given.block,
        "hidden_size": size,
        "inner_size": size,
        "n_layers": n_layers,
        "n_heads": given.n_heads,
        "activation": "relu",
        "max_length": given.max_length,
        "norm_eps": 1e-8,
        "last_norm_eps": 1e-8,
        "norm_at": "output",
        "scale_items": True,
        "newest_first": True,
        "padding": "tokens" if has_padding_row else "zeros",
    }
    return config, weights


def _recbole(given: RecBoleCheckpoint, tensors: Tensors) -> _Parts:
    fit = _Fit(given, tensors)
    n_rows, size = fit.shape("item_embedding.weight")
    max_length = fit.shape("position_embedding.weight")[0]
    layers = "trm_encoder.layer"
    n_layers = fit.count(r"trm_encoder\.layer\.(\d+)\.")
    inner_size = fit.shape(f"{layers}.0.feed_forward.dense_1.weight")[0]
    expected: dict[str, Shape] = {
        "item_embedding.weight": (n_rows, size),
        "position_embedding.weight": (max_length, size),
        **_affine("LayerNorm", (size,)),
    }
    for i in range(n_layers):
        for part in ("query", "key", "value", "dense"):
            expected |= _affine(f"{layers}.{i}.multi_head_attention.{part}", (size, size))
        expected |= _affine(f"{layers}.{i}.multi_head_attention.LayerNorm", (size,))
        expected |= _affine(f"{layers}.{i}.feed_forward.dense_1", (inner_size, size))
        outer = _affine(f"{layers}.{i}.feed_forward.dense_2", (size, inner_size))
        expected |= outer | _affine(f"{layers}.{i}.feed_forward.LayerNorm", (size,))
    fit.check(expected, given.n_heads)

    weights = {
        "encoder.item_embedding.weight": tensors["item_embedding.weight"],
        "encoder.position_embedding.weight": tensors["position_embedding.weight"],
        **_copied(tensors, {"norm": "LayerNorm"}),
    }
    for i in range(n_layers):
        block, theirs = f"blocks.{i}", f"{layers}.{i}"
        weights |= _copied(
            tensors,
            {
                f"{block}.attention.query": f"{theirs}.multi_head_attention.query",
                f"{block}.attention.output": f"{theirs}.multi_head_attention.dense",
                f"{block}.attention_norm": f"{theirs}.multi_head_attention.LayerNorm",
                f"{block}.feed_forward.inner": f"{theirs}.feed_forward.dense_1",
                f"{block}.feed_forward.outer": f"{theirs}.feed_forward.dense_2",
                f"{block}.feed_forward_norm": f"{theirs}.feed_forward.LayerNorm",
            },
        )
        for part in ("weight", "bias"):
            key, value = (
                tensors[f"{theirs}.multi_head_attention.{name}.{part}"] for name in ("key", "value")
            )
            weights[f"encoder.{block}.attention.key_value.{part}"] = torch.cat([key, value])
    config = {
        "block": given.block,
        "hidden_size": size,
        "inner_size": inner_size,
        "n_layers": n_layers,
        "n_heads": given.n_heads,
        "activation": given.activation,
        "max_length": max_length,
        "norm_eps": given.norm_eps,
        "last_norm_eps": given.norm_eps,
    }
    return config, weights


def _rectools(given: RecToolsCheckpoint, tensors: Tensors) -> _Parts:
    fit = _Fit(given, tensors)
    items = "item_model.item_net_blocks.0.ids_emb.weight"
    positions = "pos_encoding_layer.pos_emb.weight"
    layers = "transformer_layers.transformer_blocks"
    n_rows, size = fit.shape(items)
    max_length = fit.shape(positions)[0]
    n_layers = fit.count(rf"{re.escape(layers)}\.(\d+)\.")
    expected: dict[str, Shape] = {
        items: (n_rows, size),
        positions: (max_length, size),
        **_affine("transformer_layers.last_layernorm", (size,)),
    }
    for i in range(n_layers):
        expected |= _joint_attention_shapes(f"{layers}.{i}.multi_head_attn", size)
        expected |= _affine(f"{layers}.{i}.q_layer_norm", (size,))
        expected |= _affine(f"{layers}.{i}.ff_layer_norm", (size,))
        expected |= _affine(f"{layers}.{i}.feed_forward.ff_linear_1", (size, size))
        expected |= _affine(f"{layers}.{i}.feed_forward.ff_linear_2", (size, size))
    fit.check(expected, given.n_heads)

    weights = {
        "encoder.item_embedding.weight": tensors[items],
        "encoder.position_embedding.weight": tensors[positions],
        **_copied(tensors, {"norm": "transformer_layers.last_layernorm"}),
    }
    for i in range(n_layers):
        block, theirs = f"blocks.{i}", f"{layers}.{i}"
        weights |= _joint_attention(tensors, f"{theirs}.multi_head_attn", f"{block}.attention")
        weights |= _copied(
            tensors,
            {
                f"{block}.attention_norm": f"{theirs}.q_layer_norm",
                f"{block}.feed_forward_norm": f"{theirs}.ff_layer_norm",
                f"{block}.feed_forward.inner": f"{theirs}.feed_forward.ff_linear_1",
                f"{block}.feed_forward.outer": f"{theirs}.feed_forward.ff_linear_2",
            },
        )
    config = {
        "block": given.block,
        "hidden_size": size,
        "inner_size": size,
        "n_layers": n_layers,
        "n_heads": given.n_heads,
        "activation": "relu",
        "max_length": max_length,
        "norm_eps": 1e-5,
        "last_norm_eps": 1e-8,
        "norm_at": "output",
        "newest_first": True,
        "padding": "unseen" if given.use_key_padding_mask else "zeros",
    }
    return config, weights


def _plain(given: PlainCheckpoint, tensors: Tensors) -> _Parts:
    """Names and shapes are checked where the model is built, which has the same ones."""
    path = given.path.with_name("config.json")
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
        config = dict(described["config"])
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} should be a JSON object with a key config: {error!r}") from None
    # What SASRec's own Config has beyond the architecture, and what its block kind implies.
    config.pop("attention_init", None)
    if described.get("model") == "sasrec" and config.get("block") == "classic":
        config |= {"norm_at": "output", "scale_items": True}
    if config.get("block") != given.block:
        raise UserError(
            f"{path} has the block {config.get('block')!r}; params.yaml says {given.block!r}"
        )
    fit = _Fit(given, tensors)
    inner_size, hidden_size = fit.shape("encoder.blocks.0.feed_forward.inner.weight")
    sizes = {
        "hidden_size": fit.shape("encoder.item_embedding.weight")[1],
        "max_length": fit.shape("encoder.position_embedding.weight")[0],
        "n_layers": fit.count(r"encoder\.blocks\.(\d+)\."),
        "inner_size": inner_size,
    }
    wrong = [f"{key} {config.get(key)!r}" for key, size in sizes.items() if config.get(key) != size]
    if wrong or hidden_size != sizes["hidden_size"]:
        raise UserError(f"{path} says {', '.join(wrong)}; the weights have {sizes}")
    return config, dict(tensors)

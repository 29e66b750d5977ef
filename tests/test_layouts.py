"""Checkpoints of other people's libraries: the same scores through us, and nothing executed.

The references are written from what each library computes, with torch's own modules under that
library's names, padded as it pads, one sequence at a time.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import zipfile
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from safetensors.torch import save_file
from torch import Tensor, nn

from lastclick.artifacts import build_model, load_weights
from lastclick.data.sequences import Batch, Sequences
from lastclick.decomposition import LEVELS, block_branches, decompose_layer, level_constant
from lastclick.errors import UserError
from lastclick.layouts import Checkpoint, read_checkpoint
from lastclick.models.base import Recommender
from tests.models.small import build_lively, scores

N_ITEMS, N_HEADS, SIZE, INNER_SIZE, MAX_LENGTH, N_LAYERS = 19, 3, 15, 7, 11, 2
RAW_IDS = [str(number) for number in range(1, N_ITEMS + 1)]
SEQUENCES = [[3, 1, 4, 1, 5], [9], list(range(2, 13)), [6, 5], [17, 18, 19, 2, 11, 13, 7]]


class PortFeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(SIZE, SIZE, 1), nn.Conv1d(SIZE, SIZE, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv2(self.conv1(x.transpose(1, 2)).relu()).transpose(1, 2)


class Port(nn.Module):
    """The PyTorch port; ``masked``: its older version, which sets padding to zero."""

    def __init__(self, block: str, masked: bool):
        super().__init__()
        self.block, self.masked = block, masked
        self.item_emb = nn.Embedding(N_ITEMS + 1, SIZE)
        self.pos_emb = nn.Embedding(MAX_LENGTH + (not masked), SIZE)
        layers = range(N_LAYERS)
        self.attention_layernorms = nn.ModuleList(nn.LayerNorm(SIZE, 1e-8) for _ in layers)
        self.attention_layers = nn.ModuleList(nn.MultiheadAttention(SIZE, N_HEADS) for _ in layers)
        self.forward_layernorms = nn.ModuleList(nn.LayerNorm(SIZE, 1e-8) for _ in layers)
        self.forward_layers = nn.ModuleList(PortFeedForward() for _ in layers)
        self.last_layernorm = nn.LayerNorm(SIZE, 1e-8)

    def forward(self, items: list[int]) -> Tensor:
        padded = torch.tensor([[0] * (MAX_LENGTH - len(items)) + items])
        real = padded != 0
        place = torch.arange(MAX_LENGTH)[None] + (not self.masked)
        x = self.item_emb(padded) * SIZE**0.5
        x = x + self.pos_emb(place if self.masked else place * real)
        future = torch.ones(MAX_LENGTH, MAX_LENGTH).triu(1).bool()
        for norm, attend, forward_norm, forward in zip(
            self.attention_layernorms, self.attention_layers, self.forward_layernorms,
            self.forward_layers, strict=True,
        ):  # fmt: skip
            if self.masked:
                x = x * real[..., None]

            def attended(query: Tensor, key: Tensor, attend=attend) -> Tensor:
                query, key = query.transpose(0, 1), key.transpose(0, 1)
                return attend(query, key, key, attn_mask=future)[0].transpose(0, 1)

            if self.block == "classic":
                query = norm(x)
                x = forward_norm(query + attended(query, x))
                x = x + forward(x)
            elif self.block == "pre_ln":
                x = x + attended(norm(x), norm(x))
                x = x + forward(forward_norm(x))
            else:
                x = norm(x + attended(x, x))
                x = forward_norm(x + forward(x))
        return self.last_layernorm(x)[0, -1] @ self.item_emb.weight[1:].T


class RecBoleAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.dense = (nn.Linear(SIZE, SIZE) for _ in range(4))
        self.LayerNorm = nn.LayerNorm(SIZE, 1e-12)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key, value = (
            part(x).view(-1, N_HEADS, SIZE // N_HEADS).transpose(0, 1)
            for part in (self.query, self.key, self.value)
        )
        logits = query @ key.transpose(1, 2) / (SIZE // N_HEADS) ** 0.5 + mask
        merged = (logits.softmax(-1) @ value).transpose(0, 1).reshape(-1, SIZE)
        return self.LayerNorm(self.dense(merged) + x)


class RecBoleFeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense_1, self.dense_2 = nn.Linear(SIZE, INNER_SIZE), nn.Linear(INNER_SIZE, SIZE)
        self.LayerNorm = nn.LayerNorm(SIZE, 1e-12)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.dense_1(x)
        inner = inner * 0.5 * (1 + torch.erf(inner / 2**0.5))
        return self.LayerNorm(self.dense_2(inner) + x)


class RecBole(nn.Module):
    """RecBole's SASRec."""

    def __init__(self):
        super().__init__()
        self.item_embedding = nn.Embedding(N_ITEMS + 1, SIZE, padding_idx=0)
        self.position_embedding = nn.Embedding(MAX_LENGTH, SIZE)
        self.trm_encoder = nn.Module()
        self.trm_encoder.layer = nn.ModuleList()
        for _ in range(N_LAYERS):
            layer = nn.Module()
            layer.multi_head_attention, layer.feed_forward = (
                RecBoleAttention(),
                RecBoleFeedForward(),
            )
            self.trm_encoder.layer.append(layer)
        self.LayerNorm = nn.LayerNorm(SIZE, 1e-12)

    def forward(self, items: list[int]) -> Tensor:
        padded = torch.tensor(items + [0] * (MAX_LENGTH - len(items)))
        allowed = torch.ones(MAX_LENGTH, MAX_LENGTH).tril() * (padded != 0)
        mask = (1 - allowed) * -10000.0
        x = self.LayerNorm(self.item_embedding(padded) + self.position_embedding.weight)
        for layer in self.trm_encoder.layer:
            x = layer.feed_forward(layer.multi_head_attention(x, mask))
        return x[len(items) - 1] @ self.item_embedding.weight[1:].T


class RecTools(nn.Module):
    """RecTools' SASRec with item embeddings alone."""

    def __init__(self, masked: bool):
        super().__init__()
        self.masked = masked
        self.item_model, self.pos_encoding_layer = nn.Module(), nn.Module()
        net = nn.Module()
        net.ids_emb = nn.Embedding(N_ITEMS + 1, SIZE, padding_idx=0)
        self.item_model.item_net_blocks = nn.ModuleList([net])
        self.pos_encoding_layer.pos_emb = nn.Embedding(MAX_LENGTH, SIZE)
        self.transformer_layers = nn.Module()
        self.transformer_layers.transformer_blocks = nn.ModuleList()
        for _ in range(N_LAYERS):
            block = nn.Module()
            block.multi_head_attn = nn.MultiheadAttention(SIZE, N_HEADS, batch_first=True)
            block.q_layer_norm, block.ff_layer_norm = nn.LayerNorm(SIZE), nn.LayerNorm(SIZE)
            block.feed_forward = nn.Module()
            block.feed_forward.ff_linear_1 = nn.Linear(SIZE, SIZE)
            block.feed_forward.ff_linear_2 = nn.Linear(SIZE, SIZE)
            self.transformer_layers.transformer_blocks.append(block)
        self.transformer_layers.last_layernorm = nn.LayerNorm(SIZE, 1e-8)

    def forward(self, items: list[int]) -> Tensor:
        padded = torch.tensor([0] * (MAX_LENGTH - len(items)) + items)
        table = self.item_model.item_net_blocks[0].ids_emb.weight
        x = table[padded] + self.pos_encoding_layer.pos_emb.weight.flip(0)
        hidden = torch.ones(MAX_LENGTH, MAX_LENGTH).triu(1).bool()
        if self.masked:
            hidden = (hidden | (padded == 0)) & ~torch.eye(MAX_LENGTH).bool()
        for block in self.transformer_layers.transformer_blocks:
            x = x * (padded != 0)[:, None]
            query = block.q_layer_norm(x)
            x = query + block.multi_head_attn(query, x, x, attn_mask=hidden)[0]
            x = block.ff_layer_norm(x)
            x = x + block.feed_forward.ff_linear_2(block.feed_forward.ff_linear_1(x).relu())
        return self.transformer_layers.last_layernorm(x)[-1] @ table[1:].T


PORT = {"layout": "sasrec_pytorch", "n_heads": N_HEADS, "max_length": MAX_LENGTH}
LIBRARIES = {
    "port, masked": (lambda: Port("classic", masked=True), {**PORT, "block": "classic"}),
    "port": (lambda: Port("classic", masked=False), {**PORT, "block": "classic"}),
    "port, post-LN": (lambda: Port("post_ln", masked=False), {**PORT, "block": "post_ln"}),
    "port, pre-LN": (lambda: Port("pre_ln", masked=False), {**PORT, "block": "pre_ln"}),
    "recbole": (RecBole, {"layout": "recbole", "block": "post_ln", "n_heads": N_HEADS}),
    "rectools": (
        lambda: RecTools(masked=False),
        {"layout": "rectools", "block": "classic", "n_heads": N_HEADS},
    ),
    "rectools, masked": (
        lambda: RecTools(masked=True),
        {
            "layout": "rectools",
            "block": "classic",
            "n_heads": N_HEADS,
            "use_key_padding_mask": True,
        },
    ),
}
each_library = pytest.mark.parametrize("library", LIBRARIES)


def lively(model: nn.Module) -> nn.Module:
    """The model with weights of a size where everything matters; padding of items is zero."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(std=0.4, generator=generator)
            if name.endswith(("item_embedding.weight", "ids_emb.weight")):
                parameter[0] = 0
    return model.eval()


def saved(library: str, folder: Path) -> tuple[nn.Module, dict]:
    """A library's model, and the block of params.yaml for its state dict in ``folder``."""
    make, block = LIBRARIES[library]
    model = lively(make())
    path = folder / "weights.pth"
    torch.save(model.state_dict(), path)
    return model, {**block, "path": str(path), "sha256": digest(path)}


def digest(*paths: Path) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def described(block: dict) -> Checkpoint:
    return TypeAdapter(Checkpoint).validate_python(block)


def imported(block: dict, raw_ids: list[str] = RAW_IDS) -> Recommender:
    converted = read_checkpoint(described(block), raw_ids)
    model = build_model("imported", converted.config, len(raw_ids))
    load_weights(model, converted.weights, block["path"])
    return model.eval().requires_grad_(False)


def refused(block: dict, raw_ids: list[str] = RAW_IDS) -> str:
    with pytest.raises(UserError) as error:
        imported(block, raw_ids)
    return str(error.value)


def batch() -> Batch:
    return Batch.of(Sequences.from_lists(SEQUENCES))


@each_library
def test_scores_are_those_of_the_library(library, tmp_path):
    theirs, block = saved(library, tmp_path)
    with torch.inference_mode():
        expected = torch.stack([theirs(items) for items in SEQUENCES])
    torch.testing.assert_close(scores(imported(block), batch()), expected, rtol=0, atol=1e-5)


@each_library
@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_parts_and_constant_add_up_to_the_blocks_output(library, alpha, tmp_path):
    _, block = saved(library, tmp_path)
    model, of, capture = imported(block).double(), batch(), {}
    model.encode(of, residual_scale=alpha, capture=capture)
    outputs = {"attn": "attention", "attn_res": "sum", "attn_res_ln": "normalised"}
    for number, layer in enumerate(model.encoder.blocks, start=1):
        prefix = f"layer{number}."
        branches = block_branches(layer, of, capture, prefix, alpha)
        found = decompose_layer(branches, of)
        for level in LEVELS:
            total = found[level].others + found[level].own + level_constant(branches, level)
            expected = capture[prefix + outputs[level]]
            torch.testing.assert_close(total, expected, rtol=0, atol=1e-12)


@each_library
def test_the_residual_that_is_scaled_is_the_one_the_block_adds(library, tmp_path):
    _, block = saved(library, tmp_path)
    model, of, capture = imported(block), batch(), {}
    model.encode(of, residual_scale=0.3, capture=capture)
    layer, x = model.encoder.blocks[1], capture["layer2.input"]
    residual = layer.attention_norm(x) if block["block"] == "classic" else x
    attention = capture["layer2.sum"] - 0.3 * residual
    torch.testing.assert_close(attention, capture["layer2.attention"], rtol=0, atol=1e-5)
    assert model.config.block == block["block"]


def test_padding_that_attention_sees_takes_weight_and_none_is_left_for_a_full_sequence(tmp_path):
    _, block = saved("rectools", tmp_path)
    model, of, capture = imported(block), batch(), {}
    model.encode(of, capture=capture)
    (branch,) = block_branches(model.encoder.blocks[0], of, capture, "layer1.", 1.0)
    weight = branch.weights.of_padding()
    full = of.lengths[of.sequence] == MAX_LENGTH
    assert (weight[full] == 0).all()
    assert (weight[~full] > 0).all()


@pytest.mark.parametrize("block", ["post_ln", "classic"])
def test_what_this_package_trained_is_a_plain_checkpoint(block, tmp_path):
    model = build_lively("sasrec", n_items=N_ITEMS, block=block)
    path, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    save_file(model.state_dict(), path)
    config.write_text(json.dumps({"model": "sasrec", "config": model.config.model_dump()}))
    given = {"layout": "plain", "block": block, "path": str(path), "items": "dense_id"}
    given["sha256"] = digest(path, config)
    raw_ids = [f"item {number}" for number in range(1, N_ITEMS + 1)]
    ours = imported(given, raw_ids)
    assert torch.equal(ours.encode(batch()), model.encode(batch()))
    torch.testing.assert_close(ours.item_vectors(), model.item_vectors(), rtol=0, atol=0)
    # Its last block works at every position and the other's at the last one: rounding differs.
    torch.testing.assert_close(scores(ours, batch()), scores(model, batch()), rtol=1e-5, atol=1e-6)

    content = json.loads(config.read_text())
    content["config"]["n_layers"] = 10**9
    config.write_text(json.dumps(content))
    given["sha256"] = digest(path, config)
    assert "says n_layers 1000000000; the weights have" in refused(given, raw_ids)


# Items.


@pytest.mark.parametrize("suffix", [".csv", ".json", ".parquet"])
def test_rows_follow_the_item_file(suffix, tmp_path):
    theirs, block = saved("recbole", tmp_path)
    rows = list(reversed(range(1, N_ITEMS + 1)))
    raw_ids = [f"shoe {row}" for row in rows]
    frame = pl.DataFrame({"raw_id": raw_ids, "row": rows}).sample(fraction=1, shuffle=True, seed=1)
    path = tmp_path / f"items{suffix}"
    if suffix == ".json":
        path.write_text(json.dumps(dict(frame.iter_rows())))
    else:
        getattr(frame, "write_" + suffix[1:])(path)
    block |= {"items": str(path), "sha256": digest(Path(block["path"]), path)}
    model = imported(block, raw_ids)
    table = theirs.item_embedding.weight
    torch.testing.assert_close(model.item_vectors()[1:], table[rows], rtol=0, atol=0)
    assert (model.item_vectors()[0] == 0).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raw_id,row\na,1\na,2\n", "raw_id is empty or not unique: a, a"),
        ("raw_id,row\na,1\nb,1\n", "row is empty or not unique: 1, 1"),
        ("raw_id,row\na,0\nb,20\n", "rows outside 1 to 19: 0, 20"),
        ("item,row\na,1\n", "should hold the columns raw_id and row"),
        ("raw_id,row\na,first\n", "should hold the columns raw_id and row"),
    ],
)
def test_an_item_file_that_says_two_things_is_refused(text, message, tmp_path):
    _, block = saved("recbole", tmp_path)
    path = tmp_path / "items.csv"
    path.write_text(text)
    block |= {"items": str(path), "sha256": digest(Path(block["path"]), path)}
    assert message in refused(block, ["a"])


def test_items_without_a_row_are_listed_or_get_the_mean_vector(tmp_path):
    theirs, block = saved("recbole", tmp_path)
    raw_ids = ["7", "20", "hat", "3", "007", "0"]
    message = refused(block, raw_ids)
    assert "no vector for 4 of 6 items of the data set: 20, hat, 007, 0." in message
    model = imported({**block, "missing_items": "mean"}, raw_ids)
    table = theirs.item_embedding.weight
    expected = table[[0, 7, 0, 0, 3, 0, 0]]
    expected[[2, 3, 5, 6]] = table[1:].mean(dim=0)
    torch.testing.assert_close(model.item_vectors(), expected, rtol=0, atol=0)
    assert model.config.n_mean_items == 4


def test_dense_ids_need_a_table_of_the_same_size(tmp_path):
    _, block = saved("recbole", tmp_path)
    message = refused({**block, "items": "dense_id"}, ["a", "b"])
    assert "has 19 items and the data set 2" in message


# Files that are not what they should be.


def rewritten(block: dict, content: object) -> dict:
    torch.save(content, block["path"])
    return {**block, "sha256": digest(Path(block["path"]))}


def test_a_changed_file_is_noticed_and_its_hash_given(tmp_path):
    _, block = saved("recbole", tmp_path)
    assert f"sha256: {block['sha256']}" in refused({**block, "sha256": "0" * 64})
    assert f"sha256: {block['sha256']}" in refused({**block, "sha256": ""})


def test_missing_unexpected_and_misshapen_tensors_are_named(tmp_path):
    model, block = saved("recbole", tmp_path)
    tensors = OrderedDict(model.state_dict())
    tensors["spare.weight"] = tensors.pop("LayerNorm.bias")
    name = "trm_encoder.layer.1.multi_head_attention.key.weight"
    tensors[name] = tensors[name][:-1]
    message = refused(rewritten(block, tensors))
    assert "missing: LayerNorm.bias" in message
    assert "unexpected: spare.weight" in message
    assert f"{name}: shape (14, 15), expected (15, 15)" in message


@each_library
def test_another_librarys_file_is_refused(library, tmp_path):
    _, block = saved(library, tmp_path)
    for other, (_, theirs) in LIBRARIES.items():
        if theirs["layout"] != block["layout"]:
            message = refused({**theirs, "path": block["path"], "sha256": block["sha256"]})
            assert f"does not have the layout {theirs['layout']}: missing" in message, other


def test_a_position_table_that_fits_no_version_is_refused(tmp_path):
    _, block = saved("port", tmp_path)
    message = refused({**block, "max_length": MAX_LENGTH - 1})
    assert "pos_emb has 12 rows; max_length 10 and block classic go with 11 or 10" in message
    _, block = saved("port, masked", tmp_path)
    assert "go with 12" in refused({**block, "block": "pre_ln"})


def test_heads_that_do_not_divide_the_hidden_size_are_refused(tmp_path):
    _, block = saved("recbole", tmp_path)
    assert "n_heads 4 does not divide its hidden size 15" in refused({**block, "n_heads": 4})


def test_wrappers_around_the_state_dict_are_seen_through(tmp_path):
    model, block = saved("rectools", tmp_path)
    expected = scores(imported(block), batch())
    wrapped = {f"torch_model.{name}": tensor for name, tensor in model.state_dict().items()}
    checkpoint = {"epoch": 3, "state_dict": wrapped}
    found = scores(imported(rewritten(block, checkpoint)), batch())
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_half_precision_is_widened(tmp_path):
    model, block = saved("recbole", tmp_path)
    found = imported(rewritten(block, model.half().state_dict()))
    expected = imported(rewritten(block, model.float().state_dict()))
    torch.testing.assert_close(scores(found, batch()), scores(expected, batch()), rtol=0, atol=0)


class Executes:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("bare", [True, False])
def test_a_pickle_with_code_is_refused_and_does_not_run(bare, tmp_path):
    model, block = saved("recbole", tmp_path)
    trace = tmp_path / "executed"
    content = {**model.state_dict(), "config": Executes(trace)}
    if bare:
        Path(block["path"]).write_bytes(pickle.dumps(content))
        message = refused({**block, "sha256": digest(Path(block["path"]))})
    else:
        message = refused(rewritten(block, content))
    assert "execute code" in message
    assert not trace.exists()


def test_a_tensor_that_claims_more_than_its_file_holds_is_refused(tmp_path):
    model, block = saved("recbole", tmp_path)
    endless = torch.zeros(1, 1).expand(10**10, SIZE)
    message = refused(rewritten(block, {**model.state_dict(), "item_embedding.weight": endless}))
    assert "item_embedding.weight: shape (10000000000, 15) is larger than the file" in message


def test_a_compressed_archive_is_refused(tmp_path):
    _, block = saved("recbole", tmp_path)
    path = Path(block["path"])
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    assert "compressed members" in refused({**block, "sha256": digest(path)})


@pytest.mark.parametrize("content", [[1, 2], {"a": 1}, {"a": torch.tensor([torch.nan])}])
def test_what_is_no_state_dict_is_refused(content, tmp_path):
    _, block = saved("recbole", tmp_path)
    assert "not a state dict" in refused(rewritten(block, content))


def test_a_missing_file_is_named(tmp_path):
    _, block = saved("recbole", tmp_path)
    assert "gone.pth cannot be read" in refused({**block, "path": str(tmp_path / "gone.pth")})


def test_an_archive_whose_names_are_no_text_is_refused(tmp_path):
    _, block = saved("recbole", tmp_path)
    path = Path(block["path"])
    content = bytearray(path.read_bytes())
    entry = content.rindex(b"PK\x01\x02")
    content[entry + 9] |= 0x08  # the flag that says: this name is UTF-8
    content[entry + 46] = 0x80  # which no UTF-8 text begins with
    path.write_bytes(content)
    assert "is damaged" in refused({**block, "sha256": digest(path)})


@settings(max_examples=20)
@given(data=st.data())
def test_cut_and_flipped_files_are_refused_or_read(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    _, block = saved("recbole", folder)
    path = Path(block["path"])
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    # Anything but a UserError fails the test.
    with suppress(UserError):
        imported({**block, "sha256": digest(path)})

"""Training: early stopping, randomness, survival, several processes, and clear refusals."""

from __future__ import annotations

import copy
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning_fabric import Fabric
from safetensors.torch import load_file

from lastclick import losses
from lastclick import training as engine
from lastclick.artifacts import Fitted, build_model
from lastclick.checkpoint import Checkpoints
from lastclick.data.sequences import Sequences
from lastclick.errors import UserError
from lastclick.models import base, bert4rec, duorec, sasrec
from lastclick.ranking import NonFiniteScoresError
from lastclick.tables import EVALUATION
from lastclick.training import (
    Compute,
    EarlyStopping,
    Settings,
    Validation,
    fit,
    launch,
    steps_of_epoch,
)
from tests.training_example import (
    MODELS,
    N_ITEMS,
    SETTINGS,
    config_of,
    sequences,
    train,
    validation_of,
)

ROOT = Path(__file__).resolve().parent.parent
NDCG = "validation_NDCG@10"


@pytest.fixture(scope="module")
def fabric() -> Iterator[Fabric]:
    before = torch.get_num_threads()
    yield launch(Compute("cpu", 1, threads=1), "fp32")
    torch.set_num_threads(before)


@pytest.fixture
def batches(monkeypatch) -> list[np.ndarray]:
    """Records the users of every step."""
    recorded = []
    make = sasrec.Model.training_batch

    def record(self, sequences, indices, *further):
        recorded.append(indices)
        return make(self, sequences, indices, *further)

    monkeypatch.setattr(sasrec.Model, "training_batch", record)
    return recorded


@pytest.fixture
def draws(monkeypatch) -> dict[str, list[float]]:
    """Records what every step draws: a number for its data, and one for its dropout."""
    recorded = {"data": [], "dropout": []}
    make, loss = sasrec.Model.training_batch, sasrec.Model.training_loss

    def draw_data(self, sequences, indices, rng, share):
        recorded["data"].append(rng.random())
        return make(self, sequences, indices, rng, share)

    def draw_dropout(self, training_batch):
        recorded["dropout"].append(torch.rand(1).item())
        return loss(self, training_batch)

    monkeypatch.setattr(sasrec.Model, "training_batch", draw_data)
    monkeypatch.setattr(sasrec.Model, "training_loss", draw_dropout)
    return recorded


def validate_with(monkeypatch, values: list[float]) -> None:
    """Let validation find these values, one per epoch."""
    remaining = iter(values)
    monkeypatch.setattr(engine._Trainer, "_validation_ndcg", lambda self: next(remaining))


def assert_same(first: Fitted, second: Fitted) -> None:
    assert first.history == second.history
    assert (first.best_epoch, first.best_ndcg) == (second.best_epoch, second.best_ndcg)
    assert first.weights.keys() == second.weights.keys()
    for name, weight in first.weights.items():
        assert torch.equal(weight, second.weights[name]), name


# ---------------------------------------------------------------- what is learned, and when it ends


@pytest.mark.parametrize("model", ["gru4rec", "sasrec"])
def test_a_pattern_that_can_be_learned_is_learned(fabric, model):
    settings = replace(SETTINGS, learning_rate=0.03, max_epochs=20, patience=20)
    fitted = train(fabric, model=model, dropout=0.0, settings=settings)
    assert [row["epoch"] for row in fitted.history] == list(range(1, 21))
    assert fitted.history[0]["loss"] > 3  # log 53 is 3.97
    assert fitted.history[-1]["loss"] < 1.5
    assert fitted.best_ndcg > 0.8


def test_a_step_is_one_of_adam_on_the_mean_loss_plus_the_extra_terms(fabric, monkeypatch):
    # Eight users of four targets each: dividing by either number rounds nothing.
    training = Sequences.from_lists([[n, n + 1, n + 2, n + 3, n + 4] for n in range(1, 9)])
    supervised = duorec.Contrast(weight=7.0, temperature=1.0)
    config = config_of("duorec", 0.0).model_copy(update={"supervised": supervised})
    fresh, batches = [], []
    make = duorec.Model.training_batch

    def build(*arguments):
        model = build_model(*arguments)
        fresh.append(copy.deepcopy(model))
        return model

    def record(*arguments):
        batches.append(make(*arguments))
        return batches[-1]

    monkeypatch.setattr(engine, "build_model", build)
    monkeypatch.setattr(duorec.Model, "training_batch", record)
    fitted = fit("duorec", config, training, validation_of(training), N_ITEMS,
                 settings=replace(SETTINGS, max_epochs=1), seed=17, fabric=fabric)  # fmt: skip

    [model], [batch] = fresh, batches
    adam = torch.optim.Adam(model.parameters(), lr=SETTINGS.learning_rate)
    loss = model.training_loss(batch)
    (loss.total / loss.n_targets + sum(loss.extra.values())).backward()
    adam.step()
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(fitted.weights[name], weight)


def test_an_epoch_masks_every_sequence_several_times(fabric, monkeypatch):
    batches, make = [], bert4rec.Model.training_batch

    def record(self, sequences, indices, *further):
        batches.append(indices)
        return make(self, sequences, indices, *further)

    monkeypatch.setattr(bert4rec.Model, "training_batch", record)
    train(fabric, model="bert4rec", settings=replace(SETTINGS, max_epochs=2))
    n_maskings = config_of("bert4rec", 0.3).maskings_per_sequence
    assert n_maskings > 1
    for epoch in batches[: len(batches) // 2], batches[len(batches) // 2 :]:
        assert [len(users) for users in epoch[:-1]] == [SETTINGS.batch_size] * (len(epoch) - 1)
        taken = np.concatenate(epoch)
        assert np.bincount(taken).tolist() == [n_maskings] * 97
        assert taken[:97].tolist() != taken[97:194].tolist()


def test_early_stopping_of_a_series_with_a_gap():
    # Case C12: 0.10, 0.12, NaN, 0.11, 0.10 with patience 2: epoch 2 is best, the end after 4.
    stopping = EarlyStopping(patience=2)
    improved = []
    for epoch, value in enumerate([0.10, 0.12, math.nan, 0.11, 0.10], start=1):
        improved.append(stopping.update(epoch, value))
        if stopping.exhausted:
            break
    assert improved == [True, True, False, False]
    assert (stopping.best_epoch, stopping.best_value) == (2, 0.12)


def test_a_first_epoch_that_is_not_a_number_is_never_the_best():
    stopping = EarlyStopping(patience=3)
    assert not stopping.update(1, math.nan)
    assert stopping.update(2, 0.0)
    assert stopping.best_epoch == 2


@given(
    values=st.lists(st.sampled_from([math.nan, 0.0, 0.25, 0.5, 0.75]), min_size=1),
    patience=st.integers(1, 5),
)
def test_early_stopping_agrees_with_its_definition(values, patience):
    stopping = EarlyStopping(patience)
    taken = []
    while not stopping.exhausted and len(taken) < len(values):
        taken.append(values[len(taken)])
        stopping.update(len(taken), taken[-1])
    numbers = [value for value in taken if not math.isnan(value)]
    assert stopping.best_value == (max(numbers) if numbers else None)
    first_best = taken.index(max(numbers)) + 1 if numbers else 0
    assert stopping.best_epoch == first_best
    assert len(taken) == min(len(values), first_best + patience)


def test_the_weights_returned_are_those_of_the_best_epoch(fabric, monkeypatch):
    settings = replace(SETTINGS, patience=2)
    validate_with(monkeypatch, [0.10, 0.12, math.nan, 0.11, 0.10])
    fitted = train(fabric, settings=settings)
    assert [row[NDCG] for row in fitted.history] == [0.10, 0.12, None, 0.11]
    assert (fitted.best_epoch, fitted.best_ndcg) == (2, 0.12)

    validate_with(monkeypatch, [0.1, 0.2])
    two_epochs = train(fabric, settings=replace(settings, max_epochs=2))
    for name, weight in two_epochs.weights.items():
        assert torch.equal(weight, fitted.weights[name])


def test_scores_that_are_not_finite_do_not_count_as_validation(fabric, monkeypatch):
    def refuse(*arguments, **options):
        raise NonFiniteScoresError("NaN", row=3)

    monkeypatch.setattr(engine, "ranks_of", refuse)
    with pytest.raises(UserError, match="not finite in any of its 3 epochs"):
        train(fabric)


def test_validation_is_the_mean_over_users_of_the_gain_at_the_filtered_rank(fabric):
    # Scores are the item vectors themselves; ranks worked out by hand.
    model = build_model("sasrec", config_of("sasrec", 0.0), 5)
    vectors = torch.zeros(6, 8)
    vectors[1:, 0] = torch.tensor([0.5, 0.9, 0.5, 0.5, 0.1])
    state = torch.zeros(8)
    state[0] = 1.0
    model.final_states = lambda batch: state.expand(batch.n_sequences, 8)
    model.item_vectors = lambda: vectors
    inputs = Sequences.from_lists([[5], [2], [2, 1], [4, 5]])
    targets = np.array([4, 4, 4, 4])
    # Unfiltered rank 4. Seen 5: 4. Seen 2: 3. Seen 2 and 1: 2. Seen the target itself: a miss.
    share = engine._ValidationShare.of(Validation(inputs, targets, True), fabric)
    assert share.count_ranks(model, 3, fabric).tolist() == [0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0]
    share = engine._ValidationShare.of(Validation(inputs, targets, False), fabric)
    assert share.count_ranks(model, 3, fabric).tolist() == [0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0]


def test_reported_ndcg_is_that_of_the_returned_weights(fabric):
    fitted = train(fabric)
    model = build_model("sasrec", config_of("sasrec", 0.3), N_ITEMS)
    model.load_state_dict(fitted.weights)
    sampled = validation_of(sequences()).sample(SETTINGS.validation_users, seed=17)
    share = engine._ValidationShare.of(sampled, fabric)
    counts = share.count_ranks(model.eval(), 16, fabric).tolist()
    gains = [count / math.log2(1 + rank) for rank, count in enumerate(counts) if rank]
    assert fitted.best_ndcg == pytest.approx(sum(gains) / 41, rel=1e-12)
    assert fitted.history[fitted.best_epoch - 1][NDCG] == fitted.best_ndcg


# ------------------------------------------------------------------------------------ randomness


def test_every_epoch_visits_every_user_once_in_an_order_of_its_own(fabric, batches):
    train(fabric, settings=replace(SETTINGS, max_epochs=2))
    assert [len(batch) for batch in batches] == [16] * 6 + [1] + [16] * 6 + [1]
    first, second = np.concatenate(batches[:7]), np.concatenate(batches[7:])
    assert sorted(first) == sorted(second) == list(range(97))
    assert first.tolist() != second.tolist()


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(fabric):
    first = train(fabric)
    torch.manual_seed(3)  # what was drawn before must not matter
    assert_same(first, train(fabric))
    assert train(fabric, seed=18).history != first.history


def test_every_step_of_every_epoch_and_seed_draws_data_and_dropout_of_its_own(fabric, draws):
    for seed in (17, 18):
        train(fabric, settings=replace(SETTINGS, max_epochs=2), seed=seed)
    for drawn in draws.values():
        assert len(drawn) == len(set(drawn)) == 28


def test_the_validation_sample_depends_on_the_seed_alone():
    validation = validation_of(sequences())
    sample = validation.sample(41, seed=17)
    assert len(sample.inputs) == len(sample.targets) == 41
    rows = np.searchsorted(validation.inputs.user_ids, sample.inputs.user_ids)
    assert (validation.inputs.user_ids[rows] == sample.inputs.user_ids).all()
    assert (validation.targets[rows] == sample.targets).all()
    assert (np.diff(rows) > 0).all()
    again, other = validation.sample(41, seed=17), validation.sample(41, seed=18)
    assert (again.inputs.items.tolist(), again.targets.tolist()) == (
        sample.inputs.items.tolist(),
        sample.targets.tolist(),
    )
    assert other.targets.tolist() != sample.targets.tolist()
    assert validation.sample(97, seed=17) is validation


def test_a_validation_table_may_hold_several_targets_of_a_user():
    frame = pl.DataFrame(
        {
            "user_id": [2, 2, 2, 2, 2, 7, 7],
            "item_id": [3, 5, 3, 5, 11, 13, 17],
            "timestamp": [1, 2, 1, 2, 3, 4, 5],
            "target_index": [0, 0, 1, 1, 1, 0, 0],
        },
        schema=EVALUATION,
    )
    validation = Validation.from_frame(frame, filter_seen=False)
    assert validation.inputs.user_ids.tolist() == [2, 2, 7]
    assert validation.inputs.items.tolist() == [3, 3, 5, 13]
    assert validation.inputs.offsets.tolist() == [0, 1, 3, 4]
    assert validation.targets.tolist() == [5, 11, 17]


# -------------------------------------------------------------------------------------- survival


class Interrupted(Exception):
    pass


def interrupt_after(monkeypatch, n_steps: int) -> None:
    """Let Interrupted be raised in place of the step after so many."""
    train_step = engine._Trainer._train_step
    taken = []

    def interrupt(self, users):
        if len(taken) == n_steps:
            raise Interrupted
        taken.append(users)
        train_step(self, users)

    monkeypatch.setattr(engine._Trainer, "_train_step", interrupt)


@pytest.mark.parametrize(
    ("model", "step"),
    [*((model, 10) for model in MODELS), ("sasrec", 1), ("sasrec", 7), ("sasrec", 24)],
)
def test_an_interrupted_training_continues_to_the_same_bits(
    fabric, tmp_path, monkeypatch, model, step
):
    undisturbed = train(fabric, model=model)
    of_epoch = steps_of_epoch(97, config_of(model, 0.3), SETTINGS.batch_size)
    n_steps = of_epoch * len(undisturbed.history)
    with monkeypatch.context() as patched:
        interrupt_after(patched, step)
        with pytest.raises(Interrupted):
            train(fabric, model=model, cell=tmp_path)
    # None is done twice.
    interrupt_after(monkeypatch, n_steps - step)
    torch.manual_seed(3)
    assert_same(train(fabric, model=model, cell=tmp_path), undisturbed)


def test_an_interrupted_training_goes_on_to_draw_what_an_undisturbed_one_does(
    fabric, tmp_path, monkeypatch, draws
):
    train(fabric)
    undisturbed = copy.deepcopy(draws)
    for drawn in draws.values():
        drawn.clear()
    with monkeypatch.context() as patched:
        interrupt_after(patched, n_steps=10)
        with pytest.raises(Interrupted):
            train(fabric, cell=tmp_path)
    train(fabric, cell=tmp_path)
    assert draws == undisturbed


def start_training(tmp_path: Path, *options: str) -> list[str]:
    return [sys.executable, "-W", "error", "-m", "tests.training_example", str(tmp_path), *options]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(("src", "."))}


def kill_training_at_random_moments(tmp_path: Path, n_kills: int) -> int:
    """Start the example and kill it with signal 9 some time after it has begun to save.

    Returns how often it was killed and had not ended before.
    """
    n_killed = 0
    cell = tmp_path / "cell"
    command = start_training(tmp_path / "unused", "--cell", str(cell), "--threads", "1")
    for _ in range(n_kills):
        with subprocess.Popen(command, cwd=ROOT, env=environment()) as process:
            seen = {path: path.stat().st_mtime_ns for path in cell.glob("*/*.safetensors")}
            while process.poll() is None and seen == {
                path: path.stat().st_mtime_ns for path in cell.glob("*/*.safetensors")
            }:
                time.sleep(0.01)
            time.sleep(random.uniform(0, 0.2))
            process.kill()
            n_killed += process.wait() == -signal.SIGKILL
    return n_killed


def test_a_training_killed_at_a_random_moment_ends_in_the_same_bits(fabric, tmp_path):
    assert kill_training_at_random_moments(tmp_path, n_kills=1) == 1
    assert not list(tmp_path.glob("cell/*/final.safetensors"))
    assert len(list(tmp_path.glob("cell/*/state.safetensors"))) == 1
    assert_same(train(fabric, cell=tmp_path / "cell"), train(fabric))


@pytest.mark.slow
def test_a_training_killed_again_and_again_ends_in_the_same_bits(fabric, tmp_path):
    assert kill_training_at_random_moments(tmp_path, n_kills=7) >= 2
    assert_same(train(fabric, cell=tmp_path / "cell"), train(fabric))


def test_a_finished_training_is_not_repeated(fabric, tmp_path, batches):
    first = train(fabric, cell=tmp_path)
    batches.clear()
    assert_same(train(fabric, cell=tmp_path), first)
    assert batches == []


def test_whatever_is_part_of_the_result_is_part_of_its_key(fabric, tmp_path, batches, monkeypatch):
    def trains_again(**changed) -> bool:
        batches.clear()
        train(fabric, cell=tmp_path, **changed)
        return bool(batches)

    settings = replace(SETTINGS, max_epochs=1)
    assert trains_again(settings=settings)
    assert not trains_again(settings=settings)
    assert not trains_again(settings=settings, checkpoint_seconds=1e9)
    assert trains_again(settings=settings, dropout=0.2)
    assert trains_again(settings=settings, seed=18)
    assert trains_again(settings=settings, n_users=96)
    assert trains_again(settings=replace(settings, learning_rate=0.02))
    monkeypatch.setattr(engine, "source_digest", lambda *modules: "edited")
    assert trains_again(settings=replace(settings, learning_rate=0.02))


def different(value: int | float | str) -> int | float | str:
    return f"not {value}" if isinstance(value, str) else value + 1


def job_of(model: str, fabric: Fabric) -> engine._Job:
    training = sequences()
    return engine._Job(
        model, config_of(model, 0.3), training, validation_of(training), N_ITEMS, SETTINGS,
        seed=17, fabric=fabric, label=model,
    )  # fmt: skip


def test_a_change_of_any_part_of_a_job_changes_its_identity(fabric, monkeypatch):
    job = job_of("sasrec", fabric)
    validation = job.validation
    edited = set()
    monkeypatch.setattr(
        engine, "source_digest", lambda *modules: str(sorted(edited.intersection(modules)))
    )

    def other_sequences(sequences: Sequences) -> list[Sequences]:
        """The same but for one item, and for the place where one sequence ends."""
        items, offsets = sequences.items.copy(), sequences.offsets.copy()
        items[3] += 1
        offsets[5] += 1
        return [replace(sequences, items=items), replace(sequences, offsets=offsets)]

    changes = {
        "model_name": ["gru4rec"],
        "config": [config_of("sasrec", 0.2)],
        "training": other_sequences(job.training),
        "validation": [
            *(replace(validation, inputs=inputs) for inputs in other_sequences(validation.inputs)),
            replace(validation, targets=validation.targets[::-1]),
            replace(validation, filter_seen=False),
        ],
        "n_items": [N_ITEMS + 1],
        "settings": [
            replace(SETTINGS, **{field.name: different(getattr(SETTINGS, field.name))})
            for field in fields(Settings)
        ],
        "seed": [18],
    }
    elsewhere = {"fabric", "label"}
    assert changes.keys() == {field.name for field in fields(job)} - elsewhere
    identities = [job.identity()]
    for part, values in changes.items():
        identities += [replace(job, **{part: value}).identity() for value in values]
    for module in (engine.__name__, sasrec.__name__):
        edited.add(module)
        identities.append(job.identity())
    monkeypatch.setattr(torch, "__version__", "another")
    identities.append(job.identity())
    assert len(set(identities)) == len(identities)
    assert replace(job, label="another").identity() == job.identity()


def test_a_second_writer_of_a_cell_is_refused(fabric, tmp_path):
    with (
        Checkpoints(tmp_path, "another key").only_writer(),
        pytest.raises(UserError, match=f"process {os.getpid()} is already training"),
    ):
        train(fabric, cell=tmp_path)
    train(fabric, cell=tmp_path, settings=replace(SETTINGS, max_epochs=1))


# ------------------------------------------------------------------------------ several processes


def train_in_two_processes(tmp_path: Path, *options: str, torchrun: bool = False) -> list[dict]:
    """The history of the example on 33 users: batches of 16 leave one of two processes none."""
    output = tmp_path / "two"
    command = start_training(output, "--users", "33", "--devices", "2", *options)
    if torchrun:
        command[1:4] = [
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "2",
            "-m",
        ]
    subprocess.run(command, cwd=ROOT, env=environment(), check=True, timeout=600)
    return json.loads((tmp_path / "two.json").read_text())


@pytest.mark.parametrize(("model", "torchrun"), [(name, name == "sasrec") for name in MODELS])
def test_two_processes_follow_the_loss_curve_of_one(fabric, tmp_path, model, torchrun):
    options = ("--model", model, "--dropout", "0", "--cell", str(tmp_path / "cell"))
    two = train_in_two_processes(tmp_path, *options, torchrun=torchrun)
    one = train(fabric, model=model, dropout=0.0, n_users=33)
    assert len(two) == len(one.history)
    for found, expected in zip(two, one.history, strict=True):
        assert found.keys() == expected.keys()
        for name in found.keys() - {"epoch", NDCG}:
            assert found[name] == pytest.approx(expected[name], rel=1e-4)
        assert found[NDCG] == pytest.approx(expected[NDCG], abs=0.02)
    assert two[0]["loss"] == pytest.approx(one.history[0]["loss"], rel=1e-6)
    weights = load_file(tmp_path / "two.safetensors")
    for name, weight in one.weights.items():
        found = weights[name]
        if name.endswith("key_value.bias"):
            # A key's bias moves all logits of a query alike. Its gradient is rounding, which Adam
            # makes as large as any other.
            found, weight = found.chunk(2)[1], weight.chunk(2)[1]
        torch.testing.assert_close(found, weight, rtol=1e-3, atol=1e-3)


def test_two_processes_continue_what_one_began(fabric, tmp_path, monkeypatch):
    cell = tmp_path / "cell"
    one = train(fabric, dropout=0.0, n_users=33)
    with monkeypatch.context() as patched:
        interrupt_after(patched, n_steps=4)
        with pytest.raises(Interrupted):
            train(fabric, dropout=0.0, n_users=33, cell=cell)
    two = train_in_two_processes(tmp_path, "--dropout", "0", "--cell", str(cell))
    assert two[0] == one.history[0]
    assert [row["loss"] for row in two] == pytest.approx(
        [row["loss"] for row in one.history], rel=1e-4
    )


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_every_model_trains_in_two_processes(fabric, tmp_path, model):
    # Dropout is each process's own, so the curve is only near.
    two = train_in_two_processes(tmp_path, "--model", model, "--dropout", "0.1")
    one = train(fabric, model=model, dropout=0.1, n_users=33)
    assert two[0].keys() == one.history[0].keys()
    assert two[0]["loss"] == pytest.approx(one.history[0]["loss"], rel=0.02)


# ------------------------------------------------------------------------------------------ cuda


@pytest.fixture
def cuda() -> Iterator[Callable[[str], Fabric]]:
    """Launches on a CUDA device with a given precision."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    yield lambda precision: launch(Compute("cuda", 1, 1), precision)
    torch.use_deterministic_algorithms(False)


@pytest.mark.cuda
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-3), ("bf16", 0.03)])
def test_a_gpu_trains_about_as_a_cpu_does(fabric, cuda, model, precision, tolerance):
    expected = train(fabric, model=model, dropout=0.0).history
    settings = replace(SETTINGS, precision=precision, loss_precision=precision)
    fitted = train(cuda(precision), model=model, dropout=0.0, settings=settings)
    for found, row in zip(fitted.history[:3], expected[:3], strict=True):
        for name in row.keys() - {"epoch", NDCG}:
            assert found[name] == pytest.approx(row[name], rel=tolerance)
    assert {weight.dtype for weight in fitted.weights.values()} == {torch.float32}
    assert {weight.device.type for weight in fitted.weights.values()} == {"cpu"}


@pytest.mark.cuda
@pytest.mark.parametrize("model", MODELS)
def test_an_interrupted_training_continues_to_the_same_bits_on_a_gpu(
    cuda, tmp_path, monkeypatch, model
):
    undisturbed = train(cuda("fp32"), model=model)
    with monkeypatch.context() as patched:
        interrupt_after(patched, n_steps=10)
        with pytest.raises(Interrupted):
            train(cuda("fp32"), model=model, cell=tmp_path)
    assert_same(train(cuda("fp32"), model=model, cell=tmp_path), undisturbed)


# ------------------------------------------------------------------------ precision and progress


def test_autocast_trains_about_the_same_and_keeps_weights_in_float32(fabric):
    settings = replace(SETTINGS, max_epochs=1)
    expected = train(fabric, settings=settings, dropout=0.0).history[0]["loss"]
    autocast = launch(Compute("cpu", 1, threads=1), "bf16")
    fitted = train(autocast, settings=replace(settings, precision="bf16"), dropout=0.0)
    assert fitted.history[0]["loss"] != expected
    assert fitted.history[0]["loss"] == pytest.approx(expected, rel=0.02)
    assert {weight.dtype for weight in fitted.weights.values()} == {torch.float32}


@pytest.mark.parametrize(("able", "expected"), [(True, "bf16"), (False, "fp32")])
def test_the_precision_of_the_loss_reaches_the_model(
    fabric, tmp_path, monkeypatch, capsys, able, expected
):
    monkeypatch.setattr(losses, "cpu_multiplies_bfloat16", lambda: able)
    given = []
    loss = base.linear_cross_entropy

    def record(*arguments, precision, **options):
        given.append(precision)
        return loss(*arguments, precision=precision, **options)

    monkeypatch.setattr(base, "linear_cross_entropy", record)
    settings = replace(SETTINGS, max_epochs=1, loss_precision="bf16")
    train(fabric, settings=settings, cell=tmp_path)
    assert set(given) == {expected}
    assert ("train.loss_precision is fp32 here" in capsys.readouterr().err) != able
    # A training is known by what was computed.
    given.clear()
    train(fabric, settings=replace(settings, loss_precision=expected), cell=tmp_path)
    assert given == []


def test_progress_shows_epoch_loss_validation_best_and_time_left(fabric, capfd):
    fitted = train(fabric)
    shown = capfd.readouterr().err
    first = fitted.history[0]
    assert "sasrec epoch 2/7" in shown
    assert (
        f"loss {first['loss']:.3f}, validation NDCG@10 {first[NDCG]:.4f}, "
        f"best {first[NDCG]:.4f} (epoch 1), left " in shown
    )
    # How long depends on the machine, but a time it is.
    assert re.search(r"\(epoch 1\), left \d\d:\d\d", shown)
    assert f"best validation NDCG@10 {fitted.best_ndcg:.4f} (epoch {fitted.best_epoch})" in shown


# --------------------------------------------------------------------------------- clear refusals


def test_an_empty_training_set_is_refused(fabric):
    lonely = Sequences.from_lists([[3], [5]])
    with pytest.raises(UserError, match="training set is empty: no user has two interactions"):
        fit("sasrec", config_of("sasrec", 0.0), lonely, validation_of(sequences()), N_ITEMS,
            settings=SETTINGS, seed=17, fabric=fabric)  # fmt: skip


def test_users_with_one_interaction_are_left_out(fabric, batches):
    training = Sequences.from_lists([[3], [5, 7], [11], [13, 17, 19]])
    fit("sasrec", config_of("sasrec", 0.0), training, validation_of(sequences()), N_ITEMS,
        settings=replace(SETTINGS, max_epochs=1), seed=17, fabric=fabric)  # fmt: skip
    assert [sorted(batch) for batch in batches] == [[0, 1]]


def test_an_empty_validation_set_is_refused(fabric):
    nobody = Validation(Sequences.from_lists([]), np.array([], dtype=np.int32), True)
    with pytest.raises(UserError, match="validation set is empty"):
        fit("sasrec", config_of("sasrec", 0.0), sequences(), nobody, N_ITEMS,
            settings=SETTINGS, seed=17, fabric=fabric)  # fmt: skip


def test_a_loss_that_explodes_stops_training_and_says_what_to_change(fabric, tmp_path):
    settings = replace(SETTINGS, learning_rate=1e30)
    with pytest.raises(UserError, match=r"no longer a finite number .* lower train.learning_rate"):
        train(fabric, settings=settings, cell=tmp_path)


def test_lost_weights_are_not_saved(fabric, tmp_path, monkeypatch):
    # NaN comes with the last step of an epoch, whose own loss is still finite.
    class Killed(Exception):
        pass

    end_epoch, killed = engine._Trainer._end_epoch, []

    def lose(self):
        with torch.no_grad():
            next(self.model.parameters())[-1] = torch.nan
        end_epoch(self)

    def kill(self, display):
        if self.progress.epoch == 2 and not killed:
            killed.append(self)
            raise Killed
        train_epoch(self, display)

    train_epoch = engine._Trainer._train_epoch
    monkeypatch.setattr(engine._Trainer, "_end_epoch", lose)
    monkeypatch.setattr(engine._Trainer, "_train_epoch", kill)
    with pytest.raises(Killed):
        train(fabric, cell=tmp_path, checkpoint_seconds=0)
    with pytest.raises(UserError, match="no longer a finite number"):
        train(fabric, cell=tmp_path, checkpoint_seconds=0)


def test_running_out_of_memory_says_what_to_change(fabric):
    # More bytes than any address space holds.
    with pytest.raises(UserError, match=r"on cpu: lower train.batch_size \(or .*; now 16\)"):
        fit("sasrec", config_of("sasrec", 0.0), sequences(), validation_of(sequences()), 10**13,
            settings=SETTINGS, seed=17, fabric=fabric)  # fmt: skip


def test_running_out_of_memory_in_a_step_says_what_to_change():
    # A process of its own: in this one, memory that earlier tests have freed would do for the step.
    script = """
import resource

import psutil

from lastclick import training
from lastclick.errors import UserError
from tests.training_example import SETTINGS, config_of, sequences, validation_of

step = training._Trainer._train_step

def without_more_memory(self, users):
    now, (_, hard) = psutil.Process().memory_info().vms, resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now, hard))
    step(self, users)

training._Trainer._train_step = without_more_memory
fabric = training.launch(training.Compute("cpu", 1, threads=1), "fp32")
data = sequences()
try:
    training.fit("sasrec", config_of("sasrec", 0.3), data, validation_of(data), 12_000,
                 settings=SETTINGS, seed=17, fabric=fabric)
except UserError as error:
    print(error)
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert "sasrec on 12000 items ran out of memory on cpu: lower train.batch_size" in done.stdout


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(UserError, match=r"1 CUDA device\(s\) asked for, 0 found"):
        launch(Compute("cuda", 1, 0), "fp32")


def test_threads_are_set():
    before = torch.get_num_threads()
    try:
        launch(Compute("cpu", 1, before + 1), "fp32")
        assert torch.get_num_threads() == before + 1
        launch(Compute("cpu", 1, 0), "fp32")
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)

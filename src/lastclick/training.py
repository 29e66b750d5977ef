"""Training: Adam over batches of users, early stopping on validation, and survival.

The protocol is that of *time to split*: batches of users drawn at random each epoch, cross-entropy
at every real position, early stopping on NDCG@10 of a sample of validation users. The model says
what a batch is and what its loss is (``models/base.py``); nothing here knows which model it is.

Devices, processes and mixed precision are those of lightning-fabric. With several processes each
batch is shared out over them and its loss normalised by the whole batch's number of targets, so
that the number of processes changes what is learned by another dropout alone.

All randomness is a function of (seed, epoch, step): the order of users, the model's choices of
data, and dropout, whose generator is seeded anew at every step, in each process in its own way. So
the place where a training was interrupted is all the random state there is to save.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import polars as pl
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from tqdm import tqdm

from lastclick.artifacts import Fitted, HistoryRow, build_model, load_weights, model_module
from lastclick.checkpoint import Checkpoints, key_of, source_digest
from lastclick.data.sequences import Batch, Sequences
from lastclick.errors import UserError
from lastclick.losses import effective_precision
from lastclick.models.base import ModelConfig, Recommender, TrainingLoss
from lastclick.ranking import NonFiniteScoresError, SeenItems, ranks_of

Result = TypeVar("Result")

#: Cut-off of the validation metric.
K = 10
#: Seconds between two checkpoints: the most that a kill costs.
CHECKPOINT_SECONDS = 60.0
#: Steps between two looks at the loss; on a GPU each look waits for the device.
STEPS_BETWEEN_LOOKS = 20
# How torch's own allocator on a CPU, and oneDNN, tell that memory ran out: as plain RuntimeErrors.
_FAILED_ALLOCATIONS = ("DefaultCPUAllocator", "could not create a primitive")

# What a stream of random numbers is for; it keeps apart the streams of one seed.
_WEIGHTS, _VALIDATION, _ORDER, _DATA, _DROPOUT = range(5)


@dataclass(frozen=True)
class Settings:
    """What training is, the same for every model.

    ``batch_size`` counts users; ``patience`` is the number of epochs without a better validation
    NDCG@10 after which training stops; ``validation_users`` are sampled for it. ``precision`` is
    that of the model ("bf16": autocast, matrix products in bfloat16, LayerNorm and softmax in
    float32), ``loss_precision`` that of the products of the catalogue-sized loss
    (``losses.linear_cross_entropy``).
    """

    batch_size: int
    learning_rate: float
    max_epochs: int
    patience: int
    validation_users: int
    precision: Literal["fp32", "bf16"]
    loss_precision: Literal["fp32", "bf16"]


@dataclass(frozen=True)
class Compute:
    """Where to train: ``devices`` processes, a device each; ``threads`` 0 leaves torch's choice."""

    device: Literal["auto", "cpu", "cuda"]
    devices: int
    threads: int


@dataclass(frozen=True)
class Validation:
    """``inputs`` of n sequences, their ``targets (n,)``, and whether inputs leave the ranking."""

    inputs: Sequences
    targets: np.ndarray
    filter_seen: bool

    @classmethod
    def from_frame(cls, frame: pl.DataFrame, *, filter_seen: bool) -> Validation:
        """Read an evaluation table: whole sequences, the last item of each being the target."""
        whole = Sequences.from_evaluation(frame)
        return cls(whole.window(drop_last=1), whole.recent_item(0), filter_seen)

    def sample(self, n_users: int, seed: int) -> Validation:
        """At most ``n_users`` rows, chosen by ``seed`` alone (so the same ones for every model)."""
        if len(self.inputs) <= n_users:
            return self
        rng = np.random.default_rng([_VALIDATION, seed])
        rows = np.sort(rng.choice(len(self.inputs), n_users, replace=False))
        return Validation(self.inputs.take(rows), self.targets[rows], self.filter_seen)


@dataclass
class EarlyStopping:
    """Remembers the best epoch; a validation value that is not a number is never the best."""

    patience: int
    best_value: float | None = None
    best_epoch: int = 0
    waited: int = 0

    def update(self, epoch: int, value: float) -> bool:
        """Take an epoch's validation value; returns whether it is the best so far."""
        if not math.isnan(value) and (self.best_value is None or value > self.best_value):
            self.best_value, self.best_epoch, self.waited = value, epoch, 0
            return True
        self.waited += 1
        return False

    @property
    def exhausted(self) -> bool:
        return self.waited >= self.patience


def launch(compute: Compute, precision: Literal["fp32", "bf16"]) -> Fabric:
    """Start this process's part in training: device, precision, threads and fellow processes.

    With ``devices`` > 1 the running script is started once more for each further device; under
    ``torchrun`` the processes are those that it started, on any number of machines. Call it once
    per process. Raises UserError when the devices asked for are not there.
    """
    under_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    devices = int(os.environ["LOCAL_WORLD_SIZE"]) if under_torchrun else compute.devices
    nodes = int(os.environ["GROUP_WORLD_SIZE"]) if under_torchrun else 1
    available = torch.cuda.device_count()
    on_cuda = compute.device == "cuda" or (compute.device == "auto" and available > 0)
    if on_cuda and available < devices:
        device = "cpu" if available else "cpu or auto"
        raise UserError(
            f"{devices} CUDA device(s) asked for, {available} found: set compute.device to "
            f"{device}, lower compute.devices, or install a torch built for this machine's GPU"
        )
    if on_cuda:
        # cuBLAS is deterministic only with a workspace of its own.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        # Meant to show up reads of memory before it was written; it costs a pass over each tensor.
        torch.utils.deterministic.fill_uninitialized_memory = False
    fabric = Fabric(
        accelerator="cuda" if on_cuda else "cpu",
        devices=devices,
        num_nodes=nodes,
        strategy="ddp" if devices * nodes > 1 else "auto",
        precision="bf16-mixed" if precision == "bf16" else "32-true",
    )
    fabric.launch()
    if compute.threads:
        torch.set_num_threads(compute.threads)
    return fabric


def fit(
    model_name: str,
    config: ModelConfig,
    training: Sequences,
    validation: Validation,
    n_items: int,
    *,
    settings: Settings,
    seed: int,
    fabric: Fabric,
    cell: Path | None = None,
    checkpoint_seconds: float | None = None,
    label: str | None = None,
) -> Fitted:
    """Train a model to early stopping and return the weights of its best epoch.

    ``training`` and ``validation`` hold items of a catalogue 1..``n_items``; ``fabric`` is what
    ``launch`` returned for ``settings.precision``. A processor that cannot multiply bfloat16 turns
    ``settings.loss_precision`` into "fp32", and says so. ``cell``, where given, is the folder of
    its checkpoints, which the first process reads and writes: an interrupted training of the same
    model, parameters, data and code is continued, and a finished one returned at once. Checkpoints
    are ``checkpoint_seconds`` apart (CHECKPOINT_SECONDS). ``label`` names the training in its
    progress bar.

    Raises UserError when there is nothing to train or to validate on, when the loss or every
    validation score stops being a number, when memory runs out, and while another process trains
    in ``cell``.
    """
    usable = usable_users(training)
    if len(usable) == 0:
        raise UserError(
            "the training set is empty: no user has two interactions to learn from; check "
            "preprocess.k_core and split.quantile, and the raw data"
        )
    if len(validation.inputs) == 0:
        raise UserError(
            "the validation set is empty, so training cannot know when to stop; check "
            "split.quantile and split.validation, and the raw data"
        )
    settings = _with_effective_precision(settings, fabric, label or model_name)
    job = _Job(
        model_name, config, training.take(usable),
        validation.sample(settings.validation_users, seed), n_items, settings, seed, fabric,
        label or model_name,
    )  # fmt: skip
    checkpoints = None if cell is None else Checkpoints(cell, job.identity())
    with _only_writer(checkpoints, fabric), _explained_memory(job):
        finished = _by_first_process(fabric, checkpoints.load_final) if checkpoints else None
        if finished is not None:
            weights, numbers = finished
            return Fitted(weights, **numbers)
        seconds = CHECKPOINT_SECONDS if checkpoint_seconds is None else checkpoint_seconds
        fitted = _Trainer(job, checkpoints, seconds).run()
        if checkpoints and fabric.is_global_zero:
            numbers = {name: value for name, value in vars(fitted).items() if name != "weights"}
            checkpoints.save_final(fitted.weights, numbers)
        return fitted


def usable_users(training: Sequences) -> np.ndarray:
    """Rows of the users who can be learnt from: they have two interactions or more."""
    return np.flatnonzero(training.lengths >= 2)


def steps_of_epoch(n_users: int, config: ModelConfig, batch_size: int) -> int:
    """How many batches an epoch has; the last one may be short."""
    return math.ceil(n_users * config.passes_per_epoch / batch_size)


def _with_effective_precision(settings: Settings, fabric: Fabric, label: str) -> Settings:
    """What is computed is part of a training's identity, not what was asked for."""
    precision = effective_precision(settings.loss_precision, fabric.device)
    if precision != settings.loss_precision and fabric.is_global_zero:
        print(
            f"{label}: this processor has no instructions for {settings.loss_precision}, so "
            f"train.loss_precision is {precision} here",
            file=sys.stderr,
        )
    return replace(settings, loss_precision=precision)


def validation_ndcg(
    model: Recommender, validation: Validation, *, batch_size: int, fabric: Fabric
) -> float:
    """Mean NDCG@10 over all of ``validation``; NaN where scores are not finite.

    ``model`` is in evaluation mode and on ``fabric``'s device.
    """
    counts = _ValidationShare.of(validation, fabric).count_ranks(model, batch_size, fabric)
    return _ndcg(counts, len(validation.targets), fabric)


def _ndcg(counts: Tensor, n_targets: int, fabric: Fabric) -> float:
    """NDCG@10 from every process's counts of ranks, ``(11,)``; see ``_ValidationShare``."""
    counts = fabric.all_reduce(counts, reduce_op="sum").tolist()
    if counts[0]:
        return math.nan
    # One relevant item per user: the ideal DCG is 1. Summed rank by rank and not user by user,
    # so that rounding never tells two equal epochs apart.
    gains = (counts[rank] / math.log2(1 + rank) for rank in range(1, K + 1))
    return sum(gains) / n_targets


@dataclass(frozen=True)
class _Job:
    """What to train: every training sequence has two items or more, the validation is sampled."""

    model_name: str
    config: ModelConfig
    training: Sequences
    validation: Validation
    n_items: int
    settings: Settings
    seed: int
    fabric: Fabric
    label: str

    def identity(self) -> str:
        """A hash of all that the result depends on, and of nothing about where it is computed."""
        return key_of(
            {
                "model": self.model_name,
                "config": self.config.model_dump(mode="json"),
                "settings": asdict(self.settings),
                "seed": self.seed,
                "n_items": self.n_items,
                "training_items": self.training.items,
                "training_offsets": self.training.offsets,
                "validation_items": self.validation.inputs.items,
                "validation_offsets": self.validation.inputs.offsets,
                "validation_targets": self.validation.targets,
                "filter_seen": self.validation.filter_seen,
                "code": source_digest(__name__, model_module(self.model_name).__name__),
                "numpy": np.__version__,
                "torch": torch.__version__.partition("+")[0],  # any build
            }
        )


@contextmanager
def _only_writer(checkpoints: Checkpoints | None, fabric: Fabric) -> Iterator[None]:
    """Hold the cell's lock in the first process; a refusal is raised in every process."""
    with ExitStack() as held:
        if checkpoints:
            _by_first_process(fabric, lambda: held.enter_context(checkpoints.only_writer()))
        yield


def _by_first_process(fabric: Fabric, call: Callable[[], Result]) -> Result:
    """What ``call`` returns in the first process, or the UserError it raises, in every process.

    So processes agree on where they continue, and need not all see the folder of checkpoints.
    """
    result, refusal = None, None
    if fabric.is_global_zero:
        try:
            result = call()
        except UserError as error:
            refusal = str(error)
    result, refusal = fabric.broadcast((result, refusal))
    if refusal is not None:
        raise UserError(refusal)
    return result


@contextmanager
def _explained_memory(job: _Job) -> Iterator[None]:
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        ran_out = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not ran_out and not any(told in str(error) for told in _FAILED_ALLOCATIONS):
            raise
        in_config = ("max_length", "prefixes_per_sequence", "hidden_size")
        sizes = " or ".join(name for name in in_config if hasattr(job.config, name))
        raise UserError(
            f"training {job.model_name} on {job.n_items} items ran out of memory on "
            f"{job.fabric.device}: lower train.batch_size (or train.batch_size_of where that names "
            f"the data set; now {job.settings.batch_size}) or the model's {sizes}, or use a "
            f"machine with more memory ({error})"
        ) from None


class _Opaque:
    """Carries a batch past wrappers that look into collections to move or convert tensors."""

    def __init__(self, content: Any):
        self.content = content


class _Objective(nn.Module):
    """A model's training loss as a ``forward``, which is what fabric wraps."""

    def __init__(self, model: Recommender):
        super().__init__()
        self.model = model

    def forward(self, batch: _Opaque) -> tuple[Tensor, int, dict[str, Tensor]]:
        loss: TrainingLoss = self.model.training_loss(batch.content)
        return loss.total, loss.n_targets, loss.extra


@dataclass
class _Progress:
    """Where training stands: ``epoch`` (from 1) and ``step`` (from 0) name the next step.

    ``sums``, over the epoch so far and all processes, float64: the loss, the targets, the users,
    and each of the extra ``terms`` times its users.
    """

    stopping: EarlyStopping
    epoch: int = 1
    step: int = 0
    terms: list[str] = field(default_factory=list)
    sums: Tensor | None = None
    history: list[HistoryRow] = field(default_factory=list)


class _Shares:
    """How a batch is shared out over processes: like cards to players."""

    def __init__(self, rank: int, n_processes: int):
        self.rank = rank
        self.own = slice(rank, None, n_processes)
        self.sizes = [0] * n_processes

    def set_size(self, n_users: int) -> int:
        """Take the size of the next batch; returns that of this process's share."""
        n_processes = len(self.sizes)
        self.sizes = [len(range(first, n_users, n_processes)) for first in range(n_processes)]
        return self.sizes[self.rank]

    def gather(self, own: Tensor) -> Tensor:
        """``Recommender.of_whole_batch``: the values of all shares, one after the other."""
        if len(self.sizes) == 1:
            return own
        own = own[: self.sizes[self.rank]]  # none, of a process without users
        filling = own.new_zeros(max(self.sizes) - len(own), *own.shape[1:])
        padded = torch.cat((own.detach(), filling))
        gathered = [torch.empty_like(padded) for _ in self.sizes]
        torch.distributed.all_gather(gathered, padded)
        shares = [share[:size] for share, size in zip(gathered, self.sizes, strict=True)]
        shares[self.rank] = own
        return torch.cat(shares)


class _Trainer:
    """One training, from fresh weights or a checkpoint to the weights of the best epoch."""

    def __init__(self, job: _Job, checkpoints: Checkpoints | None, checkpoint_seconds: float):
        self.job = job
        self.fabric = job.fabric
        self.checkpoints = checkpoints
        self.checkpoint_seconds = checkpoint_seconds
        self.n_steps = steps_of_epoch(len(job.training), job.config, job.settings.batch_size)

        _seed_generators(self.fabric.device, _WEIGHTS, job.seed)
        self.model = build_model(job.model_name, job.config, job.n_items)
        self.model.loss_precision = job.settings.loss_precision
        self.shares = _Shares(self.fabric.global_rank, self.fabric.world_size)
        self.model.of_whole_batch = self.shares.gather
        # The fused form is several times faster than the others over a catalogue of embeddings.
        self.adam = torch.optim.Adam(
            self.model.parameters(), lr=job.settings.learning_rate, fused=True
        )
        self.objective, self.optimizer = self.fabric.setup(_Objective(self.model), self.adam)
        self.validation = _ValidationShare.of(job.validation, self.fabric)
        self.progress = _Progress(EarlyStopping(job.settings.patience))
        self.best: dict[str, Tensor] = {}
        self._restore()
        self.saved_at = time.monotonic()

    def run(self) -> Fitted:
        progress, stopping = self.progress, self.progress.stopping
        display = _Display(self)
        while progress.epoch <= self.job.settings.max_epochs and not stopping.exhausted:
            display.start_epoch(progress)
            self._train_epoch(display)
            self._end_epoch()
            display.end_epoch(progress)
            self._save_if_due()
        display.close(progress)
        if stopping.best_value is None:
            raise UserError(
                f"the validation scores of {self.job.model_name} were not finite in any of its "
                f"{len(progress.history)} epochs: lower train.learning_rate (now "
                f"{self.job.settings.learning_rate:g})"
            )
        return Fitted(self.best, progress.history, stopping.best_epoch, stopping.best_value)

    def _train_epoch(self, display: _Display) -> None:
        progress, batch_size = self.progress, self.job.settings.batch_size
        rng = np.random.default_rng([_ORDER, self.job.seed, progress.epoch])
        n_passes, n_users = self.job.config.passes_per_epoch, len(self.job.training)
        order = np.concatenate([rng.permutation(n_users) for _ in range(n_passes)])
        self.model.train()
        while progress.step < self.n_steps:
            start = progress.step * batch_size
            self._train_step(order[start : start + batch_size])
            progress.step += 1
            if progress.step % STEPS_BETWEEN_LOOKS == 0:
                display.show_loss(self._losses()["loss"])
            display.advance()
            self._save_if_due()

    def _train_step(self, users: np.ndarray) -> None:
        """A step of Adam on the batch of ``users``, of which this process takes its share."""
        job, progress, fabric = self.job, self.progress, self.fabric
        n_own = self.shares.set_size(len(users))
        # A process that a short last batch leaves without users takes part with weight 0.
        share, weight = (self.shares.own, 1) if n_own else (slice(1), 0)
        place = (job.seed, progress.epoch, progress.step)
        _seed_generators(fabric.device, _DROPOUT, *place, fabric.global_rank)
        rng = np.random.default_rng([_DATA, *place])
        batch = self.model.training_batch(job.training, users, rng, share)
        total, n_targets, extra = self.objective(_Opaque(batch.to(fabric.device)))
        total = total * weight
        # Every process computes the terms of the whole batch, and the gradient of its own share.
        terms = [term * n_own for term in extra.values()]
        counts = torch.tensor([n_targets * weight, n_own], dtype=torch.float64)
        losses = torch.stack([total, *terms]).detach().double()
        sums = torch.cat((losses[:1], counts.to(fabric.device), losses[1:]))
        sums = fabric.all_reduce(sums, reduce_op="sum")
        objective = total / sums[1] + sum(extra.values())
        self.optimizer.zero_grad()
        # With several processes gradients are averaged over them, where their sum is meant.
        fabric.backward(objective * fabric.world_size)
        self.optimizer.step()
        progress.terms = list(extra)
        progress.sums = sums if progress.sums is None else progress.sums + sums

    def _losses(self) -> dict[str, float]:
        """Mean loss per target, and mean extra terms, of the epoch so far.

        Raises UserError when one of them is not a finite number.
        """
        progress = self.progress
        loss, n_targets, n_users, *extra = progress.sums.tolist()
        losses = {"loss": loss / n_targets}
        losses |= {name: term / n_users for name, term in zip(progress.terms, extra, strict=True)}
        if not all(math.isfinite(value) for value in losses.values()):
            raise UserError(
                f"the training loss of {self.job.model_name} is no longer a finite number by epoch "
                f"{progress.epoch}, step {progress.step} of {self.n_steps} ({losses}): lower "
                f"train.learning_rate (now {self.job.settings.learning_rate:g}), or choose fp32 "
                "where bf16 is set"
            )
        return losses

    def _end_epoch(self) -> None:
        """Validate, keep the best weights, and move on to the next epoch."""
        progress = self.progress
        losses = self._losses()
        ndcg = self._validation_ndcg()
        if progress.stopping.update(progress.epoch, ndcg):
            self.best = {
                name: tensor.detach().to("cpu", copy=True)
                for name, tensor in self.model.state_dict().items()
            }
        measured = None if math.isnan(ndcg) else ndcg
        progress.history.append(
            {"epoch": progress.epoch, **losses, f"validation_NDCG@{K}": measured}
        )
        progress.epoch, progress.step, progress.sums = progress.epoch + 1, 0, None

    def _validation_ndcg(self) -> float:
        """Mean NDCG@10 over the sampled validation users; NaN where scores are not finite."""
        self.model.eval()
        counts = self.validation.count_ranks(self.model, self.job.settings.batch_size, self.fabric)
        return _ndcg(counts, len(self.job.validation.targets), self.fabric)

    def _save_if_due(self) -> None:
        due = time.monotonic() - self.saved_at >= self.checkpoint_seconds
        if due and self.checkpoints and self.fabric.is_global_zero:
            self._save()
            self.saved_at = time.monotonic()

    def _save(self) -> None:
        """Save where training stands, unless it is lost and must not be continued from here.

        That is left to the next look at the loss to report, which every process takes.
        """
        progress = self.progress
        tensors = {f"model/{name}": tensor for name, tensor in self.model.state_dict().items()}
        tensors |= {f"best/{name}": tensor for name, tensor in self.best.items()}
        for index, state in self.adam.state_dict()["state"].items():
            tensors |= {f"adam/{index}/{name}": tensor for name, tensor in state.items()}
        if progress.sums is not None:
            tensors["sums"] = progress.sums
        if not all(tensor.isfinite().all() for tensor in tensors.values()):
            return
        numbers = {
            "epoch": progress.epoch,
            "step": progress.step,
            "terms": progress.terms,
            "history": progress.history,
            "stopping": asdict(progress.stopping),
        }
        self.checkpoints.save_state(tensors, numbers)

    def _restore(self) -> None:
        """Continue from the checkpoint, where there is one."""
        if not self.checkpoints:
            return
        saved = _by_first_process(self.fabric, self.checkpoints.load_state)
        if saved is None:
            return
        tensors, numbers = saved
        sums = tensors.pop("sums", None)
        groups: dict[str, dict[str, Tensor]] = {"model": {}, "best": {}, "adam": {}}
        for path, tensor in tensors.items():
            group, _, name = path.partition("/")
            groups[group][name] = tensor
        load_weights(self.model, groups["model"], f"the checkpoint in {self.checkpoints.cell}")
        self.best = groups["best"]
        adam = self.adam.state_dict()
        for path, tensor in groups["adam"].items():
            index, _, name = path.partition("/")
            adam["state"].setdefault(int(index), {})[name] = tensor
        self.adam.load_state_dict(adam)
        self.progress = _Progress(
            EarlyStopping(**numbers.pop("stopping")),
            sums=None if sums is None else sums.to(self.fabric.device),
            **numbers,
        )


def _seed_generators(device: torch.device, *parts: int) -> None:
    """Seed torch's generators of the CPU and the device with a number well mixed from ``parts``."""
    seed = int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0])
    # torch.manual_seed does the same for every kind of device there is, at 20 times the cost.
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


@dataclass(frozen=True)
class _ValidationShare:
    """The validation users that this process ranks, on its device."""

    inputs: Sequences
    targets: Tensor
    seen: SeenItems | None

    @classmethod
    def of(cls, validation: Validation, fabric: Fabric) -> _ValidationShare:
        rows = np.arange(fabric.global_rank, len(validation.targets), fabric.world_size)
        inputs = validation.inputs.take(rows)
        targets = torch.from_numpy(validation.targets[rows].astype(np.int64)).to(fabric.device)
        seen = None
        if validation.filter_seen:
            items = torch.from_numpy(inputs.items.astype(np.int64)).to(fabric.device)
            offsets = torch.from_numpy(inputs.offsets).to(fabric.device)
            seen = SeenItems.from_sequences(items, offsets)
        return cls(inputs, targets, seen)

    def count_ranks(self, model: Recommender, batch_size: int, fabric: Fabric) -> Tensor:
        """How many targets have rank 1, …, 10, at those places of ``(11,)`` int64.

        Place 0 is 0, or 1 when the scores are not finite.
        """
        inputs = self.inputs.window(keep=model.max_input_length)
        states = [torch.empty(0, model.item_vectors().shape[1], device=fabric.device)]
        with torch.inference_mode():
            with fabric.autocast():
                for start in range(0, len(inputs), batch_size):
                    rows = np.arange(start, min(start + batch_size, len(inputs)))
                    batch = Batch.of(inputs.take(rows)).to(fabric.device)
                    states.append(model.final_states(batch).float())
            try:
                ranks = ranks_of(
                    torch.cat(states), model.item_vectors(), self.targets[:, None], self.seen
                ).filtered
            except NonFiniteScoresError:
                return torch.eye(K + 1, dtype=torch.int64, device=fabric.device)[0]
            return torch.bincount(ranks[ranks <= K].long(), minlength=K + 1)


class _Display:
    """A progress bar over the steps of an epoch, with what training has come to so far."""

    def __init__(self, trainer: _Trainer):
        self.job = trainer.job
        self.n_steps = trainer.n_steps
        self.loss = self.ndcg = self.best = self.left = "?"
        self.durations: list[float] = []
        if trainer.progress.history:
            self._tell(trainer.progress)
        self.bar = tqdm(
            total=self.n_steps,
            unit="step",
            leave=False,
            disable=not trainer.fabric.is_global_zero,
            # Where no one watches, a log should not grow by a line every moment.
            mininterval=0.2 if sys.stderr.isatty() else 30.0,
        )

    def start_epoch(self, progress: _Progress) -> None:
        self.started = time.monotonic()
        self.steps_before = progress.step
        epoch = f"epoch {progress.epoch}/{self.job.settings.max_epochs}"
        self.bar.set_description_str(f"{self.job.label} {epoch}", refresh=False)
        self._show()
        self.bar.reset()
        self.bar.update(progress.step)

    def show_loss(self, loss: float) -> None:
        self.loss = f"{loss:.3f}"
        self._show()

    def advance(self) -> None:
        self.bar.update()

    def _show(self) -> None:
        self.bar.set_postfix_str(
            f"loss {self.loss}, validation NDCG@{K} {self.ndcg}, best {self.best}, "
            f"left {self.left}",
            refresh=False,
        )

    def end_epoch(self, progress: _Progress) -> None:
        self._tell(progress)
        if self.steps_before == 0:
            self.durations.append(time.monotonic() - self.started)
        if not self.durations:
            return
        seconds = sum(self.durations) / len(self.durations)
        # Whether validation still improves decides how many epochs there will be.
        at_most = self.job.settings.max_epochs - len(progress.history)
        at_least = min(at_most, progress.stopping.patience - progress.stopping.waited)
        self.left = " to ".join(tqdm.format_interval(n * seconds) for n in (at_least, at_most))

    def _tell(self, progress: _Progress) -> None:
        """What the last epoch came to."""
        row, stopping = progress.history[-1], progress.stopping
        ndcg = row[f"validation_NDCG@{K}"]
        self.loss = f"{row['loss']:.3f}"
        self.ndcg = "not finite" if ndcg is None else f"{ndcg:.4f}"
        if stopping.best_value is not None:
            self.best = f"{stopping.best_value:.4f} (epoch {stopping.best_epoch})"

    def close(self, progress: _Progress) -> None:
        self.bar.close()
        if self.job.fabric.is_global_zero:
            print(
                f"{self.job.label}: {len(progress.history)} epochs, loss {self.loss}, "
                f"best validation NDCG@{K} {self.best}",
                file=sys.stderr,
            )

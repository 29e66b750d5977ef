"""Which interactions train, validate and test.

Definitions are those of *time to split*. A split needs three numbers a user: how many of its
interactions, oldest first, train; how many make up its validation sequence; how many its test
sequence. All tables are cut from the interactions by these prefixes.

**Global time split** (the default). ``T_test`` is the ``quantile`` of the timestamps of all
interactions. Interactions at or before it, of users who have at least two of them there, form the
pool for training and validation. Every user with an interaction after ``T_test`` is a test user.
Interactions after the cut are the user's *holdout*; one or several of them are targets.

**Leave one out.** A user's last interaction is the test target, the one before it the validation
target, and the rest trains. It lets training see other users' future; use it to compare with
published numbers.

**Validation** under a global time split: ``global_time`` cuts the pool at its own ``quantile``
``T_validation``, just as the interactions were cut; ``last_train_item`` takes the last pool
interaction of every user as target; ``by_user`` sets ``validation_users`` users of the pool aside,
whole, and takes their last pool interaction as target.

**Targets.** The input is everything before the target, holdout included, and a target without any
input does not exist: a user whose only interaction lies in the holdout is skipped and counted, and
the earliest target of a user whose interactions all lie there is the second of them. ``last``,
``first`` and ``random`` give one target a user; ``successive`` gives every holdout interaction in
turn; ``all`` gives every holdout interaction too, but all with the input of the first. The option
applies to holdouts cut by time; where the holdout is a single interaction, that is the target.

**Tables.** ``train`` holds interactions. ``validation`` and ``test`` hold evaluation sequences:
input, then the target as last row. ``target_index`` tells the sequences of one user apart: always
0 with one target a user; 0, 1, … in time order under ``successive`` and ``all``, where each target
repeats its input, so that rows grow with the square of the holdout.

A user trains only with two interactions or more: one alone has nothing to predict.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from fractions import Fraction

import numpy as np
import polars as pl

from lastclick.data.hashing import seeded_hash
from lastclick.data.parts import parts_of
from lastclick.errors import UserError

MIN_TRAIN_LENGTH = 2
#: Beyond this, repeating the input of every target takes tens of gigabytes.
MAX_EVALUATION_ROWS = 1_000_000_000


@dataclass(frozen=True)
class SplitReport:
    """Thresholds (seconds, UTC; None where the protocol has none) and counts.

    ``n_test_skipped``: users with a holdout but no input. ``mean_test_holdout``: mean number of
    interactions in the holdout of a test user. Likewise for validation. ``n_items`` is the size of
    the catalogue, which every ranking covers: items that never train stay in it.
    """

    n_items: int
    t_test: float | None
    t_validation: float | None
    n_train_interactions: int
    n_train_users: int
    n_validation_users: int
    n_validation_targets: int
    n_validation_skipped: int
    mean_validation_holdout: float
    n_test_users: int
    n_test_targets: int
    n_test_skipped: int
    mean_test_holdout: float

    def as_dict(self) -> dict[str, float | int]:
        """The numbers that exist, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Split:
    """``train`` (user_id, item_id Int32; timestamp Int64) and ``validation``, ``test`` (the same
    and target_index Int32), in the order of the interactions, and the report.

    The tables are lazy: at the size of all interactions together they need not be held at once.
    """

    train: pl.LazyFrame
    validation: pl.LazyFrame
    test: pl.LazyFrame
    report: SplitReport


@dataclass(frozen=True)
class _Users:
    """Users and where their rows lie, arrays ``(n_users,)`` in the order of the rows."""

    ids: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray


@dataclass(frozen=True)
class _Evaluation:
    """One evaluation partition, arrays ``(n_users,)``.

    Of a user's first ``length`` interactions, ``history`` are known and the others are the
    holdout; those from position ``first_target`` on can be targets.
    """

    history: np.ndarray
    length: np.ndarray

    @property
    def holdout(self) -> np.ndarray:
        return self.length - self.history

    @property
    def first_target(self) -> np.ndarray:
        return np.maximum(self.history, 1)

    @property
    def evaluated(self) -> np.ndarray:
        """Numbers of the users who have a holdout and a target in it."""
        return np.flatnonzero((self.holdout > 0) & (self.first_target < self.length))

    @property
    def n_skipped(self) -> int:
        return int(np.count_nonzero(self.holdout)) - len(self.evaluated)


@dataclass(frozen=True)
class _Plan:
    """A split by user: the first ``train[u]`` interactions train, and two evaluations."""

    train: np.ndarray
    validation: _Evaluation
    test: _Evaluation
    t_validation: Fraction | None = None
    t_test: Fraction | None = None


def split_interactions(
    interactions: pl.DataFrame,
    *,
    protocol: str = "global_time",
    quantile: float = 0.9,
    target: str = "last",
    validation: str = "global_time",
    validation_users: int = 1024,
    seed: int = 17,
) -> Split:
    """Split ``interactions`` (in order of user and time); the module says what the options mean.

    ``quantile``, between 0 and 1, is read as the decimal that it is written as. ``seed`` decides
    the random targets and the users of ``by_user``, by a hash of the user id.

    Raises UserError when training, validation or test would be empty, when ``by_user`` asks for
    more users than the pool has, and when the evaluation sequences would not fit in memory.
    """
    users = _users(interactions)
    times = interactions["timestamp"].to_numpy()
    if protocol == "global_time":
        plan = _global_time(users, times, quantile, validation, validation_users, seed)
    elif protocol == "leave_one_out":
        plan = _leave_one_out(users)
    else:
        raise ValueError(f"unknown protocol {protocol!r}")
    _refuse_empty(plan)
    return Split(
        train=_rows(interactions, _prefixes(users, plan.train, interactions.height)),
        validation=_evaluation_table(interactions, users, plan.validation, target, seed),
        test=_evaluation_table(interactions, users, plan.test, target, seed),
        report=_report(plan, target, n_items=interactions["item_id"].max()),
    )


def time_quantile(timestamps: np.ndarray, quantile: float) -> Fraction:
    """The linearly interpolated ``quantile`` of integer ``timestamps (n,)``, n > 0, exactly.

    With the times sorted, it lies at position ``quantile * (n - 1)``, between two neighbours on a
    straight line. Exact, because a rounding error of the position could put an interaction that
    lies on the threshold behind it.
    """
    position = Fraction(str(quantile)) * (len(timestamps) - 1)
    below = position.numerator // position.denominator
    lower, upper = _in_order(timestamps, below, min(below + 1, len(timestamps) - 1))
    return lower + (position - below) * (upper - lower)


def _in_order(values: np.ndarray, *places: int) -> list[int]:
    """The integers at ``places`` (increasing, from 0) of the sorted ``values``.

    Counts values by their leading bits first, so that only those near the places are sorted.
    """
    lowest, highest = int(values.min()), int(values.max())
    dropped_bits = np.uint64(max((highest - lowest).bit_length() - 16, 0))
    origin = np.uint64(lowest % 2**64)

    def leading(part: slice) -> np.ndarray:
        # Modulo 2**64 the difference is right even where it would not fit a signed integer.
        return ((values[part].astype(np.uint64) - origin) >> dropped_bits).astype(np.int64)

    n_below = np.zeros(2**16 + 1, dtype=np.int64)
    for part in parts_of(len(values)):
        n_below[1:] += np.bincount(leading(part), minlength=2**16)
    np.cumsum(n_below, out=n_below)
    first, *_, last = np.searchsorted(n_below, places, side="right") - 1
    near = []
    for part in parts_of(len(values)):
        buckets = leading(part)
        near.append(values[part][(buckets >= first) & (buckets <= last)])
    ordered = np.sort(np.concatenate(near))
    return [int(ordered[place - n_below[first]]) for place in places]


def _users(interactions: pl.DataFrame) -> _Users:
    ids = interactions["user_id"].to_numpy()
    changes = np.flatnonzero(ids[1:] != ids[:-1]) + 1
    starts = np.concatenate(([0], changes)) if len(ids) else changes
    if (np.diff(ids[starts]) <= 0).any():
        raise ValueError("interactions must be in order of user_id")
    return _Users(ids[starts], starts, np.diff(starts, append=len(ids)))


def _global_time(
    users: _Users,
    times: np.ndarray,
    quantile: float,
    validation: str,
    validation_users: int,
    seed: int,
) -> _Plan:
    t_test = time_quantile(times, quantile)
    history = _count_until(users, times, t_test)
    test = _Evaluation(history, users.lengths)
    pool = _trainable(history)
    if validation == "global_time":
        if not pool.any():
            raise UserError(
                f"nothing to train on: no user has {MIN_TRAIN_LENGTH} interactions at or before "
                f"{_threshold('T_test', t_test)}; raise split.quantile"
            )
        pool_times = times[_prefixes(users, pool, len(times))]
        t_validation = time_quantile(pool_times, quantile)
        history = np.minimum(_count_until(users, times, t_validation), pool)
        return _Plan(_trainable(history), _Evaluation(history, pool), test, t_validation, t_test)
    if validation == "last_train_item":
        history = np.maximum(pool - 1, 0)
        return _Plan(_trainable(history), _Evaluation(history, pool), test, t_test=t_test)
    if validation == "by_user":
        chosen = _choose(users, pool > 0, validation_users, seed)
        return _Plan(
            train=np.where(chosen, 0, pool),
            validation=_Evaluation(pool - chosen, pool),
            test=test,
            t_test=t_test,
        )
    raise ValueError(f"unknown validation {validation!r}")


def _leave_one_out(users: _Users) -> _Plan:
    pool = users.lengths - 1
    history = np.maximum(pool - 1, 0)
    return _Plan(
        train=_trainable(history),
        validation=_Evaluation(history, pool),
        test=_Evaluation(pool, users.lengths),
    )


def _count_until(users: _Users, times: np.ndarray, threshold: Fraction) -> np.ndarray:
    """How many interactions of each user lie at or before ``threshold``."""
    # Times are integers, so comparing with the floor is exact.
    latest = threshold.numerator // threshold.denominator
    counts = np.empty_like(users.lengths)
    for part in parts_of(len(times)):
        first, end = np.searchsorted(users.starts, (part.start, part.stop))
        if first < end:  # users who begin in this part
            starts, stop = users.starts[first:end], users.starts[end - 1] + users.lengths[end - 1]
            is_past = times[starts[0] : stop] <= latest
            counts[first:end] = np.add.reduceat(is_past, starts - starts[0], dtype=np.int64)
    return counts


def _trainable(lengths: np.ndarray) -> np.ndarray:
    """``lengths``, or 0 where too short to train."""
    return np.where(lengths >= MIN_TRAIN_LENGTH, lengths, 0)


def _choose(users: _Users, eligible: np.ndarray, n_users: int, seed: int) -> np.ndarray:
    """Mask of the ``n_users`` eligible users with the smallest hash of their id."""
    candidates = np.flatnonzero(eligible)
    if len(candidates) <= n_users:
        raise UserError(
            f"split.validation_users asks for {n_users:,} users, but only {len(candidates):,} have "
            f"{MIN_TRAIN_LENGTH} interactions before the test period, and some must remain to "
            "train; lower it"
        )
    order = np.argsort(seeded_hash(users.ids[candidates], seed))
    chosen = np.zeros(len(eligible), dtype=bool)
    chosen[candidates[order[:n_users]]] = True
    return chosen


def _prefixes(users: _Users, lengths: np.ndarray, n_rows: int) -> np.ndarray:
    """Mask ``(n_rows,)`` of the first ``lengths[u]`` rows of every user ``u``."""
    # +1 where a prefix begins and -1 where it ends: the running sum is 1 inside, 0 outside.
    # Without the empty prefixes no two begin, and no two end, at the same row.
    starts, lengths = users.starts[lengths > 0], lengths[lengths > 0]
    change = np.zeros(n_rows + 1, dtype=np.int8)
    change[starts] += 1
    change[starts + lengths] -= 1
    return np.cumsum(change[:-1], dtype=np.int8).view(bool)


def _rows(interactions: pl.DataFrame, mask: np.ndarray) -> pl.LazyFrame:
    return interactions.lazy().filter(pl.Series(mask))


def _evaluation_table(
    interactions: pl.DataFrame, users: _Users, evaluation: _Evaluation, target: str, seed: int
) -> pl.LazyFrame:
    if target in ("successive", "all"):
        rows, target_index = _repeated_inputs(users, evaluation, target)
        return interactions.lazy().select(
            pl.all().gather(pl.Series(rows)), target_index=pl.Series(target_index)
        )
    evaluated = evaluation.evaluated
    first, length = evaluation.first_target[evaluated], evaluation.length[evaluated]
    if target == "last":
        position = length - 1
    elif target == "first":
        position = first
    elif target == "random":
        draw = seeded_hash(users.ids[evaluated], seed)
        position = first + (draw % (length - first).astype(np.uint64)).astype(np.int64)
    else:
        raise ValueError(f"unknown target {target!r}")
    lengths = np.zeros_like(users.lengths)
    lengths[evaluated] = position + 1
    table = _rows(interactions, _prefixes(users, lengths, interactions.height))
    return table.with_columns(target_index=pl.lit(0, pl.Int32))


def _repeated_inputs(
    users: _Users, evaluation: _Evaluation, target: str
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of all sequences end to end, and each row's target index, ``(n_rows,)``."""
    evaluated = evaluation.evaluated
    first = evaluation.first_target[evaluated]
    n_targets = evaluation.length[evaluated] - first
    index = np.arange(n_targets.sum()) - np.repeat(np.cumsum(n_targets) - n_targets, n_targets)
    start, first = np.repeat(users.starts[evaluated], n_targets), np.repeat(first, n_targets)
    input_length = first + index if target == "successive" else first

    sequence_length = input_length + 1
    n_rows = int(sequence_length.sum())
    if n_rows > MAX_EVALUATION_ROWS:
        raise UserError(
            f"split.target {target} would make {n_rows:,} rows of evaluation sequences "
            f"({len(index):,} targets, each with its input; at most {MAX_EVALUATION_ROWS:,}); "
            "use split.target last, first or random"
        )
    ends = np.cumsum(sequence_length)
    rows = np.arange(n_rows) + np.repeat(start - (ends - sequence_length), sequence_length)
    rows[ends - 1] = start + first + index
    return rows, np.repeat(index, sequence_length).astype(np.int32)


def _refuse_empty(plan: _Plan) -> None:
    for name, evaluation, key, threshold in (
        ("test", plan.test, "T_test", plan.t_test),
        ("validation", plan.validation, "T_validation", plan.t_validation),
    ):
        if len(evaluation.evaluated) == 0:
            after = f" after {_threshold(key, threshold)}" if threshold is not None else ""
            raise UserError(
                f"the {name} set is empty: users with interactions{after}: "
                f"{np.count_nonzero(evaluation.holdout):,}; of these, users with nothing before "
                f"them to predict from (skipped): {evaluation.n_skipped:,}. Change split.quantile, "
                "or use another split.protocol or split.validation, or more data"
            )
    if not plan.train.any():
        before = (
            f" at or before {_threshold('T_validation', plan.t_validation)}"
            if plan.t_validation is not None
            else " left"
        )
        raise UserError(
            f"the training set is empty: no user has {MIN_TRAIN_LENGTH} interactions{before}; "
            "raise split.quantile, or use another split.validation, or more data"
        )


def _threshold(name: str, value: Fraction) -> str:
    return f"{name} = {float(value)}"


def _report(plan: _Plan, target: str, n_items: int) -> SplitReport:
    def n_targets(evaluation: _Evaluation) -> int:
        evaluated = evaluation.evaluated
        if target not in ("successive", "all"):
            return len(evaluated)
        return int((evaluation.length - evaluation.first_target)[evaluated].sum())

    def mean_holdout(evaluation: _Evaluation) -> float:
        return float(evaluation.holdout[evaluation.evaluated].mean())

    return SplitReport(
        n_items=n_items,
        t_test=None if plan.t_test is None else float(plan.t_test),
        t_validation=None if plan.t_validation is None else float(plan.t_validation),
        n_train_interactions=int(plan.train.sum()),
        n_train_users=int(np.count_nonzero(plan.train)),
        n_validation_users=len(plan.validation.evaluated),
        n_validation_targets=n_targets(plan.validation),
        n_validation_skipped=plan.validation.n_skipped,
        mean_validation_holdout=mean_holdout(plan.validation),
        n_test_users=len(plan.test.evaluated),
        n_test_targets=n_targets(plan.test),
        n_test_skipped=plan.test.n_skipped,
        mean_test_holdout=mean_holdout(plan.test),
    )

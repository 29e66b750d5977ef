"""The hash is a fixed function: results of years ago must come out again."""

from __future__ import annotations

import numpy as np

from lastclick.data.hashing import seeded_hash

WORD = 2**64


def mix(word: int) -> int:
    """SplitMix64's next output from state ``word``, in unbounded integers."""
    word = (word + 0x9E3779B97F4A7C15) % WORD
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % WORD
    return word ^ (word >> 31)


def test_equals_the_published_generator():
    # First outputs of the reference implementation seeded with 1234567.
    state, outputs = 1234567, []
    for _ in range(3):
        outputs.append(mix(state))
        state = (state + 0x9E3779B97F4A7C15) % WORD
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]

    values = [0, 1, 2, 3, 2**31 - 1, 2**63 - 1]
    for seed in (0, 17):
        expected = [mix((value + mix(seed)) % WORD) for value in values]
        assert seeded_hash(np.array(values), seed).tolist() == expected


def test_no_two_values_collide_and_seeds_share_nothing():
    values = np.arange(10_007)
    first, second = seeded_hash(values, 17), seeded_hash(values, 18)
    assert len(np.unique(first)) == len(values)
    assert len(np.intersect1d(first, second)) == 0

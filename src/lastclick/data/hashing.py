"""Random-looking numbers that depend on a seed and an integer, and on nothing else.

Choices that have to come out alike on every machine, thread count and library version (which of
two simultaneous rows comes first, which users validate) are made by hashing, not by drawing from
a generator whose stream belongs to a library.
"""

from __future__ import annotations

import numpy as np

_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_FIRST_FACTOR = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_FACTOR = np.uint64(0x94D049BB133111EB)


def seeded_hash(values: np.ndarray, seed: int) -> np.ndarray:
    """Hash non-negative integers ``(n,)`` to uint64 ``(n,)``; for one seed, no two collide.

    The finaliser of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
    generators", 2014) is a bijection of 64-bit integers. It is applied to the seed, and again to
    the value shifted by the hashed seed, so that neighbouring seeds share nothing.
    """
    key = _mix(np.array([seed], dtype=np.uint64))
    return _mix(values.astype(np.uint64) + key)


def _mix(words: np.ndarray) -> np.ndarray:
    mixed = words + _INCREMENT
    mixed ^= mixed >> np.uint64(30)
    mixed *= _FIRST_FACTOR
    mixed ^= mixed >> np.uint64(27)
    mixed *= _SECOND_FACTOR
    mixed ^= mixed >> np.uint64(31)
    return mixed

"""Going through long arrays a part at a time."""

from __future__ import annotations

from collections.abc import Iterator

#: Arrays of so many rows stay in the processor's cache, and their memory is used again and again;
#: temporary arrays of hundreds of megabytes cost more to get from the system than to compute.
PART_ROWS = 2**18


def parts_of(n_rows: int) -> Iterator[slice]:
    """Slices of at most ``PART_ROWS`` rows that cover ``n_rows`` in order."""
    for start in range(0, n_rows, PART_ROWS):
        yield slice(start, min(start + PART_ROWS, n_rows))

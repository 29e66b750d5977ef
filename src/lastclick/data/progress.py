"""Which step of a long work is running, shown on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tqdm import tqdm


@contextmanager
def steps(label: str | None, names: Sequence[str]) -> Iterator[Callable[[], None]]:
    """A bar of the steps ``names``; what it yields is called as each of them begins.

    Shown under ``label`` where standard error is a terminal, and nowhere without a label.
    """
    hidden = True if label is None else None  # None: unless on a terminal
    with tqdm(total=len(names), unit="step", leave=False, disable=hidden) as bar:
        coming = iter(names)

        def begin() -> None:
            name = next(coming)
            if name != names[0]:
                bar.update()
            bar.set_description_str(f"{label}: {name}")

        yield begin

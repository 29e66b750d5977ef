"""Timed comparisons, run by hand from the root of the repository: python -m benchmarks.NAME"""

import stages  # noqa: F401  # src on the path, and threads that wait as in a run

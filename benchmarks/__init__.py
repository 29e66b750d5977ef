"""Timed comparisons, run by hand from the root of the repository: python -m benchmarks.NAME"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

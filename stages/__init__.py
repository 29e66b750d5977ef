"""The scripts that DVC runs: read parameters, read tables, call one pure function, write.

The package is imported from this copy of the repository, whatever is installed: an experiment in
a temporary copy must run that copy's code, not the workspace's.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

# GNU OpenMP's threads wait for each other on their cores, by default for milliseconds. Two runs
# that share the cores then mostly wait, each for a thread that the other's waiting keeps from
# running, and take five to twenty times as long. A wait of some 50 microseconds is as fast where a
# run is alone. Read when torch is imported.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")

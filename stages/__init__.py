"""The scripts that DVC runs: read parameters, read tables, call one pure function, write.

The package is imported from this copy of the repository, whatever is installed: an experiment in
a temporary copy must run that copy's code, not the workspace's.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

# GNU OpenMP's threads wait for each other on their cores, by default for milliseconds. Where runs
# share the cores, each then waits for threads that another's waiting keeps from running: beside two
# others an epoch took half as long again, the loss alone five times as long. A wait of some 50
# microseconds is as fast where a run is alone. Read when torch is imported.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")

"""The scripts that DVC runs: read parameters, read tables, call one pure function, write.

The package is imported from this copy of the repository, whatever is installed: an experiment in
a temporary copy must run that copy's code, not the workspace's.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

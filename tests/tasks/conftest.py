"""The golden families and their oracles are imported from tests/golden."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "golden"))

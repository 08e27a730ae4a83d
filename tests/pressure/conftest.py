"""Puts this folder's shared builders (`tiny.py`) on the path, whatever pytest's import mode."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

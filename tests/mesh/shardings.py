"""Writes golden/shardings.txt, one hash of the shardings of each system (`splitting.digest`).

`python tests/mesh/shardings.py`           hashes of all systems
`python tests/mesh/shardings.py NAME ...`  hashes of these systems; the others stay
`python tests/mesh/shardings.py --show NAME`  prints the lines that are hashed
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]

from ptm_jax import systems  # noqa: E402
from support import rewriting, splitting  # noqa: E402


def write(names) -> None:
    """Write the hashes of these systems."""
    new = {name: splitting.digest(name) for name in names}

    def change(text):
        hashes = dict(line.split() for line in text.splitlines()) | new
        return "".join(f"{name} {hashes[name]}\n" for name in systems.names() if name in hashes)

    rewriting.rewrite(splitting.GOLDEN, change)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--show"]:
        print("\n".join(splitting.lines(sys.argv[2])))
    else:
        write(sys.argv[1:] or systems.names())

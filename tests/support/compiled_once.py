"""The C++ kernels of all processes of a test run, each compiled once.

Tests run without PTM_CACHE, so that each process would compile the kernels that it calls, for up to
20 seconds. $CXX is a script that asks here: the library of the same sources, headers, flags and
compiler is copied.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = "c++", "g++", "clang++"


def environment(folder: str) -> dict[str, str]:
    """Returns the variables of a run whose libraries are in `folder`, where the script is
    written; without a compiler, no $CXX."""
    named = {"PTM_TEST_LIBRARIES": folder}
    names = filter(None, (os.environ.get("CXX", ""), *NAMES))
    compiler = next(filter(None, map(shutil.which, names)), None)
    if compiler is None:
        return named
    script = Path(folder, "cxx")
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -IS "{__file__}" "{compiler}" "$@"\n')
    script.chmod(0o700)
    return {**named, "CXX": str(script)}


def main(compiler: str, *words: str) -> int:
    """Compiles `words` (flags, the source, -o, the library), or copies an equal library."""
    *flags, source, _, made = words
    room = Path(source).parent
    headers = sorted([*room.glob("*.h"), *room.parent.glob("*.h")])
    texts = [path.read_bytes() for path in (Path(source), *headers)]
    facts = [compiler.encode(), *(flag.encode() for flag in flags), *texts]
    library = Path(os.environ["PTM_TEST_LIBRARIES"], hashlib.sha256(b"\0".join(facts)).hexdigest())
    with open(f"{library}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            if status := subprocess.call([compiler, *words]):
                return status
            draft = library.with_suffix(".draft")
            shutil.copyfile(made, draft)
            draft.replace(library)
    shutil.copyfile(library, made)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

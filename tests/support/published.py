"""What the files of tests/systems/published say of systems: one file a family.

SIZES    {system: number of parameters that follow from its paper}
TRAINS   {miniature: [(baseline of `support.baselines`, margin)]}
TEXT     {miniature: its text below the folder of the data, with the kind of the source;
         debian:CODE, text of a language (`support.manual_texts`)}
"""

import functools
import runpy
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "systems" / "published"


@functools.cache
def _files():
    return {path.name: runpy.run_path(str(path)) for path in sorted(FOLDER.glob("*.py"))}


def collected(table, files=None):
    """A table of all files. Raises ValueError where two name the same system."""
    together, origin = {}, {}
    for name, values in (files or _files()).items():
        for system, value in values.get(table, {}).items():
            if system in together:
                raise ValueError(f"{origin[system]} and {name} have {table} of {system}; keep one")
            together[system], origin[system] = value, name
    return together

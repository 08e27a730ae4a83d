"""Where the parts of a system stand: the file and line of each class, its catalogue entry, its
checkpoint family, its golden text, and the tests that name it. For `ptm show NAME --files`."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ptm_jax
from ptm_jax.core import spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.networks import encoder_of
from ptm_jax.core.system import System

ROOT = Path(ptm_jax.__file__).resolve().parents[1]
"""The checkout, or the folder of an installed package, which has no tests."""
TESTS = ("tests", "benchmarks/published_sizes.py")


@dataclasses.dataclass(frozen=True)
class SourceFile:
    """Where a part stands. `slot` is its path in the record, `file` is relative to the checkout."""

    slot: str
    value: str
    file: str
    line: int


def source_files(system: System) -> list[SourceFile]:
    """Returns where the parts of a system stand.

    They are its entry in the catalogue, then each class in its record, by the first path that has
    it, then its checkpoint family, golden text and tests.
    """
    entries = [*_entry(system), *_parts(system), *_family(system)]
    golden = ROOT / "tests" / "systems" / "golden" / f"{system.name}.txt"
    if golden.is_file():
        entries.append(SourceFile("golden text", system.name, str(golden.relative_to(ROOT)), 1))
    return [*entries, *_tests(system)]


def _entry(system: System) -> Iterator[SourceFile]:
    """The file of the catalogue that yields a system, at the first line that names it."""
    from ptm_jax import systems
    from ptm_jax.systems.survey.order import ORDER

    folder = Path(systems.__file__).resolve().parent
    for module, names in ORDER.items():
        if system.name in names.split():
            path = folder / f"{module.replace('.', '/')}.py"
            line = _naming(path, system.name) or _naming(path, None) or 1
            yield SourceFile("system", system.name, str(path.relative_to(ROOT)), line)


def _naming(path: Path, name: str | None) -> int | None:
    """The first line with the name in quotes; without a name, that of `def systems`."""
    pattern = re.compile(r"^def systems\b" if name is None else rf"[\"']{re.escape(name)}[\"']")
    lines = path.read_text(encoding="utf8").splitlines()
    return next((number for number, text in enumerate(lines, 1) if pattern.search(text)), None)


def _parts(system: System) -> Iterator[SourceFile]:
    """Every class of the package in a record, and every function in a slot, once."""
    seen = set()
    for slot, part in spec.walk(system):
        made = part if isinstance(part, types.FunctionType) else type(part)
        inside = (getattr(made, "__module__", None) or "").startswith("ptm_jax.")
        if slot and inside and made not in seen:
            seen.add(made)
            yield _source_file(slot, made)


def _source_file(slot: str, made: Any) -> SourceFile:
    """Where a class or a function is defined: the line of its name, below its decorators."""
    path = Path(inspect.getsourcefile(made)).resolve()
    lines, first = inspect.getsourcelines(made)
    begins = [text.startswith(("class ", "def ")) for text in lines]
    line = first + (begins.index(True) if True in begins else 0)
    return SourceFile(slot, made.__name__, str(path.relative_to(ROOT)), line)


def _family(system: System) -> Iterator[SourceFile]:
    """The family that reads and writes the system's checkpoints, if there is one."""
    from ptm_jax.convert import checkpoint

    if encoder_of(system) is None:
        return
    try:
        family, _, architecture = checkpoint.published(system)
    except UserError:
        return
    yield dataclasses.replace(_source_file("checkpoint", family.build), value=architecture)


def _tests(system: System) -> Iterator[SourceFile]:
    """The tests and the published size that name a system."""
    for root in TESTS:
        folder = ROOT / root
        for path in sorted(folder.rglob("*.py")) if folder.is_dir() else [folder]:
            if path.is_file() and (line := _naming(path, system.name)):
                slot = "test" if path.name.startswith("test_") else "size or support"
                yield SourceFile(slot, system.name, str(path.relative_to(ROOT)), line)

"""What examples read besides their data, as another tokenizer: its copy in the folder of a run."""

from __future__ import annotations

from pathlib import Path

from ptm_jax.core import slots


class ReadsOthers(slots.Examples):
    """Trait: examples that read other files, of which a run has a copy."""

    def save(self, folder: Path) -> None:
        """Writes the copies into the folder of a run."""
        raise NotImplementedError

    def within(self, folder: Path) -> slots.Examples:
        """Returns examples that read the copies; without copies, these examples."""
        raise NotImplementedError


def save(examples: object, folder: Path) -> None:
    """Writes what a slot of examples reads besides the data into the folder of a run."""
    if isinstance(examples, ReadsOthers):
        examples.save(folder)


def within(examples: object, folder: Path) -> object:
    """Returns a slot of examples that reads what `save` wrote, or the slot itself."""
    return examples.within(folder) if isinstance(examples, ReadsOthers) else examples

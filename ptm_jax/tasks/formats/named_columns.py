"""Trait of examples whose columns a user can name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ptm_jax.tasks.formats.taskdata import TaskExamples


class NamedColumns(TaskExamples):
    """Trait: examples of files whose columns of texts and of labels can be named.

    uses    commands that use a trained model, with the field {folder}
    """

    uses: ClassVar[tuple[str, ...]] = ()

    def with_columns(
        self, sources: Sequence[str], texts: Sequence[str], labels: Sequence[str]
    ) -> TaskExamples:
        """Returns a copy that reads the named columns of texts and of labels. Raises UserError."""
        raise NotImplementedError


def names_columns(examples: object) -> bool:
    """Returns whether the columns of the examples' files can be named."""
    return isinstance(examples, NamedColumns)

"""Values by name, for an option of the command line: `--adapt 'lora(rank=8)'`."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ptm_jax.core.errors import UserError, unknown
from ptm_jax.core.spec.describe import field_names, to_json, values_of
from ptm_jax.core.spec.overriding import override
from ptm_jax.core.spec.parsing import UNREADABLE

SET_UP = ("towers", "tower", "total")
"""Fields that the set-up of a run fills in."""


@dataclasses.dataclass(frozen=True)
class Named:
    """The named values that an option accepts.

    what       noun for the value, in error messages
    option     flag of the option
    example    a value with a field, in error messages
    names      {name: (function that returns the value with the defaults, rows of the survey's
               catalogue)}
    """

    what: str
    option: str
    example: str
    names: Mapping[str, tuple[Callable[[], Any], tuple[int, ...]]]

    def read(self, text: str) -> Any:
        """Returns the value for a text such as 'houlsby' or 'lora(rank=8, alpha=16)'.

        Raises UserError.
        """
        name, words = self._call(text)
        if name not in self.names:
            raise unknown(self.what, name, self.names)
        return override(self.names[name][0](), words)

    def read_all(self, texts: Sequence[str]) -> tuple[Any, ...]:
        """Returns the values of several texts, in order."""
        return tuple(self.read(text) for text in texts)

    def entries(self) -> list[dict[str, Any]]:
        """Returns name, class, rows, fields with their defaults and description of every value."""
        entries = []
        for name, (make, rows) in self.names.items():
            value = make()
            fields = {
                field: to_json(values_of(value)[field])
                for field in field_names(value)
                if field not in SET_UP
            }
            what = " ".join((type(value).__doc__ or "").split("\n\n")[0].split())
            entries.append(
                {
                    "name": name,
                    "kind": type(value).__name__,
                    "rows": list(rows),
                    "fields": fields,
                    "what": what,
                }
            )
        return entries

    def _call(self, text: str) -> tuple[str, dict[str, str]]:
        """Parses `name` or `name(field=value, ...)` into (name, {field: text})."""
        text = text.strip()
        try:
            node = ast.parse(text, mode="eval").body
        except UNREADABLE:
            node = None
        if isinstance(node, ast.Name):
            return node.id, {}
        named = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args
        if not named or any(word.arg is None for word in node.keywords):
            raise UserError(
                f"{self.option} takes a name, or name(field=value), as {self.example}; given "
                f"{text!r}"
            )
        return node.func.id, {
            word.arg: ast.get_source_segment(text, word.value) or "" for word in node.keywords
        }

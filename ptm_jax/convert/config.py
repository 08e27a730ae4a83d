"""Typed access to a published `config.json`.
A missing field or a wrong type raises an error that names the file."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ptm_jax.core.errors import UserError, closest
from ptm_jax.core.reading import decoded, read_bytes, shown

LARGEST = 2**31 - 1
"""The largest whole number in a config: sizes and ids are int32 in every framework."""
MEMORY = 100_000
"""The largest number of past states."""
PARTS = 10_000
"""The largest number of layers, or of other parts that repeat."""

_SHARE = re.compile(r"dropout|pdrop|_prob$|layerdrop")
_NOT_NEGATIVE = re.compile(r"eps(ilon)?$|initializer_(range|factor)$|_std$|temperature$")
_MISSING = object()
_TYPES = {
    "whole number": int,
    "number": (int, float),
    "text": str,
    "true or false": bool,
    "list": list,
    "object": dict,
}


class Config(Mapping):
    """The fields of a config.json.
    `config("hidden_size", int)` is required; a default makes the field optional.

    `largest` is the largest size (`positive`) that it may have, `parts` the largest number of parts
    (`count`).
    """

    def __init__(
        self,
        fields: Mapping[str, Any],
        file: str | Path = "config.json",
        largest: int = LARGEST,
        parts: int = PARTS,
    ):
        self._fields, self.file, self.largest, self.parts = dict(fields), str(file), largest, parts

    @classmethod
    def read(cls, file: str | Path) -> Config:
        """Reads a file. Raises UserError if it is missing or is not a JSON object."""
        file = Path(file)
        try:
            fields = json.loads(decoded(file, read_bytes(file)))
            if not isinstance(fields, dict):
                raise ValueError("it holds no object")
        except UserError as error:
            raise UserError(f"{error}; a checkpoint needs its config.json") from None
        except (ValueError, RecursionError) as error:
            raise UserError(f"{file} is not a config ({error})") from None
        return cls(fields, file)

    def __call__(self, name: str, kind: Any = None, default: Any = _MISSING) -> Any:
        """Returns the field `name`; `null` counts as missing.
        `kind` is int, float, str, bool, list or dict."""
        value = self._fields.get(name)
        if value is None:
            if default is _MISSING:
                raise UserError(
                    f"{self.file} has no field {name!r}, which this architecture "
                    f"needs.{closest(name, self._fields)}"
                )
            return default
        wanted = (int, float) if kind is float else kind
        wrong = wanted is not None and (
            not isinstance(value, wanted) or (isinstance(value, bool) and kind is not bool)
        )
        if wrong:
            expected = next(
                (word for word, types in _TYPES.items() if types == wanted),
                getattr(kind, "__name__", str(kind)),
            )
            raise UserError(f"{self.file}: {name} is {shown(value)}; expected a {expected}")
        if isinstance(value, int) and abs(value) > LARGEST:
            raise UserError(
                f"{self.file}: {name} is {shown(value)}; expected a number of at most {LARGEST:,}"
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{self.file}: {name} is {value}; expected a finite number")
        if kind is float:
            self._check_range(name, value)
        return value

    def _check_range(self, name: str, value: float) -> None:
        """Raises UserError for a negative number, and for a share above 1 under a name of
        shares."""
        if _SHARE.search(name) and not 0 <= value <= 1:
            raise UserError(f"{self.file}: {name} is {value}; expected a number from 0 to 1")
        if _NOT_NEGATIVE.search(name) and value < 0:
            raise UserError(f"{self.file}: {name} is {value}; expected a number of at least 0")

    def positive(self, name: str, default: Any = _MISSING) -> int:
        """Returns an integer field from 1 to `largest`."""
        value = self(name, int, default)
        if value is not None and value < 1:
            raise UserError(f"{self.file}: {name} is {value}; it must be at least 1")
        if value is not None and value > self.largest:
            raise UserError(
                f"{self.file}: {name} is {value:,}, too large for its tensors: expected at "
                f"most {self.largest:,}"
            )
        return value

    def memory(self, name: str, default: Any = _MISSING) -> int | None:
        """Returns the number of past states that a model keeps, at most `MEMORY`."""
        value = self(name, int, default)
        if value is not None and value > MEMORY:
            raise UserError(f"{self.file}: {name} is {value:,}; expected at most {MEMORY:,}")
        return value

    def count(self, name: str, default: Any = _MISSING) -> int:
        """Returns the number of parts that repeat (layers), from 1 to `parts`."""
        value = self.positive(name, default)
        if value > self.parts:
            raise UserError(
                f"{self.file}: {name} is {value:,}, too many for its tensors: expected at "
                f"most {self.parts:,}"
            )
        return value

    def numbers(self, name: str, default: Any = _MISSING) -> tuple[int, ...]:
        """Returns a list of at most `parts` whole numbers."""
        values = self(name, list, default)
        if len(values) > self.parts or not all(
            type(value) is int and abs(value) <= LARGEST for value in values
        ):
            raise UserError(
                f"{self.file}: {name} is {shown(values)}; expected at most {self.parts:,} "
                "whole numbers"
            )
        return tuple(values)

    def within(self, shapes: Iterable[tuple[int, ...]]) -> Config:
        """Returns the config with the bounds that the shapes of a checkpoint's tensors set.

        No width or vocabulary exceeds the number of their elements, no number of layers the number
        of tensors. A million positions and a hundred layers are always allowed: tables may be
        computed and layers shared.
        """
        sizes = [math.prod(shape) for shape in shapes]
        return Config(
            self._fields, self.file, max(sum(sizes), 1 << 20), min(PARTS, max(len(sizes), 100))
        )

    def one_of(self, name: str, choices: Mapping[str, Any], default: Any = _MISSING) -> Any:
        """Returns the entry of `choices` for the field's value."""
        value = self(name, None, default)
        if not isinstance(value, str) or value not in choices:
            raise UserError(
                f"{self.file}: {name} is {shown(value)}; supported are "
                f"{', '.join(map(str, choices))}."
                f"{closest(str(value)[:100], choices)}"
            )
        return choices[value]

    def refuse(self, name: str, but: Any, reason: str) -> None:
        """Raises UserError if the field is present and differs from `but`."""
        value = self._fields.get(name)
        if value is not None and value != but:
            raise UserError(f"{self.file}: {name} is {shown(value)}: {reason}")

    @property
    def labels(self) -> int:
        """The number of classes of a task head: the length of `id2label`, else `num_labels`, else
        2."""
        names = self("id2label", dict, None)
        return len(names) if names else self.positive("num_labels", 2)

    def filled(self, **defaults: Any) -> Config:
        """Returns the config with values for the fields that the file lacks."""
        return Config({**defaults, **self}, self.file, self.largest, self.parts)

    def renamed(self, **names: str) -> Config:
        """Returns the config with current names for old fields: `old=current`.
        Only names that the file uses are added."""
        return self.filled(**{new: self[old] for old, new in names.items() if old in self})

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __iter__(self):
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_10": "gelu_clipped",
    "hardswish": "hardswish",
    "laplace": "laplace",
    "leaky_relu": "leaky_relu",
    "linear": "identity",
    "mish": "mish",
    "quick_gelu": "gelu_quick",
    "relu": "relu",
    "relu2": "relu_squared",
    "relu6": "relu6",
    "sigmoid": "sigmoid",
    "silu": "silu",
    "sqrtsoftplus": "sqrt_softplus",
    "swish": "silu",
    "tanh": "tanh",
}
"""Maps the activation names of a config to ours."""

PUBLISHED = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())} | {"silu": "silu"}
"""Maps our activation names to those of a config, for export."""

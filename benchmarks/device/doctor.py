"""Part (b): what the device takes for `auto`, and how long its check of a class takes.

It asks the questions that `ptm doctor` asks, and two more, with an empty cache. One process asks
all of them, as a run would.
"""

from __future__ import annotations

from typing import Any

from benchmarks.device import kernels

CLASSES: tuple[dict[str, Any], ...] = (
    {},
    {"extras": ["order"]},
    {"extras": ["dropout"]},
    {"extras": ["distances"]},
)


def begin(dry: bool) -> None:
    """Sets the sizes of this process and forgets answers of earlier runs."""
    from ptm_jax.kernels import deciding

    kernels.begin(dry)
    if not dry:
        deciding.forget()


def items(dry: bool) -> list[dict[str, Any]]:
    """Returns the classes."""
    small = {"queries": 16, "keys": 16, "width": 16} if dry else {}
    classes = [kernels.PLAIN | one | small for one in CLASSES[: 2 if dry else None]]
    words = [one | ({"tokens": 16, "words": 256} if dry else {}) for one in kernels.VOCABULARIES]
    kinds = {"attention": classes, "cross-entropy": words[:1]}
    return [{"kind": kind, "fields": one} for kind, several in kinds.items() for one in several]


def names(item: dict[str, Any]) -> list[str]:
    """Returns the only program."""
    return ["auto"]


def prepare(item: dict[str, Any]) -> Any:
    """Returns the question."""
    return kernels.question_of(item)


def build(item: dict[str, Any], context: Any, name: str) -> Any:
    """Returns nothing: the check compiles by itself."""


def measure(item: dict[str, Any], context: Any, name: str, program: Any) -> dict[str, Any]:
    """Asks the device."""
    import jax

    from ptm_jax.kernels import deciding
    from ptm_jax.kernels.attention import candidates as attention
    from ptm_jax.kernels.cross_entropy import candidates as cross_entropy

    room = attention if item["kind"] == "attention" else cross_entropy
    platform = "cpu" if jax.default_backend() == "cpu" else "gpu"
    answer = deciding.ask(context, room.CANDIDATES, platform)
    return {
        "status": "answered",
        "class": context.key,
        "takes": next(iter(answer.seconds)),
        "milliseconds": {name: round(1e3 * x, 3) for name, x in answer.seconds.items()},
        "left out": answer.left_out,
        "refused": answer.refused,
        "seconds": answer.took,
    }

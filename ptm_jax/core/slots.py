"""The slots of a system. Each slot is a base class with a default for every attribute.

To add a value, inherit the class of its slot and override the attributes that differ. Other code
reads only attributes that are declared here.

An encoder, head or embedding is a module (`core.networks`):

    class LSTMEncoder(slots.Encoder, nn.Module): ...

Examples, corruptions, objectives and wrappers are dataclasses:

    @dataclass(frozen=True, kw_only=True)
    class MyCorruption(slots.Corruption): ...

A field may hold a corpus statistic, such as the vocabulary (`core.types.Vocab`) or the unigram
counts (`statistics.counts.Counts`). The set-up fills it in.

Do not declare a name here that a subclass has as a *required* dataclass field: a dataclass takes an
inherited attribute as the default of its field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ptm_jax.core.fields import Field
from ptm_jax.core.networks import (
    ClassHead,
    Direction,
    Embedding,
    Encoder,
    Head,
    Kernel,
    Layered,
    Network,
    Slot,
    classes_of,
    encoder_in,
    encoder_of,
    encoders_with,
    heads_of,
)
from ptm_jax.core.types import Array, Axes, Batch, Loss, Params

if TYPE_CHECKING:
    from ptm_jax.core.system import System
    from ptm_jax.core.types import Step, Vocab


__all__ = [
    "ClassHead",
    "Direction",
    "Embedding",
    "Encoder",
    "Head",
    "Kernel",
    "Layered",
    "Network",
    "Slot",
]
__all__ += [
    "Composition",
    "Corruption",
    "Examples",
    "Objective",
    "OneRow",
    "Wrapper",
    "corruption",
    "objective",
    "overrides",
    "parts_of",
]
__all__ += ["classes_of", "encoder_in", "encoder_of", "encoders_with", "heads_of"]


class Examples(Slot):
    """How the rows of a batch are cut from a corpus.

    begin, end       names of the tokens before and after a text, in `core.types.Vocab`; None: no
                     token
    continuing       whether row b of a batch continues row b of the previous batch
    needs_words      whether it reads the ids that begin a word (`Block.words`)
    spells           whether it reads the spellings that `table` returns (`Block.spellings`)
    labelled         whether it reads labelled files (`corpus`) instead of running text (`rows`)
    labels           class names of a labelled task
    second           whether an example may have a second text
    readings         number of batch rows per example
    alphabet         number of character ids, if words are read as characters; else None
    slot_width       number of tokens in a sentence slot; None: rows have no slots

    Fields have any NumPy type (`core.fields`). `data.rows.columns` adds columns of tokens to any
    way of cutting rows.
    """

    begin: str | None = "cls"
    end: str | None = "sep"
    continuing: bool = False
    needs_words: bool = False
    spells: bool = False
    labelled: bool = False
    labels: tuple[str, ...] = ()
    second: bool = True
    readings: int = 1
    alphabet: int | None = None
    slot_width: int | None = None

    def corpus(self, sources: Any, folder: Any, tokenizer: Any, progress: Any = None) -> Any:
        """Returns the prepared corpus of labelled files; prepares it in `folder` if necessary."""
        raise NotImplementedError

    def table(self, tokenizer: Any, ids: Any = None) -> Any:
        """Returns the spelling of every token id, [V, C].

        With an `alphabet` it can also return the spellings of `ids` alone.
        """
        raise NotImplementedError

    def blocks(self, corpus: Any, split: str) -> Any:
        """Returns the blocks that `rows` cuts; None: the text's (`data.corpora.store.Blocks`).

        The blocks are a sequence with `tokens`, the number of row places that they fill, and
        `join(blocks)`.
        """
        return None

    def spec(self, length: int, vocab: Vocab) -> Mapping[str, Field]:
        """Returns {field: Field}, the shape and type of one row.

        Raises UserError if the vocabulary or the length does not fit.
        """
        raise NotImplementedError

    def batch_spec(self, length: int, vocab: Vocab) -> Mapping[str, Field]:
        """Returns `spec` and the additional fields of a batch."""
        return self.spec(length, vocab)

    def rows(self, block: Any, *, length: int, vocab: Vocab, rng: Any) -> Mapping[str, Any]:
        """Returns {field: [R, ...]} of the rows of a block."""
        raise NotImplementedError


class Corruption(Slot):
    """A pure function of a batch with static shapes.

    left_to_right    whether it writes a causal `order`: a token attends only to earlier tokens
    start            name of the first token of a decoder's input, in the vocabulary; or None
    """

    left_to_right: bool = False
    start: str | None = None

    def __call__(self, key: Array, batch: Batch) -> Batch:
        """Returns the batch with fields replaced or added."""
        raise NotImplementedError


class Composition(Corruption):
    """Trait: a corruption that applies others in order, its `parts`."""

    parts: tuple[Any, ...]


class OneRow(Corruption):
    """Trait: a corruption that writes source and target into one row."""


class Change(Corruption):
    """A plain function as a corruption."""

    def __init__(self, function: Callable[[Array, Batch], Batch]):
        self.function = function

    def __call__(self, key: Array, batch: Batch) -> Batch:
        return self.function(key, batch)


def corruption(value: Any) -> Corruption:
    """Returns `value` as a corruption. A plain function gets the defaults of the slot."""
    return value if isinstance(value, Corruption) else Change(value)


def parts_of(value: Any) -> tuple[Corruption, ...]:
    """Returns the corruptions of a composition, also of compositions inside it.

    Only `value` itself if it is another corruption.
    """
    made = corruption(value)
    if not isinstance(made, Composition):
        return (made,)
    return tuple(inner for part in made.parts for inner in parts_of(part))


class Objective(Slot):
    """Computes the loss of the towers on a batch, including the forward passes.

    A plain function works too.

    tower       name of the trained tower
    head        name of the head that predicts the labels, or None
    kind        kind of the labels; "classes" are integers
    given       names of the towers that are never trained, such as a teacher; a run must start with
                a model for each
    baseline    metric to compare with the loss of predicting word or class frequencies, or None
    """

    tower: str = "main"
    head: str | None = None
    kind: str = "classes"
    baseline: str | None = None
    given: tuple[str, ...] = ()

    def __call__(self, towers: Mapping[str, Any], batch: Batch, key: Array) -> Loss:
        """Returns the loss as sum and weight."""
        raise NotImplementedError

    def initial_carry(self, towers: Mapping[str, Any], batch: Batch) -> Any:
        """Returns the carry of a stream's first batch: a tree with leaves [B, ...], or None."""
        return None

    def select(self, system: System, batch: Batch) -> tuple[Batch, Mapping[str, Array]]:
        """Returns (batch, {parameter path: rows}); the rows are {} for a dense step.

        The step reads and updates only these rows of its sparse tables. The ids in the returned
        batch number these rows.
        """
        return batch, {}


class Function(Objective):
    """A plain function as an objective."""

    def __init__(self, function: Callable[..., Loss]):
        self.function = function

    def __call__(self, towers: Mapping[str, Any], batch: Batch, key: Array) -> Loss:
        return self.function(towers, batch, key)


def objective(value: Any) -> Objective:
    """Returns `value` as an objective. A plain function gets the defaults of the slot."""
    return value if isinstance(value, Objective) else Function(value)


class Wrapper(Slot):
    """An adaptation or compression of a model. The model itself is not changed.

    towers           names of the wrapped towers; None: all
    owns             path pattern of the wrapper's parameters; the initial model does not have them
    observes         path pattern of statistics, such as the range of a layer's inputs. A forward
                     pass returns their observation as the gradient. A step adds it unchanged, and
                     no optimizer updates them (`on_step`)
    logical_axes     {end of a path: axes} of the parameters that `init` adds (`mesh.axes`)
    """

    towers: tuple[str, ...] | None = None
    owns: str | None = None
    observes: str | None = None
    logical_axes: Mapping[str, Axes] = {}

    def within(self, system: System) -> Wrapper:
        """Returns the wrapper with fields such as the number of steps filled in from the system."""
        return self

    def rewrite(self, system: System) -> Any:
        """Returns the system with another objective, head or tower."""
        return system

    def wrap(self, module: Network) -> Any:
        """Returns the tower with other values in its slots.

        The paths of the model's parameters do not change.
        """
        return module

    def init(self, params: Params, source: Params | None) -> Params:
        """Adds the wrapper's initial parameters to {tower: tree}.

        A run calls it again with the initial model as `source`.
        """
        return params

    def trainable(self, path: str, step: Step) -> Any:
        """Returns whether a step updates a parameter.

        The result is a bool, a traced bool, or booleans [N] for stacked layers. `path` has a
        `level` (`adapt.parameters.levels.ParameterPath`).
        """
        return True

    def rate(self, path: str) -> Any:
        """Returns a parameter's learning-rate multiplier: a number, or [N] for stacked layers."""
        return 1.0

    def effective(self, params: Params, train: bool) -> Params:
        """Returns the parameters that the networks use, computed from the trained ones."""
        return params

    def on_step(self, params: Params, step: Step) -> Params:
        """Returns the parameters after an update."""
        return params

    def finish(self, params: Params) -> Params:
        """Returns the parameters of the model without the wrapper."""
        return params


def overrides(value: Slot, name: str, slot: type = Wrapper) -> bool:
    """Whether the class of a value overrides `name`."""
    return getattr(type(value), name) is not getattr(slot, name)

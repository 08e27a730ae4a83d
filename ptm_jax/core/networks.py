"""The slots of a network: embedding, stack of layers, encoder, head and tower.

`core.slots` describes how slots work.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Batch, Encoded, Vocab

if TYPE_CHECKING:
    from ptm_jax.core.system import System


Direction = Literal[
    "bidirectional", "causal", "backward", "decoder", "both", "before", "none", "unread"
]
"""The tokens that a token attends to if the batch has no `order`.

    bidirectional    all tokens
    causal           itself and earlier tokens
    backward         itself and later tokens
    decoder          itself, earlier tokens and the whole source
    both             all tokens except itself
    before           earlier tokens, without itself
    none             itself only
    unread           no token: its state is the document's state
"""


Trait = TypeVar("Trait")


class Slot:
    """The base class of all slots.

    A field of a subclass must not hide a method of its slot (TypeError).
    """

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        for name in vars(cls).get("__annotations__", {}):
            if owner := next(
                (
                    base
                    for base in cls.__mro__[1:]
                    if isinstance(vars(base).get(name), FunctionType)
                ),
                None,
            ):
                raise TypeError(
                    f"{cls.__name__}: the field {name!r} hides the method of "
                    f"{owner.__name__}; rename the field"
                )

    def refusal(self, system: System) -> str | None:
        """Returns why this value cannot work in `system`; None if it can.

        The reason is one clause with the change to make.
        """
        return None


class Embedding(Slot):
    """The first layer of an encoder: token ids to vectors.

    vocab        vocabulary, a field of every embedding
    position     position embedding (`nn.embeddings.summed.Positions`), or None
    """

    vocab: Vocab
    position: Any = None

    @property
    def limit(self) -> int | None:
        """Longest row that the positions allow, in tokens (None: any)."""
        return None if self.position is None else self.position.longest

    @property
    def counts_tokens(self) -> bool:
        """Whether positions count non-padding tokens only (RoBERTa)."""
        return self.position is not None and self.position.counts_tokens


class Layered(Slot):
    """A stack of layers inside a network.

    levels    number of layers with separate parameters
    """

    levels: int

    def level_of(self, path: str) -> int | range:
        """Returns the level of the parameter at `path`, from 1.

        The level is a range if axis 0 of the parameter is the layers.
        """
        raise NotImplementedError


def raised(level: int | range, below: int) -> int | range:
    """Adds `below` to a level or a range of levels."""
    return (
        range(level.start + below, level.stop + below)
        if isinstance(level, range)
        else level + below
    )


class Encoder(Slot):
    """A network from a batch to `Encoded`: `encoder(batch, train=False, **options)`.

    direction        tokens that a token attends to (`Direction`)
    obeys_order      whether a batch's `order` has an effect
    reads_source     whether it has a decoder, which reads `decoder_input_ids`
    gives_vectors    whether it has text vectors. `extra["vectors"]` [B, L, D] holds, for each
                     token, the vector of its text; `encode` takes the first
    writes           whether it decodes step by step with `empty_cache`
    types            number of sentence types (0: none)
    stacks           {path inside the encoder: stack of layers}, from the input up; {} if layers are
                     not stacked
    """

    direction: Direction = "bidirectional"
    obeys_order: bool = False
    reads_source: bool = False
    gives_vectors: bool = False
    writes: bool = False
    types: int = 0
    stacks: Mapping[str, Layered] = MappingProxyType({})

    @property
    def carries(self) -> bool:
        """Whether the encoder carries a memory from one batch to the next (`empty_memory`)."""
        return self.empty_memory(1) is not None

    @property
    def embeddings(self) -> Any:
        """Its `Embedding`, or None."""
        return None

    @property
    def limit(self) -> int | None:
        """Longest row in tokens (None: any)."""
        return self.embeddings.limit if self.embeddings is not None else None

    def level_of(self, path: str) -> int | range | None:
        """Returns the level of a parameter 'encoder/a/b/c' (`adapt.parameters.levels`).

        The level is 0 below the layers and 1 ... N for a layer. It is a range if axis 0 of the
        parameter is the layers, and None if the encoder declares no levels.
        """
        below = 0
        for place, stack in self.stacks.items():
            if path.startswith(f"encoder/{place}/"):
                return raised(stack.level_of(path.removeprefix(f"encoder/{place}/")), below)
            below += stack.levels
        return 0 if self.stacks else None

    def table(self) -> Any:
        """Returns the token table [V, D] that a vocabulary head may share, or None."""
        return None

    def select(self, batch: Batch, words: Any) -> tuple[Batch, Mapping[str, Any]]:
        """Returns (batch, {parameter: rows}): the rows of further sparse tables that a step reads.

        `words` [U] are the rows of the token table that the objective selected
        (`Objective.select`). With `words` None it selected no rows, and reads the batch once.
        """
        return batch, {}

    def empty_memory(self, batch: int) -> Any:
        """Returns the memory before the first row of a text.

        It is a tree with leaves [B, ...]; None: the encoder has no memory.
        """
        return None

    def without_memory(self) -> Any:
        """Returns the encoder without a memory."""
        return self

    def empty_cache(self, batch: int, length: int, source: int = 0) -> Any:
        """Returns the initial cache for decoding `length` tokens from sources of `source` tokens.

        The encoder is called with it as `cache=` and returns the next cache as `Encoded.cache`.
        `cache.take(rows)` returns the cache of the given rows. Prompts are padded on the left.
        `encoders.recurrent.recurrent` is an example.
        """
        raise UserError(
            f"{type(self).__name__} has writes=True and no empty_cache; define empty_cache, "
            "or writes=False"
        )


class Head(Slot):
    """A network on an encoder's states: `head(*inputs, table=token_table, context=context)`.

    `context` (`nn.layers.Context`) draws dropout; None: no dropout.

    reads_head       name of another head, whose output stands in the place of the last states in
                     `reads`, if the tower has it
    per_token        whether it returns a result for every token
    scores_words     whether it returns logits over the vocabulary
    shares_table     whether its output layer is the encoder's token table
    gives_rows       whether it returns vectors and biases of ids (`nn.heads.word_rows`)
    """

    reads_head: ClassVar[str | None] = None
    per_token: ClassVar[bool] = False
    scores_words: ClassVar[bool] = False
    shares_table: ClassVar[bool] = False
    gives_rows: ClassVar[bool] = False

    def reads(self, encoded: Encoded, batch: Batch) -> tuple[Any, ...]:
        """Returns the inputs of the head from an encoded batch: by default the last layer."""
        return (encoded.hidden,)

    def example(self, encoded: Encoded) -> tuple[Any, ...]:
        """Returns example inputs, to initialise the parameters."""
        return (encoded.hidden,)


class ClassHead(Head):
    """A head with a score for each class. Subclasses have a field or property `classes`."""

    classes: int


class Network(Slot):
    """A tower of an encoder and named heads (`encoders.model.Model`).

    A tower may also be an encoder alone.
    """

    encoder: Encoder
    heads: Mapping[str, Head]


def encoder_in(tower: Any) -> Encoder | None:
    """Returns the encoder of a tower; None if the tower is another kind of network."""
    if isinstance(tower, Network):
        return tower.encoder
    return tower if isinstance(tower, Encoder) else None


def encoder_of(system: System, tower: str = "main") -> Encoder | None:
    """Returns the encoder of a system's tower; None if there is no such tower."""
    return encoder_in(system.towers.get(tower))


def encoders_with(system: System, trait: type[Trait]) -> dict[str, Trait]:
    """Returns {tower: encoder} of the encoders of a system that have a trait."""
    encoders = {name: encoder_in(tower) for name, tower in system.towers.items()}
    return {name: encoder for name, encoder in encoders.items() if isinstance(encoder, trait)}


def classes_of(head: Head) -> int | None:
    """Returns the number of classes of a head; None if it has no score for each class."""
    return head.classes if isinstance(head, ClassHead) else None


def heads_of(system: System, tower: str = "main") -> Mapping[str, Head]:
    """Returns the heads of a system's tower by name."""
    network = system.towers.get(tower)
    return network.heads if isinstance(network, Network) else {}


class Kernel(Slot):
    """A layer or head with a field `impl`, which selects the implementation (`kernels.choice`).

    computes         "attention" or "softmax"
    """

    computes: ClassVar[str] = "softmax"

"""The slots of a network: embedding, stack of layers, encoder, head and tower. `core.slots`
describes how slots work."""

from __future__ import annotations

from collections.abc import Mapping
from types import FunctionType, MappingProxyType
from typing import Any, ClassVar, Literal

from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Batch, Encoded, Vocab

Direction = Literal[
    "bidirectional", "causal", "backward", "decoder", "both", "before", "none", "unread"
]
"""The tokens that a token attends to if the batch has no `order`: all, earlier ones, later ones,
earlier ones and the whole source ("decoder"), all but itself ("both"), earlier ones but not itself
("before"), itself alone ("none"), or no token ("unread": its state is that of its document)."""


class Slot:
    """The base class of all slots. A field of a subclass must not hide a method of its slot
    (TypeError)."""

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

    def refusal(self, system: Any) -> str | None:
        """Returns why this value cannot work in `system`, as one clause with the change to make;
        None if it can."""
        return None


class Embedding(Slot):
    """The first layer of an encoder: token ids to vectors.

    vocab        the vocabulary, a field of every embedding
    types        number of sentence types (0: none)
    word_types   whether type vectors are rows of the token table (XLM in the Hugging Face library)
    languages    number of language vectors (0: none)
    position     the vectors of positions (`nn.embeddings.summed.Positions`), or None
    given        whether the token table belongs to another module, which passes it as an argument
    reads_neighbours  whether a token's vector depends on the tokens beside it (MobileBERT). Batches
                      of inference then have
                 `in_row` [B, L]: 1 for the caller's slots, 0 for slots that fill the bucket
    """

    vocab: Vocab
    position: Any = None
    types: int = 0
    word_types: bool = False
    languages: int = 0
    given: bool = False
    reads_neighbours: bool = False

    @property
    def limit(self) -> int | None:
        """Longest row that the positions allow, in tokens (None: any)."""
        return None if self.position is None else self.position.longest

    @property
    def counts_tokens(self) -> bool:
        """Whether positions count non-padding tokens only (RoBERTa)."""
        return self.position is not None and self.position.counts_tokens


class Layered(Slot):
    """A stack of layers inside a network. `levels` is the number of layers with separate
    parameters."""

    levels: int

    def level_of(self, path: str) -> int | range:
        """Returns the level of the parameter at `path`, from 1; a range if axis 0 of the parameter
        is the layers."""
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

    direction        see `Direction`
    obeys_order      whether a batch's `order` has an effect
    streams          2 with a query stream (XLNet), else 1
    apart            whether `extra` has the states of each direction alone, "forward" and
                     "backward" [B, L, D]
    keeps_last       whether `extra` has the last layer's states before dropout, "last" [B, L, D]
    reads_source     whether it has a decoder, which reads `decoder_input_ids`
    reads_mentions   whether it reads entities beside the words, at the tokens `mention_places` of a
                     batch
    writes_neighbours  whether it decodes the sentences beside each sentence of a row (skip-thought)
    gives_vectors    whether it has a vector for a text: that of each token's is in
                     `extra["vectors"]` [B, L, D], and `encode` takes the first
    by_sentence      whether a row consists of sentence slots of equal width (HIBERT)
    ponders          whether its depth is adaptive; the cost is in `extra["ponder"]` [B, L]
    writes           whether it decodes step by step with `empty_cache`
    start            first id of a decoder's input; "last": the document's last token; None: the
                     vocabulary's bos
    bare             whether its states are the rows of its table `token`, one a token (with
                     `subwords`: means of rows)
    biased           whether a word has a bias besides its vector, in `extra["bias"]` [B, L]
    averages         the window if its states are the means of the neighbours' rows of its table
                     `token`, or None
    subwords         the rows of a table `ngrams` that a word has besides
                     (`statistics.subwords`), or None
    grams            the rows of a table `ngrams` that a text has besides those of its words; then
                     the mean of its states is that of all these rows (`encoders.words.bags`). None:
                     no such mean
    paragraphs       number of documents in its table `document`, whose rows the batch names
                     (`document_ids`); 0: none
    stacks           {path inside the encoder: stack of layers}, from the input up; {} if layers are
                     not stacked
    linkers          what links mentions to entities in it, in order; the scores are in
                     `extra["linking"]`
    lexicons         {path of a table of entities inside the encoder: the lexicon that numbers its
                     rows}
    beyond           pattern of paths that a plain Transformer of its layers lacks (`of_plain`), or
                     None: it takes no other
    language_models  {name: {prefix of paths in a language model's tower: prefix in the encoder's}},
                     parts that may begin with a language model (`Experiment.init`)
    """

    direction: Direction = "bidirectional"
    obeys_order: bool = False
    streams: int = 1
    apart: bool = False
    keeps_last: bool = False
    reads_source: bool = False
    reads_mentions: bool = False
    writes_neighbours: bool = False
    gives_vectors: bool = False
    by_sentence: bool = False
    ponders: bool = False
    writes: bool = False
    start: int | str | None = None
    bare: bool = False
    biased: bool = False
    averages: int | None = None
    subwords: Any = None
    grams: Any = None
    paragraphs: int = 0
    stacks: Mapping[str, Layered] = MappingProxyType({})
    linkers: tuple[Any, ...] = ()
    lexicons: Mapping[str, Any] = MappingProxyType({})
    beyond: str | None = None
    language_models: Mapping[str, Mapping[str, str]] = MappingProxyType({})

    def of_plain(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns parameters {path inside the encoder: array} of a plain Transformer at this
        encoder's paths; parameters of such an encoder stay. Raises UserError for another number of
        layers."""
        return params

    def of_task(self, number: int) -> Encoder:
        """Returns the encoder that reads every batch as one of this task, of several that it was
        trained on."""
        return self

    @property
    def carries(self) -> bool:
        """Whether the encoder carries a memory from one batch to the next (`empty_memory`)."""
        return self.empty_memory(1) is not None

    @property
    def embeddings(self) -> Any:
        """Its `Embedding`, or None."""
        return None

    @property
    def types(self) -> int:
        """Number of sentence types (0: none)."""
        return self.embeddings.types if self.embeddings is not None else 0

    @property
    def languages(self) -> int:
        """Number of languages (0: none)."""
        return self.embeddings.languages if self.embeddings is not None else 0

    @property
    def limit(self) -> int | None:
        """Longest row in tokens (None: any)."""
        return self.embeddings.limit if self.embeddings is not None else None

    def level_of(self, path: str) -> int | range | None:
        """Returns the level of a parameter 'encoder/a/b/c': 0 below the layers, 1 ... N for a
        layer, a range if axis 0 of the parameter is the layers, None if the encoder declares no
        levels (`adapt.parameters.levels`)."""
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
        """Returns (batch, {parameter: rows}) of further sparse tables that are read for the rows
        `words` [U] of the token table, which an objective selected (`Objective.select`); None: it
        selected none, and reads the batch once."""
        return batch, {}

    def empty_memory(self, batch: int) -> Any:
        """Returns the memory before the first row of a text, a tree with leaves [B, ...], or
        None."""
        return None

    def without_memory(self) -> Any:
        """Returns the encoder without a memory."""
        return self

    def turned(self) -> Any:
        """Returns the encoder that reads the tokens of a row from the right, with the same
        parameters. Raises UserError."""
        raise UserError(
            f"{type(self).__name__} has no other direction; a backward model is a recurrent one"
        )

    def empty_cache(self, batch: int, length: int, source: int = 0) -> Any:
        """Returns the initial cache for decoding up to `length` tokens, for sources of `source`
        tokens.

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

    reads_head       name of a head; this head reads its output if the tower has it
    reads_first      whether the head reads only the first token
    per_token        whether it returns a result for every token
    scores_words     whether it returns logits over the vocabulary
    chained          whether the score of a class depends on the previous class (CRF)
    gives_rows       whether it returns vectors and biases of ids (`nn.heads.word_rows`)
    averages         whether it returns the mean of the states of a row
    relations        whose rows are the vectors of relations that a head of triples reads
                     (`nn.heads.knowledge.graph_vectors`): the encoder's alone ("shared"), or also
                     those of a table of its own ("own"); None: no head of triples
    biased           whether a head of triples has a table `bias` [V] of entities
    native_score     name of its score of triples in `kernels.triples`, or None: the kernel does not
                     compute it
    tolerance        of the constraint on relations that such a score may have
    """

    reads_head: ClassVar[str | None] = None
    reads_first: ClassVar[bool] = False
    per_token: ClassVar[bool] = False
    scores_words: ClassVar[bool] = False
    chained: ClassVar[bool] = False
    gives_rows: ClassVar[bool] = False
    averages: ClassVar[bool] = False
    relations: ClassVar[Literal["shared", "own"] | None] = None
    biased: ClassVar[bool] = False
    native_score: ClassVar[str | None] = None
    tolerance: ClassVar[float] = 0.0

    @property
    def outputs(self) -> int | None:
        """Number of classes, or None."""
        return None

    @property
    def readings(self) -> int:
        """Number of batch rows per example (2 or more: choices)."""
        return 1

    @property
    def shares_table(self) -> bool:
        """Whether the output layer is the encoder's token table."""
        return self.scores_words

    def reads(self, encoded: Encoded, batch: Batch) -> tuple[Any, ...]:
        """Returns the inputs of the head from an encoded batch: by default the last layer."""
        return (encoded.hidden,)

    def example(self, encoded: Encoded) -> tuple[Any, ...]:
        """Returns example inputs, to initialise the parameters."""
        return (encoded.hidden,)


class ClassHead(Head):
    """A head with a score for each class. Subclasses have a field or property `classes`.

    linear      whether the scores are the products of a matrix `classes/kernel` [D, C] and the mean
                of the states
    ways        [C, P] int32: then the products are the scores of inner nodes, and these the ways to
                the classes: node + 1 where they turn right, -(node + 1) to the left, 0 behind the
                end
    """

    classes: int
    linear: ClassVar[bool] = False
    ways: ClassVar[Any] = None

    @property
    def outputs(self) -> int:
        return self.classes


class Network(Slot):
    """A tower of an encoder and named heads (`encoders.model.Model`). A tower may also be only an
    encoder.

    readers     networks between the encoder and the heads, by name
    quiet       whether the encoder has no dropout
    """

    encoder: Encoder
    heads: Mapping[str, Head]
    readers: Mapping[str, Any] = MappingProxyType({})
    quiet: bool = False


def encoder_in(tower: Any) -> Encoder | None:
    """Returns the encoder of a tower; None if the tower is another kind of network."""
    if isinstance(tower, Network):
        return tower.encoder
    return tower if isinstance(tower, Encoder) else None


def encoder_of(system: Any, tower: str = "main") -> Encoder | None:
    """Returns the encoder of a system's tower; None if there is no such tower."""
    return encoder_in(system.towers.get(tower))


def heads_of(system: Any, tower: str = "main") -> Mapping[str, Head]:
    """Returns the heads of a system's tower by name."""
    network = system.towers.get(tower)
    return network.heads if isinstance(network, Network) else {}


class Kernel(Slot):
    """A layer or head with a field `impl`, which selects the implementation (`kernels.choice`).

    computes         "attention" or "softmax"
    """

    computes: ClassVar[str] = "softmax"

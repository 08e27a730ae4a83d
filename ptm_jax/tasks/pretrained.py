"""A trained model as a practitioner holds it: arrays or texts in, numpy and text out.

Every method runs a jitted program for the buckets of its shapes (powers of two) and for what is asked of it, so that
requests of other lengths do not recompile, and what nobody asks for is not computed.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.convert.config import Config
from ptm_jax.core.errors import UserError, unknown
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Params, Vocab
from ptm_jax.encoders.seq2seq import EncoderDecoder
from ptm_jax.nn.attention import with_maps
from ptm_jax.tasks import classifying, filling, inputs, writing

Pooling = Literal["mean", "cls", "max"]


@dataclasses.dataclass(frozen=True)
class Output:
    """What a forward pass gives, as numpy arrays of the shapes that were given; None where not asked for, or not there.

    hidden [B, L, D] · layers [N+1, B, L, D], the embeddings first and `hidden` last · attention [N, B, H, L, L] ·
    pooled [B, D] · logits [B, L, V] of the vocabulary head · scores {task head: array, or the pair of a span's ends}

    Of an encoder with a decoder these are the decoder's, L being the length T of its own inputs where they were given, and
    the encoder's are source [B, L, D] · source_layers [N+1, B, L, D] · source_attention [N, B, H, L, L]; between the two
    lies cross_attention [N, B, H, T, L].
    """

    hidden: np.ndarray
    layers: np.ndarray | None = None
    attention: np.ndarray | None = None
    pooled: np.ndarray | None = None
    logits: np.ndarray | None = None
    source: np.ndarray | None = None
    source_layers: np.ndarray | None = None
    source_attention: np.ndarray | None = None
    cross_attention: np.ndarray | None = None
    scores: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, eq=False)
class Pretrained:
    """A system with its parameters {tower: tree} and its tokenizer (None: arrays only).

    `tower` is the network that is used. `vocab` is by default that of its embeddings. `published` has the fields of the
    config that a checkpoint came with: names of classes, the token that answers begin with.
    """

    system: Any
    params: Params
    tokenizer: Any = None
    vocab: Vocab | None = None
    tower: str = "main"
    published: Config = dataclasses.field(default_factory=lambda: Config({}))

    def __post_init__(self):
        if self.tower not in self.system.towers:
            raise unknown("tower", self.tower, self.system.towers)
        if self.vocab is None:
            object.__setattr__(self, "vocab", self.module.encoder.embed.vocab)
        # A published table may have rows that no piece uses.
        if self.tokenizer is not None and self.tokenizer.vocab.size > self.vocab.size:
            raise UserError(
                f"the tokenizer has {self.tokenizer.vocab.size} pieces and the model {self.vocab.size}; "
                "load the tokenizer that the model was trained with"
            )

    @property
    def module(self) -> Any:
        """The network that is used."""
        return self.system.towers[self.tower]

    @property
    def causal(self) -> bool:
        """Whether tokens see only what is before them."""
        return getattr(self.module.encoder, "direction", None) == "causal"

    @property
    def generates(self) -> bool:
        """Whether the model writes text: it is causal or has a decoder, has a vocabulary head and keeps a cache."""
        return writing.refusal(self) is None

    @property
    def pair(self) -> bool:
        """Whether the model is an encoder with a decoder."""
        return isinstance(self.module.encoder, EncoderDecoder)

    @property
    def limit(self) -> int | None:
        """The longest sequence, in tokens; None where there is no position table."""
        return inputs.limit_of(self.module.encoder)

    @property
    def head(self) -> str | None:
        """The vocabulary head: "mlm" or "lm"; None where the model has none."""
        return next((name for name in ("mlm", "lm") if name in self.module.heads), None)

    def __call__(
        self,
        input_ids,
        attention_mask=None,
        token_type_ids=None,
        position_ids=None,
        language_ids=None,
        decoder_input_ids=None,
        *,
        layers: bool = False,
        attention: bool = False,
        logits: bool = True,
    ) -> Output:
        """One forward pass on arrays [B, L] of whole numbers; tokens whose mask is 0 are seen by nobody.

        `language_ids` of an XLM are by default the `lang_id` of its config; with none there, no language is told. The
        decoder of a pair reads `decoder_input_ids` [B, T], for which task heads give no scores; by default it reads the
        row, shifted by one to the right.

        Raises UserError: shapes that differ, ids out of range, a sequence longer than the position table.
        """
        batch = self._batch(input_ids, attention_mask, token_type_ids, position_ids, language_ids)
        rows, length = np.shape(input_ids)
        target = length
        if decoder_input_ids is not None:
            batch |= inputs.decoder_of(self.module.encoder, self.vocab, decoder_input_ids, rows, len(batch["input_ids"]))
            target = np.shape(decoder_input_ids)[1]
        asked = {"hidden": True, "layers": layers, "attention": attention, "pooled": "pool" in self.module.heads}
        asked["logits"] = logits and self.head is not None
        if self.pair:
            asked |= {"source": True, "source_layers": layers, "source_attention": attention, "cross_attention": attention}
        scored = self.scored if logits and decoder_input_ids is None else ()
        wanted = (*(name for name, yes in asked.items() if yes), *(f"scores/{name}" for name in scored))
        module = with_maps(self.module) if attention else self.module
        found = _forward(module, self.head, wanted, self.params[self.tower], batch)
        cut = {
            "hidden": np.s_[:rows, :target],
            "layers": np.s_[:, :rows, :target],
            "attention": np.s_[:, :rows, :, :target, :target],
            "pooled": np.s_[:rows],
            "logits": np.s_[:rows, :target],
            "source": np.s_[:rows, :length],
            "source_layers": np.s_[:, :rows, :length],
            "source_attention": np.s_[:, :rows, :, :length, :length],
            "cross_attention": np.s_[:, :rows, :, :target, :length],
        }
        scores = {}
        for name in scored:
            head, value = self.module.heads[name], found.pop(f"scores/{name}")
            per_row = np.s_[: rows // getattr(head, "choices", 1)]
            part = np.s_[:rows, :length] if getattr(head, "per_token", False) else per_row
            scores[name] = jax.tree.map(lambda array, part=part: np.asarray(array)[part], value)
        return Output(**{name: np.asarray(value)[cut[name]] for name, value in found.items()}, scores=scores)

    def _batch(self, input_ids, attention_mask=None, token_type_ids=None, position_ids=None, language_ids=None):
        """The checked batch of arrays [B, L], in its bucket, with what the model reads beside them."""
        encoder = self.module.encoder
        spoken = self.published("lang_id", int, None) if language_ids is None else None
        if spoken is not None and getattr(getattr(encoder, "embed", None), "languages", 0):
            language_ids = np.full(np.shape(input_ids), spoken)
        given = input_ids, attention_mask, token_type_ids, position_ids, language_ids
        batch = inputs.batch_of(encoder, self.vocab, *given, multiple=self._readings)
        if hasattr(self.system.examples, "table"):  # words are read by their characters
            batch["characters"] = self._spellings[batch["input_ids"]]
        return batch

    @property
    def scored(self) -> tuple[str, ...]:
        """Heads beside the vocabulary's and the pooler that a batch alone is enough for."""
        facts = ("reads", "reads_head", "per_token")
        heads = self.module.heads.items()
        return tuple(name for name, head in heads if any(hasattr(head, fact) for fact in facts))

    @functools.cached_property
    def _spellings(self) -> np.ndarray:
        """[V, C] int32: the characters of every id."""
        return self.system.examples.table(self._tokenizer()).astype(np.int32)

    @property
    def _readings(self) -> int:
        """Rows come in groups of so many: the readings of a question."""
        return max((getattr(head, "choices", 1) for head in self.module.heads.values()), default=1)

    def encode(
        self, texts: Sequence[str], pooling: Pooling = "mean", batch_size: int = 32, normalize: bool = False
    ) -> np.ndarray:
        """Vectors [n, D] float32 of texts: the mean or maximum over their tokens, special ones included, or the first.

        `normalize` makes them unit vectors. Texts of similar length share a batch. A decoder has no [CLS]; its first
        token has seen nothing else.
        """
        if pooling not in ("mean", "cls", "max"):
            raise unknown("pooling", str(pooling), ("mean", "cls", "max"))
        rows = self.ids_of(texts)
        if not rows:
            width = self(np.zeros((1, 1), np.int32), logits=False).hidden.shape[-1]
            return np.zeros((0, width), np.float32)
        found: dict[int, np.ndarray] = {}
        for chosen in inputs.batches(rows, batch_size):
            ids, mask = inputs.rectangle([rows[i] for i in chosen], self.vocab.pad)
            hidden, real = self(ids, mask, logits=False).hidden.astype(np.float32), mask[..., None] > 0
            if pooling == "mean":
                pooled = np.where(real, hidden, 0).sum(1) / real.sum(1)
            else:
                pooled = hidden[:, 0] if pooling == "cls" else np.where(real, hidden, -np.inf).max(1)
            found.update(zip(chosen.tolist(), pooled, strict=True))
        vectors = np.stack([found[i] for i in range(len(rows))])
        if normalize:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors

    def fill_mask(self, texts: Sequence[str], top: int = 5) -> list[list[list[filling.Filling]]]:
        """For every text, for every mask in it, the `top` fillings (token, probability, sentence), likeliest first.

        A mask is written as the tokenizer's own, as [MASK] or as <mask>. Special tokens are no fillings. Of BART, whose mask
        stands for any number of tokens, it is the first of them. Raises UserError for a text without a mask, and for a
        model that was not trained to fill them.
        """
        return filling.fill(self, inputs.texts_of(texts), top)

    def classify(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, batch_size: int = 32
    ) -> list[dict[str, float]]:
        """For every text, or every text with its second of `pairs`, {name of a class: probability}, in the model's order.

        Probabilities add up to 1, or stand each on its own where labels do not exclude each other; a model that tells a
        number has that for its one class. Raises UserError for a model that has no head for it.
        """
        seconds = None if pairs is None else inputs.texts_of(pairs, "pairs")
        return classifying.classify(self, inputs.texts_of(texts), seconds, batch_size)

    def tag(self, texts: Sequence[str], batch_size: int = 32) -> list[list[tuple[str, str]]]:
        """For every text, (word, tag) of its words, which are what stands between blanks. A text that is longer than a row
        goes on in the next. Raises UserError for a model that has no head for it, or does not name its tags."""
        from ptm_jax.tasks import reading

        return reading.tag(self, inputs.texts_of(texts), batch_size)

    def answer(self, questions: Sequence[str], contexts: Sequence[str], batch_size: int = 32) -> list[Any]:
        """For every question, `tasks.squad.Answer` (text, null, best) from its text, read in windows where it is long. The
        text is "" where a model of SQuAD 2.0 finds none. Raises UserError for a model that has no head for it."""
        from ptm_jax.tasks import reading

        return reading.answer(self, inputs.texts_of(questions), inputs.texts_of(contexts, "contexts"), batch_size)

    def generate(
        self,
        prompts: Sequence[str],
        max_new_tokens: int = 64,
        seed: int = 0,
        batch_size: int = 32,
        start: int | str | None = None,
        **options: Any,
    ) -> list[Any]:
        """Every prompt with its continuation, as text, or, of an encoder with a decoder, the answer to every source;
        `options` are those of `tasks.generation.Generation`.

        An answer begins with `start`, a piece or its id, which is by default the one that the model was published or
        trained with (mBART: the source's last token); so are `forced_bos` and `forced_eos`. Special tokens that a source
        spells are recognised, and left out of answers, T5's sentinels excepted. With answers=A above 1, a list of A texts
        for every prompt. Raises UserError for a model that does not generate, options that contradict each other, and
        texts that leave no room in the position table.
        """
        return writing.generate(self, prompts, seed, batch_size, start, max_new_tokens=max_new_tokens, **options)

    def perplexity(self, texts: Sequence[str], batch_size: int = 32) -> np.ndarray:
        """exp of the mean negative log-probability per token [n] of each text, under a causal model.

        The first token counts too where the vocabulary has a `bos` to predict it from.
        """
        if not self.causal or self.head is None:
            others = writing.generators(pairs=False)
            raise UserError(f"{self.system.name} is no left-to-right model and has no perplexity; {others} have")
        begin = [] if self.vocab.bos is None else [self.vocab.bos]
        rows = [np.array([*begin, *row], np.int32) for row in self.ids_of(texts)]
        means = np.zeros(len(rows))
        for chosen in inputs.batches(rows, batch_size):
            self._check([rows[i] for i in chosen], chosen, least=2)
            ids, mask = inputs.rectangle([rows[i] for i in chosen], self.vocab.pad)
            batch = self._batch(ids, mask)
            found = _token_nll(self.module, self.head, self.params[self.tower], batch)
            means[chosen] = np.asarray(found)[: len(chosen)]
        return np.exp(means)

    def ids_of(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids [l] int32 of every text between its special tokens. Raises UserError for one that is too long."""
        texts = inputs.texts_of(texts)
        rows = [inputs.framed(self, row) for row in self._tokenizer().encode_batch(texts)]
        self._check(rows, range(len(rows)))
        return rows

    def _check(self, rows: Sequence[np.ndarray], numbers: Sequence[int], least: int = 1) -> None:
        for row, number in zip(rows, numbers, strict=True):
            if len(row) < least:
                raise UserError(f"text {number + 1} has {len(row)} tokens; at least {least} are needed")
            if self.limit is not None:
                inputs.check_length(len(row), self.limit, f"text {number + 1}")

    def _tokenizer(self) -> Any:
        if self.tokenizer is None:
            raise UserError("this model has no tokenizer, so it takes arrays only; give Pretrained one to use texts")
        return self.tokenizer


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _forward(module, head, wanted: tuple[str, ...], params, batch) -> dict[str, Any]:
    tower = Tower(module, params)
    encoded = tower(batch)
    whole = lambda layers, last: jnp.concatenate([layers[:-1], last[None]])
    makers = {
        "hidden": lambda: encoded.hidden,
        "layers": lambda: whole(encoded.layers, encoded.hidden),
        "source_layers": lambda: whole(encoded.extra["source_layers"], encoded.extra["source"]),
        **{name: lambda name=name: encoded.extra[name] for name in ("source", "source_attention", "cross_attention")},
        "attention": lambda: encoded.attention,
        "pooled": lambda: tower.head("pool", encoded.hidden),
        "logits": lambda: tower.head(head, encoded.hidden).logits(),
    }
    read = lambda name: tower.read(name.removeprefix("scores/"), encoded, batch)
    return {name: makers[name]() if name in makers else read(name) for name in wanted}


@functools.partial(jax.jit, static_argnums=(0, 1))
def _token_nll(module, head, params, batch):
    """Mean -log p of the tokens after the first [B], in nats."""
    tower = Tower(module, params)
    nll = tower.head(head, tower(batch).hidden[:, :-1]).nll(batch["input_ids"][:, 1:])
    real = batch["segment_ids"][:, 1:]
    return (nll * real).sum(1) / jnp.maximum(real.sum(1), 1)

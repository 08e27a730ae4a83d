"""A trained model as a practitioner holds it: arrays or texts in, numpy and text out.

Every method runs a jitted program for the buckets of its shapes (powers of two) and for what is asked of it, so that
requests of other lengths do not recompile, and what nobody asks for is not computed.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.errors import UserError, unknown
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Params, Vocab
from ptm_jax.tasks import decoding, filling, inputs
from ptm_jax.tasks.generation import Generation

Pooling = Literal["mean", "cls", "max"]


@dataclasses.dataclass(frozen=True)
class Output:
    """What a forward pass gives, as numpy arrays of the shapes that were given; None where not asked for, or not there.

    hidden [B, L, D] · layers [N+1, B, L, D], the embeddings first and `hidden` last · attention [N, B, H, L, L] ·
    pooled [B, D] · logits [B, L, V] of the vocabulary head · scores {task head: array, or the pair of a span's ends}
    """

    hidden: np.ndarray
    layers: np.ndarray | None = None
    attention: np.ndarray | None = None
    pooled: np.ndarray | None = None
    logits: np.ndarray | None = None
    scores: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, eq=False)
class Pretrained:
    """A system with its parameters {tower: tree} and its tokenizer (None: arrays only).

    `tower` is the network that is used. `vocab` is by default that of its embeddings.
    """

    system: Any
    params: Params
    tokenizer: Any = None
    vocab: Vocab | None = None
    tower: str = "main"

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
        """Whether the model continues a text: it is causal, has a vocabulary head and keeps a cache."""
        return self.causal and self.head is not None and _caches(self.module.encoder)

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
        *,
        layers: bool = False,
        attention: bool = False,
        logits: bool = True,
    ) -> Output:
        """One forward pass on arrays [B, L] of whole numbers; tokens whose mask is 0 are seen by nobody. Without
        `language_ids` an XLM's vectors of languages are not added.

        Raises UserError: shapes that differ, ids out of range, a sequence longer than the position table.
        """
        given = input_ids, attention_mask, token_type_ids, position_ids, language_ids
        batch = inputs.batch_of(self.module.encoder, self.vocab, *given, multiple=self._readings)
        if hasattr(self.system.examples, "table"):  # words are read by their characters
            batch["characters"] = self._spellings[batch["input_ids"]]
        asked = {"hidden": True, "layers": layers, "attention": attention, "pooled": "pool" in self.module.heads}
        asked["logits"] = logits and self.head is not None
        wanted = (*(name for name, yes in asked.items() if yes), *(f"scores/{name}" for name in self._scored if logits))
        found = _forward(self.module, self.head, wanted, self.params[self.tower], batch)
        rows, length = np.shape(input_ids)
        cut = {
            "hidden": np.s_[:rows, :length],
            "layers": np.s_[:, :rows, :length],
            "attention": np.s_[:, :rows, :, :length, :length],
            "pooled": np.s_[:rows],
            "logits": np.s_[:rows, :length],
        }
        scores = {}
        for name in self._scored if logits else ():
            head, value = self.module.heads[name], found.pop(f"scores/{name}")
            per_row = np.s_[: rows // getattr(head, "choices", 1)]
            part = np.s_[:rows, :length] if getattr(head, "per_token", False) else per_row
            scores[name] = jax.tree.map(lambda array, part=part: np.asarray(array)[part], value)
        return Output(**{name: np.asarray(value)[cut[name]] for name, value in found.items()}, scores=scores)

    @property
    def _scored(self) -> tuple[str, ...]:
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
        for chosen in _batches(rows, batch_size):
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

        A mask is written as the tokenizer's own, as [MASK] or as <mask>. Special tokens are no fillings. Raises
        UserError for a text without a mask, and for a model that was not trained to fill them.
        """
        return filling.fill(self, inputs.texts_of(texts), top)

    def generate(
        self, prompts: Sequence[str], max_new_tokens: int = 64, seed: int = 0, batch_size: int = 32, **options: Any
    ) -> list[Any]:
        """Every prompt with its continuation, as text; `options` are those of `tasks.generation.Generation`.

        With answers=A above 1, a list of A texts for every prompt. Raises UserError for a model that does not generate,
        options that contradict each other, and prompts that leave no room in the position table.
        """
        if not self.generates:
            raise UserError(f"{self.system.name} does not generate text; {_generators()} do")
        plan = _plan({"max_new_tokens": max_new_tokens, **options})
        texts = inputs.texts_of(prompts, "prompts")
        rows = self._prompts(texts, max_new_tokens)
        tower, answers = Tower(self.module, self.params[self.tower]), [None] * len(rows)
        for chosen in _batches(rows, batch_size):
            found = decoding.decode(
                tower, [rows[i] for i in chosen], plan,
                head=self.head, eos=self.vocab.eos, pad=self.vocab.pad or 0, seed=seed, rows=chosen,
            )  # fmt: skip
            for place, number in enumerate(chosen):
                answers[number] = [
                    self._continued(texts[number], rows[number], tokens[:length])
                    for tokens, length in zip(found.tokens[place], found.lengths[place], strict=True)
                ]
        return answers if plan.answers > 1 else [several[0] for several in answers]

    def perplexity(self, texts: Sequence[str], batch_size: int = 32) -> np.ndarray:
        """exp of the mean negative log-probability per token [n] of each text, under a causal model.

        The first token counts too where the vocabulary has a `bos` to predict it from.
        """
        if not self.causal or self.head is None:
            raise UserError(f"{self.system.name} is no left-to-right model and has no perplexity; {_generators()} have")
        begin = [] if self.vocab.bos is None else [self.vocab.bos]
        rows = [np.array([*begin, *row], np.int32) for row in self.ids_of(texts)]
        means = np.zeros(len(rows))
        for chosen in _batches(rows, batch_size):
            self._check([rows[i] for i in chosen], chosen, least=2)
            ids, mask = inputs.rectangle([rows[i] for i in chosen], self.vocab.pad)
            batch = inputs.batch_of(self.module.encoder, self.vocab, ids, mask)
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

    def _prompts(self, texts: Sequence[str], room: int) -> list[np.ndarray]:
        """Ids of prompts; an empty one is the token that begins a text."""
        start = self.vocab.bos if self.vocab.bos is not None else self.vocab.eos
        rows = self._tokenizer().encode_batch(list(texts))
        for number, row in enumerate(rows):
            if len(row) == 0 and start is None:
                raise UserError(f"prompt {number + 1} is empty, and this vocabulary has no token to begin with")
            if self.limit is not None and max(len(row), 1) + room > self.limit:
                raise UserError(
                    f"prompt {number + 1} has {len(row)} tokens, which with max_new_tokens={room} are more than the "
                    f"{self.limit} of this model's position table; shorten the prompt or ask for fewer"
                )
        return [row if len(row) else np.array([start], np.int32) for row in rows]

    def _continued(self, prompt: str, row: np.ndarray, tokens: np.ndarray) -> str:
        """The prompt and the text of the tokens after it, with the space between them that the tokenizer says."""
        known, whole = self.tokenizer.decode(row), self.tokenizer.decode([*row, *tokens])
        # A prompt may end inside a character of several bytes, which the next token completes.
        return prompt + whole[len(os.path.commonprefix([known, whole])) :] if prompt else whole

    def _tokenizer(self) -> Any:
        if self.tokenizer is None:
            raise UserError("this model has no tokenizer, so it takes arrays only; give Pretrained one to use texts")
        return self.tokenizer


def _plan(options: dict[str, Any]) -> Generation:
    names = [field.name for field in dataclasses.fields(Generation)]
    for name in options:
        if name not in names:
            raise unknown("option of generate", name, names)
    try:
        return Generation(**options)
    except (TypeError, ValueError) as error:
        raise UserError(f"generate: {error}") from error


def _batches(rows: Sequence[np.ndarray], size: int) -> list[np.ndarray]:
    """Numbers of rows in batches of at most `size`, rows of similar length together."""
    if size < 1:
        raise UserError(f"batch_size is {size}; it must be at least 1")
    order = np.argsort([len(row) for row in rows], kind="stable")
    return [order[start : start + size] for start in range(0, len(order), size)]


def _generators() -> str:
    """Names of the systems that generate."""
    from ptm_jax.core import registry

    registry.discover("ptm_jax.systems")
    systems = [registry.catalogue.get(name) for name in registry.catalogue.names()]
    encoders = {s.name: getattr(s.towers.get("main"), "encoder", None) for s in systems}
    names = [name for name, e in encoders.items() if getattr(e, "direction", "") == "causal" and _caches(e)]
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return ", ".join(names[:6]) + more if names else "causal models"


def _caches(encoder: Any) -> bool:
    return hasattr(encoder, "empty_cache")


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _forward(module, head, wanted: tuple[str, ...], params, batch) -> dict[str, Any]:
    tower = Tower(module, params)
    encoded = tower(batch)
    makers = {
        "hidden": lambda: encoded.hidden,
        "layers": lambda: jnp.concatenate([encoded.layers[:-1], encoded.hidden[None]]),
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

"""Paragraph vectors: vectors of new texts by gradient descent with the words frozen.
Le and Mikolov 2014, section 2.3."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core import facts, slots, spec
from ptm_jax.core import towers as core_towers
from ptm_jax.core.errors import UserError
from ptm_jax.core.streams import stream
from ptm_jax.core.system import System
from ptm_jax.core.types import Array, Batch, Params
from ptm_jax.data.rows.windows import kept
from ptm_jax.encoders.words.paragraphs import ParagraphVectors
from ptm_jax.inference import inputs
from ptm_jax.inference.decoding.settings import bucket
from ptm_jax.inference.text.vectors import unit
from ptm_jax.inference.words.word_vectors import WordVectors
from ptm_jax.runs.run import Run
from ptm_jax.statistics.counts import Documents

if TYPE_CHECKING:
    from ptm_jax.data.tokenizers.tokenizing import Tokenizer


CENTRES = 64
"""Words of a text that are predicted in an update."""


def is_paragraphs(system: System) -> bool:
    """Whether a system has vectors of documents."""
    return any(one.paragraphs for one in slots.encoders_with(system, ParagraphVectors).values())


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ParagraphModel:
    """Vectors of documents and words. The facts of `system` are filled in."""

    system: System
    params: Params
    tokenizer: Any

    @classmethod
    def read(cls, run: Run, system: System, params: Params, tokenizer: Tokenizer) -> ParagraphModel:
        """Returns the model of a run, with the word frequencies of its corpus.
        Noise words are drawn from them."""
        return cls(facts.fill(system, run.corpus), params, tokenizer)

    def __repr__(self) -> str:
        count = self.documents.shape[0]
        return (
            f"ParagraphModel {self.system.name!r}: {count:,} documents, vectors of width "
            f"{self.documents.shape[1]}"
        )

    @functools.cached_property
    def documents(self) -> np.ndarray:
        """[N, D] float32: the vectors of the training documents, in the order of the corpus.
        Vectors of several towers are concatenated."""
        tables = [
            np.asarray(self.params[name]["encoder"]["document"], np.float32)
            for name in self.system.towers
        ]
        return np.concatenate(tables, 1)

    @functools.cached_property
    def words(self) -> WordVectors:
        """The vectors of the words, of the first tower."""
        name = next(iter(self.system.towers))
        numbers = [
            n
            for n, piece in enumerate(self.tokenizer.pieces)
            if piece not in self.tokenizer.special_pieces
        ]
        rows = np.asarray(self.params[name]["encoder"]["token"], np.float32)[numbers]
        return WordVectors.of([self.tokenizer.pieces[n] for n in numbers], rows)

    def encode(
        self,
        texts: Sequence[str],
        normalize: bool | None = None,
        epochs: int = 20,
        rate: float = 0.025,
        seed: int = 0,
        **other: Any,
    ) -> np.ndarray:
        """Returns the vectors [n, D] float32 of texts: from small random vectors, `epochs` passes
        of the training's objective over their words at a rate that falls from `rate` (of one word)
        to 0.0001. A vector depends on its text and the seed alone. `normalize`: to length 1. Raises
        UserError for an option of contextual models."""
        if excluded := [name for name, value in other.items() if value]:
            raise UserError(
                f"{excluded[0]} is for models with an encoder; {self.system.name} has vectors "
                "of documents: leave it out"
            )
        words = self._words(inputs.texts_of(texts))
        size, rounds = bucket(len(texts)), max(1, -(-words.shape[1] // CENTRES))
        start = functools.partial(_begun, stream(seed, "documents"), size)
        documents = {name: start(tower.encoder.width) for name, tower in self.system.towers.items()}
        rates = np.linspace(rate, min(rate, 1e-4), max(1, epochs), dtype=np.float32)
        params = jax.tree.map(jnp.asarray, self.params)
        for epoch in range(epochs):
            chosen = self._kept(words, np.random.default_rng([seed, epoch]))
            for n in range(rounds):
                key = jax.random.fold_in(stream(seed, "inference", epoch), n)
                documents = self._descend(
                    documents, params, self._row(chosen, n, size), rates[epoch], key
                )
        vectors = np.concatenate([np.asarray(documents[name]) for name in self.system.towers], 1)[
            : len(texts)
        ]
        return unit(vectors) if normalize else vectors

    def _words(self, texts: Sequence[str]) -> np.ndarray:
        """Returns the known words of texts, [n, M], -1 after the last."""
        unk = self.tokenizer.vocab.unk
        rows = [
            ids[ids != unk] if unk is not None else ids
            for ids in map(np.asarray, self.tokenizer.encode_batch(list(texts)))
        ]
        known = np.full((len(rows), max(map(len, rows), default=0)), -1, np.int32)
        for n, ids in enumerate(rows):
            known[n, : len(ids)] = ids
        return known

    def _kept(self, words: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Returns the words that subsampling keeps, moved to the front, [n, M].
        The draws are those of places in a text."""
        examples = self.system.examples
        if examples.sample is None:
            return words
        rates = kept(examples.counts.values, examples.sample, self.tokenizer.vocab.unk)
        stays = (words >= 0) & (rng.random(words.shape[1], np.float32) < rates[words])
        order = np.argsort(~stays, axis=1, kind="stable")
        return np.take_along_axis(np.where(stays, words, -1), order, 1)

    def _row(self, words: np.ndarray, number: int, size: int) -> dict[str, np.ndarray]:
        """Returns the row of every text in which its words `number` * 64, ... are predicted, [size,
        L]."""
        window = self.system.examples.window
        length = CENTRES + 2 * window
        ids = np.full((size, length), -1, np.int32)
        first = number * CENTRES - window
        part = words[:, max(0, first) : first + length]
        ids[: len(part), max(0, -first) : max(0, -first) + part.shape[1]] = part
        real, place = ids >= 0, np.arange(length)
        centres = real & (place >= window) & (place < window + CENTRES)
        fields = {
            "input_ids": np.where(real, ids, self.tokenizer.vocab.pad),
            "segment_ids": real,
            "centres": centres,
        }
        return {name: field.astype(np.int32) for name, field in fields.items()}

    @functools.cached_property
    def _descend(self) -> Any:
        """(documents, parameters, batch, rate, key) -> documents after an update: the sum over the
        words of a text's row."""
        objective, corruption = slots.objective(self.system.objective), self.system.corruption

        def loss(documents: dict[str, Array], params: Params, batch: Batch, key: Array) -> Array:
            count = len(batch["input_ids"])

            def sized(fact):
                return dataclasses.replace(fact, corpus_documents=count)

            modules = spec.respell(dict(self.system.towers), Documents, sized)
            placed = {
                name: {**params[name], "encoder": {**params[name]["encoder"], "document": table}}
                for name, table in documents.items()
            }
            return jnp.sum(objective(core_towers.bind(modules, placed, False), batch, key).sum)

        @jax.jit
        def step(documents, params, batch, rate, key):
            ids = batch["input_ids"]
            document_ids = jnp.broadcast_to(jnp.arange(len(ids))[:, None], ids.shape)
            rows = jnp.zeros(len(ids), jnp.int32)  # every text has the draws of a text alone
            batch = corruption(key, {**batch, "document_ids": document_ids, "rows": rows})
            slopes = jax.grad(loss)(documents, params, batch, key)
            return jax.tree.map(lambda x, slope: x - rate * slope, documents, slopes)

        return step


def _begun(key: Array, size: int, width: int) -> Array:
    """Returns the same small random vector for every text, [size, D]."""
    return jnp.tile(
        jax.random.uniform(key, (1, width), jnp.float32, -0.5 / width, 0.5 / width), (size, 1)
    )

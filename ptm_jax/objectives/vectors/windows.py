"""Word vectors from windows, without a softmax over the vocabulary.

Centres predict their neighbours, or neighbours their centre:

    skip-gram   a token's state predicts every neighbour in its window (Mikolov et al. 2013a,
                section 3.2)
    CBOW        a state made of the neighbours predicts the token (2013a, section 3.1)

The score of word w for a state h is s = h . v'_w (+ b_w). The noise words of a row [K] are shared
by all of its states: each counts k / K for every prediction, so that k noise words are expected, as
in the papers, and one product scores them all.

Deviation from word2vec.c, which updates after every pair: the pairs of a batch are summed at the
same parameters. The loss is a mean over centres, so the original's rate r is r times the centres of
an update. A pair's own gradient is the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core import slots
from ptm_jax.core.batch import renumbered
from ptm_jax.core.errors import unknown
from ptm_jax.core.system import System
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Encoded, Loss, Ratio, Vocab
from ptm_jax.kernels.updates import Native, Sampling
from ptm_jax.objectives.base import OnePass, token_loss
from ptm_jax.objectives.row_updates import InPlace, with_encoder_rows
from ptm_jax.objectives.vectors.vector_traits import WordTable
from ptm_jax.statistics.counts import Counts, noise_of
from ptm_jax.statistics.huffman import Huffman
from ptm_jax.statistics.windows import band, neighbours, offsets, shifted, square

Predicts = Literal["neighbours", "centre"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Words(slots.Objective):
    """A loss of states [B, L, D] and words. Subclasses define `fields` and `terms`.

    An encoder may return

        offsets   [2c, D], in `extra`: a state is multiplied by the vector of the offset at which it
                  predicts a neighbour (ivLBL)
        words     [B, L, D], in `extra`: further states that predict neighbours (paragraph vectors
                  with skip-gram)

    With `document_ids` in the batch it has a table `document`.
    """

    predicts: Predicts = "neighbours"
    window: int = 5
    head: str = "context"

    def __post_init__(self):
        if self.predicts not in get_args(Predicts):
            raise unknown("word prediction", str(self.predicts), get_args(Predicts))

    def refusal(self, system: System) -> str | None:
        head = slots.heads_of(system, self.tower).get(self.head)
        if head is None or not head.gives_rows:
            return (
                f"{type(self).__name__} needs a head of word vectors named {self.head!r}; add "
                "nn.heads.word_rows.WordRows"
            )
        return None

    def fields(self, batch: Batch) -> Batch:
        """Returns the batch with the rows of the output table that it reads, by their numbers, and
        facts of these words."""
        raise NotImplementedError

    def select(self, system: System, batch: Batch) -> tuple[Batch, Mapping[str, Array]]:
        batch = self.fields(batch)
        words, batch["input_ids"] = renumbered(batch["input_ids"])
        read, *numbers = renumbered(*(batch[name] for name in self.reads))
        head = f"{self.tower}/heads_{self.head}"
        tables = {f"{self.tower}/encoder/token": words, f"{head}/table": read}
        if slots.heads_of(system, self.tower)[self.head].bias:
            tables[f"{head}/bias"] = read
        if "document_ids" in batch:
            documents, batch["document_ids"] = renumbered(batch["document_ids"])
            tables[f"{self.tower}/encoder/document"] = documents
        batch = {**batch, **dict(zip(self.reads, numbers, strict=True))}
        return with_encoder_rows(system, self.tower, batch, tables)

    def __call__(self, towers: Mapping[str, Tower], batch: Batch, key: Array) -> Loss:
        tower, batch = towers[self.tower], self.fields(batch)
        encoded = tower(batch, key)
        near = neighbours(batch, self.window)
        extra = encoded.extra or {}
        total = self.terms(
            tower, encoded.hidden.astype(jnp.float32), extra.get("offsets"), near, batch
        )
        pairs = (near if self.predicts == "neighbours" else near.any(-1)).sum()
        metrics = {"pair_loss": Ratio(total, pairs.astype(jnp.float32))}
        if "words" in extra:
            words = dataclasses.replace(self, predicts="neighbours")
            more = words.terms(tower, extra["words"].astype(jnp.float32), None, near, batch)
            total, metrics["word_loss"] = total + more, Ratio(more, near.sum().astype(jnp.float32))
        return Loss(total, near.any(-1).sum().astype(jnp.float32), metrics)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Noise(_Words):
    """A logistic loss of true words against shared noise words.

    k       noise words for every prediction
    """

    k: int = 5
    reads = ("target_ids", "noise_ids")

    def fields(self, batch: Batch) -> Batch:
        return batch if "target_ids" in batch else {**batch, "target_ids": batch["input_ids"]}

    def weights(self, near: Array, batch: Batch) -> Array:
        """Returns how often a noise word counts for a state, in units of k / K, [B, L, K]."""
        count = near.sum(-1) if self.predicts == "neighbours" else near.any(-1)
        return jnp.broadcast_to(
            count[..., None].astype(jnp.float32), (*count.shape, batch["noise_ids"].shape[1])
        )

    def shift(self, batch: Batch, name: str) -> Array | float:
        """Returns the terms that are subtracted from the scores of the words `name`."""
        return 0.0

    def terms(self, tower, hidden, factors, near, batch):
        (true, bias), (noise, noise_bias) = (
            tower.head(self.head, batch[name]) for name in self.reads
        )
        bias, noise_bias = (
            bias - self.shift(batch, "target_ids"),
            noise_bias - self.shift(batch, "noise_ids"),
        )
        share = self.k / batch["noise_ids"].shape[1]

        def against(states):
            return _dot("bld,bkd->blk", states, noise) + noise_bias[:, None]

        if self.predicts == "centre":
            scores = (hidden * true).sum(-1) + bias
            right = _sum(jax.nn.softplus(-scores), near.any(-1))
        elif factors is None:
            scores = band(_dot("bld,bmd->blm", hidden, true) + bias[:, None], self.window)
            right = _sum(jax.nn.softplus(-scores), near)
        else:
            return self._by_offset(hidden, factors, near, (true, bias), against, share=share)
        return right + share * _sum(jax.nn.softplus(against(hidden)), self.weights(near, batch))

    def _by_offset(self, hidden, factors, near, words, against, *, share):
        """Sums over the offsets, whose states differ."""
        total, (true, bias) = 0.0, words
        for n, offset in enumerate(offsets(self.window)):
            states, neighbours = hidden * factors[n], near[..., n]
            scores = (states * shifted(true, offset)).sum(-1) + shifted(bias, offset)
            total += _sum(jax.nn.softplus(-scores), neighbours)
            total += share * _sum(jax.nn.softplus(against(states)), neighbours[..., None])
        return total


@dataclasses.dataclass(frozen=True, kw_only=True)
class NegativeSampling(InPlace, _Noise):
    """-log sigma(s_w) - sum over noise words n of log sigma(-s_n) (Mikolov et al. 2013b, Eq. 4).

    A noise word that is the predicted word does not count (word2vec.c). `noise_ids` are draws of
    unigram ** 0.75 (`corruptions.vectors.windows.WordWindows`). Rows of the survey's table: 5, 6,
    7.

    impl    implementation of skip-gram and CBOW under SGD on a CPU. "native": `kernels.words`;
            "plain": XLA; "auto": native if the host has a C++ compiler. They differ by rounding
    """

    impl: Literal["auto", "plain", "native"] = "auto"

    def native(self, system: System) -> Native | None:
        encoder = slots.encoder_of(system, self.tower)
        head = slots.heads_of(system, self.tower)[self.head]
        means = self.predicts == "centre"
        if self.impl == "plain" or not isinstance(encoder, WordTable) or head.bias:
            return None
        if not (encoder.averages == self.window if means else encoder.bare):
            return None
        subwords = encoder.subwords
        ngrams = () if subwords is None else (f"{self.tower}/encoder/ngrams",)
        return Native(
            Sampling(
                window=self.window,
                k=self.k,
                means=means,
                pieces=None if subwords is None else subwords.values,
            ),
            (f"{self.tower}/encoder/token", f"{self.tower}/heads_{self.head}/table", *ngrams),
        )

    def weights(self, near, batch):
        same = (batch["target_ids"][..., None] == batch["noise_ids"][:, None]).astype(jnp.float32)
        if self.predicts == "centre":
            return super().weights(near, batch) * (1 - same)
        return super().weights(near, batch) - _dot(
            "blm,bmk->blk", square(batch, self.window).astype(jnp.float32), same
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class NCE(_Noise):
    """Noise-contrastive estimation of a normalised model.

    Gutmann and Hyvarinen 2010; Mnih and Kavukcuoglu 2013, Eq. 6-8.

    -log sigma(s_w - log k P(w)) - sum over k noise words n of log sigma(-(s_n - log k P(n)))

    P is unigram ** `power` of `counts`, from which `noise_ids` must be drawn; the normaliser is
    fixed to 1. A noise word that is the predicted word counts, as the estimate requires.
    """

    vocab: Vocab
    power: float = 1.0
    counts: Counts = Counts()

    def fields(self, batch):
        if "target_ids" in batch:
            return batch
        shares = noise_of(self.counts.values, self.vocab, self.power)
        logs = jnp.asarray(np.log(np.maximum(shares, 1e-12) * self.k), jnp.float32)
        known = {
            "target_ids_log": logs[batch["input_ids"]],
            "noise_ids_log": logs[batch["noise_ids"]],
        }
        return {**super().fields(batch), **known}

    def shift(self, batch, name):
        return batch[f"{name}_log"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HierarchicalSoftmax(_Words):
    """-log p(w), where p(w) is the product of sigma(+-h . v'_n) over the inner nodes n above w.

    Morin and Bengio 2005, with the Huffman tree of Mikolov et al. 2013b, section 2.1. Row n of the
    output table is node n.
    """

    tree: Huffman = Huffman()
    reads = ("nodes",)

    def refusal(self, system: System) -> str | None:
        if why := super().refusal(system):
            return why
        if slots.heads_of(system, self.tower)[self.head].bias:
            return f"the nodes of HierarchicalSoftmax have no biases; set bias=False in {self.head}"
        return None

    def fields(self, batch):
        if "nodes" in batch:
            return batch
        path = jnp.asarray(self.tree.values)[batch["input_ids"]]
        return {**batch, "nodes": jnp.maximum(jnp.abs(path) - 1, 0), "signs": jnp.sign(path)}

    def terms(self, tower, hidden, factors, near, batch):
        nodes, _ = tower.head(self.head, batch["nodes"])
        if self.predicts == "centre":
            scores = (hidden[:, :, None] * nodes).sum(-1)[
                ..., None
            ]  # a product of one row a place is slow on CPUs
            neighbours = near.any(-1)[..., None]
        # every word with the centres whose neighbour it is: a centre has one vector, a word those
        # of its nodes
        else:
            places = tuple(enumerate(offsets(self.window)))
            states = [
                shifted(hidden if factors is None else hidden * factors[n], -offset)
                for n, offset in places
            ]
            scores = _dot("blpd,blod->blpo", nodes, jnp.stack(states, 2))
            neighbours = jnp.stack([shifted(near[..., n], -offset) for n, offset in places], -1)
        signs = batch["signs"][..., None]
        return _sum(jax.nn.softplus(-signs * scores), jnp.abs(signs) * neighbours[:, :, None])


@dataclasses.dataclass(frozen=True, kw_only=True)
class WindowRanking(OnePass):
    """max(0, margin - f(x) + f(x')): ranks windows above windows with another word in the centre.

    Collobert et al. 2011, Eq. 17. Rows of the survey's table: 2, 77.

    f is the head `score` on the state of the centre. Reads `replaced_ids` and `replaced_weights`
    [B, L] of `corruptions.vectors.windows.ReplacedCentres`. The encoder is given them as
    `centre_ids` (`encoders.words.windows.WindowEncoder`).
    """

    tower: str = "main"
    head: str = "score"
    margin: float = 1.0

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        worse = tower({**batch, "centre_ids": batch["replaced_ids"]}, batch.get("noise"))
        shape, weights = batch["input_ids"].shape, batch["replaced_weights"]
        good, bad = (
            tower.head(self.head, states.hidden).reshape(shape) for states in (encoded, worse)
        )
        hinge = token_loss(jnp.maximum(0.0, self.margin - good + bad), weights, name="ranking_loss")
        accuracy = Ratio(((good > bad) * weights).sum(), weights.sum())
        return dataclasses.replace(hinge, metrics={**hinge.metrics, "ranking_accuracy": accuracy})


def _dot(formula: str, a: Array, b: Array) -> Array:
    return jnp.einsum(formula, a, b, preferred_element_type=jnp.float32)


def _sum(values: Array, weights: Array) -> Array:
    """Returns the weighted sum; places without weight add nothing, and have no gradient."""
    return jnp.where(weights > 0, values * weights, 0.0).sum()

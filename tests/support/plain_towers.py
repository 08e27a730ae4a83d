"""A tower small enough to be written twice: in jax.numpy float32 for the objectives, in numpy
float64 for definitions.

`check` compares an objective with its definition: the terms' sums, their weights, and the gradient
of every parameter, which is taken of the definition by central differences.
"""

from __future__ import annotations

import collections
import dataclasses
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core import slots
from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Encoded
from ptm_jax.nn.heads.knowledge.linked_text import Choices
from ptm_jax.nn.knowledge.subgraphs import Subgraphs

B, L, D, V, P, S = 3, 6, 4, 9, 3, 2
CHOICES = 3
SHAPES = {
    "table": (V, D),
    "place": (L, D),
    "forward": (D, D),
    "backward": (D, D),
    "mlm": (D, V),
    "lm": (D, V),
    "sbo": (3 * D, V),
    "offset": (L, D),
    "pool": (D, D),
    "nsp": (D, 3),
    "rtd": (D, 1),
    "noise": (D, 1),
    "score": (D, 1),
    "sop": (D, 2),
    "classify": (D, 3),
    "tag": (D, 4),
    "span": (D, 2),
    "kinds": (D, 4),
    "none": (D, 1),
    "match": (D, D),
    "words": (V, D),
    "word_bias": (V,),
    "source": (D, V),
}
LEXICAL = {
    "parts": (D, 5),
    "polarities": (D, 3),
    "ratings": (D, 6),
    "senses": (D, 45),
    "lrc": (D, 1),
    "relations": (5, D),
    "erd": (2 * D, 1),
    "latent": (D, 1),
    "second": (D, V),
    "truth": (D, 4),
    "capitals": (D, 1),
    "elsewhere": (D, 1),
    "reorder": (D, 9),
    "distance": (D, 3),
    "discourse": (D, 3),
    "relevance": (D, 3),
}
"""Heads of few objectives, which other definitions are not differentiated by."""
FACTS = np.zeros((B, P, 2, 2), int)  # relation and tail of the candidates' facts
FACTS[0, 0], FACTS[0, 1], FACTS[1, 0] = [[1, 4], [2, 3]], [[1, 2], [1, 6]], [[3, 6], [0, 0]]
FLAT = ("rtd", "capitals", "elsewhere")  # heads of one number for each token, without its axis


def params_of(seed: int = 0, more: tuple[str, ...] = ()) -> dict[str, jax.Array]:
    draw, shapes = np.random.default_rng(seed), SHAPES | {name: LEXICAL[name] for name in more}
    return {
        name: jnp.asarray(draw.normal(size=shape), jnp.float32) for name, shape in shapes.items()
    }


def hidden(p, ids, segments, xp, perturbation=0, own=None):
    """tanh of every token (of `own` ids, where given) plus the mean of the row's tokens [B, L,
    D]."""
    x = p["table"][ids] + perturbation
    real = (segments > 0)[..., None]
    mean = xp.where(real, x, 0).sum(1, keepdims=True) / xp.maximum(real.sum(1, keepdims=True), 1)
    x = x if own is None else p["table"][own]
    return xp.tanh(x + p["place"][: ids.shape[1]]) + mean


def pooled(p, states, xp):
    return xp.tanh(states[:, 0] @ p["pool"])


@dataclasses.dataclass(frozen=True)
class Scores:
    """A readout of scores [.., V]: its features are the scores, and its table is the identity."""

    scores: Any
    bias: Any = None
    precision: Precision = Precision()

    @property
    def features(self):
        return self.scores

    @property
    def table(self):
        return jnp.eye(self.scores.shape[-1])

    @property
    def linear(self):
        return types.SimpleNamespace(capped=lambda scores: scores)

    def logits(self):
        return self.scores if self.bias is None else self.scores + self.bias

    def nll(self, labels):
        logits = jax.nn.log_softmax(self.logits())
        return -jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]

    def draw(self, seeds, temperature=1.0):
        def of_seed(seed, scores):
            return jax.random.categorical(jax.random.key(seed), scores / temperature)

        flat = jax.vmap(of_seed)(seeds.reshape(-1), self.scores.reshape(-1, self.scores.shape[-1]))
        return flat.reshape(seeds.shape).astype(jnp.int32)

    def judge(self, labels, smoothing=0.0, z_loss=0.0):
        nll, uniform = self.nll(labels), -jax.nn.log_softmax(self.scores).mean(-1)
        loss = (1 - smoothing) * nll + smoothing * uniform
        loss += z_loss * jnp.square(jax.nn.logsumexp(self.scores, -1))
        return types.SimpleNamespace(nll=nll, loss=loss, right=self.scores.argmax(-1) == labels)


def layer_of(p, ids, segments):
    """A layer of logistic units on the words of the first document as bits, as
    `encoders.words.logistic` returns it."""
    bits = (jax.nn.one_hot(ids, V) * (segments == 1)[..., None]).max(1, keepdims=True)
    layer = p["table"], p["none"][:, 0], p["word_bias"]
    return {"levels": (bits, jax.nn.sigmoid(bits @ layer[0] + layer[1])), "weights": (layer,)}


def linking_of(states, p, batch):
    """Scores of candidates from the states of mentions, as `encoders.knowledge.knowbert` returns
    them."""
    first, candidates = batch["mlm_positions"], batch["candidates"]
    scores = jnp.take_along_axis(states, first[..., None], 1) @ p["tag"]
    used = batch["mlm_weights"] > 0
    return {
        "scores": jnp.where(candidates > 0, scores, -1e4),
        "candidates": candidates,
        "first": first,
        "used": used,
    }


def subgraphs_of(states, both, batch):
    """Every token is an entity with two facts, of one as the head and of one as the tail."""

    def pair(one, other):
        return jnp.stack([one, other], 2)

    there = batch.get("segment_ids", jnp.ones(states.shape[:2], jnp.int32)) > 0
    links, tails = pair(both["forward"], both["backward"]), pair(both["backward"], states)
    ids = pair(batch["input_ids"], batch["input_ids"] + 1)
    return Subgraphs(states, links, tails, pair(there, there), ids, jnp.array([1.0, -1.0]))


def spans_of(states, match, batch):
    """Scores [B, L, 2, 2] of spans of one and two words for two types."""

    def at(places):
        return jnp.take_along_axis(states, jnp.maximum(places - 1, 0)[..., None], 1)

    words, types = at(batch["word_places"]), at(batch["type_places"])
    both = jnp.stack([words, words + jnp.roll(words, -1, 1)], 2)
    return jnp.einsum("bwkd,de,bte->bwkt", both, match, types)


class Writes(slots.Encoder):
    """A decoder whose next word depends on the last one alone."""

    limit = L

    def empty_cache(self, batch, length, source=0):
        return ()


@dataclasses.dataclass(frozen=True)
class PlainTower:
    params: Any
    train: bool = False

    module = Writes()

    def __call__(self, batch, key=None, cache=None):
        ids = batch["input_ids"]
        states = hidden(
            self.params,
            ids,
            batch.get("segment_ids", jnp.ones_like(ids)),
            jnp,
            batch.get("perturbation", 0),
            batch.get("centre_ids"),
        )
        both = {name: states @ self.params[name] for name in ("forward", "backward")}
        ponder = jnp.square(states).sum(-1)
        both |= layer_of(self.params, ids, batch.get("segment_ids", jnp.ones_like(ids)))
        entries = (
            both
            | {
                "last": states @ self.params["match"],
                "query": states @ self.params["forward"],
                "ponder": ponder,
                "information": ponder,
                "context_information": jnp.abs(states).sum(-1),
                "bias": self.params["word_bias"][ids],
                "first": both["forward"],
                "below": both["backward"][:, -P:],
                "entities": states,
                "entity_table": self.params["table"],
                "subgraphs": subgraphs_of(states, both, batch),
            }
            | (
                {"linking": (linking_of(states, self.params, batch),) * 2}
                if "candidates" in batch
                else {}
            )
        )
        # Another entry is a number for each token, as that of an encoder's trait may be.
        extra = collections.defaultdict(lambda: ponder, entries)
        return Encoded(states, extra=extra, cache=cache)

    def read(self, name, encoded, batch, key=None):
        """What the heads of tasks return, by their names; rows of a question are `CHOICES`."""
        p, x = self.params, encoded.hidden
        row = x[:, 0]
        if name == "triple":
            x, r, _, sides, c, _, paired = batch["scored"]
            q = x * r + jnp.where(sides[..., None], r, 0)
            return (q * c).sum(-1) if paired else jnp.einsum(
                "...td,...kd->...tk", q, c
            ), jnp.square(r).sum(-1)
        of_tokens, of_row = jnp.moveaxis(x @ p["span"], -1, 0), row @ p["none"]

        def of_questions():
            return (row @ p["match"] @ row.T).reshape(-1, CHOICES, len(row) // CHOICES, CHOICES)

        return {
            "pool": lambda: pooled(p, x, jnp),
            "vector": lambda: row @ p["match"],
            "classify": lambda: row @ p["classify"],
            "number": lambda: of_row,
            "tag": lambda: x @ p["tag"],
            "parse": lambda: (
                x @ p["match"] @ x.swapaxes(1, 2),
                jnp.einsum("bid,bjd,dc->bijc", x, x, p["tag"]),
            ),
            "span": lambda: tuple(of_tokens),
            "spans": lambda: spans_of(x, p["match"], batch),
            "answer": lambda: types.SimpleNamespace(
                start=of_tokens[0], end=of_tokens[1], none=of_row
            ),
            "verified": lambda: (*of_tokens, of_row),
            "converse": lambda: (*of_tokens, row @ p["kinds"], (x @ p["none"])[..., 0]),
            "choose": lambda: of_row.reshape(-1, CHOICES),
            "rank": lambda: jnp.stack([scores[:, n] for n, scores in enumerate(of_questions())])[
                ..., None
            ],
            "mentions": lambda: x @ p["tag"],
            "hop": lambda: (*of_tokens, row @ p["kinds"], (x @ p["none"])[:, :S, 0]),
        }[name]()

    def head(self, name, *inputs, key=None):
        p = self.params
        if name == "description":
            return p["table"][inputs[0]].mean(-2) + inputs[1]
        if name in ("context", "gate"):
            return p["words"][inputs[0]], p["word_bias"][inputs[0]]
        if name == "relations":
            return p[name][inputs[0]]
        if name == "entities":
            return jnp.einsum("bpd,bpcd->bpc", inputs[0], p["table"][inputs[1]])
        if name == "entity_words":
            return Scores(inputs[0] @ inputs[1].T)
        if name == "linked":
            states, candidates, entities, names = (
                inputs if len(inputs) == 4 else (*inputs, None, None)
            )
            found = (
                states @ p["kinds"],
                states @ p["table"].T,
                jnp.einsum("btd,bcd->btc", states, p["table"][candidates]),
            )
            found = Choices(found[0][..., :3], found[1], found[2], states @ p["parts"])
            if entities is None:
                return found
            words = Scores((states + p["table"][entities]) @ p["lm"])
            return found, words, jnp.einsum("btd,btwd->btw", states, p["table"][names])
        if name == "pool":
            return pooled(p, inputs[0], jnp)
        if name == "sbo":
            left, right, offset = inputs
            return Scores(jnp.concatenate([left, right, p["offset"][offset]], -1) @ p["sbo"])
        scores = inputs[0] @ p[name]
        if name in ("mlm", "lm", "source", "second"):
            return Scores(scores)
        return scores[..., 0] if name in FLAT else scores


def batch_of(seed: int = 1) -> dict[str, jax.Array]:
    """Two documents in the first row, padding in the second, nothing in the third; every field an
    objective reads."""
    draw = np.random.default_rng(seed)

    def ids(*shape):
        return draw.integers(0, V, shape)

    segments = np.asarray([[1, 1, 1, 2, 2, 2], [1, 1, 1, 1, 0, 0], [0] * 6])
    some = [[1, 1, 1], [1, 1, 0], [0, 0, 0]]
    fields = {
        "input_ids": ids(B, L),
        "segment_ids": segments,
        "rows": np.arange(B),
        "next_label": [0, 2, 1],
        "mlm_positions": [[1, 3, 5], [0, 2, 0], [0, 0, 0]],
        "mlm_labels": ids(B, P),
        "plm_positions": [[0, 2, 4], [1, 3, 0], [0, 0, 0]],
        "plm_labels": ids(B, P),
        "shuffle_positions": [[0, 1, 2], [1, 2, 0], [0, 0, 0]],
        "shuffle_labels": ids(B, P),
        "span_left": [[0, 2, 2], [3, 3, 0], [0, 0, 0]],
        "span_right": [[2, 5, 5], [1, 1, 0], [0, 0, 0]],
        "span_offset": [[0, 0, 1], [0, 1, 0], [0, 0, 0]],
        "decoder_labels": ids(B, P),
        "pair_input_ids": ids(B, L),
        "pair_segment_ids": [[1, 1, 1, 1, 0, 0], [1] * 6, [1] * 6],
        "ngram_input_ids": ids(B, P),
        "ngram_segment_ids": [[1, 1, 1], [1, 1, 0], [0, 0, 0]],
        "negative_input_ids": ids(B, L),
        "negative_segment_ids": segments,
        "noise_labels": draw.integers(0, 2, (B, L)),
        "pair_label": draw.integers(0, 2, B),
        "label": draw.integers(0, 3, B),
        "token_labels": draw.integers(0, 4, (B, L)),
        "heads": [[1, 0, 3, 4, 0, 2], [2, 2, 0, 1, 0, 0], [0] * 6],
        "answer_start": [1, 0, -1],
        "answer_end": [2, 3, -1],
        "answer_kind": [0, 2, -1],
        "no_answer": [0, 1, 0],
        "rationale": draw.integers(0, 2, (B, L)),
        "grade": [2, 0, -1],
        "facts": [[1, 0], [0, -1], [-1, -1]],
        "windows": [[2, 1, 2, 0, 1, 2], [1, 2, 1, 2, 0, 0], [0] * 6],
        "noise_ids": draw.integers(0, V, (B, 4)),
        "aligned": [[[0, 3], [2, 5], *[[-1, -1]] * 4], *[[[-1, -1]] * 6] * 2],
        "pair_windows": np.full((B, L), 2),
        "translation": [[2, 2, 2, 1, 1, 1], [0] * 6, [0] * 6],
        "word_languages": [[1, 1, 1, 2, 2, 2], [1] * 6, [2] * 6],
        "triples": ids(B, 2, 3),
        "sides": [[0, 1], [1, 0], [0, 1]],
        "corrupted": ids(B, 2, 3),
        "names": ids(B, 2, 2),
        "described": ids(B, 2, 4, 3),
        "anchors": ids(B, L),
        "noise_entities": ids(B, 4),
        "noise_relations": ids(B, 4),
        "context_ids": ids(B, L),
        "replaced_ids": ids(B, L),
        "parts_labels": draw.integers(0, 5, (B, P)),
        "polarities_labels": draw.integers(0, 3, (B, P)),
        "relation": draw.integers(0, 5, B),
        "described_input_ids": ids(B, 6, P),
        "described_segment_ids": np.asarray(some)[:, None] * np.ones((1, 6, 1), int),
        "lexical_input_ids": ids(B, 3, P),
        "lexical_segment_ids": np.asarray(some)[:, None] * np.ones((1, 3, 1), int),
        "triple_label": [0, 1, 0],
        "relation_label": [2, 1, 0],
        "entity_positions": [[0, 2, 4], [1, 3, 0], [0, 0, 0]],
        "entity_labels": [[2, 5, 2], [7, 8, 0], [0, 0, 0]],
        "span_entities": np.asarray(
            [[0, 0], [3, 0], [4, 3], [0, 2], [2, 0], [4, 0], [0, 5], [7, 2], [0, 8], [2, 0]]
            + [[0, 0]] * 8
        ).reshape(B, L, 2),
        "graph_entities": [[3, 4, 2], [2, 7, 0], [0, 0, 0]],
        "erd_before": [[0, 1, 3], [0, 0, 0], [0, 0, 0]],
        "erd_after": [[2, 2, 5], [2, 3, 0], [0, 0, 0]],
        "erd_labels": [[1, 0, 1], [0, 1, 0], [0, 0, 0]],
        "candidates": [
            [[1, 2, 3, 4], [5, 6, 0, 0], [7, 0, 0, 0]],
            [[1, 2, 3, 0], [4, 5, 6, 7], [0] * 4],
            [[0] * 4] * 3,
        ],
        "masked_entity_positions": [[0, 2, 4], [1, 3, 0], [0, 0, 0]],
        "masked_entity_labels": ids(B, P),
        "mention_labels": draw.integers(0, 4, (B, L)),
        "mention_weights": segments > 0,
        "truth_labels": [0, 2, 1],
        "linked": [[0, 1, 1, 2, 0, 3], [0, 1, 2, 2, 0, 0], [0] * 6],
        "linked_entities": [[3, 4, 2], [5, 6, 0], [0, 0, 0]],
        "linked_segments": [[1, 2, 2], [1, 1, 0], [0, 0, 0]],
        "linked_names": ids(B, 3, 2),
        "linked_facts": FACTS,
        "gold_entities": [[0, 2, 0, 6, 0, 1], [3, 0, 0, 0, 0, 0], [0] * 6],
        "gold_entities_1": [[0, 3, 0, 5, 0, 1], [2, 0, 0, 0, 0, 0], [0] * 6],
        "rating_label": draw.integers(0, 5, B),
        "allowed_senses": draw.integers(0, 1 << 21, (B, L, 2)) * (draw.random((B, L, 1)) < 0.8),
        "again": [[0, 1, 1, 0, 0, 1], [0, 0, 1, 1, 0, 0], [0] * 6],
        "causal": [1, 0, 0],
        "word_places": [[1, 2, 4, 5, 0, 0], [2, 3, 4, 0, 0, 0], [0] * 6],
        "type_places": [[3, 6], [1, 0], [0, 0]],
        "span_starts": [[1, 3, 1], [2, 0, 0], [0] * 3],
        "span_sizes": [[2, 1, 1], [2, 0, 0], [0] * 3],
        "span_types": [[1, 2, 2], [1, 0, 0], [0] * 3],
        "capitals": [[0, 1, 0, 0, 1, 1], [1, 0, 0, 1, 0, 0], [0] * 6],
        "elsewhere": [[1, 1, 0, 0, 1, 0], [0, 0, 1, 1, 0, 0], [0] * 6],
    }
    for view in ("student", "mixed"):
        row = {
            "input_ids": ids(B, L),
            "segment_ids": segments,
            "positions": np.tile(np.arange(L), (B, 1)),
        }
        labels = {
            "mlm_positions": fields["mlm_positions"],
            "mlm_labels": ids(B, P),
            "second_labels": ids(B, P),
        }
        fields |= {f"{view}_{name}": value for name, value in (row | labels).items()}
    weights = {
        f"{name}_weights": some
        for name in (
            "mlm",
            "plm",
            "shuffle",
            "decoder",
            "classes",
            "entity",
            "erd",
            "masked_entity",
        )
    } | {"noise_weights": segments > 0}
    weights |= {"student_mlm_weights": some, "mixed_mlm_weights": [[1, 0, 1], [0, 0, 0], [0, 0, 0]]}
    weights["mixed_second_weights"] = [[0, 1, 0], [1, 1, 0], [0, 0, 0]]
    weights["diffusion_weights"], weights["diffusion_scale"] = segments > 0, [2.0, 1.25, 4.0]
    weights["rating_weights"] = weights["truth_weights"] = [1, 1, 0]
    weights["triple_weights"] = [[1, 1], [1, 0], [0, 0]]
    weights["text_scores"] = np.repeat(draw.random((1, CHOICES - 1)), B, 0)  # B rows are a group
    weights["list_scores"] = np.repeat([[0.0, 2.0, 1.0]], B, 0)
    weights["cooccurrences"] = draw.exponential(80.0, (B, L)) * (segments > 0)
    weights["replaced_weights"] = (segments > 0) & (fields["replaced_ids"] != 3)
    whole = {name: jnp.asarray(value, jnp.int32) for name, value in fields.items()}
    return whole | {name: jnp.asarray(value, jnp.float32) for name, value in weights.items()}


def double(tree):
    """The tree in numpy: float64 and int64."""
    return jax.tree.map(
        lambda x: np.asarray(x, np.float64 if x.dtype == jnp.float32 else np.int64), tree
    )


def states_of(p, b, name: str = ""):
    """`hidden` in float64 of the row, or of its view `name`."""
    prefix = f"{name}_" if name else ""
    return hidden(p, b[f"{prefix}input_ids"], b[f"{prefix}segment_ids"], np)


def nll(scores, label) -> float:
    """-log softmax(scores)[label], in so many words."""
    e = np.exp(scores - scores.max())
    return -np.log(e[label] / e.sum())


def logistic(score, truth) -> float:
    """-log p(truth) with p(1) = 1 / (1 + exp(-score))."""
    return float(-np.log(1 / (1 + np.exp(-score if truth else score))))


def check(objective, definition, params=None, batch=None, towers=("main",), leaves=None):
    """The objective is its definition `(p, b) -> [(sum, weight), ..]`, p and b in float64. Returns
    the Loss. `leaves` names the parameters whose gradients are compared (default: all)."""
    params = (
        {name: params_of(seed) for seed, name in enumerate(towers)} if params is None else params
    )
    batch = batch_of() if batch is None else batch
    key = jax.random.key(0)

    def loss(params):
        return objective({name: PlainTower(params[name]) for name in towers}, batch, key)

    found = jax.jit(loss)(params)
    p, b = double(params), double(batch)

    def defined(p):
        return definition(p["main"] if towers == ("main",) else p, b)

    sums, weights = (np.asarray(column, np.float64) for column in zip(*defined(p), strict=True))
    np.testing.assert_allclose(np.atleast_1d(found.sum), sums, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(np.atleast_1d(found.weight), weights)

    def mean(terms):
        return sum(total / weight if weight else 0.0 for total, weight in terms)

    np.testing.assert_allclose(found.value(), mean(defined(p)), rtol=1e-5)
    ours = jax.jit(jax.grad(lambda params: loss(params).value()))(params)
    for tower, parameters in p.items():
        for name in leaves or parameters:
            leaf = parameters[name]
            slope = np.zeros_like(leaf)
            for place in np.ndindex(leaf.shape):
                value = leaf[place]
                ends = []
                for step in (1e-5, -1e-5):
                    leaf[place] = value + step
                    ends.append(mean(defined(p)))
                leaf[place] = value
                slope[place] = (ends[0] - ends[1]) / 2e-5
            np.testing.assert_allclose(
                ours[tower][name], slope, atol=1e-5, rtol=1e-5, err_msg=f"{tower}/{name}"
            )
    return found

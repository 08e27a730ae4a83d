"""Trained models that score triples of a graph.
They read vectors of a table, texts of triples (KG-BERT), or descriptions of entities (KEPLER). The
objective of a run declares how (`objectives.vectors.vector_traits.ScoresTriples`)."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core import facts, spec
from ptm_jax.core.errors import UserError, unknown
from ptm_jax.core.towers import Tower
from ptm_jax.corruptions.knowledge.triples import EntityPairs, TripleText, framed
from ptm_jax.data.rows.knowledge.graphs import WithDescribedTriple
from ptm_jax.inference.words.graph_vectors import entity_rows, entity_scores
from ptm_jax.inference.words.word_vectors import Similar
from ptm_jax.knowledge.graphs.graph_store import GraphStore
from ptm_jax.knowledge.triples import Triples
from ptm_jax.objectives.vectors.vector_traits import triple_scorer

if TYPE_CHECKING:
    from ptm_jax.core.slots import Objective
    from ptm_jax.core.system import System
    from ptm_jax.core.types import Params
    from ptm_jax.data.tokenizers.tokenizing import Tokenizer


TEXTS = 256
"""Texts that a network reads in one pass."""


@dataclasses.dataclass(frozen=True, eq=False)
class TripleModel:
    """Base class: a run's tower, its objective, and {name: number} of entities and relations.

    A subclass defines `scores(arrays, x [B], y [B], what)`, the scores [B, answers] of all answers,
    and `arrays`, which it reads: as arguments of the compiled program they are no constants of it.

    queries    triples that are scored together; None: as many as the caller likes
    sought     the ranked part
    """

    tower: Tower
    objective: Any
    entities: dict[str, int]
    relations: dict[str, int]

    queries = None
    sought = ("tail", "head")

    @property
    def answers(self) -> int:
        """The number of answers among which the true one is ranked."""
        return len(self.entities)

    @functools.cached_property
    def arrays(self) -> Any:
        """The input of `scores`: the parameters."""
        return self.tower.params

    def score(self, x: Any, y: Any, what: str) -> jax.Array:
        """Returns the scores [B, answers] of all answers to a query (`tasks.completion.ranks`)."""
        return self._run(self.arrays, x, y, what)

    @functools.cached_property
    def _run(self) -> Any:
        return jax.jit(self.scores, static_argnums=3)

    def placed(self, graph: GraphStore, triples: np.ndarray) -> np.ndarray:
        """Returns the triples [n, 3] of a graph whose parts the model has, by its numbers.
        Parts have the same identifier, or the same name."""

        def own(known, ids, names):
            return np.array(
                [known.get(one, known.get(name, -1)) for one, name in zip(ids, names, strict=True)],
                np.int64,
            )

        entities = own(self.entities, graph.entities, graph.names)
        relations = own(self.relations, graph.relations, graph.relation_names)
        places = np.stack(
            [entities[triples[:, 0]], relations[triples[:, 1]], entities[triples[:, 2]]], -1
        )
        return places[(places >= 0).all(1)]


@dataclasses.dataclass(frozen=True, eq=False)
class VectorModel(TripleModel):
    """The head of triples over a table of vectors, of which `rows` are entities."""

    rows: np.ndarray
    links: np.ndarray

    @classmethod
    def of(
        cls, tower: Tower, objective: Objective, tokenizer: Tokenizer, system: System
    ) -> VectorModel:
        pieces = tokenizer.pieces
        rows, links = entity_rows(pieces)
        entities = {pieces[row].removeprefix("e:"): place for place, row in enumerate(rows)}
        relations = {pieces[row].removeprefix("r:"): place for place, row in enumerate(links)}
        return cls(tower, objective, entities, relations, rows, links)

    def placed(self, graph: GraphStore, triples: np.ndarray) -> np.ndarray:
        def joined(names):
            return ["_".join(name.split()) for name in names]

        def number(known, names):
            return np.array([known.get(name, -1) for name in joined(names)], np.int64)

        entities, relations = (
            number(self.entities, graph.entities),
            number(self.relations, graph.relations),
        )
        places = np.stack(
            [entities[triples[:, 0]], relations[triples[:, 1]], entities[triples[:, 2]]], -1
        )
        return places[(places >= 0).all(1)]

    def scores(self, arrays: Any, x: jax.Array, y: jax.Array, what: str) -> jax.Array:
        queries = x, jnp.asarray(self.links)[y], jnp.full(len(x), what == "head")
        tower = Tower(self.tower.module, arrays)
        return entity_scores(tower, self.objective, self.rows, queries)


@dataclasses.dataclass(frozen=True, eq=False)
class TextModel(TripleModel):
    """log p(true) of the text of a triple (`corruptions.knowledge.triples.TripleText`).
    The published code ranks by the logit of true alone; the paper's score is the probability."""

    texts: TripleText

    queries = 8

    @classmethod
    def of(
        cls, tower: Tower, objective: Objective, tokenizer: Tokenizer, system: System
    ) -> TextModel:
        texts = _found(system.corruption, cls.written, system)
        return cls(tower, objective, *_numbers(texts.graph), facts.known(texts, tokenizer))

    written = TripleText

    @functools.cached_property
    def longest(self) -> int:
        """Tokens of the longest text of a triple, at most."""
        e, r = (
            int((table > 0).sum(1).max())
            for table in (self.texts.graph.entities(), self.texts.graph.relations())
        )
        return 2 * e + r + 4

    def logs(self, arrays: Any, triples: jax.Array) -> jax.Array:
        """Returns the logarithms of the classes' probabilities [.., C] of triples [.., 3]."""
        flat, tower = triples.reshape(-1, 3), Tower(self.tower.module, arrays)
        view = {
            name: value[:, : self.longest]
            for name, value in self.texts.text(flat, jnp.ones(len(flat), bool)).items()
        }
        pooled = tower.head(self.objective.pool, tower(view).hidden)
        logits = tower.head(self.objective.head, pooled).astype(jnp.float32)
        return jax.nn.log_softmax(logits).reshape(*triples.shape[:-1], -1)

    def scores(self, arrays: Any, x: jax.Array, y: jax.Array, what: str) -> jax.Array:
        def some(others):
            one, relation, other = jnp.broadcast_arrays(x[:, None], y[:, None], others)
            ends = (one, other) if what == "tail" else (other, one)
            return self.logs(arrays, jnp.stack([ends[0], relation, ends[1]], -1))[..., 1]

        return over(some, self.answers, TEXTS // self.queries)


@dataclasses.dataclass(frozen=True, eq=False)
class PairModel(TextModel):
    """log p(relation) of the text of two entities (`corruptions.knowledge.triples.EntityPairs`)."""

    queries = TEXTS
    sought = ("relation",)
    written = EntityPairs

    @property
    def answers(self) -> int:
        return len(self.relations)

    def scores(self, arrays: Any, x: jax.Array, y: jax.Array, what: str) -> jax.Array:
        return self.logs(arrays, jnp.stack([x, jnp.zeros_like(x), y], -1))[:, : self.answers]


@dataclasses.dataclass(frozen=True, eq=False)
class DescribedModel(TripleModel):
    """Scores triples by -d(h, t) of entities that are encoded from their descriptions.

    `objectives.knowledge.triples.KE`; each entity is encoded once. With `texts="conditions"` the
    relation's text follows the text of the known entity.
    """

    examples: WithDescribedTriple
    vocab: Any

    queries = 16

    @classmethod
    def of(
        cls, tower: Tower, objective: Objective, tokenizer: Tokenizer, system: System
    ) -> DescribedModel:
        examples = _found(system.examples, WithDescribedTriple, system)
        return cls(
            tower,
            objective,
            *_numbers(examples.graph),
            facts.known(examples, tokenizer),
            tokenizer.vocab,
        )

    def states(self, params: Params, *texts: jax.Array) -> jax.Array:
        """Returns the states [B, D] of the first tokens of texts [B, W], ids + 1.
        The separator follows each text."""
        room = 1 + sum(text.shape[-1] + 1 for text in texts)
        view = framed(texts, self.vocab, room, jnp.ones(len(texts[0]), bool))
        del view["token_type_ids"]
        return Tower(self.tower.module, params)(view).hidden[:, 0].astype(jnp.float32)

    def encoded(self, texts: np.ndarray) -> np.ndarray:
        """Returns the states [N, D] of texts [N, W]."""
        texts = texts[:, : int((texts > 0).sum(1).max())]
        run, padding = jax.jit(self.states), -len(texts) % TEXTS
        parts = np.split(
            np.pad(texts, ((0, padding), (0, 0)), "edge"), (len(texts) + padding) // TEXTS
        )
        return np.concatenate([np.asarray(run(self.tower.params, part)) for part in parts])[
            : len(texts)
        ]

    @functools.cached_property
    def arrays(self) -> Any:
        """The parameters, and the vectors of entities [E, D] and of relations [R, D].
        They come from the table or from the texts."""
        graph, params = self.examples.graph, self.tower.params
        every = self.encoded(graph.entities())
        if self.examples.texts == "relations":
            return params, every, self.encoded(graph.relations())
        return (
            params,
            every,
            self.tower.head(self.objective.head, jnp.arange(len(self.relations)), every[:1]),
        )

    def scores(self, arrays: Any, x: jax.Array, y: jax.Array, what: str) -> jax.Array:
        (params, every, links), graph = arrays, self.examples.graph
        known_entities, r = every[x][:, None], links[y][:, None]
        if self.examples.texts == "conditions":
            texts = jnp.asarray(graph.entities())[x], jnp.asarray(graph.relations())[y]
            known_entities = self.states(params, *texts)[:, None]

        def some(others):
            h, t = (
                (known_entities, every[others])
                if what == "tail"
                else (every[others], known_entities)
            )
            return -self.objective.distance(h, r, t)

        return over(some, self.answers, 1024)


MODELS = {
    "vectors": VectorModel,
    "texts": TextModel,
    "pairs": PairModel,
    "descriptions": DescribedModel,
}
"""{what an objective declares: what scores triples so}."""


def of_system(
    system: System, params: Params, tokenizer: Tokenizer, name: str | Path
) -> TripleModel:
    """Returns the model of a run on triples, of its parameters in effect.
    Raises UserError where it scores no triples; `name` is named."""
    objective = triple_scorer(system.objective)
    if objective is None:
        raise UserError(
            f"{name} scores no triples; give a run of transe, transh, distmult, conve, "
            "kgbert or kepler"
        )
    tower = Tower(system.towers[objective.tower], params[objective.tower])
    return MODELS[objective.triples].of(tower, objective, tokenizer, system)


def complete(
    model: TripleModel, head: str | None, relation: str | None, tail: str | None, top: int
) -> list[Similar]:
    """Returns the `top` answers with the highest scores, of the part that is None: the tail of
    (head, relation, ?), the head of (?, relation, tail), or the relation of (head, ?, tail).
    Raises UserError for an unknown name, and for a part that the model does not score."""
    parts_of_triple = {"head": head, "relation": relation, "tail": tail}
    (what, *more) = [name for name, value in parts_of_triple.items() if value is None] or [""]
    if more or what not in model.sought or top < 1:
        raise UserError(
            f"the model scores {' and '.join(f'the {part}' for part in model.sought)} of a triple: "
            "give its other two parts, and a top of at least 1"
        )
    numbers = {
        name: _number(model.relations if name == "relation" else model.entities, value, name)
        for name, value in parts_of_triple.items()
        if value is not None
    }
    x, y = {
        "tail": ("head", "relation"),
        "head": ("tail", "relation"),
        "relation": ("head", "tail"),
    }[what]
    asked = (np.array([numbers[part]]) for part in (x, y))
    scores = np.asarray(model.score(*map(jnp.asarray, asked), what))[0]
    names = list(model.relations if what == "relation" else model.entities)
    best = np.argsort(-scores, kind="stable")[:top]
    return [Similar(names[place], float(scores[place])) for place in best]


def _number(names: dict[str, int], name: str, part: str) -> int:
    for spelled in (name, " ".join(name.split()), "_".join(name.split())):
        if spelled in names:
            return names[spelled]
    raise unknown("relation" if part == "relation" else "entity", name, names)


def over(score: Any, count: int, each: int) -> jax.Array:
    """Returns the scores [B, count] of the numbers 0 to count - 1, one part after the other.

    `score(numbers [each])` returns [B, each].
    """
    each = min(each, count)
    parts = jnp.arange(-(-count // each) * each).reshape(-1, each)
    scores = jax.lax.map(lambda numbers: score(jnp.minimum(numbers, count - 1)), parts)
    return jnp.moveaxis(scores, 0, 1).reshape(scores.shape[1], -1)[:, :count]


def _numbers(graph: Triples) -> tuple[dict[str, int], dict[str, int]]:
    entities, relations = graph.names()
    return {name: n for n, name in enumerate(entities)}, {
        name: n for n, name in enumerate(relations)
    }


def _found(value: Any, kind: type, system: System) -> Any:
    wanted = next((part for _, part in spec.walk(value) if isinstance(part, kind)), None)
    if wanted is None:
        raise UserError(
            f"{system.name} has an objective of triples, but no {kind.__name__}, which holds "
            "the graph; add it"
        )
    return wanted

"""Joint models of graphs and text against plain numpy: loss and every gradient; what a graph's
files become."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax import systems
from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Encoded, Vocab
from ptm_jax.corruptions.knowledge.graphs import GraphNoise
from ptm_jax.data.corpora.prepare import prepare
from ptm_jax.data.rows.knowledge.graphs import WithTriples
from ptm_jax.data.rows.windows import Chunks
from ptm_jax.data.text import sources
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.knowledge.vocabulary_graph import Graph
from ptm_jax.nn.heads.knowledge.descriptions import DescriptionEncoder
from ptm_jax.objectives.vectors.graphs import DescribedTriples, JointGraph
from ptm_jax.objectives.vectors.windows import NegativeSampling
from ptm_jax.statistics.counts import Counts
from support.graphs import write

B, L, T, D, V, W = 2, 6, 3, 4, 20, 5
WORDS, ENTITIES, RELATIONS = range(1, 10), range(10, 16), range(16, 20)


@dataclasses.dataclass
class Table:
    """A tower of one table, whose heads are rows and means of rows."""

    params: dict

    def __call__(self, batch, key=None):
        return Encoded(self.params["table"][batch["input_ids"]])

    def head(self, name, *inputs):
        p = self.params
        if name == "description":
            there = (inputs[0] > 0)[..., None]
            return (
                jnp.where(there, p["table"][inputs[0]], 0).sum(-2) / jnp.maximum(there.sum(-2), 1)
                + 0.1 * inputs[1]
            )
        return p["gate" if name == "gate" else "words"][inputs[0]], jnp.zeros(inputs[0].shape)


def params():
    draw = np.random.default_rng(0)
    return {
        name: jnp.asarray(draw.normal(0, 0.7, (V, D)), jnp.float32)
        for name in ("table", "words", "gate")
    }


def batch():
    draw = np.random.default_rng(1)

    def some(ids, *shape):
        return draw.choice(ids, shape)

    triples = np.stack([some(ENTITIES, B, T), some(RELATIONS, B, T), some(ENTITIES, B, T)], -1)
    described = some(WORDS, B, T, 4, W) * (np.arange(W) < draw.integers(0, W, (B, T, 4, 1)))
    found = {
        "input_ids": some(WORDS, B, L),
        "segment_ids": [[1, 1, 1, 1, 2, 2], [1, 1, 1, 1, 1, 0]],
        "windows": draw.integers(0, 3, (B, L)) * [[1] * 6, [1, 1, 1, 1, 1, 0]],
        "noise_ids": some(WORDS, B, 4),
        "triples": triples,
        "corrupted": np.concatenate([some(ENTITIES, B, T, 1), triples[..., 1:]], -1),
        "names": [[[1, 0], [2, 3], [0, 0]], [[0, 4], [5, 6], [7, 8]]],
        "described": described,
        "anchors": some(ENTITIES, B, L) * draw.integers(0, 2, (B, L)),
        "noise_entities": some(ENTITIES, B, 4),
        "noise_relations": some(RELATIONS, B, 4),
    }
    found = {name: jnp.asarray(value, jnp.int32) for name, value in found.items()}
    return found | {"triple_weights": jnp.asarray([[1, 1, 1], [1, 0, 1]], jnp.float32)}


def softplus(x):
    return np.logaddexp(0, x)


def contrast(true, noise, k=10):
    """noise: scores of noise that is not the truth; four were drawn."""
    return softplus(-true) + k / 4 * sum(softplus(s) for s in noise)


def z(x, y):
    return 7 - ((x - y) ** 2).sum() / 2


def near(b, row, t):
    reach, segments = b["windows"][row, t], b["segment_ids"]
    return [
        u for u in range(L) if 0 < abs(u - t) <= reach and segments[row, u] == segments[row, t] > 0
    ]


def text(p, b, states):
    total, centres = 0.0, 0
    for row, t in np.ndindex(B, L):
        words = b["input_ids"][row, near(b, row, t)]
        state = states(row, t)
        if len(words) and state is not None:
            centres += 1
            for w in words:
                noise = [z(state, p["words"][n]) for n in b["noise_ids"][row] if n != w]
                total += contrast(z(state, p["words"][w]), noise)
    return total, centres


def triples(p, b, head=False, tail=False):
    total, count, x = 0.0, 0, p["table"]
    for row, n in np.ndindex(B, T):
        (h, r, t), (a, c) = b["triples"][row, n], b["names"][row, n]
        if not b["triple_weights"][row, n] or head and not a or tail and not c:
            continue
        u, v, w = x[a if head else h], x[r], x[c if tail else t]
        entities, relations = (x[b[f"noise_{kind}"][row]] for kind in ("entities", "relations"))
        others = b["noise_entities"][row], b["noise_relations"][row]
        total += contrast(
            z(u + v, w), [z(e + v, w) for e, i in zip(entities, others[0], strict=True) if i != h]
        )
        total += contrast(
            z(u + v, w), [z(u + v, e) for e, i in zip(entities, others[0], strict=True) if i != t]
        )
        total += contrast(
            z(u + v, w), [z(u + e, w) for e, i in zip(relations, others[1], strict=True) if i != r]
        )
        count += 3
    return total, count


def descriptions(p, b):
    total, count, x = 0.0, 0, p["table"]
    for row, n, side in np.ndindex(B, T, 2):
        entity = b["triples"][row, n, 2 * side]
        for word in b["described"][row, n, side]:
            if word and b["triple_weights"][row, n]:
                score = z(x[entity], x[word])
                total += contrast(
                    score, [z(x[entity], x[w]) for w in b["noise_ids"][row] if w != word]
                )
                total += contrast(
                    score, [z(x[word], x[e]) for e in b["noise_entities"][row] if e != entity]
                )
                count += 2
    return total, count


def wang(p, b):
    def own(row, t):
        return p["table"][b["input_ids"][row, t]]

    def anchor(row, t):
        return p["table"][e] if (e := b["anchors"][row, t]) else None

    named = [
        triples(p, b, head, tail) for head, tail in ((True, False), (False, True), (True, True))
    ]
    return [text(p, b, own), triples(p, b), *named, text(p, b, anchor)]


def zhong(p, b):
    return [
        text(p, b, lambda row, t: p["table"][b["input_ids"][row, t]]),
        triples(p, b),
        descriptions(p, b),
    ]


def entities(p, b, row, n, name, first):
    h, r, t = b[name][row, n]
    own = [x / max(1, np.sqrt(x @ x + 1e-12)) for x in (p["table"][h], p["table"][t])]
    texts = []
    for side in (0, 1):
        words = [w for w in b["described"][row, n, first + side] if w]
        texts.append(p["table"][words].mean(0) + 0.1 * p["table"][r] if words else own[side])
    return own, p["table"][r], texts, [1 / (1 + np.exp(-p["gate"][e])) for e in (h, t)]


def margins(p, b, gated):
    total = 0.0
    for row, n in np.argwhere(b["triple_weights"] > 0):
        found = []
        for name, first in (("triples", 0), ("corrupted", 2)):
            own, r, texts, gates = entities(p, b, row, n, name, first)
            if gated:
                h, t = (g * o + (1 - g) * d for g, o, d in zip(gates, own, texts, strict=True))
                found.append([((h + r - t) ** 2).sum()])
            else:
                found.append(
                    [
                        np.abs(a + r - c).sum()
                        for a in (own[0], texts[0])
                        for c in (own[1], texts[1])
                    ]
                )
        total += sum(max(0, 1 + good - bad) for good, bad in zip(*found, strict=True))
    return [(total, int((b["triple_weights"] > 0).sum()))]


CASES = {
    "names and anchors": (JointGraph(alignment=("names", "anchors"), window=2), wang),
    "descriptions": (JointGraph(alignment=("descriptions",), window=2), zhong),
    "four energies": (DescribedTriples(), lambda p, b: margins(p, b, False)),
    "gated": (DescribedTriples(energies="gated", norm=2), lambda p, b: margins(p, b, True)),
}


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_equal_plain_numpy(name):
    objective, definition = CASES[name]
    given, b = batch(), {field: np.asarray(value) for field, value in batch().items()}

    def value(p):
        return objective({"main": Table(p)}, given, jax.random.key(0))

    found, slopes = (
        jax.jit(value)(params()),
        jax.jit(jax.grad(lambda p: value(p).value()))(params()),
    )
    p = {key: np.asarray(leaf, np.float64) for key, leaf in params().items()}
    sums, weights = map(np.array, zip(*definition(p, b), strict=True))
    np.testing.assert_allclose(np.atleast_1d(found.sum), sums, rtol=2e-5)
    np.testing.assert_array_equal(np.atleast_1d(found.weight), weights)

    def mean():
        return sum(total / weight for total, weight in definition(p, b))

    draw = np.random.default_rng(2)
    for key, leaf in p.items():
        for place in {tuple(draw.integers(0, (V, D))) for _ in range(12)}:
            before, ends = leaf[place], []
            for step in (1e-5, -1e-5):
                leaf[place] = before + step
                ends.append(mean())
            leaf[place] = before
            assert slopes[key][place] == pytest.approx(
                (ends[0] - ends[1]) / 2e-5, abs=2e-4, rel=1e-4
            ), (key, place)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["cnn", "nbow", "attentive"])
def test_encoders_of_descriptions_equal_their_definition(kind):
    draw = np.random.default_rng(0)
    table = jnp.asarray(draw.normal(size=(V, D)), jnp.float32)
    ids = jnp.asarray([[3, 4, 5, 6, 7, 0, 0], [8, 0, 0, 0, 0, 0, 0], [0] * 7], jnp.int32)
    relation = jnp.asarray(draw.normal(size=(3, D)), jnp.float32)
    module = DescriptionEncoder(width=D, kind=kind)
    tree = module.init(jax.random.key(0), ids, relation, table=table)
    found = np.asarray(module.apply(tree, ids, relation, table=table))
    assert (found[2] == 0).all()
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), tree).get("params", {})
    for row in (0, 1):
        x = np.asarray(table, np.float64)[[i for i in ids[row] if i]]
        if kind == "nbow":
            expected = x.mean(0)
        elif kind == "cnn":
            after = np.concatenate([x[1:], np.zeros((1, D))])
            first = np.tanh(
                np.concatenate([x, after], 1) @ p["first"]["kernel"] + p["first"]["bias"]
            )
            pooled = np.array([first[i : i + 4].max(0) for i in range(0, len(first), 4)])
            expected = np.tanh(pooled @ p["second"]["kernel"] + p["second"]["bias"]).mean(0)
        else:
            longer = jnp.concatenate([ids[row : row + 1], jnp.zeros((1, 4), jnp.int32)], 1)
            expected = module.apply(tree, longer, relation[row : row + 1], table=table)[
                0
            ]  # padding is nothing
        np.testing.assert_allclose(found[row], expected, atol=1e-5)


def test_a_graph_is_rows_and_facts(tmp_path):
    name = write(tmp_path)
    found = [document.sentences for document in sources.documents([name])]
    spec = TokenizerSpec(kind="spaced", vocab=90, specials="t5", min_count=1, lowercase=False)
    spec = dataclasses.replace(
        spec, vocab=3 + len({word for texts in found for text_ in texts for word in text_.split()})
    )
    corpus = prepare([name], tmp_path / "corpus", tokenizer=spec, heldout=0.0)
    pieces, graph = corpus.tokenizer().pieces, Graph(words=4)
    values, id_of = (
        graph.read(corpus),
        {piece: i for i, piece in enumerate(corpus.tokenizer().pieces)},
    )
    kinds = {piece: kind for piece, kind in zip(pieces, values[:, 0].tolist(), strict=True) if kind}
    assert kinds == {"e:a": 1, "e:b": 1, "e:c_d": 1, "r:likes": 2, "r:makes": 2}
    assert [pieces[i] for i in values[id_of["e:a"], 1:]] == ["cat", "cat", ",", "a", "small"]
    assert values[id_of["e:c_d"], 1] == 0
    examples = WithTriples(
        examples=Chunks(window=1, sample=None), triples=4, graph=graph.filled(values)
    )
    out = examples.rows(
        corpus.blocks()[0], length=12, vocab=corpus.vocab, rng=np.random.default_rng(0)
    )
    kept = {
        tuple(pieces[i] for i in triple) for triple in out["triples"][out["triple_weights"] > 0]
    }
    assert kept == {("e:a", "r:likes", "e:b"), ("e:b", "r:makes", "e:c_d")}
    text_ = sorted(pieces[i] for i in out["input_ids"][out["centres"] > 0])
    assert text_ == sorted("cat , a small animal dog a long text".split())


@pytest.mark.full
def test_noise_is_of_its_kind_and_one_part_of_a_triple_changes():
    values = np.zeros((40, 6), np.int32)
    values[20:36, 0], values[36:, 0] = 1, 2
    values[20:23, 1], values[21, 2:4] = [5, 0, 6], [7, 8]
    vocab, counts = Vocab(size=40, pad=0, unk=1), Counts().filled(np.arange(40))
    corruption = GraphNoise(vocab=vocab, relations=0.4, counts=counts, graph=Graph().filled(values))
    triples_ = jnp.tile(jnp.asarray([20, 37, 21], jnp.int32), (2, 500, 1))
    ids = jnp.asarray([[5, 6, 7]] * 2, jnp.int32)
    out = corruption(
        jax.random.key(0),
        {"input_ids": ids, "segment_ids": ids // ids, "rows": jnp.arange(2), "triples": triples_},
    )
    changed = np.asarray(out["corrupted"] != triples_)
    assert (changed.sum(-1) <= 1).all() and changed[..., 1].mean() == pytest.approx(
        0.4 * 3 / 4, abs=0.05
    )
    assert changed[..., 0].mean() == pytest.approx(0.3 * 15 / 16, abs=0.05)

    def kind(name):
        return set(values[np.asarray(out[name]).ravel(), 0].tolist())

    assert (kind("noise_ids"), kind("noise_entities"), kind("noise_relations")) == ({0}, {1}, {2})
    assert out["names"][0, 0].tolist() == [5, 0] and out["described"][0, 0, 1].tolist() == [
        7,
        8,
        0,
        0,
    ]
    assert out["anchors"][0].tolist() == [20, 22, 0]


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"train": "a\tb\n"}, "train.tsv: line 1 is 'a.*expected 3 cells|line 1"),
        ({"train": "a\tr\tb\na\t\tb\n"}, "line 2"),
        ({"names": "a b c\n"}, "line 1"),
    ],
)
def test_broken_graphs_are_one_line_with_file_and_line(tmp_path, fields, line):
    with pytest.raises(UserError, match=line) as error:
        list(sources.documents([write(tmp_path, **fields)]))
    assert "\n" not in str(error.value) and str(tmp_path) in str(error.value)
    with pytest.raises(UserError, match="names no directory"):
        list(sources.documents([f"graph:{tmp_path}/nothing"]))


def test_text_without_a_graph_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("one two one two\n")
    spec = TokenizerSpec(kind="spaced", vocab=60, specials="t5", min_count=2)
    corpus = prepare([str(tmp_path / "a.txt")], tmp_path / "corpus", tokenizer=spec, heldout=0.0)
    with pytest.raises(UserError, match="no entities; give --data graph:DIR"):
        Graph().read(corpus)


@pytest.mark.parametrize("name", ["wang_joint", "zhong_joint"])
def test_no_kernel_computes_the_joint_loss(name):
    """Would have found: the kernel of negative sampling made the steps of these systems on a CPU,
    without the losses of triples, names and anchors."""
    system = systems.get(name)
    assert system.objective.native(system) is None
    assert NegativeSampling().native(system) is not None

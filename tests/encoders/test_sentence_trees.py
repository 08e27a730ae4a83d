"""K-BERT's sentence trees: the paper's drawn example, the reference's visible matrix, and no leak
into the trunk."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax import systems
from ptm_jax.adapt.modules.sentence_trees import SentenceTrees
from ptm_jax.core import facts, spec
from ptm_jax.core.types import Vocab
from ptm_jax.encoders.knowledge.sentence_trees import TreeTransformer, planted
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.transformer import transformer
from ptm_jax.knowledge.lexicons import Branches
from ptm_jax.knowledge.mentions import trie
from ptm_jax.nn.embeddings.summed import LearnedPositions

WORDS = (
    "[PAD] [CLS] Tim Cook CEO Apple is currently visiting Beijing capital China is_a "
    "City now".split()
)
TEXT = "[CLS] Tim Cook is visiting Beijing now"
FLAT = "[CLS] Tim Cook CEO Apple is visiting Beijing capital China is_a City now"
SOFT = [0, 1, 2, 3, 4, 3, 4, 5, 6, 7, 6, 7, 6]
"""Figure 3 of Liu et al. 2020 (arXiv 1909.07606): the text of the embedding layer and the numbers
on the nodes."""
TRIPLES = {"Tim Cook": ["CEO Apple"], "Beijing": ["capital China", "is_a City"]}
VOCAB = Vocab(size=len(WORDS), pad=0, cls=1)


def ids(text):
    return [WORDS.index(word) for word in text.split()]


def lexicon(count=2, width=2):
    branches = Branches(count=count, width=width)

    def pad(row):
        return row + [0] * (width - len(row))

    def payload(texts):
        return [
            1,
            *np.ravel(
                [pad([i + 1 for i in ids(t)]) for t in [*texts, *[""] * (count - len(texts))]]
            ),
        ]

    names = {tuple(ids(name)): payload(texts) for name, texts in TRIPLES.items()}
    return branches.filled(trie(names, np.ones(len(WORDS), bool)))


@functools.partial(jax.jit, static_argnums=(0, 1))
def tree_of(text, room=7):
    batch, branches = {"input_ids": jnp.array([ids(text)])}, lexicon()
    found = branches.find(batch["input_ids"], jnp.ones_like(batch["input_ids"]))
    ends = (found.first >= 0) & (jnp.roll(found.first, -1, 1).at[:, -1].set(-1) != found.first)
    values = found.values[..., 1:].reshape(1, -1, 2, 2)
    return planted(batch, ends, 1 + found.first, values, room)


def by_hand():
    """The visible matrix of Figure 4, from the paths of the tree: tokens see each other on the
    trunk, or on the path of one branch from its stem (Eq. 3)."""
    trunk = {0, 1, 2, 5, 6, 7, 12}
    paths = [trunk, {1, 2, 3, 4}, {7, 8, 9}, {7, 10, 11}]
    return np.array([[any({i, j} <= path for path in paths) for j in range(13)] for i in range(13)])


def test_the_drawn_example():
    tree, hard = tree_of(TEXT, 6)
    assert [WORDS[i] for i in tree["input_ids"][0]] == FLAT.split()
    assert tree["positions"][0].tolist() == SOFT and hard[0].tolist() == [0, 1, 2, 5, 6, 7, 12]
    assert np.array_equal(tree["visible"][0], by_hand())


@pytest.mark.full
def test_branches_that_do_not_fit_are_left_out():
    tree, _ = tree_of(TEXT, 4)
    assert [WORDS[i] for i in tree["input_ids"][0]] == [
        *"[CLS] Tim Cook CEO Apple is visiting Beijing now".split(),
        *["[PAD]"] * 2,
    ]
    assert (tree["segment_ids"][0] > 0).sum() == 9


def model(layers, room=8):
    base = transformer(
        vocab=VOCAB, layers=layers, width=8, heads=2, positions=LearnedPositions(16), dropout=0.0
    )
    return TreeTransformer(**spec.values_of(base), branches=lexicon(), room=room), base


def drawn(network, batch):
    """Parameters from numpy: compiling the initialisation takes longer than the test."""
    draw = np.random.default_rng(0)
    shapes = jax.eval_shape(network.init, jax.random.key(0), batch)["params"]
    return jax.tree.map(
        lambda leaf: jnp.asarray(draw.normal(0.0, 0.5, leaf.shape), jnp.float32), shapes
    )


def reach(layers, places):
    """Which words' vectors have a gradient from the states at `places` of the flat tree."""
    base = model(layers)[1]
    tree, _ = tree_of(TEXT, 8)
    params = drawn(base, tree)
    weights = np.random.default_rng(1).normal(size=(len(places), 8))

    def seen(table):
        states = base.apply(
            {"params": {**params, "embed": {**params["embed"], "token": table}}}, tree
        ).hidden[0]
        return jnp.sum(states[jnp.array(places)] * weights)

    slope = jax.jit(jax.grad(seen))(params["embed"]["token"])
    return {WORDS[i] for i in np.flatnonzero(np.asarray(slope).any(1))}


@pytest.mark.full
def test_a_branch_does_not_reach_the_trunk():
    """In a layer no token of the trunk but the stem has a gradient from a branch, exactly (section
    3.4)."""
    others = [FLAT.split().index(word) for word in "[CLS] is visiting now".split()]
    assert reach(1, others) == {*TEXT.split()}


@pytest.mark.full
def test_of_more_layers_a_branch_reaches_the_trunk_through_its_stem_alone():
    place = FLAT.split().index
    assert reach(1, [place("City")]) == {"is_a", "City", "Beijing"}
    assert reach(1, [place("Cook")]) == {*TEXT.split(), "CEO", "Apple"}
    assert reach(2, [place("City")]) == {*TEXT.split(), "capital", "China", "is_a", "City"}
    assert reach(2, [place("now")]) == {*FLAT.split()}


@pytest.mark.full
def test_the_states_are_those_of_the_trunk():
    network, base = model(2)
    tree, hard = tree_of(TEXT, 8)
    params = drawn(base, tree)

    def run(one, batch):
        return jax.jit(one.apply)({"params": params}, batch)

    ours, theirs = run(network, {"input_ids": jnp.array([ids(TEXT)])}), run(base, tree)
    np.testing.assert_allclose(ours.hidden[0], theirs.hidden[0][hard[0]], atol=1e-5)
    bare = {"input_ids": jnp.array([ids("[CLS] is visiting now City now")])}
    ours, theirs = (run(one, bare) for one in (network, base))
    np.testing.assert_allclose(ours.hidden, theirs.hidden, atol=1e-5)
    np.testing.assert_allclose(ours.layers, theirs.layers, atol=1e-5)


def defined(tokens, segments, names, room):
    """K-BERT's tree of a row, token by token (autoliuweijie/K-BERT, brain/knowgraph.py): ids,
    positions and segments in hard order, the visible matrix, and how many names are without their
    branches, which have `room`."""
    flat, place, left, bare = (
        [],
        0,
        room,
        0,
    )  # of every token: id, position, segment, stem or None, branch or None
    while place < len(tokens):
        spans = [range(place, place + size) for size in (3, 2, 1) if place + size <= len(tokens)]

        def named(span, place=place):
            return tuple(tokens[i] for i in span) in names and {segments[i] for i in span} == {
                segments[place]
            }

        stem = next((span for span in spans if segments[place] and named(span)), None)
        mine = stem or spans[-1]
        flat += [(tokens[i], i, segments[i], stem, None) for i in mine]
        branches = [] if stem is None else names[tuple(tokens[i] for i in stem)]
        left -= sum(map(len, branches))
        bare += stem is not None and left < 0
        for number, branch in enumerate(branches if left >= 0 else ()):
            flat += [
                (token, mine.stop + n, segments[place], stem, number)
                for n, token in enumerate(branch)
            ]
        place = mine.stop

    def trunk(token):
        return token[4] is None

    def on_path(a, b):
        return a[3] is not None and a[3] == b[3] and (trunk(a) or trunk(b) or a[4] == b[4])

    visible = [[(trunk(a) and trunk(b)) or on_path(a, b) for b in flat] for a in flat]
    return [list(part) for part in zip(*(token[:3] for token in flat), strict=True)], visible, bare


def test_random_trees_are_the_originals():
    draw, room = np.random.default_rng(0), 20

    def words(size):
        return tuple(draw.integers(2, 12, size).tolist())

    names = {
        words(draw.integers(1, 4)): [list(words(draw.integers(1, 4))) for _ in range(1 + n % 2)]
        for n in range(24)
    }

    def pad(row):
        return [i + 1 for i in row] + [0] * (3 - len(row))

    held = {
        name: [1, *np.ravel([pad(row) for row in [*rows, []][:2]])] for name, rows in names.items()
    }
    branches = Branches(count=2, width=3).filled(trie(held, np.ones(12, bool)))
    ids = draw.integers(2, 12, (40, 14))
    places, border, stop = (
        np.arange(14),
        draw.integers(5, 12, (40, 1)),
        draw.integers(9, 15, (40, 1)),
    )
    segments = np.where(places < border, 1, 2) * (places < stop)

    @jax.jit
    def trees(ids, segments):
        found = branches.find(ids, segments)
        ends = (found.first >= 0) & (
            jnp.pad(found.first[:, 1:], ((0, 0), (0, 1)), constant_values=-1) != found.first
        )
        batch = {"input_ids": ids, "segment_ids": segments}
        return planted(
            batch, ends, 1 + found.first, found.values[..., 1:].reshape(*ids.shape, 2, 3), room
        )

    tree, hard = jax.tree.map(np.asarray, trees(jnp.asarray(ids), jnp.asarray(segments)))
    without = 0
    for row in range(len(ids)):
        (flat, soft, of), visible, bare = defined(
            ids[row].tolist(), segments[row].tolist(), names, room
        )
        size, without = len(flat), without + bare
        assert (
            tree["input_ids"][row, :size].tolist() == flat
            and tree["segment_ids"][row, :size].tolist() == of
        )
        assert tree["positions"][row, :size].tolist() == soft
        assert np.array_equal(tree["visible"][row, :size, :size], visible)
        assert [flat[i] for i in hard[row]] == ids[row].tolist()
        assert not tree["segment_ids"][row, size:].any()
    assert 0 < without < 100


def test_a_model_is_given_trees_by_an_adaptation():
    network, base = model(2)
    tree, _ = tree_of(TEXT, 8)
    params, batch = drawn(base, tree), {"input_ids": jnp.array([ids(TEXT)])}
    given = SentenceTrees(branches=lexicon(), room=8).wrap(Model(encoder=base, heads={}))
    assert given.encoder == network
    same = jax.tree.map(
        jnp.shape, jax.eval_shape(given.encoder.init, jax.random.key(0), batch)["params"]
    )
    assert same == jax.tree.map(jnp.shape, params), "the parameters of the model that it wraps"
    with pytest.raises(ValueError, match="is no Transformer that reads both sides"):
        SentenceTrees().wrap(systems.get("gpt_mini").towers["main"])


def test_a_file_is_compiled_with_a_tokenizer(tmp_path):
    (tmp_path / "kg.spo").write_text(
        "Tim Cook\tCEO\tApple\nBeijing\tcapital\tChina\nBeijing\tis_a\tCity\nnobody\tis_a\tCity\n"
    )

    def encode(texts):
        return [
            np.array([WORDS.index(w) if w in WORDS else 99 for w in text.split()]) for text in texts
        ]

    def starts():
        return np.ones(len(WORDS), bool)

    fake = types.SimpleNamespace(
        vocab=dataclasses.replace(VOCAB, size=100, unk=99), encode_batch=encode, word_starts=starts
    )
    read = Branches(file=str(tmp_path / "kg.spo"), width=2).of_tokenizer(fake)
    assert np.array_equal(read, lexicon().values)
    assert facts.stand_ins(Branches(), VOCAB).values.shape[1] == 3 + 1 + 2 * 8

"""K-BERT's sentence trees: the paper's drawn example, the reference's visible matrix, and no leak into the trunk."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core import facts, spec
from ptm_jax.core.lexicons import Branches
from ptm_jax.core.mentions import trie
from ptm_jax.core.types import Vocab
from ptm_jax.encoders.sentence_trees import TreeTransformer, planted
from ptm_jax.encoders.transformer import transformer
from ptm_jax.nn.embeddings.summed import LearnedPositions

WORDS = "[PAD] [CLS] Tim Cook CEO Apple is currently visiting Beijing capital China is_a City now".split()
TEXT = "[CLS] Tim Cook is visiting Beijing now"
FLAT = "[CLS] Tim Cook CEO Apple is visiting Beijing capital China is_a City now"
SOFT = [0, 1, 2, 3, 4, 3, 4, 5, 6, 7, 6, 7, 6]
"""Figure 3 of Liu et al. 2020 (arXiv 1909.07606): the text of the embedding layer and the numbers on the nodes."""
TRIPLES = {"Tim Cook": ["CEO Apple"], "Beijing": ["capital China", "is_a City"]}
VOCAB = Vocab(size=len(WORDS), pad=0, cls=1)
ids = lambda text: [WORDS.index(word) for word in text.split()]


def lexicon(count=2, width=2):
    branches = Branches(count=count, width=width)
    pad = lambda row: row + [0] * (width - len(row))
    payload = lambda texts: [1, *np.ravel([pad([i + 1 for i in ids(t)]) for t in [*texts, *[""] * (count - len(texts))]])]
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
    """The visible matrix of Figure 4, from the paths of the tree: tokens see each other on the trunk, or on the path of one
    branch from its stem (Eq. 3)."""
    trunk = {0, 1, 2, 5, 6, 7, 12}
    paths = [trunk, {1, 2, 3, 4}, {7, 8, 9}, {7, 10, 11}]
    return np.array([[any({i, j} <= path for path in paths) for j in range(13)] for i in range(13)])


def test_the_drawn_example():
    tree, hard = tree_of(TEXT, 6)
    assert [WORDS[i] for i in tree["input_ids"][0]] == FLAT.split()
    assert tree["positions"][0].tolist() == SOFT and hard[0].tolist() == [0, 1, 2, 5, 6, 7, 12]
    assert np.array_equal(tree["visible"][0], by_hand())


@pytest.mark.rotate
def test_branches_that_do_not_fit_are_left_out():
    tree, _ = tree_of(TEXT, 4)
    assert [WORDS[i] for i in tree["input_ids"][0]] == [
        *"[CLS] Tim Cook CEO Apple is visiting Beijing now".split(),
        *["[PAD]"] * 2,
    ]
    assert (tree["segment_ids"][0] > 0).sum() == 9


def model(layers, room=8):
    base = transformer(vocab=VOCAB, layers=layers, width=8, heads=2, positions=LearnedPositions(16), dropout=0.0)
    return TreeTransformer(**spec.values_of(base), branches=lexicon(), room=room), base


def drawn(network, batch):
    """Parameters from numpy: compiling the initialisation takes longer than the test."""
    draw = np.random.default_rng(0)
    shapes = jax.eval_shape(network.init, jax.random.key(0), batch)["params"]
    return jax.tree.map(lambda leaf: jnp.asarray(draw.normal(0.0, 0.5, leaf.shape), jnp.float32), shapes)


def reach(layers, places):
    """Which words' vectors have a gradient from the states at `places` of the flat tree."""
    base = model(layers)[1]
    tree, _ = tree_of(TEXT, 8)
    params = drawn(base, tree)
    weights = np.random.default_rng(1).normal(size=(len(places), 8))

    def seen(table):
        states = base.apply({"params": {**params, "embed": {**params["embed"], "token": table}}}, tree).hidden[0]
        return jnp.sum(states[jnp.array(places)] * weights)

    slope = jax.jit(jax.grad(seen))(params["embed"]["token"])
    return {WORDS[i] for i in np.flatnonzero(np.asarray(slope).any(1))}


@pytest.mark.rotate
def test_a_branch_does_not_reach_the_trunk():
    """In a layer no token of the trunk but the stem has a gradient from a branch, exactly (section 3.4)."""
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
    run = lambda one, batch: jax.jit(one.apply)({"params": params}, batch)
    ours, theirs = run(network, {"input_ids": jnp.array([ids(TEXT)])}), run(base, tree)
    np.testing.assert_allclose(ours.hidden[0], theirs.hidden[0][hard[0]], atol=1e-5)
    bare = {"input_ids": jnp.array([ids("[CLS] is visiting now City now")])}
    ours, theirs = (run(one, bare) for one in (network, base))
    np.testing.assert_allclose(ours.hidden, theirs.hidden, atol=1e-5)
    np.testing.assert_allclose(ours.layers, theirs.layers, atol=1e-5)


def test_a_file_is_compiled_with_a_tokenizer(tmp_path):
    (tmp_path / "kg.spo").write_text(
        "Tim Cook\tCEO\tApple\nBeijing\tcapital\tChina\nBeijing\tis_a\tCity\nnobody\tis_a\tCity\n"
    )
    encode = lambda texts: [np.array([WORDS.index(w) if w in WORDS else 99 for w in text.split()]) for text in texts]
    starts = lambda: np.ones(len(WORDS), bool)
    fake = types.SimpleNamespace(vocab=dataclasses.replace(VOCAB, size=100, unk=99), encode_batch=encode, word_starts=starts)
    read = Branches(file=str(tmp_path / "kg.spo"), width=2).of_tokenizer(fake)
    assert np.array_equal(read, lexicon().values)
    assert facts.stand_ins(Branches(), VOCAB).values.shape[1] == 3 + 1 + 2 * 8

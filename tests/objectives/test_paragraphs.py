"""Paragraph vectors against plain numpy: one update, rows of documents, vectors of new texts."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax import systems
from ptm_jax.core import facts, slots, spec
from ptm_jax.core.recipe import SGD, Constant, Phase
from ptm_jax.core.types import Vocab
from ptm_jax.data.corpora import block_records, store
from ptm_jax.data.rows import passages
from ptm_jax.inference.words.paragraph_vectors import ParagraphModel, is_paragraphs
from ptm_jax.objectives.each_tower import EachTower
from ptm_jax.objectives.vectors.windows import NegativeSampling
from ptm_jax.systems.word_vectors import paragraph_vectors as paragraphs
from ptm_jax.training.steps.step import program
from support.plain_towers import PlainTower, batch_of, params_of

VOCAB = Vocab(size=15, pad=0, unk=2, eos=1)
ROWS, LENGTH, WIDTH = 2, 20, 4


@functools.cache
def small(name, optimizer=SGD()):
    """A system of the catalogue on 12 words and 15 documents of width 4, its parameters and a batch
    of random words."""
    system = spec.respell(systems.get(name), Vocab, lambda _: VOCAB)
    kinds = {key: tower.encoder for key, tower in system.towers.items()}
    made = {
        key: paragraphs.tower(one.words, one.window, one.skipgram, WIDTH)
        for key, one in kinds.items()
    }
    made = spec.respell(made, Vocab, lambda _: VOCAB)
    shape = {
        "phases": (Phase(steps=9, batch=ROWS, length=LENGTH),),
        "updates": 1,
        "lr": 1.0,
        "schedule": Constant(),
    }
    recipe = dataclasses.replace(system.recipe, optimizer=optimizer, **shape)
    work = program(
        facts.stand_ins(dataclasses.replace(system, towers=made, recipe=recipe), VOCAB), 0
    )
    draw = np.random.default_rng(0)
    ids = jnp.asarray(draw.integers(3, 15, (ROWS, LENGTH)), jnp.int32)
    own = jnp.asarray([[3] * 8 + [7] * 12, [7] * LENGTH], jnp.int32)
    segments = jnp.asarray([[1] * 8 + [2] * 12, [1] * LENGTH], jnp.int32)
    batch = {"input_ids": ids, "segment_ids": segments, "centres": ids // ids, "document_ids": own}
    batch["rows"] = jnp.arange(ROWS, dtype=jnp.int32)
    state = work.init(batch)

    def fill(leaf):
        return jnp.asarray(draw.normal(0, 0.5, leaf.shape), jnp.float32)

    return work, dataclasses.replace(state, params=jax.tree.map(fill, state.params)), batch


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.mark.full
@pytest.mark.parametrize("name", ["pv_dm", "pv_dm_concat", "pv_dbow"])
def test_a_step_is_the_straightforward_update_of_every_word(name):
    """Gradients of the parameters before the step; of a mean every vector gets the whole error, as
    in gensim."""
    work, state, batch = small(name)
    drawn = jax.tree.map(np.asarray, work._corrupt(batch, "train", 0, None))
    encoder = state.params["main"]["encoder"]
    before = {
        "word": encoder["token"],
        "document": encoder["document"],
        "out": state.params["main"]["heads_context"]["table"],
    }
    before = {part: np.asarray(table, np.float64) for part, table in before.items()}
    change, words = {part: np.zeros_like(table) for part, table in before.items()}, 0
    for row, noise in enumerate(drawn["noise_ids"]):
        segments, ids = drawn["segment_ids"][row], drawn["input_ids"][row]
        for t, word in enumerate(ids):
            reach, paragraph = drawn["windows"][row, t], drawn["document_ids"][row, t]
            places = [
                u
                for u in range(t - reach, t + reach + 1)
                if u != t and 0 <= u < LENGTH and segments[u] == segments[t]
            ]
            words += 1
            if name == "pv_dm":
                parts = [("document", paragraph), *(("word", ids[u]) for u in places)]
                h = np.mean([before[table][n] for table, n in parts], 0)
            elif name == "pv_dbow":
                parts, h = [("document", paragraph)], before["document"][paragraph]
            else:
                seven = [u if u in places else None for u in range(t - 7, t)]
                parts = [
                    ("document", paragraph),
                    *(None if u is None else ("word", ids[u]) for u in seven),
                ]
                h = np.concatenate(
                    [
                        np.zeros(WIDTH) if part is None else before[part[0]][part[1]]
                        for part in parts
                    ]
                )
            error = np.zeros_like(h)
            for n, label, count in [(word, 1, 1), *((n, 0, 5 / 64) for n in noise if n != word)]:
                slope = count * (label - sigmoid(h @ before["out"][n]))
                error += slope * before["out"][n]
                change["out"][n] += slope * h
            pieces = np.split(error, len(parts)) if name == "pv_dm_concat" else [error] * len(parts)
            for part, piece in zip(parts, pieces, strict=True):
                if part is not None:
                    change[part[0]][part[1]] += piece
    after = jax.jit(work.step)(state, batch)[0].params["main"]
    found = {
        "word": after["encoder"]["token"],
        "document": after["encoder"]["document"],
        "out": after["heads_context"]["table"],
    }
    for part, table in found.items():
        np.testing.assert_allclose(
            table, before[part] + change[part] / words, atol=1e-5, err_msg=part
        )


@pytest.mark.full
def test_words_are_trained_beside_documents():
    """pv_dbow_words is pv_dbow plus skip-gram on one output table."""
    work, state, batch = small("pv_dbow_words")
    drawn = work._corrupt(batch, "train", 0, None)
    both = work._loss(work._bind(state.params, True), drawn, None)
    token = state.params["main"]["encoder"]["token"]
    head = state.params["main"]["heads_context"]["table"]
    bags = work.system.objective

    class Words:
        def __call__(self, batch, key):
            return type("Encoded", (), {"hidden": token[batch["input_ids"]], "extra": None})

        def head(self, name, ids):
            return head[ids], jnp.zeros(ids.shape)

    alone = small("pv_dbow")[0]
    document = alone._loss(alone._bind(state.params, True), drawn, None)
    words = dataclasses.replace(bags, predicts="neighbours")({"main": Words()}, drawn, None)
    np.testing.assert_allclose(both.sum, document.sum + words.sum, rtol=1e-5)


@pytest.mark.full
def test_towers_of_one_objective_are_alone():
    part, batch = NegativeSampling(predicts="centre", window=2), batch_of()
    trees = {name: params_of(seed) for seed, name in enumerate(("a", "b"))}
    towers = {name: PlainTower(tree) for name, tree in trees.items()}
    found = EachTower(part=part, over=("a", "b"))(towers, batch, None)
    single = [part({"main": tower}, batch, None) for tower in towers.values()]
    np.testing.assert_allclose(found.sum, [loss.sum for loss in single], rtol=1e-6)
    assert sorted(found.metrics) == ["a_pair_loss", "b_pair_loss"]
    work, state, batch = small("paragraph_vectors")
    whole = dataclasses.replace(work.system.objective)

    def dense(towers, batch, key):
        return whole(towers, batch, key)

    plain = dataclasses.replace(work, system=dataclasses.replace(work.system, objective=dense))
    ours, theirs = (jax.jit(one.step)(state, batch)[0].params for one in (work, plain))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), ours, theirs)


class Blocks(list):
    tokens = 600


def test_passages_are_the_text_once_and_documents_have_their_numbers(monkeypatch):
    draw, texts = np.random.default_rng(0), []
    blocks, number = Blocks(), -1
    for n in range(3):
        sizes, continued = draw.integers(20, 60, 5), np.arange(5) == (0 if n else -1)
        tokens = draw.integers(3, 15, sizes.sum()).astype(np.int32)
        blocks.append(
            block_records.Block(tokens, sizes.astype(np.int32), np.ones(5, np.int32), continued)
        )
        for part, more in zip(np.split(tokens, np.cumsum(sizes)[:-1]), continued, strict=True):
            number += not more
            texts += [(number, int(word)) for word in part]
    monkeypatch.setattr(store, "Blocks", lambda corpus, split: blocks)
    sizes = {"train": {"tokens": 600}, "heldout": {"tokens": 200}}
    corpus, seen = type("Corpus", (), {"size": staticmethod(sizes.get)}), []
    examples = passages.Passages(window=2, sample=None)
    for split in ("train", "heldout"):
        source = examples.blocks(corpus, split)
        block = source.join([source[n] for n in range(len(source))])
        rows = examples.rows(block, length=13, vocab=VOCAB, rng=draw)
        assert {name: value.shape[1:] for name, value in rows.items()} == {
            n: f.shape for n, f in examples.spec(13, VOCAB).items()
        }
        centres = rows["centres"] > 0
        part = list(
            zip(
                rows["document_ids"][centres].tolist(),
                rows["input_ids"][centres].tolist(),
                strict=True,
            )
        )
        assert 0.1 < len(part) / len(texts) < 0.9
        seen += part
    assert sorted(seen) == sorted(texts) and number == 12


@pytest.mark.full
def test_a_new_text_has_its_own_vector_and_words_stay():
    work, state, _ = small("paragraph_vectors")

    class Tokenizer:
        vocab = VOCAB

        def encode_batch(self, texts):
            return [np.array([3 + ord(letter) % 12 for letter in text], np.int32) for text in texts]

    assert is_paragraphs(work.system) and not is_paragraphs(systems.get("skipgram"))
    model = ParagraphModel(work.system, state.params, Tokenizer())
    long = "the quick brown fox jumps over the lazy dog " * 3
    texts = ["abcdefgh", "zyxw", long, ""]
    found = model.encode(texts, epochs=3, rate=0.5)
    assert (
        found.shape == (4, 2 * WIDTH) == (4, model.documents.shape[1]) and np.isfinite(found).all()
    )
    for n in (0, 2):
        np.testing.assert_allclose(
            model.encode([texts[n]], epochs=3, rate=0.5)[0], found[n], atol=1e-6
        )
    assert np.abs(found[0] - found[1]).max() > 1e-3
    once = model.encode(["abcdefgh"], epochs=0)[0]
    np.testing.assert_allclose(
        once, found[3], atol=1e-7, err_msg="a text without words stays where it began"
    )


@pytest.mark.full
def test_the_vector_of_a_text_descends_its_loss():
    work, state, _ = small("pv_dbow")
    model = ParagraphModel(work.system, state.params, None)
    ids = jnp.asarray(np.random.default_rng(3).integers(3, 15, (1, LENGTH)), jnp.int32)
    batch = {"input_ids": ids, "segment_ids": ids // ids, "centres": ids // ids}
    key, table = jax.random.key(0), state.params["main"]["heads_context"]["table"]
    start = {"main": jnp.full((1, WIDTH), 0.1)}
    after = model._descend(start, state.params, batch, 0.1, key)["main"]
    drawn = work.system.corruption(key, {**batch, "rows": jnp.zeros(1, jnp.int32)})
    slope = np.zeros(WIDTH)
    for word in np.asarray(ids[0]):
        noise = [(int(n), 0, 5 / 64) for n in drawn["noise_ids"][0] if n != word]
        for n, label, count in [(int(word), 1, 1), *noise]:
            slope += (
                count
                * (label - sigmoid(np.asarray(start["main"][0]) @ table[n]))
                * np.asarray(table[n])
            )
    np.testing.assert_allclose(after[0], 0.1 + 0.1 * slope, atol=1e-5)
    assert slots.encoder_of(work.system).paragraphs == 15

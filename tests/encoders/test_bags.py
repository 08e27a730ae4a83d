"""Supervised fastText: rows of n-grams of words, the mean of a text, steps on some rows, the file
that fastText reads."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.core import facts
from ptm_jax.core.spec import respell, with_field
from ptm_jax.core.types import Vocab
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.data.tokenizers.vocabularies import make
from ptm_jax.inference.pretrained import Pretrained
from ptm_jax.inference.words import bag_classes
from ptm_jax.inference.words.word_vectors import WordVectors
from ptm_jax.kernels import words
from ptm_jax.mesh import rules
from ptm_jax.statistics.subwords import NONE, HashedWordNGrams
from ptm_jax.systems.word_vectors import fasttext
from ptm_jax.training.steps.step import program
from ptm_jax.training.updates import in_place
from ptm_jax.tuning.finetuning import from_scratch

TEXTS = [
    "naïve kings in 東京 and queens",
    "the dark night and the stormy day",
    "queens and kings",
    "night after night",
]
COUNTS = (3, 9, 1, 4)
TOKENIZER = make(TokenizerSpec(kind="word", specials="t5", vocab=15), TEXTS)


def experiment(counts=()):
    """The four classes of AG News on the words of `TEXTS`, width 6, 50 buckets, three words an
    n-gram."""
    system = respell(fasttext.supervised(), Vocab, lambda _: TOKENIZER.vocab)
    system = with_field(with_field(with_field(system, "width", 6), "buckets", 50), "longest", 3)
    return fasttext.classes(
        from_scratch(system, "ag_news", fasttext.labelled(0.5, 64, length=16), ()), counts
    ).system


def known(system):
    """The system with the hashes of the words."""
    return facts.fill(system, lambda: types.SimpleNamespace(tokenizer=lambda: TOKENIZER))


def batch_of(texts, length=12):
    ids = [TOKENIZER.frame(text)[0] for text in texts]
    ids = np.stack([np.pad(row, (0, length - len(row))) for row in ids])
    label = jnp.arange(len(texts), dtype=jnp.int32) % 4
    rows = jnp.arange(len(texts), dtype=jnp.int32)
    fields = {"input_ids": ids, "segment_ids": (np.arange(length) < (ids > 0).sum(1)[:, None])}
    return {name: jnp.asarray(value, jnp.int32) for name, value in fields.items()} | {
        "label": label, "label_weights": jnp.ones(len(texts)), "rows": rows,
        "token_type_ids": jnp.zeros_like(ids),
        "positions": jnp.zeros_like(ids),
    }  # fmt: skip


def random(work, batch):
    draw, state = np.random.default_rng(0), work.init(batch)

    def fill(leaf):
        return jnp.asarray(draw.normal(0, 0.5, leaf.shape), jnp.float32)

    return dataclasses.replace(state, params=jax.tree.map(fill, state.params))


def test_rows_of_ngrams_of_words_are_fasttexts():
    fact = HashedWordNGrams(longest=4, buckets=9_999_991)
    fact = fact.filled(fact.read(types.SimpleNamespace(tokenizer=lambda: TOKENIZER)))
    ids = np.random.default_rng(0).integers(3, TOKENIZER.vocab.size, (1, 40))
    found = np.asarray(fact.of(jnp.asarray(ids), jnp.asarray(np.arange(40)[None] // 20 + 1)))[0]
    own = types.SimpleNamespace(buckets=9_999_991, bucket_rows=None)
    for half in (slice(0, 20), slice(20, 40)):
        words = [TOKENIZER.pieces[i] for i in ids[0, half]]
        rows = found[half]
        assert rows[rows < NONE].tolist() == bag_classes._word_ngrams(words, 4, own)


@pytest.mark.full
def test_a_step_on_some_rows_is_the_dense_one():
    """Loss and rows of a step against a mean of rows in numpy, and against the dense gradient."""
    work, batch = program(known(experiment()), 0), batch_of([*TEXTS, "unseen kings night"])
    work = dataclasses.replace(work, system=with_field(work.system, "updates", 1))
    state = random(work, batch)
    found, metrics = jax.jit(work.step)(state, batch)
    params, grams = state.params["main"], work.system.towers["main"].encoder.grams
    tables = {name: np.asarray(params["encoder"][name], np.float64) for name in ("token", "ngrams")}
    change, kernel = (
        {name: np.zeros_like(table) for name, table in tables.items()},
        params["heads_classify"]["classes"],
    )
    kernel, lr, losses = np.asarray(kernel["kernel"], np.float64), work.system.recipe.lr, []
    for ids, segments, label in zip(
        *(np.asarray(batch[name]) for name in ("input_ids", "segment_ids", "label")), strict=True
    ):
        words = [i for i in ids[segments > 0] if i != TOKENIZER.vocab.unk]
        there = (segments > 0) & (ids != TOKENIZER.vocab.unk)
        rows = np.asarray(
            grams.of(jnp.asarray(ids[None]), jnp.asarray(there[None].astype(np.int32)))
        )
        rows = rows[rows < NONE]
        hidden = np.concatenate([tables["token"][words], tables["ngrams"][rows]]).mean(0)
        p = np.exp(hidden @ kernel) / np.exp(hidden @ kernel).sum()
        losses.append(-np.log(p[label]))
        slope = kernel @ (p - np.eye(4)[label]) / (len(words) + len(rows)) / len(batch["label"])
        np.add.at(change["token"], words, -lr * slope)
        np.add.at(change["ngrams"], rows, -lr * slope)
    np.testing.assert_allclose(metrics["nll"].sum, sum(losses), rtol=1e-5)
    for name, table in tables.items():
        np.testing.assert_allclose(
            found.params["main"]["encoder"][name], table + change[name], atol=1e-5
        )
        same = (change[name] == 0).all(1)
        np.testing.assert_array_equal(
            found.params["main"]["encoder"][name][same], params["encoder"][name][same]
        )


@pytest.mark.full
@pytest.mark.parametrize("counts", [(), COUNTS])
def test_the_native_step_is_the_plain_one(counts):
    """Two updates of three texts each, one of them without weight."""
    if why := words.refusal("bags"):
        pytest.skip(f"no native kernel here: {why}")
    work = program(known(experiment(counts)), 0)
    work = dataclasses.replace(work, system=with_field(work.system, "updates", 2))
    batch = batch_of([*TEXTS, "unseen kings night night night", "queens"])
    batch["label_weights"] = batch["label_weights"].at[2].set(0)
    state = random(work, batch)
    expected, plain = jax.jit(work.step)(state, batch)
    native = in_place.kernel_of(work.system, rules.make_mesh(devices=jax.devices()[:1]))
    assert native.paths == (
        "main/encoder/token",
        "main/encoder/ngrams",
        "main/heads_classify/classes/kernel",
    )
    found, metrics = jax.jit(dataclasses.replace(work, native=native).step)(state, batch)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6, rtol=1e-5),
        found.params,
        expected.params,
    )
    assert metrics.keys() == plain.keys() - ({"accuracy"} if counts else set())
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5),
        metrics,
        {name: plain[name] for name in metrics},
    )


@pytest.mark.full
@pytest.mark.parametrize("counts", [(), COUNTS])
def test_a_run_and_the_file_that_it_exports_predict_alike(counts, tmp_path):
    system = experiment(counts)
    state = random(program(known(system), 0), batch_of(TEXTS))
    Pretrained(system, state.params, TOKENIZER).save(tmp_path / "run")
    assert (
        main(
            [
                "export",
                str(tmp_path / "run"),
                "--out",
                str(tmp_path / "v.bin"),
                "--format",
                "fasttext-bin",
            ]
        )
        == 0
    )
    ours, file = ptm_jax.load(tmp_path / "run"), ptm_jax.load(tmp_path / "v.bin")
    for one, other in zip(ours.classify(TEXTS), file.classify(TEXTS), strict=True):
        assert other == pytest.approx(
            {name.replace(" ", "_"): score for name, score in one.items()}, abs=1e-5
        )


@pytest.mark.full
@pytest.mark.parametrize("counts", [(), COUNTS])
def test_fasttext_predicts_what_the_run_predicts(counts, tmp_path):
    """Probabilities to 1e-4: fastText adds 1e-5 to each factor under the logarithm."""
    fasttext_ = pytest.importorskip("fasttext")
    system = experiment(counts)
    model = Pretrained(
        known(system), random(program(known(system), 0), batch_of(TEXTS)).params, TOKENIZER
    )
    WordVectors.of_model(model).save(tmp_path / "v.bin", "fasttext-bin")
    peer = fasttext_.load_model(str(tmp_path / "v.bin"))
    for text, one in zip(TEXTS, model.classify(TEXTS), strict=True):
        labels, scores = peer.predict(text, k=-1)
        found = {
            label.removeprefix("__label__"): score
            for label, score in zip(labels, scores, strict=True)
        }
        assert found == pytest.approx(
            {name.replace(" ", "_"): score for name, score in one.items()}, abs=1e-4
        )

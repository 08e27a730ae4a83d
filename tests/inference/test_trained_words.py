"""A run of word vectors loads as `WordVectors`, and its `.bin` has the same vectors in gensim and
in fastText."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ptm_jax
from ptm_jax import systems
from ptm_jax.cli.main import main
from ptm_jax.core import facts, spec, towers
from ptm_jax.core.types import Vocab
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.data.tokenizers.vocabularies import make
from ptm_jax.inference.pretrained import Pretrained
from ptm_jax.statistics.subwords import HashedNGrams

TEXT = ["naïve kings in 東京 and queens"] * 9


def run_of(name, folder):
    """A run of a miniature with random tables of width 8 and 50 buckets; returns its parameters and
    tokenizer."""
    tokenizer = make(TokenizerSpec(kind="word", specials="t5", vocab=9), TEXT)
    system = spec.with_field(spec.respell(systems.get(name), Vocab, tokenizer.vocab), "width", 8)
    system = spec.with_field(system, "buckets", 50)
    there = facts.fill(system.towers, lambda: types.SimpleNamespace(tokenizer=lambda: tokenizer))
    batch = {"input_ids": jnp.ones((1, 4), jnp.int32), "segment_ids": jnp.ones((1, 4), jnp.int32)}
    draw, shapes = np.random.default_rng(0), towers.abstract(there, batch)
    params = jax.tree.map(lambda leaf: draw.normal(size=leaf.shape).astype(np.float32), shapes)
    Pretrained(system, params, tokenizer).save(folder)
    return params["main"], tokenizer


@pytest.mark.full
@pytest.mark.parametrize("name", ["fasttext_mini", "cbow_mini"])
def test_a_run_loads_as_word_vectors(name, tmp_path, capsys):
    params, tokenizer = run_of(name, tmp_path / "run")
    model = ptm_jax.load(tmp_path / "run")
    assert sorted(model.words) == ["and", "in", "kings", "naïve", "queens", "東京"]
    row = params["encoder"]["token"][tokenizer.id("naïve")]
    if name == "fasttext_mini":
        fact = HashedNGrams(buckets=50)
        values = fact.filled(fact.read(types.SimpleNamespace(tokenizer=lambda: tokenizer)))
        own = np.asarray(values.of(jnp.array(tokenizer.id("naïve")), 9))
        row = np.concatenate([row[None], params["encoder"]["ngrams"][own[own < 50]]]).mean(0)
        assert model["naïvely"].shape == (8,), "an unseen word"
    np.testing.assert_allclose(model["naïve"], row, atol=1e-6)
    assert (
        main(
            ["predict", str(tmp_path / "run"), "--task", "similar", "--text", "kings", "--top", "2"]
        )
        == 0
    )
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "v.bin")]) == 0
    found = ptm_jax.load(tmp_path / "v.bin")
    np.testing.assert_array_equal(found[list(model.words)], model[list(model.words)])
    assert "kings" in capsys.readouterr().out


@pytest.mark.full
@pytest.mark.parametrize("name", ["fasttext_mini", "fasttext_cbow_mini"])
def test_peers_read_the_model_that_a_run_wrote(name, tmp_path):
    run_of(name, tmp_path / "run")
    model = ptm_jax.load(tmp_path / "run")
    model.save(tmp_path / "v.bin")
    words = [*model.words, "kingdoms", "queenlike", "東京都"]
    gensim = pytest.importorskip("gensim.models.fasttext")
    theirs = gensim.load_facebook_model(str(tmp_path / "v.bin"))
    np.testing.assert_allclose([theirs.wv[word] for word in words], model[words], atol=1e-6)
    assert theirs.sg == (name == "fasttext_mini") and theirs.negative == 5 and theirs.window == 5
    np.testing.assert_array_equal(
        theirs.syn1neg[theirs.wv.key_to_index["in"]], _output(model, "in")
    )
    fasttext = pytest.importorskip("fasttext")
    original = fasttext.load_model(str(tmp_path / "v.bin"))
    np.testing.assert_allclose(
        [original.get_word_vector(word) for word in words], model[words], atol=1e-6
    )


def _output(model, word):
    return model.table.settings["output"][model.words.index(word)]

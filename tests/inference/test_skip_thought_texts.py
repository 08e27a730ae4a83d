"""Vectors of texts from skip-thought in numpy, alone and side by side; its new words beside
scikit-learn's regression."""

import json

import numpy as np
import pytest

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.core import spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Vocab
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.data.tokenizers.vocabularies import make
from ptm_jax.inference.pretrained import Pretrained
from ptm_jax.inference.text.vectors import SideBySide
from ptm_jax.inference.words.word_vectors import WordVectors
from ptm_jax.systems.recurrent.skip_thought import skip_thought
from support.recurrences import defined, gru
from support.tiny_models import TEXTS, build, drawn

NEW = ["palace", "Prince", "prince", "new_york", "Berlin"]


def model_of(kind):
    tokenizer = make(TokenizerSpec(kind="word", specials="t5", vocab=13), TEXTS)
    system = spec.respell(skip_thought("skip_thought_tiny", kind, 4, 3), Vocab, tokenizer.vocab)
    return Pretrained(system, drawn(system), tokenizer)


def vector(model, text):
    """Of the text and its end: the state of the last token, and that of the first in the other
    direction."""
    params, ids = model.params["main"]["encoder"], [*model.tokenizer.encode(text), model.vocab.eos]
    x, layer, ones = (
        np.asarray(params["embed"]["token"])[ids],
        params["sentence"],
        np.ones(len(ids), int),
    )
    if "state" in layer:
        return defined(gru, layer, x, ones)[0][-1]
    ways = (
        defined(gru, layer["right"], x, ones)[0][-1],
        defined(gru, layer["left"], x, ones, backward=True)[0][0],
    )
    return np.concatenate(ways)


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


@pytest.mark.full
def test_a_text_has_the_vector_from_which_its_neighbours_are_decoded():
    texts, models = [TEXTS[0], "the king"], [model_of(kind) for kind in ("uni", "bi")]
    own = [np.stack([vector(model, text) for text in texts]) for model in models]
    for model, expected in zip(models, own, strict=True):
        np.testing.assert_allclose(model.encode(texts), expected, atol=1e-5)
    both = SideBySide(models)
    np.testing.assert_allclose(
        both.encode(texts), np.concatenate([unit(part) for part in own], -1), atol=1e-5
    )
    assert both.search(["the king"], texts, 1)[0][0].index == 1


@pytest.mark.full
def test_a_new_word_has_the_image_of_its_vector_under_the_map_of_the_words_that_both_know(
    tmp_path, capsys
):
    linear_model = pytest.importorskip("sklearn.linear_model")
    model, draw = model_of("uni"), np.random.default_rng(1)
    known = ["king", "Queen", "queen", "house", "city", "the", "sees"]
    vectors = WordVectors.of(
        ["</s>", *known, *NEW], draw.normal(size=(1 + len(known) + len(NEW), 5))
    )
    vectors.save(tmp_path / "vectors.txt")
    model.save(tmp_path / "model")
    words = [
        "import",
        str(tmp_path / "model"),
        "--out",
        str(tmp_path / "out"),
        "--json",
        "--expand",
    ]
    assert main([*words, str(tmp_path / "vectors.txt")]) == 0
    assert json.loads(capsys.readouterr().out)["new"] == 3
    found, shared = ptm_jax.load(tmp_path / "out"), [word for word in known if word != "Queen"]
    old, new = (
        np.asarray(one.params["main"]["encoder"]["embed"]["token"]) for one in (model, found)
    )
    np.testing.assert_array_equal(new[: len(old)], old)
    fitted = linear_model.LinearRegression(fit_intercept=False)
    fitted.fit(vectors[shared], old[[model.tokenizer.id(word) for word in shared]])
    for word in ("palace", "prince", "berlin"):
        source = "Berlin" if word == "berlin" else word
        np.testing.assert_allclose(
            new[found.tokenizer.id(word)], fitted.predict(vectors[[source]])[0], atol=1e-5
        )
    assert found.tokenizer.id("new_york") is None and found.module.heads == {}
    expected = vector(found, "the Prince sees Berlin")
    np.testing.assert_allclose(found.encode(["the Prince sees Berlin"])[0], expected, atol=1e-5)


def test_a_table_that_cannot_be_mapped_is_refused():
    model = model_of("uni")
    with pytest.raises(UserError, match="knows 1 of the 2 words, too few for a map from width 2"):
        model.expanded(WordVectors.of(["king", "paris"], np.eye(2)))
    with pytest.raises(
        UserError, match="bert_mini has no plain table of its words|takes no new words"
    ):
        build("bert").expanded(WordVectors.of(["king", "paris"], np.eye(2)))

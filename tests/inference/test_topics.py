"""LSA and LDA: vectors of new texts equal scikit-learn's own, weights those by hand, a folder gives
the model back."""

import json

import numpy as np
import pytest

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.core.errors import UserError
from ptm_jax.inference.words import topic_models as topics

WORDS = {
    "pets": "cat dog fur paw tail bark".split(),
    "money": "bank loan rate debt cash coin".split(),
}


def texts(count=60):
    draw, names = np.random.default_rng(0), list(WORDS)
    return [
        " ".join(draw.choice(WORDS[names[n % 2]], 9)) + (" the" if n % 3 else "")
        for n in range(count)
    ]


def one_kind_is_apart(vectors):
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = unit @ unit.T
    return (cosines[::2, ::2].mean() + cosines[1::2, 1::2].mean()) / 2 - cosines[::2, 1::2].mean()


@pytest.mark.status("ptm topics lsa", "matches")
@pytest.mark.parametrize("weights", ["tfidf", "logentropy"])
def test_lsa_is_the_decomposition(weights, tmp_path):
    given, new = texts(), ["dog and the cat", "the loan", "unknown"]
    model = topics.LSA(width=4, weights=weights).fit(given)
    words = list(model.words)
    counts = np.array(
        [[text.split().count(word) for word in words] for text in [*given, *new]], float
    )
    if weights == "tfidf":
        pipeline = (
            pytest.importorskip("sklearn.feature_extraction.text")
            .TfidfVectorizer(vocabulary=words)
            .fit(given)
        )
        x = pipeline.transform([*given, *new]).toarray()
    else:
        p = counts[:60] / counts[:60].sum(0)
        entropy = (p * np.log(np.where(p > 0, p, 1))).sum(0)
        x = np.log1p(counts) * (1 + entropy / np.log(60))
    singular = np.linalg.svd(x[:60], full_matrices=False)[1]
    np.testing.assert_allclose(np.linalg.norm(model.vectors, axis=0), singular[:4], rtol=1e-5)
    found = model.encode([*given, *new])
    low = np.linalg.svd(x[:60], full_matrices=False)[2][:4]
    np.testing.assert_allclose(found @ found.T, x @ low.T @ low @ x.T, atol=1e-5)
    assert not found[-1].any() and one_kind_is_apart(found[:60]) > 0.5
    back(model, new, tmp_path)


@pytest.mark.status("ptm topics lda", "matches")
def test_lda_is_scikit_learns(tmp_path):
    decomposition = pytest.importorskip("sklearn.decomposition")
    given, new = texts(), ["dog and the cat", "the loan"]
    model = topics.LDA(topics=2, passes=5).fit(given)
    counts = np.array(
        [[text.split().count(word) for word in model.words] for text in [*given, *new]], float
    )
    peer = decomposition.LatentDirichletAllocation(
        2, learning_method="online", random_state=0, max_iter=5
    ).fit(counts[:60])
    np.testing.assert_allclose(model.encode([*given, *new]), peer.transform(counts), rtol=1e-4)
    found = model.encode(given)
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-5)
    assert one_kind_is_apart(found) > 0.5
    kinds = {
        frozenset(set(model.top_words(n, 6)) & set(words))
        for n in (0, 1)
        for words in WORDS.values()
    }
    assert {frozenset(words) for words in WORDS.values()} <= kinds
    back(model, new, tmp_path)


def back(model, new, folder):
    model.save(folder / "model")
    loaded = ptm_jax.load(folder / "model")
    assert isinstance(loaded, topics.TopicModel) and repr(loaded) == repr(model)
    np.testing.assert_array_equal(
        loaded.encode(new, normalize=True), model.encode(new, normalize=True)
    )
    np.testing.assert_array_equal(loaded["dog"], model["dog"])
    assert {best.word for best in loaded.most_similar("dog", top=2)} < set(WORDS["pets"])


def test_the_command_fits_and_predicts(tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("\n\n".join(texts()))
    command = [
        "topics",
        "lsa",
        "--data",
        str(tmp_path / "texts.txt"),
        "--out",
        str(tmp_path / "lsa"),
        "--width",
        "3",
    ]
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["width"] == 3
    assert main(["predict", str(tmp_path / "lsa"), "--task", "embed", "--text", "cat dog"]) == 0
    assert len(json.loads(capsys.readouterr().out)[0]["vector"]) == 3
    assert (
        main(["predict", str(tmp_path / "lsa"), "--task", "similar", "--text", "cat", "--top", "2"])
        == 0
    )
    assert main(command) == 1 and "lsa" in capsys.readouterr().err


def test_too_little_text_and_damaged_folders_are_one_line(tmp_path):
    with pytest.raises(UserError, match="no 300 singular values"):
        topics.LSA().fit(texts())
    with pytest.raises(UserError, match="no words"):
        topics.LDA().fit(["a b", "c"])
    model = topics.LSA(width=2).fit(texts())
    model.save(tmp_path / "model")
    (tmp_path / "model" / topics.ARRAYS).write_bytes(b"PK")
    with pytest.raises(UserError, match="is no model of topics"):
        ptm_jax.load(tmp_path / "model")

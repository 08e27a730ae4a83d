"""Files of word vectors against gensim, and fastText's own library: theirs read by us, ours read by
them."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ptm_jax
from ptm_jax.convert.words import wordfiles
from ptm_jax.core.errors import UserError

try:
    import gensim
    from gensim.models import KeyedVectors
    from gensim.models import fasttext as peer
except ModuleNotFoundError:
    gensim = None
HERE = importlib.util.find_spec("fasttext")
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        gensim is None, reason="gensim is not installed; make test-full installs it"
    ),
]
NEW = ["nighthood", "café", "naïveté", "の", "unheard-of", "zzxq"]
BINS = ("lee_fasttext.bin", "lee_fasttext_new.bin", "crime-and-punishment.bin", "toy-model.bin",
    "toy-model-pretrained.bin",
        "non_ascii_fasttext.bin")  # fmt: skip


@pytest.fixture(scope="module")
def theirs():
    return Path(gensim.__file__).parent / "test" / "test_data"


@pytest.mark.parametrize("name", BINS)
def test_fasttext_models_give_gensims_vectors_of_known_and_unseen_words(theirs, name, tmp_path):
    """Gensim gives `</s>` n-grams, fastText since version 11 does not: that word is compared with
    the .vec file."""
    model, known = ptm_jax.load(theirs / name), peer.load_facebook_vectors(str(theirs / name))
    words = [word for word in model.words if word != "</s>"]
    assert known.index_to_key == list(model.words)
    np.testing.assert_allclose(model[words], np.stack([known[word] for word in words]), atol=1e-6)
    np.testing.assert_allclose(model[NEW], np.stack([known[word] for word in NEW]), atol=1e-6)
    files = model.save(tmp_path / "ours.bin")
    assert files[0].read_bytes()[8:] == (theirs / name).read_bytes()[8:] or name != "toy-model.bin"
    again = peer.load_facebook_vectors(str(files[0]))
    np.testing.assert_allclose(np.stack([again[word] for word in NEW]), model[NEW], atol=1e-6)


@pytest.mark.parametrize("name", ["lee_fasttext", "crime-and-punishment", "toy-model"])
def test_fasttexts_own_text_has_the_vectors_of_its_model(theirs, name):
    model, text = ptm_jax.load(theirs / f"{name}.bin"), ptm_jax.load(theirs / f"{name}.vec")
    assert list(model.words) == list(text.words)
    np.testing.assert_allclose(model.vectors, text.vectors, atol=6e-5)  # five digits


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("euclidean_vectors.bin", {"binary": True}), ("poincare_vectors.bin", {"binary": True}),
        ("high_precision.kv.bin", {"binary": True}), ("high_precision.kv.txt", {}),
        ("lee_fasttext.vec", {}),
        ("test_glove.txt", {"no_header": True}), ("word2vec_pre_kv_c", {}),
    ],
)  # fmt: skip
def test_word2vec_and_glove_files_are_read_as_gensim_reads_them(theirs, name, options):
    model, known = (
        ptm_jax.load(theirs / name),
        KeyedVectors.load_word2vec_format(str(theirs / name), **options),
    )
    assert list(model.words) == known.index_to_key
    np.testing.assert_array_equal(model.vectors, known.vectors)


SAVED = ("model-from-gensim-3.8.0.w2v", "ft_model_2.3.0", "w2v-lee-v0.12.0", "word2vec_3.3",
    "word2vec_pre_kv_sep_py3",
         "word2vec_pre_kv_py2", "compatible-hash-true.model",
         "old_w2v_models/w2v_1.0.0.mdl")  # fmt: skip


@pytest.mark.parametrize("name", SAVED)
def test_saved_models_of_gensim_are_read_without_running_them(theirs, name):
    model = ptm_jax.load(theirs / name, allow_pickle=True)
    try:
        known = (
            (peer.FastText if "compatible" in name else gensim.models.Word2Vec)
            .load(str(theirs / name))
            .wv
        )
    except (AttributeError, ImportError):
        known = None  # a model that gensim 4 itself no longer loads
    if known is not None:
        assert set(model.words) == set(known.index_to_key)
        np.testing.assert_allclose(model[known.index_to_key], known.vectors, atol=1e-6)
    assert model.table.counts is not None


@pytest.mark.parametrize("kind", ["Word2Vec", "FastText", "Doc2Vec"])
@pytest.mark.parametrize("settings", [dict(hs=1, negative=0), dict(hs=1, negative=3), {}])
def test_models_with_codes_of_words_and_keys_that_are_numbers(tmp_path, kind, settings):
    """Hierarchical softmax stores arrays of Python objects, which are no vectors."""
    texts = [["the", "cat", "sat"], ["the", "dog", "ran"]] * 20
    settings = {**settings, "vector_size": 4, "min_count": 1, "epochs": 1}
    if kind == "Doc2Vec":
        tagged = gensim.models.doc2vec.TaggedDocument
        model = gensim.models.Doc2Vec([tagged(t, [n]) for n, t in enumerate(texts)], **settings)
        model.dv.save(str(tmp_path / "tags.kv"))
        tags = wordfiles.read(tmp_path / "tags.kv", allow_pickle=True)
        assert list(tags.words) == list(map(str, range(40)))
        np.testing.assert_array_equal(tags.whole(), model.dv.vectors)
    else:
        model = vars(gensim.models)[kind](texts, **settings)
    model.save(str(tmp_path / "m"))
    read = wordfiles.read(tmp_path / "m", allow_pickle=True)
    assert list(read.words) == list(model.wv.index_to_key) and read.counts is not None
    np.testing.assert_allclose(read.whole(), model.wv.vectors, atol=1e-6)


@pytest.mark.parametrize(
    "keys", [[1, 2, 10], [np.int64(3), np.int32(-4), 0], ["a", 7, "8"], [1 << 40, "x", "y z"]]
)
def test_keys_that_are_whole_numbers(tmp_path, keys):
    vectors = KeyedVectors(3)
    vectors.add_vectors(keys, np.eye(3, dtype=np.float32))
    vectors.allocate_vecattrs(attrs=["note"], types=[object])
    vectors.set_vecattr(keys[0], "note", "text")
    vectors.save(str(tmp_path / "n.kv"))
    read = wordfiles.read(tmp_path / "n.kv", allow_pickle=True)
    assert list(read.words) == list(map(str, keys))
    np.testing.assert_array_equal(read.whole(), np.eye(3))


def test_a_key_of_another_kind_is_named(tmp_path):
    vectors = KeyedVectors(3)
    vectors.add_vectors(["a", ("b", "c")], np.eye(3, dtype=np.float32)[:2])
    vectors.save(str(tmp_path / "n.kv"))
    with pytest.raises(UserError, match=r"the key \('b', 'c'\) is neither a word nor"):
        wordfiles.read(tmp_path / "n.kv", allow_pickle=True)


def test_gensim_reads_what_we_write_in_every_format(theirs, tmp_path):
    model = ptm_jax.load(theirs / "euclidean_vectors.bin")
    load = {
        "word2vec": KeyedVectors.load_word2vec_format,
        "word2vec-binary": lambda path: KeyedVectors.load_word2vec_format(path, binary=True),
        "glove": lambda path: KeyedVectors.load_word2vec_format(path, no_header=True),
        "keyed-vectors": KeyedVectors.load,
        "fasttext-bin": lambda path: peer.load_facebook_model(path).wv,
    }
    assert load.keys() == wordfiles.FORMATS.keys() - {"folder"}
    for format, read in load.items():
        (path, *_) = model.save(tmp_path / format, format)
        found = read(str(path))
        assert found.index_to_key == list(model.words)
        np.testing.assert_array_equal(found.vectors, model.vectors)


def test_gensims_keyed_vectors_come_back_with_counts_and_ngrams(theirs, tmp_path):
    for name in ("plain", "ngrams"):
        known = KeyedVectors.load_word2vec_format(
            str(theirs / "euclidean_vectors.bin"), binary=True
        )
        if name == "ngrams":
            known = peer.load_facebook_vectors(str(theirs / "lee_fasttext_new.bin"))
        known.save(str(tmp_path / f"{name}.kv"), separately=["vectors"] if name == "plain" else [])
        model = ptm_jax.load(tmp_path / f"{name}.kv", allow_pickle=True)
        np.testing.assert_allclose(model.vectors, known.vectors, atol=1e-6)
        model.save(tmp_path / f"{name}-2.kv")
        again = type(known).load(str(tmp_path / f"{name}-2.kv"))
        words = [*model.words[:50], *(NEW if name == "ngrams" else ())]
        np.testing.assert_allclose(
            np.stack([again[word] for word in words]), model[words], atol=1e-6
        )
        assert "count" not in known.expandos or again.get_vecattr(
            model.words[3], "count"
        ) == known.get_vecattr(model.words[3], "count")


def test_neighbours_and_analogies_are_gensims(theirs):
    model = ptm_jax.load(theirs / "euclidean_vectors.bin")
    known = KeyedVectors.load_word2vec_format(str(theirs / "euclidean_vectors.bin"), binary=True)

    def same(ours, theirs):
        return [word for word, _ in ours] == [word for word, _ in theirs] and np.allclose(
            [score for _, score in ours], [score for _, score in theirs], atol=1e-5
        )

    assert same(model.most_similar("war"), known.most_similar("war"))
    assert same(
        model.most_similar(["war", "the"], ["of"], 7), known.most_similar(["war", "the"], ["of"], 7)
    )
    assert same(model.most_similar(model["war"], top=3), known.most_similar(known["war"], topn=3))
    assert same(model.most_similar("war", among=500), known.most_similar("war", restrict_vocab=500))
    assert same(
        model.analogy("war", "the", "of", top=5), known.most_similar(["the", "of"], ["war"], 5)
    )
    ours = model.analogy("war", "the", "of", method="3cosmul", top=5)
    assert same(ours, known.most_similar_cosmul(["the", "of"], ["war"], 5))
    assert model.similarity("war", "the") == pytest.approx(known.similarity("war", "the"), abs=1e-6)


@pytest.mark.skipif(
    HERE is None, reason="no wheel of fastText is installed; make test-full installs one"
)
class TestFastText:
    """fastText's own library trains small models, reads ours and predicts."""

    TEXT = [
        "the night was dark",
        "café naïveté the day",
        "a dark and stormy night",
        "day after day after day",
    ]

    def trained(self, tmp_path, supervised=False, quantise=None, **options):
        """A model that was trained in a process of its own: beside torch, fastText's training may
        meet NaN."""
        path, out = tmp_path / "text.txt", tmp_path / ("theirs.ftz" if quantise else "theirs.bin")
        lines = self.TEXT * 20
        if supervised:
            lines = [f"__label__{'night' if 'night' in text else 'day'} {text}" for text in lines]
            lines += [f"__label__rare {text} indeed" for text in self.TEXT[:2]]
        path.write_text("\n".join(lines) + "\n")
        options |= dict(input=str(path), dim=8, thread=1, verbose=0, minCount=1)
        script = (
            "import fasttext, json, sys\nkind, options, quantise, out = json.loads(sys.argv[1])\n"
        )
        script += (
            "model = vars(fasttext)[kind](**options)\n_ = quantise and "
            "model.quantize(**quantise)\nmodel.save_model(out)"
        )
        given = json.dumps(
            [f"train_{'' if supervised else 'un'}supervised", options, quantise, str(out)]
        )
        subprocess.run([sys.executable, "-c", script, given], check=True)
        import fasttext

        return fasttext.load_model(str(out)), ptm_jax.load(out)

    @pytest.mark.parametrize("model", ["skipgram", "cbow"])
    def test_vectors(self, tmp_path, model):
        import fasttext

        known, ours = self.trained(tmp_path, model=model, epoch=2, bucket=500)
        words = [*known.get_words(), *NEW]
        np.testing.assert_allclose(
            ours[words], np.stack([known.get_word_vector(word) for word in words]), atol=1e-6
        )
        ours.save(tmp_path / "ours.bin")
        assert (tmp_path / "ours.bin").read_bytes() == (tmp_path / "theirs.bin").read_bytes()
        ours.save(tmp_path / "v.vec")
        ptm_jax.load(tmp_path / "v.vec").save(tmp_path / "v.bin", "fasttext-bin")  # without n-grams
        again = fasttext.load_model(str(tmp_path / "v.bin"))
        np.testing.assert_allclose(
            np.stack([again.get_word_vector(word) for word in ours.words]), ours.vectors, atol=1e-6
        )

    @pytest.mark.parametrize("loss", ["softmax", "hs", "ova", "ns"])
    @pytest.mark.parametrize("quantised", [False, True])
    def test_classes(self, tmp_path, loss, quantised):
        """Probabilities to 1e-4: fastText adds 1e-5 to each factor under the logarithm."""
        options = dict(loss=loss, epoch=20, wordNgrams=3, minn=2, maxn=4, bucket=2000)
        quantise = (
            dict(qnorm=True, cutoff=300, input=str(tmp_path / "text.txt"), retrain=False)
            if quantised
            else None
        )
        known, model = self.trained(tmp_path, True, quantise, **options)
        texts = [*self.TEXT, "never seen words of a night", "", "the  \t day"]
        for text, ours in zip(texts, model.classify(texts), strict=True):
            labels, scores = known.predict(text, k=-1)
            theirs = {
                label.removeprefix("__label__"): score
                for label, score in zip(labels, scores, strict=True)
            }
            assert theirs and ours.keys() == theirs.keys()
            assert {name: ours[name] for name in theirs} == pytest.approx(theirs, abs=1e-4)

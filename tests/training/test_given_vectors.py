"""Vectors of tokens as initial parameters of an embedding layer: which rows are filled, and with
what."""

import re
import types

import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax import systems
from ptm_jax.convert.words import wordfiles
from ptm_jax.convert.words.wordtable import Subwords, WordTable
from ptm_jax.core.errors import UserError
from ptm_jax.data.tokenizers import vocabularies
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.data.tokenizers.words import spaced
from ptm_jax.knowledge.lexicons import Entities
from ptm_jax.training.start import given_vectors, init_models, initial
from ptm_jax.training.start.init_models import Initial
from support import splitting

PIECES = ["[PAD]", "[UNK]", "the", "##s", "cat", "dog"]


def tokenizer(pieces=PIECES, inside=(3,), special=("[PAD]", "[UNK]")):
    starts = [i not in inside and piece not in special for i, piece in enumerate(pieces)]
    ids = {piece: i for i, piece in enumerate(pieces) if piece in special}
    return types.SimpleNamespace(
        pieces=pieces, word_starts=lambda: np.array(starts), special_pieces=ids
    )


def params(width=3):
    def table(number):
        return jnp.arange(6.0 * width).reshape(6, width) + 100 * number

    towers = {
        f"t{n}": {"encoder": {"embed": {"token": table(n), "place": table(7)}}} for n in (1, 2)
    }
    return {**towers, "t1": {**towers["t1"], "heads_mlm": {"table": table(5)}}}


@pytest.fixture
def vectors(tmp_path):
    words = ["dog", "the", "bird", "[UNK]", "s"]
    rows = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    wordfiles.write(tmp_path / "v.vec", WordTable(words=words, rows=rows))
    return str(tmp_path / "v.vec"), dict(zip(words, rows, strict=True))


@pytest.mark.parametrize("tower", ["", "t2"])
def test_rows_of_words_that_the_file_has_are_the_files(vectors, tower, capsys):
    path, known = vectors
    before = params()
    after = initial.begin(before, ((tower, path),), systems.get("bert_tiny"), tokenizer)
    for name in ("t1", "t2"):
        expected = np.array(before[name]["encoder"]["embed"]["token"])
        if tower in ("", name):
            expected[2], expected[5] = known["the"], known["dog"]
        np.testing.assert_array_equal(after[name]["encoder"]["embed"]["token"], expected)
        np.testing.assert_array_equal(
            after[name]["encoder"]["embed"]["place"], before[name]["encoder"]["embed"]["place"]
        )
    np.testing.assert_array_equal(
        after["t1"]["heads_mlm"]["table"], before["t1"]["heads_mlm"]["table"]
    )
    assert (
        capsys.readouterr().err
        == f"{path}: vectors of 2 of 6 tokens; the others keep their initial values\n"
    )


@pytest.mark.parametrize(
    ("width", "pieces", "at", "line"),
    [
        (4, PIECES, "", "width 3, and t1/encoder/embed/token rows of width 4"),
        (3, ["[PAD]", "[UNK]", "a", "##b", "c", "d"], "", "none of the 6 tokens"),
        (3, PIECES[:5], "", "no encoder has a table of them"),
        (3, PIECES, "t3/embeddings", "no encoder of t3 has a table"),
    ],
)
def test_what_does_not_fit_is_one_line(vectors, width, pieces, at, line):
    with pytest.raises(UserError, match=line) as error:
        given_vectors.fill(params(width), Initial(at, vectors[0]), tokenizer(pieces))
    assert "\n" not in str(error.value)


def test_pieces_of_other_tokenizers_are_compared_as_words():
    marked = tokenizer(["<s>", "Ġthe", "s", "Ġdog"], inside=(2,), special=("<s>",))
    assert given_vectors.keys_of(marked) == [None, "the", "##s", "dog"]
    assert given_vectors.keys_of(tokenizer()) == [None, None, "the", "##s", "cat", "dog"]


def test_an_open_vocabulary_fills_the_rows_that_the_table_has(vectors):
    path, known = vectors
    words = spaced()
    words.encode_batch(
        ["the dog sees a bird"]
    )  # the next ids after the special tokens, in this order
    first = words.pieces.index("the")
    before = {"main": {"encoder": {"embed": {"token": jnp.ones((first + 2, 3))}}}}
    after = given_vectors.fill(before, Initial("main/embeddings", path), words)["main"]["encoder"][
        "embed"
    ]["token"]
    assert after.shape == (first + 2, 3)  # no row of "sees", "a" and "bird"
    np.testing.assert_array_equal(after[first:], [known["the"], known["dog"]])
    np.testing.assert_array_equal(after[:first], np.ones((first, 3)))


def test_ngrams_give_vectors_to_unseen_words_but_not_to_pieces_inside_words():
    draw = np.random.default_rng(1)
    subwords = Subwords(
        rows=draw.normal(size=(50, 3)).astype(np.float32), shortest=2, longest=3, buckets=50
    )
    table = WordTable(
        words=["dog"], rows=draw.normal(size=(1, 3)).astype(np.float32), subwords=subwords
    )
    rows, found = given_vectors.rows_of(table, given_vectors.keys_of(tokenizer()))
    assert found.tolist() == [False, False, True, False, True, True]
    np.testing.assert_allclose(
        rows[4:], table.vectors(["cat", "dog"], np.array([-1, 0])), rtol=1e-6
    )


def test_a_table_of_a_run_is_matched_by_token(tmp_path, monkeypatch):
    """The rows of a model whose vocabulary has another order."""
    texts = ["the cat and the dog and the bird"] * 3
    spec = TokenizerSpec(kind="word", vocab=50, specials="t5", min_count=2)
    made = vocabularies.make(spec, texts)
    made.save(tmp_path / "tokenizer")
    rows = np.random.default_rng(2).normal(size=(len(made.pieces), 3)).astype(np.float32)
    monkeypatch.setattr(
        init_models,
        "restore_params",
        lambda folder: ({"main": {"encoder": {"token": rows}}}, {}, 0),
    )
    (tmp_path / "config.json").write_text("{}")
    table = given_vectors.read(Initial("", str(tmp_path)))
    assert set(table.words) == {"the", "and", "cat", "dog", "bird"}
    for word, row in zip(table.words, table.rows, strict=True):
        np.testing.assert_array_equal(row, rows[made.pieces.index(word)])


def test_vectors_alone_are_no_model_to_fine_tune(vectors):
    from ptm_jax.tuning import finetuning

    with pytest.raises(
        UserError, match="name the model that they fill: --init main=MODEL embeddings="
    ):
        finetuning.experiment("trec6", vectors[0], ["nowhere"])


def test_vectors_of_entities_are_matched_by_identifier(tmp_path, capsys):
    """KnowBERT's table and ERNIE's (`lexicons` of an encoder); row 0 is none."""
    (tmp_path / "names.tsv").write_text("cat\tQ2\t0.7\ncat\tQ1\t0.3\nhat\tQ3\t1\n")
    rows = np.arange(6.0, dtype=np.float32).reshape(2, 3) + 1
    wordfiles.write(tmp_path / "v.vec", WordTable(words=["Q3", "Q1"], rows=rows))
    path, at = str(tmp_path / "v.vec"), "main/encoder/entities"
    lexicons = {at: Entities(file=str(tmp_path / "names.tsv"), entities=5)}
    before = {"main": {"encoder": {"entities": jnp.full((5, 3), 9.0)}}}
    table = np.asarray(
        given_vectors.fill_entities(before, Initial(at, path), lexicons)["main"]["encoder"][
            "entities"
        ]
    )
    np.testing.assert_array_equal(table, [[0] * 3, rows[1], [9] * 3, rows[0], [9] * 3])
    assert (
        capsys.readouterr().err
        == f"{path}: vectors of 2 of 3 entities; the others keep their values\n"
    )
    assert Initial(at, "runs/transe").vectors and Initial(at, "runs/transe").entities
    with pytest.raises(
        UserError, match="names no table of entities; there are: main/encoder/entities"
    ):
        given_vectors.fill_entities(
            before, Initial("main/encoder/knowledge_0/entities", path), lexicons
        )
    wide = {"main": {"encoder": {"entities": jnp.zeros((5, 4))}}}
    with pytest.raises(
        UserError, match="vectors of width 3, and main/encoder/entities rows of width 4"
    ):
        given_vectors.fill_entities(wide, Initial(at, path), lexicons)


def test_layers_of_a_plain_bert_are_those_of_ernie():
    encoder = systems.get("ernie_thu_mini").towers["main"].encoder
    layers = {
        "stack/block/ffn/up/kernel": np.arange(2),
        "stack/block/attention/out/bias": np.arange(2),
        "embed/token": "t",
    }
    found = encoder.of_plain(layers)
    assert {
        name: leaf if isinstance(leaf, str) else leaf.tolist() for name, leaf in found.items()
    } == {
        "stack/block/ffn/up/kernel": [0],
        "fusion/block/up/kernel": [1],
        "stack/block/attention/out/bias": [0],
        "fusion/block/attention/out/bias": [1],
        "embed/token": "t",
    }
    assert encoder.of_plain(found) == found
    with pytest.raises(UserError, match="the model has 3 layers, and this encoder 2"):
        encoder.of_plain({"stack/block/ffn/up/kernel": np.arange(3)})


@pytest.mark.parametrize(("name", "table"), [("kt_net_mini", "memories_0"), ("bert_mk_mini", "")])
def test_what_a_plain_bert_lacks_is_drawn_and_its_concepts_may_be_given(name, table):
    """KT-NET and BERT-MK begin with a BERT of their size, and with the vectors of their graph."""
    system = systems.get(name)
    own, bert = splitting.parameters(name), splitting.parameters("bert_mini")
    encoder = system.towers["main"].encoder
    added = {path for path in own if re.search(encoder.beyond, path)}
    body = {path for path in bert if path.startswith("main/encoder/")}
    plain = {path.removeprefix("main/encoder/"): np.zeros(2) for path in body}
    moved = {f"main/encoder/{path}" for path in encoder.of_plain(plain)}
    assert {path for path in own if path.startswith("main/encoder/")} - added == moved
    ((path, lexicon),) = encoder.lexicons.items()
    assert path == f"{table}/entities".strip("/") and f"main/encoder/{path}" in added
    assert (
        lexicon.names() == sorted({*lexicon.names()})
        and len(lexicon.names()) < own[f"main/encoder/{path}"][0]
    )

"""TwinBERT: vectors of single texts beside a definition in numpy, its crossing layers, and stored
texts."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.compress import catalogue, recipes
from ptm_jax.compress.students.twins import CrossingHead, TwinBERT
from ptm_jax.core import facts
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten
from ptm_jax.core.system import adapted
from ptm_jax.core.types import Vocab
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.data.tokenizers.vocabularies import make
from ptm_jax.inference.text.stored_texts import StoredTexts
from ptm_jax.statistics.tri_letters import LETTERS, ROWS, TRIGRAMS, TriLetters, trigrams
from ptm_jax.tuning.compressing import compress
from support import tiny_checkpoint
from support.classifier import VOCAB, classifier

PAIR = [1, 5, 6, 7, 2, 8, 9, 2, 0, 0]  # [CLS] a [SEP] b [SEP] and padding
SMALL = {"layers": 2, "width": 8, "heads": 2, "hidden": 12}


def letters_of(vocab):
    fact = TriLetters(longest=4)
    return fact.filled(fact.stand_in(vocab))


@functools.cache
def network(pooling="weighted", crossing="cosine"):
    """(tower, parameters drawn by numpy)."""
    student = TwinBERT(**SMALL, pooling=pooling, crossing=crossing, letters=letters_of(VOCAB))
    tower = student.tower(classifier().towers["main"])
    shapes = jax.eval_shape(
        lambda b: tower.init(jax.random.key(0), b, method="initialise"), given(PAIR)
    )["params"]
    draw = np.random.default_rng(0)
    return tower, jax.tree.map(
        lambda leaf: jnp.asarray(draw.normal(0, 0.3, leaf.shape), jnp.float32), shapes
    )


def given(*rows):
    ids = np.zeros((len(rows), max(map(len, rows))), np.int32)
    for row, some in zip(ids, rows, strict=True):
        row[: len(some)] = some
    return {
        "input_ids": jnp.asarray(ids),
        "segment_ids": jnp.asarray(ids > 0, jnp.int32),
        "rows": jnp.arange(len(rows)),
    }


def encoded(tower, params, *rows):
    run = jax.jit(lambda batch: tower.apply({"params": params}, batch, method="encode"))
    return run(given(*rows))


@pytest.mark.parametrize("pooling", ["weighted", "first"])
def test_a_text_has_the_vector_that_it_has_alone(pooling):
    tower, params = network(pooling)
    pair = encoded(tower, params, PAIR)
    first, second = (
        encoded(tower, params, row).extra["vectors"][0, 0]
        for row in ([1, 5, 6, 7, 2], [1, 8, 9, 2])
    )
    query, keyword = tower.heads["classify"].reads(pair, given(PAIR))
    np.testing.assert_allclose(query[0], first, atol=1e-5)
    np.testing.assert_allclose(keyword[0], second, atol=1e-5)
    states, sides = np.asarray(pair.hidden, np.float64)[0], np.asarray(pair.extra["sides"])[0]
    assert sides.tolist() == [1, 1, 1, 1, 2, 2, 2, 0, 0, 0]
    own = states[sides == 2]
    if pooling == "first":
        expected = own[0]
    else:
        weighting = (
            flatten(params)["encoder/weighting/kernel"],
            flatten(params)["encoder/weighting/bias"],
        )
        weights = np.exp(own @ np.asarray(weighting[0], np.float64) + weighting[1])
        expected = (weights / weights.sum() * own).sum(0)
    np.testing.assert_allclose(keyword[0], expected, atol=1e-5)


def test_letter_trigrams_by_hand():
    letter = LETTERS.index

    def code(gram):
        return 1 + (letter(gram[0]) * 37 + letter(gram[1])) * 37 + letter(gram[2])

    assert trigrams("Cat") == [code("#ca"), code("cat"), code("at#")]
    assert trigrams("ing", begins=False) == [code("ing"), code("ng#")] and trigrams("?!") == []
    tokenizer = make(TokenizerSpec(kind="wordpiece", vocab=17), ["a cat sat", "cats sat"] * 5)
    table = TriLetters().of_tokenizer(tokenizer)
    number = tokenizer.id("cat")
    assert table.shape == (len(tokenizer.pieces), 20) and table[number, :4].tolist() == [
        *trigrams("cat"),
        0,
    ]
    assert (
        table[tokenizer.vocab.cls].tolist() == [1 + TRIGRAMS + 2] + [0] * 19 and table.max() < ROWS
    )


def test_a_word_is_the_sum_of_its_trigrams_and_its_position():
    tower, params = network()
    layer = encoded(tower, params, PAIR).layers[0][0]
    table, places = (
        np.asarray(flatten(params)[f"encoder/embed/{name}"])
        for name in ("trigrams", "position/table")
    )
    codes, ids = letters_of(VOCAB).values, [1, 5, 6, 7, 1, 8, 9]
    for place, (word, at) in enumerate(zip(ids, [0, 1, 2, 3, 0, 1, 2], strict=True)):
        expected = sum(table[code] for code in codes[word] if code) + places[at]
        np.testing.assert_allclose(layer[place], expected, atol=1e-5)


def test_the_crossing_layers_are_their_formulas():
    q, k = np.random.default_rng(1).normal(size=(2, 3, 8))
    p = flatten(network(crossing="cosine")[1])
    cosine = (q * k).sum(-1) / np.linalg.norm(q, axis=-1) / np.linalg.norm(k, axis=-1)
    expected = p["heads_classify/scale"] * cosine + p["heads_classify/bias"]

    def score(crossing):
        return CrossingHead(crossing).apply(
            {"params": network(crossing=crossing)[1]["heads_classify"]},
            jnp.asarray(q),
            jnp.asarray(k),
        )

    np.testing.assert_allclose(score("cosine"), np.stack([0 * expected, expected], -1), atol=1e-5)
    p = {
        path.removeprefix("heads_classify/"): np.asarray(leaf)
        for path, leaf in flatten(network(crossing="residual")[1]).items()
    }
    x = np.maximum(q, k)
    f = np.maximum(x @ p["up/kernel"] + p["up/bias"], 0) @ p["down/kernel"] + p["down/bias"]
    expected = (x + f) @ p["score/kernel"] + p["score/bias"]
    np.testing.assert_allclose(score("residual")[:, 1], expected[:, 0], atol=1e-4)


def test_it_fits_two_classes_and_a_frame_of_bert():
    found = adapted(dataclasses.replace(classifier(types=2), compress=(recipes.TWINBERT,)))
    assert {*found.towers} == {"main", "teacher"} and found.objective.matches[0].temperature == 2
    bare = classifier(types=2)
    bare = dataclasses.replace(bare, towers={"main": classifier().towers["main"].clone(heads={})})
    with pytest.raises(UserError, match="its teacher has no such head"):
        adapted(dataclasses.replace(bare, compress=(recipes.TWINBERT,)))
    with pytest.raises(ValueError, match="pooling is 'max'"):
        TwinBERT(pooling="max")
    with pytest.raises(UserError, match="compress one with twinbert"):
        StoredTexts(type("Model", (), {"module": classifier().towers["main"]}), [])
    assert facts.stand_ins(
        catalogue.read("twinbert"), Vocab(size=9, cls=1)
    ).student.letters.values.shape == (9, 20)


def pairs_of(folder):
    """A paraphrase task of random words."""
    draw, lines = np.random.default_rng(0), ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"]

    def text():
        return " ".join(draw.choice(tiny_checkpoint.WORDS, draw.integers(1, 8)))

    folder.mkdir()
    for name, count in (("train", 40), ("dev", 8)):
        rows = [f"{draw.integers(0, 2)}\t{n}\t{n}\t{text()}\t{text()}" for n in range(count)]
        (folder / f"{name}.tsv").write_text("\n".join([*lines, *rows]) + "\n")
    return folder


@pytest.mark.full
def test_a_student_is_a_folder_whose_texts_may_be_stored(tmp_path):
    """Scores of stored texts are those of the pairs."""
    model = str(tiny_checkpoint.write(tmp_path / "bert"))
    of = [
        "--task",
        "mrpc",
        "--data",
        str(pairs_of(tmp_path / "data")),
        "--batch",
        "8",
        "--epochs",
        "1",
    ]
    assert main(["train", "--init", model, *of, "--workdir", str(tmp_path / "teacher")]) == 0
    small = dataclasses.replace(
        recipes.TWINBERT, student=TwinBERT(layers=1, width=16, heads=2, hidden=16)
    )
    options = {"task": "mrpc", "data": [str(tmp_path / "data")], "epochs": 1, "batch": 8}
    compress(small, tmp_path / "teacher", tmp_path / "twin", quiet=True, **options)
    student = ptm_jax.load(tmp_path / "twin")
    queries, texts = ["a good film", "the plot"], ["the end is sad", "a story", "very long"]
    found = StoredTexts(student, texts).scores(queries)
    again = StoredTexts(student, texts, student.encode(texts)).scores(queries)
    np.testing.assert_array_equal(found, again)
    firsts, seconds = zip(*[(query, text) for query in queries for text in texts], strict=True)
    scores = [list(one.values())[1] for one in student.classify(firsts, seconds)]
    np.testing.assert_allclose(found.reshape(-1), scores, atol=1e-4)

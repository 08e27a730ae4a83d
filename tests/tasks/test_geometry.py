"""Attention between words and senses as probes, a planted encoder, and stated memory."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

import ptm_jax
from ptm_jax import systems
from ptm_jax.cli.main import main
from ptm_jax.core.errors import UserError
from ptm_jax.core.towers import abstract
from ptm_jax.encoders.recurrent.recurrent import LSTMEncoder
from ptm_jax.inference.pretrained import Pretrained
from ptm_jax.nn.recurrent.lstm import LSTM
from ptm_jax.tasks.probes import (
    probing,
    sense_probes,
    word_states,
)
from ptm_jax.tasks.probes.attention import attention_probes, constituency, word_maps
from ptm_jax.tasks.probes.questions import Part, Question
from support import tiny_checkpoint, tiny_models

SENTENCES = [["the", "unfunny", "film"], ["a", "plot", "end", "was", "very", "good"]]


@pytest.mark.full
@pytest.mark.status("ptm probe --by attention", "built")
def test_attention_between_words_is_that_of_their_pieces(published):
    model = ptm_jax.load(published)
    words = np.array([[1, 0], [3, 8], [8, 3], [2, 1], [5, 5]])
    features = attention_probes.features(model, SENTENCES, words)
    for row, (first, second) in enumerate(words):
        sentence, start = (SENTENCES[0], 0) if first < 3 else (SENTENCES[1], 3)
        pieces = [model.ids_of([word])[0][1:-1] for word in sentence]
        maps = model(np.concatenate(pieces)[None], attention=True).attention[:, 0]
        ends = np.cumsum([len(ids) for ids in pieces])
        a, b = (slice(ends[i] - len(pieces[i]), ends[i]) for i in (first - start, second - start))
        wanted = maps[:, :, a, b].sum(-1).mean(-1)
        np.testing.assert_allclose(features[row], wanted, rtol=1e-5)


@pytest.mark.status("ptm probe --by senses", "built")
def test_senses_by_hand(tmp_path):
    """Accuracies against scikit-learn's nearest centroid, of unit vectors; the loss by pairs."""
    draw = np.random.default_rng(0)
    b = draw.normal(size=(1, 4, 3)).astype(np.float32)
    states = draw.normal(size=(1, 8, 4)).astype(np.float32)
    cosine = []
    for first, second in zip(states[0, ::2] @ b[0], states[0, 1::2] @ b[0], strict=True):
        cosine.append(first @ second / np.linalg.norm(first) / np.linalg.norm(second))
    wanted = np.mean(cosine[2:]) - np.mean(cosine[:2])
    assert sense_probes.loss(b, states)[0] == pytest.approx(wanted, rel=1e-5)
    known = draw.normal(size=(12, 1, 4)).astype(np.float32)  # of two senses of one word
    by_word = {"bank": {"river": range(6), "money": range(6, 12)}}
    test = [("bank", "river", row) for row in range(12)]
    given = sense_probes.accuracy(known, known, by_word, test, b)
    means = np.stack([known[:6, 0].mean(0), known[6:, 0].mean(0)]) @ b[0]
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (means, known[:, 0] @ b[0])]
    nearest = KNeighborsClassifier(1).fit(unit[0], ["river", "money"]).predict(unit[1])
    assert 0 < given[0] == np.mean(nearest == "river") < 1
    file = tmp_path / "a.tsv"
    file.write_text("word\tsense\tsentence\tplace\nbank\triver\tThe Bank is wet\t\n"
                    "bank\tmoney\tbanks and a bank\t0\n")  # fmt: skip
    rows = [one.rows for one in sense_probes.sentences_of(file)]
    assert rows == [(("bank", "river", "1"),), (("bank", "money", "0"),)]
    (tmp_path / "b.data.xml").write_text(
        '<corpus><sentence><wf lemma="the" pos="DET">The</wf>'
        '<instance id="d0.s0.t0" lemma="bank" pos="NOUN">Banks</instance></sentence></corpus>'
    )
    (tmp_path / "b.gold.key.txt").write_text("d0.s0.t0 bank%1:17:01:: bank%1:14:00::\n")
    (sentence,) = sense_probes.sentences_of(tmp_path / "b.data.xml")
    assert sentence.words == ("The", "Banks")
    assert sentence.rows == (("bank NOUN", "bank%1:17:01::", "1"),)
    file.write_text("word\tsense\tsentence\nbank\triver\tno such word\n")
    with pytest.raises(UserError, match="a.tsv:2: 'bank' is no word of the sentence; give its"):
        sense_probes.sentences_of(file)


@pytest.mark.full
def test_planted_senses_are_found_and_the_map_finds_their_direction():
    """Layer 1: the sense in one direction below much noise; layer 0: noise alone."""
    draw = np.random.default_rng(0)
    parts = []
    for count in (240, 200):
        senses = draw.integers(0, 2, count)
        noise = draw.normal(size=(count, 2, 24)).astype(np.float32)
        noise[:, 1, 3] = 2.5 * (2 * senses - 1) + 0.3 * noise[:, 1, 3]
        sentences = [
            probing.Sentence(("bank",), (("bank", f"s{sense}", "0"),), None, "") for sense in senses
        ]
        parts.append(Part(None, sentences, noise.astype(np.float16)))
    answer = sense_probes.answered(Question(by="senses", data=("",), rank=4), *parts, {})
    mapped, plain = answer.layers["after the map"], answer.layers["nearest mean"]
    assert mapped[1] > 0.97 and plain[1] > 0.85
    assert mapped[0] < 0.65 and plain[0] < 0.65
    assert answer.counts["words with several senses"] == 1


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A checkpoint of 256 words, whose layers add nothing to the embeddings."""
    names = [f"{chr(97 + i // 16)}{chr(97 + i % 16)}" for i in range(256)]
    return names, tiny_checkpoint.write(
        tmp_path_factory.mktemp("words"), [" ".join(names)] * 3, vocab=293, num_hidden_layers=2,
        scale=0.0,
    )  # fmt: skip


@pytest.mark.full
def test_an_encoder_that_holds_trees_is_read_and_a_random_one_is_not(words, tmp_path, capsys):
    """A word is a set of 8 edges, and its head the set with one edge flipped. The embeddings of the
    one encoder are these sets, so that squared distances are those of the tree; the other has drawn
    ones. All words are seen in training."""
    names, folder = words
    model, draw = ptm_jax.load(folder), np.random.default_rng(0)
    for file, count in (("train", 500), ("test", 100)):
        rows = []
        for _ in range(count):
            size = int(draw.integers(5, 9))
            order, edges, sets, heads = draw.permutation(size), draw.permutation(8), {}, {}
            for n, place in enumerate(order):
                heads[place] = order[draw.integers(0, n)] if n else -1
                sets[place] = sets[heads[place]] ^ (1 << edges[n]) if n else draw.integers(0, 256)
            rows += [
                f"{i + 1}\t{names[sets[i]]}\t_\tX\t_\t_\t{heads[i] + 1}\tdep\t_\t_"
                for i in range(size)
            ]
            rows.append("")
        (tmp_path / f"{file}.conllu").write_text("\n".join(rows))
    ids = [int(model.ids_of([name])[0][1]) for name in names]
    assert len({*ids}) == 256
    bits = 2.0 * (np.arange(256)[:, None] >> np.arange(8) & 1) - 1
    turn = np.linalg.qr(draw.normal(size=(8, 8)))[0]
    figures = {}
    for kind, values in (
        ("planted", np.concatenate([bits @ turn, -bits @ turn], 1)),
        ("random", draw.normal(size=(256, 16))),
    ):
        params = jax.tree.map(np.array, model.params)
        params["main"]["encoder"]["embed"]["token"][ids] = values
        Pretrained(model.system, params, model.tokenizer).save(tmp_path / kind)
        data = [str(tmp_path / f"{file}.conllu") for file in ("train", "test")]
        command = ["probe", str(tmp_path / kind), "--by", "structural", "--rank", "8"]
        assert main([*command, "--json", "--data", *data]) == 0
        figures[kind] = json.loads(capsys.readouterr().out)["layers"]
    for planted, random in zip(figures["planted"]["uuas"], figures["random"]["uuas"], strict=True):
        assert planted > 0.95 and random < 0.65
    assert min(figures["planted"]["fit of squares"]) > 0.95
    assert min(figures["planted"]["dspr"]) > 0.95 > 0.7 > max(figures["random"]["dspr"])


@pytest.mark.full
def test_an_arc_that_a_head_marks_is_found(published, monkeypatch):
    """Features of 2 layers with 3 heads, of which one gives the head of a word."""
    draw = np.random.default_rng(0)
    sentences = [
        probing.Sentence(
            tuple("abcd"), (("", "", "", "", "", "", "", "dep"),) * 4, (1, 2, 3, -1), ""
        )
        for _ in range(100)
    ]

    def features(model, sentences, words, **settings):
        weights = draw.random((len(words), 2, 3)).astype(np.float32)
        weights[:, 1, 2] = words[:, 1] - words[:, 0] == 1
        return weights

    monkeypatch.setattr(attention_probes, "features", features)
    question = Question(by="attention", data=("",), label="arc")
    parts = [Part(None, some, None) for some in (sentences[:80], sentences[80:])]
    answer = probing._labels(question, *parts, {})
    first, second = answer.layers["accuracy"]
    assert first < 0.65 and second > 0.97 and answer.baselines["all layers"] > 0.97


@pytest.mark.full
def test_maps_are_reduced_layer_by_layer_at_the_size_of_bert_large():
    """XLA's plan of the program for a sentence of 512 tokens: the maps of 24 layers take 403 MB."""
    module = systems.get("bert_large").towers["main"]
    batch = {
        name: np.ones((1, 512), np.int32) for name in ("input_ids", "segment_ids", "positions")
    }
    params = abstract({"main": module}, batch)["main"]
    operands = batch, np.zeros((1, 512, 512), np.float32), np.zeros((1, 32, 2), np.int32)
    program = word_maps._forward.lower(
        word_maps.with_maps(module), constituency.REDUCTION, params, operands
    ).compile()
    facts = program.memory_analysis()
    maps = 24 * 16 * 512 * 512 * 4
    assert facts.temp_size_in_bytes + facts.output_size_in_bytes < 0.6 * maps
    assert 16 * 512 * 512 * 4 < facts.temp_size_in_bytes


@pytest.mark.full
def test_stated_memory_and_models_without_attention(published, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PTM_CACHE", str(tmp_path / "cache"))
    model = ptm_jax.load(published)
    said = []
    whole = word_states.of_sentences(model, SENTENCES, None)
    small = word_states.of_sentences(model, SENTENCES, tmp_path, memory=5e-6, say=said.append)
    np.testing.assert_allclose(whole.states, small.states, atol=2e-3)
    assert isinstance(small.states, np.memmap) and len(said) == 1
    assert "states of 9 words, 2 layers of 16, take 5.8e-07 GB in " in said[0]
    words = np.array([[0, 1], [2, 8]])
    pairs = word_states.Rows(small.states, words)
    first, second = small.states[words[:, 0]], small.states[words[:, 1]]
    np.testing.assert_array_equal(
        pairs[np.arange(2)], np.concatenate([first, second, first * second], -1)
    )
    with pytest.raises(UserError, match="a sentence of 32 tokens take .* --memory is 1e-06"):
        word_states.of_sentences(model, SENTENCES, tmp_path / "b", memory=1e-6)
    with pytest.raises(UserError, match="take 5.8e-07 GB, and memory has 1e-07 GB; raise --memory"):
        word_states.of_sentences(model, SENTENCES, None, memory=1e-7)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(9, 9, 0))
    with pytest.raises(UserError, match="GB, and .*/c has 0 GB; set PTM_CACHE"):
        word_states.of_sentences(model, SENTENCES, tmp_path / "c")
    monkeypatch.undo()
    network = dataclasses.replace(
        model.module, encoder=systems.get("cloze_mini").towers["main"].encoder
    )
    system = dataclasses.replace(model.system, towers={"main": network})
    with pytest.raises(UserError, match="has two towers; no probe reads the maps of both"):
        attention_probes.features(
            Pretrained(system, model.params, model.tokenizer), SENTENCES, words
        )
    encoder = LSTMEncoder(
        embed=model.module.encoder.embed, layers=(LSTM(hidden=16), LSTM(hidden=16))
    )
    network = dataclasses.replace(model.module, encoder=encoder)
    system = dataclasses.replace(model.system, towers={"main": network})
    Pretrained(system, tiny_models.drawn(system), model.tokenizer).save(tmp_path / "lstm")
    rows = [f"{n}\tfilm\t_\tX\t_\t_\t{n - 1}\tdep\t_\t_" for n in (1, 2, 3)]
    rows = [*rows, ""] * 10
    (tmp_path / "a.conllu").write_text("\n".join(rows))
    (tmp_path / "a.txt").write_text("film X\nwas Y\n\n" * 10)
    lines = [f"film\t{sense}\t{near} film end" for sense, near in (("a", "good"), ("b", "sad"))]
    (tmp_path / "a.tsv").write_text("\n".join(["word\tsense\tsentence", *lines * 10]))
    assert main(["probe", str(published), "--by", "senses", "--data", str(tmp_path / "a.tsv")]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("senses: 16 sentences, 4 held out, 16 train, 4 test, 1 words with")
    assert "1      1.0000        1.0000\nmost frequent sense: 0.5000" in printed
    for by, file, wanted in (
        ("attention", "a.conllu", "has no attention; give an encoder with attention"),
        ("constituency", "a.txt", "'film' stands outside of brackets"),
        ("structural", "a.txt", "there are no trees; --by structural reads CoNLL-U"),
        ("senses", "a.txt", "a.txt has no column word"),
    ):
        command = ["probe", str(tmp_path / "lstm"), "--by", by, "--data", str(tmp_path / file)]
        assert main(command) == 1
        said = capsys.readouterr().err
        assert wanted in said.splitlines()[-1], said

"""Mentions: the trie against brute force, candidates and priors, alignment to the tokens of a
tokenizer."""

import dataclasses
import json

import numpy as np
import pytest
import tokenizers

from ptm_jax.cli.main import main
from ptm_jax.core import facts
from ptm_jax.core.errors import UserError
from ptm_jax.data.corpora.prepare import prepare
from ptm_jax.data.graphs.linking import Linker
from ptm_jax.data.rows.examples import Packed
from ptm_jax.data.rows.knowledge.entities import AliasTokens, EntityIds, WithEntities
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.knowledge.graphs.compiling import compile_graph
from ptm_jax.knowledge.graphs.formats import sources
from ptm_jax.knowledge.tries import Trie


def graph(tmp_path, aliases="a\tNew York\tNYC\nb\tNew York City\nc\tnew york\nd\tYork\ne\tx\n"):
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "train.tsv").write_text("a\tin\tb\n")
    (tmp_path / "g" / "aliases.txt").write_text(aliases)
    return compile_graph(sources([str(tmp_path / "g")]), tmp_path / "out")


def test_longest_matches_equal_brute_force():
    draw = np.random.default_rng(0)
    aliases = [draw.integers(0, 4, draw.integers(1, 5)).tolist() for _ in range(25)]
    text, begins, ends = draw.integers(-1, 4, 400), draw.random(400) < 0.8, draw.random(400) < 0.8
    found = list(
        zip(*(x.tolist() for x in Trie.of(aliases, 4).longest(text, begins, ends)), strict=True)
    )
    expected, at = [], 0
    while at < len(text):
        fits = [
            (len(alias), -n)
            for n, alias in enumerate(aliases)
            if text[at : at + len(alias)].tolist() == alias
            and begins[at]
            and ends[at + len(alias) - 1]
        ]
        if fits:
            size, n = max(fits)
            expected.append((at, at + size, -n))
        at += max(fits)[0] if fits else 1
    assert found == expected and len(found) > 100
    assert len(Trie.of([], 4).longest(text, begins, ends)[0]) == 0


def test_mentions_are_the_longest_whole_words_with_their_candidates(tmp_path):
    linker = Linker.of(graph(tmp_path))
    text = "new york city, New York and Yorkshire; x"
    (linked,) = linker([text])
    assert [text[m.start : m.end] for m in linked.mentions] == ["new york city", "New York"]
    assert linked.mentions[1].entities == (0, 2) and linked.mentions[1].priors == (0.5, 0.5)
    assert dict(linker.counts) == {
        "mentions": 2,
        "linked": 2,
        "ambiguous": 1,
        "texts": 1,
        "words": 10,
    }
    cased = Linker.of(graph_again(tmp_path), lowercase=False)
    assert [m.entities for m in cased(["NEW YORK, New York"])[0].mentions] == [(0,)]
    assert not Linker.of(graph_again(tmp_path), least=0.6)(["New York"])[0].mentions


def graph_again(tmp_path):
    return compile_graph(sources([str(tmp_path / "g")]), tmp_path / "out")


def test_mentions_are_aligned_to_sub_words_and_cut_rows(tmp_path):
    linker = Linker.of(graph(tmp_path))
    pieces = ["[UNK]", "[CLS]", "[SEP]", "in", "new", "yo", "##rk", "nyc"]
    backend = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({p: i for i, p in enumerate(pieces)}, unk_token="[UNK]")
    )
    backend.normalizer, backend.pre_tokenizer = (
        tokenizers.normalizers.Lowercase(),
        tokenizers.pre_tokenizers.Whitespace(),
    )
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    (linked,) = linker(["in New York NYC"])
    row = backend.encode(linked.text)
    assert row.tokens == ["[CLS]", "in", "new", "yo", "##rk", "nyc", "[SEP]"]
    assert linked.spans(row.offsets) == [(2, 5), (5, 6)]
    row.truncate(4)
    assert [span for span, _ in linker.aligned(linked, row.offsets)] == [] and linker.counts[
        "cut"
    ] == 2
    assert linked.spans([(0, 0)]) == [None, None]


def test_a_graph_without_aliases_is_refused(tmp_path):
    (tmp_path / "train.tsv").write_text("a\tin\tb\n")
    with pytest.raises(UserError, match="has no aliases"):
        Linker.of(compile_graph(sources([str(tmp_path / "train.tsv")]), tmp_path / "out"))


def test_entities_of_tokens_survive_packing(tmp_path):
    (tmp_path / "a.txt").write_text("he saw new york city today\n\nnew york\n\nyork and new\n")
    spec = TokenizerSpec(kind="word", vocab=10, specials="t5", min_count=1)
    corpus = prepare([str(tmp_path / "a.txt")], tmp_path / "corpus", tokenizer=spec, heldout=0.0)
    store = graph(tmp_path, "a\tnew york\nb\tnew york city\nd\tyork\n")
    column = EntityIds(aliases=AliasTokens(graph=str(tmp_path / "out"), digest=store.digest))
    examples = facts.fill(
        WithEntities(examples=Packed(begin=None, end=None), columns=(column,)), lambda: corpus
    )
    block = dataclasses.replace(corpus.blocks()[0], words=np.ones(corpus.vocab.size, bool))
    out = examples.rows(block, length=7, vocab=corpus.vocab, rng=np.random.default_rng(0))
    pieces = corpus.tokenizer().pieces
    tokens = [pieces[i].strip("▁") for i in out["input_ids"].ravel()]
    found = [(word, int(e)) for word, e in zip(tokens, out["entity_ids"].ravel(), strict=True) if e]
    ids = {name: store.entity(name) + 1 for name in "abd"}
    expected = [
        ("new", "b"),
        ("york", "b"),
        ("city", "b"),
        ("new", "a"),
        ("york", "a"),
        ("york", "d"),
    ]
    assert sorted(found) == sorted((word, ids[name]) for word, name in expected)
    with pytest.raises(UserError, match="holds the graph"):
        AliasTokens(graph=str(tmp_path / "out"), digest="0" * 64).of_tokenizer(corpus.tokenizer())


def test_mentions_of_a_text_are_counted_printed_and_kept(tmp_path, capsys):
    graph(tmp_path)
    (tmp_path / "text.txt").write_text("He saw New York. York is old.\n\nA city.\n")
    words = [
        "prepare",
        "--graph",
        str(tmp_path / "g"),
        "--out",
        str(tmp_path / "out"),
        "--link",
        str(tmp_path / "text.txt"),
    ]
    assert main(words) == 0
    assert (
        "3 texts, 12 words, 2 mentions, 2 linked, 1 ambiguous, 0 cut of the text"
        in capsys.readouterr().out
    )
    kept = json.loads((tmp_path / "out" / "mentions.json").read_text())
    assert kept["counts"]["mentions"] == 2 and kept["graph"] == graph_again(tmp_path).digest
    rows = [
        json.loads(line) for line in (tmp_path / "out" / "mentions.jsonl").read_text().splitlines()
    ]
    assert [[row["text"][m[0] : m[1]] for m in row["mentions"]] for row in rows] == [
        ["New York"],
        ["York"],
        [],
    ]
    assert main(words) == 0
    (tmp_path / "text.txt").write_text("York\n")
    assert main(words) == 1 and "of another graph or text" in capsys.readouterr().err

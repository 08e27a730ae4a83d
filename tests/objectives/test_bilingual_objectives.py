"""BiSkip and the joint alignment of sentences against plain numpy: loss and every gradient; rows
against bivec's rule."""

import itertools
import json

import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.vectors.bitext import BilingualWindows
from ptm_jax.data.corpora.block_records import Block
from ptm_jax.data.corpora.prepare import prepare
from ptm_jax.data.rows.bitext import Translations
from ptm_jax.data.text import bitext, sources
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.knowledge.languages import WordLanguages
from ptm_jax.objectives.vectors.bitext import BilingualSkipGram, SentenceAlignment
from ptm_jax.statistics.counts import Counts
from support.plain_towers import B, L, V, batch_of, check, logistic, states_of

WINDOW = 2
LANGUAGES = np.where(np.arange(V) < 5, 1, 2)


def batch():
    """Row 0: a pair of sentences of three words; row 1: two and two words; row 2: padding."""
    draw, found = np.random.default_rng(3), batch_of()
    language = np.array([[1, 1, 1, 2, 2, 2], [1, 1, 2, 2, 0, 0], [0] * 6])
    ids = np.where(language == 1, draw.integers(0, 5, (B, L)), draw.integers(5, V, (B, L)))
    fields = {
        "input_ids": ids,
        "segment_ids": language,
        "word_languages": language,
        "translation": np.where(language > 0, 3 - language, 0),
        "aligned": [
            [[0, 3], [1, 5], [2, 5], *[[-1, -1]] * 3],
            [[1, 2], *[[-1, -1]] * 5],
            [[-1, -1]] * 6,
        ],
        "pair_windows": draw.integers(1, WINDOW + 1, (B, L)),
        "windows": draw.integers(1, WINDOW + 1, (B, L)) * (language > 0),
        "noise_ids": np.concatenate([draw.integers(0, 5, (B, 3)), draw.integers(5, V, (B, 3))], 1),
    }
    return found | {name: jnp.asarray(value, jnp.int32) for name, value in fields.items()}


def predictions(b):
    """(row, word, predicted word, weight) of every prediction."""
    segments = b["segment_ids"]

    def near(row, at, reach):
        return [
            u
            for u in range(L)
            if 0 < abs(u - at) <= reach and 0 < segments[row, u] == segments[row, at]
        ]

    for row in range(B):
        for t in range(L):
            yield from ((row, t, u, 1.0) for u in near(row, t, b["windows"][row, t]))
        for (i, j), reach in zip(b["aligned"][row], b["pair_windows"][row], strict=True):
            if i >= 0:
                yield from ((row, i, u, 0.5) for u in near(row, j, reach))
                yield from ((row, j, u, 0.5) for u in near(row, i, reach))


def words(p, b):
    states, total, centres = states_of(p, b), 0.0, set()

    def score(row, t, word):
        return states[row, t] @ p["words"][word] + p["word_bias"][word]

    for row, t, u, weight in predictions(b):
        word, language = b["input_ids"][row, u], b["word_languages"][row, u]
        noise = b["noise_ids"][row][3 * (language - 1) :][:3]
        against = sum(logistic(score(row, t, n), 0) for n in noise if n != word)
        total += weight * (logistic(score(row, t, word), 1) + 7 / 3 * against)
        centres.add((row, t))
    return total, len(centres)


def distances(p, b):
    states, found = states_of(p, b), []
    for row, number in itertools.product(range(B), (1, 2)):
        own, other = (b["segment_ids"][row] == n for n in (number, 3 - number))
        if own.any():
            a, c = states[row][own].mean(0), states[row][other].mean(0)
            found.append(1 - a @ c / np.linalg.norm(a) / np.linalg.norm(c))
    return sum(found), len(found)


@pytest.mark.full
def test_loss_and_gradient_of_biskip():
    check(
        BilingualSkipGram(window=WINDOW, k=7, beta=0.5), lambda p, b: [words(p, b)], batch=batch()
    )


@pytest.mark.full
def test_loss_and_gradient_of_the_joint_alignment_of_sentences():
    objective = SentenceAlignment(window=WINDOW, k=7, beta=0.5, alignment=2.0)

    def definition(p, b):
        total, count = distances(p, b)
        return [words(p, b), (2 * total, count)]

    check(objective, definition, batch=batch())


VOCAB = Vocab(size=30, pad=0, unk=1)
PIECES = np.zeros(30, np.int32)
PIECES[2:12], PIECES[12:22], PIECES[22:] = 1, 2, -1 - np.arange(8)


def rows(sentences, length=16, given=False, seed=0):
    tokens = np.concatenate([np.asarray(s) for document in sentences for s in document]).astype(
        np.int32
    )
    lengths = np.array([len(s) for document in sentences for s in document], np.int32)
    block = Block(
        tokens,
        lengths,
        np.array([len(d) for d in sentences], np.int32),
        np.zeros(len(sentences), bool),
    )
    examples = Translations(sample=None, languages=WordLanguages().filled(PIECES))
    return examples.rows(block, length=length, vocab=VOCAB, rng=np.random.default_rng(seed))


def pairs_of(found, row=0):
    return [tuple(pair) for pair in found["aligned"][row].tolist() if pair[0] >= 0]


def test_words_are_aligned_by_the_rule_of_the_midpoint():
    first, second = [2, 3, 4, 5, 6], [12, 13, 14]
    found = rows([[first, second], [[15, 16], [7]]])
    assert found["input_ids"][0].tolist() == [*first, *second, 15, 16, 7, *[0] * 5]
    assert found["segment_ids"][0].tolist() == [1] * 5 + [2] * 3 + [3] * 2 + [4] + [0] * 5
    assert found["translation"][0].tolist() == [2] * 5 + [1] * 3 + [4] * 2 + [3] + [0] * 5
    # bivec: tgt_pos = src_pos * tgt_len / src_len; the second pair has the other language first
    assert pairs_of(found) == [*((i, 5 + i * 3 // 5) for i in range(5)), (10, 8), (10, 9)]


def test_given_alignments_skip_unknown_words():
    found = rows(
        [[[2, 1, 4], [12, 13], [22, 22, 24, 23, 23, 22]]]
    )  # 0-0 2-1 1-0, word 1 is unknown
    assert found["input_ids"][0, :5].tolist() == [2, 4, 12, 13, 0] and pairs_of(found) == [
        (0, 2),
        (1, 3),
    ]


def test_a_pair_that_is_longer_than_a_row_is_text_without_alignment():
    found = rows([[[2] * 20, [12] * 3]])
    assert [int((row > 0).sum()) for row in found["input_ids"]] == [16, 7] and not pairs_of(
        found
    ) + pairs_of(found, 1)
    assert not found["translation"].any() and found["segment_ids"][1, :8].tolist() == [1] * 4 + [
        2
    ] * 3 + [0]


@pytest.mark.full
def test_noise_words_are_of_their_language():
    import jax

    counts = Counts().filled(np.arange(30))
    corruption = BilingualWindows(
        vocab=VOCAB, noise=4000, counts=counts, languages=WordLanguages().filled(PIECES)
    )
    ids = jnp.full((2, 4), 5)
    out = corruption(
        jax.random.key(0), {"input_ids": ids, "segment_ids": ids // ids, "rows": jnp.arange(2)}
    )
    noise = np.asarray(out["noise_ids"])
    for part, words in ((noise[:, :4000], range(2, 12)), (noise[:, 4000:], range(12, 22))):
        share = np.array([np.mean(part == word) for word in words])
        expected = np.array(words) ** 0.75 / sum(n**0.75 for n in words)
        assert np.abs(share - expected).max() < 3 * np.sqrt(
            0.25 / 8000
        ) and share.sum() == pytest.approx(1)
    assert (out["word_languages"] == 1).all() and set(np.unique(out["pair_windows"])) <= {
        1,
        2,
        3,
        4,
        5,
    }


def test_two_files_are_documents_of_two_languages(tmp_path):
    (tmp_path / "t.de").write_text("Das Haus.\nEin Haus!\n\n")
    (tmp_path / "t.en").write_text("The house.\nA house!\nlost\n")
    name = f"parallel:{tmp_path}/t.de-en"
    found = [document.sentences for document in sources.documents([name])]
    assert found == [
        ("de:das de:haus de:.", "en:the en:house en:."),
        ("de:ein de:haus de:!", "en:a en:house en:!"),
    ]
    before = sources.fingerprints([name])
    (tmp_path / "t.de-en.align").write_text("0-0 1-1\n0-0 1-1 2-2\n\n")
    found = [document.sentences[2] for document in sources.documents([name])]
    assert found == ["@0 @0 @1 @1", "@0 @0 @1 @1 @2 @2"] and sources.fingerprints([name]) != before
    spec = TokenizerSpec(kind="spaced", vocab=60, specials="t5", min_count=2)
    corpus = prepare([name], tmp_path / "corpus", tokenizer=spec, heldout=0.0)
    pieces = corpus.tokenizer().pieces
    assert {"de:haus", "en:house", "@0", "@1"} <= {*pieces} and "de:das" not in pieces
    assert dict(zip(pieces, WordLanguages().read(corpus).tolist(), strict=True)).items() >= {
        "de:haus": 1, "en:house": 2, "@1": -2, "<unk>": 0,
    }.items()  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("t", "", "names no two languages"),
        ("t.de-fr", "", "needs the file .*t.fr"),
        ("t.de-en", "0-0\n", "has 1 lines; t.de has 2|has 2 lines"),
        ("t.de-en", "0-0\n0-9\n", "line 2 is '0-9'; expected pairs"),
        ("t.de-en", "0-0\n0 0\n", "line 2"),
    ],
)
def test_broken_parallel_text_is_one_line(tmp_path, name, text, line):
    (tmp_path / "t.de").write_text("Das Haus\nEin Haus\n")
    (tmp_path / "t.en").write_text("The house\nA house\n")
    if text:
        (tmp_path / f"{name}.align").write_text(text)
    with pytest.raises(UserError, match=line) as error:
        list(sources.documents([f"parallel:{tmp_path}/{name}"]))
    assert "\n" not in str(error.value) and bitext.START


def test_text_of_one_language_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("one two one two\n")
    spec = TokenizerSpec(kind="spaced", vocab=60, specials="t5", min_count=2)
    corpus = prepare([str(tmp_path / "a.txt")], tmp_path / "corpus", tokenizer=spec, heldout=0.0)
    with pytest.raises(UserError, match="words of 0 languages; expected 2"):
        WordLanguages().read(corpus)
    assert (
        json.loads((tmp_path / "corpus" / "manifest.json").read_text())["tokenizer"]["kind"]
        == "word"
    )

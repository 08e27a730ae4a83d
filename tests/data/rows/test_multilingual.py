"""Rows of several languages and of translations, against their definitions."""

import json

import numpy as np
import pytest

from ptm_jax.core import facts
from ptm_jax.core.errors import UserError
from ptm_jax.data.corpora.block_records import Block
from ptm_jax.data.corpora.prepare import prepare
from ptm_jax.data.corpora.stream import merge
from ptm_jax.data.languages.language_stream import opened
from ptm_jax.data.rows.examples import Packed
from ptm_jax.data.rows.languages.alone import EachAlone
from ptm_jax.data.rows.languages.multilingual import Multilingual, Paraphrases, Translated
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from support.cutting import VOCAB

TOKENIZER = TokenizerSpec(kind="word", vocab=23, specials="roberta")


def translations(*documents):
    """A block of documents; each is the lengths of sentences, a language and the other in turn."""
    sentences = np.array([n for document in documents for n in document], np.int32)
    return Block(
        np.arange(100, 100 + sentences.sum(), dtype=np.int32),
        sentences,
        np.array([len(document) for document in documents], np.int32),
        np.zeros(len(documents), bool),
    )


def cut(value, block, length, seed=0):
    return value.rows(block, length=length, vocab=VOCAB, rng=np.random.default_rng(seed))


def documents(rows):
    """{first word: (ids, positions, languages)} of each segment."""
    found = {}
    for ids, segments, places, sides in zip(
        *(rows[n] for n in ("input_ids", "segment_ids", "positions", "language_ids")), strict=True
    ):
        for number in range(1, segments.max() + 1):
            mine = segments == number
            found[int(ids[mine][1])] = tuple(x[mine].tolist() for x in (ids, places, sides))
    return found


def test_sentences_of_translations_stand_alone_in_their_languages():
    """Documents of 2, 3, 1 and 9 words, then 2 and 1, in rows of 8: the long one is divided."""
    rows = cut(EachAlone(begin="eos", end="eos"), translations([2, 3, 1, 9], [2, 1]), 8)
    end = VOCAB.eos
    assert rows["segment_ids"].max() == 1
    assert {ids[1]: (ids, sides) for ids, _, sides in documents(rows).values()} == {
        100: ([end, 100, 101, end], [0] * 4),
        102: ([end, 102, 103, 104, end], [1] * 5),
        105: ([end, 105, end], [0] * 3),
        106: ([end, *range(106, 112), end], [1] * 8),
        112: ([end, 112, 113, 114, end], [1] * 5),
        115: ([end, 115, 116, end], [0] * 4),
        117: ([end, 117, end], [1] * 3),
    }


def test_a_pair_has_four_separators_and_positions_that_begin_anew():
    """XLM's concat_batches with other languages: </s> a </s> </s> b </s>."""
    rows = cut(Translated(begin="eos", end="eos"), translations([2, 3, 1, 1]), 24)
    end = VOCAB.eos
    assert documents(rows) == {
        100: (
            [end, 100, 101, end, end, 102, 103, 104, end],
            [0, 1, 2, 3, 0, 1, 2, 3, 4],
            [0] * 4 + [1] * 5,
        ),
        105: ([end, 105, end, end, 106, end], [0, 1, 2, 0, 1, 2], [0] * 3 + [1] * 3),
    }


def test_a_long_pair_and_a_lonely_sentence_are_texts_of_one_language():
    rows = cut(Translated(), translations([12, 2], [3]), 12)
    sizes = {first: (len(ids), {*sides}) for first, (ids, _, sides) in documents(rows).items()}
    assert sizes == {100: (12, {0}), 110: (4, {0}), 112: (4, {1}), 114: (5, {0})}


def test_sentences_of_a_document_alternate_in_language():
    block = translations([2, 3, 2, 2, 1, 4])
    for seed in range(4):
        ((ids, places, sides),) = documents(
            cut(Translated(kind="alternating"), block, 32, seed)
        ).values()
        first = sides[0]
        words = (
            [[100, 101], [105, 106], [109]]
            if first == 0
            else [[102, 103, 104], [107, 108], [110, 111, 112, 113]]
        )
        chosen = [
            ([100, 101], [102, 103, 104])[first],
            ([105, 106], [107, 108])[1 - first],
            ([109], [110, 111, 112, 113])[first],
        ]
        assert words[0] == chosen[0] and words[2] == chosen[2]
        assert ids == [VOCAB.cls, *sum(chosen, []), VOCAB.sep]
        assert places == list(range(len(ids)))
        sizes = [len(chosen[0]) + 1, len(chosen[1]), len(chosen[2]) + 1]
        assert sides == [side for n, size in enumerate(sizes) for side in [(first + n) % 2] * size]


def test_half_of_the_paraphrases_are_of_other_pairs_of_near_length():
    lengths = [2 + n % 7 for n in range(400)]
    rows = cut(Paraphrases(near=8), translations([4, 4] * 50, lengths), 16)
    labels, ids, types = (rows[n] for n in ("next_label", "input_ids", "token_type_ids"))
    assert len(labels) == 250 and 0.4 < labels.mean() < 0.6
    for label, row, kinds, sides in zip(labels, ids, types, rows["language_ids"], strict=True):
        first, second = (row[(kinds == n) & (row >= 100)] for n in (0, 1))
        assert (second[0] == first[-1] + 1) == (label == 0)
        assert np.array_equal(sides, kinds)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """German and English text, of 9 to 1 words, and translations; a letter tells the language."""
    folder = tmp_path_factory.mktemp("languages")
    rng = np.random.default_rng(0)

    def text(letter, lines):
        return "".join(
            " ".join(f"{letter}{n}" for n in rng.integers(0, 9, 8)) + "\n\n" for _ in range(lines)
        )

    (folder / "a.txt").write_text(text("d", 900))
    (folder / "b.txt").write_text(text("e", 100))
    for code in "de":
        pairs = (f"{code}{n % 9} {code}{n % 7}\n" for n in range(60))
        (folder / f"t.{ {'d': 'de', 'e': 'en'}[code] }").write_text("".join(pairs))
    sources = [f"language:de={folder}/a.txt", f"language:en={folder}/b.txt"]
    return prepare(
        [*sources, f"language:de-en={folder}/t"], folder / "out", tokenizer=TOKENIZER,
        heldout=0.1, block_tokens=64,
    )  # fmt: skip


def of(corpus, **fields):
    return facts.fill(Multilingual(**fields), lambda: corpus)


def languages(corpus, batch):
    """The languages of the rows, by the letters of their words."""
    pieces = np.array([piece[:1] for piece in corpus.tokenizer().pieces])
    return ["".join(sorted({*pieces[row]} & {"d", "e"})) for row in batch["input_ids"]]


def test_the_manifest_has_the_languages_and_their_sums(corpus):
    parts = corpus.languages
    assert list(parts) == ["de", "en", "de-en"]
    for split in ("train", "heldout"):
        for name in ("documents", "sentences", "tokens", "blocks"):
            assert corpus.size(split)[name] == sum(p["splits"][split][name] for p in parts.values())
    sizes = [part["splits"]["train"]["tokens"] for part in parts.values()]
    assert sizes[0] > 8 * sizes[1] and not any(part["unknown"] for part in parts.values())
    blocks = corpus.language("en").blocks("train")
    pieces = corpus.tokenizer().pieces
    assert {pieces[i][0] for n in range(len(blocks)) for i in blocks[n].tokens} == {"e"}
    assert sum(
        len(corpus.blocks("train")[n].tokens) for n in range(corpus.size()["blocks"])
    ) == sum(sizes)


@pytest.mark.parametrize("batches", [True, False])
def test_languages_have_the_shares_of_their_power_and_a_stream_goes_on(corpus, batches):
    examples = of(corpus, sampling=0.5, batches=batches, translations=0.4)
    options = {"length": 32, "batch": 4, "seed": 1}
    stream, counts, mixed = opened(corpus, "train", examples, **options), {}, 0
    for _ in range(200):
        batch = next(stream)
        letters = languages(corpus, batch)
        for row, (ids, sides) in zip(
            letters, zip(batch["segment_ids"], batch["language_ids"], strict=True), strict=True
        ):
            counts[row] = counts.get(row, 0) + 1
            assert {*sides[ids > 0]} == {"de".index(letter) for letter in row}
        mixed += len({*letters}) > 1
    sizes = [corpus.language(name).size()["tokens"] ** 0.5 for name in ("de", "en")]
    expected = {"d": 0.6 * sizes[0] / sum(sizes), "e": 0.6 * sizes[1] / sum(sizes), "de": 0.4}
    assert all(abs(counts[name] / 800 - share) < 0.12 for name, share in expected.items())
    assert (mixed == 0) == batches
    state = stream.state()
    again = opened(corpus, "train", examples, **options)
    again.restore(state)
    for _ in range(5):
        one, two = next(stream), next(again)
        assert all(np.array_equal(one[name], two[name]) for name in one)
    with pytest.raises(UserError, match="another stream|other languages"):
        opened(corpus, "train", examples, **{**options, "seed": 2}).restore(state)
    stream.close(), again.close()


@pytest.mark.parametrize("batches", [True, False])
def test_two_processes_read_the_rows_of_one_and_their_states_are_one(corpus, batches):
    examples, options = of(corpus, batches=batches), {"length": 16, "batch": 4, "seed": 3}
    alone = opened(corpus, "train", examples, **options)
    two = [
        opened(corpus, "train", examples, process_index=n, process_count=2, **options)
        for n in range(2)
    ]
    for _ in range(7):
        rows = np.concatenate([next(stream)["input_ids"] for stream in two])
        assert np.array_equal(rows, next(alone)["input_ids"])
    again = opened(corpus, "train", examples, **options)
    again.restore(json.loads(json.dumps(merge([stream.state() for stream in two]))))
    for _ in range(5):
        assert np.array_equal(next(again)["input_ids"], next(alone)["input_ids"])
    for stream in (alone, again, *two):
        stream.close()


@pytest.mark.parametrize("batches", [True, False])
def test_an_epoch_has_all_text_once_in_any_number_of_processes(corpus, batches):
    examples = of(corpus, examples=Packed(), batches=batches)
    options = {"length": 16, "batch": 4, "seed": 0, "epochs": 1}
    rows = [batch["input_ids"] for batch in opened(corpus, "heldout", examples, **options)]
    ids = np.sort(np.concatenate(rows)[np.concatenate(rows) > 4])
    assert len(ids) == corpus.size("heldout")["tokens"]
    parts = [
        [
            b["input_ids"]
            for b in opened(
                corpus, "heldout", examples, process_index=i, process_count=2, **options
            )
        ]
        for i in range(2)
    ]
    for all_rows, first, second in zip(rows, *parts, strict=True):
        assert np.array_equal(all_rows, np.concatenate([first, second]))


def test_languages_that_a_model_cannot_number_are_one_line(corpus, tmp_path):
    examples = of(corpus)
    (tmp_path / "x.txt").write_text("d1 d2\n\nd3\n\n" * 9)
    spec = TokenizerSpec(path=str(corpus.dir / "tokenizer"))
    plain = prepare([str(tmp_path / "x.txt")], tmp_path / "plain", tokenizer=spec)
    french = prepare([f"language:fr={tmp_path}/x.txt"], tmp_path / "fr", tokenizer=spec)
    for text, value, message in (
        (plain, examples, "has no language, and the model has de, en"),
        (french, examples, "unknown language of this model 'fr'; there are: de, en"),
        (corpus, of(corpus, capacity=1), "2 languages, and the model numbers 1"),
        (corpus, of(corpus, parallel=None), "read no translations"),
        (corpus, of(corpus, languages=("en", "fr")), "unknown language of this model 'de'"),
    ):
        with pytest.raises(UserError, match=message):
            opened(text, "train", value, length=16, batch=2, seed=0)
    named = of(corpus, languages=("en", "fr", "de"), batches=True, translations=0.0)
    rows = [next(opened(corpus, "train", named, length=16, batch=2, seed=n)) for n in range(24)]
    numbers = {int(batch["language_ids"].max()): languages(corpus, batch)[0] for batch in rows}
    assert numbers == {0: "e", 2: "d"}, "the numbers are those of the model"
    assert (
        next(opened(plain, "train", of(plain), length=16, batch=2, seed=0))["language_ids"].sum()
        == 0
    )


def test_the_text_of_a_tokenizer_has_the_power_of_each_language(tmp_path):
    """A vocabulary of frequent words has English ones where the share of their text is raised."""
    (tmp_path / "a.txt").write_text("\n\n".join(f"d{n % 20} d{n % 20}" for n in range(400)))
    (tmp_path / "b.txt").write_text("\n\n".join(f"e{n % 20} e{n % 20}" for n in range(100)))
    sources = [f"language:de={tmp_path}/a.txt", f"language:en={tmp_path}/b.txt"]
    words = {}
    for power in (1.0, 0.0):
        spec = TokenizerSpec(kind="word", vocab=25, specials="roberta", sampling=power)
        pieces = prepare(sources, tmp_path / str(power), tokenizer=spec).tokenizer().pieces
        words[power] = [sum(piece[0] == letter for piece in pieces) for letter in "de"]
    assert words[1.0] == [20, 0] and min(words[0.0]) > 5

"""Labelled tables: what is read, what is refused with file and line, and a stream that loses
nothing."""

import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.data.corpora.store import open_corpus
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.tasks.formats.labelled import Labelled
from ptm_jax.tasks.formats.taskrows import shortened
from support.tiny_checkpoint import written

SPEC = TokenizerSpec(kind="wordpiece", vocab=60)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("labelled")
    return Labelled().corpus([str(written(folder / "sst2"))], folder / "prepared", SPEC)


def texts_of(batch, tokenizer):
    """{(text, label)} of the rows that count."""
    found = []
    for ids, real, label, weight in zip(
        batch["input_ids"],
        batch["segment_ids"],
        batch["label"],
        batch["label_weights"],
        strict=True,
    ):
        assert (weight == 1) == bool(real.any()) and set(np.unique(real)) <= {0, 1}
        if weight:
            found.append((tokenizer.decode(ids[real > 0]), int(label)))
    return found


def test_every_example_comes_once_an_epoch_with_its_label(corpus):
    examples, tokenizer = Labelled(), corpus.tokenizer()
    stream = corpus.stream("train", examples, length=256, batch=8, seed=3, epochs=1)
    batches = list(stream)
    assert len(batches) == stream.per_epoch == 7 and stream.cut == 0
    found = [pair for batch in batches for pair in texts_of(batch, tokenizer)]
    lines = (corpus.dir.parent / "sst2" / "train.tsv").read_text().splitlines()[1:]
    wanted = [(line.split("\t")[0], int(line.split("\t")[1])) for line in lines]
    assert sorted(found) == sorted(wanted)
    assert {batch["input_ids"].shape[1] for batch in batches} <= {16, 32, 64, 128, 256}
    again = list(corpus.stream("train", examples, length=256, batch=8, seed=4, epochs=1))
    assert any(
        not np.array_equal(a["label"], b["label"]) for a, b in zip(batches, again, strict=True)
    )


def test_the_position_and_the_processes(corpus):
    def make(**words):
        return corpus.stream("train", Labelled(), length=32, batch=8, seed=0, **words)

    whole = make()
    first = [next(whole) for _ in range(20)]
    resumed = make()
    for _ in range(9):
        next(resumed)
    other = make()
    other.restore(resumed.state())
    halves = [make(process_index=i, process_count=2) for i in range(2)]
    for number in range(20):
        parts = [next(half) for half in halves]
        for name, value in first[number].items():
            np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), value)
        if number >= 9:
            for name, value in next(other).items():
                np.testing.assert_array_equal(value, first[number][name])
    with pytest.raises(UserError, match="seed was 0, is 1"):
        corpus.stream("train", Labelled(), length=32, batch=8, seed=1).restore(whole.state())


def test_long_texts_are_cut_and_counted(corpus):
    stream = corpus.stream("train", Labelled(), length=12, batch=4, seed=0, epochs=1)
    sizes = [len(record["first"]) for record in corpus.records("train")]
    assert stream.cut == sum(size > 10 for size in sizes) > 0
    assert all(batch["input_ids"].shape == (4, 12) for batch in stream)


@pytest.mark.parametrize(
    ("a", "b", "room"), [(3, 4, 9), (9, 2, 7), (2, 9, 7), (9, 8, 7), (9, 9, 6), (1, 1, 1)]
)
def test_the_longer_of_a_pair_gives_way(a, b, room):
    """Against taking one token at a time from the end of the longer, the second where they are
    equal."""
    first, second = np.arange(a), np.arange(b)
    found = tuple(map(len, shortened(first, second, room)))
    while a + b > room:
        a, b = (a - 1, b) if a > b else (a, b - 1)
    assert found == (a, b)


def test_a_prepared_directory_is_opened_again_and_refuses_other_data(tmp_path):
    folder = written(tmp_path / "data")

    def prepare(name):
        return Labelled().corpus([str(folder)], tmp_path / name, SPEC)

    assert prepare("out").manifest == prepare("out").manifest
    assert open_corpus(tmp_path / "out").counts("heldout").sum() == 7
    found = open_corpus(tmp_path / "out").manifest["request"][
        "tokenizer"
    ]  # as workdirs of older versions have it
    fields = (
        "kind='wordpiece', vocab=60, lowercase=True, specials='bert', sentinels=0, path=None, "
        "train_bytes=32000000"
    )
    assert found == f"TokenizerSpec({fields})"
    (folder / "train.tsv").write_text("text\tlabel\n")
    with pytest.raises(UserError, match="other data"):
        prepare("out")
    with pytest.raises(UserError, match="has no examples"):
        prepare("empty")
    assert not (tmp_path / "empty").exists()

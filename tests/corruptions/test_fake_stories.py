"""True and fake stories, against every row that each kind may become; the sentences of triples."""

import itertools

import numpy as np
import pytest

from ptm_jax.corruptions.knowledge.fake_stories import FakeStories
from ptm_jax.data.graphs.triple_sentences import documents, sentence
from ptm_jax.data.text import sources
from support import corrupting
from support.corrupting import VOCAB

LENGTH = 24


def batch(rows=96):
    """Rows of two documents of sentences of 1 to 4 tokens, some rows of one document or of one
    sentence."""
    draw = np.random.default_rng(0)
    ids, segments, sentences = (np.zeros((rows, LENGTH), np.int32) for _ in range(3))
    for row in range(rows):
        at, number = 0, 0
        for document in range(1, 2 if row % 8 == 0 else 3):
            for _ in range(1 if row % 8 == 1 else draw.integers(2, 4)):
                size, number = draw.integers(1, 5), number + 1
                stop = min(at + size, LENGTH - 2)
                ids[row, at:stop], segments[row, at:stop] = (
                    draw.integers(10, 350, stop - at),
                    document,
                )
                sentences[row, at:stop], at = number, stop
    return {
        "input_ids": ids,
        "segment_ids": segments,
        "sentences": sentences,
        "rows": np.arange(rows, dtype=np.int32),
    }


def parts(before, row, document):
    """The sentences of a document as tuples."""
    ids, inside, numbers = (
        before["input_ids"][row],
        before["segment_ids"][row] == document,
        before["sentences"][row],
    )
    return [tuple(ids[inside & (numbers == n)].tolist()) for n in np.unique(numbers[inside])]


@pytest.mark.full
def test_stories_are_true_or_one_of_three_fakes():
    before = batch()
    out, kinds = corrupting.numpied(FakeStories(vocab=VOCAB), 0, before), []
    moved = 0
    for row in range(len(before["rows"])):
        own, rest, label = parts(before, row, 1), parts(before, row, 2), out["truth_labels"][row]
        real = out["segment_ids"][row] > 0
        found = out["input_ids"][row][real].tolist()

        def joined(story, rest=rest):
            return [word for part in [*story, *rest] for word in part][:LENGTH]

        if label == 1:
            story = out["input_ids"][row][out["segment_ids"][row] == 1].tolist()
            orders = [
                own[:1] + [own[i] for i in p] for p in itertools.permutations(range(1, len(own)))
            ]
            assert story in [[word for part in one for word in part] for one in orders]
            assert found[len(story) :] == joined(own)[len(story) :]
            moved += story != [word for part in own for word in part]
        elif label == 0:
            assert found == joined(own)
        elif label == 3:
            assert found in [
                joined([*own[: j + 1], own[j], *own[j + 1 :]]) for j in range(1, len(own))
            ]
        else:

            def donors(j, rest=rest):
                return rest[j : j + 1] or rest

            able = [
                [*own[:j], donor, *own[j + 1 :]] for j in range(1, len(own)) for donor in donors(j)
            ]
            assert found in [joined(story) for story in able]
        assert (
            out["truth_weights"][row] == 1
            and len(own) > (0, 2, 1, 1)[label]
            and (label != 2 or rest)
        )
        assert out["positions"][row][real].tolist() == [
            n for size in np.bincount(out["segment_ids"][row][real])[1:] for n in range(size)
        ]
        kinds += [label] if len(own) > 1 and rest else []
    assert {*kinds} == {0, 1, 2, 3} and moved


def test_triples_are_sentences(tmp_path):
    assert sentence("dog", "CapableOf", "bark") == "dog can bark."
    assert sentence("PersonX cooks", "xWant", "to eat") == "PersonX cooks. PersonX wants to eat."
    assert sentence("a {word}", "hypernym_of", "x") == "a {word} hypernym of x."
    from ptm_jax.knowledge.graphs import compiling, formats

    (tmp_path / "kg").mkdir()
    (tmp_path / "kg" / "train.tsv").write_text("dog\tIsA\tanimal\ncat\tUsedFor\tcompany\n")
    compiling.compile_graph(formats.sources([str(tmp_path / "kg")]), tmp_path / "graph")
    name = f"sentences:{tmp_path / 'graph'}"
    texts = [text for document in documents(name) for text in document.sentences]
    assert sorted(texts) == ["cat is used for company.", "dog is a animal."]
    assert [d for d in sources.documents([name])] == [*documents(name)] and sources.fingerprints(
        [name]
    )[0]["sha256"]

"""Scores that a teacher gave once: the file, the rows, and what is refused."""

import json
import types

import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.tasks.formats.taught import FIELD, TaughtLabels, read
from ptm_jax.tuning.augmentation import teaching


class Words:
    """A tokenizer whose ids are the lengths of words."""

    def encode_batch(self, texts):
        return [np.array([len(word) for word in text.split()], np.int32) for text in texts]

    def frame(self, first, second=None):
        ids = np.array([1, *first, 2], np.int32)
        return ids, np.zeros(len(ids), np.int32)


@pytest.fixture
def data(tmp_path):
    lines = [
        "sentence\tlabel",
        *(f"{'good' if n % 2 else 'bad'} film {'x' * n}\t{n % 2}" for n in range(1, 5)),
    ]
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    return (str(tmp_path),)


def test_scores_are_computed_once_and_stand_in_the_rows(data, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(teaching.evaluating, "task_for", lambda model, task: task)
    monkeypatch.setattr(teaching.evaluating, "length_of", lambda model, task: 8)
    monkeypatch.setattr(
        teaching,
        "rows_of",
        lambda model, spec, examples, length: ([len(e.first) for e in examples], {}),
    )

    def give(model, spec, groups, batch):
        return asked.append(spec) or [np.array([model * size, 0.5]) for size in groups]

    monkeypatch.setattr(teaching, "class_scores", give)
    task = catalogue.get("sst2")
    for _ in range(2):
        path = teaching.write_scores((1.0, 2.0), task, data, tmp_path / "run" / "scores.jsonl")
    assert asked == [task.examples] * 2 and len(path.read_text().splitlines()) == 8
    config = types.SimpleNamespace(system=types.SimpleNamespace(examples=task.examples))
    monkeypatch.setattr(
        teaching.dataclasses, "replace", lambda value, **fields: types.SimpleNamespace(**fields)
    )
    own = teaching.taught(config, path).system.examples
    assert (
        isinstance(own, TaughtLabels)
        and (own.teachers, own.classes) == (2, 2)
        and own.labels == task.examples.labels
    )
    examples = own.examples(own.files(data)["train"])
    groups, _ = own.features(Words(), own.encode(Words(), examples), 8)
    for example, (row,) in zip(examples, groups, strict=True):
        np.testing.assert_array_equal(
            row[FIELD], [[len(example.first), 0.5], [2 * len(example.first), 0.5]]
        )
    assert own.spec(8, None)[FIELD] == ((2, 2), np.float32)
    (tmp_path / "run" / "other.jsonl").write_text(
        json.dumps({"first": "a", "second": "", "scores": [[0, 1]]}) + "\n"
    )
    with pytest.raises(UserError, match=r"train.tsv.*has no scores of this text"):
        TaughtLabels(scores=str(tmp_path / "run" / "other.jsonl"), teachers=1, classes=2).encode(
            Words(), examples
        )


def test_a_damaged_file_is_one_line(tmp_path):
    (tmp_path / "s.jsonl").write_text('{"first": "a"}\n')
    with pytest.raises(UserError, match=r"s.jsonl:1: expected first, second and scores"):
        read(str(tmp_path / "s.jsonl"))
    with pytest.raises(UserError, match="no file of scores"):
        read(str(tmp_path / "none.jsonl"))

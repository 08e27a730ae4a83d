"""A run as a value: the paths that name it, its record, and the checkpoint that fine-tuning
chose."""

import json

import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.data.corpora.store import Corpus
from ptm_jax.runs.publishing import published_config
from ptm_jax.runs.run import Run, best_checkpoint, stop_remark
from ptm_jax.runs.writing import check_free
from ptm_jax.training.start import setup

RECORD = {
    "config": {"system": {"kind": "System", "name": "a", "towers": {}}, "data": ["a.txt", "b.txt"]}
}


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "run"
    (folder / "checkpoints" / "step_00000004").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(RECORD))
    return folder


def test_paths_that_name_a_run(folder):
    checkpoint = folder / "checkpoints" / "step_00000004"
    assert (
        Run.at(folder) == Run.at(folder / "checkpoints") == Run(folder)
        and Run(folder).path == folder
    )
    assert Run.at(checkpoint) == Run(folder, 4) and Run(folder, 4).path == checkpoint


def test_the_record(folder):
    run = Run(folder)
    assert (
        run.exists
        and run.system["name"] == "a"
        and run.sources == ("a.txt", "b.txt")
        and run.published == {}
    )
    assert run.tokenizer() is None and published_config(folder / "checkpoints") is None
    with pytest.raises(UserError, match="has no tokenizer; copy the directory"):
        run.tokenizer({"tokenizer": "abc"})
    with pytest.raises(UserError, match=r"is no record of a run \(corpus is None; "):
        run.corpus()
    (folder / "config.json").write_text(json.dumps({**RECORD, "published": {"model_type": "bert"}}))
    assert Run(folder).published == published_config(folder) == {"model_type": "bert"}


def test_languages_have_the_numbers_of_the_training_text(folder, tmp_path):
    """The corpus may be gone later: its languages stand in the record."""
    manifest = {"digest": "a", "tokenizer": {"hash": "b"}, "languages": {"de-en": {}, "fr": {}}}
    facts = setup.facts_of(Corpus(tmp_path, {**manifest, "vocab": {"size": 9}}))
    assert facts["languages"] == ["de", "en", "fr"]
    for given, known in (([], ["de", "en", "fr"]), (["fr", "de", "en"], ["fr", "de", "en"])):
        system = {**RECORD["config"]["system"], "examples": {"languages": given}}
        record = {"config": {"system": system}, "corpus": facts}
        (folder / "config.json").write_text(json.dumps(record))
        assert Run(folder).system["examples"]["languages"] == known


@pytest.mark.parametrize("text", ["{", "[]", '{"config": {}}', '{"config": {"system": "bert"}}'])
def test_no_record(folder, text):
    (folder / "config.json").write_text(text)
    with pytest.raises(UserError, match="config.json is no record of a run"):
        Run(folder).experiment()
    (folder / "config.json").unlink()
    assert not Run(folder).exists
    with pytest.raises(
        UserError, match="is no workdir of a run .it has no config.json.; name one that `ptm train`"
    ):
        Run(folder).experiment()


def test_the_checkpoint_that_was_chosen(folder):
    assert (
        best_checkpoint(folder) == folder
        and best_checkpoint("bert-base-uncased") == "bert-base-uncased"
    )
    choice = {
        "task": "sst2",
        "step": 4,
        "examples": 5,
        "metrics": {"accuracy": 1.0},
        "ended": "done",
    }
    (folder / "task.json").write_text(json.dumps(choice))
    assert (
        Run(folder).choice() == choice
        and best_checkpoint(folder) == folder / "checkpoints" / "step_00000004"
    )
    (folder / "task.json").write_text(json.dumps({**choice, "step": 9}))
    assert best_checkpoint(folder) == folder, "a checkpoint that is gone"
    (folder / "task.json").write_text("{}")
    with pytest.raises(UserError, match="task.json is damaged"):
        Run(folder).choice()


def test_a_folder_that_is_taken(folder, tmp_path):
    check_free(tmp_path / "new")
    with pytest.raises(UserError, match="is there already"):
        check_free(folder)


def test_a_run_that_has_not_ended_says_so(tmp_path):
    system = RECORD["config"]["system"] | {"recipe": {"phases": [{"steps": 45}]}}
    record = {"config": RECORD["config"] | {"system": system}}
    (tmp_path / "config.json").write_text(json.dumps(record))
    assert stop_remark(tmp_path) is None
    (tmp_path / "checkpoints" / "step_00000010").mkdir(parents=True)
    assert stop_remark(tmp_path).endswith("has not ended: its checkpoint is of step 10 of 45")
    choice = {"task": "own", "step": 10, "examples": 1, "metrics": {}, "ended": "early"}
    (tmp_path / "task.json").write_text(json.dumps(choice))
    assert stop_remark(tmp_path) is None
    assert stop_remark(tmp_path / "absent") is None

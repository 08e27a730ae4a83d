"""What `ptm_jax.load` gives of a workdir, and what it refuses."""

import dataclasses
import json
import sys

import numpy as np
import pytest

import ptm_jax
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.core.system import Tie
from support.tiny_models import save_run


@pytest.mark.full
def test_load_gives_the_model_that_was_trained(run, bert):
    ids = np.random.default_rng(0).integers(5, bert.vocab.size - 1, (3, 6))
    for path in (run, str(run), run / "checkpoints" / "step_00000003"):
        model = ptm_jax.load(path)
        np.testing.assert_array_equal(model(ids).logits, bert(ids).logits)
    assert model.system.towers == dict(bert.system.towers) and model.vocab == bert.vocab
    assert model.fill_mask(["the [MASK]"]) == bert.fill_mask(["the [MASK]"])
    half = ptm_jax.load(run, precision="bfloat16")(ids).hidden
    assert 0 < np.abs(np.float32(half) - bert(ids).hidden).max() < 0.5


def test_load_keeps_the_record_of_an_objective_it_does_not_know(tmp_path, bert):
    save_run(tmp_path, bert)
    config = json.loads((tmp_path / "config.json").read_text())
    config["config"]["system"]["objective"] = {"kind": "NoSuchKind", "rate": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert ptm_jax.load(tmp_path).system.objective == {"kind": "NoSuchKind", "rate": 2}
    config["config"]["system"]["towers"]["main"]["encoder"]["kind"] = "NoSuchKind"
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        UserError, match="system.towers.main.encoder is of the unknown kind 'NoSuchKind'"
    ):
        ptm_jax.load(tmp_path)


def test_load_fills_tied_parameters(tmp_path, gpt2):
    path = "main/encoder/embed/position/table"
    params = flatten(gpt2.params)
    source = "main/copy"
    rest = {k: v for k, v in params.items() if k != path} | {source: params[path]}
    save_run(
        tmp_path,
        dataclasses.replace(gpt2, params=unflatten(rest)),
        ties=(Tie(path=path, source=source),),
    )
    model = ptm_jax.load(tmp_path)
    np.testing.assert_array_equal(flatten(model.params)[path], params[path])


def test_what_cannot_be_loaded(tmp_path, monkeypatch, bert, run):
    def refuses(path, message):
        with pytest.raises(UserError, match=message) as caught:
            ptm_jax.load(path)
        assert "\n" not in str(caught.value)

    refuses(tmp_path / "absent", "absent': there is no such directory")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "huggingface_hub", None)
        refuses(tmp_path / "absent", "absent': there is no such directory")
        refuses(
            "runs/absent",
            "^'runs/absent': there is no such directory, and huggingface_hub is not installed$",
        )
    refuses(tmp_path, "no config.json.*ptm train")
    save_run(tmp_path, bert, tokenizer_hash="0" * 64)
    refuses(tmp_path, "is not the one that the run was trained with")
    (tmp_path / "tokenizer" / "tokenizer.json").unlink()
    refuses(tmp_path, "no readable tokenizer")
    (tmp_path / "config.json").write_text("{")
    refuses(tmp_path, "is no record of a run")
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "config.json").write_bytes((run / "config.json").read_bytes())
    refuses(empty, "no usable checkpoint")

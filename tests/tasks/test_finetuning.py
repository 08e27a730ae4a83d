"""Fine-tuning by command: from a run of our own, and from a published checkpoint."""

import json
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import Config
from ptm_jax.core import towers
from ptm_jax.data.published import write_published
from ptm_jax.data.tokenizers import TokenizerSpec
from ptm_jax.data.vocabularies import make

sys.path.append(str(Path(__file__).parents[1] / "data"))
from test_labelled import WORDS, written  # noqa: E402


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A small BERT as a Hugging Face directory, with a tokenizer."""
    folder = tmp_path_factory.mktemp("published")
    tokenizer = make(TokenizerSpec(kind="wordpiece", vocab=60), [" ".join(WORDS)] * 20)
    fields = {
        "model_type": "bert", "architectures": ["BertModel"], "vocab_size": len(tokenizer.pieces), "hidden_size": 16,
        "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 64,
        "pad_token_id": 0,
    }  # fmt: skip
    system, _ = checkpoint.record_of(Config(fields))
    params = towers.init(system.towers, jax.random.key(0), checkpoint.example(system))
    checkpoint.write(folder, system, params, config=fields)
    write_published(tokenizer, folder)
    return folder


def test_a_published_checkpoint_is_fine_tuned_and_resumed(published, tmp_path, capsys):
    data = written(tmp_path / "sst2", count=64, dev=16)
    words = ["train", "--init", str(published), "--task", "sst2", "--data", str(data), "--epochs", "2", "--batch", "16"]
    words += ["--workdir", str(tmp_path / "run"), "--set", "recipe.phases.0.length=32"]
    assert main([*words, "--json"]) == 0
    out = capsys.readouterr()
    found = json.loads(out.out)
    assert found["steps"] == 8 and {"accuracy", "nll"} <= set(found["heldout"])
    assert "drawn anew" in out.err or "made anew" in out.err
    assert main([*words, "--json"]) == 0  # nothing left to do
    assert json.loads(capsys.readouterr().out)["resumed_from"] == 8
    model = ptm_jax.load(tmp_path / "run")
    answers = model.classify(["a good film", "a sad story"])
    assert all(abs(sum(answer.values()) - 1) < 1e-5 for answer in answers) and len(answers) == 2
    start = ptm_jax.load(published)
    moved = np.asarray(model.params["main"]["encoder"]["embed"]["token"]) - start.params["main"]["encoder"]["embed"]["token"]
    assert 0 < np.abs(moved).max() < 0.01  # it began there: eight small steps away


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--task", "sst2"], "needs the model to begin with"),
        (["--task", "sst3", "--init", "X", "--data", "D"], "unknown task 'sst3'.*Did you mean 'sst"),
        (["bert_tiny", "--task", "sst2"], "leave the system out"),
        ([], "give a system or a config"),
    ],
)
def test_what_is_missing_is_said(words, said, tmp_path, capsys):
    import re

    assert main(["train", *words, "--workdir", str(tmp_path / "run")]) == 1
    assert re.search(said, capsys.readouterr().err)

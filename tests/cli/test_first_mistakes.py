"""The first mistakes of a new user: a device that is not there, options under the names of other
libraries, texts that are none."""

import os
import subprocess
import sys

import numpy as np
import pytest

from ptm_jax import api
from ptm_jax.cli.main import COMMANDS, main
from ptm_jax.core import spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.recipe import Phase, Recipe
from ptm_jax.inference import forward_pass, inputs
from ptm_jax.inference.pretrained import Pretrained
from ptm_jax.inference.text import vectors
from ptm_jax.runs.resolving import resolve
from ptm_jax.tasks.formats import json_text
from ptm_jax.tasks.formats.labelled import Labelled
from ptm_jax.training.start import setup
from ptm_jax.tuning import other_names
from support.tiny_models import build, drawn


@pytest.mark.full
@pytest.mark.parametrize("platform", ["cuda", "tpu", "gpu", "metal"])
def test_a_device_that_is_not_there(platform, tmp_path):
    """JAX's own exceptions are an AssertionError without text and RuntimeErrors."""
    code = "import sys; from ptm_jax.cli.main import main; sys.exit(main(sys.argv[1:]))"
    line = ["train", "bert_mini", "--data", __file__, "--workdir", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-c", code, *line],
        env={**os.environ, "JAX_PLATFORMS": platform},
        capture_output=True,
        text=True,
    )
    if done.returncode == 0:
        pytest.skip("the device is there")
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and last.startswith(f"ptm: JAX_PLATFORMS is {platform!r}, and JAX")
    assert "unset JAX_PLATFORMS" in last and "report" not in last


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("train --init m --task sst2 --data d --workdir w --batch-size 8", "--batch"),
        ("train --init m --task sst2 --data d --workdir w --batch_size=8", "--batch"),
        ("train --init m --task sst2 --data d --workdir w --learning-rate 1e-5", "--lr"),
        ("train --init m --task sst2 --data d --workdir w --num_train_epochs 3", "--epochs"),
        ("train --init m --task sst2 --data d --output_dir w", "--workdir"),
        ("train --init m --data d --workdir w --per_device_train_batch_size 8", "--batch"),
        ("train m --workdir w --max-seq-length 128", "--length"),
        ("train m --workdir w --weight-decay 0.1", "--set recipe.optimizer.weight_decay=..."),
        ("train m --workdir w --warmup_steps 10", "--set recipe.schedule.warmup=..."),
        ("train m --workdir w --gradient-accumulation-steps 2", "--set recipe.accumulate=..."),
        ("train m --workdir w --max_steps 9", "--set recipe.phases.0.steps=..."),
        ("train m --workdir w --save_steps 9", "--set save_every=..."),
        ("train --model_name_or_path m --task sst2 --data d --workdir w", "--init"),
    ],
)
def test_options_of_other_libraries_on_the_command_line(capsys, line, hint):
    assert main(line.split()) == 2
    assert capsys.readouterr().err.endswith(f"; did you mean {hint}?\n")


def test_every_field_that_is_suggested_exists():
    recipe = Recipe(phases=(Phase(steps=1, batch=1, length=1),), lr=1.0)
    for path in other_names.FIELDS.values():
        value = recipe
        for step in path.split(".")[1:] if path.startswith("recipe.") else ():
            value = value[int(step)] if step.isdigit() else vars(value)[step]
    assert spec.is_spec(recipe)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"batch_size": 8, "learning_rate": 1e-5}, {"batch": 8, "lr": 1e-5}),
        ({"num_train_epochs": 2, "max_seq_length": 64}, {"epochs": 2, "length": 64}),
        ({"per_device_train_batch_size": 8, "seed": 1}, {"batch": 8, "seed": 1}),
        ({"max_steps": 5, "random_state": 3}, {"steps": 5, "seed": 3}),
    ],
)
def test_options_of_other_libraries_in_python(options, named):
    assert other_names.translated(options, api.OPTIONS) == named


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 8, "batch_size": 8}, "batch_size and batch are the same option"),
        ({"weight_decay": 0.1}, r"fields={'recipe.optimizer.weight_decay': ...}"),
        ({"warmup_steps": 10}, r"fields={'recipe.schedule.warmup': ...}"),
        ({"output_dir": "x"}, "write workdir="),
        ({"epoch": 1}, "there are epochs, .*Did you mean 'epochs'"),
    ],
)
def test_options_that_finetune_has_not(tmp_path, options, message):
    with pytest.raises(UserError, match=message) as error:
        api.finetune("m", ["a", "b"], ["x", "y"], workdir=tmp_path / "w", **options)
    assert "experiment()" not in str(error.value)


@pytest.mark.parametrize("labels", [["yes", ""], ["yes", float("nan")]])
def test_a_message_names_the_row_and_no_temporary_path(labels):
    with pytest.raises(UserError, match="^the data, row 2: the label is") as error:
        with api._folder(None) as folder:
            _, (path,) = api._labelled(["a", "b"], labels, None, None, folder)
            list(Labelled(labels="found").read(path))
    assert "/tmp" not in str(error.value) and "given_" not in str(error.value)


def test_fields_of_an_experiment_by_their_paths():
    config = setup.experiment(resolve("bert_mini"))
    changed = api._with(config, {"recipe.optimizer.weight_decay": 0.5, "seed": 7})
    assert changed.system.recipe.optimizer.weight_decay == 0.5 and changed.seed == 7
    with pytest.raises(UserError, match="'weight_decay'; write {'recipe.optimizer.weight_decay'"):
        api._with(config, {"weight_decay": 0.5})


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_no_default_of_an_option_without_one(name, capsys):
    assert main([name, "--help"]) == 0
    assert "default: None" not in capsys.readouterr().out


@pytest.mark.parametrize("odd", [None, 3, float("nan"), ["a"], b"a", np.float32(1)])
def test_a_text_that_is_none_is_named_with_its_place(odd):
    with pytest.raises(UserError, match=r"texts\[1\] is .*expected a text"):
        inputs.texts_of(["a", odd])


@pytest.mark.parametrize("whole", [None, 3, "a text", b"a text"])
def test_a_single_text_is_no_list(whole):
    with pytest.raises(UserError, match=r"write \[text\] for a single one"):
        inputs.texts_of(whole)


@pytest.mark.parametrize("text", ["a \ud83d", "\udc80", "\ude00\ud83d", "日\udfff本"])
def test_a_lone_surrogate_is_named_with_its_place(text, tmp_path):
    with pytest.raises(UserError, match=r"texts\[1\] has a lone surrogate \('.ud"):
        inputs.texts_of(["😀", text])
    escaped = text.encode("unicode-escape").decode()
    line = f'{{"text": "😀", "n": [{{"x": "{escaped}"}}]}}'
    with pytest.raises(UserError, match="a.json:2 has a lone surrogate"):
        json_text.json_of(tmp_path / "a.json", line, 2)
    assert json_text.json_of(tmp_path, '"\\ud83d\\ude00"', 1) == "😀"


def test_similarity_is_of_vectors():
    with pytest.raises(UserError, match="similarity compares vectors, given texts; encode them"):
        vectors.similarity(["a"], ["b"])
    assert vectors.similarity([1, 0], [[0, 1], [1, 0]]).tolist() == [[0, 1]]


def test_a_model_without_prompts():
    with pytest.raises(UserError, match="names no prompts, given prompt_name='query'.*prompt=\""):
        build("bert").encode(["a"], prompt_name="query")


@pytest.mark.parametrize("option", forward_pass.MEANINGS)
def test_layers_and_attention_that_an_encoder_has_not(option):
    for name in ("sa_lstm_mini", "textcnn_mini", "rnnsearch_mini"):
        system = resolve(name)
        model = Pretrained(system, drawn(system))
        with pytest.raises(UserError, match=f"gives no .*; leave out {option}=True"):
            model(np.array([[5, 6, 7]]), **{option: True})

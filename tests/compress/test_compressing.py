"""`ptm compress METHOD MODEL`: the folder it writes, its resumption, and what it refuses."""

import json

import numpy as np
import pytest

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.core.paths import flatten
from support import tiny_checkpoint


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(tiny_checkpoint.write(tmp_path_factory.mktemp("compress") / "bert"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return str(tiny_checkpoint.written(tmp_path_factory.mktemp("compress") / "data"))


def test_without_training_the_folder_loads_and_exports(model, tmp_path, capsys):
    out, hub = tmp_path / "small", tmp_path / "hub"
    assert (
        main(["compress", "magnitude(share=0.5, when='after')", model, "--out", str(out), "--json"])
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    before, after = found["before"], found["after"]
    assert before["parameters"] == after["parameters"] and after["zeros"] - before["zeros"] > 700
    loaded = ptm_jax.load(out)
    kernel = np.asarray(flatten(loaded.params)["main/encoder/stack/block/ffn/up/kernel"])
    assert (kernel == 0).mean() == 0.5 and loaded.system.compress == ()
    assert main(["export", str(out), "--out", str(hub)]) == 0
    same = flatten(ptm_jax.load(hub).params)
    np.testing.assert_array_equal(same["main/encoder/stack/block/ffn/up/kernel"], kernel)


@pytest.mark.full
def test_a_stopped_compression_goes_on_exactly(model, data, tmp_path, capsys):
    """The same parameters, bit for bit, as of a run that nothing stopped."""
    words = [
        "compress",
        "magnitude(share=0.5, every=2)",
        model,
        "--task",
        "sst2",
        "--data",
        data,
        "--batch",
        "8",
        "--json",
    ]
    words += ["--epochs", "2", "--set", "save_every=3"]
    assert main([*words, "--out", str(tmp_path / "whole")]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert whole["after"]["metrics"]["accuracy"] >= 0 and not whole["before"]["metrics"]
    # the state of a kill: some checkpoints of the run, and no folder
    import shutil

    shutil.copytree(tmp_path / "whole.run", tmp_path / "again.run")
    for step in sorted((tmp_path / "again.run" / "checkpoints").glob("step_*"))[1:]:
        shutil.rmtree(step)
    (tmp_path / "again.run" / "task.json").unlink()
    assert main([*words, "--out", str(tmp_path / "again")]) == 0
    capsys.readouterr()
    one, two = (flatten(ptm_jax.load(tmp_path / name).params) for name in ("whole", "again"))
    assert one.keys() == two.keys() and all(np.array_equal(one[path], two[path]) for path in one)
    assert (np.asarray(one["main/encoder/stack/block/ffn/up/kernel"]) == 0).mean() == 0.5
    assert (
        main(["evaluate", str(tmp_path / "again"), "--task", "sst2", "--data", data, "--json"]) == 0
    )
    assert json.loads(capsys.readouterr().out)["metrics"] == whole["after"]["metrics"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["magnitud", "m"], "unknown compression 'magnitud'; there are:"),
        (
            ["magnitude", "m"],
            "Magnitude trains the model; give the task (--task) and its data (--data)",
        ),
        (["magnitude(share=2)", "m"], "share is 2"),
        (["magnitude", "m", "--width", "3"], "--width is for static; leave it out"),
        (["static", "m", "--task", "sst2"], "--task is not for static; leave it out"),
        (["magnitude(when='after')", "m", "--task", "sst2"], "'m': no such"),
    ],
)
def test_what_it_refuses(words, message, tmp_path, capsys):
    assert main(["compress", *words, "--out", str(tmp_path / "out")]) == 1
    shown = capsys.readouterr().err
    assert message in shown and shown.count("\n") == 1


@pytest.mark.full
@pytest.mark.parametrize("method", ["columns(examples=16)", "layers"])
def test_a_pruned_model_is_a_folder_that_evaluates_exports_and_trains_on(
    method, data, tmp_path, capsys
):
    """The task's classifier with fewer hidden units or layers; its Hugging Face folder gives the
    same scores."""
    labels = {"id2label": {"0": "0", "1": "1"}, "label2id": {"0": 0, "1": 1}}
    fields = {"num_hidden_layers": 2, "architectures": ["BertForSequenceClassification"], **labels}
    model = str(tiny_checkpoint.write(tmp_path / "bert", **fields))
    words = ["compress", method, model, "--task", "sst2", "--data", data, "--batch", "8", "--json"]
    assert main([*words, "--out", str(tmp_path / "small")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["after"]["parameters"] < found["before"]["parameters"]
    assert main(["export", str(tmp_path / "small"), "--out", str(tmp_path / "hub")]) == 0
    small, hub = (
        ptm_jax.load(tmp_path / name).classify(["a good film"]) for name in ("small", "hub")
    )
    assert list(small[0].values()) == list(hub[0].values())
    words = [
        "train",
        "--init",
        str(tmp_path / "small"),
        "--task",
        "sst2",
        "--data",
        data,
        "--epochs",
        "1",
        "--json",
    ]
    assert main([*words, "--workdir", str(tmp_path / "on")]) == 0

"""`ptm average`: the mean in numpy of the networks as they are used, whatever adaptations kept
beside them."""

import dataclasses
import json

import numpy as np
import pytest

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.convert.libraries import sentence_export
from ptm_jax.convert.libraries.sentence_folder import Dense, Sentence
from ptm_jax.core import spec
from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.core.system import in_effect
from ptm_jax.runs.writing import write
from support.classifier import classifier, run


@pytest.fixture(scope="module", params=["layer_decay", "lora(rank=2)", "self_ensemble(last=2)"])
def runs(request, tmp_path_factory):
    """Three workdirs of one system, and what their networks are given."""
    system, folders, used = classifier(request.param), [], []
    trace = run(system, steps=2)
    for number in range(3):
        draw = np.random.default_rng(number)

        def noisy(leaf, draw=draw):
            return (leaf + draw.normal(size=leaf.shape)).astype(np.float32)

        params = {
            path: noisy(leaf) if leaf.ndim else leaf for path, leaf in trace.params(2).items()
        }
        params = unflatten({path: params[path] for path in sorted(params)})
        folders.append(tmp_path_factory.mktemp("runs") / f"seed_{number}")
        record = {"config": {"system": spec.to_json(system)}}
        write(folders[-1], record, None, params)
        used.append(flatten(in_effect(trace.program.system, params)))
    return folders, used


@pytest.mark.full
def test_the_mean_of_networks(runs, tmp_path, capsys):
    folders, used = runs
    out, layer = tmp_path / "soup", Dense(np.eye(4, 2, dtype=np.float32), np.ones(2, np.float32))
    sentence = Sentence(
        ("cls", "max"), True, dense=(layer,), prompts={"query": "q: "}, max_length=9
    )
    for folder in folders:
        sentence_export.write(folder / "sentence", sentence)
    assert main(["average", *map(str, folders), "--out", str(out), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    found = flatten(ptm_jax.load(out).params)
    assert document["models"] == [str(folder) for folder in folders] and set(found) == set(used[0])
    assert document["parameters"] == sum(leaf.size for leaf in found.values())
    for path, leaf in found.items():
        expected = np.mean([np.asarray(one[path], np.float64) for one in used], 0)
        np.testing.assert_allclose(leaf, expected, rtol=1e-6, atol=1e-7, err_msg=path)
    assert (out / "config.txt").read_text().startswith("System\n  name: small\n")
    assert sentence_export.settings(ptm_jax.load(out).sentence) == sentence_export.settings(
        sentence
    )
    other = dataclasses.replace(
        sentence, dense=(dataclasses.replace(layer, kernel=2 * layer.kernel),)
    )
    sentence_export.write(folders[1] / "sentence", other)
    assert main(["average", *map(str, folders), "--out", str(tmp_path / "odd")]) == 1
    assert (
        f"{folders[1]} and {folders[0]} differ in their sentence settings"
        in capsys.readouterr().err
    )
    # A mean is a model like the others.
    assert main(["average", str(out), str(out), "--out", str(tmp_path / "again")]) == 0
    again = flatten(ptm_jax.load(tmp_path / "again").params)
    assert all(np.array_equal(again[path], leaf) for path, leaf in found.items())


@pytest.mark.full
def test_what_has_no_mean_is_refused(runs, tmp_path, capsys):
    folders, _ = runs
    record = json.loads((folders[0] / "config.json").read_text())
    record["config"]["system"]["towers"]["main"]["heads"]["classify"]["classes"] = 3
    other = tmp_path / "other"
    other.mkdir()
    (other / "checkpoints").symlink_to(folders[0] / "checkpoints")
    (other / "config.json").write_text(json.dumps(record))
    for words, line in (
        ([folders[0]], "the mean of 1 models is nothing new"),
        ([folders[0], other], f"{other} and {folders[0]} differ in their towers"),
        ([folders[0], tmp_path], f"{tmp_path} is no workdir of a run"),
    ):
        assert main(["average", *map(str, words), "--out", str(tmp_path / "out")]) == 1
        lines = capsys.readouterr().err.strip().splitlines()
        assert len(lines) == 1 and line in lines[0], lines
        assert not (tmp_path / "out").exists() and not list(tmp_path.glob("*.draft"))
    assert main(["average", str(folders[0]), str(folders[1]), "--out", str(other)]) == 1
    assert "is there already" in capsys.readouterr().err

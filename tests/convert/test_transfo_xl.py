"""Transformer-XL against the answers of transformers 4.35.2, which golden files hold
(tests/golden/make_transfo_xl.py)."""

import json

import golden_transfo_xl as golden
import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ptm_jax.convert import checkpoint, engine
from ptm_jax.convert.config import Config
from ptm_jax.convert.family import family_of
from ptm_jax.core import spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.towers import Tower

OWN = {golden.LM: "crit.", golden.CLASSIFIER: "score."}
ORDINARY = "released"


def stored(name):
    with np.load(golden.file(name)) as parts:
        return dict(parts)


def original(folder, name, parts, kind, change=lambda config, tensors: None):
    """A directory as the library writes it."""
    config, tensors = golden.published(parts, name)[kind]
    change(config, tensors)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(
        {key: np.ascontiguousarray(value) for key, value in tensors.items()},
        folder / "model.safetensors",
    )
    return folder


def batch(parts, run):
    ids = parts[run].astype(np.int32)
    fields = {
        "segment_ids": (ids >= 0).astype(np.int32),
        "label": parts["label"],
        "rows": np.arange(4, dtype=np.int32),
    }
    return {"input_ids": np.where(ids < 0, golden.PAD, ids), **fields}


def answers(found, parts):
    """(losses, scores {(class, run): array}, the second row's encoding, gradients {class: tree}),
    in one compiled call."""

    def total(params):
        losses, scores, carry, encoded = {}, {}, None, None
        for run in golden.RUNS:
            given = batch(parts, run)
            if run == "second" and carry is not None:
                given["carry"] = carry
            main = found[golden.LM].system.towers["main"]
            last, encoded = encoded, Tower(main, params[golden.LM])(given)
            carry = encoded.memory
            for kind in found if run == "padded" else [golden.LM]:
                system = found[kind].system
                tower = Tower(
                    system.towers["main"], {**params[kind], "encoder": params[golden.LM]["encoder"]}
                )
                losses[kind, run] = system.objective.of(tower, encoded, given).value()
                (head,) = system.towers["main"].heads
                read = tower.read(head, encoded, given)
                scores[kind, run] = read.logits() if kind == golden.LM else read
        return sum(losses.values()), (losses, scores, last)

    params = {kind: read.params["main"] for kind, read in found.items()}
    (_, aux), gradient = jax.jit(jax.value_and_grad(total, has_aux=True))(params)
    return (*aux, gradient)


LATER = pytest.mark.full


@pytest.mark.full
@pytest.mark.parametrize(
    "name", [n if n == ORDINARY else pytest.param(n, marks=LATER) for n in golden.CONFIGS]
)
def test_answers_of_the_library(name, tmp_path):
    parts = stored(name)
    found = {
        kind: checkpoint.read(original(tmp_path / kind, name, parts, kind))
        for kind in golden.classes(name)
    }
    for read in found.values():
        assert read.report.extra == read.report.missing == ()
    losses, scores, second, gradient = answers(found, parts)
    atol = 1e-5 if golden.fields(name)["n_layer"] == 1 else 1e-4

    def close(ours, theirs, what):
        return np.testing.assert_allclose(ours, theirs, atol=atol, rtol=0, err_msg=what)

    for (kind, run), loss in losses.items():
        close(loss, parts[f"{kind}/{run}/loss"], f"{kind} {run} loss")
        real = parts[run] >= 0 if kind == golden.LM else np.ones(4, bool)
        ours = np.asarray(scores[kind, run]).reshape(parts[f"{kind}/{run}/scores"].shape)
        close(ours[real], parts[f"{kind}/{run}/scores"][real], f"{kind} {run} scores")
    key = f"{golden.LM}/second/"
    close([*second.layers[:-1], second.hidden], parts[key + "states"], "states")
    close(second.attention, parts[key + "maps"], "maps")
    if second.memory is not None:
        close(np.moveaxis(second.memory["layers"], 0, 2), parts[key + "mems"], "memory")
    check_gradients(found, gradient, golden.named(parts, "gradients"))


def check_gradients(found, gradient, wanted):
    """Every published parameter's, the encoder's summed over the classes, within 1e-3 of its
    largest entry."""
    for kind, read in found.items():
        family = family_of(read.config)
        lines = family.lines(read.config, read.architecture)
        tree = {**gradient[kind], "encoder": gradient[golden.LM]["encoder"]}
        ours = dict(engine.write(tree, family, lines, bare=False))
        assert set(ours) == {key for key in wanted if key.startswith(("transformer.", OWN[kind]))}
        for key, value in ours.items():
            off, scale = np.abs(value - wanted[key]).max(), np.abs(wanted[key]).max()
            assert off <= 1e-3 * max(scale, 1e-4), (
                f"{kind} {key}: {off:.3g} off a gradient of {scale:.3g}"
            )


@pytest.mark.full
@pytest.mark.parametrize("name", golden.CONFIGS)
def test_round_trip(name, tmp_path):
    """Written from the record alone, it is the original: names, bits, and the fields of its
    config."""
    parts = stored(name)
    for kind in (*golden.classes(name), golden.BARE):
        first = original(tmp_path / f"{kind}-original", name, parts, kind)
        read = checkpoint.read(first)
        out = tmp_path / kind
        checkpoint.write(out, read.system, read.params)
        theirs, ours = load_file(first / "model.safetensors"), load_file(out / "model.safetensors")
        assert theirs.keys() == ours.keys()
        assert [key for key in theirs if not np.array_equal(theirs[key], ours[key])] == []
        config, again = (
            json.loads((folder / "config.json").read_text()) for folder in (first, out)
        )
        lost = {
            key: again[key] for key in again.keys() & config.keys() if again[key] != config[key]
        }
        assert lost.keys() <= {"label2id", "id2label", "dtype", "clamp_len"}, lost
        assert (
            checkpoint.record_of(Config.read(out / "config.json"))[0].towers == read.system.towers
        )


def test_duplicates_of_a_torch_file_are_known_and_compared(tmp_path):
    """pytorch_model.bin has shared tensors under every name, and a file without duplicates under
    any one of them."""
    parts = stored("several")

    def every(config, tensors):
        for i in range(3):
            tensors[f"crit.out_layers.{i}.weight"] = tensors[
                f"transformer.word_emb.emb_layers.{i}.weight"
            ]
            tensors[f"transformer.layers.{i}.dec_attn.r_w_bias"] = tensors["transformer.r_w_bias"]
        tensors["transformer.pos_emb.inv_freq"] = np.ones(6, np.float32)

    read = checkpoint.read(original(tmp_path / "every", "several", parts, golden.LM, every))
    assert read.report.extra == read.report.missing == ()

    def another(config, tensors):
        every(config, tensors)
        tensors["crit.out_layers.1.weight"] = tensors["crit.out_layers.1.weight"] + 1

    with pytest.raises(UserError, match=r"crit\.out_layers\.1\.weight differs"):
        checkpoint.read(original(tmp_path / "another", "several", parts, golden.LM, another))

    def under_a_layer(config, tensors):
        tensors["transformer.layers.2.dec_attn.r_w_bias"] = tensors.pop("transformer.r_w_bias")

    same = checkpoint.read(original(tmp_path / "layer", "several", parts, golden.LM, under_a_layer))
    jax.tree.map(np.testing.assert_array_equal, same.params, read.params)


def test_a_memory_that_begins_as_nothing_is_not_the_librarys():
    read, _ = checkpoint.record_of(
        Config({"model_type": "transfo-xl", **golden.fields("released")}), golden.LM
    )
    assert checkpoint.published(read)[2] == golden.LM
    with pytest.raises(UserError, match="zeros"):
        checkpoint.published(spec.override(read, {"towers.main.encoder.zeros": False}))

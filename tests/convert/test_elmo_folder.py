"""AllenNLP's folder of ELMo: states of the original code, and folders that are wrong."""

import json
import os
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

import ptm_jax
from ptm_jax import systems
from ptm_jax.cli.main import main
from ptm_jax.convert.libraries import elmo_folder
from ptm_jax.core import towers
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten
from ptm_jax.core.spec import with_field
from ptm_jax.data.tokenizers import saved
from ptm_jax.data.tokenizers.words import spaced, spellings
from ptm_jax.nn.embeddings.summed import Embeddings
from ptm_jax.nn.heads.task_heads import TokenHead

h5py = pytest.importorskip("h5py")
FIXTURE = Path(os.environ.get("PTM_DATA", "../shared/data")) / "fixtures/elmo"
OPTIONS = {
    "lstm": {"cell_clip": 3, "use_skip_connections": True, "n_layers": 1, "proj_clip": 3,
    "projection_dim": 2, "dim": 3},
    "char_cnn": {
        "embedding": {"dim": 2}, "filters": [[1, 2], [2, 1]], "n_highway": 1, "n_characters": 262,
        "max_characters_per_token": 6, "activation": "relu",
    },
}  # fmt: skip


def shapes_of(cells=3, width=2, total=3):
    cell = {"W_0": (2 * width, 4 * cells), "B": (4 * cells,), "W_P_0": (cells, width)}
    return {
        "char_embed": (261, 2),
        **{
            "CNN/W_cnn_0": (1, 1, 2, 2),
            "CNN/b_cnn_0": (2,),
            "CNN/W_cnn_1": (1, 2, 2, 1),
            "CNN/b_cnn_1": (1,),
        },
        **{
            f"CNN_high_0/{kind}_{part}": (total,) * n
            for kind, n in (("W", 2), ("b", 1))
            for part in ("carry", "transform")
        },
        **{"CNN_proj/W_proj": (total, width), "CNN_proj/b_proj": (width,)},
        **{
            f"RNN_{way}/RNN/MultiRNNCell/Cell0/LSTMCell/{name}": shape
            for way in (0, 1)
            for name, shape in cell.items()
        },
    }


def folder_of(where, options=OPTIONS, change=None):
    """A small folder; `change(file)` spoils its weights."""
    where.mkdir(exist_ok=True)
    (where / "options.json").write_text(json.dumps(options))
    draw = np.random.default_rng(0)
    with h5py.File(where / "lm_weights.hdf5", "w") as file:
        for name, shape in shapes_of().items():
            file[name] = draw.normal(0, 0.5, shape).astype(np.float32)
        if change:
            change(file)
    return where


def test_parameters_are_those_of_the_file(tmp_path):
    """Gates i, g, f, o become i, f, g, o; the highway's gate changes its sign; character 0 is a row
    of zeros."""
    folder = folder_of(tmp_path / "elmo")
    assert elmo_folder.is_elmo(folder) and not elmo_folder.is_elmo(tmp_path)
    system, params, _ = elmo_folder.read(folder)
    found = params["main"]["encoder"]
    with h5py.File(folder / "lm_weights.hdf5") as file:
        i, g, f, o = np.split(file["RNN_1/RNN/MultiRNNCell/Cell0/LSTMCell/W_0"][()], 4, -1)
        both = np.concatenate([found["left_0"]["inputs"]["kernel"], found["left_0"]["state"]])
        np.testing.assert_array_equal(both, np.concatenate([i, f, g, o], -1))
        high, own = file["CNN_high_0"], found["embed"]["highway0"]
        np.testing.assert_array_equal(
            own["kernel"], np.concatenate([high["W_transform"][()], -high["W_carry"][()]], -1)
        )
        np.testing.assert_array_equal(found["embed"]["characters"][1:], file["char_embed"][()])
    assert (
        not found["embed"]["characters"][0].any()
        and system.towers["main"].encoder.right[0].cell_clip == 3.0
    )


def gone(name):
    return lambda file: file.__delitem__(name)


def replaced(name, value):
    def change(file):
        del file[name]
        file[name] = value

    return change


def outside(file):
    del file["char_embed"]
    file["char_embed"] = h5py.ExternalLink("/etc/passwd", "x")


def claimed(file):
    """Data sets of 18 GB that hold nothing: the file has 19 kB."""
    for name, shape in shapes_of(1 << 20, 1024).items():
        if name.startswith(("RNN", "CNN_proj")):
            del file[name]
            file.create_dataset(name, shape, np.float32, chunks=True, compression="gzip")


WRONG = {
    "claims": (
        claimed,
        {"lstm": {**OPTIONS["lstm"], "dim": 1 << 20, "projection_dim": 1024}},
        r"hdf5: has .* bytes, too few for the sizes in its options",
    ),
    "layers": (None, {"lstm": {**OPTIONS["lstm"], "n_layers": 1000}}, "has 1,000 layers"),
    "convolutions": (
        None,
        {"char_cnn": {**OPTIONS["char_cnn"], "filters": [[1, 1]] * 1000}},
        "and 1,000 convolutions",
    ),
    "missing": (gone("CNN/b_cnn_1"), {}, r"hdf5: has no data set CNN/b_cnn_1; .* shape \[1\]"),
    "shape": (
        replaced("CNN_proj/b_proj", np.zeros(5, np.float32)),
        {},
        r"CNN_proj/b_proj is \[5\] float32; .* shape \[2\]",
    ),
    "type": (replaced("CNN_proj/b_proj", np.zeros(2, np.int32)), {}, r"is \[2\] int32"),
    "group": (replaced("CNN_proj", np.zeros(2, np.float32)), {}, "has no data set CNN_proj/W_proj"),
    "nan": (replaced("CNN_proj/b_proj", np.full(2, np.nan, np.float32)), {}, "b_proj holds NaN"),
    "link": (outside, {}, "char_embed is a link"),
    "cells": (
        None,
        {"lstm": {**OPTIONS["lstm"], "dim": 4}},
        r"W_0 is \[4, 12\] float32; .* \[4, 16\]",
    ),
    "size": (None, {"lstm": {**OPTIONS["lstm"], "dim": 1 << 40}}, "lstm.dim is 1099511627776"),
    "kind": (
        None,
        {"lstm": {**OPTIONS["lstm"], "dim": "64"}},
        "lstm.dim is '64'; expected a value of type int",
    ),
    "no part": (None, {"char_cnn": 3}, "char_cnn.activation is None"),
    "clip": (None, {"lstm": {**OPTIONS["lstm"], "cell_clip": -1}}, "cell_clip is -1"),
    "filters": (None, {"char_cnn": {**OPTIONS["char_cnn"], "filters": [[1]]}}, "filters is"),
    "activation": (
        None,
        {"char_cnn": {**OPTIONS["char_cnn"], "activation": "gelu"}},
        "must be relu or tanh",
    ),
    "characters": (
        None,
        {"char_cnn": {**OPTIONS["char_cnn"], "n_characters": 100}},
        "n_characters is 100",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_folder_is_one_line_with_file_and_place(name, tmp_path):
    change, options, message = WRONG[name]
    with pytest.raises(UserError, match=message) as found:
        elmo_folder.read(folder_of(tmp_path / "elmo", {**OPTIONS, **options}, change))
    assert "\n" not in str(found.value) and str(tmp_path) in str(found.value)


@pytest.mark.parametrize("content", [b"", b"\x89HDF\r\n\x1a\n" + b"\0" * 600, b"no hdf5 at all"])
def test_a_file_that_is_no_hdf5_is_one_line(content, tmp_path):
    folder = folder_of(tmp_path / "elmo")
    (folder / "lm_weights.hdf5").write_bytes(content)
    with pytest.raises(UserError, match=r"lm_weights.hdf5: cannot be read"):
        elmo_folder.read(folder)
    shutil.copy(folder / "options.json", folder / "my_options.json")
    with pytest.raises(UserError, match="has 2 files"):
        elmo_folder.read(folder)


def test_every_word_has_an_id_and_its_spelling(tmp_path):
    tokenizer = spaced()
    first, second = tokenizer.encode_batch(["a <s> cat", "cat a bird"])
    assert (
        first.tolist() == [5, 6, 7]
        and second.tolist() == [7, 5, 8]
        and tokenizer.decode([0, 7, 8, 2]) == "cat bird"
    )

    def bytes_of(word):
        return [259, *(byte + 1 for byte in word.encode()), 260]

    table = spellings(tokenizer, 8, "elmo", [6, 0, tokenizer.vocab.pad])
    assert table[0].tolist() == [*bytes_of("<s>"), 261, 261, 261]
    assert table[1, :3].tolist() == [259, 257, 260] and not table[2].any()
    tokenizer.save(tmp_path)
    again = saved.load(tmp_path)
    assert again.hash == tokenizer.hash and again.encode("bird <s>").tolist() == [8, 6]
    assert again.frame([7])[0].tolist() == [0, 7, 2]


def originals():
    if not FIXTURE.is_dir():
        pytest.skip(f"{FIXTURE} is absent")
    expected = []
    for number in (0, 1):
        with h5py.File(FIXTURE / f"lm_embeddings_{number}.hdf5") as file:
            expected.append([file[str(i)][()] for i in range(10)])
    return json.loads((FIXTURE / "sentences.json").read_text()), expected


def test_an_exported_folder_is_the_file_that_was_read(tmp_path):
    """Names, shapes and numbers; the same of a network without highways, clips and residuals."""
    plain = {
        "lstm": {**OPTIONS["lstm"], "cell_clip": 0, "proj_clip": 0, "use_skip_connections": False},
        "char_cnn": {**OPTIONS["char_cnn"], "n_highway": 0, "activation": "tanh"},
    }
    for number, options in enumerate((OPTIONS, plain)):
        folder, out = folder_of(tmp_path / f"elmo{number}", options), tmp_path / f"out{number}"
        system, params, _ = elmo_folder.read(folder)
        elmo_folder.write(out, system.towers["main"], params["main"], system.examples)
        assert json.loads((out / "options.json").read_text()) == options
        high = (
            ()
            if options["char_cnn"]["n_highway"]
            else [name for name in shapes_of() if "high" in name]
        )
        assert same_files(folder, out) == shapes_of().keys() - set(high)


def same_files(first, second):
    """The names of the second file's data sets, after comparing each with the first file's."""
    names = []
    with h5py.File(first / "lm_weights.hdf5") as a, h5py.File(second / "lm_weights.hdf5") as b:
        b.visititems(
            lambda name, found: names.append(name) if isinstance(found, h5py.Dataset) else None
        )
        for name in names:
            assert a[name].dtype == b[name].dtype
            np.testing.assert_array_equal(a[name][()], b[name][()])
    return set(names)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: with_field(s, "forget", 0.0), r"right\.0\.forget = 0\.0; expected 1\.0"),
        (
            lambda s: with_field(
                s, "embed", Embeddings(vocab=s.towers["main"].encoder.embed.vocab, width=64)
            ),
            "Embeddings",
        ),
        (lambda s: with_field(s, "heads", {"tag": TokenHead(3)}), "no place for 'tag'"),
    ],
)
def test_another_network_has_no_such_folder(change, message, tmp_path):
    system = change(systems.get("elmo_mini"))
    with pytest.raises(UserError, match=message):
        elmo_folder.write(tmp_path / "out", system.towers["main"], {}, system.examples)
    assert not (tmp_path / "out").exists()


@pytest.mark.full
def test_the_published_file_is_written_again(tmp_path, capsys):
    """`ptm export` of a run and of the folder itself; the weights of our miniature come back."""
    originals()
    ptm_jax.load(FIXTURE).save(tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 0
    assert "lm_weights.hdf5" in capsys.readouterr().out
    assert (
        main(
            [
                "export",
                str(tmp_path / "run"),
                "--out",
                str(tmp_path / "other"),
                "--dtype",
                "bfloat16",
            ]
        )
        == 1
    )
    assert "bfloat16; ELMo's folder has float32" in capsys.readouterr().err
    assert json.loads((tmp_path / "out/options.json").read_text()) == json.loads(
        (FIXTURE / "options.json").read_text()
    )
    with h5py.File(FIXTURE / "lm_weights.hdf5") as file:
        there = set()
        file.visititems(
            lambda name, found: there.add(name) if isinstance(found, h5py.Dataset) else None
        )
    assert same_files(FIXTURE, tmp_path / "out") == there
    system = systems.get("elmo_mini")
    params = towers.init(system.towers, jax.random.key(0), elmo_batch())["main"]
    elmo_folder.write(tmp_path / "mini", system.towers["main"], params, system.examples)
    again, here = flatten(elmo_folder.read(tmp_path / "mini")[1]["main"]), flatten(params)
    assert again.keys() == {path for path in here if path.startswith("encoder/")}
    for path, leaf in again.items():
        known = np.array(here[path])
        known[0] *= path != "encoder/embed/characters"
        np.testing.assert_array_equal(leaf, known)


def elmo_batch():
    return {"input_ids": np.zeros((1, 2), np.int32), "characters": np.zeros((1, 2, 12), np.int32)}


@pytest.mark.full
def test_states_equal_those_of_the_original_code(tmp_path):
    """Batch i is the i-th sentence of each list; the states are carried from batch to batch
    (AllenNLP's own test)."""
    lists, expected = originals()
    model = ptm_jax.load(FIXTURE)
    batches = [list(batch) for batch in zip(*lists, strict=True)]
    found = model.encode(batches, layers=True, carry=True)
    for number, states in enumerate(expected):
        for i, state in enumerate(states):
            layers = found[i][number]
            assert layers.shape == (3, len(lists[number][i].split()), 32)
            np.testing.assert_allclose(layers[-1], np.concatenate(state, -1), atol=1e-6)
    words = (FIXTURE / "vocab_test.txt").read_text(encoding="utf8").split("\n")
    (layers,) = model.encode([" ".join(words)], layers=True)
    words_only = [
        i for i, word in enumerate(words) if word not in ("<S>", "</S>")
    ]  # the original reads these as marks
    with h5py.File(FIXTURE / "elmo_token_embeddings.hdf5") as file:
        expected = np.tile(file["embedding"], 2)
    # a unit in the last place of values up to 5 is 5e-7
    np.testing.assert_allclose(layers[0][words_only], expected[words_only], rtol=1e-6, atol=1e-6)
    alone, single = (model.encode(lists[0][3:end], layers=True) for end in (5, 4))
    np.testing.assert_allclose(alone[0], single[0], atol=1e-6)
    assert np.abs(alone[1][-1] - found[4][0][-1]).max() > 1e-3  # without carried states
    model.save(tmp_path / "run")
    again = ptm_jax.load(tmp_path / "run").encode(lists[0][3:4], layers=True)
    np.testing.assert_array_equal(again[0], single[0])
    with pytest.raises(UserError, match="list 2 has 1 texts"):
        model.encode([["a", "b"], ["c"]], layers=True, carry=True)

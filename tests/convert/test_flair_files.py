"""Contextual string embeddings: the stream of characters, Flair's saved models, and a run of
ours."""

import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ptm_jax
from ptm_jax.convert.libraries import flair_files
from ptm_jax.core.errors import UserError
from ptm_jax.encoders.recurrent.strings import stream
from ptm_jax.systems.recurrent import flair

WORDS = ["Ünder the grey", "sky", "the sky fell on the town"]
LETTERS = ["<unk>", "\n", " ", *"abcdefghijklmnopqrstuvwxyzU"]


def test_a_row_is_read_as_its_words_with_blanks():
    """Two documents in a row, a token without letters, padding; blanks are 32, the delimiter 10."""
    rows = [(["ab", "c", "", "d"], [1, 1, 2, 2]), (["", "x", "", ""], [1, 1, 0, 0])]
    characters, segments = np.zeros((2, 4, 5), np.int32), np.array([row[1] for row in rows])
    for row, (words, _) in enumerate(rows):
        for place, word in enumerate(words):
            characters[row, place, : len(word)] = [ord(letter) for letter in word]
    batch = {"characters": jnp.asarray(characters), "segment_ids": jnp.asarray(segments)}
    cut = jax.jit(stream, static_argnums=(1, 2, 3))
    ahead, behind, documents, before, after = map(np.asarray, cut(batch, 32, 10, 1))
    assert ahead.shape == (2, 4 + 5 + 2), (
        "of a row with longer words the last would end at the stream's end"
    )

    def text(codes):
        return "".join(map(chr, codes[codes > 0]))

    assert text(ahead[0]) == "\nab c \nd " and text(behind[0]) == " ab c\n d\n"
    assert documents[0].tolist() == [1] * 6 + [2] * 3 + [0] * 2
    assert text(ahead[1]) == "\nx " and text(behind[1]) == " x\n"
    assert before[0, [0, 1, 3]].tolist() == [0, 3, 6] and after[0, [0, 1, 3]].tolist() == [3, 5, 8]


def test_the_letters_of_bytes_are_those_of_the_tokenizers():
    from tokenizers.pre_tokenizers import ByteLevel

    letters = flair.byte_letters()
    assert sorted(letters) == sorted(ByteLevel.alphabet())
    pieces = ByteLevel(add_prefix_space=False).pre_tokenize_str("é \n\x00ÿ")
    assert "".join(piece for piece, _ in pieces) == "".join(
        letters[byte] for byte in "é \n\x00ÿ".encode()
    )


class Dictionary:
    pass


Dictionary.__module__ = "flair.data"


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """(folder, torch layers by direction, save) of models as `flair.models.LanguageModel.save`
    writes them."""
    torch = pytest.importorskip("torch")
    monkeypatch.setitem(sys.modules, "flair", types.ModuleType("flair"))
    module = types.ModuleType("flair.data")
    module.Dictionary = Dictionary
    monkeypatch.setitem(sys.modules, "flair.data", module)
    torch.manual_seed(0)
    nets = {
        way: (torch.nn.Embedding(len(LETTERS), 3), torch.nn.LSTM(3, 4))
        for way in ("forward", "backward")
    }

    def save(way, **changed):
        embed, rnn = nets[way]
        state = {"encoder.weight": embed.weight.detach(), "decoder.bias": torch.zeros(1)}
        state |= {f"rnn.{name}": value.detach() for name, value in rnn.named_parameters()}
        dictionary = Dictionary()
        dictionary.idx2item = [letter.encode() for letter in LETTERS]
        dictionary.item2idx = {letter.encode(): i for i, letter in enumerate(LETTERS)}
        fields = {
            "state_dict": state,
            "dictionary": dictionary,
            "is_forward_lm": way == "forward",
            "hidden_size": 4,
        }
        fields |= {
            "nlayers": 1,
            "embedding_size": 3,
            "nout": None,
            "document_delimiter": "\n",
            "dropout": 0.1,
        }
        layout = {
            "_use_new_zipfile_serialization": way == "forward"
        }  # the other as before torch 1.6
        torch.save(fields | changed, tmp_path / f"news-{way}-0.pt", pickle_protocol=4, **layout)

    for way in nets:
        save(way)
    return tmp_path, nets, save


@pytest.mark.full
def test_flairs_models_give_its_vectors_of_words(saved):
    """`LanguageModel.get_representation` and the offsets of `FlairEmbeddings` (flair 0.15.1), one
    text after another."""
    import torch

    folder, nets, _ = saved
    assert flair_files.is_flair(folder)
    model = ptm_jax.load(folder, allow_pickle=True)
    for text, found in zip(WORDS, model.encode(WORDS, layers=True), strict=True):
        words, expected = text.split(), []
        for way, (embed, rnn) in nets.items():
            given = "\n" + (text if way == "forward" else text[::-1]) + " "
            codes = [LETTERS.index(letter) if letter in LETTERS else 0 for letter in given]
            states = rnn(embed(torch.tensor(codes))[:, None])[0][:, 0].detach().numpy()
            ends = np.cumsum([len(word) + 1 for word in words])
            starts = len(text) + 1 - np.concatenate([[0], ends[:-1]])
            expected.append(states[ends if way == "forward" else starts])
        np.testing.assert_allclose(found[0], np.concatenate(expected, -1), atol=1e-6)
    model.save(folder / "run")
    again = ptm_jax.load(folder / "run").encode(WORDS, layers=True)
    np.testing.assert_array_equal(again[2], model.encode(WORDS, layers=True)[2])


@pytest.mark.full
@pytest.mark.parametrize(
    "changed, message",
    [
        ({"nlayers": 2}, "one layer of LSTM"),
        ({"recurrent_type": "GRU"}, "one layer of LSTM"),
        ({"is_forward_lm": True}, "is not the backward model"),
        ({"dictionary": None}, "no dictionary of characters"),
        ({"state_dict": {}}, "has no numbers rnn.weight_hh_l0"),
    ],
)
def test_other_files_are_refused_in_one_line(saved, changed, message):
    folder, _, save = saved
    with pytest.raises(UserError, match="allow_pickle"):
        ptm_jax.load(folder)
    save("backward", **changed)
    with pytest.raises(UserError, match=message):
        ptm_jax.load(folder, allow_pickle=True)


@pytest.mark.full
def test_code_in_a_file_is_not_run(saved):
    import torch

    folder, _, _ = saved

    class Touch:
        def __reduce__(self):
            return (folder / "ran").touch, ()

    torch.save({"state_dict": Touch()}, folder / "news-backward-0.pt")
    with pytest.raises(UserError, match="has no state_dict"):
        ptm_jax.load(folder, allow_pickle=True)
    assert not (folder / "ran").exists()
    (folder / "news-backward-0.pt").write_bytes(b"\x80\x04.")
    with pytest.raises(UserError, match="no torch file"):
        ptm_jax.load(folder, allow_pickle=True)

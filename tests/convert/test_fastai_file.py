"""AWD-LSTM from the file of fastai: its class from the same weights, its words, and files that
lie."""

import pickle
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ptm_jax
from benchmarks import awd_lstm
from ptm_jax.convert.libraries import fastai_file
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten

pytestmark = pytest.mark.full
torch = pytest.importorskip("torch")

WORDS = ["xxunk", "xxpad", "xxbos", "the", "cat", "sat", "xxfake", "xxfake"]
SIZES = len(WORDS), 6, 10, 3


def state_of(place="0."):
    """Tensors by fastai's names, drawn; the decoder is tied."""
    draw, (words, width, hidden, layers) = torch.Generator().manual_seed(0), SIZES

    def tensor(*shape):
        return torch.randn(*shape, generator=draw) * 0.5

    state = {f"{place}encoder.weight": tensor(words, width)}
    for n in range(layers):
        reads, size = (width, hidden, hidden)[n], (hidden, hidden, width)[n]
        state |= {
            f"{place}rnns.{n}.weight_hh_l0_raw": tensor(4 * size, size),
            f"{place}rnns.{n}.module.weight_ih_l0": tensor(4 * size, reads),
            f"{place}rnns.{n}.module.bias_ih_l0": tensor(4 * size),
            f"{place}rnns.{n}.module.bias_hh_l0": tensor(4 * size),
        }
    return state | (
        {"1.decoder.weight": state[f"{place}encoder.weight"], "1.decoder.bias": tensor(words)}
        if place
        else {}
    )


def definition(state, ids, place="0."):
    """States of the last layer and logits, by torch's own LSTM."""
    x = state[f"{place}encoder.weight"][ids]
    for n in range(SIZES[3]):
        weights = [
            state[f"{place}rnns.{n}.{name}"]
            for name in (
                "module.weight_ih_l0",
                "weight_hh_l0_raw",
                "module.bias_ih_l0",
                "module.bias_hh_l0",
            )
        ]
        layer = torch.nn.LSTM(weights[0].shape[1], weights[1].shape[1], batch_first=True)
        for name, tensor in zip(
            ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"), weights, strict=True
        ):
            getattr(layer, name).data = tensor
        x = layer(x)[0].detach()
    return x


@pytest.mark.parametrize("layout", ["learner", "weights", "encoder"])
def test_the_states_are_those_of_torch_and_the_words_those_of_the_list(layout, tmp_path):
    state = state_of("" if layout == "encoder" else "0.")
    torch.save(
        {"model": state, "opt": {"lr": 0.1}} if layout == "learner" else state,
        tmp_path / "lstm_fwd.pth",
    )
    (tmp_path / "itos_wt103.pkl").write_bytes(pickle.dumps(WORDS))
    model = ptm_jax.load(tmp_path, allow_pickle=True)
    assert (
        model.vocab.size == SIZES[0]
        and model.vocab.unk == 0
        and model.vocab.pad == 1
        and model.vocab.bos == 2
    )
    ids = jnp.asarray([[3, 4, 0, 5]])
    place = "" if layout == "encoder" else "0."
    encoded = model.system.towers["main"].apply(
        {"params": model.params["main"]}, {"input_ids": ids}, method="encode"
    )
    np.testing.assert_allclose(
        encoded.hidden[0], definition(state, torch.tensor([[3, 4, 0, 5]]), place)[0], atol=1e-5
    )
    assert model.tokenizer.encode_batch(["the cat slept"])[0].tolist() == [3, 4, 0]


def test_a_file_that_is_written_is_read_again(tmp_path):
    torch.save(state_of(), tmp_path / "one.pth")
    before = ptm_jax.load(tmp_path / "one.pth", allow_pickle=True)
    assert before.tokenizer is None
    fastai_file.write(tmp_path / "two.pth", before.params)
    after = ptm_jax.load(tmp_path / "two.pth", allow_pickle=True)
    jax.tree.map(np.testing.assert_array_equal, after.params, before.params)
    theirs, known = torch.load(tmp_path / "two.pth", weights_only=True), state_of()
    for name in known:
        if "bias_" not in name:
            np.testing.assert_array_equal(theirs[name], known[name])


@pytest.fixture
def awdlstm():
    """fastai's file of AWD-LSTM, which `make test-full` installs beside the environment."""
    if not awd_lstm.FILE.exists():
        pytest.skip(f"no {awd_lstm.FILE}; make test-full installs it")
    return awd_lstm.fastai_classes()


def test_awd_lstm_is_fastais_class(tmp_path, awdlstm):
    """Outputs and gradients of `AWD_LSTM` from the weights that fastai drew; its dropout is off, as
    in evaluation."""
    torch.manual_seed(0)
    words, width, hidden, layers = SIZES
    theirs = awdlstm.AWD_LSTM(words, width, hidden, layers).eval()
    torch.save(theirs.state_dict(), tmp_path / "encoder.pth")
    model = ptm_jax.load(tmp_path / "encoder.pth", allow_pickle=True)
    ids, weights = (
        np.array([[3, 4, 0, 5, 2], [2, 2, 7, 6, 3]]),
        np.random.default_rng(1).normal(size=(2, 5, width)),
    )
    theirs.reset()
    expected = theirs(torch.tensor(ids))
    (expected * torch.tensor(weights, dtype=torch.float32)).sum().backward()
    module = model.system.towers["main"]

    def loss(params):
        hidden = module.apply(
            {"params": params}, {"input_ids": jnp.asarray(ids)}, method="encode"
        ).hidden
        return (hidden * weights).sum(), hidden

    gradients, found = jax.grad(loss, has_aux=True)(model.params["main"])
    np.testing.assert_allclose(found, expected.detach(), atol=1e-5)
    gradients = flatten(gradients)
    named = dict(theirs.named_parameters())
    table = named["encoder.weight"].grad.numpy()
    np.testing.assert_allclose(
        np.delete(gradients["encoder/embed/token"], 1, 0), np.delete(table, 1, 0), atol=1e-5
    )
    for n in range(layers):
        for ours, name in (("state", "weight_hh_l0_raw"), ("inputs/kernel", "module.weight_ih_l0")):
            np.testing.assert_allclose(
                gradients[f"encoder/layers_{n}/{ours}"], named[f"rnns.{n}.{name}"].grad.T, atol=1e-5
            )


LIES = {
    "has no numbers encoder.weight": lambda state: state.pop("0.encoder.weight"),
    "has 0 layers": lambda state: state.pop("0.rnns.0.weight_hh_l0_raw"),
    "holds NaN": lambda state: state["1.decoder.bias"].fill_(float("nan")),
    "in the shape": lambda state: state.update({"0.rnns.1.module.weight_ih_l0": torch.zeros(3, 3)}),
    "of the widths": lambda state: state.update({"0.rnns.2.weight_hh_l0_raw": torch.zeros(8, 2)}),
}


@pytest.mark.parametrize("message", LIES)
def test_a_file_that_lies_is_refused_in_one_line(message, tmp_path):
    state = state_of()
    LIES[message](state)
    torch.save(state, tmp_path / "x.pth")
    with pytest.raises(UserError, match=message) as error:
        ptm_jax.load(tmp_path / "x.pth", allow_pickle=True)
    assert "\n" not in str(error.value) and "x.pth" in str(error.value)


def test_a_pickle_is_read_on_request_and_a_list_of_words_runs_nothing(tmp_path):
    torch.save(state_of(), tmp_path / "x.pth")
    with pytest.raises(UserError, match="allow_pickle"):
        ptm_jax.load(tmp_path / "x.pth")
    for words in (types.SimpleNamespace(), WORDS[:-1], [1] * len(WORDS)):
        (tmp_path / "itos.pkl").write_bytes(pickle.dumps(words))
        with pytest.raises(UserError, match="itos.pkl"):
            ptm_jax.load(tmp_path, allow_pickle=True)

"""Recurrent layers against torch's from the same weights: stacked, in both directions, projected,
packed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.nn.recurrent.gru import GRU
from ptm_jax.nn.recurrent.lstm import LSTM
from ptm_jax.nn.recurrent.recurrence import Bidirectional

pytestmark = pytest.mark.full

D, H, P, LENGTHS = 5, 6, 4, (7, 3, 9)
LAYERS = {
    "lstm": lambda way: LSTM(H, forget=0.0, backward=way),
    "lstm_projected": lambda way: LSTM(H, forget=0.0, backward=way, project=P),
    "gru": lambda way: GRU(H, reset="after", backward=way),
}


def ours_of(module, layer, way):
    """The parameters of one direction of one layer. Of torch's two biases ours is the sum; a GRU
    keeps the second for n."""

    def name(part):
        return (
            dict(module.named_parameters())[f"{part}_l{layer}{'_reverse' if way else ''}"]
            .detach()
            .numpy()
        )

    first, second = name("bias_ih"), name("bias_hh")
    params = {
        "inputs": {"kernel": name("weight_ih").T, "bias": first + second},
        "state": name("weight_hh").T,
    }
    if len(first) == 3 * H:
        params["inputs"]["bias"] = np.concatenate([(first + second)[: 2 * H], first[2 * H :]])
        params["state_bias"] = second[2 * H :]
    if module.proj_size:
        params["projection"] = name("weight_hr").T
    return jax.tree.map(np.array, params)


@pytest.mark.parametrize("both", [False, True], ids=["one way", "both ways"])
@pytest.mark.parametrize("kind", LAYERS)
def test_outputs_and_gradients_are_those_of_torch(kind, both):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    options = {"num_layers": 2, "bidirectional": both, "batch_first": True}
    module = torch.nn.GRU(D, H, **options) if kind == "gru" else None
    module = module or torch.nn.LSTM(
        D, H, **options, proj_size=P if kind == "lstm_projected" else 0
    )
    x = torch.randn(len(LENGTHS), max(LENGTHS), D, requires_grad=True)
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        x, torch.tensor(LENGTHS), batch_first=True, enforce_sorted=False
    )
    theirs, _ = torch.nn.utils.rnn.pad_packed_sequence(module(packed)[0], batch_first=True)
    weights = torch.randn(theirs.shape)
    (theirs * weights).sum().backward()

    segments = jnp.asarray(np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None], jnp.int32)
    ways = (False, True) if both else (False,)
    layers = [
        Bidirectional(*map(LAYERS[kind], ways)) if both else LAYERS[kind](False) for _ in range(2)
    ]
    params = [[ours_of(module, n, way) for way in ways] for n in range(2)]

    def run(params, x):
        for layer, part in zip(layers, params, strict=True):
            named = dict(zip(("right", "left"), part, strict=True)) if both else part[0]
            x = layer.apply({"params": named}, x, segments)[0]
        return x

    given = params, x.detach().numpy()
    np.testing.assert_allclose(run(*given), theirs.detach(), atol=1e-5)
    mine = jax.grad(lambda params, x: (run(params, x) * weights.numpy()).sum(), (0, 1))(*given)
    np.testing.assert_allclose(mine[1], x.grad, atol=1e-5)
    assert not np.asarray(mine[1])[np.asarray(segments) == 0].any()
    for parameter in module.parameters():
        parameter.data = parameter.grad
    for n, part in enumerate(mine[0]):
        for way, found in zip(ways, part, strict=True):
            expected = ours_of(module, n, way)
            half = (
                expected["inputs"]["bias"] / 2
            )  # both of torch's biases have the gradient of their sum
            expected["inputs"]["bias"] = (
                half if kind != "gru" else np.concatenate([half[: 2 * H], 2 * half[2 * H :]])
            )
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, expected)

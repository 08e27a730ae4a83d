"""Star-Transformer against fastNLP's class (1.0.1, the authors' library). One file of it is run:
its package needs more."""

import importlib.util
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from ptm_jax.nn.graph.star import StarTransformer
from ptm_jax.nn.tree.forest import forest_of

pytestmark = pytest.mark.full

FILE = Path(sys.prefix) / "fastnlp/fastNLP/modules/torch/encoder/star_transformer.py"
CYCLES, HEADS, SIZE, D, ROWS, L = 3, 2, 5, 12, 3, 9


def peer():
    """fastNLP's class. `make test-full` installs its file beside the environment."""
    pytest.importorskip("torch")
    if not FILE.is_file():
        pytest.skip(f"{FILE} is absent")
    spec = importlib.util.spec_from_file_location("fastnlp_star", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.StarTransformer


def ours_of(module):
    """Our parameters from those of the class."""
    params = {}
    for cycle in range(CYCLES):
        norm = module.norm[cycle]
        params[f"norm{cycle}"] = {"scale": norm.weight, "bias": norm.bias}
        for place, part in (("ring", module.ring_att[cycle]), ("star", module.star_att[cycle])):
            for name, layer in (("query", part.WQ), ("key", part.WK), ("value", part.WV)):
                kernel, bias = (
                    layer.weight[:, :, 0, 0].T.reshape(D, HEADS, SIZE),
                    layer.bias.reshape(HEADS, SIZE),
                )
                params[f"{place}{cycle}_{name}"] = {"kernel": kernel, "bias": bias}
            kernel = part.WO.weight[:, :, 0, 0].T.reshape(HEADS, SIZE, D)
            params[f"{place}{cycle}_out"] = {"kernel": kernel, "bias": part.WO.bias}
    return jax.tree.map(lambda leaf: leaf.detach().numpy().copy(), params)


def test_outputs_and_gradients_are_those_of_fastnlp():
    """Rows without padding: fastNLP's first relay is the mean over a row with its padding, ours
    over the document."""
    make = peer()
    import torch

    torch.manual_seed(0)
    module = make(D, CYCLES, HEADS, SIZE, dropout=0.0).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.5)
    x = torch.randn(ROWS, L, D, requires_grad=True)
    nodes, relay = module(x, torch.ones(ROWS, L, dtype=torch.uint8))
    weights = torch.randn(ROWS, L, D), torch.randn(ROWS, D)
    ((nodes * weights[0]).sum() + (relay * weights[1]).sum()).backward()

    segments = np.ones((ROWS, L), np.int32)
    layer, forest = (
        StarTransformer(CYCLES, HEADS, SIZE),
        forest_of({"input_ids": segments, "segment_ids": segments}),
    )
    params, given, (each, one) = ours_of(module), x.detach().numpy(), (w.numpy() for w in weights)

    def loss(params, x):
        found = layer.apply({"params": params}, x, forest)
        return (found[0] * each).sum() + (found[1][:, 0] * one).sum(), found

    (dparams, dx), found = jax.jit(jax.grad(loss, (0, 1), has_aux=True))(params, given)
    np.testing.assert_allclose(found[0], nodes.detach().numpy(), atol=1e-5)
    np.testing.assert_allclose(found[1][:, 3], relay.detach().numpy(), atol=1e-5)
    np.testing.assert_allclose(dx, x.grad.numpy(), rtol=1e-5, atol=1e-5)
    # Gradients of parameters in our shapes: those of a class that holds the gradients as its
    # parameters.
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(parameter.grad)
    theirs = ours_of(module)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), dparams, theirs
    )

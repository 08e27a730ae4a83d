"""NeoBERT, which Transformers lacks, against a definition in torch of its released code: complex
turns of neighbouring features, each head's query, key and value together, losses and gradients."""

import json

import jax
import numpy as np
import peers
import pytest

from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import Config
from ptm_jax.core.errors import UserError
from ptm_jax.core.towers import Tower

SIZES = dict(
    model_type="neobert",
    vocab_size=64,
    hidden_size=24,
    num_attention_heads=3,
    num_hidden_layers=2,
    intermediate_size=20,
    max_length=32,
    norm_eps=1e-5,
    pad_token_id=0,
    hidden_act="SwiGLU",
)
AUTO = {"auto_map": {"AutoModel": "model.NeoBERT"}, "architectures": ["NeoBERTLMHead"]}


def tensors():
    draw, width, hidden = np.random.default_rng(0), 24, 16
    shapes = {"model.encoder.weight": (64, width), "model.layer_norm.weight": (width,)}
    for layer in range(2):
        path = f"model.transformer_encoder.{layer}."
        shapes |= {
            f"{path}qkv.weight": (3 * width, width),
            f"{path}wo.weight": (width, width),
            f"{path}ffn.w12.weight": (2 * hidden, width),
            f"{path}ffn.w3.weight": (width, hidden),
            f"{path}attention_norm.weight": (width,),
            f"{path}ffn_norm.weight": (width,),
        }
    shapes |= {"decoder.weight": (64, width), "decoder.bias": (64,)}
    return {
        name: (draw.normal(size=shape) * 0.3 + (len(shape) == 1)).astype(np.float32)
        for name, shape in shapes.items()
    }


def definition(p, ids, mask):
    """Logits [B, L, V] of torch tensors `p` by their published names."""
    torch, (rows, length) = peers.torch, ids.shape

    def norm(x, name):
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * p[f"{name}.weight"]

    angles = torch.outer(torch.arange(length), 10_000.0 ** (-torch.arange(0, 8, 2) / 8))
    turns = torch.polar(torch.ones_like(angles), angles)[:, None]

    def turned(x):
        pairs = torch.view_as_complex(x.reshape(rows, length, 3, 4, 2))
        return torch.view_as_real(pairs * turns).flatten(3)

    x = p["model.encoder.weight"][ids]
    for layer in range(2):
        path = f"model.transformer_encoder.{layer}."
        joined = norm(x, f"{path}attention_norm") @ p[f"{path}qkv.weight"].T
        q, k, v = joined.view(rows, length, 3, 24).chunk(3, -1)
        scores = torch.einsum("bqhk,blhk->bhql", turned(q), turned(k)) / 8**0.5
        weights = (scores + (1 - mask[:, None, None].double()) * -1e30).softmax(-1)
        out = torch.einsum("bhql,blhk->bqhk", weights, v).flatten(2)
        x = x + out @ p[f"{path}wo.weight"].T
        first, second = (norm(x, f"{path}ffn_norm") @ p[f"{path}ffn.w12.weight"].T).chunk(2, -1)
        x = x + (torch.nn.functional.silu(first) * second) @ p[f"{path}ffn.w3.weight"].T
    return norm(x, "model.layer_norm") @ p["decoder.weight"].T + p["decoder.bias"]


@pytest.mark.full
@pytest.mark.skipif(peers.torch is None, reason="make test-full installs torch and transformers")
def test_logits_loss_gradients_and_the_way_back(tmp_path):
    """A folder that asks for remote code is read by the name of its class; nothing of it runs."""
    from safetensors.numpy import save_file

    stored, torch = tensors(), peers.torch
    (tmp_path / "config.json").write_text(json.dumps({**SIZES, **AUTO}))
    save_file(stored, tmp_path / "model.safetensors")
    read = checkpoint.read(tmp_path)
    assert read.report.missing == () and read.report.extra == ()
    given = peers.drawn(64, 11, seed=2)
    p = {name: torch.tensor(x).double().requires_grad_() for name, x in stored.items()}
    logits = definition(
        p, torch.tensor(given["input_ids"]).long(), torch.tensor(given["attention_mask"])
    )
    labels = torch.tensor(np.where(given["chosen"], given["words"], -100)).long()
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    loss.backward()
    batch = {"input_ids": given["input_ids"], "segment_ids": given["attention_mask"]}
    batch |= peers.labels(given, 11)

    def ours(params):
        tower = Tower(read.system.towers["main"], params)
        encoded = tower(batch)
        value = read.system.objective.of(tower, encoded, batch).value()
        return value, tower.read("mlm", encoded, batch).logits()

    (value, scores), grads = jax.value_and_grad(ours, has_aux=True)(read.params["main"])
    real = given["attention_mask"] > 0
    np.testing.assert_allclose(scores[real], logits.detach().numpy()[real], atol=1e-4)
    np.testing.assert_allclose(value, loss.item(), rtol=1e-5)
    out = tmp_path / "grads"
    checkpoint.write(out, read.system, {"main": grads}, config=read.config)
    slopes = checkpoint.open_tensors(out)
    for name, leaf in p.items():
        peers.close_gradient(slopes.read(name), leaf.grad.numpy(), name)
    checkpoint.write(tmp_path / "out", read.system, read.params)
    written = checkpoint.open_tensors(tmp_path / "out")
    assert sorted(written.names()) == sorted(stored)
    for name, value in stored.items():
        np.testing.assert_array_equal(written.read(name), value)
    again = checkpoint.read(tmp_path / "out")
    assert again.system.towers == read.system.towers


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"ngpt": True}, "supported is False"),
        ({"rope": False}, "supported is True"),
        ({"hidden_act": "gelu"}, "supported are SwiGLU"),
        ({"architectures": ["NeoBERTForVision"]}, "unknown architecture 'NeoBERTForVision'"),
    ],
    ids=str,
)
def test_configs_that_are_refused(fields, words):
    with pytest.raises(UserError, match=words) as error:
        checkpoint.record_of(Config({**SIZES, **AUTO, **fields}))
    assert "\n" not in str(error.value)


def test_remote_code_of_an_unknown_model_is_refused():
    fields = {**SIZES, **AUTO, "model_type": "otherbert"}
    with pytest.raises(UserError, match="otherbert") as error:
        checkpoint.record_of(Config(fields))
    assert "\n" not in str(error.value)

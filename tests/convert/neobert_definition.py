"""NeoBERT's released code as a definition in torch: complex turns of neighbouring features, each
head's query, key and value together; and the comparison of a folder with it."""

from __future__ import annotations

import json

import jax
import numpy as np
import peers

from ptm_jax.convert import checkpoint
from ptm_jax.core.towers import Tower

ARCHITECTURES = {"mlm": "NeoBERTLMHead", "classify": "NeoBERTForSequenceClassification"}


def inner(sizes):
    """Two thirds, up to a multiple of 8, as the released SwiGLU."""
    return 8 * ((int(2 * sizes["intermediate_size"] / 3) + 7) // 8)


def tensors(sizes, task="mlm", labels=2, seed=0):
    """Returns drawn tensors by their published names."""
    draw, width, hidden = np.random.default_rng(seed), sizes["hidden_size"], inner(sizes)
    vocab = sizes["vocab_size"]
    shapes = {"model.encoder.weight": (vocab, width), "model.layer_norm.weight": (width,)}
    for layer in range(sizes["num_hidden_layers"]):
        path = f"model.transformer_encoder.{layer}."
        shapes |= {
            f"{path}qkv.weight": (3 * width, width),
            f"{path}wo.weight": (width, width),
            f"{path}ffn.w12.weight": (2 * hidden, width),
            f"{path}ffn.w3.weight": (width, hidden),
            f"{path}attention_norm.weight": (width,),
            f"{path}ffn_norm.weight": (width,),
        }
    if task == "mlm":
        shapes |= {"decoder.weight": (vocab, width), "decoder.bias": (vocab,)}
    else:
        shapes |= {"dense.weight": (width, width), "dense.bias": (width,)}
        shapes |= {"classifier.weight": (labels, width), "classifier.bias": (labels,)}
    return {
        name: (draw.normal(size=shape) * 0.3 + (len(shape) == 1)).astype(np.float32)
        for name, shape in shapes.items()
    }


def states(p, ids, mask, sizes):
    """Returns the states [B, L, D] of torch tensors `p` by their published names."""
    torch, (rows, length) = peers.torch, ids.shape
    heads, eps = sizes["num_attention_heads"], sizes["norm_eps"]
    each = sizes["hidden_size"] // heads

    def norm(x, name):
        return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * p[f"{name}.weight"]

    angles = torch.outer(torch.arange(length), 10_000.0 ** (-torch.arange(0, each, 2) / each))
    turns = torch.polar(torch.ones_like(angles), angles)[:, None]

    def turned(x):
        pairs = torch.view_as_complex(x.reshape(rows, length, heads, each // 2, 2))
        return torch.view_as_real(pairs * turns).flatten(3)

    x = p["model.encoder.weight"][ids]
    for layer in range(sizes["num_hidden_layers"]):
        path = f"model.transformer_encoder.{layer}."
        joined = norm(x, f"{path}attention_norm") @ p[f"{path}qkv.weight"].T
        q, k, v = joined.view(rows, length, heads, 3 * each).chunk(3, -1)
        scores = torch.einsum("bqhk,blhk->bhql", turned(q), turned(k)) / each**0.5
        weights = (scores + (1 - mask[:, None, None].double()) * -1e30).softmax(-1)
        out = torch.einsum("bhql,blhk->bqhk", weights, v).flatten(2)
        x = x + out @ p[f"{path}wo.weight"].T
        first, second = (norm(x, f"{path}ffn_norm") @ p[f"{path}ffn.w12.weight"].T).chunk(2, -1)
        x = x + (torch.nn.functional.silu(first) * second) @ p[f"{path}ffn.w3.weight"].T
    return norm(x, "model.layer_norm")


def scores(p, x, task):
    """Returns the logits of the words [B, L, V], or of the texts by their first tokens [B, C]."""
    if task == "mlm":
        return x @ p["decoder.weight"].T + p["decoder.bias"]
    summary = peers.torch.tanh(x[:, 0] @ p["dense.weight"].T + p["dense.bias"])
    return summary @ p["classifier.weight"].T + p["classifier.bias"]


def compare(folder, sizes, given, task="mlm", labels=2, seed=0):
    """Compares states, logits, loss, gradients and the tensors of the export of a drawn folder.

    The folder asks for remote code; it is read by the name of its class, and no code runs.
    """
    from safetensors.numpy import save_file

    stored, torch = tensors(sizes, task, labels, seed), peers.torch
    auto = {"auto_map": {"AutoModel": "model.NeoBERT"}, "architectures": [ARCHITECTURES[task]]}
    (folder / "config.json").write_text(json.dumps({**sizes, **auto, "num_labels": labels}))
    save_file(stored, folder / "model.safetensors")
    read = checkpoint.read(folder)
    assert read.report.missing == () and read.report.extra == ()
    p = {name: torch.tensor(x).double().requires_grad_() for name, x in stored.items()}
    mask = given["attention_mask"]
    x = states(p, torch.tensor(given["input_ids"]).long(), torch.tensor(mask), sizes)
    logits = scores(p, x, task)
    target = np.where(given["chosen"], given["words"], -100) if task == "mlm" else given["class"]
    flat = logits.flatten(0, -2), torch.tensor(target).long().flatten()
    loss = torch.nn.functional.cross_entropy(*flat)
    loss.backward()
    batch = {"input_ids": given["input_ids"], "segment_ids": mask, "label": given["class"]}
    batch |= peers.labels(given, mask.shape[1])

    def ours(params):
        tower = Tower(read.system.towers["main"], params)
        encoded = tower(batch)
        value = read.system.objective.of(tower, encoded, batch).value()
        result = tower.read(task, encoded, batch)
        return value, (encoded.hidden, result.logits() if task == "mlm" else result)

    run = jax.jit(jax.value_and_grad(ours, has_aux=True))
    (value, (hidden, result)), grads = run(read.params["main"])
    real = mask > 0
    peers.close(hidden[real], x.detach().numpy()[real], 1e-4, "layer last")
    chosen = real if task == "mlm" else slice(None)
    peers.close(result[chosen], logits.detach().numpy()[chosen], 1e-4, f"NeoBERT {task}")
    peers.close(value, loss.item(), 1e-5 * max(1.0, loss.item()), "loss of NeoBERT")
    checkpoint.write(folder / "grads", read.system, {"main": grads}, config=read.config)
    slopes = checkpoint.open_tensors(folder / "grads")
    for name, leaf in p.items():
        peers.close_gradient(slopes.read(name), leaf.grad.numpy(), name)
    checkpoint.write(folder / "out", read.system, read.params)
    written = checkpoint.open_tensors(folder / "out")
    assert sorted(written.names()) == sorted(stored)
    for name, value in stored.items():
        peers.measure("tensor", 0.0)
        np.testing.assert_array_equal(written.read(name), value)
    assert checkpoint.read(folder / "out").system.towers == read.system.towers

"""TextCNN and ConvS2S against plain torch modules; the dynamic CNN against its definition in
numpy."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax import systems
from ptm_jax.core import spec, towers
from ptm_jax.core.types import Vocab
from ptm_jax.encoders.convolutional import TextCNN
from ptm_jax.encoders.model import Model
from ptm_jax.nn.conv.dynamic import DynamicCNN
from ptm_jax.nn.embeddings.summed import Embeddings
from ptm_jax.nn.heads.pooling import Summary
from ptm_jax.nn.heads.task_heads import SequenceHead

VOCAB = Vocab(size=13, pad=0, unk=1, cls=2, sep=3, mask=4)


def drawn(model, batch, std=0.5):
    draw = np.random.default_rng(0)
    shapes = towers.abstract({"main": model}, batch)["main"]
    return jax.tree.map(
        lambda leaf: jnp.asarray(draw.normal(0, std, leaf.shape), jnp.float32), shapes
    )


def by_definition(x, network, params):
    """One text [s, D] through wide convolutions, folding, k-max pooling of Eq. 5, bias and tanh,
    value by value."""
    maps, size, count = [x.T], len(x), len(network.layers)
    for layer, _ in enumerate(network.layers, 1):
        kernel, bias = params[f"layer{layer}_kernel"], params[f"layer{layer}_bias"]
        k = max(network.k_top, math.ceil((count - layer) / count * size))
        after = []
        for f in range(kernel.shape[-1]):
            rows = sum(
                np.array([np.convolve(line, kernel[::-1, d, c, f]) for d, line in enumerate(part)])
                for c, part in enumerate(maps)
            )
            rows = rows[0::2] + rows[1::2] if network.folding else rows
            kept = [line[np.sort(np.argsort(-line, kind="stable")[:k])] for line in rows]
            after.append(np.tanh(np.array(kept) + bias[:, f : f + 1]))
        maps = after
    found = np.zeros((network.k_top, len(maps[0]), len(maps)))
    for f, part in enumerate(maps):
        found[: part.shape[1], :, f] = part.T
    return found.ravel()


@pytest.mark.parametrize(("k_top", "folding"), [(4, True), (2, False)])
def test_the_dynamic_network_is_its_definition(k_top, folding):
    network = DynamicCNN(layers=((4, 2), (2, 3)), k_top=k_top, folding=folding)
    draw = np.random.default_rng(1)
    sizes, hidden = [9, 1, 6], draw.normal(size=(3, 9, 8)).astype(np.float32)
    segments = jnp.asarray(np.arange(9) < np.array(sizes)[:, None], jnp.int32)
    params = network.init(jax.random.key(0), hidden, segments)["params"]
    params = jax.tree.map(
        lambda leaf: jnp.asarray(draw.normal(size=leaf.shape), jnp.float32), params
    )
    found = network.apply({"params": params}, jnp.asarray(hidden), segments)
    for row, size in enumerate(sizes):
        expected = by_definition(
            hidden[row, :size].astype(float), network, jax.tree.map(np.asarray, params)
        )
        np.testing.assert_allclose(found[row], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.full
@pytest.mark.status("textcnn", "matches")
def test_textcnn_equals_torch():
    torch = pytest.importorskip("torch")
    encoder = TextCNN(embed=Embeddings(vocab=VOCAB, width=6), filters=4)
    model = Model(
        encoder=encoder, heads={"classify": SequenceHead(3, Summary("none", at="max"), dropout=0.5)}
    )
    ids, sizes, labels = (
        np.random.default_rng(1).integers(0, 13, (3, 9)),
        [9, 2, 5],
        np.array([0, 2, 1]),
    )
    segments = (np.arange(9) < np.array(sizes)[:, None]).astype(np.int32)
    batch = {"input_ids": jnp.asarray(ids, jnp.int32), "segment_ids": jnp.asarray(segments)}
    params = drawn(model, batch)

    def loss(params):
        tower = towers.Tower(model, params)
        scores = tower.read("classify", tower(batch), batch)
        return -jax.nn.log_softmax(scores)[jnp.arange(3), labels].mean()

    value, ours = jax.value_and_grad(loss)(params)
    embed, out = torch.nn.Embedding(13, 6), torch.nn.Linear(12, 3)
    convolutions = [torch.nn.Conv1d(6, 4, width) for width in encoder.widths]
    p = jax.tree.map(lambda leaf: torch.tensor(np.asarray(leaf)), params)
    with torch.no_grad():
        embed.weight.copy_(p["encoder"]["embed"]["token"])
        out.weight.copy_(p["heads_classify"]["classes"]["kernel"].T)
        out.bias.copy_(p["heads_classify"]["classes"]["bias"])
        for conv, width in zip(convolutions, encoder.widths, strict=True):
            layer = p["encoder"][f"filter{width}"]
            conv.weight.copy_(layer["kernel"].permute(2, 1, 0))
            conv.bias.copy_(layer["bias"])
    texts = []
    for row, size in zip(ids, sizes, strict=True):
        x = embed(torch.tensor(row[:size])).T

        def pad(width, x=x):
            return torch.nn.functional.pad(x, (width - 1, width - 1))

        pairs = zip(convolutions, encoder.widths, strict=True)
        texts.append(torch.cat([torch.relu(conv(pad(width))).amax(1) for conv, width in pairs]))
    theirs = torch.nn.functional.cross_entropy(out(torch.stack(texts)), torch.tensor(labels))
    theirs.backward()
    np.testing.assert_allclose(value, theirs.item(), rtol=1e-5)

    def near(a, b):
        return np.testing.assert_allclose(a, b.numpy(), rtol=1e-5, atol=1e-5)

    near(ours["encoder"]["embed"]["token"], embed.weight.grad)
    near(ours["heads_classify"]["classes"]["kernel"], out.weight.grad.T)
    for conv, width in zip(convolutions, encoder.widths, strict=True):
        near(ours["encoder"][f"filter{width}"]["kernel"], conv.weight.grad.permute(2, 1, 0))


def narrow():
    """ConvS2S of two widths in miniature: a residual projection, an even number of layers,
    positions."""
    tower = systems.get("convs2s_mini").towers["main"]
    tower = spec.with_field(spec.respell(tower, Vocab, VOCAB), "width", 8)
    tower = spec.with_field(
        spec.with_field(tower, "features", 5), "convolutions", ((6, 3), (10, 3))
    )
    return spec.with_field(tower, "size", 16)


def pair():
    draw = np.random.default_rng(2)
    segments = np.array([[1] * 7, [1] * 4 + [0] * 3])
    fields = {"input_ids": draw.integers(1, 13, (2, 7)), "segment_ids": segments}
    fields |= {"decoder_input_ids": draw.integers(1, 13, (2, 5))}
    return {name: jnp.asarray(value, jnp.int32) for name, value in fields.items()}


@pytest.mark.full
@pytest.mark.status("convs2s_ende", "matches")
def test_convs2s_equals_torch():
    torch = pytest.importorskip("torch")
    model, batch = narrow(), pair()
    params = drawn(model, batch)
    readers, labels = (
        model.encoder.encoder.readers,
        np.random.default_rng(3).integers(0, 13, (2, 5)),
    )

    def loss(params):
        tower = towers.Tower(model, params)
        return tower.head("lm", tower(batch).hidden).nll(jnp.asarray(labels)).mean()

    value, ours = jax.value_and_grad(loss)(params)
    p = jax.tree.map(lambda leaf: torch.tensor(np.asarray(leaf), requires_grad=True), params)
    half = math.sqrt(0.5)

    def dense(layer, x):
        kernel = layer["kernel"]
        return x @ (kernel * (layer["scale"] / kernel.norm(dim=0))) + layer["bias"]

    def convolved(layer, x, left, right):
        """torch's convolution with the kernel [k D, 2 F], normed."""
        both = layer["both"]
        kernel = both["kernel"] * (both["scale"] / both["kernel"].norm(dim=0))
        weight = kernel.reshape(3, x.shape[-1], -1).permute(2, 1, 0)
        x = torch.nn.functional.pad(x.transpose(1, 2), (left, right))
        return torch.nn.functional.glu(
            torch.nn.functional.conv1d(x, weight, both["bias"]), 1
        ).transpose(1, 2)

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            return g / (2 * readers)

    def embedded(part, ids):
        ids = torch.tensor(np.asarray(ids))
        return (
            part["embed"]["token"][ids.long()] + part["embed"]["position"]["table"][: ids.shape[1]]
        )

    def stacked(part, x, step):
        for number in range(2):
            layer = part[f"layer{number}"]
            residual = dense(part[f"residual{number}"], x) if f"residual{number}" in part else x
            x = step(number, layer, x, residual)
        return x

    real = torch.tensor(np.asarray(batch["segment_ids"])) > 0
    part = p["encoder"]["encoder"]
    e = embedded(part, batch["input_ids"])
    x = dense(part["inputs"], e) * real[..., None]
    x = stacked(
        part, x, lambda n, layer, x, r: (convolved(layer, x, 1, 1) + r) * half * real[..., None]
    )
    keys = Scaled.apply(dense(part["outputs"], x))
    values = (keys + e) * half

    part = p["encoder"]["decoder"]
    target = embedded(part, batch["decoder_input_ids"])

    def step(number, layer, x, residual):
        x, attention = convolved(layer, x, 2, 0), part[f"attention{number}"]
        scores = ((dense(attention["inputs"], x) + target) * half) @ keys.transpose(1, 2)
        weights = torch.softmax(scores.masked_fill(~real[:, None], -math.inf), -1)
        read = weights @ values * real.sum(1).float().sqrt()[:, None, None]
        return ((dense(attention["outputs"], read) + x) * half + residual) * half

    x = dense(part["outputs"], stacked(part, dense(part["inputs"], target), step))
    head = p["heads_lm"]
    table = head["table"] * (head["scale"] / head["table"].norm(dim=1))[:, None]
    scores = x @ table.T + head["bias"]
    tower = towers.Tower(model, params)
    logits = tower.head("lm", tower(batch).hidden).logits()
    np.testing.assert_allclose(logits, scores.detach().numpy(), rtol=1e-4, atol=1e-5)
    theirs = torch.nn.functional.cross_entropy(
        scores.reshape(-1, scores.shape[-1]), torch.tensor(labels).reshape(-1)
    )
    theirs.backward()
    np.testing.assert_allclose(value, theirs.item(), rtol=1e-5)
    flat, other = jax.tree.leaves_with_path(ours), dict(jax.tree.leaves_with_path(p))
    for path, leaf in flat:
        np.testing.assert_allclose(
            leaf, other[path].grad.numpy(), rtol=1e-4, atol=1e-5, err_msg=str(path)
        )


@pytest.mark.full
def test_convs2s_decodes_step_by_step_as_in_one_pass():
    model, batch = narrow(), pair()
    tower = towers.Tower(model, drawn(model, batch))
    whole = tower(batch).hidden
    ids, source = (
        batch["decoder_input_ids"],
        {name: batch[name] for name in ("input_ids", "segment_ids")},
    )
    step = tower(
        {**source, "decoder_input_ids": ids[:, :1]}, cache=model.encoder.empty_cache(2, 6, 7)
    )
    found = [step.hidden]
    for t in range(1, 5):
        step = tower(
            {"input_ids": ids[:, t : t + 1], "positions": jnp.full((2, 1), t)}, cache=step.cache
        )
        found.append(step.hidden)
    np.testing.assert_allclose(jnp.concatenate(found, 1), whole, rtol=1e-5, atol=1e-5)

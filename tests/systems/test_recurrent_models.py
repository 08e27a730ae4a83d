"""Recurrent language models against plain torch with the same parameters: states, loss and every
gradient."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.paths import flatten
from ptm_jax.core.towers import Tower, abstract
from ptm_jax.core.types import Vocab
from ptm_jax.systems.recurrent import elmo, flair
from ptm_jax.systems.recurrent import lstm as recurrent

pytestmark = pytest.mark.full
torch = pytest.importorskip("torch")

VOCAB = Vocab(size=23, pad=0, eos=1, unk=2)
ROWS, LENGTH, LETTERS = 3, 7, 8


def batch_of(padded):
    draw = np.random.default_rng(1)
    ids, segments = draw.integers(3, VOCAB.size, (ROWS, LENGTH)), np.ones((ROWS, LENGTH), np.int32)
    segments[1, 4:] = 0 if padded else 1
    batch = {
        "input_ids": ids,
        "segment_ids": segments,
        "characters": draw.integers(1, 262, (ROWS, LENGTH, LETTERS)),
    }
    return {name: jnp.asarray(value, jnp.int32) for name, value in batch.items()}


def compare(system, definition, padded):
    """The objective of a system with drawn parameters is `definition(tensors, batch)` -> loss."""
    batch, towers, draw = batch_of(padded), system.towers, np.random.default_rng(0)
    shapes = abstract(towers, batch)
    params = jax.tree.map(lambda leaf: draw.normal(0, 0.6, leaf.shape).astype(np.float32), shapes)

    def loss(params):
        return system.objective(
            {"main": Tower(towers["main"], params["main"])}, batch, None
        ).value()

    value, gradients = jax.jit(jax.value_and_grad(loss))(params)
    tensors = {
        path: torch.tensor(leaf, requires_grad=True)
        for path, leaf in flatten(params["main"]).items()
    }
    expected = definition(
        tensors, {name: torch.tensor(np.asarray(field)).long() for name, field in batch.items()}
    )
    expected.backward()
    np.testing.assert_allclose(value, expected.detach(), atol=1e-4)
    for path, found in flatten(gradients["main"]).items():
        np.testing.assert_allclose(found, tensors[path].grad, atol=1e-4, err_msg=path)


def lstm(t, place, x, lengths, forget=0.0, clip=None, backward=False):
    """[B, L, H] of x [B, L, D], one row and one token after another."""
    cut = (lambda x: x) if clip is None else functools.partial(torch.clamp, min=-clip, max=clip)
    kernel, bias, state = (
        t[f"{place}/{name}"] for name in ("inputs/kernel", "inputs/bias", "state")
    )
    rows = []
    for row, length in zip(x, lengths, strict=True):
        h, c, found = torch.zeros(len(state)), torch.zeros(state.shape[1] // 4), {}
        for place_ in reversed(range(length)) if backward else range(length):
            i, f, g, o = torch.chunk(row[place_] @ kernel + bias + h @ state, 4)
            c = cut(torch.sigmoid(f + forget) * c + torch.sigmoid(i) * torch.tanh(g))
            h = torch.sigmoid(o) * torch.tanh(c)
            h = cut(h @ t[f"{place}/projection"]) if f"{place}/projection" in t else h
            found[place_] = h
        rows.append(
            torch.stack([found.get(place_, torch.zeros_like(h)) for place_ in range(LENGTH)])
        )
    return torch.stack(rows)


def neighbours_nll(states, ids, real, table, bias, step):
    """The mean of -log p(token `step` places on)."""
    here, there = (slice(0, -1), slice(1, None)) if step > 0 else (slice(1, None), slice(0, -1))
    nll = torch.nn.functional.cross_entropy(
        (states @ table.T + bias)[:, here].flatten(0, 1), ids[:, there].flatten(), reduction="none"
    )
    weight = (real[:, 1:] * real[:, :-1]).flatten()
    return (nll * weight).sum() / weight.sum()


@pytest.mark.status("awd_lstm", "matches")
@pytest.mark.parametrize("padded", [False, True])
def test_awd_lstm_is_that_of_torch(padded):
    """Three layers, the tied softmax, and the penalties AR and TAR (fastai's RNNRegularizer)."""
    system = recurrent.awd_lstm("", VOCAB, 5, 6, (0.1, 0.4, 0.25, 0.4, 0.5), epochs=1, epoch=1)

    def definition(t, batch):
        real = (batch["segment_ids"] > 0).float()
        x, table = t["encoder/embed/token"][batch["input_ids"]], t["encoder/embed/token"]
        for layer in range(3):
            x = lstm(t, f"encoder/layers_{layer}", x, real.sum(1).int().tolist())
        pairs = real[:, 1:] * real[:, :-1]
        size = (x.pow(2).mean(-1) * real).sum() / real.sum()
        change = ((x[:, 1:] - x[:, :-1]).pow(2).mean(-1) * pairs).sum() / pairs.sum()
        return (
            neighbours_nll(x, batch["input_ids"], real, table, t["heads_lm/bias"], 1)
            + 2.0 * size
            + change
        )

    compare(system, definition, padded)


def characters(t, batch, embed):
    """Vectors of words from their characters."""
    codes = batch["characters"].flatten(0, 1)
    letters = t["encoder/embed/characters"][codes] * (codes > 0)[..., None]
    found = []
    for i in range(len(embed.filters)):
        kernel = t[f"encoder/embed/filter{i}/kernel"].permute(2, 1, 0)
        found.append(
            torch.nn.functional.conv1d(letters.mT, kernel, t[f"encoder/embed/filter{i}/bias"]).amax(
                -1
            )
        )
    x = (
        torch.tanh(torch.cat(found, -1))
        if embed.activation == "tanh"
        else torch.relu(torch.cat(found, -1))
    )
    for i in range(embed.highway):
        new, gate = (
            x @ t[f"encoder/embed/highway{i}/kernel"] + t[f"encoder/embed/highway{i}/bias"]
        ).chunk(2, -1)
        x = torch.sigmoid(gate) * x + (1 - torch.sigmoid(gate)) * torch.relu(new)
    if embed.project:
        x = x @ t["encoder/embed/project/kernel"] + t["encoder/embed/project/bias"]
    return x.unflatten(0, batch["input_ids"].shape) * (batch["input_ids"] != VOCAB.pad)[..., None]


@pytest.mark.status("charlstm_small", "matches")
def test_character_lstm_is_that_of_torch():
    system = recurrent.charlstm("", ((1, 3), (2, 4)), 2, 5, spelling=LETTERS)

    def definition(t, batch):
        real = (batch["segment_ids"] > 0).float()
        x = characters(t, batch, system.towers["main"].encoder.embed)
        for layer in range(2):
            x = lstm(t, f"encoder/layers_{layer}", x, real.sum(1).int().tolist())
        return neighbours_nll(
            x, batch["input_ids"], real, t["heads_lm/table"], t["heads_lm/bias"], 1
        )

    compare(system, definition, False)


@pytest.mark.status("elmo", "matches")
def test_elmo_is_that_of_torch():
    """Clips of 0.4, which drawn states reach; the second layer adds its input."""
    encoder = elmo.network(
        VOCAB, 4, 6, filters=((1, 3), (2, 4)), size=3, dropout=0.0, clips=(0.4, 0.4)
    )
    system = elmo.elmo("", encoder, spelling=LETTERS)

    def definition(t, batch):
        real, ids = (batch["segment_ids"] > 0).float(), batch["input_ids"]
        x, losses = characters(t, batch, encoder.embed), []
        for way, backward in (("right", False), ("left", True)):
            options = {
                "lengths": real.sum(1).int().tolist(),
                "forget": 1.0,
                "clip": 0.4,
                "backward": backward,
            }
            first = lstm(t, f"encoder/{way}_0", x, **options)
            last = first + lstm(t, f"encoder/{way}_1", first, **options)
            losses.append(
                neighbours_nll(
                    last, ids, real, t["heads_lm/table"], t["heads_lm/bias"], -1 if backward else 1
                )
            )
        return sum(losses)

    compare(system, definition, True)


@pytest.mark.status("flair", "matches")
def test_flair_is_that_of_torch():
    """One layer a direction, one table of characters and one softmax."""

    def definition(t, batch):
        real, ids = (batch["segment_ids"] > 0).float(), batch["input_ids"]
        x, losses = t["encoder/embed/token"][ids], []
        for way, step in (("right", 1), ("left", -1)):
            states = lstm(t, f"encoder/{way}_0", x, real.sum(1).int().tolist(), backward=step < 0)
            losses.append(
                neighbours_nll(states, ids, real, t["heads_lm/table"], t["heads_lm/bias"], step)
            )
        return sum(losses)

    compare(flair.flair("", 4, 6), definition, True)

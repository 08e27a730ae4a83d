"""Recurrent encoder-decoders with attention against loops in torch, sentence by sentence, with
gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax import systems
from ptm_jax.adapt.modules.representation import Representation
from ptm_jax.core import spec, towers
from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Vocab
from ptm_jax.encoders.readers import reading
from ptm_jax.encoders.recurrent.attentive import LuongDecoder
from ptm_jax.nn.attention.soft import SoftAttention
from ptm_jax.nn.recurrent.lstm import LSTM
from ptm_jax.systems.sequence_to_sequence.rnnsearch import cove, language_pair, luong

V, H, REACH = 13, 6, 2
VOCAB = Vocab(size=V, pad=1, eos=2, sep=2, bos=0, cls=0, unk=3, mask=4)
SOURCE = [[1, 1, 1, 1, 2, 2, 2], [1, 1, 1, 1, 1, 0, 0]]
TARGET = [[1, 1, 2, 2, 2], [1, 1, 1, 0, 0]]
ATTENTION = {
    "rnnsearch_mini": SoftAttention(width=5),
    "luong_mini": SoftAttention(score="general", window="predictive", reach=REACH),
    "dot": SoftAttention(score="dot", window="monotonic", reach=REACH),
    "location": SoftAttention(score="location", longest=3),
    "lm_seq2seq": SoftAttention(score="dot"),
}


def narrow(name):
    made = {"cove": cove, "lm_seq2seq": lambda: language_pair("")}
    system = (
        systems.get(name)
        if name == "rnnsearch_mini"
        else made.get(name, lambda: luong("", "general", layers=2))()
    )
    attention = ATTENTION.get(name, SoftAttention(score="general"))
    tower = spec.with_field(system.towers["main"], "dropout", 0.0)
    tower = spec.respell(spec.respell(tower, Vocab, VOCAB), SoftAttention, attention)
    for field, value in {"width": H, "hidden": H, "features": 4}.items():
        tower = spec.with_field(tower, field, value)
    tower = spec.with_field(
        tower, "project", 4, lambda part: isinstance(part, LSTM) and part.project is not None
    )
    if name == "dot":
        tower = spec.with_field(tower, "feeds", False, lambda part: isinstance(part, LuongDecoder))
    if name == "cove":
        tower = spec.with_field(tower, "hidden", 2 * H, lambda part: isinstance(part, LuongDecoder))
    return spec.respell(tower, SoftAttention, attention)


def batch():
    draw = np.random.default_rng(2)
    places = [[row[:i].count(s) for i, s in enumerate(row)] for row in TARGET]
    fields = {
        "input_ids": draw.integers(5, V, (2, 7)),
        "segment_ids": SOURCE,
        "decoder_segment_ids": TARGET,
    }
    fields |= {"decoder_input_ids": draw.integers(5, V, (2, 5)), "decoder_positions": places}
    return {name: jnp.asarray(value, jnp.int32) for name, value in fields.items()}


def drawn(model, fields):
    draw = np.random.default_rng(0)
    shapes = towers.abstract({"main": model}, fields)["main"]
    return jax.tree.map(
        lambda leaf: jnp.asarray(draw.normal(0, 0.6, leaf.shape), jnp.float32), shapes
    )


def sentences(fields):
    """(source ids, target ids, row, target slots)."""
    for row in range(2):
        for number in {*TARGET[row]} - {0}:
            own, there = (
                np.array(SOURCE[row]) == number,
                np.flatnonzero(np.array(TARGET[row]) == number),
            )
            yield fields["input_ids"][row][own], fields["decoder_input_ids"][row][there], row, there


class Loops:
    """The definitions of the two papers for one sentence, in torch."""

    def __init__(self, torch, name, params):
        self.torch, self.rules, self.p = torch, ATTENTION[name], params["encoder"]
        self.sentence = {"rnnsearch_mini": self.bahdanau, "lm_seq2seq": self.pair}.get(
            name, self.luong
        )

    def dense(self, layer, x):
        y = x @ layer["kernel"]
        return y + layer["bias"] if "bias" in layer else y

    def gru(self, inputs, kernel, h):
        sigmoid, size = self.torch.sigmoid, len(h)
        r = sigmoid(inputs[:size] + h @ kernel[:, :size])
        z = sigmoid(inputs[size : 2 * size] + h @ kernel[:, size : 2 * size])
        n = self.torch.tanh(inputs[2 * size :] + (r * h) @ kernel[:, 2 * size :])
        return z * h + (1 - z) * n

    def lstm(self, gates, h, c):
        i, f, g, o = gates.chunk(4)
        c = self.torch.sigmoid(f) * c + self.torch.sigmoid(i) * self.torch.tanh(g)
        return self.torch.sigmoid(o) * self.torch.tanh(c), c

    def layer(self, at, words):
        """(h of every word, the last h and c) of an LSTM, with a projection or without."""
        torch, h, found = self.torch, self.torch.zeros(len(at["state"])), []
        c = torch.zeros(at["state"].shape[1] // 4)
        for x in words:
            i, f, g, o = (self.dense(at["inputs"], x) + h @ at["state"]).chunk(4)
            c = torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            h = h @ at["projection"] if "projection" in at else h
            found.append(h)
        return found, (h, c)

    def pair(self, source, target):
        """Two language models with layers above them (Ramachandran et al. 2017)."""
        torch, p, layers, x = (
            self.torch,
            self.p["decoder"],
            [],
            list(self.p["encoder"]["embed"]["token"][source]),
        )
        for n in range(3):
            layers.append(self.layer(self.p["encoder"][f"layers_{n}"], x))
            x = layers[-1][0]
        top, first, last = (
            torch.stack(x),
            torch.stack(layers[0][0]),
            [state for _, state in layers[1:]],
        )
        fed, features = torch.zeros(H), []
        for below in self.layer(p["first"], p["embed"]["token"][target])[0]:
            read = self.dense(p["dense_inputs_0"], below) + self.dense(p["feeding"], fed)
            for n, (h, c) in enumerate(last):
                read = read if n == 0 else self.dense(p["dense_inputs_1"], last[0][0])
                last[n] = self.lstm(read + h @ p[f"state{n}"], h, c)
            weights = torch.softmax(top @ last[-1][0], 0)
            fed = torch.tanh(
                self.dense(p["out"], torch.cat([weights @ first, weights @ top, last[-1][0]]))
            )
            features.append(below + self.dense(p["lift"], fed))
        return torch.stack(features)

    def attend(self, query, values, t):
        torch, p, rules = self.torch, self.p["decoder"].get("attention", {}), self.rules
        if rules.score == "additive":
            keys = self.dense(self.p["keys"]["of_source"], values)
            scores = torch.stack(
                [torch.tanh(self.dense(p["of_query"], query) + key) @ p["score"] for key in keys]
            )
        elif rules.score == "location":
            scores = self.dense(p["location"], query)[: len(values)]
        else:
            keys = (
                self.dense(self.p["keys"]["of_source"], values)
                if rules.score == "general"
                else values
            )
            scores = keys @ query
        places, centre, scale = torch.arange(len(values)), torch.tensor(float(t)), 1.0
        if rules.score == "location" and len(values) > rules.longest:
            values = values[: rules.longest]
        if rules.window == "predictive":
            share = self.dense(p["place"], torch.tanh(self.dense(p["place_query"], query)))[0]
            centre = len(values) * torch.sigmoid(share)
            scale = torch.exp(-2 * (places - centre) ** 2 / rules.reach**2)
        if rules.window != "none":
            near = (places - centre.detach()).abs() <= rules.reach
            if not near.any():
                return torch.zeros(values.shape[1])
            scores = torch.where(near, scores, torch.tensor(float("-inf")))
        return (torch.softmax(scores, 0) * scale) @ values

    def bahdanau(self, source, target):
        torch, p, ways = self.torch, self.p["decoder"], self.p["encoder"]["layers_0"]
        x, states = self.p["encoder"]["embed"]["token"][source], []
        for way, step in (("right", 1), ("left", -1)):
            h, found = torch.zeros(H), []
            for vector in list(x)[::step]:
                h = self.gru(self.dense(ways[way]["inputs"], vector), ways[way]["state"], h)
                found.append(h)
            states.append(torch.stack(found[::step]))
        values, s, features = (
            torch.cat(states, 1),
            torch.tanh(self.dense(p["start"], states[1][0])),
            [],
        )
        for t, y in enumerate(p["embed"]["token"][target]):
            c = self.attend(s, values, t)
            s = self.gru(self.dense(p["gates"], y) + self.dense(p["reading"], c), p["state"], s)
            out = (
                self.dense(p["of_state"], s)
                + self.dense(p["of_word"], y)
                + self.dense(p["of_context"], c)
            )
            features.append(torch.stack([torch.maximum(a, b) for a, b in out.reshape(-1, 2)]))
        return torch.stack(features)

    def luong(self, source, target):
        torch, p, zeros = self.torch, self.p["decoder"], self.torch.zeros(H)
        x, last = list(self.p["encoder"]["embed"]["token"][source]), []
        for layer in range(2):
            h = c = zeros
            at, found = self.p["encoder"][f"layers_{layer}"], []
            for vector in x[::-1]:
                h, c = self.lstm(self.dense(at["inputs"], vector) + h @ at["state"], h, c)
                found.append(h)
            x = found[::-1]
            last.append((h, c))
        values, fed, features = torch.stack(x), zeros, []
        for t, y in enumerate(p["embed"]["token"][target]):
            read = self.dense(p["dense_inputs_0"], y)
            read = read + self.dense(p["feeding"], fed) if "feeding" in p else read
            for layer, (h, c) in enumerate(last):
                read = read if layer == 0 else self.dense(p["dense_inputs_1"], last[0][0])
                last[layer] = self.lstm(read + h @ p[f"state{layer}"], h, c)
            top = last[-1][0]
            fed = torch.tanh(self.dense(p["out"], torch.cat([self.attend(top, values, t), top])))
            features.append(fed)
        return torch.stack(features)


@pytest.mark.full
@pytest.mark.status("rnnsearch_50", "matches")
@pytest.mark.status("luong_local_p", "matches")
@pytest.mark.status("lm_seq2seq", "matches")
@pytest.mark.parametrize("name", ATTENTION)
def test_packed_rows_equal_loops_in_torch(name):
    torch = pytest.importorskip("torch")
    model, fields = narrow(name), batch()
    params, weights = drawn(model, fields), np.random.default_rng(3).normal(size=(2, 5, 6))
    p = jax.tree.map(lambda leaf: torch.tensor(np.asarray(leaf), requires_grad=True), params)
    total, hidden = 0.0, np.asarray(towers.Tower(model, params)(fields).hidden)
    loops = Loops(torch, name, p)
    for source, target, row, slots in sentences(fields):
        found = loops.sentence(np.asarray(source), np.asarray(target))
        np.testing.assert_allclose(hidden[row, slots], found.detach().numpy(), rtol=1e-5, atol=1e-5)
        total = total + (found * torch.tensor(weights[row, slots, : found.shape[1]])).sum()
    total.backward()
    real = (np.array(TARGET) > 0)[..., None]

    def loss(params):
        return (
            towers.Tower(model, params)(fields).hidden * (weights[..., : hidden.shape[-1]] * real)
        ).sum()

    theirs = dict(
        jax.tree.leaves_with_path(
            jax.tree.map(lambda x: np.zeros(x.shape) if x.grad is None else x.grad.numpy(), p)
        )
    )
    for path, leaf in jax.tree.leaves_with_path(jax.grad(loss)(params)["encoder"]):
        expected = theirs[(jax.tree_util.DictKey("encoder"), *path)]
        np.testing.assert_allclose(leaf, expected, rtol=1e-4, atol=1e-5, err_msg=str(path))


@pytest.mark.full
@pytest.mark.parametrize("name", ["rnnsearch_mini", "luong_mini", "cove"])
def test_packed_rows_equal_their_documents_in_rows_of_their_own(name):
    model, fields = narrow(name), batch()
    tower, rows = (
        towers.Tower(model, drawn(model, fields)),
        [part for part in sentences(fields) if len(part[0])],
    )

    def padded(place, width):
        return jnp.stack([jnp.pad(part[place], (0, width - len(part[place]))) for part in rows])

    def real(place, width):
        return jnp.stack([jnp.arange(width) < len(part[place]) for part in rows]).astype(jnp.int32)

    alone = {"input_ids": padded(0, 7), "segment_ids": real(0, 7)}
    alone |= {"decoder_input_ids": padded(1, 5), "decoder_segment_ids": real(1, 5)}
    found, whole = tower(alone).hidden, tower(fields).hidden
    for number, (_, target, row, slots) in enumerate(rows):
        np.testing.assert_allclose(
            whole[row, slots], found[number, : len(target)], rtol=1e-5, atol=1e-5
        )


@pytest.mark.full
@pytest.mark.parametrize("name", ["rnnsearch_mini", "luong_mini", "lm_seq2seq"])
def test_decoding_step_by_step_is_one_pass(name):
    model, fields = narrow(name), batch()
    fields = {
        k: v[1:]
        for k, v in fields.items()
        if not k.endswith(("decoder_segment_ids", "decoder_positions"))
    }
    tower, ids = towers.Tower(model, drawn(model, fields)), fields.pop("decoder_input_ids")
    whole = tower({**fields, "decoder_input_ids": ids}).hidden
    step = tower(
        {**fields, "decoder_input_ids": ids[:, :1]}, cache=model.encoder.empty_cache(1, 6, 7)
    )
    found = [step.hidden]
    for t in range(1, 5):
        step = tower(
            {"input_ids": ids[:, t : t + 1], "positions": jnp.full((1, 1), t)}, cache=step.cache
        )
        found.append(step.hidden)
    np.testing.assert_allclose(jnp.concatenate(found, 1), whole, rtol=1e-5, atol=1e-5)


def test_wrong_rules_are_one_line():
    with pytest.raises(UserError, match="unknown score of the attention 'dott'"):
        SoftAttention(score="dott")


def test_heads_read_the_word_vectors_beside_the_states_of_the_encoder():
    model, fields = narrow("rnnsearch_mini"), batch()
    fields = {name: fields[name] for name in ("input_ids", "segment_ids")}
    whole = Representation(kind="vectors").wrap(reading(model))
    tower = towers.Tower(whole, drawn(model, fields))
    found, params = tower(fields).hidden, tower.params["encoder"]["encoder"]
    vectors = params["embed"]["token"][fields["input_ids"]]
    np.testing.assert_array_equal(found[..., :H], vectors)
    alone = model.encoder.encoder.apply({"params": params}, fields).hidden
    np.testing.assert_allclose(found[..., H:], alone, rtol=1e-5, atol=1e-6)

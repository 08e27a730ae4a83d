"""Records of the catalogue, small, against `transformers`: states, maps, scores of heads, loss and
gradients in float32."""

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.core.spec import differences
from ptm_jax.core.towers import Tower
from ptm_jax.objectives.base import binary_loss

torch = oracles.torch
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        torch is None,
        reason="torch and transformers are not installed; make test-full installs them",
    ),
]

PAIRS = ("t5", "t5v11", "bart", "pegasus")
SOURCE = ("source", "source_layers", "source_attention")
PRE = (
    "t5",
    "t5v11",
    "pegasus",
    "ctrl",
    "megatron_bert",
)  # the oracle's last state has passed the final norm
TYPED = {
    "xlnet": 2,
    "albert": 2,
    "electra": 2,
    "electra_generator": 2,
    "megatron_bert": 2,
    "unilm": 6,
}
SIZES = {
    "layers",
    "width",
    "heads",
    "head_width",
    "hidden",
    "features",
    "size",
    "buckets",
    "farthest",
    "memory",
}
FACTORS = {"scale"}  # a power of the width
WORDS = {
    "pad",
    "unk",
    "cls",
    "sep",
    "mask",
    "bos",
    "eos",
    "extra",
}  # of a vocabulary of another size
LENGTHS, LENGTH, TARGETS = (9, 6), 9, 7
EVERY = [
    pytest.param(name, marks=pytest.mark.status(system, "matches"))
    for name, (system, _) in oracles.RECORDS.items()
]


def drawn(family):
    """Inputs as numpy, right-padded; XLNet has a permutation, a memory and sentence types."""
    draw = np.random.default_rng(3)
    mask = (np.arange(LENGTH) < np.array(LENGTHS)[:, None]).astype(np.int32)
    ids = draw.integers(5, 61, (2, LENGTH))
    given = {
        "ids": np.where(mask, ids, 0),
        "mask": mask,
        "types": draw.integers(0, TYPED.get(family, 2), (2, LENGTH)),
    }
    length = TARGETS if family in PAIRS else LENGTH
    given["target"] = draw.integers(5, 61, (2, length))
    given["labels"] = draw.integers(5, 61, (2, length))
    given["weights"] = np.float32(draw.random((2, length)) < 0.7)
    if family not in PAIRS:
        given["weights"] *= mask
    given["order"] = np.stack([draw.permutation(LENGTH) for _ in range(2)])
    if family == "unilm":  # source before target, and from right to left
        slots = np.arange(LENGTH)
        given["order"] = np.stack([np.maximum(slots - 3, 0), -slots])
    given["memory"] = draw.normal(size=(2, 2, 4, 24)).astype(np.float32)  # [B, N, M, D]
    given["replaced"] = draw.integers(0, 2, (2, LENGTH))
    given["pair"] = draw.integers(0, 2, 2)
    return given


def theirs(family, model, given):
    """(outputs, scores {head: tensor}, loss) of the oracle. What it was pre-trained with beside
    words is its own loss."""
    t = {name: torch.tensor(value) for name, value in given.items()}
    words = {"attention_mask": t["mask"], "output_hidden_states": True, "output_attentions": True}
    if family in PAIRS:
        words["decoder_input_ids"] = t["target"]
    if family in TYPED:
        words["token_type_ids"] = t["types"]
    if family == "xlnet":
        hidden = t["order"][:, None, :] >= t["order"][:, :, None]
        words |= {
            "perm_mask": hidden.float(),
            "target_mapping": torch.eye(LENGTH).expand(2, -1, -1),
        }
        words |= {
            "mems": [layer.transpose(0, 1) for layer in t["memory"].transpose(0, 1)],
            "use_mems": True,
        }
    if family == "unilm":
        unseen = (t["order"][:, None, :] > t["order"][:, :, None]) | (t["mask"][:, None, :] == 0)
        words["attention_mask"] = unseen[:, None] * torch.finfo(torch.float32).min
    chosen = torch.where(t["weights"] > 0, t["labels"], -100)
    if family == "electra":
        out = model(t["ids"], labels=t["replaced"], **words)
        return out, {"rtd": out.logits}, out.loss
    if family == "electra_generator":
        out = model(t["ids"], labels=chosen, **words)
        return out, {"mlm": out.logits}, out.loss
    if family in ("unilm", "megatron_bert"):
        out = model(t["ids"], labels=chosen, next_sentence_label=t["pair"], **words)
        name = "nsp" if family == "unilm" else "sop"
        return out, {"mlm": out.prediction_logits, name: out.seq_relationship_logits}, out.loss
    if family == "albert":
        out = model(t["ids"], labels=chosen, sentence_order_label=t["pair"], **words)
        return out, {"mlm": out.prediction_logits, "sop": out.sop_logits}, out.loss
    out = model(t["ids"], **words)
    nll = -out.logits.log_softmax(-1).gather(-1, t["labels"][..., None])[..., 0]
    return out, {"lm": out.logits}, (nll * t["weights"]).sum() / t["weights"].sum()


def batch_of(family, given):
    batch = {"input_ids": given["ids"], "segment_ids": given["mask"]}
    if family in PAIRS:
        batch["decoder_input_ids"] = given["target"]
    if family in TYPED:
        batch["token_type_ids"] = given["types"]
    if family == "unilm":
        batch["order"] = given["order"]
    if family == "xlnet":
        places = np.ones((2, 4), np.int32)
        # The oracle takes every token of a memory for the first sentence.
        batch |= {
            "order": given["order"],
            "carry": {"layers": given["memory"], "segments": places, "types": 0 * places},
        }
    return jax.tree.map(jnp.asarray, batch)


def loss(module, params, batch, given):
    """(loss, (encoded, {head: scores})), the sum of what the tower's heads are trained with."""
    tower = Tower(module, params)
    encoded = tower(batch)
    stream = (
        encoded.hidden
        if encoded.extra is None or "query" not in encoded.extra
        else encoded.extra["query"]
    )
    total, scores = 0.0, {}
    for name in module.heads:
        if name in ("lm", "mlm"):
            readout = tower.head(name, stream)
            total += (readout.nll(given["labels"]) * given["weights"]).sum() / given[
                "weights"
            ].sum()
            scores[name] = readout.logits()
        elif name == "rtd":
            scores[name] = tower.head(name, stream)
            total += binary_loss(scores[name], given["replaced"], given["mask"], "rtd_nll").value()
        elif name in ("nsp", "sop"):
            scores[name] = tower.head(name, tower.head("pool", stream))
            total -= jax.nn.log_softmax(scores[name])[np.arange(2), given["pair"]].mean()
    return total, (encoded, scores)


@pytest.mark.parametrize("family", oracles.RECORDS)
def test_a_record_is_compared_with_only_its_sizes_changed(family):
    found = differences(oracles.record(family), oracles.ours(family))
    changed = {path.rsplit(".", 1)[-1] for path, *_ in found}
    assert {"layers", "width", "heads", "hidden", "size"} <= changed <= SIZES | FACTORS | WORDS


@pytest.mark.parametrize("family", EVERY)
def test_live_parity(family):
    model, module, given = oracles.oracle(family), oracles.ours(family), drawn(family)
    params, batch = (
        unflatten(oracles.tree(family, model, dict(model.named_parameters()))),
        batch_of(family, given),
    )
    shapes = jax.eval_shape(
        lambda: module.init(jax.random.key(0), batch, method="initialise")["params"]
    )
    assert {k: v.shape for k, v in flatten(params).items()} == {
        k: v.shape for k, v in flatten(shapes).items()
    }
    out, expected_scores, expected = theirs(family, model, given)
    run = jax.jit(jax.value_and_grad(lambda p: loss(module, p, batch, given), has_aux=True))
    (found, (encoded, scores)), slopes = run(jax.tree.map(jnp.asarray, params))
    np.testing.assert_allclose(found, expected.detach().numpy(), atol=1e-4)
    real = np.ones((2, TARGETS), bool) if family in PAIRS else given["mask"] > 0
    assert set(scores) == set(expected_scores)
    for name, value in expected_scores.items():
        of_row = name in ("nsp", "sop")
        close(scores[name] if of_row else scores[name][real], value if of_row else value[real])
    compare_states(family, encoded, out, real)
    expected.backward()

    def zero(p):
        return torch.zeros_like(p) if p.grad is None else p.grad

    expected_slopes = oracles.tree(
        family, model, {name: zero(p) for name, p in model.named_parameters()}
    )
    compare_slopes(flatten(slopes), expected_slopes)


def compare_slopes(slopes, expected):
    """Gradients by path, each to 1e-3 of its greatest number."""
    assert set(slopes) == set(expected)
    for path, slope in slopes.items():
        theirs = expected[path]
        if path.endswith("embed/token"):  # torch gives the padding row of a lookup no gradient
            slope, theirs = slope[1:], theirs[1:]
        scale = float(np.abs(theirs).max())
        np.testing.assert_allclose(slope, theirs, atol=1e-3 * scale + 1e-7, err_msg=path)


def close(ours, theirs):
    theirs = theirs.detach().numpy()
    np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=1e-4)


def compare_states(family, encoded, out, real):
    """Every layer's states and attention maps, of both halves and of both streams."""
    if family in PAIRS:
        source = np.arange(LENGTH) < np.array(LENGTHS)[:, None]
        halves = [
            (
                encoded.hidden,
                encoded.layers,
                encoded.attention,
                out.decoder_hidden_states,
                out.decoder_attentions,
                real,
            ),
            (
                *(encoded.extra[name] for name in SOURCE),
                out.encoder_hidden_states,
                out.encoder_attentions,
                source,
            ),
        ]
    elif family == "xlnet":
        content, maps = out.hidden_states[::2], [pair[0] for pair in out.attentions]
        halves = [(encoded.hidden, encoded.layers, encoded.attention, content, maps, real)]
        close(encoded.extra["query"][real], out.hidden_states[-1][real])
        new = torch.stack(
            list(out.mems)
        )  # [N, M', B, D]: as long as memory and row, ours keeps the last 4
        kept = (
            np.asarray(encoded.memory["segments"]).T > 0
        )  # padding sees itself there, and not here
        close(encoded.memory["layers"].transpose(1, 2, 0, 3)[:, kept], new[:, -4:][:, kept])
    else:
        halves = [
            (
                encoded.hidden,
                encoded.layers,
                encoded.attention,
                out.hidden_states,
                out.attentions,
                real,
            )
        ]
    for hidden, layers, attention, states, maps, seen in halves:
        close(hidden[seen], states[-1][seen])
        for index, state in enumerate(states[:-1] if family in PRE else states):
            close(layers[index][seen], state[seen])
        for index, found in enumerate(maps):
            close(attention[index].transpose(0, 2, 1, 3)[seen], found.transpose(1, 2)[seen])

"""Two towers: no token sees itself, every other of its document is seen; the combination against
loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.types import Vocab
from ptm_jax.encoders.model import distinct
from ptm_jax.encoders.transformer.cloze import Combination, TwoTowers
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.blocks import Block, FeedForward, Stack
from ptm_jax.nn.embeddings.summed import Embeddings, Sinusoids
from support.bare_layers import begun, dense, drawn, norm, run, sees
from support.by_hand import gelu, softmax

VOCAB, WIDTH, LENGTH = Vocab(size=30), 8, 7
SEGMENTS = jnp.asarray([[1, 1, 1, 1, 2, 2, 0]], jnp.int32)
BATCH = {"input_ids": jnp.arange(LENGTH, dtype=jnp.int32)[None], "segment_ids": SEGMENTS}


def model(combine="attention", masked=True, query="sum"):
    attention, ffn = Attention(heads=2, width=WIDTH), FeedForward(12)
    stack = Stack(block=Block(attention=attention, ffn=ffn), layers=2)
    encoder = TwoTowers(
        embed=Embeddings(vocab=VOCAB, width=WIDTH, position=Sinusoids()),
        forward=stack,
        backward=stack,
        merge=Combination(attention=attention, ffn=ffn, query=query)
        if combine == "attention"
        else None,
        combine=combine,
        masked=masked,
    )
    return distinct(encoder)


@pytest.mark.full
@pytest.mark.parametrize(("combine", "masked"), [("attention", False), ("sum", True)])
def test_every_other_token_of_the_document_is_seen(combine, masked):
    module = model(combine, masked)

    def encode(params):
        return module.apply({"params": params}, BATCH)

    def states(out):
        return jnp.stack([out.hidden[0], out.extra["forward"][0], out.extra["backward"][0]])

    flow = sees(lambda params: states(encode(params)), drawn(module, BATCH), "embed/token")[
        ..., :LENGTH
    ]
    same = np.asarray((SEGMENTS[0][:, None] == SEGMENTS[0][None]) & (SEGMENTS[0] > 0)[None])
    itself = np.eye(LENGTH, dtype=bool)
    real = np.asarray(SEGMENTS[0] > 0)
    hidden, ahead, behind = flow[:, real]
    np.testing.assert_array_equal(hidden, (same & ~(itself & masked))[real])
    np.testing.assert_array_equal(ahead, (same & np.tri(LENGTH, dtype=bool))[real])
    np.testing.assert_array_equal(behind, (same & np.tri(LENGTH, dtype=bool).T)[real])
    assert module.direction == ("both" if masked else "bidirectional")


@pytest.mark.full
@pytest.mark.parametrize("kind", ["sum", "concat"])
def test_the_combination_equals_loops(kind):
    module = model(query=kind)
    params = drawn(module, BATCH)
    out = run(module, params, BATCH)
    ahead, behind = (np.asarray(out.extra[name][0], np.float64) for name in ("forward", "backward"))
    merge = jax.tree.map(lambda leaf: leaf.astype(np.float64), params["merge"])
    ahead, behind = norm(ahead, merge["forward_norm"]), norm(behind, merge["backward_norm"])
    p, nothing = merge["attention"], np.zeros(WIDTH)

    def heads(x, name):
        return np.einsum("...d,dhk->...hk", x, p[name]["kernel"]) + p[name]["bias"]

    for i in range(6):
        left = [j for j in range(i) if SEGMENTS[0, j] == SEGMENTS[0, i]]
        right = [j for j in range(i + 1, 6) if SEGMENTS[0, j] == SEGMENTS[0, i]]
        sides = [ahead[left[-1]] if left else nothing, behind[right[0]] if right else nothing]
        query = heads(sum(sides) if kind == "sum" else np.concatenate(sides), "query")
        states = np.stack([*ahead[left], *behind[right]])
        scores = np.einsum("hk,jhk->hj", query, heads(states, "key")) / np.sqrt(WIDTH / 2)
        weights = softmax(scores)
        expected = np.zeros((2, 2 * LENGTH))
        expected[:, left + [LENGTH + j for j in right]] = weights
        np.testing.assert_allclose(out.attention[0, 0, :, i], expected, atol=1e-5)
        mixed = np.einsum("hj,jhk->hk", weights, heads(states, "value"))
        x = np.einsum("hk,hkd->d", mixed, p["out"]["kernel"]) + p["out"]["bias"]
        inner = gelu(dense(merge["ffn"]["up"], norm(x, merge["ffn_norm"])))
        x = x + dense(merge["ffn"]["down"], inner)
        np.testing.assert_allclose(out.hidden[0, i], x, atol=1e-4)


@pytest.mark.full
def test_the_towers_share_the_table_alone():
    params = begun(model(), BATCH)
    assert set(params) == {"embed", "forward", "backward", "merge"}
    a, b = (
        params[name]["block"]["attention"]["query"]["kernel"] for name in ("forward", "backward")
    )
    assert (a != b).any()


def test_a_merge_that_nothing_uses_is_refused():
    encoder = model().clone(combine="sum")
    with pytest.raises(ValueError, match="belongs to 'attention'"):
        jax.eval_shape(lambda: encoder.init(jax.random.key(0), BATCH))

"""Two towers: no token sees itself, every other of its document is seen; the combination against loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.types import Vocab
from ptm_jax.encoders.cloze import TwoTowers
from ptm_jax.encoders.model import Model
from ptm_jax.nn.attention import Attention
from ptm_jax.nn.blocks import Block, FeedForward, Stack
from ptm_jax.nn.embeddings import Embeddings, Sinusoids
from ptm_jax.nn.heads import LMHead
from ptm_jax.nn.initializers import Normal

VOCAB, WIDTH, LENGTH = Vocab(size=30), 8, 7
SEGMENTS = jnp.asarray([[1, 1, 1, 1, 2, 2, 0]], jnp.int32)
BATCH = {"input_ids": jnp.arange(LENGTH, dtype=jnp.int32)[None], "segment_ids": SEGMENTS}


def model(combine="attention", masked=True):
    attention = Attention(heads=2, width=WIDTH, initializer=Normal(0.4))
    block = Block(attention=attention, ffn=FeedForward(12, initializer=Normal(0.4)))
    stack = Stack(block=block, layers=2)
    encoder = TwoTowers(
        embed=Embeddings(vocab=VOCAB, width=WIDTH, position=Sinusoids(), initializer=Normal(1.0)),
        forward=stack,
        backward=stack,
        merge=block if combine == "attention" else None,
        combine=combine,
        masked=masked,
    )
    return Model(encoder=encoder, heads={"lm": LMHead()})


def begin(module):
    params = jax.jit(lambda: module.init(jax.random.key(0), BATCH, method="initialise")["params"])()
    return params, jax.jit(lambda params: module.apply({"params": params}, BATCH, method="encode"))


def flow(run, params):
    """[3, L, L] booleans: do the hidden, forward and backward states at t depend on the token at s?"""

    def outputs(token):
        embed = {**params["encoder"]["embed"], "token": token}
        out = run({**params, "encoder": {**params["encoder"], "embed": embed}})
        states = jnp.stack([out.hidden[0], out.extra["forward"][0], out.extra["backward"][0]])
        return states @ jnp.linspace(1.0, 2.0, WIDTH)

    jacobian = jax.jit(jax.jacrev(outputs))(params["encoder"]["embed"]["token"])
    return np.asarray((jacobian != 0).any(-1))[..., :LENGTH]


@pytest.mark.parametrize("combine", ["attention", "sum"])
@pytest.mark.parametrize("masked", [True, False])
def test_every_other_token_of_the_document_is_seen(combine, masked):
    module = model(combine, masked)
    params, run = begin(module)
    same = np.asarray((SEGMENTS[0][:, None] == SEGMENTS[0][None]) & (SEGMENTS[0] > 0)[None])
    itself = np.eye(LENGTH, dtype=bool)
    real = np.asarray(SEGMENTS[0] > 0)
    hidden, ahead, behind = flow(run, params)[:, real]
    np.testing.assert_array_equal(hidden, (same & ~(itself & masked))[real])
    np.testing.assert_array_equal(ahead, (same & np.tri(LENGTH, dtype=bool))[real])
    np.testing.assert_array_equal(behind, (same & np.tri(LENGTH, dtype=bool).T)[real])
    assert module.encoder.sees == ("both" if masked else "bidirectional")


def test_the_combination_equals_loops():
    module = model()
    params, run = begin(module)
    out = run(params)
    ahead, behind = (np.asarray(out.extra[name][0], np.float64) for name in ("forward", "backward"))
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params["encoder"]["merge"]["attention"])
    for i in range(6):
        left = [j for j in range(i) if SEGMENTS[0, j] == SEGMENTS[0, i]]
        right = [j for j in range(i + 1, 6) if SEGMENTS[0, j] == SEGMENTS[0, i]]
        query = sum([ahead[j] for j in left[-1:]] + [behind[j] for j in right[:1]])
        keys = np.stack([*ahead[left], *behind[right]])
        for h in range(2):
            q, k = query @ p["query"]["kernel"][:, h], keys @ p["key"]["kernel"][:, h]
            weights = np.exp(k @ q / np.sqrt(WIDTH / 2))
            expected = np.zeros(2 * LENGTH)
            expected[left + [LENGTH + j for j in right]] = weights / weights.sum()
            np.testing.assert_allclose(out.attention[0, 0, h, i], expected, atol=1e-5)


def test_the_towers_share_the_table_alone():
    params, _ = begin(model())
    inner = params["encoder"]
    assert set(inner) == {"embed", "forward", "backward", "merge"}
    a, b = (inner[name]["block"]["attention"]["query"]["kernel"] for name in ("forward", "backward"))
    assert (a != b).any()


def test_a_merge_that_nothing_uses_is_refused():
    encoder = model().encoder.clone(combine="sum", parent=None)
    with pytest.raises(ValueError, match="belongs to 'attention'"):
        jax.eval_shape(lambda: encoder.init(jax.random.key(0), BATCH))

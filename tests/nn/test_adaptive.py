"""Adaptive input and softmax against loops, and against torch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.types import Vocab
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.transformer import Transformer
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.blocks import Block, FeedForward, Stack
from ptm_jax.nn.embeddings.adaptive import AdaptiveEmbeddings, AdaptiveHead, AdaptiveSoftmaxHead
from ptm_jax.nn.embeddings.summed import Sinusoids
from support.bare_layers import drawn, run
from support.by_hand import softmax

VOCAB, CUTS, WIDTH = Vocab(size=23), (5, 12), 8
CLUSTERS = [(0, 5), (5, 7), (12, 11)]
IDS = jnp.asarray([[0, 4, 5, 11, 12, 22], [3, 7, 20, 1, 6, 19]], jnp.int32)


def model(divide, **head):
    embed = AdaptiveEmbeddings(
        vocab=VOCAB, width=WIDTH, cutoffs=CUTS, divide=divide, scale=3.0, position=Sinusoids()
    )
    stack = Stack(
        block=Block(attention=Attention(heads=2, width=WIDTH), ffn=FeedForward(8)), layers=1
    )
    head = AdaptiveHead(vocab=VOCAB, cutoffs=CUTS, divide=divide, **head)
    return Model(
        encoder=Transformer(embed=embed, stack=stack, direction="causal"), heads={"lm": head}
    )


def begin(module):
    return drawn(module, {"input_ids": IDS}, method="initialise")


@pytest.mark.full
@pytest.mark.parametrize("divide", [1, 2])
def test_embeddings_equal_loops(divide):
    module = model(divide)
    params = begin(module)
    tables = params["encoder"]["embed"]
    assert ("project0" in tables) == (divide > 1)
    found = run(module, params, {"input_ids": IDS}, method="encode").layers[0]
    for b, i in np.ndindex(IDS.shape):
        cluster = sum(int(IDS[b, i]) >= cut for cut in CUTS)
        vector = tables[f"token{cluster}"][int(IDS[b, i]) - CLUSTERS[cluster][0]]
        assert vector.size == WIDTH // divide**cluster
        vector = vector if divide == 1 else vector @ tables[f"project{cluster}"]
        place = Sinusoids()(jnp.asarray(i), WIDTH)
        np.testing.assert_allclose(found[b, i], 3.0 * vector + place, atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize(
    ("divide", "options"),
    [
        (2, {}),
        (2, {"projections": "all"}),
        (2, {"projections": "none", "bias": False}),
        (1, {}),
        (2, {"tied": False}),
    ],
    ids=["tail", "all", "none", "flat", "untied"],
)
def test_log_probabilities_equal_loops(divide, options):
    module = model(divide, **options)
    params = begin(module)
    embed, head = params["encoder"]["embed"], params["heads_lm"]
    hidden, labels = (
        np.random.default_rng(1).normal(size=(4, WIDTH)).astype(np.float32),
        np.asarray([0, 5, 11, 22]),
    )
    readout = run(module, params, "lm", hidden, method="head")
    logits, nll = jax.tree.map(
        np.asarray, jax.jit(lambda readout: (readout.logits(), readout.nll(labels)))(readout)
    )

    def features(h, i):
        if divide == 1 or (i == 0 and options.get("tied") is False):
            return h
        tied = (
            options.get("tied", True)
            and {"all": True, "tail": i > 0, "none": False}[options.get("projections", "tail")]
        )
        return h @ (embed[f"project{i}"].T if tied else head[f"project{i}"])

    for n in range(4):
        h = hidden[n].astype(np.float64)
        words = [(head if options.get("tied") is False else embed)[f"token{i}"] for i in range(3)]
        biases = [head.get(f"bias{i}", np.zeros(len(words[i]))) for i in range(3)]
        names = [
            features(h, 0) @ head["clusters"][i] + head.get("clusters_bias", np.zeros(2))[i]
            for i in range(2)
        ]
        first = softmax(np.array([*(words[0] @ features(h, 0) + biases[0]), *names]))
        tails = [first[4 + i] * softmax(words[i] @ features(h, i) + biases[i]) for i in (1, 2)]
        expected = np.concatenate([first[:5], *tails])
        np.testing.assert_allclose(expected.sum(), 1.0, atol=1e-9)
        np.testing.assert_allclose(logits[n], np.log(expected), atol=1e-4)
    np.testing.assert_allclose(nll, -logits[np.arange(4), labels], atol=1e-6)


def test_cutoffs_lie_inside_the_vocabulary():
    head = AdaptiveHead(vocab=VOCAB, cutoffs=(9, 30), tied=False)
    with pytest.raises(ValueError, match="must rise"):
        head.init(jax.random.key(0), jnp.zeros((1, WIDTH)))


@pytest.mark.full
def test_both_untied_heads_equal_torch():
    """Loss, gradients and log-probabilities of `AdaptiveLogSoftmaxWithLoss`."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    peer = torch.nn.AdaptiveLogSoftmaxWithLoss(
        WIDTH, VOCAB.size, list(CUTS), div_value=2.0, head_bias=True
    )

    def get(tensor):
        return jnp.asarray(tensor.detach().numpy())

    weight, bias = get(peer.head.weight), get(peer.head.bias)
    params = {
        "token0": weight[:5],
        "clusters": weight[5:],
        "bias0": bias[:5],
        "clusters_bias": bias[5:],
    }
    published = {"words": weight, "bias": bias}
    for i, (narrow, wide) in enumerate(peer.tail, 1):
        params |= {
            f"project{i}": get(narrow.weight).T,
            f"token{i}": get(wide.weight),
            f"bias{i}": jnp.zeros(CLUSTERS[i][1]),
        }
        published |= {
            f"project{i}": {"kernel": get(narrow.weight).T},
            f"words{i}": get(wide.weight),
        }
    hidden, labels = jax.random.normal(jax.random.key(1), (23, WIDTH)), np.arange(23)
    theirs = torch.tensor(np.asarray(hidden), requires_grad=True)
    out, logits = peer(theirs, torch.tensor(labels)), peer.log_prob(theirs)
    out.loss.backward()
    for head, given, last in (
        (AdaptiveHead(vocab=VOCAB, cutoffs=CUTS, divide=2, tied=False), params, "token2"),
        (AdaptiveSoftmaxHead(VOCAB, CUTS, 2.0), published, "words2"),
    ):

        def read(params, hidden, head=head):
            return head.apply({"params": params}, hidden)

        def loss(params, hidden, read=read):
            return read(params, hidden).nll(jnp.asarray(labels)).mean()

        found, (slopes, inner) = jax.jit(jax.value_and_grad(loss, (0, 1)))(given, hidden)
        np.testing.assert_allclose(found, out.loss.item(), atol=1e-5)
        np.testing.assert_allclose(inner, theirs.grad.numpy(), atol=1e-5)
        np.testing.assert_allclose(slopes[last], peer.tail[1][1].weight.grad.numpy(), atol=1e-5)
        np.testing.assert_allclose(read(given, hidden).logits(), logits.detach().numpy(), atol=1e-5)

"""Adaptive input and softmax against loops, and against torch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.types import Vocab
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer import Transformer
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.blocks import Block, FeedForward, Stack
from ptm_jax.nn.embeddings.adaptive import AdaptiveEmbeddings, AdaptiveHead, AdaptiveSoftmaxHead
from ptm_jax.nn.embeddings.summed import Sinusoids
from ptm_jax.nn.initializers import Normal

VOCAB, CUTS, WIDTH = Vocab(size=23), (5, 12), 8
CLUSTERS = [(0, 5), (5, 7), (12, 11)]
IDS = jnp.asarray([[0, 4, 5, 11, 12, 22], [3, 7, 20, 1, 6, 19]], jnp.int32)


def model(divide, **head):
    embed = AdaptiveEmbeddings(
        vocab=VOCAB, width=WIDTH, cutoffs=CUTS, divide=divide, scale=3.0, position=Sinusoids(), initializer=Normal(0.5)
    )
    stack = Stack(block=Block(attention=Attention(heads=2, width=WIDTH), ffn=FeedForward(8)), layers=1)
    head = AdaptiveHead(vocab=VOCAB, cutoffs=CUTS, divide=divide, initializer=Normal(0.5), **head)
    return Model(encoder=Transformer(embed=embed, stack=stack, direction="causal"), heads={"lm": head})


def begin(module):
    return jax.jit(lambda: module.init(jax.random.key(0), {"input_ids": IDS}, method="initialise")["params"])()


@pytest.mark.parametrize("divide", [1, 2])
def test_embeddings_equal_loops(divide):
    module = model(divide)
    params = begin(module)
    assert ("project0" in params["encoder"]["embed"]) == (divide > 1)
    found = jax.jit(lambda p: module.apply({"params": p}, {"input_ids": IDS}, method="encode").layers[0])(params)
    tables = {k: np.asarray(v) for k, v in params["encoder"]["embed"].items()}
    for b, i in np.ndindex(IDS.shape):
        cluster = sum(int(IDS[b, i]) >= cut for cut in CUTS)
        vector = tables[f"token{cluster}"][int(IDS[b, i]) - CLUSTERS[cluster][0]]
        assert vector.size == WIDTH // divide**cluster
        vector = vector if divide == 1 else vector @ tables[f"project{cluster}"]
        place = Sinusoids()(jnp.asarray(i), WIDTH)
        np.testing.assert_allclose(found[b, i], 3.0 * vector + place, atol=1e-5)


@pytest.mark.parametrize(
    ("divide", "options"),
    [(2, {}), (2, {"projections": "all"}), (2, {"projections": "none", "bias": False}), (1, {}), (2, {"tied": False})],
    ids=["tail", "all", "none", "flat", "untied"],
)
def test_log_probabilities_equal_loops(divide, options):
    module = model(divide, **options)
    params = jax.tree.map(lambda leaf: leaf + 0.1, begin(module))
    wide = lambda tree: {k: np.asarray(v, np.float64) for k, v in tree.items()}
    embed, head = wide(params["encoder"]["embed"]), wide(params["heads_lm"])
    hidden = jax.random.normal(jax.random.key(1), (4, WIDTH))
    readout = jax.jit(lambda params: module.apply({"params": params}, "lm", hidden, method="head"))(params)

    labels = np.asarray([0, 5, 11, 22])
    logits, nll = jax.tree.map(np.asarray, jax.jit(lambda readout: (readout.logits(), readout.nll(labels)))(readout))

    def features(h, i):
        if divide == 1 or (i == 0 and options.get("tied") is False):
            return h
        tied = options.get("tied", True) and {"all": True, "tail": i > 0, "none": False}[options.get("projections", "tail")]
        return h @ (embed[f"project{i}"].T if tied else head[f"project{i}"])

    def softmax(scores):
        weights = np.exp(scores - scores.max())
        return weights / weights.sum()

    for n in range(4):
        h, expected = np.asarray(hidden[n], np.float64), []
        words = [(head if options.get("tied") is False else embed)[f"token{i}"] for i in range(3)]
        biases = [head.get(f"bias{i}", np.zeros(len(words[i]))) for i in range(3)]
        names = [features(h, 0) @ head["clusters"][i] + head.get("clusters_bias", np.zeros(2))[i] for i in range(2)]
        first = softmax(np.array([*(words[0] @ features(h, 0) + biases[0]), *names]))
        expected += list(first[:5])
        for i in (1, 2):
            expected += list(first[4 + i] * softmax(words[i] @ features(h, i) + biases[i]))
        np.testing.assert_allclose(sum(expected), 1.0, atol=1e-9)
        np.testing.assert_allclose(logits[n], np.log(expected), atol=1e-4)
    np.testing.assert_allclose(nll, -logits[np.arange(4), labels], atol=1e-6)


def test_cutoffs_lie_inside_the_vocabulary():
    head = AdaptiveHead(vocab=VOCAB, cutoffs=(9, 30), tied=False)
    with pytest.raises(ValueError, match="must rise"):
        head.init(jax.random.key(0), jnp.zeros((1, WIDTH)))


@pytest.mark.full
def test_the_untied_head_equals_torch():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    peer = torch.nn.AdaptiveLogSoftmaxWithLoss(WIDTH, VOCAB.size, list(CUTS), div_value=2.0, head_bias=True)
    get = lambda tensor: jnp.asarray(tensor.detach().numpy())
    weight, bias = get(peer.head.weight), get(peer.head.bias)
    params = {"token0": weight[:5], "clusters": weight[5:], "bias0": bias[:5], "clusters_bias": bias[5:]}
    for i, (narrow, wide) in enumerate(peer.tail, 1):
        params |= {f"project{i}": get(narrow.weight).T, f"token{i}": get(wide.weight), f"bias{i}": jnp.zeros(CLUSTERS[i][1])}
    head = AdaptiveHead(vocab=VOCAB, cutoffs=CUTS, divide=2, tied=False)
    hidden, labels = jax.random.normal(jax.random.key(1), (23, WIDTH)), np.arange(23)
    theirs = torch.tensor(np.asarray(hidden), requires_grad=True)
    out = peer(theirs, torch.tensor(labels))
    out.loss.backward()
    loss = lambda params, hidden: head.apply({"params": params}, hidden).nll(jnp.asarray(labels)).mean()
    found, (slopes, inner) = jax.jit(jax.value_and_grad(loss, (0, 1)))(params, hidden)
    np.testing.assert_allclose(found, out.loss.item(), atol=1e-5)
    np.testing.assert_allclose(inner, theirs.grad.numpy(), atol=1e-5)
    np.testing.assert_allclose(slopes["token2"], peer.tail[1][1].weight.grad.numpy(), atol=1e-5)
    logits = head.apply({"params": params}, hidden).logits()
    np.testing.assert_allclose(logits, peer.log_prob(theirs).detach().numpy(), atol=1e-5)


@pytest.mark.full
def test_the_published_adaptive_softmax_is_torchs():
    torch = pytest.importorskip("torch")
    head = AdaptiveSoftmaxHead(VOCAB, CUTS, 2.0, initializer=Normal(0.5))
    hidden = jax.random.normal(jax.random.key(1), (6, WIDTH))
    params = jax.tree.map(lambda leaf: leaf + 0.1, head.init(jax.random.key(0), hidden)["params"])
    theirs = torch.nn.AdaptiveLogSoftmaxWithLoss(WIDTH, VOCAB.size, CUTS, 2.0, head_bias=True)
    given = lambda a: torch.tensor(np.asarray(a))
    names = {"head.weight": given(params["words"]), "head.bias": given(params["bias"])}
    for i in (1, 2):
        names[f"tail.{i - 1}.0.weight"] = given(params[f"project{i}"]["kernel"].T)
        names[f"tail.{i - 1}.1.weight"] = given(params[f"words{i}"])
    theirs.load_state_dict(names)
    readout = head.apply({"params": params}, hidden)
    with torch.no_grad():
        np.testing.assert_allclose(readout.logits(), theirs.log_prob(given(hidden)), atol=1e-5)
        labels = IDS.reshape(-1)[:6]
        found = -theirs(given(hidden), given(labels).long()).output
    np.testing.assert_allclose(readout.nll(labels), found, atol=1e-5)

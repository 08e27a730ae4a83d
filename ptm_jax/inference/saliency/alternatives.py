"""The attention from which a class is predicted, and the same prediction under another attention.

The model has one attention over the tokens of a text, which `AttentivePooling` gives it, or H heads
of the last layer whose first token predicts the class. Another attention changes only the weights
of tokens between special ones, and keeps their sum: its `share` [H, L] of that sum adds up to 1.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp

from ptm_jax.core.batch import segments_of
from ptm_jax.core.errors import UserError
from ptm_jax.core.networks import Network
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Params, Visibility, record
from ptm_jax.encoders.readers import readers_of
from ptm_jax.encoders.transformer.transformer import stack_of
from ptm_jax.inference.text import classifying
from ptm_jax.kernels.scores import Scores
from ptm_jax.nn.attention.multihead import with_maps
from ptm_jax.nn.attention.relative import NoScores
from ptm_jax.nn.blocks import Block
from ptm_jax.nn.embeddings.moved import movable
from ptm_jax.nn.heads.task_heads import attention_of, summary_of
from ptm_jax.nn.layers import Context, Identity, LayerNorm
from ptm_jax.nn.stacks import stacks_of

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained

LEAST = 1e-30
RATE, PENALTY, SPREAD = 0.01, 500.0, 3.0
"""Learning rate of adversaries, weight of their constraint, and deviation of the logits of their
starts, as in the released code of Jain and Wallace 2019 (arXiv 1902.10186)."""


class Part(NamedTuple):
    """The network of a classifier, and its last block and norm, or two Nones where the head itself
    attends."""

    module: Network
    block: Block | None
    norm: LayerNorm | Identity | None


@record
class Attended:
    """Texts as their attention reads them.

    states   [B, L, D], of which it makes a mean, or which are the inputs of the last layer
    weights  [B, H, L]; `text` and `real` [B, L]: tokens between special ones, and all tokens
    """

    states: Array
    weights: Array
    text: Array
    real: Array

    def share(self) -> Array:
        """Returns the share [B, H, L] of each token in the attention to the text."""
        inside = self.weights * self.text[:, None]
        return inside / jnp.maximum(inside.sum(-1, keepdims=True), LEAST)

    def with_share(self, share: Array) -> Array:
        """Returns weights [B, K, H, L] with another share [B, K, H, L]."""
        text = self.text[:, None, None]
        mass = (self.weights * self.text[:, None]).sum(-1)[:, None, :, None]
        return jnp.where(text, mass * share, self.weights[:, None])


def part_of(model: Pretrained) -> tuple[Part, Params]:
    """Returns a classifier after its attention, and the parameters: of the network, and of the last
    block and norm.

    Raises UserError for a model whose classes are not predicted from one attention.
    """
    module, name = model.module, model.system.name
    head = module.heads.get(classifying.HEAD)
    if head is None or classifying.kind_of(model) != "classes":
        raise UserError(f"{name} has no head of classes; --task attention tests classifiers")
    if attention_of(head) is not None:
        return Part(movable(module), None, None), {"network": model.weights}
    encoder, summary = module.encoder, summary_of(head)
    stack = stacks_of(encoder).get("stack") if stack_of(encoder) is not None else None
    plain = stack is not None and stack.alike and stack.block.attention.relative is None
    first = summary is not None and summary.at == "first"
    if not (first and plain and encoder.relative is None) or readers_of(module):
        raise UserError(
            f"{name} predicts its classes from no single attention; give a classifier with --adapt "
            "attentive, or one of the first token of plain attention (BERT)"
        )
    attention = dataclasses.replace(stack.block.attention, relative=NoScores(), cap=None)
    block = with_maps(dataclasses.replace(stack.block, attention=attention))
    params = model.params[model.tower]["encoder"]["stack"]
    last = jax.tree.map(lambda leaf: leaf[-1], params["block"])
    norm = params.get("final_norm", {})
    params = {"network": model.weights, "block": last, "norm": norm}
    return Part(with_maps(movable(module)), block, stack.final_norm), params


@functools.partial(jax.jit, static_argnums=0)
def attended(part: Part, params: Params, batch: Batch, specials: Array) -> Attended:
    """Returns the texts of a batch as their attention reads them."""
    real = segments_of(batch) > 0
    text = real & ~jnp.isin(batch["input_ids"], specials)
    encoded = Tower(part.module, params["network"])(batch)
    if part.block is not None:
        return Attended(encoded.layers[-2], encoded.attention[-1][:, :, 0], text, real)
    _, state = part.module.apply(
        {"params": params["network"]}, classifying.HEAD, encoded, batch, method="read",
        mutable=["intermediates"],
    )  # fmt: skip
    (weights,) = jax.tree.leaves(state["intermediates"])
    return Attended(encoded.hidden, weights[:, None], text, real)


@functools.partial(jax.jit, static_argnums=0)
def predicted(part: Part, params: Params, texts: Attended, weights: Array) -> Array:
    """Returns the log-probabilities [B, K, C] of the classes under the weights [B, K, H, L]."""
    tower = Tower(part.module, params["network"])

    def scores(states, real, weights):
        if part.block is None:
            return tower.head(classifying.HEAD, states[None], weights)[0]
        visible = Visibility(jnp.ones((1, 1), jnp.int32), real[None].astype(jnp.int32))
        bias = jnp.log(jnp.maximum(weights, LEAST))[None, :, None]
        context = Context(visible, jnp.zeros(1, jnp.int32), scores=Scores(bias=bias))
        first, source = states[None, :1], states[None]
        x, *_ = part.block.apply({"params": params["block"]}, first, context, None, source)
        x = part.norm.apply({"params": params["norm"]}, x)
        return tower.head(classifying.HEAD, x)[0]

    each = jax.vmap(jax.vmap(scores, (None, None, 0)))
    logits = each(texts.states, texts.real, weights)
    return jax.nn.log_softmax(logits.astype(jnp.float32), -1)


@functools.partial(jax.jit, static_argnums=0)
def sensitivity(part: Part, params: Params, batch: Batch, specials: Array, index: Array) -> Array:
    """Returns |gradient . word vector| [B, L] of the log-probability of the class `index` [B].

    The attention stays as it is (Jain and Wallace 2019, Algorithm 1)."""
    _, state = part.module.apply(
        {"params": params["network"]}, batch, method="encode", mutable=["intermediates"]
    )
    (words,) = jax.tree.leaves(state["intermediates"])

    def total(moves):
        texts = attended(part, params, {**batch, "perturbation": moves}, specials)
        weights = jax.lax.stop_gradient(texts.weights)[:, None]
        scores = predicted(part, params, texts, weights)[:, 0]
        return jnp.take_along_axis(scores, index[:, None], 1).sum()

    gradient = jax.grad(total)(jnp.zeros(words.shape, jnp.float32))
    return jnp.abs((gradient * words).sum(-1))


@functools.partial(jax.jit, static_argnums=0)
def slopes(part: Part, params: Params, texts: Attended, index: Array) -> Array:
    """Returns the gradient [B, H, L] of the log-probability of the class `index` [B] at the
    attention (Serrano and Smith 2019, section 4)."""

    def total(weights):
        scores = predicted(part, params, texts, weights[:, None])[:, 0]
        return jnp.take_along_axis(scores, index[:, None], 1).sum()

    return jax.grad(total)(texts.weights)


@functools.partial(jax.jit, static_argnums=(0, 4))
def adversary(
    part: Part, params: Params, texts: Attended, key: Array,
    settings: tuple[int, int, float],
) -> tuple[Array, Array]:  # fmt: skip
    """Returns shares [B, H, L] far from the attention whose prediction is near, and their Jensen
    and Shannon divergence [B], the mean over heads, in nats.

    settings  (starts, steps, epsilon): the greatest divergence of `starts` searches whose total
              variation distance of the classes is at most epsilon (Jain and Wallace 2019, Algorithm
              2). Where there is none it is the attention itself, 0.

    Each search is `steps` of Adam (AMSGrad) on the divergence, less 500 times the distance beyond
    epsilon, plus the mean divergence of the starts from each other. Deviation from the released
    code: the best step counts, not the last one.
    """
    import optax  # a tenth of a second, and `ptm predict` imports this module

    starts, steps, epsilon = settings
    share, text = texts.share(), texts.text[:, None, None]
    base = jnp.exp(predicted(part, params, texts, texts.weights[:, None]))

    def measured(logits):
        other = jax.nn.softmax(jnp.where(text, logits, -1e30), -1)
        scores = predicted(part, params, texts, texts.with_share(other))
        distance = total_variation(jnp.exp(scores), base)
        return other, distance, divergence(other, share[:, None]).mean(-1)

    def loss(logits):
        other, distance, gain = measured(logits)
        pairs = divergence(other[:, :, None], other[:, None]).mean(-1).sum()
        gained = (gain - PENALTY * jax.nn.relu(distance - epsilon)).sum()
        return -gained - pairs / max(1, starts * (starts - 1)), (other, distance, gain)

    rule = optax.amsgrad(RATE)

    def step(state, _):
        logits, moments, best, farthest = state
        gradient, (other, distance, gain) = jax.grad(loss, has_aux=True)(logits)
        better = (distance <= epsilon) & (gain > farthest)
        best = jnp.where(better[..., None, None], other, best)
        change, moments = rule.update(gradient, moments)
        return (logits + change, moments, best, jnp.where(better, gain, farthest)), None

    shape = (len(share), starts, *share.shape[1:])
    logits = SPREAD * jax.random.normal(key, shape)
    state = logits, rule.init(logits), jnp.broadcast_to(share[:, None], shape), jnp.zeros(shape[:2])
    (_, _, best, farthest), _ = jax.lax.scan(step, state, None, length=steps + 1)
    chosen = farthest.argmax(1)
    return best[jnp.arange(len(best)), chosen], farthest.max(1)


def total_variation(p: Array, q: Array) -> Array:
    """Returns the total variation distance [...] of distributions [..., C]."""
    return 0.5 * jnp.abs(p - q).sum(-1)


def divergence(p: Array, q: Array) -> Array:
    """Returns the Jensen and Shannon divergence [...] of distributions [..., C], in nats."""
    p, q = jnp.maximum(p, LEAST), jnp.maximum(q, LEAST)
    mean = 0.5 * (p + q)
    parts = p * (jnp.log(p) - jnp.log(mean)) + q * (jnp.log(q) - jnp.log(mean))
    return 0.5 * parts.sum(-1)

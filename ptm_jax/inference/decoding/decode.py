"""Decoding from a causal network or an encoder with a decoder.
Greedy, sampling or beam search, with a key-value cache and static shapes.

Prompts are padded on the left to a bucket of rows and lengths, so all rows write the same cache
slot at a step. Padding has segment 0 and is never attended to. Positions count from the first real
token. The compiled program depends on the buckets and on the set of active options, not on their
values: another temperature, or another prompt length in the same bucket, runs the same program.

The prompts of an encoder with a decoder are its sources. Answers, and the rules on them, begin with
`start`.

On a CPU a step is a row of layers, each with weights and a cache of its own, so that weights are
sliced and cast before the loop over tokens, and caches are updated in place. Products with weights
are computed by `kernels.thin`, or by columns, a part on each core. Caches are float32, because
XLA's CPU backend updates a bfloat16 array through a float32 copy.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core import spec
from ptm_jax.core.precision import Precision
from ptm_jax.core.streams import row_keys, stream
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, record
from ptm_jax.encoders.transformer.seq2seq import is_pair
from ptm_jax.inference import steady
from ptm_jax.inference.decoding import beams
from ptm_jax.inference.decoding import logits as rules
from ptm_jax.inference.decoding.settings import (
    Decoded,
    Generation,
    adjusted,
    bucket,
    grown_to_the_end,
)
from ptm_jax.inference.layerwise import replaced
from ptm_jax.kernels import stored_programs, thin
from ptm_jax.kernels.choice import platform
from ptm_jax.nn.attention.caches import Joined, KeyValues
from ptm_jax.nn.heads.vocabulary import Readout
from ptm_jax.nn.stacks import stacks_of
from ptm_jax.nn.stored_kernels import for_few_rows

if TYPE_CHECKING:
    from ptm_jax.core.networks import Network
    from ptm_jax.core.types import Params


Languages = tuple[int, int]

CORES = min(
    8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
)
"""Parts of a product with weights, for a step on a CPU."""


@record
class Walk:
    """Rows [R] being decoded: tokens [R, P+T] with the prompt, and used [R, P+T].
    `used` marks the slots that hold a token."""

    t: Any
    tokens: Any
    used: Any
    finished: Any
    lengths: Any
    scores: Any
    cache: Any


def pad_left(prompts: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Returns (ids [B', P], segments [B', P]) of prompts, right-aligned in their bucket.
    Padding is 0 in both."""
    rows, width = steady.answers_for(len(prompts)), bucket(max(map(len, prompts)), least=16)
    ids, segments = np.zeros((rows, width), np.int32), np.zeros((rows, width), np.int32)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = prompt
        segments[row, width - len(prompt) :] = 1
    return ids, segments


def decode(
    tower: Tower,
    prompts: Sequence[np.ndarray],
    options: Generation,
    *,
    head: str = "lm",
    eos: int | Sequence[int] | None = None,
    pad: int = 0,
    seed: int = 0,
    rows: Sequence[int] | None = None,
    start: int | None = None,
    others: Mapping[str, Sequence[np.ndarray]] = MappingProxyType({}),
    languages: Languages | None = None,
) -> Decoded:
    """Decodes answers to prompts (each [l] int32 with at least one token). Returns NumPy arrays.

    eos, pad  the id or ids that end an answer (None: no such id), and the id after it
    tower     its encoder must have `writes`
    start     first token of the answers of an encoder with a decoder (None: the encoder's default)
    others    {network: ids of each prompt, in its tokens}, for encoders that hold another network
    rows      number of each prompt: a sample depends on (seed, number, tokens of the prompt), not
              on the rest of the batch
    languages numbers of the language of the sources, and of the answers, for an encoder with a
              decoder that has their vectors
    """
    if not prompts or min(map(len, prompts)) == 0:
        raise ValueError("decoding needs at least one prompt, and a token in each")
    encoder = tower.module.encoder
    if start is None and is_pair(encoder):
        start = encoder.start
    if encoder.reads_source and not isinstance(start, int):
        raise ValueError("a decoder begins with a token: give its id as start")
    ids, segments = pad_left(prompts)
    ends = () if eos is None else (eos,) if isinstance(eos, int) else tuple(eos)
    words = tuple(word for word in options.bad_words if len(word) > 1 or word[0] not in ends)
    options = dataclasses.replace(options, bad_words=words)
    number = np.zeros(len(ids), np.int32)
    number[: len(prompts)] = range(len(prompts)) if rows is None else rows
    numbers = {**options.numbers(), "rows": number}
    fields = {
        f"{name}_{field}": array
        for name, texts in others.items()
        for field, array in zip(("input_ids", "segment_ids"), pad_left(texts), strict=True)
    }
    plan = _Plan(tower.module, options.shape(), head, ends, pad, start, languages)
    key = stream(seed, "generate")
    arrays = (ids, segments, fields)
    decoded = jax.tree.map(
        np.asarray, stored_programs.call(_decode, (plan,), tower.params, arrays, numbers, key)
    )
    cut = (slice(len(prompts)), slice(options.answers))
    return Decoded(
        decoded.tokens[cut][..., : options.max_new_tokens],
        decoded.lengths[cut],
        decoded.scores[cut],
    )


class _Plan(NamedTuple):
    """What a compiled decoding depends on besides arrays (see `decode`)."""

    module: Network
    shape: Generation
    head: str
    eos: tuple[int, ...]
    pad: int
    start: int | Literal["last"] | None
    languages: Languages | None


@functools.partial(jax.jit, static_argnums=0)
def _decode(
    plan: _Plan,
    params: Params,
    prompts: tuple[Array, Array, Mapping[str, Array]],
    numbers: Mapping[str, Array],
    key: Array,
) -> Decoded:
    """Decodes prompts (ids [B, L], segments [B, L], further fields)."""
    module, shape, head, eos, pad, start, languages = plan
    tower, (ids, segments, fields) = Tower(module, params), prompts
    slots = shape.max_new_tokens + (1 if module.encoder.reads_source else ids.shape[1])
    inputs = {"start": start, "fields": fields, "languages": languages}
    readout, cache = prefill(tower, head, ids, segments, slots, **inputs)
    logits = readout.logits()
    if module.encoder.reads_source:  # the answer follows only `start`
        ids, segments = jnp.full_like(ids[:, :1], start), segments.max(1, keepdims=True)
    count = len(ids) * max(shape.beams, shape.answers)
    params, cache = _by_layer(module, params, cache, count)
    step = {"tower": Tower(module, params), "head": head, "languages": languages}
    forward = functools.partial(_forward, scores=_word_scores(readout, count), **step)
    if shape.kind == "beam":
        state = {"segments": segments, "logits": logits, "cache": cache, "numbers": numbers}
        return beams.search(shape, forward, eos, pad, ids, **state)
    prompt, rows = ids.shape[1], jnp.repeat(jnp.arange(ids.shape[0]), shape.answers)
    grown = jnp.pad(
        jnp.stack([ids, segments])[:, rows], ((0, 0), (0, 0), (0, shape.max_new_tokens))
    )
    counts, zeros = segments.sum(1)[rows], jnp.zeros(rows.shape, jnp.int32)
    walk = Walk(
        t=jnp.int32(0), tokens=grown[0], used=grown[1] > 0, finished=counts == 0, lengths=zeros,
        scores=zeros.astype(jnp.float32), cache=cache.take(rows),
    )  # fmt: skip

    def grow(walk, logits):
        scores = adjusted(
            shape, numbers, eos, logits, walk.tokens, used=walk.used, t=walk.t, prompt=prompt
        )
        return _extended(walk, _choose(shape, numbers, scores, key, walk.t), logits, eos, prompt)

    walk = grown_to_the_end(
        walk,
        logits[rows],
        grow,
        forward,
        counts,
        prompt=prompt,
        done=lambda walk: walk.finished,
        numbers=numbers,
    )
    answers = jnp.where(
        jnp.arange(shape.max_new_tokens) < walk.lengths[:, None], walk.tokens[:, prompt:], pad
    )

    def split(x):
        return x.reshape(ids.shape[0], shape.answers, *x.shape[1:])

    return Decoded(split(answers), split(walk.lengths), split(walk.scores))


def prefill(
    tower: Tower,
    head: str,
    ids: Array,
    segments: Array,
    slots: int,
    *,
    start: int | None = None,
    fields: Mapping[str, Array] = MappingProxyType({}),
    languages: Languages | None = None,
) -> tuple[Any, Any]:
    """Returns the head's `Readout` after left-padded prompts [B, P], and their cache.

    The cache has `slots` tokens. With a decoder, prompts are sources and the readout is that after
    `start`; `languages` as in `decode`. `fields` [B, ...] are further ones of the batch; places are
    added to those of ids.
    """
    encoder, (rows, width) = tower.module.encoder, ids.shape
    batch = {
        "input_ids": ids,
        "segment_ids": segments,
        "positions": _places(segments),
        **fields,
    }
    for name in [name for name in fields if name.endswith("_segment_ids")]:
        batch[name.replace("segment_ids", "positions")] = _places(fields[name])
    if encoder.reads_source:
        batch["decoder_input_ids"] = jnp.full_like(ids[:, :1], start)
    if languages is not None:
        source, target = languages
        batch["language_ids"] = segments * source
        batch["decoder_language_ids"] = jnp.full_like(ids[:, :1], target)
    cache = (
        encoder.empty_cache(rows, slots, width)
        if encoder.reads_source
        else encoder.empty_cache(rows, slots)
    )
    encoded = tower(batch, cache=_kept(cache))
    return tower.head(head, encoded.hidden[:, -1]), encoded.cache


def _places(segments: Array) -> Array:
    """Returns the position of each token of left-padded rows [B, P]."""
    return jnp.maximum(jnp.cumsum(segments, 1) - 1, 0)


def _by_layer(module: Network, params: Params, cache: Any, rows: int) -> tuple[Any, Any]:
    """Returns parameters and cache for a step of the loop over tokens of so many rows.
    On a CPU they are split by layer and stored for products of few rows."""
    path = list(module.encoder.stacks)[-1] if module.encoder.stacks else ""  # the decoder's
    stack = stacks_of(module.encoder).get(path)
    if platform() != "cpu" or stack is None or not stack.alike:
        return params, cache
    dtype = next(
        (part.dtype for _, part in spec.walk(stack) if isinstance(part, Precision)), jnp.float32
    )
    params = replaced(
        params,
        f"encoder/{path}/block",
        lambda block: for_few_rows(stack.apart(block), rows, CORES, dtype),
    )

    def stacked(part: object) -> bool:
        return isinstance(part, KeyValues)

    def parts(part):
        return part.by_layer() if stacked(part) else part

    def ends(part):
        return stacked(part) or isinstance(part, Joined)

    return params, jax.tree.map(parts, cache, is_leaf=ends)


def _word_scores(readout: Any, rows: int) -> Callable[[Array], Array] | None:
    """Returns the product of features [R, D] with a head's table for a step on a CPU, [R, V]
    float32: by `kernels.thin`, or in a part for each core. None elsewhere."""
    if platform() != "cpu" or not isinstance(readout, Readout):
        return None
    kind = readout.precision.dtype
    table = readout.table.astype(kind)
    if thin.refusal(rows, kind) is None:
        kernel = thin.stored(table, rows, transposed=True)
        return lambda features: thin.product(features.astype(kind), kernel, transposed=True)
    plain = dataclasses.replace(readout, bias=None, cap=None)
    parts = [dataclasses.replace(plain, table=part) for part in jnp.array_split(table, CORES)]
    return lambda features: jnp.concatenate(
        [dataclasses.replace(part, features=features).logits() for part in parts], -1
    )


def _kept(cache: Any) -> Any:
    """Returns an empty cache with a dtype that this platform updates in place."""
    if platform() != "cpu":
        return cache
    return jax.tree.map(
        lambda leaf: leaf.astype(jnp.float32) if leaf.dtype == jnp.bfloat16 else leaf, cache
    )


def _forward(
    tokens: Array,
    positions: Array,
    cache: Any,
    *,
    tower: Tower,
    head: str,
    scores: Callable[[Array], Array] | None,
    languages: Languages | None,
) -> tuple[Array, Any]:
    """Returns the logits [R, V] after one more token [R, 1] at positions [R]."""
    batch = {"input_ids": tokens, "positions": positions[:, None]}
    if languages is not None:
        batch["language_ids"] = jnp.full_like(tokens, languages[1])
    encoded = tower(batch, cache=cache)
    readout = tower.head(head, encoded.hidden[:, 0])
    if scores is None:
        return readout.logits(), encoded.cache
    logits = scores(readout.features)
    logits = logits if readout.bias is None else logits + readout.bias
    return readout.linear.capped(logits), encoded.cache


def _choose(shape: Generation, numbers, scores: Array, key: Array, t: Array) -> Array:
    """Returns the next token [R] of every row."""
    if shape.kind == "greedy":
        return scores.argmax(-1).astype(jnp.int32)
    scores = scores / numbers["temperature"]
    if shape.top_k is not None:
        scores = rules.top_k(scores, numbers["top_k"])
    if shape.top_p is not None:
        scores = rules.top_p(scores, numbers["top_p"])
    rows = numbers["rows"][:, None] * jnp.int32(1 << 10) + jnp.arange(
        shape.answers, dtype=jnp.int32
    )
    keys = row_keys(jax.random.fold_in(key, t), rows.reshape(-1))
    return jax.vmap(jax.random.categorical)(keys, scores).astype(jnp.int32)


def _extended(walk: Walk, token: Array, logits: Array, eos: tuple[int, ...], prompt: int) -> Walk:
    going = ~walk.finished
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits, -1), token[:, None], 1)[:, 0]
    write = functools.partial(
        jax.lax.dynamic_update_slice_in_dim, start_index=prompt + walk.t, axis=1
    )
    return Walk(
        t=walk.t + 1,
        tokens=write(walk.tokens, token[:, None]),
        used=write(walk.used, going[:, None]),
        finished=walk.finished | rules.one_of(token, eos),
        lengths=walk.lengths + going,
        scores=walk.scores + jnp.where(going, chosen, 0.0),
        cache=walk.cache,
    )

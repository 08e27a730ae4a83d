"""Generation by unmasking: a masked diffusion model replaces the masks after a prompt."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.networks import Network
from ptm_jax.core.streams import row_keys, stream
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Params
from ptm_jax.inference import inputs, steady
from ptm_jax.inference.decoding.logits import NEVER
from ptm_jax.inference.decoding.settings import Generation

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained

OPTIONS = ("max_new_tokens", "temperature", "strategy")


class Writer(NamedTuple):
    """A network, its vocabulary head, the id of [MASK], and the ids that are never written.

    samples   False: each step writes the most probable token of all masks (LLaDA, low-confidence
              remasking with one token a step; Nie et al. 2025, Algorithm 5). True: it draws a mask
              and then its token, the reverse process of MDLM one token at a time (Sahoo et al.
              2024, section 4.2.1)
    """

    module: Network
    head: str
    mask: int
    specials: tuple[int, ...]
    samples: bool


def check(asked: Mapping[str, object]) -> None:
    """Raises UserError for an option of other decoders."""
    for name, value in asked.items():
        if name not in OPTIONS and value is not None:
            raise UserError(
                f"{name} is for decoders; a masked diffusion model takes max_new_tokens and "
                "temperature: leave it out"
            )


def answers(
    model: Pretrained,
    prompts: Sequence[np.ndarray],
    plan: Generation,
    *,
    seed: int,
    numbers: np.ndarray,
    batch_size: int,
) -> list[np.ndarray]:
    """Returns `plan.max_new_tokens` ids after each prompt (ids without special tokens).

    A sample depends on (seed, number, prompt), not on the other prompts. Raises UserError where a
    prompt leaves no room in the position table.
    """
    vocab = model.vocab
    unknown = () if vocab.unk is None else (vocab.unk,)
    writer = Writer(
        model.module, model.head, vocab.mask, (*vocab.specials, *unknown), plan.kind == "sample"
    )
    new = [vocab.mask] * plan.max_new_tokens
    rows = [inputs.framed(model, [*prompt, *new]) for prompt in prompts]
    if model.limit is not None:
        for number, row in enumerate(rows):
            inputs.check_length(len(row), model.limit, f"prompt {number + 1} with its answer")
    written: list[Any] = [None] * len(rows)
    for chosen in steady.batches([len(row) for row in rows], batch_size):
        ids, real = inputs.rectangle([rows[i] for i in chosen], vocab.pad)
        batch = model._batch(ids, real)
        short = len(batch["input_ids"]) - len(chosen)
        batch = {**batch, "rows": np.pad(numbers[chosen], (0, short)).astype(np.int32)}
        key = stream(seed, "unmasking")
        result = np.asarray(_unmasked(writer, model.weights, batch, key, plan.temperature))
        for place, index in enumerate(chosen):
            masks = np.flatnonzero(rows[index] == vocab.mask)[-len(new) :]
            written[index] = result[place][masks]
    return written


@functools.partial(jax.jit, static_argnums=0)
def _unmasked(
    writer: Writer, params: Params, batch: Batch, key: Array, temperature: float
) -> Array:
    """Returns ids [B, L] without masks. A row without masks does not change."""
    tower, ids = Tower(writer.module, params), batch["input_ids"]
    steps = (ids == writer.mask).sum(1).max()
    place = jnp.arange(ids.shape[1])

    def scores_of(ids):
        hidden = tower(
            {name: value for name, value in batch.items() if name != "rows"} | {"input_ids": ids}
        ).hidden
        logits = tower.head(writer.head, hidden).logits()
        return jax.nn.log_softmax(logits.at[..., jnp.array(writer.specials)].set(NEVER), -1)

    def one(step, ids):
        masked, scores = ids == writer.mask, scores_of(ids)
        if writer.samples:
            keys = row_keys(jax.random.fold_in(key, step), batch["rows"])
            drawn = jax.vmap(lambda k, row: jax.random.categorical(k, row / temperature))
            tokens = drawn(keys, scores)
            first = jax.vmap(lambda k: jax.random.uniform(jax.random.fold_in(k, 1), place.shape))
            order = first(keys)
        else:
            tokens, order = scores.argmax(-1), scores.max(-1)
        best = jnp.where(masked, order, -jnp.inf).argmax(1)
        written = masked & (place == best[:, None])
        return jnp.where(written, tokens.astype(ids.dtype), ids)

    return jax.lax.fori_loop(0, steps, one, ids)

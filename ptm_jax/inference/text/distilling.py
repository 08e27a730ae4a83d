"""Static vectors of a contextual model's tokens, as model2vec makes them: each token alone goes
through the model, with the special tokens of a text around it, and its vector is the mean of all
states. `compress.students.token_vectors` makes them smaller and weights them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np
from tqdm import tqdm

from ptm_jax.compress.students.token_vectors import principal, zipf_weights
from ptm_jax.convert.words.static_folder import StaticTable
from ptm_jax.core.errors import UserError
from ptm_jax.core.towers import Tower
from ptm_jax.data.tokenizers.reduced import reduced, whole_json
from ptm_jax.inference import inputs
from ptm_jax.inference.words.static_model import StaticModel

if TYPE_CHECKING:
    from ptm_jax.data.tokenizers.tokenizing import Tokenizer
    from ptm_jax.inference.pretrained import Pretrained


UNUSED = r"\[unused\d+\]"
BATCH = 256
Pool = Literal["mean", "first", "last"]


def distil(
    model: Pretrained,
    width: int | float | None = 256,
    smoothing: float | None = 1e-4,
    drop: str | None = UNUSED,
    pool: Pool = "mean",
    *,
    name: str = "",
    progress: bool | None = None,
) -> StaticModel:
    """Returns the static vectors of a `Pretrained` model's tokens.

    width      of the vectors after PCA; below 1 the share of variance that is kept; None: no PCA
    smoothing  a of the weights by frequency a / (a + p); None: none
    drop       pattern of tokens that are left out, from their first character; None: none. Special
               tokens other than the unknown one and padding are always left out
    pool       mean of the states of the token and the special tokens around it, or the first or the
               last of them

    Raises UserError for a pattern that is none, no token left, a model without a tokenizer, or
    numbers out of range.
    """
    if smoothing is not None and not 0 < smoothing < 1:
        raise UserError(
            f"the smoothing of frequencies is {smoothing}; expected a number above 0 and "
            "below 1, or none"
        )
    if width is not None and (width <= 0 or (isinstance(width, float) and width >= 1)):
        raise UserError(
            f"the width is {width}; expected a whole number above 0, or a share of the "
            "variance below 1"
        )
    tokenizer = model._tokenizer()
    content = whole_json(tokenizer)
    reduced_tokenizer, pieces = reduced(content, _dropped(tokenizer, content, drop))
    if not pieces:
        raise UserError(
            f"no token is left without those that match {drop!r}; give a narrower pattern"
        )
    vectors = _states(model, np.array([tokenizer.id(piece) for piece in pieces]), pool, progress)
    vectors = vectors if width is None else principal(vectors, width)
    if smoothing is not None:
        vectors = vectors * zipf_weights(len(vectors), smoothing)[:, None]
    fields = {
        "tokenizer_name": name or model.system.name,
        "apply_pca": width,
        "sif_coefficient": smoothing,
    }
    fields |= {"seq_length": 1_000_000, "normalize": True, "pooling": pool}
    return StaticModel.made(
        StaticTable(vectors=vectors.astype(np.float32), tokenizer=reduced_tokenizer, fields=fields)
    )


def _dropped(tokenizer: Tokenizer, content: Mapping[str, Any], drop: str | None) -> set[str]:
    """Returns the pieces that match `drop`, and the special tokens other than the unknown one and
    padding. Raises UserError for a pattern that is none."""
    padding = [tokenizer.piece(i) for i in [tokenizer.vocab.pad] if i is not None]
    special = {one["content"] for one in content.get("added_tokens", ())}
    dropped = special - {content["model"].get("unk_token"), *padding}
    if drop is None:
        return dropped
    try:
        pattern = re.compile(drop)
    except re.error as error:
        raise UserError(f"the pattern {drop!r} is no regular expression ({error})") from None
    return dropped | {piece for piece in tokenizer.pieces if pattern.match(piece)}


def _states(model: Pretrained, ids: np.ndarray, pool: Pool, progress: bool | None) -> np.ndarray:
    """Returns the pooled states [V, D] of tokens, each framed as a text."""
    rows, pooled_states = np.stack([inputs.framed(model, [i]) for i in ids]), []
    width = rows.shape[1]
    disable = None if progress is None else not progress
    for start in tqdm(
        range(0, len(rows), BATCH), unit="batch", delay=1, leave=False, disable=disable
    ):
        part = rows[start : start + BATCH]
        batch = model._batch(np.concatenate([part, np.repeat(part[:1], BATCH - len(part), 0)]))
        # Buckets are longer than a token and its frame; the excess is cut off.
        cut = {key: value[:, :width] if value.ndim > 1 else value for key, value in batch.items()}
        states = np.asarray(_hidden(model.module, model.weights, cut))[: len(part)]
        pooled_states.append(
            states.mean(1) if pool == "mean" else states[:, 0 if pool == "first" else -1]
        )
    return np.concatenate(pooled_states)


@functools.partial(jax.jit, static_argnums=0)
def _hidden(module, params, batch):
    return Tower(module, params)(batch).hidden

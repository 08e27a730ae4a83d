"""Small towers that write: a causal one and a T5, and their logits without a cache."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import Config
from ptm_jax.core import towers
from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.core.types import Vocab
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.transformer import transformer
from ptm_jax.nn.embeddings.summed import LearnedPositions
from ptm_jax.nn.heads.vocabulary import LMHead


def drawn(module, seed, scale, batch):
    """A tower with matrices large enough that its choices differ."""
    draw, found = np.random.default_rng(seed), {}
    for path, leaf in flatten(towers.abstract({"main": module}, batch)["main"]).items():
        found[path] = (scale * draw.normal(size=leaf.shape) + path.endswith("scale")).astype(
            np.float32
        )
    return towers.Tower(module, unflatten(found))


def causal(vocab=13, seed=0, norm="pre", **options):
    encoder = transformer(
        vocab=Vocab(size=vocab), layers=2, width=16, heads=2, hidden=24,
        positions=LearnedPositions(64), norm=norm,
        direction="causal", embed_norm=False, final_norm=norm == "pre", **options,
    )  # fmt: skip
    return drawn(
        Model(encoder=encoder, heads={"lm": LMHead()}),
        seed,
        0.4,
        {"input_ids": np.zeros((1, 4), np.int32)},
    )


def pair(vocab, seed=0, layers=1):
    fields = {
        "model_type": "t5",
        "vocab_size": vocab,
        "d_model": 8,
        "num_heads": 2,
        "d_kv": 4,
        "d_ff": 12,
    }
    fields |= {
        "num_layers": layers,
        "relative_attention_num_buckets": 8,
        "decoder_start_token_id": 0,
    }
    system, _ = checkpoint.record_of(Config(fields), "T5ForConditionalGeneration")
    return drawn(system.towers["main"], seed, 0.4, checkpoint.example(system))


@functools.partial(jax.jit, static_argnums=0)
def scores_of(module, params, batch):
    """[B, L, V] log-probabilities without a cache."""
    model = towers.Tower(module, params)
    return jax.nn.log_softmax(
        model.head("lm", model(batch).hidden).logits().astype(jnp.float32), -1
    )


def full_scores(model, ids):
    """[T, V] log-probabilities of one sequence; later tokens of its row have no effect
    (`tests/encoders` proves it)."""
    row = np.zeros((1, 32), np.int32)
    row[0, : len(ids)] = ids
    return np.asarray(scores_of(model.module, model.params, {"input_ids": row}))[0, : len(ids)]


def prompts_of(*lengths, vocab=13, seed=1):
    draw = np.random.default_rng(seed)
    return [draw.integers(0, vocab, n).astype(np.int32) for n in lengths]

"""Part (e): linear cross-entropy, forward and backward, beside optax with the scores in memory."""

from __future__ import annotations

from typing import Any

import numpy as np

TOKENS, WIDTH = 8192, 1024
_dry = False


def begin(dry: bool) -> None:
    """Sets the sizes of this process."""
    global _dry
    _dry = dry


def items(dry: bool) -> list[dict[str, Any]]:
    """Returns the sizes of the vocabularies."""
    return [{"words": words} for words in ((300,) if dry else (30522, 128256, 250002))]


def names(item: dict[str, Any]) -> list[str]:
    """Returns ours by blocks, ours in memory, and optax."""
    return ["xla", "reference", "optax"]


def prepare(item: dict[str, Any]) -> Any:
    """Returns features, table, bias and labels."""
    draw, (tokens, width) = np.random.default_rng(0), (16, 32) if _dry else (TOKENS, WIDTH)
    features = draw.standard_normal((tokens, width), np.float32)
    table = draw.standard_normal((item["words"], width), np.float32) * np.float32(width**-0.5)
    labels = draw.integers(0, item["words"], tokens).astype(np.int32)
    return features, table, np.zeros(item["words"], np.float32), labels


def build(item: dict[str, Any], context: Any, name: str) -> Any:
    """Compiles loss and gradients of features, table and bias."""
    import jax
    import jax.numpy as jnp
    import optax

    from ptm_jax.core.precision import Precision
    from ptm_jax.kernels.cross_entropy import linear_cross_entropy

    def ours(*given):
        return linear_cross_entropy(*given, precision=Precision("bfloat16"), impl=name).mean()

    def theirs(features, table, bias, labels):
        half = features.astype(jnp.bfloat16), table.astype(jnp.bfloat16)
        scores = jnp.einsum("td,vd->tv", *half, preferred_element_type=jnp.float32) + bias
        return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()

    loss = theirs if name == "optax" else ours
    return jax.jit(jax.value_and_grad(loss, (0, 1, 2))).lower(*context).compile()


def measure(item: dict[str, Any], context: Any, name: str, program: Any) -> dict[str, Any]:
    """Times it. FLOPs are those of the three products that autodiff makes."""
    import jax

    from benchmarks.device import clock

    given = jax.device_put(context)
    seconds = clock.of_jax(program, *given)
    tokens, width = context[0].shape
    return {
        "status": "timed",
        "milliseconds": 1e3 * seconds,
        "TFLOP/s": 6.0 * tokens * width * item["words"] / seconds / 1e12,
        "temporary GiB": program.memory_analysis().temp_size_in_bytes / 2**30,
    }

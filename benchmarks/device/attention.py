"""Part (c): seconds of attention by length, with what a kernel must compute besides q k^T.

12 heads of 64, 32,768 tokens, bfloat16. `pallas` is ours, `xla` ours by blocks, `reference` the
definition (both up to 2,048). A case that an implementation refuses is a row with the
reason. XLA searches among cuBLAS's products. A dry run calls our kernel once, in JAX's interpreter.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

LENGTHS = (512, 2048, 8192)
CASES = ("plain", "t5", "packed", "permutation", "window", "dropout", "shift", "disentangled")
TOKENS, HEADS, WIDTH, DOCUMENT = 32768, 12, 64, 512
BUCKETS, MOST, FARTHEST = 32, 128, 512
SHORT = 2048  # longest row of the definition
WINDOW = 64  # tokens that a query of the case "window" sees on each side, as in ModernBERT
_dry = False


def begin(dry: bool) -> None:
    """Sets the sizes of this process."""
    global _dry
    _dry = dry


def items(dry: bool) -> list[dict[str, Any]]:
    """Returns case and length of every item."""
    lengths = (32,) if dry else LENGTHS
    return [{"case": case, "length": length} for length in lengths for case in CASES]


def names(item: dict[str, Any]) -> list[str]:
    """Returns the implementations."""
    several = ["pallas", "cudnn", "tokamax"]
    return several + ["xla", "reference"] if item["length"] <= SHORT else several


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of an item: rows, length, heads, width."""

    rows: int
    length: int
    heads: int
    width: int

    @property
    def of_states(self) -> tuple[int, int, int, int]:
        """The shape of q, k and v."""
        return self.rows, self.length, self.heads, self.width


def shape_of(item: dict[str, Any]) -> Shape:
    """Returns the sizes of an item."""
    if _dry:
        return Shape(1, item["length"], 2, 16)
    return Shape(max(1, TOKENS // item["length"]), item["length"], HEADS, WIDTH)


def segments_of(item: dict[str, Any], shape: Shape) -> np.ndarray:
    """Returns the document of every position: one, or several of 512 tokens on average."""
    size = shape.rows, shape.length
    if item["case"] != "packed":
        return np.ones(size, np.int32)
    mean = min(DOCUMENT, shape.length // 4)
    ends = np.random.default_rng(0).random(size) < 1 / mean
    return 1 + np.cumsum(ends, 1, dtype=np.int32)


def flops(item: dict[str, Any], shape: Shape, segments: np.ndarray) -> float:
    """Returns FLOPs of the seven products of visible pairs, forward and backward."""
    count = segments.max() + 1
    lengths = np.stack([np.bincount(row, minlength=count) for row in segments]).astype(float)
    pairs = float((lengths**2).sum()) * (0.5 if item["case"] == "permutation" else 1.0)
    if item["case"] == "window":
        places = np.arange(shape.length)
        nearer = np.minimum(places, WINDOW) + np.minimum(places[::-1], WINDOW) + 1
        pairs = float(shape.rows * nearer.sum())
    return 14.0 * shape.heads * shape.width * pairs


def prepare(item: dict[str, Any]) -> dict[str, Any]:
    """Returns the sizes. Arrays are drawn by the program that is first to need them."""
    return {"shape": shape_of(item)}


def build(item: dict[str, Any], context: dict[str, Any], name: str) -> Any:
    """Compiles an implementation, forward and with its gradient."""
    from benchmarks.device import kernels
    from benchmarks.device.worker import line

    try:
        module = kernels.module_of("attention", name)
    except Exception as error:
        return {"status": "not there", "reason": line(error)}
    return _compiled(name, module, _inputs(item, context["shape"], draw=False))


def _inputs(item, shape: Shape, draw: bool = True):
    """Returns ({name: array with a gradient}, the other arguments); without `draw`, shapes."""
    import jax
    import jax.numpy as jnp

    from ptm_jax.core.precision import Precision
    from ptm_jax.core.types import Visibility, Window
    from ptm_jax.kernels.attention.arguments import Arguments

    random = np.random.default_rng(0)

    def normal(*size, dtype=jnp.bfloat16):
        if not draw:
            return jax.ShapeDtypeStruct(size, dtype)
        return jax.device_put(random.standard_normal(size, np.float32).astype(dtype))

    x = {name: normal(*shape.of_states) for name in "qkv"}
    case, segments = item["case"], segments_of(item, shape)
    if case == "t5":
        x["distances"] = normal(BUCKETS, shape.heads, dtype=jnp.float32)
    if case in ("shift", "disentangled"):
        reach = shape.length if case == "shift" else min(shape.length, FARTHEST)
        table = 2 * reach + 1, shape.heads, shape.width
        x |= {"queries": normal(*shape.of_states), "table": normal(*table)}
        if case == "disentangled":
            x |= {"keys": normal(*shape.of_states), "key_table": normal(*table)}
    seen = {"q_segments": segments, "k_segments": segments}
    if case == "permutation":
        order = np.tile(np.arange(shape.length, dtype=np.int32), (shape.rows, 1))
        order = random.permuted(order, axis=1)
        seen |= {"q_order": order, "k_order": order, "strict": False}
    if case == "window":
        places = np.tile(np.arange(shape.length, dtype=np.int32), (shape.rows, 1))
        seen["window"] = Window(places, places, np.int32(WINDOW))
    noise = {"dropout": 0.1, "key": jax.random.key(1)} if case == "dropout" else {}
    rows = np.arange(shape.rows, dtype=np.int32)
    precision = Precision("bfloat16")
    scale = 1.0 if case == "t5" else shape.width**-0.5
    args = Arguments(Visibility(**seen), scale, rows=rows, precision=precision, **noise)
    return x, jax.device_put(args) if draw else args


def _filled(args, x):
    """Returns the arguments with the terms that have a gradient."""
    import jax.numpy as jnp

    from ptm_jax.kernels.scores import ByKey, Relative, Scores
    from ptm_jax.nn.attention.relative import t5_bucket

    terms: dict[str, Any] = {}
    if "distances" in x:
        places = jnp.arange(-MOST, MOST + 1)
        terms["distances"] = x["distances"][t5_bucket(places, BUCKETS, MOST, True)].T
    if "queries" in x:
        terms["relative"] = Relative(x["queries"], x["table"])
    if "keys" in x:
        terms["by_key"] = ByKey(x["keys"], x["key_table"])
    return dataclasses.replace(args, scores=Scores(**terms))


def _compiled(name, module, given):
    """Returns the programs (forward, both), or a row with the refusal."""
    import jax
    import jax.numpy as jnp

    from benchmarks.device import kernels

    x, args = given
    filled = jax.eval_shape(lambda x: _filled(args, x), x)
    if reason := module.refusal(x["q"], x["k"], dataclasses.replace(args, scores=filled.scores)):
        return {"status": "refused", "reason": reason}

    def forward(x, args):
        return module.attention(x["q"], x["k"], x["v"], _filled(args, x))

    def loss(x, args):
        return forward(x, args).astype(jnp.float32).sum()

    several = forward, jax.value_and_grad(loss)
    if _dry and name == "pallas":
        return [functools.partial(kernels.in_interpreter, one) for one in several]
    return [kernels.compiled(one, x, args) for one in several]


def measure(item: dict[str, Any], context: dict[str, Any], name: str, programs: Any) -> dict:
    """Times an implementation."""
    from benchmarks.device import clock

    if "given" not in context:
        context["given"] = _inputs(item, context["shape"])
    forward, both = programs
    if _dry and name == "pallas":
        both(*context["given"])
        return {"status": "interpreted"}
    return {
        "status": "timed",
        "forward": clock.of_jax(forward, *context["given"]),
        "both": clock.of_jax(both, *context["given"]),
        "temporary": both.memory_analysis().temp_size_in_bytes,
        "flops": flops(item, context["shape"], segments_of(item, context["shape"])),
    }

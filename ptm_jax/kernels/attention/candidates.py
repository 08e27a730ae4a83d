"""The implementations of attention that a device may select, by classes of shapes.

A new kernel is one value in `CANDIDATES`: a module with `refusal(q, k, args)` and `attention(q, k,
v, args)`, and its name in `core.precision.Impl`. The device checks it against the definition before
it takes it (`kernels.deciding`).
"""

from __future__ import annotations

import dataclasses
import functools
import importlib

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Array, Visibility, Window
from ptm_jax.kernels import deciding
from ptm_jax.kernels.attention import dense
from ptm_jax.kernels.attention.arguments import Arguments
from ptm_jax.kernels.deciding import Candidate, Case
from ptm_jax.kernels.scores import BY_DISTANCE, ByKey, Relative, Scores, Types

LONGEST = 4096  # longer rows are of the class of this length
HEADS, ROWS, TIMED = 8, 16, 1 << 25  # heads, most rows and most scores of what is timed
REACH = 128  # of tables by distance


def _module(name: str):
    return functools.partial(importlib.import_module, f"{__package__}.{name}")


CANDIDATES = (
    Candidate("reference", lambda: dense),
    Candidate("xla", _module("blocked")),
    Candidate("native", _module("cpu"), ("cpu",), "CPUs"),
    Candidate("pallas", _module("tpu"), ("tpu",), "TPUs and Hopper GPUs"),
    Candidate("pallas", _module("gpu"), ("gpu",), "TPUs and Hopper GPUs", untried=("by_key",)),
    Candidate("splash", _module("splash"), ("tpu",), "TPUs"),
    Candidate("cudnn", _module("cudnn"), ("gpu",), "NVIDIA's GPUs"),
    Candidate("tokamax", _module("tokamax"), ("tpu", "gpu"), "TPUs and GPUs", needs="tokamax"),
)


@dataclasses.dataclass(frozen=True)
class Class(deciding.Question):
    """A class of attention: the same answer holds for all rows, heads and lengths in it.

    compute        type of the products             dtype     type of queries, keys and values
    width          of a head                        relative  width of relative queries, 0 without
    queries, keys  lengths, up to a power of two    extras    other terms, masks and dropout
    """

    kind = "attention"
    definition = "reference"

    compute: str
    dtype: str
    width: int
    queries: int
    keys: int
    relative: int = 0
    extras: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The class in words."""
        terms = [*self.extras, *([f"relative {self.relative}"] if self.relative else [])]
        cast = "" if self.dtype == self.compute else f" from {self.dtype}"
        text = (
            f"attention of {self.queries} x {self.keys}, heads of {self.width}, "
            f"{self.compute}{cast}"
        )
        return f"{text}, {' '.join(terms)}" if terms else text

    def cases(self) -> list[Case]:
        """Returns a case of odd lengths, and a larger one of the lengths of the class."""
        odd = [size // 2 + size // 8 + 1 if size > 1 else 1 for size in (self.queries, self.keys)]
        scores = self.queries * self.keys
        heads = max(1, min(HEADS, TIMED // scores))
        rows = max(1, min(ROWS, TIMED // (heads * scores)))
        return [self._case(2, 2, *odd), self._case(rows, heads, self.queries, self.keys)]

    def _case(self, rows: int, heads: int, queries: int, keys: int) -> Case:
        draw = np.random.default_rng(queries * keys)
        precision = Precision(self.compute)
        x, args = self._drawn(draw, rows, heads, queries, keys)
        args = dataclasses.replace(args, precision=precision)
        cotangent = draw.normal(size=x["q"].shape).astype(np.float32)

        def own(tree):
            return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), tree)

        def exact(inputs):
            return (
                own(inputs[0]),
                dataclasses.replace(inputs[1], precision=Precision()),
                inputs[2],
            )

        return Case(
            inputs=(x, args, cotangent),
            call=self._outputs,
            right=lambda inputs: self._outputs(dense, exact(inputs)),
            refusal=lambda module: module.refusal(x["q"], x["k"], _filled(args, x)),
        )

    def _outputs(self, module, inputs):
        """Returns result and gradients. A single query is a step of decoding, which has no
        gradient."""
        x, args, cotangent = inputs

        def loss(x):
            out = module.attention(x["q"], x["k"], x["v"], _filled(args, x))
            return (out.astype(jnp.float32) * cotangent).sum(), out

        if self.queries == 1:
            return {"result": loss(x)[1]}
        grads, out = jax.grad(loss, has_aux=True)(x)
        return {"result": out} | {f"gradient of {name}": grad for name, grad in grads.items()}

    def _with_tables(self, normal, rows, heads, lengths):
        """Returns states of queries and of keys, each with a table of distances."""
        queries, keys = lengths
        x = {}
        if self.relative:
            x |= {"queries": normal(rows, queries, heads, self.relative)}
            x |= {"table": normal(2 * max(lengths) + 1, heads, self.relative)}
        if "by_key" in self.extras:
            x |= {"keys": normal(rows, keys, heads, self.width)}
            x |= {"key_table": normal(2 * min(keys, REACH) + 1, heads, self.width)}
        return x

    def _drawn(self, draw, rows, heads, queries, keys):
        """Returns ({name: inputs with a gradient}, the other arguments): packed rows of two
        documents, the first padded."""

        def normal(*shape, dtype=None):
            return jnp.asarray(draw.normal(size=shape), dtype or self.dtype)

        def integers(limit, length):
            return draw.integers(0, limit, (rows, length)).astype(np.int32)

        def last(x):
            return x[:, -queries:] if queries <= keys else np.resize(x, (rows, queries))

        extras, reach = {*self.extras}, min(keys, REACH)
        of_keys = (rows, keys, heads, self.width)
        x = {"q": normal(rows, queries, heads, self.width), "k": normal(*of_keys)}
        x |= {"v": normal(*of_keys)}
        shapes = {
            "bias": (1, heads, queries, keys),
            "bias of rows": (rows, heads, queries, keys),
            "types": (rows, queries, heads, 2),
            "values": (2 * reach + 1, heads, self.width),
        }
        chosen = (name for name in shapes if name in extras)
        x |= {name.partition(" ")[0]: normal(*shapes[name]) for name in chosen}
        if "distances" in extras:  # float32 in every model: sums along diagonals would be rounded
            x["distances"] = normal(heads, 2 * reach + 1, dtype=jnp.float32)
        x |= self._with_tables(normal, rows, heads, (queries, keys))
        segments = np.sort(1 + integers(2, keys), 1)
        segments[0, keys - keys // 5 :] = 0
        if queries == 1:
            segments = np.where(segments > 0, 1, 0).astype(np.int32)
        seen = {
            "q_segments": np.ones((rows, 1), np.int32) if queries == 1 else last(segments),
            "k_segments": segments,
        }
        if "order" in extras or "strict" in extras:
            places = np.tile(np.arange(keys, dtype=np.int32), (rows, 1))
            seen |= {"q_order": last(places), "k_order": places, "strict": "strict" in extras}
        if "group" in extras:
            seen |= {"q_group": integers(3, queries), "k_group": integers(3, keys)}
        if "window" in extras:
            places = np.arange(keys, dtype=np.int32)[None].repeat(rows, 0)
            seen["window"] = Window(last(places), places, np.int32(max(1, keys // 8)))
        if "allow" in extras:
            seen["allow"] = draw.random((rows, 1, queries, keys)) < 0.7
        marks = Scores(
            types=Types(None, integers(2, queries), integers(2, keys))
            if "types" in extras
            else None,
            q_places=integers(keys, queries) if "places" in extras else None,
            k_places=integers(keys, keys) if "places" in extras else None,
        )
        fields = {"dropout": 0.1, "key": jax.random.key(0)} if "dropout" in extras else {}
        fields |= {"cap": 2.0} if "cap" in extras else {}
        numbers = np.arange(rows, dtype=np.int32)
        return x, Arguments(Visibility(**seen), self.width**-0.5, marks, rows=numbers, **fields)


def _filled(args: Arguments, x: dict[str, Array]) -> Arguments:
    """Returns the arguments with the added terms that have a gradient."""
    terms = {name: x[name] for name in ("bias", "distances", "values") if name in x}
    if "queries" in x:
        terms["relative"] = Relative(x["queries"], x["table"])
    if "keys" in x:
        terms["by_key"] = ByKey(x["keys"], x["key_table"])
    if "types" in x:
        terms["types"] = dataclasses.replace(args.scores.types, scores=x["types"])
    return dataclasses.replace(args, scores=dataclasses.replace(args.scores, **terms))


def module_of(name: str, platform: str):
    """Returns the module of an implementation for a platform."""
    return deciding.module_of(CANDIDATES, name, platform)


def class_of(q: Array, k: Array, args: Arguments) -> Class:
    """Returns the class of these arguments."""
    scores, seen = args.scores, args.visibility
    present = {
        "bias": scores.bias is not None and scores.bias.shape[0] == 1,
        "bias of rows": scores.bias is not None and scores.bias.shape[0] > 1,
        **{name: name in scores.holds for name in ("distances", "by_key", "types", "values")},
        "places": not scores.regular and bool({*BY_DISTANCE} & {*scores.holds}),
        "order": seen.q_order is not None and not seen.strict,
        "strict": seen.q_order is not None and seen.strict,
        "group": seen.k_group is not None,
        "window": seen.window is not None,
        "allow": seen.allow is not None,
        "dropout": args.noise > 0,
        "cap": args.cap is not None,
    }

    def size(length):
        return min(1 << (length - 1).bit_length(), LONGEST)

    wide = 0 if scores.relative is None else scores.relative.queries.shape[-1]
    extras = tuple(name for name, is_present in present.items() if is_present)
    return Class(
        args.precision.compute,
        str(q.dtype),
        q.shape[-1],
        size(q.shape[1]),
        size(k.shape[1]),
        wide,
        extras,
    )


def best(platform: str, q: Array, k: Array, args: Arguments) -> str:
    """Returns the name of the implementation that the attached device takes.

    It is the fastest one that is right there and computes this.
    """
    if q.dtype == jnp.float64:
        return "reference"

    def computes(name):
        return module_of(name, platform).refusal(q, k, args) is None

    return next(
        filter(computes, deciding.ask(class_of(q, k, args), CANDIDATES, platform).seconds),
        "reference",
    )

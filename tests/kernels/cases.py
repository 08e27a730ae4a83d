"""Cases of attention with everything that scores and masks may hold, and the comparison with the
float64 reference."""

import dataclasses

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import Phase, settings

from ptm_jax.core.types import Visibility, Window
from ptm_jax.kernels import reference
from ptm_jax.kernels.scores import ByKey, Relative, Scores, Types

SCORES = ("bias", "distances", "relative", "types", "values")
ALL, MASKS = (*SCORES, "by_key"), ("allow", "group", "window")
EXTRAS = (*ALL, *MASKS)
ORDERS = ("none", "causal", "prefix", "strict")


@dataclasses.dataclass(frozen=True)
class Case:
    """Packed rows, the first one padded. The queries are the last of the keys.

    order      "strict": of a random permutation; "blind": all is padding
    extras     what scores and mask hold; "places": positions in no order; "cap": a soft cap
    shared     "rows": one bias for all rows; "heads": one bias and one table for all heads
    relative   width of the relative queries over that of the heads
    radius     of the window; 0: 1 to 9, by the seed
    """

    queries: int = 40
    keys: int = 40
    rows: int = 2
    heads: int = 2
    width: int = 8
    order: str = "none"
    extras: frozenset = frozenset()
    shared: frozenset = frozenset()
    relative: int = 2
    dropout: float = 0.0
    block: int = 16
    seed: int = 0
    radius: int = 0


def cases(**fields):
    """A strategy of cases; `fields` are lists of values."""
    drawn = {
        "queries": [1, 7, 16, 33],
        "keys": [1, 16, 35],
        "heads": [1, 2],
        "width": [3, 16],
        "order": ORDERS,
    }
    drawn |= {"dropout": [0.0, 0.3], "block": [8, 16]} | fields
    extras = st.frozensets(st.sampled_from(drawn.pop("extras", EXTRAS)), max_size=3)
    shared = st.frozensets(st.sampled_from(["rows", "heads"]))
    fixed = {name: st.sampled_from(values) for name, values in drawn.items()}
    return st.builds(Case, **fixed, extras=extras, shared=shared, seed=st.integers(0, 99))


def grid(count):
    """Settings of hypothesis: the same `count` examples in every run."""
    return settings(
        max_examples=count, derandomize=True, deadline=None, database=None, phases=[Phase.generate]
    )


def visibility(case):
    draw = np.random.default_rng(case.seed)

    def integers(most, length):
        return draw.integers(0, most, (case.rows, length)).astype(np.int32)

    keys = np.sort(1 + integers(2, case.keys), 1)
    keys[0, case.keys - case.keys // 5 :] = 0
    keys = keys * 0 if case.order == "blind" else keys

    def last(x):
        return np.resize(x[:, ::-1], (case.rows, case.queries))[:, ::-1]

    seen = {"q_segments": last(keys), "k_segments": keys}
    if case.order in ORDERS[1:]:
        places = np.tile(np.arange(case.keys, dtype=np.int32), (case.rows, 1))
        places = np.maximum(places - case.keys // 3, 0) if case.order == "prefix" else places
        places = draw.permuted(places, axis=1) if case.order == "strict" else places
        seen |= {"q_order": last(places), "k_order": places, "strict": case.order == "strict"}
    if "group" in case.extras:
        seen |= {"q_group": integers(3, case.queries), "k_group": integers(3, case.keys)}
    if "window" in case.extras:
        places = np.arange(case.keys, dtype=np.int32)[None]
        q_places = np.resize(places[:, ::-1], (1, case.queries))[:, ::-1]
        seen["window"] = Window(q_places, places, np.int32(case.radius or 1 + case.seed % 9))
    if "allow" in case.extras:
        seen["allow"] = draw.random((case.rows, 1, case.queries, case.keys)) < 0.7
    return Visibility(**seen)


def numbers(case):
    """What has a gradient, and the cotangent, in float64."""
    draw = np.random.default_rng(case.seed + 1)

    def normal(*shape):
        return draw.normal(size=shape)

    of_queries, of_keys = (
        (case.rows, case.queries, case.heads),
        (case.rows, case.keys, case.heads, case.width),
    )
    rows, heads = (1 if name in case.shared else vars(case)[name] for name in ("rows", "heads"))
    wide = case.relative * case.width
    parts = {
        "bias": lambda: {"bias": normal(rows, heads, case.queries, case.keys)},
        "distances": lambda: {"distances": normal(case.heads, 15)},
        "relative": lambda: {
            "queries": normal(*of_queries, wide),
            "table": normal(2 * case.keys + 1, heads, wide),
        },
        "by_key": lambda: {
            "keys": normal(*of_keys[:3], wide),
            "key_table": normal(2 * (case.keys // 2) + 1, heads, wide),
        },
        "types": lambda: {"types": normal(*of_queries, 2)},
        "values": lambda: {"values": normal(7, heads, case.width)},
    }
    found = {"q": normal(*of_queries, case.width), "k": normal(*of_keys), "v": normal(*of_keys)}
    for name in ALL:
        found |= parts[name]() if name in case.extras else {}
    return found, normal(*of_queries, case.width)


def scores_of(case, x):
    """The scores of a case with the numbers `x`."""
    draw = np.random.default_rng(case.seed + 2)

    def integers(most):
        return [draw.integers(0, most, (case.rows, length)) for length in (case.queries, case.keys)]

    types, (q_places, k_places) = (
        integers(2),
        integers(case.keys + 3) if "places" in case.extras else (None, None),
    )
    return Scores(
        bias=x.get("bias"),
        distances=x.get("distances"),
        relative=Relative(x["queries"], x["table"]) if "queries" in x else None,
        by_key=ByKey(x["keys"], x["key_table"]) if "keys" in x else None,
        types=Types(x["types"], *types) if "types" in x else None,
        values=x.get("values"),
        q_places=q_places,
        k_places=k_places,
    )


def gradients(attend, case, dtype, rounded=np.float64):
    """{name: result or gradient} of sum(result * cotangent), with all numbers rounded to a type."""
    noise = {
        "dropout": case.dropout,
        "key": jax.random.key(5),
        "rows": np.arange(case.rows, dtype=np.int32) * 8 + 3,
    }

    def loss(x, cotangent):
        given = {"visibility": visibility(case), "scale": 0.4, "scores": scores_of(case, x)}
        given |= {"cap": 1.5} if "cap" in case.extras else {}
        out = attend(x["q"], x["k"], x["v"], **given, **noise)
        return (out * cotangent).sum(), out

    given = jax.tree.map(lambda x: jnp.asarray(x.astype(rounded), dtype), numbers(case))
    grads, out = jax.block_until_ready(jax.jit(jax.grad(loss, has_aux=True))(*given))
    return jax.tree.map(lambda x: np.asarray(x, np.float64), {"out": out} | grads)


def agree(attend, case, tolerance=1e-5, dtype=np.float32, least=1.0):
    """`attend(q, k, v, **given)` equals the reference to `tolerance` of the greatest number (at
    least `least`).

    Queries that see nothing and keys that are not seen have results and gradients of zero. A
    gradient that is zero by cancellation (of the scores of a query with one key) is compared with
    the greatest number of all."""
    rounded = dtype if dtype == jnp.bfloat16 else np.float64
    with jax.enable_x64(True):

        def definition(*args, **given):
            return reference.attention(*args, **given)[0]

        expected = gradients(definition, case, np.float64, rounded)
    found, seen = gradients(attend, case, dtype, rounded), np.asarray(visibility(case).dense())
    for name, right in expected.items():
        assert np.isfinite(found[name]).all()
        error, size = np.abs(found[name] - right).max(), np.abs(right).max()
        size = size if size > 1e-9 else max(np.abs(other).max() for other in expected.values())
        assert error <= tolerance * max(least, size), (name, error)
    for names, met in ((("out", "q"), seen.any((1, 3))), (("k", "v"), seen.any((1, 2)))):
        assert not any(found[name][~met].any() for name in names)
    assert case.order != "blind" or not any(x.any() for x in found.values())

"""The terms that attention adds to q k^T, mostly without an [Lq, Lk] tensor.

    score_ij = scale * (q_i . k_j + relative_ij + by_key_ij + types_ij) + bias_ij + distances_ij
    out_i    = sum_j weights_ij (v_j + values_ij)

d_ij is the position of key j minus the position of query i. Kernels compute all terms but `bias`
for each block of scores from i, j and d_ij. Tables have 2 M + 1 lines for the distances -M .. M;
larger distances are clipped. Each table has its own M.

    T5 (Raffel et al. 2020)             distances: the value of each distance's bucket; its gradient
                                        is by autodiff
    ALiBi (Press et al. 2022)           distances: slope * distance
    Transformer-XL (Dai et al. 2019)    relative: queries q + v, table W_R R_{-d}; u of term (c) is
                                        added to q by the caller
    XLNet (Yang et al. 2019)            as Transformer-XL, with types
    NEZHA (Wei et al. 2019), Shaw et al. 2018   relative: queries q, a sinusoidal or learned table;
                                                values: a similar table
    DeBERTa (He et al. 2021)            relative: queries q, keys of the distances' buckets;
                                        by_key: keys k, queries of the buckets
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from ptm_jax.core.types import Array, record


@record
class Relative:
    """The terms relative_ij = queries_i . table[clip(d_ij, -M, M) + M] of scores.

    queries [B, Lq, H, K], table [2 M + 1, H or 1, K].
    """

    queries: Any
    table: Any


@record
class ByKey:
    """The terms by_key_ij = keys_j . table[clip(d_ij, -M, M) + M] of scores.

    keys [B, Lk, H, K], table [2 M + 1, H or 1, K].
    """

    keys: Any
    table: Any


@record
class Types:
    """The terms of scores that depend on whether two tokens have the same type.

    types_ij = scores[b, i, h, 1 if q_types_i != k_types_j else 0]: scores [B, Lq, H, 2], types [B,
    Lq], [B, Lk] int32.
    """

    scores: Any
    q_types: Any
    k_types: Any


@record
class Scores:
    """The added terms of the module's docstring. All fields may be None.

    bias       [1 or B, 1 or H, Lq, Lk]
    distances  [H, 2 M + 1] float32
    values     [2 M' + 1, 1 or H, K], summed like v with the weights after dropout
    q_places, k_places   positions [1 or B, Lq], [1 or B, Lk] int32; None: consecutive, with the
                         last query at the last key
    """

    bias: Any = None
    distances: Any = None
    relative: Relative | None = None
    by_key: ByKey | None = None
    types: Types | None = None
    values: Any = None
    q_places: Any = None
    k_places: Any = None

    @property
    def regular(self) -> bool:
        """Whether every distance is j - i + (Lq - Lk)."""
        return self.q_places is None

    @property
    def holds(self) -> tuple[str, ...]:
        """The names of the terms that are not None, in a fixed order."""
        names = ("bias", "distances", "relative", "by_key", "types", "values")
        return tuple(name for name in names if vars(self)[name] is not None)

    def between(self, queries: int, keys: int) -> Array:
        """Returns d_ij, [1 or B, Lq, Lk] int32. For reference implementations and small inputs."""
        if self.regular:
            q, k = jnp.arange(keys - queries, keys)[None], jnp.arange(keys)[None]
        else:
            q, k = self.q_places, self.k_places
        return (k[:, None, :] - q[:, :, None]).astype(jnp.int32)


BY_STATE = ("relative", "by_key", "types", "values")
"""The terms that depend on the states, which kernels of plain scores do not compute."""
BY_DISTANCE = ("distances", "relative", "by_key", "values")
"""The terms that depend on the distance."""


def joint(one: Scores, other: Scores) -> Scores:
    """Returns the fields of both.

    Raises ValueError if both set the same field. Positions must agree if both have them.
    """
    names = {*one.holds, *other.holds}
    if twice := [name for name in one.holds if name in other.holds]:
        raise ValueError(f"scores.{twice[0]} is given twice: by the stack and by its attention")
    fields = {name: vars(one if name in one.holds else other)[name] for name in sorted(names)}
    if not {*other.holds} <= {"bias", "types"}:
        one = other
    return Scores(**fields, q_places=one.q_places, k_places=one.k_places)


def most(table: Array, axis: int) -> int:
    """Returns M for a table with 2 M + 1 lines along `axis`."""
    return (table.shape[axis] - 1) // 2


def lines(distance: Array, limit: int) -> Array:
    """Returns the index of the table's line for every distance."""
    return jnp.clip(distance, -limit, limit) + limit


def skew(x: Array, keys: int) -> Array:
    """Selects [.., Lq, Lk] from [.., Lq, Lq + Lk].

    out[i, j] = x[i, Lq - 1 - i + j], the column of distance j - i.

    Each row starts one column before the previous one, so a reshape of the flat array does it
    without a gather.
    """
    *outer, queries, columns = x.shape
    flat = x.reshape(*outer, queries * columns)[..., queries - 1 : queries * columns - 1]
    return flat.reshape(*outer, queries, columns - 1)[..., :keys]


def unskew(x: Array) -> Array:
    """Writes scores [.., Lq, Lk] to the columns of their distances, the transpose of `skew`.

    The columns are in zeros [.., Lq, Lq + Lk].
    """
    *outer, queries, keys = x.shape
    none = [(0, 0)] * len(outer)
    flat = jnp.pad(x, [*none, (0, 0), (0, queries - 1)]).reshape(
        *outer, queries * (queries + keys - 1)
    )
    return jnp.pad(flat, [*none, (queries - 1, 1)]).reshape(*outer, queries, queries + keys)

"""Muon and SOAP: updates of the matrices of layers as matrices.

Which parameters are matrices, and which of their axes are inputs and outputs, follows from the
logical axes that the layers declare (`mesh.axes`). A tensor of several matrices is updated matrix
by matrix: the layers of a stack, and every axis without a name beside named ones (experts; queries,
keys and values in one kernel ("width", None, "heads", "head")). Embeddings, tables, heads, gains
and biases are no matrices here.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from ptm_jax.adapt.base import is_head
from ptm_jax.adapt.parameters.levels import ParameterPath
from ptm_jax.core.recipe import SOAP, Muon
from ptm_jax.core.types import Axes
from ptm_jax.mesh.axes import ParameterAxes
from ptm_jax.training.updates.tensor_rules import Array, Moments, Rule, bias, zeros

_COEFFICIENTS = 3.4445, -4.7750, 2.0315
"""Of the quintic Newton-Schulz iteration (Jordan et al. 2024)."""


class Sides(NamedTuple):
    """The axes of a tensor that are the rows (inputs) and the columns (outputs) of its matrices.
    Other axes number the matrices."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def batch(self, rank: int) -> tuple[int, ...]:
        """Returns the axes that number the matrices."""
        return tuple(axis for axis in range(rank) if axis not in self.inputs + self.outputs)

    def fold(self, x: Array) -> Array:
        """Returns x as matrices [S, inputs, outputs]."""
        groups = self.batch(x.ndim), self.inputs, self.outputs
        sizes = [math.prod(x.shape[axis] for axis in group) for group in groups]
        return x.transpose([axis for group in groups for axis in group]).reshape(sizes)

    def unfold(self, matrices: Array, like: Array) -> Array:
        """Returns matrices [S, inputs, outputs] in the shape of `like`."""
        order = (*self.batch(like.ndim), *self.inputs, *self.outputs)
        moved = matrices.reshape([like.shape[axis] for axis in order])
        return moved.transpose([order.index(axis) for axis in range(like.ndim)])


def sides_of(axes: ParameterAxes, path: ParameterPath, rank: int) -> Sides | None:
    """Returns the sides of a matrix of a layer, or None for another parameter."""
    names = axes.find(path)
    ends = () if path.known is None else (0, path.top)
    if names is None or is_head(path) or (isinstance(path.known, int) and path.known in ends):
        return None
    sides = _split(names)
    if sides is None:
        return None
    first = rank - len(names)
    return Sides(*(tuple(first + axis for axis in side) for side in sides))


def _split(names: Axes) -> Sides | None:
    """Returns the sides of these logical axes: "width" is one of them."""
    if len(names) < 2 or "width" not in names or {"vocab", "words"} & {*names}:
        return None
    at, last = names.index("width"), len(names) - 1
    if at < last:
        return Sides((at,), _named(names, range(at + 1, last + 1)))
    return Sides(_named(names, range(at)), (at,))


def _named(names: Axes, side: range) -> tuple[int, ...]:
    """Returns the axes of a side that have a name, or all of them if none has."""
    return tuple(axis for axis in side if names[axis] is not None) or tuple(side)


def muon(spec: Muon, sides: Sides) -> Rule:
    """Jordan et al. 2024: the orthogonalised Nesterov momentum, by optax's iteration. The factor is
    Liu et al. 2025, arXiv 2502.16982, Eq. 4 (`rms`), or sqrt(max(1, outputs / inputs))."""
    orthogonal = optax.contrib.scale_by_muon(
        ns_coeffs=_COEFFICIENTS,
        ns_steps=spec.iterations,
        beta=0.0,  # the momentum is below: its correction may differ by layer
        nesterov=False,
        weight_dimension_numbers=optax.contrib.MuonDimensionNumbers(*sides),
    )

    def update(g, param, moments, *, decay, axes, t, rate):
        mu = spec.momentum * moments["mu"] + (1.0 - spec.momentum) * g
        ahead = mu / bias(spec.momentum, t)
        if spec.nesterov:
            fresh = (1.0 - spec.momentum) * g / bias(spec.momentum, t)
            ahead = spec.momentum * mu / bias(spec.momentum, t + 1) + fresh
        direction, _ = orthogonal.update(ahead, orthogonal.init(ahead))
        rows, columns = (math.prod(param.shape[axis] for axis in side) for side in sides)
        if spec.rms is None:
            factor = math.sqrt(max(1.0, columns / rows))
        else:
            factor = spec.rms * math.sqrt(max(rows, columns))
        return factor * direction + (spec.weight_decay * decay) * param, {"mu": mu}

    return Rule(zeros("mu"), update)


def soap(spec: SOAP, sides: Sides) -> Rule:
    """Vyas et al. 2024, arXiv 2409.11321, Algorithm 3: Adam in the eigenbasis of Shampoo's
    preconditioners L = E[G G^T] and R = E[G^T G].

    As in nikhilvyas/SOAP: the first gradient only begins L and R, the second moment follows the
    order of the eigenvalues, and bias correction counts the updates after the first. The bases are
    refreshed by one power iteration and QR after each `every` updates. A side longer than `largest`
    is not rotated. L, R and the bases are stored flat, as a copy on each device."""

    def init(param, axes):
        count, *sizes = jax.eval_shape(sides.fold, param).shape
        moments = zeros("mu", "nu")(param, axes)
        for name, size in zip(("left", "right"), sizes, strict=True):
            if size <= spec.largest:
                shape = count * size * size
                moments |= {name: jnp.zeros(shape), f"{name}_basis": jnp.zeros(shape)}
        return moments

    def update(g, param, moments, *, decay, axes, t, rate):
        gradient, t = sides.fold(g), jnp.max(t)
        count, *sizes = gradient.shape
        sized = dict(zip(("left", "right"), sizes, strict=True))
        factors, bases = (
            {
                name: moments[name + end].reshape(count, size, size)
                for name, size in sized.items()
                if name in moments
            }
            for end in ("", "_basis")
        )
        turn = _turned(bases)
        mu = spec.b1 * moments["mu"] + (1.0 - spec.b1) * g
        nu = spec.b2 * sides.fold(moments["nu"]) + (1.0 - spec.b2) * jnp.square(turn(gradient))
        begun, updates = t > 1, jnp.maximum(t - 1, 1.0)
        first, second = (bias(b, updates) for b in (spec.b1, spec.b2))
        scaled = turn(sides.fold(mu)) / first / (jnp.sqrt(nu / second) + spec.eps)
        direction = jnp.where(begun, sides.unfold(turn(scaled, back=True), param), 0.0)
        mu, nu = jnp.where(begun, mu, 0.0), jnp.where(begun, nu, 0.0)
        outer = {
            "left": jnp.einsum("sij,skj->sik", gradient, gradient),
            "right": jnp.einsum("sji,sjk->sik", gradient, gradient),
        }
        factors = {
            name: spec.b2 * factor + (1.0 - spec.b2) * outer[name]
            for name, factor in factors.items()
        }
        bases, nu = _refreshed(factors, bases, nu, t, spec.every)
        new = {"mu": mu, "nu": sides.unfold(nu, param)}
        new |= {name: factor.reshape(-1) for name, factor in factors.items()}
        new |= {f"{name}_basis": basis.reshape(-1) for name, basis in bases.items()}
        decayed = (spec.weight_decay * decay) * param
        return direction + jnp.where(begun, decayed, 0.0), new

    return Rule(init, update)


def _turned(bases: Moments):
    """Returns the function that turns matrices [S, m, n] into the bases, or back."""

    def turn(x: Array, back: bool = False) -> Array:
        if "left" in bases:
            x = jnp.einsum("sik,skj->sij" if back else "ski,skj->sij", bases["left"], x)
        if "right" in bases:
            x = jnp.einsum("sik,sjk->sij" if back else "sik,skj->sij", x, bases["right"])
        return x

    return turn


def _refreshed(
    factors: Moments, bases: Moments, nu: Array, t: Array, every: int
) -> tuple[Moments, Array]:
    """Returns the bases and the second moment after the t-th gradient."""

    def begin(bases, nu):
        # eigh returns ascending eigenvalues.
        return {name: jnp.linalg.eigh(factors[name])[1][..., ::-1] for name in bases}, nu

    def refresh(bases, nu):
        new = {}
        for name, basis in bases.items():
            factor = factors[name]
            sizes = jnp.einsum("ski,skl,sli->si", basis, factor, basis)
            order = jnp.argsort(-sizes, axis=-1)
            basis = jnp.take_along_axis(basis, order[:, None], -1)
            index = order[:, :, None] if name == "left" else order[:, None]
            nu = jnp.take_along_axis(nu, index, 1 if name == "left" else 2)
            new[name] = jnp.linalg.qr(factor @ basis)[0]
        return new, nu

    def keep(bases, nu):
        return bases, nu

    due = (t > 1) & ((t - 1) % every == 0)
    case = jnp.where(t == 1, 1, jnp.where(due, 2, 0)).astype(jnp.int32)
    return jax.lax.switch(case, (keep, begin, refresh), bases, nu)

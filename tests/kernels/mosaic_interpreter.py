"""JAX's Mosaic GPU interpreter on the CPU, with what JAX 0.10.2's lacks and our kernels need.

It simulates memory spaces, copies, barriers, warpgroups and races; products it has for two operands
as they lie in shared memory. `interpreted()` adds products of a turned operand or of one in
registers, accumulators with a value (`pl.run_state`), loads with a layout and casts of layout
(which change nothing but registers), and references that are reshaped. What a kernel does to
numbers is done by numpy, one operation after the other. `absent()` is the reason where JAX differs.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import importlib
import threading

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np

_PLACES = {
    "interpreter": "jax._src.pallas.mosaic_gpu.interpret.jaxpr_interpret",
    "interpret_call": "jax._src.pallas.mosaic_gpu.interpret.interpret_pallas_call",
    "params": "jax._src.pallas.mosaic_gpu.interpret.params",
    "callbacks": "jax._src.pallas.mosaic_gpu.interpret.gpu_callbacks",
    "primitives": "jax._src.pallas.mosaic_gpu.primitives",
    "core": "jax._src.pallas.mosaic_gpu.core",
    "indexing": "jax._src.state.indexing",
    "discharge": "jax._src.state.discharge",
    "states": "jax._src.state.primitives",
    "types": "jax._src.state.types",
    "pjit": "jax._src.pjit",
    "callback": "jax._src.callback",
    "thread_map": "jax._src.pallas.mosaic.interpret.thread_map",
}


def absent() -> str | None:
    """Why kernels cannot be interpreted with this JAX."""
    if jax.__version_info__[:2] != (0, 10):
        return f"the interpreter's inner parts are those of JAX 0.10, this is {jax.__version__}"
    return None


def _divide(a, b):
    return a / b if np.issubdtype(a.dtype, np.floating) else np.trunc(a / b).astype(a.dtype)


def _spread(x, *, shape, broadcast_dimensions, **_):
    sizes = iter(x.shape)
    narrow = [next(sizes) if axis in broadcast_dimensions else 1 for axis in range(len(shape))]
    return np.broadcast_to(x.reshape(narrow), shape)


# Numpy's, where it is one to one: an operation of JAX takes a hundred times as long to begin.
_NUMPY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _divide,
    "rem": np.fmod,
    "neg": np.negative,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shift_right_logical": np.right_shift,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "exp": lambda x, **_: np.exp(x),
    "log": lambda x, **_: np.log(x),
    "select_n": lambda which, *cases: np.where(which, cases[1], cases[0]),
    "convert_element_type": lambda x, *, new_dtype, **_: x.astype(new_dtype),
    "broadcast_in_dim": _spread,
    "reduce_sum": lambda x, *, axes, **_: x.sum(tuple(axes)),
    "reduce_max": lambda x, *, axes, **_: x.max(tuple(axes)),
}
_PARAMETERS = (
    "convert_element_type",
    "broadcast_in_dim",
    "reduce_sum",
    "reduce_max",
    "exp",
    "log",
)  # they want them


class _Cell:
    """An accumulator: a reference to a value of the trace."""

    def __init__(self, value):
        self.value, self.dtype, self.shape = value, value.dtype, value.shape


class _Extra:
    """What is added, with the interpreter's own modules as attributes."""

    def __init__(self):
        for name, place in _PLACES.items():
            setattr(self, name, importlib.import_module(place))
        self.inside, self.io_callback = threading.local(), self.callback.io_callback
        self.whole, self.fori_loop = self.interpret_call.interpret_pallas_call, jax.lax.fori_loop
        self.plain = self.interpreter.JaxprInterpreter.interpret
        self.quiet = (self.core.UntilingTransform, self.core.UnswizzleRef)
        self.ours = {
            self.core.layout_cast_p: self.cast,
            self.primitives.load_p: self.load,
            self.primitives.wgmma_ref_p: self.product,
            self.states.get_p: self.load,
            self.states.swap_p: self.store,
            self.discharge.run_state_p: self.state,
            self.pjit.jit_p: self.call,
            jax.lax.cond_p: self.cond,
            jax.lax.while_p: self.loop,
            jax.lax.scan_p: self.scan,
        }

    def parts(self, transforms):
        """(the indices that the interpreter understands, what is left: reshapes, transposes and
        indices after them)."""
        transforms = [t for t in transforms if not isinstance(t, self.quiet)]
        first = next(
            (i for i, t in enumerate(transforms) if not isinstance(t, self.indexing.NDIndexer)),
            len(transforms),
        )
        return tuple(transforms[:first]), transforms[first:]

    def follow(self, x, rest):
        x = np.asarray(x)
        for transform in rest:
            if isinstance(transform, self.indexing.NDIndexer):
                for axis, index in reversed(list(enumerate(transform.indices))):
                    first = index.start if isinstance(index, self.indexing.Slice) else index
                    if isinstance(index, self.indexing.Slice):
                        x = np.take(x, np.arange(int(first), int(first) + index.size), axis)
                    else:
                        x = np.take(x, int(first), axis)
            elif isinstance(transform, self.types.ReshapeTransform):
                x = x.reshape(transform.shape)
            else:
                x = x.transpose(transform.permutation)
        return x

    def where(self, machine, ref, first):
        return dict(
            device_id=np.int32(0),
            grid_point_coords=machine.grid_point_coords,
            thread_id=machine.thread_id,
            allocation_key_as_array=ref,
            transforms=first,
        )

    def read(self, machine, token, var, ref, transforms):
        if isinstance(ref, _Cell):
            return token, self.follow(ref.value, transforms)
        first, rest = self.parts(transforms)
        kind = self.logical(var, transforms)
        for transform in first:
            kind = transform.transform_type(kind)
        kind = jax.ShapeDtypeStruct(kind.shape, kind.dtype)
        where = self.where(machine, ref, first)
        token, x = self.callbacks.call_get(token=token, result_shape_and_dtype=kind, **where)
        return token, self.follow(x, rest)

    def write(self, machine, token, var, ref, transforms, value):
        first, rest = self.parts(transforms)
        quiet = tuple(t for t in transforms if isinstance(t, self.quiet))
        token, old = self.read(machine, token, var, ref, (*quiet, *first))
        places = self.follow(np.arange(old.size).reshape(old.shape), rest)
        new = np.array(old).reshape(-1)
        new[places.reshape(-1)] = np.asarray(value).reshape(-1)
        new = new.reshape(old.shape)
        kind = jax.ShapeDtypeStruct(old.shape, old.dtype)
        where = self.where(machine, ref, first)
        token, _ = self.callbacks.call_swap(
            token=token, result_shape_and_dtype=kind, val=new, mask=None, **where
        )
        return token, self.follow(old, rest)

    def logical(self, var, transforms):
        """The type of a reference as it was asked for, before tiles and swizzles."""
        quiet = tuple(t for t in transforms if isinstance(t, self.quiet))
        inner = var.aval.inner_aval
        return self.interpreter.apply_unswizzle_and_untile(quiet, inner) if quiet else inner

    def cast(self, machine, eqn, token, invals):
        return token, [invals[0]]

    def load(self, machine, eqn, token, invals):
        ref, *leaves = invals
        transforms = jax.tree.unflatten(eqn.params["tree"], leaves)
        token, x = self.read(machine, token, eqn.invars[0], ref, transforms)
        return token, [x]

    def store(self, machine, eqn, token, invals):
        ref, value, *leaves = invals
        transforms = jax.tree.unflatten(eqn.params["tree"], leaves)
        token, old = self.write(machine, token, eqn.invars[0], ref, transforms, value)
        return token, [old]

    def state(self, machine, eqn, token, invals):
        # Values that the function closes over are cells as well, and lie beside references of
        # memory.
        memory = [isinstance(v.aval, self.types.AbstractRef) for v in eqn.outvars]
        values = [x if is_memory else _Cell(x) for x, is_memory in zip(invals, memory, strict=True)]
        token, _ = machine.interpret(eqn.params["jaxpr"], token, *values)
        return token, [x.value if isinstance(x, _Cell) else x for x in values]

    def call(self, machine, eqn, token, invals):
        return machine.interpret(eqn.params["jaxpr"].jaxpr, token, *invals)

    def product(self, machine, eqn, token, invals):
        acc, a, b, *leaves = invals
        trees = [
            eqn.params[f"{name}_transforms_tree"] or jax.tree.structure([])
            for name in ("acc", "a", "b")
        ]
        _, of_a, of_b = jax.tree.unflatten(jax.tree_util.treedef_tuple(trees), leaves)
        if isinstance(eqn.invars[1].aval, self.types.AbstractRef):
            token, a = self.read(machine, token, eqn.invars[1], a, of_a)
        token, b = self.read(machine, token, eqn.invars[2], b, of_b)
        more = np.asarray(a).astype(np.float32) @ np.asarray(b).astype(np.float32)
        if isinstance(acc, _Cell):
            acc.value = acc.value + more
            return token, []
        token, old = self.read(machine, token, eqn.invars[0], acc, ())
        token, _ = self.write(machine, token, eqn.invars[0], acc, (), old + more)
        return token, []

    def cond(self, machine, eqn, token, invals):
        index, *values = invals
        return machine.interpret(eqn.params["branches"][int(index)].jaxpr, token, *values)

    def loop(self, machine, eqn, token, invals):
        of_test, of_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        test, body, state = (
            invals[:of_test],
            invals[of_test : of_test + of_body],
            invals[of_test + of_body :],
        )
        while machine.interpret(eqn.params["cond_jaxpr"].jaxpr, token, *test, *state)[1][0]:
            token, state = machine.interpret(eqn.params["body_jaxpr"].jaxpr, token, *body, *state)
        return token, state

    def scan(self, machine, eqn, token, invals):
        fixed, carry = eqn.params["num_consts"], eqn.params["num_carry"]
        assert len(invals) == fixed + carry == fixed + len(eqn.outvars), (
            "loops over arrays are not what kernels have"
        )
        state = invals[fixed:]
        for _ in range(eqn.params["length"]):
            token, state = machine.interpret(
                eqn.params["jaxpr"].jaxpr, token, *invals[:fixed], *state
            )
        return token, state

    def interpret(self, machine, jaxpr, token, *values):
        """Line by line, with values: ours here, arithmetic by JAX, memory and barriers by the
        interpreter."""
        found = dict(zip((*jaxpr.constvars, *jaxpr.invars), values, strict=True))

        def literal(v):
            return isinstance(v, jax.extend.core.Literal)

        def read(v):
            return np.asarray(v.val, v.aval.dtype) if literal(v) else found[v]

        for eqn in jaxpr.eqns:
            ours = self.ours.get(eqn.primitive)
            plain = _NUMPY.get(eqn.primitive.name)
            if ours is not None:
                token, out = ours(machine, eqn, token, [read(v) for v in eqn.invars])
            elif plain is not None:
                given = eqn.params if eqn.primitive.name in _PARAMETERS else {}
                with np.errstate(all="ignore"):
                    out = [np.asarray(plain(*(np.asarray(read(v)) for v in eqn.invars), **given))]
                assert out[0].dtype == eqn.outvars[0].aval.dtype, eqn
            else:
                needed = list(dict.fromkeys(v for v in eqn.invars if not literal(v)))
                names = jaxpr.debug_info.with_unknown_names()
                line = jaxpr.replace(
                    constvars=[], invars=needed, outvars=eqn.outvars, eqns=[eqn], debug_info=names
                )
                token, out = self.plain(machine, line, token, *map(read, needed))
            found.update(zip(eqn.outvars, out, strict=True))
        return token, [read(v) for v in jaxpr.outvars]

    def kernel(self, *args, **named):
        """A kernel's run as one callback, operation by operation. Compiled, as it is meant to be,
        threads that wait for each other would use up the few that XLA has for all computations of
        the process."""

        def run(*args):
            self.inside.now = True
            try:
                return [np.asarray(x) for x in self.whole(*map(jnp.asarray, args), **named)]
            finally:
                self.inside.now = False

        out = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in named["out_avals"]]
        return self.io_callback(run, out, *args, ordered=True)

    def threads(self, function, count, token, *args, **_):
        def thread(number):
            self.inside.now = True
            function(np.int32(number), np.int32(0), *args)

        with concurrent.futures.ThreadPoolExecutor(count) as pool:
            for done in concurrent.futures.as_completed(
                [pool.submit(thread, i) for i in range(count)]
            ):
                done.result()
        return token

    def called(self, function, shapes, *args, ordered=False, **named):
        """`io_callback`, which inside of a kernel's run is a call."""
        if getattr(self.inside, "now", False):
            return function(*args, **named)
        return self.io_callback(function, shapes, *args, ordered=ordered, **named)

    def times(self, first, last, body, state, **named):
        """`fori_loop`, which inside of a kernel's run is the walk over the grid."""
        if not getattr(self.inside, "now", False):
            return self.fori_loop(first, last, body, state, **named)
        for i in range(first, last):
            state = body(np.int32(i), state)
        return state


@contextlib.contextmanager
def interpreted(races: bool = False):
    """Kernels traced inside run in the interpreter; `races` asks it to look for unordered reads and
    writes."""
    extra = _Extra()
    changes = [
        (
            extra.interpreter.JaxprInterpreter,
            "interpret",
            lambda self, *args: extra.interpret(self, *args),
        ),
        (extra.interpret_call, "interpret_pallas_call", extra.kernel),
        (extra.thread_map, "thread_map", extra.threads),
        (extra.callback, "io_callback", extra.called),
        (jax.lax, "fori_loop", extra.times),
    ]
    kept = [getattr(place, name) for place, name, _ in changes]
    for place, name, new in changes:
        setattr(place, name, new)
    try:
        with extra.params.force_gpu_interpret_mode(
            extra.params.InterpretGPUParams(detect_races=races)
        ):
            yield extra
    finally:
        for (place, name, _), old in zip(changes, kept, strict=True):
            setattr(place, name, old)
        extra.interpret_call.reset_gpu_interpret_mode_state()


def lowered(function, *arguments) -> str:
    """The program for a GPU of CUDA, without one: a kernel that Mosaic cannot express raises
    here."""
    return jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()


def near(got, wanted, most: float) -> None:
    """Equal to `most` of the largest number, and nowhere NaN; where all are zero, the rounding of
    float32 remains."""
    got, wanted = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
    assert np.isfinite(got).all()
    error = np.abs(got - wanted).max() / max(np.abs(wanted).max(), 1e-4)
    assert error <= most, f"off by {error:.3g} of the largest number"

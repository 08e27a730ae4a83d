"""A model as a graph that runs without this package: StableHLO (`jax.export`) or ONNX (jax2onnx).

The graph reads input_ids and attention_mask [B, L] int32, and token_type_ids where the model has
types, of any B and L; its weights are inside. Quantised weights stay int8 in the file. No kernel of
this package or of one device is in it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.extend.core
import jax.numpy as jnp

from ptm_jax.core import slots, spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.towers import Tower
from ptm_jax.encoders.context import read_languages
from ptm_jax.kernels import integers

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained


Format = Literal["stablehlo", "onnx"]
PLATFORMS = ("cpu", "cuda", "tpu")
OPSET = 18
ONNX = "pip install 'ptm_jax[onnx]' && pip install --no-deps jax2onnx"
"""The extra has what jax2onnx imports. jax2onnx itself names an older orbax-checkpoint than ours,
which it does not import, so that it cannot be in an extra."""


@dataclasses.dataclass(frozen=True)
class Graph:
    """A function (input arrays [B, L] int32) -> tuple of arrays, and the names of both."""

    call: Callable[..., tuple[Any, ...]]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def graph(model: Pretrained, arithmetic: integers.Arithmetic = "int8") -> Graph:
    """Returns the graph of a loaded model.

    `hidden` [B, L, D] and the scores of its heads by name (`logits`: scores of the vocabulary).
    `arithmetic`: of products with quantised weights.

    Raises UserError for a model with a decoder or one that reads other fields than tokens.
    """
    encoder = model.module.encoder
    if (
        model.pair
        or encoder.embeddings is None
        or read_languages(encoder)
        or model.examples.alphabet is not None
    ):
        raise UserError(
            f"{model.system.name} is no encoder of tokens alone; graphs are exported of these"
        )

    def plain(part):
        return dataclasses.replace(part, impl="reference")

    module = spec.respell(model.module, slots.Kernel, plain)
    params = jax.tree.map(jnp.asarray, model.params[model.tower])
    inputs = ("input_ids", "attention_mask", *(("token_type_ids",) if encoder.types else ()))
    heads = {
        **({"logits": model.head} if model.head else {}),
        **{name: name for name in model.scored},
    }
    offset = encoder.embeddings.position is not None and encoder.embeddings.position.counts_tokens

    def call(ids, mask, types=None):
        # Sums of ones in place of jnp.arange: a free axis.
        real = (ids != model.vocab.pad).astype(jnp.int32) if offset else jnp.ones_like(ids)
        places = jnp.maximum(jax.lax.cumsum(real, axis=1) - 1, 0)
        rows = jax.lax.cumsum(jnp.ones_like(ids[:, 0])) - 1
        batch = {"input_ids": ids, "segment_ids": mask, "positions": places, "rows": rows}
        batch |= {} if types is None else {"token_type_ids": types}
        with integers.portable(arithmetic):
            tower = Tower(module, params)
            encoded = tower(batch)

            def read(name):
                return tower.read(name, encoded, batch)

            return encoded.hidden, *(
                read(name).logits() if key == "logits" else read(name)
                for key, name in heads.items()
            )

    return Graph(call, inputs, ("hidden", *heads))


def write(out: str | os.PathLike, model: Pretrained, kind: Format) -> list[Path]:
    """Writes `model.stablehlo` or `model.onnx`, graph.json and the tokenizer's files.
    graph.json has the names. Returns the files.

    Raises UserError as `graph` does, without jax2onnx for "onnx", and for a network that cannot be
    traced with free axes, such as one whose table of positions follows the length (XLNet)."""
    from ptm_jax.data.tokenizers.published import write_published
    from ptm_jax.runs.writing import drafted

    made = graph(model, "int8" if kind == "stablehlo" else "float32")
    try:
        data = {"stablehlo": stablehlo, "onnx": onnx}[kind](made, model.limit)
    except UserError:
        raise
    except Exception as error:  # of a trace whose axes are free, or of jax2onnx
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise UserError(
            f"{model.system.name} has no {kind} graph of any batch and length ({reason[:100]}); "
            "export it for Transformers, without --format"
        ) from error
    with drafted(out) as draft:
        draft.mkdir(parents=True)
        (draft / f"model.{kind}").write_bytes(data)
        facts = {"inputs": list(made.inputs), "outputs": list(made.outputs), "limit": model.limit}
        facts["labels"] = list(model.examples.labels)
        (draft / "graph.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf8")
        if model.tokenizer is not None:
            write_published(model.tokenizer, draft)
    return sorted(file for file in Path(out).absolute().rglob("*") if file.is_file())


def stablehlo(made: Graph, limit: int | None = None) -> bytes:
    """Returns the serialized program for CPUs, GPUs and TPUs, any B and L.
    `jax.export.deserialize` reads it."""
    within = () if limit is None else (f"l <= {limit}",)
    shape = jax.export.symbolic_shape("b, l", constraints=within)
    shapes = [jax.ShapeDtypeStruct(shape, jnp.int32) for _ in made.inputs]
    return jax.export.export(jax.jit(made.call), platforms=PLATFORMS)(*shapes).serialize()


def onnx(made: Graph, limit: int | None = None) -> bytes:
    """Returns the bytes of an ONNX model with the axes B and L free.
    Raises UserError without jax2onnx."""
    del limit
    if importlib.util.find_spec("jax2onnx") is None:
        raise UserError(f"--format onnx needs jax2onnx; install it: {ONNX}")
    from jax2onnx import to_onnx

    def layers(*arrays):
        with jax.disable_jit():  # a loop over layers becomes the layers: runtimes optimise no loops
            return made.call(*arrays)

    shape = jax.export.symbolic_shape("B, L")
    shapes = [jax.ShapeDtypeStruct(shape, jnp.int32) for _ in made.inputs]
    # Traced before: while it traces, jax2onnx replaces functions of jax.numpy by its own, which
    # take fewer arguments.
    traced = jax.extend.core.jaxpr_as_fun(jax.make_jaxpr(layers)(*shapes))
    names = {"input_names": list(made.inputs), "output_names": list(made.outputs)}
    with _kept(jnp, jnp.linalg, jax.lax, jax.nn):
        return to_onnx(traced, shapes, opset=OPSET, **names).SerializeToString()


@contextlib.contextmanager
def _kept(*modules: Any) -> Iterator[None]:
    """Puts the functions of modules back: jax2onnx leaves some of its own there, such as
    jnp.cumsum."""
    before = [dict(vars(module)) for module in modules]
    try:
        yield
    finally:
        for module, functions in zip(modules, before, strict=True):
            changed = {
                name: value
                for name, value in functions.items()
                if vars(module).get(name) is not value
            }
            vars(module).update(changed)

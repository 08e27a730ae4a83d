"""BERT, GPT-2 and an LSTM for the benchmarks.
They are systems of the catalogue at given sizes, with random tokens."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core import spec
from ptm_jax.core.precision import Precision
from ptm_jax.core.recipe import AdamW, Constant, Phase, Recipe
from ptm_jax.core.system import System
from ptm_jax.core.towers import Tower
from ptm_jax.core.towers import init as init_towers
from ptm_jax.data.rows.examples import Packed
from ptm_jax.objectives.text.language import MLM
from ptm_jax.systems.recurrent import lstm as recurrent
from ptm_jax.systems.transformers import bert_gpt as transformers
from ptm_jax.training.steps.flops import flops
from ptm_jax.training.steps.step import Program, program

UNROLLED = "all layers unrolled on a CPU and a GPU, scanned elsewhere"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of a network and its batch, and of the matrix product [gemm, gemm] used as roofline."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    vocab: int = 30522
    batch: int = 8
    length: int = 128
    gemm: int = 2048

    def shapes(self) -> dict[str, int]:
        """Returns the sizes of the network and the batch."""
        return {
            name: vars(self)[name]
            for name in ("layers", "width", "heads", "vocab", "batch", "length")
        }


def bert(sizes: Sizes, precision: str) -> System:
    """Returns BERT with only the MLM head, AdamW, dropout 0.1 and no gradient clipping."""
    vocab = dataclasses.replace(transformers.BERT_UNCASED, size=sizes.vocab)
    system = transformers.bert("bert", sizes.layers, sizes.width, sizes.heads, vocab)
    tower = system.towers["main"]
    recipe = Recipe(
        phases=(Phase(steps=1_000_000, batch=sizes.batch, length=sizes.length),),
        lr=1e-4,
        optimizer=AdamW(),
        schedule=Constant(),
        clip=None,
    )
    system = dataclasses.replace(
        system,
        towers={"main": tower.clone(heads={"mlm": tower.heads["mlm"]})},
        examples=Packed(),
        objective=MLM(),
        recipe=recipe,
    )
    return spec.respell(system, Precision, Precision(precision))


def tokens(sizes: Sizes, seed: int = 0) -> np.ndarray:
    """Returns random ids without special tokens, [B, L]."""
    low = min(1000, sizes.vocab // 2)
    return (
        np.random.default_rng(seed)
        .integers(low, sizes.vocab, (sizes.batch, sizes.length))
        .astype(np.int32)
    )


def rows(sizes: Sizes) -> dict[str, jax.Array]:
    """Returns a batch of full rows, one document each, with the fields of the input stream."""
    ids = tokens(sizes)
    places = np.broadcast_to(np.arange(sizes.length, dtype=np.int32), ids.shape)
    fields = {"input_ids": ids, "segment_ids": np.ones_like(ids), "positions": places}
    fields["rows"] = np.arange(sizes.batch, dtype=np.int32)
    return {name: jnp.asarray(value) for name, value in fields.items()}


@dataclasses.dataclass(frozen=True)
class Training:
    """A training step ready to run: its program, jitted step, initial state, and FLOPs per step."""

    program: Program
    step: Any
    state: Any
    flops: float


def training(system: System, batch: dict[str, jax.Array], state: Any = None) -> Training:
    """Returns the training step of a system for a batch.

    `state` may be the state of another system with the same parameters; it is copied.
    """
    work = program(system, 0)
    abstract = jax.eval_shape(work.init, batch)
    operations = flops(work.defined().step, abstract, batch)
    state = jax.jit(work.init)(batch) if state is None else jax.tree.map(jnp.copy, state)
    return Training(work, jax.jit(work.step, donate_argnums=0), state, operations)


def corrupted(work: Program, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Returns the corrupted batch."""
    return jax.jit(work.system.corruption)(jax.random.key(1), batch)


def gpt2(sizes: Sizes, precision: str) -> Tower:
    """Returns GPT-2 with random weights."""
    system = transformers.gpt2("gpt2", sizes.layers, sizes.width, sizes.heads)
    vocab = dataclasses.replace(
        transformers.GPT2, size=sizes.vocab, bos=sizes.vocab - 1, eos=sizes.vocab - 1
    )
    system = spec.respell(spec.respell(system, type(vocab), vocab), Precision, Precision(precision))
    return Tower(system.towers["main"], _weights(system.towers["main"], sizes.length))


def lstm(sizes: Sizes, precision: str) -> Tower:
    """Returns a language model of `layers` of LSTM (Zaremba et al. 2014) with random weights."""
    system = recurrent.lstm("lstm", sizes.width, 0.05, 0.0, (1, 1), divisor=1.0, clip=5.0)
    layers = system.towers["main"].encoder.layers[:1] * sizes.layers
    vocab = dataclasses.replace(recurrent.PENN, size=sizes.vocab, eos=sizes.vocab - 1)
    system = spec.respell(spec.with_field(system, "layers", layers), type(vocab), vocab)
    tower = spec.respell(system, Precision, Precision(precision)).towers["main"]
    return Tower(tower, _weights(tower, sizes.length))


WRITERS = {"gpt2": gpt2, "lstm": lstm}


@functools.cache
def _weights(module: Any, length: int) -> Any:
    batch = {"input_ids": jnp.zeros((1, length), jnp.int32)}
    return jax.jit(lambda key: init_towers({"main": module}, key, batch)["main"])(jax.random.key(0))

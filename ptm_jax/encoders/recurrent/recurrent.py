"""Recurrent language models: layers of LSTM or GRU over embeddings.

Zaremba et al. 2014, arXiv 1409.2329.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Batch, Encoded, record
from ptm_jax.encoders.context import Embedded, context_of
from ptm_jax.encoders.encoder_traits import Reversible
from ptm_jax.nn.layers import Context, Dropout
from ptm_jax.nn.recurrent.recurrence import Recurrent, reads_both
from ptm_jax.objectives.text.text_traits import LastStates, TwoDirections


@record
class States:
    """The `State` of every layer, carried between rows of a stream and steps of decoding."""

    layers: tuple[Any, ...]

    def take(self, rows) -> States:
        """Returns the states of the given rows [R] of the batch."""
        return jax.tree.map(lambda leaf: leaf[rows], self)


class LSTMEncoder(Embedded, LastStates, Reversible):
    """Embeddings and `layers` of `nn.recurrent`: all of one direction, or `Bidirectional`.

    Each document of a packed row begins with a state of zeros. The first document of a row
    continues from `batch["carry"]` if both have the same segment number (truncated back-propagation
    through time); `stateful=False` turns this off. `dropout` applies to the embeddings and to the
    states of each layer, not to the recurrent products; `input_dropout` and `output_dropout`
    replace it for the embeddings and for the last layer. `locked`: all tokens of a row lose the
    same units (Gal and Ghahramani 2016). `bptt`: the states pass no gradient from one piece of so
    many tokens to the piece before (BPT3C: Howard and Ruder 2018, section 3.3).

    `extra` has

        states      last `States` of the layers; with `ends`, for each token the states after its
                    document
        embedded    [B, L, E] word vectors
        first       states of the first layer
        last        states of the last layer before dropout
    """

    embed: nn.Module
    layers: tuple[nn.Module, ...]
    dropout: float = 0.0
    input_dropout: float | None = None
    output_dropout: float | None = None
    stateful: bool = True
    locked: bool = False
    bptt: int | None = None

    @property
    def direction(self) -> slots.Direction:
        if any(map(reads_both, self.layers)):
            return "bidirectional"
        return "backward" if self.layers[0].backward else "causal"

    def level_of(self, path: str) -> int | None:
        part = path.split("/")[1]
        return 1 + int(part.removeprefix("layers_")) if part.startswith("layers_") else 0

    @property
    def width(self) -> int:
        """Width of the states."""
        return self.layers[-1].width

    @property
    def writes(self) -> bool:
        return self.direction == "causal"

    def empty_memory(self, batch: int) -> States | None:
        return self.empty_cache(batch, 0) if self.stateful and self.writes else None

    def empty_cache(self, batch: int, length: int, source: int = 0) -> States:
        del length, source
        return States(tuple(layer.empty_state(batch) for layer in self.layers))

    def without_memory(self) -> LSTMEncoder:
        return dataclasses.replace(self, stateful=False)

    def turned(self) -> LSTMEncoder:
        if self.direction == "bidirectional":
            raise UserError("this LSTM reads both directions; a backward model has one")
        layers = tuple(
            dataclasses.replace(layer, backward=not layer.backward) for layer in self.layers
        )
        return dataclasses.replace(self, layers=layers)

    def _read(
        self, layer: nn.Module, x, segments, state: Any, context: Context, **options: bool
    ) -> tuple[Any, Any]:
        """Returns (h [B, L, P], the last state) of a layer.

        With `bptt` it reads the row piece by piece.
        """
        if self.bptt is None or x.shape[1] <= self.bptt:
            return layer(x, segments, state, context, **options)
        length, size = x.shape[1], self.bptt

        def pieces(field):
            return jnp.moveaxis(field.reshape(len(x), -1, size, *field.shape[2:]), 1, 0)

        def padded(field):
            return jnp.pad(field, ((0, 0), (0, -length % size)) + ((0, 0),) * (field.ndim - 2))

        def step(layer, state, piece):
            h, state = layer(*piece, jax.lax.stop_gradient(state), context)
            return state, h

        options = {"variable_broadcast": "params", "split_rngs": {"params": False, "dropout": True}}
        scan = nn.scan(step, reverse=layer.backward, **options)
        state = layer.empty_state(len(x)) if state is None else state
        state, states = scan(layer, state, (pieces(padded(x)), pieces(padded(segments))))
        return jnp.moveaxis(states, 0, 1).reshape(len(x), -1, states.shape[-1])[:, :length], state

    @nn.compact
    def __call__(
        self, batch: Batch, train: bool = False, cache: States | None = None, ends: bool = False
    ) -> Encoded:
        context = context_of(batch, self.direction, train)
        rates = [self.input_dropout, *[self.dropout] * (len(self.layers) - 1), self.output_dropout]
        drops = [Dropout(self.dropout if rate is None else rate, self.locked) for rate in rates]
        before = batch.get("carry") if cache is None and self.stateful else cache
        before = States((None,) * len(self.layers)) if before is None else before
        x, last = drops[0](self.embed(batch, context), context), []
        layers, options = [x], {"ends": True} if ends else {}
        for layer, state, drop in zip(self.layers, before.layers, drops[1:], strict=True):
            raw, state = self._read(
                layer, x, context.visibility.k_segments, state, context, **options
            )
            x = drop(raw, context)
            layers.append(x)
            last.append(state)
        alike = all(states.shape == x.shape for states in layers)
        last = States(tuple(last))
        cache, memory = (
            last if on else None for on in (self.writes, self.writes and self.stateful)
        )
        extra = {"states": last, "embedded": layers[0], "first": layers[1], "last": raw}
        return Encoded(x, jnp.stack(layers) if alike else None, None, memory, cache, extra)


class BiLanguageLSTM(Embedded, TwoDirections):
    """ELMo's two language models over one token layer (Peters et al. 2018, section 3.1).

    `right` reads a row from the left, `left` from the right. Each is a stack of layers that never
    sees the other one.

    `extra` has the last states "forward" and "backward" [B, L, P], which the objective `BiLM`
    reads. "words" equals "forward", for a vocabulary head. `hidden` and `layers` concatenate both
    directions, [B, L, 2 P]; the token layer is repeated. `residual`: a layer above the first adds
    its input to its output. `dropout` applies to the inputs of each layer and to the last output,
    with separate masks for each direction.

    Both directions continue from `batch["carry"]`, as in allenai/bilm-tf and AllenNLP. `right`
    reads the first document of a row from the last state of the previous row. `left` reads the last
    document, from its end, from the state at the previous row's first token. The segment numbers
    must be equal; `stateful=False` turns this off.
    """

    embed: nn.Module
    right: tuple[Recurrent, ...]
    left: tuple[Recurrent, ...]
    dropout: float = 0.0
    residual: bool = True
    stateful: bool = True

    direction = "bidirectional"

    def level_of(self, path: str) -> int:
        way, _, layer = path.split("/")[1].partition("_")
        return 1 + int(layer) if way in ("right", "left") else 0

    def empty_memory(self, batch: int) -> States | None:
        empty = tuple(layer.empty_state(batch) for layer in (*self.right, *self.left))
        return States(empty) if self.stateful else None

    def without_memory(self) -> BiLanguageLSTM:
        return dataclasses.replace(self, stateful=False)

    @nn.compact
    def __call__(self, batch: Batch, train: bool = False) -> Encoded:
        context = context_of(batch, "bidirectional", train)
        before = batch.get("carry") if self.stateful else None
        states = (
            [None] * (len(self.right) + len(self.left)) if before is None else list(before.layers)
        )
        x, last, ways = self.embed(batch, context), [], []
        for stack in (self.right, self.left):
            outputs = [x]
            for number, layer in enumerate(stack):
                inputs = Dropout(self.dropout)(outputs[-1], context)
                y, state = layer(inputs, context.visibility.k_segments, states[len(last)], context)
                outputs.append(inputs + y if self.residual and number else y)
                last.append(state)
            ways.append(outputs)
        layers = [jnp.concatenate(both, -1) for both in zip(*ways, strict=True)]
        alike = all(states.shape == layers[-1].shape for states in layers)
        ahead, behind = (Dropout(self.dropout)(outputs[-1], context) for outputs in ways)
        memory = States(tuple(last)) if self.stateful else None
        every = jnp.stack(layers) if alike else None
        return Encoded(
            layers[-1],
            every,
            None,
            memory,
            extra={"forward": ahead, "backward": behind, "words": ahead},
        )

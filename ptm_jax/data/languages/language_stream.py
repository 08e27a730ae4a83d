"""Batches of one language each: XLM's draw (Lample and Conneau 2019, section 3.1)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.slots import Examples
from ptm_jax.data.corpora.store import Corpus
from ptm_jax.data.corpora.stream import Stream
from ptm_jax.data.languages.mix import Mixture, Part
from ptm_jax.data.rows.examples import Fields


def opened(corpus: Corpus, split: str, examples: Examples, **options: Any) -> Stream:
    """Returns the batches of examples (the options are those of `Stream`)."""
    if not (isinstance(examples, Mixture) and examples.batches):
        return Stream(corpus, split, examples, **options)
    parts = examples.parts(corpus, split)
    if len(parts) == 1:
        return Stream(parts[0].corpus, split, parts[0].examples, **options)
    return LanguageStream(parts, split, **options)


class LanguageStream(Stream):
    """The streams of several languages; a batch is of one, drawn by the shares from (seed, number
    of the batch).

    With `epochs` the languages come one after the other.
    """

    def __init__(self, parts: list[Part], split: str, *, seed: int, **options: Any):
        if options.get("common") is not None:
            raise UserError(
                "batches of one language do not go on in the next phase; set continues to False "
                "in the phases"
            )
        self._seed, self._endless = seed, options.get("epochs") is None
        self._shares = np.array([part.share for part in parts])
        self._streams = {
            part.name: Stream(part.corpus, split, part.examples, seed=seed, **options)
            for part in parts
        }
        self._done = 0

    def __next__(self) -> Fields:
        streams = [*self._streams.values()]
        if self._endless:
            rng = np.random.default_rng((self._seed, self._done, 3))
            batch = next(streams[int(rng.choice(len(streams), p=self._shares))])
        else:
            batch = next((batch for batch in (next(s, None) for s in streams) if batch), None)
            if batch is None:
                raise StopIteration
        self._done += 1
        return batch

    def state(self) -> dict[str, Any]:
        """Returns the number of batches, and the state of each language."""
        streams = {name: stream.state() for name, stream in self._streams.items()}
        return {"batches": self._done, "seed": self._seed, "streams": streams}

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from `state`. Raises UserError for a state of other languages."""
        if {*state.get("streams", {})} != {*self._streams} or state.get("seed") != self._seed:
            raise UserError(
                "the position was saved by a stream of other languages or another seed; restore "
                "those settings"
            )
        for name, stream in self._streams.items():
            stream.restore(state["streams"][name])
        self._done = int(state["batches"])

    def close(self) -> None:
        """Stops prefetching."""
        for stream in self._streams.values():
            stream.close()

    def __del__(self):
        """The streams close themselves."""

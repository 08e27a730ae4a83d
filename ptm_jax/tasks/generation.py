"""How to decode, as a value, and what the decoders share: the options, the answers, the rules on scores, buckets."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from ptm_jax.core.types import Array, record
from ptm_jax.tasks import logits as rules

Strategy = Literal["greedy", "sample", "beam"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generation:
    """How to decode. Values other than the defaults switch a rule on (`tasks.logits` has their exact forms).

    max_new_tokens      longest answer, its `eos` included; at least `min_new_tokens` come before `eos`
    strategy            None: "beam" where beams > 1, "sample" where a sampling option is given, else "greedy"
    answers             how many per prompt: the best of a beam, or independent samples
    beams, length_penalty   width of the beam, and alpha of ((5 + n) / 6)^alpha (GNMT, Wu et al. 2016)
    temperature, top_k, top_p   of sampling, applied in this order
    repetition_penalty, no_repeat_ngram   over prompt and answer; 1.0 and 0 are off
    forced_bos, forced_eos   ids of the first token of every answer, and of the last where `max_new_tokens` is reached
    """

    max_new_tokens: int = 64
    min_new_tokens: int = 0
    strategy: Strategy | None = None
    answers: int = 1
    beams: int = 1
    length_penalty: float = 0.6
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float = 1.0
    no_repeat_ngram: int = 0
    forced_bos: int | None = None
    forced_eos: int | None = None

    def __post_init__(self):
        for name, least in (("max_new_tokens", 1), ("min_new_tokens", 0), ("answers", 1), ("beams", 1), ("top_k", 1)):
            value = getattr(self, name)
            if value is not None and (value < least or value != int(value)):
                raise ValueError(f"{name} is {value}; it must be a whole number of at least {least}")
        for name in ("temperature", "repetition_penalty"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0 (greedy needs no temperature)")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; it must be a probability in (0, 1]")
        if self.no_repeat_ngram < 0:
            raise ValueError(f"no_repeat_ngram is {self.no_repeat_ngram}; it must be 0 (off) or the length of a run")
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(f"min_new_tokens {self.min_new_tokens} is more than max_new_tokens {self.max_new_tokens}")
        self._check_strategy()

    def _check_strategy(self) -> None:
        if self.strategy not in (None, "greedy", "sample", "beam"):
            raise ValueError(f"strategy is {self.strategy!r}; it must be 'greedy', 'sample' or 'beam'")
        if self._samples and self.kind != "sample":
            raise ValueError(f"temperature, top_k and top_p are of sampling; the strategy is {self.kind!r}")
        if self.beams > 1 and self.kind != "beam":
            raise ValueError(f"beams is {self.beams}; the strategy is {self.kind!r}, which has none")
        if self.answers > (self.beams if self.kind == "beam" else 1) and self.kind != "sample":
            raise ValueError(f"{self.answers} answers need sampling, or as many beams")

    @property
    def _samples(self) -> bool:
        return self.temperature != 1.0 or self.top_k is not None or self.top_p is not None

    @property
    def kind(self) -> Strategy:
        """The strategy, inferred from the options where it is not given."""
        return self.strategy or ("beam" if self.beams > 1 else "sample" if self._samples else "greedy")

    def shape(self) -> Generation:
        """What the compiled program depends on: numbers that it is given at run time are set to placeholders."""
        return Generation(
            strategy=self.kind,
            answers=self.answers,
            beams=self.beams,
            max_new_tokens=bucket(self.max_new_tokens, least=32),
            min_new_tokens=min(self.min_new_tokens, 1),
            top_k=None if self.top_k is None else 1,
            top_p=None if self.top_p is None else 1.0,
            repetition_penalty=1.0 if self.repetition_penalty == 1.0 else 2.0,
            no_repeat_ngram=self.no_repeat_ngram,
            forced_bos=self.forced_bos,
            forced_eos=self.forced_eos,
        )

    def numbers(self) -> dict[str, np.ndarray]:
        """What the compiled program is given at run time."""
        whole = {name: np.int32(getattr(self, name) or 0) for name in ("max_new_tokens", "min_new_tokens", "top_k")}
        real = ("length_penalty", "temperature", "top_p", "repetition_penalty")
        return {**whole, **{name: np.float32(getattr(self, name) or 0) for name in real}}


@record
class Decoded:
    """tokens [B, A, T] int32 (A answers, best first), lengths [B, A] with the `eos` where there is one, scores [B, A].

    A score is the sum of the log-probabilities of an answer's tokens, of a beam's divided by the length penalty.
    """

    tokens: Any
    lengths: Any
    scores: Any


def bucket(size: int, least: int = 1, most: int | None = None) -> int:
    """The power of two, at least `least`, that holds `size`; never more than `most`."""
    power = max(least, 1 << max(0, size - 1).bit_length())
    return power if most is None else min(power, most)


def adjusted(
    shape: Generation, numbers: Mapping[str, Array], eos: int | None, logits, tokens, used, t, prompt: int
) -> Array:
    """Scores [R, V] under the rules that are on; `t` tokens of the answer are there, after `prompt` slots."""
    if shape.repetition_penalty != 1.0:
        logits = rules.repetition_penalty(logits, tokens, used, numbers["repetition_penalty"])
    if shape.no_repeat_ngram:
        logits = rules.no_repeat_ngram(logits, tokens, used, prompt + t, shape.no_repeat_ngram)
    if shape.min_new_tokens and eos is not None:
        logits = rules.forbid(logits, eos, t < numbers["min_new_tokens"])
    if shape.forced_bos is not None:
        logits = rules.force(logits, shape.forced_bos, t == 0)
    if shape.forced_eos is not None:
        logits = rules.force(logits, shape.forced_eos, t == numbers["max_new_tokens"] - 1)
    return logits

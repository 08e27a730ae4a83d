"""Options of decoding, and the common parts of greedy search, sampling and beam search.
The parts are loop, rules, results and buckets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import numpy as np

from ptm_jax.core.types import Array, record
from ptm_jax.inference.decoding import logits as rules

Strategy = Literal["greedy", "sample", "beam"]
LARGEST = 10_000
"""Beams, and answers to a prompt, at most."""
LENGTH_RULES = ("gnmt", "power")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generation:
    """Options of decoding.
    Values other than the defaults activate a rule (definitions: `inference.decoding.logits`).

    max_new_tokens      maximum length of an answer including `eos`; at least `min_new_tokens` come
                        before `eos`
    strategy            None: "beam" if beams > 1, "sample" if a sampling option is given, else
                        "greedy"
    answers             number per prompt: the best of a beam, or independent samples
    beams, length_penalty   width of the beam, and alpha of its length rule
    length_rule         divisor of the log-probability of n tokens: "gnmt" is ((5 + n) / 6)^alpha
                        (Wu et al. 2016, Eq. 14), "power" is n^alpha, as in `transformers`
    early_stopping      end of a beam search (`inference.decoding.beams`): "never", False or True,
                        as in `transformers`
    temperature, top_k, top_p   of sampling, applied in this order
    repetition_penalty, no_repeat_ngram   over prompt and answer; 1.0 and 0 are off
    bad_words           ids of each word that no answer has (`bad_words_ids` of `transformers`): the
                        last token of a word is forbidden after the others; a word that is an end
                        token alone does not count
    forced_bos, forced_eos   ids of the first token of every answer, and of the last one at
                             `max_new_tokens`: one of several, if several are given
    """

    max_new_tokens: int = 64
    min_new_tokens: int = 0
    strategy: Strategy | None = None
    answers: int = 1
    beams: int = 1
    length_penalty: float = 0.6
    length_rule: Literal["gnmt", "power"] = "gnmt"
    early_stopping: bool | Literal["never"] = "never"
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float = 1.0
    no_repeat_ngram: int = 0
    bad_words: tuple[tuple[int, ...], ...] = ()
    forced_bos: int | None = None
    forced_eos: int | tuple[int, ...] | None = None

    def __post_init__(self):
        fields = vars(self)
        for name, least in (
            ("max_new_tokens", 1),
            ("min_new_tokens", 0),
            ("answers", 1),
            ("beams", 1),
            ("top_k", 1),
        ):
            value = fields[name]
            if value is not None and (value < least or value != int(value)):
                raise ValueError(
                    f"{name} is {value}; it must be a whole number of at least {least}"
                )
        for name in ("temperature", "repetition_penalty"):
            if not 0 < fields[name] < float("inf"):
                raise ValueError(
                    f"{name} is {fields[name]}; it must be above 0 (greedy needs no temperature)"
                )
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; it must be a probability in (0, 1]")
        if max(self.beams, self.answers) > LARGEST:
            raise ValueError(
                f"{self.beams:,} beams, {self.answers:,} answers; at most {LARGEST:,} are searched"
            )
        if self.no_repeat_ngram < 0:
            raise ValueError(
                f"no_repeat_ngram is {self.no_repeat_ngram}; it must be 0 (off) or the "
                "length of a run"
            )
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(
                f"min_new_tokens {self.min_new_tokens} is more than max_new_tokens "
                f"{self.max_new_tokens}"
            )
        for word in self.bad_words:
            if not word or not all(isinstance(i, int | np.integer) and i >= 0 for i in word):
                raise ValueError(f"bad_words has {word!r}; a word is a list of ids, at least one")
        self._check_strategy()

    def _check_strategy(self) -> None:
        if self.strategy not in (None, "greedy", "sample", "beam"):
            raise ValueError(
                f"strategy is {self.strategy!r}; it must be 'greedy', 'sample' or 'beam'"
            )
        if self._samples and self.kind != "sample":
            raise ValueError(
                f"temperature, top_k and top_p need sampling; the strategy is {self.kind!r}"
            )
        if self.beams > 1 and self.kind != "beam":
            raise ValueError(
                f"beams is {self.beams}; the strategy is {self.kind!r}, which has none"
            )
        if self.answers > (self.beams if self.kind == "beam" else 1) and self.kind != "sample":
            raise ValueError(f"{self.answers} answers need sampling, or as many beams")
        if self.length_rule not in LENGTH_RULES:
            raise ValueError(
                f"length_rule is {self.length_rule!r}; it must be "
                f"{' or '.join(map(repr, LENGTH_RULES))}"
            )
        if self.early_stopping != "never" and not isinstance(self.early_stopping, bool):
            raise ValueError(
                f"early_stopping is {self.early_stopping!r}; it must be True, False or 'never'"
            )

    @property
    def _samples(self) -> bool:
        return self.temperature != 1.0 or self.top_k is not None or self.top_p is not None

    @property
    def kind(self) -> Strategy:
        """The strategy, inferred from the other options if it is None."""
        return self.strategy or (
            "beam" if self.beams > 1 else "sample" if self._samples else "greedy"
        )

    def shape(self) -> Generation:
        """Returns the static options of the compiled program.
        Numbers that are its arguments become placeholders."""
        unused = {} if self.kind == "beam" else {"length_rule": "gnmt", "early_stopping": "never"}
        return dataclasses.replace(
            self,
            **unused,
            strategy=self.kind,
            max_new_tokens=bucket(self.max_new_tokens, least=32),
            min_new_tokens=min(self.min_new_tokens, 1),
            top_k=None if self.top_k is None else 1,
            top_p=None if self.top_p is None else 1.0,
            bad_words=((0,),) if self.bad_words else (),
            repetition_penalty=1.0 if self.repetition_penalty == 1.0 else 2.0,
            length_penalty=1.0,
            temperature=1.0,
        )

    def numbers(self) -> dict[str, np.ndarray]:
        """Returns the options that are arguments of the compiled program."""
        fields = vars(self)
        integers = {
            name: np.int32(fields[name] or 0)
            for name in ("max_new_tokens", "min_new_tokens", "top_k")
        }
        if self.bad_words:
            integers["bad_words"] = self._bad_words()
        real = ("length_penalty", "temperature", "top_p", "repetition_penalty")
        return {**integers, **{name: np.float32(fields[name] or 0) for name in real}}

    def _bad_words(self) -> np.ndarray:
        """Returns the ids [N, n] of the bad words, which end on the right, -1 elsewhere."""
        longest = bucket(max(map(len, self.bad_words)))
        words = np.full((bucket(len(self.bad_words)), longest), -1, np.int32)
        for row, word in zip(words, self.bad_words, strict=False):
            row[longest - len(word) :] = word
        return words


@record
class Decoded:
    """tokens [B, A, T] int32, lengths [B, A] including `eos`, scores [B, A].
    A answers, best first.

    A score is the sum of the log-probabilities of an answer's tokens. Beam search divides it by the
    length penalty.
    """

    tokens: Any
    lengths: Any
    scores: Any


def bucket(size: int, least: int = 1, largest: int | None = None) -> int:
    """Returns the smallest power of two >= `size`, within `least` and `largest`."""
    power = max(least, 1 << max(0, size - 1).bit_length())
    return power if largest is None else min(power, largest)


def grown_to_the_end(
    state: Any, logits: Array, grow: Callable, forward: Callable, counts: Array, *, prompt: int,
    done: Callable,
    numbers: Mapping[str, Array],
) -> Any:  # fmt: skip
    """Runs the decoding loop. Returns the final state (`t`, `tokens` [..., P+T], `cache`).

    grow     (state, logits [R, V]) -> the state with one more token; `logits` are those after the
             prompts
    forward  (tokens [R, 1], positions [R], cache) -> (logits, cache); `counts` [R] are the tokens
             of the prompts
    done     state -> bool of every row
    """

    def step(state):
        last = jax.lax.dynamic_slice_in_dim(
            state.tokens, prompt + state.t - 1, 1, state.tokens.ndim - 1
        ).reshape(-1, 1)
        logits, cache = forward(last, counts + state.t - 1, state.cache)
        return grow(dataclasses.replace(state, cache=cache), logits)

    def going(state):
        return (state.t < numbers["max_new_tokens"]) & ~done(state).all()

    return jax.lax.while_loop(going, step, grow(state, logits))


def adjusted(
    shape: Generation,
    numbers: Mapping[str, Array],
    eos: tuple[int, ...],
    logits,
    tokens,
    *,
    used,
    t,
    prompt: int,
) -> Array:
    """Applies the active rules to scores [R, V]. The answer has `t` tokens after `prompt` slots."""
    if shape.repetition_penalty != 1.0:
        logits = rules.repetition_penalty(logits, tokens, used, numbers["repetition_penalty"])
    if shape.no_repeat_ngram:
        logits = rules.no_repeat_ngram(logits, tokens, used, prompt + t, shape.no_repeat_ngram)
    if shape.bad_words:
        words = numbers["bad_words"]
        logits = rules.bad_words(logits, tokens, used, prompt + t, words)
    for end in eos if shape.min_new_tokens else ():
        logits = rules.forbid(logits, end, t < numbers["min_new_tokens"])
    if shape.forced_bos is not None:
        logits = rules.force(logits, shape.forced_bos, t == 0)
    if shape.forced_eos is not None:
        logits = rules.force(logits, shape.forced_eos, t == numbers["max_new_tokens"] - 1)
    return logits

"""Text generation: continuations of prompts (decoders), or answers to sources.
An encoder with a decoder answers sources."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ptm_jax import systems
from ptm_jax.convert.records import all_ends
from ptm_jax.core import slots
from ptm_jax.core.errors import UserError, unknown
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Vocab
from ptm_jax.inference import inputs
from ptm_jax.inference.decoding import decode, defaults, unmasking
from ptm_jax.inference.decoding.settings import Generation
from ptm_jax.inference.uses import Request, Result, Use
from ptm_jax.objectives.text.diffusion import unmasks

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained

LOAD = "load a run or a published folder of one"
"""Advice of a refusal that names systems, which have no weights."""


def refusal(model: Pretrained) -> str | None:
    """Why the model does not generate text, in one line; None: it does."""
    encoder, name = model.module.encoder, model.system.name
    if unmasks(model.system.objective) and model.head is not None:
        return None
    if encoder.writes and model.head is not None:
        return None
    if model.pair and model.head is None:
        return (
            f"{name} does not generate text: it has no vocabulary head; load a checkpoint "
            "that has one, of a class "
            "...ForConditionalGeneration"
        )
    if model.pair:
        return (
            f"{name} does not generate text: its decoder is not made to go on token by token; "
            f"{generators()} do; {LOAD}"
        )
    return f"{name} does not generate text; {generators()} do; {LOAD}"


def generate(
    model: Pretrained,
    prompts: Sequence[str],
    seed: int,
    batch_size: int,
    start: int | str | None,
    *,
    numbers: Sequence[int] | None = None,
    answer_language: str | None = None,
    **options: Any,
) -> list[Any]:
    """`Pretrained.generate`."""
    why = refusal(model)
    if why is not None:
        raise UserError(why)
    texts = inputs.texts_of(prompts, "prompts")
    if start is not None and not model.pair:
        raise UserError(
            f"start is for encoders with a decoder; {model.system.name} continues its prompts"
        )
    if options.get("bad_words"):
        options["bad_words"] = bad_words(model, options["bad_words"])
    plan = plan_of(model, **options)
    numbers = np.arange(len(texts)) if numbers is None else np.asarray(numbers)
    if unmasks(model.system.objective):
        unmasking.check(options)
        rows = model._tokenizer().encode_batch(list(texts))
        written = unmasking.answers(
            model, rows, plan, seed=seed, numbers=numbers, batch_size=batch_size
        )
        return [_text(model, *row) for row in zip(texts, rows, written, strict=True)]
    if model.pair:
        rows = _sources(model, texts, plan.max_new_tokens)
        first = start_of(model, start)
        starts = [int(row[-1]) if first == "last" else int(first) for row in rows]
    else:
        rows = _prompts(model, texts, plan.max_new_tokens)
        starts = [None] * len(rows)
    end, examples = ends_of(model), model.system.examples
    languages = languages_of(model, answer_language)
    others = examples.readings_of(texts) if isinstance(examples, WritesAnswers) else {}
    tower, answers = Tower(model.module, model.params[model.tower]), [None] * len(rows)
    for first, chosen in _grouped(rows, starts, batch_size):
        decoded = decode.decode(
            tower, [rows[i] for i in chosen], plan,
            head=model.head, eos=end, pad=model.vocab.pad or 0, seed=seed, rows=numbers[chosen],
            start=first, languages=languages,
            others={name: [row[i] for i in chosen] for name, row in others.items()},
        )  # fmt: skip
        for place, index in enumerate(chosen):
            several = zip(decoded.tokens[place], decoded.lengths[place], strict=True)
            answers[index] = [
                _text(model, texts[index], rows[index], tokens[:length])
                for tokens, length in several
            ]
    return answers if plan.answers > 1 else [several[0] for several in answers]


def languages_of(model: Pretrained, answer: str | None) -> tuple[int, int] | None:
    """Returns the numbers of the languages of texts and answers, for an encoder with a decoder that
    reads them; None: neither is given. Raises UserError."""
    if not model.pair or (answer is None and model.language is None):
        if answer is not None:
            raise UserError(f"{model.system.name} reads no source; leave out the answer's language")
        return None
    if model.language is None or answer is None:
        lacks, has = ("texts", "answers") if model.language is None else ("answers", "texts")
        raise UserError(
            f"the language of the {has} is given, that of the {lacks} is not; give --language and "
            "--answer-language, as de and en"
        )
    return model.language, model.for_language(answer).language


def ends_of(model: Pretrained) -> tuple[int, ...]:
    """Returns the ids that end an answer, from generation settings or the vocabulary.
    The settings are the checkpoint's."""
    eos = model.vocab.eos
    return all_ends(model.published, "eos_token_id") or (() if eos is None else (eos,))


def bad_words(
    model: Pretrained, words: Sequence[str | Sequence[int]]
) -> tuple[tuple[int, ...], ...]:
    """Returns the ids of words that no answer may have: of a text, its pieces with and without a
    blank before it, which are other pieces in byte-level BPE. Raises UserError."""
    if isinstance(words, str):
        raise UserError(f"bad_words must be a list of words; write [{words!r}] for a single one")
    tokenizer, several = model._tokenizer(), []
    for word in words:
        if isinstance(word, str):
            rows = tokenizer.encode_batch([word.strip(), f" {word.strip()}"])
        else:
            rows = [np.array(word, np.int64)]
        several += [tuple(row.tolist()) for row in rows]
        if () in several:
            raise UserError(f"bad_words has {word!r}, which has no tokens; leave it out")
    return tuple(dict.fromkeys(several))


class WritesAnswers(slots.Examples):
    """Trait: examples whose answers a decoder writes."""

    def first_token(self, vocab: Vocab) -> int | None:
        """Returns the first token of a decoder's inputs, or None."""
        raise NotImplementedError

    def readings_of(self, texts: Sequence[str]) -> Mapping[str, Sequence[np.ndarray]]:
        """Returns {network: ids of each text, in the tokens of a network inside the encoder}."""
        return {}


def start_of(model: Pretrained, start: int | str | None = None) -> int | Literal["last"]:
    """Returns the id of a decoder's first token.
    It is the `start` id or piece, else the first that is set by the published config, the encoder,
    or the training corruption or examples. "last" means the last token of the source. Raises
    UserError."""
    encoder, vocab, corruption = model.module.encoder, model.vocab, model.system.corruption
    if isinstance(start, str):
        index = model._tokenizer().id(start)
        if index is None:
            raise UserError(
                f"start is {start!r}, which is no piece of this model's tokenizer; give a "
                "piece, or an id"
            )
        start = index
    known = (
        start
        if start is not None
        else model.published("decoder_start_token_id", int, encoder.start if model.pair else None)
    )
    if known is None and isinstance(corruption, slots.Corruption) and corruption.start is not None:
        known = vocab.id(corruption.start)
    if known is None and isinstance(model.system.examples, WritesAnswers):
        known = model.system.examples.first_token(vocab)
    if known is None:
        raise UserError(
            f"{model.system.name} does not say which token its answers begin with; give it "
            "as start="
        )
    if known != "last" and not 0 <= known < vocab.size:
        raise UserError(
            f"the decoder's start is {known}, outside the vocabulary of this model: 0 to "
            f"{vocab.size - 1}"
        )
    return known


def start_field(model: Pretrained) -> dict[str, int]:
    """Returns the field of a published config that names the first token of a decoder's answers,
    where the training decides it and not the network; {} for other models."""
    if not model.pair or not model.generates or model.module.encoder.start is not None:
        return {}
    try:
        return {"decoder_start_token_id": int(start_of(model))}
    except UserError:
        return {}


def _grouped(
    rows: Sequence[np.ndarray], starts: Sequence[Any], size: int
) -> list[tuple[Any, np.ndarray]]:
    """Returns batches as (start, indices of rows with that start)."""
    groups = []
    for first in dict.fromkeys(starts):
        mine = np.flatnonzero([start == first for start in starts])
        groups += [
            (first, mine[chosen])
            for chosen in inputs.batches([rows[i] for i in mine], size, decoded=True)
        ]
    return groups


def _sources(model: Pretrained, texts: Sequence[str], room: int) -> list[np.ndarray]:
    """Returns the ids of sources with special tokens.
    Special tokens in the text (<extra_id_0>, <mask>) are recognised."""
    rows = [
        inputs.framed(model, row) for row in model._tokenizer().encode_batch(texts, specials=True)
    ]
    model._check(rows)
    limit = model.module.encoder.decoder.limit
    if limit is not None and room > limit:
        raise UserError(
            f"max_new_tokens={room} is more than the {limit} of the decoder's position "
            "table; ask for fewer"
        )
    return rows


def _prompts(model: Pretrained, texts: Sequence[str], room: int) -> list[np.ndarray]:
    """Returns the ids of prompts. An empty prompt becomes the token that begins a text."""
    start = model.vocab.bos if model.vocab.bos is not None else model.vocab.eos
    rows = model._tokenizer().encode_batch(list(texts))
    for number, row in enumerate(rows):
        if len(row) == 0 and start is None:
            raise UserError(
                f"prompt {number + 1} is empty, and this vocabulary has no token to begin with"
            )
        if model.limit is not None and max(len(row), 1) + room > model.limit:
            raise UserError(
                f"prompt {number + 1} has {len(row)} tokens, which with "
                f"max_new_tokens={room} are more than the "
                f"{model.limit} of this model's position table; shorten the prompt or ask for fewer"
            )
    return [row if len(row) else np.array([start], np.int32) for row in rows]


def _text(model: Pretrained, prompt: str, row: np.ndarray, tokens: np.ndarray) -> str:
    """Returns an answer as text.
    With an encoder: without special tokens except T5's sentinels. For a decoder: the prompt and its
    continuation, with the space that the tokenizer puts between them."""
    tokenizer = model.tokenizer
    if model.pair:
        hidden = {
            i for piece, i in tokenizer.special_pieces.items() if not piece.startswith("<extra_id_")
        }
        return tokenizer.decode(
            [int(token) for token in tokens if int(token) not in hidden], skip_specials=False
        )
    known, text = tokenizer.decode(row), tokenizer.decode([*row, *tokens])
    # A prompt may end inside a multi-byte character that the next token completes.
    return prompt + text[len(os.path.commonprefix([known, text])) :] if prompt else text


def plan_of(model: Pretrained, **options: Any) -> Generation:
    """Returns the options of a call, completed by the settings of the model's checkpoint.

    The settings are those of `inference.decoding.defaults`. Settings that change the answers and
    have no counterpart are named in one line on stderr, once. Raises UserError.
    """
    names = [field.name for field in dataclasses.fields(Generation)]
    for name in options:
        if name not in names:
            raise unknown("option of generate", name, names)
    options, left = defaults.completed(model.published, model.pair, options)
    if left:
        _say(
            f"{model.published.file}: generation settings without a counterpart here, not "
            f"applied: {', '.join(left)}"
        )
    try:
        return Generation(**options)
    except (TypeError, ValueError) as error:
        raise UserError(f"generate: {error}") from error


@functools.cache
def _say(line: str) -> None:
    print(line, file=sys.stderr)


def generators(pairs: bool = True) -> str:
    """Returns names of systems that generate.
    They are decoders, and with `pairs` some encoders with a decoder."""
    encoders = {
        name: slots.encoder_of(systems.get(name)) or slots.Encoder() for name in systems.names()
    }
    names = [
        name for name, encoder in encoders.items() if encoder.writes and not encoder.reads_source
    ]
    both = "; encoders with a decoder, as bart_base and t5_base," if pairs else ""
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return (", ".join(names[:6]) + more if names else "causal models") + both


def _results(model: Pretrained, request: Request) -> list[Result]:
    options = {name: value for name, value in request.settings.items() if value not in (None, ())}
    if "temperature" in options:
        options["strategy"] = "sample"
    if "early_stopping" in options:
        ends = {"true": True, "false": False}
        options["early_stopping"] = ends.get(options["early_stopping"], "never")
    if request.numbers:
        options["numbers"] = request.numbers
    answers = model.generate(
        request.text,
        max_new_tokens=request.max_new_tokens,
        seed=request.seed,
        **options,
    )
    return [
        {"prompt": text, "text": answer} for text, answer in zip(request.text, answers, strict=True)
    ]


USES = (
    Use(
        name="generate",
        run=_results,
        help="continuations of texts, or answers of an encoder with a decoder",
        columns=("prompt", "text"),
        options=(
            "start", "answer_language", "temperature", "top_k", "top_p", "beams", "length_penalty",
            "length_rule", "early_stopping", "repetition_penalty", "no_repeat_ngram", "bad_words",
        ),
    ),
)  # fmt: skip

"""Evaluations of two languages' word vectors: a dictionary, and parallel-sentence retrieval."""

from __future__ import annotations

from pathlib import Path

from ptm_jax.core.errors import UserError
from ptm_jax.data.text.bitext import words_of
from ptm_jax.inference.loading import vectors_of
from ptm_jax.inference.words import two_languages
from ptm_jax.inference.words.word_vectors import WordVectors
from ptm_jax.knowledge.from_text import dictionaries
from ptm_jax.runs.evaluations import Request
from ptm_jax.tasks.wordsets import Outcome, evaluation


def dictionary(request: Request) -> Outcome:
    """Returns the accuracy of translations of a file of word pairs. Raises UserError."""
    first, second = _tables(request)
    pairs = dictionaries.pairs_of(request.data[0])
    return Outcome(*two_languages.translations(first, second, pairs), {})


def retrieval(request: Request) -> Outcome:
    """Returns the accuracy of retrieval between two files, line by line translations.
    Raises UserError."""
    first, second = _tables(request)
    texts = [
        [words_of(line) for line in two_languages.lines_of(Path(file))] for file in request.data
    ]
    if len(texts[0]) != len(texts[1]):
        raise UserError(
            f"{request.data[0]} has {len(texts[0]):,} lines and {request.data[1]} "
            f"{len(texts[1]):,}; give translations"
        )
    return Outcome(two_languages.sentences(first, second, texts), len(texts[0]), {})


def _tables(request: Request) -> tuple[WordVectors, WordVectors]:
    """Returns the vectors of both languages: of two models, or of one table."""
    languages = request.languages
    if (request.beside is None) == (not languages) or len(languages) not in (0, 2):
        raise UserError(
            "give the vectors of the other language as --beside, or the two --languages of "
            "one table"
        )
    first, second = languages or (None, None)
    other = request.beside or request.model
    return vectors_of(request.model, first), vectors_of(other, second)


EVALUATIONS = (
    evaluation(
        "dictionary",
        "translations of words between vectors of two languages",
        dictionary,
        takes=("beside", "languages"),
    ),
    evaluation(
        "retrieval",
        "sentences found by their translation, with vectors of two languages",
        retrieval,
        files="two files, line by line translations,",
        takes=("beside", "languages"),
    ),
)

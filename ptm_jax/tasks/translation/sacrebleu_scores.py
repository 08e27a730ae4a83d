"""BLEU and chrF with their signatures, by sacreBLEU (Post 2018, arXiv 1804.08771)."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from ptm_jax.core.errors import UserError


class Score(NamedTuple):
    """A score as a fraction, and the signature of its settings."""

    value: float
    signature: str


def scores(
    hypotheses: Sequence[str], references: Sequence[str], language: str = ""
) -> Mapping[str, Score]:
    """Returns {"bleu": Score, "chrf": Score} of translations.

    language    the code of the references' language, by which BLEU divides text into words: 13a,
                and sacreBLEU's own ways for zh, ja and ko
    Raises UserError where a language needs a package that is not installed.
    """
    return _scores(tuple(hypotheses), tuple(references), language)


@functools.lru_cache(maxsize=1)
def _scores(
    hypotheses: Sequence[str], references: Sequence[str], language: str
) -> Mapping[str, Score]:
    """Returns `scores`. An evaluation asks for them twice: for its metrics and the signatures."""
    import sacrebleu

    code, figures = language.partition("_")[0], {}
    try:
        metrics = {"bleu": sacrebleu.BLEU(trg_lang=code), "chrf": sacrebleu.CHRF()}
        for name, metric in metrics.items():
            value = metric.corpus_score(hypotheses, [references]).score / 100
            figures[name] = Score(value, metric.get_signature().format())
    except (ImportError, RuntimeError) as error:
        if code not in ("ja", "ko"):
            raise
        raise UserError(
            f"BLEU divides {code} into words with a package that is not installed; "
            f"pip install 'sacrebleu[{code}]'"
        ) from error
    return MappingProxyType(figures)

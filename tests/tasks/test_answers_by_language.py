"""Scores of answers by language, against recorded results of mlqa_evaluation_v1.py (MLQA at
5ef5c731a96a)."""

import types

import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.tasks.kinds.span_answers import by_language
from ptm_jax.tasks.metrics.answers_by_language import judges, words

# language, gold answer, prediction, exact match, F1
RECORDED = [
    ("en", "The  Nile-river!", "the nile river", 0.0, 0.0),
    ("en", "an apple, a day", "apple day", 1.0, 1.0),
    ("en", "Theodore", "the odore", 0.0, 0.0),
    ("de", "Die Donau (Fluss)", "der Donau Fluss", 1.0, 1.0),
    ("de", "„eine Stadt“ an der Elbe", "Stadt an Elbe", 1.0, 1.0),
    ("de", "diese Stadt", "Stadt", 0.0, 0.6666666666666666),
    ("es", "¿Los unos y las otras?", "y otras", 1.0, 1.0),
    ("es", "La Habana", "Habana", 1.0, 1.0),
    ("es", "¡El año 1990!", "año 1990", 1.0, 1.0),
    ("ar", "الكتاب الكبير", "كتاب كبير", 1.0, 1.0),
    ("ar", "في القاهرة، مصر", "القاهرة مصر", 0.0, 0.8),
    ("vi", "những cái bàn của tôi", "bàn tôi", 1.0, 1.0),
    ("vi", "Hà Nội là thủ đô", "thủ đô Hà Nội", 0.0, 1.0),
    ("hi", "दिल्ली। भारत", "दिल्ली भारत", 1.0, 1.0),
    ("hi", "एक लाख", "लाख", 0.0, 0.6666666666666666),
    ("zh", "北京（中国）", "北京中国", 1.0, 1.0),
    ("zh", "1990年的 Windows 3.0", "1990年 windows 30", 0.0, 0.888888888888889),
    ("zh", "上海市", "上海", 0.0, 0.8),
    ("zh", "A队和B队", "a 队 b 队", 0.0, 0.888888888888889),
    ("en", "...", "!", 1.0, 0.0),
]


@pytest.mark.status("XTREME, MLQA", "matches")
def test_answers_score_as_in_the_published_script():
    for language, gold, text, exact, overlap in RECORDED:
        scores = tuple(judge(gold, text) for judge in judges(language))
        assert scores == pytest.approx((exact, overlap)), (language, gold, text)


def test_french_has_articles_and_other_languages_are_refused():
    assert words("La tour, les rois et l'eau", "fr") == ["tour", "rois", "et", "leau"]
    with pytest.raises(UserError, match="unknown language of answers 'ed'; .*de"):
        words("ein Wort", "ed")


def test_the_language_comes_from_the_data():
    task = catalogue.get("mlqa")
    with pytest.raises(UserError, match="mlqa scores answers by language; give --data language:"):
        by_language([], [], task)
    example = types.SimpleNamespace(index="a", answers=[("der Fluss", 0)])
    answer = types.SimpleNamespace(text="Fluss", null=0.0)
    german, english = (
        by_language([example], [answer], types.SimpleNamespace(**{**vars(task), "language": code}))
        for code in ("de", "en")
    )
    assert german["exact"] == 1.0 and english["exact"] == 0.0

"""SQuAD's judgement as the official evaluate-v2.0 gives it (its numbers on these cases, frozen),
and the best spans."""

import itertools

import numpy as np
import pytest

from ptm_jax.inference.text.answering import Window, best_answer
from ptm_jax.tasks.metrics import squad

# question, answers, prediction, probability of no answer; exact and F1 by the official script
CASES = [
    ("q0", ["France", "France"], "France", 0.1, 1, 1),
    (
        "q1",
        ["10th and 11th centuries", "in the 10th and 11th centuries"],
        "the 10th and 11th centuries.",
        0.2,
        1,
        1,
    ),
    ("q2", ["Denmark, Iceland and Norway"], "Norway and Denmark", 0.35, 0, 0.857143),
    ("q3", ["Rollo"], "", 0.9, 0, 0),
    ("q4", [], "", 0.8, 1, 1),
    ("q5", [], "William the Conqueror", 0.75, 0, 0),
    ("q6", [], "a", 0.15, 1, 1),
    ("q7", ["The A.N. the an"], "an", 0.3, 1, 1),
    ("q8", ["the"], "The!", 0.05, 1, 1),
    ("q9", ["Théâtre"], "théâtre  the", 0.4, 1, 1),
    ("q10", ["U.S.", "the United States"], "US", 0.2, 1, 1),
    ("q11", ["to to be"], "to be to be", 0.6, 0, 0.857143),
    ("q12", [], "nothing", 0.5, 0, 0),
    ("q13", ["十二"], "十二", 0.45, 1, 1),
    ("q14", ["42nd"], "42 nd", 0.55, 0, 0),
    ("q15", ["🙂 smile"], "smile🙂", 0.1, 0, 0),
]
OFFICIAL = {
    1.0: (0.5625, 0.6696428571, 0.5833333333, 0.7261904762, 0.5, 0.5),
    0.5: (0.625, 0.6785714286, 0.5833333333, 0.6547619048, 0.75, 0.75),
    0.3: (0.5625, 0.5625, 0.4166666667, 0.4166666667, 1.0, 1.0),
}
"""{threshold: exact, F1, of answered questions, of unanswered}"""


def test_one_answer():
    for name, gold, text, _, exact, overlap in CASES:
        found = [squad.judged(gold, text, judge) for judge in (squad.exact, squad.overlap)]
        assert found == [exact, pytest.approx(overlap, abs=1e-6)], name


@pytest.mark.parametrize("threshold", OFFICIAL)
def test_all_answers(threshold):
    gold, texts, nulls = ({case[0]: case[i] for case in CASES} for i in (1, 2, 3))
    found = squad.scores(gold, texts, nulls, threshold=threshold)
    names = ("exact", "f1", "answered_exact", "answered_f1", "unanswered_exact", "unanswered_f1")
    assert [found[name] for name in names] == pytest.approx(OFFICIAL[threshold])
    best = [
        found[name]
        for name in ("best_exact", "best_exact_threshold", "best_f1", "best_f1_threshold")
    ]
    assert best == pytest.approx([0.625, 0.45, 0.6785714286, 0.45])


def test_chinese_answers():
    """By hand: characters and words one by one, marks left out, the longest common run."""
    assert squad.chinese_exact("光荣和ω-force", "光荣和 ω-force".replace(" ", "")) == 1
    assert squad.chinese_exact("《战国》。", "战国") == 1
    assert squad.chinese_overlap("村雨城", "任天堂游戏谜之村雨城") == pytest.approx(2 * 3 / 13)
    assert squad.chinese_overlap("2010年", "年2010") == pytest.approx(2 * 1 / 4)
    assert squad.chinese_overlap("天", "地") == 0


def test_the_answer_is_the_best_allowed_span():
    """Against all spans of both windows: at most `longest` pieces, beginning where it is
    allowed."""
    draw = np.random.default_rng(0)
    context = "ab cd ef gh ij kl mn"
    firsts = np.arange(0, 20, 3)
    pieces = firsts, firsts + 2
    windows = [
        Window(0, 0, 5, 3, 0, np.zeros(9), np.zeros(9)),
        Window(0, 2, 5, 3, 0, np.zeros(9), np.zeros(9)),
    ]
    allowed = [np.array([1, 1, 1, 1, 0], bool), np.array([0, 0, 1, 1, 1], bool)]
    for _ in range(30):
        starts, ends = ([draw.normal(size=9) for _ in windows] for _ in range(2))
        found = best_answer(
            context, pieces, windows, allowed, starts, ends=ends, best=20, longest=3
        )
        every = [
            (
                float(start[3 + a] + end[3 + b]),
                context[pieces[0][w.first + a] : pieces[1][w.first + b]],
            )
            for w, may, start, end in zip(windows, allowed, starts, ends, strict=True)
            for a, b in itertools.product(range(5), repeat=2)
            if may[a] and a <= b < a + 3
        ]
        score, text = max(every)
        assert (found.text, found.best[0].score) == (text, pytest.approx(score))
        null = min(start[0] + end[0] for start, end in zip(starts, ends, strict=True))
        assert found.null == pytest.approx(null - score)
        assert [span.score for span in found.best] == sorted(
            (span.score for span in found.best), reverse=True
        )
        assert all(context[span.start : span.end] == span.text for span in found.best)
        assert len({span.text for span in found.best}) == len(found.best)

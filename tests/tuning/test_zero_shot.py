"""One model on files of several languages: the table, the means and the gap."""

import types
from collections import Counter

import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.runs.evaluations import Request
from ptm_jax.tuning import scoring, zero_shot

ACCURACY = {"en.tsv": 0.9, "de.tsv": 0.7, "zh": 0.5}


def scored(request):
    (file,) = request.data
    assert request.language == file.partition(".")[0]
    return types.SimpleNamespace(
        metrics={"accuracy": ACCURACY[file], "f1": 1.0},
        examples=[0] * 10,
        source=types.SimpleNamespace(path=file),
        remarks=Counter(),
    )


def request(*data, **more):
    return Request(task="xnli", model="m", data=data, **more)


def test_means_and_the_gap_to_the_first_language():
    asked = request("language:en=en.tsv", "language:de=de.tsv", "language:zh=zh")
    report = zero_shot.report(asked, scored)
    figures = report.document["metrics"]
    assert figures == pytest.approx({"accuracy": 0.7, "f1": 1.0, "gap": 0.3})
    assert [row[0] for row in report.table] == ["language", "en", "de", "zh"]
    assert report.document["examples"] == 30
    assert report.document["languages"]["zh"]["metrics"] == {"accuracy": 0.5, "f1": 1.0}
    alone = zero_shot.report(request("language:de=de.tsv"), scored)
    assert "gap" not in alone.document["metrics"]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (request("language:en=a", "language:en=b"), "b is one source too many of en"),
        (request("language:de-en=a"), "one file or folder for each language"),
        (request("language:en=a", "b.tsv"), "b.tsv has no language"),
        (request("language:eng=a"), "'eng' is no language code; write en"),
        (request("language:enn=a"), "unknown language code 'enn'.*en"),
        (request("language:en=a", plot="a.png"), "--plot is of one file"),
    ],
)
def test_wrong_data_are_one_line(asked, message):
    assert zero_shot.is_by_language(asked)
    with pytest.raises(UserError, match=message) as caught:
        scoring.report(asked)
    assert "\n" not in str(caught.value)

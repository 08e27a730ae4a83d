"""Drawn configs of the families of many languages and of translation against Transformers: states,
maps, scores, losses, gradients, and the tensors of the export.

`python -m tests.convert.drawn_languages` draws twelve of each; NEZHA's twelve are recorded
(`test_nezha_drawn.py`).
"""

import drawing_languages
import peers
import pytest

pytestmark = peers.LIVE
FAMILIES = drawing_languages.FAMILIES
SYSTEMS = {
    "XLM": "xlm_15",
    "Flaubert": "flaubert_base_cased",
    "Camembert": "camembert_base",
    "XLMRoberta": "xlm_r_base",
    "XLMRobertaXL": "xlm_r_xl",
    "Xmod": "xmod_base",
    "Ernie": "ernie_base",
    "MBart": "mbart25",
}
"""{family: a system of its network}."""


def claims(prefix):
    return [pytest.mark.status(SYSTEMS[prefix], "matches")] if prefix in SYSTEMS else []


CASES = [
    pytest.param(prefix, number, marks=claims(prefix))
    for prefix, family in FAMILIES.items()
    for number in range(family.tested)
]


@pytest.mark.status("ptm import", "matches")
@pytest.mark.status("ptm export", "matches")
@pytest.mark.parametrize(("prefix", "number"), CASES)
def test_a_drawn_config_of_many_languages(prefix, number, tmp_path, monkeypatch):
    drawing_languages.compare(prefix, number, tmp_path, monkeypatch)

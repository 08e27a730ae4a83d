"""Twelve drawn configs of each family of many languages and of translation against Transformers:
states, maps, scores, losses, gradients, and the tensors of the export. NEZHA's are recorded
(`test_nezha.py`)."""

import drawing_languages
import peers
import pytest
import repairs

pytestmark = peers.LIVE
NUMBER = 12


@pytest.mark.status("ptm import", "matches")
@pytest.mark.status("ptm export", "matches")
@pytest.mark.parametrize("number", range(NUMBER))
@pytest.mark.parametrize("prefix", drawing_languages.FAMILIES)
def test_a_drawn_config_of_many_languages(prefix, number, tmp_path, monkeypatch):
    drawn = drawing_languages.drawn(prefix, number)
    if prefix == "Flaubert" and drawn.config.pre_norm:
        repairs.runnable(monkeypatch)
    peers.compare(tmp_path, drawn.config, [drawn.case], drawn.inputs, unused=drawn.unused)

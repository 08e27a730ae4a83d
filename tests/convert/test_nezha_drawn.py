"""Twelve drawn configs of NEZHA against what transformers 4.57.6 answered
(tests/golden/make_nezha_drawn.py), and back, without torch."""

import json
import types

import golden_nezha_drawn as golden
import numpy as np
import peers
import pytest
from golden_nezha import Answer

from ptm_jax.convert import checkpoint
from ptm_jax.convert.files import open_tensors
from ptm_jax.convert.saving import write_tensors


@pytest.mark.full
@pytest.mark.status("nezha_base", "matches")
@pytest.mark.parametrize("number", range(golden.NUMBER))
def test_a_drawn_config_answers_as_the_last_version_that_had_it(number, tmp_path):
    config, shapes, arrays = golden.recorded(number)

    def under(start):
        names = (name for name in arrays if name.startswith(start))
        return {name.removeprefix(start): arrays[name] for name in names}

    source, case = tmp_path / "in", golden.case(peers, number)
    source.mkdir()
    write_tensors(source, golden.weights(number, shapes).items())
    (source / "config.json").write_text(json.dumps(config))
    read = checkpoint.read(source)
    assert read.report.extra == () and read.report.missing == () and read.architecture == case.name
    layers = {}
    for kind in ("states", "maps"):
        numbered = under(f"{kind}/")
        layers[kind] = [Answer(numbered[str(n)]) for n in range(len(numbered))]
    scores = {name: Answer(value) for name, value in under("out/").items()}
    out = types.SimpleNamespace(hidden_states=layers["states"], attentions=layers["maps"], **scores)
    pad, given = golden.fields(number)["pad_token_id"], golden.inputs(peers, number)
    peers.agree([read], [case], [out], [under("grad/")], given, atol=1e-5, pad=pad)
    checkpoint.write(tmp_path / "out", read.system, read.params, config=read.config)
    before, after = open_tensors(source), open_tensors(tmp_path / "out")
    assert set(before.names()) == set(after.names())
    for name in before.names():
        assert np.array_equal(before.read(name), after.read(name)), name
    peers.check_record(read)

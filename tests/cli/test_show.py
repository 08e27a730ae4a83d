"""`ptm show`: ten lines first, the record with --full."""

import json

import pytest

from ptm_jax.cli.main import main


@pytest.mark.parametrize("name", ["bert_base", "elmo", "t5_small", "skipgram"])
def test_a_system_has_ten_lines_and_a_record(name, capsys):
    assert main(["show", name]) == 0
    *lines, hint = capsys.readouterr().out.splitlines()
    assert len(lines) == 10 and all(len(line) <= 100 for line in lines) and "--full" in hint
    assert main(["show", name, "--full"]) == 0
    full = capsys.readouterr().out
    assert full.splitlines()[:10] == lines and "recipe: Recipe" in full
    assert main(["show", name, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    facts = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines}
    assert facts["parameters"] == ", ".join(
        f"{k}: {v:,}" for k, v in document["parameters"].items()
    )
    assert facts["paper"] == document["record"]["paper"]


def test_the_numbers_of_bert(capsys):
    """Devlin et al. 2019: L=12, H=768, A=12, 110M parameters."""
    assert main(["show", "bert_base"]) == 0
    out = capsys.readouterr().out
    for line in ("layers      12", "width       768", "heads       12", "vocabulary  30,522",
                 "length      128, 512"):  # fmt: skip
        assert line in out.splitlines()
    assert "main: 110,1" in out and "lr 0.0001, AdamW, Linear" in out


def test_a_run_has_its_steps_and_its_last_figures(run, capsys):
    assert main(["show", str(run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    last = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    heldout = [line for line in last if line["split"] == "heldout"][-1]
    done = max(line["step"] for line in last)
    assert f"steps done  {done} of {done}" in lines and len(lines) < 20
    (line,) = (line for line in lines if line.startswith("held out"))
    assert f"loss {heldout['values']['loss']:.4f}" in line
    assert main(["show", str(run), "--full"]) == 0
    assert "recipe: Recipe" in capsys.readouterr().out

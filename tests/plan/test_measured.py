"""Steps that are measured: the line through two numbers of rows, what is refused, and the command
with real steps."""

import json

import pytest

from ptm_jax.cli.main import main
from ptm_jax.core import spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.system import Experiment
from ptm_jax.mesh.chips import topology
from ptm_jax.plan import costs, measured
from ptm_jax.systems import get


def config(rows, **changes):
    return spec.override(
        Experiment(system=get("bert_tiny"), **changes), {"recipe.phases.0.batch": str(rows)}
    )


def test_the_line_through_a_quarter_and_half_of_the_rows(monkeypatch):
    """A step of 3 ms and 2 ms a row: 131 ms for 64 rows; noise that makes more rows faster gives no
    negative slope."""
    monkeypatch.setattr(measured, "seconds", lambda config, phase, rows: 0.003 + 0.002 * rows)
    found = measured.step(config(64), 0)
    assert found.steps == {
        16: pytest.approx(0.035),
        32: pytest.approx(0.067),
    } and found.seconds == pytest.approx(0.131)
    assert measured.step(config(2), 0).steps == {2: pytest.approx(0.007)}
    monkeypatch.setattr(measured, "seconds", lambda config, phase, rows: 1 / rows)
    assert measured.step(config(64), 0).seconds == 1 / 16


def test_what_is_not_this_device_is_refused(capsys):
    with pytest.raises(UserError, match="leave the mesh out"):
        measured.step(config(8, mesh=(("data", 2),)), 0)
    assert main(["study", "tiny", "--workdir", "w", "--measure"]) == 1
    assert "--measure goes with --dry-run and one cpu" in capsys.readouterr().err


@pytest.mark.full
def test_the_command_measures_steps(capsys, monkeypatch):
    sizes = ["recipe.phases.0.batch=4", "recipe.phases.0.length=8"]
    assert (
        main(["plan", "bert_tiny", "--topology", "cpu:1", "--measure", "--json", "--set", *sizes])
        == 0
    )
    plan = json.loads(capsys.readouterr().out)
    assert set(plan["measured_rows"]) == {"1", "2"} and plan["measured_step_seconds"] > 0
    monkeypatch.setattr(measured, "seconds", lambda config, phase, rows: 0.25)
    assert costs.of(config(4), topology("cpu:1"), measure=True).seconds == 0.25

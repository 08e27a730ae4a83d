"""Whether a prediction follows the tokens that a saliency method names (DeYoung et al. 2020)."""

from __future__ import annotations

import numpy as np

from ptm_jax.inference.saliency.predicted import Function

SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)
"""Shares of the tokens with the highest scores; the figures are means over them (section 4.1)."""


def faithfulness(function: Function, scores: np.ndarray) -> dict[str, float]:
    """Returns the figures of the scores [T] of a text's tokens.

    comprehensiveness  the fall of the prediction without the tokens of the highest scores: high is
                       faithful (Eq. 1)
    sufficiency        its fall with these tokens alone: low is faithful (Eq. 2)

    Of classes and words the fall is one of probability. The published code deletes tokens; here the
    missing token takes their place, so that the others keep their positions.
    """
    order = function.text[np.argsort(-np.asarray(scores), kind="stable")]
    missing = function.missing()
    rows = [function.ids]
    for share in SHARES:
        count = int(np.ceil(share * len(order)))
        without, alone = function.ids.copy(), missing.copy()
        without[order[:count]] = missing[order[:count]]
        alone[order[:count]] = function.ids[order[:count]]
        rows += [without, alone]
    values = function.values(np.stack(rows)).astype(np.float64)
    if function.question.kind != "number":
        values = np.exp(values)
    falls = (values[0] - values[1:]).reshape(-1, 2).mean(0)
    return {"comprehensiveness": float(falls[0]), "sufficiency": float(falls[1])}

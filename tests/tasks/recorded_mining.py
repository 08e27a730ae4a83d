"""Writes `mined.json`: the rows that sentence-transformers 6.2 mines from drawn vectors.

    pip install --no-deps --target PEER datasets dill multiprocess xxhash pandas pytz
    PYTHONPATH=PEER:tests python tests/tasks/recorded_mining.py

Its function is given vectors in the place of a model. Random draws cannot be compared.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

FILE = Path(__file__).with_name("mined.json")
ANCHORS, TEXTS, WIDTH = 9, 40, 6
CASES = {
    "nearest": {},
    "from a rank on": {"range_min": 2, "range_max": 9, "negatives": 4},
    "absolute margin": {"absolute_margin": 0.2, "range_max": 12},
    "relative margin": {"relative_margin": 0.4, "range_max": 15, "range_min": 1},
    "limits": {"max_score": 0.6, "min_score": 0.1, "range_max": 20, "negatives": 5},
    "rescored": {"absolute_margin": 0.5, "range_max": 12, "rescored": True},
    "rescored, limits": {"max_score": 0.7, "range_min": 1, "range_max": 10, "rescored": True},
}


def vectors() -> dict[str, np.ndarray]:
    """Returns {text: its vector} of anchors q0, q1, .. and texts t0, t1, .."""
    draw = np.random.default_rng(5)
    names = [*(f"q{n}" for n in range(ANCHORS)), *(f"t{n}" for n in range(TEXTS))]
    return {name: draw.normal(size=WIDTH).astype(np.float32) for name in names}


def logit(first: str, second: str) -> float:
    """Returns the score of a pair by a function in the place of a cross-encoder."""
    known = vectors()
    return float(np.tanh(known[first] @ np.roll(known[second], 1)))


def pairs() -> list[tuple[str, str]]:
    """Returns (anchor, positive text); the first two anchors have two positive texts."""
    return [(f"q{n}", f"t{n}") for n in range(ANCHORS)] + [("q0", "t20"), ("q1", "t21")]


class Peer:
    """The methods of a SentenceTransformer and of a CrossEncoder that mining calls."""

    device = "cpu"

    def encode_query(self, texts, **options):
        every = np.stack([vectors()[text] for text in texts])
        return every / np.linalg.norm(every, axis=1, keepdims=True)

    encode_document = encode_query

    def similarity(self, a, b):
        import torch

        return torch.as_tensor(np.asarray(a)) @ torch.as_tensor(np.asarray(b)).T

    def similarity_pairwise(self, a, b):
        import torch

        return (torch.as_tensor(np.asarray(a)) * torch.as_tensor(np.asarray(b))).sum(1)

    def predict(self, rows, **options):
        import torch

        return torch.tensor([logit(*row) for row in rows], dtype=torch.float32)


def main() -> None:
    from datasets import Dataset
    from sentence_transformers.util import mine_hard_negatives

    rows = pairs()
    data = Dataset.from_dict({"anchor": [a for a, _ in rows], "positive": [p for _, p in rows]})
    corpus = [f"t{n}" for n in range(TEXTS)]
    recorded = {}
    for name, options in CASES.items():
        options = dict(options)
        number = options.pop("negatives", 3)
        cross = {"cross_encoder": Peer()} if options.pop("rescored", False) else {}
        result = mine_hard_negatives(
            data, Peer(), corpus=corpus, num_negatives=number, output_format="labeled-list",
            output_scores=True, verbose=False, **options, **cross,
        )  # fmt: skip
        recorded[name] = [
            [row["anchor"], row["positive"], [round(s, 6) for s in row["scores"]]] for row in result
        ]
    lines = (f"{json.dumps(name)}: {json.dumps(rows)}" for name, rows in recorded.items())
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf8")


if __name__ == "__main__":
    main()

"""Small values of the four Transformer systems, for parity: the catalogue's records with other
sizes."""

import dataclasses
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from ptm_jax.core import spec
from ptm_jax.core.types import Vocab
from ptm_jax.inference import inputs
from ptm_jax.nn.embeddings.summed import LearnedPositions
from ptm_jax.systems.transformers import bert_gpt as catalogue

FAMILIES = ("bert", "roberta", "gpt", "gpt2")
LAYERS, WIDTH, HEADS, LIMIT = 2, 24, 3, 24
VOCABS = {
    "bert": Vocab(size=61, pad=0, unk=1, cls=2, sep=3, mask=4),
    "roberta": Vocab(size=61, bos=0, cls=0, pad=1, eos=2, sep=2, unk=3, mask=60),
    "gpt": Vocab(size=61, unk=0),
    "gpt2": Vocab(size=61, bos=60, eos=60),
}


def small(family):
    """The System of a family with LAYERS layers, WIDTH, HEADS and LIMIT positions."""
    sizes = {"layers": LAYERS, "width": WIDTH, "heads": HEADS}
    system = {
        "bert": lambda: catalogue.bert("bert", **sizes),
        "roberta": lambda: catalogue.roberta("roberta", lr=1e-3, warmup=1, **sizes),
        "gpt": lambda: catalogue.gpt("gpt", **sizes),
        "gpt2": lambda: catalogue.gpt2("gpt2", **sizes),
    }[family]()
    system = spec.respell(system, Vocab, VOCABS[family])
    return spec.respell(
        system, LearnedPositions, lambda p: dataclasses.replace(p, size=LIMIT + p.offset)
    )


def arrays(family, lengths=(11, 7, 9), left=2, seed=0):
    """Inputs [B, L] of `lengths`, row number `left` padded on the left, others on the right; with
    what a loss needs."""
    draw, vocab = np.random.default_rng(seed), VOCABS[family]
    rows, length = len(lengths), max(lengths)
    mask = (np.arange(length) < np.array(lengths)[:, None]).astype(np.int32)
    if left is not None:
        mask[left] = mask[left, ::-1]
    ids = np.where(mask, draw.integers(5, vocab.size - 1, (rows, length)), vocab.pad or 0)
    found = {"input_ids": ids, "attention_mask": mask, "next_label": draw.integers(0, 2, rows)}
    if family == "bert":
        found["token_type_ids"] = draw.integers(0, 2, (rows, length)) * mask
    positions = np.stack(
        [np.sort(draw.choice(np.flatnonzero(row), min(3, row.sum()), False)) for row in mask]
    )
    found["mlm_positions"], found["mlm_labels"] = (
        positions,
        draw.integers(5, vocab.size - 1, positions.shape),
    )
    return {name: part.astype(np.int32) for name, part in found.items()}


def batch_of(system, given):
    """The training batch of `arrays`, with the positions that the family counts."""
    encoder = system.towers["main"].encoder
    words = {
        k: v for k, v in given.items() if k in ("input_ids", "attention_mask", "token_type_ids")
    }
    rows, length = given["input_ids"].shape
    batch = {
        k: v[:rows, :length]
        for k, v in inputs.batch_of(encoder, encoder.embed.vocab, **words).items()
    }
    rest = {name: given[name] for name in ("next_label", "mlm_positions", "mlm_labels")}
    weights = np.ones(given["mlm_positions"].shape, np.float32)
    return {k: jnp.asarray(v) for k, v in {**batch, **rest, "mlm_weights": weights}.items()}


def path_of(family):
    """Where the golden file of a family lies."""
    return Path(__file__).parent / f"{family}.npz"

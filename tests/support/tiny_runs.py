"""A config of a tiny BERT (`ptm train tests/support/tiny_runs.py`), a text for it, and how two runs
are compared.

Its objective is a plain function that also returns a checksum of every batch, so that the log shows
what a step read.
"""

import contextlib
import dataclasses
import json
import os
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.compilation_cache import compilation_cache

from ptm_jax.cli.main import main
from ptm_jax.core.recipe import Linear, Phase, Recipe
from ptm_jax.core.system import Experiment
from ptm_jax.core.types import Ratio, Vocab
from ptm_jax.data.rows.examples import Packed
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.transformer import transformer
from ptm_jax.nn.embeddings.summed import LearnedPositions
from ptm_jax.nn.heads.vocabulary import MLMHead
from ptm_jax.objectives.text.language import MLM
from ptm_jax.systems import get

FILE = str(Path(__file__).resolve())
STEPS = 96
SMALL = [
    "objective=MLM",
    "recipe.phases.0.steps=6",
    "recipe.phases.1.steps=3",
    "save_every=4",
    "eval_every=4",
]
"""--set of a run of nine steps, with checkpoints and evaluations after 4, 8 and 9."""
PTM = [sys.executable, "-m", "ptm_jax.cli.main"]
VOCAB = Vocab(size=200, pad=0, unk=1, cls=2, sep=3, mask=4)


def watched_mlm(towers, batch, key):
    loss = MLM()(towers, batch, key)
    ids = batch["input_ids"].astype(jnp.uint32)
    places = jnp.arange(ids.size, dtype=jnp.uint32).reshape(ids.shape)
    mixed = (ids + 1) * jnp.uint32(0x9E3779B1) ^ (places + 1) * jnp.uint32(0x85EBCA77)
    checksum = (mixed * (mixed >> 15)).sum() >> 8  # 24 bits: a float32 holds them
    return dataclasses.replace(
        loss, metrics={**loss.metrics, "read": Ratio(checksum.astype(jnp.float32), 1.0)}
    )


system = dataclasses.replace(
    get("bert_tiny"),
    name="tiny",
    towers={
        "main": Model(
            encoder=transformer(
                vocab=VOCAB, layers=1, width=16, heads=2, positions=LearnedPositions(size=32)
            ),
            heads={"mlm": MLMHead(vocab=VOCAB)},
        )
    },
    tokenizer=TokenizerSpec(kind="wordpiece", vocab=200),
    examples=Packed(),
    objective=watched_mlm,
    recipe=Recipe(
        phases=(Phase(steps=STEPS - 32, batch=8, length=16), Phase(steps=32, batch=8, length=32)),
        lr=1e-2,
        schedule=Linear(warmup=2),
    ),
)
config = Experiment(
    system=system,
    heldout=0.2,
    precision="float32",
    log_every=1,
    eval_every=24,
    eval_batches=2,
    save_every=11,
    keep=100,
)


def write_text(path: Path, documents: int = 120) -> str:
    """Sentences in which a noun determines the verb after it; returns the path as a source."""
    rng = np.random.default_rng(0)
    syllables = "ba ke li mo nu ra ti so ve du".split()
    nouns = [a + b + c for a in syllables for b in syllables for c in ("n", "r", "st")][::7]
    verbs = "sees finds carries breaks paints follows leaves opens builds counts".split()
    kinds = "old small quiet red broken clever heavy bright cold young".split()
    texts = []
    for _ in range(documents):
        pairs = rng.integers(0, len(nouns), (rng.integers(3, 9), 2)).tolist()
        lines = [
            f"The {kinds[b % 10]} {nouns[a]} {verbs[a % 10]} the {kinds[a % 10]} {nouns[b]}."
            for a, b in pairs
        ]
        texts.append("\n".join(lines))
    path.write_text("\n\n".join(texts) + "\n")
    return str(path)


def environment(cache: Path, **more: str) -> dict[str, str]:
    """For a subprocess: it compiles as `compiling` does."""
    root = os.pathsep.join(str(folder) for folder in (Path(FILE).parents[2], Path(FILE).parents[1]))
    options = {
        f"JAX_{name.removeprefix('jax_')}".upper(): str(value)
        for name, value in _options(cache).items()
    }
    return {**os.environ, "PYTHONPATH": root, **options, **more}


@contextlib.contextmanager
def compiling(cache: Path):
    """Programs are compiled without optimizations, which takes longest here, and once for all
    processes of a run of the tests. Yields their folder, which is `cache` if the run has none."""
    cache = Path(os.environ.get("JAX_COMPILATION_CACHE_DIR") or cache)
    new = _options(cache)
    before = {name: jax.config.values[name] for name in new}
    for values in (new, before):
        for name, value in values.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
        if values is new:
            yield cache


def _options(cache: Path):
    return {
        "jax_compilation_cache_dir": str(cache),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
        "jax_disable_most_optimizations": True,
    }


def ptm(*words) -> int:
    """One command in this process."""
    return main([str(word) for word in words])


def checkpoint(workdir: Path, step: int | None = None) -> dict:
    """The record of a checkpoint without seconds and times: step, position, shapes, size and
    checksum of every array."""
    paths = sorted(
        (Path(workdir) / "checkpoints").glob("step_*" if step is None else f"step_{step:08d}")
    )
    body = json.loads((paths[-1] / "record.json").read_text())["body"]
    body["meta"].pop("seconds"), body["meta"].pop("goodput")
    return {**body, "files": {name: facts for name, facts in body["files"].items() if "/" in name}}


def metrics(workdir: Path) -> list[dict]:
    """The lines of the log without seconds."""
    lines = [
        json.loads(line) for line in (Path(workdir) / "metrics.jsonl").read_text().splitlines()
    ]
    return [{k: v for k, v in line.items() if k not in ("seconds", "goodput")} for line in lines]


def assert_same_run(a: Path, b: Path) -> None:
    """Parameters, optimizer state, data position and the log are equal, bit for bit."""
    assert metrics(a) == metrics(b)
    assert checkpoint(a) == checkpoint(b)


def files(workdir: Path) -> dict[str, bytes]:
    """Everything in a directory."""
    return {
        str(p.relative_to(workdir)): p.read_bytes()
        for p in sorted(Path(workdir).rglob("*"))
        if p.is_file()
    }

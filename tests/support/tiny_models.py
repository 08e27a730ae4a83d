"""Small loaded models with drawn parameters: a BERT, a RoBERTa, a GPT-2 and a BART over one text,
and their workdirs."""

import dataclasses
import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import Config
from ptm_jax.core import spec, towers
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.core.precision import Precision
from ptm_jax.core.system import Experiment
from ptm_jax.core.types import Vocab
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.data.tokenizers.vocabularies import make
from ptm_jax.inference.pretrained import Pretrained
from ptm_jax.nn.embeddings.summed import LearnedPositions
from ptm_jax.systems.sequence_to_sequence import bart as seq2seq
from ptm_jax.systems.transformers import bert_gpt as catalogue
from ptm_jax.training.checkpoints import Checkpoints

TEXTS = [
    f"the {a} {b} the {c} of the city."
    for a in ("king", "queen")
    for b in ("sees", "loves")
    for c in ("house", "hat")
]
LIMIT = 40
FAMILIES = {
    "bert": ("wordpiece", "bert", 60, lambda: catalogue.bert("bert_mini", 2, 16, 2)),
    "roberta": (
        "bytebpe",
        "roberta",
        290,
        lambda: catalogue.roberta("roberta_mini", 2, 16, 2, lr=1e-3, warmup=1),
    ),
    "gpt2": ("bytebpe", "gpt2", 280, lambda: catalogue.gpt2("gpt2_mini", 2, 16, 2)),
    "bart": (
        "bytebpe",
        "roberta",
        290,
        lambda: seq2seq.bart("bart_tiny", 2, 16, 2, lr=1e-3, warmup=1),
    ),
}


def drawn(system, seed=0, scale=0.3, batch=None):
    """Parameters under which texts matter, drawn without compiling anything: matrices normal,
    scales 1, biases 0."""
    draw, found = np.random.default_rng(seed), {}
    for path, leaf in flatten(
        towers.abstract(system.towers, batch or checkpoint.example(system))
    ).items():
        fixed = {"scale": 1.0, "bias": 0.0}.get(path.rsplit("/", 1)[-1])
        array = (
            scale * draw.standard_normal(leaf.shape)
            if fixed is None
            else np.full(leaf.shape, fixed)
        )
        found[path] = array.astype(np.float32)
    return unflatten(found)


@functools.cache
def build(family: str) -> Pretrained:
    """A small model of a family, with a tokenizer of its kind."""
    kind, specials, size, parent = FAMILIES[family]

    def make_one(vocab):
        return make(TokenizerSpec(kind=kind, specials=specials, vocab=vocab), TEXTS)

    try:
        tokenizer = make_one(size)
    except (
        UserError
    ) as error:  # the text supports fewer pieces than asked for: take as many as there are
        tokenizer = make_one(int(str(error).split("works is ")[1].split(":")[0]))
    system = spec.respell(parent(), Vocab, tokenizer.vocab)
    system = spec.respell(
        system, LearnedPositions, lambda p: dataclasses.replace(p, size=LIMIT + p.offset)
    )
    return Pretrained(system, drawn(system), tokenizer)


@functools.cache
def classifier() -> Pretrained:
    """A BERT of a published config with a head for three classes of texts."""
    tokenizer = build("bert").tokenizer
    small = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
    }
    small |= {
        "max_position_embeddings": 20,
        "vocab_size": tokenizer.vocab.size,
        "model_type": "bert",
    }
    config = Config({**small, "id2label": {"0": "sad", "1": "glad", "2": "none"}})
    system, _ = checkpoint.record_of(config, "BertForSequenceClassification", tokenizer.vocab)
    return Pretrained(system, drawn(system), tokenizer, published=config)


def bare(system, tokenizer=None, **fields) -> Pretrained:
    """A model whose parameters nobody looks at."""
    return Pretrained(
        system, {name: {} for name in system.towers}, tokenizer, published=Config(fields)
    )


def save_run(workdir: Path, model: Pretrained, tokenizer_hash=None, ties=()):
    """A workdir as training leaves it."""
    system = spec.respell(
        dataclasses.replace(model.system, ties=ties), Precision, Precision("bfloat16")
    )
    workdir.mkdir(exist_ok=True)
    model.tokenizer.save(workdir / "tokenizer")
    record = {
        "config": spec.to_json(Experiment(system=system)),
        "corpus": {},
        "published": dict(model.published),
    }
    (workdir / "config.json").write_text(json.dumps(record))
    store = Checkpoints(workdir)
    meta = {"tokenizer": tokenizer_hash or model.tokenizer.hash}
    store.save(3, {"params": jax.tree.map(jnp.asarray, model.params)}, meta)
    store.wait()
    return workdir

"""A published checkpoint of a tiny BERT with its tokenizer, and files of a task on texts for it."""

import numpy as np

from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import Config
from ptm_jax.data.tokenizers.published import write_published
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.data.tokenizers.vocabularies import make
from support.tiny_models import drawn

WORDS = "the a film is was good bad very long short and but story end plot funny sad".split()


def write(
    folder,
    texts=(" ".join(WORDS),) * 20,
    vocab=60,
    specials="bert",
    kind="wordpiece",
    scale=0.02,
    **more,
):
    """Write the checkpoint as a Hugging Face directory; `more` are other fields of its config."""
    tokenizer = make(TokenizerSpec(kind=kind, specials=specials, vocab=vocab), texts)
    fields = {
        "model_type": "bert", "architectures": ["BertModel"], "vocab_size": len(tokenizer.pieces),
        "hidden_size": 16,
        "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
        "max_position_embeddings": 64,
        "pad_token_id": 0, **more,
    }  # fmt: skip
    system, _ = checkpoint.record_of(Config(fields))
    checkpoint.write(folder, system, drawn(system, scale=scale), config=fields)
    write_published(tokenizer, folder)
    return folder


def written(folder, count=53, dev=7, seed=0):
    """A directory with train.tsv and dev.tsv of random words and labels 0 and 1."""
    draw = np.random.default_rng(seed)
    folder.mkdir(exist_ok=True)
    for name, size in (("train", count), ("dev", dev)):
        rows = [
            (" ".join(draw.choice(WORDS, draw.integers(1, 40))), int(draw.integers(0, 2)))
            for _ in range(size)
        ]
        (folder / f"{name}.tsv").write_text(
            "text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows)
        )
    return folder

"""Sentence vectors that do not depend on the batch: seconds over those of the free order.

    python -m benchmarks.exact_vectors [--texts FILE] [--rounds 15]

`encode(texts, exact=True)` gives a text the same bits whatever the other texts are. Both sides read
the same lines with a network of MiniLM's sizes (6 layers of 384, random weights), in turns; a ratio
is the median over the rounds. The command ends with an error where a vector of a text alone differs
by one bit. The goal is P24's: 1.1.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

import ptm_jax
from benchmarks.students import bert
from ptm_jax.bench import record, timing
from ptm_jax.cli import allocator

COUNT, ALONE = 800, 40


def model_of(folder: Path) -> ptm_jax.Pretrained:
    """Returns a model of MiniLM's sizes with random weights, through a folder of Transformers."""
    import torch
    import transformers

    from ptm_jax.data.tokenizers.published import write_published
    from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
    from ptm_jax.data.tokenizers.vocabularies import make

    torch.manual_seed(0)
    sizes = {key: size for key, size in bert(6, 384, 1536).items() if isinstance(size, int)}
    transformers.BertModel(transformers.BertConfig(**sizes)).save_pretrained(folder)
    lines = Path(__file__).read_text(encoding="utf8").splitlines()
    write_published(
        make(TokenizerSpec(kind="wordpiece", specials="bert", vocab=300), lines), folder
    )
    return ptm_jax.load(folder)


def texts_of(path: Path | None) -> list[str]:
    """Returns the first lines of a file, or of this package's sources."""
    paths = [path] if path else sorted(Path(ptm_jax.__file__).parent.glob("*/*.py"))
    lines = (line.strip() for one in paths for line in one.read_text(encoding="utf8").splitlines())
    return [line for line in lines if len(line) > 20][:COUNT]


def main() -> int:
    """Print the ratio; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    texts = texts_of(args.texts)
    with tempfile.TemporaryDirectory() as folder:
        model = model_of(Path(folder))
        meters = {
            "free": timing.clocked(lambda: model.encode(texts)),
            "exact": timing.clocked(lambda: model.encode(texts, exact=True)),
        }
        seconds = timing.alternate(meters, args.rounds)
        whole = np.asarray(model.encode(texts, exact=True))
        rows = [np.asarray(model.encode([text], exact=True)) for text in texts[:ALONE]]
    ratios = record.over(seconds["exact"], seconds["free"])
    among = record.spread(ratios)
    print(
        f"{len(texts)} texts: {record.median(ratios):.3f} ({among['low']:.3f} to "
        f"{among['high']:.3f}) times the seconds of the free order"
    )
    if not np.array_equal(whole[:ALONE], np.concatenate(rows)):
        print("a vector depends on the other texts", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    allocator.restart(("bench",))  # huge pages, as `ptm` has
    sys.exit(main())

"""Students of published sizes beside BERT-base on the same cores: how many times as fast, in
float32 and with int8 products.

    python -m benchmarks.students --out benchmarks/
    python -m benchmarks.students --only TinyBERT-4 --batches 1 --rounds 3

Classifiers with random weights, since a time does not depend on them; rows of `--length` random
tokens without padding. All programs take turns; a ratio is the median over the rounds of
BERT-base's seconds to the program's, beside the middle half of them. The goals are P20's: 1.95 for
DistilBERT and MiniLM, 5 for MobileBERT, 12 for TinyBERT-4, and 2.5 for int8 beside the same model
in float32.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ptm_jax.bench import record
from ptm_jax.cli import allocator
from ptm_jax.compress.quantisation.quantisation import Int8
from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import Config
from ptm_jax.core import towers
from ptm_jax.core.paths import count
from ptm_jax.core.streams import stream
from ptm_jax.core.towers import Tower
from ptm_jax.inference.layerwise import layerwise

TEACHER = "BERT-base"
BERT = {
    "model_type": "bert",
    "architectures": ["BertForSequenceClassification"],
    "vocab_size": 30522,
    "pad_token_id": 0,
}
DISTILBERT = {
    "model_type": "distilbert",
    "architectures": ["DistilBertForSequenceClassification"],
    "vocab_size": 30522,
}
DISTILBERT_SIZES = {
    "n_layers": 6, "dim": 768, "hidden_dim": 3072, "n_heads": 12, "max_position_embeddings": 512,
    "pad_token_id": 0
}  # fmt: skip


def bert(layers: int, width: int, hidden: int) -> dict[str, Any]:
    sizes = {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "intermediate_size": hidden,
        "num_attention_heads": 12,
    }
    return {**BERT, **sizes, "max_position_embeddings": 512, "type_vocab_size": 2}


MOBILEBERT = {
    "num_hidden_layers": 24, "hidden_size": 512, "embedding_size": 128, "intermediate_size": 512,
    "num_attention_heads": 4,
    "intra_bottleneck_size": 128, "num_feedforward_networks": 4, "max_position_embeddings": 512,
    "type_vocab_size": 2,
}  # fmt: skip
MODELS = {
    TEACHER: bert(12, 768, 3072),
    "DistilBERT": {**DISTILBERT, **DISTILBERT_SIZES},
    "MiniLM": bert(6, 768, 3072),
    "MobileBERT": {
        **BERT, "model_type": "mobilebert",
        "architectures": ["MobileBertForSequenceClassification"], **MOBILEBERT
    },
    "TinyBERT-4": bert(4, 312, 1200),
}  # fmt: skip
GOALS = {"DistilBERT": 1.95, "MiniLM": 1.95, "MobileBERT": 5.0, "TinyBERT-4": 12.0}
PUBLISHED = {
    "DistilBERT": "1.63 (survey, Table 3)",
    "MiniLM": "1.99 (survey, Table 3)",
    "MobileBERT": "4.0 (survey, Table 3)",
    "TinyBERT-4": "9.4 (survey, Table 3)",
}
INT8 = 2.5


def program(module: Any, params: Any, batch: dict[str, np.ndarray]) -> Callable[[], None]:
    """Returns the compiled scores of a batch as a function."""

    def scores(params, batch):
        tower = Tower(module, params)
        return tower.read("classify", tower(batch), batch)

    params = jax.tree.map(jax.numpy.asarray, layerwise(module, params))
    made = jax.jit(scores).lower(params, batch).compile()
    return lambda: jax.block_until_ready(made(params, batch))


def batch_of(rows: int, length: int) -> dict[str, np.ndarray]:
    """Returns rows of random tokens."""
    ids = np.random.default_rng(0).integers(1000, 30000, (rows, length)).astype(np.int32)
    places = np.broadcast_to(np.arange(length, dtype=np.int32), ids.shape)
    return {
        "input_ids": ids, "segment_ids": np.ones_like(ids), "token_type_ids": np.zeros_like(ids),
        "positions": places,
        "rows": np.arange(rows, dtype=np.int32),
    }  # fmt: skip


def networks(names: list[str]) -> dict[str, tuple[Any, Any]]:
    """Returns {name: (network, parameters)}, in float32 and with int8 weights."""
    found = {}
    for name in names:
        system, _ = checkpoint.record_of(Config(MODELS[name]))
        params = towers.init(system.towers, stream(0, "init"), checkpoint.example(system))
        module = system.towers["main"]
        found[name] = module, params["main"]
        found[f"{name}, int8"] = module, Int8().whole(params)["main"]
    return found


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Returns {"settings", "rows"}: of each program its parameters, milliseconds and ratios by
    batch."""
    found = networks([TEACHER, *(name for name in args.only or MODELS if name != TEACHER)])
    rows = {name: {"parameters": count(params)} for name, (_, params) in found.items()}
    for size in args.batches:
        calls = {
            name: program(*network, batch_of(size, args.length)) for name, network in found.items()
        }
        taken: dict[str, list[float]] = {name: [] for name in calls}
        for number in range(1 + args.rounds):
            for name, call in calls.items():
                start = time.perf_counter()
                call()
                if number:
                    taken[name].append(time.perf_counter() - start)
        seconds = {name: np.array(values) for name, values in taken.items()}
        for name, own in seconds.items():
            ratios = seconds[TEACHER] / own
            rows[name][f"milliseconds_{size}"] = float(1e3 * np.median(own))
            rows[name][f"times_{size}"] = float(np.median(ratios))
            rows[name][f"spread_{size}"] = [
                float(value) for value in np.quantile(ratios, (0.25, 0.75))
            ]
            if name.endswith(", int8"):
                rows[name][f"over_float32_{size}"] = float(
                    np.median(seconds[name.removesuffix(", int8")] / own)
                )
    settings = {"cores": len(os.sched_getaffinity(0)), "processor": record.processor()}
    settings["date"] = datetime.date.today().isoformat()
    settings |= {
        "length": args.length,
        "rounds": args.rounds,
        "jax": jax.__version__,
        "load": os.getloadavg()[0],
    }
    return {"settings": {**settings, "batches": args.batches}, "rows": rows}


def page(found: dict[str, Any]) -> str:
    """Returns the table as Markdown."""
    sizes, lines = found["settings"]["batches"], []
    header = ["model", "parameters"]
    header += [
        text
        for size in sizes
        for text in (f"batch {size}, ms", "times BERT-base", "int8 over float32")
    ]
    lines = [[*header, "goal", "published"]]
    for name, row in found["rows"].items():
        cells = [name, f"{row['parameters']:,}"]
        for size in sizes:
            low, high = row[f"spread_{size}"]
            over = f"{row[f'over_float32_{size}']:.2f}" if f"over_float32_{size}" in row else ""
            cells += [
                f"{row[f'milliseconds_{size}']:.1f}",
                f"{row[f'times_{size}']:.2f} ({low:.2f} to {high:.2f})",
                over,
            ]
        goal = f"{INT8} over float32" if over else GOALS.get(name, "")
        lines.append([*cells, str(goal), PUBLISHED.get(name, "")])
    lines.insert(1, ["---"] * len(lines[0]))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", choices=list(MODELS))
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 32])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found = measure(args)
    print(json.dumps(found["settings"]), page(found), sep="\n")
    if args.out is not None:
        (args.out / "students.json").write_text(json.dumps(found, indent=1) + "\n")
        note = f"`python -m benchmarks.students`: {json.dumps(found['settings'])}"
        (args.out / "students.md").write_text(
            f"# Students beside BERT-base\n\n{page(found)}\n{note}\n"
        )


if __name__ == "__main__":
    allocator.restart(("bench",))  # huge pages, for all sides
    main()

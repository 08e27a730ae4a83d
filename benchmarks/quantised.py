"""Quantised models beside float32, ONNX Runtime and OpenVINO on the same cores: score, size,
sequences per second.

    python -m benchmarks.quantised --model runs/sst2 --data ../shared/data/glue/sst2 \
        --out benchmarks/
    python -m benchmarks.quantised --model runs/sst2 --data ... --folders q8bert=small/q8bert \
        qbert=small/qbert

`--folders` are models that `ptm compress` made of the model. The peers have two graphs. "Our graph"
is that of `ptm export --format onnx`. "Torch's graph" is traced from Transformers' BertModel with
the same weights and head; onnxruntime fuses its attention, layer norms and gelu. Their int8 is that
of `onnxruntime.quantization`: dynamic, and static with the ranges of 64 training texts, by columns.
The peers need torch, transformers, onnxruntime, openvino and jax2onnx. Throughput is that of
held-out texts in rows of `--length` tokens, the programs in turns, the best of `--rounds`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

import ptm_jax
from ptm_jax.bench import record
from ptm_jax.cli import allocator
from ptm_jax.cli.main import main as cli
from ptm_jax.compress.quantisation.quantisation import Int8
from ptm_jax.inference import serving
from ptm_jax.inference.forward_pass import forward
from ptm_jax.inference.pretrained import Pretrained
from ptm_jax.runs.run import best_checkpoint
from ptm_jax.tasks import evaluating
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.tasks.evaluating import heldout_of
from ptm_jax.tasks.formats.taskdata import Remarks

BATCHES = (1, 32)
CALIBRATION = 64


def rows_of(model: Pretrained, texts: list[str], length: int) -> dict[str, np.ndarray]:
    """Returns {input: [n, L] int32} of texts, cut and padded."""
    made = {
        name: np.zeros((len(texts), length), np.int32)
        for name in ("input_ids", "attention_mask", "token_type_ids")
    }
    made["input_ids"][:] = model.vocab.pad
    for row, ids in enumerate(model.tokenizer.encode_batch(texts)):
        framed, types = model.tokenizer.frame(ids[: length - 2])
        made["input_ids"][row, : len(framed)], made["token_type_ids"][row, : len(framed)] = (
            framed,
            types,
        )
        made["attention_mask"][row, : len(framed)] = 1
    return made


def ours(model: Pretrained) -> Callable[[dict[str, np.ndarray]], np.ndarray]:
    """Returns the function from input arrays to the scores of classes, as `Pretrained` computes
    them."""

    def call(given):
        rows, length = given["input_ids"].shape
        batch = {"input_ids": given["input_ids"], "segment_ids": given["attention_mask"]}
        batch |= {
            "token_type_ids": given["token_type_ids"],
            "rows": np.arange(rows, dtype=np.int32),
        }
        batch["positions"] = np.broadcast_to(np.arange(length, dtype=np.int32), (rows, length))
        return np.asarray(
            forward(model.module, None, ("scores/classify",), model.weights, batch)[
                "scores/classify"
            ]
        )

    return call


def peers(
    model: Pretrained, checkpoint: str, texts: list[str], length: int, folder: Path
) -> dict[str, tuple[Callable[..., Any], int]]:
    """Returns {name: (function, bytes of the file)} of the peers that are installed. Prints why
    another cannot run. `texts` are those that static int8 takes its ranges from."""
    found: dict[str, tuple[Callable[..., Any], int]] = {}
    ours, torchs, fused = (folder / f"{name}.onnx" for name in ("ours", "torchs", "fused"))
    dynamic, fused_dynamic, static = (
        folder / f"{name}.onnx" for name in ("dynamic", "fused_dynamic", "static")
    )
    steps: list[Callable[[], None]] = [
        lambda: _own_graph(ours, model),
        lambda: _torch_graph(torchs, model, checkpoint, folder),
        lambda: _fused(torchs, fused),
        lambda: _dynamic(ours, dynamic),
        lambda: _dynamic(fused, fused_dynamic),
        lambda: _static(torchs, static, rows_of(model, texts[:CALIBRATION], length)),
    ]
    for name, (program, file) in {
        "ONNX Runtime, float32, our graph": (_runtime, ours),
        "ONNX Runtime, float32, torch's graph": (_runtime, fused),
        "ONNX Runtime, dynamic int8, our graph": (_runtime, dynamic),
        "ONNX Runtime, dynamic int8, torch's graph": (_runtime, fused_dynamic),
        "ONNX Runtime, static int8, torch's graph": (_runtime, static),
        "OpenVINO, float32, torch's graph": (_openvino, torchs),
        "OpenVINO, static int8, torch's graph": (_openvino, static),
    }.items():
        steps.append(
            lambda name=name, program=program, file=file: found.update({name: program(file)})
        )
    for step in steps:
        try:
            step()
        except Exception as error:  # a peer's own
            print(
                f"a peer is left out: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr
            )
    return found


def _own_graph(file: Path, model: Pretrained) -> None:
    file.write_bytes(serving.onnx(serving.graph(model), model.limit))


def _torch_graph(file: Path, model: Pretrained, checkpoint: str, folder: Path) -> None:
    """Traces Transformers' model under a head on the mean of the states, or its own classifier."""
    import torch
    import transformers

    cli(["export", checkpoint, "--out", str(folder / "transformers")])
    head = model.module.heads["classify"]
    mean = head.summary.at == "mean" and head.summary.activation == "none"
    auto = transformers.AutoModel if mean else transformers.AutoModelForSequenceClassification

    class Classifier(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = auto.from_pretrained(
                folder / "transformers", attn_implementation="eager"
            )
            if not mean:
                return
            values = model.params[model.tower]["heads_classify"]["classes"]
            self.classes = torch.nn.Linear(*values["kernel"].shape)
            self.classes.weight.data = torch.tensor(np.asarray(values["kernel"]).T)
            self.classes.bias.data = torch.tensor(np.asarray(values["bias"]))

        def forward(self, input_ids, attention_mask, token_type_ids):
            outputs = self.encoder(input_ids, attention_mask, token_type_ids)
            if not mean:
                return outputs.logits
            states, kept = outputs.last_hidden_state, attention_mask[..., None]
            kept = kept.to(states.dtype)
            return self.classes((states * kept).sum(1) / kept.sum(1))

    rows = {
        name: torch.ones(2, 32, dtype=torch.int32)
        for name in ("input_ids", "attention_mask", "token_type_ids")
    }
    axes = {name: {0: "batch", 1: "length"} for name in rows}
    names = {"input_names": list(rows), "output_names": ["classify"], "dynamic_axes": axes}
    torch.onnx.export(
        Classifier().eval(),
        tuple(rows.values()),
        str(file),
        dynamo=False,
        opset_version=17,
        **names,
    )


def _fused(file: Path, out: Path) -> None:
    from onnxruntime.transformers import optimizer

    optimizer.optimize_model(str(file), model_type="bert").save_model_to_file(str(out))


def _dynamic(file: Path, out: Path) -> None:
    from onnxruntime import quantization

    quantization.quantize_dynamic(file, out, per_channel=True)


def _static(file: Path, out: Path, given: dict[str, np.ndarray]) -> None:
    from onnxruntime import quantization
    from onnxruntime.quantization import shape_inference

    class Reader(quantization.CalibrationDataReader):
        rows = iter(
            [
                {name: value[i : i + 1] for name, value in given.items()}
                for i in range(len(given["input_ids"]))
            ]
        )

        def get_next(self):
            return next(self.rows, None)

    prepared = file.with_name("prepared.onnx")
    shape_inference.quant_pre_process(file, prepared, skip_symbolic_shape=True)
    kinds = {"op_types_to_quantize": ["MatMul", "Gemm"], "per_channel": True}
    quantization.quantize_static(prepared, out, Reader(), **kinds)


def _runtime(file: Path) -> tuple[Callable[..., Any], int]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    return lambda given: session.run(["classify"], {name: given[name] for name in names})[
        0
    ], file.stat().st_size


def _openvino(file: Path) -> tuple[Callable[..., Any], int]:
    import openvino

    core, threads = openvino.Core(), len(os.sched_getaffinity(0))
    hint = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }
    compiled = core.compile_model(core.read_model(file), "CPU", hint)
    names, port = [one.any_name for one in compiled.inputs], compiled.output("classify")
    return lambda given: compiled([given[name] for name in names])[port], file.stat().st_size


def seconds(
    calls: dict[str, Callable[..., Any]], given: dict[str, np.ndarray], batch: int, rounds: int
) -> dict[str, float]:
    """Returns the least seconds of a call on `batch` rows; the programs take turns."""
    part, best = (
        {name: value[:batch] for name, value in given.items()},
        dict.fromkeys(calls, np.inf),
    )
    for call in calls.values():
        call(part)
    for _ in range(rounds):
        for name, call in calls.items():
            for _ in range(3):
                start = time.perf_counter()
                call(part)
                best[name] = min(best[name], time.perf_counter() - start)
    return best


def _bytes(model: Pretrained) -> int:
    """Returns the bytes of the tensors."""
    return sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(model.params[model.tower]))


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Returns {"settings", "rows"}: of each program its score, bytes and sequences per second by
    batch."""
    checkpoint = str(best_checkpoint(args.model))
    model, task = ptm_jax.load(checkpoint), catalogue.get(args.task)
    examples = evaluating.task_for(model, task).examples.examples(
        heldout_of(task, (str(args.data),)), Remarks(), True
    )
    texts, labels = (
        [one.first for one in examples],
        np.array([model.examples.labels.index(one.label) for one in examples]),
    )
    given = rows_of(model, texts, args.length)
    trained = evaluating.task_for(model, task).examples.examples(
        heldout_of(task, (str(args.data),), "train"), Remarks(), True
    )
    models = {"ptm_jax, float32": model}
    models["ptm_jax, int8 (dynamic)"] = Pretrained(
        model.system, Int8().whole(model.params), model.tokenizer
    )
    for name, _, folder in (one.partition("=") for one in args.folders):
        models[f"ptm_jax, {name}"] = ptm_jax.load(folder)
    with tempfile.TemporaryDirectory() as place:
        calls = {name: ours(one) for name, one in models.items()}
        sizes = {name: _bytes(one) for name, one in models.items()}
        for name, (call, size) in peers(
            model, checkpoint, [one.first for one in trained], args.length, Path(place)
        ).items():
            calls[name], sizes[name] = call, size
        rows = {name: {"bytes": sizes[name]} for name in calls}
        for batch in BATCHES:
            for name, least in seconds(calls, given, batch, args.rounds).items():
                rows[name][f"per_second_{batch}"] = batch / least
        if not args.no_scores:
            for name, call in calls.items():
                parts = [
                    call({key: value[i : i + 32] for key, value in given.items()})
                    for i in range(0, len(texts) // 32 * 32, 32)
                ]
                chosen = np.concatenate(parts).argmax(1)
                rows[name]["accuracy"] = float((chosen == labels[: len(chosen)]).mean())
    settings = {"cores": len(os.sched_getaffinity(0)), "processor": record.processor()}
    settings["date"] = datetime.date.today().isoformat()
    return {"settings": {**settings, "length": args.length, "jax": jax.__version__}, "rows": rows}


def page(found: dict[str, Any]) -> str:
    """Returns the table as Markdown."""
    first = found["rows"]["ptm_jax, float32"]
    lines = [
        "| program | accuracy | MB | batch 1, texts/s | batch 32, texts/s | times float32 |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in found["rows"].items():
        one, many = row["per_second_1"], row["per_second_32"]
        ratio = f"{one / first['per_second_1']:.2f}, {many / first['per_second_32']:.2f}"
        score = f"{100 * row['accuracy']:.1f}" if "accuracy" in row else ""
        lines.append(
            f"| {name} | {score} | {row['bytes'] / 1e6:.1f} | {one:.0f} | {many:.0f} | {ratio} |"
        )
    return "\n".join([*lines, "", *beside(found["rows"])]) + "\n"


def beside(rows: dict[str, dict[str, Any]]) -> list[str]:
    """Returns the table of our int8 beside that of each peer: texts a second of 32 rows over the
    peer's (goal: 1.0 or more), seconds of one row over the peer's (goal: 1.1 or less)."""
    lines = ["| peer | throughput, times the peer's | latency, times the peer's |", "|---|---|---|"]
    own = rows["ptm_jax, int8 (dynamic)"]
    for name, row in rows.items():
        if "int8" in name and not name.startswith("ptm_jax"):
            throughput, latency = (
                own["per_second_32"] / row["per_second_32"],
                row["per_second_1"] / own["per_second_1"],
            )
            lines.append(f"| {name} | {throughput:.2f} | {latency:.2f} |")
    return lines if len(lines) > 2 else []


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--task", default="sst2")
    parser.add_argument("--folders", nargs="*", default=[])
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--no-scores", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found = measure(args)
    print(json.dumps(found["settings"]), page(found), sep="\n")
    if args.out is not None:
        (args.out / "quantised.json").write_text(json.dumps(found, indent=1) + "\n")
        note = f"`python -m benchmarks.quantised`: {json.dumps(found['settings'])}"
        (args.out / "quantised.md").write_text(
            f"# Int8 beside other runtimes\n\n{page(found)}\n{note}\n"
        )


if __name__ == "__main__":
    allocator.restart(("bench",))  # huge pages, for all sides
    main()

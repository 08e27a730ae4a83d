"""Part (f): 200 steps of the first quickstart's model on the pages of docs/, by `ptm train`.

The curve of a CPU is beside this file; `python -m benchmarks.device.training` writes it anew.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.device.isolate import ROOT

CONFIG = "configs/speedrun/pre_norm_bert.py"
CURVE = Path(__file__).with_name("training_cpu.json")
STEPS = 200
_dry = False


def begin(dry: bool) -> None:
    """Sets the sizes of this process."""
    global _dry
    _dry = dry


def items(dry: bool) -> list[dict[str, Any]]:
    """Returns the only item."""
    return [{"config": "quickstart", "steps": 5 if dry else STEPS}]


def names(item: dict[str, Any]) -> list[str]:
    """Returns the only program."""
    return ["ptm train"]


def prepare(item: dict[str, Any]) -> Any:
    """Returns nothing."""


def build(item: dict[str, Any], context: Any, name: str) -> Any:
    """Returns nothing: the command compiles."""


def measure(item: dict[str, Any], context: Any, name: str, program: Any) -> dict[str, Any]:
    """Trains in a process of its own."""
    start = time.perf_counter()
    curve, choices = trained(item["steps"])
    took = time.perf_counter() - start
    row = {"status": "trained", "seconds": round(took, 1), "losses": curve, "auto": choices}
    if CURVE.exists():
        row["losses of a CPU"] = json.loads(CURVE.read_text("utf8"))
    return row


def trained(steps: int) -> tuple[dict[str, float], list[str]]:
    """Returns {step: training loss}, and what "auto" took for each class of shapes."""
    with tempfile.TemporaryDirectory() as folder:
        text = "\n\n".join(page.read_text("utf8") for page in sorted((ROOT / "docs").glob("*.md")))
        Path(folder, "docs.txt").write_text(text, "utf8")
        code = "import sys; from ptm_jax.cli.main import main; sys.exit(main())"
        words = [sys.executable, "-c", code, "train"]
        words += [str(ROOT / CONFIG), "--workdir", f"{folder}/run"]
        words += ["--data", f"{folder}/docs.txt", "--set", f"recipe.phases.0.steps={steps}"]
        words += [
            "tokenizer.vocab=2048",
            "recipe.schedule.warmup=50",
            f"log_every={max(1, steps // 10)}",
        ]
        words += [f"save_every={steps}", f"eval_every={steps}"]
        # A search among Triton's products takes longer than these steps.
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_enable_triton_gemm=false"
        quick = {**os.environ, "XLA_FLAGS": flags, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, env=quick)
        if ran.returncode:
            raise RuntimeError(f"status {ran.returncode}: {(ran.stderr or ran.stdout)[-300:]}")
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text("utf8").splitlines()
    rows = [json.loads(text) for text in lines]
    rows = [row for row in rows if row["split"] == "train"]
    curve = {str(row["step"]): round(row["values"]["loss"], 4) for row in rows}
    return curve, [text for text in ran.stderr.splitlines() if text.startswith("kernels:")]


if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"
    CURVE.write_text(json.dumps(trained(STEPS)[0]) + "\n", "utf8")

"""Learning rates over widths: the best one of width 64 is that of width 512 in muP, and not in the
standard parametrisation.

    python -m benchmarks.widths            # writes widths.md and widths.png beside this file

Yang et al. 2022, arXiv 2203.03466, Figure 1 in small: GPT-2's block, heads of width 16, rows of 16
bytes of `pydocs`, each row read once, so that the loss of the last steps is of text that the
network has not seen. `standard` has initial matrices with a standard deviation that falls with the
root of the width, and one rate for all; `muP` is `tuning.scaling.mup.MuP` from width 64, where both
are the same network.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.recipe import Constant
from ptm_jax.core.spec import respell
from ptm_jax.core.system import Experiment, System
from ptm_jax.core.types import Vocab
from ptm_jax.data.text import sources
from ptm_jax.systems.transformers.bert_gpt import gpt2, miniature
from ptm_jax.training.start import differing
from ptm_jax.training.steps.step import program
from ptm_jax.tuning.scaling.mup import MuP

HERE = Path(__file__).parent
BASE, STD, ROWS, LENGTH, LAST = 64, 0.08, 8, 16, 20
VOCAB = Vocab(size=258, bos=256, eos=257)
WIDTHS = (64, 128, 256, 512)
RATES = tuple(2.0**-n for n in range(11, 4, -1))


def system(width: int, kind: str) -> System:
    """The network of a width, with a rate of 1 at every step."""
    mup = kind == "muP"
    std = STD if mup else STD * (BASE / width) ** 0.5
    made = miniature(
        gpt2("", 1, width, width // 16), "", steps=1, lr=1.0, std=std, batch=ROWS, length=LENGTH
    )
    made = dataclasses.replace(made, recipe=dataclasses.replace(made.recipe, schedule=Constant()))
    made = respell(made, Vocab, VOCAB)
    made = MuP(width=BASE, head_width=16).of(made) if mup else made
    return differing.resolve(Experiment(system=made, precision="float32"), VOCAB).system


def text(steps: int) -> np.ndarray:
    """Rows of bytes that are read once, [steps, B, L]."""
    found, need = b"", steps * ROWS * LENGTH
    for document in sources.documents(["pydocs"]):
        found += (" ".join(document.sentences) + "\n").encode()
        if len(found) >= need:
            break
    return np.frombuffer(found[:need], np.uint8).reshape(steps, ROWS, LENGTH).astype(np.int32)


def losses(width: int, kind: str, rates: tuple[float, ...], rows: np.ndarray) -> list[float]:
    """The mean loss of the last steps at each rate; the program is compiled once, the rate is its
    argument."""
    base = system(width, kind)
    steps = len(rows)
    warm = np.minimum(1.0, np.arange(1, steps + 1) / (0.1 * steps))

    def trained(rate: Any) -> Any:
        rules = tuple((path, factor * rate) for path, factor in (*base.recipe.lr_rules, ("", 1.0)))
        return program(
            dataclasses.replace(base, recipe=dataclasses.replace(base.recipe, lr_rules=rules)), 0
        )

    def step(state: Any, ids: jax.Array, rate: jax.Array) -> Any:
        batch = {"input_ids": ids, "segment_ids": jnp.ones_like(ids), "rows": jnp.arange(ROWS)}
        fields = base.examples.spec(LENGTH, VOCAB)
        for name, (dims, dtype) in fields.items():
            batch.setdefault(name, jnp.zeros((ROWS, *dims), dtype))
        state, metrics = trained(rate).step(state, batch)
        return state, metrics["loss"].value()

    ids = jnp.asarray(rows[0])
    fields = {
        name: jnp.zeros((ROWS, *dims), dtype)
        for name, (dims, dtype) in base.examples.spec(LENGTH, VOCAB).items()
    }
    begin = jax.jit(program(base, 0).init)({**fields, "input_ids": ids, "rows": jnp.arange(ROWS)})
    step, found = jax.jit(step), []
    for rate in rates:
        state, values = begin, []
        for batch, share in zip(rows, warm, strict=True):
            state, loss = step(state, jnp.asarray(batch), jnp.float32(rate * share))
            values.append(loss)
        found.append(float(np.mean(jax.device_get(values[-LAST:]))))
    return found


def best(found: dict[float, float]) -> float:
    return min((rate for rate in found if np.isfinite(found[rate])), key=found.__getitem__)


def page(table: dict[str, dict[int, dict[float, float]]], steps: int, minutes: float) -> str:
    lines = [
        "| parametrisation | width | "
        f"{' | '.join(f'2^{np.log2(rate):.0f}' for rate in RATES)} | best |"
    ]
    lines += ["|" + " --- |" * (len(RATES) + 3)]
    for kind, widths in table.items():
        for width, found in widths.items():
            cells = " | ".join(f"{found[rate]:.3f}" if rate in found else "" for rate in RATES)
            lines.append(f"| {kind} | {width} | {cells} | 2^{np.log2(best(found)):.0f} |")
    apart = {
        kind: max(map(best, widths.values())) / min(map(best, widths.values()))
        for kind, widths in table.items()
    }
    text = [
        "# The best learning rate over widths",
        "",
        *lines,
        "",
        "The best rates of these widths are "
        + " and ".join(f"a factor of {found:g} apart in {kind}" for kind, found in apart.items())
        + ".",
        f"Cells are the mean loss (nats a byte) of the last {LAST} of {steps} steps of {ROWS} "
        f"rows, one seed, {minutes:.0f} minutes of one busy core.",
        "`python -m benchmarks.widths` repeats Yang et al. 2022 (arXiv 2203.03466), Figure 1, "
        "in small: GPT-2's block on rows of 16 bytes.",
        "",
        "![loss over rates](widths.png)",
        "",
    ]
    return "\n".join(text)


def picture(table: dict[str, dict[int, dict[float, float]]], file: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(8.0, 3.6), dpi=150, layout="constrained")
    FigureCanvasAgg(canvas)
    for axes, (kind, widths) in zip(canvas.subplots(1, 2, sharey=True), table.items(), strict=True):
        for number, (width, found) in enumerate(widths.items()):
            axes.plot(
                list(found),
                list(found.values()),
                color=f"C{number}",
                linewidth=1.2,
                label=f"width {width}",
            )
            axes.plot(best(found), found[best(found)], "o", color=f"C{number}", markersize=5)
        axes.set(xscale="log", xlabel="learning rate", title=kind)
        axes.set_xscale("log", base=2)
        axes.grid(color="#e5e5e5", linewidth=0.7)
        axes.spines[["top", "right"]].set_visible(False)
    low = min(found[best(found)] for widths in table.values() for found in widths.values())
    canvas.axes[0].set(ylabel="loss (nats a byte)", ylim=(low - 0.1, low + 1.5))
    canvas.axes[0].legend(frameon=False, fontsize=8)
    canvas.savefig(file, metadata={"Software": "ptm_jax"})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument(
        "--work", type=Path, default=Path("widths.json"), help="finished widths: a run goes on"
    )
    args = parser.parse_args()
    done = json.loads(args.work.read_text()) if args.work.exists() else {}
    rows = text(args.steps)
    for width in (64, 512, 256, 128):
        for kind in ("muP", "standard"):
            if (name := f"{kind} {width}") in done:
                continue
            start = time.perf_counter()
            done[name] = [losses(width, kind, RATES, rows), time.perf_counter() - start]
            args.work.write_text(json.dumps(done))
            print(
                name,
                *(f"{loss:.3f}" for loss in done[name][0]),
                f"{done[name][1]:.0f} s",
                flush=True,
            )
            write(done, args.steps)
    write(done, args.steps)


def write(done: dict[str, Any], steps: int) -> None:
    """The page and the picture of the widths that are done in both parametrisations."""
    kinds = ("muP", "standard")
    known = [width for width in WIDTHS if all(f"{kind} {width}" in done for kind in kinds)]
    if not known:
        return
    table = {
        kind: {w: dict(zip(RATES, done[f"{kind} {w}"][0], strict=True)) for w in known}
        for kind in kinds
    }
    minutes = sum(seconds for _, seconds in done.values()) / 60
    (HERE / "widths.md").write_text(page(table, steps, minutes), encoding="utf8")
    picture(table, HERE / "widths.png")


if __name__ == "__main__":
    main()

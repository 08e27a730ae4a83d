"""Show the resolved record of a system or a config, or the differences of two.

Example:
  ptm show bert_base
  ptm show bert_mini --set recipe.lr=1e-4 recipe.schedule='Cosine(warmup=100)'
  ptm show roberta_base --diff bert_base
  ptm show bert_base --files
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from ptm_jax.cli import options, target
from ptm_jax.core.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    target: options.Target
    """A system of `ptm list`, a .py file that defines `config`, a workdir, or a Hugging Face
    directory."""
    diff: options.Text = None
    """Another target: print only the fields that differ."""
    files: options.Flag = False
    """Print where its parts stand: file and line of each class of its slots, its entry in the
    catalogue, its checkpoint family, its golden text and tests."""
    set: options.Sets = ()
    """Change fields of the first target."""
    json: options.Flag = False
    """Print one JSON document: record, parameters by tower, fingerprint; with --diff the
    differences."""


def run(args: Args) -> int:
    """Prints the record, or the differences."""
    from ptm_jax.core import spec

    value = _load(args.target, options.pairs(args.set))
    if args.files:
        return _print_files(value, args)
    if args.diff is not None:
        return _print_differences(value, _load(args.diff, []), args.json)
    counts = parameter_counts(value) if spec.is_spec(value) else {}
    document = {
        "record": spec.to_json(value),
        "parameters": counts,
        "fingerprint": spec.fingerprint(value),
    }
    lines = (
        ["parameters", *(f"  {name}: {count:,}" for name, count in counts.items())]
        if counts
        else []
    )
    lines[:0] = layers_at_once(value)
    return options.report(document, "\n".join([spec.to_text(value), *lines]), args.json)


def _print_files(value: Any, args: Args) -> int:
    """A table of slot, class and file:line."""
    from ptm_jax.cli import source_files
    from ptm_jax.core.system import Experiment, System

    if args.diff is not None:
        raise UserError("--files and --diff print two things; give one of them")
    system = value.system if isinstance(value, Experiment) else value
    if not isinstance(system, System):
        raise UserError(f"{args.target} is no system; --files shows the parts of a system")
    places = source_files.source_files(system)
    cells = [[one.slot, one.value, f"{one.file}:{one.line}"] for one in places]
    text = options.table(("part", "class or name", "file"), cells, width=160)
    return options.report([dataclasses.asdict(one) for one in places], text, args.json)


def layers_at_once(value: Any) -> list[str]:
    """A line for every stack: its layers in one iteration on this device (`Stack.unroll`)."""
    from ptm_jax.kernels.choice import platform
    from ptm_jax.nn.stacks import stacks_in

    lines = [
        f"  {path}: {stack.at_once()} of {stack.layers} layers"
        for path, stack in stacks_in(value).items()
    ]
    return [f"unrolled on {platform()}", *lines] if lines else []


def parameter_counts(value: Any) -> dict[str, int]:
    """{tower: number of parameters}, from shapes alone.
    A tied parameter counts once, in its source tower."""
    import jax
    import jax.numpy as jnp

    from ptm_jax.core import paths, towers
    from ptm_jax.core.system import Experiment

    system = value.system if isinstance(value, Experiment) else value
    tokens = jax.ShapeDtypeStruct((1, 8), jnp.int32)
    batch = dict.fromkeys(("input_ids", "segment_ids", "positions", "token_type_ids"), tokens)
    batch |= {
        "rows": jax.ShapeDtypeStruct((1,), jnp.int32),
        "step": jax.ShapeDtypeStruct((), jnp.int32),
    }
    try:
        shapes = towers.abstract(system.towers, batch)
    except (ValueError, TypeError) as error:
        raise UserError(f"{system.name} cannot be built: {error}") from error
    tied = tuple(f"{tie.path}/" for tie in system.ties)
    counts = {}
    for name, params in shapes.items():
        tower_params = {
            path: leaf
            for path, leaf in paths.flatten(params).items()
            if not f"{name}/{path}/".startswith(tied)
        }
        counts[name] = paths.count(tower_params)
    return counts


def _load(name: str, sets: list[str]) -> Any:
    """A System, an Experiment, or the record of a run."""
    from ptm_jax.runs.run import Run

    run = Run(Path(name))
    if not run.exists:
        return target.resolve(name, sets)
    if sets:
        raise UserError(f"{name} is a run, whose record --set cannot change; leave --set out")
    return run.record["config"]


def _print_differences(a: Any, b: Any, as_json: bool) -> int:
    from ptm_jax.core import spec

    a, b = spec.to_json(a), spec.to_json(b)
    if a.get("kind") != b.get("kind"):  # an Experiment and a System: compare the systems
        a, b = a.get("system", a), b.get("system", b)
    differences = spec.differences(a, b)
    lines = [f"{path}: {spec.to_line(x)} | {spec.to_line(y)}" for path, x, y in differences]
    document = [{"path": path, "a": x, "b": y} for path, x, y in differences]
    return options.report(document, "\n".join(lines) or "no differences", as_json)

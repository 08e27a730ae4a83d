"""Show a system or a config in ten lines, its whole record, or the differences of two.

Example:
  ptm show bert_base
  ptm show bert_base --full
  ptm show bert_mini --set recipe.lr=1e-4 recipe.schedule='Cosine(warmup=100)'
  ptm show roberta_base --diff bert_base
  ptm show bert_base --files
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptm_jax.cli import options
from ptm_jax.cli.derived import derived
from ptm_jax.core.errors import UserError

if TYPE_CHECKING:
    from ptm_jax.runs.run import Run


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    target: options.Target
    """A system of `ptm list`, a .py file that defines `config`, a workdir, or a Hugging Face
    directory."""
    full: options.Flag = False
    """Print the whole record after the summary."""
    diff: options.Text = None
    """Another target: print only the fields that differ."""
    files: options.Flag = False
    """Print where its parts stand: file and line of each class of its slots, its entry in the
    catalogue, its checkpoint family, its golden text and tests."""
    set: options.Sets = ()
    """Change fields of the first target, as recipe.phases.0.steps=500."""
    json: options.Flag = False
    """Print one JSON document: record, parameters by tower, fingerprint; with --diff the
    differences."""


def run(args: Args) -> int:
    """Prints the record, or the differences."""
    changed = dataclasses.replace(args, target="", json=False) != Args(target="")
    if not changed and listed(args.target):
        described = derived(f"show {args.target}", lambda: _described(_load(args.target, [])))
        return _report(described, args)
    from ptm_jax.core import spec

    value = _load(args.target, options.pairs(args.set))
    if args.files:
        return _print_files(value, args)
    if args.diff is not None:
        return _print_differences(value, _load(args.diff, []), args.json)
    described = _described(value)
    if (opened := _run_of(args.target)) is not None:
        described["lines"] = _run_lines(opened)
    if args.full or not described["lines"]:
        lines = [*described["lines"], spec.to_text(value), *layers_at_once(value)]
        return options.report(described["document"], "\n".join(lines), args.json)
    return _report(described, args)


def listed(name: str) -> bool:
    """Whether a name is that of a system of `order.ORDER` everywhere: there is no file
    or folder of this name."""
    from ptm_jax.systems.survey.order import ORDER

    return not Path(name).exists() and any(name in names.split() for names in ORDER.values())


def _described(value: object) -> dict[str, Any]:
    """Returns the document of --json and the lines of the summary."""
    from ptm_jax.core import spec

    counts = parameter_counts(value) if spec.is_spec(value) else {}
    document = {
        "record": spec.to_json(value),
        "parameters": counts,
        "fingerprint": spec.fingerprint(value),
    }
    return {"document": document, "lines": summary(value, counts)}


def _report(described: Mapping[str, Any], args: Args) -> int:
    lines = [*described["lines"], "--full prints the whole record, --files where its parts stand"]
    return options.report(described["document"], "\n".join(lines), args.json)


def summary(value: object, counts: Mapping[str, int]) -> list[str]:
    """Returns ten lines about a system; none for another value."""
    from ptm_jax.core import spec
    from ptm_jax.core.system import Experiment, System
    from ptm_jax.systems.survey.rows import status

    system = value.system if isinstance(value, Experiment) else value
    if not isinstance(system, System):
        return []
    record = spec.to_json(system)
    towers, recipe = record["towers"], system.recipe
    phases = ", ".join(f"{p.steps:,} x {p.batch:,}" for p in recipe.phases)
    names = type(recipe.optimizer).__name__, type(recipe.schedule).__name__
    lengths = sorted({phase.length for phase in recipe.phases})
    facts = {
        "layers": _all(towers, "layers"),
        "width": _all(towers, "width"),
        "heads": _all(towers, "heads"),
        "parameters": ", ".join(f"{name}: {count:,}" for name, count in counts.items()),
        "vocabulary": _all({"vocab": list(_values(towers, "vocab"))}, "size"),
        "length": ", ".join(f"{length:,}" for length in lengths),
        "objective": spec.to_line(record["objective"]),
        "recipe": f"steps x rows {phases}; lr {recipe.lr:g}, {names[0]}, {names[1]}",
        "status": ", ".join(status().get(system.name, ())) or "none",
        "paper": system.paper,
    }
    lines = [f"{name:<11} {fact or 'none'}" for name, fact in facts.items()]
    return [line if len(line) <= 100 else f"{line[:97]}..." for line in lines]


def _all(record: object, name: str) -> str:
    """The distinct numbers under a name in a record, the first ones of its encoders."""
    numbers = [value for value in _values(record, name) if isinstance(value, int)]
    return ", ".join(f"{number:,}" for number in dict.fromkeys(numbers))


def _values(record: object, name: str) -> Iterator[object]:
    """The values under a name in a record, outermost first."""
    if isinstance(record, dict) and record.get(name) is not None:
        yield record[name]
    parts = record.values() if isinstance(record, dict) else record
    for part in parts if isinstance(record, dict | list) else ():
        yield from _values(part, name)


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

    from ptm_jax.core import paths, slots, towers
    from ptm_jax.core.system import Difference, Experiment

    system = value.system if isinstance(value, Experiment) else value
    tokens = jax.ShapeDtypeStruct((1, 8), jnp.int32)
    batch = dict.fromkeys(("input_ids", "segment_ids", "positions", "token_type_ids"), tokens)
    batch |= {
        "rows": jax.ShapeDtypeStruct((1,), jnp.int32),
        "step": jax.ShapeDtypeStruct((), jnp.int32),
    }
    if isinstance(system.examples, slots.Examples) and system.examples.alphabet is not None:
        embeddings = slots.encoder_of(system).embeddings
        shape, kind = system.examples.batch_spec(8, embeddings.vocab)["characters"]
        batch["characters"] = jax.ShapeDtypeStruct((1, *shape), kind)
    try:
        shapes = towers.abstract(system.towers, batch)
    except (ValueError, TypeError) as error:
        raise UserError(f"{system.name} cannot be built: {error}") from error
    tied = tuple(f"{tie.path}/" for tie in system.ties if not isinstance(tie, Difference))
    counts = {}
    for name, params in shapes.items():
        tower_params = {
            path: leaf
            for path, leaf in paths.flatten(params).items()
            if not f"{name}/{path}/".startswith(tied)
        }
        counts[name] = paths.count(tower_params)
    return counts


def _run_of(name: str) -> Run | None:
    """Returns the run of a workdir; None for another target."""
    from ptm_jax.data.stores import working
    from ptm_jax.runs.run import Run

    run = Run(working.opened(name))
    return run if run.exists else None


def _run_lines(run: Run) -> list[str]:
    """Returns the summary of a run and the last lines of its log; none where its classes are the
    user's and not here."""
    from ptm_jax.training.logs import logs
    from ptm_jax.training.logs.figures import figure

    try:
        config = run.experiment()
        lines = summary(config, parameter_counts(config))
    except UserError:
        return []
    last = {line["split"]: line for line in logs.read(run.folder)}
    facts = {}
    if last:
        done = max(line["step"] for line in last.values())
        newest = max(last.values(), key=lambda line: line["seconds"])
        facts["steps done"] = f"{done:,} of {config.system.recipe.steps:,}"
        facts["seconds"] = f"{newest['seconds']:,.0f}, goodput {newest.get('goodput', 0.0):.0%}"
    for split, name in (("train", "last window"), ("heldout", "held out")):
        values = last[split]["values"].items() if split in last else ()
        facts |= {name: ", ".join(f"{key} {figure(one)}" for key, one in values)} if values else {}
    return [*lines, *(f"{name:<11} {fact}" for name, fact in facts.items())]


def _load(name: str, sets: list[str]) -> Any:
    """A System, an Experiment, or the record of a run."""
    from ptm_jax.cli import target

    run = _run_of(name)
    if run is None:
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

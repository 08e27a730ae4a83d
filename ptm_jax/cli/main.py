"""The `ptm` command. A command is a module with a frozen dataclass `Args`, `run(args) -> int` and
its example.

To add one: write `cli/NAME.py` and a line in `COMMANDS`. Modules are imported when their command is
called, and import slow packages inside `run`, so that help stays quick.

Exit status: 0; 1 with one line on stderr for an error that the user can fix; 2 for usage; 130 when
interrupted (training saves a checkpoint first), 143 when SIGTERM stopped a run. PTM_DEBUG=1 shows
the traceback as well. PTM_MALLOC=off leaves the allocator alone (`cli.allocator`).
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import re
import sys
import traceback
import typing
from collections.abc import Sequence

from ptm_jax.cli import allocator, places, terminal
from ptm_jax.cli.explaining import explain
from ptm_jax.core.errors import UserError, unknown

COMMANDS = {
    "list": (
        "ptm_jax.cli.listing",
        "list systems, rows of the survey, tasks, adaptations, compressions",
    ),
    "show": (
        "ptm_jax.cli.show",
        "show a system or config in ten lines, its record, or differences",
    ),
    "new": ("ptm_jax.cli.new", "write a file to change: objective, corruption, head, reader, task"),
    "prepare": ("ptm_jax.cli.runs.prepare", "train a tokenizer and write packed records"),
    "train": ("ptm_jax.cli.runs.train", "pre-train or fine-tune; resumes by itself"),
    "evaluate": (
        "ptm_jax.cli.models.evaluate",
        "evaluate a run on held-out or other text, or a model on a task",
    ),
    "predict": (
        "ptm_jax.cli.models.predict",
        "fill masks, generate, classify, tag, answer, embed, search",
    ),
    "import": ("ptm_jax.cli.models.importing", "import a Hugging Face checkpoint, without torch"),
    "export": ("ptm_jax.cli.models.exporting", "export a model as a Hugging Face directory"),
    "probe": (
        "ptm_jax.cli.models.probe",
        "ask what each layer of an encoder knows: labels, trees, spans",
    ),
    "view": ("ptm_jax.cli.models.view", "see which words of a text a prediction rests on"),
    "mine": ("ptm_jax.cli.models.mine", "mine hard negatives for a sentence encoder"),
    "topics": ("ptm_jax.cli.models.topics", "fit LSA or LDA to texts"),
    "compress": (
        "ptm_jax.cli.runs.compress",
        "make a model smaller: prune it, or keep static vectors of its tokens",
    ),
    "align": ("ptm_jax.cli.models.align", "bring word vectors of two languages into one space"),
    "average": ("ptm_jax.cli.models.average", "average the parameters of several models"),
    "study": (
        "ptm_jax.cli.runs.study",
        "run many runs as one value: a table, pictures, scaling laws",
    ),
    "reproduce": (
        "ptm_jax.cli.runs.reproduce",
        "reproduce a table of the survey, or its scaling experiments",
    ),
    "launch": (
        "ptm_jax.cli.machine.launch",
        "train on several hosts: this machine, Slurm, GKE, Cloud TPU",
    ),
    "plan": (
        "ptm_jax.cli.machine.plan",
        "plan training on hardware not attached: memory, time, cost",
    ),
    "bench": ("ptm_jax.cli.machine.bench", "measure speed on this machine"),
    "doctor": (
        "ptm_jax.cli.machine.doctor",
        "show devices, versions, cache, and which kernels the device takes",
    ),
}

TRUST = "--trust"
SEEDS = 2**31
"""The number of seeds: int32 holds them."""
BROKEN_PIPE = 141  # exit status of a writer whose reader has closed, as shells report it


def script() -> int:
    """The `ptm` of the shell: `main` with the allocator that a computing command wants."""
    allocator.restart(sys.argv[1:])
    return main()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status and raises nothing for bad input."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words:
        print(usage(), file=sys.stderr)
        return 2
    if words[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if words[0] == "--version":
        from importlib.metadata import version

        print(version("ptm_jax"))
        return 0
    if words[0] not in COMMANDS:
        return _fail(str(unknown("command", words[0], COMMANDS)), 2)
    try:
        status = _command(*words)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__module__ != "pyo3_runtime":
            raise  # a panic of Rust code is no Exception
        if os.environ.get("PTM_DEBUG"):
            traceback.print_exc()
        return _fail(explain(error), 1)


def usage() -> str:
    """The commands, one line each."""
    commands = "\n".join(f"  {name:<10} {summary}" for name, (_, summary) in COMMANDS.items())
    head = "usage: ptm COMMAND ...\n\nPre-trained language models of the BERT era in JAX."
    return (
        f"{head}\n\n{commands}\n\nptm COMMAND --help shows arguments and examples. {TRUST} lets a "
        "command import\nthe Python files that a run names, which a run of yours does without it."
    )


def _command(name: str, *words: str) -> int:
    module = importlib.import_module(COMMANDS[name][0])
    import tyro

    passed = words[words.index("--") :] if "--" in words else ()  # to another command
    words = words[: len(words) - len(passed)]
    if TRUST in words:
        from ptm_jax.core.spec import own_code

        own_code.trust()
        words = tuple(word for word in words if word != TRUST)

    from ptm_jax.tuning.other_names import option_hint

    options = [field.name for field in dataclasses.fields(module.Args)]
    for word in words:
        if (hint := option_hint(word, options)) is not None:
            return _fail(f"{name} has no option {word.partition('=')[0]}; did you mean {hint}?", 2)
    _hide_empty_defaults(module.Args)
    try:
        args = tyro.cli(
            module.Args, args=(*words, *passed), prog=f"ptm {name}", description=module.__doc__
        )
    except SystemExit as stop:  # help, or a usage error that tyro has explained
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    if isinstance(seed := vars(args).get("seed"), int) and not 0 <= seed < SEEDS:
        raise UserError(f"--seed is {seed}; it must be a whole number from 0 to {SEEDS - 1:,}")
    with terminal.only_printable():
        status = module.run(places.opened(name, args))
        places.written()
        return status


def _hide_empty_defaults(arguments: type) -> None:
    """Lets --help print no default of an option that has none."""
    import tyro

    def hint(default: str) -> str:
        return "" if default in ("", "None") else f"(default: {default})"

    for name, kind in typing.get_type_hints(arguments, include_extras=True).items():
        if next(f.default for f in dataclasses.fields(arguments) if f.name == name) in (None, ()):
            marked = typing.Annotated[kind, tyro.conf.arg(help_behavior_hint=hint)]
            arguments.__annotations__[name] = marked


def _fail(message: str, status: int) -> int:
    def short(number):
        return f"{number[0][:12]}... ({len(number[0]):,} digits)"

    line = re.sub(r"[0-9]{30,}", short, " ".join(message.split()))
    print(f"ptm: {terminal.printable(line)}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(script())

"""The `ptm` command. A command is a module with a frozen dataclass `Args`, `run(args) -> int` and its example.

To add one: write `cli/NAME.py` and a line in `COMMANDS`. Modules are imported when their command is called, and import
what is slow inside `run`, so that help stays quick.

Exit status: 0; 1 with one line on stderr for what the user can put right; 2 for usage; 130 when interrupted.
PTM_DEBUG=1 shows the traceback that the one line stands for.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
import traceback
from collections.abc import Sequence

from ptm_jax.core.errors import UserError, unknown

COMMANDS = {
    "list": ("ptm_jax.cli.catalogue", "the catalogue of systems"),
    "show": ("ptm_jax.cli.show", "the resolved record of a system or a config, or how two differ"),
    "prepare": ("ptm_jax.cli.prepare", "text to a tokenizer and packed records"),
    "train": ("ptm_jax.cli.train", "pre-training; resumes by itself"),
    "evaluate": ("ptm_jax.cli.evaluate", "the metrics of a run, on what it held out or on another text"),
    "predict": ("ptm_jax.cli.predict", "fill masks, generate, embed, find similar lines"),
    "import": ("ptm_jax.cli.importing", "a Hugging Face checkpoint, without torch"),
    "export": ("ptm_jax.cli.exporting", "a model as a Hugging Face directory"),
    "average": ("ptm_jax.cli.averaging", "the mean of several models of one network"),
    "launch": ("ptm_jax.cli.launch", "a run on several hosts: this machine, Slurm, GKE, Cloud TPU"),
    "plan": ("ptm_jax.cli.plan", "what training takes on a pod that is not there: memory, time, cost"),
    "bench": ("ptm_jax.cli.bench", "speed on this machine, beside other libraries"),
}

NEXT_STEP = {
    errno.ENOSPC: "free some space, or choose another place, and run the same command again",
    errno.EDQUOT: "free some space, or choose another place, and run the same command again",
    errno.EROFS: "choose a place that can be written",
    errno.EACCES: "check its permissions, or choose another place",
    errno.EPERM: "check its permissions, or choose another place",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "a part of the path is a file",
    errno.EISDIR: "give a file",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
}

BROKEN_PIPE = 141  # what a shell reports for a writer whose reader went away


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status and raises nothing for bad input."""
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
    except Exception as error:
        if os.environ.get("PTM_DEBUG"):
            traceback.print_exc()
        return _fail(explain(error), 1)


def usage() -> str:
    """The commands, one line each."""
    lines = [f"  {name:<10} {summary}" for name, (_, summary) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: ptm COMMAND ...",
            "",
            "Pre-trained language models of the BERT era in JAX.",
            "",
            *lines,
            "",
            "ptm COMMAND --help shows its arguments and an example.",
        ]
    )


def explain(error: Exception) -> str:
    """One line for an exception: what was wrong and what to do."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError) and error.errno is not None:
        paths = " -> ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
        step = NEXT_STEP.get(error.errno, "")
        parts = [os.strerror(error.errno), f": {paths}" if paths else "", f"; {step}" if step else ""]
        return "".join(parts)
    if isinstance(error, MemoryError):
        return "out of memory; take a smaller batch or a smaller system"
    return f"{type(error).__name__}: {error} (not foreseen: PTM_DEBUG=1 shows where; please report it)"


def _command(name: str, *words: str) -> int:
    module = importlib.import_module(COMMANDS[name][0])
    import tyro

    try:
        args = tyro.cli(module.Args, args=words, prog=f"ptm {name}", description=module.__doc__)
    except SystemExit as stop:  # help, or a usage error that tyro has explained
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return module.run(args)


def _fail(message: str, status: int) -> int:
    print(f"ptm: {' '.join(message.split())}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())

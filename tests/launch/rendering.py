"""Jobs for the tests of `ptm launch`, its command without printing, and shells that may not harm."""

import os
import shlex
import subprocess
from pathlib import Path

import tyro

from ptm_jax.cli import launch

ROOT = Path(__file__).resolve().parents[2]

# Everything that ends a quotation, begins a substitution, or looks like a slot, a document end or a here-document's end.
HOSTILE = (
    "two words",
    'it\'s "quoted" \\ and `id`',
    "$(touch broken) $HOME $$ $(HOME) $$(HOME)",
    "a\nPTM_END\ntouch broken\n# b",
    "; touch broken #",
    "@@hosts @@{name} {end}",
    "*",
    "--- \n: [yes, {a: b}]\t%tag &x *x !!python/object:os.system",
    "é 漢\u2028\x85 \x1b[31m",
    "",
)
KINDS = {
    "local": "",
    "slurm": "--partition gpu --account me --hours 30.5 --topology h100x16",
    "gke": "--topology v5p:2x2x4 --image example.org/ptm --mount claim=/store --spot --zone us-east5-a",
    "tpu-vm": "--topology v6e:4x4 --project mine --zone us-east5-b --mount 10.0.0.2:/share=/store --spot",
}
HOSTS = {"local": "--hosts 2", "slurm": "", "gke": "", "tpu-vm": ""}


def words(kind: str, target: str, *more: str) -> list[str]:
    """The arguments of a job of this kind; `more` come after them."""
    return [kind, target, *shlex.split(f"--workdir /store/run {HOSTS[kind]} {KINDS[kind]}"), *more]


def job(arguments: list[str]):
    return launch.describe(tyro.cli(launch.Args, args=arguments))


def executable(folder: Path, name: str, script: str) -> Path:
    """A program of a folder that is put on the PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)
    return path


def bash(script: str, folder: Path, programs: Path, timeout: float = 60, **more: str):
    """Run a script with stand-ins for the cluster's programs."""
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", **more}
    (folder / "script.sh").write_text(script)
    return subprocess.run(
        ["bash", "script.sh"], cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )

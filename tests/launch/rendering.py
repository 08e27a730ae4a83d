"""Jobs for the tests of `ptm launch`, its command without printing, and shells that may not
harm."""

import dataclasses
import json
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import tyro

from ptm_jax.cli.machine import launch

ROOT = Path(__file__).resolve().parents[2]

# Everything that ends a quotation, begins a substitution, or looks like a slot, a document end or a
# here-document's end.
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
    "gke": "--topology v5p:2x2x4 --image example.org/ptm --mount claim=/store --spot --zone "
    "us-east5-a",
    "tpu-vm": "--topology v6e:4x4 --project mine --zone us-east5-b --mount 10.0.0.2:/share=/store "
    "--spot",
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


def documented(folder: str = "$FAKE") -> str:
    """Shell lines for a stand-in of gcloud: flags that its documentation does not have, or not
    together, are written to FOLDER/refused, and end it with status 2 as gcloud does."""
    facts = json.loads((Path(__file__).parent / "gcloud_flags.json").read_text(encoding="utf8"))
    cases = [
        f"""  "{name}")
    known=" {" ".join(facts["everywhere"] + command["flags"])} "
    groups=({" ".join(shlex.quote(" ".join(group)) for group in command["one_of"])}) ;;"""
        for name, command in facts["commands"].items()
    ]
    return f"""refuse() {{ echo "$1" >> "{folder}/refused"; exit 2; }}
known='' groups=() given=' '
case "$3 $4" in
{chr(10).join(cases)}
  *) refuse "no command $3 $4" ;;
esac
for ((i = 5; i <= $#; i++)); do
  case ${{!i}} in
    --*=*) flag=${{!i}}; flag=${{flag%%=*}}= ;;
    --*)
      flag=${{!i}}
      if [[ $known == *" $flag= "* ]]; then flag=$flag=; ((i++)); fi ;;
    *) continue ;;
  esac
  [[ $known == *" $flag "* ]] || refuse "$3 $4 $flag"
  given+="$flag "
done
for group in "${{groups[@]}}"; do
  count=0
  for flag in $group; do if [[ $given == *" $flag "* ]]; then ((count++)); fi; done
  [ "$count" -eq 1 ] || refuse "$3 $4 needs one of $group"
done"""


def hostile(value, folder: Path, **more):
    """The job with hostile texts in every field, and its workdir below a folder."""
    texts = {
        "data": HOSTILE,
        "overrides": HOSTILE,
        "environment": tuple((f"VALUE_{i}", text) for i, text in enumerate(HOSTILE)),
        "workdir": str(folder / "$(touch broken)\nPTM_END\nrun"),
        "header": "\n".join(HOSTILE),
    }
    return dataclasses.replace(value, **texts, **more)


def _written(script: str, folder: Path, programs: Path, more: dict[str, str]) -> dict:
    """A script with stand-ins for the cluster's programs, as arguments of `subprocess`."""
    (folder / "script.sh").write_text(script)
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", **more}
    return {"args": ["bash", "script.sh"], "cwd": folder, "env": environment, "text": True}


def bash(script: str, folder: Path, programs: Path, **more: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        **_written(script, folder, programs, more), capture_output=True, timeout=60, check=False
    )


def started(script: str, folder: Path, programs: Path, **more: str) -> subprocess.Popen:
    return subprocess.Popen(**_written(script, folder, programs, more), stdout=subprocess.PIPE)


def interrupted(process: subprocess.Popen, *waiting: Path) -> str:
    """Sends SIGTERM when these files are there; returns the output."""
    end = time.monotonic() + 30
    while not all(path.exists() for path in waiting):
        assert time.monotonic() < end, waiting
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    return process.communicate(timeout=30)[0]

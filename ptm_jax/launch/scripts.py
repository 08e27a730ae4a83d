"""Renders shell scripts from the templates in this folder.
Slots are @@name; all user input is quoted."""

from __future__ import annotations

import shlex
import string
from collections.abc import Mapping
from importlib import resources

from ptm_jax.launch.job import Job, comment, exports, shown

LOCAL_PORT = 29400
ARRAY = """runs=({runs})
run=${{runs[$SLURM_ARRAY_TASK_ID]}}
train+=(--only "$run")
PTM_LOGS=$PTM_LOGS/$run"""
"""Lines of an array job: its task takes a run of the study."""


class Slots(string.Template):
    """A shell template with slots @@name, because `$` has a meaning in shell."""

    delimiter = "@@"


def fill(name: str, values: Mapping[str, object]) -> str:
    """Fills the slots of the template file `name`. Removes lines that consist of an empty slot."""
    text = template(name)
    for slot in [slot for slot, value in values.items() if value == ""]:
        text = text.replace(f"\n@@{slot}\n", "\n")
    return Slots(text).substitute(values)


def template(name: str) -> str:
    return resources.files(__package__).joinpath("templates", name).read_text(encoding="utf8")


def local(job: Job) -> str:
    """Returns the script of a local job, with one process per host."""
    pairs = local_environment(job, LOCAL_PORT)
    return fill("local.sh", {**_common(job), "exports": exports(pairs)})


def local_environment(job: Job, port: int) -> list[tuple[str, str]]:
    """Returns the environment variables of a local job's processes, without the process id."""
    hosts, devices = job.hardware.hosts, job.hardware.devices
    pairs = [("JAX_PLATFORMS", "cpu"), ("JAX_NUM_CPU_DEVICES", str(devices or 1))]
    if hosts > 1:
        pairs += [
            ("JAX_CPU_COLLECTIVES_IMPLEMENTATION", "gloo"),
            ("JAX_COORDINATOR_ADDRESS", f"127.0.0.1:{port}"),
            ("JAX_NUM_PROCESSES", str(hosts)),
        ]
    return [*pairs, *job.environment]


def slurm(job: Job) -> str:
    """Returns the batch script for `sbatch`."""
    gpus = (
        "" if job.hardware.platform == "cpu" or not job.hardware.devices else job.hardware.devices
    )
    array = f"0-{len(job.runs) - 1}" if job.runs else ""
    options = {
        "gpus-per-node": gpus,
        "partition": job.partition,
        "account": job.account,
        "array": array,
    }
    minutes = round(60 * (job.hours or 24))
    return fill(
        "slurm.sh",
        {
            **_common(job),
            "shown": shown(job.logs),
            "study": ARRAY.format(runs=shlex.join(job.runs)) if job.runs else "",
            "signal": f"TERM@{job.grace}",
            "time": f"{minutes // 1440}-{minutes // 60 % 24:02d}:{minutes % 60:02d}:00",
            "options": "\n".join(
                f"#SBATCH --{name}={value}" for name, value in options.items() if value
            ),
        },
    )


def tpu_vm(job: Job) -> str:
    """Returns a script that requests Cloud TPU slices, starts the run and watches it."""
    names, slices = job.hardware.names, job.hardware.slices
    kind = ["--type", names.family, "--topology", job.hardware.shape]
    if (
        len(job.hardware.where.shape) == 2
    ):  # for flat slices the number of chips determines the shape
        kind = ["--accelerator-type", f"{names.family}-{job.hardware.total // slices}"]
    kind += ["--runtime-version", names.runtime, *(["--spot"] if job.spot else [])]
    config, copied = "", ""
    if job.text is not None:
        config, copied = _heredoc('> "$files/ptm-config.py"', job.text), '"$files/ptm-config.py"'
    # "auto": JAX reads the workers from the metadata server.
    pairs = ([("PTM_HOSTS", "auto")] if job.hardware.hosts > 1 else []) + list(job.variables)
    values = {
        **_common(job),
        "train": shlex.join(job.command(config="ptm-config.py" if job.text is not None else None)),
        "exports": exports(pairs),
        "project": job.project,
        "zone": job.zone,
        "slice": shlex.join(kind),
        "node": '--node-id="$name"',
        "nodes": '"$name"',
        "remote": "",
        "label": "",
        "mounted": _mounted(job),
        "config": config,
        "copied": copied,
    }
    if slices > 1:  # Cloud TPU names the nodes PREFIX-0, PREFIX-1, ...
        values |= {
            "node": f'--node-count={slices} --node-prefix="$name"',
            "nodes": " ".join(f'"$name-{number}"' for number in range(slices)),
            "remote": "slice-$PTM_SLICE-",
            "label": "slice-$index-",
        }
    return fill("tpu_vm.sh", values)


def _mounted(job: Job) -> str:
    """Returns the shell line that mounts the shared disk of a job that has one."""
    if not job.mount:
        return "# the workdir is in an object store: no disk is mounted"
    source, folder = map(shlex.quote, job.mount)
    return (
        f"mountpoint -q {folder} || {{ sudo mkdir -p {folder} && "
        f"sudo mount -t nfs {source} {folder}; }} || finish 1"
    )


def _common(job: Job) -> dict[str, object]:
    taken = "\n".join([template("host.sh"), *job.texts()]).splitlines()
    return {
        "name": job.name,
        "grace": job.grace,
        "retries": job.retries,
        "header": comment(job.header),
        "exports": exports(job.environment),
        "setup": job.setup,
        "train": shlex.join(job.command()),
        "hosts": job.hardware.hosts,
        "logs": shlex.quote(job.logs),
        "host": template("host.sh").rstrip(),
        "end": _end(taken),
    }


def _heredoc(where: str, text: str) -> str:
    end = _end(text.splitlines())
    return f"cat {where} <<'{end}'\n{text.rstrip()}\n{end}"


def _end(taken: list[str]) -> str:
    """Returns a heredoc delimiter that does not occur in `taken`."""
    end = "PTM_END"
    while any(end in line for line in taken):
        end += "_"
    return end

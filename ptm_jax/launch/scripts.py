"""Shell scripts from the templates in this folder: slots are @@name, and everything that a user gave is quoted."""

from __future__ import annotations

import shlex
import string
from collections.abc import Mapping
from importlib import resources

from ptm_jax.launch.job import Job, comment, exports

LOCAL_PORT = 29400


class Slots(string.Template):
    """A template of shell, in which `$` has another meaning."""

    delimiter = "@@"


def fill(name: str, values: Mapping[str, object]) -> str:
    """The template file `name` with its slots filled; a line that holds an empty slot alone goes."""
    text = template(name)
    for slot in [slot for slot, value in values.items() if value == ""]:
        text = text.replace(f"\n@@{slot}\n", "\n")
    return Slots(text).substitute(values)


def template(name: str) -> str:
    return resources.files("ptm_jax.launch").joinpath("templates", name).read_text(encoding="utf8")


def local(job: Job) -> str:
    """What `--run` runs on this machine, one process for each host."""
    pairs = local_environment(job, LOCAL_PORT)
    return fill("local.sh", {**_common(job), "exports": exports(pairs)})


def local_environment(job: Job, port: int) -> list[tuple[str, str]]:
    """What the processes of a local job are given, but for their number."""
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
    """A batch script for `sbatch`."""
    gpus = "" if job.hardware.platform == "cpu" or not job.hardware.devices else job.hardware.devices
    options = {"gpus-per-node": gpus, "partition": job.partition, "account": job.account}
    minutes = round(60 * (job.hours or 24))
    return fill(
        "slurm.sh",
        {
            **_common(job),
            "name": job.name,
            "shown": _shown(job.logs),
            "grace": job.grace,
            "signal": f"TERM@{job.grace}",
            "time": f"{minutes // 1440}-{minutes // 60 % 24:02d}:{minutes % 60:02d}:00",
            "options": "\n".join(f"#SBATCH --{name}={value}" for name, value in options.items() if value),
            "retries": job.retries,
        },
    )


def tpu_vm(job: Job) -> str:
    """A script that asks Cloud TPU for a slice, starts the run on its workers and looks after it."""
    names = job.hardware.names
    kind = ["--type", names.family, "--topology", job.hardware.shape]
    if len(job.hardware.where.shape) == 2:  # flat slices have one shape for each number of chips, and go by that
        kind = ["--accelerator-type", f"{names.family}-{job.hardware.total}"]
    kind += ["--runtime-version", names.runtime, *(["--spot"] if job.spot else [])]
    config, copied = "", ""
    if job.text is not None:
        config, copied = _heredoc('> "$files/ptm-config.py"', job.text), '"$files/ptm-config.py"'
    common = {**_common(job), "train": shlex.join(job.command(config="ptm-config.py" if job.text is not None else None))}
    # What the workers are is on the metadata server, which JAX asks.
    pairs = ([("PTM_HOSTS", "auto")] if job.hardware.hosts > 1 else []) + list(job.environment)
    values = {
        **common,
        "exports": exports(pairs),
        "name": job.name,
        "project": job.project,
        "zone": job.zone,
        "slice": shlex.join(kind),
        "source": shlex.quote(job.mount[0]),
        "folder": shlex.quote(job.mount[1]),
        "config": config,
        "copied": copied,
        "grace": job.grace,
        "retries": job.retries,
    }
    return fill("tpu_vm.sh", values)


def _common(job: Job) -> dict[str, object]:
    taken = "\n".join([template("host.sh"), *job.texts()]).splitlines()
    return {
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
    """A line that none of `taken` is."""
    end = "PTM_END"
    while any(end in line for line in taken):
        end += "_"
    return end


def _shown(text: str) -> str:
    """For a comment: on one line whatever it holds."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)

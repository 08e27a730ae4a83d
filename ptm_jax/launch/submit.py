"""Renders a job and submits it with sbatch, kubectl or gcloud."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from ptm_jax.core.errors import UserError
from ptm_jax.launch import jobset, local, scripts
from ptm_jax.launch.job import Job

RENDER = {
    "local": scripts.local,
    "slurm": scripts.slurm,
    "gke": jobset.render,
    "tpu-vm": scripts.tpu_vm,
}
SUFFIX = {"local": "local.sh", "slurm": "slurm.sh", "gke": "gke.yaml", "tpu-vm": "tpu_vm.sh"}
PROGRAM = {"slurm": "sbatch", "gke": "kubectl", "tpu-vm": "gcloud"}


def render(kind: str, job: Job) -> str:
    """Returns the script or manifest of a job.
    Raises UserError for fields that the kind does not support."""
    job.check(kind)
    return RENDER[kind](job)


def submit(kind: str, job: Job) -> int:
    """Starts a job on this machine (local) or with the cluster's command.
    Returns the exit status."""
    job.check(kind)
    if kind == "local":
        return local.run(job)
    program, text = PROGRAM[kind], RENDER[kind](job)
    if shutil.which(program) is None:
        raise UserError(
            f"{program} is not on this machine: run this where it is, or write the script "
            "with --out, without --run"
        )
    if kind in ("slurm", "gke"):
        words = ["sbatch"] if kind == "slurm" else ["kubectl", "apply", "-f", "-"]
        return subprocess.run(words, input=text, text=True, check=False).returncode
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / f"{job.name}.tpu_vm.sh"
        script.write_text(text, encoding="utf8")
        return subprocess.run(["bash", str(script)], check=False).returncode

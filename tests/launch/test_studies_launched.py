"""A study as a Slurm array and as JobSets: every run once, with its own logs."""

import subprocess

import pytest
import rendering
import yaml
from rendering import ROOT, job, words

from ptm_jax.core.errors import UserError
from ptm_jax.launch import submit
from ptm_jax.tuning.studies import points, studies

FILE = "configs/studies/tiny.py"


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def names():
    return [name for name, _ in points.names(studies.load(FILE))]


def test_a_slurm_array(tmp_path):
    """Each task of the array hands its own run to `srun`, and logs below its own folder."""
    text = submit.render("slurm", job(words("slurm", FILE)))
    assert f"#SBATCH --array=0-{len(names()) - 1}\n" in text
    programs = tmp_path / "bin"
    rendering.executable(programs, "scontrol", "echo node0")
    rendering.executable(programs, "srun", 'printf "%s\\n" "${@: -2}" "$PTM_LOGS" >> "$GIVEN"')
    text = text.replace("/store/run", str(tmp_path / "run"))
    for task, name in enumerate(names()):
        given = tmp_path / f"given{task}"
        variables = {
            "SLURM_ARRAY_TASK_ID": str(task),
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "n",
            "GIVEN": str(given),
        }
        rendering.bash(text, tmp_path, programs, **variables)
        assert given.read_text().splitlines() == [
            "--only",
            name,
            str(tmp_path / "run" / "launch" / name),
        ]
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


def test_a_set_of_jobsets():
    found = list(yaml.safe_load_all(submit.render("gke", job(words("gke", FILE)))))
    sets = [document for document in found if document["kind"] == "JobSet"]
    assert len({document["metadata"]["name"] for document in sets}) == len(sets) == len(names())
    pods = [
        one["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]
        for one in sets
    ]
    assert [pod["args"][-2:] for pod in pods] == [["--only", name] for name in names()]
    assert pods[0]["args"][:3] == ["ptm", "study", "/ptm/config.py"]
    configs = {one["metadata"]["name"] for one in found if one["kind"] == "ConfigMap"}
    assert configs == {f"{one['metadata']['name']}-config" for one in sets}


def test_what_a_study_does_not_take():
    with pytest.raises(UserError, match="a study has its own experiments"):
        job(words("slurm", FILE, "--set", "seed=1"))
    with pytest.raises(UserError, match="local runs no study"):
        submit.render("local", job(words("local", FILE)))

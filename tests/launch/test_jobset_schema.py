"""JobSets beside published schemas: the models that Kubeflow Trainer generates from the OpenAPI
documents of JobSet and Kubernetes, and definitions of the custom resource where the data has
them."""

import copy
import importlib
import os
import sys
from pathlib import Path

import pytest
import rendering
import yaml
from rendering import job, words

import ptm_jax
from ptm_jax.launch import submit

pytestmark = pytest.mark.full
PACKAGES = Path(ptm_jax.__file__).parents[1] / ".venv" / "jobset"
DATA = Path(os.environ.get("PTM_DATA", rendering.ROOT.parent / "shared" / "data"))
JOBS = [
    ("configs/megatron_lm.py", "v5p:8x8x8"),
    ("bert_base", "v5e:4x4*2"),
    ("configs/studies/tiny.py", "cpu:8"),
    ("bert_base", "h200x16"),
]


def models(monkeypatch) -> dict:
    """JSON schema of the class JobSet of kubeflow-trainer-api (Apache-2.0), with 138 types."""
    packages = Path(os.environ.get("PTM_JOBSET_PACKAGES", PACKAGES))
    if not (packages / "kubeflow_trainer_api").is_dir():
        pytest.skip("needs the models of .venv/jobset (make test-full)")
    monkeypatch.setattr(sys, "path", [str(packages), *sys.path])
    module = importlib.import_module("kubeflow_trainer_api.models.jobset_v1alpha2_job_set")
    schema = module.JobsetV1alpha2JobSet.model_json_schema(by_alias=True)
    for name in ("ApiResourceQuantity", "UtilIntstrIntOrString"):  # classes with a value inside
        if f"IoK8sApimachineryPkg{name}" in schema["$defs"]:
            schema["$defs"][f"IoK8sApimachineryPkg{name}"] = {"type": ["string", "number"]}
    return schema


def definitions(monkeypatch) -> dict:
    """The schema of v1alpha2 in jobset/*.yaml of the data: config/components/crd/bases of the
    repository kubernetes-sigs/jobset (Apache-2.0), of any release."""
    files = sorted((DATA / "jobset").glob("*.yaml"))
    if not files:
        pytest.skip("needs the definition of the custom resource in PTM_DATA/jobset")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    schema = {"allOf": []}
    for file in files:
        versions = yaml.load(file.read_text(encoding="utf8"), loader)["spec"]["versions"]
        [version] = [one for one in versions if one["name"] == "v1alpha2"]
        schema["allOf"].append(version["schema"]["openAPIV3Schema"])
        schema["allOf"][-1]["properties"].pop("metadata")  # Kubernetes' own, without fields here
        schema["allOf"][-1]["properties"]["metadata"] = {}
    return schema


def closed(schema):
    """The schema in which a field that an object does not declare is an error, as it is to
    `kubectl`. Whole numbers pass where numbers or texts do."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {name: closed(part) for name, part in schema.items()}
    if isinstance(parts.get("properties"), dict) and "type" in parts:
        parts.setdefault("additionalProperties", False)
    if parts.pop("x-kubernetes-int-or-string", False):
        parts |= {"type": ["integer", "string"]}
    return parts


@pytest.fixture(params=[models, definitions])
def validator(request, monkeypatch):
    import jsonschema

    return jsonschema.Draft202012Validator(closed(request.param(monkeypatch)))


def wrong(validator, manifest) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(manifest)]


def changed(manifest: dict, path: str, value) -> dict:
    """The manifest with one value at a path; None takes the field out."""
    manifest = copy.deepcopy(manifest)
    *folders, name = [int(part) if part.isdecimal() else part for part in path.split(".")]
    place = manifest
    for part in folders:
        place = place[part]
    if value is None:
        del place[name]
    else:
        place[name] = value
    return manifest


def test_job_sets_keep_the_published_schema(validator, monkeypatch):
    monkeypatch.chdir(rendering.ROOT)
    for config, topology in JOBS:
        text = submit.render("gke", job(words("gke", config, "--topology", topology)))
        sets = [one for one in yaml.safe_load_all(text) if one["kind"] == "JobSet"]
        assert sets
        for manifest in sets:
            assert wrong(validator, manifest) == []
    work = "spec.replicatedJobs.0.template.spec"
    pod = f"{work}.template.spec"
    for path, value in {
        "spec.failurePolicy.maxRestart": 3,
        "spec.failurePolicy.maxRestarts": "3",
        "spec.network.enableDnsHostnames": True,
        "spec.replicatedJobs.0.replica": 1,
        "spec.replicatedJobs.0.name": None,
        "spec.failurePolicy.rules.0.action": 1,
        f"{work}.completions": "4",
        f"{work}.podFailurePolicy.rules.0.onPodCondition": [],
        f"{work}.podFailurePolicy.rules.1.onExitCodes.values": ["143"],
        f"{pod}.terminationGracePeriod": 300,
        f"{pod}.containers.0.env.0.name": None,
        f"{pod}.containers.0.resources.limits": ["4"],
        f"{pod}.volumes.0.persistentVolumeClaim.claim": "x",
    }.items():
        assert len(wrong(validator, changed(manifest, path, value))) >= 1, path


def test_the_status_of_a_disruption_is_there(monkeypatch):
    """JobSet before 0.11 refuses a manifest without it."""
    monkeypatch.chdir(rendering.ROOT)
    text = submit.render("gke", job(words("gke", "bert_base")))
    [manifest] = yaml.safe_load_all(text)
    rules = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["podFailurePolicy"]["rules"]
    assert rules[0]["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]

"""Renders a JobSet for Google Kubernetes Engine.
One pod per host of a TPU slice, or per machine with GPUs.

Uses the CRD jobset.x-k8s.io/v1alpha2 (https://jobset.sigs.k8s.io) and Kubernetes' Job.
`podFailurePolicy` fails the job if a pod is evicted, or if its run saved on SIGTERM and exited with
143. The failure policy then restarts the set without counting the restart. After other failures it
restarts at most `retries` times.

Of several TPU slices each is a Job of the replicated job, on a node pool of its own; GKE sets the
variables MEGASCALE_* of its pods ("Deploy TPU Multislices in GKE"; JobSet's "TPU Multislice").
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import yaml

from ptm_jax.launch.job import Job, comment
from ptm_jax.launch.scripts import template

CONTAINER, HOSTS, FILES = "train", "hosts", "/ptm"
STOPPED = 143
PORT = 29400
INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
SLICE = "metadata.annotations['jobset.sigs.k8s.io/job-index']"
SCRIPT = 'log=$PTM_LOGS/{label}host-$JOB_COMPLETION_INDEX.log\n{host}\nexit "$status"\n'


def render(job: Job) -> str:
    """Returns the manifest for `kubectl apply -f`; of a study, a JobSet for each run."""
    if job.runs:
        short = job.name[:34].rstrip("-")
        jobs = (
            replace(job, runs=(), only=run, name=f"{short}-{number}")
            for number, run in enumerate(job.runs)
        )
        return "---\n".join(map(render, jobs))
    documents = ([_config(job)] if job.text is not None else []) + [manifest(job)]
    head = [
        job.header,
        "",
        f"  kubectl apply -f {job.name}.gke.yaml",
        f"  kubectl delete jobset {job.name}",
    ]
    head.append(
        f"  kubectl logs -l jobset.sigs.k8s.io/jobset-name={job.name} --prefix --tail=-1 -f"
    )
    if not job.in_store:
        head.append(
            "The hosts' logs also lie below the workdir, in launch/, each restart appended."
        )
    text = yaml.dump_all(
        documents, Dumper=_Readable, sort_keys=False, allow_unicode=True, width=120
    )
    return f"{comment(chr(10).join(head))}\n{text}"


def manifest(job: Job) -> dict[str, Any]:
    """Returns the JobSet as plain dicts and lists."""
    tpu = job.hardware.platform == "tpu"
    # All pods of a Job must be on one slice, because the links of slices are not connected.
    together = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}
    slices = job.hardware.slices if tpu else 1
    hosts = job.hardware.hosts // slices
    saved = {"containerName": CONTAINER, "operator": "In", "values": [STOPPED]}
    # Before 0.11 JobSet requires the status; its default is True.
    disrupted = {"type": "DisruptionTarget", "status": "True"}
    preempted = {
        "name": "preempted",
        "action": "RestartJobSetAndIgnoreMaxRestarts",
        "onJobFailureReasons": ["PodFailurePolicy"],
    }
    work = {
        "parallelism": hosts,
        "completions": hosts,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onPodConditions": [disrupted]},
                {"action": "FailJob", "onExitCodes": saved},
            ]
        },
        "template": {"spec": _pod(job)},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": job.name, **({"annotations": together} if tpu else {})},
        "spec": {
            "network": {
                "enableDNSHostnames": True,
                "subdomain": job.name,
                "publishNotReadyAddresses": True,
            },
            "failurePolicy": {"maxRestarts": job.retries, "rules": [preempted]},
            "replicatedJobs": [{"name": HOSTS, "replicas": slices, "template": {"spec": work}}],
        },
    }


def _pod(job: Job) -> dict[str, Any]:
    mounts, volumes = list[dict[str, Any]](), list[dict[str, Any]]()
    if job.mount:
        claim, folder = job.mount
        mounts.append({"name": "work", "mountPath": folder})
        volumes.append({"name": "work", "persistentVolumeClaim": {"claimName": claim}})
    if job.text is not None:
        mounts.append({"name": "config", "mountPath": FILES, "readOnly": True})
        volumes.append({"name": "config", "configMap": {"name": _config_name(job)}})
    devices = {"tpu": "google.com/tpu", "gpu": "nvidia.com/gpu"}.get(job.hardware.platform)
    amount = {devices: job.hardware.devices} if devices else {}
    several = job.hardware.platform == "tpu" and job.hardware.slices > 1
    script = SCRIPT.format(
        host=template("host.sh").rstrip(), label="slice-$PTM_SLICE-" if several else ""
    )
    script = "\n".join(part for part in (job.setup, script) if part)
    words = job.command(config=f"{FILES}/config.py" if job.text is not None else None)
    container = {
        "name": CONTAINER,
        "image": job.image,
        "command": [literal(word) for word in ("bash", "-c", script, "host")],
        "args": [literal(word) for word in words],
        "env": _environment(job),
        **({"resources": {"requests": amount, "limits": amount}} if amount else {}),
        "volumeMounts": mounts,
    }
    pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": job.grace}
    if several:  # the hosts' own network, for messages between slices
        pod |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    if selector := _nodes(job):
        pod["nodeSelector"] = selector
    if job.hardware.platform == "gpu":
        pod["tolerations"] = [
            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
        ]
    return {**pod, "containers": [container], "volumes": volumes}


def _nodes(job: Job) -> dict[str, str]:
    """Returns the labels of the nodes for the pods."""
    labels, names = {}, job.hardware.names
    if job.hardware.platform == "tpu":
        labels = {
            "cloud.google.com/gke-tpu-accelerator": names.gke,
            "cloud.google.com/gke-tpu-topology": job.hardware.shape,
        }
    elif job.hardware.platform == "gpu":
        labels = {"cloud.google.com/gke-accelerator": names.gke}
    if job.spot:
        labels["cloud.google.com/gke-spot"] = "true"
    if job.zone:
        labels["topology.kubernetes.io/zone"] = job.zone
    return labels


def _environment(job: Job) -> list[dict[str, Any]]:
    """Returns the environment variables of the pods.

    On TPU slices GKE sets the process ids and the numbers of the slices. Elsewhere they are the
    pods' completion indices."""
    pairs = [("PTM_LOGS", f"/tmp/{job.logs}" if job.in_store else job.logs)]
    if job.hardware.platform != "tpu" and job.hardware.hosts > 1:
        first = f"{job.name}-{HOSTS}-0-0.{job.name}:{PORT}"
        pairs += [
            ("JAX_COORDINATOR_ADDRESS", first),
            ("JAX_NUM_PROCESSES", str(job.hardware.hosts)),
        ]
    variables: list[dict] = [
        {"name": name, "value": literal(value)} for name, value in [*pairs, *job.variables]
    ]
    if job.hardware.platform != "tpu" and job.hardware.hosts > 1:
        variables.append(
            {"name": "JAX_PROCESS_ID", "valueFrom": {"fieldRef": {"fieldPath": INDEX}}}
        )
    if job.hardware.platform == "tpu" and job.hardware.slices > 1:
        variables.append({"name": "PTM_SLICE", "valueFrom": {"fieldRef": {"fieldPath": SLICE}}})
    return variables


def _config(job: Job) -> dict[str, Any]:
    """Returns the config file as a ConfigMap, so that the image need not contain it."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": _config_name(job)},
        "data": {"config.py": job.text},
    }


def _config_name(job: Job) -> str:
    return f"{job.name}-config"


def literal(text: str) -> str:
    """Escapes `text` so that Kubernetes passes it unchanged.
    Kubernetes expands $(NAME) and reads $$ as $."""
    return re.sub(r"\$(?=[$(])", "$$", text)


class _Readable(yaml.SafeDumper):
    """Writes multi-line text as blocks, and no YAML references."""

    def ignore_aliases(self, data):
        return True


def _text(dumper, value):
    plain = "\n" in value and all(c.isprintable() or c == "\n" for c in value)
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if plain else None)


_Readable.add_representer(str, _text)

"""What a JobSet may hold, written by hand after its CRD (kubernetes-sigs/jobset, v1alpha2) and
Kubernetes' own types: only fields that `ptm launch` may write, each with its type; those with a
star are required. An unknown field is an error, as it is to `kubectl`."""

import re

TEXT, WHOLE, YES = str, int, bool


def one_of(*values):
    return lambda value: value in values


def mapping(value):
    return isinstance(value, dict) and all(
        isinstance(x, str) for pair in value.items() for x in pair
    )


def quantities(value):
    return isinstance(value, dict) and all(isinstance(x, int) and x > 0 for x in value.values())


NODE = {
    "*name": TEXT,
    "image": TEXT,
    "command": [TEXT],
    "args": [TEXT],
    "env": [{"*name": TEXT, "value": TEXT, "valueFrom": {"fieldRef": {"*fieldPath": TEXT}}}],
    "resources": {"requests": quantities, "limits": quantities},
    "volumeMounts": [{"*name": TEXT, "*mountPath": TEXT, "readOnly": YES}],
}
POD = {
    "restartPolicy": one_of("Never"),
    "terminationGracePeriodSeconds": WHOLE,
    "hostNetwork": YES,
    "dnsPolicy": one_of("ClusterFirstWithHostNet"),
    "nodeSelector": mapping,
    "tolerations": [{"key": TEXT, "operator": one_of("Exists"), "effect": one_of("NoSchedule")}],
    "*containers": [NODE],
    "volumes": [
        {"*name": TEXT, "persistentVolumeClaim": {"*claimName": TEXT}, "configMap": {"name": TEXT}}
    ],
}
EXITS = {"containerName": TEXT, "*operator": one_of("In", "NotIn"), "*values": [WHOLE]}
FAILURE = {
    "*action": one_of("FailJob", "FailIndex", "Ignore", "Count"),
    "onExitCodes": EXITS,
    "onPodConditions": [{"*type": TEXT, "*status": TEXT}],
}
JOB = {
    "parallelism": WHOLE,
    "completions": WHOLE,
    "completionMode": one_of("Indexed"),
    "backoffLimit": WHOLE,
    "podFailurePolicy": {"*rules": [FAILURE]},
    "*template": {"spec": POD},
}
ACTIONS = (
    "FailJobSet",
    "RestartJobSet",
    "RestartJobSetAndIgnoreMaxRestarts",
    "RestartJob",
    "RestartJobAndIgnoreMaxRestarts",
)
RULE = {
    "*name": TEXT,
    "*action": one_of(*ACTIONS),
    "onJobFailureReasons": [TEXT],
    "targetReplicatedJobs": [TEXT],
}
JOBSET = {
    "apiVersion": one_of("jobset.x-k8s.io/v1alpha2"),
    "kind": one_of("JobSet"),
    "metadata": {"name": TEXT, "annotations": mapping},
    "spec": {
        "network": {"enableDNSHostnames": YES, "subdomain": TEXT, "publishNotReadyAddresses": YES},
        "failurePolicy": {
            "maxRestarts": WHOLE,
            "rules": [RULE],
        },
        "replicatedJobs": [{"*name": TEXT, "replicas": WHOLE, "*template": {"spec": JOB}}],
    },
}
REASONS = (
    "BackoffLimitExceeded",
    "DeadlineExceeded",
    "FailedIndexes",
    "MaxFailedIndexesExceeded",
    "PodFailurePolicy",
)


def check(value, schema=JOBSET, path="") -> list[str]:
    """What is wrong with a manifest, one line each."""
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            return [f"{path} is no mapping"]
        known = {name.lstrip("*"): part for name, part in schema.items()}
        wrong = [f"{path}.{name} is unknown" for name in value if name not in known]
        wrong += [
            f"{path}.{name[1:]} is missing"
            for name in schema
            if name[0] == "*" and name[1:] not in value
        ]
        return wrong + [
            x
            for name in value
            if name in known
            for x in check(value[name], known[name], f"{path}.{name}")
        ]
    if isinstance(schema, list):
        if not isinstance(value, list):
            return [f"{path} is no list"]
        return [x for i, item in enumerate(value) for x in check(item, schema[0], f"{path}[{i}]")]
    fits = type(value) is schema if isinstance(schema, type) else schema(value)
    return [] if fits else [f"{path} is {value!r}"]


def expanded(text: str, variables: dict[str, str]) -> str:
    """`text` of a command, argument or variable as the container gets it
    (kubernetes/third_party/forked/golang/expansion): $(NAME) is replaced where NAME is known, $$ is
    a dollar, anything else stays."""
    return re.sub(
        r"\$(?:\$|\(([^)]*)\))", lambda m: "$" if m[0] == "$$" else variables.get(m[1], m[0]), text
    )

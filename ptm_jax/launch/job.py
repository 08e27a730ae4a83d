"""Describes a command on several hosts, for scripts and manifests."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import PurePosixPath

from ptm_jax.core.errors import UserError
from ptm_jax.data.stores import objects
from ptm_jax.launch.hardware import FLAGS, GATHERS, Hardware

KINDS = ("local", "slurm", "gke", "tpu-vm")

# Fields that only these kinds support.
OWN = {
    "partition": ("slurm",),
    "account": ("slurm",),
    "hours": ("slurm",),
    "image": ("gke",),
    "mount": ("gke", "tpu-vm"),
    "spot": ("gke", "tpu-vm"),
    "project": ("tpu-vm",),
    "zone": ("gke", "tpu-vm"),
}
NEEDED = {"gke": ("image", "mount"), "tpu-vm": ("project", "zone", "mount")}
NAME = r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?"
WORD = r"[A-Za-z0-9][A-Za-z0-9._,:-]*"
VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """A training run on several hosts, or a prediction whose hosts write shards.

    config, data, overrides, mesh, rules, slices   the arguments of `ptm train`
    workdir      folder of the run, on persistent storage that all hosts share, or a URL of an
                 object store
    text         content of the file `config`, for kinds without access to this machine's files
    setup        shell lines before the command, such as `source env/bin/activate`
    mount        (source, folder): a claim (gke) or an NFS export (tpu-vm), and its mount point on
                 the hosts
    grace        seconds for the last checkpoint, between SIGTERM and SIGKILL and before a time
                 limit
    retries      restarts after a failure; preemptions do not count
    program      command before `train`
    runs, only   names of the runs of a study, whose file is `config`: a job each; the run of this
                 job
    prediction   the arguments of `ptm predict`; (): the job trains
    """

    name: str
    config: str
    workdir: str
    hardware: Hardware = Hardware()
    data: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    mesh: str | None = None
    rules: str | None = None
    slices: int | None = None
    text: str | None = None
    environment: tuple[tuple[str, str], ...] = ()
    setup: str = ""
    grace: int = 300
    retries: int = 3
    partition: str | None = None
    account: str | None = None
    hours: float | None = None
    image: str | None = None
    mount: tuple[str, str] | None = None
    project: str | None = None
    zone: str | None = None
    spot: bool = False
    program: tuple[str, ...] = ("ptm",)
    header: str = ""
    runs: tuple[str, ...] = ()
    only: str = ""
    prediction: tuple[str, ...] = ()

    def __post_init__(self):
        _match("--name", self.name, NAME, "small letters, digits and dashes, at most 40")
        words = {
            "partition": self.partition,
            "account": self.account,
            "project": self.project,
            "zone": self.zone,
        }
        for field, word in words.items():
            if word is not None:
                _match(f"--{field}", word, WORD, "letters, digits and ._,:-")
        for name, _ in self.environment:
            _match("--env", name, VARIABLE, "the name of a variable, as --env NAME=VALUE")
        if self.grace < 1 or self.retries < 0:
            raise UserError(
                f"--grace {self.grace} --retries {self.retries}: at least 1 second, and no "
                "fewer than 0 retries"
            )
        if self.hours is not None and self.hours * 3600 <= self.grace:
            raise UserError(
                f"--hours {self.hours:g} leaves no time before the {self.grace} seconds of --grace"
            )
        if any("\0" in text for text in self.texts()):
            raise UserError("a value holds a NUL character, which no command can be given")

    @property
    def variables(self) -> tuple[tuple[str, str], ...]:
        """The environment of the processes: the user's, and on a TPU the compiler's flags."""
        named = {name for name, _ in self.environment}
        if self.hardware.platform != "tpu" or FLAGS in named:
            return self.environment
        return ((FLAGS, " ".join(GATHERS)), *self.environment)

    def texts(self) -> list[str]:
        """Returns the user's texts in the script or manifest."""
        pairs = [text for pair in self.environment for text in pair]
        return [
            *self.command(),
            *self.runs,
            *pairs,
            self.setup,
            self.image or "",
            *(self.mount or ()),
            self.text or "",
        ]

    def command(self, config: str | None = None) -> list[str]:
        """Returns the command of every host."""
        if self.prediction:
            return [*self.program, "predict", *self.prediction]
        if self.runs or self.only:
            words = [*self.program, "study", config or self.config, "--workdir", self.workdir]
            return words + (["--only", self.only] if self.only else [])
        words = [*self.program, "train", config or self.config, "--workdir", self.workdir]
        words += ["--data", *self.data] if self.data else []
        words += ["--mesh", self.mesh] if self.mesh else []
        words += ["--rules", self.rules] if self.rules else []
        words += ["--slices", str(self.slices)] if self.slices else []
        return words + (["--set", *self.overrides] if self.overrides else [])

    @property
    def logs(self) -> str:
        """The folder of the hosts' logs: of each host's own disk if the workdir is in a store."""
        if self.in_store:
            return str(PurePosixPath("ptm-launch") / self.name / self.only)
        return str(PurePosixPath(self.workdir) / "launch" / self.only)

    @property
    def in_store(self) -> bool:
        """Whether the workdir is in an object store. Then the hosts need no shared disk."""
        return objects.is_store(self.workdir)

    def check(self, kind: str) -> None:
        """Raises UserError for fields that this kind does not support, and for missing ones."""
        for field, kinds in OWN.items():
            if vars(self)[field] and kind not in kinds:
                raise UserError(
                    f"--{field} means nothing to {kind} (it is for {' and '.join(kinds)}); "
                    "leave it out"
                )
        free = ("mount",) if self.in_store else ()
        missing = [
            f"--{field}"
            for field in NEEDED.get(kind, ())
            if not vars(self)[field] and field not in free
        ]
        if self.runs and self.in_store:
            raise UserError("the runs of a study share locks of a disk; give a folder as --workdir")
        if missing:
            raise UserError(
                f"{kind} needs {' and '.join(missing)}; `ptm launch --help` has an example"
            )
        if self.runs and kind not in ("slurm", "gke"):
            raise UserError(
                f"{kind} runs no study; use slurm or gke, or `ptm study {self.config}` on "
                "this machine"
            )
        platform = self.hardware.platform
        if kind == "tpu-vm" and platform != "tpu":
            raise UserError("tpu-vm needs a TPU slice: --topology v5p:8x8x8")
        if kind == "gke" and platform is None:
            raise UserError("gke needs --topology, as v5p:8x8x8 or h200x16, to choose its nodes")
        if kind == "gke" and platform != "cpu" and self.hardware.names is None:
            raise UserError(
                f"GKE has no nodes with {self.hardware.where.chip.name}; `ptm launch --help` "
                "names some that it has"
            )
        hardware = self.hardware
        if kind == "gke" and hardware.slices > 1 and hardware.hosts == hardware.slices:
            raise UserError(
                f"GKE connects slices of several hosts, and one of {hardware.where} has one; "
                "choose larger slices, as v5e:4x4*2"
            )
        if kind in ("slurm", "local") and platform == "tpu":
            raise UserError(f"{kind} has no TPU slices; use gke or tpu-vm")
        if kind == "local" and platform == "gpu":
            raise UserError(
                "local runs several hosts on this machine's CPU: --hosts 2, or --topology cpu:8"
            )
        if (
            self.mount
            and not self.in_store
            and not PurePosixPath(self.workdir).is_relative_to(self.mount[1])
        ):
            raise UserError(
                f"--workdir {self.workdir} is not below {self.mount[1]}: a run needs the "
                "storage of --mount, "
                "which all hosts share and which outlives them"
            )


def name_of(config: str) -> str:
    """Returns the job name of a config, such as megatron-lm for `configs/megatron_lm.py`."""
    stem = PurePosixPath(config).name.removesuffix(".py").lower()
    name = re.sub(r"[^a-z0-9]+", "-", stem).strip("-")
    return (name if name[:1].isalpha() else f"ptm-{name}")[:40].strip("-")


def exports(pairs) -> str:
    """Returns shell lines that export (name, value) pairs."""
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in pairs)


def comment(text: str) -> str:
    """Returns `text` as a shell or YAML comment.
    Non-printable characters are escaped, so that they cannot end it."""
    return "\n".join(f"# {shown(line)}".rstrip() for line in text.splitlines() or [""])


def shown(text: str) -> str:
    """Returns the text on one line, for a comment."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _match(flag: str, value: str, pattern: str, what: str) -> None:
    if not re.fullmatch(pattern, value):
        raise UserError(f"{flag} is {value!r}; it must be {what}")

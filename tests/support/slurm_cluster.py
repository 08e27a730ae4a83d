"""A Slurm cluster of two nodes on this machine: munged, slurmctld and two slurmd of .venv/slurm, on
loopback. Everything that they write is below one folder."""

from __future__ import annotations

import contextlib
import os
import pwd
import random
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ptm_jax

PACKAGES = Path(ptm_jax.__file__).parents[1] / ".venv" / "slurm"
"""Debian's packages of Slurm and munge, unpacked, which come with `make test-full`."""
USER = pwd.getpwuid(os.getuid()).pw_name
NODES = ("127.0.0.1", "127.0.0.2")
"""Names of the nodes, which are their addresses: a job connects to its first node by the name."""
CONFIG = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
PluginDir={plugins}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/linear
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
FirstJobId={first}
NodeName={nodes[0]} NodeHostname=first NodeAddr={nodes[0]} Port={ports[1]} CPUs=1
NodeName={nodes[1]} NodeHostname=second NodeAddr={nodes[1]} Port={ports[2]} CPUs=1
PartitionName=usual Nodes=ALL Default=YES PriorityTier=1
PartitionName=urgent Nodes=ALL PriorityTier=2 PreemptMode=OFF
"""


class Cluster:
    """The daemons' folder and environment. `logs` of the daemons say why one does not start."""

    def __init__(self, folder: Path, packages: Path):
        libraries = next((packages / "usr" / "lib").glob("*/slurm-wlm"))
        self.folder, self._sbin = folder, packages / "usr" / "sbin"
        self.environment = {
            **os.environ,
            "PATH": f"{packages / 'usr' / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "LD_LIBRARY_PATH": f"{libraries.parent}{os.pathsep}{libraries}",
            "SLURM_CONF": str(folder / "slurm.conf"),
        }
        values = {
            "host": socket.gethostname().partition(".")[0],
            "user": USER,
            "ports": _free_ports(3),
            "folder": folder,
            "plugins": libraries,
            "nodes": NODES,
            # The port of a job's process 0 follows from its number, below the system's own ports.
            "first": random.randrange(1000, 12000),
        }
        (folder / "slurm.conf").write_text(CONFIG.format(**values))
        (folder / "state").mkdir()

    @contextlib.contextmanager
    def running(self) -> Iterator[Cluster]:
        """Starts the daemons in the foreground of this process, and ends them and all jobs."""
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        files = {"key": "key", "log": "log", "pid": "pid", "seed": "seed"}
        munge = [f"--{name}-file={self.folder}/munge.{end}" for name, end in files.items()]
        commands = [
            ["munged", "-F", "--force", f"--socket={self.folder}/munge.socket", *munge],
            ["slurmctld-wlm", "-D"],
            *(["slurmd-wlm", "-D", "-N", n, "-d", self._sbin / "slurmstepd-wlm"] for n in NODES),
        ]
        daemons: list[subprocess.Popen] = []
        try:
            with (self.folder / "daemons.log").open("wb") as log:
                for number, words in enumerate(commands):
                    command = [self._sbin / words[0], *words[1:]]
                    daemons.append(
                        subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
                    )
                    if not number:
                        self.wait(lambda: (self.folder / "munge.socket").exists(), 20)
            self.wait(lambda: self.call("sinfo", "-p", "usual", "-ho", "%D %t") == "2 idle\n", 30)
            yield self
        finally:
            self.clear()
            for daemon in reversed(daemons):
                daemon.terminate()
            for daemon in daemons:
                try:
                    daemon.wait(20)
                except subprocess.TimeoutExpired:
                    daemon.kill()

    def clear(self) -> None:
        """Ends all jobs, and waits until they are gone."""
        if self.call("squeue", "-h"):
            for more in (["--signal=KILL", "--full"], []):
                self.call("scancel", f"--user={USER}", *more)
            end = time.monotonic() + 40
            while self.call("squeue", "-h") and time.monotonic() < end:
                time.sleep(0.1)

    def call(self, *words: str) -> str:
        """What a program of Slurm prints; its errors too."""
        done = subprocess.run(
            words,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stdout

    def job(self, number: str) -> dict[str, str]:
        """The fields that `scontrol show job` prints."""
        pairs = (
            word.partition("=") for word in self.call("scontrol", "show", "job", number).split()
        )
        return {name: value for name, _, value in pairs}

    def state(self, number: str) -> str:
        return self.job(number).get("JobState", "")

    def wait(self, met: Callable[[], bool], seconds: float = 240) -> None:
        """Waits until `met()`. Fails with the end of every log below the folder."""
        end = time.monotonic() + seconds
        while not met():
            if time.monotonic() > end:
                logs = sorted(self.folder.rglob("*.log"))
                tails = [f"{log}\n{log.read_text(errors='replace')[-2000:]}" for log in logs]
                raise AssertionError("\n".join([self.call("squeue"), *tails]))
            time.sleep(0.1)


def packages() -> Path:
    """The packages' folder. Skips the test where they are not unpacked."""
    place = Path(os.environ.get("PTM_SLURM_PACKAGES", PACKAGES))
    if not (place / "usr" / "sbin" / "slurmctld-wlm").exists():
        pytest.skip("needs Debian's Slurm in .venv/slurm (make test-full)")
    return place


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [server.getsockname()[1] for server in servers]

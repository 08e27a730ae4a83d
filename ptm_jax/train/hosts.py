"""Which process of how many this one is, from what the launcher put into the environment, and how they meet.

    explicit          PTM_ or JAX_: COORDINATOR_ADDRESS (host:port), NUM_PROCESSES, PROCESS_ID
    Open MPI          OMPI_COMM_WORLD_SIZE, _RANK, _LOCAL_RANK, _LOCAL_SIZE; the address from OMPI_MCA_orte_hnp_uri
    Slurm             a step of srun: SLURM_STEP_NUM_TASKS, SLURM_PROCID, SLURM_LOCALID, SLURM_STEP_NODELIST
    Cloud TPU, GKE    TPU_WORKER_ID, TPU_WORKER_HOSTNAMES; with several slices MEGASCALE_NUM_SLICES, _SLICE_ID,
                      _COORDINATOR_ADDRESS
    indexed Job       JOB_COMPLETION_INDEX (a JobSet's too) with an explicit address and number of processes
    PTM_HOSTS=auto    whatever `jax.distributed.initialize()` finds by itself: metadata servers, the Kubernetes API, mpi4py

What is explicit goes before what a cluster says; a process that is alone joins nothing. JAX_COORDINATOR_PORT overrides
the port. `detect` is a function of the environment; `join` is to be called before anything touches a device.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import re
import signal
import socket
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from ptm_jax.core.errors import UserError

JOIN_SECONDS = 300
"""How long processes wait for each other at the start; PTM_JOIN_SECONDS overrides it."""
HEARTBEAT_SECONDS = 100
"""After which JAX gives a silent process up. `train.group` notices a dead one at once and a silent one before that."""

_TPU_PORT = 8482
_EXPLICIT = {"address": "COORDINATOR_ADDRESS", "count": "NUM_PROCESSES", "index": "PROCESS_ID"}

Environ = Mapping[str, str]

_met: Place | None = None


@dataclasses.dataclass(frozen=True)
class Place:
    """Process `index` of `count`, which meet at `address`; without one JAX finds all three (`source` "auto").

    local  the devices of this machine that are this process's; None: all of them
    """

    source: str
    address: str | None = None
    count: int | None = None
    index: int | None = None
    local: tuple[int, ...] | None = None


def detect(environ: Environ) -> Place | None:
    """Where this process stands, or None for one that is alone. Raises UserError for variables that contradict."""
    if environ.get("PTM_HOSTS", "auto") != "auto":
        raise UserError(f"PTM_HOSTS is {environ['PTM_HOSTS']!r}; the only value is auto, else leave it out")
    if "PTM_HOSTS" in environ:
        return Place("auto")
    given = _given(environ)
    found = None
    if len(given) < len(_EXPLICIT):
        found = _open_mpi(environ) or _slurm(environ) or _cloud_tpu(environ) or _indexed(environ, given)
    place = _merged(found, given)
    if place is None:
        return None
    if not 0 <= place.index < place.count:
        raise UserError(
            f"process {place.index} of {place.count} ({place.source}): processes count from 0; correct the launcher"
        )
    if place.count == 1:
        return None
    if place.address is None:
        raise UserError(
            f"{place.source} started {place.count} processes and does not say where they meet; set "
            "JAX_COORDINATOR_ADDRESS=HOST:PORT to the first host and a free port, the same for all"
        )
    if not re.fullmatch(r".+:\d+", place.address):
        raise UserError(f"the address of the coordinator is {place.address!r}; expected HOST:PORT")
    return place


def join(environ: Environ | None = None) -> Place | None:
    """Meet the other processes, if there are any. Call it before anything touches a device. Raises UserError."""
    global _met
    environ = os.environ if environ is None else environ
    place = detect(environ)
    if place is None or jax.distributed.is_initialized():
        return place
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # SIGTERM is ours: `train.group`
    seconds = int(_number(environ, "PTM_JOIN_SECONDS") or JOIN_SECONDS)
    options = {"initialization_timeout": seconds, "heartbeat_timeout_seconds": HEARTBEAT_SECONDS}
    if place.source != "auto":
        options |= {
            "coordinator_address": place.address,
            "num_processes": place.count,
            "process_id": place.index,
            "local_device_ids": place.local,
            "cluster_detection_method": "deactivate",
        }
    _knock(place, seconds)
    with _quiet_abort(lambda: _unmet(place, f"not all of them came in {seconds} s")):
        try:
            jax.distributed.initialize(**options)
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise UserError(_unmet(place, reason)) from error
    _met = place
    return place


def coordinator() -> str | None:
    """The host where the processes met, by the name that all of them know; None where JAX found it."""
    return None if _met is None or _met.address is None else _met.address.rpartition(":")[0].strip("[]")


def quit_with(text: str, status: int) -> None:
    """Print one line and end this process at once: JAX would first wait for processes that do not come."""
    print(f"ptm: {' '.join(text.split())}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(status)


def on_abort(call: Callable[[], None] | None) -> Any:
    """Calls `call` before this process dies of SIGABRT (None: nothing any more); returns what must be kept for it.

    JAX's client aborts where processes do not come or process 0, which has its service, is gone. Python's own handlers run
    in the main thread, for which an abort does not wait.
    """
    libc = ctypes.CDLL(None)
    libc.signal.restype = ctypes.c_void_p
    kind = ctypes.CFUNCTYPE(None, ctypes.c_int)
    handler = None if call is None else kind(lambda _: call())
    libc.signal(signal.SIGABRT, ctypes.cast(handler, ctypes.c_void_p) if handler else ctypes.c_void_p(0))
    return handler


def _knock(place: Place, seconds: float) -> None:
    """Wait until process 0 listens. Raises UserError where nobody does: JAX would not say where it looked."""
    if place.address is None:
        return
    host, port = place.address.rsplit(":", 1)
    end = time.monotonic() + seconds
    try:
        if place.index == 0:
            socket.create_server(("", int(port))).close()
            return
        while True:
            try:
                socket.create_connection((host.strip("[]"), int(port)), timeout=5.0).close()
                return
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(_unmet(place, reason if place.index == 0 else f"nobody there in {seconds} s ({reason})")) from error


@contextlib.contextmanager
def _quiet_abort(text: Callable[[], str]) -> Iterator[None]:
    """An abort inside prints `text()` instead of a stack of C++ functions; what else is printed comes at the end."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as said:
        stderr = os.dup(2)

        def back():
            os.dup2(stderr, 2)
            os.close(stderr)

        kept = on_abort(lambda: (back(), quit_with(text(), 1)))
        os.dup2(said.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            on_abort(None)
            del kept
            back()
            said.seek(0)
            sys.stderr.write(said.read().decode(errors="replace"))


def _unmet(place: Place, reason: str) -> str:
    if place.source == "auto":
        return f"PTM_HOSTS=auto: JAX did not find the other processes ({reason}); set JAX_COORDINATOR_ADDRESS and the like"
    return (
        f"process {place.index} of {place.count} ({place.source}) could not meet the others at {place.address}: {reason}; "
        "check that all were started, that they can reach process 0 there, and that its port is free"
    )


def _given(environ: Environ) -> dict[str, tuple[str, str]]:
    """{part: (variable, value)} of what is explicit."""
    found = {}
    for part, name in _EXPLICIT.items():
        there = {prefix + name: environ[prefix + name] for prefix in ("PTM_", "JAX_") if environ.get(prefix + name)}
        if len(set(there.values())) > 1:
            raise UserError(f"{' and '.join(f'{k}={v}' for k, v in there.items())} contradict each other; unset one")
        if there:
            found[part] = next(iter(there.items()))
    return found


def _merged(found: Place | None, given: dict[str, tuple[str, str]]) -> Place | None:
    """The place a cluster tells with what is explicit instead; None where nothing is told."""
    if not given:
        return found
    values = {part: value if part == "address" else _whole(name, value) for part, (name, value) in given.items()}
    if found is None:
        if missing := [f"JAX_{_EXPLICIT[part]}" for part in _EXPLICIT if part not in given]:
            there = ", ".join(name for name, _ in given.values())
            raise UserError(f"{there} without {' and '.join(missing)}; set all of them, or none for a single process")
        return Place("environment", **values)
    for part in ("count", "index"):
        if part in values and values[part] != getattr(found, part):
            there = f"{given[part][0]}={values[part]}"
            raise UserError(f"{there} contradicts {found.source}, which says {getattr(found, part)}; unset {given[part][0]}")
    return dataclasses.replace(found, **values)


def _open_mpi(environ: Environ) -> Place | None:
    count = _number(environ, "OMPI_COMM_WORLD_SIZE")
    if count is None:
        return None
    index = _needed(environ, "OMPI_COMM_WORLD_RANK", "mpirun")
    here, size = _number(environ, "OMPI_COMM_WORLD_LOCAL_RANK"), _number(environ, "OMPI_COMM_WORLD_LOCAL_SIZE")
    uri = environ.get("OMPI_MCA_orte_hnp_uri", "")  # 1531576320.0;tcp://10.96.0.1,10.148.0.1:34911
    host = re.search(r"tcp://([^,:]+)|tcp6://\[([^,\]]+)", uri)
    job = re.match(r"\d+", uri)
    address = None
    if host and job:
        address = _at(host[1] or f"[{host[2]}]", _port(environ, int(job[0]) >> 12))
    elif size == count:  # all on one machine (Open MPI 5 tells no address)
        seed = environ.get("PMIX_NAMESPACE", environ.get("OMPI_MCA_ess_base_jobid", ""))
        address = _at("127.0.0.1", _port(environ, zlib.crc32(seed.split("@")[0].encode())))
    return Place("Open MPI", address, count, index, _devices(environ, here, size))


def _slurm(environ: Environ) -> Place | None:
    """A step of srun; a batch script or an interactive shell, which is one process, has no list of a step's nodes."""
    nodes, job = environ.get("SLURM_STEP_NODELIST"), _number(environ, "SLURM_JOB_ID")
    count = _number(environ, "SLURM_STEP_NUM_TASKS") or _number(environ, "SLURM_NTASKS")
    if not nodes or job is None or count is None:
        return None
    index, here = _needed(environ, "SLURM_PROCID", "srun"), _number(environ, "SLURM_LOCALID")
    tasks = re.match(r"\d+", environ.get("SLURM_STEP_TASKS_PER_NODE", ""))  # 2(x3),1: those of the first nodes
    size = int(tasks[0]) if tasks else 1 if _number(environ, "SLURM_STEP_NUM_NODES") == count else None
    port = _port(environ, job + 131 * (_number(environ, "SLURM_STEP_ID") or 0))
    return Place("Slurm", _at(first_host(nodes), port), count, index, _devices(environ, here, size))


def _cloud_tpu(environ: Environ) -> Place | None:
    names = environ.get("TPU_PROCESS_ADDRESSES") or environ.get("TPU_WORKER_HOSTNAMES") or ""
    hosts = [name.strip() for name in names.split(",") if name.strip()]
    slices = _number(environ, "MEGASCALE_NUM_SLICES") or 1
    if len(hosts) * slices < 2:
        return None
    index = _needed(environ, "TPU_WORKER_ID", "the TPU's environment")
    if slices > 1:
        index += len(hosts) * _needed(environ, "MEGASCALE_SLICE_ID", "the TPU's environment")
    first = (environ.get("MEGASCALE_COORDINATOR_ADDRESS") if slices > 1 else None) or hosts[0]
    port = _number(environ, "JAX_COORDINATOR_PORT") or _TPU_PORT
    return Place("Cloud TPU", _at(first.split(":")[0], port), len(hosts) * slices, index)


def _indexed(environ: Environ, given: Mapping[str, tuple[str, str]]) -> Place | None:
    """A pod of an indexed Job whose manifest sets the address and the number; Jobs of one pod each need neither."""
    index = _number(environ, "JOB_COMPLETION_INDEX")
    if index is None or not {"address", "count"} <= given.keys():
        return None
    name, value = given["count"]
    return Place("Kubernetes", given["address"][1], _whole(name, value), index)


def first_host(nodes: str) -> str:
    """The first of a Slurm list of hosts: node[001-015,020],other gives node001."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodes)[0]
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first)


def _devices(environ: Environ, here: int | None, size: int | None) -> tuple[int, ...] | None:
    """The GPUs of process `here` of `size` on one machine: its share, unless the launcher gave it some of its own."""
    if environ.get("JAX_LOCAL_DEVICE_IDS") or here is None or size == 1:
        return None
    visible = environ.get("CUDA_VISIBLE_DEVICES", "")
    gpus = len([x for x in visible.split(",") if x.strip()]) or _number(environ, "SLURM_GPUS_ON_NODE")
    if gpus is None or size is None:
        return None if gpus == 1 else (here,)
    share = gpus // size
    return tuple(range(here * share, (here + 1) * share)) or None


def _at(host: str, port: int) -> str:
    return f"{host}:{port}"


def _port(environ: Environ, seed: int) -> int:
    """One of the highest 4096, as JAX takes it: different jobs on one host shall not meet."""
    return _number(environ, "JAX_COORDINATOR_PORT") or 61440 + seed % 4096


def _number(environ: Environ, name: str) -> int | None:
    value = environ.get(name, "").strip()
    return _whole(name, value) if value else None


def _needed(environ: Environ, name: str, who: str) -> int:
    value = _number(environ, name)
    if value is None:
        raise UserError(
            f"{who} did not set {name}; set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID instead"
        )
    return value


def _whole(name: str, value: str) -> int:
    if not value.strip().isdecimal():
        raise UserError(f"{name} is {value!r}; expected a whole number")
    return int(value)

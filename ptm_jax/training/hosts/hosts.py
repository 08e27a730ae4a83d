"""Detects from the launcher's environment whether there are several processes, and connects them.

    explicit          PTM_ or JAX_: COORDINATOR_ADDRESS (host:port), NUM_PROCESSES, PROCESS_ID
    Slurm, Open MPI   a task of srun or mpirun; `jax.distributed.initialize` finds the address
    Cloud TPU, GKE    TPU_WORKER_HOSTNAMES, with several slices MEGASCALE_NUM_SLICES; JAX finds the
                      rest
    indexed Job       JOB_COMPLETION_INDEX (a JobSet's too) with an explicit address and number of
                      processes
    PTM_HOSTS=auto    JAX finds everything: metadata servers, the Kubernetes API

Explicit variables take precedence over the cluster's variables. A single process joins nothing.
This module adds to JAX: explicit number and index, division of a machine's GPUs among its
processes, Open MPI 5 on one machine, and a one-line error if processes cannot connect. `detect` is
a function of the environment. Call `join` before anything touches a device.
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
"""Seconds that processes wait for each other at the start; PTM_JOIN_SECONDS overrides it."""
HEARTBEAT_SECONDS = 100
"""Seconds after which JAX drops a silent process. `training.hosts.group` notices it earlier, and a
dead process at once."""

_EXPLICIT = {"address": "COORDINATOR_ADDRESS", "count": "NUM_PROCESSES", "index": "PROCESS_ID"}

Environ = Mapping[str, str]

_met: HostProcess | None = None


@dataclasses.dataclass(frozen=True)
class HostProcess:
    """Process `index` of `count`, which connect to `address`.
    JAX finds fields that are None, by its method `cluster`.

    source  name of the launcher, for messages
    local   devices of this machine that belong to this process; (): all of them
    """

    source: str
    address: str | None = None
    count: int | None = None
    index: int | None = None
    local: tuple[int, ...] = ()
    cluster: str | None = None


def detect(environ: Environ) -> HostProcess | None:
    """Returns the place of this process, or None for a single process.
    Raises UserError for contradictory variables."""
    if environ.get("PTM_HOSTS", "auto") != "auto":
        raise UserError(
            f"PTM_HOSTS is {environ['PTM_HOSTS']!r}; the only value is auto, else leave it out"
        )
    if "PTM_HOSTS" in environ:
        return HostProcess("PTM_HOSTS=auto")
    explicit = _given(environ)
    cluster = None
    if len(explicit) < len(_EXPLICIT):
        cluster = (
            _open_mpi(environ)
            or _slurm(environ)
            or _cloud_tpu(environ)
            or _indexed(environ, explicit)
        )
    place = _merged(cluster, explicit)
    if place is None or place.count == 1:
        return None
    if place.index is not None and not 0 <= place.index < place.count:
        raise UserError(
            f"process {place.index} of {place.count} ({place.source}): processes count from "
            "0; correct the launcher"
        )
    if place.address is not None and not re.fullmatch(r".+:\d+", place.address):
        raise UserError(f"the address of the coordinator is {place.address!r}; expected HOST:PORT")
    return place


def join(environ: Environ | None = None) -> HostProcess | None:
    """Connects to the other processes, if any.
    Call it before anything touches a device. Raises UserError."""
    global _met
    environ = os.environ if environ is None else environ
    place = detect(environ)
    if place is None or jax.distributed.is_initialized():
        return place
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # SIGTERM is handled in `training.hosts.group`
    jax.config.update("jax_enable_preemption_service", False)
    seconds = int(_number(environ, "PTM_JOIN_SECONDS") or JOIN_SECONDS)
    _knock(place, seconds)
    with _quiet_abort(lambda: _unmet(place, f"not all of them came in {seconds} s")):
        try:
            jax.distributed.initialize(
                **options_of(place),
                initialization_timeout=seconds,
                heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            )
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise UserError(_unmet(place, reason)) from error
    _met = place
    return place


def options_of(place: HostProcess) -> dict[str, Any]:
    """Returns the arguments of `jax.distributed.initialize`, which finds those that are None."""
    known = place.address is not None and place.index is not None
    # An empty list means all devices. With None, JAX takes one device per process of a Slurm or
    # Open MPI job.
    one_device = place.count is not None and not os.environ.get("JAX_LOCAL_DEVICE_IDS")
    return {
        "coordinator_address": place.address,
        "num_processes": place.count,
        "process_id": place.index,
        "local_device_ids": list(place.local) if one_device else None,
        "cluster_detection_method": "deactivate" if known else place.cluster,
    }


def coordinator() -> str | None:
    """Returns the host of the coordinator address, or None if JAX found it."""
    return (
        None
        if _met is None or _met.address is None
        else _met.address.rpartition(":")[0].strip("[]")
    )


def quit_with(text: str, status: int) -> None:
    """Prints one line and ends this process at once.
    A normal exit of JAX would wait for missing processes."""
    print(f"ptm: {' '.join(text.split())}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(status)


def on_abort(call: Callable[[], None] | None) -> Any:
    """Calls `call` before this process dies of SIGABRT. None removes the handler.
    Keep the returned value alive.

    JAX's client aborts if processes are missing or process 0, which runs the service, is gone.
    Python's signal handlers run in the main thread, and an abort does not wait for it.
    """
    libc = ctypes.CDLL(None)
    libc.signal.restype = ctypes.c_void_p
    kind = ctypes.CFUNCTYPE(None, ctypes.c_int)
    handler = None if call is None else kind(lambda _: call())
    libc.signal(
        signal.SIGABRT, ctypes.cast(handler, ctypes.c_void_p) if handler else ctypes.c_void_p(0)
    )
    return handler


def _knock(place: HostProcess, seconds: float) -> None:
    """Waits until process 0 listens.
    Raises UserError with the address otherwise; JAX's error does not name it."""
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
        raise UserError(
            _unmet(place, reason if place.index == 0 else f"nobody there in {seconds} s ({reason})")
        ) from error


@contextlib.contextmanager
def _quiet_abort(text: Callable[[], str]) -> Iterator[None]:
    """Context manager in which an abort prints `text()` instead of a C++ stack.
    Other output is printed at the end."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as kept_back:
        stderr = os.dup(2)

        def back():
            os.dup2(stderr, 2)
            os.close(stderr)

        handler = on_abort(lambda: (back(), quit_with(text(), 1)))
        os.dup2(kept_back.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            on_abort(None)
            del handler
            back()
            kept_back.seek(0)
            sys.stderr.write(kept_back.read().decode(errors="replace"))


def _unmet(place: HostProcess, reason: str) -> str:
    if place.index is None:
        return (
            f"{place.source}: JAX did not find the other processes ({reason}); set "
            "JAX_COORDINATOR_ADDRESS and the like"
        )
    where = f"at {place.address}" if place.address else "where JAX expected process 0"
    return (
        f"process {place.index} of {place.count} ({place.source}) could not meet the others "
        f"{where}: {reason}; check that "
        "all were started, that they can reach process 0 there, and that its port is free "
        "(else set JAX_COORDINATOR_ADDRESS)"
    )


def _given(environ: Environ) -> dict[str, tuple[str, str]]:
    """Returns {part: (variable, value)} of the explicit variables."""
    explicit = {}
    for part, name in _EXPLICIT.items():
        values = {
            prefix + name: environ[prefix + name]
            for prefix in ("PTM_", "JAX_")
            if environ.get(prefix + name)
        }
        if len(set(values.values())) > 1:
            raise UserError(
                f"{' and '.join(f'{k}={v}' for k, v in values.items())} contradict each "
                "other; unset one"
            )
        if values:
            explicit[part] = next(iter(values.items()))
    return explicit


def _merged(
    cluster: HostProcess | None, explicit: dict[str, tuple[str, str]]
) -> HostProcess | None:
    """Returns the place of a cluster, overridden by explicit values; None if neither exists."""
    if not explicit:
        return cluster
    values = {
        part: value if part == "address" else _whole(name, value)
        for part, (name, value) in explicit.items()
    }
    if cluster is None:
        if missing := [f"JAX_{_EXPLICIT[part]}" for part in _EXPLICIT if part not in explicit]:
            setting = ", ".join(name for name, _ in explicit.values())
            raise UserError(
                f"{setting} without {' and '.join(missing)}; set all of them, or none for a "
                "single process"
            )
        return HostProcess("environment", **values)
    for part, value in (("count", cluster.count), ("index", cluster.index)):
        if part in values and value is not None and values[part] != value:
            setting = f"{explicit[part][0]}={values[part]}"
            raise UserError(
                f"{setting} contradicts {cluster.source}, which has {value}; "
                f"unset {explicit[part][0]}"
            )
    return dataclasses.replace(cluster, **values)


def _open_mpi(environ: Environ) -> HostProcess | None:
    count = _number(environ, "OMPI_COMM_WORLD_SIZE")
    if count is None:
        return None
    index = _number(environ, "OMPI_COMM_WORLD_RANK", "mpirun")
    here, size = (
        _number(environ, "OMPI_COMM_WORLD_LOCAL_RANK"),
        _number(environ, "OMPI_COMM_WORLD_LOCAL_SIZE"),
    )
    address = None
    if (
        "OMPI_MCA_orte_hnp_uri" not in environ and count > 1
    ):  # Open MPI 5, which JAX does not detect
        if size != count and not _given(environ).get("address"):
            raise UserError(
                f"Open MPI started {count} processes and names no address; set "
                "JAX_COORDINATOR_ADDRESS=HOST:PORT to the "
                "first host and a free port, the same for all"
            )
        seed = environ.get("PMIX_NAMESPACE", environ.get("OMPI_MCA_ess_base_jobid", "")).split("@")[
            0
        ]
        port = _number(environ, "JAX_COORDINATOR_PORT") or 61440 + zlib.crc32(seed.encode()) % 4096
        address = f"127.0.0.1:{port}"
    return HostProcess("Open MPI", address, count, index, _devices(environ, here, size), "ompi")


def _slurm(environ: Environ) -> HostProcess | None:
    """Returns the place of an srun task.
    A batch script or an interactive shell has no list of a step's nodes."""
    count = _number(environ, "SLURM_STEP_NUM_TASKS") or _number(environ, "SLURM_NTASKS")
    if not environ.get("SLURM_STEP_NODELIST") or count is None:
        return None
    index, here = _number(environ, "SLURM_PROCID", "srun"), _number(environ, "SLURM_LOCALID")
    tasks = re.match(
        r"\d+", environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    )  # "2(x3),1": the first number
    size = (
        int(tasks[0]) if tasks else 1 if _number(environ, "SLURM_STEP_NUM_NODES") == count else None
    )
    return HostProcess("Slurm", None, count, index, _devices(environ, here, size), "slurm")


def _cloud_tpu(environ: Environ) -> HostProcess | None:
    """Returns the place of a host of a TPU slice, or of several slices."""
    hosts = (
        environ.get("TPU_PROCESS_ADDRESSES") or environ.get("TPU_WORKER_HOSTNAMES") or ""
    ).split(",")
    count = sum(bool(host.strip()) for host in hosts) * (
        _number(environ, "MEGASCALE_NUM_SLICES") or 1
    )
    return HostProcess("Cloud TPU", count=count) if count > 1 else None


def _indexed(environ: Environ, explicit: Mapping[str, tuple[str, str]]) -> HostProcess | None:
    """Returns the place of a pod of an indexed Job.
    The manifest sets address and number, unless there is one pod."""
    index = _number(environ, "JOB_COMPLETION_INDEX")
    if index is None or not {"address", "count"} <= explicit.keys():
        return None
    name, value = explicit["count"]
    return HostProcess("Kubernetes", explicit["address"][1], _whole(name, value), index)


def _devices(environ: Environ, here: int | None, size: int | None) -> tuple[int, ...]:
    """Returns the share of GPUs of process `here` of `size` on one machine, unless the launcher
    assigned some."""
    if here is None or size == 1:
        return ()
    visible = environ.get("CUDA_VISIBLE_DEVICES", "")
    gpus = len([x for x in visible.split(",") if x.strip()]) or _number(
        environ, "SLURM_GPUS_ON_NODE"
    )
    if gpus is None or size is None:
        return () if gpus == 1 else (here,)
    share = gpus // size
    return tuple(range(here * share, (here + 1) * share))


def _number(environ: Environ, name: str, who: str = "") -> int | None:
    """Returns the number in a variable, or None.
    Raises UserError for a missing one that the launcher `who` sets."""
    value = environ.get(name, "").strip()
    if who and not value:
        advice = "set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID instead"
        raise UserError(f"{who} did not set {name}; {advice}")
    return _whole(name, value) if value else None


def _whole(name: str, value: str) -> int:
    if not value.strip().isdecimal():
        raise UserError(f"{name} is {value!r}; expected a whole number")
    return int(value)


def own_address() -> list[int]:
    """Returns the four bytes of the IP address by which this machine reaches others."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
            address = probe.getsockname()[0]
        except OSError:
            address = "127.0.0.1"
    return [int(part) for part in address.split(".")]

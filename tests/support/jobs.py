"""Processes of one command, as a launcher starts them."""

import os
import socket
import subprocess
from pathlib import Path

from support import tiny_runs as tiny


class Job:
    """The processes of a command, with the environment that a launcher would give them.

    faults  {process: more of its environment}
    """

    def __init__(self, command, count, devices=1, *, faults=None, **more):
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = f"127.0.0.1:{server.getsockname()[1]}"
        env = {
            **os.environ,
            "PYTHONPATH": str(Path(tiny.FILE).parents[2]),
            "JAX_NUM_CPU_DEVICES": str(devices),
            "JAX_NUM_PROCESSES": str(count),
            "JAX_COORDINATOR_ADDRESS": address,
            "PYTHONUNBUFFERED": "1",
            **more,
        }
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.processes = [
            subprocess.Popen(
                command, env=env | {"JAX_PROCESS_ID": str(i)} | (faults or {}).get(i, {}), **pipes
            )
            for i in range(count)
        ]

    def kill(self, index, by):
        self.processes[index].send_signal(by)

    def end(self, timeout=240):
        """[(exit status, stdout, stderr)], after all have ended. Raises TimeoutExpired after
        `timeout` seconds."""
        try:
            ends = [process.communicate(timeout=timeout) for process in self.processes]
        finally:
            for process in self.processes:
                process.kill()
        return [
            (process.returncode, *end) for process, end in zip(self.processes, ends, strict=True)
        ]

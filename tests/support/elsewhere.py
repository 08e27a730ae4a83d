"""A function of a test file in another process, where its devices are other than those of this one.

A process serves every call with its environment: starting one takes several seconds, and a call
often less.
"""

from __future__ import annotations

import ast
import atexit
import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
LIMIT = 900
"""Seconds that a call may take."""
SERVERS = 4
"""Processes that wait at a time; the one that was called first goes."""


class Server:
    """A process that calls functions of test files."""

    def __init__(self, env: dict[str, str]):
        paths = TESTS, TESTS.parent, env.get("PYTHONPATH", "")
        env = {**env, "PYTHONPATH": os.pathsep.join(filter(None, map(str, paths)))}
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "support.elsewhere"],
            env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
        )  # fmt: skip

    def call(self, function, arguments):
        """Returns the function's result, which JSON can hold. Fails with the end of the errors."""
        file = function.__code__.co_filename
        self.process.stdin.write(repr((file, function.__name__, arguments)) + "\n")
        self.process.stdin.flush()
        timer = threading.Timer(LIMIT, self.process.kill)
        timer.start()
        try:
            line = self.process.stdout.readline()
        finally:
            timer.cancel()
        answer = json.loads(line) if line else {"error": f"the process ended\n{self.tail()}"}
        assert "error" not in answer, answer["error"][-4000:]
        return answer["result"]

    def tail(self) -> str:
        self.process.wait()
        self.errors.seek(0)
        return self.errors.read()[-3000:]

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.errors.close()


_servers: dict[tuple, Server] = {}


@atexit.register
def close() -> None:
    """End every process."""
    while _servers:
        _servers.popitem()[1].close()


def call(function, *arguments, env):
    """What the function returns there; `env` is its environment, arguments and result are what JSON
    can hold."""
    key = tuple(sorted((k, v) for k, v in env.items() if k != "PYTEST_CURRENT_TEST"))
    server = _servers.pop(key, None)
    if server is None or server.process.poll() is not None:
        while len(_servers) >= SERVERS:
            _servers.pop(next(iter(_servers))).close()
        server = Server(dict(key))
    _servers[key] = server  # the last one
    return server.call(function, arguments)


def on_devices(count, function, *arguments):
    """What the function returns where there are so many CPU devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
    return call(function, *arguments, env={**os.environ, "XLA_FLAGS": flags})


def answer_to(file: str, name: str, arguments: tuple) -> dict:
    """{"result": what a function of a file returns} or {"error": its traceback}."""
    if (folder := str(Path(file).parent)) not in sys.path:
        sys.path.insert(0, folder)
    try:
        return {"result": getattr(importlib.import_module(Path(file).stem), name)(*arguments)}
    except BaseException:
        return {"error": traceback.format_exc()}


def serve() -> None:
    """Answer each line of the input by a line; what the functions print is no answer."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    gc.set_threshold(100_000, 50, 50)  # this and the loops: as in conftest
    from ptm_jax.nn import blocks

    blocks.UNROLLED = 0
    for line in sys.stdin:
        answers.write(json.dumps(answer_to(*ast.literal_eval(line))) + "\n")
        answers.flush()
        import jax

        jax.clear_caches()  # the process may map as many programs as one call needs


if __name__ == "__main__":
    serve()

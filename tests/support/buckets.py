"""Object stores on this machine: servers of .venv/store on loopback, behind a proxy that refuses,
cuts and delays requests.

As a script it serves gs://bucket for a rehearsal, and prints the variables of its clients.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib
import json
import os
import random
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import ptm_jax

PACKAGES = Path(ptm_jax.__file__).parents[1] / ".venv" / "store"
"""The folder of the servers and the clients, which come with `make test-full`."""
CUT, REFUSED, BUSY = "cut", 403, 503
Fault = Callable[[str, str], str | int | float | None]
"""`(method, path) -> CUT, a status, seconds of delay, or None`."""


def folder() -> Path:
    """The packages. Skips the test where they are not installed."""
    place = Path(os.environ.get("PTM_STORE_PACKAGES", PACKAGES))
    if not (place / "gcsfs").is_dir():
        pytest.skip("needs the servers of .venv/store (make test-full)")
    return place


def drawn(share: float, seed: int, *kinds: str | int) -> Fault:
    """A fault of `kinds` for a share of the requests, from a seed."""
    numbers = random.Random(seed)
    return lambda method, path: numbers.choice(kinds) if numbers.random() < share else None


class Proxy:
    """Hands requests on to a server. `fault` may be set at any time.

    counts  {fault or "passed": requests}
    """

    def __init__(self, port: int):
        self.fault: Fault = lambda method, path: None
        self.counts: dict[str | int, int] = {}
        self._lock, self._port = threading.Lock(), port
        self._generations: dict[str, str] = {}
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self):
                body = self._body()
                fault = proxy._drawn(self.command, self.path)
                if fault == CUT:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                elif isinstance(fault, int):
                    self._answer(fault, {}, b'{"error": {"message": "planted"}}')
                else:
                    time.sleep(fault or 0)
                    self._answer(*proxy.answer(self.command, self.path, self.headers, body))

            do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_PATCH = handle_any

            def _body(self) -> bytes:
                if self.headers.get("Transfer-Encoding", "") != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length") or 0))
                parts = []
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(parts)

            def _answer(self, status, headers, data):
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                if self.command != "HEAD" or "Content-Length" not in headers:
                    self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            def log_message(self, *args):
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads, request_queue_size = True, 128

            def handle_error(self, request, client):
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _drawn(self, method, path):
        with self._lock:
            fault = self.fault(method, path)
            kind = "delayed" if isinstance(fault, float) else fault or "passed"
            self.counts[kind] = self.counts.get(kind, 0) + 1
        return fault

    def answer(self, method, path, headers, body):
        """(status, headers, content) of the server's answer, with the generations of objects that
        Google's server tells and compares and the emulator does not."""
        parts = urllib.parse.urlsplit(path)
        query = dict(urllib.parse.parse_qsl(parts.query))
        name = urllib.parse.unquote(parts.path.partition("/o/")[2]) or query.get("name", "")
        now = self._generations.get(name, "0")
        if query.get("ifGenerationMatch", now) != now:
            return 412, {}, b"{}"
        if query.get("ifGenerationNotMatch") == now != "0":
            return 304, {}, b""
        status, found, data = forwarded(self._port, method, path, headers, body)
        if method in ("POST", "PUT") and status == 200 and data.startswith(b"{"):
            facts = json.loads(data)
            self._generations[facts.get("name", "")] = facts.get("generation", "0")
        elif method == "DELETE":
            self._generations.pop(name, None)
        elif query.get("alt") == "media" and status < 300:
            found["x-goog-generation"] = now
        return status, found, data

    def objects(self):
        """The names of all objects that are there."""
        return [*self._generations]

    def put(self, name, data):
        """Writes an object."""
        query = urllib.parse.urlencode({"uploadType": "media", "name": name})
        self.answer("POST", f"/upload/storage/v1/b/bucket/o?{query}", {}, data)

    def close(self):
        self._server.shutdown()
        self._server.server_close()


def forwarded(port, method, path, headers, body):
    """(status, headers, content) of the server's answer."""
    dropped = {"connection", "content-length", "transfer-encoding"}
    wanted = {name: value for name, value in headers.items() if name.lower() not in dropped}
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        link.request(method, path, body, wanted)
        answer = link.getresponse()
        data = answer.read()
    finally:
        link.close()
    if method == "HEAD":
        dropped.discard("content-length")
    found = {name: value for name, value in answer.getheaders() if name.lower() not in dropped}
    return answer.status, found, data


@contextlib.contextmanager
def google() -> Iterator[tuple[Proxy, dict[str, str]]]:
    """Yields a proxy before a server of gs://bucket, and the environment of its clients."""
    place = str(folder())
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(place)
        serve = importlib.import_module("gcp_storage_emulator.server")
        server = serve.create_server("127.0.0.1", 0, in_memory=True, default_bucket="bucket")
        server.start()
        proxy = Proxy(server._api._httpd.server_port)
    try:
        yield (
            proxy,
            {
                "STORAGE_EMULATOR_HOST": proxy.url,
                "TENSORSTORE_GCS_HTTP_URL": proxy.url,
                "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
            },
        )
    finally:
        proxy.close()
        server.stop()


@contextlib.contextmanager
def amazon() -> Iterator[dict[str, str]]:
    """Yields the environment of the clients of a server of s3://bucket."""
    place = str(folder())
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(place)
        server = importlib.import_module("moto.server").ThreadedMotoServer(port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        link = http.client.HTTPConnection(host, port)
        link.request("PUT", "/bucket")
        link.getresponse().read()
        link.close()
    try:
        yield {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
    finally:
        server.stop()


def main():
    """Serves gs://bucket until it is stopped. Its objects are in memory."""
    with google() as (_, variables):
        for name, value in {**variables, "PYTHONPATH": str(folder())}.items():
            print(f"export {name}={value}", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()

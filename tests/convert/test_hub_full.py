"""A Hub of our own on this machine: what is fetched, what is not fetched twice, and how its refusals are reported."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import safetensors.numpy

pytestmark = pytest.mark.full

SHA = "1" * 40
WEIGHTS = safetensors.numpy.save({"w": np.arange(5000, dtype="f4")})
FILES = {"config.json": b"{}", "model.safetensors": WEIGHTS, "vocab.txt": b"a\nb\n", "README.md": b"#"}
FILES["pytorch_model.bin"] = b"x"


class Hub(http.server.BaseHTTPRequestHandler):
    """One model, org/name; everything else is unknown, as the real one says it (401 for who is not logged in)."""

    log: list[str] = []

    def log_message(self, *_):
        pass

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self):
        path = self.path.split("?")[0]
        self.log.append(f"{self.command} {path}")
        if path.startswith("/api/models/org/name/revision/main"):
            files = [{"rfilename": name} for name in FILES]
            return self.answer(200, json.dumps({"id": "org/name", "sha": SHA, "siblings": files}).encode())
        if path.startswith(f"/api/models/org/name/tree/{SHA}"):
            entry = lambda i, name: {"type": "file", "path": name, "size": len(FILES[name]), "oid": f"{i:040d}"}
            return self.answer(200, json.dumps([entry(i, name) for i, name in enumerate(FILES)]).encode())
        if path.startswith(f"/org/name/resolve/{SHA}/") and (name := path.rsplit("/", 1)[1]) in FILES:
            tag = f'"{list(FILES).index(name):040d}"'
            return self.answer(200, FILES[name], ETag=tag, X_Repo_Commit=SHA)
        if path.startswith("/api/models/org/name/revision/"):
            return self.answer(404, b"{}", X_Error_Code="RevisionNotFound", X_Error_Message="no")
        return self.answer(401, b"{}", X_Error_Code="RepoNotFound", X_Error_Message="Repository not found")

    do_HEAD = do_GET


@pytest.fixture
def endpoint():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Hub.log.clear()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


CODE = """
import sys
from ptm_jax.convert.files import open_tensors
from ptm_jax.convert.hub import locate
from ptm_jax.core.errors import UserError
for name, revision in (("org/name", None), ("org/name", "v9"), ("nobody/nothing", None)):
    try:
        folder = locate(name, revision=revision)
        print(sorted(path.name for path in folder.iterdir()), float(open_tensors(folder).read("w").sum()))
    except UserError as error:
        print(error)
"""


def test_a_model_is_fetched_once_and_refusals_are_reported(endpoint, tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    environment |= {"HF_HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    environment.pop("HF_HUB_OFFLINE", None)
    run = lambda where: subprocess.run(
        [sys.executable, "-c", CODE], env={**environment, "HF_ENDPOINT": where}, capture_output=True, text=True, timeout=120
    )
    expected = f"['config.json', 'model.safetensors', 'vocab.txt'] {float(np.arange(5000).sum())}"
    done = run(endpoint)
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done.stdout + done.stderr
    assert lines[0] == expected
    assert lines[1].startswith("'org/name': no such directory") and "no revision 'v9'" in lines[1]
    assert lines[2].startswith("'nobody/nothing': no such directory") and "no such model" in lines[2]
    fetched = [line for line in Hub.log if line.startswith("GET /org/name/resolve")]
    assert len(fetched) == 3 and not any("bin" in line or "README" in line for line in fetched)
    assert run(endpoint).stdout.splitlines()[0] == expected
    assert [line for line in Hub.log if line.startswith("GET /org/name/resolve")] == fetched
    assert run("http://127.0.0.1:9").stdout.splitlines()[0] == expected  # nobody there: the cache answers

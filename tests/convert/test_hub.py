"""Where a checkpoint is: a path, the cache, or the Hub, for which a server on this machine
stands."""

from __future__ import annotations

import base64
import http.server
import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import safetensors.numpy

from ptm_jax.cli.main import main
from ptm_jax.convert import hub
from ptm_jax.core.errors import UserError
from support import tiny_checkpoint


def test_a_path_is_what_it_is_and_nonsense_is_no_name(tmp_path):
    assert hub.locate(tmp_path) == tmp_path
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert hub.locate(str(tmp_path / "model.safetensors")) == tmp_path / "model.safetensors"
    for name in (
        "../no such",
        "a/b/c",
        "/nowhere/at/all",
        "",
        "org/",
        "a..b",
        "-x",
        "a b",
        "x\n",
        "http://x",
    ):
        with pytest.raises(UserError, match="no such directory") as caught:
            hub.locate(name)
        assert "\n" not in str(caught.value)


def test_weights_are_asked_for_in_order(tmp_path, monkeypatch):
    import huggingface_hub

    asked = []

    def snapshot(name, *, revision, allow_patterns, local_files_only):
        asked.append((name, revision, tuple(allow_patterns)))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert hub.locate("org/name", revision="v1") == tmp_path
    assert [patterns for _, _, patterns in asked] == [
        hub.SMALL + hub.SAFETENSORS,
        hub.SMALL + hub.FLAX,
    ]
    hub.locate("org/name", allow_pickle=True)
    assert asked[-1][2] == hub.SMALL + hub.PICKLE
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    asked.clear()
    hub.locate("org/name", revision="v1")
    hub.locate("org/name", files=["config.json"])
    assert asked == [
        ("org/name", "v1", hub.SMALL + hub.SAFETENSORS),
        ("org/name", None, ("config.json",)),
    ]


CODE = """
import sys
from ptm_jax.convert.files import open_tensors
from ptm_jax.convert.hub import locate
from ptm_jax.core.errors import UserError
for name, revision in (("org/name", None), ("org/name", "v9"), ("nobody/nothing", None)):
    try:
        folder = locate(name, revision=revision)
        names = sorted(path.name for path in folder.iterdir())
        print(names, float(open_tensors(folder).read("w").sum()))
    except UserError as error:
        print(error)
"""


def located(endpoint, cache) -> list[str]:
    """What a fresh process finds of three names, a line each: a model, its revision "v9", and a
    model nobody has."""

    def ours(name):
        return name.lower().endswith("_proxy") or name in ("HF_HUB_OFFLINE", "HF_HUB_CACHE")

    environment = {name: value for name, value in os.environ.items() if not ours(name)}
    environment |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(cache)}
    environment |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    words = dict(env=environment, capture_output=True, text=True, timeout=120)
    done = subprocess.run([sys.executable, "-c", CODE], **words)
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done.stdout + done.stderr
    return lines


NOBODY = "http://127.0.0.1:9"  # the port refuses


def test_without_a_network_the_cache_is_asked_and_named(tmp_path):
    repo = tmp_path / "hub" / "models--org--name"
    snapshot = repo / "snapshots" / ("0" * 40)
    for folder in (repo / "refs", snapshot):
        folder.mkdir(parents=True)
    (repo / "refs" / "main").write_text("0" * 40)
    (snapshot / "model.safetensors").write_bytes(safetensors.numpy.save({"w": np.ones(3, "f4")}))
    found, _, absent = located(NOBODY, tmp_path)
    assert found == "['model.safetensors'] 3.0"
    assert (
        absent.startswith("'nobody/nothing': no such directory") and str(tmp_path / "hub") in absent
    )
    assert f"{NOBODY} could not be asked (ConnectError" in absent


SHA = "1" * 40
WEIGHTS = safetensors.numpy.save({"w": np.arange(5000, dtype="f4")})
FILES = {
    "config.json": b"{}",
    "model.safetensors": WEIGHTS,
    "vocab.txt": b"a\nb\n",
    "README.md": b"#",
}
FILES["pytorch_model.bin"] = b"x"


class Hub(http.server.BaseHTTPRequestHandler):
    """One model, org/name; everything else is unknown, as in the real one (401 for who is not
    logged in)."""

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
            return self.answer(
                200, json.dumps({"id": "org/name", "sha": SHA, "siblings": files}).encode()
            )
        if path.startswith(f"/api/models/org/name/tree/{SHA}"):

            def entry(i, name):
                return {"type": "file", "path": name, "size": len(FILES[name]), "oid": f"{i:040d}"}

            return self.answer(
                200, json.dumps([entry(i, name) for i, name in enumerate(FILES)]).encode()
            )
        if (
            path.startswith(f"/org/name/resolve/{SHA}/")
            and (name := path.rsplit("/", 1)[1]) in FILES
        ):
            tag = f'"{list(FILES).index(name):040d}"'
            return self.answer(200, FILES[name], ETag=tag, X_Repo_Commit=SHA)
        if path.startswith("/api/models/org/name/revision/"):
            return self.answer(404, b"{}", X_Error_Code="RevisionNotFound", X_Error_Message="no")
        return self.answer(
            401, b"{}", X_Error_Code="RepoNotFound", X_Error_Message="Repository not found"
        )

    do_HEAD = do_GET


@pytest.fixture
def endpoint():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Hub.log.clear()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


class Uploads(Hub):
    """A Hub that takes commits of files in base64, for the token "good"."""

    files: dict[str, bytes] = {}

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Authorization") != "Bearer good":
            return self.answer(401, b'{"error": "Invalid token"}')
        address = f"http://127.0.0.1:{self.server.server_port}/org/name"
        if self.path == "/api/repos/create":
            return self.answer(200, json.dumps({"url": address, "id": "org/name"}).encode())
        if self.path == "/api/validate-yaml":
            return self.answer(200, b'{"errors": [], "warnings": []}')
        if self.path == "/api/models/org/name/preupload/main":
            names = [one["path"] for one in json.loads(body)["files"]]
            files = [
                {"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names
            ]
            return self.answer(200, json.dumps({"files": files}).encode())
        assert self.path == "/api/models/org/name/commit/main", self.path
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        return self.answer(
            200, json.dumps({"commitUrl": f"{address}/commit/{SHA}", "commitOid": SHA}).encode()
        )


@pytest.mark.full
def test_an_export_is_pushed_with_its_card(tmp_path):
    tiny_checkpoint.write(tmp_path / "m")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Uploads)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    at = f"http://127.0.0.1:{server.server_port}"
    environment = {
        name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")
    }
    environment |= {
        "HF_ENDPOINT": at,
        "HF_HOME": str(tmp_path / "cache"),
        "HF_HUB_DISABLE_XET": "1",
    }
    call = "import sys; from ptm_jax.cli.main import main; sys.exit(main(sys.argv[1:]))"

    def pushed(token, out):
        words = [
            sys.executable,
            "-c",
            call,
            "export",
            str(tmp_path / "m"),
            "--out",
            str(tmp_path / out),
            "--push",
            "org/name",
        ]
        words = dict(
            args=words,
            env=environment | {"HF_TOKEN": token},
            capture_output=True,
            text=True,
            timeout=200,
        )
        return subprocess.run(**words)

    done = pushed("good", "out")
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == f"pushed to {at}/org/name", (
        done.stderr
    )
    assert Uploads.files == {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    assert b"library_name: transformers" in Uploads.files["README.md"]
    done = pushed("bad", "other")
    assert (
        done.returncode == 1
        and "'org/name' was not pushed (" in done.stderr
        and "log in with" in done.stderr
    )
    assert len([line for line in done.stderr.splitlines() if line.startswith("ptm")]) == 1
    server.shutdown()
    server.server_close()


def test_what_cannot_be_pushed(tmp_path, capsys):
    with pytest.raises(UserError, match="is no export"):
        hub.push_to_hub(tmp_path, "org/name")
    assert main(["export", "nowhere", "--out", str(tmp_path / "out"), "--push", "a/b/c"]) == 1
    assert "'a/b/c' is no name of a repository" in capsys.readouterr().err


@pytest.mark.full
def test_a_model_is_fetched_once_and_refusals_are_reported(endpoint, tmp_path):
    expected = f"['config.json', 'model.safetensors', 'vocab.txt'] {float(np.arange(5000).sum())}"
    found, revision, absent = located(endpoint, tmp_path)
    assert found == expected
    assert revision.startswith("'org/name': no such directory") and "no revision 'v9'" in revision
    assert absent.startswith("'nobody/nothing': no such directory") and "no such model" in absent
    fetched = [line for line in Hub.log if line.startswith("GET /org/name/resolve")]
    assert len(fetched) == 3 and not any("bin" in line or "README" in line for line in fetched)
    assert located(endpoint, tmp_path)[0] == expected
    assert [line for line in Hub.log if line.startswith("GET /org/name/resolve")] == fetched
    assert located(NOBODY, tmp_path)[0] == expected  # the cache answers

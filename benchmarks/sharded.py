"""200,000 texts embedded by one process, by Beam and by two hosts, of which one is killed: the
same bytes.

    python -m benchmarks.sharded --folder DIR --model MODEL --data 'wikitext-2/*.txt'

Short texts are cut from the words of --data. Host 1 is killed by SIGKILL when three shards of
16 are there, and host 0 when ten are; then the same command runs again. Needs
`pip install 'ptm_jax[beam]'`.
"""

from __future__ import annotations

import argparse
import glob
import hashlib
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

SHARDS, FILES = 16, 8
KILLS = ((1, 3), (0, 10))
"""(host, shards that are complete when it is killed)."""
PTM = (sys.executable, "-m", "ptm_jax.cli.main")


def write_texts(folder: Path, pattern: str, count: int) -> None:
    """Writes texts of 3 to 12 words, each from a drawn place, into files of equally many lines."""
    words = " ".join(Path(path).read_text() for path in sorted(glob.glob(pattern))).split()
    draw = random.Random(0)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(FILES):
        starts = (draw.randrange(len(words) - 12) for _ in range(count // FILES))
        rows = (" ".join(words[start : start + draw.randint(3, 12)]) for start in starts)
        (folder / f"{number}.txt").write_text("".join(f"{row}\n" for row in rows))


def run(*words: str) -> None:
    """Runs a command, and prints it with its last lines and its CPU time."""
    print("$ ptm", " ".join(words), flush=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run([*PTM, *words], capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(*(ended.stdout + ended.stderr).splitlines()[-6:], sep="\n")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"status {ended.returncode}, {cpu:.0f} CPU-seconds", flush=True)


def killed(folder: Path, *words: str) -> None:
    """Starts a launched job, and kills its hosts as `KILLS` says."""
    print("$ ptm", " ".join(words), flush=True)
    launcher = subprocess.Popen([*PTM, *words], stdout=subprocess.PIPE, text=True)
    for host, shards in KILLS:
        while len(list(folder.glob(f"v-*-of-{SHARDS:05d}.npy"))) < shards:
            time.sleep(0.02)
        os.kill(process_of(launcher.pid, host), signal.SIGKILL)
        print(f"host {host} is killed after {shards} shards", flush=True)
    print(*launcher.communicate()[0].splitlines()[-4:], sep="\n")
    print(f"status {launcher.returncode}", flush=True)


def process_of(parent: int, host: int) -> int:
    """Returns the process of a host among the children of a launcher."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    mark = f"JAX_PROCESS_ID={host}".encode()
    return next(
        int(child)
        for child in children
        if mark in Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
    )


def rows_of(paths: list[Path]) -> str:
    """Returns a sha256 of the vectors of files, one after the other."""
    state, count = hashlib.sha256(), 0
    for path in paths:
        vectors = np.load(path)
        state.update(vectors.tobytes())
        count += len(vectors)
    return f"{count:,} vectors of {len(paths)} files, sha256 {state.hexdigest()}"


def main() -> None:
    """Writes the texts, runs the commands and compares the bytes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--texts", type=int, default=200_000)
    args = parser.parse_args()
    write_texts(args.folder / "texts", args.data, args.texts)
    predict = (args.model, "--task", "embed", "--input", str(args.folder / "texts" / "*.txt"))
    several = ("--shards", str(SHARDS), "--output")
    one, beam, hosts = (args.folder / name for name in ("one.npy", "beam", "hosts"))
    run("predict", *predict, "--output", str(one))
    run("predict", *predict, "--runner", "direct", *several, str(beam / "v.npy"))
    launch = ("launch", "local", "predict", "--workdir", str(hosts), "--hosts", "2", "--run", "--")
    words = (*launch, *predict, *several, str(hosts / "v.npy"))
    killed(hosts, *words)
    run(*words)
    for paths in ([one], *(sorted(folder.glob("v-*.npy")) for folder in (beam, hosts))):
        print(f"{paths[0].parent.name}/{paths[0].name}: {rows_of(paths)}")


if __name__ == "__main__":
    main()

"""Text to packed rows: tokens a second and memory of `ptm prepare`, beside `datasets` with
`tokenizers`. Writes benchmarks/preparing.md.

    pip install --target PEER datasets
    PYTHONPATH=PEER python -m benchmarks.preparing --tokenizer tokenizer.json --megabytes 1000

The text is that of the Python, text and Markdown files of a folder (by default of the installed
packages), one file after the other, a paragraph is a document. Both sides read it, tokenize it by
the same tokenizer.json, pack rows and write them to disk, each in processes of its own on all
cores. The peer follows run_mlm.py of transformers: `load_dataset("text")`, `map` in batches of
1,000, `map` that groups tokens in rows of 512. It takes turns with one process whose tokenizer uses
all cores, and with a process for each core; the faster counts. Memory is the sum of the greatest
resident sets of all processes that were seen.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from ptm_jax.bench import record

PAGE = Path(__file__).with_name("preparing.md")
PEER = """
import sys, datasets, tokenizers
text, file, out, processes = sys.argv[1:4] + [int(sys.argv[4])]
datasets.disable_progress_bars()
tokenizer = tokenizers.Tokenizer.from_file(file)
tokenizer.no_truncation()
tokenizer.no_padding()
rows = datasets.load_dataset("text", data_files=text, sample_by="paragraph", split="train",
                             cache_dir=out + "/cache")
def encode(batch):
    return {"input_ids": [one.ids for one in tokenizer.encode_batch(batch["text"])]}
def group(batch):
    ids = [i for one in batch["input_ids"] for i in one]
    return {"input_ids": [ids[i : i + 512] for i in range(0, len(ids), 512)]}
options = {"batched": True, "batch_size": 1000, "num_proc": processes or None}
rows = rows.map(encode, remove_columns=["text"], **options).map(group, **options)
rows.save_to_disk(out + "/rows")
print(sum(len(one) for one in rows["input_ids"]))
"""


def text(folder: Path, size: int, path: Path) -> int:
    """Writes the text of a folder's files, at most `size` bytes, and returns its bytes."""
    with path.open("wb") as out:
        for file in sorted(folder.rglob("*")):
            if file.suffix not in (".py", ".md", ".rst", ".txt") or not file.is_file():
                continue
            out.write(file.read_bytes().decode("utf8", "ignore").encode() + b"\n\n")
            if out.tell() >= size:
                break
        return out.tell()


def timed(words: list[str], **environment: str) -> tuple[float, float, str]:
    """Returns the seconds, the gigabytes and the output of a command."""
    start = time.perf_counter()
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **environment}, start_new_session=True,
    )  # fmt: skip
    peaks: dict[int, float] = {}
    over = threading.Event()
    watch = threading.Thread(target=_watch, args=(process.pid, peaks, over))
    watch.start()
    out, error = process.communicate()
    seconds = time.perf_counter() - start
    over.set()
    watch.join()
    if process.returncode:
        raise RuntimeError(error[-2000:])
    return seconds, sum(peaks.values()) / 1e9, out


def _watch(session: int, peaks: dict[int, float], over: threading.Event) -> None:
    """Notes the greatest resident set of each process of a session."""
    while not over.wait(0.1):
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if os.getsid(int(folder.name)) == session:
                    peak = re.search(r"VmHWM:\s+(\d+)", (folder / "status").read_text())
                    if peak:  # a process that has ended has none
                        peaks[int(folder.name)] = 1024.0 * int(peak[1])
            except (OSError, ProcessLookupError):
                continue


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.preparing", description=__doc__)
    parser.add_argument("--tokenizer", required=True, help="a tokenizer.json")
    parser.add_argument("--text", default=str(Path(json.__file__).parents[1] / "site-packages"))
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    cores = str(record.threads())
    sides: dict[str, list[tuple[float, float, int]]] = {}
    with tempfile.TemporaryDirectory() as room:
        path = Path(room) / "text.txt"
        size = text(Path(args.text), args.megabytes * 1_000_000, path)
        for turn in range(args.rounds):
            out = f"{room}/ours{turn}"
            words = ["-m", "ptm_jax.cli.main", "prepare", "--data", str(path), "--out", out]
            words += ["--tokenizer-path", args.tokenizer, "--workers", cores, "--json"]
            seconds, memory, printed = timed([sys.executable, *words])
            tokens = json.loads(printed)["tokens"]
            sides.setdefault("ptm prepare", []).append((seconds, memory, tokens))
            for name, processes in (("one process", "0"), (f"{cores} processes", cores)):
                words = ["-c", PEER, str(path), args.tokenizer, f"{room}/peer{turn}{processes}"]
                parallel = "false" if int(processes) else "true"
                seconds, memory, printed = timed(
                    [sys.executable, *words, processes], TOKENIZERS_PARALLELISM=parallel
                )
                side = sides.setdefault(f"datasets and tokenizers, {name}", [])
                side.append((seconds, memory, int(printed.split()[-1])))
    lines = ["| program | seconds | tokens | tokens/s | memory, GB |", "|---|---:|---:|---:|---:|"]
    rates = {}
    for name, runs in sides.items():
        seconds, memory, tokens = (statistics.median(column) for column in zip(*runs, strict=True))
        rates[name] = tokens / seconds
        lines.append(
            f"| {name} | {seconds:.1f} | {tokens:,.0f} | {rates[name]:,.0f} | {memory:.2f} |"
        )
    best = max(rate for name, rate in rates.items() if name != "ptm prepare")
    page = (
        "# Text to packed rows, on two cores\n\n"
        + "\n".join(lines)
        + f"\n\n{size / 1e6:,.0f} MB of Python and text files on {record.device()}, "
        f"{time.strftime('%Y-%m-%d')}; {args.rounds} rounds. `ptm prepare` writes "
        f"{rates['ptm prepare'] / best:.2f} times as many tokens a second.\n"
    )
    PAGE.write_text(page, encoding="utf8")
    print(page)


if __name__ == "__main__":
    main()

"""Creates a large BERT checkpoint, and measures reading or importing it in a separate process.

Run as a program: `python -m benchmarks.streaming read FOLDER`, `... torch FOLDER`, or `... import
FOLDER MESH RULES`; prints one JSON object. `measure` starts a new process each time, since the peak
memory of a process cannot be reset.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ptm_jax.convert.saving import Lazy, write_tensors

BUFFER = 1 << 24
DEVICES = 8


def measure(*words: str, limit: float = 300) -> dict:
    """Runs this program with `words` in a new process and returns its output. Raises RuntimeError
    with its last line."""
    source = str(Path(__file__).resolve().parents[1])
    paths = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
    flags = {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={DEVICES}",
    }
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.streaming", *words],
        capture_output=True,
        text=True,
        timeout=limit,
        env={**os.environ, **flags, "PYTHONPATH": paths},
    )
    if done.returncode:
        raise RuntimeError(
            (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1][:200]
        )
    return json.loads(done.stdout)


def shapes_of(config: dict) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields (name, shape) for the tensors of BertForMaskedLM."""
    width, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]

    def dense(name: str, out: int, into: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield from ((f"{name}.weight", (out, into)), (f"{name}.bias", (out,)))

    def norm(name: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield from ((f"{name}.weight", (width,)), (f"{name}.bias", (width,)))

    yield "bert.embeddings.word_embeddings.weight", (vocab, width)
    yield "bert.embeddings.position_embeddings.weight", (config["max_position_embeddings"], width)
    yield "bert.embeddings.token_type_embeddings.weight", (config["type_vocab_size"], width)
    yield from norm("bert.embeddings.LayerNorm")
    for i in range(config["num_hidden_layers"]):
        for part in ("query", "key", "value"):
            yield from dense(f"bert.encoder.layer.{i}.attention.self.{part}", width, width)
        yield from dense(f"bert.encoder.layer.{i}.attention.output.dense", width, width)
        yield from norm(f"bert.encoder.layer.{i}.attention.output.LayerNorm")
        yield from dense(f"bert.encoder.layer.{i}.intermediate.dense", inner, width)
        yield from dense(f"bert.encoder.layer.{i}.output.dense", width, inner)
        yield from norm(f"bert.encoder.layer.{i}.output.LayerNorm")
    yield "cls.predictions.bias", (vocab,)
    yield from dense("cls.predictions.transform.dense", width, width)
    yield from norm("cls.predictions.transform.LayerNorm")


def value_of(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Returns the values of a tensor: quick to compute, dependent on its name, and different in
    every row."""
    size, seed = int(np.prod(shape)), sum(name.encode()) % 97
    ramp = np.arange(size, dtype=np.uint32)
    ramp *= np.uint32(2654435761)  # Knuth's multiplicative hash
    ramp >>= np.uint32(12)
    return (ramp.astype(np.float32) * np.float32(2**-20) + np.float32(seed)).reshape(shape)


def write(folder: Path, *, width: int, layers: int, vocab: int, shard: int) -> tuple[int, int]:
    """Writes a checkpoint, and one for warm-up in `small`. Returns (bytes of all tensors, bytes of
    the largest)."""
    write_bert(folder / "small", width=min(width, 512), layers=2, vocab=64, shard=shard)
    total = write_bert(folder, width=width, layers=layers, vocab=vocab, shard=shard)
    return total, 4 * width * max(vocab, 4 * width)


def write_bert(folder: Path, *, width: int, layers: int, vocab: int, shard: int) -> int:
    """Writes a directory in the layout of `save_pretrained` and returns the bytes of its
    tensors."""
    config = {
        "model_type": "bert",
        "architectures": ["BertForMaskedLM"],
        "vocab_size": vocab,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": width // 64,
        "intermediate_size": 4 * width,
        "hidden_act": "gelu",
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
    }
    shapes = list(shapes_of(config))
    write_tensors(
        folder,
        ((n, Lazy(s, lambda n=n, s=s: value_of(n, s))) for n, s in shapes),
        max_shard_bytes=shard,
    )
    (folder / "config.json").write_text(json.dumps(config))
    return sum(4 * int(np.prod(shape)) for _, shape in shapes)


def memory(field: str) -> int:
    """Returns the memory of this process in bytes: VmRSS is current, VmHWM is the peak.

    ru_maxrss is not used, since it is inherited from the parent process.
    """
    line = next(
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith(field)
    )
    return int(line.split()[1]) * 1024


class Clock:
    """A call returns {"seconds", "cpu"} since construction; `cpu` is the time of all threads."""

    def __init__(self) -> None:
        self.began = time.perf_counter(), time.process_time()

    def __call__(self) -> dict[str, float]:
        return {
            "seconds": time.perf_counter() - self.began[0],
            "cpu": time.process_time() - self.began[1],
        }


def warm(folder: Path) -> list[Path]:
    """Returns the weight files after reading them once into a small buffer, so that they are in the
    page cache."""
    files, buffer = sorted(folder.glob("*.safetensors")), np.empty(BUFFER, np.uint8)
    for file in files:
        with file.open("rb", buffering=0) as stream:
            while stream.readinto(buffer):
                pass
    return files


def read(folder: Path) -> dict:
    """Measures the seconds for reading all bytes of the files into memory."""
    files = warm(folder)
    clock = Clock()
    held = [file.read_bytes() for file in files]
    return {**clock(), "bytes": sum(map(len, held))}


def torch_tensors(folder: Path) -> dict:
    """Measures the seconds for loading every tensor with safetensors into torch's memory.

    safetensors maps the files, so the tensors are copied.
    """
    from safetensors.torch import load_file

    files = warm(folder)
    load_file(next((folder / "small").glob("*.safetensors")))
    clock = Clock()
    held = [tensor.clone() for file in files for tensor in load_file(file).values()]
    return {**clock(), "bytes": sum(tensor.nbytes for tensor in held)}


def shardings_over(small: Path, sizes: dict[str, int], rules: str):
    """Returns a function from abstract parameters to shardings over the devices. A `small`
    checkpoint of the architecture gives the logical axes. Reading it excludes imports and the start
    of the backend from the measurement."""
    import jax

    from ptm_jax.convert import checkpoint
    from ptm_jax.core.paths import map_with_path
    from ptm_jax.mesh.rules import make_mesh, spec_of, table
    from ptm_jax.nn.declared import axes_of

    system, mesh = checkpoint.read(small).system, make_mesh(sizes)
    axes = axes_of(system.towers, checkpoint.example(system))

    def where(path, leaf):
        spec = spec_of(path, leaf.shape, axes.of(path, leaf.ndim), table(rules), mesh)
        return jax.sharding.NamedSharding(mesh, spec)

    return lambda shapes: map_with_path(where, shapes)


def load(folder: Path, sizes: dict[str, int], rules: str) -> dict:
    """Measures the seconds and memory for importing the checkpoint into shards, and checks some of
    the values."""
    import jax

    from ptm_jax.convert import checkpoint

    shardings = shardings_over(folder / "small", sizes, rules)
    checkpoint.read(folder / "small", shardings=shardings)
    warm(folder)
    before, clock = memory("VmRSS"), Clock()
    found = checkpoint.read(folder, shardings=shardings)
    jax.block_until_ready(found.params)
    times, peak, after = clock(), memory("VmHWM") - before, memory("VmRSS") - before
    return {**times, "peak": peak, "after": after, **checked(found)}


def checked(found) -> dict:
    """Returns what an import holds, and whether some of its values are right: bytes of its shards,
    devices that have a part of a kernel, and names of tensors that were left over or absent."""
    import jax

    from ptm_jax.core.paths import flatten

    flat = flatten(found.params["main"])
    pieces = [shard.data for leaf in flat.values() for shard in leaf.addressable_shards]
    held = {piece.unsafe_buffer_pointer(): piece.nbytes for piece in pieces}
    token = next(leaf for path, leaf in flat.items() if path.endswith("/token"))
    truth = value_of("bert.embeddings.word_embeddings.weight", token.shape)
    right = all(
        np.array_equal(np.asarray(s.data), truth[s.index]) for s in token.addressable_shards
    )
    kernel = next(leaf for path, leaf in flat.items() if path.endswith("/up/kernel"))
    layer = kernel.shape[0] - 1
    truth = value_of(f"bert.encoder.layer.{layer}.intermediate.dense.weight", kernel.shape[:0:-1]).T
    for shard in kernel.addressable_shards:
        start, stop, _ = shard.index[0].indices(kernel.shape[0])
        if start <= layer < stop:
            right &= np.array_equal(np.asarray(shard.data[layer - start]), truth[shard.index[1:]])
    spread = len(
        {
            s.device
            for s in kernel.addressable_shards
            if s.data.nbytes * len(jax.devices()) <= kernel.nbytes
        }
    )
    return {
        "held": sum(held.values()),
        "right": bool(right),
        "spread": spread,
        "extra": [*found.report.extra, *found.report.missing],
    }


def main(action: str, folder: str, *mesh: str) -> dict:
    """Returns the object that the program prints."""
    if action == "import":
        return load(Path(folder), json.loads(mesh[0]), mesh[1])
    return {"read": read, "torch": torch_tensors}[action](Path(folder))


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))

"""Describe this machine: devices, versions, memory, variables, the cache, and the kernels of its
device with the reasons.

On a TPU or GPU, kernels are checked against the definition and timed, once for each class of
shapes: by a run at its first use, or here. On a CPU, attention is computed by XLA and nothing is
checked.

Example:
  ptm doctor
  ptm doctor --repeat
  ptm doctor --json
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ptm_jax.cli.options import Flag, report

VARIABLES = (
    "PTM_",
    "JAX_",
    "XLA_",
    "LIBTPU_",
    "TPU_",
    "CUDA_VISIBLE",
    "GLIBC_",
    "MALLOC_",
    "LD_PRELOAD",
)
"""Beginnings of the variables that change what runs here."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    repeat: Flag = False
    """Check and time the kernels again."""
    json: Flag = False
    """Print one JSON document: devices, versions, host, variables, cache, kernels."""


def run(args: Args) -> int:
    """Print what there is."""
    from ptm_jax.bench import record

    taken = kernels(args.repeat)  # first: it may write to the cache
    document = {
        "devices": _devices(),
        "versions": record.versions() | _compiler(),
        "host": _host(),
        "variables": {
            name: value for name, value in sorted(os.environ.items()) if name.startswith(VARIABLES)
        },
        "cache": _cache(),
        "kernels": taken,
    }
    return report(document, "\n".join(_text(document)), args.json)


def kernels(repeat: bool) -> dict[str, Any]:
    """Returns the reason for the device's choice of kernels, and the answers of each class.

    A TPU or GPU that was asked for none is asked for two kinds of attention, a cross-entropy and a
    softmax."""
    from ptm_jax.kernels import choice, deciding

    here = deciding.device()
    if not deciding.asks(here.platform):
        why = (
            f"{here.platform}: attention is the definition up to {choice.SHORT:,} scores of "
            "a row and head, and XLA by "
            "blocks above; the Pallas kernels are for TPUs and Hopper GPUs, so none is checked"
        )
        return {"why": why, "classes": []}
    from ptm_jax.kernels.attention import candidates as attention
    from ptm_jax.kernels.cross_entropy import candidates as cross_entropy
    from ptm_jax.kernels.softmax import candidates as softmax

    packages = {"attention": attention, "cross-entropy": cross_entropy, "softmax": softmax}
    plain = {"compute": "bfloat16", "dtype": "bfloat16", "width": 64, "queries": 512, "keys": 512}
    words = {
        "compute": "bfloat16",
        "width": 768,
        "tokens": cross_entropy.TOKENS,
        "words": cross_entropy.WORDS,
    }
    asked = [(one["kind"], one["question"]) for one in deciding.answers(here).values()]
    asked = asked or [
        ("attention", plain),
        ("attention", {**plain, "extras": ["order"]}),
        ("cross-entropy", words),
        ("softmax", {"compute": "float32", "keys": 512}),
    ]
    if repeat:
        deciding.forget()
    classes = []
    for kind, fields in asked:
        question = packages[kind].Class(
            **{name: tuple(x) if isinstance(x, list) else x for name, x in fields.items()}
        )
        answer = deciding.ask(question, packages[kind].CANDIDATES, here.platform)
        classes.append(
            {"class": question.key, "takes": next(iter(answer.seconds))}
            | dataclasses.asdict(answer)
        )
    return {"why": "the fastest of those that this device computes right", "classes": classes}


def _devices() -> list[dict[str, Any]]:
    import jax

    from ptm_jax.training.hosts.devices import free_memory

    return [
        {
            "id": one.id,
            "kind": one.device_kind,
            "platform": one.platform,
            "process": one.process_index,
        }
        | {"free_bytes": free_memory(one)}
        for one in jax.local_devices()
    ]


def _compiler() -> dict[str, str]:
    """Returns the version of the device's compiler: libtpu, or CUDA's parts."""
    import jax

    from ptm_jax.mesh import chips

    versions = {"compiler": " ".join(jax.local_devices()[0].client.platform_version.split())}
    if (place := chips.libtpu()) is not None:
        packages = importlib.metadata.distributions(name="libtpu", path=[str(place)])
        versions["libtpu"] = next((one.version for one in packages), str(place))
    return versions


def _host() -> dict[str, Any]:
    import jax

    from ptm_jax.bench import record

    host = {"processor": record.processor(), "cores": record.threads(), "huge pages": _huge_pages()}
    return host | {"processes": jax.process_count(), "devices of all processes": jax.device_count()}


def _huge_pages() -> str:
    """Returns the kernel's setting: always, madvise (commands that compute ask for them:
    PTM_MALLOC), never; or unknown."""
    try:
        setting = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:  # no Linux, or no right to read it
        return "unknown"
    return setting.partition("[")[2].partition("]")[0] or "unknown"


def _cache() -> dict[str, Any]:
    import jax

    from ptm_jax.kernels import program_cache

    place, programs = program_cache.folder(), jax.config.jax_compilation_cache_dir
    if place is None:
        return {"folder": None, "why": "PTM_CACHE=off: every run compiles, and checks its kernels"}
    near = next(parent for parent in (place, *place.parents) if parent.exists())
    files = [path.stat().st_size for path in place.rglob("*") if path.is_file()]
    facts = {
        "folder": str(place),
        "writable": os.access(near, os.W_OK),
        "files": len(files),
        "bytes": sum(files),
    }
    return facts | ({"programs": programs} if programs else {})


def _text(document: Mapping[str, Any]) -> Iterator[str]:
    """Lines of the document."""

    def size(count):
        return "unknown" if count is None else f"{count / 2**30:.1f} GiB"

    several: dict[str, list[Any]] = {}
    for one in document["devices"]:
        several.setdefault(f"{one['kind']} ({one['platform']})", []).append(one["free_bytes"])
    host, cache = document["host"], document["cache"]
    yield from (
        f"devices    {len(free)} x {kind}, {size(free[0])} free" for kind, free in several.items()
    )
    yield f"host       {host['processor']}, {host['cores']} cores, huge pages: {host['huge pages']}"
    yield from _folded(
        "versions", (f"{name} {version}" for name, version in document["versions"].items())
    )
    yield from _folded(
        "variables", (f"{name}={value}" for name, value in document["variables"].items())
    )
    place = (
        ""
        if cache["folder"] is None
        else f"{cache['folder']}: {cache['files']} files, {cache['bytes'] / 1e6:.0f} MB"
    )
    remark = "" if cache.get("writable", True) else ", not writable: every run compiles"
    yield f"cache      {place or cache['why']}{remark}"
    yield from ([f"           {cache['programs']}: programs"] if "programs" in cache else [])
    yield f"kernels    {document['kernels']['why']}"
    for one in document["kernels"]["classes"]:
        yield f"  {one['class']}: {one['takes']} (checked {one['date']} in {one['took']:.1f} s)"
        yield from (
            f"    {name:<10} {1e3 * seconds:.3f} ms" for name, seconds in one["seconds"].items()
        )
        yield from (f"    {name:<10} left out: {why}" for name, why in one["left_out"].items())
        yield from (f"    {name:<10} not for this: {why}" for name, why in one["refused"].items())


def _folded(name: str, words: Iterator[str]) -> Iterator[str]:
    """Yields a line for each word, with the name before the first."""
    for number, word in enumerate(words):
        yield f"{'' if number else name:<10} {word}"

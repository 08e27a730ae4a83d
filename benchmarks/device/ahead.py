"""Compiles our Hopper kernels to machine code on a machine without a GPU, before a card is asked.

    pip install "jax-cuda13-plugin" "jax-cuda13-pjrt" nvidia-cuda-nvcc nvidia-cuda-runtime
    python -m benchmarks.device.ahead [NUMBER ...]          # classes of `kernels`; default: all

It prints one line for each class: seconds, and registers and spills of each kernel by ptxas. A
layout that Mosaic cannot lower, shared memory that is too large, and spills show here. What a
kernel computes, and an address that is not aligned, show on a card only.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 84942979072 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 minor: 0 }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
runtime_version { major: 13 minor: 0 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
"""The target, as XLA describes it (its `GpuTargetConfigProto`)."""


def main() -> int:
    """Compiles the classes; returns the number that failed."""
    from benchmarks.device import kernels

    kernels.begin(False)
    items = [one for one in kernels.items(False) if one["kind"] == "attention"]
    chosen = [int(word) for word in sys.argv[1:]] or range(len(items))
    failed = 0
    for number in chosen:
        question = kernels.question_of(items[number])
        case = question.cases()[-1]
        module = kernels.module_of("attention", "pallas")
        if reason := case.refusal(module):
            print(f"{number} {question.key}: refused: {reason}", flush=True)
            continue
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            os.environ |= {"MOSAIC_GPU_DUMP_PTXAS": "1", "MOSAIC_GPU_DUMP_TO": folder}
            try:
                _compiled(case, module)
            except Exception as error:
                failed += 1
                print(f"{number} {question.key}: FAILED: {error}", flush=True)
                continue
            uses = _resources(Path(folder))
        took = time.perf_counter() - start
        print(f"{number} {question.key}: {took:.1f} s; {uses}", flush=True)
    return failed


def _compiled(case: Any, module: Any) -> Any:
    """Returns the program of a candidate with its gradient, for an H100."""
    import jax
    import jax.numpy as jnp

    target = place()

    def shape(x):
        x = x if hasattr(x, "dtype") else jnp.asarray(x)
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=target)

    traced = jax.jit(lambda given: case.call(module, given)).trace(jax.tree.map(shape, case.inputs))
    return traced.lower(lowering_platforms=("cuda",)).compile()


def place() -> Any:
    """Returns the sharding of arrays on an H100 that is not there."""
    import jax
    from jax.experimental import topologies

    jax.devices()
    target = topologies.get_topology_desc(platform="cuda", target_config=H100, topology="1x1x1")
    return jax.sharding.SingleDeviceSharding(target.devices[0])


def _resources(folder: Path) -> str:
    """Returns registers and bytes of spills of each kernel."""
    several = []
    for path in sorted(folder.glob("*.ptxas")):
        text = path.read_text("utf8")
        registers = re.search(r"Used (\d+) registers", text)
        spills = re.search(r"(\d+) bytes spill stores", text)
        if registers and spills:
            several.append(f"{registers[1]} registers, {spills[1]} bytes spilled")
    return "; ".join(several) or "no kernel"


if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"
    sys.exit(main())

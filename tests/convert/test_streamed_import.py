"""An import over eight devices allocates its shards and the tensors that it reads and copies.

The allocations are counted, not the memory of the process, which `python -m benchmarks import`
measures.
"""

import contextlib
import os
import tempfile
import weakref
from pathlib import Path

import pytest

from benchmarks import streaming
from ptm_jax.convert import checkpoint
from ptm_jax.convert.files import open_tensors
from ptm_jax.convert.formats import tensors
from support import elsewhere

MESHES = (({"fsdp": 8}, "fsdp"), ({"fsdp": 2, "model": 4}, "megatron_fsdp"))


class Allocations:
    """Counts the bytes of the arrays that are alive, and the bytes that are read."""

    def __init__(self):
        self.alive = self.most = self.read = 0

    @contextlib.contextmanager
    def counted(self):
        memory, preadv = tensors._memory, os.preadv

        def allocate(length):
            array = memory(length)
            self.alive += length
            self.most = max(self.most, self.alive)
            weakref.finalize(array, self.freed, length)
            return array

        def reading(*arguments):
            count = preadv(*arguments)
            self.read += count
            return count

        tensors._memory, os.preadv = allocate, reading
        try:
            yield self
        finally:
            tensors._memory, os.preadv = memory, preadv

    def freed(self, length):
        self.alive -= length


def imports():
    """[what an import by each mesh holds, allocated and read]."""
    with tempfile.TemporaryDirectory() as place:
        folder, results = Path(place), []
        sizes = {"width": 256, "layers": 6, "vocab": 2048, "shard": 4_000_000}
        total, largest = streaming.write(folder, **sizes)
        for mesh, rules in MESHES:
            shardings = streaming.shardings_over(folder / "small", mesh, rules)
            with Allocations().counted() as counts:
                result = streaming.checked(checkpoint.read(folder, shardings=shardings))
            result |= {"files": len(open_tensors(folder).files), "total": total}
            results.append(result | {"largest": largest, "most": counts.most, "read": counts.read})
    return results


@pytest.mark.full
def test_an_import_holds_its_shards_and_two_tensors():
    """One is read while the shards of the last are copied; whole it would be held twice."""
    for result in elsewhere.on_devices(8, imports):
        assert result["right"] and result["spread"] == 8 and not result["extra"]
        assert result["files"] > 4 and result["total"] > 20e6
        assert result["held"] <= 1.01 * result["total"] + 8 * 100_000, result
        assert result["held"] <= result["most"] <= result["held"] + 2 * result["largest"], result
        assert result["total"] <= result["read"] <= 1.01 * result["total"], result

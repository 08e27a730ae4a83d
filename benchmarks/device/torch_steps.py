"""Training steps of transformers' BERT on the same card, for part (d).

bfloat16 autocast, SDPA, fused AdamW, logits at all positions as the library has it. Packed rows are
what it cannot do: its rows hold the same documents one by one, padded to the longest of a batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.device import steps
from benchmarks.device.steps import begin, documents, sizes_of  # noqa: F401

THREADS = 1  # two threads cannot import transformers at the same time


def items(dry: bool) -> list[dict[str, Any]]:
    """Returns the items of `steps`."""
    return steps.items(dry)


def names(item: dict[str, Any]) -> list[str]:
    """Returns the settings."""
    compiled = item["model"] == "large" and item["length"] == 512 and item["layout"] == "full"
    return ["sdpa", "sdpa, compiled"] if compiled else ["sdpa"]


def prepare(item: dict[str, Any]) -> dict[str, Any]:
    """Returns ids, mask and labels, [rows, length]."""
    sizes = sizes_of(item)
    draw = np.random.default_rng(0)
    segments = documents(item, sizes["batch"])
    lengths = np.concatenate([np.bincount(row)[1:] for row in segments])
    longest = int(lengths.max())
    ids = draw.integers(min(1000, sizes["vocab"] // 2), sizes["vocab"], (len(lengths), longest))
    mask = (np.arange(longest) < lengths[:, None]).astype(np.int64)
    labels = np.where((draw.random(ids.shape) < 0.15) & (mask > 0), ids, -100)
    return {"sizes": sizes, "ids": ids, "mask": mask, "labels": labels, "tokens": int(mask.sum())}


def build(item: dict[str, Any], context: dict[str, Any], name: str) -> Any:
    """Makes a model and runs one step, which compiles it if the name says so."""
    import torch
    from transformers import BertConfig, BertForMaskedLM

    sizes, device = context["sizes"], "cuda" if torch.cuda.is_available() else "cpu"
    config = BertConfig(
        vocab_size=sizes["vocab"],
        hidden_size=sizes["width"],
        num_hidden_layers=sizes["layers"],
        num_attention_heads=sizes["heads"],
        intermediate_size=4 * sizes["width"],
        attn_implementation="sdpa",
    )
    with torch.device(device):
        model = BertForMaskedLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    arrays = (torch.as_tensor(context[key]).to(device) for key in ("ids", "mask", "labels"))
    ids, mask, labels = arrays
    given = {} if item["layout"] == "full" else {"attention_mask": mask}
    run = torch.compile(model) if "compiled" in name else model

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16):
            loss = run(input_ids=ids, labels=labels, **given).loss
        loss.backward()
        optimizer.step()
        return loss

    step()
    if device == "cuda":
        torch.cuda.empty_cache()
    return step


def measure(item: dict[str, Any], context: dict[str, Any], name: str, step: Any) -> dict:
    """Times steps."""
    import torch

    from benchmarks.device import clock

    device = "cuda" if torch.cuda.is_available() else "cpu"

    def wait(loss):
        if device == "cuda":
            torch.cuda.synchronize()

    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds = clock.seconds(step, wait)
    peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0
    return {
        "status": "timed",
        "milliseconds": 1e3 * seconds,
        "tokens per second": context["tokens"] / seconds,
        "GiB": peak,
    }

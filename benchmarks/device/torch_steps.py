"""Training steps of transformers' BERT on the same card, for part (d).

bfloat16 autocast, SDPA, fused AdamW, logits at all positions as the library has it. It cannot pack
rows: its rows hold the same documents one by one, sorted by length. A step then adds the gradients
of micro-batches, each padded to its longest document.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.device import steps
from benchmarks.device.steps import begin, documents, sizes_of  # noqa: F401

THREADS = 1  # two threads cannot import transformers at the same time


def items(dry: bool) -> list[dict[str, Any]]:
    """Returns the items of `steps` that a device runs."""
    return [item for item in steps.items(dry) if not dry or item["length"] < 512]


def names(item: dict[str, Any]) -> list[str]:
    """Returns the settings."""
    compiled = item["model"] == "large" and item["length"] != 128 and item["layout"] == "full"
    return ["sdpa", "sdpa, compiled"] if compiled else ["sdpa"]


def prepare(item: dict[str, Any]) -> dict[str, Any]:
    """Returns ids, mask and labels, [rows, length]."""
    sizes = sizes_of(item)
    draw = np.random.default_rng(0)
    segments = documents(item, sizes["batch"])
    lengths = np.sort(np.concatenate([np.bincount(row)[1:] for row in segments]))
    tokens, parts = sizes["batch"] * sizes["length"], []
    while len(
        lengths
    ):  # the longest documents first, at most as many positions as in the full rows
        rows = max(1, tokens // int(lengths[-1]))
        lengths, chosen = lengths[:-rows], lengths[-rows:]
        ids = draw.integers(
            min(1000, sizes["vocab"] // 2), sizes["vocab"], (len(chosen), chosen[-1])
        )
        mask = (np.arange(chosen[-1]) < chosen[:, None]).astype(np.int64)
        labels = np.where((draw.random(ids.shape) < 0.15) & (mask > 0), ids, -100)
        parts.append((ids, mask, labels))
    return {"sizes": sizes, "parts": parts, "tokens": sum(int(mask.sum()) for _, mask, _ in parts)}


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
    parts = [[torch.as_tensor(x).to(device) for x in part] for part in context["parts"]]
    words = sum(int((labels >= 0).sum()) for _, _, labels in parts)
    quick = {"backend": "eager"} if device == "cpu" else {}
    run = torch.compile(model, **quick) if "compiled" in name else model

    def step():
        optimizer.zero_grad(set_to_none=True)
        for ids, mask, labels in parts:
            extra = {} if item["layout"] == "full" else {"attention_mask": mask}
            with torch.autocast(device, torch.bfloat16):
                loss = run(input_ids=ids, labels=labels, **extra).loss
            (loss * ((labels >= 0).sum() / words)).backward()
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

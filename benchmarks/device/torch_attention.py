"""Attention of torch on the same card, for part (c): FlexAttention and SDPA."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.device import attention
from benchmarks.device.attention import BUCKETS, MOST, WINDOW, begin, flops, segments_of  # noqa: F401

LENGTHS = (512, 2048, 8192)
CASES = ("plain", "t5", "packed", "permutation", "window")
FLEX = 2048  # the length at which FlexAttention is compiled: it takes most of a minute

THREADS = 1  # torch compiles one function at a time


def items(dry: bool) -> list[dict[str, Any]]:
    """Returns case and length of every item."""
    lengths = (32,) if dry else LENGTHS
    return [{"case": case, "length": length} for length in lengths for case in CASES]


def names(item: dict[str, Any]) -> list[str]:
    """Returns the functions."""
    return ["flex", "sdpa"] if item["length"] == FLEX or attention._dry else ["sdpa"]


def prepare(item: dict[str, Any]) -> dict[str, Any]:
    """Returns the sizes."""
    return {"shape": attention.shape_of(item)}


def build(item: dict[str, Any], context: dict[str, Any], name: str) -> Any:
    """Runs a function once, which compiles it."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    shape = context["shape"]
    size = shape.rows, shape.heads, shape.length, shape.width
    q, k, v = (torch.randn(size, device=device, dtype=torch.bfloat16) for _ in range(3))
    table = torch.randn(BUCKETS, shape.heads, device=device)
    forward_only = name == "flex" and device == "cpu"  # it has no backward pass there
    leaves = [x.requires_grad_(not forward_only) for x in (q, k, v, table)]
    segments = torch.as_tensor(segments_of(item, shape)).to(device)
    draw = np.random.default_rng(0)
    order = np.tile(np.arange(shape.length), (shape.rows, 1))
    order = torch.as_tensor(draw.permuted(order, axis=1)).to(device)
    make = _flex if name == "flex" else _sdpa
    run = make(item, shape, leaves, (segments, order))

    def both():
        out = run()
        if forward_only:
            return out
        return torch.autograd.grad(
            out.sum(), [x for x in leaves if item["case"] == "t5" or x is not table]
        )

    both()
    if device == "cuda":
        torch.cuda.empty_cache()
    return run, both


def _buckets(length: int, device) -> Any:
    """Returns T5's bucket of every pair of positions."""
    import torch

    from ptm_jax.nn.attention.relative import t5_bucket

    places = np.arange(-MOST, MOST + 1)
    line = torch.as_tensor(np.asarray(t5_bucket(places, BUCKETS, MOST, True)).astype(np.int64))
    slots = torch.arange(length)
    distance = (slots[None] - slots[:, None]).clamp(-MOST, MOST) + MOST
    return line.to(device), line[distance].to(device)


def _sdpa(item, shape, leaves, marks):
    import torch
    import torch.nn.functional as F

    q, k, v, table = leaves
    segments, order = marks
    case, mask = item["case"], None
    if case == "packed":
        mask = (segments[:, :, None] == segments[:, None, :])[:, None]
    if case == "permutation":
        mask = (order[:, None, :] <= order[:, :, None])[:, None]
    if case == "window":
        places = torch.arange(shape.length, device=q.device)
        mask = ((places[:, None] - places[None]).abs() <= WINDOW)[None, None]
    buckets = _buckets(shape.length, q.device)[1] if case == "t5" else None

    def run():
        added = mask if buckets is None else table[buckets].permute(2, 0, 1)[None].to(q.dtype)
        scale = 1.0 if case == "t5" else None
        return F.scaled_dot_product_attention(q, k, v, attn_mask=added, scale=scale)

    return run


def _flex(item, shape, leaves, marks):
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v, table = leaves
    segments, order = marks
    case, score, block = item["case"], None, None

    def same(b, h, i, j):
        return segments[b, i] == segments[b, j]

    def earlier(b, h, i, j):
        return order[b, j] <= order[b, i]

    def near(b, h, i, j):
        return (i - j).abs() <= WINDOW

    masks = {"packed": same, "permutation": earlier, "window": near}
    if case in masks:
        size = shape.rows, None, shape.length, shape.length
        block = create_block_mask(masks[case], *size, device=q.device)
    if case == "t5":
        line = _buckets(4, q.device)[0]

        def score(s, b, h, i, j):
            return s + table[line[(j - i).clamp(-MOST, MOST) + MOST], h]

    quick = {"backend": "eager"} if q.device.type == "cpu" else {}
    compiled = torch.compile(flex_attention, dynamic=False, **quick)
    scale = 1.0 if case == "t5" else None
    return lambda: compiled(q, k, v, score_mod=score, block_mask=block, scale=scale)


def measure(item: dict[str, Any], context: dict[str, Any], name: str, programs: Any) -> dict:
    """Times a function."""
    import torch

    from benchmarks.device import clock

    def wait(result):
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    run, both = programs
    shape = context["shape"]
    return {
        "status": "timed",
        "forward": clock.seconds(lambda: run().detach(), wait),
        "both": clock.seconds(both, wait),
        "flops": flops(item, shape, segments_of(item, shape)),
    }

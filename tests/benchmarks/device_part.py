"""A part of `benchmarks.device` whose programs fail in every way that a kernel can."""

import os
import time

THREADS = 2


def begin(dry):
    """Nothing to set."""


def names(item):
    """One program for each way."""
    return ["right", "builds not", "raises", "loses the device", "dies", "hangs", "last"]


def prepare(item):
    """The context of an item."""
    return item["value"]


def build(item, context, name):
    """The program: its name."""
    if name == "builds not":
        raise ValueError("no such layout")
    return name


def measure(item, context, name, program):
    """What becomes of it."""
    if name == "raises":
        raise ValueError("out of range")
    if name == "loses the device":
        raise RuntimeError("CUDA_ERROR_MISALIGNED_ADDRESS: misaligned address")
    if name == "dies":
        os._exit(9)
    if name == "hangs":
        time.sleep(60)
    return {"status": "right", "result": 2 * context}

"""A model as a Hugging Face directory that Transformers loads: config.json, safetensors, the tokenizer's files.

Example:
  ptm export runs/quickstart --out bert-of-mine
  ptm export models/bert --out bert --dtype float16
  ptm export runs/lora --adapter --out lora.safetensors
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

import tyro

from ptm_jax.cli import options


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """The workdir of a training run or of `ptm import`, one checkpoint of it, or a published checkpoint."""
    out: Annotated[str, tyro.conf.arg(metavar="DIR")]
    """The directory to write; it must be empty or not exist. With --adapter, the file."""
    adapter: options.Flag = False
    """Of a run with --adapt, what was trained alone: a small file that names its base and is loaded on that alone."""
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    """Of the tensors in the file."""
    max_shard_gb: float = 5.0
    """Size of a file beyond which the tensors are spread over several, with an index."""
    tower: options.Text = None
    """The network to export, where the system has several: "main" and "generator" of ELECTRA."""


def run(args: Args) -> int:
    """Write the directory, whole or not at all."""
    import ptm_jax
    from ptm_jax.core.errors import UserError
    from ptm_jax.train import imported

    if args.adapter:
        return _adapter(args)
    if args.max_shard_gb <= 0:
        raise UserError(f"--max-shard-gb is {args.max_shard_gb}; give a size above 0")
    imported.check_free(args.out)
    model = ptm_jax.load(args.model, tower=args.tower)
    config = imported.config_of(args.model)
    files = imported.export(args.out, model, config, dtype=args.dtype, max_shard_bytes=int(args.max_shard_gb * 1e9))
    print(f"wrote {len(files)} files to {args.out}")
    for file in sorted(files):
        print(f"  {file.name}")
    return 0


def _adapter(args: Args) -> int:
    from ptm_jax.train import adapters

    size, own, base = adapters.save(args.model, args.out)
    print(f"wrote {args.out}: {size:,} bytes, {own:,} parameters beside the {base:,} of its base")
    return 0

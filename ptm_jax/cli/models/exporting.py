"""Export a model as a Hugging Face directory: config.json, safetensors, tokenizer files. Word
vectors become a file of word2vec, GloVe, fastText or gensim, and ELMo the options.json and
lm_weights.hdf5 of AllenNLP. --format stablehlo and onnx write a graph with its weights, for those
who serve the model without this package.

Example:
  ptm export runs/mini --out bert-of-mine
  ptm export models/bert --out bert --dtype float16
  ptm export runs/sst2 --out sst2 --push my-name/bert-sst2
  ptm export runs/lora --adapter --out lora.safetensors
  ptm export runs/skipgram --out skipgram.bin
  ptm export runs/fasttext --out fasttext.bin
  ptm export runs/elmo --out elmo
  ptm export runs/sst2 --out served --format onnx
  ptm export glove.6B.300d.txt --out glove.bin --format word2vec-binary
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Literal

import tyro

from ptm_jax.cli import options


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A workdir of `ptm train` or `ptm import`, one checkpoint of it, or a published checkpoint."""
    out: Annotated[str, tyro.conf.arg(metavar="DIR")]
    """Directory to write, empty or new; with --adapter or word vectors the file."""
    format: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """stablehlo or onnx: a graph. Of word vectors, and of runs of skip-gram or CBOW: word2vec,
    word2vec-binary, glove, fasttext-bin, keyed-vectors or folder (default: by the ending of --out:
    .txt and .vec, .bin, .kv, none)."""
    adapter: options.Flag = False
    """Write the trained parameters of a run with --adapt only; the file loads onto the same base
    model."""
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    """Type of the tensors."""
    max_shard_gb: float = 5.0
    """Largest size of a file in GB; more tensors are split over files with an index."""
    layout: Literal["transformers", "sentence-transformers"] | None = None
    """Whose folder is written (default: transformers; sentence-transformers for an encoder that
    began as one)."""
    tower: options.Text = None
    """Tower to export, as "main" or "generator" of ELECTRA (default: main)."""
    push: Annotated[str | None, tyro.conf.arg(metavar="REPO")] = None
    """Upload the directory to this repository of the Hugging Face Hub, as "name" or
    "organisation/name"."""
    private: options.Flag = False
    """--push: a repository that only its owner sees, where it is new."""


def run(args: Args) -> int:
    """Writes the directory, whole or not at all."""
    import ptm_jax
    from ptm_jax.cli.models import word_tables
    from ptm_jax.convert import hub, layouts
    from ptm_jax.core.errors import UserError
    from ptm_jax.inference import loading
    from ptm_jax.inference.text import generating
    from ptm_jax.inference.words.trained_words import is_words
    from ptm_jax.runs import card, publishing, run, writing

    if args.format in ("stablehlo", "onnx"):
        return _graph(args)
    if is_words(args.model) or args.format is not None:
        return word_tables.export(args)
    if args.adapter:
        size, trained, base = run.Run.at(args.model).save_adapter(args.out)
        print(
            f"wrote {args.out}: {size:,} bytes, {trained:,} parameters beside the {base:,} of its "
            "base"
        )
        return 0
    if args.max_shard_gb <= 0:
        raise UserError(f"--max-shard-gb is {args.max_shard_gb}; give a size above 0")
    if args.push is not None:
        hub.check_name(args.push)
    writing.check_free(args.out)
    chosen = run.best_checkpoint(args.model)
    model = ptm_jax.load(chosen, tower=args.tower)
    published = publishing.published_config(args.model), writing.generation_of(args.model)
    here = run.Run.at(chosen)
    words = {
        "dtype": args.dtype,
        "max_shard_bytes": int(args.max_shard_gb * 1e9),
        "run": here if here.exists else None,
        "layout": args.layout,
        "named": generating.start_field(model) if loading.has_encoder(model) else {},
    }
    files = publishing.export(args.out, model, *published, **words)
    names = sorted(file.relative_to(Path(args.out).absolute()).as_posix() for file in files)
    print(f"wrote {len(files)} files to {args.out}", *(f"  {name}" for name in names), sep="\n")
    fields, library = Path(args.out) / "config.json", layouts.writer_of(model.module)
    if library is not None:
        print("load it:", f"  {library.loads.format(folder=args.out)}", sep="\n")
    elif fields.is_file():
        sentence = (Path(args.out) / "modules.json").is_file()
        lines = card.loading(args.out, json.loads(fields.read_text(encoding="utf8")), sentence)
        if (length := card.trained_length(model, sentence)) is not None:
            lines.append(f"# {length}")
        print("load it:", *(f"  {line}" for line in lines), sep="\n")
    if args.push is not None:
        print(f"pushed to {hub.push_to_hub(args.out, args.push, private=args.private)}")
    return 0


def _graph(args: Args) -> int:
    import ptm_jax
    from ptm_jax.core.errors import UserError
    from ptm_jax.inference import loading, serving
    from ptm_jax.runs import run, writing

    if excluded := options.given(args, ("adapter", "push", "private")):
        raise UserError(
            f"{excluded[0]} is for Hugging Face directories; "
            f"leave it out with --format {args.format}"
        )
    writing.check_free(args.out)
    model = ptm_jax.load(run.best_checkpoint(args.model), tower=args.tower)
    if not loading.has_encoder(model):
        raise UserError(
            f"{args.model} holds word vectors; --format {args.format} is for models with an encoder"
        )
    files = serving.write(args.out, model, args.format)
    print(
        f"wrote {len(files)} files to {args.out}",
        *(f"  {file.name}: {file.stat().st_size:,} bytes" for file in files),
        sep="\n",
    )
    return 0

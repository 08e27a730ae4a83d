"""Import a Hugging Face checkpoint, without torch, as a folder that every command takes as a model;
or a file of word vectors, as a folder that is memory-mapped; or language models of characters, as
vectors of words.

Example:
  ptm import bert-base-uncased --out models/bert
  ptm import path/to/checkpoint --out models/mine --architecture BertForSequenceClassification
  ptm import path/to/checkpoint --out models/medical --grow words.txt
  ptm import path/to/checkpoint --out models/medical --grow-from 'notes/*.txt' --grow-words 500
  ptm import path/to/checkpoint --out models/russian --assemble vocab.txt
  ptm import runs/skip_thought --out models/skip_thought --expand glove.6B.300d.txt
  ptm import glove.6B.300d.txt --out models/glove
  ptm import vectors.kv --allow-pickle --out models/vectors
  ptm import runs/flair --strings --out models/strings

MODEL is a directory with config.json and safetensors (one file, or shards with an index) or Flax
msgpack, or a name on the Hugging Face Hub. `ptm predict`, `ptm show`, `ptm export` and `ptm train
--init` also take MODEL directly.
"""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Annotated

import tyro

from ptm_jax.cli import options
from ptm_jax.core.errors import UserError

if TYPE_CHECKING:
    from ptm_jax.core.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A directory, a name on the Hub, or a file of word vectors."""
    out: Annotated[str, tyro.conf.arg(metavar="DIR")]
    """Folder for the record, the tokenizer and a checkpoint of step 0."""
    architecture: options.Text = None
    """Class of the model, as BertForMaskedLM (default: the checkpoint's); heads that the checkpoint
    lacks are new."""
    revision: options.Text = None
    """Branch, tag or commit on the Hub (default: main)."""
    grow: options.Path = None
    """File of words, one per line, to add to the vocabulary (unused tokens first); a word's vector
    is the mean of its pieces' vectors."""
    grow_from: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SOURCE ...")] = ()
    """Text whose most frequent words of several pieces are added, in the place of --grow."""
    grow_words: Annotated[int, tyro.conf.arg(metavar="N")] = 500
    """With --grow-from: number of words at most; each occurs five times or more."""
    assemble: options.Path = None
    """A vocab.txt, or a folder of `ptm prepare`, whose pieces take the place of the checkpoint's
    WordPiece vocabulary (RuBERT): known pieces keep their vectors, those of others are the means
    of their old pieces'."""
    expand: options.Path = None
    """File of word vectors, whose words are added to the whole-word vocabulary of a run
    (skip-thought); a linear map that is fitted to the words that both know makes their vectors."""
    strings: options.Flag = False
    """MODEL is a run of flair, or a folder with Flair's models *forward*.pt and *backward*.pt; the
    result has vectors of words."""
    allow_pickle: options.Flag = False
    """Read a torch pickle if there is no other file, or gensim's KeyedVectors."""
    json: options.Flag = False
    """Print one JSON document: architecture, parameters, tensors, missing, extra, out."""


def run(args: Args) -> int:
    """Reads the checkpoint and writes the folder."""
    from ptm_jax.cli.models import word_tables
    from ptm_jax.convert.words.wordfiles import is_words
    from ptm_jax.core import paths
    from ptm_jax.inference import loading
    from ptm_jax.runs import writing
    from ptm_jax.runs.run import Run

    writing.check_free(args.out)
    if is_words(args.model):
        return word_tables.take(args)
    if args.expand is not None:
        return _expanded(args)
    if args.strings:
        return _strings(args)
    words = {
        "architecture": args.architecture,
        "allow_pickle": args.allow_pickle,
        "revision": args.revision,
    }
    if Run.at(args.model).exists:
        raise UserError(
            f"{args.model} is a run; `ptm export {args.model} --out DIR` writes a checkpoint, "
            "which `ptm import DIR` reads"
        )
    model, imported = loading.from_published(args.model, **words)
    if args.grow is not None or args.grow_from or args.assemble is not None:
        model, imported = _grown(model, imported, args)
    writing.keep(args.out, model, imported)
    count = paths.count(model.params)
    tensors, tokenizer = imported.report, model.tokenizer
    document = {"architecture": imported.architecture, "parameters": count, "tensors": tensors.read}
    document |= {"missing": list(tensors.missing), "extra": list(tensors.extra), "out": args.out}
    lines = [
        f"{imported.architecture}: {count:,} parameters of {tensors.read} tensors",
        "  with no tokenizer"
        if tokenizer is None
        else f"  with a {tokenizer.kind} tokenizer of {len(tokenizer.pieces)} pieces",
        f"  in {args.out}",
        *recipe_lines(imported.system.recipe, imported.config.file),
    ]
    return options.report(document, "\n".join(lines), args.json)


def recipe_lines(recipe: Recipe, config: str) -> list[str]:
    """Returns the lines on the recipe that further training has: of the run that was exported, or
    as published, with the options that change it. `config` is the file of the folder."""
    from pathlib import Path

    from ptm_jax.convert.checkpoint import RECIPE

    last = len(recipe.phases) - 1
    phase = recipe.phases[last]
    shape = f"{phase.batch:,} rows of {phase.length:,} tokens, lr {recipe.lr:g}"
    if Path(config).with_name(RECIPE).is_file():
        return [f"  further training: {shape}, as the run that was exported ({RECIPE})"]
    return [
        f"  further training: {shape}, as published; fewer by --set recipe.phases.{last}.batch=16 "
        f"recipe.phases.{last}.length=128 recipe.lr=5e-5"
    ]


def _expanded(args: Args) -> int:
    """Writes a run with the words of a file of word vectors."""
    import ptm_jax
    from ptm_jax.inference.words.word_vectors import WordVectors

    if excluded := options.given(args, ("architecture", "revision", "grow")):
        raise UserError(f"{excluded[0]} is for published checkpoints; leave it out with --expand")
    model, vectors = (
        ptm_jax.load(args.model),
        ptm_jax.load(args.expand, allow_pickle=args.allow_pickle),
    )
    if isinstance(model, WordVectors) or not isinstance(vectors, WordVectors):
        raise UserError(
            "--expand takes a run with a vocabulary of whole words as MODEL and a file of "
            "word vectors"
        )
    larger = model.expanded(vectors)
    larger.save(args.out)
    document = {
        "words": len(larger.tokenizer.pieces),
        "new": larger.vocab.size - model.vocab.size,
        "out": args.out,
    }
    line = (
        f"{model.system.name}: {document['words']:,} words, {document['new']:,} of them "
        f"new\n  in {args.out}"
    )
    return options.report(document, line, args.json)


def _strings(args: Args) -> int:
    """Writes the vectors of words of character language models."""
    from ptm_jax.convert.libraries.flair_files import is_flair
    from ptm_jax.inference import loading

    if excluded := options.given(args, ("architecture", "revision", "grow")):
        raise UserError(f"{excluded[0]} is for published checkpoints; leave it out with --strings")
    model = loading.load(args.model, allow_pickle=args.allow_pickle and is_flair(args.model))
    if not is_flair(args.model):
        model = loading.strings(model, model.system.name)
    model.save(args.out)
    width = sum(way.width for way in (model.module.encoder.right, model.module.encoder.left))
    return options.report(
        {"width": width, "out": args.out},
        f"{model.system.name}: words of width {width}\n  in {args.out}",
        args.json,
    )


def _grown(model, imported, args: Args):
    """The model and its record with more words, or with another vocabulary."""
    from ptm_jax.convert.config import Config
    from ptm_jax.runs import growing

    if args.assemble is not None:
        if excluded := options.given(args, ("grow", "grow_from")):
            raise UserError(f"{excluded[0]} adds words; leave it out with --assemble")
        model = growing.assembled(model, _pieces(args.assemble))
    else:
        model = growing.grown(model, _words(model, args))
    fields = {"vocab_size": model.vocab.size, "pad_token_id": model.vocab.pad}
    config = Config({**imported.config, **fields}, imported.config.file)
    return model, dataclasses.replace(
        imported, system=model.system, params=model.params, config=config
    )


def _words(model, args: Args) -> list[str]:
    """The words of --grow, or of the text of --grow-from."""
    from ptm_jax.data.text import sources
    from ptm_jax.runs import growing

    if args.grow is not None:
        if args.grow_from:
            raise UserError("--grow names the words; leave it out, or --grow-from")
        return _lines(args.grow)
    texts = (" ".join(document.sentences) for document in sources.documents(args.grow_from))
    words = growing.candidates(model._tokenizer(), texts, args.grow_words)
    if not words:
        raise UserError(
            f"{' '.join(args.grow_from)} has no word of several pieces five times; give more text, "
            "or words as --grow"
        )
    return words


def _pieces(path: str) -> list[str]:
    """Returns the pieces of a vocab.txt, or of the tokenizer of a prepared corpus."""
    from ptm_jax.data.corpora.store import open_corpus

    if not os.path.isdir(path):
        return _lines(path)
    tokenizer = open_corpus(path).tokenizer()
    if tokenizer.kind != "wordpiece":
        raise UserError(f"the tokenizer of {path} is a {tokenizer.kind} one; prepare a wordpiece")
    return tokenizer.pieces


def _lines(path: str) -> list[str]:
    from ptm_jax.core.reading import decoded, read_bytes

    lines = decoded(path, read_bytes(path)).splitlines()
    return [line.strip() for line in lines if line.strip()]

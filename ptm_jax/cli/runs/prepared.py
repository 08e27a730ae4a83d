"""What `ptm prepare` prints of a corpus: its languages, and the commands that train on it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ptm_jax.cli import options

if TYPE_CHECKING:
    from ptm_jax.cli.runs.prepare import Args
    from ptm_jax.data.corpora.store import Corpus

OF_SOURCES = {
    "parallel:": "biskip_mini", "trees:": "tree_lstm_mini", "binary:": "rntn_mini",
    "graph:": "dkrl_mini", "triples:": "transe_mini",
}  # fmt: skip
"""{kind of a source: a system of such text}. It reads the source itself, in its own pieces."""
OF_SPECIALS = {
    "roberta": "roberta_mini",
    "gpt2": "gpt_mini",
    "t5": "t5_mini",
    "xlnet": "xlnet_mini",
}
"""{special tokens of a tokenizer: a system that reads them}."""


def parts(parts: Mapping[str, Mapping[str, Any]], source: str) -> list[str]:
    """Returns the table of the languages or domains of a corpus, as its first `source` names them;
    [] without any.

    A word begins with a piece that has the tokenizer's mark, so that a punctuation mark is a word
    of WordPiece; a tokenizer that marks the ends of words has no column of them."""
    if not parts:
        return []
    worded = any(part.get("words") for part in parts.values())
    counted, words = ("documents", "sentences", "tokens"), ["pieces a word"] * worded
    rows = [
        [
            name,
            *(f"{part[count]:,}" for count in counted),
            f"{part['share']:.1%}",
            *([f"{part['tokens'] / part['words']:.2f}"] if worded else []),
            f"{part['unknown']:.2%}",
        ]
        for name, part in parts.items()
    ]
    head = [source.partition(":")[0], *counted, "share", *words, "unknown"]
    return [options.table(head, rows)]


def next_steps(corpus: Corpus, args: Args, specials: str) -> list[str]:
    """Returns the command that trains a system which fits a corpus, and another one for
    translations, whose task reads the pairs themselves."""
    first = next((one for one in args.data if one.startswith(tuple(OF_SOURCES))), None)
    name = OF_SOURCES[first.partition(":")[0] + ":"] if first else _system(corpus, args, specials)
    lines = [f"next: ptm train {name} --data {shlex.quote(first or args.out)} --workdir DIR"]
    if pairs := [source for source in args.data if _is_pair(source)]:
        lines.append(
            "to translate: ptm train xlm_translation_mini --task translation --data "
            f"{shlex.quote(pairs[0])} --workdir DIR"
        )
    return lines


def _is_pair(source: str) -> bool:
    return source.startswith("language:") and "-" in source.partition("=")[0]


def _system(corpus: Corpus, args: Args, specials: str) -> str:
    """Returns the name of a system for the pieces and the languages of a corpus."""
    if args.tokenizer == "word":
        return "skipgram_mini" if args.cooccurrence is None else "glove_mini"
    if corpus.languages and corpus.vocab.mask is not None and args.data[0].startswith("language:"):
        if any(map(_is_pair, args.data)):
            return "bert_mini" if corpus.vocab.eos is None else "xlm_mini"
        return "bert_multilingual_mini" if specials == "bert" else "xlm_r_mini"
    if corpus.vocab.mask is None and specials == "t5" and not corpus.vocab.extra:
        return "gpt_mini"
    return OF_SPECIALS.get(specials, "bert_mini")

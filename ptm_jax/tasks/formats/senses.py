"""Word senses as pairs of a sentence and a gloss (GlossBERT, Sent-CLS-WS: Huang et al. 2019, arXiv 1908.07245, section 3).

    wsd  lines of allenai/kb: a JSON list of tokens with token, lemma, pos and, where the word is annotated, senses
         ("1:06:00::") and id. `entities.jsonl` beside it has WordNet's lemmas and synsets (`data.graphs.knowbert`)

Every sense of an annotated word's lemma and part of speech is a row: the sentence with the word between [E1] and [/E1],
and the lemma with the gloss. The rows of a word are a group; the sense of the likeliest row is its prediction.
"""

from __future__ import annotations

import collections
import functools
import json
from collections.abc import Iterator
from pathlib import Path

from ptm_jax.core.errors import UserError
from ptm_jax.tasks.formats import tabular
from ptm_jax.tasks.formats.marked import marked
from ptm_jax.tasks.formats.tabular import Row, format_of, needs

PARTS = {"NOUN": "n", "VERB": "v", "ADJ": "a", "ADV": "r"}
"""Universal parts of speech: WordNet's."""
SENSES = "entities.jsonl"


@functools.lru_cache(maxsize=2)
def _senses(path: Path) -> dict[tuple[str, str], list[tuple[str, str]]]:
    """{(lemma, part of speech): [(sense key, gloss), ...]}, in the order of the file."""
    if not path.is_file():
        raise UserError(f"{path} is absent; word senses need WordNet's lemmas and synsets beside the sentences")
    found, glosses = collections.defaultdict(list), {}
    for number, line in tabular.lines_of(path):
        try:
            row = json.loads(line)
            if row["type"] == "synset":
                glosses[row["id"]] = row["definition"]
            else:
                kind = "a" if row["pos"] == "s" else row["pos"]
                found[row["id"].partition("%")[0], kind].append((row["id"], row["synset"]))
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{path}:{number} is {line[:60]!r}; expected a lemma or a synset as JSON") from None
    return {word: [(key, glosses[s]) for key, s in some if s in glosses] for word, some in found.items()}


@format_of("wsd")
def _wsd(path: Path, encoding: str) -> Iterator[Row]:
    senses = _senses(path.with_name(SENSES))
    for number, line in tabular.lines_of(path, encoding):
        place = f"{path}:{number}"
        try:
            tokens = json.loads(line)
            words = [word for token in tokens for word in needs(place, token, "token")]
        except (ValueError, TypeError):
            raise UserError(f"{place} is {line[:60]!r}; expected a JSON list of tokens") from None
        for at, token in enumerate(tokens):
            if "id" not in token:
                continue
            lemma, kind, name = needs(place, token, "lemma", "pos", "id")
            gold = [f"{lemma}%{sense}" for sense in token.get("senses", ())]
            for key, gloss in senses.get((lemma, PARTS.get(kind, kind)), ()):
                label = {"label": str(int(key in gold))} if gold else {}
                yield place, {
                    "first": marked(place, words, (at, at + 1)), "second": f"{lemma.replace('_', ' ')}: {gloss}",
                    "index": name, "group": name, "facts": {"sense": key, "answers": gold or None}, **label,
                }  # fmt: skip

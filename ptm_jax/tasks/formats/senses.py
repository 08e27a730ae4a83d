"""Word senses as pairs of a sentence and a gloss (GlossBERT, Sent-CLS-WS: Huang et al. 2019, arXiv
1908.07245, section 3).

    wsd  XML of Raganato et al.'s framework (2017), NAME.data.xml of <sentence> with <wf> and
         <instance id lemma pos>, and the keys in NAME.gold.key.txt; or lines of allenai/kb: a JSON
         list of tokens with token, lemma, pos and, where the word is annotated, senses
         ("1:06:00::") and id

Lemmas and glosses are in the same folder: `entities.jsonl` of allenai/kb
(`knowledge.graphs.knowbert`), or WordNet's `index.sense` and `data.noun`, `data.verb`, ...
(wndb(5), senseidx(5)).

Every sense of an annotated word's lemma and part of speech is a row: the sentence with the word
between [E1] and [/E1], and the lemma with the gloss. The rows of a word are a group; the sense of
the likeliest row is its prediction. A word without a sense is one row, which is wrong.
"""

from __future__ import annotations

import collections
import functools
import io
import json
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from ptm_jax.core.errors import UserError
from ptm_jax.knowledge.graphs import knowbert
from ptm_jax.knowledge.graphs.formats import source
from ptm_jax.knowledge.graphs.opening import compiled
from ptm_jax.knowledge.graphs.wordnet import word_of
from ptm_jax.tasks.formats import tabular
from ptm_jax.tasks.formats.marked import marked
from ptm_jax.tasks.formats.tabular import Fields, Row, format_of, needs

PARTS = {"NOUN": "n", "VERB": "v", "ADJ": "a", "ADV": "r"}
"""Universal parts of speech: WordNet's."""
SENSES, KEYS = "entities.jsonl", "index.sense"
Senses = dict[tuple[str, str], list[tuple[str, str]]]
"""{(lemma, part of speech): [(sense key, gloss), ...]}."""


@functools.lru_cache(maxsize=2)
def _senses(folder: Path) -> Senses:
    """The senses of the files of a folder, in the order of the file, or that of their numbers in
    WordNet."""
    if (folder / SENSES).is_file():
        return _listed(folder / SENSES)
    if (folder / KEYS).is_file():
        return _of_wordnet(folder)
    raise UserError(
        f"{folder} has no {SENSES} and no {KEYS}; word senses need WordNet's lemmas and "
        "glosses beside the text"
    )


def _of_wordnet(folder: Path) -> Senses:
    graph, several = compiled([source(f"senses:{folder}")]), collections.defaultdict(list)
    keys, glosses = list(graph.entities), list(graph.descriptions)
    if graph.alias_senses is None:
        raise UserError(f"{folder / KEYS} does not number senses; expected lines as in senseidx(5)")
    for entities, numbers in zip(graph.alias_entities, graph.alias_senses, strict=True):
        for entity, number in zip(entities.tolist(), numbers.tolist(), strict=True):
            gloss = glosses[entity].split('; "')[0].strip()
            several[word_of(keys[entity])].append((number, keys[entity], gloss))
    return {
        word: [(key, gloss) for _, key, gloss in sorted(some)] for word, some in several.items()
    }


def _listed(path: Path) -> Senses:
    several, glosses = collections.defaultdict(list), {}
    for place, row in knowbert.rows(path):
        try:
            if row["type"] == "synset":
                glosses[row["id"]] = row["definition"]
            else:
                part = "a" if row["pos"] == "s" else row["pos"]
                several[row["id"].partition("%")[0], part].append((row["id"], row["synset"]))
        except KeyError:
            raise knowbert.wrong(place, row) from None
    return {
        word: [(key, glosses[synset]) for key, synset in some if synset in glosses]
        for word, some in several.items()
    }


@format_of("wsd")
def _wsd(path: Path, encoding: str) -> Iterator[Row]:
    senses = _senses(path.parent)
    for place, tokens in (
        of_raganato(path, encoding) if path.suffix == ".xml" else _of_kb(path, encoding)
    ):
        words = [word for token in tokens for word in needs(place, token, "token")]
        for at, token in enumerate(tokens):
            if "id" not in token:
                continue
            lemma, kind, name = needs(place, token, "lemma", "pos", "id")
            gold = [
                sense if "%" in sense else f"{lemma}%{sense}" for sense in token.get("senses", ())
            ]
            for key, gloss in senses.get((lemma.lower(), PARTS.get(kind, kind)), [("", "")]):
                label = {"label": str(int(key in gold))} if gold else {}
                yield place, {
                    "first": marked(place, words, (at, at + 1)),
                    "second": f"{lemma.replace('_', ' ')}: {gloss}",
                    "index": name, "group": name, "facts": {"sense": key, "answers": gold or None},
                    **label,
                }  # fmt: skip


def _of_kb(path: Path, encoding: str) -> Iterator[tuple[str, list[Fields]]]:
    for number, line in tabular.lines_of(path, encoding):
        try:
            tokens = json.loads(line)
            if not isinstance(tokens, list):
                raise ValueError
        except ValueError:
            raise UserError(
                f"{path}:{number} is {line[:60]!r}; expected a JSON list of tokens"
            ) from None
        yield f"{path}:{number}", tokens


def of_raganato(path: Path, encoding: str) -> Iterator[tuple[str, list[Fields]]]:
    """The sentences of XML as tokens of allenai/kb, with whole sense keys."""
    keys, gold = (
        {},
        path.with_name(path.name.removesuffix(".xml").removesuffix(".data") + ".gold.key.txt"),
    )
    for _, line in tabular.lines_of(gold, encoding) if gold.is_file() else ():
        name, *some = line.split()
        keys[name] = some
    try:
        for number, (_, sentence) in enumerate(
            ElementTree.iterparse(io.StringIO(tabular.text_of(path, encoding))), 1
        ):
            if sentence.tag != "sentence":
                continue
            tokens = [{"token": part.text or "", **part.attrib} for part in sentence]
            more = (
                {"senses": keys[token["id"]]} if token.get("id") in keys else {} for token in tokens
            )
            yield (
                f"{path}: element {number}",
                [{**token, **some} for token, some in zip(tokens, more, strict=True)],
            )
            sentence.clear()
    except ElementTree.ParseError as error:
        raise UserError(
            f"{path}:{error.position[0]} is damaged or cut off XML ({error}); fetch it again"
        ) from None

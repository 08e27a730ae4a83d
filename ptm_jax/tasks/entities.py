"""Entities of tag sequences and how well they are found: conlleval's rule, and every scheme taken strictly.

    lenient   what conlleval does (Tjong Kim Sang and De Meulder 2003): an entity begins where a tag begins one, or where its
              type differs from the one before; what no scheme allows is read as what was meant
    IOB1, IOB2, IOE1, IOE2, IOBES, BILOU   only what the scheme allows is an entity

The strict schemes follow seqeval's tables, odd corners of IOE1 included, and are tested against it on random tags.
"""

from __future__ import annotations

from collections.abc import Sequence

from ptm_jax.core.errors import unknown

Entity = tuple[str, int, int]
"""Its type, its first word, and the one after its last."""

# Pairs of prefixes, the tag before and the tag here; "=": of one type, "!": of two. "." is any prefix.
_RULES: dict[str, tuple[str, str, str]] = {
    "IOB1": ("OI II! BI IB= BB=", "BI= II=", "II! IO IB BO BI! BB="),
    "IOB2": (".B", "BI= II=", "IO II! IB BO BI! BB"),
    "IOE1": ("OI II! EI EE=", "II= IE=", "II! IO IE! EI= EE="),
    "IOE2": ("OI OE EI EE II! IE!", "IE= II=", "E."),
    "IOBES": (".B .S", "BI= BE= II= IE=", "S. E."),
    "BILOU": (".B .U", "BI= BL= II= IL=", "U. L."),
}
SCHEMES = ("lenient", *_RULES)


def entities(tags: Sequence[str], scheme: str = "lenient") -> list[Entity]:
    """The entities of one sentence's tags, in order. Raises UserError for an unknown scheme."""
    if scheme not in SCHEMES:
        raise unknown("scheme", scheme, SCHEMES)
    split = [_split(tag) for tag in tags] + [("O", "_")]
    return _lenient(split) if scheme == "lenient" else _strict(split, *_RULES[scheme])


def entity_scores(
    gold: Sequence[Sequence[str]], said: Sequence[Sequence[str]], scheme: str = "lenient"
) -> dict[str, float]:
    """Precision, recall and F1 of the entities of all sentences together."""
    true = {(i, *entity) for i, tags in enumerate(gold) for entity in entities(tags, scheme)}
    found = {(i, *entity) for i, tags in enumerate(said) for entity in entities(tags, scheme)}
    return _scores(len(true & found), len(true), len(found))


def surface_scores(
    words: Sequence[Sequence[str]], gold: Sequence[Sequence[str]], said: Sequence[Sequence[str]]
) -> dict[str, float]:
    """F1 over the set of different (spelling, type), WNUT 2017's second measure (Derczynski et al. 2017, section 4)."""
    forms = lambda every: {
        (" ".join(sentence[a:b]), kind)
        for sentence, tags in zip(words, every, strict=True)
        for kind, a, b in entities(tags)
    }
    true, found = forms(gold), forms(said)
    return {"surface_f1": _scores(len(true & found), len(true), len(found))["f1"]}


def _scores(right: int, true: int, found: int) -> dict[str, float]:
    precision, recall = right / found if found else 0.0, right / true if true else 0.0
    both = precision + recall
    return {"f1": 2 * precision * recall / both if both else 0.0, "precision": precision, "recall": recall}


def _split(tag: str) -> tuple[str, str]:
    """(prefix, type) of a tag; a tag without a type has the type "_"."""
    return tag[:1], tag[1:].removeprefix("-") or "_"


def _lenient(tags: Sequence[tuple[str, str]]) -> list[Entity]:
    found, begin, before = [], 0, ("O", "_")
    for place, (prefix, kind) in enumerate(tags):
        last, last_kind = before
        if last != "O" and (last in "ES" or prefix in "BSO" or last_kind != kind):
            found.append((last_kind, begin, place))
        if prefix != "O" and (prefix in "BS" or last in "OES" or last_kind != kind):
            begin = place
        before = (prefix, kind)
    return found


def _strict(tags: Sequence[tuple[str, str]], starts: str, insides: str, ends: str) -> list[Entity]:
    found, place, before = [], 0, ("O", "_")
    while place < len(tags):
        if not _match(before, tags[place], starts):
            before, place = tags[place], place + 1
            continue
        end = place + 1
        while end < len(tags) and _match(tags[end - 1], tags[end], insides):
            end += 1
        if end < len(tags) and _match(tags[end - 1], tags[end], ends):
            found.append((tags[place][1], place, end))
        before, place = tags[end - 1], end
    return found


def _match(before: tuple[str, str], here: tuple[str, str], rules: str) -> bool:
    for rule in rules.split():
        fits = rule[0] in (".", before[0]) and rule[1] in (".", here[0])
        if fits and (len(rule) == 2 or (before[1] == here[1]) == (rule[2] == "=")):
            return True
    return False

"""What a family's page says in words: what the model is, and what differs from its parent."""

from __future__ import annotations

import re
from pathlib import Path

FILE = Path(__file__).with_name("families.txt")
SLOTS = (("rows", "examples"), ("corruption", "corruption"), ("objective", "objective"))
SHORT = 24
"""Values of a field of the encoder that are longer are left to the table."""
FIELDS = 6
"""Fields of the encoder that a sentence lists."""


def texts() -> dict[str, str]:
    """Returns {page: the sentences that introduce the family}."""
    lines = FILE.read_text(encoding="utf8").splitlines()
    return dict(line.split(": ", 1) for line in lines if line)


def sizes(names: list[str], counts: dict[str, int], words: list[str]) -> str:
    """Returns the sentence on the systems of a family: names, parameters, and earned words."""
    known = sorted((counts[name], name) for name in names if name in counts)
    first = f"{len(names)} systems are here" if len(names) > 1 else "One system is here"
    if len(known) > 1:
        (least, small), (most, large) = known[0], known[-1]
        spread = f", from `{small}` ({_count(least)}) to `{large}` ({_count(most)} parameters)"
    elif known:
        spread = f"; `{known[0][1]}` has {_count(known[0][0])} parameters"
    else:
        spread = ""
    earned = f"; tests earned the words {', '.join(words)}" if words else ""
    return f"{first}{spread}{earned}."


def _count(number: int) -> str:
    for size, name in ((10**9, "billion"), (10**6, "million")):
        if number >= size:
            return f"{number / size:.3g} {name}"
    return f"{number:,}"


def differences(parent, system) -> list[str]:
    """Returns a Markdown list item for each slot of the record that differs from the parent."""
    from ptm_jax.core import spec

    items = [
        _slot(word, vars(parent)[slot], vars(system)[slot])
        for word, slot in SLOTS
        if vars(parent)[slot] != vars(system)[slot]
    ]
    items += _networks(parent, system, spec.differences(parent, system))
    if parent.tokenizer != system.tokenizer and parent.tokenizer and system.tokenizer:
        items.append(
            f"**Tokenizer:** {_tokenizer(system.tokenizer)} in place of "
            f"{_tokenizer(parent.tokenizer)}."
        )
    if _recipe(parent.recipe) != _recipe(system.recipe):
        items.append(f"**Recipe:** {_recipe(system.recipe)}; before: {_recipe(parent.recipe)}.")
    return [f"- {item}" for item in items if item]


def _slot(word: str, before, after) -> str:
    """A sentence on a slot: its class before and after, and what the new class does."""
    if after is None:
        return f"**{word.capitalize()}:** none in place of {_classes(before)}."
    if _classes(before) == _classes(after):
        return f"**{word.capitalize()}:** {_classes(after)} with other settings."
    known = {*map(type, _parts(before))}
    named = dict.fromkeys(
        f"`{type(part).__name__}`" + ("" if type(part) in known else f" ({_purpose(part)})")
        for part in _parts(after)
    )
    place = f" in place of {_classes(before)}" if before is not None else ""
    return f"**{word.capitalize()}:** {', '.join(named)}{place}."


def _parts(value) -> list:
    """The values that a slot composes: the parts of a Joint or a Chain, what Annotated wraps."""
    if value is None:
        return []
    inner = vars(value).get("parts") or vars(value).get("tasks") or vars(value).get("examples")
    if isinstance(inner, tuple):
        pieces = [part[1] if isinstance(part, tuple) else part for part in inner]
        return [part for piece in pieces for part in _parts(piece)]
    return _parts(inner) if inner is not None else [value]


def _classes(value) -> str:
    return ", ".join(dict.fromkeys(f"`{type(part).__name__}`" for part in _parts(value)))


def _purpose(part) -> str:
    """The first sentence of the docstring of a value's class, which begins in lower case."""
    text = " ".join((type(part).__doc__ or "").split("\n\n")[0].split())
    sentence = re.split(r"(?<!et al)(?<!Eq)[.:] (?=[A-Z])", text)[0].rstrip(".:")
    sentence = re.sub(r" \((?:survey|[A-Z]\w+ et al)[^()]*\)", "", sentence)
    first = sentence.split(" ")[0]
    return sentence if first[1:] != first[1:].lower() else sentence[:1].lower() + sentence[1:]


def _networks(parent, system, changes) -> list[str]:
    """Items on the towers, the encoder and the heads."""
    items = []
    towers = [name for name in system.towers if name not in parent.towers]
    if towers:
        items.append(f"**Networks:** {', '.join(f'`{name}`' for name in towers)} in addition.")
    before, after = (one.towers.get("main") for one in (parent, system))
    if before is None or after is None:
        return items
    classes = [type(vars(model).get("encoder", model)).__name__ for model in (before, after)]
    if classes[0] != classes[1]:
        items.append(f"**Encoder:** `{classes[1]}` in place of `{classes[0]}`.")
    else:
        items += _fields(changes)
    heads = [set(vars(model).get("heads") or {}) for model in (before, after)]
    words = [
        f"{', '.join(f'`{name}`' for name in sorted(names))} {word}"
        for names, word in ((heads[1] - heads[0], "added"), (heads[0] - heads[1], "gone"))
        if names
    ]
    return [*items, *([f"**Heads:** {'; '.join(words)}."] if words else [])]


def _fields(changes) -> list[str]:
    """An item on the fields of an encoder whose class stays: the short values, outermost first,
    each name once."""
    start, listed, total = "towers.main.encoder.", {}, 0
    for path, old, new in sorted(changes, key=lambda change: change[0].count(".")):
        if not path.startswith(start) or re.search(r"vocab|initializer|_init", path):
            continue
        total += 1
        values = [f"{x:.4g}" if isinstance(x, float) else f"{x}" for x in (new, old)]
        if max(map(len, values)) < SHORT and "absent" not in "".join(values):
            name = path.removeprefix(start)
            listed.setdefault(
                (name.split(".")[-1], *values), f"`{name}` is {values[0]} (was {values[1]})"
            )
    texts = list(listed.values())[:FIELDS]
    if not total:
        return []
    tail = "; the record at the end of the page has the others" if total > len(texts) else ""
    return [f"**Encoder:** {'; '.join(texts) or 'other layers in some slots'}{tail}."]


def _tokenizer(value) -> str:
    return f"`{value.kind}` with {value.vocab:,} pieces"


def _recipe(recipe) -> str:
    phases = dict.fromkeys(
        f"{phase.steps:,} steps of {phase.batch:,} rows of {phase.length:,} tokens"
        for phase in recipe.phases
    )
    return f"{', then '.join(phases)} by {type(recipe.optimizer).__name__}, rate {recipe.lr:.3g}"

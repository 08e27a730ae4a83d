"""Write golden/NAME.txt, the resolved value of every system, compared by test_catalogue.py."""

from pathlib import Path

from ptm_jax import systems
from ptm_jax.core import spec

GOLDEN = Path(__file__).with_name("golden")
SMALL = ("_mini", "_tiny")
"""The ends of the names of miniatures."""
PARENTS = {
    "bilm_mini": "cloze_base",
    "contrast_mini": "bert_base",
    "ranking_mini": "bert_base",
    "noisywords_mini": "bert_base",
    "noisypairs_mini": "bert_base",
    "cloze_cnn_mini": "cloze_cnn_base",
    "megatron_bert_mini": "megatron_bert_336m",
    "t5_1_1_mini": "t5_1_1_small",
}
"""{miniature whose parent is not the first system of its rows: the parent}."""


def resolved() -> dict[str, str]:
    """{system: its text}. A miniature's text is its differences from its parent; so is that of a
    system that differs from its paper's first system in at most 30 fields."""
    first, texts = {}, {}
    for name in systems.names():
        system = systems.get(name)
        parent = first.setdefault(system.paper, system)
        changed = [] if parent is system else spec.differences(parent, system)
        if name.endswith(SMALL) and not 0 < len(changed) <= 30:
            parent = parent_of(system)
            changed = [] if parent is system else spec.differences(parent, system)
        elif len(changed) > 30:
            changed = []
        if changed:
            lines = [f"{field}: {spec.to_line(new)}" for field, _, new in changed]
            texts[name] = f"as {parent.name} but\n" + "\n".join(lines) + "\n"
        else:
            texts[name] = spec.to_text(system) + "\n"
    return texts


def parent_of(system):
    """The first system of a miniature's rows that is none itself; without one, the miniature."""
    if system.name in PARENTS:
        return systems.get(PARENTS[system.name])
    family = (systems.get(name) for name in systems.names() if not name.endswith(SMALL))
    return next((one for one in family if {*one.rows} & {*system.rows}), system)


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    texts = resolved()
    for file in GOLDEN.glob("*.txt"):
        if file.stem not in texts:
            file.unlink()
    for name, text in texts.items():
        (GOLDEN / f"{name}.txt").write_text(text, encoding="utf8")

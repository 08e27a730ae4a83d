"""Write golden/NAME.txt, the resolved value of every system, compared by test_catalogue.py."""

from pathlib import Path

from ptm_jax import systems
from ptm_jax.core import spec

GOLDEN = Path(__file__).with_name("golden")


def resolved() -> dict[str, str]:
    """{system: its text}; of one that differs from its paper's first system in a few fields, these
    alone."""
    first, texts = {}, {}
    for name in systems.names():
        system = systems.get(name)
        parent = first.setdefault(system.paper, system)
        changed = [] if parent is system else spec.differences(parent, system)
        if changed and len(changed) <= 30:
            lines = [f"{field}: {spec.to_line(new)}" for field, _, new in changed]
            texts[name] = f"as {parent.name} but\n" + "\n".join(lines) + "\n"
        else:
            texts[name] = spec.to_text(system) + "\n"
    return texts


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    texts = resolved()
    for file in GOLDEN.glob("*.txt"):
        if file.stem not in texts:
            file.unlink()
    for name, text in texts.items():
        (GOLDEN / f"{name}.txt").write_text(text, encoding="utf8")

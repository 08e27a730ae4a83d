"""`make add NAME=x`: writes the golden text and the status word of a new system, and prints what is
missing.

Exit status 1 while something is missing.
"""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "mesh")]

import golden  # noqa: E402
import shardings  # noqa: E402

from ptm_jax import systems  # noqa: E402
from ptm_jax.core.errors import UserError  # noqa: E402
from ptm_jax.core.slots import objective  # noqa: E402
from ptm_jax.systems.survey import rows as survey  # noqa: E402
from support import published, splitting  # noqa: E402
from support.structures import structures  # noqa: E402


def add(name: str) -> list[str]:
    """Write what can be generated, print it, and return what is missing."""
    system, missing = systems.get(name), []
    file = golden.GOLDEN / f"{name}.txt"
    before, text = (
        file.read_text(encoding="utf8") if file.exists() else None,
        golden.resolved()[name],
    )
    file.write_text(text, encoding="utf8")
    print(
        f"golden    {'unchanged' if text == before else 'written'}: {file.relative_to(Path.cwd())}"
    )

    count = sum(map(math.prod, splitting.parameters(name).values()))
    split = splitting.share_split(name)
    print(f"count     {count:,} parameters")
    print(f"mesh      {split:.2%} of the parameters are split by megatron_fsdp")
    shardings.write([name])
    mini = name.endswith(("_mini", "_tiny"))
    if split < 0.999 and not mini:
        missing.append(
            "less than 99.9% of the parameters are split; name their axes in `logical_axes` of the "
            "layer that makes them"
        )

    words = list(earn(name))
    print(f"status    {' '.join(words) or 'none'}")
    if "built" not in words:
        missing.append(
            "the step at paper size fails: pytest tests/systems/test_catalogue.py -k NAME"
        )
    missing += unwritten(system, mini, words)
    return missing


def earn(name: str) -> list[str]:
    """Run the test of `built`, and return the words in status.json."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--write-status",
        "-m",
        "status",
    ]
    first = next(one for one, alike in structures().items() if name in alike)
    cases = [str(HERE / "test_catalogue.py"), "-k", f"[{first}]"]
    result = subprocess.run([*command, *cases], capture_output=True, text=True, check=False)
    if result.returncode:
        print(result.stdout[-2000:])
    return json.loads(
        (HERE.parents[1] / "ptm_jax/systems/survey/status.json").read_text(encoding="utf8")
    ).get(name, [])


def unwritten(system, mini: bool, words: list[str]) -> list[str]:
    """What a person must write: facts of the record, tests, the order of the catalogue."""
    name, numbers = system.name, {row.number for row in survey.rows()}
    tests = {path.name: path.read_text(encoding="utf8") for path in HERE.glob("test_*.py")}
    counted = name in published.collected("SIZES") or any(
        re.search(rf'"{re.escape(name)}":\s*[\dA-Z(]', text) for text in tests.values()
    )
    family = [one for one in systems.names() if {*systems.get(one).rows} & {*system.rows}]
    baseline = objective(system.objective).baseline
    named = (
        bool(baseline)
        or name in published.collected("TRAINS")
        or f'"{name}"' in tests["test_training.py"]
    )
    checks = {
        "the record has no paper": bool(system.paper),
        "the record has no section of the survey": bool(system.section),
        "the record has no group": bool(system.group),
        "the record has no rows, or rows that rows.json lacks": bool(system.rows)
        and {*system.rows} <= numbers,
        "its published parameter count: SIZES of a file in tests/systems/published": mini
        or counted,
        "a miniature of its rows (*_mini) that trains in a minute": any(
            one.endswith("_mini") for one in family
        ),
        "its baseline: TRAINS of a file in tests/systems/published": not mini or named,
        "the word `trains`: the command of one training in CONTRIBUTING.md, A system": not mini
        or "trains" in words,
    }
    return [text for text, done in checks.items() if not done]


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1]:
        sys.exit("usage: make add NAME=system")
    try:
        left = add(sys.argv[1])
    except UserError as error:
        sys.exit(str(error))
    print("\n".join(["missing", *(f"  {line}" for line in left)]) if left else "nothing is missing")
    sys.exit(bool(left))

"""Parts of a network that begin with a language model: `--init encoder=RUN decoder=RUN`.

Row 226: the encoder, the decoder or both begin with a model of one side's text (Conneau and Lample
2019, arXiv 1901.07291, section 4.2; Clinchant et al. 2019, arXiv 1909.12744; Imamura and Sumita
2019), and what such a model has not, as the attention between both, begins at random.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Set
from typing import Any

from ptm_jax.core import slots
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.core.system import System, adapted
from ptm_jax.objectives.text.text_traits import BeginsWithLanguageModels
from ptm_jax.training.logs import console
from ptm_jax.training.start.init_models import Initial


def parts_of(system: System) -> Mapping[str, tuple[str, BeginsWithLanguageModels]]:
    """{name: (tower, its encoder)} of the parts that may begin with a language model."""
    towers = slots.encoders_with(adapted(system), BeginsWithLanguageModels)
    return {
        name: (tower, encoder)
        for tower, encoder in towers.items()
        for name in encoder.language_models
    }


def begun(
    params: Mapping[str, Any],
    source: Initial,
    system: System,
    place: Callable[[Any, Any], Any],
    printed: set[str],
) -> Mapping[str, Any]:
    """Returns `params` with the part `source.at` from a language model, and prints what either has
    alone. `place(new, old)` puts an array in the place of another; lines that are in `printed` are
    printed once for several parts. Raises UserError."""
    tower, encoder = parts_of(system)[source.at]
    moves = {
        f"main/{old}": f"{tower}/{new}" for old, new in encoder.language_models[source.at].items()
    }
    flat, filled, used, unused = flatten(params), set(), set(), []
    for name, leaf in flatten(source.params(system)[0]).items():
        new = next(
            (name.replace(old, new, 1) for old, new in moves.items() if name.startswith(old)), None
        )
        if new in flat and flat[new].shape == leaf.shape:
            flat[new] = place(leaf, flat[new])
            filled.add(new)
            used.add(name.rpartition("/")[0])
            continue
        alone = new not in flat and (new is None or re.search(encoder.apart, new))
        if "/heads_" in name or alone:
            unused.append(name)
            continue
        here = "no such parameter" if new not in flat else f"the shape {list(flat[new].shape)}"
        raise UserError(
            f"{source.path} does not fit {source.at}: {name} has the shape {list(leaf.shape)}, "
            f"and {system.name} has {here}; take a language model with the sizes of this part"
        )
    missing = [
        name
        for name in flat
        if name not in filled and "/heads_" not in name and name.startswith(_places(moves))
    ]
    lacking = [name for name in missing if not re.search(encoder.apart, name)]
    if lacking or not filled:
        what = lacking[0] if lacking else f"parameters of {source.at}"
        raise UserError(
            f"{source.path} does not fit {source.at}: it has no {what}; take a language model "
            "with the layers of this part"
        )
    lines = [f"{source.at} of {source.path}: begins at random: {_modules(missing)}"] * bool(missing)
    if unused:
        lines.append(f"{source.path}: in the model, not used: {_modules(unused, used)}")
    for line in dict.fromkeys(lines):
        if line not in printed:
            console.say(line)
    printed.update(lines)
    return unflatten(flat)


def _places(moves: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the prefixes of a part that a language model has to fill, without single tables."""
    return tuple(new for new in moves.values() if new.endswith("/"))


def _modules(names: list[str], used: Set[str] = frozenset()) -> str:
    """Returns the distinct modules of paths, as text; of a module in `used` its parameters."""
    parts = (name.split("/")[1 : None if name.rpartition("/")[0] in used else -1] for name in names)
    return ", ".join(dict.fromkeys("/".join(part[:6]) for part in parts))

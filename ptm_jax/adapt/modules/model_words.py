"""Words of a translation model from a language model: `--init main=RUN words=LM`."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any, Literal

from ptm_jax.core import slots
from ptm_jax.encoders.transformer.augmented import augmented, target_augmented

if TYPE_CHECKING:
    from ptm_jax.core.system import System
    from ptm_jax.core.types import Step

WORDS, TARGET_WORDS = "words", "target_words"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelWords(slots.Wrapper):
    """The encoder of a translation model reads the states of the model in the tower `words`.

    Edunov et al. 2019, arXiv 1903.09722, section 2, on the source side, where the paper finds the
    gain. Both have one tokenizer.

    kind    "mixed": the language model is frozen, and a trained mean of its normalised layers is
            read (ELMo); "tuned": its last states are read, and it is trained too

    Deviation: the rate of the language model is that of the run (`rates` lowers it).
    """

    kind: Literal["mixed", "tuned"] = "mixed"
    towers: tuple[str, ...] = ("main", WORDS)

    owns = r"/encoder/(words|mix)/|/embed/expand/"
    _augment = staticmethod(augmented)

    def rewrite(self, system: System) -> Any:
        """Returns the system with the language model inside the main tower."""
        towers = dict(system.towers)
        name = self.towers[-1]
        if name not in towers:
            raise ValueError(f"it reads another model; give both, as --init main=MODEL {name}=LM")
        main, words = towers["main"], towers.pop(name).encoder.without_memory()
        encoder = self._augment(main.encoder, words, tuned=self.kind == "tuned")
        towers["main"] = dataclasses.replace(main, encoder=encoder)
        return dataclasses.replace(system, towers=towers)

    def trainable(self, path: str, step: Step) -> bool:
        return self.kind == "tuned" or not re.search(r"/encoder/(decoder/)?words/", path)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetWords(ModelWords):
    """The decoder of a translation model reads the states of the causal model in the tower
    `target_words`, of the words before and with the one that it reads.

    Edunov et al. 2019, section 2, on the target side. `kind` is that of `ModelWords`.
    """

    towers: tuple[str, ...] = ("main", TARGET_WORDS)

    owns = r"/encoder/decoder/(words|mix)/|/embed/expand/"
    _augment = staticmethod(target_augmented)

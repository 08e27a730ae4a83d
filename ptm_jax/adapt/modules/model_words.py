"""Source words of a translation model from a language model: `--init main=RUN words=LM`."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any, Literal

from ptm_jax.core import slots
from ptm_jax.encoders.transformer.augmented import augmented

if TYPE_CHECKING:
    from ptm_jax.core.system import System
    from ptm_jax.core.types import Step

WORDS = "words"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelWords(slots.Wrapper):
    """The encoder of a translation model reads the states of the model in the tower `words`.

    Edunov et al. 2019, arXiv 1903.09722, section 2, on the source side, where the paper finds the
    gain. Both have one tokenizer.

    kind    "mixed": the language model is frozen, and a trained mean of its normalised layers is
            read (ELMo); "tuned": its last states are read, and it is trained too

    Deviations: the rate of the language model is that of the run (`rates` lowers it); there is no
    decoder that reads states of a language model.
    """

    kind: Literal["mixed", "tuned"] = "mixed"
    towers: tuple[str, ...] = ("main", WORDS)

    owns = r"/encoder/(words|mix)/|/embed/expand/"

    def rewrite(self, system: System) -> Any:
        """Returns the system with the language model inside the main tower."""
        towers = dict(system.towers)
        if WORDS not in towers:
            raise ValueError("it reads another model; give both, as --init main=MODEL words=LM")
        main, words = towers["main"], towers.pop(WORDS).encoder.without_memory()
        encoder = augmented(main.encoder, words, tuned=self.kind == "tuned")
        towers["main"] = dataclasses.replace(main, encoder=encoder)
        return dataclasses.replace(system, towers=towers)

    def trainable(self, path: str, step: Step) -> bool:
        return self.kind == "tuned" or not re.search(r"/encoder/words/", path)

"""What a tagger reads beside the states: word vectors, pooled states of words, characters."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any, ClassVar

import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.core.types import Params
from ptm_jax.encoders.readers import reading
from ptm_jax.nn.recurrent.tagger import PooledReader, TagLMReader, WordsReader

if TYPE_CHECKING:
    from ptm_jax.core.networks import Network
    from ptm_jax.core.system import System
    from ptm_jax.core.types import Step


@dataclasses.dataclass(frozen=True, kw_only=True)
class StackedWords(slots.Wrapper):
    """Concatenates word vectors to the states that the heads read.

    The vectors are a trained table of `size` words. It is zero initially; `init` may fill it
    (embeddings=FILE). Flair and ELMo are stacked with word vectors in this way (Akbik et al. 2018,
    Eq. 8). With `states=False` the heads read the word vectors alone.
    """

    size: int = 50_000
    width: int = 100
    states: bool = True
    towers: tuple[str, ...] = ("main",)

    owns = r"/readers_words/"

    def __post_init__(self):
        if min(self.size, self.width) < 1:
            raise ValueError(f"size is {self.size} and width {self.width}; both must be at least 1")

    def wrap(self, module: Network) -> Any:
        return reading(module, {"words": WordsReader(self.size, self.width, self.states)})


@dataclasses.dataclass(frozen=True, kw_only=True)
class PooledStates(slots.Wrapper):
    """Concatenates the mean of all states of a word so far in the training with its state.

    Pooled contextual string embeddings (Akbik et al. 2019, NAACL, Algorithm 1), on a frozen model
    (`FeatureExtraction`). The memory is a parameter to which every
    step adds its states. It does not change when the trained model reads other texts.

    size    number of remembered words, the ones with the lowest ids; the memory has size x (D + 1)
            numbers
    steps   number of updates in an epoch; the memory is emptied after each epoch, as in the paper.
            0: never

    Deviations: of the paper's three operations only the mean, because a minimum is not a sum over
    the batches; the words of a step do not see one another; the first step of an epoch reads the
    old memory and is not remembered; the words of a prediction are not remembered, so that it does
    not depend on its order.
    """

    size: int = 50_000
    steps: int = 0
    towers: tuple[str, ...] = ("main",)

    owns = r"/readers_pooled/"
    observes = r"/readers_pooled/memory$"

    def __post_init__(self):
        if self.size < 1 or self.steps < 0:
            raise ValueError(
                f"size is {self.size} and steps {self.steps}; size must be at least 1 and "
                "steps at least 0"
            )

    def wrap(self, module: Network) -> Any:
        return reading(module, {"pooled": PooledReader(self.size)})

    def on_step(self, params: Params, step: Step) -> Params:
        if not self.steps:
            return params
        keep = (jnp.asarray(step) % self.steps != 0) | (jnp.asarray(step) == 0)
        flat = flatten(params)
        return unflatten(
            {
                path: leaf * keep if re.search(self.observes, path) else leaf
                for path, leaf in flat.items()
            }
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TagLM(slots.Wrapper):
    """The tagger of TagLM on the top states of a bidirectional language model.

    Peters et al. 2017, arXiv 1705.00108, section 3.2. The sizes are for CoNLL-2003 and were not
    compared with the paper's text. With `FeatureExtraction` and --tagger crf this is the paper's
    system; it uses SENNA's word vectors (`init`: embeddings=FILE).

    hidden         units of each GRU over words
    letters        units of the GRU over characters
    letter_width   width of the character vectors
    alphabet       number of characters, at least the number in the model's rows
    size, width    rows and width of the word table
    states         whether the tagger reads the language model
    """

    hidden: int = 300
    letters: int = 80
    letter_width: int = 25
    alphabet: int = 262
    size: int = 50_000
    width: int = 50
    states: bool = True
    dropout: float = 0.25
    towers: tuple[str, ...] = ("main",)

    owns = r"/readers_taglm/"
    SIZES: ClassVar = ("size", "width", "hidden", "letters", "letter_width", "alphabet")

    def __post_init__(self):
        if wrong := [name for name in self.SIZES if vars(self)[name] < (name != "letters")]:
            raise ValueError(f"{wrong[0]} is {vars(self)[wrong[0]]}; it must be at least 1")

    def refusal(self, system: System) -> str | None:
        if not self.letters:
            return None
        alphabet = system.examples.alphabet
        if alphabet is None:
            return (
                "taglm reads the characters of words, which these rows lack; take a model that "
                "reads them, or letters=0"
            )
        if alphabet > self.alphabet:
            return (
                f"these rows have {alphabet} characters and taglm {self.alphabet}; set taglm's "
                "alphabet"
            )
        return None

    def wrap(self, module: Network) -> Any:
        sizes = {name: vars(self)[name] for name in self.SIZES}
        return reading(
            module, {"taglm": TagLMReader(**sizes, states=self.states, dropout=self.dropout)}
        )

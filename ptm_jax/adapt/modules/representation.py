"""Selection of the encoder layers that the heads read (survey section 5.2.2)."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np

from ptm_jax.adapt.base import is_head, tower_of
from ptm_jax.core import slots
from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.core.types import Params
from ptm_jax.encoders.readers import reading
from ptm_jax.encoders.recurrent.recurrent import LSTMEncoder
from ptm_jax.nn.heads.alignment import AlignedReader, PairHead
from ptm_jax.nn.heads.biattention import BiattentiveHead, BiattentiveReader
from ptm_jax.nn.heads.layer_mix import EmbeddingReader, LayerMix, VectorsReader
from ptm_jax.nn.heads.tasks import SequenceHead, Summary
from ptm_jax.nn.recurrent.lstm import BiLSTMReader
from ptm_jax.nn.recurrent.tagger import PooledReader, TagLMReader, WordsReader
from ptm_jax.objectives.tasks.downstream import Classification, LabelGain

if TYPE_CHECKING:
    from ptm_jax.core.networks import Network
    from ptm_jax.core.system import System
    from ptm_jax.core.types import Step


READERS = {
    "embedding": lambda rules: EmbeddingReader(),
    "mix": lambda rules: LayerMix(rules.top, rules.normalise, rules.embeddings),
    "vectors": lambda rules: VectorsReader(),
}
"""{kind of a `Representation`: function of it that returns the reader}."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Representation(slots.Wrapper):
    """Selects the representation that the heads read.

    "embedding"   the embeddings alone; no layer is trained
    "mix"         a learned mixture of the layers (Eq. 6). `top` limits it to the last layers.
                  `normalise` normalises each layer first. `embeddings` adds the embeddings as a
                  layer, as in ELMo (Peters et al. 2018, Eq. 1)
    "vectors"     word vectors and top layer, concatenated; from an encoder-decoder both are the
                  encoder's (CoVe)

    A head that reads only the first token sees the same embedding in every row: put `Recurrent`
    after "embedding".

    Without this adaptation the heads read the top layer. With `FeatureExtraction` only the mixture
    and the heads are trained.
    """

    kind: Literal["embedding", "mix", "vectors"] = "mix"
    top: int | None = None
    normalise: bool = False
    embeddings: bool = False
    towers: tuple[str, ...] = ("main",)

    owns = r"/readers_mix/"

    def __post_init__(self):
        if self.kind not in READERS:
            raise ValueError(f"kind is {self.kind!r}; it must be 'embedding', 'mix' or 'vectors'")
        if self.top is not None and self.top < 1:
            raise ValueError(f"top is {self.top}; at least one layer must be read")

    def wrap(self, module: Network) -> Any:
        return reading(module, {self.kind: READERS[self.kind](self)})

    def trainable(self, path: Any, step: Step) -> bool:
        if self.kind != "embedding" or tower_of(path) not in self.towers or is_head(path):
            return True
        return bool(np.all(np.asarray(path.level) == 0))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recurrent(slots.Wrapper):
    """Puts a bidirectional LSTM between the encoder and the heads. After `FeatureExtraction` and a
    mixture of the layers, this is the feature extraction of Peters et al. 2019 (arXiv 1903.05987,
    section 2: 200 units)."""

    hidden: int = 200
    layers: int = 1
    dropout: float = 0.1
    towers: tuple[str, ...] = ("main",)

    owns = r"/readers_bilstm/"

    def __post_init__(self):
        if min(self.hidden, self.layers) < 1:
            raise ValueError(
                f"hidden is {self.hidden} and layers {self.layers}; both must be at least 1"
            )

    def wrap(self, module: Network) -> Any:
        return reading(module, {"bilstm": BiLSTMReader(self.hidden, self.layers, self.dropout)})


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Aligned(slots.Wrapper):
    """ESIM over the encoder's states, for tasks on pairs (Chen et al. 2017, arXiv 1609.06038).

    A bidirectional LSTM reads both texts; they are aligned word by word, read again and pooled.
    With `FeatureExtraction` and a mixture of the layers, given before it, this is the feature
    extraction of Peters et al. 2019 for pairs (`Recurrent`: for sentences).
    """

    hidden: int = 200
    dropout: float = 0.1
    towers: tuple[str, ...] = ("main",)

    owns = r"/readers_aligned/|/heads_classify/"

    def __post_init__(self):
        if self.hidden < 1:
            raise ValueError(f"hidden is {self.hidden}; a layer has at least one unit")

    def refusal(self, system: System) -> str | None:
        """Refuses tasks without pairs, and encoders without token types: only the types distinguish
        the texts of a row."""
        encoder = slots.encoder_of(system, self.towers[0])
        if encoder is None or encoder.types < 2:
            return (
                "aligned reads pairs, whose texts this encoder does not distinguish; take one "
                "with two token types"
            )
        if not system.examples.second:
            return "aligned reads pairs, and this task has one text a row; take bilstm or bcn"
        return None

    def wrap(self, module: Network) -> Any:
        reader = AlignedReader(self.hidden, self.dropout)

        def own(classes):
            return PairHead(classes, self.hidden, dropout=self.dropout)

        return _classifying(module, "pairs of texts", {"aligned": reader}, own)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Biattentive(slots.Wrapper):
    """The biattentive classification network over the encoder's states, on one text or on pairs.

    BCN: McCann et al. 2017, arXiv 1708.00107, section 5. A bidirectional LSTM reads both texts.
    Each is conditioned on the other (one text on itself), read again, pooled four ways and
    classified by maxout layers. With `FeatureExtraction` and a mixture of the layers, given before
    it, this is the network of CoVe and Peters et al. 2019 on frozen encoders.

    Without two token types the encoder cannot distinguish the texts of a pair, and the row counts
    as one text.

    reductions   divisors of the width, one for each maxout layer before the last
    pieces       number of linear functions of a maxout unit; it returns their maximum
    """

    hidden: int = 200
    reductions: tuple[int, ...] = (4, 2)
    pieces: int = 4
    dropout: float = 0.1
    towers: tuple[str, ...] = ("main",)

    owns = r"/readers_biattentive/|/heads_classify/"

    def __post_init__(self):
        if min(self.hidden, self.pieces, *self.reductions) < 1:
            sizes = (
                f"hidden is {self.hidden}, pieces {self.pieces} and reductions {self.reductions}"
            )
            raise ValueError(f"{sizes}; none may be below 1")

    def wrap(self, module: Network) -> Any:
        pairs = module.encoder.types > 1
        reader = BiattentiveReader(self.hidden, pairs, self.dropout)

        def own(classes):
            return BiattentiveHead(
                classes, pairs, tuple(self.reductions), self.pieces, dropout=self.dropout
            )

        return _classifying(module, "whole texts", {"biattentive": reader}, own)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConcatPooling(slots.Wrapper):
    """Classifies a text by the state of its last token, the maximum and the mean of its states,
    through a layer of `hidden` relu units (ULMFiT: Howard and Ruder 2018, arXiv 1801.06146, section
    3.3). A backward encoder ends at the first token. Before and after that layer there is layer
    normalisation. Deviation: the paper's batch normalisation makes the scores of a row depend on
    the other rows of its batch."""

    hidden: int = 50
    dropout: float = 0.4
    last_dropout: float = 0.1
    towers: tuple[str, ...] = ("main",)

    owns = r"/heads_classify/"

    def wrap(self, module: Network) -> Any:
        at = "concat_first" if module.encoder.direction == "backward" else "concat"
        summary = Summary("relu", at=at, dropout=self.dropout, width=self.hidden, normalise=True)

        def own(classes):
            return SequenceHead(classes=classes, summary=summary, dropout=self.last_dropout)

        return _classifying(module, "whole texts", {}, own)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TruncatedGradient(slots.Wrapper):
    """Stops the gradient of a recurrent encoder's states every `tokens` tokens of a text.

    BPT3C: Howard and Ruder 2018, section 3.3. The encoder reads the whole text, and the head pools
    all states. A state has a gradient only through its own piece. An encoder without recurrent
    states is unchanged. The masks of the recurrent kernels are drawn for each piece, as in fastai.
    Deviation: fastai draws all other dropout masks for each piece too; here each text has one draw.
    """

    tokens: int = 70
    towers: tuple[str, ...] = ("main",)

    def __post_init__(self):
        if self.tokens < 1:
            raise ValueError(f"tokens is {self.tokens}; a piece has at least one token")

    def wrap(self, module: Network) -> Any:
        encoder = module.encoder
        if not isinstance(encoder, LSTMEncoder):
            return module
        if encoder.direction == "bidirectional":
            raise ValueError(
                "the gradient is cut where a text is read in one direction, and this encoder "
                "reads both"
            )
        return dataclasses.replace(module, encoder=dataclasses.replace(encoder, bptt=self.tokens))


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearGain(slots.Wrapper):
    """Classifies a text after each of its tokens in training, with weights that grow linearly over
    the text (Dai and Le 2015, arXiv 1511.01432, section 3). The head reads the state of the last
    token (of a backward encoder: the first)."""

    owns = r"/heads_classify/"

    def rewrite(self, system: System) -> Any:
        task = system.objective
        if not isinstance(task, Classification) or task.kind != "classes":
            raise ValueError("it is for tasks on the class of a text")
        tower = system.towers[task.tower]
        leftwards = tower.encoder.direction == "backward"
        summary = Summary("none", at="first" if leftwards else "last")
        head = SequenceHead(classes=tower.heads[task.head].classes, summary=summary, dropout=0.1)
        tower = dataclasses.replace(tower, heads={**tower.heads, task.head: head})
        objective = LabelGain(tower=task.tower, head=task.head, leftwards=leftwards)
        return dataclasses.replace(
            system, towers={**system.towers, task.tower: tower}, objective=objective
        )


def _classifying(
    module: Network, what: str, readers: dict[str, Any], head: Callable[[int], Any]
) -> Any:
    """Returns the model with more readers and another class head. Raises ValueError if it has no
    classes."""
    classifier = module.heads.get("classify")
    if classifier is None:
        raise ValueError(
            f"it is for tasks on {what}; this one has {', '.join(module.heads) or 'no head'}"
        )
    network = reading(module, readers)
    return dataclasses.replace(
        network, heads={**network.heads, "classify": head(classifier.classes)}
    )

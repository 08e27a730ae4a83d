"""Networks that classify whole texts or pairs on the states of an encoder."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ptm_jax.core import slots
from ptm_jax.encoders.readers import reading
from ptm_jax.nn.heads.alignment import AlignedReader, PairHead
from ptm_jax.nn.heads.biattention import BiattentiveHead, BiattentiveReader
from ptm_jax.nn.heads.pooling import AttentiveSummary, Summary
from ptm_jax.nn.heads.task_heads import SequenceHead
from ptm_jax.objectives.tasks.downstream import LabelGain, label_kind

if TYPE_CHECKING:
    from ptm_jax.core.networks import Network
    from ptm_jax.core.system import System


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
    """Classifies a text by its last state, and the maximum and the mean of its states.

    A layer of `hidden` relu units reads them (ULMFiT: Howard and Ruder 2018, arXiv 1801.06146,
    section 3.3). A backward encoder ends at the first token. Before and after that layer there is
    layer normalisation. Deviation: the paper's batch normalisation makes the scores of a row depend
    on the other rows of its batch.
    """

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
class AttentivePooling(slots.Wrapper):
    """Classifies a text by the mean of its states under one additive attention over its tokens.

    With `bilstm`, given before it, this is the classifier of Jain and Wallace 2019
    (arXiv 1902.10186, section 2), whose attention `ptm evaluate --task attention` tests.
    """

    width: int = 128
    dropout: float = 0.1
    towers: tuple[str, ...] = ("main",)

    owns = r"/heads_classify/"

    def __post_init__(self):
        if self.width < 1:
            raise ValueError(f"width is {self.width}; the attention has at least one unit")

    def wrap(self, module: Network) -> Any:
        def own(classes):
            return SequenceHead(
                classes=classes, summary=AttentiveSummary(self.width), dropout=self.dropout
            )

        return _classifying(module, "whole texts", {}, own)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearGain(slots.Wrapper):
    """Classifies a text after each of its tokens in training.

    The weights grow linearly over the text (Dai and Le 2015, arXiv 1511.01432, section 3). The head
    reads the state of the last token (of a backward encoder: the first).
    """

    owns = r"/heads_classify/"

    def rewrite(self, system: System) -> Any:
        task = system.objective
        if label_kind(task) != "classes":
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

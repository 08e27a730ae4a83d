"""A linear-chain conditional random field over the tokens' classes (row 223).

Lafferty et al. 2001 in the form of Lample et al. 2016 (arXiv 1603.01360), section 2.2. The score of
a path is the sum of the scores of its classes, of the transitions between neighbours, and of its
first and last class. Its probability is exp(score - log Z). A chain runs over the places [B, L]
above 0 and skips the others, so that only the first piece of a word takes part. A new chain begins
where the number of a place changes (documents of a packed row). Everything is float32.

A tagging scheme (IOB1, IOB2, IOBES) forbids transitions. They are never decoded. Training keeps
them, because the labels of a cut sentence may break the scheme, unless `constrain` is "always".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core import slots
from ptm_jax.core.errors import UserError, unknown
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, record
from ptm_jax.nn.heads.task_heads import TokenHead
from ptm_jax.nn.initializers import Normal
from ptm_jax.objectives.tasks.crf import LinkedClasses

NEVER = -1e5
"""Score of a forbidden transition in sums: its probability is 0 and its gradient finite."""

Scheme = Literal["", "IOB1", "IOB2", "IOBES"]
LEFT = {
    "": "",
    "IOB1": "I",
    "IOB2": "B",
    "IOBES": "BS",
}  # prefixes that a row may begin with, beside O


def allowed(labels: Sequence[str], scheme: Scheme) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the allowed first classes, last classes and pairs of classes, bool.

    First and last classes are [C], pairs [C, C] (class, next class).

    IOB2: I-X only after B-X or I-X. IOB1 (Ramshaw and Marcus 1995): an entity begins with I-X, or
    with B-X directly after an entity of the same type. IOBES: B-X I-X .. E-X, or S-X. "":
    everything. Raises UserError for labels that do not fit the scheme.
    """
    count = len(labels)
    if not scheme:
        return np.ones(count, bool), np.ones(count, bool), np.ones((count, count), bool)
    if scheme not in LEFT:
        raise unknown("tagging scheme", scheme, (name for name in LEFT if name))
    prefixes = set("O" + ("BIES" if scheme == "IOBES" else "BI"))
    parts = [(label[:1], label[2:]) for label in labels]
    for label, (prefix, kind) in zip(labels, parts, strict=True):
        if (
            prefix not in prefixes
            or (label != "O" and label[1:2] != "-")
            or (prefix != "O" and not kind)
        ):
            raise UserError(
                f"the label {label!r} is none of {scheme}: O, or one of "
                f"{', '.join(sorted(prefixes))} with -TYPE"
            )
    if "O" not in labels:
        raise UserError(
            f"the labels {', '.join(labels)} have no O, without which {scheme} leaves some "
            "texts without tags"
        )
    first = np.array([prefix == "O" or prefix in LEFT[scheme] for prefix, _ in parts])
    last = np.array([scheme != "IOBES" or prefix in "OES" for prefix, _ in parts])
    pairs = np.array([[_follows(scheme, a, b) for b in parts] for a in parts])
    return first, last, pairs


def _follows(scheme: Scheme, before: tuple[str, str], here: tuple[str, str]) -> bool:
    """Whether the tag `here` may follow the tag `before`, both as (prefix, type)."""
    inside = before[0] in "BI" and before[1] == here[1]
    if scheme == "IOBES":
        return inside if here[0] in "IE" else before[0] in "OES"
    needs = "I" if scheme == "IOB2" else "B"
    return inside or here[0] != needs


@record
class Links:
    """The scores of transitions between classes.

    Scores of pairs [C, C] (class, next class), of first and last classes [C], and which of them are
    allowed.
    """

    pairs: Any
    first: Any
    last: Any
    may: Any

    def masked(self, never: float) -> tuple[Array, Array, Array]:
        """Returns (pairs, first, last) with `never` at forbidden entries."""
        scores = self.pairs, self.first, self.last
        may = self.may[2], self.may[0], self.may[1]
        return tuple(jnp.where(yes, score, never) for yes, score in zip(may, scores, strict=True))

    def log_partition(self, scores: Array, places: Array, constrain: bool = False) -> Array:
        """Returns log Z [B] of class scores [B, L, C], over all or only the allowed paths; 0 for a
        row without places."""
        pairs, first, last = (
            self.masked(NEVER) if constrain else (self.pairs, self.first, self.last)
        )
        jump = last[:, None] + first[None]

        def step(state, here):
            total, segment = state
            score, place = here
            within = jax.nn.logsumexp(total[:, :, None] + pairs, 1)
            across = jax.nn.logsumexp(total[:, :, None] + jump, 1)
            grown = jnp.where((segment == place)[:, None], within, across)
            grown = score + jnp.where((segment > 0)[:, None], grown, first)
            on = place > 0
            return (jnp.where(on[:, None], grown, total), jnp.where(on, place, segment)), None

        (total, segment), _ = jax.lax.scan(step, _start(scores), _along(scores, places))
        return jnp.where(segment > 0, jax.nn.logsumexp(total + last, -1), 0.0)

    def path_score(
        self, scores: Array, labels: Array, places: Array, constrain: bool = False
    ) -> Array:
        """Returns the score [B] of the path of labels [B, L]; 0 for a row without places."""
        pairs, first, last = (
            self.masked(NEVER) if constrain else (self.pairs, self.first, self.last)
        )

        def step(state, here):
            total, segment, before = state
            score, place, label = here
            link = jnp.where(segment == place, pairs[before, label], last[before] + first[label])
            grown = total + jnp.where(segment > 0, link, first[label])
            grown = grown + jnp.take_along_axis(score, label[:, None], 1)[:, 0]
            on = place > 0
            return (
                jnp.where(on, grown, total),
                jnp.where(on, place, segment),
                jnp.where(on, label, before),
            ), None

        zeros = jnp.zeros(len(scores), jnp.int32)
        along = (*_along(scores, places), labels.astype(jnp.int32).T)
        (total, segment, before), _ = jax.lax.scan(
            step, (zeros.astype(jnp.float32), zeros, zeros), along
        )
        return jnp.where(segment > 0, total + last[before], 0.0)

    def nll(self, scores: Array, labels: Array, places: Array, constrain: bool = False) -> Array:
        """Returns -log p [B] of the path of labels [B, L]."""
        total = self.log_partition(scores, places, constrain)
        return total - self.path_score(scores, labels, places, constrain)

    def lawful(self, labels: Array, places: Array) -> Array:
        """Returns whether each path is allowed, [B] bool."""
        first, last, pairs = (jnp.where(may, 0.0, NEVER) for may in self.may)
        bare = Links(pairs, first, last, self.may)
        return (
            bare.path_score(jnp.zeros((*labels.shape, len(first)), jnp.float32), labels, places)
            > NEVER / 2
        )

    def best(self, scores: Array, places: Array) -> tuple[Array, Array]:
        """Returns the best allowed path (Viterbi): labels [B, L] int32, 0 at skipped places, and
        its score [B]."""
        pairs, first, last = self.masked(-jnp.inf)
        jump = last[:, None] + first[None]
        same = jnp.arange(scores.shape[-1])

        def step(state, here):
            total, segment = state
            score, place = here
            link = jnp.where((segment == place)[:, None, None], pairs, jump)
            options = total[:, :, None] + link
            grown = score + jnp.where((segment > 0)[:, None], options.max(1), first)
            on = place > 0
            came = jnp.where(on[:, None], options.argmax(1), same)
            return (jnp.where(on[:, None], grown, total), jnp.where(on, place, segment)), came

        (total, segment), came = jax.lax.scan(step, _start(scores), _along(scores, places))
        total = total + last
        end = total.argmax(-1)

        def back(label, came):
            return jnp.take_along_axis(came, label[:, None], 1)[:, 0], label

        _, labels = jax.lax.scan(back, end, came, reverse=True)
        labels = jnp.where(places > 0, labels.T, 0).astype(jnp.int32)
        return labels, jnp.where(segment > 0, total.max(-1), 0.0)


def _start(scores: Array) -> tuple[Array, Array]:
    return jnp.zeros((scores.shape[0], scores.shape[2]), jnp.float32), jnp.zeros(
        len(scores), jnp.int32
    )


def _along(scores: Array, places: Array) -> tuple[Array, Array]:
    """Returns scores and places with the axis L first."""
    return jnp.swapaxes(scores.astype(jnp.float32), 0, 1), places.astype(jnp.int32).T


class CRFHead(TokenHead, LinkedClasses):
    """Returns the logits of each token [B, L, C] float32 from [B, L, D].

    It has the parameters of `TokenHead`. A call without features returns the `Links`. `labels` are
    the names of the classes; a `scheme` needs them.

    `objectives.tasks.crf.CRFTagging` trains it. `decode` runs Viterbi for a loaded model.
    """

    logical_axes = {"pairs": (None, None), "first": (None,), "last": (None,)}

    labels: tuple[str, ...] = ()
    scheme: Scheme = ""
    link_initializer: Any = Normal(0.02)

    def __post_init__(self):
        self.labels = tuple(self.labels)
        if self.scheme and len(self.labels) != self.classes:
            raise UserError(
                f"a CRF with the scheme {self.scheme} needs the names of its {self.classes} "
                "classes in labels"
            )
        super().__post_init__()

    @nn.compact
    def __call__(self, hidden=None, *, table=None, context=None):
        shapes = {
            "pairs": (self.classes, self.classes),
            "first": (self.classes,),
            "last": (self.classes,),
        }
        links = {
            name: self.param(name, self.link_initializer, shape) for name, shape in shapes.items()
        }
        if hidden is None:
            names = self.labels or ("",) * self.classes
            return Links(**links, may=tuple(map(jnp.asarray, allowed(names, self.scheme))))
        return self.scores(hidden, context, self.classes, "classes")

    @staticmethod
    def decode(model: Any, scores: np.ndarray, head: str = "tag") -> np.ndarray:
        """Returns the best allowed classes [n] of one sequence with logits [n, C], by the head of a
        loaded model."""
        size = max(
            16, 1 << (len(scores) - 1).bit_length()
        )  # powers of two: every new shape is compiled
        places = (np.arange(size) < len(scores)).astype(np.int32)[None]
        padded = np.zeros((1, size, scores.shape[1]), np.float32)
        padded[0, : len(scores)] = scores
        links = Tower(model.module, model.params[model.tower]).head(head)
        return np.asarray(_best(links, padded, places)[0])[0, : len(scores)]


def decoder_of(head: slots.Head) -> Callable[..., np.ndarray]:
    """Returns the function (loaded model, logits [n, C] of a text) -> classes [n] of a head."""
    return head.decode if isinstance(head, CRFHead) else lambda model, scores: scores.argmax(-1)


_best = jax.jit(Links.best)

"""Subclasses of patents from their text (PatentBERT: Lee and Hsiang 2020, row 159).

A patent has any number of subclasses of IPC or CPC (A61K), each with a sigmoid of its own. The
paper fine-tunes BERT-base on the first claim.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ptm_jax.core.errors import UserError
from ptm_jax.tasks.catalogue import Task, catalogue
from ptm_jax.tasks.kinds import several_labels
from ptm_jax.tasks.kinds.base import Metrics, register
from ptm_jax.tasks.metrics import measures
from ptm_jax.tasks.tables import table_cells as cells
from ptm_jax.tasks.tables.own_tables import OwnLabels, Several
from ptm_jax.tasks.tables.table_examples import Row

if TYPE_CHECKING:
    from ptm_jax.tasks.kinds.several_labels import Chosen

SUBCLASS = re.compile(r"\s*([A-HY]\d\d[A-Z])(?![A-Za-z])")
"""Section, class and subclass at the beginning of a symbol: A61K of "A61K 31/00" or "A61K31/00"."""
TOPS = (1, 5)
"""Numbers of labels of the measure `top_labels`."""


def subclass_of(symbol: str) -> str:
    """Returns the subclass of a symbol of IPC or CPC. Raises UserError."""
    if matched := SUBCLASS.match(symbol.upper()):
        return matched[1]
    raise UserError(f"{symbol!r} is no symbol of IPC or CPC; write one as A61K or A61K 31/00")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Patents(OwnLabels):
    """Texts of patents with symbols of IPC or CPC, of which the subclass counts (`OwnLabels`)."""

    label: tuple[str, ...] = ("codes",)
    separator: str = ";"

    def names_in(self, place: str, row: Row, required: bool = True) -> tuple[str, ...]:
        (column,) = self.label
        names = cells.list_of(row[column])
        text = "" if cells.is_empty(row[column]) else cells.plain(row[column])
        symbols = text.split(self.separator) if names is None else map(str, names)
        try:
            classes = [subclass_of(symbol) for symbol in symbols if symbol.strip()]
        except UserError as error:
            raise cells.CellError(f"{place}: the column {column}: {error}", column) from None
        return super().names_in(place, {**row, column: classes}, required)


def top_labels(examples: Sequence[Several], predictions: Sequence[Chosen], task=None) -> Metrics:
    """Micro F1, precision and recall of the most probable label of each text, and of the first
    five (the paper's section 4)."""
    gold = [{*example.names} for example in examples]
    figures = {}
    for top in TOPS:
        chosen = [
            sorted(one.scores, key=one.scores.__getitem__, reverse=True)[:top]
            for one in predictions
        ]
        same = sum(len({*a} & b) for a, b in zip(chosen, gold, strict=True))
        figures_of_top = measures.f_of(same, sum(map(len, chosen)), sum(map(len, gold)))
        names = (f"{name}_at_{top}" for name in ("f1", "precision", "recall"))
        figures |= dict(zip(names, figures_of_top, strict=True))
    return figures


KIND = register(
    dataclasses.replace(
        several_labels.KIND,
        examples=Patents,
        measures={**several_labels.KIND.measures, "top_labels": top_labels},
    )
)
catalogue.add(
    Task(
        name="patents",
        paper="Lee and Hsiang 2020, arXiv 1906.02124 (PatentBERT)",
        rows=(159,),
        examples=Patents(task="patents"),
        metrics=("top_labels", "labels"),
        length=512,
        batch=32,
        lr=5e-5,
    )
)

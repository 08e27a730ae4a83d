"""`ptm evaluate --task search`: a sentence encoder searches a corpus with judged queries.

The data are a folder as BEIR has it (Thakur et al. 2021, arXiv 2104.08663): corpus.jsonl with _id,
title and text, queries.jsonl with _id and text, and qrels/SPLIT.tsv with query-id, corpus-id and a
grade, whose first line names the columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.inference.loading import has_encoder, load
from ptm_jax.inference.text.vectors import DOCUMENTS, QUERIES, prompt_for
from ptm_jax.runs.evaluations import METHOD, Evaluation, Report, Request
from ptm_jax.runs.run import best_checkpoint
from ptm_jax.tasks.formats import tabular
from ptm_jax.tasks.metrics import ranks
from ptm_jax.tasks.tables import table_cells as cells

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained

TOP, BLOCK = 100, 256
"""Documents that are kept of a query, and queries whose similarities are in memory at once."""
SPLITS = {"heldout": ("dev", "test"), "test": ("test",), "train": ("train",)}

Grades = Mapping[str, Mapping[str, int]]
"""{query: {document: grade}}; a document without a grade above 0 is not relevant."""


def report(request: Request) -> Report:
    """Returns the measures of the search. Raises UserError."""
    if len(request.data) != 1:
        raise UserError(
            "search reads one folder with corpus.jsonl, queries.jsonl and qrels; give it as --data"
        )
    folder = Path(request.data[0])
    documents, queries = (texts_of(folder / f"{name}.jsonl") for name in ("corpus", "queries"))
    file, grades = grades_of(folder, request.split, documents, queries)
    model = load(best_checkpoint(request.model))
    if not has_encoder(model):
        raise UserError(f"{request.model} has no encoder of texts; take a sentence encoder")
    asked = [query for query in queries if query in grades]
    with request.progress():
        results = ranked(model, [queries[query] for query in asked], documents, request.batch)
    relevant = [[grades[q].get(d, 0) for d in row] for q, row in zip(asked, results, strict=True)]
    every = [list(grades[query].values()) for query in asked]
    document = {
        "task": "search", "examples": len(asked), "documents": len(documents),
        "metrics": ranks.of_lists(relevant, every), "source": str(file),
    }  # fmt: skip
    head = f"search: {len(asked):,} queries of {file}, {len(documents):,} documents"
    return Report(document=document, head=head, width=22)


def texts_of(path: Path) -> dict[str, str]:
    """Returns {id: title and text} of a file. Raises UserError with the place."""
    texts = {}
    for place, fields in tabular.rows(path):
        name = cells.plain(tabular.need(place, fields, "_id", "id"))
        text = cells.text_of(place, "text", tabular.need(place, fields, "text"))
        if name in texts:
            raise UserError(f"{place}: the id {name} has a text already; remove one of them")
        texts[name] = " ".join(filter(None, (cells.plain(fields.get("title")), text)))
    if not texts:
        raise UserError(f"{path} has no texts; give lines with _id and text")
    return texts


def grades_of(
    folder: Path, split: str, documents: Mapping[str, str], queries: Mapping[str, str]
) -> tuple[Path, Grades]:
    """Returns (file, the grades of the queries with a relevant document). Raises UserError."""
    files = [folder / "qrels" / f"{name}.tsv" for name in SPLITS[split]]
    file = next((one for one in files if one.is_file()), None)
    if file is None:
        raise UserError(f"{folder} has no file {' or '.join(f'qrels/{f.name}' for f in files)}")
    grades: dict[str, dict[str, int]] = {}
    for place, fields in tabular.rows(file, needed=(("query-id",), ("corpus-id",), ("score",))):
        query, name = (cells.plain(fields[column]) for column in ("query-id", "corpus-id"))
        grade = cells.number_of(cells.plain(fields["score"]))
        for name_of, texts, kind in ((query, queries, "query"), (name, documents, "document")):
            if name_of not in texts:
                raise UserError(
                    f"{place}: there is no {kind} {name_of}; add it, or remove the line"
                )
        if np.isnan(grade):
            raise UserError(f"{place}: the score is {fields['score']!r}; expected a number")
        grades.setdefault(query, {})[name] = int(grade)
    grades = {query: row for query, row in grades.items() if max(row.values()) > 0}
    if not grades:
        raise UserError(f"{file} has no grade above 0; give relevant documents")
    return file, grades


def ranked(
    model: Pretrained, queries: Sequence[str], documents: Mapping[str, str], batch: int
) -> list[list[str]]:
    """Returns the ids of the `TOP` documents of each query, most similar first; of equally similar
    ones the first in the corpus."""
    names = list(documents)
    texts = {"queries": list(queries), "documents": list(documents.values())}
    prompts = {"queries": QUERIES, "documents": DOCUMENTS}
    vectors = {
        kind: model.encode(
            part, batch_size=batch, truncate=True, query=kind == "queries",
            **prompt_for(model, {}, prompts[kind]),
        )
        for kind, part in texts.items()
    }  # fmt: skip
    results: list[list[str]] = []
    for start in range(0, len(queries), BLOCK):
        scores = model.similarity(vectors["queries"][start : start + BLOCK], vectors["documents"])
        best = np.argsort(-scores, axis=1, kind="stable")[:, :TOP]
        results += [[names[place] for place in row] for row in best]
    return results


EVALUATIONS = (
    Evaluation(
        name="search", reads="task", run=report,
        refuses=(
            METHOD,
            (
                ("predictions", "plot", "adapter", "ensemble", "beside", "languages", "speed"),
                "{option} is not for search; leave it out",
            ),
        ),
        help="a sentence encoder searches a folder of documents with judged queries (BEIR)",
    ),
)  # fmt: skip

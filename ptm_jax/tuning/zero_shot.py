"""One model on the data of several languages: `--data language:de=FILE language:zh=FILE`.

The model was fine-tuned on the first of them (Pires et al. 2019, arXiv 1906.01502; Hu et al. 2020,
arXiv 2003.11080, section 3: the cross-lingual transfer gap; row 214).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ptm_jax.core.errors import UserError
from ptm_jax.data.languages import codes
from ptm_jax.runs.evaluations import Report, Request
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.tasks.evaluating import Evaluation


def is_by_language(request: Request) -> bool:
    """Returns whether data of a request have languages, and are no pairs that the task reads."""
    examples = catalogue.get(request.task).examples
    tagged = [source for source in request.data if source.startswith(codes.START)]
    return any(not examples.is_file(source) for source in tagged)


def report(request: Request, scored: Callable[[Request], Evaluation]) -> Report:
    """Returns the metrics of each language, their means, and the gap of the first metric: that of
    the first language minus the mean of the others. Raises UserError."""
    results = {
        code: scored(dataclasses.replace(request, data=(file,), language=code))
        for code, file in files_of(request).items()
    }
    figures = {code: dict(one.metrics) for code, one in results.items()}
    names = list(next(iter(figures.values())))
    means = {name: sum(one[name] for one in figures.values()) / len(figures) for name in names}
    first, *others = (one[names[0]] for one in figures.values())
    if others:
        means["gap"] = first - sum(others) / len(others)
    languages = {
        code: {
            "examples": len(one.examples),
            "metrics": figures[code],
            "source": one.source.path,
            "remarks": dict(one.remarks),
        }
        for code, one in results.items()
    }
    rows = [
        [code, f"{one['examples']:,}", *(f"{one['metrics'][name]:.4f}" for name in names)]
        for code, one in languages.items()
    ]
    count = sum(one["examples"] for one in languages.values())
    document = {
        "task": request.task,
        "examples": count,
        "metrics": means,
        "languages": languages,
    }
    head = f"{request.task}: {count:,} examples of {len(figures)} languages, their mean and the gap"
    table = [["language", "examples", *names], *rows]
    return Report(document=document, head=head, width=22, table=table)


def files_of(request: Request) -> dict[str, str]:
    """Returns {language: file} in the order of --data. Raises UserError."""
    if option := next((name for name in ("predictions", "plot") if vars(request)[name]), None):
        raise UserError(f"--{option} is of one file; give it without language:")
    parts = codes.grouped(request.data)
    for name, sources in parts.items():
        if "-" in name or len(sources) > 1:
            raise UserError(
                f"{sources[-1]} is one source too many of {name}; write language:CODE=FILE, one "
                "file or folder for each language"
            )
    return {code: codes.parsed(sources[0])[1] for code, sources in parts.items()}

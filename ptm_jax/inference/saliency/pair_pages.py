"""A page of the pairs of an attack: texts and their changed forms, with changed words marked."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence

from ptm_jax.inference.saliency.html_pages import Page

ORIGINAL, CHANGED = "original_text", "perturbed_text"
OTHERS = ("original_output", "perturbed_output", "original_score", "perturbed_score",
          "ground_truth_output", "num_queries", "result_type")  # fmt: skip
"""Columns of TextAttack's log (Morris et al. 2020)."""
_MARK = re.compile(r"\[\[(.+?)\]\]")


def pair_page(title: str, rows: Iterable[Mapping[str, str]]) -> Page:
    """Returns the page of rows with `original_text` and `perturbed_text`, and columns of `OTHERS`.

    The words in double brackets are the changed ones, as TextAttack writes them. Of texts without
    brackets the words are compared.
    """
    pairs = []
    for row in rows:
        parts = _parts(row[ORIGINAL], row[CHANGED])
        changed = sum(len(text.split()) for text, differs in parts[0] if differs)
        words = sum(len(text.split()) for text, _ in parts[0])
        fields = {name: str(row[name]) for name in OTHERS if row.get(name) not in (None, "")}
        pairs.append({"texts": parts, "share": changed / max(1, words), "fields": fields})
    shares = [pair["share"] for pair in pairs]
    document = {
        "pairs": len(pairs),
        "changed_words": round(sum(shares) / max(1, len(shares)), 4),
        "changed": sum(share > 0 for share in shares),
    }
    about = f"{len(pairs):,} texts, and their changed forms below them. Changed words are marked."
    return Page(title, "pairs", {"pairs": pairs}, about, document)


def _parts(original: str, changed: str) -> list[list[tuple[str, bool]]]:
    """Returns the parts of both texts, and whether they differ."""
    if _MARK.search(original) or _MARK.search(changed):
        return [_marked(original), _marked(changed)]
    words = [text.split() for text in (original, changed)]
    blocks = difflib.SequenceMatcher(None, *words, autojunk=False).get_opcodes()
    return [
        [(" ".join(words[side][a:b]), kind != "equal") for kind, *ends in blocks
         for a, b in [ends[2 * side : 2 * side + 2]] if b > a]
        for side in (0, 1)
    ]  # fmt: skip


def _marked(text: str) -> list[tuple[str, bool]]:
    parts: Sequence[str] = _MARK.split(text)
    return [(part.strip(), n % 2 == 1) for n, part in enumerate(parts) if part.strip()]

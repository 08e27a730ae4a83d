"""Writes questions and passages of SQuAD's files as a folder to search and as pairs to train on.

    python -m benchmarks.retrieval_data --train FILE.json ... --test FILE.json --out FOLDER

The folder has the layout of BEIR: each passage of the test file is a document, and relevant to the
questions on it. `pairs.tsv` has the answerable questions of the training files with their passages;
a passage of the test file is left out of it. The last line is nDCG@10 of BM25 on the folder.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path


def passages(path: str) -> Iterator[tuple[str, list[str]]]:
    """Yields (passage, its answerable questions)."""
    for article in json.loads(Path(path).read_text(encoding="utf8"))["data"]:
        for paragraph in article["paragraphs"]:
            questions = [one["question"] for one in paragraph["qas"] if one["answers"]]
            yield _line(paragraph["context"]), list(map(_line, questions))


def _line(text: str) -> str:
    return " ".join(text.split())


def write(train: list[str], test: str, out: Path) -> tuple[int, int, int]:
    """Writes the files. Returns the numbers of documents, queries and pairs."""
    (out / "qrels").mkdir(parents=True, exist_ok=True)
    documents, queries, grades = [], [], ["query-id\tcorpus-id\tscore"]
    for passage, questions in passages(test):
        for question in questions:
            grades.append(f"q{len(queries)}\td{len(documents)}\t1")
            queries.append({"_id": f"q{len(queries)}", "text": question})
        documents.append({"_id": f"d{len(documents)}", "title": "", "text": passage})
    for name, rows in (("corpus", documents), ("queries", queries)):
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (out / f"{name}.jsonl").write_text(lines, encoding="utf8")
    (out / "qrels" / "test.tsv").write_text("\n".join(grades) + "\n", encoding="utf8")
    tested = {row["text"] for row in documents}
    pairs = [
        f"{question}\t{passage}"
        for path in train
        for passage, questions in passages(path)
        if passage not in tested
        for question in questions
    ]
    text = "\n".join(["question\tpassage", *pairs]) + "\n"
    (out / "pairs.tsv").write_text(text, encoding="utf8")
    return len(documents), len(queries), len(pairs)


def bm25(out: Path, k1: float = 1.2, b: float = 0.75) -> float:
    """Returns nDCG@10 of BM25 (Robertson and Zaragoza 2009, section 3.2) on the folder: lower-case
    words, the logarithm of 1 + (n - df + 0.5) / (df + 0.5)."""
    from ptm_jax.tasks import searching
    from ptm_jax.tasks.metrics import ranks

    documents, queries = (searching.texts_of(out / f"{n}.jsonl") for n in ("corpus", "queries"))
    _, grades = searching.grades_of(out, "test", documents, queries)
    counts = {name: Counter(_words(text)) for name, text in documents.items()}
    mean = sum(one.total() for one in counts.values()) / len(counts)
    shared = Counter(word for one in counts.values() for word in one)

    def score(words: list[str], one: Counter) -> float:
        size = k1 * (1 - b + b * one.total() / mean)
        return sum(
            math.log(1 + (len(counts) - shared[w] + 0.5) / (shared[w] + 0.5))
            * one[w] * (k1 + 1) / (one[w] + size)
            for w in words
        )  # fmt: skip

    rows = []
    for query in grades:
        words = _words(queries[query])
        best = sorted(counts, key=lambda name: -score(words, counts[name]))
        rows.append([grades[query].get(name, 0) for name in best[:100]])
    return ranks.of_lists(rows, [list(one.values()) for one in grades.values()])["ndcg_at_10"]


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", nargs="+", required=True)
    parser.add_argument("--test", required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    counts = write(args.train, args.test, args.out)
    print("{:,} documents, {:,} queries, {:,} pairs".format(*counts))
    print(f"BM25: ndcg_at_10 {bm25(args.out):.4f}")

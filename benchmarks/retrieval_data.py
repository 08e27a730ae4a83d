"""Writes questions and passages of SQuAD's files as a folder to search and as pairs to train on.

    python -m benchmarks.retrieval_data --train FILE.json ... --test FILE.json --out FOLDER

The folder has the layout of BEIR: each passage of the test file is a document, and relevant to the
questions on it. `pairs.tsv` has the answerable questions of the training files with their passages;
a passage of the test file is left out of it.
"""

from __future__ import annotations

import argparse
import json
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", nargs="+", required=True)
    parser.add_argument("--test", required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    counts = write(args.train, args.test, args.out)
    print("{:,} documents, {:,} queries, {:,} pairs".format(*counts))

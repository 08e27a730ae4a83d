"""Makes golden_transfo_xl.json: ids of the original Transformer-XL tokenizer, which transformers 5
no longer has.

In an environment of its own (transformers 4.35.2 is the last whose Transformer-XL runs):

  pip install "transformers==4.35.2" "numpy<2" sacremoses
  python tests/data/tokenizers/published_golden.py ../shared/data

The file holds a small vocabulary as that version writes it (vocab.pkl), ids of some texts, and of
every real file a hash over the ids of all its lines. test_published_parity.py checks four of them.
"""

import base64
import hashlib
import json
import sys
import tempfile
from array import array
from pathlib import Path

FOLDERS = ("lm/wikitext-2", "chinese", "lm/clue-corpus-small", "xnli", "mt", "ud")
TEXTS = (
    "Dr. Smith's 23,000 well-known people are 1.80m tall - or 5,000,000.5 ?",
    "He said : “ It 's a <unk> thing — isn 't it ? ” <eos>",
    " = Robert Boulter = ",
    "Das kostet 3,50 € (ca. 4.20 US-Dollar)!  \t e.g. at www.example.com/a?b=c&d",
    "L'été, c'est-à-dire l'été… n'est pas fini；他说：“你好。”",
    "",
    "   ",
    "a <formula> b, <unk>, @-@ @,@ \u200b \x07 x",
    "Mr. Brown met Mrs. Green at 10 a.m. on Jan. 5th... They left.",
)


def files(root: Path) -> list[Path]:
    """The real files whose lines every tokenizer is compared on."""
    return [p for folder in FOLDERS for p in sorted((root / folder).rglob("*")) if p.is_file()]


def lines(path: Path) -> list[str]:
    """Lines of a file, blank ones and those that end with blanks as they are."""
    return path.read_text("utf-8").split("\n")


def digest(rows) -> str:
    """Hash over the ids of all lines, -1 between them."""
    whole = hashlib.sha256()
    for row in rows:
        whole.update(array("i", [*map(int, row), -1]).tobytes())
    return whole.hexdigest()[:16]


def main(root: Path) -> None:
    import published_families
    import transformers
    from transformers import TransfoXLTokenizer

    with tempfile.TemporaryDirectory() as scratch:
        text = [line for path in files(root)[:1] for line in lines(path)]
        folder = published_families.make(Path(scratch) / "made", "transfo-xl", text, 300)
        TransfoXLTokenizer(vocab_file=str(folder / "vocab.txt")).save_pretrained(scratch)
        pickled = (Path(scratch) / "vocab.pkl").read_bytes()
        config = (Path(scratch) / "tokenizer_config.json").read_text()
        original = TransfoXLTokenizer.from_pretrained(scratch)

    def ids(text):
        return original.encode(text, add_special_tokens=False)

    golden = {
        "made by": f"transformers {transformers.__version__}, "
        "tests/data/tokenizers/published_golden.py",
        "vocab.pkl": base64.b85encode(pickled).decode(),
        "tokenizer_config.json": json.loads(config),
        "texts": [[text, ids(text)] for text in TEXTS],
        "pair": [
            original("a dog", "the cat .", return_token_type_ids=True)[k]
            for k in ("input_ids", "token_type_ids")
        ],
        "files": {str(p.relative_to(root)): digest(map(ids, lines(p))) for p in files(root)},
    }
    out = Path(__file__).with_name("golden_transfo_xl.json")
    out.write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

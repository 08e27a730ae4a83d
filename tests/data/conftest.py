"""Small pseudo-English corpora."""

import random
from pathlib import Path

import pytest

from ptm_jax.data.corpora.prepare import prepare
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec


def prose(documents: int, seed: int = 0, sentences: int = 12) -> str:
    """Documents of up to `sentences` sentences of made-up words, in the txt format."""
    draw = random.Random(seed)
    syllables = ["ba", "ken", "lo", "mi", "ru", "sta", "ven", "tor", "pli", "gra", "sul", "ne"]
    words = ["".join(draw.choices(syllables, k=draw.randint(1, 3))) for _ in range(200)]
    pages = []
    for _ in range(documents):
        lines = (
            draw.choices(words, k=draw.randint(3, 14)) for _ in range(draw.randint(1, sentences))
        )
        pages.append("\n".join(" ".join(line).capitalize() + "." for line in lines))
    return "\n\n".join(pages) + "\n"


@pytest.fixture(scope="session")
def spec() -> TokenizerSpec:
    return TokenizerSpec(kind="wordpiece", vocab=160)


@pytest.fixture(scope="session")
def text_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("text") / "prose.txt"
    path.write_text(prose(400))
    return path


@pytest.fixture(scope="session")
def options(spec) -> dict:
    return {"tokenizer": spec, "heldout": 0.1, "block_tokens": 512}


@pytest.fixture(scope="session")
def corpus(tmp_path_factory, text_file, options):
    """About 400 documents in blocks of 512 tokens."""
    return prepare([str(text_file)], tmp_path_factory.mktemp("corpus") / "c", **options)

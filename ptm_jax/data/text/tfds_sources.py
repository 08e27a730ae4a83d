"""Sources of text of TensorFlow Datasets: `tfds:name/config`, without TensorFlow."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Iterator

from ptm_jax.core.errors import UserError
from ptm_jax.data.text import textfiles
from ptm_jax.data.text.documents import Document, document

START = "tfds:"


@contextlib.contextmanager
def errors(source: str) -> Iterator[None]:
    """Raises UserError for the many kinds of errors of tfds, and sends its output to stderr."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"{source} cannot be loaded ({reason}); check the name and TFDS_DATA_DIR"
        ) from None


def builder_of(source: str):
    """Returns the prepared tfds builder of `tfds:name/config`.
    The format is array_record, which needs no TensorFlow."""
    with errors(source):
        import tensorflow_datasets as tfds

        options = (
            {"data_dir": os.environ["TFDS_DATA_DIR"]} if os.environ.get("TFDS_DATA_DIR") else {}
        )
        builder = tfds.builder(source.removeprefix(START), file_format="array_record", **options)
        builder.download_and_prepare()
    if "train" not in builder.info.splits:
        raise UserError(f"{source} has no split 'train'; it has {', '.join(builder.info.splits)}")
    return builder


def fingerprint(source: str) -> str:
    """Returns a hash of the name, version and sizes of a dataset."""
    info = builder_of(source).info
    split = info.splits["train"]
    facts = f"{info.full_name} {split.num_examples} {split.num_bytes} {list(split.shard_lengths)}"
    return hashlib.sha256(facts.encode()).hexdigest()


def documents(source: str) -> Iterator[Document]:
    """Yields the text of each row of the split `train`. Raises UserError without one."""
    builder, empty = builder_of(source), True
    with errors(source):
        rows = builder.as_data_source(split="train")
    for row in rows:
        texts = {
            k: v.decode("utf-8", "replace") if isinstance(v, bytes) else v for k, v in row.items()
        }
        names = [n for n in textfiles.TEXT_FIELDS if isinstance(texts.get(n), str)]
        names += [k for k, v in texts.items() if isinstance(v, str)]
        if not names:
            raise UserError(f"{source} has no text feature; its features are {', '.join(row)}")
        if item := document(texts[names[0]].splitlines()):
            empty = False
            yield item
    if empty:
        raise UserError(f"{source} holds no text in its split 'train'")

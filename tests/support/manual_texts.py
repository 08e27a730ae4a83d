"""Text of languages that the data folder lacks: packages of Debian, fetched at their first use."""

import sys
import tempfile
from pathlib import Path

import pytest

from benchmarks import manuals
from ptm_jax.core.errors import UserError

FOLDER = Path(tempfile.gettempdir()) / "ptm-texts"


def sources_of(text):
    """The sources of "debian:fr", or of several languages, "debian:bg cs". The test is skipped
    where there is no apt-get, or no network."""
    languages = text.removeprefix("debian:").split()
    if "ja" in languages:  # MeCab, where the Makefile's target .japanese has put it
        sys.path.append(str(Path(sys.prefix) / "japanese"))
        pytest.importorskip("ipadic")
    try:
        paths = {one: manuals.write(one, FOLDER) for one in languages}
    except UserError as error:
        pytest.skip(str(error))
    several = [f"language:{one}={path}" for one, path in paths.items()]
    return several if len(several) > 1 else [str(path) for path in paths.values()]

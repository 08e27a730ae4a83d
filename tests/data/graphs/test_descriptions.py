"""The descriptions of a compiled graph as text: those of its entities, each a document
(KEPLER-OnlyDesc)."""

import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.data.text import sources
from ptm_jax.knowledge.graphs import compiling, formats


def test_descriptions_of_entities_are_documents(tmp_path):
    folder = tmp_path / "kg"
    folder.mkdir()
    (folder / "train.tsv").write_text("dog\tIsA\tanimal\ncat\tIsA\tanimal\n")
    (folder / "entity2text.txt").write_text("dog\tthe dog\ncat\tthe cat\nanimal\tthe animal\n")
    (folder / "entity2textlong.txt").write_text(
        "dog\tA dog barks. It is a pet.\nanimal\tAn animal lives.\n"
    )
    compiling.compile_graph(formats.sources([str(folder)]), tmp_path / "graph")
    name = f"descriptions:{tmp_path / 'graph'}"
    found = sorted(document.sentences for document in sources.documents([name]))
    assert found == [("A dog barks.", "It is a pet."), ("An animal lives.",)]
    both = sources.fingerprints([name, f"sentences:{tmp_path / 'graph'}"])
    assert both[0]["sha256"] == both[1]["sha256"]
    with pytest.raises(UserError, match="names no compiled graph"):
        sources.expand(f"descriptions:{tmp_path / 'no'}")

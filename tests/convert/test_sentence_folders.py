"""LaBSE and E5 as they come: folders of sentence-transformers around BERT and XLM-RoBERTa."""

import folders
import peers
import pytest

pytestmark = peers.LIVE


@pytest.mark.parametrize(
    ("name", "base"),
    [("labse", folders.bert), ("e5", folders.bert), ("multilingual-e5", folders.roberta)],
)
def test_a_folder_gives_the_vectors_of_the_library(name, base, tmp_path):
    """LaBSE: the first token, a dense layer with tanh, unit length. E5: means, unit length, prompts
    for queries and passages."""
    pytest.importorskip("sentence_transformers")
    if name == "labse":
        steps = [(24, True, peers.torch.nn.Tanh), "normalize"]
        folders.compare(tmp_path, base, "cls", steps)
    else:
        folders.compare(tmp_path, base, "mean", ["normalize"], folders.PROMPTS)

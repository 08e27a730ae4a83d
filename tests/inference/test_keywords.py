"""Keywords of a text by attention, beside the attention of Transformers' BERT."""

import json

import numpy as np
import pytest

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.core.errors import UserError
from ptm_jax.inference.saliency import keywords
from support import tiny_checkpoint

TEXTS = ["the goodfilm was bad", "a very long story"]


@pytest.mark.full
@pytest.mark.status("Progress-note BERT", "built")
def test_a_words_weight_is_its_share_of_the_first_tokens_attention(tmp_path, capsys):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    folder = tiny_checkpoint.write(
        tmp_path / "model", architectures=["BertForSequenceClassification"], scale=0.5
    )
    model = ptm_jax.load(folder)
    theirs = transformers.BertForSequenceClassification.from_pretrained(
        folder, attn_implementation="eager"
    ).eval()
    for text, found in zip(TEXTS, keywords.weights_of(model, TEXTS), strict=True):
        parts = model.tokenizer.encode_batch(text.split())
        ids, _ = model.tokenizer.frame(np.concatenate(parts))
        with torch.no_grad():
            maps = theirs(torch.tensor(ids[None].astype(np.int64)), output_attentions=True)
        inside = maps.attentions[-1][0, :, 0, 1:-1].numpy()
        share = (inside / inside.sum(-1, keepdims=True)).mean(0)
        ends = np.cumsum([len(part) for part in parts])
        expected = [piece.sum() for piece in np.split(share, ends[:-1])]
        assert [word for word, _ in found] == text.split()
        np.testing.assert_allclose([weight for _, weight in found], expected, atol=1e-5)
    command = ["predict", str(folder), "--task", "keywords", "--top", "2", "--json"]
    assert main([*command, "--text", TEXTS[0]]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    weights = [one["weight"] for one in result["keywords"]]
    assert len(weights) == 2 and weights == sorted(weights, reverse=True)
    with pytest.raises(UserError, match="no words"):
        keywords.weights_of(model, [" "])

"""Tables of models and results in notebooks, and the tokens of a text."""

import io
import sys
import types
from html.parser import HTMLParser

import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.inference import bars
from ptm_jax.inference.text import generating
from ptm_jax.inference.words.word_vectors import WordVectors
from ptm_jax.tuning.ensembles import Ensemble


class Cells(HTMLParser):
    """The texts of a table."""

    def __init__(self, text):
        super().__init__()
        self.texts, self.open = [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_models_and_results_are_tables(bert, classifier):
    cells = Cells(bert._repr_html_()).texts
    assert cells[0] == "Pretrained bert_mini" and "Transformer" in cells
    words = WordVectors.of(["<b>", "a"], np.zeros((2, 3), np.float32), [2, 1])
    assert Cells(words._repr_html_()).texts[-2:] == ["<b>", "a"]
    output = classifier([[1, 2, 3], [4, 5, 0]])
    cells = Cells(output._repr_html_()).texts
    assert cells[cells.index("hidden") + 1] == "[2, 3, 8]"
    assert cells[cells.index("scores/classify") + 1] == "[2, 3]"
    assert Cells(Ensemble([bert, bert])._repr_html_()).texts.count("bert_mini") == 2


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2"])
def test_tokens_have_ids_pieces_and_characters(family, request):
    model, text = request.getfixturevalue(family), "the  king sees thé hat."
    tokens = model.tokens(text)
    assert list(tokens.ids) == model.tokenizer.encode_batch([text])[0].tolist()
    assert tokens.pieces == tuple(model.tokenizer.piece(i) for i in tokens.ids)
    spelled = "".join(text[a:b] for a, b in zip(tokens.starts, tokens.ends, strict=True))
    assert "king" in spelled and spelled.endswith("hat.")
    assert sorted(tokens.starts) == list(tokens.starts)
    assert Cells(tokens._repr_html_()).texts[:4] == ["id", "piece", "start", "end"]
    assert model.tokens("").ids == ()
    with pytest.raises(UserError, match="expected a text"):
        model.tokens(3)


def test_a_bar_is_shown_in_the_kernel_of_a_notebook(monkeypatch):
    with bars.bar(3, "text") as bar:
        assert bar.disable  # neither a terminal nor a notebook
    stream = type("OutStream", (io.StringIO,), {})
    monkeypatch.setitem(sys.modules, "ipykernel.iostream", types.SimpleNamespace(OutStream=stream))
    monkeypatch.setattr(sys, "stderr", stream())
    assert bars.in_notebook()
    with bars.bar(3, "text") as bar:
        assert not bar.disable
    with bars.bar(3, "text", shown=False) as bar:
        assert bar.disable


def test_bad_words_are_in_no_answer(gpt2):
    texts = ["the king", "the queen sees"]
    plain = gpt2.generate(texts, max_new_tokens=6)
    first = int(gpt2(gpt2.tokenizer.encode_batch(texts[:1])).logits[0, -1].argmax())
    assert gpt2.generate(texts, max_new_tokens=6, bad_words=[[first]])[0] != plain[0]
    words = generating.bad_words(gpt2, ["king", [first, 3]])
    pieces = [tuple(gpt2.tokenizer.encode(text).tolist()) for text in ("king", " king")]
    assert words == (*dict.fromkeys(pieces), (first, 3))
    with pytest.raises(UserError, match="write \\['the'\\] for a single one"):
        gpt2.generate(texts, bad_words="the")
    with pytest.raises(UserError, match="which has no tokens"):
        gpt2.generate(texts, bad_words=[""])

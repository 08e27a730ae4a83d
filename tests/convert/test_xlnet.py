"""XLNet against `transformers`: random configs, all head classes; two streams with a memory; answers by beams."""

import peers
import pytest

from ptm_jax.objectives.language import MLM

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(peers.torch is None, reason="torch and transformers are not installed; make test-full installs them"),
]

XLNET = [
    peers.Case("XLNetModel"),
    # The library tells the words of the content stream where it is given no order.
    peers.Case("XLNetLMHeadModel", ("lm",), labels={"lm": "mlm"}, objective=MLM(head="lm")),
    peers.Case("XLNetForSequenceClassification", ("classify",)),
    peers.Case("XLNetForTokenClassification", ("tag",)),
    peers.Case("XLNetForMultipleChoice", ("choose",)),
    peers.Case("XLNetForQuestionAnsweringSimple", ("span",)),
    peers.Case("XLNetForQuestionAnswering", ("answer",)),
]
CONFIGS = {
    "left": dict(d_model=24, n_head=3, d_inner=40),
    "right": dict(d_model=8, n_head=1, d_inner=7, n_layer=1, ff_activation="relu", summary_type="first", clamp_len=3),
    "untied": dict(d_model=12, n_head=2, ff_activation="gelu_new", tie_word_embeddings=False, summary_activation=""),
    "uni": dict(d_model=16, n_head=4, attn_type="uni", reuse_len=5, mem_len=None, summary_use_proj=False, clamp_len=6),
    "mean": dict(d_model=20, n_head=2, layer_norm_eps=1e-5, summary_type="mean", summary_activation="relu", mem_len=7),
}


def config(name):
    words = dict(vocab_size=61, n_layer=2, d_inner=24, num_labels=3, use_mems_eval=False, start_n_top=3, end_n_top=2)
    return peers.transformers.XLNetConfig(**{**words, **CONFIGS[name]})


class Rows:
    """A mask [L, L] that is indexed once, for all rows: the library adds padding to that of one row in place, and fails."""

    def __init__(self, mask):
        self.mask = mask

    def __getitem__(self, index):
        return self.mask[index].repeat(1, 1, peers.ROWS, 1)


@pytest.mark.parametrize("name", CONFIGS)
def test_xlnet(name, tmp_path, monkeypatch):
    if name == "uni":
        published = peers.transformers.XLNetModel.create_mask
        monkeypatch.setattr(peers.transformers.XLNetModel, "create_mask", lambda *of: Rows(published(*of)))
    given = peers.drawn(61, 16, side="right" if name == "right" else "left", seed=len(name), least=6)
    if name == "mean":  # the library's mean counts padding
        given["attention_mask"][:] = 1
    peers.compare(tmp_path, config(name), XLNET, given)

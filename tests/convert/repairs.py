"""Repairs of faults of the Transformers library, without which its layers cannot be compared."""

import peers


class Rows:
    """A mask [L, L] that is indexed once, for all rows: the library adds padding to that of one row
    in place, and fails."""

    def __init__(self, mask):
        self.mask = mask

    def __getitem__(self, index):
        return self.mask[index].repeat(1, 1, peers.ROWS, 1)


def runnable(monkeypatch):
    """Repairs the library's layers: with norms before the branches they ask a cache for a layer's
    part, which it has not, and for maps that they do not ask their attention for; a causal XLNet
    fails on padding."""
    from transformers.models.flaubert import modeling_flaubert as published

    attend, mask = published.MultiHeadAttention.forward, peers.transformers.XLNetModel.create_mask

    def with_maps(self, *given, cache=None, **words):
        return attend(self, *given, **{**words, "output_attentions": True})

    monkeypatch.setattr(published.MultiHeadAttention, "forward", with_maps)
    monkeypatch.setattr(
        published.EncoderDecoderCache, "__getitem__", lambda self, layer: None, raising=False
    )
    monkeypatch.setattr(peers.transformers.XLNetModel, "create_mask", lambda *of: Rows(mask(*of)))

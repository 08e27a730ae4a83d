"""Tables of documents and words as encoders: paragraph vectors.

Le and Mikolov 2014, arXiv 1405.4053.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.types import Batch, Encoded
from ptm_jax.encoders.words.static import Table
from ptm_jax.nn.embeddings.summed import table_of
from ptm_jax.statistics.counts import Documents
from ptm_jax.statistics.windows import neighbours, shifted, square


class ParagraphVectors(Table):
    """A token's document, alone or with the words around the token, [B, L, D] or [B, L, D'].

    document    [N, D], read at `document_ids` [B, L] (without them: document 0)
    words       "none": the document's vector, which predicts its words (PV-DBOW, section 2.3)
                "mean": the mean of the document's vector and the word vectors on both sides (PV-DM,
                section 2.2), with gensim's gradient, as in `ContextWords`
                "concatenated": the document's vector and the vectors of the `window` words before,
                D' = (1 + window) D (PV-DM; section 3 predicts the 8th word from 7). Places before
                the document are zeros; gensim has a learned vector
    skipgram    with words="none": the words' vectors too, which predict their neighbours (gensim's
                dbow_words), in `extra["words"]` [B, L, D]
    """

    logical_axes = {"document": ("vocab", "width")}

    documents: Documents = Documents()
    window: int = 5
    words: Literal["none", "mean", "concatenated"] = "mean"
    skipgram: bool = False

    @property
    def paragraphs(self) -> int:
        return self.documents.corpus_documents

    @property
    def direction(self) -> slots.Direction:
        return {"none": "unread", "mean": "both", "concatenated": "before"}[self.words]

    @property
    def reads(self) -> int:
        """The width of a state, in vectors."""
        return 1 + self.window * (self.words == "concatenated")

    def setup(self):
        self.token = self._token()
        self.document = table_of(
            self, "document", self.initializer, (self.documents.corpus_documents, self.width)
        )

    def __call__(self, batch: Batch, train: bool = False) -> Encoded:
        ids = batch["input_ids"]
        document = self.document[batch.get("document_ids", jnp.zeros_like(ids))]
        x = self.token[ids]
        if self.words == "none":
            return Encoded(document, extra={"words": x} if self.skipgram else None)
        if self.words == "concatenated":
            near = neighbours(batch, self.window)[..., : self.window]
            before = [
                jnp.where(near[..., n, None], shifted(x, n - self.window), 0.0)
                for n in range(self.window)
            ]
            return Encoded(jnp.concatenate([document, *before], -1))
        near = square(batch, self.window).astype(
            x.dtype
        )  # a product is faster than a sum over the offsets
        total = document + jnp.einsum("blm,bmd->bld", near, x, preferred_element_type=x.dtype)
        mean = total / (1 + near.sum(-1))[..., None]
        return Encoded(total + jax.lax.stop_gradient(mean - total))

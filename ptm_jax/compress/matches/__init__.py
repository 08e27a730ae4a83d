"""Comparisons of a student with its teacher.

Each is a small value of the slot `matches.base.Match`:

    predictions   soft targets, logits
    states        states of layers, embeddings, feature maps, cosines, first states, Gram matrices
    attending     attention scores, distributions, relations of values, keys or queries

`compress.students.distillation.Distillation` takes any number of them.
"""

from ptm_jax.core.public import public

__getattr__, __dir__ = public(__name__, __path__[0])

"""The training step, the loop and its checkpoints. Called as a function, this room is
`ptm_jax.pretrain`."""

import sys

import ptm_jax

sys.modules[__name__].__class__ = ptm_jax.Train

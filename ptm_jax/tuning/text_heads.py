"""The heads of a model that makes vectors of texts."""

from __future__ import annotations

from ptm_jax.convert import checkpoint
from ptm_jax.convert.family import family_of
from ptm_jax.core.errors import UserError
from ptm_jax.core.networks import Head, Network
from ptm_jax.core.system import System
from ptm_jax.training.start.init_models import Initial


def published(model: Initial, head: Head) -> System:
    """Returns the record of a published checkpoint, with the head that `head` reads."""
    family = family_of(model.config)
    read = head.reads_head in family.heads[family.architecture(model.config)]
    return checkpoint.record_of(model.config, family.pretraining if read else family.bare)[0]


def heads_of(tower: Network, head: Head, name: str, path: str) -> dict[str, Head]:
    """Returns a tower's own head of vectors, or `head`, and the head that this one reads.
    Raises UserError where the model at `path` lacks the latter."""
    before, read = tower.heads.get(name), head.reads_head
    heads = {name: before if type(before) is type(head) else head}
    if read is None:
        return heads
    if read not in tower.heads:
        raise UserError(
            f"{path} has no masked-LM head, whose logits a sparse encoder reads; take a model that "
            "fills masks"
        )
    return {**heads, read: tower.heads[read]}

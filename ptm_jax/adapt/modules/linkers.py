"""Training of an encoder's linker before the complete model is trained (KnowBERT)."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.core.types import Params
from ptm_jax.corruptions.base import Chain
from ptm_jax.corruptions.knowledge.entities import gold_writers
from ptm_jax.objectives.base import corruptions_of
from ptm_jax.objectives.joint import parts_of
from ptm_jax.objectives.knowledge.entities import linking_of

if TYPE_CHECKING:
    from ptm_jax.core.system import System
    from ptm_jax.core.types import Step


_LINKER = "project|pool|span_norm|spans|entity_norm|match|score"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Linkers(slots.Wrapper):
    """Trains only linker number `source` of an encoder: the first stage of KnowBERT.

    Peters et al. 2019, arXiv 1909.04164, section 3; allenai/kb,
    training_config/pretraining/knowbert_wiki_linker.jsonnet. The loss is entity linking alone, on
    words that are not masked. The linker comprises the parts that score the candidates: the layer
    to the width of the entities, pooling, the layers over mentions, the norms before the product,
    and the network of product and prior.

    A run that begins with this run gets the layer `back` as the inverse of `project`, y = x P + b:
    the pseudo-inverse P^+ [W, D] and the bias -b P^+ (kb/knowbert.py,
    `_init_kg_to_bert_projection`, whose bias has the other sign).
    """

    source: int = 0

    def rewrite(self, system: System) -> Any:
        linking = linking_of(parts_of(system.objective), self.source)
        if linking is None:
            return system
        gold = gold_writers(corruptions_of(system), self.source)
        return dataclasses.replace(system, objective=linking, corruption=Chain(parts=gold))

    def trainable(self, path: str, step: Step) -> bool:
        return re.search(rf"/knowledge_{self.source}/layer/({_LINKER})/", path) is not None

    def finish(self, params: Params) -> Params:
        flat = flatten(params)
        for path in [
            name
            for name in flat
            if re.search(rf"/knowledge_{self.source}/layer/project/kernel$", name)
        ]:
            at = path.removesuffix("project/kernel")
            inverse = jnp.linalg.pinv(jnp.asarray(flat[path], jnp.float32))
            bias = -jnp.asarray(flat[f"{at}project/bias"], jnp.float32) @ inverse
            flat[f"{at}back/kernel"] = inverse.astype(flat[f"{at}back/kernel"].dtype)
            flat[f"{at}back/bias"] = bias.astype(flat[f"{at}back/bias"].dtype)
        return unflatten(flat)

    def refusal(self, system: System) -> str | None:
        if linking_of(parts_of(system.objective), self.source) is None:
            return (
                f"there is no EntityLinking(source={self.source}) in objective; take KnowBERT, "
                "whose encoder has linkers"
            )
        return None

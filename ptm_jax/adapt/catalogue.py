"""The adaptations by name, for `--adapt` and `ptm list --adaptations`."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from ptm_jax.adapt.adapters import Houlsby, Pfeiffer
from ptm_jax.adapt.adversarial import AdversarialTraining
from ptm_jax.adapt.agreement import RDrop
from ptm_jax.adapt.auxiliary import AuxiliaryLanguage
from ptm_jax.adapt.averaging import NTASGD, SelfDistillation, SelfEnsemble
from ptm_jax.adapt.freezing import BitFit, FeatureExtraction, Frozen, Restart
from ptm_jax.adapt.information import InformationBottleneck
from ptm_jax.adapt.lora import LoRA
from ptm_jax.adapt.max_norm import MaxNorm
from ptm_jax.adapt.pals import PALs
from ptm_jax.adapt.prefix import Prefix
from ptm_jax.adapt.rates import LayerDecay, PathRates
from ptm_jax.adapt.representation import (
    Aligned,
    Biattentive,
    ConcatPooling,
    LinearGain,
    Recurrent,
    Representation,
    StackedWords,
    TagLM,
    TruncatedGradient,
)
from ptm_jax.adapt.side import KAdapter
from ptm_jax.adapt.unfreezing import ChainThaw, GradualUnfreezing, LayerByLayer, SequentialUnfreezing
from ptm_jax.core import spec
from ptm_jax.core.errors import UserError, unknown

NAMES: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "embedding": (lambda: Representation(kind="embedding"), (189,)),
    "mix": (Representation, (189,)),
    "vectors": (lambda: Representation(kind="vectors"), (33, 205)),
    "words": (StackedWords, (36, 205)),
    "bilstm": (Recurrent, (205,)),
    "taglm": (TagLM, (34,)),
    "esim": (Aligned, (205,)),
    "vib": (InformationBottleneck, (41,)),
    "bcn": (Biattentive, (33, 205)),
    "concat": (ConcatPooling, (38,)),
    "bpt3c": (TruncatedGradient, (38,)),
    "label_gain": (LinearGain, (30,)),
    "feature": (FeatureExtraction, (190, 205)),
    "frozen": (lambda: Frozen(pattern="/encoder/"), (190,)),
    "max_norm": (MaxNorm, (20,)),
    "restart": (Restart, (196, 197, 198)),
    "layer_decay": (LayerDecay, (191,)),
    "rates": (lambda: PathRates(table=()), (191,)),
    "gradual": (GradualUnfreezing, (193,)),
    "chain_thaw": (ChainThaw, (193,)),
    "layer_by_layer": (LayerByLayer, (29,)),
    "sequential": (SequentialUnfreezing, (194,)),
    "auxiliary": (AuxiliaryLanguage, (194,)),
    "adversarial": (AdversarialTraining, (210,)),
    "rdrop": (RDrop, ()),
    "pals": (PALs, (200,)),
    "houlsby": (Houlsby, (201,)),
    "pfeiffer": (Pfeiffer, (202,)),
    "k_adapter": (KAdapter, (202,)),
    "lora": (LoRA, (202,)),
    "prefix": (Prefix, (202,)),
    "bitfit": (BitFit, (202,)),
    "ntasgd": (NTASGD, (37,)),
    "self_ensemble": (SelfEnsemble, (203,)),
    "self_distillation": (SelfDistillation, (203,)),
}
"""{name: (function that returns it with the defaults, rows of the survey's catalogue; no rows for newer methods)}."""


def read(text: str) -> Any:
    """Returns the adaptation for a text such as 'houlsby' or 'lora(rank=8, alpha=16)'. Raises UserError."""
    name, words = _call(text)
    if name not in NAMES:
        raise unknown("adaptation", name, NAMES)
    return spec.override(NAMES[name][0](), words)


def read_all(texts: Sequence[str]) -> tuple[Any, ...]:
    """Returns the adaptations of several texts, in order."""
    return tuple(read(text) for text in texts)


def entries() -> list[dict[str, Any]]:
    """Returns name, class, rows, fields with their defaults and description of every adaptation."""
    found = []
    for name, (make, rows) in NAMES.items():
        value = make()
        names = [name for name in spec.field_names(value) if name not in ("towers", "tower", "total")]
        fields = {field: spec.to_json(spec.values_of(value)[field]) for field in names}
        what = " ".join((type(value).__doc__ or "").split("\n\n")[0].split())
        found.append({"name": name, "kind": type(value).__name__, "rows": list(rows), "fields": fields, "what": what})
    return found


def _call(text: str) -> tuple[str, dict[str, str]]:
    """Parses `name` or `name(field=value, ...)` into (name, {field: text})."""
    text = text.strip()
    try:
        node = ast.parse(text, mode="eval").body
    except SyntaxError:
        node = None
    if isinstance(node, ast.Name):
        return node.id, {}
    named = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args
    if not named or any(word.arg is None for word in node.keywords):
        raise UserError(f"--adapt takes a name, or name(field=value), as lora(rank=8); given {text!r}")
    return node.func.id, {word.arg: ast.get_source_segment(text, word.value) or "" for word in node.keywords}

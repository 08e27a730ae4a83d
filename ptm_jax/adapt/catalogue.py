"""The adaptations by name, for `--adapt` and `ptm list --adaptations`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ptm_jax.adapt.losses.adversarial import AdversarialTraining
from ptm_jax.adapt.losses.agreement import RDrop
from ptm_jax.adapt.losses.auxiliary import AuxiliaryLanguage
from ptm_jax.adapt.losses.information import InformationBottleneck
from ptm_jax.adapt.losses.sentence_vectors import (
    GradCache,
    LayerMatryoshka,
    Matryoshka,
    TaughtSentences,
)
from ptm_jax.adapt.modules.adapters import Houlsby, Pfeiffer
from ptm_jax.adapt.modules.bert_in_layers import BertFused
from ptm_jax.adapt.modules.linkers import Linkers
from ptm_jax.adapt.modules.lora import LoRA
from ptm_jax.adapt.modules.model_words import ModelWords, TargetWords
from ptm_jax.adapt.modules.pals import PALs
from ptm_jax.adapt.modules.prefix import Prefix
from ptm_jax.adapt.modules.representation import Recurrent, Representation
from ptm_jax.adapt.modules.sentence_trees import SentenceTrees
from ptm_jax.adapt.modules.side import KAdapter
from ptm_jax.adapt.modules.text_classifiers import (
    Aligned,
    AttentivePooling,
    Biattentive,
    ConcatPooling,
    LinearGain,
)
from ptm_jax.adapt.modules.truncated_gradient import TruncatedGradient
from ptm_jax.adapt.modules.word_features import PooledStates, StackedWords, TagLM
from ptm_jax.adapt.parameters.averaging import EMA, NTASGD, SelfDistillation, SelfEnsemble
from ptm_jax.adapt.parameters.box import Bounded
from ptm_jax.adapt.parameters.freezing import BitFit, FeatureExtraction, Frozen, Restart
from ptm_jax.adapt.parameters.max_norm import MaxNorm
from ptm_jax.adapt.parameters.output_scale import OutputScale
from ptm_jax.adapt.parameters.rates import LayerDecay, PathRates
from ptm_jax.adapt.parameters.unfreezing import (
    ChainThaw,
    DecoderFirst,
    GradualUnfreezing,
    LayerByLayer,
    SequentialUnfreezing,
)
from ptm_jax.core.spec.named import Named

NAMES: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "embedding": (lambda: Representation(kind="embedding"), (189,)),
    "mix": (Representation, (189,)),
    "vectors": (lambda: Representation(kind="vectors"), (33, 205)),
    "words": (StackedWords, (36, 205)),
    "pooled": (PooledStates, (36,)),
    "bilstm": (Recurrent, (161, 205)),
    "taglm": (TagLM, (34,)),
    "esim": (Aligned, (205,)),
    "vib": (InformationBottleneck, (41,)),
    "bcn": (Biattentive, (33, 205)),
    "bert_fused": (BertFused, (227,)),
    "decoder_first": (DecoderFirst, (226,)),
    "model_words": (ModelWords, (225,)),
    "target_words": (TargetWords, (225,)),
    "concat": (ConcatPooling, (38,)),
    "attentive": (AttentivePooling, (161, 262)),
    "bpt3c": (TruncatedGradient, (38,)),
    "label_gain": (LinearGain, (30,)),
    "feature": (FeatureExtraction, (190, 205)),
    "frozen": (lambda: Frozen(pattern="/encoder/"), (190,)),
    "linkers": (Linkers, (99,)),
    "max_norm": (MaxNorm, (20,)),
    "bounded": (Bounded, (40,)),
    "output_scale": (OutputScale, ()),
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
    "matryoshka": (Matryoshka, ()),
    "layer_matryoshka": (LayerMatryoshka, ()),
    "grad_cache": (GradCache, ()),
    "taught": (TaughtSentences, ()),
    "pals": (PALs, (200,)),
    "houlsby": (Houlsby, (201,)),
    "pfeiffer": (Pfeiffer, (202,)),
    "k_adapter": (KAdapter, (106, 202)),
    "sentence_trees": (SentenceTrees, (100,)),
    "lora": (LoRA, (202,)),
    "prefix": (Prefix, (202,)),
    "bitfit": (BitFit, (202,)),
    "ema": (EMA, ()),
    "ntasgd": (NTASGD, (37,)),
    "self_ensemble": (SelfEnsemble, (203,)),
    "self_distillation": (SelfDistillation, (203,)),
}
"""{name: (function that returns it with the defaults, rows of the survey's catalogue; no rows for
newer methods)}."""

_NAMED = Named("adaptation", "--adapt", "lora(rank=8)", NAMES)
read, read_all, entries = _NAMED.read, _NAMED.read_all, _NAMED.entries

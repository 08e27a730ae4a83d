"""The compressions by name, for `--compress`, `ptm compress` and `ptm list --compressions`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ptm_jax.compress import recipes
from ptm_jax.compress.pruning.column_removal import ColumnRemoval
from ptm_jax.compress.pruning.gates import HeadGates
from ptm_jax.compress.pruning.head_removal import HeadRemoval
from ptm_jax.compress.pruning.layer_removal import LayerRemoval
from ptm_jax.compress.pruning.magnitude import Magnitude
from ptm_jax.compress.quantisation.qbert import QBERT
from ptm_jax.compress.quantisation.quantisation import Q8BERT, Int8
from ptm_jax.compress.students.branches import FastBERT
from ptm_jax.compress.students.layer_search import LayerSearch
from ptm_jax.compress.students.theseus import Theseus
from ptm_jax.core.spec.named import Named

NAMES: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "magnitude": (Magnitude, (164,)),
    "int8": (Int8, (169,)),
    "q8bert": (Q8BERT, (169,)),
    "qbert": (QBERT, (168, 187)),
    "distil": (lambda: recipes.KD, (172,)),
    "logits": (lambda: recipes.LOGITS, (172,)),
    "distilbert": (lambda: recipes.DISTILBERT, (173,)),
    "tinybert": (lambda: recipes.TINYBERT, (174,)),
    "tinybert_prediction": (lambda: recipes.TINYBERT_PREDICTION, (174,)),
    "pkd": (lambda: recipes.PKD, (175,)),
    "pkd_last": (lambda: recipes.PKD_LAST, (175,)),
    "pd": (lambda: recipes.PD, (176,)),
    "mobilebert": (lambda: recipes.MOBILEBERT, (177,)),
    "mobilebert_progressive": (lambda: recipes.MOBILEBERT_PROGRESSIVE, (177,)),
    "minilm": (lambda: recipes.MINILM, (178,)),
    "multilingual_tagger": (lambda: recipes.MULTILINGUAL_TAGGER, (182,)),
    "mt_dnn": (lambda: recipes.MT_DNN, (183,)),
    "bilstm": (lambda: recipes.BILSTM, (184,)),
    "blendcnn": (lambda: recipes.BLENDCNN, (185,)),
    "twinbert": (lambda: recipes.TWINBERT, (181,)),
    "layer_search": (LayerSearch, (188,)),
    "theseus": (Theseus, (180,)),
    "fastbert": (FastBERT, (186,)),
    "heads": (HeadRemoval, (165,)),
    "gates": (HeadGates, (166,)),
    "layers": (LayerRemoval, (167,)),
    "columns": (ColumnRemoval, ()),
}
"""{name: (function that returns it with the defaults, rows of the survey's catalogue; no rows for
newer methods)}."""

_NAMED = Named("compression", "--compress", "magnitude(share=0.7)", NAMES)
read, read_all, entries = _NAMED.read, _NAMED.read_all, _NAMED.entries

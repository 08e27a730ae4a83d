"""The published distillations as values, with their hyper-parameters.

Rates, batches and epochs: `docs/distillation.md`.
"""

from __future__ import annotations

import dataclasses

from ptm_jax.compress.matches.attending import AttentionMaps, AttentionScores, HeadRelations
from ptm_jax.compress.matches.predictions import Logits, SoftTargets
from ptm_jax.compress.matches.states import Hidden, Patient, StateCosine
from ptm_jax.compress.students.distillation import Distillation
from ptm_jax.compress.students.from_teacher import Narrow, SomeLayers
from ptm_jax.compress.students.light_students import BiLSTM, BlendCNN
from ptm_jax.compress.students.mobile import Mobile
from ptm_jax.compress.students.progressive import Progressive
from ptm_jax.compress.students.twins import TwinBERT

KD = Distillation(
    student=SomeLayers(keep=6), matches=(SoftTargets(temperature=2.0, weight=0.5),), hard=0.5
)
"""Soft targets at T = 2 and the task's loss, half each (Hinton et al. 2015); the student is every
second layer."""

LOGITS = Distillation(student=SomeLayers(keep=6), matches=(Logits(),), hard=0.0)
"""The squared difference of logits alone (Ba and Caruana 2014; Tang et al. 2019 with alpha = 0)."""

DISTILBERT = Distillation(
    student=SomeLayers(keep=6, layout="distilbert"),
    matches=(SoftTargets(temperature=2.0, weight=5.0), StateCosine(weight=1.0)),
    hard=2.0,
)
"""5 soft targets at T = 2, 2 MLM, 1 cosine of the last states (Sanh et al. 2019, arXiv 1910.01108;
weights of the authors' command). On a task the task's loss takes the place of MLM."""

TINYBERT = Distillation(
    student=Narrow(layers=4, width=312, heads=12, hidden=1200),
    matches=(Hidden(layers="states", projection="shared"), AttentionScores(layers="uniform")),
    hard=0.0,
)
"""Embeddings and hidden states by one projection, and attention scores (Jiao et al. 2020, arXiv
1909.10351, Eqs. 7 to 9): general distillation on text, which begins with random values, and the
first stage on a task (`begin`)."""

TINYBERT_PREDICTION = dataclasses.replace(
    TINYBERT, student=None, matches=(SoftTargets(temperature=1.0),)
)
"""The second stage on a task: soft targets at T = 1 alone (Eq. 10)."""

PKD = Distillation(
    student=SomeLayers(keep=6, which="first"),
    matches=(
        SoftTargets(temperature=10.0, weight=0.5),
        Patient(layers="skip", weight=100.0, average=True),
    ),
    hard=0.5,
)
"""PKD-skip (Sun et al. 2019, arXiv 1908.09355): alpha 0.5, T 10, beta 100 within the ranges of
section 4.3 (alpha 0.2, 0.5, 0.7; T 5, 10, 20; beta 10, 100, 500, 1000). The student begins as the
lowest layers."""

PKD_LAST = dataclasses.replace(
    PKD,
    matches=(
        SoftTargets(temperature=10.0, weight=0.5),
        Patient(layers="below", weight=100.0, average=True),
    ),
)
"""PKD-last."""

PD = Distillation(student=None, matches=(SoftTargets(temperature=1.0),), hard=0.0)
"""Pre-trained distillation (Turc et al. 2019, arXiv 1908.08962): a student that was pre-trained by
MLM learns the teacher's predictions on unlabelled texts; fine-tuning on labels may follow."""

MINILM = Distillation(
    student=Narrow(layers=6, width=384, heads=12, hidden=1536),
    matches=(AttentionMaps(layers="top"), HeadRelations(layers="top")),
    hard=0.0,
)
"""Attention distributions and value relations of the last layers (Wang et al. 2020, arXiv
2002.10957). The student has the teacher's number of heads and any width; it is fine-tuned
afterwards."""

MULTILINGUAL_TAGGER = Distillation(
    student=Narrow(layers=3, width=256, heads=4, hidden=1024),
    matches=(SoftTargets(temperature=1.0),),
    hard=0.0,
)
"""A tagger of 3 layers of 256 by the tags' probabilities of a multilingual BERT, on labelled and
unlabelled sentences (Tsai et al. 2019, arXiv 1909.00100). It has the heads and the feed-forward
width of a BERT of that width."""

BILSTM = Distillation(student=BiLSTM(), matches=(Logits(),), hard=0.0)
"""A recurrent student by the squared difference of logits, alpha 0 (Tang et al. 2019), of 20 times
the texts (`tuning.augmentation.word_augmentation.rewritten`)."""

BLENDCNN = Distillation(student=BlendCNN(), matches=(Logits(),), hard=0.0)
"""A convolutional student by the logits, on few labelled and many unlabelled or generated texts
(Chia et al. 2019)."""

TWINBERT = Distillation(
    student=TwinBERT(), matches=(SoftTargets(temperature=2.0, kind="cross_entropy"),), hard=0.0
)
"""A student that reads the texts of a pair apart, by the teacher's scores alone (Lu et al. 2020,
arXiv 2002.06275); the temperature was not checked against the paper. The vectors of one side may be
kept (`inference.text.stored_texts`)."""

MT_DNN = Distillation(student=None, matches=(SoftTargets(temperature=1.0, weight=0.5),), hard=0.5)
"""MT-DNN's: the mean of the teachers' probabilities and the label, half each; `teachers` names an
ensemble (Liu et al. 2019, arXiv 1904.09482, Eq. 2)."""

MOBILEBERT_PROGRESSIVE = Progressive(
    student=Mobile(), matches=(SoftTargets(weight=0.5, heads=("mlm",)),), hard=0.5
)
"""MobileBERT's progressive knowledge transfer: 24 stages of a layer each, those below frozen, then
pre-training distillation (Sun et al. 2020, section 3.5)."""

MOBILEBERT = Distillation(
    student=Mobile(),
    matches=(
        Hidden(layers="states"),
        AttentionMaps(layers="uniform"),
        SoftTargets(weight=0.5, heads=("mlm",)),
    ),
    hard=0.5,
)
"""Feature maps and attention of all layers, and half MLM, half its distillation (Sun et al. 2020,
arXiv 2004.02984, Eqs. 1 to 3), all at once ("joint knowledge transfer"); student and teacher have
equal layers, widths of states and heads. The student is made from an IB-BERT
(`compress.students.mobile`), or given."""

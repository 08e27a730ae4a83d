"""BERT for the text of a domain: BioBERT, SciBERT, both Clinical BERTs, further pre-training, and a
detector of disfluent words.

Those that begin with another model name it in their docstring; `configs/biobert.py` and its
neighbours give it as `init`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core.recipe import Phase
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.masking.noisywords import NoisyWords
from ptm_jax.data.rows.examples import Packed
from ptm_jax.nn.heads.pretraining import Detector
from ptm_jax.objectives.text.detection import AddedWords
from ptm_jax.systems.transformers.bert_gpt import BERT_CASED, BERT_UNCASED, bert, miniature
from ptm_jax.systems.transformers.bert_variants import headed

# allenai/scibert, bert_config
SCIVOCAB_UNCASED = dataclasses.replace(BERT_UNCASED, size=31090)
SCIVOCAB_CASED = dataclasses.replace(BERT_UNCASED, size=31116)

BASE, SMALL = (12, 768, 12), (2, 128, 2)
"""Layers, width and heads."""


def further(parent: System, paper: str, row: int, **recipe) -> System:
    """Returns `parent` with another paper, row of the survey and recipe."""
    recipe = dataclasses.replace(parent.recipe, **recipe)
    return dataclasses.replace(parent, paper=paper, section="4.4", rows=(row,), recipe=recipe)


def biobert(name: str, steps: int, size: tuple[int, int, int] = BASE) -> System:
    """BioBERT (Lee et al. 2020): BERT-base cased goes on with abstracts of PubMed and articles of
    PMC.

    Row 155, from `bert_base_cased` with its vocabulary, rows of 512 tokens in batches of 192
    (section 3.2). Version 1.0 has 200,000 steps on PubMed, 270,000 on PMC, or both, version 1.1 a
    million on PubMed. These figures were not checked against the paper; the rate and the warm-up
    are BERT's.
    """
    phases = (Phase(steps=steps, batch=192, length=512),)
    parent = bert(name, *size, BERT_CASED)
    return further(parent, "Lee et al. 2020, arXiv 1901.08746", 155, phases=phases)


def scibert(name: str, vocab: Vocab, size: tuple[int, int, int] = BASE) -> System:
    """SciBERT (Beltagy et al. 2019): BERT-base on 1.14 million scientific papers.

    Row 156. With SciVocab, a WordPiece vocabulary of these papers, it begins at random; with BERT's
    own (BaseVocab) from BERT-base. Rows of 128 tokens until the loss stands still, then of 512
    (section 3); steps, batch and rate are BERT's, because the paper gives none.
    """
    parent = further(bert(name, *size, vocab), "Beltagy et al. 2019, arXiv 1903.10676", 156)
    lowercase = vocab in (BERT_UNCASED, SCIVOCAB_UNCASED)
    tokenizer = dataclasses.replace(parent.tokenizer, lowercase=lowercase)
    return dataclasses.replace(parent, tokenizer=tokenizer)


def clinicalbert(name: str, size: tuple[int, int, int] = BASE) -> System:
    """ClinicalBERT (Huang et al. 2019): BERT-base uncased goes on with the notes of MIMIC-III.

    Row 157. 100,000 steps of 128 tokens and 100,000 of 512; batches of 64 and 16 and the rate 2e-5
    were not checked. The score of a patient's notes is the measure of the task `readmission`.
    """
    phases = (
        Phase(steps=100_000, batch=64, length=128),
        Phase(steps=100_000, batch=16, length=512),
    )
    paper = "Huang et al. 2019, arXiv 1904.05342"
    return further(bert(name, *size), paper, 157, phases=phases, lr=2e-5)


def clinical_bert(name: str, steps: int, size: tuple[int, int, int] = BASE) -> System:
    """Clinical BERT (Alsentzer et al. 2019): BioBERT goes on with the notes of MIMIC-III.

    Row 158, from BioBERT 1.0 (PubMed and PMC), batches of 32 rows of 128 tokens, rate 5e-5, 10,000
    steps of warm-up (EmilyAlsentzer/clinicalBERT, finetune_lm_tf.sh). The paper has 150,000 steps;
    of the released models that of all notes has them, and that of discharge summaries has 100,000.
    """
    phases, paper = (Phase(steps=steps, batch=32, length=128),), "Alsentzer et al. 2019, "
    parent = bert(name, *size, BERT_CASED)
    return further(parent, f"{paper}arXiv 1904.03323", 158, phases=phases, lr=5e-5)


def further_bert(name: str) -> System:
    """BERT further pre-trained for a task (Sun et al. 2019, section 5.4).

    Row 195, from BERT-base uncased: 100,000 steps of 32 rows of 128 tokens, rate 5e-5, 10,000 steps
    of warm-up (xuyige/BERT4doc-Classification). The text decides what it is: the training texts of
    the task (within-task), of tasks of its domain (in-domain), or of others (cross-domain). The
    fine-tuning has the rate 2e-5, `layer_decay(decay=0.95)`, and 128 tokens of the beginning and
    382 of the end of a long text (`examples.keep=ends`).
    """
    phases = (Phase(steps=100_000, batch=32, length=128),)
    paper = "Sun et al. 2019, arXiv 1905.05583"
    return further(bert(name, *BASE), paper, 195, phases=phases, lr=5e-5)


def disfluency(name: str, size: tuple[int, int, int]) -> System:
    """A detector of disfluent words (Wang et al. 2020): which words were added to a sentence.

    Row 163. A Transformer of 6 layers of width 512 with 8 heads, rate 1e-4 and batches of 256, then
    fine-tuned at 1e-5 in batches of 32 (the task `disfl_qa_tags`); the numbers were not checked.
    Deviation: the paper draws each batch from this task or from that of pairs, of which one text is
    the original (`noisypairs_mini`).
    """
    parent = bert(name, *size)
    phases = (Phase(steps=1_000_000, batch=256, length=128),)
    system = further(parent, "Wang et al. 2020, arXiv 1908.05378", 163, phases=phases)
    return dataclasses.replace(
        system,
        towers=headed(parent, ("mlm", "pool", "nsp"), noise=Detector()),
        examples=Packed(),
        corruption=NoisyWords(vocab=BERT_UNCASED),
        objective=AddedWords(),
    )


def systems() -> Iterator[System]:
    yield biobert("biobert", 1_000_000)
    yield biobert("biobert_pubmed", 200_000)
    yield biobert("biobert_pmc", 270_000)
    yield biobert("biobert_pubmed_pmc", 470_000)
    yield scibert("scibert_scivocab_uncased", SCIVOCAB_UNCASED)
    yield scibert("scibert_scivocab_cased", SCIVOCAB_CASED)
    yield scibert("scibert_basevocab_uncased", BERT_UNCASED)
    yield scibert("scibert_basevocab_cased", BERT_CASED)
    yield clinicalbert("clinicalbert")
    yield clinical_bert("clinical_bert", 150_000)
    yield clinical_bert("clinical_bert_discharge_released", 100_000)
    yield further_bert("bert_further")
    yield disfluency("disfluency", (6, 512, 8))
    options = {"steps": 500, "lr": 2e-3, "std": 0.08, "length": 64}
    yield miniature(biobert("", 1, SMALL), "biobert_mini", **options)
    yield miniature(scibert("", SCIVOCAB_UNCASED, SMALL), "scibert_mini", **options)
    yield miniature(clinicalbert("", SMALL), "clinicalbert_mini", **options)
    yield miniature(clinical_bert("", 1, SMALL), "clinical_bert_mini", **options)
    noisy = {"steps": 300, "lr": 1e-3, "std": 0.08}
    yield miniature(disfluency("", SMALL), "disfluency_mini", **noisy)

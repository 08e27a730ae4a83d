"""Sizes and training baselines of systems for the text of a domain."""

from support.baselines import share, unigram


def pretraining(vocab):
    """BertForPreTraining of another vocabulary than the 30,522 words of BERT-base."""
    return 110_106_428 + (vocab - 30_522) * 769


# The sizes of the released vocabularies (allenai/scibert, bert_config).
SIZES = {
    **{
        name: pretraining(28_996)
        for name in (
            "biobert_pubmed",
            "biobert_pmc",
            "biobert_pubmed_pmc",
            "clinical_bert_discharge_released",
            "scibert_basevocab_cased",
        )
    },
    **dict.fromkeys(("bert_further", "scibert_basevocab_uncased"), 110_106_428),
}
TRAINS = {
    "biobert_mini": [(unigram("mlm_nll"), 0.1)],
    "scibert_mini": [(unigram("mlm_nll"), 0.1)],
    "clinicalbert_mini": [(unigram("mlm_nll"), 0.1)],
    "clinical_bert_mini": [(unigram("mlm_nll"), 0.1)],
    "disfluency_mini": [(share("noise"), 0.005)],
}

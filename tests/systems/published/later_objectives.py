"""Sizes and training baselines of GPT-BERT, masked diffusion, SimCSE and TSDAE."""

from support.baselines import classes, unigram

# Gao et al. 2021: BertModel. Nie et al. 2025: 8.02 billion, LLaMA's layers and two tables.
SIZES = {
    "simcse_bert_base": 109_482_240,
    "llada_8b": 2 * 126_464 * 4_096 + 32 * (4 * 4_096**2 + 3 * 4_096 * 12_288 + 2 * 4_096) + 4_096,
}
TRAINS = {
    "gpt_bert_mini": [(unigram("mlm_nll"), 0.3)],
    "mdlm_mini": [(unigram("diffusion_nll"), 0.1)],
    "simcse_mini": [(classes("pair_nll", 32), 2.0)],
    "tsdae_mini": [(unigram("nll"), 0.3)],
}

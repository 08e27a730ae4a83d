"""On real text the loss of every miniature falls below the baseline of its task on the same
held-out text, in a minute.

`make trainings` runs the trainings that are due. `pytest -m training tests/systems` runs all in
half an hour, with another seed by `PTM_SEED=1`; `-rP` prints the losses.
"""

import dataclasses
import json
import math
import os

import pytest

from benchmarks import languages
from ptm_jax import systems
from ptm_jax.core import slots
from ptm_jax.core.system import Experiment
from ptm_jax.data.corpora.prepare import prepare
from ptm_jax.data.corpora.store import open_corpus
from ptm_jax.data.rows.trees import Trees
from ptm_jax.training import loop
from support import manual_texts, published
from support.baselines import (
    additive,
    classes,
    frequencies,
    frequent_relations,
    frequent_words,
    noise_words,
    parts_of_triples,
    relations,
    second_pieces,
    share,
    two_languages,
    unigram,
)

WIKITEXT = "lm/wikitext-2/valid.txt"
SHAKESPEARE = "lm/tinyshakespeare/input.txt"


# System: (metric and its baseline, margin), ... Of T5's targets 7 in 26 are sentinels and eos,
# which the unigram baseline leaves out: at unigram level with sentinels known the loss is 1.53
# below it, and that much is asked. A margin is above the standard deviation of three seeds where
# these were measured (nats below the baseline):
#     bert_tiny 0.22 to 0.31; bert_mini 0.21, 0.16, 0.03; roberta_mini 0.35, 0.26, 0.08;
#     albert_mini 0.14, 0.21, 0.21; bert_wwm_mini 0.27, 0.33; electra 0.30 to 0.32 and 0.0047 to
#     0.0050; spanbert 0.09 to 0.25 and 0.08 to 0.18; structbert 0.26, 0.29, 0.32 and 0.66, 0.82,
#     0.82; infoword 0.21, 0.15, 0.24 and 0.09, 0.12, 0.09; unilmv2 0.44 to 0.50 and 0.22 to 0.25;
#     ranking 0.48, 0.53, 0.52; noisywords 0.009 to 0.012; noisypairs 0.50 to 0.64.
# One seed: skipgram 0.17, cbow 0.44, skipgram_hs 0.22, cbow_hs 0.59, biskip 0.24, paragraph_vectors
# 0.63 and 0.34, greedy_rbm 6.8, greedy_autoencoder 6.4. The plateau of masked words ends at another
# step with each seed, megatron_bert's between 0.07 and 0.36 below.
TRAINS = {
    "bert_tiny": [(unigram("mlm_nll"), 0.1)],
    "bert_mini": [(unigram("mlm_nll"), 0.12)],
    "roberta_mini": [(unigram("mlm_nll"), 0.2)],
    "albert_mini": [(unigram("mlm_nll"), 0.08)],
    "bert_wwm_mini": [(unigram("mlm_nll"), 0.1)],
    "gpt_mini": [(unigram("nll"), 0.5)],
    "bart_mini": [(unigram("nll"), 0.5)],
    "bilm_mini": [(unigram("nll"), 0.3)],
    "elmo_mini": [(unigram("nll"), 0.3)],
    "flair_mini": [(unigram("nll"), 0.4)],
    "ld_net_mini": [(unigram("nll"), 0.2)],
    "awd_lstm_mini": [(unigram("nll"), 0.3)],
    "cloze_cnn_mini": [(unigram("cloze_nll"), 0.3)],
    "cloze_mini": [(unigram("cloze_nll"), 0.3)],
    "contrast_mini": [(classes("pair_nll", 16), 0.15)],
    "ctrl_mini": [(unigram("nll"), 0.3)],
    "electra_mini": [(unigram("mlm_nll"), 0.05), (share("rtd"), 0.003)],
    "hibert_mini": [(unigram("nll"), 0.3)],
    "infoword_mini": [(unigram("mlm_nll"), 0.1), (classes("dim_nll", 16), 0.05)],
    "mass_mini": [(unigram("nll"), 0.4)],
    "megatron_bert_mini": [(unigram("mlm_nll"), 0.02)],
    "megatron_gpt2_mini": [(unigram("nll"), 0.3)],
    "modernbert_mini": [(unigram("mlm_nll"), 0.2)],
    "noisypairs_mini": [(classes("original_nll", 2), 0.3)],
    "noisywords_mini": [(share("noise"), 0.005)],
    "pegasus_mini": [(unigram("nll"), 0.8)],
    "ranking_mini": [(("ranking_loss", lambda result: 1.0), 0.3)],
    "spanbert_mini": [(unigram("mlm_nll"), 0.08), (unigram("sbo_nll"), 0.05)],
    "structbert_mini": [(unigram("mlm_nll"), 0.15), (unigram("shuffle_nll"), 0.4)],
    "t5_mini": [(unigram("nll"), 1.53)],
    "t5_1_1_mini": [(unigram("nll"), 1.53)],
    "transformer_xl_mini": [(unigram("nll"), 0.3)],
    "transformer_xl_words_mini": [(unigram("nll"), 0.3)],
    "unilmv2_mini": [(unigram("mlm_nll"), 0.2), (unigram("plm_nll"), 0.1)],
    "skipgram_mini": [(frequencies(), 0.1)],
    "cbow_mini": [(frequencies(), 0.3)],
    "fasttext_mini": [(frequencies(power=0.5), 0.08)],
    "fasttext_cbow_mini": [(frequencies(power=0.5), 0.08)],
    "skipgram_hs_mini": [(frequencies(tree=True), 0.15)],
    "cbow_hs_mini": [(frequencies(tree=True), 0.4)],
    "biskip_mini": [(two_languages(), 0.2)],
    "singla_joint_mini": [(two_languages(), 0.2), (("sentence_distance", lambda result: 1.0), 0.3)],
    "wang_joint_mini": [(parts_of_triples(), 0.1)],
    "zhong_joint_mini": [(parts_of_triples(), 0.1)],
    "dkrl_mini": [(("hinge_loss", lambda result: 1.0), 0.3)],
    "gated_descriptions_mini": [(("hinge_loss", lambda result: 2.0), 0.6)],
    "skip_thought_mini": [(unigram("nll"), 0.3)],
    "skip_thought_bi_mini": [(unigram("nll"), 0.3)],
    "context2vec_mini": [(frequencies(k=10, sample=None), 0.3)],
    "vlbl_mini": [(noise_words(5), 0.5)],
    "ivlbl_mini": [(noise_words(25), 0.1)],
    "pv_dm_mini": [(frequencies(split="train"), 0.05)],
    "pv_dm_concat_mini": [(frequencies(split="train"), 0.05)],
    "pv_dbow_mini": [(frequencies(split="train"), 0.05)],
    "pv_dbow_words_mini": [(frequencies(split="train"), 0.05)],
    "paragraph_vectors_mini": [
        (frequencies(tree=True, metric=f"{name}_pair_loss", split="train"), 0.05)
        for name in ("main", "dbow")
    ],
    "glove_mini": [(("cell_loss", additive), 0.01)],
    "universal_mini": [(unigram("nll"), 0.3)],
    "nnlm_mini": [(unigram("nll"), 0.1)],
    "textcnn_mini": [(classes("pair_nll", 16), 0.3)],
    "fasttext_supervised_mini": [(classes("pair_nll", 16), 0.3)],
    "dcnn_mini": [(classes("pair_nll", 16), 0.15)],
    "convs2s_mini": [(unigram("nll"), 0.3)],
    "rnnsearch_mini": [(unigram("nll"), 0.4)],
    "luong_mini": [(unigram("nll"), 0.2)],
    "lm_seq2seq_mini": [
        (unigram("nll"), 0.3),
        (unigram("source_nll"), 0.2),
        (unigram("target_nll"), 0.3),
    ],
    "lm_seq2seq_lm_mini": [(unigram("nll"), 0.3)],
    "charlstm_mini": [(unigram("nll"), 0.2)],
    "liu_uniform_mini": [(classes("pair_nll", 16), 0.4)],
    "liu_coupled_mini": [(classes("pair_nll", 16), 0.4)],
    "liu_shared_mini": [(classes("pair_nll", 16), 0.4)],
    "liu_lm_mini": [(unigram("nll"), 0.3)],
    "greedy_rbm_mini": [(("bag_nll", frequent_words), 3.0)],
    "greedy_autoencoder_mini": [(("bag_nll", frequent_words), 3.0)],
    "recursive_nn_mini": [(relations(), 0.5)],
    "rntn_mini": [(relations(), 0.5)],
    "tree_lstm_binary_mini": [(relations(), 0.5)],
    "kgbert_mini": [(classes("triple_nll", 2), 0.1)],
    "kgbert_relations_mini": [(("relation_nll", frequent_relations), 0.3)],
    "kepler_mini": [(("ke_nll", lambda result: 2 * math.log(2)), 0.1)],
    "libert_mini": [(share("lrc"), 0.05)],
    "dual_train_mini": [(second_pieces(), 0.1), (unigram("teacher_mlm_nll"), 0.1)],
    "ernie_thu_mini": [(("dea_nll", lambda result: result.heldout["dea_guess"]), 0.2)],
    "knowbert_mini": [(("linking_nll", lambda result: result.heldout["linking_guess"]), 0.2)],
    "kt_net_mini": [(("start_nll", lambda result: math.log(64)), 0.5)],
    "bert_mk_mini": [(("dea_nll", lambda result: result.heldout["dea_guess"]), 0.2)],
    "wklm_mini": [(share("erd"), 0.02)],
    "senna_mini": [(("ranking_loss", lambda result: 1.0), 0.5)],
}
TRAINS |= published.collected("TRAINS")
for (
    _name
) in systems.names():  # of a miniature that is not named here, the metric that its objective names
    if _name.endswith("_mini") and (
        metric := slots.objective(systems.get(_name).objective).baseline
    ):
        TRAINS.setdefault(_name, [(unigram(metric), 0.05)])
BITEXT, UMLS = "parallel:mt/multi30k/train.de-en", "graph:kg/umls"
TEXT = {"gpt_mini": SHAKESPEARE, "biskip_mini": BITEXT, "singla_joint_mini": BITEXT}
TEXT |= dict.fromkeys(
    ("wang_joint_mini", "zhong_joint_mini", "dkrl_mini", "gated_descriptions_mini"), UMLS
)
TEXT |= published.collected("TEXT")
TREES = "ud/en_partut/en_partut-ud-train_first1200.conllu"
TEXT |= {
    name: f"{'trees' if systems.get(name).examples.classes is None else 'binary'}:{TREES}"
    for name in TRAINS
    if isinstance(systems.get(name).examples, Trees)
}


def heldout(text):
    """The share of the documents that is not trained on, more where they are few."""
    shares = {"debian:": languages.HELDOUT, "lm/clue": 0.1}
    return next((shares[one] for one in shares if text.startswith(one)), Experiment.heldout)


@pytest.fixture(scope="session")
def corpus(data, tmp_path_factory):
    """corpus(system, text): the prepared text, which systems of one tokenizer share."""
    folder, there = tmp_path_factory.mktemp("corpora"), {}

    def of(system, text):
        number = there.setdefault((system.tokenizer, text), len(there))
        defaults = Experiment(system=system, data=())
        out = folder / str(number)
        start, mark, name = text.rpartition("=" if "=" in text else ":")
        fetched = start == "debian"
        prepare(
            manual_texts.sources_of(text) if fetched else [f"{start}{mark}{data / name}"],
            out,
            tokenizer=system.tokenizer,
            heldout=heldout(text),
            seed=defaults.seed,
        )
        return (str(out),)

    return of


def test_every_miniature_is_trained_here():
    assert set(TRAINS) == {n for n in systems.names() if n.endswith("_mini")} | {"bert_tiny"}


@pytest.mark.full
@pytest.mark.training
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.status(name, "trains")) for name in TRAINS]
)
def test_heldout_loss_is_below_the_baseline_of_its_task(name, corpus, tmp_path):
    system = systems.get(name)
    text, seed = TEXT.get(name, WIKITEXT), int(os.environ.get("PTM_SEED", "0"))
    rows = corpus(system, text)
    config = Experiment(system=system, data=rows, heldout=heldout(text), save_every=0, seed=seed)
    result = loop.train(config, tmp_path / "run", quiet=True)
    rounded = {metric: round(value, 3) for metric, value in result.heldout.items()}
    bases = {metric: round(baseline(result), 3) for (metric, baseline), _ in TRAINS[name]}
    print(name, f"bases {bases} {rounded}")  # pytest -rP shows it
    assert result.done
    for (metric, baseline), margin in TRAINS[name]:
        assert 0 < result.heldout[metric] < baseline(result) - margin, (
            metric,
            result.heldout,
            result.baseline,
        )
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["split"] == "heldout" and last["values"] == result.heldout


@pytest.mark.full
@pytest.mark.training
def test_bert_with_both_objectives_trains_through_its_two_lengths(corpus, tmp_path):
    """The published composition (pairs, MLM + NSP, short then long rows) in small."""
    parent, small = systems.get("bert_base"), systems.get("bert_tiny")
    phases = tuple(
        dataclasses.replace(phase, steps=steps, batch=16, length=length)
        for phase, steps, length in zip(parent.recipe.phases, (90, 10), (64, 128), strict=True)
    )
    system = dataclasses.replace(
        small,
        name="bert_pairs",
        examples=parent.examples,
        objective=parent.objective,
        recipe=dataclasses.replace(small.recipe, phases=phases),
    )
    rows = corpus(system, WIKITEXT)
    size = open_corpus(rows[0]).vocab.size
    result = loop.train(
        Experiment(system=system, data=rows, save_every=0), tmp_path / "run", quiet=True
    )
    log = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    first, *_, last = (line["values"]["loss"] for line in log if line["split"] == "train")
    assert result.done and last < first - 1
    assert result.heldout["mlm_nll"] < math.log(size) - 1, (
        "a nat below a guess among the words that there are"
    )

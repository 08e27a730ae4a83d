"""RoBERTa's and BERT's kin without torch: what is refused, and every class's record said as a config again."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import Config
from ptm_jax.convert.family import families
from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Vocab
from ptm_jax.nn.embeddings.parts import TaskTypes
from ptm_jax.nn.embeddings.summed import Embeddings
from ptm_jax.nn.layers import Context
from ptm_jax.objectives.downstream import Classification

BERT = dict(vocab_size=61, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12)
BERT |= dict(max_position_embeddings=20, hidden_act="relu", classifier_dropout=0.3, num_labels=5, tie_word_embeddings=False)
SIZES = dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "ernie", "megatron-bert", "nezha"), BERT)
SIZES["distilbert"] = dict(
    vocab_size=61, dim=8, n_layers=2, n_heads=2, hidden_dim=12, max_position_embeddings=20, dropout=0.3
)
ODD = {
    "roberta": {"pad_token_id": 4, "bos_token_id": 5, "eos_token_id": [6, 7]},
    "xlm-roberta": {"is_decoder": True, "layer_norm_eps": 1e-5},
    "ernie": {"use_task_id": True, "task_type_vocab_size": 4},
    "nezha": {"max_relative_position": 5},
    "distilbert": {"qa_dropout": 0.4, "seq_classif_dropout": 0.2, "activation": "tanh"},
}


def record(family, **fields):
    return checkpoint.record_of(Config({"model_type": family, **SIZES[family], **fields}))[0]


@pytest.mark.parametrize("family", SIZES)
def test_every_record_says_its_config(family):
    assert family in families.names()
    for architecture in families.get(family).heads:
        system = record(family, architectures=[architecture], **ODD.get(family, {}))
        fields = families.get(family).config(system)
        again = checkpoint.record_of(Config({"model_type": family, **fields}), architecture)[0]
        assert again.towers == system.towers, architecture


def test_dropout_of_task_heads():
    heads = lambda family, name: record(family, architectures=[name]).towers["main"].heads
    classify = heads("roberta", "RobertaForSequenceClassification")["classify"]
    assert (classify.dropout, classify.summary.dropout) == (0.3, 0.3)
    assert heads("roberta", "RobertaForMultipleChoice")["choose"].dropout == 0.1
    assert heads("megatron-bert", "MegatronBertForTokenClassification")["tag"].dropout == 0.1
    assert heads("distilbert", "DistilBertForTokenClassification")["tag"].dropout == 0.3
    assert heads("distilbert", "DistilBertForQuestionAnswering")["span"].dropout == 0.1
    block = record("distilbert").towers["main"].encoder.stack.block
    assert (block.dropout, block.after_ffn.rate) == (0.0, 0.3)  # nothing is dropped from what attention gives


def test_other_names_of_distilbert():
    fields = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    rest = {"model_type": "distilbert", "vocab_size": 61, "hidden_dim": 12, "max_position_embeddings": 20}
    assert checkpoint.record_of(Config(fields | rest))[0].towers["main"].encoder.stack.layers == 1


@pytest.mark.parametrize(
    ("family", "fields", "said"),
    [
        ("roberta", {"position_embedding_type": "relative_key"}, "not supported"),
        ("camembert", {"add_cross_attention": True}, "not supported"),
        ("xlm-roberta", {"max_position_embeddings": 2}, "no row after the 2"),
        ("ernie", {"hidden_act": "softsign"}, "supported are"),
        ("distilbert", {"activation": "softsign"}, "supported are"),
        ("nezha", {"max_relative_position": 0}, "at least 1"),
        ("megatron-bert", {"hidden_size": None}, "hidden_size"),
    ],
)
def test_what_is_not_supported_is_one_line(family, fields, said):
    with pytest.raises(UserError, match=said) as caught:
        record(family, **fields)
    assert "\n" not in str(caught.value) and "config.json" in str(caught.value)


def test_the_problem_type_says_the_loss():
    kind = lambda **fields: record("roberta", architectures=["RobertaForSequenceClassification"], **fields).objective.kind
    assert (kind(), kind(num_labels=1), kind(problem_type="regression")) == ("classes", "number", "number")
    assert kind(problem_type="multi_label_classification") == "labels"


def test_several_numbers_of_a_text():
    scores = np.array([[1.0, 2.0], [0.0, -1.0], [3.0, 0.5]], np.float32)
    label = np.array([[0.0, 2.5], [1.0, 1.0], [3.0, 0.0]], np.float32)
    tower = type("Fixed", (), {"read": lambda self, *_: jnp.asarray(scores)})()
    batch = {"label": label, "label_weights": np.ones(3, np.float32)}
    found = Classification(kind="number").of(tower, None, batch).value()
    np.testing.assert_allclose(found, ((scores - label) ** 2).mean(), rtol=1e-6)


def test_vectors_of_tasks_are_added_before_the_norm():
    embed = Embeddings(vocab=Vocab(size=7), width=4, parts=(TaskTypes(3),))
    ids, tasks = np.array([[1, 2, 3]]), np.array([[2, 0, 1]])
    context = Context(visibility=None, rows=jnp.zeros(1, jnp.int32))
    run = functools.partial(embed.apply, context=context)
    params = embed.init(jax.random.key(0), {"input_ids": ids}, context)
    token, task = (np.asarray(params["params"][name]) for name in ("token", "task"))
    np.testing.assert_allclose(run(params, {"input_ids": ids, "task_type_ids": tasks}), token[ids] + task[tasks], rtol=1e-6)
    np.testing.assert_allclose(run(params, {"input_ids": ids}), token[ids] + task[0], rtol=1e-6)

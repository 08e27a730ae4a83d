"""Classifiers of `transformers` and ours, on the same states: RoBERTa, ELECTRA, XLNet, ALBERT, BART, multiple choice."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.nn.heads.tasks import ChoiceHead, Detector, SequenceHead, SpanHead, Summary, TokenHead, last_of, last_token

try:
    import torch
    import transformers
except ModuleNotFoundError:
    torch = transformers = None

pytestmark = [
    pytest.mark.full,
    pytest.mark.rotate,
    pytest.mark.skipif(torch is None, reason="torch and transformers are not installed; make test-full installs them"),
]

SIZES = dict(vocab_size=30, hidden_size=12, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)


def randomised(model):
    torch.manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p) * 0.3)
    return model.eval()


def linear(layer):
    found = {"kernel": layer.weight.detach().numpy().T}
    return found if layer.bias is None else {**found, "bias": layer.bias.detach().numpy()}


def ids_and_mask():
    ids = torch.tensor([[5, 6, 7, 2, 0, 0], [8, 9, 3, 4, 11, 2]])
    return ids, torch.tensor([[1, 1, 1, 1, 0, 0], [1] * 6])


def states(model, **inputs):
    out = model(**inputs, output_hidden_states=True)
    hidden = out.decoder_hidden_states if "decoder_hidden_states" in out else out.hidden_states
    return out, jnp.asarray(hidden[-1].detach().numpy())


def check(head, params, *inputs, expected):
    found = head.apply({"params": params}, *inputs)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs.detach().numpy(), atol=1e-5)


def test_first_token_classifiers():
    t, (ids, mask) = transformers, ids_and_mask()
    for model, dense, classes, activation in (
        (t.RobertaForSequenceClassification(t.RobertaConfig(**SIZES)), "dense", "out_proj", "tanh"),
        (t.ElectraForSequenceClassification(t.ElectraConfig(embedding_size=12, **SIZES)), "dense", "out_proj", "gelu"),
    ):
        model = randomised(model)
        out, hidden = states(model, input_ids=ids, attention_mask=mask)
        params = {"summary": {"dense": linear(getattr(model.classifier, dense))}}
        params["classes"] = linear(getattr(model.classifier, classes))
        check(SequenceHead(2, Summary(activation)), params, hidden, expected=out.logits)


def test_poolers_that_the_encoder_holds():
    t, (ids, mask) = transformers, ids_and_mask()
    bert = randomised(t.BertForNextSentencePrediction(t.BertConfig(**SIZES)))
    out, hidden = states(bert, input_ids=ids, attention_mask=mask)
    params = {"summary": {"dense": linear(bert.bert.pooler.dense)}, "classes": linear(bert.cls.seq_relationship)}
    check(SequenceHead(2), params, hidden, expected=out.logits)
    albert = randomised(t.AlbertForSequenceClassification(t.AlbertConfig(embedding_size=6, **SIZES)))
    out, hidden = states(albert, input_ids=ids, attention_mask=mask)
    check(
        SequenceHead(2),
        {"summary": {"dense": linear(albert.albert.pooler)}, "classes": linear(albert.classifier)},
        hidden,
        expected=out.logits,
    )
    choice = randomised(t.BertForMultipleChoice(t.BertConfig(**SIZES)))
    encoded = choice.bert(ids, attention_mask=mask).last_hidden_state
    params = {"summary": {"dense": linear(choice.bert.pooler.dense)}, "score": linear(choice.classifier)}
    expected = choice(ids[None], attention_mask=mask[None]).logits
    check(ChoiceHead(2), params, jnp.asarray(encoded.detach().numpy()), expected=expected)


def test_summaries_of_another_token():
    t, (ids, mask) = transformers, ids_and_mask()
    config = t.XLNetConfig(vocab_size=30, d_model=12, n_layer=1, n_head=2, d_inner=8)
    xlnet = randomised(t.XLNetForSequenceClassification(config))
    out, hidden = states(xlnet, input_ids=ids.flip(1), attention_mask=mask.flip(1))
    params = {"summary": {"dense": linear(xlnet.sequence_summary.summary)}, "classes": linear(xlnet.logits_proj)}
    where = last_token(jnp.asarray(mask.flip(1).numpy()))
    check(SequenceHead(2), params, hidden, where, expected=out.logits)
    config = t.BartConfig(
        vocab_size=30, d_model=12, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=8, decoder_ffn_dim=8, max_position_embeddings=20, pad_token_id=0, eos_token_id=2, num_labels=3,
    )  # fmt: skip
    bart = randomised(t.BartForSequenceClassification(config))
    out, hidden = states(bart, input_ids=ids, attention_mask=mask)
    head = bart.classification_head
    params = {"summary": {"dense": linear(head.dense)}, "classes": linear(head.out_proj)}
    check(SequenceHead(3), params, hidden, last_of(jnp.asarray(ids.numpy()), 2), expected=out.logits)


def test_tokens_spans_and_replaced_tokens():
    t, (ids, mask) = transformers, ids_and_mask()
    model = randomised(t.BertForTokenClassification(t.BertConfig(**SIZES)))
    out, hidden = states(model, input_ids=ids, attention_mask=mask)
    check(TokenHead(2), {"classes": linear(model.classifier)}, hidden, expected=out.logits)
    model = randomised(t.BertForQuestionAnswering(t.BertConfig(**SIZES)))
    out, hidden = states(model, input_ids=ids, attention_mask=mask)
    check(SpanHead(), {"ends": linear(model.qa_outputs)}, hidden, expected=(out.start_logits, out.end_logits))
    model = randomised(t.ElectraForPreTraining(t.ElectraConfig(embedding_size=12, **SIZES)))
    out, hidden = states(model, input_ids=ids, attention_mask=mask)
    head = model.discriminator_predictions
    params = {"dense": linear(head.dense), "score": linear(head.dense_prediction)}
    check(Detector(), params, hidden, expected=out.logits)

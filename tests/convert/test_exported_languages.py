"""`ptm export` and `ptm import` of the systems of many languages: Transformers loads the folder and
gives the same scores, and what is imported again is the same model."""

import dataclasses

import numpy as np
import peers
import pytest

import ptm_jax
from ptm_jax import systems
from ptm_jax.cli.main import main
from ptm_jax.core import spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Vocab
from ptm_jax.data.tokenizers.vocabularies import make
from ptm_jax.inference.pretrained import Pretrained
from support import tiny_models

pytestmark = peers.LIVE
SYSTEMS = {
    "bert_multilingual_mini": "BertForPreTraining",
    "xlm_mini": "XLMWithLMHeadModel",
    "xlm_clm_mini": "XLMWithLMHeadModel",
    "xlm_r_mini": "XLMRobertaForMaskedLM",
    "mbart_mini": "MBartForConditionalGeneration",
    "xmod_mini": "XmodForMaskedLM",
}


def model_of(name):
    """A system with a tokenizer of its kind and drawn parameters."""
    system = systems.get(name)
    plan = dataclasses.replace(system.tokenizer, vocab=90)
    try:
        tokenizer = make(plan, tiny_models.TEXTS)
    except UserError as error:  # the text supports fewer pieces
        size = int(str(error).split("works is ")[1].split(":")[0])
        tokenizer = make(dataclasses.replace(plan, vocab=size), tiny_models.TEXTS)
    system = spec.respell(system, Vocab, tokenizer.vocab)
    return Pretrained(system, tiny_models.drawn(system, scale=0.1), tokenizer)


@pytest.mark.status("ptm export", "matches")
@pytest.mark.status("ptm import", "matches")
@pytest.mark.parametrize("name", SYSTEMS)
def test_an_exported_system_of_many_languages_gives_the_same_scores(name, tmp_path):
    model, out, back = model_of(name), tmp_path / "out", tmp_path / "back"
    run = tiny_models.save_run(tmp_path / "run", model)
    assert main(["export", str(run), "--out", str(out)]) == 0
    theirs = getattr(peers.transformers, SYSTEMS[name]).from_pretrained(out).eval()
    assert main(["import", str(out), "--out", str(back)]) == 0
    again, draw = ptm_jax.load(back), np.random.default_rng(len(name))
    ids = draw.integers(6, model.vocab.size, (3, 9)).astype(np.int32)
    mask = (np.arange(9) < np.array([[9], [1], [6]])).astype(np.int32)
    ids = np.where(mask, ids, model.vocab.pad or 0)
    words = {"input_ids": ids, "attention_mask": mask}
    ours, real = {}, mask > 0
    if name == "mbart_mini":
        answer = draw.integers(6, model.vocab.size, (3, 5)).astype(np.int32)
        words["decoder_input_ids"] = ours["decoder_input_ids"] = answer
        real = np.ones((3, 5), bool)
    if name.startswith("xlm") and model.module.encoder.embed.languages:
        words["langs"] = ours["language_ids"] = draw.integers(0, 2, ids.shape)
    if name == "xmod_mini":
        words["lang_ids"] = np.array([1, 2, 0])
        ours["language_ids"] = np.repeat(words["lang_ids"][:, None], 9, 1)
    with peers.torch.no_grad():
        scores = theirs(**{key: peers.torch.tensor(value) for key, value in words.items()})
    scores = scores["prediction_logits" if name.startswith("bert") else "logits"].numpy()
    for one in (model, again):
        peers.close(one(ids, mask, **ours).logits[real], scores[real], 1e-4, name)
    text = "the king sees the house of the city."
    if name in ("xlm_mini", "xlm_r_mini"):
        words = peers.transformers.AutoTokenizer.from_pretrained(out)(text)["input_ids"]
        edges = [model.vocab.eos if name == "xlm_mini" else model.vocab.bos, model.vocab.eos]
        assert [words[0], words[-1]] == edges
        assert words[1:-1] == model.tokenizer.encode(text).tolist()
    assert np.array_equal(model.tokens(text).ids, again.tokens(text).ids)

"""Texts that models write: decoders go on with prompts, encoders with decoders answer sources."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ptm_jax
from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import Config
from ptm_jax.core import spec, towers
from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Vocab
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.data.tokenizers.vocabularies import make
from ptm_jax.encoders.transformer.seq2seq import shifted
from ptm_jax.inference import inputs
from ptm_jax.inference.text import generating
from ptm_jax.systems.sequence_to_sequence import bart as seq2seq
from ptm_jax.systems.sequence_to_sequence import t5
from support.tiny_models import LIMIT, TEXTS, bare

SOURCES = ["the king sees the house", "the hat", "the queen loves the house of the city."]


def test_generate_goes_on_with_the_prompt(gpt2):
    prompts = ["the king", "the queen sees the hat of", ""]
    answers = gpt2.generate(prompts, max_new_tokens=8)
    assert all(answer.startswith(prompt) for answer, prompt in zip(answers, prompts, strict=True))
    assert gpt2.generate(prompts[::-1], max_new_tokens=8) == answers[::-1]
    row = list(gpt2.tokenizer.encode_batch(["the king"])[0])
    for _ in range(8):
        row.append(int(gpt2(np.array([row])).logits[0, -1].argmax()))
        if row[-1] == gpt2.vocab.eos:
            break
    assert gpt2.tokenizer.decode(row) == answers[0]


@pytest.mark.full
def test_generate_samples_by_seed_and_number(gpt2):
    def sample(seed, count=3, **more):
        return gpt2.generate(["the king"] * count, 8, seed, temperature=1.5, **more)

    first = sample(0)
    assert first == sample(0) != sample(1)
    assert (
        sample(0, 6, batch_size=3)[:3] == sample(0, 7, batch_size=4)[:3] == first
    )  # buckets of four rows
    assert [len(several) for several in sample(0, answers=2)] == [2, 2, 2]


def test_what_cannot_be_generated(bert, gpt2):
    with pytest.raises(UserError, match="bert_mini does not .*; .*gpt2_xl.* do; load a run"):
        bert.generate(["the"])
    for options, message in [
        ({"beam": 3}, "unknown option of generate 'beam'.*mean 'beams'"),
        ({"temperature": 0.0}, "temperature is 0.0"),
        ({"beams": 2, "top_k": 3}, "sampling"),
        ({"max_new_tokens": LIMIT}, f"the {LIMIT} of this model's position table"),
    ]:
        with pytest.raises(UserError, match=message):
            gpt2.generate(["the"], **options)


@pytest.mark.full
def test_the_record_of_a_pair_has_both_halves(bart):
    ids, mask = inputs.rectangle(bart.ids_of(SOURCES), bart.vocab.pad)
    target = np.random.default_rng(0).integers(5, 280, (3, 5))
    out = bart(ids, mask, decoder_input_ids=target, layers=True, attention=True)
    length, vocab = ids.shape[1], bart.vocab.size
    shapes = {
        name: getattr(value, "shape", None) for name, value in vars(out).items() if name != "scores"
    }
    assert shapes == {
        "hidden": (3, 5, 16), "layers": (3, 3, 5, 16), "attention": (2, 3, 2, 5, 5), "pooled": None,
        "vectors": None, "logits": (3, 5, vocab),
        "source": (3, length, 16), "source_layers": (3, 3, length, 16),
        "source_attention": (2, 3, 2, length, length),
        "cross_attention": (2, 3, 2, 5, length),
    }  # fmt: skip
    np.testing.assert_array_equal(out.source_layers[-1], out.source)
    np.testing.assert_allclose(out.cross_attention.sum(-1), 1.0, atol=1e-5)
    assert np.abs(out.cross_attention * (mask == 0)[None, :, None, None, :]).max() == 0
    plain = bart(ids, mask, logits=False)
    assert (
        plain.source_layers is plain.source_attention is plain.cross_attention is None
        and plain.source is not None
    )


@pytest.mark.parametrize(
    "target, message",
    [
        (np.zeros((2, 4), int), "decoder_input_ids has 2 rows; input_ids has 1"),
        (np.full((1, 4), 9999), "decoder_input_ids holds 9999"),
        (np.zeros((1, LIMIT + 1), int), f"the decoder's sequence has {LIMIT + 1} tokens"),
    ],
)
def test_bad_decoder_inputs_are_one_line(bart, target, message):
    with pytest.raises(UserError, match=message):
        bart(np.full((1, 4), 5), decoder_input_ids=target)


@pytest.mark.full
def test_an_answer_is_the_likeliest_tokens_after_the_start(bart):
    answers = bart.generate(SOURCES, max_new_tokens=6)
    ids, mask = inputs.rectangle(bart.ids_of(SOURCES), bart.vocab.pad)
    tokens = np.full((3, 1), bart.vocab.eos)  # denoising begins with eos
    for _ in range(6):
        tokens = np.append(
            tokens, bart(ids, mask, decoder_input_ids=tokens).logits[:, -1:].argmax(-1), 1
        )
    for answer, row in zip(answers, tokens[:, 1:].tolist(), strict=True):
        row = row[: row.index(bart.vocab.eos)] if bart.vocab.eos in row else row
        assert answer == bart.tokenizer.decode(row)
    assert len(set(answers)) == 3 and bart.generates and not bart.causal
    assert bart.generate(SOURCES[::-1], max_new_tokens=6, batch_size=4) == answers[::-1]
    assert bart.generate(SOURCES, max_new_tokens=6, start="</s>") == answers
    assert bart.generate([], max_new_tokens=6) == []


@pytest.mark.parametrize(
    "options, message",
    [
        ({"max_new_tokens": LIMIT + 1}, f"more than the {LIMIT} of the decoder's"),
        ({"start": "king!"}, "'king!', which is no piece"),
        ({"start": 9999}, "start is 9999, outside the vocabulary"),
        ({"beam": 2}, "mean 'beams'"),
    ],
)
def test_what_an_answer_cannot_be(bart, options, message):
    with pytest.raises(UserError, match=message):
        bart.generate(["the"], **{"max_new_tokens": 6, **options})
    with pytest.raises(UserError, match="text 2 has .* tokens"):
        bart.generate(["hat", "hat " * 100], max_new_tokens=6)


def test_where_the_start_comes_from(bart):
    def begin(model, *given):
        return generating.start_of(model, *given)

    published = dataclasses.replace(bart, published=Config({"decoder_start_token_id": 7}))
    assert (begin(bart), begin(published)) == (bart.vocab.eos, 7)
    assert (begin(published, 5), begin(published, "<s>")) == (5, bart.vocab.bos)
    small = {"vocab_size": 30, "d_model": 8, "encoder_layers": 1, "decoder_layers": 1}
    small |= {
        f"{side}_{name}": 2
        for side in ("encoder", "decoder")
        for name in ("ffn_dim", "attention_heads")
    }
    mbart, _ = checkpoint.record_of(
        Config({"model_type": "mbart", "max_position_embeddings": 9, **small})
    )
    assert begin(bare(mbart)) == "last"
    assert begin(bare(mbart, decoder_start_token_id=4)) == 4
    assert begin(bare(t5.t5("t5_tiny", "1.0", 1, 8, 2, head_width=4, hidden=8))) == 0


@pytest.mark.full
def test_what_is_published_beside_the_config(tmp_path):
    fields = {
        "model_type": "t5",
        "vocab_size": 30,
        "d_model": 8,
        "num_layers": 1,
        "num_heads": 2,
        "d_kv": 4,
        "d_ff": 8,
    }
    system, _ = checkpoint.record_of(Config(fields), "T5ForConditionalGeneration")
    shapes = towers.abstract(system.towers, checkpoint.example(system))
    checkpoint.write(
        tmp_path, system, jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), shapes)
    )
    assert generating.start_of(ptm_jax.load(tmp_path)) == 0
    file = tmp_path / "generation_config.json"
    file.write_text('{"decoder_start_token_id": 3, "pad_token_id": null}')
    model = ptm_jax.load(tmp_path)
    assert generating.start_of(model) == 3 and model.published["pad_token_id"] == 0
    with pytest.raises(UserError, match="has no tokenizer"):
        model.generate(["a"])
    file.write_text("[")
    with pytest.raises(UserError, match="generation_config.json is not a config"):
        ptm_jax.load(tmp_path)


def test_sentinels_stay_in_an_answer():
    tokenizer = make(TokenizerSpec(kind="unigram", specials="t5", vocab=26, sentinels=3), TEXTS)
    model = bare(
        spec.respell(
            t5.t5("t5_tiny", "1.0", 1, 8, 2, head_width=4, hidden=8), Vocab, tokenizer.vocab
        ),
        tokenizer,
    )
    ids = tokenizer.encode("<extra_id_0> the king <extra_id_1> hat", specials=True)
    pad, eos = tokenizer.vocab.pad, tokenizer.vocab.eos
    assert (
        generating._text(model, "", ids, [pad, *ids, eos])
        == "<extra_id_0> the king <extra_id_1> hat"
    )
    (source,) = generating._sources(model, ["a <extra_id_0> hat"], 3)
    assert source[-1] == eos and tokenizer.id("<extra_id_0>") in source
    with pytest.raises(
        UserError, match="t5_tiny does not fill masks; its decoder .*: use generate"
    ):
        model.fill_mask(["a [MASK]"])


def test_pairs_that_do_not_generate(bart):
    headless = dataclasses.replace(bart.module, heads={})
    with pytest.raises(UserError, match="no vocabulary head; load .*ForConditionalGeneration"):
        bare(dataclasses.replace(bart.system, towers={"main": headless}), bart.tokenizer).generate(
            ["a"]
        )
    with pytest.raises(
        UserError,
        match="mass_tiny does not generate .* token by token; gpt.* bart_base and t5_base, do",
    ):
        bare(seq2seq.mass("mass_tiny", 1, 8, 2)).generate(["a"])


@pytest.mark.full
def test_bart_fills_a_mask_with_the_prediction_of_its_decoder_there(bart):
    ((fillings,),) = bart.fill_mask(["the <mask> sees the house"], top=3)
    left, right = bart.tokenizer.encode_batch(["the", " sees the house"])
    ids = np.array([[bart.vocab.cls, *left, bart.vocab.mask, *right, bart.vocab.sep]])
    read = np.asarray(shifted(jnp.asarray(ids), jnp.ones_like(ids), bart.vocab.eos))
    scores = np.array(jax.nn.softmax(bart(ids, decoder_input_ids=read).logits[0, 1 + len(left)]))
    scores[list(bart.vocab.specials)] = 0
    np.testing.assert_allclose(
        [f.probability for f in fillings], np.sort(scores)[:-4:-1], rtol=1e-4
    )

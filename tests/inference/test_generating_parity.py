"""Encoders with decoders from a directory, texts in and text out, against `transformers` with its
own tokenizer."""

import pytest

import ptm_jax
from ptm_jax.data.tokenizers.published import write_published
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.data.tokenizers.vocabularies import make
from support.tiny_models import TEXTS

pytestmark = pytest.mark.full

LONGEST = 10
SOURCES = ["the king sees the house", "the hat", "the queen loves the hat of the city."]
SIDES = {
    "encoder_layers": 1,
    "encoder_ffn_dim": 9,
    "encoder_attention_heads": 2,
    "decoder_layers": 2,
    "decoder_ffn_dim": 11,
}
FAMILIES = {
    "T5": dict(
        num_heads=2,
        d_kv=5,
        d_ff=9,
        num_layers=2,
        relative_attention_num_buckets=8,
        decoder_start_token_id=0,
    ),
    "Bart": dict(
        **SIDES, decoder_attention_heads=3, max_position_embeddings=48, forced_bos_token_id=0
    ),
}
KINDS = {"T5": ("unigram", "t5", 26, 3), "Bart": ("bytebpe", "roberta", 290, 0)}


@pytest.fixture(scope="module", params=FAMILIES)
def both(request, tmp_path_factory):
    """(our model, the oracle, its tokenizer), from one directory."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    name, folder = request.param, tmp_path_factory.mktemp("pair")
    kind, specials, size, sentinels = KINDS[name]
    tokenizer = make(
        TokenizerSpec(kind=kind, specials=specials, vocab=size, sentinels=sentinels), TEXTS
    )
    rows = tokenizer.vocab.size + 3  # as published tables have rows that no piece uses
    config = getattr(transformers, f"{name}Config")(
        vocab_size=rows, d_model=12, attn_implementation="eager", **FAMILIES[name]
    )
    torch.manual_seed(3)
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config).eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            p.copy_(torch.randn_like(p) * 0.5 + float(p.ndim == 1 and key.endswith("weight")))
    model.save_pretrained(folder)
    write_published(tokenizer, folder)
    return ptm_jax.load(folder), model, transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.full
@pytest.mark.parametrize(
    "options",
    [{}, {"num_beams": 3, "num_return_sequences": 2, "length_penalty": 0.0}],
    ids=["greedy", "beam"],
)
def test_answers(both, options):
    ours, model, tokenizer = both
    expected = []
    for source in SOURCES:
        given = tokenizer(source, return_tensors="pt", return_token_type_ids=False)
        found = model.generate(**given, max_new_tokens=LONGEST, do_sample=False, **options).tolist()
        expected.append(
            [
                tokenizer.decode([i for i in row if i < len(tokenizer)], skip_special_tokens=True)
                for row in found
            ]
        )
    mine = {"beams": 3, "answers": 2, "length_penalty": 0.0} if options else {}
    answers = ours.generate(SOURCES, max_new_tokens=LONGEST, **mine)
    answers = [several if options else [several] for several in answers]

    def plain(text):
        return "".join(word for word in text.split() if not word.startswith("<extra_id_"))

    assert [[plain(a) for a in several] for several in answers] == [
        [plain(a) for a in several] for several in expected
    ]
    assert len({tuple(several) for several in answers}) == 3  # the source matters

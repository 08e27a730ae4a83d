"""Folders of sentence-transformers around tiny BERTs and XLM-RoBERTas, and the comparison of their
vectors with the library's."""

from __future__ import annotations

import numpy as np
import peers

import ptm_jax

TEXTS = ["a cat sat on the mat", "dogs", "the cats of the house sat and sat and sat"]
WORDS = ["a", "cat", "sat", "on", "the", "mat", "dog", "##s", "of", "house", "and", ":", "query"]
SIZES = dict(
    hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20,
    max_position_embeddings=40,
)  # fmt: skip
MODES = "cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"
PROMPTS = {"query": "query: ", "passage": "passage: "}


def bert(folder, **fields):
    """A tiny BERT with WordPiece."""
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(vocab))
    tokenizer = peers.transformers.BertTokenizer(vocab=str(folder / "vocab.txt"))
    config = peers.transformers.BertConfig(vocab_size=len(vocab), **{**SIZES, **fields})
    return peers.transformers.BertModel(config), tokenizer


def roberta(folder, **fields):
    """A tiny XLM-RoBERTa with a unigram model."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    pieces = ["<s>", "<pad>", "</s>", "<unk>", *(f"\u2581{word}" for word in WORDS), *"catdogs"]
    pieces = list(dict.fromkeys([*pieces, "<mask>"]))
    backend = Tokenizer(models.Unigram([(p, -float(i)) for i, p in enumerate(pieces)], unk_id=3))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    names = dict(bos="<s>", pad="<pad>", eos="</s>", unk="<unk>", cls="<s>", sep="</s>")
    tokenizer = peers.transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        mask_token="<mask>",
        **{f"{name}_token": piece for name, piece in names.items()},
    )
    specials = dict(pad_token_id=1, bos_token_id=0, eos_token_id=2)
    config = peers.transformers.XLMRobertaConfig(
        vocab_size=len(pieces), **specials, **{**SIZES, **fields}
    )
    return peers.transformers.XLMRobertaModel(config), tokenizer


def compare(folder, base, modes, steps=(), prompts=None, **pooling):
    """Compares the vectors of a folder with its pooling modes and `steps` after them."""
    import sentence_transformers as library
    from sentence_transformers.sentence_transformer import modules as parts

    model, tokenizer = base(folder)
    width = model.config.hidden_size
    peers.randomise(model, 0).save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    pool = parts.Pooling(width, pooling_mode=modes, **pooling)
    layers, size = [], pool.pooling_output_dimension
    for step in steps:
        if step != "normalize":
            out, bias, name = step
            layer = parts.Dense(size, out, bias=bias, activation_function=name())
            layers, size = [*layers, peers.randomise(layer, 1)], out
        else:
            layers.append(parts.Normalize())
    theirs = library.SentenceTransformer(
        modules=[parts.Transformer(str(folder / "base")), pool, *layers],
        prompts=prompts,
        device="cpu",
    )
    theirs.save(str(folder / "saved"))
    ours = ptm_jax.load(folder / "saved")
    for prompt in (None, *(prompts or ())):
        expected = theirs.encode(TEXTS, prompt_name=prompt)
        result = ours.encode(TEXTS, prompt_name=prompt)
        np.testing.assert_allclose(result, expected, atol=1e-5, err_msg=f"{modes} {prompt}")
        peers.measure("vectors", np.abs(result - expected).max())

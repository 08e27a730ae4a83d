"""LaBSE and E5 as they come: folders of sentence-transformers around BERT and XLM-RoBERTa."""

import numpy as np
import peers
import pytest

import ptm_jax

pytestmark = peers.LIVE
TEXTS = ["a cat sat on the mat", "dogs", "the cats of the house sat and sat and sat"]
WORDS = ["a", "cat", "sat", "on", "the", "mat", "dog", "##s", "of", "house", "and", ":", "query"]
SIZES = dict(
    hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20,
    max_position_embeddings=40,
)  # fmt: skip


def bert(folder):
    """A tiny BERT with WordPiece."""
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(vocab))
    tokenizer = peers.transformers.BertTokenizer(vocab=str(folder / "vocab.txt"))
    config = peers.transformers.BertConfig(vocab_size=len(vocab), **SIZES)
    return peers.transformers.BertModel(config), tokenizer


def roberta(folder):
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
    config = peers.transformers.XLMRobertaConfig(
        vocab_size=len(pieces), pad_token_id=1, bos_token_id=0, eos_token_id=2, **SIZES
    )
    return peers.transformers.XLMRobertaModel(config), tokenizer


@pytest.mark.parametrize(
    ("name", "base"), [("labse", bert), ("e5", bert), ("multilingual-e5", roberta)]
)
def test_a_folder_gives_the_vectors_of_the_library(name, base, tmp_path):
    """LaBSE: the first token, a dense layer with tanh, unit length. E5: means, unit length, prompts
    for queries and passages."""
    library = pytest.importorskip("sentence_transformers")
    parts = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    model, tokenizer = base(tmp_path)
    peers.randomise(model, 0).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    pooling = parts.Pooling(24, pooling_mode="cls" if name == "labse" else "mean")
    dense = parts.Dense(24, 24, activation_function=peers.torch.nn.Tanh())
    steps = [pooling, dense] if name == "labse" else [pooling]
    prompts = {"query": "query: ", "passage": "passage: "} if "e5" in name else None
    theirs = library.SentenceTransformer(
        modules=[parts.Transformer(str(tmp_path / "base")), *steps, parts.Normalize()],
        prompts=prompts,
        device="cpu",
    )
    theirs.save(str(tmp_path / name))
    ours = ptm_jax.load(tmp_path / name)
    for prompt in (None, *(prompts or ())):
        expected = theirs.encode(TEXTS, prompt_name=prompt)
        result = ours.encode(TEXTS, prompt_name=prompt)
        np.testing.assert_allclose(result, expected, atol=1e-5, err_msg=f"{name} {prompt}")

"""The longest text of a folder, and the special tokens of a causal model's texts, as
sentence-transformers 6 and Transformers have them."""

import json

import numpy as np
import pytest

import ptm_jax
from ptm_jax.convert.libraries import sentence_export, sentence_folder
from ptm_jax.core.errors import UserError
from support import tiny_checkpoint

LONG = ["the king sees the house", "hat", "the queen loves the hat of the city and the king " * 3]


def folder(path, longest, lengths=None):
    tiny_checkpoint.write(path)
    config = json.loads((path / "tokenizer_config.json").read_text())
    (path / "tokenizer_config.json").write_text(json.dumps({**config, "model_max_length": longest}))
    sentence_export.write(path, sentence_folder.Sentence())
    (path / "sentence_bert_config.json").write_text(
        json.dumps(lengths or {"transformer_task": "x"})
    )
    return path


@pytest.mark.parametrize(
    ("longest", "lengths", "expected"),
    [(6, None, 6), (6, {"max_seq_length": 4}, 4), (10**30, None, None), (1e30, None, None),
     (8.0, None, 8), (None, None, None), (6, {"max_seq_length": None}, 6)],
)  # fmt: skip
def test_the_longest_text_stands_in_either_file(tmp_path, longest, lengths, expected):
    path = folder(tmp_path, longest, lengths)
    assert sentence_folder.sentence_of(path).max_length == expected


@pytest.mark.parametrize("longest", [0, -1, 2.5, "x", [6]])
def test_a_longest_text_that_cannot_be(tmp_path, longest):
    with pytest.raises(UserError, match="model_max_length is .*; expected a whole number above 0"):
        sentence_folder.sentence_of(folder(tmp_path, longest))


@pytest.mark.full
@pytest.mark.parametrize("longest", [4, 6, 9, 16])
@pytest.mark.parametrize("mode", ["mean", "cls"])
def test_vectors_are_those_of_sentence_transformers(tmp_path, longest, mode):
    peers = pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    tiny_checkpoint.write(tmp_path / "plain")
    step = modules.Transformer(str(tmp_path / "plain"))
    step.max_seq_length = longest
    width = step.get_embedding_dimension()
    peer = peers.SentenceTransformer(modules=[step, modules.Pooling(width, pooling_mode=mode)])
    peer.save(str(tmp_path / "saved"))
    ours = ptm_jax.load(tmp_path / "saved").encode(LONG, truncate=True)
    np.testing.assert_allclose(ours, peer.encode(LONG), atol=2e-5)


@pytest.mark.full
@pytest.mark.parametrize("frame", ["$A </s>", "<s> $A", "<s> $A </s>", "$A"])
def test_a_causal_model_reads_the_special_tokens_of_its_tokenizer(tmp_path, frame):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = ["<unk>", "<s>", "</s>", *sorted({word for text in LONG for word in text.split()})]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(words[:3])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=frame, pair=f"{frame} $B", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    fast.save_pretrained(tmp_path)
    config = transformers.GPT2Config(
        n_embd=12, n_layer=2, n_head=2, n_positions=64, vocab_size=len(words)
    )
    torch.manual_seed(1)
    peer = transformers.GPT2Model(config).eval()
    peer.save_pretrained(tmp_path)
    model = ptm_jax.load(tmp_path)
    texts = LONG if frame == "$A" else [*LONG, ""]
    with torch.no_grad():
        states = [peer(**fast(text, return_tensors="pt")).last_hidden_state[0] for text in texts]
    theirs = np.stack([state.mean(0).numpy() for state in states])
    np.testing.assert_allclose(model.encode(texts), theirs, atol=2e-5)

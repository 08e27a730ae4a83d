"""Words that are added to a byte-level vocabulary of ModernBERT's form, padded to 64: unused tokens
and rows first. The library's tokenizer gives the same ids."""

import functools
import json

import jax
import numpy as np
import pytest

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import Config
from ptm_jax.core import towers
from ptm_jax.core.paths import flatten

SPECIALS = ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")
TEXTS = ["the dystrophin of the myopathy", "Dystrophin, dystrophins and pad thai"]
TABLE = "main/encoder/embed/token"


def folder_of(folder, unused, size):
    """A ModernBERT with random weights, and a tokenizer that ends in special and unused tokens."""
    from tokenizers import (
        AddedToken,
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
        processors,
        trainers,
    )

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=280, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(["the of and the of and the end"] * 9, trainer)
    backend.add_special_tokens([AddedToken(p, lstrip=p == "[MASK]") for p in SPECIALS])
    backend.add_tokens([f"[unused{i}]" for i in range(unused)])
    ids = {p.strip("[]").lower(): backend.token_to_id(p) for p in SPECIALS}
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(p, backend.token_to_id(p)) for p in SPECIALS[1:3]]
    )
    backend.save(str(folder / "tokenizer.json"))
    added = {
        str(i): {"content": t.content, "lstrip": t.lstrip, "rstrip": t.rstrip,
                 "normalized": t.normalized, "single_word": t.single_word, "special": t.special}
        for i, t in backend.get_added_tokens_decoder().items()
    }  # fmt: skip
    names = {f"{name}_token": f"[{name.upper()}]" for name in ids}
    fields = {"tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": added, **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(fields))
    config = Config(
        {"model_type": "modernbert", "vocab_size": size, "hidden_size": 8, "num_hidden_layers": 1}
        | {"num_attention_heads": 2, "intermediate_size": 12}
        | {f"{name}_token_id": ids[name] for name in ("pad", "cls", "sep")}
    )
    system, _ = checkpoint.record_of(config, "ModernBertForMaskedLM")
    begin = jax.jit(functools.partial(towers.init, system.towers))
    params = begin(jax.random.key(0), checkpoint.example(system))
    checkpoint.write(folder, system, params, config=config)
    return len(ids), backend.get_vocab_size()


@pytest.mark.full
@pytest.mark.parametrize(("unused", "size", "grown"), [(3, 320, 320), (1, 320, 320), (0, 320, 384)])
def test_words_take_unused_tokens_and_rows_first(unused, size, grown, tmp_path):
    (tmp_path / "model").mkdir()
    _, pieces = folder_of(tmp_path / "model", unused, size)
    words = ["dystrophin", "myopathy"] + [f"drug{i:02d}x" for i in range(60 if grown > size else 0)]
    (tmp_path / "words.txt").write_text("\n".join([*words, "the"]))
    out = tmp_path / "out"
    command = ["import", str(tmp_path / "model"), "--out", str(out)]
    assert main([*command, "--grow", str(tmp_path / "words.txt")]) == 0
    old, new = ptm_jax.load(tmp_path / "model"), ptm_jax.load(out)
    ids = [new.tokenizer.id(word) for word in words]
    assert ids == [*range(pieces - unused, pieces - unused + len(words))]
    assert new.vocab.size == grown
    before, after = (flatten(model.params)[TABLE] for model in (old, new))
    assert after.shape == (grown, 8)
    for word, index in zip(words, ids, strict=True):
        mean = before[old.tokenizer.encode(f" {word}")].mean(0)
        np.testing.assert_allclose(after[index], mean, rtol=1e-6)
    others = np.setdiff1d(np.arange(size), ids)
    np.testing.assert_array_equal(after[others], before[others])
    first, second = (list(new.tokens(text).ids) for text in TEXTS)
    assert ids[0] in first and ids[1] in first and ids[0] not in second
    plain = [list(model.tokens("the end of it").ids) for model in (old, new)]
    assert plain[0] == plain[1]
    transformers = pytest.importorskip("transformers")
    assert main(["export", str(out), "--out", str(tmp_path / "hf")]) == 0
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    for text in TEXTS:
        assert theirs(text)["input_ids"][1:-1] == list(new.tokens(text).ids), text

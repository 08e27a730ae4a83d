"""Tokenizer directories in the layout of each published family, their vocabularies trained on the
text that is given.

Used by the tests of `data.tokenizers.published` and by `published_golden.py`, which runs in
environments without this project: it imports `tokenizers` and `sentencepiece` only.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

WORDPIECE = ("bert", "electra", "distilbert", "mobilebert", "nezha", "ernie", "megatron-bert")
BYTES = ("roberta", "gpt2", "bart")
PIECES = ("albert", "camembert", "mbart", "mt5", "pegasus", "t5", "xlm-roberta", "xlnet")
WORDS = ("ctrl", "flaubert", "openai-gpt", "transfo-xl", "xlm")
FAMILIES = (*WORDPIECE, *BYTES, *PIECES, *WORDS)

_CONTROLS = {  # options of the sentencepiece trainer
    "albert": {
        "pad_id": 0,
        "unk_id": 1,
        "bos_id": -1,
        "eos_id": -1,
        "control_symbols": ["[CLS]", "[SEP]", "[MASK]"],
    },
    "xlnet": {"control_symbols": ["<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]},
    "t5": {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
}
_CONTROLS["mt5"] = _CONTROLS["pegasus"] = _CONTROLS["t5"]


def pieces(path: Path, family: str, lines: Sequence[str], size: int, **options) -> None:
    """A sentencepiece model with the ids and controls of the family."""
    import sentencepiece

    options = {"character_coverage": 0.995} | _CONTROLS.get(family, {}) | options
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=file, vocab_size=size, num_threads=1,
            max_sentence_length=1 << 16,
            hard_vocab_limit=False, minloglevel=2, **options,
        )  # fmt: skip


def wordpiece(folder: Path, lines: Sequence[str], size: int) -> None:
    """vocab.txt of a lower-casing WordPiece."""
    from tokenizers import BertWordPieceTokenizer

    trained = BertWordPieceTokenizer(lowercase=True)
    trained.train_from_iterator(lines, size, 2, limit_alphabet=size // 3, show_progress=False)
    (folder / "vocab.txt").write_text(
        "".join(p + "\n" for p in _ordered(trained.get_vocab())), encoding="utf-8"
    )


def byte_bpe(folder: Path, lines: Sequence[str], size: int, specials: Sequence[str]) -> None:
    """vocab.json and merges.txt of a byte-level BPE."""
    from tokenizers import ByteLevelBPETokenizer

    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(lines, size, 2, special_tokens=list(specials), show_progress=False)
    trained.save_model(str(folder))


def bpe(
    folder: Path, words: Sequence[str], size: int, specials: Sequence[str], suffix: str = "</w>"
) -> None:
    """vocab.json and merges.txt of a BPE over the characters of blank-separated words; the last is
    marked </w>."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    trained = Tokenizer(models.BPE(end_of_word_suffix=suffix))
    trained.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    options = {
        "limit_alphabet": size // 4,
        "min_frequency": 2,
        "end_of_word_suffix": suffix,
        "show_progress": False,
    }
    trained.train_from_iterator(
        words, trainers.BpeTrainer(vocab_size=size, special_tokens=list(specials), **options)
    )
    model = json.loads(trained.to_str())["model"]
    merges = [" ".join(m) if isinstance(m, list) else m for m in model["merges"]]
    (folder / "vocab.json").write_text(
        json.dumps(model["vocab"], ensure_ascii=False), encoding="utf-8"
    )
    (folder / "merges.txt").write_text(
        "#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8"
    )


def _ctrl(folder: Path, lines: Sequence[str], size: int) -> None:
    """CTRL's vocabulary writes `piece@@` inside a word and `piece` at its end; its merges write
    </w>."""
    bpe(folder, lines, size, ["<unk>"])
    vocab = json.loads((folder / "vocab.json").read_text("utf-8"))
    named = {
        p if p == "<unk>" else p.removesuffix("</w>") if p.endswith("</w>") else p + "@@": i
        for p, i in vocab.items()
    }
    (folder / "vocab.json").write_text(json.dumps(named, ensure_ascii=False), encoding="utf-8")


def _xlm(folder: Path, lines: Sequence[str], size: int) -> None:
    """Merges without a header, the control words at the head of the vocabulary."""
    split = [re.sub(r"([^\w\s])", r" \1 ", line.lower()) for line in lines]
    bpe(
        folder,
        split,
        size,
        ["<s>", "</s>", "<pad>", "<unk>", *(f"<special{i}>" for i in range(10))],
    )
    merges = (folder / "merges.txt").read_text("utf-8").split("\n", 1)[1]
    (folder / "merges.txt").write_text(
        "".join(f"{m} 1\n" for m in merges.split("\n") if m), encoding="utf-8"
    )


def _transfo_xl(folder: Path, lines: Sequence[str], size: int) -> None:
    count = Counter(word for line in lines for word in re.findall(r"\w+|[^\w\s]", line))
    words = [
        "<eos>",
        "<unk>",
        "<formula>",
        "@,@",
        "@.@",
        "@-@",
        *(w for w, _ in count.most_common(size)),
    ]
    (folder / "vocab.txt").write_text("".join(w + "\n" for w in words), encoding="utf-8")


def _ordered(vocab: dict[str, int]) -> list[str]:
    return sorted(vocab, key=vocab.__getitem__)


def make(folder: Path, family: str, lines: Sequence[str], size: int = 1000) -> Path:
    """The directory of a model of `family`: config.json and the tokenizer's files, no
    tokenizer.json."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": family}))
    roberta = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainers: dict[str, Callable] = {
        "ctrl": lambda: _ctrl(folder, lines, size),
        "gpt2": lambda: byte_bpe(folder, lines, size, ["<|endoftext|>"]),
        "openai-gpt": lambda: bpe(
            folder, [re.sub(r"([^\w\s])", r" \1 ", x.lower()) for x in lines], size, ["<unk>"]
        ),
        "transfo-xl": lambda: _transfo_xl(folder, lines, size),
        **dict.fromkeys(("xlm", "flaubert"), lambda: _xlm(folder, lines, size)),
        **dict.fromkeys(WORDPIECE, lambda: wordpiece(folder, lines, size)),
        **dict.fromkeys(("roberta", "bart"), lambda: byte_bpe(folder, lines, size, roberta)),
    }
    fairseq = family in ("camembert", "mbart", "xlm-roberta")
    model = folder / ("sentencepiece.bpe.model" if fairseq else "spiece.model")
    trainers.get(family, lambda: pieces(model, family, lines, size))()
    return folder

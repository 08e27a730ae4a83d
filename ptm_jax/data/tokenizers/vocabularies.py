"""Vocabularies: trained on text, as a function of the text alone, or read from published files.

The WordPiece trainer of `tokenizers` numbers `##` pieces in the order of a hash map, so two runs
differ. Reserving the whole alphabet, with and without `##`, fixes the order; these are ordinary
pieces afterwards.
"""

from __future__ import annotations

import collections
import io
import itertools
import json
import re
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import decoded
from ptm_jax.data.languages import segmenters
from ptm_jax.data.stores import working
from ptm_jax.data.tokenizers import published, saved, words
from ptm_jax.data.tokenizers.backends import HuggingFace, SentencePiece
from ptm_jax.data.tokenizers.published_families import wordpiece
from ptm_jax.data.tokenizers.tokenizing import ROLES, STYLES, WHOLE, Tokenizer, TokenizerSpec

_LONGEST_ALPHABET = 6000


def make(spec: TokenizerSpec, texts: Iterable[str]) -> Tokenizer:
    """Returns the tokenizer of `spec`: read from `spec.path`, else trained on `texts` (sentences).

    Raises UserError where the file cannot be read or the vocabulary is larger than the text
    supports.
    """
    if spec.path is not None:
        return read(spec)
    train = {
        "wordpiece": _wordpiece, "bytebpe": _bytebpe, "unigram": _sentencepiece,
        "bpe": _sentencepiece, **dict.fromkeys(WHOLE, words.train),
    }[spec.kind]  # fmt: skip
    size = spec.vocab - spec.sentinels
    if size <= len(STYLES[spec.specials]):
        raise UserError(
            f"a vocabulary of {spec.vocab} has no room beside its special tokens; give more"
        )
    if spec.kind != "bytebpe" and not any(name in ROLES["unk"] for name in STYLES[spec.specials]):
        raise UserError(
            f"a {spec.kind} vocabulary needs an unknown token, which the {spec.specials} "
            "style lacks; use bert or t5"
        )
    if spec.segmenter is not None:
        texts = (segmenters.spaced(spec.segmenter, text)[0] for text in texts)
    backend = train(spec, size, texts)
    if (
        len(backend.pieces) < size and spec.min_count == 1
    ):  # with it, the size is the most that is wanted
        raise TooLarge(spec, len(backend.pieces))
    kind = "word" if spec.kind in WHOLE else spec.kind  # the file holds how text is divided
    options = {"sentinels": spec.sentinels, "segmenter": spec.segmenter}
    return Tokenizer(backend, kind=kind, lowercase=spec.lowercase, **options)


def read(spec: TokenizerSpec) -> Tokenizer:
    """Returns the tokenizer at `spec.path`.

    vocab.txt, tokenizer.json, vocab.json with merges.txt, a sentencepiece model, the directory of a
    Hugging Face model, whose files decide everything (`data.tokenizers.published`), or one of ours.
    """
    path = working.opened(spec.path)
    if path.is_dir():
        if (path / "tokenizer_spec.json").exists():
            return saved.load(path)
        if published.is_published(path):
            return published.read_published(path)
        names = [
            "tokenizer.json",
            "vocab.txt",
            "vocab.json",
            *sorted(p.name for p in path.glob("*.model")),
        ]
        files = [path / name for name in names if (path / name).exists()]
        if not files:
            raise UserError(
                f"no tokenizer in {path}; expected tokenizer.json, vocab.txt, vocab.json or "
                "a .model file"
            )
        path = files[0]
    if not path.exists():
        raise UserError(
            f"no such tokenizer: {path}; expected vocab.txt, tokenizer.json or a "
            "sentencepiece .model"
        )
    try:
        kind, backend = _read(path, spec)
    except UserError:
        raise
    except Exception as error:  # both libraries raise bare Exceptions for damaged files
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"{path} is not a tokenizer that can be read ({reason})") from None
    if spec.kind != kind:
        raise UserError(
            f"{path} is a {kind} tokenizer, not {spec.kind} as in the spec; set "
            f"tokenizer.kind to {kind}"
        )
    return Tokenizer(backend, kind=kind, sentinels=spec.sentinels, lowercase=spec.lowercase)


def _read(path: Path, spec: TokenizerSpec):
    if path.suffix == ".model":
        return (spec.kind if spec.kind in ("unigram", "bpe") else "unigram"), SentencePiece.read(
            path
        )
    if path.suffix == ".txt":
        text = decoded(path, path.read_bytes(), "utf-8")
        pieces = text.removesuffix("\n").split("\n")  # a piece may be another line break
        return "wordpiece", HuggingFace(
            _wordpiece_model({p: i for i, p in enumerate(pieces)}, spec)
        )
    if path.name.endswith("vocab.json"):
        merges = path.with_name(path.name.replace("vocab.json", "merges.txt"))
        return "bytebpe", HuggingFace(
            _bytebpe_model(models.BPE.from_file(str(path), str(merges)), spec)
        )
    model = json.loads(path.read_text("utf-8"))["model"]
    kinds = {"WordPiece": "wordpiece", "BPE": "bytebpe", "Unigram": "unigram", "WordLevel": "word"}
    kind = kinds.get(model.get("type", "BPE"), "bytebpe")
    return kind, HuggingFace.read(path)


class TooLarge(UserError):
    """A vocabulary that is larger than the text supports. `largest` is the size that works."""

    def __init__(self, spec: TokenizerSpec, pieces: int):
        self.largest = pieces + spec.sentinels
        super().__init__(
            f"a {spec.kind} vocabulary of {spec.vocab} is larger than the text supports; "
            f"the largest that works is {self.largest}: set tokenizer.vocab to that or less, "
            "or give more text"
        )


def _special(backend):
    known = backend.get_vocab()
    backend.add_special_tokens([p for style in STYLES.values() for p in style if p in known])
    return backend


def _wordpiece_model(vocab: dict[str, int], spec: TokenizerSpec):
    unk = next((name for name in ROLES["unk"] if name in vocab), "[UNK]")
    backend = wordpiece(
        vocab,
        unk,
        lowercase=spec.lowercase,
        strip_accents=None if spec.strip_accents else False,
        handle_chinese_chars=spec.segmenter is None,
    )
    if spec.segmenter is not None:
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _special(backend) if vocab else backend


def _wordpiece(spec: TokenizerSpec, size: int, texts: Iterable[str]) -> HuggingFace:
    specials = list(STYLES[spec.specials])
    backend = _wordpiece_model({}, spec)
    normal = [backend.normalizer.normalize_str(text) for text in texts]
    backend.normalizer = None  # not a second time
    count = collections.Counter(itertools.chain.from_iterable(normal))
    room = min(_LONGEST_ALPHABET, (size - len(specials)) // 2)
    characters = [
        c for c, _ in sorted(count.items(), key=lambda item: (-item[1], item[0])) if not c.isspace()
    ][:room]
    characters.sort()
    reserved = specials + characters + ["##" + c for c in characters]
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=2,
        limit_alphabet=0,
        special_tokens=reserved,
        show_progress=False,
    )
    backend.train_from_iterator(normal, trainer)  # only for its pieces
    return HuggingFace(_wordpiece_model(backend.get_vocab(), spec))


def _bytebpe_model(model, spec: TokenizerSpec):
    """Every sentence gets a space in front, so that its first word has the same piece as inside a
    sentence."""
    backend = Backend(model)
    if spec.lowercase:
        backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    backend.decoder = decoders.ByteLevel()
    return _special(backend)


def _bytebpe(spec: TokenizerSpec, size: int, texts: Iterable[str]) -> HuggingFace:
    backend = _bytebpe_model(models.BPE(), spec)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if size < len(STYLES[spec.specials]) + len(alphabet):
        raise UserError(
            f"a byte-level vocabulary of {spec.vocab} has no room for the 256 bytes; give at "
            "least 300"
        )
    trainer = trainers.BpeTrainer(
        vocab_size=size, min_frequency=2, special_tokens=list(STYLES[spec.specials]),
        initial_alphabet=alphabet,
        show_progress=False,
    )  # fmt: skip
    backend.train_from_iterator(texts, trainer)
    return HuggingFace(backend)


def _sentencepiece(spec: TokenizerSpec, size: int, texts: Iterable[str]) -> SentencePiece:
    """Trains in one thread, because the result depends on the number of threads."""
    import sentencepiece

    specials, model = STYLES[spec.specials], io.BytesIO()
    places = {
        role: next((p for p in ROLES[role] if p in specials), None) for role in ("pad", "unk")
    }
    options = {f"{role}_id": specials.index(p) for role, p in places.items() if p}
    options |= {f"{role}_piece": p for role, p in places.items() if p}
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts), model_writer=model, model_type=spec.kind,
            vocab_size=size, num_threads=1,
            bos_id=-1, eos_id=-1, control_symbols=[p for p in specials if p not in places.values()],
            normalization_rule_name="nmt_nfkc_cf" if spec.lowercase else "nmt_nfkc",
            max_sentence_length=1 << 16,
            minloglevel=2, **options,
        )  # fmt: skip
    except RuntimeError as error:
        if match := re.search(r"value <= (\d+)", str(error)):
            raise TooLarge(spec, int(match[1])) from None
        reason = str(error).splitlines()[0]
        if match := re.search(r"smaller than required_chars. (\d+) vs (\d+)", reason):
            reason = f"its characters alone need {int(match[2]) + spec.sentinels}"
        raise UserError(
            f"no {spec.kind} vocabulary of {spec.vocab} can be trained on this text: {reason}"
        ) from None
    return SentencePiece(model.getvalue())

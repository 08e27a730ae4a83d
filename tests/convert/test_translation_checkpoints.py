"""M2M100 and Marian with the tokenizers of their files: what `ptm import` reads gives the ids of
`transformers`, and the same tokens of an answer, greedy and by four beams."""

import json
import shutil

import numpy as np
import peers
import pytest

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.core.errors import UserError
from ptm_jax.core.towers import Tower
from ptm_jax.data.tokenizers.published import read_published
from ptm_jax.inference.decoding import decode
from ptm_jax.inference.text import generating

pytestmark = peers.LIVE
SOURCES = [
    f"the {a} sees the {b} of the {c} ." for a in ("king", "queen", "man") for b in ("house", "hat")
    for c in ("city", "town")
]  # fmt: skip
TARGETS = [
    f"le {a} voit la {b} de la {c} ." for a in ("roi", "reine") for b in ("maison", "tour")
    for c in ("ville", "cour")
]  # fmt: skip
TEXTS = ["the king sees the hat .", "a  queen of Köln ☃ sees", "the city", ""]
SIZES = dict(
    d_model=16, encoder_layers=1, decoder_layers=2, encoder_ffn_dim=20, decoder_ffn_dim=24,
    encoder_attention_heads=2, decoder_attention_heads=4, max_position_embeddings=48,
)  # fmt: skip


def pieces(folder, name, texts, kind):
    """Writes a sentencepiece model and returns its pieces."""
    import sentencepiece

    (folder / f"{name}.txt").write_text("\n".join(texts * 4))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / f"{name}.txt"), model_prefix=str(folder / name), vocab_size=70,
        model_type=kind, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{name}.model"))
    return [processor.id_to_piece(i) for i in range(len(processor))]


def m2m_tokenizer(folder):
    listed = pieces(folder, "joint", SOURCES + TARGETS, "bpe")
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    words = specials + [piece for piece in listed[3:] if piece not in specials]
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(words)}))
    kind = peers.transformers.M2M100Tokenizer
    return kind(str(folder / "vocab.json"), str(folder / "joint.model"), src_lang="en")


def marian_tokenizer(folder):
    sides = pieces(folder, "source", SOURCES, "unigram"), pieces(folder, "target", TARGETS, "bpe")
    words = ["</s>", "<unk>", *(piece for side in sides for piece in side[3:]), ">>fr<<", "<pad>"]
    words = list(dict.fromkeys(words))
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(words)}))
    for side in ("source", "target"):
        shutil.copy(folder / f"{side}.model", folder / f"{side}.spm")
    files = [str(folder / name) for name in ("source.spm", "target.spm", "vocab.json")]
    return peers.transformers.MarianTokenizer(*files, source_lang="en", target_lang="fr")


def m2m(tokenizer):
    size = tokenizer.vocab_size + 100 + 8
    config = peers.transformers.M2M100Config(vocab_size=size, **SIZES)
    return peers.transformers.M2M100ForConditionalGeneration(config)


def marian(tokenizer):
    size = tokenizer.vocab_size
    special = dict(pad_token_id=size - 1, decoder_start_token_id=size - 1, eos_token_id=0)
    config = peers.transformers.MarianConfig(vocab_size=size, **special, **SIZES)
    model = peers.transformers.MarianMTModel(config)
    model.generation_config.bad_words_ids = [[size - 1]]
    return model


FAMILIES = {"m2m_100": (m2m_tokenizer, m2m), "marian": (marian_tokenizer, marian)}


@pytest.fixture(scope="module", params=FAMILIES)
def both(request, tmp_path_factory):
    """(the library's tokenizer, its model, ours, its folder)."""
    make, build = FAMILIES[request.param]
    work = tmp_path_factory.mktemp(request.param)
    tokenizer = make(work)
    model = peers.randomise(build(tokenizer), 4)
    folder = work / "published"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    assert main(["import", str(folder), "--out", str(work / "run")]) == 0
    return tokenizer, model, ptm_jax.load(work / "run"), folder


def test_the_ids_of_texts(both):
    tokenizer, _, ours, folder = both
    texts = [*TEXTS, ">>fr<< the king sees", ">>xx<< the king", "le roi voit >>fr<< la tour"]
    theirs = [tokenizer(text).input_ids for text in texts]
    for text, wanted, got in zip(texts, theirs, ours.ids_of(texts), strict=True):
        assert got.tolist() == wanted, text
    again = read_published(folder)
    for text, wanted in zip(texts, theirs, strict=True):
        ids = again.frame(np.asarray(again.encode_batch([text])[0], np.int32))[0]
        assert ids.tolist() == wanted, text
    plain = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(TEXTS[0]))
    assert ours.tokenizer.decode(plain) == tokenizer.decode(plain)


def test_pieces_have_their_characters(both):
    ours = both[2]
    for text in ("the king sees the hat .", ">>fr<< the king"):
        found = ours.tokens(text)
        parts = [text[a:b] for a, b in zip(found.starts, found.ends, strict=True)]
        named = zip(found.pieces, parts, strict=True)
        known = [(piece, part) for piece, part in named if piece != "<unk>"]
        assert known and all(piece.removeprefix("▁") == part for piece, part in known)


@pytest.mark.status("ptm import", "matches")
@pytest.mark.parametrize("beams", [1, 4])
def test_answers_are_the_library_s(both, beams):
    tokenizer, model, ours, _ = both
    texts, options, languages = [text for text in TEXTS if text], {}, ()
    if hasattr(tokenizer, "get_lang_id"):
        options = {"forced_bos_token_id": tokenizer.get_lang_id("fr")}
        languages = {*tokenizer.lang_code_to_id.values()}  # special in ours, not in theirs
    named = {name.removesuffix("_token_id"): value for name, value in options.items()}
    wanted, spoken = [], []
    for text in texts:
        row = tokenizer([text], return_tensors="pt")
        ids = model.generate(**row, num_beams=beams, max_new_tokens=11, do_sample=False, **options)[
            0, 1:
        ].tolist()
        end = ids.index(model.config.eos_token_id) + 1 if model.config.eos_token_id in ids else None
        wanted.append(ids[:end])
        words = [i for i in ids if i not in languages]
        spoken.append(tokenizer.decode(words, skip_special_tokens=True))
    plan = generating.plan_of(ours, beams=beams, max_new_tokens=11, **named)
    tower = Tower(ours.module, ours.params["main"])
    written = decode.decode(
        tower, ours.ids_of(texts), plan, eos=generating.ends_of(ours), pad=ours.vocab.pad,
        start=generating.start_of(ours),
    )  # fmt: skip
    rows = zip(written.tokens, written.lengths, strict=True)
    assert [row[0][: n[0]].tolist() for row, n in rows] == wanted
    answers = ours.generate(texts, max_new_tokens=11, beams=beams, **named)
    assert [text.strip() for text in answers] == [text.strip() for text in spoken]


def test_what_cannot_be_read_is_one_line(both, tmp_path):
    folder = shutil.copytree(both[3], tmp_path / "damaged")
    vocab = json.loads((folder / "vocab.json").read_text())
    del vocab["<unk>"]
    (folder / "vocab.json").write_text(json.dumps(vocab))
    with pytest.raises(UserError, match="<unk>"):
        read_published(folder)

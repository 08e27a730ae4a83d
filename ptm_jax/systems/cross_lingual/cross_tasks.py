"""XLM with tasks on translations: Unicoder, and XNLG's two stages."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.adapt.parameters.freezing import Frozen
from ptm_jax.core.spec import override, values_of
from ptm_jax.core.system import System
from ptm_jax.corruptions.base import Chain
from ptm_jax.corruptions.by_task import ByTask
from ptm_jax.corruptions.cross_lingual import CrossLingual, RecoveredWords
from ptm_jax.corruptions.masking.noise import NoiseMasking, TokenDeletion
from ptm_jax.data.rows.languages.multilingual import Paraphrases, Translated
from ptm_jax.data.rows.languages.pair_tasks import PairTasks
from ptm_jax.encoders.model import Model
from ptm_jax.nn.embeddings.parts import Languages
from ptm_jax.nn.embeddings.recovery import WordRecovery
from ptm_jax.nn.heads.vocabulary import Classifier, LMHead, Pooler
from ptm_jax.objectives.decoded_rows import DecodedRows
from ptm_jax.objectives.joint import Joint
from ptm_jax.objectives.task_of_row import RowsOfTask
from ptm_jax.objectives.text.language import MLM
from ptm_jax.objectives.text.sentence_pairs import NSP
from ptm_jax.objectives.text.seq2seq import Seq2Seq
from ptm_jax.systems.sequence_to_sequence.bart import with_decoder
from ptm_jax.systems.transformers.bert_gpt import miniature
from ptm_jax.systems.transformers.many_languages import xlm

FRAME = {"begin": "eos", "end": "eos"}
PAIRS = Translated(**FRAME)


def unicoder(name: str, layers: int, width: int, heads: int, languages: int = 15) -> System:
    """Unicoder (Huang et al. 2019): XLM with three more tasks on translations.

    Row 121. Text and pairs are masked as in XLM (MLM, TLM); documents whose sentences alternate in
    language are masked (XMLM, section 3.3); words of a sentence are recovered from its translation
    (3.1); pairs are classified (3.2, `Paraphrases`). A batch is of one task; pairs have half of
    them, in equal shares. The paper begins with XLM's weights (`--init`) and fine-tunes on several
    languages at once. No code is public; rates and batches are XLM's, not checked.
    """
    parent = xlm(name, layers, width, heads, languages=languages, translations=True)
    main, masking = parent.towers["main"], parent.corruption
    core = override(
        main.encoder, {"embed.parts": (Languages(languages),), "embed.expand": WordRecovery()}
    )
    kinds = (PAIRS, Translated(kind="alternating", **FRAME), PAIRS, Paraphrases(**FRAME))
    recovery = RecoveredWords(vocab=masking.vocab)
    pairs = RowsOfTask(task=4, part=NSP(name="paraphrase"))
    heads_of = {**main.heads, "pool": Pooler(), "nsp": Classifier(2)}
    return dataclasses.replace(
        parent,
        paper="Huang et al. 2019, arXiv 1909.00964",
        rows=(121,),
        towers={"main": Model(encoder=core, heads=heads_of)},
        examples=PairTasks(**values_of(parent.examples), kinds=kinds),
        corruption=ByTask(parts=(masking, masking, masking, recovery, None)),
        objective=Joint(parts=((1.0, MLM()), (1.0, pairs))),
    )


def xnlg_encoder(name: str, layers: int, width: int, heads: int) -> System:
    """The first stage of XNLG (Chi et al. 2020, section 3.1): XLM of 10 layers with TLM.

    Row 124. The released command has 16 heads here and 8 in the second stage; 16 in both here.
    """
    parent = xlm(name, layers, width, heads, translations=True)
    return dataclasses.replace(parent, paper="Chi et al. 2020, arXiv 1909.10481", rows=(124,))


def xnlg(
    name: str, layers: int, width: int, heads: int, *, decoder: int, frozen: bool = True
) -> System:
    """The second stage of XNLG (Chi et al. 2020, section 3.2): a decoder on the frozen encoder.

    Row 124. Sentences are restored from noise (DAE, weight 0.5) and decoded from their translation
    (XAE); languages are marked by vectors on both sides. CZWin32768/XNLG: rate 1e-4. Deviations:
    the noise does not shuffle words, and encoder and decoder share the table of words.
    """
    parent = xnlg_encoder(name, layers, width, heads)
    core, vocab = parent.towers["main"].encoder, parent.corruption.vocab
    both = with_decoder(core, core.embed.position)
    both = override(both, {"decoder.stack.layers": decoder})
    noise = Chain(parts=(TokenDeletion(vocab=vocab, rate=0.1), NoiseMasking(vocab=vocab, rate=0.1)))
    rows = {**values_of(parent.examples), "batches": False, "parallel": PAIRS}
    dae, xae = (
        DecodedRows(name=name, task=number, part=Seq2Seq())
        for number, name in enumerate(("dae", "xae"))
    )
    return dataclasses.replace(
        parent,
        group="Encoder-decoders",
        towers={"main": Model(encoder=both, heads={"lm": LMHead(vocab=vocab, bias=True)})},
        examples=PairTasks(**rows, kinds=(PAIRS,)),
        corruption=ByTask(
            parts=(CrossLingual(vocab=vocab, noise=noise), CrossLingual(vocab=vocab))
        ),
        objective=Joint(parts=((0.5, dae), (1.0, xae))),
        adapt=(Frozen(pattern="/encoder/encoder/"),) if frozen else (),
    )


def systems() -> Iterator[System]:
    yield unicoder("unicoder", 12, 1024, 8)
    yield xnlg_encoder("xnlg_encoder", 10, 1024, 16)
    yield xnlg("xnlg", 10, 1024, 16, decoder=6)
    options = {"steps": 400, "lr": 2e-3, "length": 64, "std": 0.08}
    yield miniature(unicoder("", 2, 128, 2), "unicoder_mini", **options)
    # Its encoder is trained, since it has no first stage.
    small = xnlg("", 2, 128, 2, decoder=2, frozen=False)
    yield miniature(small, "xnlg_mini", **options)

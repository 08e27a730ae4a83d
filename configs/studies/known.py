"""A masked, a causal and a replaced-token model, trained alike: what do they know?

    ptm study known --workdir RUNS                  # in the folder DATA
    python -m benchmarks.known --runs RUNS --data DATA

Four layers of ModernBERT's block of width 128, one text, one tokenizer, one recipe, the same
tokens; three seeds each. `one step` is the network without pre-training. The text is English
Wikipedia and news: DATA/lm/wikitext-2/valid.txt and the reference summaries of XSum. The second
command asks every run what its layers know.
Cost: 9 runs, of 2 to 4 minutes of one core of an AMD EPYC.
Measured: docs/what_they_know.md, on two cores that others used too.
"""

import dataclasses

from ptm_jax.core.recipe import AdamW, Phase, Recipe, WarmupStableDecay
from ptm_jax.core.system import Experiment, System, Tie
from ptm_jax.corruptions.masking.token import ScheduledMasking
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.model import Model
from ptm_jax.nn.heads.pretraining import Detector
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.objectives.text.detection import RTD
from ptm_jax.objectives.text.language import LM
from ptm_jax.systems.transformers.bert_gpt import miniature
from ptm_jax.systems.transformers.modern.modernbert import modernbert
from ptm_jax.tuning.studies.studies import Axis, Budget, Study

STEPS, RATE, ROWS, LENGTH = 1500, 3e-3, 16, 64
TABLE = "encoder/embed/token"
TEXT = ("lm/wikitext-2/valid.txt", "summarization/xsum-outputs/gold-test-sentences.txt")


def masked(system: System) -> System:
    """Masked words, 30% of them (of held-out text 15%)."""
    return system


def causal(system: System) -> System:
    """The next word, of layers that read from the left."""
    main = system.towers["main"]
    encoder = dataclasses.replace(main.encoder, direction="causal")
    towers = {"main": Model(encoder=encoder, heads={"lm": LMHead()})}
    return dataclasses.replace(
        system, name="causal", towers=towers, corruption=None, objective=LM()
    )  # fmt: skip


def replaced(system: System) -> System:
    """Replaced tokens, of a generator with half of the layers and the same word vectors."""
    main = system.towers["main"]
    stack = dataclasses.replace(main.encoder.stack, layers=main.encoder.stack.layers // 2)
    generator = dataclasses.replace(main, encoder=dataclasses.replace(main.encoder, stack=stack))
    return dataclasses.replace(
        system,
        name="replaced",
        towers={"main": Model(encoder=main.encoder, heads={"rtd": Detector()}),
                "generator": generator},
        ties=(Tie(path=f"generator/{TABLE}", source=f"main/{TABLE}"),),
        corruption=dataclasses.replace(system.corruption, mask=1.0, random=0.0),
        objective=RTD(),
    )  # fmt: skip


parent = modernbert("", 4, 128, 4, 256, lr=RATE, decay=0.05)
start = miniature(parent, "masked", steps=STEPS, lr=RATE, std=0.05, batch=ROWS, length=LENGTH)
base = dataclasses.replace(
    start,
    corruption=ScheduledMasking(vocab=start.corruption.vocab, training_rate=0.3),
    recipe=Recipe(
        phases=(Phase(steps=STEPS, batch=ROWS, length=LENGTH),),
        lr=RATE,
        optimizer=AdamW(b2=0.98, weight_decay=0.05),
        schedule=WarmupStableDecay(warmup=STEPS // 20, decay=STEPS // 2, shape="linear"),
    ),
    tokenizer=TokenizerSpec(kind="wordpiece", vocab=8192, lowercase=True, specials="roberta"),
)

study = Study(
    name="known",
    base=Experiment(system=base, data=TEXT, save_every=0, metrics=()),
    axes=(
        Axis(name="seed", values=(0, 1, 2)),
        Axis(name="way", values={"masked": masked, "causal": causal, "replaced": replaced}),
        Axis(name="budget", values={"trained": STEPS * ROWS * LENGTH, "one step": ROWS * LENGTH}),
    ),
    budget=Budget(kind="tokens", amount=STEPS * ROWS * LENGTH),
    metrics=("loss", "mlm_nll", "rtd_accuracy"),
    keep=lambda labels: (
        labels["budget"] == "trained" or (labels["seed"] == "0" and labels["way"] == "masked")
    ),
    remark="`one step` is the network without pre-training.",
)

"""Today's recipes beside BERT's, with equal operations: each alone, and together.

    ptm study modern --tasks DATA --workdir runs/modern

All runs have three layers of width 128, the text, tokenizer and held-out documents of the speedrun,
and 16 rows of 64 tokens a step. BERT's block has BERT's recipe: AdamW, a linear decay, 15% masks.
Each other arm changes one thing; the last ones change several:

    block    ModernBERT's: pre-norm, rotary positions, gated layers, no biases
    WSD      a stable rate, and a decay of the last 40% of the steps
    Muon     for the matrices of the layers
    masks    from 30% to 15%
    RTD      replaced tokens: a generator of one layer, and embeddings that share no gradient (GDES)
    hybrid   GPT-BERT's: a row in sixteen is causal, and each state predicts the next token

`mlm_nll` is the held-out loss of masked words at 15% masks, of RTD that of its generator. BERT is
also fine-tuned after one step. The rates are of modern_rates.py.
Cost: 33 runs, 60 minutes of one core of an AMD EPYC, of which half are fine-tunings and starts.
Measured: benchmarks/modern_study.md: the block helps (5.79 to 4.42 nats), with WSD and masks more
(4.13); RTD fails with these operations.
"""

import dataclasses
from collections.abc import Callable

from ptm_jax.core.recipe import AdamW, ClipByTower, Linear, Muon, Phase, Recipe, WarmupStableDecay
from ptm_jax.core.system import Difference, Experiment, System
from ptm_jax.corruptions.masking.hybrid import HybridMasking
from ptm_jax.corruptions.masking.token import LinearRate, ScheduledMasking, TokenMasking
from ptm_jax.encoders.model import Model
from ptm_jax.nn.heads.pretraining import FirstTokenDetector
from ptm_jax.objectives.text.detection import RTD
from ptm_jax.objectives.text.hybrid import Hybrid
from ptm_jax.systems.transformers.bert_gpt import bert, miniature
from ptm_jax.systems.transformers.modern.modernbert import modernbert
from ptm_jax.tuning import speedrun
from ptm_jax.tuning.studies.studies import Axis, Budget, Picture, Study, Transfer

Change = Callable[[System], System]
STEPS, LAYERS, WIDTH, HEADS = 1000, 3, 128, 4
TABLE = "encoder/embed/token"
FALLING = LinearRate(first=0.3, last=0.15, steps=STEPS)


def recipe(lr: float) -> Recipe:
    """BERT's, for a small machine."""
    return Recipe(
        phases=(Phase(steps=STEPS, batch=16, length=64),),
        lr=lr,
        optimizer=AdamW(b2=0.98),
        schedule=Linear(warmup=STEPS // 10),
    )


def network(parent: System, std: float) -> Model:
    """The encoder of a parent with its head for masked words."""
    model = miniature(parent, "", steps=STEPS, lr=1e-3, std=std).towers["main"]
    return Model(encoder=model.encoder, heads={"mlm": model.heads["mlm"]})


def with_recipe(system: System, **fields: object) -> System:
    return dataclasses.replace(system, recipe=dataclasses.replace(system.recipe, **fields))


def block(system: System) -> System:
    modern = network(modernbert("", LAYERS, WIDTH, HEADS, 256, lr=1e-3, decay=0.01), 0.05)
    return dataclasses.replace(system, towers={"main": modern})


def wsd(system: System) -> System:
    schedule = WarmupStableDecay(warmup=STEPS // 20, decay=2 * STEPS // 5, shape="linear")
    return with_recipe(system, schedule=schedule)


def muon(system: System) -> System:
    return with_recipe(system, optimizer=Muon(b2=0.98))


def masks(system: System) -> System:
    masking = ScheduledMasking(vocab=system.corruption.vocab, training_rate=FALLING)
    return dataclasses.replace(system, corruption=masking)


def rtd(system: System) -> System:
    """The generator hides all chosen tokens, as in ELECTRA."""
    main = system.towers["main"]
    stack = dataclasses.replace(main.encoder.stack, layers=1)
    generator = dataclasses.replace(main, encoder=dataclasses.replace(main.encoder, stack=stack))
    judge = dataclasses.replace(main, heads={"rtd": FirstTokenDetector()})
    return dataclasses.replace(
        with_recipe(system, clip=ClipByTower()),
        towers={"main": judge, "generator": generator},
        ties=(Difference(path=f"main/{TABLE}", source=f"generator/{TABLE}"),),
        corruption=dataclasses.replace(system.corruption, mask=1.0, random=0.0),
        objective=RTD(weight=10.0),
    )


def hybrid(system: System) -> System:
    masking = system.corruption
    training = vars(masking).get("training_rate")
    rows = HybridMasking(vocab=masking.vocab, rate=masking.rate, training_rate=training)
    return dataclasses.replace(system, corruption=rows, objective=Hybrid())


def arm(lr: float, *changes: Change) -> Change:
    """The function that makes these changes, one after another, with a learning rate."""

    def changed(system: System) -> System:
        for change in changes:
            system = change(system)
        return with_recipe(system, lr=lr)

    return changed


CHANGES: dict[str, tuple[Change, ...]] = {
    "BERT": (),
    "block": (block,),
    "WSD": (wsd,),
    "Muon": (muon,),
    "masks": (masks,),
    "hybrid": (hybrid,),
    "block, WSD, masks": (block, wsd, masks),
    "all but RTD": (block, wsd, muon, masks, hybrid),
    "RTD": (rtd,),
    "all but hybrid": (block, wsd, muon, masks, rtd),
}
RATES = {
    **dict.fromkeys(CHANGES, 1e-3), "block": 2e-3, "block, WSD, masks": 2e-3, "Muon": 2e-3,
    "all but RTD": 4e-3, "all but hybrid": 2e-3,
}  # fmt: skip
AMOUNT = 6e12

start = miniature(bert("", LAYERS, WIDTH, HEADS), "BERT", steps=STEPS, lr=2e-3, std=0.08)
base = dataclasses.replace(
    start,
    towers={"main": network(start, 0.08)},
    corruption=TokenMasking(vocab=start.corruption.vocab),
    recipe=recipe(2e-3),
    tokenizer=speedrun.TOKENIZER,
)
experiment = Experiment(
    system=base, data=speedrun.DATA, heldout=speedrun.HELDOUT, save_every=0, metrics=()
)

study = Study(
    name="modern",
    base=experiment,
    axes=(
        Axis(name="seed", values=(0, 1, 2)),
        Axis(name="way", values={name: arm(RATES[name], *CHANGES[name]) for name in CHANGES}),
        Axis(name="budget", values={"pre-trained": AMOUNT, "one step": 4e9}),
    ),
    budget=Budget(kind="operations", amount=AMOUNT),
    metrics=("mlm_nll", "rtd_accuracy"),
    transfers=(
        Transfer(task="sst2", data="glue/sst2", epochs=1, length=48, lr=3e-4),
        Transfer(
            task="trec6", column="trec", data="classification/trec", epochs=2, length=32, lr=1e-3
        ),
    ),
    keep=lambda labels: labels["budget"] == "pre-trained" or labels["way"] == "BERT",
    pictures=(Picture(x="mlm_nll", y="sst2", by="way"), Picture(x="mlm_nll", y="trec", by="way")),
)

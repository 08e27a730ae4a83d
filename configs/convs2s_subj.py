"""The encoder of ConvS2S on Subj: is a sentence subjective? As `configs/convs2s.py`. Row 20.

    ptm train configs/convs2s_subj.py --data SUBJ_FOLDER --workdir runs/convs2s_subj
    ptm train configs/convs2s_subj.py --data SUBJ_FOLDER --init embeddings=runs/skipgram256 --workdir runs/convs2s_subj_given

Paper: Gehring et al. 2017, arXiv 1705.03122.
Expected: the paper has no figure for classification. Not measured here yet.
"""

import dataclasses

from ptm_jax.core.recipe import SGD, Constant, Phase, Recipe
from ptm_jax.core.spec import with_field
from ptm_jax.encoders.model import Model
from ptm_jax.nn.heads.tasks import Summary
from ptm_jax.systems import get
from ptm_jax.tuning.finetuning import from_scratch

recipe = Recipe(
    phases=(Phase(steps=10 * 54, batch=50, length=128),),
    lr=0.25,
    optimizer=SGD(momentum=0.99, nesterov=True),
    schedule=Constant(),
    clip=0.1,
)
encoder = with_field(get("convs2s_enro").towers["main"].encoder.encoder, "width", 256)
encoder = dataclasses.replace(encoder, convolutions=((256, 3),) * 4, readers=0)
tower = Model(encoder=encoder, heads={"pool": Summary("none", at="mean")})
network = dataclasses.replace(get("textcnn"), name="convs2s", towers={"main": tower})
config = from_scratch(network, "subj", recipe, ("../shared/data/classification/subj",), min_count=2, dropout=0.2)

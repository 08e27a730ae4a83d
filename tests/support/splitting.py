"""Shapes and logical axes of a system's parameters, and how rule tables split them over devices."""

import functools
import hashlib
import math
from pathlib import Path

from ptm_jax import systems
from ptm_jax.core import paths
from ptm_jax.core.errors import UserError
from ptm_jax.core.system import Experiment
from ptm_jax.mesh import padding
from ptm_jax.mesh import rules as tables
from ptm_jax.mesh.axes import NAMES
from ptm_jax.plan import lowering
from ptm_jax.training.steps.step import program

# Together they have every class of layers, and every name of its parameters, of the catalogue.
COVER = """
albert_base_shared_ffn bert_mk_mini cloze_cnn_mini context2vec_mini conve convs2s_mini dcnn_mini
dual_train_mini elmo_mini ernie_thu_mini fasttext_cbow_mini fasttext_mini fasttext_supervised_mini
gated_descriptions glove_mini greedy_rbm_mini ivlbl_mini kepler_mini kglm_mini knowbert_mini
kt_net_mini liu_shared_mini liu_uniform_mini lm_seq2seq_mini lrlm_mini luke_mini luong_mini
mobilebert_mini pv_dm_mini rnnsearch_mini rntn_mini s_lstm_mini senna_mini sensebert_mini
sentilr_mini spanbert_mini syntactic_gcn_mini t5_mini textcnn_mini textcnn_multichannel
transformer_xl_words_mini transformer_xl_wt103_large transh_mini tree_lstm_binary_mini
tree_lstm_mini universal_mini vlbl_mini xlnet_mini
""".split()

GOLDEN = Path(__file__).parents[1] / "mesh" / "golden" / "shardings.txt"


@functools.cache
def hashes():
    """{system: hash} of the golden file, which `tests/mesh/shardings.py` writes."""
    return dict(line.split() for line in GOLDEN.read_text(encoding="utf8").splitlines())


@functools.cache
def abstract(name):
    """The shapes and the logical axes of a system's state."""
    config = lowering.published(Experiment(system=systems.get(name)))
    return program(config.system, 0).abstract(lowering.batch_of(config, 0))


def parameters(name):
    """{path: shape} of a system's parameters."""
    return {path: leaf.shape for path, leaf in paths.flatten(abstract(name)[0].params).items()}


def share_split(name, rules="megatron_fsdp"):
    """The share of a system's parameter bytes that a rule table splits."""
    table, mesh, axes = tables.table(rules), lowering.abstract_mesh({}), abstract(name)[1]
    sizes = {True: 0, False: 0}
    for path, shape in parameters(name).items():
        spec = tables.spec_of(path, shape, axes.of(path, len(shape)), table, mesh)
        sizes[any(spec)] += math.prod(shape)
    return sizes[True] / sum(sizes.values())


SIZES = {"data": 2, "fsdp": 2, "model": 2}
"""The abstract mesh of `lines`."""


def lines(name):
    """For every rule table and leaf of a system's state: the table, the path, the stored shape, and
    the mesh axes of each dimension, or the refusal."""
    (state, axes), mesh = abstract(name), lowering.abstract_mesh(SIZES)
    shapes = {path: leaf.shape for path, leaf in paths.flatten(state).items()}
    names = {path: axes.of(path, len(shape)) for path, shape in shapes.items()}
    for rules, table in tables.PLAIN.items():
        for path, true in shapes.items():
            shape = padding.padded(true, names[path], table, mesh)
            try:
                spec = tables.spec_of(path, shape, names[path], table, mesh)
            except UserError as error:
                yield f"{rules} {path} refused: {error}"
            else:
                yield f"{rules} {path} {'x'.join(map(str, shape))} {_places(spec, len(shape))}"


def _places(spec, rank):
    """The mesh axes of each dimension: "data+fsdp,-,model"."""
    places = [*spec, *(None,) * (rank - len(spec))]
    return ",".join("+".join(tables.as_axes(place)) or "-" for place in places)


def digest(name):
    """A short hash of `lines`."""
    return hashlib.sha256("\n".join(lines(name)).encode()).hexdigest()[:16]


def undeclared(name):
    """The parameters of a system that no layer declares, and declared names that nobody knows."""
    state, axes = abstract(name)
    names = {path: axes.find(path) for path in paths.flatten(state.params)}
    return [path for path, one in names.items() if one is None or {*one} - {*NAMES, None}]

"""What the golden files of Transformer-XL hold, for the script that makes them and the test that
reads them. No torch.

Keys of transfo_xl_<config>.npz: config (JSON of the language model), shapes (JSON) of the
parameters of all classes, their values and gradients one behind the other (`named`), first, second
and padded (ids; -1 is padding), label, and <class>/<run>/<what>: scores, loss; of the second row
states, maps and mems [N, ...]. Gradients are of the sum of all losses.
"""

import json
from pathlib import Path

import numpy as np

WORDS, PAD, LENGTH = 31, 30, 6
LM, CLASSIFIER, BARE = (
    "TransfoXLLMHeadModel",
    "TransfoXLForSequenceClassification",
    "TransfoXLModel",
)
RUNS = ("first", "second", "padded")
"""Two rows of a text, the second with the memory of the first, and rows of several lengths."""

CONFIGS = {
    "released": dict(cutoffs=[7, 15], div_val=2, d_model=8, d_embed=8, d_head=3, same_length=True,
    clamp_len=2, mem_len=5),
    "flat": dict(
        cutoffs=[9, 20], div_val=1, d_model=10, d_embed=6, d_head=5, untie_r=False,
        same_length=False, clamp_len=-1,
        mem_len=4, proj_share_all_but_first=False,
    ),
    "before": dict(
        cutoffs=[12], div_val=3, d_model=8, d_embed=8, d_head=4, pre_lnorm=True, mem_len=0,
        same_length=False,
        tie_word_embeddings=False, num_labels=1,
    ),
    "single": dict(
        cutoffs=[], div_val=1, d_model=6, d_embed=6, d_head=2, n_head=3, n_layer=1, mem_len=3,
        same_length=False,
        clamp_len=2, layer_norm_epsilon=1e-3, untie_r=False,
    ),
    "all": dict(
        cutoffs=[5, 11, 19], div_val=1, d_model=8, d_embed=4, d_head=2, same_length=True, mem_len=9,
        tie_projs=[True] * 4,
        tie_word_embeddings=False, pre_lnorm=True,
    ),
    "several": dict(
        cutoffs=[10, 20], div_val=2, d_model=12, d_embed=12, d_head=6, n_layer=3, same_length=True,
        mem_len=7, untie_r=False,
        problem_type="multi_label_classification",
    ),
}  # fmt: skip


def file(name: str) -> Path:
    return Path(__file__).parents[1] / "golden" / f"transfo_xl_{name}.npz"


def fields(name: str) -> dict:
    common = dict(
        vocab_size=WORDS,
        pad_token_id=PAD,
        n_layer=2,
        n_head=2,
        d_inner=9,
        num_labels=3,
        eos_token_id=0,
    )
    return {**common, **CONFIGS[name]}


def classes(name: str) -> tuple[str, ...]:
    """Those that have a head; the library's classifier reads states as wide as the embeddings."""
    found = fields(name)
    return (LM, CLASSIFIER) if found["d_model"] == found["d_embed"] else (LM,)


def named(parts, which: str) -> dict[str, np.ndarray]:
    """{name: array} of the `values` or `gradients` in a file."""
    found, begin = {}, 0
    for name, shape in json.loads(str(parts["shapes"])).items():
        size = int(np.prod(shape))
        found[name] = parts[which][begin : begin + size].reshape(shape)
        begin += size
    return found


def published(parts, name: str) -> dict[str, tuple[dict, dict[str, np.ndarray]]]:
    """{class: (config, tensors)} of a file, the bare class with them."""
    found, values = {}, named(parts, "values")
    for kind in (*classes(name), BARE):
        mine = ("transformer.", {LM: "crit.", CLASSIFIER: "score.", BARE: "transformer."}[kind])
        root = "transformer." if kind == BARE else ""
        config = {**json.loads(str(parts["config"])), "architectures": [kind]}
        found[kind] = (
            config,
            {
                key.removeprefix(root): value
                for key, value in values.items()
                if key.startswith(mine)
            },
        )
    return found

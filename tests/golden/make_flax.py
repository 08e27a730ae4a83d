"""Writes the golden Flax checkpoints: small random models as Transformers 4 saved them, and the
same converted by it.

Transformers 5 has no Flax models: run this in a second environment with transformers==4.57.6, jax,
flax and torch. Each folder of tests/golden/flax then holds flax_model.msgpack of the Flax class,
and model.safetensors of the torch class that Transformers' own conversion filled from it. The files
are read by tests/convert/test_files.py.
"""

import shutil
import tempfile
from pathlib import Path

import jax
import numpy as np

MODELS = {
    "bert": (
        "BertForPreTraining",
        "BertConfig",
        dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2),
    ),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", dict(n_embd=8, n_layer=1, n_head=2, n_positions=6)),
}
SMALL = {"bert": dict(intermediate_size=12, max_position_embeddings=6), "gpt2": {}}


def main():
    """One folder per model: flax_model.msgpack and model.safetensors."""
    import transformers
    from transformers.modeling_flax_pytorch_utils import load_flax_weights_in_pytorch_model

    for family, (name, config, sizes) in MODELS.items():
        config = getattr(transformers, config)(vocab_size=13, **sizes, **SMALL[family])
        flax, peer = (
            getattr(transformers, f"Flax{name}")(config, seed=1),
            getattr(transformers, name)(config),
        )

        # biases and scales are drawn too
        def noise(leaf):
            return np.random.default_rng(leaf.size).standard_normal(leaf.shape).astype("f4")

        flax.params = jax.tree.map(lambda leaf: np.asarray(leaf) + noise(leaf), flax.params)
        folder = Path(__file__).parent / "flax" / family
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as draft:
            flax.save_pretrained(draft)
            load_flax_weights_in_pytorch_model(peer, flax.params).save_pretrained(draft)
            for file in ("flax_model.msgpack", "model.safetensors"):
                shutil.copy(Path(draft) / file, folder / file)


if __name__ == "__main__":
    main()

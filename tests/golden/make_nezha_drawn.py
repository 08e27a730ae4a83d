"""Writes nezha_drawn.npz: what transformers 4.57.6 answers for twelve drawn configs of NEZHA.

In an environment with transformers 4.57.6, torch (2.13.0 was used) and this package:
    PYTHONPATH=.:tests:tests/convert python tests/golden/make_nezha_drawn.py
"""

import json
import tempfile
from pathlib import Path

import golden_nezha_drawn as golden
import numpy as np
import peers
import torch
from safetensors.numpy import load_file


def main():
    assert peers.transformers.__version__ == "4.57.6", peers.transformers.__version__
    parts = {}
    for number in range(golden.NUMBER):
        recorded = answers(number)
        parts |= {f"{number}/{key}": value for key, value in recorded.items()}
    np.savez_compressed(golden.FILE, **parts)
    print(f"{golden.FILE.name}: {golden.FILE.stat().st_size:,} bytes")


def answers(number):
    """{key: array} of one config."""
    case, given = golden.case(peers, number), golden.inputs(peers, number)
    config = peers.transformers.NezhaConfig(**golden.fields(number))
    model = getattr(peers.transformers, case.name)(config).eval()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        saved = load_file(Path(folder) / "model.safetensors")
        fields = json.loads((Path(folder) / "config.json").read_text())
    shapes = {name: list(value.shape) for name, value in saved.items()}
    drawn = golden.weights(number, shapes)
    drawn = {name: torch.tensor(value) for name, value in drawn.items()}
    missing = model.load_state_dict(drawn, strict=False)
    assert not missing.unexpected_keys, missing
    model.tie_weights()
    out, grads = peers.run_torch(model, case, given)
    names = ["loss", *(case.of(task)[1] for task in case.tasks)]
    parts = {f"out/{name}": out[name].detach().numpy() for name in names}
    for kind, arrays in (("states", out.hidden_states), ("maps", out.attentions)):
        parts |= {f"{kind}/{n}": array.detach().numpy() for n, array in enumerate(arrays)}
    parts |= {f"grad/{name}": value for name, value in grads.items()}
    layout = {key: list(array.shape) for key, array in parts.items()}
    facts = {"config": fields, "shapes": shapes, "layout": layout}
    floats = np.concatenate([np.ravel(array) for array in parts.values()])
    return {"floats": floats, "facts": np.array(json.dumps(facts))}


if __name__ == "__main__":
    main()

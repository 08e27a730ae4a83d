"""Writes nezha.npz: small random models of NEZHA and what transformers 4.57.6 answers, the last
4.x, as 5 has no NEZHA.

In an environment of its own with transformers 4.57.6, torch (2.13.0 was used) and this package:
    PYTHONPATH=.:tests/convert python tests/golden/make_nezha.py
Before it stores a config it compares everything with ours, and reads what we export: bit-equal.
"""

import json
import tempfile
from pathlib import Path

import golden_nezha
import numpy as np
import peers
from safetensors.numpy import load_file


def main():
    assert peers.transformers.__version__ == "4.57.6", peers.transformers.__version__
    parts = {}
    for name in golden_nezha.CONFIGS:
        with tempfile.TemporaryDirectory() as folder:
            parts |= {f"{name}/{key}": value for key, value in answers(name, Path(folder)).items()}
    np.savez_compressed(golden_nezha.FILE, **parts)
    print(f"{golden_nezha.FILE.name}: {golden_nezha.FILE.stat().st_size:,} bytes")


def answers(name, folder):
    """{key: array} of one config."""
    config, given, group = (
        peers.transformers.NezhaConfig(**golden_nezha.fields(name)),
        golden_nezha.inputs(peers, name),
        golden_nezha.group(peers),
    )
    peers.compare(folder / "ours", config, group, given, atol=golden_nezha.atol(name))
    parts = {f"given/{key}": value for key, value in given.items()}
    for model, case in zip(peers.torch_models(config, group), group, strict=True):
        model.save_pretrained(folder / case.name)
        for key, value in load_file(folder / case.name / "model.safetensors").items():
            if case.tasks:
                parts[
                    "shared/" + key if golden_nezha.shared(key) else f"{case.name}/tensor/{key}"
                ] = value
            elif "pooler" in key:
                parts[f"{case.name}/tensor/{key}"] = value
        fields = json.loads((folder / case.name / "config.json").read_text())
        parts[f"{case.name}/config"] = np.array(json.dumps(fields, sort_keys=True))
        out, grads = peers.run_torch(model, case, given)
        if not case.tasks:
            parts |= {
                f"states/{n}": state.detach().numpy() for n, state in enumerate(out.hidden_states)
            }
            parts |= {f"maps/{n}": maps.detach().numpy() for n, maps in enumerate(out.attentions)}
            continue
        parts |= {f"{case.name}/out/{key}": out[key].detach().numpy() for key in outputs(case)}
        for key, value in grads.items():
            if golden_nezha.shared(key):
                parts[f"grads/{key}"] = parts.get(f"grads/{key}", 0) + value
            else:
                parts[f"{case.name}/grad/{key}"] = value
    return parts


def outputs(case):
    """Names of the loss and the scores."""
    named = [case.of(task)[1] for task in case.tasks]
    return [
        "loss",
        *(key for names in named for key in ((names,) if isinstance(names, str) else names)),
    ]


if __name__ == "__main__":
    main()

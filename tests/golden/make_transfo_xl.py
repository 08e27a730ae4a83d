"""Writes transfo_xl_*.npz: small random Transformer-XLs and what transformers 4.35.2 answers, whose
classes 5 has no more.

    PYTHONPATH=tests/convert python tests/golden/make_transfo_xl.py

In an environment of its own with transformers 4.35.2, numpy 1.26.4 and torch 2.13.0; with
USE_FLAX=0 where jax is installed beside numpy 1. That release read what this package exported from
these files: every tensor, output and loss was bit-equal.
"""

import json
import warnings

import numpy as np
from golden_transfo_xl import (
    BARE,
    CLASSIFIER,
    CONFIGS,
    LENGTH,
    LM,
    PAD,
    RUNS,
    WORDS,
    classes,
    fields,
    file,
)

IGNORED = -100


def answers():
    """Stores the tensors, inputs and outputs of every config."""
    import torch
    import transformers

    assert transformers.__version__ == "4.35.2", transformers.__version__
    for number, name in enumerate(CONFIGS):
        config = transformers.TransfoXLConfig(**fields(name))
        torch.manual_seed(number)
        models = [randomised(getattr(transformers, kind)(config)) for kind in classes(name)]
        for model in models[1:]:
            model.transformer.load_state_dict(models[0].transformer.state_dict())
        parts = inputs(name, np.random.default_rng(number))
        parts["config"] = np.array(
            json.dumps({**config.to_dict(), "architectures": [LM]}, sort_keys=True)
        )
        values = {key: value for model in models for key, value in stored(model).items()}
        grads = gradients(models, parts)
        parts["shapes"] = np.array(json.dumps({key: value.shape for key, value in values.items()}))
        parts["values"] = np.concatenate([value.ravel() for value in values.values()])
        parts["gradients"] = np.concatenate([grads[key].ravel() for key in values])
        parts |= {key: value for model in models for key, value in outputs(model, parts).items()}
        np.savez_compressed(file(name), **parts)
        print(f"{file(name).name}: {file(name).stat().st_size:,} bytes")


def randomised(model):
    """Weights far from their initial values, norms around one."""
    import torch

    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(torch.randn_like(p) * 0.3 + float("layer_norm.weight" in name))
    return model.eval()


def stored(model):
    """{name: array} as in a file: every shared tensor once."""
    return {name: p.detach().numpy().copy() for name, p in model.named_parameters()}


def inputs(name, draw):
    """Two rows of a text, and rows of lengths 1 to the greatest, filled up on the right."""
    first, second, padded = draw.integers(0, PAD, (3, 4, LENGTH))
    padded[np.arange(LENGTH) >= np.array([LENGTH, 1, 3, LENGTH - 1])[:, None]] = -1
    count, problem = fields(name)["num_labels"], fields(name).get("problem_type")
    label = draw.integers(0, count, 4)
    if count == 1:
        label = draw.normal(size=4).astype(np.float32)
    elif problem:
        label = draw.integers(0, 2, (4, count)).astype(np.float32)
    return {"first": first, "second": second, "padded": padded, "label": label}


def run(model, parts):
    """{run: output}: the first two in turn; a classifier reads the padded rows alone."""
    import torch

    kind, found, mems = type(model).__name__, {}, None
    for name in RUNS[-1:] if kind == CLASSIFIER else RUNS:
        ids, words = (
            torch.tensor(parts[name]),
            dict(output_hidden_states=True, output_attentions=True),
        )
        if kind != BARE:
            words["labels"] = (
                torch.tensor(parts["label"])
                if kind == CLASSIFIER
                else torch.where(ids < 0, IGNORED, ids)
            )
        found[name] = model(
            torch.where(ids < 0, PAD, ids), mems=mems if name == "second" else None, **words
        )
        mems = found[name].mems
    return found


def outputs(model, parts):
    """{<class>/<run>/<what>: array}; those of the bare class are the language model's."""
    import torch

    kind, found = type(model).__name__, {}
    for name, out in run(model, parts).items():
        if kind != BARE:
            found[f"{kind}/{name}/loss"] = out.loss
            found[f"{kind}/{name}/scores"] = (
                out.logits if kind == CLASSIFIER else scores(model, out)
            )
        if name == "second":
            lists = {"states": out.hidden_states, "maps": out.attentions, "mems": out.mems}
            found |= {
                f"{LM}/{name}/{key}": torch.stack(list(all)) for key, all in lists.items() if all
            }
    return {key: value.detach().numpy() for key, value in found.items()}


def scores(model, out):
    """log p(word), which the class does not return beside a loss."""
    return model.crit(out.hidden_states[-1]).view(4, LENGTH, WORDS)


def gradients(models, parts):
    """{name: array} of the sum of all losses; the encoder's is the sum over the classes."""
    total = {}
    for model in models:
        sum(out.loss for out in run(model, parts).values()).backward()
        for name, p in model.named_parameters():
            value = np.zeros(p.shape, np.float32) if p.grad is None else p.grad.numpy()
            total[name] = total.get(name, 0) + value
    return total


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    answers()

"""Writes the golden parity files: small random models of the `transformers` library and what they answer.

Run by `make golden`; needs torch and transformers. The files are read by tests/encoders/test_transformer.py.
"""

import numpy as np
from golden_families import FAMILIES, arrays, path_of


def main():
    """One npz per family: param/<path>, input/<name>, output/<name>."""
    import golden_oracles
    import torch

    for family in FAMILIES:
        model, given = golden_oracles.build(family), arrays(family)
        with torch.no_grad():
            found = golden_oracles.run(family, model, given)
        parts = {f"param/{k}": v for k, v in golden_oracles.tree(family, golden_oracles.parameters(model)).items()}
        parts |= {f"input/{k}": v for k, v in given.items()}
        parts |= {f"output/{k}": v.numpy() for k, v in found.items()}
        np.savez_compressed(path_of(family), **parts)
        print(f"{path_of(family).name}: {path_of(family).stat().st_size:,} bytes")


if __name__ == "__main__":
    main()

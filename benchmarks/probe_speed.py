"""Probes of all layers of MiniLM here and in torch: seconds of the states and of the probes.

    python -m benchmarks.probe_speed --model PATH/TO/MiniLM --data FILE.conllu

Both make the states of every layer for words (the mean over pieces, sentences of similar length in
a batch), and train a linear probe of `upos` for each layer, all in one product, with Adam, the same
batches and epochs. Torch is transformers' BertModel in float32, by the faster of its two kinds of
attention. Both take turns, `--rounds` times after one that is not counted; the table has the best
seconds. `cached` is ours with the states on disk, as the second probe of `ptm probe` has them.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import ptm_jax
from ptm_jax.inference.pretrained import Pretrained
from ptm_jax.tasks.probes import linear_probes, probe_data, word_states

BATCH = 32


class Work(NamedTuple):
    """Words of sentences, the ids of their pieces, their sizes in pieces, and numbers of labels."""

    words: Sequence[Sequence[str]]
    ids: Sequence[np.ndarray]
    sizes: Sequence[np.ndarray]
    labels: np.ndarray


def work_of(model: Pretrained, file: Path) -> Work:
    sentences = probe_data.sentences_of(file)
    words = [sentence.words for sentence in sentences]
    pieces = [model.ids_of(list(several)) for several in words]
    ids = [np.concatenate([row[1:-1] for row in rows]) for rows in pieces]
    sizes = [np.array([len(row) - 2 for row in rows]) for rows in pieces]
    _, labels = np.unique(probe_data.labelled(sentences, "upos").labels, return_inverse=True)
    return Work(words, ids, sizes, labels.astype(np.int32))


class InTorch:
    """The same work in torch and transformers."""

    def __init__(self, path: str, attention: str):
        import torch
        from transformers import BertModel

        self.torch = torch
        self.model = BertModel.from_pretrained(path, attn_implementation=attention).eval()

    def states(self, model: Pretrained, work: Work) -> np.ndarray:
        """Returns the states [words, N+1, D] of the words."""
        torch = self.torch
        starts = np.cumsum([0, *map(len, work.sizes)])
        result = np.zeros((starts[-1], self.model.config.num_hidden_layers + 1, 384), np.float16)
        order = np.argsort([len(row) for row in work.ids], kind="stable")
        for begin in range(0, len(order), BATCH):
            chosen = order[begin : begin + BATCH]
            rows = [[model.vocab.cls, *work.ids[i], model.vocab.sep] for i in chosen]
            width = max(map(len, rows))
            ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
            mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
            with torch.inference_mode():
                layers = self.model(ids, mask, output_hidden_states=True).hidden_states
            layers = torch.stack(layers, 2).numpy()
            for states, i in zip(layers, chosen, strict=True):
                ends = np.cumsum(work.sizes[i])
                sums = np.add.reduceat(states[1 : 1 + ends[-1]], ends - work.sizes[i], axis=0)
                result[starts[i] : starts[i + 1]] = sums / work.sizes[i][:, None, None]
        return result

    def probes(self, states: np.ndarray, work: Work, epochs: int) -> np.ndarray:
        """Trains the probes as `linear_probes.train` does, with the loss of held-out rows, and
        returns their kernels [N+1, D, C]."""
        torch, draw = self.torch, np.random.default_rng(0)
        order = draw.permutation(len(states))
        held, rows = order[: len(states) // 10], order[len(states) // 10 :]
        sample = states[np.sort(rows[:20_000])].astype(np.float32)
        mean, scale = (
            torch.tensor(sample.mean(0)),
            torch.tensor(1 / np.maximum(sample.std(0), 1e-6)),
        )
        labels, classes = torch.tensor(work.labels, dtype=torch.long), work.labels.max() + 1
        kernel = torch.zeros(states.shape[1], states.shape[2], classes, requires_grad=True)
        bias = torch.zeros(states.shape[1], 1, classes, requires_grad=True)
        adam = torch.optim.Adam([kernel, bias], lr=1e-3, fused=True)

        def loss(chosen: np.ndarray):
            block = torch.from_numpy(states[chosen].astype(np.float32))
            block = ((block - mean) * scale).transpose(0, 1)
            logits = torch.baddbmm(bias, block, kernel).transpose(1, 2)
            targets = labels[chosen].expand(len(logits), -1)
            return torch.nn.functional.cross_entropy(logits, targets, reduction="none").mean(1)

        for _ in range(epochs):
            shuffled = draw.permutation(rows)
            for begin in range(0, len(shuffled), size_of(len(rows))):
                adam.zero_grad()
                loss(shuffled[begin : begin + size_of(len(rows))]).sum().backward()
                adam.step()
            with torch.inference_mode():
                [loss(held[b : b + linear_probes.BATCH]) for b in range(0, len(held), 256)]
        return kernel.detach().numpy()


def size_of(rows: int) -> int:
    """Returns the rows of a batch, as `linear_probes.train` takes them."""
    size = 16
    while size < linear_probes.BATCH and 64 * size <= rows:
        size *= 2
    return size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()
    model = ptm_jax.load(args.model)
    work = work_of(model, args.data)
    peers = {kind: InTorch(args.model, kind) for kind in ("eager", "sdpa")}
    classes = int(work.labels.max()) + 1
    with tempfile.TemporaryDirectory() as folder:
        states = word_states.of_sentences(model, work.words, Path(folder), BATCH).states

        def probes() -> np.ndarray:
            probe = linear_probes.train(states, work.labels, classes, epochs=args.epochs)
            return np.asarray(probe.params["kernel"])

        parts: dict[str, Callable[[], Any]] = {
            "states, here": lambda: word_states.of_sentences(model, work.words, None, BATCH),
            "states cached, here": lambda: np.array(
                word_states.of_sentences(model, work.words, Path(folder), BATCH).states
            ),
            "probes, here": probes,
            **{f"states, torch {k}": lambda k=k: peers[k].states(model, work) for k in peers},
            "probes, torch": lambda: peers["sdpa"].probes(states, work, args.epochs),
        }
        gap = np.abs(peers["sdpa"].states(model, work) - np.asarray(states, np.float32)).max()
        same = np.corrcoef(probes().ravel(), parts["probes, torch"]().ravel())[0, 1]
        print(f"{len(work.words)} sentences, {len(states)} words; the states differ by {gap:.1e}")
        print(f"correlation of the probes' weights {same:.5f}")
        seconds: dict[str, list[float]] = {name: [] for name in parts}
        for _ in range(args.rounds + 1):
            for name, part in parts.items():
                start = time.perf_counter()
                part()
                seconds[name].append(time.perf_counter() - start)
    print("| part | seconds |\n|---|---|")
    for name, several in seconds.items():
        print(f"| {name} | {min(several[1:]):.2f} |")


if __name__ == "__main__":
    main()

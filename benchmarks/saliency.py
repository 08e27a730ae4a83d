"""Saliency: which method finds planted evidence, and the speed of integrated gradients beside
captum.

    python -m benchmarks.saliency planted
    python -m benchmarks.saliency speed --model MINILM

planted   A Transformer and a BiLSTM with attention are trained on texts of 20 words: five for the
          class, three for the other one. Precision at 5 of each method over held-out texts, with
          comprehensiveness and sufficiency.
speed     Seconds of a text with 50 nodes, of our function and of captum's LayerIntegratedGradients
          (method gausslegendre, all nodes in one batch, and in batches of ours), on the same
          weights and tokens. Both take turns; the median counts. Needs captum and transformers.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import ptm_jax
from ptm_jax.convert import checkpoint
from ptm_jax.core import spec, towers
from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Vocab
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.data.tokenizers.vocabularies import make
from ptm_jax.inference.pretrained import Pretrained
from ptm_jax.inference.saliency import attributions, faithfulness
from ptm_jax.nn.initializers import Normal
from ptm_jax.systems.transformers import bert_gpt

EVIDENCE = {
    "yes": "good great fine lovely superb brilliant".split(),
    "no": "bad awful poor dull weak dreadful".split(),
}
"""{class: the words that decide it}."""
OTHERS = (
    "the a film story plot actor scene camera music this was is very so and but with of in on one "
    "year night house city man woman end start part"
).split()
COUNT, AGAINST, WORDS = 5, 3, 20
"""Words of a text for its class, words for the other class, and all words."""
ATTENTIVE = ("embedding", "bilstm(hidden=16)", "attentive(width=16)")
MODELS = {
    "Transformer": ((), AGAINST, 2e-3),
    "BiLSTM with attention": (ATTENTIVE, AGAINST, 1e-2),
    "Transformer, no words against the class": ((), 0, 2e-3),
}
"""{model: its adaptations, words for the other class in a text, learning rate}."""


def text_of(label: str, draw: np.random.Generator, against: int = AGAINST) -> str:
    """Returns a text of a class."""
    counts = {label: COUNT, {"yes": "no", "no": "yes"}[label]: against}
    evidence = [word for name, n in counts.items() for word in draw.choice(EVIDENCE[name], n)]
    words = [*draw.choice(OTHERS, WORDS - len(evidence)), *evidence]
    return " ".join(draw.permutation(words))


def untrained() -> Pretrained:
    """Returns a Transformer of two layers whose vocabulary has these words."""
    import jax

    words = [*OTHERS, *EVIDENCE["yes"], *EVIDENCE["no"]]
    rules = TokenizerSpec(kind="word", specials="bert", vocab=5 + len({*words}))
    tokenizer = make(rules, [" ".join(words)] * 4)
    system = spec.respell(bert_gpt.bert("evidence", 2, 32, 2), Vocab, tokenizer.vocab)
    system = spec.with_field(system, "initializer", Normal(0.1))
    params = towers.init(system.towers, jax.random.key(0), checkpoint.example(system))
    return Pretrained(system, jax.tree.map(np.asarray, params), tokenizer)


def trained(folder: Path, name: str = "Transformer", texts: int = 480) -> Pretrained:
    """Returns one of `MODELS`."""
    adapt, against, rate = MODELS[name]
    draw = np.random.default_rng(0)
    labels = [*EVIDENCE] * (texts // len(EVIDENCE))
    return ptm_jax.finetune(
        untrained(), [text_of(label, draw, against) for label in labels], labels, workdir=folder,
        adapt=adapt, epochs=8, batch=16, length=32, lr=rate, quiet=True,
    )  # fmt: skip


def measured(
    model: Pretrained, texts: int = 20, against: int = AGAINST
) -> dict[str, dict[str, float]]:
    """Returns {method: precision at 5, sufficiency and comprehensiveness} of texts with evidence;
    a method that the model has not is left out."""
    draw, results = np.random.default_rng(1), {}
    for number in range(texts):
        label = ("yes", "no")[number % 2]
        function = attributions.function_of(model, text_of(label, draw, against), label)
        for method in attributions.METHODS:
            try:
                one = attributions.explained(function, method, steps=20, samples=200)
            except UserError:
                continue
            best = np.argsort(-one.scores, kind="stable")[:COUNT]
            precision = np.mean([one.pieces[i] in EVIDENCE[label] for i in best])
            figures = {"precision at 5": float(precision)}
            figures |= faithfulness.faithfulness(function, one.scores)
            results.setdefault(method, []).append(figures)
    return {
        method: {name: float(np.mean([one[name] for one in several])) for name in several[0]}
        for method, several in results.items()
    }


def planted() -> None:
    """Prints the table of both models."""
    for name, (_, against, _) in MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            model = trained(Path(folder) / "run", name)
            draw = np.random.default_rng(2)
            labels = [*EVIDENCE] * 30
            scores = model.classify([text_of(label, draw, against) for label in labels])
            right = [max(s, key=s.get) == label for s, label in zip(scores, labels, strict=True)]
            print(f"\n{name}: accuracy {np.mean(right):.3f}, chance at 5 {COUNT / WORDS:.2f}\n")
            table = measured(model, against=against)
        head = list(next(iter(table.values())))
        print("| method | " + " | ".join(head) + " |\n|" + "---|" * (1 + len(head)))
        for method, figures in table.items():
            print(f"| `{method}` | " + " | ".join(f"{figures[n]:.3f}" for n in head) + " |")


def speed(path: str, lengths: tuple[int, ...], rounds: int, nodes: int) -> None:
    """Prints the seconds of a text."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        peer = AutoModelForSequenceClassification.from_pretrained(path, num_labels=2).eval()
        peer.save_pretrained(folder)
        AutoTokenizer.from_pretrained(path).save_pretrained(folder)
        model = ptm_jax.load(folder)
    words = "the city of the old king was very far from this house and we saw it".split()
    for length in lengths:
        text = " ".join((words * length)[: length - 2])
        timed(attributions.function_of(model, text), peer, rounds, nodes)


def timed(function: attributions.Function, peer: Any, rounds: int, nodes: int) -> None:
    """Prints the seconds of both sides for a text."""
    import torch
    from captum.attr import LayerIntegratedGradients

    ids, missing = (torch.tensor(row[None]).long() for row in (function.ids, function.missing()))

    def forward(ids):
        return torch.log_softmax(peer(input_ids=ids).logits, -1)[:, function.index]

    explain = LayerIntegratedGradients(forward, peer.get_input_embeddings())

    def theirs(size):
        settings = {"n_steps": nodes, "method": "gausslegendre", "internal_batch_size": size}
        scores = explain.attribute(ids, missing, **settings)
        return scores.detach().sum(-1).numpy()[0, function.text]

    def ours():
        return attributions.explained(function, "integrated_gradients", steps=nodes).scores

    sides: dict[str, Callable] = {"ptm_jax": ours, "captum": lambda: theirs(None)}
    sides["captum, batches of 16"] = lambda: theirs(16)
    apart = max(float(np.abs(side() - ours()).max()) for side in sides.values())
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            start = time.perf_counter()
            side()
            seconds[name].append(time.perf_counter() - start)
    print(f"\n{len(function.ids)} tokens, {nodes} nodes, scores at most {apart:.1e} apart")
    for name, several in seconds.items():
        print(f"{name:22} {np.median(several):.3f} s ({min(several):.3f} to {max(several):.3f})")
    best = min(np.median(seconds[name]) for name in sides if name != "ptm_jax")
    print(f"{'captum over ptm_jax':22} {best / np.median(seconds['ptm_jax']):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("planted", "speed"))
    parser.add_argument("--model", help="a folder of a published encoder, such as MiniLM")
    parser.add_argument("--lengths", type=int, nargs="+", default=(32, 128))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--nodes", type=int, default=50)
    options = parser.parse_args()
    if options.part == "planted":
        planted()
    else:
        speed(options.model, tuple(options.lengths), options.rounds, options.nodes)


if __name__ == "__main__":
    main()

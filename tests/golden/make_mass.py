"""Writes mass_released.npz: draws and results of the released noise of XLM and fragments of MASS.

In an environment with torch (2.13.0 was used), with clones of the two repositories:
    python tests/golden/make_mass.py FOLDER_OF_MASS FOLDER_OF_XLM [FILE]

facebookresearch/XLM was read at commit cd281d32, microsoft/MASS at 779f22fc. The functions are
read from the clones (`HEAD`) and run with a numpy and a torch whose draws are recorded. A draw is
saved in the form that this package takes: the order of a shuffle and a choice among fates are
numbers in [0, 1) that lead to the same order and the same fate.
"""

import argparse
import ast
import random
import subprocess
import textwrap
from pathlib import Path
from types import MethodType, SimpleNamespace

import numpy as np
import torch

EOS, PAD, MASK, SPECIAL, WORDS = 1, 2, 5, 14, 100  # SPECIAL: the first id of a word
LENGTH = 24
NOISE = ("xlm/trainer.py", ("word_shuffle", "word_dropout", "word_blank", "add_noise"))
UNSUPERVISED = (
    "MASS-unsupNMT/src/trainer.py",
    ("mask_word", "unfold_segments", "shuffle_segments", "get_segments", "restricted_mask_sent"),
)
SUPERVISED = (
    "MASS-supNMT/mass/masked_language_pair_dataset.py",
    ("__getitem__", "mask_start", "mask_word", "random_word", "mask_interval"),
)
WHOLE = 100_000  # a span that no sentence reaches: one fragment
CASES = {"one": (WHOLE, 15), "even": (WHOLE, 13), "pieces": (3, 20), "pieces2": (2, 9)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mass", type=Path, help="a clone of microsoft/MASS")
    parser.add_argument("xlm", type=Path, help="a clone of facebookresearch/XLM")
    default = Path(__file__).with_name("mass_released.npz")
    parser.add_argument("file", type=Path, nargs="?", default=default)
    given = parser.parse_args()
    generator = np.random.default_rng(0)
    parts = prefixed("noise", noise(given.xlm, generator))
    for name, (span, length) in CASES.items():
        parts |= prefixed(name, unsupervised(given.mass, generator, span, length))
    parts |= prefixed("sup", supervised(given.mass, generator))
    np.savez_compressed(given.file, **{key: narrow(value) for key, value in parts.items()})
    print(f"{given.file.name}: {given.file.stat().st_size:,} bytes")


def prefixed(name, arrays):
    return {f"{name}_{key}": value for key, value in arrays.items()}


def narrow(array):
    return array.astype(np.float32 if array.dtype.kind == "f" else np.int16)


class Draws:
    """numpy.random from a seed; `log` has a pair (function, value) of each draw."""

    def __init__(self, seed):
        self.source, self.log = np.random.RandomState(seed), []

    def kept(self, name, value):
        self.log.append((name, value))
        return value

    def of(self, name):
        return [value for kind, value in self.log if kind == name]

    def uniform(self, low, high, size):
        return low + (high - low) * self.kept("uniform", self.source.uniform(0, 1, size))

    def rand(self, *shape):
        return self.kept("rand", self.source.rand(*shape))

    def randint(self, low, high=None, size=None):
        return self.kept("randint", self.source.randint(low, high, size=size))

    def random(self):
        return self.kept("random", self.source.random_sample())


class Choices:
    """The part of torch that the functions of MASS use; `log` has the result of each choice."""

    def __init__(self, tensor):
        self.LongTensor, self.log = tensor, []

    def multinomial(self, *args, **options):
        self.log.append(torch.multinomial(*args, **options))
        return self.log[-1]


class Shuffles:
    """random.shuffle from a seed; `log` has the order of each shuffle."""

    def __init__(self, seed):
        self.source, self.log = random.Random(seed), []

    def shuffle(self, items):
        order = list(range(len(items)))
        self.source.shuffle(order)
        items[:] = [items[at] for at in order]
        self.log.append(order)


class Words:
    """The vocabulary of a dataset of fairseq."""

    eos_index, mask_index, nspecial = EOS, MASK, SPECIAL

    def __len__(self):
        return WORDS


class Sentence(list):
    """A row of a dataset of fairseq."""

    def tolist(self):
        return list(self)


def released(folder, part, modules, **fields):
    """An object with these fields and with the methods of a file of a clone as (path, names).

    The first definition of each name counts. `modules` are the modules the methods find."""
    path, names = part
    command = ["git", "-C", str(folder), "show", f"HEAD:{path}"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    holder, found = SimpleNamespace(**fields), dict(modules)
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    for name in names:
        node = next(node for node in nodes if node.name == name)
        exec(textwrap.dedent(ast.get_source_segment(text, node)), found)
        setattr(holder, name, MethodType(found[name], holder))
    return holder


def recording_numpy(draws):
    """numpy with these draws as numpy.random."""
    names = [name for name in dir(np) if not name.startswith("__")]
    return SimpleNamespace(**{name: getattr(np, name) for name in names} | {"random": draws})


def long(array):
    return torch.from_numpy(np.asarray(array, np.int64))


def noise(folder, generator):
    """Arrays of one batch of XLM's `add_noise`: at least half its sentences have two words."""
    sizes = [*generator.integers(4, LENGTH + 1, 30), *[4] * 30]
    sizes = np.array(sorted(sizes, reverse=True))
    ids = np.full((len(sizes), LENGTH), PAD)
    for row, size in zip(ids, sizes, strict=True):
        row[0] = row[size - 1] = EOS
        row[1 : size - 1] = generator.integers(SPECIAL, WORDS, size - 2)
    draws = Draws(1)
    params = SimpleNamespace(word_shuffle=3, word_dropout=0.4, word_blank=0.1)
    params.eos_index, params.pad_index, params.mask_index = EOS, PAD, MASK
    modules = {"np": recording_numpy(draws), "torch": torch}
    trainer = released(folder, NOISE, modules, params=params)
    out, out_sizes = trainer.add_noise(long(ids.T), long(sizes))
    out = out.numpy().T
    (moved,), (dropped, blanked) = draws.of("uniform"), draws.of("rand")
    moved, dropped, blanked = (padded(draw.T, 1.0) for draw in (moved, dropped, blanked))
    return {
        "ids": ids,
        "length": sizes,
        "moved": moved,
        "dropped": dropped,
        "blanked": blanked,
        "rescued": rescue(draws.of("randint"), dropped, sizes),
        "out": padded(out, PAD),
        "out_length": out_sizes.numpy(),
    }


def padded(rows, value):
    out = np.full((len(rows), LENGTH), value)
    out[:, : rows.shape[1]] = rows
    return out


def rescue(chosen, dropped, sizes):
    """Numbers whose greatest in a row is at the word that XLM keeps where all would be dropped."""
    numbers, chosen = np.tile(np.linspace(0.9, 0.1, LENGTH), (len(sizes), 1)), list(chosen)
    for row, size in enumerate(sizes):
        if (dropped[row, 1 : size - 1] < 0.4).all():
            numbers[row, int(chosen.pop(0))] = 0.95
    assert not chosen, chosen
    return numbers


def unsupervised(folder, generator, span, length):
    """Arrays of one batch of `restricted_mask_sent` of MASS, with fragments of `span` tokens."""
    rows = 16
    draws, shuffles, choices = Draws(7), Shuffles(3), Choices(torch.LongTensor)
    torch.manual_seed(5)
    ids = np.full((length, rows), EOS)
    ids[1:-1] = generator.integers(SPECIAL, WORDS, (length - 2, rows))
    params = SimpleNamespace(word_mass=0.5, pad_index=PAD, mask_index=MASK, n_words=WORDS)
    params.pred_probs = torch.FloatTensor([0.8, 0.1, 0.1])
    modules = {"np": recording_numpy(draws), "torch": choices, "random": shuffles}
    trainer = released(folder, UNSUPERVISED, modules, params=params)
    sizes = torch.full((rows,), length, dtype=torch.long)
    source, _, inputs, _, targets, real, places = trainer.restricted_mask_sent(
        long(ids), sizes, span
    )
    source, inputs, real, places = (x.numpy().T for x in (source, inputs, real, places))
    fate, words = np.zeros((rows, LENGTH)), np.full((rows, LENGTH), 77)
    for row, at in enumerate(places + 1):
        # 0, 1, 2: the mask, the token itself, a drawn word
        fate[row, at] = np.array([0.4, 0.95, 0.85])[choices.log[row].numpy()]
        words[row, at] = draws.of("randint")[row]
    labels = np.zeros(inputs.T.shape, int)
    labels[real.T] = targets.numpy()
    pieces = -(-inputs.shape[1] // span)
    return {
        "ids": ids.T,
        "place": np.array(draws.of("random")),
        "order": orders(draws.of("random"), shuffles.log, pieces),
        "fate": fate,
        "words": words,
        "source": source,
        "inputs": inputs,
        "labels": labels.T,
        "positions": places,
    }


def orders(places, shuffled, pieces):
    """Numbers that sort the pieces of each row, and its single tokens after them, as MASS did.

    The first piece is not shuffled where the place is at least 0.8, nor the last from 0.6 to 0.8.
    """
    numbers = np.full((len(places), LENGTH), 0.999)
    for row, (place, order) in enumerate(zip(places, shuffled, strict=True)):
        items = np.delete(np.arange(len(order) + 1), skipped(place, pieces, len(order)))
        numbers[row, items[order]] = (np.arange(len(order)) + 0.5) / LENGTH
    return numbers


def skipped(place, pieces, count):
    """The item that is not shuffled; `count`, which is beyond the items, if there is none."""
    if place >= 0.8:
        return 0
    return pieces - 1 if place >= 0.6 else count


def supervised(folder, generator):
    """Arrays of 24 sentences of `MaskedLanguagePairDataset` of MASS."""
    rows = 24
    draws, choices = Draws(11), Choices(list)
    torch.manual_seed(9)
    modules = {"np": recording_numpy(draws), "torch": choices}
    dataset = released(folder, SUPERVISED, modules, vocab=Words(), ratio=0.5, training=True)
    dataset.pred_probs = torch.FloatTensor([0.1, 0.1, 0.8])
    parts = {"ids": np.full((rows, LENGTH), PAD), "length": np.zeros(rows, int)}
    parts |= {"place": np.zeros(rows), "order": np.full((rows, LENGTH), 0.5)}
    parts |= {"fate": np.zeros((rows, LENGTH)), "words": np.zeros((rows, LENGTH), int)}
    parts |= {"seen": np.zeros((rows, LENGTH)), "others": np.zeros((rows, LENGTH), int)}
    parts |= {"source": np.full((rows, LENGTH), PAD)}
    parts |= {key: np.full((rows, LENGTH // 2), PAD) for key in ("inputs", "labels")}
    for row in range(rows):
        count = int(generator.integers(6, LENGTH + 1))
        ids = [EOS, *generator.integers(SPECIAL, WORDS, count - 2).tolist(), EOS]
        dataset.src = [Sentence(ids[1:])]
        draws.log.clear()
        choices.log.clear()
        item = dataset.__getitem__(0)
        part = {key: value[row] for key, value in parts.items() if value.ndim == 2}
        parts["length"][row] = count
        parts["place"][row] = sorted_draws(part, draws.log, choices.log, count)
        part["ids"][:count] = ids
        for key, name in (("source", "source"), ("inputs", "target"), ("labels", "output")):
            part[key][: len(item[name])] = item[name]
    return parts


def sorted_draws(part, log, choices, count):
    """Writes the draws of a sentence of `count` tokens into the arrays `part`; returns its place.

    The released code draws the place, the start if the place is under 0.6, a word for each token
    of the decoder, and fates for the tokens of the encoder. It counts those from the token after
    the first EOS, so their fragment starts one token late, and it takes one token more."""
    values = iter([value for _, value in log])
    size = max(1, round(count * 0.5))
    end = count - size
    place = next(values)
    start = 1 if place >= 0.8 else end
    if place < 0.6:
        start = int(next(values))
        part["order"][0] = (start - 1 + 0.5) / (end - 1)
    for at, choice in zip(range(start - 1, start - 1 + size), choices, strict=True):
        part["others"][at] = next(values)
        part["seen"][at] = (0.05, 0.15, 0.5)[int(choice)]  # the mask, a word, the token itself
    for at in range(start + 1, min(start + size + 1, count - 1) + 1):
        drawn = next(values)
        part["fate"][at] = 0.4 if drawn >= 0.2 else 0.85 if drawn >= 0.1 else 0.95
        if 0.1 <= drawn < 0.2:
            part["words"][at] = next(values)
    assert next(values, None) is None
    return place


if __name__ == "__main__":
    main()

"""The figures that earn `sized` and `reproduces`: ours, a published or peer-measured one, and the
tolerance between them.

`checks()` are the figures that the registry holds with `reference` and `tolerance`. A figure is a
number of parameters, counted from the shapes of the published size, a number of examples that the
reader finds in published files, a score, or a measurement that a page of this folder holds beside
its peer's. `benchmarks.registry` refuses one that is too far away, and tests/benchmarks computes
each again for the word.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import published_sizes

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("PTM_DATA", ROOT.parent / "shared" / "data"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """A figure beside a published one.

    value      what earns the word: a system, a part, a task or an adaptation
    word       "sized": a number of parameters or examples; "reproduces": a quality or a behaviour
    figure     what is measured, with its unit
    ours       computes it
    reference  the published or peer-measured figure, from `source`
    tolerance  the largest difference, in the figure's unit, from `why`
    command    what prints ours; `device`, `seed` where they matter
    data       folder below PTM_DATA that it reads ("": none); `page`, `text`: where a measurement
               stands
    """

    value: str
    word: str = "reproduces"
    figure: str
    ours: Callable[[], float]
    reference: float
    source: str
    tolerance: float
    why: str
    command: str
    device: str = "none: shapes alone"
    seed: Any = None
    data: str = ""
    page: str = "benchmarks/published_sizes.py"
    text: str = ""

    def difference(self, ours: float) -> float:
        return abs(ours - self.reference)

    def holds(self, ours: float) -> bool:
        """Whether a figure is within the tolerance; NaN is not."""
        return self.difference(ours) <= self.tolerance * (1 + 1e-9)


def checks() -> list[Check]:
    return [*sizes(), *printed(), *adaptations(), *spans(), *words(), *tasks(), *files()]


def sizes() -> Iterator[Check]:
    """Numbers of parameters that a class of another library has: equal to the last one."""
    why = "none: the same number"
    for peer, known in published_sizes.PEERS.items():
        for name, size in known.items():
            yield Check(
                value=name,
                word="sized",
                figure="parameters",
                ours=functools.partial(
                    published_sizes.count, name, published_sizes.LEFT_OUT.get(name)
                ),
                reference=size,
                source=f"transformers, {peer}",
                tolerance=0,
                why=why,
                command=f"ptm show {name}",
                text=f'"{name}": ',
            )
    for name, width in (("transformer_base", 512), ("transformer_big", 1024)):
        yield Check(
            value=name,
            word="sized",
            figure="parameters without the table of words",
            ours=functools.partial(published_sizes.count, name, "/embed/"),
            reference=published_sizes.TORCH[width],
            source="torch.nn.Transformer, without its two final norms",
            tolerance=0,
            why=why,
            command=f"ptm show {name}",
            text="TORCH = ",
        )


def printed() -> Iterator[Check]:
    """Numbers of parameters that a paper prints in millions: within half of the last digit."""
    for name, (figure, unit, but, source) in published_sizes.PRINTED.items():
        yield Check(
            value=name,
            word="sized",
            figure="parameters, millions",
            ours=functools.partial(
                lambda name, but: published_sizes.count(name, but) / 1e6, name, but
            ),
            reference=figure,
            source=source,
            tolerance=unit / 2,
            why="half of the last printed digit",
            command=f"ptm show {name}",
            text=f'"{name}": ',
        )


def trained(system: str, adapt: str, pattern: str) -> int:
    """Parameters of an adapted system whose path the pattern finds, and that the adaptation
    trains."""
    import jax
    import jax.numpy as jnp

    from ptm_jax import systems
    from ptm_jax.adapt.catalogue import read as named
    from ptm_jax.core import facts, paths, spec
    from ptm_jax.core.system import adapted
    from ptm_jax.core.types import Vocab

    value = named(adapt)
    known = systems.get(system)
    vocab = next(part for _, part in spec.walk(known.towers) if isinstance(part, Vocab))
    towers = facts.stand_ins(adapted(dataclasses.replace(known, adapt=(value,))), vocab).towers
    found = paths.unflatten(published_sizes.abstract(towers))
    found = paths.flatten(jax.eval_shape(lambda tree: value.init(tree, None), found))
    return sum(
        math.prod(leaf.shape)
        for path, leaf in found.items()
        if re.search(pattern, path) and value.trainable(path, jnp.int32(0))
    )


def adaptations() -> Iterator[Check]:
    """What adaptations of published sizes add or train."""
    base = 109_482_240  # BertModel of bert-base-uncased, with pooler
    large = 335_141_888
    rows = (
        ("pals", "parameters of eight tasks, times those of one", 1.13, 0.005,
        "Stickland and Murray 2019, Table 1",
         lambda: 1 + 8 * trained("bert_base", "pals", "/beside/") / base),
        ("bitfit", "biases of BERT-base, percent of its parameters", 0.09, 0.005,
        "Ben Zaken et al. 2021, section 3",
         lambda: 100 * trained("bert_base", "bitfit", "^(?!.*/heads_(mlm|nsp)).*/bias$") / base),
        ("bitfit", "biases of BERT-large, percent of its parameters", 0.08, 0.005,
        "Ben Zaken et al. 2021, section 3",
         lambda: 100 * trained("bert_large", "bitfit", "^(?!.*/heads_(mlm|nsp)).*/bias$") / large),
        ("lora", "parameters of RoBERTa-base, millions", 0.3, 0.05, "Hu et al. 2022, Table 2",
         lambda: trained("roberta_base", "lora(rank=8)", "^lora/") / 1e6),
        ("lora", "parameters of RoBERTa-large, millions", 0.8, 0.05, "Hu et al. 2022, Table 2",
         lambda: trained("roberta_large", "lora(rank=8)", "^lora/") / 1e6),
    )  # fmt: skip
    for value, figure, reference, tolerance, source, ours in rows:
        yield Check(
            value=value,
            word="sized",
            figure=figure,
            ours=ours,
            reference=reference,
            source=source,
            tolerance=tolerance,
            why="half of the last printed digit",
            command="python -m benchmarks.registry",
            page="benchmarks/reproduced.py",
            text=source,
        )


def spans() -> Iterator[Check]:
    """The mean length of SpanBERT's spans, of its distribution."""
    from ptm_jax.corruptions.masking.units import Spans

    yield Check(
        value="Spans",
        figure="mean length of a span, words",
        ours=lambda: sum(n * share for n, share in enumerate(Spans().distribution(), 1)),
        reference=3.8,
        source="Joshi et al. 2020, section 3.1",
        tolerance=0.05,
        why="half of the last printed digit",
        command="python -m benchmarks.registry",
        page="benchmarks/reproduced.py",
        text="mean length of a span",
    )


def measured(page: str, pattern: str) -> tuple[float, ...]:
    """The numbers that a pattern finds in a page of measurements. Raises ValueError where it finds
    none."""
    text = " ".join((ROOT / page).read_text(encoding="utf8").split())
    if (found := re.search(pattern, text)) is None:
        raise ValueError(f"{page} has nothing like {pattern!r}")
    return tuple(float(group.replace(",", "")) for group in found.groups())


HERE = {"device": "any", "page": "benchmarks/reproduced.py"}
CORES = "AMD EPYC (avx512_bf16), 2 cores"


def beside(page: str, pattern: str, tolerance: float, **known: Any) -> Check:
    """A measurement of a page beside its peer's: the two numbers that the pattern finds."""
    known = {"device": CORES, "seed": 0, "page": page, **known}
    ours = functools.partial(lambda page, pattern: measured(page, pattern)[0], page, pattern)
    return Check(ours=ours, reference=measured(page, pattern)[1], tolerance=tolerance, **known)


def words() -> Iterator[Check]:
    """Word vectors: every text of word_vectors.md on the largest of its sets of similarities, and
    the peers of configs."""
    page, number = "benchmarks/word_vectors.md", r"(-?[\d.]+)"
    for line in (ROOT / page).read_text(encoding="utf8").splitlines():
        if not line.startswith("| text,"):
            continue
        text, model, width = (cell.strip() for cell in line.split("|")[1:4])
        cells = f"| {text} | {model} | {width} |"
        pairs = re.search(r"EN-MEN-TR-3k \(([\d,]+)\)", line)[1]
        yield beside(
            page,
            re.escape(cells)
            + rf"[^|]*\|[^|]*\|[^|]*\|[^|]*\|[^|]*EN-MEN-TR-3k \([\d,]+\): {number} / {number}",
            100 / math.sqrt(int(pairs.replace(",", "")) - 1),
            value=model.split(",")[0],
            figure=f"MEN, Spearman in points ({model}, width {width}, {text})",
            source=f"{'word2vec.c' if 'word2vec.c' in model else 'gensim'} on the same text",
            why=f"one standard error over {pairs} pairs",
            command="python -m benchmarks.word_vectors",
            text=cells,
        )
    ours, peer = measured("configs/glove.py", r"held-out loss ([\d.]+) against ([\d.]*\d)")
    yield beside(
        "configs/glove.py",
        r"held-out loss ([\d.]+) against ([\d.]*\d)",
        0.01 * peer,
        value="glove",
        figure="held-out loss",
        source="Stanford's C code on the same cells",
        why="1% of the peer's",
        command="python -m benchmarks.glove --code BUILD --data pydocs "
        "data/lm/wikitext-2/valid.txt --passes 2",
        text="held-out loss 0.01972",
    )
    for place, name in enumerate(("pv_dbow", "pv_dm", "pv_dbow_words")):
        yield beside(
            "configs/paragraph_vectors.py",
            rf"([\d.]+) \({name}\).*?Doc2Vec " + r"[\d.]+, " * place + r"([\d.]*\d)",
            1 / math.sqrt(1499),
            value=name,
            figure="STS-B dev, Spearman",
            source="gensim's Doc2Vec on the same sentences",
            why="one standard error over 1,500 pairs",
            command="python -m benchmarks.paragraphs --stsb glue/stsb --epochs 10",
            text=f"({name})",
        )
    pattern = r"accuracy ([\d.]+), seed 0.*?own library ([\d.]*\d)"
    share = measured("configs/fasttext_supervised.py", pattern)[1] / 100
    yield beside(
        "configs/fasttext_supervised.py",
        pattern,
        100 * math.sqrt(share * (1 - share) / 300),
        value="fasttext_supervised",
        figure="AG News, accuracy in points",
        source="fastText's own library on the same tokens, rate and epochs",
        why="one standard error of a share over 300 texts",
        command="python -m benchmarks.text_classes",
        text="Measured: accuracy 86.3",
    )


def tasks() -> Iterator[Check]:
    """Fine-tuning beside torch, means of three seeds: within the spread of the two."""
    number = r"([\d.]+) ± ([\d.]+)"
    for task, metric in (("sst2", "accuracy"), ("mrpc", "f1"), ("wnut17", "f1")):
        row = rf"\| {task} \| {metric} \| "
        _, own, _, other = measured("benchmarks/tasks.md", rf"{row}{number} \| {number} \|")
        yield beside(
            "benchmarks/tasks.md",
            rf"{row}([\d.]+) ± [\d.]+ \| ([\d.]+) ±",
            math.hypot(own, other) / math.sqrt(2),
            value=task,
            figure=f"{metric} in points, held-out",
            source="torch on the same rows, schedule and seeds (benchmarks/tasks_in_torch.py)",
            why="root mean square of both standard deviations",
            command=f"ptm train --init runs/minilm --task {task} --data DATA --seeds 3 "
            "--workdir DIR",
            seed=[0, 1, 2],
            text=f"| {task} | {metric} |",
        )


def read(task: str, folder: str) -> int:
    """Training examples that a task's reader finds in a folder of the data, with those that it
    holds out of them."""
    from ptm_jax.tasks.catalogue import catalogue

    examples = catalogue.get(task).examples.settled([str(DATA / folder)])
    files = examples.files([str(DATA / folder)])
    parts = [files["train"]] if files["train"].held is None else [files["train"], files["heldout"]]
    return sum(len(examples.examples(part)) for part in parts)


def rouge(number: int) -> float:
    """ROUGE of XSum's 11,334 lead sentences, F in points."""
    from ptm_jax.tasks.metrics import rouge

    folder = DATA / "summarization" / "xsum-outputs"
    texts = [(folder / name).read_text(encoding="utf8").splitlines() for name in LEADS]
    return 100 * scores(rouge, *map(tuple, texts))[rouge.NAMES[number]][0]


@functools.cache
def scores(rouge: Any, *texts: tuple[str, ...]) -> dict[str, Any]:
    return rouge.scores(*map(list, texts))


LEADS = "lead-test-output.txt", "gold-test-sentences.txt"


def files() -> Iterator[Check]:
    """What readers and metrics find in published files."""
    for number, reference in enumerate((16.30, 1.60, 0.26, 11.95)):
        yield Check(
            value="xsum",
            figure=f"ROUGE-{'123L'[number]} of lead sentences, F in points",
            ours=functools.partial(rouge, number),
            reference=reference,
            source="ROUGE-1.5.5, in the data's lead-test-output.rouge (EdinburghNLP/XSum)",
            tolerance=0.02,
            why="twice the last printed digit",
            command="python -m benchmarks.registry",
            data="summarization/xsum-outputs",
            text="of lead sentences, F in points",
            **HERE,
        )
    rows = (
        ("trec6", "classification/trec", 5452,
        "Kim 2014, Table 1: 5,952 with the 500 of the test file"),
        ("cb", "superglue/cb", 250, "Wang et al. 2019 (SuperGLUE), Table 1"),
        ("cola", "glue/cola", 8551, "CoLA's README (Warstadt et al. 2019): in_domain_train.tsv"),
        ("stsb", "glue/stsb", 5749, "Cer et al. 2017, Table 2"),
        ("wnut17", "ner/wnut17", 3394, "Derczynski et al. 2017, Table 2"),
        ("multi30k_en_de", "mt/multi30k", 29000, "Elliott et al. 2016, section 2"),
    )  # fmt: skip
    for task, folder, reference, source in rows:
        yield Check(
            value=task,
            word="sized",
            figure="training examples that are read",
            ours=functools.partial(read, task, folder),
            reference=reference,
            source=source,
            tolerance=0,
            why="none: the same number",
            command=f"ptm train --task {task} --data {folder}",
            data=folder,
            text=f'("{task}", "{folder}", ',
            **HERE,
        )

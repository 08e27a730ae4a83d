"""Set-up of a run: opens the corpus, resolves the experiment, and compares it with the workdir."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from ptm_jax.convert.libraries import sentence_export
from ptm_jax.core import facts, slots, spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.recipe import Recipe, stretched
from ptm_jax.core.spec.own_code import remember, sources_of
from ptm_jax.core.system import Experiment, System, in_phase
from ptm_jax.core.types import Vocab
from ptm_jax.data.corpora.prepare import prepare
from ptm_jax.data.corpora.store import Corpus, open_corpus
from ptm_jax.data.corpora.stream import Stream, rows_per_epoch
from ptm_jax.data.graphs import folders
from ptm_jax.data.languages import mix
from ptm_jax.data.languages.language_stream import opened as opened_stream
from ptm_jax.data.stores import fetched, working
from ptm_jax.data.tokenizers import vocabularies
from ptm_jax.training import workdirs
from ptm_jax.training.hosts import group
from ptm_jax.training.logs import console
from ptm_jax.training.start import differing, initial, longer, other_files
from ptm_jax.training.start.init_models import Initials, opened
from ptm_jax.training.steps import building
from ptm_jax.training.steps.step import program

FEW = 300
"""Number of updates below which a run prints a warning, and steps are divided."""
LARGEST_SAMPLE, BILLION = 1e-3, 1e9
SPECIALS = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")
"""The named tokens of `core.types.Vocab`."""


def experiment(target: System | Experiment, data: tuple[str, ...] = ()) -> Experiment:
    """Returns an Experiment of a System with the defaults, or the given Experiment.
    `data` replaces its sources."""
    if isinstance(target, System):
        target = Experiment(system=target)
    return dataclasses.replace(target, data=tuple(data)) if data else target


def begin(
    config: Experiment,
    workdir: Path,
    progress: Callable | None = None,
    init: Initials | None = None,
) -> tuple[Experiment, Corpus]:
    """Returns the resolved experiment and its corpus.
    Raises UserError if the workdir has a run of another experiment. `init` is the opened
    `config.init`.

    Checks as much as possible before it prepares the corpus. Writes only the corpus.
    """
    init = opened(config.init) if init is None else init
    building.check_lengths(config.system)
    initial.check(config, init)
    if not (config.system.examples.labelled or (workdir / "data").is_dir() or _prepared(config)):
        rehearse(config)
    if not group.current().index:
        corpus = _opened(config, workdir, init, progress)
        _tell_unknown(config, corpus)
        group.current().chosen(lambda: working.named(str(corpus.dir.absolute())))
    else:  # process 0 prepares it, which may take hours
        corpus = open_corpus(group.current().chosen(lambda: None))
    return scheduled(
        differing.with_facts(differing.resolve(config, corpus.vocab), lambda: corpus), corpus
    ), corpus


def _tell_unknown(config: Experiment, corpus: Corpus) -> None:
    """Prints how many names of a graph are beyond the vocabulary."""
    of_triples = [source.startswith(folders.BARE) for source in config.data]
    if not of_triples or not all(of_triples) or corpus.vocab.unk is None:
        return
    if unknown := int(corpus.counts("train")[corpus.vocab.unk]):
        console.say(
            f"{unknown:,} names in the triples are beyond the vocabulary of {corpus.vocab.size:,}, "
            "and count as one entity; set tokenizer.vocab to the entities and relations, and 3"
        )


def scheduled(config: Experiment, corpus: Corpus) -> Experiment:
    """Returns the experiment with the steps that make its `epochs` of the text.

    The phases have the recipe's shares, and warm-up is in proportion. Raises UserError for labelled
    examples, whose experiments have their epochs in steps.
    """
    if config.epochs is None:
        return config
    recipe, examples = config.system.recipe, _subsampled(config.system.examples, corpus)
    if corpus.stream is not None:
        raise UserError("epochs are those of text; set recipe.phases.0.steps for this data")
    rows = [
        rows_per_epoch(corpus, examples, length=phase.length, batch=phase.batch)
        for phase in recipe.phases
    ]
    share = [config.epochs * phase.steps / recipe.steps for phase in recipe.phases]
    steps = [
        max(1, round(n * part / phase.batch))
        for n, part, phase in zip(rows, share, recipe.phases, strict=True)
    ]
    phases = tuple(
        dataclasses.replace(phase, steps=n) for phase, n in zip(recipe.phases, steps, strict=True)
    )
    if (parts := _parts(recipe, sum(steps))) > 1:  # a step of fewer updates, each of as many rows
        phases = tuple(
            dataclasses.replace(phase, steps=phase.steps * parts, batch=phase.batch // parts)
            for phase in phases
        )
        steps = [phase.steps for phase in phases]
        recipe = dataclasses.replace(recipe, updates=recipe.updates // parts, phases=phases)
    schedule = stretched(recipe.schedule, sum(steps) / config.system.recipe.steps)
    sizes = ", ".join(f"{p.steps:,} of {p.batch:,} rows of {p.length}" for p in phases)
    console.say(
        f"{config.epochs:g} epochs of about {rows[0]:,} rows of {phases[0].length} tokens: "
        f"{sum(steps):,} steps (--epochs, or --set recipe.phases.0.steps)"
        + (f": {sizes} tokens" if len(phases) > 1 else "")
    )
    if (updates := sum(steps) * recipe.updates) < FEW:
        console.say(
            f"{updates:,} updates are few: a model learns little in them. Compare its loss with a "
            "baseline, and give more --epochs or more text"
        )
    recipe = dataclasses.replace(recipe, phases=phases, schedule=schedule)
    system = dataclasses.replace(config.system, recipe=recipe, examples=examples)
    return dataclasses.replace(config, system=system)


def _parts(recipe: Recipe, steps: int) -> int:
    """Returns into how many steps each is divided, so that there are `FEW` of them: a divisor of
    the updates in a step."""
    devices = jax.device_count()
    fitting = [
        parts
        for parts in range(1, recipe.updates + 1)
        if recipe.updates % parts == 0
        and all(phase.batch % (parts * devices) == 0 for phase in recipe.phases)
    ]
    enough = [parts for parts in fitting if steps * parts >= FEW]
    return min(enough) if enough else max(fitting, default=1)


def _subsampled(examples: slots.Examples, corpus: Corpus) -> slots.Examples:
    """Returns the examples with a threshold of subsampling that fits the text.

    The published 1e-5 is for a billion words (Mikolov et al. 2013b). Of a text of a megabyte it
    leaves one word in ten, and nothing is learnt. It grows as the text is smaller, up to 1e-3, the
    default of word2vec and gensim."""
    sample = vars(examples).get("sample")
    if sample is None or sample >= LARGEST_SAMPLE:
        return examples
    words = int(corpus.counts("train").sum())
    fitted = max(sample, min(LARGEST_SAMPLE, sample * BILLION / max(words, 1)))
    if fitted == sample:
        return examples
    console.say(
        f"examples.sample is {fitted:.3g} for a text of {words:,} words; {sample:g} is for a "
        "billion (steps in place of --epochs keep it)"
    )
    return dataclasses.replace(examples, sample=fitted)


def _opened(config: Experiment, workdir: Path, init: Initials, progress: Callable | None) -> Corpus:
    """Returns the corpus. Raises UserError if the workdir has a run of another experiment."""
    record = workdirs.read(workdir, corpus=True) if (workdir / "config.json").is_file() else None
    if record is not None:
        differences = differing.changes(record, config)
        differing.refuse(workdir, longer.admitted(workdir, record, config, differences))
    corpus = corpus_of(config, workdir, init, progress)
    if record is not None:
        old, new = record["corpus"], facts_of(corpus)
        changes = [
            (f"corpus.{name}", old[name], new[name])
            for name in ("tokenizer", "digest")
            if old[name] != new[name]
        ]
        data = spec.differences(record["config"]["data"], config.data, "data") if changes else []
        differing.refuse(workdir, [*data, *changes])
    return corpus


def corpus_of(
    config: Experiment, workdir: Path, init: Initials, progress: Callable | None = None
) -> Corpus:
    """Returns the prepared corpus of an experiment.
    It is the experiment's directory, or is prepared in the workdir from the sources."""
    if _prepared(config):
        return _fits(config, open_corpus(config.data[0]))
    tokenizer = initial.with_tokenizer(config, init).tokenizer or config.system.tokenizer
    if tokenizer is None:
        raise UserError(
            f"{config.system.name} names no tokenizer; set tokenizer=TokenizerSpec(...) in "
            "the config"
        )
    if config.system.examples.labelled:
        return config.system.examples.corpus(config.data, workdir / "data", tokenizer, progress)
    return prepare(
        config.data,
        workdir / "data",
        tokenizer=tokenizer,
        heldout=config.heldout,
        seed=config.seed,
        progress=progress,
        option="--workdir",
    )


def _prepared(config: Experiment) -> bool:
    """Whether the data of an experiment are a corpus that `ptm prepare` wrote."""
    return len(config.data) == 1 and fetched.is_corpus(config.data[0])


def rehearse(config: Experiment) -> None:
    """Raises UserError for what cannot be trained on any corpus, from the shapes of a loss.

    It uses a tower's vocabulary with every special token, because the corpus is not known yet."""
    vocab = next(
        (part for _, part in spec.walk(config.system.towers) if isinstance(part, Vocab)), None
    )
    if vocab is None or vocab.size < len(SPECIALS):
        return
    ids = {name: number for number, name in enumerate(SPECIALS) if vocab.id(name) is None}
    vocab = dataclasses.replace(vocab, **ids)
    config = differing.resolve(config, vocab)
    system = facts.stand_ins(config.system, vocab)
    work = program(system, config.seed).defined()
    with building.building(system):
        fields = [
            system.examples.batch_spec(phase.length, vocab) for phase in system.recipe.phases
        ][0]
        size = system.recipe.phases[0].batch
        batch = {
            name: jax.ShapeDtypeStruct((size, *dims), dtype)
            for name, (dims, dtype) in fields.items()
        }
        batch["rows"] = jax.ShapeDtypeStruct((size,), jnp.int32)
        state = jax.eval_shape(work.init, batch)
        jax.eval_shape(work.evaluate, state.params, batch, 0, state.carry)


def _fits(config: Experiment, corpus: Corpus) -> Corpus:
    """Returns the corpus. Raises UserError if the initial model has another tokenizer."""
    prepared, tokenizer = corpus.manifest["tokenizer"]["hash"], config.tokenizer
    wanted = prepared
    if isinstance(config.init, str) and tokenizer is not None and tokenizer.path:
        with contextlib.suppress(
            UserError
        ):  # a checkpoint without a tokenizer takes any corpus of its size
            wanted = vocabularies.read(tokenizer).hash
    if wanted != prepared:
        raise UserError(
            f"{corpus.dir} was prepared with another tokenizer than that of {config.init}; "
            "give the text itself"
        )
    return corpus


def stream(
    config: Experiment, corpus: Corpus, phase: int, split: str = "train", *,
    epochs: int | None = None, share: tuple[int, int] = (0, 1),
) -> Stream:  # fmt: skip
    """Returns the rows of a phase, or part `share` = (index, count) of them.
    Every phase is shuffled differently, unless it continues the phase before it."""
    recipe = config.system.recipe
    shape, chain = recipe.phases[phase], recipe.chain(phase)
    options = {}
    if epochs is None and len(chain) > 1:
        if corpus.stream is not None:
            raise UserError(
                "a phase that continues another one reads text; set continues to False for this "
                "data"
            )
        options["common"] = math.gcd(*(recipe.phases[number].batch for number in chain))
    make = corpus.stream or functools.partial(opened_stream, corpus)
    rows = make(
        split,
        in_phase(config.system, phase).examples,
        length=shape.length,
        batch=shape.batch,
        seed=config.seed + (chain[0] if options else phase),
        epochs=epochs,
        process_index=share[0],
        process_count=share[1],
        **options,
    )
    if rows.cut:
        _remark(
            f"{rows.cut} texts of {split} are longer than {shape.length} tokens; their ends "
            "are cut off"
        )
    for remark, count in rows.remarks.items():
        _remark(f"{split}: {count} {remark}")
    return rows


def held_out(
    config: Experiment, corpus: Corpus, phase: int, split: str = "heldout",
    share: tuple[int, int] = (0, 1),
) -> Iterator[tuple[str, Stream]]:  # fmt: skip
    """Yields ("", rows of a split), and (name, its rows) of each part of a mixture that is measured
    by itself (`Mixture.apart`)."""
    yield "", stream(config, corpus, phase, split, epochs=1, share=share)
    parts = mix.apart(in_phase(config.system, phase).examples, corpus, split)
    yield from of_parts(config, phase, parts, split, share)


def of_parts(
    config: Experiment, phase: int, parts: Iterable[mix.Part], split: str,
    share: tuple[int, int] = (0, 1),
) -> Iterator[tuple[str, Stream]]:  # fmt: skip
    """Yields (name, the rows of a split once) of the parts of a mixture."""
    shape = config.system.recipe.phases[phase]
    options = {"length": shape.length, "batch": shape.batch, "seed": config.seed + phase}
    options |= {"epochs": 1, "process_index": share[0], "process_count": share[1]}
    for part in parts:
        yield part.name, Stream(part.corpus, split, part.examples, **options)


@functools.cache
def _remark(line: str) -> None:
    """Prints a line once: the held-out text is read at every evaluation."""
    console.say(line)


def example(config: Experiment, corpus: Corpus, phase: int | None = None) -> dict[str, jax.Array]:
    """Returns a batch of zeros with the shapes of a phase's stream.
    Without a phase, those of the system itself at the sizes of the first one."""
    shape = config.system.recipe.phases[phase or 0]
    system = config.system if phase is None else in_phase(config.system, phase)
    fields = system.examples.batch_spec(shape.length, corpus.vocab)
    batch = {name: jnp.zeros((shape.batch, *dims), dtype) for name, (dims, dtype) in fields.items()}
    return {**batch, "rows": jnp.arange(shape.batch, dtype=jnp.int32)}


def keep(config: Experiment, workdir: Path, corpus: Corpus, init: Initials) -> None:
    """Writes `config.json`, `config.txt` and the tokenizer into the workdir (process 0)."""
    group.current().chosen(lambda: _keep(config, workdir, corpus, init))
    if group.current().index:
        working.refresh(workdir)
    workdirs.check_tokenizer(workdir, facts_of(corpus)["tokenizer"])


def _keep(config: Experiment, workdir: Path, corpus: Corpus, init: Initials) -> None:
    facts = {**facts_of(corpus), "path": str(corpus.dir.absolute())}
    first = not (workdir / "config.json").exists()
    with workdirs.writing(workdir):
        record = {"config": spec.to_json(config), "corpus": facts}
        if code := sources_of(config, workdir):
            record["own"] = code
            remember(code, workdir)
        old = None if first else workdirs.read(workdir)
        if command := workdirs.command(old):
            record["command"] = command
        record |= {} if old is None else longer.earlier(workdir, old, config)
        if (back := record.get("back")) is not None and "back" not in old:
            folder = workdirs.set_aside(workdir)
            console.say(f"going on from step {back}; the decayed model is kept in {folder}")
        workdirs.write(workdir, record, config)
        if back is not None:
            workdirs.write(workdir, longer.went_back(workdir, record), config)
        if not (workdir / "tokenizer").exists():
            workdirs.copy_folder(corpus.dir / "tokenizer", workdir / "tokenizer")
        other_files.save(config.system.examples, workdir)
        if first and (sentence := init.sentence()) is not None:
            sentence_export.write(workdir / workdirs.SENTENCE, sentence)
    working.push(workdir)


def facts_of(corpus: Corpus) -> dict[str, Any]:
    """Returns the facts of a corpus for the record of a run."""
    vocab, hashed = dataclasses.asdict(corpus.vocab), corpus.manifest["tokenizer"]["hash"]
    facts = {"digest": corpus.manifest["digest"], "tokenizer": hashed, "vocab": vocab}
    codes = {code for name in corpus.manifest.get("languages", ()) for code in name.split("-")}
    return {**facts, "languages": sorted(codes)} if codes else facts

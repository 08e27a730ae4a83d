"""Five tiny models and every way to lay them over eight devices, in a process that has eight
(`in_a_process`)."""

from __future__ import annotations

import dataclasses
import functools
import tempfile
import zlib

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.paths import flatten
from ptm_jax.core.recipe import LAMB, SGD, Adafactor, AdamW, Constant, Phase, Recipe
from ptm_jax.core.spec import override, respell
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.masking.sentinels import SentinelSpans
from ptm_jax.mesh import rules as tables
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.heads.vocabulary import SoftCapped
from ptm_jax.nn.initializers import Normal, TruncatedNormal
from ptm_jax.nn.layers import RMSNorm
from ptm_jax.systems.sequence_to_sequence.t5 import t5
from ptm_jax.systems.transformers.bert_gpt import bert, gpt2
from ptm_jax.systems.transformers.electra import electra
from ptm_jax.systems.transformers.modern.eurobert import eurobert
from ptm_jax.systems.transformers.transformer_xl import xlnet
from ptm_jax.training.checkpoints import Checkpoints, restore_params
from ptm_jax.training.steps.step import program
from support import elsewhere

ROWS, LENGTH, HEADS = 8, 16, 8
T5_LENGTH = 18  # of which 16 enter the encoder and 8 the decoder: both are divided by eight
VOCAB = Vocab(size=64, pad=0, unk=1, cls=2, sep=3, mask=4, bos=5, eos=6)

LAYOUTS = {
    "one": ({"data": 1}, "replicated"),
    "dp 8": ({"data": 8}, "replicated"),
    "fsdp 8": ({"fsdp": 8}, "fsdp"),
    "tp 8": ({"model": 8}, "megatron"),
    "2x2x2": ({"data": 2, "fsdp": 2, "model": 2}, "megatron_fsdp"),
    "sp 8": ({"seq": 8}, "replicated"),
    "megatron_sp 8": ({"model": 8}, "megatron_sp"),
    "megatron_sp 2x2x2": ({"data": 2, "fsdp": 2, "model": 2}, "megatron_sp_fsdp"),
    "ring 8": ({"seq": 8}, "replicated_ring"),
    "ring 2x2x2": ({"data": 2, "seq": 2, "model": 2}, "megatron_sp_ring"),
    "model 2": ({"model": 2}, "megatron"),
    "fsdp 2 model 2": ({"fsdp": 2, "model": 2}, "megatron_fsdp"),
}
FEWER = ("one", "model 2", "fsdp 2 model 2")
GRID = tuple(name for name in LAYOUTS if name not in FEWER)


def _small(system, vocab, optimizer=None, lr=2e-3):
    """The system with a vocabulary, a deviation and a recipe for its size; its dropout stays."""
    for kind in (Normal, TruncatedNormal):
        system = respell(system, kind, lambda part: type(part)(max(part.std, 0.1)))
    recipe = Recipe(
        phases=(Phase(steps=100, batch=ROWS, length=LENGTH),),
        lr=lr,
        optimizer=optimizer or AdamW(eps=1e-6, weight_decay=0.01),
        schedule=Constant(warmup=10),
        clip=1.0,
    )
    return dataclasses.replace(respell(system, Vocab, vocab), recipe=recipe)


def bert_of(vocab=VOCAB):
    """An encoder: MLM and NSP."""
    return _small(bert("bert", 2, 32, HEADS), vocab)


def gpt2_of(vocab=VOCAB):
    """A decoder, pre-norm, under an optimizer that a wrong factor in a gradient cannot hide
    from."""
    return _small(gpt2("gpt2", 2, 32, HEADS), vocab, SGD(momentum=0.9), lr=0.05)


def t5_of(vocab=VOCAB, optimizer=Adafactor()):
    """An encoder-decoder with relative buckets, RMSNorm, GEGLU-free 1.0, trained by Adafactor as
    published."""
    vocab = dataclasses.replace(vocab, extra=tuple(range(vocab.size - 1, vocab.size - 9, -1)))
    system = _small(
        t5("t5", "1.0", 2, 32, HEADS, head_width=4, hidden=64), vocab, optimizer, lr=0.02
    )
    return dataclasses.replace(
        system, corruption=SentinelSpans(vocab=vocab, sentinels=8, rate=0.3, mean=2.0)
    )


def grouped_of(vocab):
    """Four heads of keys for eight of queries, norms of both, rotary positions, SwiGLU, soft caps
    of scores and of the logits of a table of its own."""
    system = _small(eurobert("grouped", 2, 32, HEADS, 48, key_heads=4), vocab)
    attention = system.towers["main"].encoder.stack.block.attention
    attention = dataclasses.replace(attention, cap=2.0, qk_norm=RMSNorm())
    main = system.towers["main"]
    heads = {"mlm": SoftCapped(main.heads["mlm"], cap=3.0)}
    main = override(main, {"encoder.stack.block.attention": attention, "heads": heads})
    return dataclasses.replace(system, towers={"main": main})


def electra_of(vocab=VOCAB):
    """Two towers with tied tables, the generator half as wide; both of eight heads."""
    system = electra(
        "electra", 32, 2, 32, HEADS, share=0.5, phase=Phase(steps=1, batch=1, length=8), lr=1e-3
    )

    def heads(part):
        return dataclasses.replace(part, heads=HEADS)

    return _small(respell(system, Attention, heads), vocab, LAMB(), lr=0.005)


def xlnet_of(vocab=VOCAB):
    """Two streams, a memory, relative scores."""
    return _small(xlnet("xlnet", 2, 32, HEADS, memory=8), vocab)


ODD = dataclasses.replace(VOCAB, size=61)
MODELS = {"bert": bert_of, "gpt2": gpt2_of, "t5": t5_of, "electra": electra_of, "xlnet": xlnet_of}
MODELS |= {f"{name} odd": functools.partial(make, ODD) for name, make in MODELS.items()}
MODELS["grouped odd"] = functools.partial(grouped_of, ODD)


def batches_of(system, count=5):
    """Rows of words that follow each other by a rule, in two documents, some with padding (T5's are
    full), one of it."""
    draw, full = np.random.default_rng(0), system.name == "t5"
    length, found = T5_LENGTH if full else LENGTH, []
    for _ in range(count):
        slots = np.arange(length)
        words = (draw.integers(0, 40, (ROWS, 1)) + slots * draw.integers(1, 4, (ROWS, 1))) % 40 + 8
        cut = draw.integers(length // 3, length, (ROWS, 1))
        end = np.where(draw.random((ROWS, 1)) < 0.3, draw.integers(cut, length), length)
        end = length if full else end * ((np.arange(ROWS)[:, None] != 3) | (len(found) != 1))
        segments = np.where(slots < cut, 1, 2) * (slots < end)
        found.append(
            {
                "input_ids": np.where(segments > 0, words, 0).astype(np.int32),
                "segment_ids": segments.astype(np.int32),
                "positions": np.where(slots < cut, slots, slots - cut).astype(np.int32),
                "token_type_ids": ((slots >= cut // 2) & (slots < cut)).astype(np.int32),
                "next_label": draw.integers(0, 2, ROWS).astype(np.int32),
                "rows": np.arange(ROWS, dtype=np.int32),
            }
        )
    return found


def devices_of(sizes):
    """A mesh on as many of the devices as it needs."""
    return tables.make_mesh(sizes, jax.devices()[: int(np.prod(list(sizes.values())))])


def placed_under(system, layout, first=None):
    """(program, state before the first step, batches) of a system as a layout has them, and one
    device's first state.

    `first` is that of one device: every layout begins with the same bits."""
    sizes, rules = LAYOUTS[layout]
    mesh, whole, data = devices_of(sizes), program(system, 0), batches_of(system)
    work, abstract = whole.on(mesh, rules, data[0])
    first = jax.jit(whole.init)(data[0]) if first is None else first
    state = jax.device_put(
        work.padding.fill(first), jax.tree.map(lambda leaf: leaf.sharding, abstract)
    )
    return work, state, [tables.place_batch(batch, mesh) for batch in data], first


def stepping(work, state, batch, layout):
    """The compiled step of a placed state."""
    mesh = devices_of(LAYOUTS[layout][0])
    at = jax.tree.map(lambda leaf: leaf.sharding, state)
    with jax.set_mesh(mesh):
        return (
            jax.jit(work.step, out_shardings=(at, tables.replicated(mesh)))
            .lower(state, batch)
            .compile()
        )


def trained(step, state, batches, numbers):
    """(the last state, the losses of the steps)."""
    found = []
    for number in numbers:
        state, metrics = step(state, batches[number % len(batches)])
        # Read at once: steps under way at the same time would wait for each other's threads for
        # ever.
        found.append(float(metrics["loss"].value().sum()))
    return state, found


def losses(system, layout, steps, first=None):
    """(the losses of so many steps under a layout, one device's first state)."""
    work, state, placed, first = placed_under(system, layout, first)
    return trained(stepping(work, state, placed[0], layout), state, placed, range(steps))[1], first


def restored(system, layout, steps, first=None, follow=0):
    """What becomes of a checkpoint after so many steps under a layout: restored on fewer devices,
    saved there, restored on eight again. {"bits": whether all of them hold the same, "trained":
    losses before, "following": so many losses after, by layout, "stored", "read": how many rows of
    the token table are on devices, and are read by name}."""
    work, state, placed, first = placed_under(system, layout, first)
    step, after = stepping(work, state, placed[0], layout), range(steps, steps + follow)
    state, before_saving = trained(step, state, placed, range(steps))

    def bits(work, state):
        return [
            np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(jax.jit(work.padding.cut)(state))
        ]

    same, before, shapes = [], bits(work, state), set()
    with tempfile.TemporaryDirectory() as folder:
        store = Checkpoints(folder, keep=9)
        store.save(steps, state, {}, true=work.padding.true)
        following = {layout: trained(step, state, placed, after)[1]} if follow else {}
        for number, other in enumerate((*FEWER, layout)):
            fewer, blank, data, _ = placed_under(system, other, first)
            state, _, _ = store.restore(like=blank, true=fewer.padding.true)
            same.append(bits(fewer, state) == before)
            same.append(
                all(
                    a.sharding == b.sharding
                    for a, b in zip(*map(jax.tree.leaves, (state, blank)), strict=True)
                )
            )
            shapes |= {
                leaf.shape
                for path, leaf in flatten(state.params).items()
                if path.endswith("/token")
            }
            store.save(
                steps + number + 1, state, {}, true=fewer.padding.true
            )  # the next one restores what this one had
            if follow and other != layout:
                following[other] = trained(
                    stepping(fewer, state, data[0], other), state, data, after
                )[1]
        store.wait()
        kept = restore_params(folder)[0]
        tokens = [leaf.shape[0] for path, leaf in flatten(kept).items() if path.endswith("/token")]
    rows = {"stored": sorted(map(list, shapes)), "read": tokens}
    return {"bits": same, "trained": before_saving, "following": following, **rows}, first


def draws(system, layout, first=None):
    """Checksums of what one forward pass draws under a layout: of each field of the corrupted batch
    and of each mask. The program has no kernels for CPUs, whose masks no callback sees: they have
    the bits of the plain path (`tests/kernels/test_attention_cpu.py`)."""
    from ptm_jax.core import constraint as core_layout
    from ptm_jax.core.streams import keep_mask, uniform_bits
    from ptm_jax.kernels import integers, reference
    from ptm_jax.nn import layers

    masks, weigh = [], jax.random.key(99)

    def watched(key, rows, shape, rate):
        keep = keep_mask(key, rows, shape, rate)
        check = jnp.where(keep, uniform_bits(weigh, rows, shape), 0).sum(
            dtype=jnp.uint32
        )  # exact in any order
        return keep | jax.pure_callback(note, jax.ShapeDtypeStruct((), bool), check)

    def note(total):
        masks.append(int(total))
        return np.zeros((), bool)

    def forward(state, batch):
        with core_layout.use(work.layout):
            state = work.padding.cut(state)
            batch = work._corrupt(batch, "train", state.step, state.carry)
            loss = work.system.objective(work._bind(state.params, True), batch, jax.random.key(1))
        return loss.value(), {name: field for name, field in batch.items() if name != "carry"}

    work, state, placed, first = placed_under(system, layout, first)
    layers.keep_mask = reference.keep_mask = watched
    try:
        mesh = work.layout.mesh if work.layout else devices_of({"data": 1})
        with jax.set_mesh(mesh), integers.portable():
            loss, fields = jax.jit(forward)(state, placed[0])
            jax.block_until_ready(loss)
    finally:
        layers.keep_mask = reference.keep_mask = keep_mask
    fields = {
        name: zlib.crc32(np.asarray(field).tobytes()) for name, field in sorted(fields.items())
    }
    return {"masks": sorted(set(masks)), "fields": fields}, first


def in_a_process(steps, *cells):
    """`run` where there are eight devices."""
    return elsewhere.on_devices(8, run, steps, *cells)


def run(steps, *cells):
    """{model: {layout: losses}}; with + in front of a layout, what a forward pass draws there; with
    =, what becomes of its checkpoint; with ==, and the losses that follow."""
    found, firsts = {}, {}
    for cell in cells:
        model, layouts = cell.split(":")
        for layout in layouts.split(","):
            system, first = MODELS[model](), firsts.get(model)
            if layout.startswith("+"):
                result, firsts[model] = draws(system, layout[1:], first)
            elif layout.startswith("="):
                name, follow = layout.strip("="), 2 * layout.startswith("==")
                result, firsts[model] = restored(system, name, steps, first, follow)
            else:
                result, firsts[model] = losses(system, layout, steps, first)
            found.setdefault(model, {})[layout] = result
    return found

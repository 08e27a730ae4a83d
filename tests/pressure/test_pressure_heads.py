"""Systems with several losses over several networks, heads or inputs: ELECTRA, SpanBERT, ViLBERT."""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from tiny import LENGTH, ROWS, VOCAB, WIDTH, Project, check, corrupted, encoder, evaluate, sees, sentences, system, towers

from ptm_jax.core.streams import named, row_keys
from ptm_jax.core.system import Tie
from ptm_jax.core.types import Encoded, Loss, Visibility, add_losses
from ptm_jax.corruptions.base import Chain, choose
from ptm_jax.corruptions.token import TokenMasking
from ptm_jax.encoders.model import Model
from ptm_jax.nn.attention import Attention
from ptm_jax.nn.blocks import Block, FeedForward
from ptm_jax.nn.heads import Classifier, MLMHead, Readout
from ptm_jax.nn.initializers import Normal
from ptm_jax.nn.layers import Context, Dense, LayerNorm, activate
from ptm_jax.objectives.base import gather, token_loss
from ptm_jax.objectives.language import MLM

MASKING = TokenMasking(vocab=VOCAB, rate=0.25)


def put(ids, batch, tokens):
    """ids [B, L] with `tokens` [B, P] at the predicted positions; unused places write to column L, which is dropped."""
    where = jnp.where(batch["mlm_weights"] > 0, batch["mlm_positions"], ids.shape[1])
    return jax.vmap(lambda row, at, new: row.at[at].set(new, mode="drop"))(ids, where, tokens)


def binary(scores, labels, weights, name):
    """Logistic loss, as a token loss."""
    return token_loss(jax.nn.softplus(jnp.where(labels, -scores, scores)), weights, name=name)


@dataclasses.dataclass(frozen=True)
class ReplacedTokens:
    """min L_MLM(G) + 50 L_disc(D): D tells the tokens that G drew from the original ones; no gradient by the draw."""

    weight: float = 50.0

    def __call__(self, towers, batch, key):
        generator, judge = towers["generator"], towers["discriminator"]
        hidden = generator(batch, named(key, "generator")).hidden
        readout = generator.head("mlm", gather(hidden, batch["mlm_positions"]))
        mlm = token_loss(readout.nll(batch["mlm_labels"]), batch["mlm_weights"], name="mlm_nll")
        drawn = jax.vmap(jax.random.categorical)(row_keys(named(key, "draw"), batch["rows"]), readout.logits())
        ids, original = (put(batch["input_ids"], batch, tokens) for tokens in (drawn, batch["mlm_labels"]))
        encoded = judge({**batch, "input_ids": ids}, named(key, "discriminator"))
        replaced = ids != original
        real = (batch["segment_ids"] > 0).astype(jnp.float32)
        rtd = binary(judge.head("replaced", encoded.hidden)[..., 0], replaced, real, "rtd_nll")
        return add_losses((1.0, mlm), (self.weight, rtd))


def electra(table=8):
    def tower(width, heads):
        plain = encoder(layers=1, width=width)
        # The table has a width of its own, so that towers of two widths can share it.
        embed = dataclasses.replace(plain.embed, width=table, project=Dense(width, initializer=Normal(0.2)))
        return Model(encoder=dataclasses.replace(plain, embed=embed), heads=heads)

    shared = ("token", "position/table")
    return system(
        "electra",
        towers={
            "generator": tower(WIDTH // 2, {"mlm": MLMHead(vocab=VOCAB)}),
            "discriminator": tower(WIDTH, {"replaced": Project(1)}),
        },
        corruption=MASKING,
        objective=ReplacedTokens(),
        ties=tuple(
            Tie(path=f"generator/encoder/embed/{path}", source=f"discriminator/encoder/embed/{path}") for path in shared
        ),
    )


def test_electra_shares_tables_and_sends_no_gradient_through_the_draw():
    run = check(electra(), sentences(), steps=30)
    assert "token" not in run.last.params["generator"]["encoder"]["embed"]
    both = towers(run)
    tables = [both[name].params["encoder"]["embed"]["token"] for name in ("generator", "discriminator")]
    assert tables[0] is tables[1]
    batch = corrupted(electra(), sentences())
    # A draw that hits the true token gives back the original: it is not labelled as replaced.
    np.testing.assert_array_equal(put(batch["input_ids"], batch, batch["mlm_labels"]), sentences()["input_ids"])

    def losses(params):
        bound = {name: dataclasses.replace(tower, params=params[name]) for name, tower in both.items()}
        return ReplacedTokens()(bound, batch, jax.random.key(1)).sum

    slopes = evaluate(jax.jacrev(losses), {name: tower.params for name, tower in both.items()})
    for name, own in (("generator", 0), ("discriminator", 1)):
        for leaf in jax.tree.leaves(slopes[name]["encoder"]["stack"]["block"]["ffn"]):
            assert np.asarray(leaf[own]).any() and not np.asarray(leaf[1 - own]).any()
        assert np.asarray(slopes[name]["encoder"]["embed"]["token"][own]).any()


@dataclasses.dataclass(frozen=True)
class SpanMasking:
    """Corruption: one span in each half of a row, of length Geo(0.2) clipped at 2, inside the half so that both
    boundary tokens are seen. Adds to MLM's fields `span_left`, `span_right` (their positions) and `span_offset`: [B, P]."""

    spans: int = 2
    longest: int = 2

    def __call__(self, key, batch):
        ids, shape = batch["input_ids"], (self.spans, 1)
        half = ids.shape[1] // self.spans
        bases = half * jnp.arange(self.spans)[:, None]

        def row(key):
            length = jnp.minimum(jax.random.geometric(named(key, "length"), 0.2, shape), self.longest)
            start = bases + 1 + jax.random.randint(named(key, "start"), shape, 0, half - 1 - length)
            offset = jnp.broadcast_to(jnp.arange(self.longest), (self.spans, self.longest))
            parts = start + offset, offset < length, start - 1 + 0 * offset, start + length + 0 * offset, offset
            return [part.reshape(-1) for part in parts]

        positions, used, left, right, offset = jax.vmap(row)(row_keys(key, batch["rows"]))
        made = {"mlm_positions": positions, "mlm_weights": used.astype(jnp.float32)}
        made |= {"span_left": left, "span_right": right, "span_offset": offset}
        made["mlm_labels"] = jnp.take_along_axis(ids, positions, 1)
        hidden = put(ids, made, jnp.full_like(positions, VOCAB.mask))
        return {**batch, **made, "input_ids": hidden}


class Boundary(nn.Module):
    """p(x_i) from the tokens on both sides of the span and the place in it: two layers of dense, GELU, norm."""

    longest: int = 2

    @staticmethod
    def example(encoded):
        side = encoded.hidden[:, :1]
        return side, side, jnp.zeros(side.shape[:2], jnp.int32)

    @nn.compact
    def __call__(self, left, right, offset, *, table):
        place = self.param("place", Normal(0.1), (self.longest, WIDTH))[offset]
        h = jnp.concatenate([left, right, place], -1)
        for _ in range(2):
            h = LayerNorm(1e-6)(activate("gelu", Dense(table.shape[-1], initializer=Normal(0.1))(h)))
        return Readout(h, table, None)


@dataclasses.dataclass(frozen=True)
class SpanBoundary:
    """The mean MLM loss plus the mean span boundary loss over one forward pass."""

    mlm: MLM = MLM()

    def __call__(self, towers, batch, key):
        tower = towers["main"]
        encoded = tower(batch, key)
        return add_losses((1.0, self.mlm.of(tower, encoded, batch)), (1.0, self.boundary(tower, encoded.hidden, batch)))

    def boundary(self, tower, hidden, batch) -> Loss:
        sides = (gather(hidden, batch[name]) for name in ("span_left", "span_right"))
        nll = tower.head("sbo", *sides, batch["span_offset"]).nll(batch["mlm_labels"])
        return token_loss(nll, batch["mlm_weights"], name="sbo_nll")


def test_spanbert_predicts_a_span_from_its_boundary_alone():
    spanbert = system(
        "spanbert",
        towers={"main": Model(encoder=encoder(layers=1), heads={"mlm": MLMHead(vocab=VOCAB), "sbo": Boundary()})},
        corruption=SpanMasking(),
        objective=SpanBoundary(),
    )
    run = check(spanbert, sentences(), steps=30)
    tower, batch = towers(run)["main"], corrupted(spanbert, sentences())
    inside = np.asarray(batch["input_ids"]) == VOCAB.mask
    assert inside.sum() == np.asarray(batch["mlm_weights"]).sum()
    hidden = jax.random.normal(jax.random.key(2), (ROWS, LENGTH, WIDTH))
    loss = jax.grad(lambda hidden: SpanBoundary().boundary(tower, hidden, batch).sum)
    slopes = evaluate(loss, hidden)
    reached = np.asarray((slopes != 0).any(-1))
    boundary = np.zeros_like(inside)
    for side in ("span_left", "span_right"):
        np.put_along_axis(boundary, np.asarray(batch[side]), True, 1)
    np.testing.assert_array_equal(reached, boundary)
    assert not (inside & boundary).any()


REGIONS, FEATURES, CLASSES, VISUAL = 4, 6, 3, 24


class CoAttention(nn.Module):
    """A text stream and an image stream of another width; then each attends to the other's keys and values."""

    text: nn.Module
    image: Block
    text_reads: Block
    image_reads: Block

    def table(self):
        return self.text.table()

    @nn.compact
    def __call__(self, batch, train=False):
        words, regions = batch["segment_ids"], batch["region_segments"]

        def context(queries, keys):
            return Context(visibility=Visibility(jnp.maximum(queries, 1), keys), rows=batch["rows"], train=train)

        t = self.text(batch, train).hidden
        v = Dense(VISUAL, initializer=Normal(0.3), name="regions")(batch["regions"])
        v, _, _ = self.image(v, context(regions, regions))
        new_t, _, _ = self.text_reads(t, context(words, regions), source=v)
        new_v, _, _ = self.image_reads(v, context(regions, words), source=t)
        return Encoded(new_t, extra={"image": new_v})


class Align(nn.Module):
    """Whether text and image belong together: the product of both first tokens, each made as wide as the other."""

    @staticmethod
    def example(encoded):
        return encoded.hidden[:, 0], encoded.extra["image"][:, 0]

    @nn.compact
    def __call__(self, text, image, *, table=None):
        both = (Dense(WIDTH, initializer=Normal(0.3))(x) for x in (text, image))
        return Dense(1, initializer=Normal(0.3))(next(both) * next(both))[:, 0]


class RegionClasses(Classifier):
    @staticmethod
    def example(encoded):
        return (encoded.extra["image"],)


class RegionMasking:
    """Corruption: one region of each row is predicted; its features are zeroed nine times in ten."""

    def __call__(self, key, batch):
        rows, regions = batch["rows"], batch["regions"]
        allowed = batch["region_segments"] > 0
        at, weights = choose(named(key, "choose"), rows, allowed, jnp.ones_like(rows), 1)
        zero = jax.vmap(lambda k: jax.random.uniform(k, (1,)) < 0.9)(row_keys(named(key, "zero"), rows))
        hide = (jnp.arange(regions.shape[1]) == at) & zero
        made = {"regions": jnp.where(hide[..., None], 0.0, regions), "region_positions": at, "region_weights": weights}
        return {**batch, **made}


def multimodal(towers, batch, key):
    """Masked words, the class distribution of masked regions, and whether text and image belong together."""
    tower = towers["main"]
    encoded = tower(batch, key)
    image = encoded.extra["image"]
    scores = tower.head("regions", gather(image, batch["region_positions"]))
    soft = gather(batch["region_classes"], batch["region_positions"])
    kl = (soft * (jnp.log(soft) - jax.nn.log_softmax(scores))).sum(-1)
    aligned = tower.head("align", encoded.hidden[:, 0], image[:, 0])
    return add_losses(
        (1.0, MLM().of(tower, encoded, batch)),
        (1.0, token_loss(kl, batch["region_weights"], name="region_kl")),
        (1.0, binary(aligned, batch["aligned"] > 0, jnp.ones_like(aligned), "align_nll")),
    )


def vilbert():
    def block(width):
        def attention():
            return Attention(heads=2, width=width, initializer=Normal(0.2))

        return Block(attention=attention(), ffn=FeedForward(hidden=width, initializer=Normal(0.2)), dropout=0.1)

    network: dict[str, Any] = {"text": encoder(layers=1), "image": block(VISUAL)}
    network |= {"text_reads": block(WIDTH), "image_reads": block(VISUAL)}
    heads = {"mlm": MLMHead(vocab=VOCAB), "regions": RegionClasses(CLASSES), "align": Align()}
    return system(
        "vilbert",
        towers={"main": Model(encoder=CoAttention(**network), heads=heads)},
        corruption=Chain(parts=(MASKING, RegionMasking())),
        objective=multimodal,
    )


def test_vilbert_streams_read_each_other():
    draw = np.random.default_rng(1)
    batch = sentences(
        regions=jnp.asarray(draw.normal(size=(ROWS, REGIONS, FEATURES)), jnp.float32),
        region_segments=jnp.ones((ROWS, REGIONS), jnp.int32).at[:, -1].set(0),
        region_classes=jnp.asarray(draw.dirichlet(np.ones(CLASSES), (ROWS, REGIONS)), jnp.float32),
        aligned=jnp.asarray([1, 0, 1, 0]),
    )
    run = check(vilbert(), batch, steps=30)
    tower = towers(run)["main"]
    mix = jax.random.normal(jax.random.key(3), (WIDTH,))

    def words(regions):
        return tower({**batch, "regions": regions}).hidden[0] @ mix

    slopes = evaluate(jax.jacrev(words), batch["regions"])[:, 0]
    real = np.asarray(batch["region_segments"])[0] > 0
    np.testing.assert_array_equal((slopes != 0).any(-1), np.broadcast_to(real, (LENGTH, REGIONS)))
    one = jax.tree.map(lambda leaf: leaf[:1], batch)
    assert sees(tower, "encoder/text/embed/token", lambda t: t(one).extra["image"][0], one["input_ids"][0]).all()

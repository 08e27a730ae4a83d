"""A network over trees: the child-sum Tree-LSTM (Tai et al. 2015, arXiv 1503.00075, Eq. 2 to 8)."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core import slots
from ptm_jax.core.types import Encoded
from ptm_jax.encoders.context import context_of
from ptm_jax.encoders.model import Model
from ptm_jax.nn.embeddings.summed import Embeddings
from ptm_jax.nn.heads.vocabulary import Classifier
from ptm_jax.nn.initializers import Normal
from ptm_jax.nn.layers import Dense
from ptm_jax.objectives.base import token_loss
from support.tiny_systems import VOCAB, WIDTH, check, standing, start, system, towers


class TreeLSTM(slots.Encoder, nn.Module):
    """States [B, L, H] of the nodes of a tree in each row. `parents` [B, L] are slots (L: none),
    `heights` [B, L] count from the leaves (-1: padding). All nodes of one height are one step of
    the scan.

        i, o, u = W x_j + U sum_k h_k + b           k: the children of j
        f_jk    = W_f x_j + U_f h_k + b_f
        c_j     = sigmoid(i) tanh(u) + sum_k sigmoid(f_jk) c_k
        h_j     = sigmoid(o) tanh(c_j)
    """

    embed: Embeddings
    hidden: int
    height: int
    initializer: Any = Normal(0.3)

    @property
    def embeddings(self):
        return self.embed

    def table(self):
        return self.embed.table()

    def level_of(self, path):
        return 0 if path.startswith("encoder/embed/") else 1

    def refusal(self, system) -> str | None:
        return (
            None
            if system.examples == "trees"
            else "TreeLSTM reads batch['parents'], which these rows lack"
        )

    @nn.compact
    def __call__(self, batch, train=False):
        x = self.embed(batch, context_of(batch, "bidirectional", train))
        length, hidden = x.shape[1], self.hidden
        if "parents" not in batch:
            return Encoded(Dense(hidden, name="inputs")(x))
        parents, heights = batch["parents"], batch["heights"]
        gates, keep = jnp.split(
            Dense(4 * hidden, initializer=self.initializer, name="inputs")(x), [3 * hidden], -1
        )
        keep = jnp.take_along_axis(keep, jnp.minimum(parents, length - 1)[..., None], 1)
        kernel = self.param("children", self.initializer, (hidden, 3 * hidden))
        forget = self.param("forget", self.initializer, (hidden, hidden))
        add = jax.vmap(lambda values, at: jnp.zeros_like(values).at[at].add(values, mode="drop"))

        def level(state, number):
            h, c = state
            i, o, u = jnp.split(gates + add(h, parents) @ kernel, 3, -1)
            new = jax.nn.sigmoid(i) * jnp.tanh(u) + add(
                jax.nn.sigmoid(keep + h @ forget) * c, parents
            )
            here = (heights == number)[..., None]
            return (
                jnp.where(here, jax.nn.sigmoid(o) * jnp.tanh(new), h),
                jnp.where(here, new, c),
            ), None

        zeros = jnp.zeros((*parents.shape, hidden))
        (h, _), _ = jax.lax.scan(level, (zeros, zeros), jnp.arange(self.height + 1))
        return Encoded(h)


TREES = (((0, 1), 2), (0, (1, (2, 3))), ((0, 1), (2, 3)), (0, 1))


def drawn():
    """A batch of `TREES` over random words; inner nodes have the word 4. The root is the last node
    of a row."""
    rows, random = [], np.random.default_rng(0)

    def add(tree, nodes):
        if not isinstance(tree, tuple):
            nodes.append([random.integers(5, VOCAB.size), None, 0])
            return len(nodes) - 1
        children = [add(part, nodes) for part in tree]
        nodes.append([4, None, 1 + max(nodes[child][2] for child in children)])
        for child in children:
            nodes[child][1] = len(nodes) - 1
        return len(nodes) - 1

    for tree in TREES:
        nodes = []
        add(tree, nodes)
        rows.append(nodes)
    length = max(map(len, rows))

    def field(at, empty, none):
        return jnp.asarray(
            [
                [none if node[at] is None else node[at] for node in row]
                + [empty] * (length - len(row))
                for row in rows
            ],
            jnp.int32,
        )

    ids = field(0, 0, 0)
    batch = {"input_ids": ids, "parents": field(1, length, length), "heights": field(2, -1, -1)}
    roots = jnp.asarray([len(row) - 1 for row in rows])
    return batch | {"rows": jnp.arange(len(rows)), "roots": roots, "label": ids[:, 0] % 2}


def classify(towers, batch, key):
    tower = towers["main"]
    hidden = tower(batch, key).hidden
    scores = tower.head(
        "class", jnp.take_along_axis(hidden, batch["roots"][:, None, None], 1)[:, 0]
    )
    nll = -jnp.take_along_axis(jax.nn.log_softmax(scores), batch["label"][:, None], 1)[:, 0]
    return token_loss(nll, jnp.ones_like(nll))


def trees():
    encoder = TreeLSTM(
        embed=Embeddings(vocab=VOCAB, width=WIDTH, initializer=Normal(0.3)), hidden=WIDTH, height=3
    )
    model = Model(encoder=encoder, heads={"class": Classifier(2)})
    return system("trees", towers={"main": model}, objective=classify, examples="trees")


@pytest.mark.full
def test_trees_equal_the_recursion_and_train():
    """Would have found: nothing below the heads had a level, and rows without trees failed inside
    of the step."""
    run, batch = check(trees(), drawn(), steps=10), drawn()
    tower = towers(run)["main"]
    found, params = (
        np.asarray(tower(batch).hidden),
        jax.tree.map(np.asarray, tower.params["encoder"]),
    )

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    for row in range(len(TREES)):
        ids, parents = (np.asarray(batch[name][row]) for name in ("input_ids", "parents"))

        def node(j, ids=ids, parents=parents):
            x = (
                params["embed"]["token"][ids[j]] @ params["inputs"]["kernel"]
                + params["inputs"]["bias"]
            )
            children = [node(k) for k in np.flatnonzero(parents == j)]
            total = sum((h for h, _ in children), np.zeros(WIDTH))
            i, o, u = np.split(x[: 3 * WIDTH] + total @ params["children"], 3)
            c = sigmoid(i) * np.tanh(u)
            for h, inner in children:
                c = c + sigmoid(x[3 * WIDTH :] + h @ params["forget"]) * inner
            return sigmoid(o) * np.tanh(c), c

        np.testing.assert_allclose(
            found[row, int(batch["roots"][row])], node(int(batch["roots"][row]))[0], atol=1e-5
        )


def test_levels_are_the_encoders_own_and_tasks_of_running_text_are_refused():
    program, state = start(trees(), drawn())
    levels = {
        path.split("/")[2]: place.level
        for path, place in program.freedom.places(state.params).items()
    }
    assert levels == {"embed": 0, "inputs": 1, "children": 1, "forget": 1, "dense": 2}
    assert all("parents" in reason for reason in standing(trees()).values())

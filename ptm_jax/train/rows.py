"""Sparse tables: a step that touches a few rows of an embedding updates those rows alone (word2vec, GloVe).

An objective with `rows(batch) -> (batch, {path: ids})` says which rows of which tables the batch reads, and hands back
the batch with ids renumbered to places in `ids`. The step then differentiates and updates tables of len(ids) rows; the
network does not know. `ids` are distinct; those outside the table are padding. Moments of rows that a step does not
read stay as they are ("lazy" updates).
"""

from __future__ import annotations

import jax

from ptm_jax.core.paths import flatten


def take(tree, selected):
    """The tree with the tables at the selected paths cut to their selected rows (out of range: clipped, never read)."""
    if not selected:
        return tree
    return _at(tree, selected, lambda leaf, ids: leaf.at[ids].get(mode="clip"))


def put(tree, small, selected):
    """The tree with the selected rows written back, and everything else from `small`."""
    if not selected:
        return small
    flat, new = flatten(tree), flatten(small)
    merged = [
        leaf.at[ids].set(new[path], mode="drop") if (ids := _ids(path, leaf, selected)) is not None else new[path]
        for path, leaf in flat.items()
    ]
    return jax.tree.unflatten(jax.tree.structure(tree), merged)


def _at(tree, selected, function):
    leaves = [
        leaf if (ids := _ids(path, leaf, selected)) is None else function(leaf, ids)
        for path, leaf in flatten(tree).items()
    ]
    return jax.tree.unflatten(jax.tree.structure(tree), leaves)


def _ids(path, leaf, selected):
    """The rows selected of the parameter at `path`, or of a moment of it."""
    for table, ids in selected.items():
        if leaf.ndim > 0 and (path == table or path.endswith("/" + table)):
            return ids
    return None

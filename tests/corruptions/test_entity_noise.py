"""Noise on entities: rates and labels, and rows in which names are replaced, against rows written
by hand."""

import numpy as np
import pytest

from ptm_jax.core import facts
from ptm_jax.corruptions.knowledge.entities import EntityNoise, EntityReplacement, GoldEntities
from ptm_jax.corruptions.knowledge.entity_masking import MentionMasking
from support import corrupting
from support.corrupting import VOCAB

pytestmark = pytest.mark.full
BEFORE = corrupting.documents(rows=256)
IDS, SEGMENTS = (np.asarray(BEFORE[name]) for name in ("input_ids", "segment_ids"))


def names_of(lexicon):
    table, size = lexicon.values, VOCAB.size
    walk = [((i,), table[i, 1]) for i in range(size) if table[i, 1]]
    for name, node in walk:
        walk += [
            ((*name, int(table[child, 0])), child)
            for child in range(table[node, 1], table[node, 2])
        ]
    return {name: table[node, 3:] for name, node in walk if table[node, 3]}


def mentions(names, ids, segments):
    """[(first, size, integers)] of a row: from left to right the longest name of one document."""
    at, found = 0, []
    while at < len(ids):
        fits = [
            n
            for n in (1, 2)
            if tuple(ids[at : at + n]) in names
            and len({*segments[at : at + n]}) == 1
            and segments[at]
        ]
        if fits:
            found.append((at, fits[-1], names[tuple(ids[at : at + fits[-1]])]))
        at += fits[-1] if fits else 1
    return found


def test_entities_are_wrong_dropped_or_kept():
    value = facts.stand_ins(EntityNoise(share=0.5), VOCAB)
    out, names = corrupting.numpied(value, 0, BEFORE), names_of(value.lexicon)
    gold = corrupting.numpied(facts.stand_ins(GoldEntities(), VOCAB), 0, BEFORE)["gold_entities"]
    fates = []
    for row in range(len(IDS)):
        found = mentions(names, IDS[row], SEGMENTS[row])
        used = out["entity_weights"][row] > 0
        assert out["entity_positions"][row][used].tolist() == [at for at, _, _ in found]
        assert out["entity_labels"][row][used].tolist() == [values[0] for _, _, values in found]
        expected = np.zeros(IDS.shape[1], int)
        expected[[at for at, _, _ in found]] = [values[0] for _, _, values in found]
        assert np.array_equal(gold[row], expected)
        seen = out["entities"][row]
        assert not seen[expected == 0].any()
        fates += [
            0 if seen[at] == values[0] else 1 if seen[at] == 0 else 2 for at, _, values in found
        ]
    for fate, rate in ((1, 0.15), (2, 0.05 * 254 / 255)):
        assert abs(np.mean(np.array(fates) == fate) - rate) < 3 * np.sqrt(
            rate * (1 - rate) / len(fates)
        )


def test_entities_stand_beside_the_words_and_some_are_masked():
    value = facts.stand_ins(MentionMasking(share=0.5, rate=0.3), VOCAB)
    out, names = corrupting.numpied(value, 0, BEFORE), names_of(value.lexicon)
    for row in range(0, len(IDS), 4):
        found, used = mentions(names, IDS[row], SEGMENTS[row]), out["mention_segments"][row] > 0
        true, chosen = [values[0] for _, _, values in found], out["masked_entity_weights"][row] > 0
        masked = out["masked_entity_positions"][row][chosen]
        wanted = max(1, int(0.3 * len(found) + 0.5)) if found else 0
        assert used.sum() == len(found) and len({*masked}) == chosen.sum() == wanted
        assert out["masked_entity_labels"][row][chosen].tolist() == [
            true[place] for place in masked
        ]
        expected = [
            value.mask if number in masked else entity for number, entity in enumerate(true)
        ]
        assert out["mention_ids"][row][used].tolist() == expected
        assert out["mention_segments"][row][used].tolist() == [
            SEGMENTS[row, at] for at, _, _ in found
        ]
        for places, (at, size, _) in zip(out["mention_places"][row], found, strict=False):
            assert places[places >= 0].tolist() == [*range(at, at + size)]
        assert (out["mention_places"][row][~used] == -1).all()


def test_replaced_names_are_of_their_type_and_never_neighbours():
    value = facts.stand_ins(EntityReplacement(vocab=VOCAB, share=0.5, masking=0.001), VOCAB)
    names = names_of(value.names)
    of_entity = {int(row[0]): row for row in names.values()}

    def written(row):
        return [int(i) - 1 for i in row[2:] if i]

    kinds = {}
    for row in of_entity.values():
        kinds.setdefault(int(row[1]), []).append(written(row))
    out = corrupting.numpied(value, 0, BEFORE)
    replaced = total = 0
    for row in range(len(IDS)):
        found, real = mentions(names, IDS[row], SEGMENTS[row]), int((SEGMENTS[row] > 0).sum())
        labels = (
            dict(zip(out["erd_before"][row], out["erd_labels"][row], strict=True)) if found else {}
        )
        weights, new = out["erd_weights"][row], out["input_ids"][row]
        at = old = 0
        flags = []
        for number, (first, size, values) in enumerate(found):
            at += first - old
            old = first + size
            if not weights[number]:
                break  # its neighbours are cut or of another document
            assert out["erd_before"][row, number] == at - 1
            flag = int(out["erd_labels"][row, number])
            flags.append(flag)
            length = out["erd_after"][row, number] - at
            name = new[at : at + length].tolist()
            hidden = [i for i, x in enumerate(name) if x == VOCAB.mask]
            assert not hidden, "names are not masked"
            if flag:
                assert name in kinds[int(values[1])]
            else:
                assert name == IDS[row, first : first + size].tolist()
            at += length
        assert not any(a and b for a, b in zip(flags, flags[1:], strict=False)), (
            "no two beside each other"
        )
        replaced, total = replaced + sum(flags), total + len(flags)
        assert labels is not None and real >= 0
    assert 0.15 < replaced / total < 0.45
    segments, positions = out["segment_ids"], out["positions"]
    for row in range(len(IDS)):
        for number in {*segments[row]} - {0}:
            assert np.array_equal(
                positions[row][segments[row] == number], np.arange((segments[row] == number).sum())
            )


def test_five_of_a_hundred_tokens_outside_of_names_are_predicted():
    """Of each row round(0.05 n), at least 1, of the n tokens that are no name and not special."""
    value = facts.stand_ins(EntityReplacement(vocab=VOCAB, share=0.5, rate=1e-9), VOCAB)
    out, names = corrupting.numpied(value, 0, BEFORE), names_of(value.names)
    assert not out["erd_labels"].any(), "no name is replaced, so no token moves"
    fates = []
    for row in range(len(IDS)):
        inside = {
            at + n for at, size, _ in mentions(names, IDS[row], SEGMENTS[row]) for n in range(size)
        }
        real = SEGMENTS[row] > 0
        free = [
            at
            for at in np.flatnonzero(real)
            if at not in inside and IDS[row, at] not in VOCAB.specials
        ]
        chosen = out["mlm_weights"][row] > 0
        places = out["mlm_positions"][row][chosen]
        assert len(places) == len({*places}) == (max(1, int(0.05 * len(free) + 0.5)) if free else 0)
        assert {*places} <= {*free} and np.array_equal(
            out["mlm_labels"][row][chosen], IDS[row, places]
        )
        changed = np.flatnonzero(out["input_ids"][row] != IDS[row])
        assert {*changed} <= {*places}
        fates += (out["input_ids"][row, places] == VOCAB.mask).tolist()
    assert abs(np.mean(fates) - 0.8) < 3 * np.sqrt(0.8 * 0.2 / len(fates))

"""A row of T-REx as microsoft/K-Adapter writes it (scripts,
create_subdataset-relation-classification) is one of TACRED."""

import json

from ptm_jax.tasks.catalogue import catalogue

WORDS = (
    "Nora Zaïdi , born on July 6 in Bethoncourt ( French département of Doubs ) , is a "
    "French activist".split()
)
ROW = {"docid": "Q3343462", "token": WORDS, "relation": "P31", "subj_start": 13, "subj_end": 13,
    "obj_start": 11,
       "obj_end": 11, "subj_label": "Q3361", "obj_label": "Q6465"}  # fmt: skip


def test_rows_of_t_rex_are_read_as_tacreds(tmp_path):
    (tmp_path / "train.json").write_text(
        json.dumps([ROW, {**ROW, "relation": "no_relation"}]), encoding="utf8"
    )
    one, other = catalogue.get("tacred").examples.read(tmp_path / "train.json")
    assert one.first.split()[10:14] == ["French", "[E2]", "département", "[/E2]"]
    assert one.first.split()[14:18] == ["of", "[E1]", "Doubs", "[/E1]"]
    assert (one.label, other.label) == ("P31", "no_relation")

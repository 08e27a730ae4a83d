"""What a checkpoint may cost: sizes, numbers and files that no checkpoint has are refused before
anything is built."""

import json
import os

import pytest

import ptm_jax
from ptm_jax.convert import checkpoint, engine
from ptm_jax.convert.config import LARGEST, PARTS, Config
from ptm_jax.convert.table import Line
from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import parse_json, read_bytes
from ptm_jax.data.tokenizers.published import read_published
from support import hostile
from support.limits import cpu_limit

DEEP = "[" * 100_000 + "]" * 100_000


@pytest.fixture
def copied(published, tmp_path):
    """`copied(file=content)`: a copy of a small checkpoint with files replaced; None takes one
    away."""

    def copy(**files):
        for path in published.iterdir():
            content = files.get(path.name.partition(".")[0], b"")
            if content is not None:
                (tmp_path / path.name).write_bytes(
                    content.encode() if content else path.read_bytes()
                )
        return tmp_path

    return copy


@pytest.mark.parametrize(
    "fields, words",
    [
        (
            {"num_hidden_layers": 10**6},
            "num_hidden_layers is 1,000,000, too many for its tensors: expected at most 100",
        ),
        (
            {"num_hidden_layers": 10**12},
            "num_hidden_layers is 1000000000000; expected a number of at most 2,147,483,647",
        ),
        (
            {"num_hidden_layers": 90},
            "the config has 90 layers of .*, and the checkpoint has 23 tensors",
        ),
        (
            {"hidden_size": 10**9},
            "hidden_size is 1,000,000,000, too large for its tensors: expected at most 1,048,576",
        ),
        (
            {"vocab_size": 2**31},
            "vocab_size is 2147483648; expected a number of at most 2,147,483,647",
        ),
        ({"vocab_size": -(10**30)}, "vocab_size is -1000000000000000000000000000000; expected"),
        ({"pad_token_id": [[1]]}, r"pad_token_id is \[1\]; expected a whole number"),
        ({"layer_norm_eps": float("nan")}, "layer_norm_eps is nan; expected a finite number"),
        ({"hidden_act": ["gelu"]}, r"hidden_act is \['gelu'\]; supported are"),
        ({"hidden_act": "x" * 10**5}, "hidden_act is 'xxx.*x'; supported are"),
        ({"architectures": [["BertModel"]]}, "unknown architecture"),
    ],
)
def test_a_size_that_the_tensors_cannot_have(copied, published, fields, words):
    config = json.loads((published / "config.json").read_text()) | fields
    with cpu_limit(60), pytest.raises(UserError, match=words) as caught:
        checkpoint.read(copied(config=json.dumps(config)))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 900


def test_names_are_not_built_for_more_layers_than_tensors():
    line = Line("stack/scale", "layer.{i}.part.{j}.scale")
    with pytest.raises(
        UserError, match="10000 x 10000 layers of .*, and the checkpoint has 40 tensors in all"
    ):
        engine.leaves({"stack/scale": (PARTS, PARTS, 8)}, (line,), limit=40)
    assert (
        len(engine.leaves({"stack/scale": (5, 8, 8)}, (line,), limit=40)[0]["stack/scale"].names)
        == 40
    )


def test_the_bounds_of_a_config_grow_with_its_tensors():
    config = Config({"width": 3 << 20, "layers": 300})
    assert (config.positive("width"), config.count("layers"), config.largest) == (
        3 << 20,
        300,
        LARGEST,
    )
    wide = config.within([(3 << 20,), *[(1,)] * 299])
    assert (wide.positive("width"), wide.count("layers")) == (3 << 20, 300)
    assert wide.filled(more=1).largest == wide.largest and wide.renamed(layers="deep").parts == 300
    narrow = config.within([(1 << 20,)])
    for name, read in (("width", narrow.positive), ("layers", narrow.count)):
        with pytest.raises(UserError, match=f"{name} is .* for its tensors: expected at most"):
            read(name)


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "tokenizer.json",
        "model.safetensors",
        "generation_config.json",
        "modules.json",
    ],
)
@pytest.mark.parametrize("kind", ["fifo", "zero", "folder", "sparse"])
def test_only_regular_files_of_a_plausible_size_are_read(copied, name, kind):
    path = copied() / name
    path.touch()
    hostile.special(path, kind)
    with pytest.raises(
        UserError,
        match="is not a regular file|has 1,099,511,627,776 bytes|header is not JSON|no workdir",
    ):
        ptm_jax.load(path.parent)


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "modules.json",
    ],
)
def test_deep_json_is_refused(copied, name):
    folder = copied()
    for content in (DEEP, '{"a":' * 100_000, "9" * 100_000):
        (folder / name).write_text(content)
        with pytest.raises(UserError, match=name) as caught:
            ptm_jax.load(folder)
        assert "\n" not in str(caught.value)


def test_a_vocabulary_without_its_unknown_token(copied, published):
    whole = json.loads((published / "tokenizer.json").read_text())
    del whole["model"]["vocab"]["[UNK]"]
    whole["added_tokens"] = [
        token for token in whole["added_tokens"] if token["content"] != "[UNK]"
    ]
    with pytest.raises(
        UserError, match=r"cannot encode a text \(WordPiece error: Missing \[UNK\]|has no '\[UNK\]'"
    ):
        read_published(copied(tokenizer=json.dumps(whole))).encode("жжж")


@pytest.mark.parametrize("kind", [2**31 + 1, -1])
def test_a_token_type_of_a_template_is_small(copied, published, kind):
    whole = json.loads((published / "tokenizer.json").read_text())
    whole["post_processor"]["single"][0]["SpecialToken"]["type_id"] = kind
    with pytest.raises(UserError, match="tokenizer.json is not a tokenizer file"):
        read_published(copied(tokenizer=json.dumps(whole)))


def test_a_file_is_read_up_to_a_size_and_keys_are_counted_in_one_pass(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"12345")
    assert read_bytes(path, 5) == b"12345"
    with pytest.raises(UserError, match="x: has 5 bytes; a file of its kind has at most 4"):
        read_bytes(path, 4)
    os.unlink(path)
    with pytest.raises(UserError, match="x: cannot be read"):
        read_bytes(path)
    keys = ", ".join(f'"{i}": 0' for i in (*range(40_000), 39_999))
    with pytest.raises(UserError, match="names '39999' twice"):
        parse_json(path, b"{%s}" % keys.encode(), "it")


@pytest.mark.full
@pytest.mark.parametrize("part", range(2))
def test_damage_gives_a_model_or_one_line(part, tmp_path):
    """The first two sevenths of ten thousand damaged checkpoints of fourteen families give a model,
    or one line for the user; none hangs. `range(7)` tries all, in two CPU-minutes."""
    counts, wrong = hostile.survey(tmp_path, range(10_000 * part // 7, 10_000 * (part + 1) // 7))
    assert not wrong
    assert counts["loaded"] > 150 and counts["refused"] > 800

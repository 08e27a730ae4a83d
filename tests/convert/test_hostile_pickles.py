"""Pickles that claim more than they hold, or never end: each is one line, in bounded time and
memory. The files are written opcode by opcode, without torch and gensim."""

import io
import pickle
import struct
import zipfile

import numpy as np
import pytest

from ptm_jax.convert.files import open_tensors
from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import Unpickler, shown
from support.limits import cpu_limit, limited

DEEP = 60
"""Levels of a value that holds each of its parts twice: 2**60 of them if each is followed."""


def text(word):
    return b"X" + struct.pack("<I", len(word)) + word.encode()


def number(value):
    return pickle.dumps(value, 2)[2:-1]


def storage(key="0", kind="FloatStorage", count=4):
    words = text("storage") + b"ctorch\n" + kind.encode() + b"\n" + text(key) + text("cpu")
    return b"(" + words + number(count) + b"tQ"


def tensor(place=None, offset=0, shape=(4,), strides=(1,)):
    place = storage() if place is None else place
    numbers = b"".join(map(number, (offset, tuple(shape), tuple(strides))))
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + place + numbers + b"\x89}tR"


def table(*pairs):
    return b"\x80\x02}(" + b"".join(text(name) + value for name, value in pairs) + b"u."


def archive(path, content, storages=None, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as file:
        file.writestr("archive/data.pkl", content)
        for key, raw in ({"0": bytes(16)} if storages is None else storages).items():
            file.writestr(f"archive/data/{key}", raw)


def shared_tables():
    """A table whose parts hold the next one twice."""
    levels = b"}q\x00"
    for level in range(1, DEEP):
        inner = b"h" + bytes([level - 1])
        levels += b"}(" + text("a") + inner + text("b") + inner + b"uq" + bytes([level])
    return b"\x80\x02" + levels + b"."


def shared_keys():
    """A key that is a tuple of tuples: its hash visits each part twice."""
    return b"\x80\x02}" + b")" + b"2\x86" * DEEP + b"Ns."


MEMO = b"\x80\x02}r\xff\xff\xff\x7f."
PICKLES = {
    "shared tables": shared_tables(),
    "shared keys": shared_keys(),
    "a bytearray": b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b".",
    "a long text": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b".",
    "numbers of one hash": b"\x80\x02}("
    + b"".join(number(n * ((1 << 61) - 1)) + b"N" for n in range(2, 40_000))
    + b"u.",
    "stride 0": table(("w", tensor(shape=(1 << 30, 4), strides=(0, 1)))),
    "a negative stride": table(("w", tensor(strides=(-1,)))),
    "a huge shape": table(("w", tensor(shape=(1 << 61, 1 << 61), strides=(1, 1)))),
    "too many axes": table(("w", tensor(shape=(1,) * 70, strides=(1,) * 70))),
    "an offset": table(("w", tensor(offset=3, shape=(2,)))),
    "a negative offset": table(("w", tensor(offset=-1))),
    "a storage that is larger": table(("w", tensor(storage(count=1 << 40), shape=(1 << 40,)))),
    "a storage that is missing": table(("w", tensor(storage("7")))),
    "a tensor that is changed": table(("w", tensor() + b"}" + text("shape") + b"K\x05sb")),
    "a storage of a billion": table(("w", b"ctorch\nFloatStorage\nJ\xff\xff\xff\x7f\x85R")),
}


@pytest.mark.parametrize("name", PICKLES)
@pytest.mark.parametrize("layout", ["zip", "row"])
def test_a_torch_file_that_lies_is_one_line(tmp_path, name, layout):
    path = tmp_path / "pytorch_model.bin"
    if layout == "zip":
        archive(path, PICKLES[name])
    else:
        heads = (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True})
        rows = b"".join(pickle.dumps(head, 2) for head in heads)
        numbers = struct.pack("<Q", 4) + bytes(16)
        path.write_bytes(rows + PICKLES[name] + pickle.dumps(["0"], 2) + numbers)
    with cpu_limit(20), pytest.raises(UserError) as error:
        open_tensors(tmp_path, allow_pickle=True)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_an_empty_storage_is_not_read_out_of_bounds(tmp_path):
    empty = storage(count=0)
    archive(tmp_path / "pytorch_model.bin", table(("w", tensor(empty, shape=(1,)))), {"0": b""})
    with pytest.raises(UserError, match="larger than its numbers"):
        open_tensors(tmp_path, allow_pickle=True)
    nothing = table(("w", tensor(empty, shape=(0, 3), strides=(3, 1))))
    archive(tmp_path / "pytorch_model.bin", nothing, {"0": b""})
    assert open_tensors(tmp_path, allow_pickle=True).read("w").shape == (0, 3)


def test_an_archive_that_expands_is_refused(tmp_path):
    """A storage or a pickle of 4 GB of zeros in 4 MB: torch compresses nothing."""
    path = tmp_path / "pytorch_model.bin"
    archive(path, table(("w", tensor(storage(count=1 << 18), shape=(1 << 18,)))),
            {"0": bytes(1 << 20)}, zipfile.ZIP_DEFLATED)  # fmt: skip
    with pytest.raises(UserError, match="archive that torch did not write"):
        open_tensors(tmp_path, allow_pickle=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", table(("w", tensor())))
        file.writestr("archive/data/0", bytes(16), zipfile.ZIP_DEFLATED)
    with pytest.raises(UserError, match="a storage of another size"):
        open_tensors(tmp_path, allow_pickle=True)


def test_tensors_are_what_numpy_makes_of_the_file(tmp_path):
    """Strides, offsets, shared storages and bfloat16, against numpy."""
    values = np.arange(6, dtype="<f4")
    halves = (values.view("<u4") >> 16).astype("<u2")
    content = table(
        ("w", tensor(storage(count=6), shape=(2, 3), strides=(3, 1))),
        ("t", tensor(storage(count=6), shape=(3, 2), strides=(1, 3))),
        ("part", tensor(storage(count=6), offset=2, shape=(2,), strides=(2,))),
        ("scalar", tensor(storage(count=6), offset=5, shape=(), strides=())),
        ("half", tensor(storage("1", "BFloat16Storage", 6), shape=(6,))),
    )
    path = tmp_path / "pytorch_model.bin"
    archive(path, content, {"0": values.tobytes(), "1": halves.tobytes()})
    tensors = open_tensors(tmp_path, allow_pickle=True)
    expected = {
        "w": values.reshape(2, 3),
        "t": values.reshape(2, 3).T,
        "part": values[[2, 4]],
        "scalar": values[5],
        "half": values,
    }
    for name, array in expected.items():
        np.testing.assert_array_equal(tensors.read(name), array)
    np.testing.assert_array_equal(tensors.read_slice("t", (slice(1, 3),)), expected["t"][1:3])


GENSIM = """
import pathlib
from ptm_jax.convert.libraries import fastai_file, flair_files
from ptm_jax.convert.words import keyed
from ptm_jax.convert.formats import torch_records
from ptm_jax.core.errors import UserError
limit()
for path in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    for read in (lambda path: keyed.read(path, True), torch_records.read):
        try:
            print(path.name, "read", type(read(path)).__name__)
        except UserError as error:
            print(path.name, "refused", str(error))
"""


def dtype_states():
    """States with which numpy's `dtype.__setstate__` crashes, or makes a type of objects."""
    for state in (
        (3, "|", None, ("a", "b"), {"a": (1, 2)}, 1 << 40, 1 << 40, 0xFF),
        (3, "|", (1, 2), None, None, -1, -1, 63),
        (4, "<", None, None, None, -1, -1, 0, ({}, (3, 1, 1, 1))),
        (),
        7,
    ):
        for name in ("O8", "V8", "f4", "M8", "S1000000000", "f4,(1000000,)f4"):
            yield (
                b"\x80\x02cx\ny\n)\x81}("
                + text("vectors")
                + b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
                + b"(K\x01"
                + number((2, 2))
                + b"cnumpy\ndtype\n" + text(name) + b"K\x00K\x01\x87R" + number(state) + b"b\x89"
                + text("\0" * 16) + b"tb" + text("index_to_key") + number(["a", "b"]) + b"ub."
            )  # fmt: skip


def test_pickles_of_gensim_and_flair_that_lie_are_one_line(tmp_path):
    """In a process with 1 GB to spare: a crash, a hang or more memory ends it."""
    for number_, raw in enumerate([*PICKLES.values(), MEMO, *dtype_states()]):
        (tmp_path / f"{number_:03}").write_bytes(raw)
    archive(tmp_path / "zip", shared_tables())
    lines = limited(GENSIM, tmp_path)
    refused = [line for line in lines if " refused " in line]
    assert len(lines) == 2 * len(list(tmp_path.iterdir()))
    assert len(refused) >= len(lines) - 7, [line for line in lines if " read " in line]
    assert not [line for line in lines if "MemoryError" in line]


def test_the_words_of_a_pickle_are_read_without_a_memo_of_its_size():
    with cpu_limit(20):
        assert Unpickler(io.BytesIO(MEMO)).load() == {}
        assert len(shown(Unpickler(io.BytesIO(shared_tables())).load())) <= 120


def test_a_value_is_shown_in_bounded_time():
    value = []
    for _ in range(DEEP):
        value = [value, value]
    with cpu_limit(20):
        assert len(shown(value)) <= 120 and len(shown({"a": value})) <= 120
    assert shown(10**5000).startswith("0x") and shown({"b": 1, "a": (2.5, None)}) == (
        "{'b': 1, 'a': (2.5, None)}"
    )

"""Compressed sources that are cut off, and links inside of a glob."""

import bz2
import glob
import gzip
import lzma
import random
import shutil
import subprocess

import pyarrow
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.data.text import sources
from ptm_jax.tasks.formats import tabular

WORDS = [str(word) for word in random.Random(0).choices(range(10**6), k=60_000)]
LINES = "\n".join(" ".join(WORDS[i : i + 10]) for i in range(0, len(WORDS), 10)).encode()


def zstd(content: bytes, *options: str) -> bytes:
    return subprocess.run(
        ["zstd", "-q", "-c", *options], input=content, capture_output=True, check=True
    ).stdout


PACK = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda content: pyarrow.Codec("zstd").compress(content, asbytes=True),
}


@pytest.mark.full
@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize("kind", ["txt", "csv"])
def test_a_truncated_source_is_an_error(tmp_path, suffix, kind):
    path, packed = tmp_path / f"x.{kind}.{suffix}", PACK[suffix](b"text\n" + LINES)
    path.write_bytes(packed)
    whole = list(sources.documents([str(path)]))
    assert whole
    for size in (len(packed) - 1, len(packed) - 4, len(packed) // 2, len(packed) // 10, 20):
        path.write_bytes(packed[:size])
        with pytest.raises(
            UserError, match=f"x.{kind}.{suffix} .*(damaged|cannot be read)"
        ) as caught:
            list(sources.documents([str(path)]))
        assert "\n" not in str(caught.value)
        with pytest.raises(UserError, match=f"x.{kind}.{suffix} .*(damaged|cannot be read)"):
            tabular.text_of(path)


@pytest.mark.full
@pytest.mark.skipif(shutil.which("zstd") is None, reason="needs the program zstd")
@pytest.mark.parametrize(
    "options",
    [(), ("--no-check",), ("-1", "--no-content-size"), ("-19", "--long=27"), ("--ultra", "-22")],
)
@pytest.mark.parametrize("content", [LINES, b"a " * 250_000, b"one", b"x y\n" * 20_000])
def test_what_the_program_zstd_writes(tmp_path, options, content):
    """Every whole file is read, also several frames and skippable frames; every cut within a frame
    is an error."""
    packed = zstd(content, *options)
    path = tmp_path / "x.txt.zst"
    path.write_bytes(packed)

    def length():
        return sum(len(s) for item in sources.documents([str(path)]) for s in item.sentences)

    once = length()
    skipped = b"\x50\x2a\x4d\x18\x05\0\0\0hello"
    for parts, times in (
        (packed + b"".join([zstd(b"\n"), packed]), 2),
        (skipped + packed, 1),
        (packed + skipped, 1),
    ):
        path.write_bytes(parts)
        assert length() == times * once
    for size in {len(packed) - 1, len(packed) - 3, len(packed) // 2, 5}:
        for start in (b"", packed):
            path.write_bytes(start + packed[:size])
            with pytest.raises(UserError, match="x.txt.zst is a damaged archive"):
                list(sources.documents([str(path)]))


def test_a_link_in_a_glob_is_read_once(tmp_path):
    folder = tmp_path / "in"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "z.txt").write_text("the last")
    (folder / "a.txt").write_text("the first")
    (folder / "b.txt").symlink_to("a.txt")
    (folder / "again").symlink_to(".")
    (folder / "deep" / "up").symlink_to("..")
    (folder / "deep" / "here").symlink_to(".")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "m.txt").write_text("linked from outside")
    (folder / "else").symlink_to(tmp_path / "out")
    own = [str(folder / "a.txt"), str(folder / "deep" / "z.txt")]
    linked = [own[0], own[1], str(folder / "else" / "m.txt")]

    def names(pattern):
        return [name for _, name in sources.expand(str(pattern))]

    assert names(folder / "**" / "*.txt") == linked
    assert names(folder / "**") == linked
    assert names(tmp_path / "i*" / "**" / "deep" / "**" / "z.txt") == [own[1]]
    assert names(folder / "*" / "*.txt") == [str(folder / "again" / "a.txt"), own[1], linked[2]]
    assert names(folder / "*.txt") == own[:1]
    assert names(folder) == own
    assert [item.sentences for item in sources.documents([str(folder / "**")])] == [
        ("the first",), ("the last",), ("linked from outside",)
    ]  # fmt: skip
    assert len(sources.fingerprints([str(folder / "**")])) == 3


def test_a_recursive_glob_without_links_is_what_the_library_finds(tmp_path, monkeypatch):
    for name in (
        "a.txt",
        "b/c.txt",
        "b/d/e.txt",
        ".hidden/f.txt",
        "b/.g.txt",
        "b[1]/h.txt",
        "b/d/x/d/y.txt",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    monkeypatch.chdir(tmp_path)
    for pattern in (
        "**/*.txt",
        "**",
        "b/**",
        "b/**/d/**/*.txt",
        "**/d/*",
        "*/**/*.txt",
        "./**/*.txt",
        f"{tmp_path}/**/*.txt",
    ):
        wanted = sorted(
            {
                p.removeprefix("./")
                for p in glob.glob(pattern, recursive=True)
                if (tmp_path / p).is_file()
            }
        )
        assert sorted(name for _, name in sources.expand(pattern)) == wanted, pattern

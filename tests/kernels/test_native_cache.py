"""Compiled kernels in the cache: damaged files, and files and folders that others may write."""

import os
import tempfile
import threading

import pytest

from ptm_jax.kernels import native, program_cache


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A source whose function returns 7; (load, the folder of compiled libraries)."""
    monkeypatch.setenv("PTM_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "seven.cc"
    path.write_text('extern "C" int seven() { return 7; }')

    def load():
        native.library.cache_clear()
        library = native.library(path)
        assert not isinstance(library, str), library
        return library.seven()

    if isinstance(native.library(path), str):
        pytest.skip("there is no C++ compiler")
    yield load, program_cache.folder() / "native"
    native.library.cache_clear()


def only(folder, suffix):
    (path,) = folder.glob(f"*{suffix}")
    return path


def cut(folder, suffix, length):
    """The first bytes, in a new file: this process has mapped the other one."""
    path = only(folder, suffix)
    content = path.read_bytes()[:length]
    path.unlink()
    path.write_bytes(content)
    path.chmod(0o700)


def linked(folder):
    path = only(folder, ".so")
    path.rename(folder / "elsewhere")
    path.symlink_to("elsewhere")


DAMAGES = {
    "half": lambda folder: cut(folder, ".so", only(folder, ".so").stat().st_size // 2),
    "empty": lambda folder: cut(folder, ".so", 0),
    "no hash": lambda folder: only(folder, ".sha256").unlink(),
    "an empty hash": lambda folder: cut(folder, ".sha256", 0),
    "a link": linked,
    "written by others": lambda folder: only(folder, ".so").chmod(0o777),
    "written by a group": lambda folder: only(folder, ".sha256").chmod(0o660),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_library_that_is_damaged_or_shared_is_compiled_again(source, damage):
    load, folder = source
    assert load() == 7
    before = only(folder, ".so").stat().st_ino
    assert load() == 7 and only(folder, ".so").stat().st_ino == before  # compiled once
    DAMAGES[damage](folder)
    assert load() == 7
    after = only(folder, ".so")
    assert after.stat().st_mode & 0o777 == 0o700 and not after.is_symlink()
    assert load() == 7 and after.stat().st_ino == only(folder, ".so").stat().st_ino


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file away")
def test_a_library_or_folder_of_another_user_is_not_loaded(source):
    load, folder = source
    load()
    before = only(folder, ".so").stat().st_ino
    os.chown(only(folder, ".so"), 12345, 12345)
    assert load() == 7 and only(folder, ".so").stat().st_ino != before
    os.chown(folder.parent, 12345, 12345)
    assert program_cache.folder().name == f"{folder.parent.name}-0"
    assert load() == 7 and only(program_cache.folder() / "native", ".so").exists()
    os.chown(program_cache.folder(), 12345, 12345)
    assert program_cache.folder() is None and load() == 7


def test_folders_are_the_user_s_alone(source):
    load, folder = source
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o777)
    folder.parent.chmod(0o775)
    load()
    assert folder.stat().st_mode & 0o022 == 0 and folder.parent.stat().st_mode & 0o022 == 0


def test_without_a_cache_nothing_is_left(source, tmp_path, monkeypatch):
    load, _ = source
    monkeypatch.setenv("PTM_CACHE", "off")
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    assert load() == 7
    assert not list((tmp_path / "scratch").iterdir())


def test_threads_register_a_function_once(source, tmp_path, monkeypatch):
    """Else a second thread compiles it anew, and XLA refuses its other address."""
    calls = []
    monkeypatch.setattr(native.jax.ffi, "pycapsule", lambda function: function)
    monkeypatch.setattr(
        native.jax.ffi, "register_ffi_target", lambda *words, **more: calls.append(words[0])
    )
    barrier = threading.Barrier(4)

    def register():
        barrier.wait()
        native.refusal(tmp_path / "seven.cc", "seven")

    native.library.cache_clear()
    threads = [threading.Thread(target=register) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == ["seven"]

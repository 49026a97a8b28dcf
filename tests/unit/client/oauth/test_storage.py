"""What keeps tokens: nothing is lost, nothing is shown, and nobody else reads it."""

import asyncio
import json
import logging
import os
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.client.oauth import storage as module
from callboard.client.oauth.storage import FileStorage, KeyringStorage, MemoryStorage, Storage, StorageError

KEY = "https://as.example/t1 https://desk.example/mcp"
SECRET = "s3cr3t"
VALUE = {"access_token": SECRET, "scopes": ["a", "é\u2028"], "n": {"x": 1.5, "y": None}}
POSIX = pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")


class Vault:
    """What a backend of keyring keeps."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], str] = {}
        self.trouble: Exception | None = None


@pytest.fixture
def vault() -> Iterator[Vault]:
    keyring = pytest.importorskip("keyring")
    backend = pytest.importorskip("keyring.backend")
    errors = pytest.importorskip("keyring.errors")
    kept = Vault()

    class Backend(backend.KeyringBackend):  # type: ignore[misc, name-defined]
        priority = 1

        def get_password(self, service: str, username: str) -> str | None:
            if kept.trouble:
                raise kept.trouble
            return kept.kept.get((service, username))

        def set_password(self, service: str, username: str, password: str) -> None:
            if kept.trouble:
                raise kept.trouble
            kept.kept[service, username] = password

        def delete_password(self, service: str, username: str) -> None:
            if (service, username) not in kept.kept:
                raise errors.PasswordDeleteError("not found")
            del kept.kept[service, username]

    before = keyring.get_keyring()
    keyring.set_keyring(Backend())
    yield kept
    keyring.set_keyring(before)


@pytest.fixture(params=["memory", "file", "keyring"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "memory":
        return MemoryStorage()
    if request.param == "file":
        return FileStorage(tmp_path / "a" / "tokens")
    request.getfixturevalue("vault")
    return KeyringStorage()


async def test_what_is_saved_is_there_until_it_is_removed(storage: Storage) -> None:
    """AC-12: credentials of another issuer stand under another key."""
    assert await storage.load(KEY) is None
    await storage.save(KEY, VALUE)
    await storage.save("other", {"x": 1})
    assert await storage.load(KEY) == VALUE
    found = await storage.load(KEY)
    assert found is not None
    found["access_token"] = "changed"
    assert await storage.load(KEY) == VALUE
    await storage.save(KEY, {})
    assert await storage.load(KEY) == {}
    await storage.remove(KEY)
    await storage.remove(KEY)
    assert await storage.load(KEY) is None
    assert await storage.load("other") == {"x": 1}
    assert SECRET not in repr(storage) + str(storage)


async def test_a_value_may_be_too_large(storage: Storage) -> None:
    with pytest.raises(StorageError, match="at most"):
        await storage.save(KEY, {"x": "y" * module.MAX_VALUE})
    assert await storage.load(KEY) is None


def suffixes(folder: Path) -> list[str]:
    return [child.suffix for child in folder.iterdir()]


def open_up(path: Path, mode: int) -> None:
    path.chmod(mode)


def the_file(folder: Path) -> Path:
    (path,) = folder.glob("*.json")
    return path


@POSIX
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
async def test_only_the_owner_reads_the_files(tmp_path: Path, umask: int) -> None:
    """AC-16."""
    before = os.umask(umask)
    try:
        await FileStorage(tmp_path / "tokens").save(KEY, VALUE)
    finally:
        os.umask(before)
    path = the_file(tmp_path / "tokens")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [child.name for child in path.parent.iterdir()] == [path.name]
    assert "desk" not in path.name


@POSIX
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
async def test_a_file_that_others_read_is_closed(tmp_path: Path, mode: int, caplog: pytest.LogCaptureFixture) -> None:
    kept = FileStorage(tmp_path)
    await kept.save(KEY, VALUE)
    the_file(tmp_path).chmod(mode)
    assert await kept.load(KEY) == VALUE
    assert stat.S_IMODE(the_file(tmp_path).stat().st_mode) == 0o600
    assert "could be read by others" in caplog.text
    assert SECRET not in caplog.text


@POSIX
async def test_a_folder_that_others_write_is_refused(tmp_path: Path) -> None:
    open_up(tmp_path, 0o777)
    with pytest.raises(StorageError, match="chmod 700"):
        await FileStorage(tmp_path).save(KEY, VALUE)
    assert not suffixes(tmp_path)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root gives files away")
async def test_files_of_somebody_else_are_not_trusted(tmp_path: Path) -> None:
    kept = FileStorage(tmp_path / "tokens")
    await kept.save(KEY, VALUE)
    os.chown(the_file(tmp_path / "tokens"), 54321, -1)
    with pytest.raises(StorageError, match="somebody else's"):
        await kept.load(KEY)
    os.chown(tmp_path / "tokens", 54321, -1)
    with pytest.raises(StorageError, match="somebody else's"):
        await kept.save(KEY, VALUE)


@POSIX
async def test_links_and_pipes_are_no_files(tmp_path: Path) -> None:
    kept = FileStorage(tmp_path / "tokens")
    await kept.save(KEY, VALUE)
    path = the_file(tmp_path / "tokens")
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="can't be kept"):
        await kept.load(KEY)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(StorageError, match="is no file"):
        async with asyncio.timeout(5):
            await kept.load(KEY)
    path.unlink()
    path.mkdir()
    with pytest.raises(StorageError):
        await kept.load(KEY)


async def test_a_folder_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    kept = FileStorage(tmp_path / "file")
    for work in (kept.save(KEY, VALUE), kept.load(KEY), kept.remove(KEY)):
        with pytest.raises(StorageError, match="a folder of your own") as caught:
            await work
        assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "broken",
    [b"", b"{", b"[]", b"null", b'{"key": 1}', b'{"key": "other", "value": {}}', b'{"key": "KEY", "value": []}', b"\xff", b"[" * 9999],
)
async def test_a_broken_file_is_set_aside(tmp_path: Path, broken: bytes, caplog: pytest.LogCaptureFixture) -> None:
    kept = FileStorage(tmp_path)
    await kept.save(KEY, VALUE)
    path = the_file(tmp_path)
    path.write_bytes(broken.replace(b"KEY", KEY.encode()))
    assert await kept.load(KEY) is None
    assert path.with_suffix(".broken").read_bytes() == broken.replace(b"KEY", KEY.encode())
    assert not path.exists()
    assert "set aside" in caplog.text
    await kept.save(KEY, VALUE)
    assert await kept.load(KEY) == VALUE


async def test_a_good_file_that_came_since_is_not_set_aside(tmp_path: Path) -> None:
    """A31: another process saves between the reading of a broken file and its removal."""
    kept = FileStorage(tmp_path)
    await kept.save(KEY, VALUE)
    path = the_file(tmp_path)
    with path.open() as broken:
        await kept.save(KEY, {"x": 1})
        kept._set_aside(path, os.fstat(broken.fileno()))
    assert await kept.load(KEY) == {"x": 1}


async def test_a_file_that_is_too_large_is_not_read_whole(tmp_path: Path) -> None:
    kept = FileStorage(tmp_path)
    await kept.save(KEY, VALUE)
    path = the_file(tmp_path)
    path.write_bytes(json.dumps({"key": KEY, "value": {"x": "y" * module.MAX_VALUE}}).encode())
    assert await kept.load(KEY) is None


@settings(max_examples=60)
@given(st.one_of(st.binary(max_size=60), st.text(max_size=30).map(lambda text: json.dumps({"key": text, "value": {"a": text}}).encode())))
def test_no_content_of_a_file_does_harm(content: bytes) -> None:
    async def run(folder: str) -> None:
        kept = FileStorage(folder)
        await kept.save(KEY, VALUE)
        the_file(Path(folder)).write_bytes(content)
        assert await kept.load(KEY) is None
        assert await kept.load(KEY) is None

    logging.getLogger("callboard.client").disabled = True
    try:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(run(folder))
    finally:
        logging.getLogger("callboard.client").disabled = False


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=60)
@given(st.text(max_size=30), st.dictionaries(st.text(max_size=10), JSON, max_size=4))
def test_any_key_and_any_object_come_back(key: str, value: dict[str, Any]) -> None:
    async def run(folder: str) -> None:
        for kept in (FileStorage(folder), MemoryStorage()):
            await kept.save(key, value)
            assert await kept.load(key) == value

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(folder))


WRITER = """
import asyncio, sys
from callboard.client.oauth.storage import FileStorage

async def main():
    kept = FileStorage(sys.argv[1])
    for number in range(60):
        await kept.save("shared", {"by": sys.argv[2], "text": sys.argv[2] * 5000})
        found = await kept.load("shared")
        assert found is not None and found["text"] == found["by"] * 5000, found
    print("done")

asyncio.run(main())
"""


async def test_several_processes_see_whole_values(tmp_path: Path) -> None:
    """A31."""
    started = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", WRITER, str(tmp_path), name, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for name in "abc"
    ]
    async with asyncio.timeout(60):
        outputs = [(await process.communicate())[0] for process in started]
    assert [output.decode().split()[-1:] for output in outputs] == [["done"]] * 3, outputs
    assert suffixes(tmp_path) == [".json"]  # no drafts, none set aside


async def test_the_draft_of_a_dead_writer_is_swept(tmp_path: Path) -> None:
    kept = FileStorage(tmp_path)
    await kept.save(KEY, VALUE)
    dead, alive = the_file(tmp_path).with_suffix(".0.new"), the_file(tmp_path).with_suffix(".1.new")
    dead.write_text(SECRET)
    alive.write_text("")
    an_hour_ago = time.time() - 3600
    os.utime(dead, (an_hour_ago, an_hour_ago))
    await kept.save(KEY, VALUE)
    assert alive.exists()
    assert not dead.exists()


async def test_a_full_disk_leaves_the_old_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = FileStorage(tmp_path)
    await kept.save(KEY, VALUE)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        await kept.save(KEY, {"x": 1})
    assert await kept.load(KEY) == VALUE
    assert suffixes(tmp_path) == [".json"]


async def test_files_do_not_hold_up_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, go, ticked = FileStorage(tmp_path), threading.Event(), 0
    monkeypatch.setattr(os, "fsync", lambda descriptor: go.wait(10))
    saving = asyncio.create_task(kept.save(KEY, VALUE))
    while ticked < 20:
        await asyncio.sleep(0)
        ticked += 1
    assert not saving.done()
    go.set()
    await saving
    assert await kept.load(KEY) == VALUE


async def test_without_the_package_the_error_says_what_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(StorageError, match=r'pip install "callboard\[keyring\]"'):
        await KeyringStorage().load(KEY)


async def test_troubles_of_a_keyring(vault: Vault, caplog: pytest.LogCaptureFixture) -> None:
    errors = pytest.importorskip("keyring.errors")
    kept = KeyringStorage("desk")
    vault.trouble = errors.NoKeyringError("none")
    with pytest.raises(StorageError, match="FileStorage"):
        await kept.load(KEY)
    vault.trouble = RuntimeError(f"bad value {SECRET}")
    with pytest.raises(StorageError, match="RuntimeError") as caught:
        await kept.save(KEY, VALUE)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    vault.trouble = None
    vault.kept["desk", KEY] = f"{SECRET} no JSON"
    assert await kept.load(KEY) is None
    assert SECRET not in caplog.text

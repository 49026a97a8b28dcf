"""Where a client keeps tokens and registrations: in memory, in the user's files or keyring, or in anything that loads and saves (A31).

A key says whose credentials they are, the issuer among it (AC-12), and is no secret; a value is a JSON object that is one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import time
from contextlib import suppress
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, Protocol

import msgspec

from callboard.errors import CallboardError

__all__ = ["FileStorage", "KeyringStorage", "MemoryStorage", "Storage", "StorageError"]

logger = logging.getLogger("callboard.client")

MAX_VALUE: Final = 1 << 20
"""Bytes of a stored value; what is larger is no value."""

_ABANDONED = 60.0  # seconds after which a half-written file's writer is taken for dead
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class StorageError(CallboardError):
    """A storage can't be used, or must not be; the text says what to do. It holds no value."""


class Storage(Protocol):
    """Keeps JSON objects by key. Several tasks, and processes where it can be shared, use it at once; the last save counts.

    What it raises ends the request that needed it, as `AuthorizationFailed`.
    """

    async def load(self, key: str) -> dict[str, Any] | None:
        """Give the value of a key; None when there is none."""
        ...

    async def save(self, key: str, value: dict[str, Any]) -> None:
        """Keep a value, in place of an earlier one."""
        ...

    async def remove(self, key: str) -> None:
        """Forget a key; nothing happens when it is not there."""
        ...


class MemoryStorage:
    """Keeps values as long as it lives."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}  # encoded: nobody else holds a part of them

    def __repr__(self) -> str:
        return f"MemoryStorage({len(self._values)} kept)"

    async def load(self, key: str) -> dict[str, Any] | None:
        """Give the value of a key; None when there is none."""
        kept = self._values.get(key)
        return None if kept is None else _decode(kept)

    async def save(self, key: str, value: dict[str, Any]) -> None:
        """Keep a value."""
        self._values[key] = _encode(value)

    async def remove(self, key: str) -> None:
        """Forget a key."""
        self._values.pop(key, None)


class _Entry(msgspec.Struct):
    key: str
    value: dict[str, Any]


class FileStorage:
    """Keeps each key in a file of its own, which its owner alone may read (AC-16); any number of processes may use the folder at once.

    The folder is made when it is needed, for its owner alone. A file that others may read is closed to them, with a warning; one that is
    broken counts as none and is kept beside, with the ending `.broken`.

    Args:
        folder: Where the files are.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder).expanduser()

    def __repr__(self) -> str:
        return f"FileStorage({str(self._folder)!r})"

    async def load(self, key: str) -> dict[str, Any] | None:
        """Give the value of a key; None when there is none.

        Raises:
            StorageError: The file can't be read, or is not the user's own.
        """
        return await asyncio.to_thread(self._guarded, self._load, key)

    async def save(self, key: str, value: dict[str, Any]) -> None:
        """Keep a value: readers see the old one or the new one, never a part.

        Raises:
            StorageError: The folder can't be written, or others may write it.
        """
        await asyncio.to_thread(self._guarded, self._save, key, _encode(_Entry(key, value)))

    async def remove(self, key: str) -> None:
        """Forget a key.

        Raises:
            StorageError: The folder can't be written.
        """
        await asyncio.to_thread(self._guarded, self._path(key).unlink, True)

    def _path(self, key: str) -> Path:
        return self._folder / f"{sha256(key.encode()).hexdigest()}.json"

    def _guarded(self, work: Any, *args: Any) -> Any:
        try:
            return work(*args)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise StorageError(f"tokens can't be kept in {self._folder}: {reason}; give FileStorage a folder of your own") from error

    def _load(self, key: str) -> dict[str, Any] | None:
        path = self._path(key)
        try:
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        except FileNotFoundError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            _check_owner(path, status)
            if not stat.S_ISREG(status.st_mode):
                raise StorageError(f"{path} is no file; remove it")
            if os.name == "posix" and status.st_mode & _OTHERS:
                os.fchmod(descriptor, 0o600)
                logger.warning("%s could be read by others; it is closed to them now. Log in anew if they may have read it", path)
            found = _decode_entry(file.read(MAX_VALUE + 1), key)
        if found is None:
            self._set_aside(path, status)
        return found

    def _set_aside(self, path: Path, status: os.stat_result) -> None:
        aside = path.with_suffix(".broken")
        with suppress(FileNotFoundError):  # somebody else has set it aside
            if path.stat().st_ino == status.st_ino:  # not the good one that was saved since
                path.replace(aside)
                logger.warning("%s is broken and was set aside as %s; what it held has to be asked for again", path, aside.name)

    def _save(self, key: str, data: bytes) -> None:
        self._make_folder()
        path = self._path(key)
        self._sweep(path)
        draft = path.with_suffix(f".{token_hex(8)}.new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        try:
            with os.fdopen(os.open(draft, flags, 0o600), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise

    def _make_folder(self) -> None:
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            self._folder.mkdir(mode=0o700)
        status = self._folder.stat()
        _check_owner(self._folder, status)
        if os.name == "posix" and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise StorageError(f"others may write the folder {self._folder}, and so put tokens there; run: chmod 700 {self._folder}")

    def _sweep(self, path: Path) -> None:
        """Take away what writers left that died on the way: it holds secrets."""
        for draft in self._folder.glob(f"{path.stem}.*.new"):
            with suppress(FileNotFoundError):
                if time.time() - draft.stat().st_mtime > _ABANDONED:
                    draft.unlink()


class KeyringStorage:
    """Keeps values in the keyring of the system: Keychain, Credential Locker, Secret Service. Needs `pip install "callboard[keyring]"`.

    Args:
        service: Name that the entries stand under.
    """

    def __init__(self, service: str = "callboard") -> None:
        self._service = service

    def __repr__(self) -> str:
        return f"KeyringStorage({self._service!r})"

    async def load(self, key: str) -> dict[str, Any] | None:
        """Give the value of a key; None when there is none, or something that is no value of ours.

        Raises:
            StorageError: There is no keyring, or it refuses.
        """
        kept: str | None = await asyncio.to_thread(self._ask, "get_password", key)
        if kept is None:
            return None
        found = _decode(kept.encode(errors="replace"))
        if found is None:
            logger.warning("the keyring's entry %r of %s is broken; what it held has to be asked for again", key, self._service)
        return found

    async def save(self, key: str, value: dict[str, Any]) -> None:
        """Keep a value.

        Raises:
            StorageError: There is no keyring, or it refuses, for example because the value is too large for it.
        """
        await asyncio.to_thread(self._ask, "set_password", key, _encode(value).decode())

    async def remove(self, key: str) -> None:
        """Forget a key.

        Raises:
            StorageError: There is no keyring, or it refuses.
        """
        if await asyncio.to_thread(self._ask, "get_password", key) is not None:
            await asyncio.to_thread(self._ask, "delete_password", key)

    def _ask(self, question: str, *args: str) -> Any:
        try:
            keyring, errors = import_module("keyring"), import_module("keyring.errors")
        except ImportError as error:
            raise StorageError('KeyringStorage needs the package keyring; run: pip install "callboard[keyring]"') from error
        try:
            return getattr(keyring, question)(self._service, *args)
        except errors.NoKeyringError as error:
            raise StorageError("this system has no keyring that can be used; FileStorage keeps tokens in files") from error
        except Exception as error:  # noqa: BLE001 - each system has its own; what it says may quote the value, so it is not shown
            raise StorageError(f"the keyring refused ({type(error).__name__}); unlock it, or use FileStorage") from None


def _encode(value: Any) -> bytes:
    data = msgspec.json.encode(value)
    if len(data) > MAX_VALUE:
        raise StorageError(f"a value of {len(data)} bytes is none that could be kept: at most {MAX_VALUE} are")
    return data


def _decode(data: bytes) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return None


def _decode_entry(data: bytes, key: str) -> dict[str, Any] | None:
    try:
        entry = msgspec.json.decode(data, type=_Entry)
    except (msgspec.DecodeError, RecursionError):
        return None
    return entry.value if entry.key == key and len(data) <= MAX_VALUE else None


def _check_owner(path: Path, status: os.stat_result) -> None:
    if os.name == "posix" and status.st_uid not in {os.geteuid(), 0}:
        raise StorageError(f"{path} is somebody else's; tokens there can't be trusted: remove it, or give FileStorage a folder of your own")

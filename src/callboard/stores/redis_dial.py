"""Connections to a Redis, made by redis-py: what its URL says, the master that sentinels name, the nodes of a cluster."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

from callboard.errors import RegistrationError, StoreError
from callboard.stores.redis_url import Place

__all__ = ["Address", "Dialer", "Outage", "Wire", "pack", "require_redis"]

Address = tuple[str, int]
_log = logging.getLogger("callboard.stores")


class Wire(Protocol):
    """What is used of a connection of redis-py."""

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:  # noqa: FBT001, FBT002 - redis-py's
        """Write."""
        ...

    async def read_response(self, disable_decoding: bool = False) -> Any:  # noqa: FBT001, FBT002 - redis-py's
        """Read one reply; raises it where it is an error."""
        ...

    def abort(self) -> None:
        """Close it at once, and forget what was not written yet."""
        ...


class _Dialled(Wire, Protocol):
    ssl_context: Any

    async def connect(self) -> None: ...


def require_redis() -> None:
    """See that redis-py can be loaded, without loading it.

    Raises:
        RegistrationError: It is not installed.
    """
    if importlib.util.find_spec("redis") is None:
        raise RegistrationError("A store in Redis needs redis-py: pip install 'callboard[redis]'.")


def _pack_slowly(command: tuple[Any, ...]) -> bytes:
    pieces = [b"*%d\r\n" % len(command)]
    for each in command:
        data = each if isinstance(each, bytes) else str(each).encode()
        pieces.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(pieces)


def _find_packer() -> Callable[[tuple[Any, ...]], bytes]:
    try:
        from hiredis import pack_command
    except ImportError:
        return _pack_slowly
    return pack_command


_packer: list[Callable[[tuple[Any, ...]], bytes]] = []


def pack(command: tuple[Any, ...]) -> bytes:
    """A command as Redis reads it.

    Args:
        command: Its name and arguments: bytes, texts or numbers.
    """
    if not _packer:
        _packer.append(_find_packer())
    return _packer[0](command)


class Outage:
    """Says in the log that the store is gone, and that it is back: one line each, however many connections there are.

    Args:
        shown: The store's URL, without its password.
        clock: Seconds, monotonic.
    """

    def __init__(self, shown: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._shown = shown
        self._clock = clock
        self._gone: dict[object, str] = {}
        self._since = 0.0

    @property
    def reason(self) -> str:
        """Why it is gone; empty while it is there."""
        return next(iter(self._gone.values()), "")

    def gone(self, part: object, reason: str) -> None:
        """One of the connections is lost, or can't be made."""
        if not self._gone:
            self._since = self._clock()
            _log.warning("The store %s is gone: %s. Trying to get it back.", self._shown, reason)
        self._gone[part] = reason

    def back(self, part: object) -> None:
        """One of the connections is there again."""
        if self._gone.pop(part, None) is not None and not self._gone:
            _log.warning("The store %s is back after %.1f s.", self._shown, self._clock() - self._since)

    def forget(self, part: object) -> None:
        """One of the connections is wanted no more."""
        self._gone.pop(part, None)


class Dialer:
    """Makes connections to one place.

    Args:
        place: Where.
        timeout: Seconds until a connection must be ready for use.
        name: What the Redis lists its connections as.

    Attributes:
        failures: Exceptions of a connection that can't be made, or was lost.
        refusal: Exception of a command that the Redis answers with an error.
        no_script: That of a script that it does not know.
        place: As given.
    """

    def __init__(self, place: Place, *, timeout: float, name: str) -> None:
        from redis.exceptions import NoScriptError, RedisError, ResponseError

        self.place = place
        self.refusal: type[Exception] = ResponseError
        self.no_script: type[Exception] = NoScriptError
        self.failures: tuple[type[Exception], ...] = (RedisError, OSError, TimeoutError, asyncio.IncompleteReadError)
        self._timeout = timeout
        self._name = name
        self._kinds = _make_kinds()
        self._tls: Any = None

    async def dial(self, address: Address | None = None) -> Wire:
        """Connect, log in and see that it answers.

        Args:
            address: A node of a cluster; None for what the URL names, or the master that the sentinels name.

        Raises:
            Exception: One of `failures`.
        """
        place = self.place
        if place.kind == "sentinel":
            address = await self._ask_sentinels()
        elif address is None and place.nodes:
            address = place.nodes[0]
        arguments: dict[str, Any] = {"username": place.username, "password": place.password, "db": place.db, "client_name": self._name}
        return await self._connect(address, arguments)

    async def ask(self, address: Address, *command: Any, sentinel: bool = False) -> Any:
        """Send one command over a connection of its own.

        Args:
            address: Of a node or a sentinel.
            command: The command.
            sentinel: Whether it is a sentinel.
        """
        place = self.place
        credentials = {"username": place.username, "password": place.password}
        wire = await self._connect(address, place.sentinel if sentinel else credentials)
        try:
            async with asyncio.timeout(self._timeout):
                await wire.send_packed_command([pack(command)], check_health=False)
                return await wire.read_response(disable_decoding=True)
        finally:
            wire.abort()

    async def _connect(self, address: Address | None, arguments: dict[str, Any]) -> Wire:
        place = self.place
        if address is None:
            where: dict[str, Any] = {"path": place.path}
        else:
            where = {"host": address[0], "port": address[1], **(place.options if place.tls else {})}
        kind = self._kinds["unix" if address is None else "tls" if place.tls else "tcp"]
        # RESP2: replies need no look at whether they are pushes. Time limits are ours: they begin when a command is given, not when read.
        wire: _Dialled = kind(protocol=2, socket_timeout=None, socket_connect_timeout=self._timeout, **where, **arguments)
        if address is not None and place.tls:  # certificates are read once: it takes longer than all the rest
            wire.ssl_context = self._tls = self._tls or wire.ssl_context
        try:
            async with asyncio.timeout(self._timeout):
                await wire.connect()
                await wire.send_packed_command([pack(("PING",))], check_health=False)  # while it loads its data it answers nothing else
                await wire.read_response(disable_decoding=True)
        except BaseException as error:
            wire.abort()
            self._tls = None  # they may have been replaced
            if isinstance(error.__cause__, self.failures[0]):  # over a Unix socket redis-py wraps what the Redis said
                raise error.__cause__ from None
            raise
        return wire

    async def _ask_sentinels(self) -> Address:
        from redis.exceptions import AuthenticationError

        reason: Exception = ConnectionError("there is no sentinel")
        for address in self.place.nodes:
            try:
                found = await self.ask(address, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.place.master, sentinel=True)
            except AuthenticationError as error:
                forms = "?sentinel_password=password", "?sentinel_username=user&sentinel_password=password"
                told = _explain_login(error, self.place.sentinel, *forms)
                reason = ConnectionError(f"the sentinel {address[0]}:{address[1]}: {told}")
                continue
            except self.failures as error:
                reason = error
                continue
            if found is not None:
                return found[0].decode(), int(found[1])
            reason = ConnectionError(f"the sentinel {address[0]}:{address[1]} knows no master called {self.place.master!r}")
        raise reason

    def explain(self, error: BaseException) -> str:
        """Why a connection can't be made or was lost, in words and without secrets."""
        from redis.exceptions import AuthenticationError

        if isinstance(error, TimeoutError) and not str(error):
            return f"no answer within {self._timeout:g} s"
        if isinstance(error, AuthenticationError):
            scheme, _, where = self.place.shown.partition("://")
            forms = f"{scheme}://:password@{where}", f"{scheme}://user:password@{where}"
            return _explain_login(error, self.place.username or self.place.password, *forms)
        return self.place.hide(str(error).rstrip(".") or type(error).__name__)

    def is_final(self, error: BaseException) -> bool:
        """Whether trying again can't help: it is there, and does not want us."""
        from redis.exceptions import AuthenticationError, AuthorizationError, ResponseError

        return isinstance(error, (AuthenticationError, AuthorizationError, ResponseError))

    def is_replica(self, error: BaseException) -> bool:
        """Whether a command was refused because the Redis is not the master any more."""
        from redis.exceptions import ReadOnlyError

        return isinstance(error, ReadOnlyError)

    def refuse(self, error: BaseException) -> StoreError:
        """What is raised where the Redis refuses a command."""
        return StoreError(f"The store {self.place.shown} refuses a command: {self.place.hide(str(error))}")


def _explain_login(error: BaseException, given: object, plain: str, named: str) -> str:
    """Why a Redis let nobody in, and the way in. Nothing of its own words, which might repeat what it was given.

    Args:
        error: What redis-py made of the refusal; of its words only the kind is taken.
        given: The credentials of the URL; empty where there are none.
        plain: How a URL says a password.
        named: The same, with the user that it is of.
    """
    if not given:
        return f"it wants a password (NOAUTH), and the URL has none: write {plain}, or {named}"
    if "without any password" in str(error):
        return f"it wants no password of its default user, and the URL has one: leave it out, or write {named}"
    return f"it refuses the password in the URL, or its user (WRONGPASS): write {plain}, or {named}, with / ? # @ : in them as %2F %3F %23 %40 %3A"


class _Abortable:
    """What redis-py's connections lack: an end that waits for nothing, not even for a Redis that reads no more."""

    _writer: asyncio.StreamWriter | None

    def abort(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.transport.abort()


def _make_kinds() -> dict[str, Callable[..., Any]]:
    from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection

    class Plain(_Abortable, Connection):
        pass

    class Tls(_Abortable, SSLConnection):
        pass

    class Unix(_Abortable, UnixDomainSocketConnection):
        pass

    return {"tcp": Plain, "tls": Tls, "unix": Unix}

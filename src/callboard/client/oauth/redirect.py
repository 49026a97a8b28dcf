"""Where a browser comes back to after a login: a small HTTP server on the loopback interface, for one request (RFC 8252, 7.3).

Any page and any program of this machine can knock here, so a request counts only when it is a GET of the callback with the `state` of the
page that was opened; everything else is answered and forgotten. Nothing of a request is shown in a page.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple, Self
from urllib.parse import parse_qs, urlsplit

from callboard.client.errors import AuthorizationFailed, Origin

__all__ = ["RedirectReceiver"]

MAX_HEAD: Final = 16 * 1024
"""Bytes of a request's head."""

HEAD_TIME: Final = 10.0
"""Seconds for a head to come."""

MAX_CONNECTIONS: Final = 32
"""Connections at once; browsers open some ahead of time."""

_LOOPBACK = "127.0.0.1"
_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Callboard</title></head>
<body><h1>{title}</h1><p>{text}</p></body></html>
"""
_HEADERS = (
    "Content-Type: text/html; charset=utf-8",
    "Cache-Control: no-store",
    "Content-Security-Policy: default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Referrer-Policy: no-referrer",  # the URL has the code in it
    "X-Content-Type-Options: nosniff",
    "Connection: close",
)
_DONE = (200, "OK", "Thank you", "The answer has arrived. You can close this window and go back to the program.")
_OTHER_LOGIN = (
    400,
    "Bad Request",
    "Not this one",
    "This is not the answer to the login that the program waits for. Go back to it and look.",
)
_NOTHING = (404, "Not Found", "Nothing here", "There is nothing here.")
_GET_ALONE = (405, "Method Not Allowed", "Not so", "Only GET is answered here.")
_BAD = (400, "Bad Request", "Not so", "The request can't be read.")


class _Head(NamedTuple):
    method: str
    target: str
    hosts: tuple[str, ...]


class RedirectReceiver:
    """Opens a page in the browser and waits until it comes back; an async context manager, used for one login after the other.

        async with RedirectReceiver() as receiver:
            back = await receiver(f"https://as.example/authorize?redirect_uri={receiver.redirect_uri}&...")

    Args:
        port: Port of 127.0.0.1 to listen on, for a redirect URI that was registered beforehand; 0 takes a free one.
        path: Path of the redirect URI.
        timeout: Seconds that somebody has to log in.
        open_page: Opens a page, in a thread of its own; returns False when it can't. None opens the browser of the system.
        show: Shows the text that says which page to open when no browser does; None writes it to stderr.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        path: str = "/callback",
        timeout: float = 300.0,
        open_page: Callable[[str], object] | None = None,
        show: Callable[[str], object] | None = None,
    ) -> None:
        if not path.startswith("/") or not path.isascii() or not path.isprintable() or any(letter in path for letter in " ?#"):
            raise ValueError(f"path: {path!r} is no path of a URL; it begins with / and has no query")
        self._port, self._path, self._timeout = port, path, timeout
        self._open_page = open_page or webbrowser.open
        self._show = show or _to_stderr
        self._servers: list[asyncio.Server] = []
        self._found_port = 0
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}  # the oldest first
        self._one_login = asyncio.Lock()
        self._waiting: asyncio.Future[str] | None = None
        self._state: str | None = None
        self._strangers = 0

    def __repr__(self) -> str:
        return f"RedirectReceiver({self.redirect_uri if self._servers else 'closed'})"

    @property
    def redirect_uri(self) -> str:
        """The URI to come back to."""
        return self.redirect_uris[0]

    @property
    def redirect_uris(self) -> tuple[str, ...]:
        """All URIs that lead here, the best first: some authorization servers take `localhost` alone (AC-11)."""
        if not self._servers:
            raise RuntimeError("a RedirectReceiver listens inside its block: async with RedirectReceiver() as receiver")
        port = self._servers[0].sockets[0].getsockname()[1]
        names = (_LOOPBACK, "localhost") if len(self._servers) > 1 or not socket.has_ipv6 else (_LOOPBACK,)
        return tuple(f"http://{name}:{port}{self._path}" for name in names)

    async def __aenter__(self) -> Self:
        """Listen. A free port that was found once is taken again, if it is still free: the URI may have been registered.

        Raises:
            AuthorizationFailed: The port can't be had.
        """
        try:
            first = await self._listen(self._port or self._found_port)
        except OSError as error:
            if self._port:
                text = f"the redirect URI's port can't be listened on ({error.strerror}); end what uses it, or choose another port"
                raise AuthorizationFailed(text, Origin(f"http://{_LOOPBACK}:{self._port}")) from error
            first = await self._listen(0)
        self._servers = [first]
        self._found_port = port = first.sockets[0].getsockname()[1]
        with suppress(OSError):  # localhost is ::1 for some browsers; without IPv6, or with the port taken there, it is not offered
            self._servers.append(await asyncio.start_server(self._connected, "::1", port, limit=MAX_HEAD))
        return self

    async def _listen(self, port: int) -> asyncio.Server:
        return await asyncio.start_server(self._connected, _LOOPBACK, port, limit=MAX_HEAD)

    async def __aexit__(self, *_: object) -> None:
        """Stop listening; what is connected is cut."""
        for server in self._servers:
            server.close()
        self._servers = []
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def __call__(self, url: str) -> str:
        """Send somebody to a page.

        Args:
            url: The page, `http` or `https`.

        Returns:
            The URL that their browser came back to: a redirect URI with a query.

        Raises:
            AuthorizationFailed: Nobody came back in time, or the page is none that a browser may be sent to (SC-07).
        """
        parts = urlsplit(url)
        origin = Origin(f"{parts.scheme}://{parts.netloc}")
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise AuthorizationFailed("only pages at http and https URLs are opened in a browser", origin)
        async with self._one_login:
            here = self.redirect_uri
            self._waiting = asyncio.get_running_loop().create_future()
            self._state, self._strangers = parse_qs(parts.query).get("state", [None])[0], 0
            try:
                self._open(url)
                async with asyncio.timeout(self._timeout):
                    return await self._waiting
            except TimeoutError:
                raise AuthorizationFailed(self._nobody(here), origin) from None
            finally:
                self._waiting.cancel()
                self._waiting = None

    def _nobody(self, here: str) -> str:
        strangers = f"; {self._strangers} answers of other logins came and were not taken" if self._strangers else ""
        return f"nobody came back from the browser to {here} within {self._timeout:g} s{strangers}; log in again, and more quickly"

    def _open(self, url: str) -> None:
        loop = asyncio.get_running_loop()

        def work() -> None:
            try:
                opened = self._open_page(url) is not False
            except Exception:  # noqa: BLE001 - whatever is wrong with the browser, a person can open the page
                opened = False
            if not opened:
                with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                    loop.call_soon_threadsafe(self._show, f"Open this page in a browser to log in:\n{url}\n")

        # Not a worker of the loop's: a browser in a terminal ends when it likes, and the program need not wait for it.
        threading.Thread(target=work, name="callboard-browser", daemon=True).start()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= MAX_CONNECTIONS:  # the oldest has had its time; what comes now may be what is waited for
            oldest = next(iter(self._connections))
            self._connections.pop(oldest).transport.abort()
            oldest.cancel()
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections[task] = writer
        task.add_done_callback(lambda done: self._connections.pop(done, None))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived = None
        try:
            async with asyncio.timeout(HEAD_TIME):
                answer, arrived = self._judge(_parse(await reader.readuntil(b"\r\n\r\n")))
                writer.write(_render(*answer))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except asyncio.LimitOverrunError:
            writer.write(_render(431, "Request Header Fields Too Large", "Not so", "The request is too large."))
        except (OSError, EOFError, TimeoutError):  # it went away, or says nothing
            writer.transport.abort()
        finally:
            writer.close()
            if arrived and self._waiting is not None and not self._waiting.done():
                self._waiting.set_result(arrived)

    def _judge(self, head: _Head | None) -> tuple[tuple[int, str, str, str], str | None]:
        if head is None or not self._servers:
            return _BAD, None
        uris = [urlsplit(uri) for uri in (self.redirect_uri, *self.redirect_uris)]
        if len(head.hosts) != 1 or head.hosts[0].lower() not in {uri.netloc for uri in uris}:
            return _BAD, None  # somebody's own name for 127.0.0.1: DNS rebinding
        path, _, query = head.target.partition("?")
        if path != self._path or self._waiting is None or self._waiting.done():
            return _NOTHING, None
        if head.method != "GET":
            return _GET_ALONE, None
        if self._state is not None and parse_qs(query).get("state") != [self._state]:
            self._strangers += 1
            return _OTHER_LOGIN, None
        return _DONE, f"http://{head.hosts[0].lower()}{self._path}{'?' if query else ''}{query}"


def _parse(data: bytes) -> _Head | None:
    """The request line and the hosts of a head; None when it is none."""
    lines = data.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or words[2] not in {"HTTP/1.1", "HTTP/1.0"} or not words[1].startswith("/"):
        return None
    if not all("\x21" <= letter <= "\x7e" and letter != "#" for letter in words[1]):
        return None
    fields = [line.partition(":") for line in lines[1:-2]]
    if not all(colon and name and not name[0].isspace() for name, colon, _ in fields):
        return None
    return _Head(words[0], words[1], tuple(value.strip() for name, _, value in fields if name.lower() == "host"))


def _render(status: int, reason: str, title: str, text: str) -> bytes:
    page = _PAGE.format(title=title, text=text).encode()
    return "\r\n".join([f"HTTP/1.1 {status} {reason}", *_HEADERS, f"Content-Length: {len(page)}", "", ""]).encode() + page


def _to_stderr(text: str) -> Any:
    return sys.stderr.write(text)

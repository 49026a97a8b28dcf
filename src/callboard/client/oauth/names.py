"""Which addresses a name may lead to that an MCP server has brought up, and requests outside a client (SC-03).

What a URL says of itself is `urls`' business. A name that looks public may still lead to a private address, now or a moment after it was
looked at (DNS rebinding). So names are looked up here, and the connection goes to the very addresses that were found fit.
"""

from __future__ import annotations

import socket
from typing import Any
from urllib.parse import urlsplit

from callboard.client.auth import HttpRequest, HttpResponse
from callboard.client.errors import ConnectionFailed, Origin
from callboard.core.urls import is_fit, is_public

__all__ = ["Resolver", "fetch_alone"]

# Of `fetch_alone`: bytes of a body, and seconds.
MAX_BODY = 2**20
FETCH_TIME = 30


class Resolver:
    """Looks names up for `aiohttp`: private addresses count only if the MCP server's own name leads to one, link-local ones never.

    Args:
        endpoint: URL of the MCP server that the names come from.
        names: The resolver that looks them up, as `aiohttp` wants one; None for that of the system.
    """

    def __init__(self, endpoint: str, names: Any = None) -> None:
        import aiohttp

        self._endpoint = urlsplit(endpoint).hostname or ""
        self._names = names or aiohttp.ThreadedResolver()

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> list[Any]:
        """Give the addresses of a name.

        Raises:
            OSError: There are none, or none that may be used.
        """
        found = [entry for entry in await self._names.resolve(host, port, family) if is_fit(entry["host"])]
        fit = [entry for entry in found if is_public(entry["host"])]
        if not fit and found and host != self._endpoint:
            beside = await self._names.resolve(self._endpoint, 0, socket.AF_UNSPEC)
            if all(is_public(entry["host"]) for entry in beside):
                raise OSError(
                    "its name leads into a private network, which a server outside it has no say about (name the authorization server by"
                    " issuer= if it is right)"
                )
        if not found:
            raise OSError("its name leads to no address that a server has")
        return fit or found

    async def close(self) -> None:
        """Give back what the resolver holds."""
        await self._names.close()


async def fetch_alone(request: HttpRequest) -> HttpResponse:
    """Send a request outside a client, with a connection of its own.

    Raises:
        ConnectionFailed: There is no answer within 30 s. What the HTTP library says of it may quote headers, secrets among them, so it is no
            part of this error.
    """
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=FETCH_TIME)
    failed = ""
    try:
        resolver: Any = Resolver(request.led_by) if request.led_by else None
        connector = aiohttp.TCPConnector(resolver=resolver)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.request(
                request.method, request.url, headers=request.headers, data=request.body or None, allow_redirects=False
            ) as answer,
        ):
            body = await answer.content.read(MAX_BODY + 1) if not answer.content.at_eof() else b""
            while len(body) <= MAX_BODY and (more := await answer.content.read(MAX_BODY)):
                body += more
            return HttpResponse(answer.status, {name.lower(): value for name, value in answer.headers.items()}, body)
    except aiohttp.ClientConnectorError as error:
        failed = str(error.os_error)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        failed = type(error).__name__
    parts = urlsplit(request.url)
    raise ConnectionFailed(f"no answer ({failed})", Origin(f"{parts.scheme}://{parts.netloc}"))

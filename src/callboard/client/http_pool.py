"""One endpoint's HTTP connections: headers, credentials, and what an error of the HTTP library means.

Redirects are not followed: the arguments of a call, and its credentials, go to the server that was named. Only connecting has a time limit
here; how long an answer may take is for whoever waits for it to say.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import ssl
import sys
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from time import time
from typing import Any, TypeAlias

from callboard.client.auth import Auth, Challenge, HttpRequest, HttpResponse
from callboard.client.connection import Challenged
from callboard.client.errors import ClientError, ConnectionFailed, HttpError, InvalidAnswer, Origin
from callboard.client.oauth.names import Resolver

__all__ = [
    "CONNECT_TIMEOUT",
    "EVENT_STREAM",
    "HttpPool",
    "Response",
    "challenges_of",
    "check_headers",
    "media_type",
    "refusal",
    "too_large",
]

CONNECT_TIMEOUT = 30.0
"""Default of `Client(connect_timeout=...)`, in seconds."""

EVENT_STREAM = "text/event-stream"
"""Media type of a stream of events."""

Response: TypeAlias = Any
"""An `aiohttp.ClientResponse`: that package loads when the first connection opens."""

# What every request carries. Loopback and JSON: compression is not worth the time, and without it there is no bomb to defuse.
_ALWAYS = {"Accept-Encoding": "identity"}
_POST = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
_GET = {"Accept": EVENT_STREAM}
# Besides those and Mcp-*: what frames a message on its connection.
_FRAMING = {"connection", "content-length", "transfer-encoding"}
_OWN = _FRAMING | {"last-event-id"} | {name.lower() for name in (*_ALWAYS, *_POST)}
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_ONE_LINE = re.compile(r"[\t\x20-\x7e]*")

# Seconds that an idle connection stays in the pool. Most servers close theirs after 5 s, and what is sent at that moment is lost.
KEEP_ALIVE = 4.0
# aiohttp wants larger bodies as a file.
FILE_SIZE = 2**20
# What an error shows of a body that is no JSON-RPC, in characters.
SNIPPET = 200
# Bytes that are read of a body for that.
ENOUGH = 20 * SNIPPET
# Seconds for the rest of a response that nobody needs, so that its connection can be used again (HM-11).
LINGER = 0.1
# Answers to challenges, for one message.
MAX_CHALLENGES = 3
# Of `fetch`: seconds, and bytes of a body.
FETCH_TIMEOUT = 10.0
FETCH_BODY = 2**20
# Digits of a Retry-After that is a wish and no fault: 31 years.
_RETRY_DIGITS = 9
HINTS = {
    401: " (the server wants authorization: give it a header, or auth=)",
    403: " (the server refuses this client)",
    404: " (is the path right? it is often /mcp)",
    405: " (no MCP endpoint takes POST there; is the path right?)",
}


def check_headers(headers: Mapping[str, str]) -> None:
    """Check headers of a user's own. No error shows a value: it may be a secret.

    Raises:
        ValueError: A name is none or is the protocol's own, or a value is not one line of printable ASCII.
    """
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name):
            raise ValueError(f"headers: {name!r} is no name of a header: letters, digits and dashes make one")
        if name.lower() in _OWN or name.lower().startswith("mcp-"):
            raise ValueError(f"headers: {name} is written by the client, as the protocol wants it; leave it out")
        if not _ONE_LINE.fullmatch(value):
            raise ValueError(f"headers: the value of {name} must be one line of printable ASCII; it holds a line end or another character")


class HttpPool:
    """Connections to one endpoint; each request in flight has one of its own.

    Args:
        url: The endpoint, for example `http://127.0.0.1:8000/mcp`.
        headers: What every request carries besides the protocol's own headers, which win over these, and the credentials, which win over all.
        auth: Who holds the credentials; None for nobody.
        connect_timeout: Seconds for a connection to come about: name, TCP and TLS; None for no limit.

    Attributes:
        endpoint: The endpoint's URL, without a login; empty before it was opened.
        closed: Whether it was closed.
    """

    def __init__(
        self, url: str, *, headers: Mapping[str, str], auth: Auth | None = None, connect_timeout: float | None = CONNECT_TIMEOUT
    ) -> None:
        self._address = url
        self._user_headers = headers
        self._auth = auth
        self._connect_timeout = connect_timeout
        self._failures: tuple[type[Exception], ...] = (OSError,)
        self._posts: Any = None  # aiohttp.ClientSession whose own headers are those of a POST
        self._others: Any = None  # one without any, on the same connections
        self._vetted: Any = None  # one for where the server leads; its connections are its own
        self._url: Any = None
        self.endpoint = ""
        self.closed = False

    async def open(self, origin: Origin) -> None:
        """Get ready; nothing is sent. Once closed, it may be opened anew.

        Raises:
            ConnectionFailed: The URL is none.
        """
        import aiohttp
        from yarl import URL

        if self._posts is not None and not self.closed:
            return
        try:
            self._url = URL(self._address).with_fragment(None)
            self._url.origin()  # which a relative one has not
        except ValueError as error:
            raise ConnectionFailed("this is no URL that can be called", origin, sent=False) from error
        if self._auth is not None and self._url.user is not None:
            self._url = self._url.with_user(None)  # credentials of both kinds would be one header too many
        self.endpoint = str(self._url.with_user(None))
        connector = _connector(tls=self._url.scheme == "https")
        timeout = aiohttp.ClientTimeout(total=None, connect=self._connect_timeout, sock_connect=None)
        jar = aiohttp.DummyCookieJar()
        own = {**self._user_headers, **_ALWAYS, **_POST}
        self._posts = aiohttp.ClientSession(connector=connector, timeout=timeout, cookie_jar=jar, headers=own)
        self._others = aiohttp.ClientSession(connector=connector, connector_owner=False, timeout=timeout, cookie_jar=jar)
        self._failures = (aiohttp.ClientError, OSError, ValueError, RuntimeError)  # the last: "Connection closed."
        self.closed = False
        if self._auth is not None:
            self._auth.bind(self.endpoint, self.fetch)

    def resolve(self, reference: str, origin: Origin) -> Any:
        """The URL of an endpoint that the server names.

        Args:
            reference: What it said: absolute, or relative to the endpoint.
            origin: Names the server in errors.

        Returns:
            A `yarl.URL` of the same origin, with the login of the endpoint's.

        Raises:
            InvalidAnswer: It is no URL, or of another origin: credentials would leak (HL-27).
        """
        from yarl import URL

        try:
            found = self._url.join(URL(reference)).with_fragment(None)
            same = found.origin() == self._url.origin()
        except ValueError as error:
            raise InvalidAnswer(f"the server names an endpoint that is no URL: {_shown(reference)}", origin) from error
        if not same:
            raise InvalidAnswer(
                f"the server names an endpoint of another origin: {_shown(reference)}; headers and arguments stay with {self._url.origin()}",
                origin,
            )
        return found.with_user(self._url.user).with_password(self._url.password)

    async def post(self, body: bytes, headers: Mapping[str, str], origin: Origin, url: Any = None) -> Response:
        """POST a message.

        Args:
            body: The encoded message.
            headers: Its own headers.
            origin: Names it in errors.
            url: Where to, as `resolve` gave it; None for the endpoint.

        Returns:
            The response, whatever its status; its body has yet to be read, and the response to be closed.

        Raises:
            Challenged: The server wants other credentials.
            ConnectionFailed: There is no response.
            InvalidAnswer: The response is not HTTP.
        """
        return await self._ask("POST", headers, origin, body if len(body) < FILE_SIZE else io.BytesIO(body), url)

    async def post_patiently(self, body: bytes, headers: Mapping[str, str], origin: Origin, url: Any = None) -> Response:
        """POST a message, as often as it takes to get the credentials right.

        Raises:
            AuthorizationFailed: They can't be had.
            ClientError: As `post` does.
        """
        for _ in range(MAX_CHALLENGES):
            try:
                return await self.post(body, headers, origin, url)
            except Challenged as refused:
                await self._answer(refused)
        return await self.post(body, headers, origin, url)

    async def get_patiently(self, headers: Mapping[str, str], origin: Origin, *, head_timeout: float | None = None) -> Response:
        """GET a stream of events, as often as it takes to get the credentials right.

        Args:
            headers: As for a POST.
            origin: As for a POST.
            head_timeout: Seconds for the head of each response; None for no limit.

        Raises:
            AuthorizationFailed: They can't be had.
            ClientError: As `post` does.
        """
        for _ in range(MAX_CHALLENGES):
            try:
                return await self._ask("GET", headers, origin, head_timeout=head_timeout)
            except Challenged as refused:
                await self._answer(refused)
        return await self._ask("GET", headers, origin, head_timeout=head_timeout)

    async def delete(self, headers: Mapping[str, str], origin: Origin) -> None:
        """DELETE a session; what the server thinks of it does not matter.

        Raises:
            ClientError: As `post` does. Nobody is asked for credentials: who closes a client does not expect to have to log in.
        """
        response = await self._ask("DELETE", headers, origin)
        response.release()

    async def read(self, response: Response, limit: int, origin: Origin) -> bytes:
        """Read a body to its end.

        Raises:
            InvalidAnswer: It is larger than `limit` bytes.
            ConnectionFailed: It does not end.
        """
        try:
            length, headers = response.content_length, response.headers
            if length is not None and length <= limit and "Content-Encoding" not in headers and "Transfer-Encoding" not in headers:
                whole: bytes = await response.read()
                return whole
            body = bytearray()
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > limit:
                    raise too_large(limit, origin)
        except self._failures as error:
            raise self.explain(error, origin, f"after {response.content.total_bytes} bytes of the answer") from error
        return bytes(body)

    async def read_some(self, response: Response, origin: Origin, position: str) -> bytes:
        """Read what has come of a body; waits until something has.

        Args:
            response: Whose.
            origin: Names the request in errors.
            position: How far the answer has come, for an error.

        Returns:
            Bytes; none at the end.

        Raises:
            ConnectionFailed: The connection broke.
        """
        if self.closed:
            raise _closed(origin)
        try:
            chunk: bytes = await response.content.readany()
        except self._failures as error:
            raise self.explain(error, origin, position) from error
        return chunk

    async def fetch(self, request: HttpRequest) -> HttpResponse:
        """Send a request to whom it names, with its own headers and no others: neither a user's nor credentials.

        Raises:
            ConnectionFailed: There is no answer within 10 s, or it is larger than 1 MiB.
        """
        from yarl import URL

        origin = Origin("authorization server")
        try:
            url = URL(request.url).with_fragment(None)
            origin = Origin(str(url.with_query(None).with_user(None)))  # a query may hold secrets
        except ValueError as error:
            raise ConnectionFailed("this is no URL that can be called", origin, sent=False) from error
        self._check_open(origin)
        try:
            async with (
                asyncio.timeout(FETCH_TIMEOUT),
                await (self._vet() if request.led_by else self._others).request(
                    request.method, url, headers={**_ALWAYS, **request.headers}, data=request.body or None, allow_redirects=False
                ) as response,
            ):
                body = await self.read(response, FETCH_BODY, origin)
                return HttpResponse(response.status, _lower(response), body)
        except InvalidAnswer as error:
            raise ConnectionFailed(f"the answer is useless: {error.text.partition(';')[0]}", origin) from error
        except self._failures as error:
            if type(error) is TimeoutError:
                raise ConnectionFailed(f"there was no answer within {FETCH_TIMEOUT:g} s", origin) from error
            raise self.explain(error, origin) from error

    async def close(self) -> None:
        """Close all connections; what waits for them fails."""
        self.closed = True
        if self._vetted is not None:
            await self._vetted.close()
            self._vetted = None
        if self._posts is not None:
            await self._others.close()
            await self._posts.close()

    def _vet(self) -> Any:
        """Connections whose addresses are looked at (SC-03); they come with the first request that wants them."""
        import aiohttp

        if self._vetted is None:
            connector = _connector(tls=True, resolver=Resolver(self.endpoint))
            timeout = aiohttp.ClientTimeout(total=None, connect=self._connect_timeout, sock_connect=None)
            self._vetted = aiohttp.ClientSession(connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar())
        return self._vetted

    def explain(self, error: Exception, origin: Origin, position: str = "") -> ClientError:
        """Say what an error of aiohttp means for the request.

        Args:
            error: The error.
            origin: The request.
            position: How far the answer had come; empty when nothing had.
        """
        import aiohttp

        if self.closed:
            return _closed(origin)
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            return ConnectionFailed(
                f"can't connect within {self._connect_timeout:g} s; is the server running there? raise connect_timeout= if it is far away",
                origin,
                sent=False,
            )
        if isinstance(error, aiohttp.ClientConnectorError):
            return _explain_connector(error, origin)
        if isinstance(error, aiohttp.InvalidURL):
            return ConnectionFailed("this is no URL that can be called", origin, sent=False)
        if isinstance(error, aiohttp.ClientResponseError):
            _forget_request(error)
            return InvalidAnswer(f"the answer is not HTTP: {error.message}", origin)
        if isinstance(error, ValueError):
            return ConnectionFailed(f"the request can't be written: {type(error).__name__}; check its headers", origin, sent=False)
        if isinstance(error, TimeoutError):
            return ConnectionFailed("there was no answer in time", origin)
        where = f"the connection broke {position}" if position else "the connection broke before the answer came"
        return ConnectionFailed(f"{where}; the request is lost and may be sent again", origin)

    def _check_open(self, origin: Origin) -> None:
        if self.closed or self._posts is None:
            raise ConnectionFailed("the client was closed before the request was sent", origin, sent=False)

    async def _ask(
        self,
        http_method: str,
        headers: Mapping[str, str],
        origin: Origin,
        body: Any = None,
        url: Any = None,
        head_timeout: float | None = None,
    ) -> Response:
        self._check_open(origin)
        given: Mapping[str, str] = {}
        if self._auth is not None:
            given = await self._credentials(self._auth, http_method, self.endpoint if url is None else str(url.with_user(None)), origin)
        url = self._url if url is None else url
        try:
            if http_method == "POST":
                sent = headers if not given else {**headers, **given}
                response = await self._posts.post(url, data=body, headers=sent, allow_redirects=False)
            else:
                merged = self._merge(_GET if http_method == "GET" else {}, headers, given)
                async with asyncio.timeout(head_timeout):
                    response = await self._others.request(http_method, url, headers=merged, allow_redirects=False)
        except self._failures as error:
            raise self.explain(error, origin) from error
        if self._auth is not None:
            await self._learn(self._auth, response, http_method, headers, given, origin)
        return response

    async def _credentials(self, auth: Auth, http_method: str, url: str, origin: Origin) -> Mapping[str, str]:
        try:
            given = await auth.headers(http_method, url)
        except ConnectionFailed as error:  # with whoever issues them; what is to be sent has not been
            raise ConnectionFailed(f"the credentials can't be renewed: {error}", origin, sent=False) from error
        self._check_open(origin)
        return given

    def _merge(self, *groups: Mapping[str, str]) -> Any:
        from multidict import CIMultiDict

        merged = CIMultiDict({**self._user_headers, **_ALWAYS})
        for group in groups:
            merged.update(group)
        return merged

    async def _learn(
        self, auth: Auth, response: Response, http_method: str, headers: Mapping[str, str], given: Mapping[str, str], origin: Origin
    ) -> None:
        try:
            if response.status != 401:  # which is no sign that the token was taken, even without a challenge
                auth.learn(_lower(response))
            if response.status not in (401, 403):
                return
            snippet = await self.snippet(response)
        except BaseException:
            response.close()
            raise
        response.release()
        protocol = next((value for name, value in headers.items() if name.lower() == "mcp-protocol-version"), "")
        found = tuple((name.lower(), value) for name, value in response.headers.items())
        challenge = Challenge(response.status, http_method, self.endpoint, found, given, protocol)
        raise Challenged(challenge, snippet, origin)

    async def _answer(self, refused: Challenged) -> None:
        if self._auth is None or not await self._auth.answer(refused.challenge):
            raise refused

    async def snippet(self, response: Response) -> str:
        """The start of a body, for an error; what can't be read is left out."""
        body = b""
        try:
            async with asyncio.timeout(LINGER * 10):
                while len(body) < ENOUGH and (chunk := await response.content.readany()):
                    body += chunk
        except self._failures:
            pass
        return shorten(body)

    async def drain(self, response: Response) -> None:
        """Read a response to its end, if that is near: then its connection can be used again (HM-11)."""
        if response.content.at_eof():
            return
        try:
            async with asyncio.timeout(LINGER):
                read = 0
                while read < ENOUGH and (chunk := await response.content.readany()):
                    read += len(chunk)
        except self._failures:
            pass  # then it can't


def _connector(*, tls: bool, resolver: Any = None) -> Any:
    import aiohttp

    # TLS connections whose other side never says goodbye: newer Pythons need no help with them.
    leaky = tls and sys.version_info < (3, 12, 8)
    return aiohttp.TCPConnector(resolver=resolver, limit=0, keepalive_timeout=KEEP_ALIVE, enable_cleanup_closed=leaky)


def challenges_of(response: Response) -> tuple[str, ...]:
    """`WWW-Authenticate` headers of a refusal; nobody looks for them elsewhere."""
    return tuple(response.headers.getall("WWW-Authenticate", ())) if response.status >= 400 else ()


def media_type(response: Response) -> str:
    """Media type of a response, in lower case, without parameters; empty when it names none."""
    stated: str = response.headers.get("Content-Type", "")
    return stated.partition(";")[0].strip().lower()


def refusal(response: Response, snippet: str, origin: Origin) -> HttpError:
    """The error that a response is which holds no message."""
    hint = HINTS.get(response.status, "")
    retry_after = _retry_after(response.headers.get("Retry-After", "")) if response.status in (429, 503) else None
    if location := response.headers.get("Location"):
        hint = f" (redirects are not followed; use {_shown(location)} as the target if you trust it)"
    elif response.status < 400:
        hint = f" with {media_type(response) or 'no content type'}, which is no MCP answer; is the path right?"
    elif retry_after is not None:
        hint = f" (the server asks to wait {retry_after:g} s before another try)"
    return HttpError(response.status, snippet, origin, hint=hint, retry_after=retry_after, challenges=challenges_of(response))


def shorten(body: bytes) -> str:
    """What an error shows of a body."""
    return _shown(body[:ENOUGH].decode(errors="replace"))


def too_large(limit: int, origin: Origin) -> ClientError:
    """The error of a message past the limit."""
    return InvalidAnswer(f"the server sent a message of more than {limit} bytes; raise max_message=", origin)


def _shown(text: str) -> str:
    text = " ".join(text[:ENOUGH].split())
    return text if len(text) <= SNIPPET else text[:SNIPPET] + "..."


def _lower(response: Response) -> dict[str, str]:
    return {name.lower(): value for name, value in response.headers.items()}


def _retry_after(stated: str) -> float | None:
    """Seconds of a Retry-After header: a number of them, or a date."""
    if stated.isascii() and stated.isdigit():
        return float(stated) if len(stated) <= _RETRY_DIGITS else None
    try:
        return max(0.0, round(parsedate_to_datetime(stated).timestamp() - time(), 1))
    except (ValueError, OverflowError):
        return None


def _closed(origin: Origin) -> ClientError:
    return ConnectionFailed("the client was closed before the answer came", origin)


def _forget_request(error: Any) -> None:
    """Take the request's headers, credentials among them, out of an error that stays the cause of ours."""
    error.request_info = error.request_info._replace(headers={})
    error.args = (error.request_info, ())
    error.history = ()


def _explain_connector(error: Any, origin: Origin) -> ClientError:
    if isinstance(error.os_error, ssl.SSLError):
        fault = getattr(error.os_error, "verify_message", "") or str(error.os_error.reason).replace("_", " ").lower()
        text = f"can't connect over TLS: {fault}; does the server speak https there, with a certificate for it?"
    else:
        number = error.os_error.errno
        reason = os.strerror(number) if number is not None and number > 0 else str(error.os_error)
        text = f"can't connect: {reason}; is the server running there?"
    return ConnectionFailed(text, origin, sent=False)

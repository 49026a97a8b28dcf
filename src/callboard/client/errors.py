"""What can go wrong for a client. Every error names the request, the server and the way out.

    CallboardError
     └── ClientError             the root; also: a client that isn't open
          ├── InvalidRequest     the request can't be written, so nothing was sent
          ├── ConnectionFailed   the server can't be reached, or went away before it answered
          │    └── ProcessExited the server was a child process, and it ended
          ├── RequestTimeout     no answer in time; the request was cancelled
          ├── HttpError          an HTTP answer that is no JSON-RPC message
          ├── AuthorizationFailed  credentials can't be had
          ├── RequestCancelled   `Client.cancel` ended the request
          ├── ServerError        the server answered with a JSON-RPC error
          ├── InvalidAnswer      the server broke the protocol
          └── InputRequired      the server asks for input that no callback of the client gives

Only `ServerError` holds a code that came from the peer, so that no local failure is taken for one (EC-13).
"""

from __future__ import annotations

import signal
from typing import Any, NamedTuple

from callboard.errors import CallboardError

__all__ = [
    "AuthorizationFailed",
    "ClientError",
    "ConnectionFailed",
    "HttpError",
    "InputRequired",
    "InvalidAnswer",
    "InvalidRequest",
    "Origin",
    "ProcessExited",
    "RequestCancelled",
    "RequestTimeout",
    "ServerError",
]

# What an error's text shows of a name or URI, in characters.
SUBJECT = 100


class Origin(NamedTuple):
    """Which request of which client an error belongs to.

    Attributes:
        target: The server: a URL, a command line, a file or a server's name.
        method: The request's method; empty when the error belongs to no request.
        request_id: The request's JSON-RPC id; None when the error belongs to no request.
        subject: Name of the tool or prompt, or URI of the resource, that was asked for; empty when the method takes none.
    """

    target: str
    method: str = ""
    request_id: int | str | None = None
    subject: str = ""


class ClientError(CallboardError):
    """Root of what a client raises.

    Args:
        text: One sentence: what happened, and what to do about it.
        origin: The request it happened to; its fields become attributes.

    Attributes:
        text: The sentence alone; `str()` puts request and server before it.
        target: The server, as text.
        method: Method of the request; empty without one.
        request_id: JSON-RPC id of the request; None without one.
        subject: Name of the tool or prompt, or URI of the resource, that was asked for; empty without one.
    """

    def __init__(self, text: str, origin: Origin) -> None:
        super().__init__(text)
        self.text = text
        self.target, self.method, self.request_id, self.subject = origin

    def __str__(self) -> str:
        asked = " ".join(filter(None, (self.method, self.subject and f"{_shortened(self.subject)!r}")))
        return f"{f'{asked} at ' if asked else ''}{self.target}: {self.text}"


class InvalidRequest(ClientError, ValueError):  # noqa: N818
    """The request can't be written as the protocol wants it, so nothing was sent."""


class ConnectionFailed(ClientError):  # noqa: N818 - a state of the world, not a class of mistakes
    """The server can't be reached, or went away before it answered.

    Attributes:
        sent: Whether the request may have reached the server: then it is unknown whether the work was done. When False, it may be sent again.
    """

    def __init__(self, text: str, origin: Origin, *, sent: bool = True) -> None:
        super().__init__(text, origin)
        self.sent = sent


class ProcessExited(ConnectionFailed):
    """The server was a child process, and it ended.

    Attributes:
        returncode: Its exit code; negative: minus the signal that killed it.
        stderr: The last lines it wrote to stderr (at most 8 KiB), where the reason usually stands.
    """

    def __init__(self, returncode: int, stderr: str, origin: Origin) -> None:
        super().__init__(f"the server process {_ending(returncode)}{_quoted(stderr) or ' without a word on stderr'}", origin)
        self.returncode = returncode
        self.stderr = stderr


def _shortened(text: str) -> str:
    return text if len(text) <= SUBJECT else text[:SUBJECT] + "..."


def _quoted(stderr: str) -> str:
    last = "\n".join(stderr.splitlines()[-10:])
    return f"; its last words:\n{last}" if last else ""


def _ending(returncode: int) -> str:
    if returncode >= 0:
        return f"ended with exit code {returncode}"
    try:
        return f"was killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"was killed by signal {-returncode}"


class RequestTimeout(ClientError, TimeoutError):  # noqa: N818
    """No answer in time; the request was cancelled (CN-07).

    Attributes:
        seconds: The limit that was reached.
    """

    def __init__(self, seconds: float, origin: Origin, *, stderr: str | None = None, total: bool = False) -> None:
        advice = "raise the timeout if the work takes longer"
        if stderr is not None:  # the first request of all to a child process
            advice = f"does the command serve MCP on stdin and stdout?{_quoted(stderr)}"
        said = f"no answer within {seconds:g} s in all" if total else f"no answer within {seconds:g} s"
        super().__init__(
            f"{said}, so the request was cancelled; {'raise total_timeout if it may go on for longer' if total else advice}", origin
        )
        self.seconds = seconds


class HttpError(ClientError):
    """An HTTP answer that is no JSON-RPC message: from a proxy, a login page, a server that is no MCP server.

    Attributes:
        status: HTTP status.
        snippet: Start of the body, white space collapsed; empty when there was none.
        retry_after: Seconds that the server asks to wait before another try; None when it did not say.
        challenges: Its `WWW-Authenticate` headers, as they came: what credentials the server wants, or has against those it got.
    """

    def __init__(
        self,
        status: int,
        snippet: str,
        origin: Origin,
        *,
        hint: str = "",
        retry_after: float | None = None,
        challenges: tuple[str, ...] = (),
    ) -> None:
        super().__init__(f"HTTP {status}{hint}{f': {snippet}' if snippet else ''}", origin)
        self.status = status
        self.snippet = snippet
        self.retry_after = retry_after
        self.challenges = challenges


class AuthorizationFailed(ClientError):  # noqa: N818
    """The credentials that the server wants can't be had: the text says which step failed, and what to do. It never holds a secret."""


class RequestCancelled(ClientError):  # noqa: N818
    """`Client.cancel` ended the request; the server was told."""


class ServerError(ClientError):
    """The server answered with a JSON-RPC error.

    Attributes:
        code: JSON-RPC error code, for example -32602 for invalid params.
        message: The server's own sentence.
        data: The error's `data`, plain JSON; None when absent.
        status: HTTP status it came with; None without HTTP.
        challenges: Its `WWW-Authenticate` headers, as they came; empty without HTTP.
    """

    def __init__(self, code: int, message: str, data: Any, status: int | None, origin: Origin, *, challenges: tuple[str, ...] = ()) -> None:
        super().__init__(f"{message} (error {code}{'' if status is None else f', HTTP {status}'})", origin)
        self.code = code
        self.message = message
        self.data = data
        self.status = status
        self.challenges = challenges


class InvalidAnswer(ClientError):  # noqa: N818
    """The server broke the protocol: an answer of the wrong shape, of an unknown type (JR-15), or too large."""


class InputRequired(ClientError):  # noqa: N818
    """The server asks for input before it goes on (MR-01), and does not get it.

    Args:
        input_requests: What it asks.
        request_state: Its state.
        origin: The request that waits.
        why: Why it does not get it; the end of a sentence.

    Attributes:
        input_requests: What it asks, by key; empty when it asks for a retry alone.
        request_state: What to send back unchanged with a retry (MR-12); None when there is none.
    """

    def __init__(self, input_requests: dict[str, Any], request_state: str | None, origin: Origin, why: str) -> None:
        asked = ", ".join(sorted({str(ask.get("method")) for ask in input_requests.values() if isinstance(ask, dict)})) or "a retry"
        super().__init__(f"the server asks for input ({asked}) {why}", origin)
        self.input_requests = input_requests
        self.request_state = request_state

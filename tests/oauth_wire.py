"""An MCP server and its authorization servers without sockets, and an `Auth` in front of them, so that a test of OAuth takes milliseconds."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from authorization_server import AuthorizationServer
from protected_server import ProtectedServer
from recording_app import Answer, Receive, RecordingApp, Scope, Send

from callboard.client.auth import Auth, Challenge, HttpRequest, HttpResponse
from callboard.client.errors import ConnectionFailed, Origin

MOST = 3  # answers to challenges, for one request


class Guard(ProtectedServer):
    """A protected server whose endpoint says yes to everybody it lets in."""

    async def forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Says yes."""
        send = self.with_nonce(send)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"yes"})


class Wire:
    """Apps by origin: what is not here can't be reached.

    Attributes:
        authorization: The authorization server.
        protected: The MCP server.
        now: What time it is, for all of them.
    """

    def __init__(self, authorization: AuthorizationServer | None = None, **options: Any) -> None:
        self.now = 1_790_000_000.0
        self.apps: dict[str, RecordingApp] = {}
        self.authorization = authorization or AuthorizationServer()
        self.add(self.authorization, "https://as.example")
        self.protected = Guard(self.authorization, **options)
        self.add(self.protected, "https://desk.example")
        self.authorization.resources.add(self.protected.url)

    def clock(self) -> float:
        """The time."""
        return self.now

    def add(self, app: RecordingApp, origin: str) -> None:
        """One more app."""
        app.origin = origin
        self.apps[origin] = app
        if isinstance(app, AuthorizationServer):
            app.clock = self.clock

    async def fetch(self, request: HttpRequest) -> HttpResponse:
        """As the client's own."""
        parts = urlsplit(request.url)
        app = self.apps.get(f"{parts.scheme}://{parts.netloc}")
        if app is None:
            raise ConnectionFailed("nobody listens there", Origin(request.url))
        scope = {
            "type": "http",
            "method": request.method,
            "path": parts.path,
            "query_string": parts.query.encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in request.headers.items()],
        }
        status, headers, body = 0, dict[str, str](), b""

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": request.body}

        async def send(message: Mapping[str, Any]) -> None:
            nonlocal status, headers, body
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = {name.decode(): value.decode() for name, value in message["headers"]}
            else:
                body += message["body"]

        await app(scope, receive, send)
        return HttpResponse(status, headers, body)

    async def call(self, auth: Auth, method: str = "tools/call") -> int:
        """A request to the MCP server, with as many answers to challenges as a client gives; its status in the end."""
        status = 0
        for _ in range(MOST + 1):
            sent = await auth.headers("POST", self.protected.url)
            body = f'{{"jsonrpc": "2.0", "id": 1, "method": "{method}"}}'.encode()
            answer = await self.fetch(HttpRequest("POST", self.protected.url, sent, body))
            status = answer.status
            if status != 401:
                auth.learn(answer.headers)
            if status not in {401, 403}:
                break
            challenge = Challenge(answer.status, "POST", self.protected.url, tuple(answer.headers.items()), sent)
            if not await auth.answer(challenge):
                break
        return status


def page(status: int, body: bytes, kind: str = "application/json", **headers: str) -> list[Answer]:
    """A fault: what comes in place of an answer, every time."""
    return [Answer(status, body, {"content-type": kind, **{name.replace("_", "-"): value for name, value in headers.items()}})]

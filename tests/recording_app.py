"""HTTP servers for tests that write down whatever they are asked, so that a test can also say what was never sent."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

import uvicorn

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]


@dataclass
class Recorded:
    """A request as it came."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    kind: str = ""
    repeated: list[str] = field(default_factory=list)  # parameters that came twice: RFC 6749 3.1 forbids it

    @property
    def form(self) -> dict[str, str]:
        """Parameters of a form; nothing when it is none."""
        if self.headers.get("content-type", "").split(";")[0].strip() != "application/x-www-form-urlencoded":
            return {}
        return dict(parse_qsl(self.body.decode(), keep_blank_values=True))

    @property
    def json(self) -> Any:
        """The body, read as JSON."""
        return json.loads(self.body)


@dataclass
class Answer:
    """What is sent back."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0


def json_answer(status: int, value: Any, headers: Mapping[str, str] | None = None) -> Answer:
    """JSON that nobody may keep."""
    return Answer(
        status, json.dumps(value).encode(), {"content-type": "application/json", "cache-control": "no-store", **(dict(headers or {}))}
    )


class RecordingApp:
    """An ASGI app: `kind` names what a request is for, `faults` answer instead of it, `reply` answers, `forward` passes on.

    Attributes:
        origin: `http://127.0.0.1:port`, once it is served.
        requests: All requests so far, oldest first.
        faults: By kind: the answers that come instead; the last one stays. A list that is emptied by a test ends the fault.
        violations: Why requests were refused, in words.
    """

    def __init__(self) -> None:
        self.origin = ""
        self.requests: list[Recorded] = []
        self.faults: dict[str, list[Answer]] = {}
        self.violations: list[str] = []

    def sent(self, *kinds: str) -> list[Recorded]:
        """The requests of some kinds."""
        return [request for request in self.requests if request.kind in kinds]

    def kind(self, request: Recorded) -> str:
        """What a request is for."""
        return request.path

    async def reply(self, request: Recorded) -> Answer | None:
        """What to answer; None: `forward` does."""
        del request
        return Answer(404)

    async def forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Whatever else an app does: its lifespan, requests that `reply` leaves."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The app."""
        if scope["type"] != "http":
            await self.forward(scope, receive, send)
            return
        request = await _read(scope, receive)
        request.kind = self.kind(request)
        self.requests.append(request)
        waiting = self.faults.get(request.kind, [])
        answer = (waiting.pop(0) if len(waiting) > 1 else waiting[0]) if waiting else await self.reply(request)
        if answer is None:
            await self.forward(scope, _again(request.body, receive), send)
            return
        await asyncio.sleep(answer.delay)
        headers = [(name.encode(), value.encode()) for name, value in answer.headers.items()]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def _read(scope: Scope, receive: Receive) -> Recorded:
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    pairs = parse_qsl(scope["query_string"].decode(), keep_blank_values=True)
    names = [name for name, _ in pairs]
    request = Recorded(
        method=scope["method"],
        path=scope["path"],
        query=dict(pairs),
        headers={name.decode().lower(): value.decode("latin-1") for name, value in scope["headers"]},
        body=bytes(body),
    )
    if request.form:
        names += [name for name, _ in parse_qsl(request.body.decode(), keep_blank_values=True)]
    request.repeated = sorted({name for name in names if names.count(name) > 1})
    return request


def _again(body: bytes, receive: Receive) -> Receive:
    unread = True

    async def replay() -> MutableMapping[str, Any]:
        nonlocal unread
        if unread:
            unread = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replay


@contextlib.asynccontextmanager
async def serving(*apps: RecordingApp) -> AsyncIterator[None]:
    """Serves apps on loopback ports of their own, in this loop; each learns its origin first."""
    with contextlib.ExitStack() as stack:
        listeners = []
        running = []
        for app in apps:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            app.origin = f"http://127.0.0.1:{listener.getsockname()[1]}"
            listeners.append(listener)
        for app, listener in zip(apps, listeners, strict=True):
            runner = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="on", timeout_graceful_shutdown=1))
            task = asyncio.create_task(runner.serve([listener]))
            running.append((runner, task))
        try:
            yield
        finally:
            for runner, _ in running:
                runner.should_exit = True
            await asyncio.gather(*(task for _, task in running))

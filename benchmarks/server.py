"""The benchmark server: Callboard as `callboard.run` serves it (uvicorn with uvloop and httptools), with tools as thin as tools can be.

Environment:
    PORT: Where to listen on 127.0.0.1 (8100).
    BENCH_TOOLS: How many filler tools to add to the catalogue (0).
    BENCH_STDIO: `1` serves stdio instead of HTTP.
    BENCH_PLAIN: `1` serves the ASGI application on uvicorn as it is, in place of `callboard.run`.
    BENCH_MODE: `stateless-json`, `stateless-sse`, `session-json`, `session-sse`: whether 2025 clients get sessions, and whether results
        come as JSON or as event streams. The current protocol is served in every mode.
    BENCH_VERSIONS: Protocol versions to serve, separated by commas (all).
    BENCH_TTL: Seconds that a session may be idle (300).
    BENCH_STATE: `1` gives sessions a state, and adds a tool that changes it.
    BENCH_STORE: URL of a Redis that keeps sessions (none: this process's memory).
    BENCH_TELEMETRY: Sinks to tell, see telemetry_sinks.py (none).
    BENCH_JWK, BENCH_ISSUER, BENCH_RESOURCE: A public key: then every request needs a token of the issuer's for the resource.
"""

import asyncio
import gc
import json
import os
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a script finds its own folder only

import msgspec

from benchmarks.floors.data import FILLERS, PORT, SESSIONS, STDIO, STREAMED, filler, hits
from benchmarks.telemetry_sinks import make_sinks
from callboard import Context, Server, asgi, run
from callboard.auth import JWT
from callboard.limits import Limits
from callboard.transport.asgi import App
from callboard.transport.http_server import serve
from callboard.transport.stream import Receive, Scope, Send
from callboard.types import CallToolResult, TextContent

STREAMS = 100_000
OPTIONS: dict[str, Any] = {
    "limits": Limits(
        max_listens=STREAMS,
        max_listens_per_principal=STREAMS,
        max_streams=2 * STREAMS,
        max_streams_per_principal=2 * STREAMS,
        log_rate=None,
    ),
    "sessions": "auto" if SESSIONS else "off",
    "session_ttl": float(os.environ.get("BENCH_TTL", "300")),
}
if "BENCH_VERSIONS" in os.environ:
    OPTIONS["versions"] = os.environ["BENCH_VERSIONS"].split(",")
if "BENCH_JWK" in os.environ:
    OPTIONS["auth"] = JWT(os.environ["BENCH_ISSUER"], keys=json.loads(os.environ["BENCH_JWK"]))
    OPTIONS["resource"] = os.environ["BENCH_RESOURCE"]


class Visits(msgspec.Struct):
    """The state of a session."""

    many: int = 0


BOTH, STREAM_ONLY = (b"accept", b"application/json, text/event-stream"), (b"accept", b"text/event-stream")
server = Server(
    "bench",
    version="1.0.0",
    page_size=10_000,
    store=os.environ.get("BENCH_STORE"),
    state=Visits if "BENCH_STATE" in os.environ else None,
    telemetry=make_sinks(os.environ.get("BENCH_TELEMETRY", "")),
)
waiting: list[asyncio.Future[None]] = []


class Said(msgspec.Struct):
    result: str


class Hit(msgspec.Struct):
    id: int
    title: str
    url: str
    score: float
    tags: list[str]
    snippet: str


class SearchResult(msgspec.Struct):
    query: str
    total: int
    hits: list[Hit]


class Census(msgspec.Struct):
    listeners: int
    tasks: int


class Sweep(msgspec.Struct):
    garbage: int
    objects: int


@server.tool
def echo(text: str) -> CallToolResult:
    """Say the text again, from a thread; other benchmarks want the bare text beside the structured content."""
    return CallToolResult(content=[TextContent(text=text)], structured_content={"result": text})


@server.tool
async def aecho(text: str) -> Said:
    """Say the text again."""
    return Said(text)


if "BENCH_STATE" in os.environ:

    @server.tool
    async def visit(visits: Visits) -> int:
        """Count a visit."""
        visits.many += 1
        return visits.many


@server.tool
async def pause(text: str) -> Said:
    """Say the text again after letting others go first."""
    await asyncio.sleep(0)
    return Said(text)


@server.tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool
async def length(text: str) -> int:
    """Count the characters of a text."""
    return len(text)


@server.tool
async def search(query: str) -> SearchResult:
    """Search the shelves."""
    found = hits(query)
    return SearchResult(query, len(found), [Hit(**hit) for hit in found])


@server.tool
async def slow(n: int, ctx: Context) -> Said:
    """Report progress n times."""
    for step in range(n):
        await ctx.progress(step + 1, n, "step")
    return Said("done")


@server.tool
async def meet(callers: int) -> int:
    """Wait until this many callers are here."""
    waiting.append(asyncio.get_running_loop().create_future())
    mine = waiting[-1]
    if len(waiting) == callers:
        for other in waiting:
            other.set_result(None)
        waiting.clear()
    await mine
    return callers


@server.tool
async def join() -> Said:
    """Become one of those that `broadcast` reaches; on the current protocol a listen stream is all it takes."""
    return Said("ok")


@server.tool
async def broadcast() -> Said:
    """Tell every listener that the tool list changed."""
    server.hub.publish("tools")
    return Said("ok")


@server.tool
async def census() -> Census:
    """Count listeners and tasks."""
    return Census(len(server.hub), len(asyncio.all_tasks()))


@server.tool
async def sweep() -> Sweep:
    """Run the garbage collector; count what it found and what lives on."""
    return Sweep(gc.collect(), len(gc.get_objects()))


@server.resource("bench://greeting")
async def greeting() -> str:
    """A greeting."""
    return "hello"


@server.prompt
async def ask(topic: str) -> str:
    """Ask about a topic."""
    return f"What is there to know about {topic}?"


for number in range(FILLERS):
    name, description, function = filler(number)
    server.tool(name=name, description=description)(function)


class Streaming:
    """An application to which clients that take both JSON and event streams seem to take only the latter.

    Attributes:
        endpoint, path, rules, door: What `serve` wants to know of an application.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self.endpoint, self.path, self.rules, self.door = app.endpoint, app.path, app.rules, app.door

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Serve one ASGI scope."""
        if scope["type"] == "http" and BOTH in (headers := scope["headers"]):
            headers[headers.index(BOTH)] = STREAM_ONLY
        return self._app(scope, receive, send)


def make_app() -> App:
    """The server as an ASGI application."""
    app = asgi(server, **OPTIONS)
    return cast("App", Streaming(app)) if STREAMED else app


def main() -> None:
    """Serve until told to stop."""
    if STDIO:
        run(server, transport="stdio")
    elif os.environ.get("BENCH_PLAIN") == "1":
        import uvicorn

        gc.collect()
        gc.freeze()
        uvicorn.run(make_app(), host="127.0.0.1", port=PORT, loop="uvloop", http="httptools", log_level="warning", access_log=False)
    else:
        # `callboard.run`, with room for the application above
        serve(make_app(), host="127.0.0.1", port=PORT, log_level="warning")


if __name__ == "__main__":
    main()

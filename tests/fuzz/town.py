"""The server that drivers talk to: small, with a part of every kind. None of its functions fails unless it is asked to, in the protocol's own way."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from callboard import Context, NotFound, Reply, Server, ToolError, asgi, types
from callboard.auth.jwt import JWT
from callboard.auth.principal import Principal
from callboard.auth.static import ApiKeys, BearerTokens
from callboard.tasks import MemoryTasks
from callboard.transport.asgi import App

__all__ = ["KEYS", "SECRET", "TTL", "make_app", "make_guarded_app", "make_server"]

KEYS: Final = ["k" * 40]
"""Keys of sealed states, the same in every run."""

SECRET: Final = "open-sesame-0123456789"
RESOURCE: Final = "http://127.0.0.1:8000/mcp"
TTL: Final = 20.0
"""Seconds that sessions and tasks live."""

Region = Annotated[str, Meta(extra_json_schema={"x-mcp-header": "Region"})]
RAW: Final = {
    "type": "object",
    "properties": {"sku": {"type": "string", "pattern": "^[A-Z]{3}$"}, "more": {"$ref": "#/$defs/more"}},
    "required": ["sku"],
    "$defs": {"more": {"type": ["array", "null"], "items": {"$ref": "#/$defs/more"}}},
}


class Cart(Struct):
    """What a session keeps."""

    count: int = 0


class Place(Struct):
    """A tree of them is what `form` takes and gives."""

    name: str
    left: Place | None = None
    right: Place | None = None
    tags: dict[str, int | None] = {}


def make_server() -> Server:
    """The server."""
    server = Server(
        "town", version="1", state=Cart, keys=KEYS, tasks=MemoryTasks(ttl=TTL, max_age=TTL), channels=["news"], page_size=5, ask_timeout=5
    )
    _add_plain(server)
    _add_slow(server)
    _add_asking(server)
    _add_others(server)
    return server


def make_app() -> App:
    """The same over HTTP; who asks is what the header `x-user` says."""
    return asgi(
        make_server(),
        principal=_principal,
        cors=True,
        origins=["https://app.example.com"],
        session_ttl=TTL,
        request_timeout=5,
        sse_path="/sse",
    )


def make_guarded_app() -> App:
    """The same for those alone who have a token or a key; all of them have `SECRET` in them."""
    verifiers = [
        BearerTokens({f"{SECRET}-of-ann": Principal("ann", ["write"]), f"{SECRET}-of-bob": "bob"}),
        ApiKeys({f"{SECRET}-of-eve": "eve"}),
        JWT("https://login.example.com", keys={"kty": "oct", "k": "c" * 43}),
    ]
    return asgi(make_server(), auth=verifiers, resource=RESOURCE, scopes=["read"], implies={"write": ["read"]}, cors=True, session_ttl=TTL)


def _principal(scope: Mapping[str, Any]) -> str | None:
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == b"x-user"), None)


def _add_plain(server: Server) -> None:
    @server.tool
    async def echo(text: str) -> str:
        return text

    @server.tool
    async def add(cart: Cart, amount: int = 1, region: Region = "eu") -> str:
        cart.count = (cart.count + amount) % 1000
        return f"{region} {cart.count}"

    @server.tool
    async def form(place: Place, depth: float = 1.5) -> list[Place]:
        return [place] if depth < 1e6 else []

    @server.tool(input_schema=RAW)
    async def raw(arguments: dict[str, Any]) -> dict[str, Any]:
        if arguments["sku"] == "BAD":
            raise ToolError("No such thing.")
        return arguments

    @server.tool
    async def who(ctx: Context) -> dict[str, Any]:
        """What clients say of themselves, given back to them."""
        return {
            "version": ctx.protocol_version,
            "principal": ctx.principal,
            "capabilities": ctx.client_capabilities,
            "headers": dict(ctx.headers or {}),
        }

    @server.tool
    async def empty(cart: Cart) -> Any:
        return Reply({"was": cart.count}, state=Cart())


def _add_slow(server: Server) -> None:
    @server.tool(timeout=3)
    async def nap(seconds: Annotated[float, Meta(ge=0, le=10)] = 1) -> str:
        await asyncio.sleep(seconds)
        return "rested"

    @server.tool
    async def report(ctx: Context, times: Annotated[int, Meta(ge=0, le=5)] = 2, text: str = "") -> str:
        for number in range(times):
            ctx.progress(number, times, text)
            ctx.log("info", {"text": text, "number": number})
            await asyncio.sleep(0)
        server.broadcast("news", {"method": "notifications/message", "params": {"level": "info", "data": text}})
        server.resource_updated("town://a")
        return "reported"

    @server.tool(task="allowed", timeout=8)
    async def walk(ctx: Context, seconds: Annotated[float, Meta(ge=0, le=10)] = 2) -> str:
        ctx.progress(1, 2, "on the way")
        await asyncio.sleep(seconds)
        return "there"

    @server.tool(task="always")
    async def hand_in(ctx: Context) -> str:
        return f"signed by {(await ctx.elicit('Name?', str)).value}"


def _add_asking(server: Server) -> None:
    @server.tool
    async def ask(ctx: Context, text: str = "Sure?", times: Annotated[int, Meta(ge=1, le=3)] = 1) -> list[str]:
        return [str((await ctx.elicit(f"{text} {number}", Place if number else bool)).value) for number in range(times) if text != "form"]

    @server.tool
    async def sample(ctx: Context, text: str = "2 + 2?") -> str:
        roots, answer = await asyncio.gather(ctx.roots(), ctx.sample(text, max_tokens=5))
        return f"{len(roots)} {answer.text}"


def _add_others(server: Server) -> None:
    @server.resource("town://a")
    async def page(cart: Cart) -> str:
        return f"a {cart.count}"

    @server.resource("town://note/{name}{.ext}")
    async def note(name: str, ext: str = "") -> str:
        if name == "gone":
            raise NotFound
        return f"{name} {ext}"

    @server.resource("town://files/{+path}", mime_type="application/octet-stream")
    async def file(path: str) -> bytes:
        return path.encode()

    @server.resource("town://list{?a,b*}")
    async def listed(a: int = 0, b: list[str] | None = None) -> dict[str, Any]:
        return {"a": a, "b": b}

    @server.prompt
    async def greet(cart: Cart, who: str, tone: str = "kind") -> list[types.PromptMessage]:
        return [types.user(f"Greet {who}, be {tone} {cart.count}.")]

    @server.complete("greet", "who")
    async def people(value: str) -> list[str]:
        return [f"{value}{number}" for number in range(3)]

    @server.complete("town://note/{name}{.ext}", "name")
    async def names(value: str, ctx: Context) -> list[str]:
        return [value, str(ctx.principal)]

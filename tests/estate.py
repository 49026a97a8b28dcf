"""A server on which several principals own everything that one can own, and clients of both eras that try each other's things.

Whatever a principal says holds their mark, and so does whatever the server has of theirs. All ids, cursors and states are known to all.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final

from asgi_driver import JSON, Client, header_value, make_headers, make_meta, make_request
from asgi_driver import Exchange as NowExchange
from legacy_driver import V11, Legacy, Session
from msgspec import Struct, field
from oracles import TASKS
from virtual_time import settle

from callboard import Context, NotFound, Server, asgi
from callboard.auth import Grant, Principal, Refusal, Verifier
from callboard.tasks import MemoryTasks

KNOWING: Final[JSON] = {"extensions": {TASKS: {}}, "elicitation": {"form": {}, "url": {}}}
Artifact = str | None
MOMENT = 0.1  # seconds that a request gets: enough for a call to become a task


def mark(who: str) -> str:
    """What stands in everything of a principal's, and in nothing else."""
    return f"mark-of-{who}"


class Names(Verifier):
    """Takes a token for a name."""

    async def verify(self, credential: str) -> Grant | Refusal:
        return Grant(Principal(credential), 2**40)


class Notes(Struct):
    """What a session keeps."""

    texts: list[str] = field(default_factory=list)


def make_server() -> Server:
    """Everything that can be somebody's: state, tasks, suspended calls, lists, resources, streams."""
    server = Server("estate", page_size=1, state=Notes, tasks=MemoryTasks(), capabilities=None)

    @server.tool
    async def remember(text: str, notes: Notes) -> list[str]:
        notes.texts.append(text)
        return notes.texts

    @server.tool
    async def confirm(text: str, ctx: Context) -> str:
        answer = await ctx.elicit(f"Really {text}?", str)
        return f"{text}: {answer.value}"

    @server.tool(task="allowed")
    async def work(text: str, ctx: Context) -> str:
        ctx.progress(1, message=text)
        await asyncio.sleep(5)
        answer = await ctx.elicit(f"Go on with {text}?", str)
        return f"{text}: {answer.value}"

    @server.tool
    async def shout(text: str, ctx: Context) -> str:
        ctx.progress(1, message=text)
        ctx.log("error", text)
        server.resource_updated("mine://box")
        await asyncio.sleep(1)
        return text

    for who in ("ann", "bob"):
        _add_private(server, who)

    @server.resource("mine://box")
    def box(ctx: Context) -> str:
        return f"box of {mark(str(ctx.principal))}"

    @server.resource("shelf://{owner}")
    def shelf(owner: str, ctx: Context) -> str:
        if owner != ctx.principal:
            raise NotFound
        return f"shelf of {mark(owner)}"

    return server


def _add_private(server: Server, who: str) -> None:
    """A tool, a resource and a prompt that one principal alone sees; others may guess their names."""

    def is_theirs(ctx: Context) -> bool:
        return ctx.principal == who

    async def secret() -> str:
        return f"secret of {mark(who)}"

    server.tool(name=f"secret_{who}", description=f"For {mark(who)}.", visible=is_theirs)(secret)
    server.resource(f"secret://{who}", name=f"secret {mark(who)}", visible=is_theirs)(secret)
    server.prompt(name=f"prompt_{who}", description=f"For {mark(who)}.", visible=is_theirs)(secret)


class Estate:
    """The application, and what has come to be of everybody's.

    Attributes:
        known: Kind of artifact -> owner -> those there are.
        heard: Every byte that a principal was ever sent, by request.
    """

    def __init__(self) -> None:
        self.server = make_server()
        self.app = asgi(self.server, auth=Names())
        self.known: dict[str, dict[str, list[str]]] = {}
        self.heard: dict[str, list[bytes]] = {}
        self.open: list[tuple[str, NowExchange]] = []

    def note(self, kind: str, who: str, artifact: Any) -> None:
        """Remember something of a principal's that others may try."""
        if isinstance(artifact, str):
            self.known.setdefault(kind, {}).setdefault(who, []).append(artifact)

    def pick(self, kind: str, owner: str, number: int) -> Artifact:
        """Something that a principal has; None where they have none."""
        found = self.known.get(kind, {}).get(owner, [])
        return found[number % len(found)] if found else None

    async def send(self, who: str, message: JSON | None, headers: Mapping[str, str], verb: str = "POST") -> tuple[int, bytes]:
        """Send a request as a principal; status and body of what has come of it after a moment."""
        scopes = Client(self.app)
        body = b"" if message is None else json.dumps(message).encode()
        raw = [(name.encode(), value.encode()) for name, value in {**headers, "authorization": f"Bearer {who}"}.items()]
        exchange = NowExchange(self.app, scopes.scope(verb, raw), body, None)
        self.open.append((who, exchange))
        await asyncio.sleep(MOMENT)
        status = exchange.sent[0]["status"] if exchange.sent else 0
        return status, b"".join(event.get("body", b"") for event in exchange.sent[1:])

    async def now(self, who: str, method: str, params: JSON, request_id: Any = 1, token: Any = None) -> tuple[int, bytes]:
        """A request of the current protocol."""
        more = {} if token is None else {"progressToken": token, "logLevel": "debug"}
        message = make_request(method, params, request_id=request_id, meta=make_meta(KNOWING, **more))
        return await self.send(who, message, make_headers(message))

    async def then(self, who: str, session: str | None, message: JSON | None, verb: str = "POST", **more: str) -> tuple[int, bytes]:
        """A request of 2025-11-25."""
        headers = {
            "host": "127.0.0.1:8000",
            "content-type": "application/json",
            "accept": "application/json, text/event-stream" if verb == "POST" else "text/event-stream",
            "mcp-protocol-version": V11,
            **({} if session is None else {"mcp-session-id": header_value(session)}),
            **{name.replace("_", "-"): value for name, value in more.items()},
        }
        return await self.send(who, message, headers, verb)

    async def connect(self, who: str) -> str:
        """Open a session; its id."""
        client = Legacy(self.app, V11, headers={"authorization": f"Bearer {who}"})
        session: Session = await client.connect(capabilities={"elicitation": {}})
        assert session.id is not None
        self.note("session", who, session.id)
        return session.id

    def drop(self, exchange: NowExchange) -> None:
        """The client goes away."""
        exchange.gate.set()
        exchange.disconnect()

    async def close(self) -> None:
        """Everybody goes away, and what everybody was ever sent is counted up."""
        for _, exchange in self.open:
            self.drop(exchange)
        await settle()
        for who, exchange in self.open:
            self.heard.setdefault(who, []).append(repr(exchange.sent).encode())
        await self.app.aclose()

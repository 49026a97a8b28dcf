"""What hostile bytes are thrown at, as a process: `python hostile_server.py PORT [uvicorn] [options as JSON]`.

With `uvicorn` the application runs under stock uvicorn, else under `callboard.run`. The options go to `asgi`, but for `limits` (fields of
`Limits`), `server` (options of the server), `tokens` (token -> [principal, scopes]), `jwt` (options of `JWT`) and `principals` (who asks is what the
header X-Principal says).
"""

import asyncio
import gc
import json
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import uvicorn
from desk import Desk
from e2e.vitals import descriptors, resident
from msgspec import Struct

import callboard
from callboard import Context, asgi
from callboard.auth import JWT, BearerTokens, Principal
from callboard.limits import Limits

SECRET = "hunter2-s3cr3t"


class Name(Struct):
    """What is asked for."""

    name: str


class Kept(Struct):
    """What a session keeps."""

    value: str = "nothing"


class Stall:
    """The server.

    Attributes:
        app: The ASGI application, once it is made.
        ran: Names of what ran.
    """

    def __init__(self, **options: Any) -> None:
        self.desk = Desk(state=Kept, **options)
        self.server = self.desk.server
        self.ran: list[str] = self.desk.calls
        self._add_health()
        self._add_results()
        self._add_work()
        self._add_hidden()
        self._add_templates()

    def _add_health(self) -> None:
        @self.server.tool
        async def ran() -> list[str]:
            """What has run so far."""
            return list(self.ran)

        @self.server.tool
        async def health() -> dict[str, Any]:
            """What goes on in this process."""
            gc.collect()
            return {
                "ended": len(self.desk.ended),
                "listeners": len(self.server.hub),
                "tasks": len(asyncio.all_tasks()),
                "threads": threading.active_count(),
                "descriptors": descriptors(),
                "resident": resident(),
            }

    def _add_results(self) -> None:
        tool = self.server.tool

        @tool
        async def surrogate() -> str:
            return "half \ud800 of a pair"

        @tool
        async def surrogate_inside() -> dict[str, Any]:
            return {"\udfff": ["\ud800"]}

        @tool
        async def nan() -> dict[str, float]:
            return {"value": float("nan"), "more": float("inf")}

        @tool
        async def raw_bytes() -> Any:
            return {"value": b"\xff\xfe"}

        @tool
        async def cycle() -> Any:
            value: list[Any] = []
            value.append(value)
            return value

        @tool
        async def no_json() -> Any:
            return {"value": object()}

        @tool
        async def huge() -> str:
            return "x" * 10_000_000

        @tool
        async def leak(how: str) -> str:
            raise {"value": ValueError, "os": OSError, "key": KeyError}[how](f"password={SECRET}")

        @tool
        def leak_sync() -> str:
            raise RuntimeError(SECRET)

        @tool
        async def leak_group() -> str:
            raise ExceptionGroup(SECRET, [ValueError(SECRET)])

    def _add_work(self) -> None:
        tool = self.server.tool

        @tool
        async def quick() -> str:
            return "quick"

        @tool
        async def linger(seconds: float) -> str:
            await asyncio.sleep(seconds)
            return "lingered"

        @tool
        async def headers(ctx: Context) -> dict[str, str]:
            """The headers that functions see."""
            return dict(ctx.headers or {})

        @tool
        def sleepy(seconds: float) -> str:
            time.sleep(seconds)
            return "slept"

        @tool
        async def pour(count: int, ctx: Context) -> str:
            """Send progress and logs as fast as can be."""
            for number in range(count):
                ctx.progress(number, count, "x" * 100)
                ctx.log("info", "x" * 100)
                if number % 1000 == 0:
                    await asyncio.sleep(0)
            return "poured"

        @tool
        async def ask(topic: str, ctx: Context) -> str:
            """Ask the client for a name."""
            answer = await ctx.elicit(f"Name for {topic}?", Name)
            self.ran.append("ask")
            return answer.value.name if answer.accepted else "nobody"

        @tool
        async def ask_too(topic: str, ctx: Context) -> str:
            """The same, under another name."""
            return await ask(topic, ctx)

        @tool
        async def remember(value: str, kept: Kept) -> str:
            """Keep something in the session."""
            before, kept.value = kept.value, value
            return before

    def _add_hidden(self) -> None:
        def is_alice(ctx: Context) -> bool:
            return str(ctx.principal) == "alice"

        @self.server.tool(visible=is_alice)
        async def hidden() -> str:
            self.ran.append("hidden")
            return "seen"

        @self.server.tool(visible=is_alice)
        async def hidden_keeper(kept: Kept) -> str:
            kept.value = "alice was here"
            return "kept"

        @self.server.tool
        async def brood(seconds: float, kept: Kept) -> str:
            """Keep the state for a while."""
            await asyncio.sleep(seconds)
            return kept.value

        @self.server.resource("desk://hidden", visible=is_alice)
        async def hidden_resource() -> str:
            return "seen"

        @self.server.prompt(visible=is_alice)
        async def hidden_prompt() -> str:
            return "seen"

    def _add_templates(self) -> None:
        resource = self.server.resource

        @resource("shelf://{room}/{+path}/end{?page,rest*}")
        async def shelf(room: str, path: str, page: str = "", rest: Any = None) -> str:
            self.ran.append(f"shelf {room} {path} {page} {rest}")
            return "shelf"

        @resource("tree://top{/parts*}")
        async def tree(parts: list[str] | None = None) -> str:
            self.ran.append("tree")
            return f"{len(parts or [])} parts"

        @resource("list://{first}.{second}-{third},{fourth}{;a,b,c}")
        async def several(first: str, second: str, third: str, fourth: str, a: str = "", b: str = "", c: str = "") -> str:
            self.ran.append("several")
            return first + second + third + fourth + a + b + c


def tell(scope: Mapping[str, Any]) -> str | None:
    """Who asks, in the words of a trusted front."""
    found: bytes | None = dict(scope["headers"]).get(b"x-principal")
    return None if found is None else found.decode("ascii")


def read_options(text: str) -> dict[str, Any]:
    """Options of `asgi` out of JSON."""
    options: dict[str, Any] = json.loads(text)
    options["limits"] = Limits(**options.pop("limits", {}))
    if (tokens := options.pop("tokens", None)) is not None:
        options["auth"] = BearerTokens({token: Principal(name, set(scopes)) for token, (name, scopes) in tokens.items()})
    if (jwt := options.pop("jwt", None)) is not None:
        options["auth"] = JWT(**jwt)
    if options.pop("principals", False):
        options["principal"] = tell
    return options


def main() -> None:
    """Serve until the process is told to stop."""
    port, *more = sys.argv[1:]
    plain = more[:1] == ["uvicorn"]
    options = read_options(more[-1] if more[int(plain) :] else "{}")
    server = Stall(**options.pop("server", {})).server
    if plain:
        uvicorn.run(asgi(server, **options), port=int(port), log_level="error", timeout_graceful_shutdown=2)
    else:
        callboard.run(server, port=int(port), log_level="error", **options)


if __name__ == "__main__":
    main()

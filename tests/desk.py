"""A server with something of everything, for tests that drive it through a transport."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct

from callboard import Context, Fail, Layer, NotFound, Reason, Server, ToolError, audio, embed, image, link, text, types

PNG = b"\x89PNG\r\n"
Region = Annotated[str, Meta(extra_json_schema={"x-mcp-header": "Region"})]


class Day(Struct):
    """A day's weather."""

    name: str
    high: float
    rain: bool = False


class Desk:
    """The server and what its functions meet.

    Attributes:
        server: The server.
        started: Set when `hang` or `block` has begun.
        ended: How `hang` ended.
        release: Lets `block` go on.
        calls: Names of the tools that ran.
    """

    def __init__(self, *, middleware: Sequence[Layer] = (), **options: Any) -> None:
        self.server = Server("desk", version="1.0", middleware=middleware, **options)
        self.started = asyncio.Event()
        self.ended: list[str] = []
        self.release = threading.Event()
        self.calls: list[str] = []
        self._add_tools()
        self._add_streaming_tools()
        self._add_failing_tools()
        self._add_others()

    def _add_tools(self) -> None:
        tool = self.server.tool

        @tool
        async def echo(text: str) -> str:
            """Say it again."""
            self.calls.append("echo")
            return text

        @tool
        def sync_echo(text: str) -> str:
            return text

        @tool
        async def forecast(city: str, days: int = 1) -> list[Day]:
            return [Day(city, 20.5 + n) for n in range(days)]

        @tool
        async def stow(bay: int, region: Region = "eu") -> str:
            self.calls.append("stow")
            return f"{region} {bay}"

        @tool
        async def blocks() -> list[Any]:
            return [
                text("a"),
                image(PNG, "image/png"),
                audio(b"RIFF", "audio/wav"),
                link("a://b", name="b"),
                embed("a://c", "text", mime_type="text/plain"),
            ]

        @tool
        async def who(ctx: Context) -> dict[str, Any]:
            return {
                "id": ctx.request_id,
                "client": None if ctx.client_info is None else ctx.client_info.name,
                "capabilities": ctx.client_capabilities,
                "principal": ctx.principal,
            }

    def _add_streaming_tools(self) -> None:
        tool = self.server.tool

        @tool
        async def count(to: int, ctx: Context) -> str:
            for number in range(1, to + 1):
                await ctx.progress(number, to, f"step {number}")
                ctx.log("info" if number % 2 else "debug", number)
            return "counted"

        @tool
        def sync_count(to: int, ctx: Context) -> str:
            for number in range(1, to + 1):
                ctx.progress(number, to)
            return "counted"

        @tool
        async def hang(ctx: Context) -> str:
            ctx.progress(1)
            self.started.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.ended.append("cancelled")
                raise
            return "never"

        @tool
        async def fail_late(ctx: Context) -> str:
            ctx.progress(1)
            await asyncio.sleep(0)
            raise ValueError("hunter2")

        @tool
        def block(ctx: Context) -> str:
            ctx.wait(self._tell())
            if not self.release.wait(10):
                raise TimeoutError
            return "released"

    async def _tell(self) -> None:
        self.started.set()

    def _add_failing_tools(self) -> None:
        tool = self.server.tool

        @tool
        async def refuse() -> str:
            raise ToolError("Not today.")

        @tool
        async def crash() -> str:
            raise ValueError("password=hunter2")

        @tool
        async def need_sampling(ctx: Context) -> str:
            if "sampling" not in ctx.client_capabilities:
                raise Fail(Reason.MISSING_CAPABILITY, data={"requiredCapabilities": {"sampling": {}}})
            return "sampled"

    def _add_others(self) -> None:
        @self.server.resource("desk://rules", mime_type="text/markdown")
        def rules() -> str:
            return "# Rules"

        @self.server.resource("desk://note/{name}")
        async def note(name: str) -> str:
            if name == "gone":
                raise NotFound
            return f"note {name}"

        @self.server.resource("file:///{+path}")
        async def file(path: str) -> bytes:
            self.calls.append(path)
            return path.encode()

        @self.server.prompt
        def greet(who: str, tone: str = "kind") -> list[types.PromptMessage]:
            """Greet somebody."""
            return [types.user(f"Greet {who}, be {tone}."), types.assistant("Hello.")]

        @self.server.complete("greet", "who")
        def people(value: str) -> list[str]:
            return [f"{value}{number}" for number in range(150)]

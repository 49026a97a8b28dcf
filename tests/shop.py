"""A server whose sessions have a cart, and what its functions meet."""

import asyncio
import threading
from typing import Any

from msgspec import Struct

from callboard import Context, Depends, Reply, Server, ToolError, types

TOPIC = "prices"


class Cart(Struct):
    """What a session keeps."""

    count: int = 0
    items: list[str] = []


def total(cart: Cart) -> int:
    """What is in a cart, for whom it is enough to know."""
    return cart.count


class Shop:
    """The server and what its functions meet.

    Attributes:
        server: The server.
        over: Reason and last count of each session that has ended.
        ran: Names of what ran, in order.
        seen: Contexts of the calls of `who`.
        running: How many calls of `add_slowly` run now, and the most that ever did.
        stopped: Names of the calls that were cancelled.
        release: Lets `hold` go on.
    """

    def __init__(self, **options: Any) -> None:
        self.over: list[tuple[str, int]] = []
        self.ran: list[str] = []
        self.stopped: list[str] = []
        self.running = self.most = 0
        self.release = threading.Event()
        given: dict[str, Any] = {"state": Cart, "terminate": self._end, "channels": [TOPIC], **options}
        self.server = Server("shop", **given)
        self._add_state_tools()
        self._add_slow_tools()
        self._add_streaming_tools()
        self._add_plain_tools()
        self._add_others()

    def _end(self, reason: str, cart: Cart) -> None:
        self.over.append((reason, cart.count))

    def _add_state_tools(self) -> None:
        tool = self.server.tool

        @tool
        async def add(cart: Cart, amount: int = 1) -> int:
            """Put something into the cart."""
            cart.count += amount
            return cart.count

        @tool
        def add_in_a_thread(cart: Cart) -> int:
            cart.count += 1
            return cart.count

        @tool
        async def look(cart: Cart) -> int:
            return cart.count

        @tool
        async def add_and_refuse(cart: Cart) -> str:
            cart.count += 1
            raise ToolError("Out of stock.")

        @tool
        async def add_and_crash(cart: Cart) -> str:
            cart.count += 1
            raise ValueError("password=hunter2")

        @tool
        async def add_and_say_nonsense(cart: Cart) -> Any:
            cart.count += 1
            return {"text": "\ud800"}

        @tool
        async def replace(count: int, cart: Cart) -> Any:
            return Reply({"was": cart.count}, state=Cart(count))

        @tool
        async def depend(count: int = Depends(total)) -> int:
            return count

    def _add_slow_tools(self) -> None:
        tool = self.server.tool

        @tool
        async def add_slowly(seconds: float, cart: Cart, name: str = "") -> int:
            self.ran.append(name)
            self.running += 1
            self.most = max(self.most, self.running)
            try:
                await asyncio.sleep(seconds)
            except asyncio.CancelledError:
                self.stopped.append(name)
                raise
            finally:
                self.running -= 1
            cart.count += 1
            return cart.count

        @tool
        async def nap(seconds: float, name: str = "") -> str:
            self.ran.append(name)
            try:
                await asyncio.sleep(seconds)
            except asyncio.CancelledError:
                self.stopped.append(name)
                raise
            return "rested"

        @tool
        def hold(cart: Cart) -> int:
            if not self.release.wait(10):
                raise TimeoutError
            cart.count += 1
            return cart.count

        @tool(timeout=1)
        async def limited(cart: Cart) -> str:
            cart.count += 1
            await asyncio.Event().wait()
            return "never"

    def _add_streaming_tools(self) -> None:
        tool = self.server.tool

        @tool
        async def count(to: int, ctx: Context, seconds: float = 0) -> str:
            """Count, with progress and logs."""
            for number in range(1, to + 1):
                ctx.progress(number, to)
                ctx.log("info", number)
                await asyncio.sleep(seconds)
            return "counted"

        @tool
        async def report(seconds: float, ctx: Context, name: str = "report") -> str:
            """Say that it has begun, and take its time."""
            ctx.progress(1)
            try:
                await asyncio.sleep(seconds)
            except asyncio.CancelledError:
                self.stopped.append(name)
                raise
            ctx.progress(2)
            return "reported"

        @tool(snapshot=True)
        async def watch(seconds: float, cart: Cart, ctx: Context) -> int:
            """What is in the cart, after a while; what it puts in is for itself."""
            ctx.progress(1)
            seen = cart.count
            cart.count += 100
            await asyncio.sleep(seconds)
            return seen

        @tool
        async def add_aloud(cart: Cart, ctx: Context) -> int:
            """The answer streams, and the state is kept all the same."""
            cart.count += 1
            ctx.progress(1)
            await asyncio.sleep(0)
            return cart.count

        @tool
        async def levels(ctx: Context) -> str:
            for level in ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"):
                ctx.log(level, level)
            return "said"

    def _add_plain_tools(self) -> None:
        tool = self.server.tool

        @tool
        async def echo(text: str) -> str:
            self.ran.append("echo")
            return text

        @tool
        async def who(ctx: Context) -> dict[str, Any]:
            headers = ctx.headers or {}
            return {
                "session": ctx.session_id,
                "version": ctx.protocol_version,
                "client": None if ctx.client_info is None else ctx.client_info.name,
                "capabilities": ctx.client_capabilities,
                "principal": ctx.principal,
                "token": headers.get("x-token"),
                "options": ctx.options,
                "scope": (ctx.scope_state or {}).get("user"),
            }

        @tool
        async def crash() -> str:
            raise ValueError("password=hunter2")

    def _add_others(self) -> None:
        server = self.server

        @server.resource("shop://cart")
        async def cart_page(cart: Cart) -> str:
            cart.count += 1
            return str(cart.count)

        @server.resource("shop://shelf/{name}")
        async def shelf(name: str, cart: Cart) -> str:
            cart.items.append(name)
            return ",".join(cart.items)

        @server.resource("shop://prices")
        async def prices() -> str:
            return "1.50"

        @server.prompt
        async def advertise(cart: Cart, tone: str = "kind") -> list[types.PromptMessage]:
            cart.count += 1
            return [types.user(f"{tone} {cart.count}")]

        @server.complete("advertise", "tone")
        async def tones(value: str, cart: Cart) -> list[str]:
            cart.count += 1
            return [f"{value}{cart.count}"]

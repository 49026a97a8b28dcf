"""A server whose tools take their time, and clients that follow what becomes of them as tasks."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from asgi_driver import JSON, Answer, Application, Client, make_meta
from oracles import TASKS

from callboard import Context, Fail, Reason, Server, ToolError, asgi
from callboard.limits import Limits
from callboard.tasks import MemoryTasks

KNOWING: Final[JSON] = {"extensions": {TASKS: {}}, "elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}
"""Capabilities of a client that knows tasks and answers whatever it is asked."""


def principal(scope: Mapping[str, Any]) -> str | None:
    """Who asks, as the tests put it into the ASGI state."""
    found: str | None = scope["state"].get("principal")
    return found


class Errands:
    """The server, and what its functions saw.

    Args:
        limits: Of the application.
        **options: Of its `MemoryTasks`.

    Attributes:
        server: The server.
        app: It over HTTP; who asks is what the client's ASGI state says.
        seen: What the functions noted down.
        go: What `hold` waits for.
    """

    def __init__(self, limits: Limits | None = None, **options: Any) -> None:
        self.tasks = MemoryTasks(**options)
        self.server = Server("errands", tasks=self.tasks)
        self.seen: list[Any] = []
        self.go = asyncio.Event()
        self.times = 0
        self._add_plain()
        self._add_failing()
        self._add_asking()
        self.app = asgi(self.server, principal=principal, limits=limits)

    def _add_plain(self) -> None:
        tool = self.server.tool

        @tool
        async def greet(name: str = "you") -> str:
            return f"Hello, {name}!"

        @tool(task="allowed")
        async def quick() -> str:
            return "at once"

        @tool(task="allowed")
        async def walk(ctx: Context, seconds: float = 10) -> str:
            ctx.progress(1, 2, "On the way.")
            await asyncio.sleep(seconds)
            ctx.progress(2, 2, "Nearly there.")
            ctx.log("error", "not for anybody")
            await asyncio.sleep(seconds)
            return "there"

        @tool(task="always")
        async def must() -> dict[str, int]:
            return {"n": 1}

        @tool(task="allowed")
        async def hold(ctx: Context, stubborn: bool = False) -> str:
            self.seen.append(("begun", ctx.cancelled))
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.seen.append(("stopped", ctx.cancelled))
                if stubborn:
                    return "all the same"
                raise
            return "held"

    def _add_failing(self) -> None:
        tool = self.server.tool

        @tool(task="always")
        async def stumble() -> str:
            await asyncio.sleep(1)
            raise ToolError("It fell.")

        @tool(task="allowed")
        async def refuse() -> str:
            await asyncio.sleep(1)
            raise Fail(Reason.INVALID_PARAMS, "Not that way.", {"way": 1})

        @tool(task="allowed")
        async def break_down(after: float = 1) -> str:
            await asyncio.sleep(after)
            raise RuntimeError("secret")

        @tool(task="allowed")
        async def exit_process() -> str:
            await asyncio.sleep(1)
            raise SystemExit(3)

        @tool(task="allowed", timeout=5)
        async def dawdle() -> str:
            await asyncio.sleep(60)
            return "never"

    def _add_asking(self) -> None:
        tool = self.server.tool

        @tool(task="allowed")
        async def confirm(ctx: Context) -> str:
            await asyncio.sleep(1)
            return f"yes: {(await ctx.elicit('Sure?', bool, key='sure')).value}"

        @tool(task="allowed")
        async def both(ctx: Context) -> list[str]:
            await asyncio.sleep(1)
            answers = await asyncio.gather(*(ctx.elicit(f"{name}?", str, key=name) for name in ("first", "second")))
            return [answer.value for answer in answers]

        @tool(task="always")
        async def ask_first(ctx: Context) -> str:
            name = (await ctx.elicit("Who?", str, key="who")).value
            count = await ctx.once("count", self.count)
            await asyncio.sleep(1)
            other = (await ctx.elicit("And who?", str, key="other")).value
            return f"{name}, {other}, {count}"

    def count(self) -> int:
        """How often it was called."""
        self.times += 1
        return self.times


class Follower:
    """A client of the current protocol that knows tasks.

    Args:
        app: The application.
        who: Its principal.
        capabilities: What it declares.
    """

    def __init__(self, app: Application, who: str | None = None, capabilities: Mapping[str, Any] = KNOWING) -> None:
        self.http = Client(app, state={"principal": who})
        self.meta = make_meta(capabilities)

    async def call(self, tool: str, arguments: Mapping[str, Any] | None = None, **more: Any) -> Answer:
        """Call a tool; `more` goes into the params."""
        return await self.http.request("tools/call", {"name": tool, "arguments": dict(arguments or {}), **more}, meta=self.meta)

    async def begin(self, tool: str, arguments: Mapping[str, Any] | None = None, **more: Any) -> str:
        """Call a tool that answers with a task; the task's id."""
        answer = await self.call(tool, arguments, **more)
        assert answer.result["resultType"] == "task", answer.result
        task_id: str = answer.result["taskId"]
        return task_id

    async def ask(self, method: str, task_id: str, **more: Any) -> Answer:
        """Send one of the methods about tasks."""
        return await self.http.request(method, {"taskId": task_id, **more}, meta=self.meta)

    async def get(self, task_id: str) -> JSON:
        """How a task stands."""
        return (await self.ask("tasks/get", task_id)).result

    async def update(self, task_id: str, **responses: JSON) -> None:
        """Answer what a task asks."""
        answer = await self.ask("tasks/update", task_id, inputResponses=responses)
        assert answer.result.keys() == {"resultType", "_meta"}, answer.result

    async def cancel(self, task_id: str) -> None:
        """Cancel a task."""
        answer = await self.ask("tasks/cancel", task_id)
        assert answer.result.keys() == {"resultType", "_meta"}, answer.result

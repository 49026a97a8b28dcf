"""The same program on the current protocol and in a session of 2025, and what it comes to there."""

from collections.abc import Callable
from typing import Any

from asgi_driver import JSON
from legacy_driver import V11, Answer, Exchange, Legacy, Session
from rounds import EVERYTHING, Rounds
from shapes import respond

from callboard import Context, Server, asgi

Declare = Callable[[Server, list[str]], None]


def question(text: str = "Sure?") -> JSON:
    """A request by hand."""
    return {
        "method": "elicitation/create",
        "params": {"mode": "form", "message": text, "requestedSchema": {"type": "object", "properties": {}}},
    }


async def connect(server: Server, version: str = V11, **options: Any) -> Session:
    return await Legacy(asgi(server, **options), version).connect(capabilities=EVERYTHING)


async def finish(session: Session, stream: Exchange) -> Answer:
    """Answer what a call asks until it is over."""
    while not stream.ended or stream.untaken:
        try:
            message = await stream.message()
        except AssertionError:  # an answer without a stream
            break
        if "id" in message and "method" in message:
            assert (await session.respond(message, respond("", {**message, "params": {"mode": "form", **message["params"]}}))).status == 202
    return await stream.end()


async def on_both(declare: Declare, **options: Any) -> tuple[JSON, JSON, list[list[str]]]:
    """Call the tool `t` of a server on both protocols; the last messages, and what was logged."""
    logs: list[list[str]] = [[], []]
    servers = [Server("s", **options) for _ in logs]
    for server, log in zip(servers, logs, strict=True):
        declare(server, log)
    modern = await Rounds(asgi(servers[0]), respond).call("t")
    session = await connect(servers[1])
    old = await finish(session, session.start(session.make_call("t", {})))
    return modern.message, old.message, logs


async def same_text(declare: Declare, **options: Any) -> str:
    """The text that both come to."""
    modern, old, _ = await on_both(declare, **options)
    assert "result" in modern, modern
    assert modern["result"]["content"] == old["result"]["content"]
    text: str = old["result"]["content"][0]["text"]
    return text


async def same_crash(declare: Declare) -> None:
    modern, old, _ = await on_both(declare)
    assert modern["error"]["code"] == old["error"]["code"] == -32603


def add_asking_tool(server: Server, log: list[str]) -> None:
    """A tool that asks once."""

    @server.tool
    async def t(ctx: Context) -> str:
        log.append("tool")
        return (await ctx.elicit("Name?", str)).value

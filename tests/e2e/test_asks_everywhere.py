"""Write once, ask anywhere: the functions of asks_program.py give the same to every client, over every transport, in every era, as a task too.

Ours in memory, over stdio and over HTTP; PyPI's `mcp` 1.30 and 2.3 and npm's `@modelcontextprotocol/sdk` 1.32 and `client` 2.4 in each mode
they have. real_clients/setup.py installs them; where that can't be done these tests skip and say why, or fail when REQUIRE_PEERS=1 (as in CI).
"""

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import asks_program
import pytest
from e2e.real_clients.play import client_command, listening, play
from e2e.serving import free_port

from callboard import Client, types

PROGRAM = Path(asks_program.__file__)
CLIENTS = {  # an official client -> the modes it has
    "python1": ("legacy",),
    "python2": ("legacy", "modern"),
    "node1": ("legacy",),
    "node2": ("legacy", "modern"),
}
NO_TASKS = {  # client and mode -> why it can't call a tool as a task
    "python2 legacy": "it has dropped the tasks of 2025-11-25 (the first generation has them), and takes no other result of tools/call",
    "node2 legacy": "it has dropped the tasks of 2025-11-25 (the first generation has them), and takes no other result of tools/call",
    "node2 modern": "it refuses results of the type `task`, and has no way to add them",
}
SEEN = {
    "choose": "tea with 2",
    "rhyme": "fun, sun",
    "order": "entry 1 of 1: tea, sure",  # the book was written into once
    "later": "tea with 2",
    "asked": [
        "What would you like?",
        "A rhyme to fun?",
        "What would you like?",
        "Entry 1: tea. Sure?",
        "What would you like?",
    ],
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    command = ["-m", "uvicorn", "asks_program:app", "--app-dir", str(PROGRAM.parent), "--port", str(port), "--log-level", "warning"]
    with listening(command, port, tmp_path_factory.mktemp("asks") / "log"):
        yield f"http://127.0.0.1:{port}/mcp"


@cache
def look(client: str, url: str) -> dict[str, Any]:
    """What an official client saw: transport and mode -> results."""
    return play([*client_command(f"asks-{client}"), url, sys.executable, str(PROGRAM)])


@pytest.mark.parametrize(
    ("client", "way"),
    [(client, f"{way} {mode}") for client, modes in CLIENTS.items() for mode in modes for way in ("http", "stdio")],
)
def test_official_clients_see_the_same(client: str, way: str, url: str) -> None:
    """MR-17: on protocols of 2025 the same ask is a request to the client."""
    seen = look(client, url)[way]
    if (mode := f"{client} {way.split()[1]}") in NO_TASKS:
        assert seen == SEEN | {"later": None, "asked": SEEN["asked"][:-1]}, NO_TASKS[mode]
    else:
        assert seen == SEEN


@pytest.mark.parametrize("way", ["memory", "stdio", "http"])
async def test_our_client_sees_the_same(way: str, url: str) -> None:
    asked: list[str] = []

    def fill_in(form: types.ElicitRequestFormParams | types.ElicitRequestURLParams) -> dict[str, Any]:
        assert isinstance(form, types.ElicitRequestFormParams)
        asked.append(form.message)
        return {"kind": "tea", "sugar": 2} if "kind" in form.requested_schema["properties"] else {"value": True}

    async def speak(said: types.CreateMessageRequestParams) -> types.CreateMessageResult:
        (message,) = said.messages
        assert isinstance(message.content, types.TextContent)
        asked.append(message.content.text)
        return types.CreateMessageResult(role="assistant", model="poet", content=types.TextContent(text="sun"))

    async def call(name: str, **arguments: Any) -> str:
        (block,) = (await client.call_tool(name, arguments)).content
        assert isinstance(block, types.TextContent)
        return block.text

    target: Any = {"memory": asks_program.server, "stdio": [sys.executable, str(PROGRAM)], "http": url}[way]
    async with Client(target, on_elicit=fill_in, on_sample=speak, tasks=True) as client:
        seen = {
            "choose": await call("choose"),
            "rhyme": await call("rhyme", word="fun"),
            "order": await call("order", buyer=f"callboard {way}"),
            "later": await call("choose_later"),
        }
        assert seen | {"asked": asked} == SEEN
        asked.clear()
        seen = {
            "choose": await call("choose_later"),
            "rhyme": await call("rhyme_later", word="fun"),
            "order": await call("order_later", buyer=f"callboard {way}, a task"),
        }
    assert seen == {name: SEEN[name] for name in seen}, "as tasks"
    assert asked == SEEN["asked"][:-1]

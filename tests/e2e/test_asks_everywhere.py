"""Write once, ask anywhere: the functions of asks_program.py give the same to every client, over every transport, in every era, as a task too.

Here to ours, in memory, over stdio and over HTTP; interop/test_asks.py has other people's clients.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asks_program
import pytest
from asks_program import SEEN
from e2e.serving import free_port, process, wait_until_listening

from callboard import Client, types

PROGRAM = Path(asks_program.__file__)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "uvicorn",
        "asks_program:app",
        "--app-dir",
        str(PROGRAM.parent),
        "--port",
        str(port),
        "--log-level",
        "warning",
    ]
    log = tmp_path_factory.mktemp("asks") / "log"
    with process(command, log) as started:
        wait_until_listening(started, port, log)
        yield f"http://127.0.0.1:{port}/mcp"


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

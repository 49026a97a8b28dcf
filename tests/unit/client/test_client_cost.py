"""What a call costs a client, counted in Python functions entered and objects left behind, which do not vary from run to run as time does."""

import asyncio
import gc
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from callboard import Client, Server
from callboard.client import target
from callboard.client.errors import ClientError, Origin
from callboard.wire import jsonrpc

VERSIONS = ["2026-07-28", "2025-11-25"]
LIMIT = 48
"""Functions of ours that a call enters; a coroutine counts each time it is resumed."""
WARM_UP = 20
RESULT = b'{"content":[{"type":"text","text":"{\\"result\\":\\"x\\"}"}],"structuredContent":{"result":"x"},"resultType":"complete"}'
TOOLS = b'{"tools":[%s],"resultType":"complete","ttlMs":0,"cacheScope":"private"}'
TOOL = b'{"name":"t%d","inputSchema":{"type":"object"},"outputSchema":{"type":"object","properties":{"result":{"type":"string"}}}}'
WELCOME = b'{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}'


class Responder:
    """A stream of lines to nobody: each request has its answer in the next turn of the loop."""

    last_words = ""

    def __init__(self, tools: int) -> None:
        listed = TOOLS % b",".join(TOOL % number for number in range(tools))
        self._answers = {"initialize": WELCOME, "tools/list": listed, "tools/call": RESULT}

    async def open(self, origin: Origin, take: Callable[[bytes], None], end: Callable[[], None]) -> None:
        del origin, end
        self._take = take

    async def send(self, line: bytes) -> None:
        message = jsonrpc.decode(line)
        if isinstance(message, jsonrpc.RawRequest):
            answer = b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (int(message.id), self._answers[message.method])
            asyncio.get_running_loop().call_soon(self._take, answer)

    def explain(self, origin: Origin) -> ClientError:
        return ClientError("it ended", origin)

    async def aclose(self) -> None:
        pass


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """The garbage collector runs only when it is asked to: what it finds of earlier tests would enter functions too."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Client]:
    """Makes a client of nobody, who has so many tools."""

    def make(version: str, tools: int = 1) -> Client:
        monkeypatch.setattr(target, "MemoryStream", lambda *_: Responder(tools))
        return Client(Server("unused"), versions=version)

    return make


async def entered_by_a_call(client: Client) -> list[str]:
    """Our own functions that one call enters, in order."""
    await client.list_tools()
    for _ in range(WARM_UP):
        await client.call_tool("t0", {"text": "x"})
    entered: list[str] = []

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call" and "/callboard/" in frame.f_code.co_filename:
            entered.append(f"{frame.f_code.co_filename}:{frame.f_code.co_firstlineno} {frame.f_code.co_qualname}")

    sys.setprofile(note)
    try:
        await client.call_tool("t0", {"text": "x"})
    finally:
        sys.setprofile(None)
    return entered


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_call_enters_few_functions(version: str, connect: Callable[..., Client]) -> None:
    async with connect(version) as client:
        entered = await entered_by_a_call(client)
    assert len(entered) <= LIMIT, "\n".join(entered)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_call_costs_the_same_with_a_thousand_tools_more(version: str, connect: Callable[..., Client]) -> None:
    found = []
    for tools in (1, 1000):
        async with connect(version, tools) as client:
            found.append(await entered_by_a_call(client))
    assert found[0] == found[1]


async def test_a_call_costs_the_same_while_others_wait(connect: Callable[..., Client]) -> None:
    async with connect(VERSIONS[0]) as client:
        few = await entered_by_a_call(client)
        waiting = [asyncio.ensure_future(client.request("nobody/answers", timeout=1000)) for _ in range(300)]
        await asyncio.sleep(0)
        many = await entered_by_a_call(client)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
    assert many == few


@pytest.mark.parametrize("version", VERSIONS)
async def test_an_answer_is_not_read_twice_to_look_for_repeated_keys(
    version: str, connect: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text of most results holds the word "result"; of a large one a second reading is all that counts."""

    def refuse(*_: object) -> None:
        pytest.fail("the envelope of a compact answer was looked through")

    async with connect(version) as client:
        await client.list_tools()
        monkeypatch.setattr(jsonrpc, "_repeated_key", refuse)
        await client.call_tool("t0", {"text": "x"})


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("how", ["bare", "server"])
async def test_a_call_leaves_no_garbage(version: str, how: str, connect: Callable[..., Client]) -> None:
    """What needs the collector to go away piles up between its rounds."""
    server = Server("s")

    @server.tool
    async def t0(text: str) -> dict[str, str]:
        return {"result": text}

    async with connect(version) if how == "bare" else Client(server, versions=version) as client:
        await client.list_tools()
        await client.call_tool("t0", {"text": "x"})
        gc.collect()
        for _ in range(3):
            await client.call_tool("t0", {"text": "x"})
            await asyncio.sleep(0)
        assert gc.collect() == 0


@pytest.mark.parametrize("version", VERSIONS)
async def test_many_calls_arm_few_timers(version: str, connect: Callable[..., Client], monkeypatch: pytest.MonkeyPatch) -> None:
    """A timer for each request was once a third of what a call costs."""
    armed = 0
    loop = asyncio.get_running_loop()
    original = loop.call_at

    def counted(*arguments: Any, **more: Any) -> asyncio.TimerHandle:
        nonlocal armed
        armed += 1
        return original(*arguments, **more)

    async with connect(version) as client:
        monkeypatch.setattr(loop, "call_at", counted)
        for _ in range(100):
            await client.call_tool("t0")
    assert armed <= 2

"""SA38 over pipes: lines that are no messages, in both eras; the next call works, and the process is as it was."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asgi_driver import LATEST
from e2e.hostile_driver import ERAS, V03, V06, V11
from e2e.test_stdio import Child, program
from unit.transport.lines import META, text_of

MIB = 2**20
Line = tuple[bytes, int, Any]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


async def open_as(child: Child, version: str) -> Callable[..., bytes]:
    """Say hello where that is done; what makes a call."""
    if version != LATEST:
        about = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "hostile", "version": "1"}}
        await child.send(json.dumps({"jsonrpc": "2.0", "id": "hello", "method": "initialize", "params": about}).encode())
        assert (await child.answer("hello"))["result"]["protocolVersion"] == version
        await child.send(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')

    def make(request_id: Any, tool: str, **arguments: Any) -> bytes:
        params = {"name": tool, "arguments": arguments, **({"_meta": META} if version == LATEST else {})}
        return json.dumps({"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}).encode()

    return make


# Line, code, id where it can be read.
LINES: dict[str, Line] = {
    "garbage": (b"garbage", -32700, None),
    "binary": (bytes(range(1, 10)) + bytes(range(14, 256)), -32700, None),
    "truncated": (b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":', -32700, None),
    "bad UTF-8": (b'{"jsonrpc":"2.0","id":5,"method":"x","params":{"a":"\xff"}}', -32700, None),
    "NaN": (b'{"jsonrpc":"2.0","id":5,"method":"x","params":{"a":NaN}}', -32700, None),
    "deep": (b"[" * 100_000, -32700, None),
    "scalar": (b"42", -32600, None),
    "empty array": (b"[]", -32600, None),
    "no method": (b'{"jsonrpc":"2.0","id":5}', -32600, 5),
    "wrong version of JSON-RPC": (b'{"jsonrpc":"1.0","id":5,"method":"tools/list"}', -32600, 5),
    "id of null": (b'{"jsonrpc":"2.0","id":null,"method":"tools/list"}', -32600, None),
    "id of a fraction": (b'{"jsonrpc":"2.0","id":1.5,"method":"tools/list"}', -32600, None),
    "params of an array": (b'{"jsonrpc":"2.0","id":5,"method":"tools/list","params":[1]}', -32600, 5),
    "key twice": (b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"echo","name":"hold"}}', -32600, 5),
    "half of a pair": (b'{"jsonrpc":"2.0","id":5,"method":"x","params":{"a":"\\ud800"}}', -32602, 5),
    "too long": (b'{"a":"' + b"x" * (17 * MIB) + b'"}', -32600, None),
    "many values": (b'{"jsonrpc":"2.0","id":5,"method":"x","params":{"a":[' + b"[]," * 1_000_000 + b"1]}}", -32600, 5),
}


@pytest.mark.parametrize("version", ERAS)
async def test_every_line_that_is_no_message_is_answered_and_the_next_call_works(version: str, log: Path) -> None:
    # SA38, JR-09
    async with program(log) as child:
        make = await open_as(child, version)
        for what, (line, code, request_id) in LINES.items():
            await child.send(b"", b" \t ", line)
            answer = await child.receive()
            assert answer is not None, what
            assert answer["error"]["code"] == code, what
            assert answer.get("id") == request_id, what
            if request_id is None:
                assert ("id" in answer) == (version in {V03, V06}), what
            await child.send(make("next", "echo", text="on"))
            assert text_of(await child.answer("next")) == "on", what


@pytest.mark.parametrize("version", ERAS)
async def test_a_batch_is_for_the_version_that_has_it(version: str, log: Path) -> None:
    # SA38, JR-18, JR-20
    async with program(log) as child:
        make = await open_as(child, version)
        await child.send(b"[" + make("in a batch", "echo", text="x") + b"]")
        if version == V03:
            answer = json.loads(await read_line(child))
            assert [message["id"] for message in answer] == ["in a batch"]
        else:
            refused = await child.receive()
            assert refused is not None
            assert refused["error"]["code"] == -32600
        await child.send(make("next", "echo", text="on"))
        assert text_of(await child.answer("next")) == "on"


async def read_line(child: Child) -> bytes:
    """A line that is no single message."""
    assert child.process.stdout is not None
    return await child.process.stdout.readline()


@pytest.mark.parametrize("version", [LATEST, V11])
async def test_lines_of_garbage_without_end_are_answered_one_by_one(version: str, log: Path) -> None:
    # SA38: none is lost, none is kept
    async with program(log) as child:
        make = await open_as(child, version)
        for _ in range(20):
            await child.send(*[b"garbage"] * 50)
            for _ in range(50):
                answer = await child.receive()
                assert answer is not None
                assert answer["error"]["code"] == -32700
        await child.send(make("next", "echo", text="on"))
        assert text_of(await child.answer("next")) == "on"
        child.end_input()
        assert await child.exit() == 0
    assert "Traceback" not in log.read_text(errors="replace")  # noqa: ASYNC240 - a short file

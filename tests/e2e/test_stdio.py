"""stdio with real processes: descriptors, signals, exits."""

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from legacy_driver import VERSIONS
from unit.transport.lines import SUBSCRIPTION, call, cancel, listen, read, request, same, text_of
from unit.transport.old_lines import call_params, make

PROGRAM = Path(__file__).with_name("stdio_program.py")
COMMAND_LINE = [sys.executable, "-m", "callboard", "run", str(PROGRAM), "--stdio"]
LAUNCHER = f"import runpy; from callboard.transport.stdio import guard; guard(); runpy.run_path({str(PROGRAM)!r}, run_name='__main__')"
DIRECT = [sys.executable, "-c", LAUNCHER]
# As on Windows: line feeds that the program writes become CR LF.
TRANSLATING = [
    sys.executable,
    "-c",
    f"import sys; sys.stdout.reconfigure(newline='\\r\\n'); {LAUNCHER}",
]
LIMIT = 20.0  # seconds for whatever must come
EXIT = 2.0  # seconds from the end of input to the end of the process (SD-06)
MIB = 1024 * 1024
LIMIT_OF_LINE = 16 * MIB


def heard(log: Path) -> str:
    """What was written to standard error."""
    return log.read_text(encoding="utf-8")


class Child:
    """A server process, as its client sees it."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.process = process
        self.log = log
        self.messages: list[dict[str, Any]] = []

    async def send(self, *lines: bytes) -> None:
        """Write lines."""
        await self.write(b"".join(line + b"\n" for line in lines))

    async def write(self, data: bytes) -> None:
        """Write bytes."""
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        await asyncio.wait_for(self.process.stdin.drain(), LIMIT)

    async def receive(self) -> dict[str, Any] | None:
        """The next message; None at the end."""
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), LIMIT)
        if not line:
            return None
        assert line.endswith(b"\n")
        message = read(line[:-1])
        self.messages.append(message)
        return message

    async def answer(self, request_id: Any) -> dict[str, Any]:
        """Read on until the answer to a request comes."""
        while (message := await self.receive()) is not None:
            if same(message.get("id"), request_id):
                return message
        raise AssertionError(f"the server ended before it answered {request_id!r}:\n{heard(self.log)}")

    async def note(self, method: str) -> dict[str, Any]:
        """Read on until a notification comes; its params."""
        while (message := await self.receive()) is not None:
            if message.get("method") == method:
                params: dict[str, Any] = message.get("params", {})
                return params
        raise AssertionError(f"the server ended before {method}:\n{heard(self.log)}")

    async def rest(self) -> list[dict[str, Any]]:
        """All that still comes until the end."""
        rest = []
        while (message := await self.receive()) is not None:
            rest.append(message)
        return rest

    def end_input(self) -> float:
        """Close its input; when that was."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return time.monotonic()

    async def exit(self) -> int:
        """Wait for its end."""
        return await asyncio.wait_for(self.process.wait(), LIMIT)


@asynccontextmanager
async def program(log: Path, command: Sequence[str] = COMMAND_LINE) -> AsyncIterator[Child]:
    """Start the program; it is gone when the block is left."""
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, limit=64 * MIB
        )
    child = Child(process, log)
    try:
        yield child
    finally:
        child.end_input()
        if process.returncode is None:
            process.kill()
        await child.rest()
        await child.exit()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "stderr"


# ---------------------------------------------------------------------------------------------------------------------- lines


async def test_every_malformed_line_is_answered(log: Path) -> None:
    """A37, SA38: also one over the limit, which is not waited for; the next call works."""
    cases = [
        (b'{"id":6,"method":"tools/list"}', -32600, 6),
        (b"garbage", -32700, None),
        (b'{"jsonrpc":"2.0","id":1,', -32700, None),
        (b'{"jsonrpc":"2.0","id":1,"method":"\xff"}', -32700, None),
        (b"[" + call(1, "echo", text="x") + b"]", -32600, None),
        (b'"' + b"x" * LIMIT_OF_LINE + b'"', -32600, None),
    ]
    async with program(log) as child:
        for line, code, request_id in cases:
            await child.send(b"", b"  ", line)
            answer = await child.receive()
            assert answer is not None
            assert answer["error"]["code"] == code
            assert answer.get("id") == request_id
        await child.send(call(9, "echo", text="on"))
        assert text_of(await child.answer(9)) == "on"


async def test_lines_end_with_a_line_feed_and_may_come_with_a_carriage_return(log: Path) -> None:
    """A36, SD-01."""
    async with program(log) as child:
        await child.write(call(1, "echo", text="a\r\nb") + b"\r\n\r\n" + request(2, "tools/list") + b"\r\n")
        assert text_of(await child.answer(1)) == "a\r\nb"
        assert len((await child.answer(2))["result"]["tools"]) > 5


async def test_what_the_streams_do_to_line_ends_does_not_reach_the_protocol(log: Path) -> None:
    """A36: `read` demands of every line that no carriage return is in it."""
    async with program(log, TRANSLATING) as child:
        await child.write(call(1, "echo", text="a\nb\r\nc") + b"\r\n" + call(2, "progress", token="p", steps=2, length=5) + b"\n")
        assert text_of(await child.answer(1)) == "a\nb\r\nc"
        assert text_of(await child.answer(2)) == "xxxxx"
    assert b"import-time print\r\n" in log.read_bytes(), "they do translate"  # noqa: ASYNC240 - a short file


@pytest.mark.parametrize("command", [COMMAND_LINE, DIRECT], ids=["command line", "script"])
async def test_only_messages_reach_standard_output(log: Path, command: list[str]) -> None:
    """A38, SD-02: prints, logs, raw writes and children go to standard error; children can't read the protocol either."""
    async with program(log, command) as child:
        await child.send(call(1, "pollute"), call(2, "echo", text="on"))
        assert text_of(await child.answer(1)) == "cat read 0 bytes"
        child.end_input()
        assert {message["id"] for message in [*child.messages, *await child.rest()]} == {1, 2}
        assert await child.exit() == 0
    said = heard(log)
    for text in ("import-time print", "import-time write", "print", "buffer", "os.write", "WARNING:user:log", "child", "lifespan out"):
        assert f"{text}\n" in said


# ------------------------------------------------------------------------------------------------------------------- requests


async def test_a_thousand_requests_may_be_written_at_once(log: Path) -> None:
    async with program(log) as child:
        writing = asyncio.create_task(child.send(*(call(number, "echo", text=str(number)) for number in range(1000))))
        for _ in range(1000):
            await child.receive()
        await writing
        assert {message["id"]: text_of(message) for message in child.messages} == {number: str(number) for number in range(1000)}


async def test_five_mebibytes_pass_both_ways(log: Path) -> None:
    async with program(log) as child:
        writing = asyncio.create_task(child.send(call(1, "echo", text="x" * 5 * MIB)))
        assert len(text_of(await child.answer(1))) == 5 * MIB
        await writing


async def test_a_large_result_after_progress_arrives(log: Path) -> None:
    """A14."""
    async with program(log) as child:
        await child.send(call(1, "progress", token="p", steps=3, length=2 * MIB))
        assert len(text_of(await child.answer(1))) == 2 * MIB
        assert [message["params"]["progress"] for message in child.messages[:-1]] == [1, 2, 3]


async def test_a_slow_request_holds_nobody_up(log: Path) -> None:
    """A20: neither one that waits nor one that blocks a thread."""
    async with program(log) as child:
        await child.send(call(1, "hold"), call(2, "block", token="b"))
        await child.note("notifications/progress")
        await child.send(call(3, "echo", text="fast"))
        assert text_of(await child.answer(3)) == "fast"
        assert [message.get("id") for message in child.messages] == [None, 3]


async def test_a_cancelled_request_is_stopped(log: Path) -> None:
    """SD-05, CN-04."""
    async with program(log) as child:
        await child.send(call(1, "hold"), call(2, "wait_for_start"))
        await child.answer(2)
        await child.send(cancel("1"), cancel(1), call(3, "wait_for_cancel"))
        assert text_of(await child.answer(3)) == "hold"
        child.end_input()
        await child.rest()
        assert [message["id"] for message in child.messages] == [2, 3]


async def test_cancelling_at_any_moment_does_no_harm(log: Path) -> None:
    """A11: 500 calls, each cancelled 0 to 2 ms after it was made."""
    dice = random.Random(11)
    async with program(log) as child:

        async def calls() -> None:
            for number in range(500):
                await child.send(call(number, "nap", milliseconds=dice.random() * 2))
                await asyncio.sleep(dice.random() * 0.002)
                await child.send(cancel(number))
            await child.send(call("alive", "echo", text="yes"))

        calling = asyncio.create_task(calls())
        assert text_of(await child.answer("alive")) == "yes"
        await calling
        child.end_input()
        await child.rest()
        ids = [message["id"] for message in child.messages]
        assert len(ids) == len(set(ids))
        assert await child.exit() == 0


async def test_a_listen_stream_hears_of_changes_and_ends_in_good_order(log: Path) -> None:
    """SB-03, SB-05, SB-09, CN-03."""
    async with program(log) as child:
        await child.send(listen("s", toolsListChanged=True))
        granted = await child.note("notifications/subscriptions/acknowledged")
        assert granted["notifications"] == {"toolsListChanged": True}
        await child.send(call(1, "change"))
        changed = await child.note("notifications/tools/list_changed")
        assert changed["_meta"] == {SUBSCRIPTION: "s"}
        child.end_input()
        result, notice = [message for message in await child.rest() if message.get("id") != 1]
        assert (result["id"], result["result"]["resultType"]) == ("s", "complete")
        assert notice["method"] == "notifications/cancelled"
        assert await child.exit() == 0


# --------------------------------------------------------------------------------------------------------- clients of 2025


def opening(version: str = "2025-11-25") -> list[bytes]:
    """The lines that open a session; the answer has the id 0."""
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "tester", "version": "1"}}
    return [encode(make("initialize", params, 0)), encode({"jsonrpc": "2.0", "method": "notifications/initialized"})]


def visit(request_id: int, **arguments: Any) -> bytes:
    """A call that takes its session's state."""
    return encode(make("tools/call", call_params("visit", arguments), request_id))


def encode(message: Any) -> bytes:
    """A message as a line, without its end."""
    return json.dumps(message).encode()


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_session_has_its_state_until_the_end_of_input(log: Path, version: str) -> None:
    """VN-07, VN-08, A37: with a line that is no message, and one of the current protocol between; what runs at the end counts."""
    async with program(log) as child:
        await child.send(*opening(version), visit(1), b"garbage", visit(2), request(3, "server/discover"))
        assert (await child.answer(0))["result"]["protocolVersion"] == version
        answers = [await child.receive() or {} for _ in range(4)]
        assert {text_of(answer) for answer in answers if answer.get("id") in {1, 2}} == {"1", "2"}
        assert [answer["error"]["code"] for answer in answers if answer.get("id") is None] == [-32700]
        assert ["supportedVersions" in answer["result"] for answer in answers if answer.get("id") == 3] == [True]
        await child.send(visit(4, milliseconds=200))
        child.end_input()
        assert text_of((await child.rest())[-1]) == "3"
        assert await child.exit() == 0
    assert heard(log).count("session closed after 3 visits") == heard(log).count("session ") == 1


async def test_a_whole_session_may_be_written_at_once(log: Path) -> None:
    """`printf ... | server`."""
    async with program(log) as child:
        await child.send(*opening(), *map(visit, range(1, 100)))
        child.end_input()
        answers = await child.rest()
        assert [message["id"] for message in answers] == list(range(100))
        assert text_of(answers[-1]) == "99"
        assert await child.exit() == 0
    assert "session closed after 99 visits" in heard(log)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_a_session_in_good_order(log: Path, number: signal.Signals) -> None:
    """A40, LC-12: what runs may finish, and its state is there at the end."""
    async with program(log) as child:
        await child.send(*opening(), visit(1), visit(2, milliseconds=200))
        assert text_of(await child.answer(1)) == "1"
        child.process.send_signal(number)
        assert [text_of(message) for message in await child.rest()] == ["2"]
        assert await child.exit() == 0
    said = heard(log)
    assert said.count("session shutdown after 2 visits") == said.count("session ") == 1
    assert said.index("session shutdown") < said.index("lifespan out")


@pytest.mark.parametrize("tool", ["block", "block_on_a_foreign_thread", "refuse_to_end"])
async def test_nothing_in_a_session_keeps_the_process_after_the_end_of_input(log: Path, tool: str) -> None:
    """SD-06."""
    async with program(log, DIRECT) as child:
        await child.send(*opening(), visit(1), encode(make("tools/call", call_params(tool, {}, "t"), 2)))
        while (message := await child.receive()) is not None and message.get("method") != "notifications/progress":
            pass
        ended = child.end_input()
        assert await child.exit() == 0
        assert time.monotonic() - ended < EXIT
    assert "1 requests in flight" in heard(log)
    assert "session closed after 1 visits" in heard(log)


# ------------------------------------------------------------------------------------------------------------------- the end


async def test_requests_before_the_end_of_input_are_answered(log: Path) -> None:
    """`printf ... | server`: the last line may even lack its end."""
    async with program(log) as child:
        await child.write(call(1, "nap", milliseconds=100) + b"\n" + call(2, "echo", text="x"))
        child.end_input()
        assert {message["id"] for message in await child.rest()} == {1, 2}
        assert await child.exit() == 0
    assert "lifespan out\n" in heard(log)


@pytest.mark.parametrize("tool", ["block", "block_on_a_foreign_thread", "refuse_to_end"])
async def test_nothing_keeps_the_process_after_the_end_of_input(log: Path, tool: str) -> None:
    """SD-06."""
    async with program(log, DIRECT) as child:
        await child.send(call(1, tool, token="t"))
        while (message := await child.receive()) is not None and message.get("method") != "notifications/progress":
            pass
        ended = child.end_input()
        assert await child.exit() == 0
        assert time.monotonic() - ended < EXIT
    assert "1 requests in flight" in heard(log)


async def test_an_idle_process_ends_at_once(log: Path) -> None:
    async with program(log) as child:
        await child.send(call(1, "echo", text="x"), listen(2, toolsListChanged=True))
        await child.note("notifications/subscriptions/acknowledged")
        ended = child.end_input()
        assert await child.exit() == 0
        assert time.monotonic() - ended < 1.0


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_in_good_order(log: Path, number: signal.Signals) -> None:
    """A40: what runs may finish, listen streams get their result, the lifespan ends, the status is 0."""
    async with program(log) as child:
        await child.send(call(1, "nap", milliseconds=200), listen(2, toolsListChanged=True))
        await child.note("notifications/subscriptions/acknowledged")
        child.process.send_signal(number)
        rest = await child.rest()
        assert [message.get("id") for message in rest] == [1, 2, None]
        assert await child.exit() == 0
    said = heard(log)
    assert "lifespan out\n" in said
    assert "Traceback" not in said


async def test_a_client_that_reads_no_more_is_gone(log: Path) -> None:
    """A broken pipe is an end like any other."""
    reading, writing = os.pipe()
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(*COMMAND_LINE, stdin=subprocess.PIPE, stdout=writing, stderr=stderr)
    os.close(writing)
    os.close(reading)
    assert process.stdin is not None
    process.stdin.write(call(1, "echo", text="x") + b"\n")
    assert await asyncio.wait_for(process.wait(), LIMIT) == 0
    process.stdin.close()
    said = heard(log)
    assert "lifespan out\n" in said
    assert "Traceback" not in said


async def test_a_lifespan_that_fails_is_told_on_standard_error(log: Path) -> None:
    async with program(log, [*DIRECT, "broken"]) as child:
        assert [message for message in child.messages + await child.rest() if message] == []
        assert await child.exit() == 1
    assert "OSError: no database" in heard(log)


@pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell")
@pytest.mark.parametrize("closed", ["<&-", ">&-"])
async def test_without_standard_streams_it_says_what_is_missing(log: Path, closed: str) -> None:
    async with program(log, ["sh", "-c", f'exec "$@" {closed}', "sh", *DIRECT]) as child:
        assert await child.exit() == 1
    assert "needs standard input and standard output" in heard(log)


@pytest.mark.skipif(sys.platform == "win32", reason="kill -9")
async def test_a_server_does_not_outlive_its_client(log: Path, tmp_path: Path) -> None:
    """A35: kill -9 the client with a call in flight. A pipe that only the server still holds tells when it has ended."""
    life, held = os.pipe()
    os.set_inheritable(held, True)
    client = tmp_path / "client.py"
    client.write_text(
        "import subprocess, sys\n"
        "server = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False)\n"
        f"server.stdin.write({call(1, 'block', token='t')!r} + b'\\n')\n"
        "server.stdin.flush()\n"
        "sys.stdout.buffer.write(server.stdout.readline())\n"
        "sys.stdout.flush()\n"
        "server.wait()\n"
    )
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(client), *COMMAND_LINE, stdout=subprocess.PIPE, stderr=stderr, close_fds=False
        )
    os.close(held)
    assert process.stdout is not None
    first = json.loads(await asyncio.wait_for(process.stdout.readline(), LIMIT))
    assert first["method"] == "notifications/progress"
    process.kill()
    killed = time.monotonic()
    ended = await asyncio.wait_for(asyncio.to_thread(os.read, life, 1), LIMIT)
    assert ended == b""
    assert time.monotonic() - killed < EXIT
    os.close(life)
    await process.wait()


# ---------------------------------------------------------------------------------------------------- other kinds of descriptors


async def test_files_will_do(log: Path, tmp_path: Path) -> None:
    """`server < requests > answers`."""
    requests, answers = tmp_path / "requests", tmp_path / "answers"
    requests.write_bytes(b"\n".join(call(number, "large", length=100_000) for number in range(50)))
    with requests.open("rb") as stdin, answers.open("wb") as stdout, log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(*COMMAND_LINE, stdin=stdin, stdout=stdout, stderr=stderr)
        assert await asyncio.wait_for(process.wait(), LIMIT) == 0
    assert [read(line)["id"] for line in answers.read_bytes().splitlines()] == list(range(50))


async def test_a_socket_will_do(log: Path) -> None:
    """Node hands its children sockets."""
    ours, theirs = socket.socketpair()
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(*COMMAND_LINE, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=stderr)
    theirs.close()
    reader, writer = await asyncio.open_connection(sock=ours, limit=64 * MIB)
    writer.write(call(1, "echo", text="x" * 5 * MIB) + b"\n")
    answer = read((await asyncio.wait_for(reader.readline(), LIMIT))[:-1])
    assert len(text_of(answer)) == 5 * MIB
    writer.write_eof()
    assert await asyncio.wait_for(reader.read(), LIMIT) == b""
    writer.close()
    await writer.wait_closed()
    assert await asyncio.wait_for(process.wait(), LIMIT) == 0

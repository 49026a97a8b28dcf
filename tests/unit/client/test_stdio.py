"""The client over pipes, against scripts that are nobody's framework."""

import asyncio
import json
import logging
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from unit.client.line_inbox import LineInbox
from unit.client.peers import SCRIPT, script
from unit.client.wire_peer import Inbox

from callboard import types
from callboard.client import stdio
from callboard.client.client import Client
from callboard.client.errors import ClientError, ConnectionFailed, InvalidAnswer, Origin, ProcessExited, RequestTimeout, ServerError
from callboard.client.line import LineConnection
from callboard.client.stdio import ChildStream

ECHO = 'text(message, json.dumps(params.get("arguments")))'


def words(found: types.CallToolResult) -> str:
    (block,) = found.content
    assert isinstance(block, types.TextContent)
    return block.text


def alive(pid: int) -> bool:
    """Whether a process runs. A zombie does not; that none of ours is left is for `reaped` to say."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not (stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z")


async def until_dead(pid: int) -> None:
    async with asyncio.timeout(5):
        while alive(pid):  # noqa: ASYNC110 - the death of a stranger has no event
            await asyncio.sleep(0.01)


def reaped(pid: int) -> bool:
    """Whether a process is no child of ours any more, not even a dead one."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return True
    return False


PID = 'note("progress", progressToken=params["_meta"]["progressToken"], progress=os.getpid())\n'


class Pid:
    """Takes the pid that `PID` sends as progress."""

    def __call__(self, pid: float, *_: object) -> None:
        self.value = int(pid)

    def kill(self) -> None:
        os.kill(self.value, signal.SIGKILL)


async def test_a_call_and_its_progress() -> None:
    body = """
token = params["_meta"]["progressToken"]
note("progress", progressToken=token, progress=1, total=2, message="half")
note("progress", progressToken="someone else's", progress=9)
text(message, "done")
"""
    steps: list[Any] = []
    async with Client(script(body)) as client:
        assert words(await client.call_tool("t", on_progress=lambda *step: steps.append(step))) == "done"
    assert steps == [(1, 2, "half")]


async def test_text_of_every_kind_comes_back_as_it_was() -> None:
    value = {"text": 'é\n\r\t"\\\u2028\u0000🎭', "n": 2**53, "big": "x" * 300_000}
    async with Client(script(ECHO)) as client:
        assert json.loads(words(await client.call_tool("t", value))) == value


async def test_answers_find_their_requests_in_any_order() -> None:
    """SA36, JR-23: also an answer that comes twice, one to nobody, and one after the timeout."""
    body = """
held = globals().setdefault("held", [])
held.append(message)
if len(held) == 3:
    for each in reversed(held):
        text(each, each["params"]["name"])
        text(each, "again")
    send(id=999, result={"resultType": "complete", "content": []})
    send(id="1", result={"resultType": "complete", "content": []})
"""
    async with Client(script(body), timeout=5) as client:
        found = await asyncio.gather(*(client.call_tool(name) for name in "abc"))
    assert [words(each) for each in found] == ["a", "b", "c"]


async def test_noise_on_stdout_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    """JR-06: a request of the server's is not answered."""
    body = """
print("Listening...")
print()
print('{"jsonrpc": "2.0", "id": 1, "method": "ping"}')
print("[]", flush=True)
text(message, "done")
"""
    with caplog.at_level(logging.WARNING, "callboard.client"):
        async with Client(script(body)) as client:
            assert words(await client.call_tool("t")) == "done"
            assert words(await client.call_tool("t")) == "done"
    assert "Listening..." in caplog.text


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"\\ud800"}]}}', "surrogate"),
        ('{"jsonrpc":"2.0","id":%d,"result":{"content":[],"structuredContent":NaN}}', "not valid JSON"),
        ('{"jsonrpc": "2.0", "id": %d, "result": {"content": [' + "[" * 200 + "]" * 200 + "]}}", "deeper than 128"),
        ('{"jsonrpc":"2.0","result":{"content":[]},"id":%d,"result":{"content":[]}}', "twice"),
        ('{"jsonrpc":"2.0","id":%d,"result":{},"error":{}}', "no method"),
    ],
)
async def test_an_answer_that_can_t_be_read_ends_its_call_at_once(line: str, fault: str) -> None:
    """A41, SA36: the limit is 30 s, so a hang would show; the call beside it goes on."""
    body = f"""
if method == "notifications/cancelled":
    continue
if params["name"] == "good":
    good = message
else:
    print({line!r} % message["id"], flush=True)
    text(good, "fine")
"""
    async with Client(script(body)) as client, asyncio.timeout(5):
        good = asyncio.create_task(client.call_tool("good"))
        await asyncio.sleep(0)
        with pytest.raises(InvalidAnswer, match=f"(?i)can't be read: .*{fault}"):
            await client.call_tool("bad")
        assert words(await good) == "fine"


async def test_a_log_line_that_has_an_id_is_no_answer() -> None:
    body = 'print(json.dumps({"id": message["id"], "level": "info", "result": "?"}), flush=True); text(message, "done")'
    async with Client(script(body)) as client:
        assert words(await client.call_tool("t")) == "done"


async def test_a_flood_of_noise_holds_up_nobody_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    flood = """
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0))).start()
while True: sys.stdout.write("y\\n" * 100_000)
"""
    with caplog.at_level(logging.WARNING, "callboard.client"):
        async with Client(script(flood, before="import threading\n")) as client, asyncio.timeout(2):
            with pytest.raises(RequestTimeout):
                await client.call_tool("t", timeout=0.3)
    first, count = caplog.messages
    assert first.endswith("b'y'")
    assert re.fullmatch(r"ignored \d{3,} lines in all .*", count)


async def test_others_get_their_turn_while_a_server_chatters() -> None:
    taken = 0

    def take(line: bytes) -> None:
        nonlocal taken
        assert line == b"chatter"
        taken += 1

    stream = ChildStream([sys.executable, "-c", "while True: print('chatter' + '\\nchatter' * 999)"], max_message=1000)
    await stream.open(Origin("test"), take, lambda: None)
    turns = 0
    async with asyncio.timeout(10):
        while taken < 100_000:
            await asyncio.sleep(0)
            turns += 1
    await stream.aclose()
    assert turns > 10


async def test_what_a_child_wrote_before_it_ended_is_read_however_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "BURST", 2)
    monkeypatch.setattr(stdio, "DRAIN", 0)
    program = "import sys; print('line\\n' * 100, flush=True); sys.stdin.readline(); print('last', flush=True)"
    child = ChildStream([sys.executable, "-c", program], max_message=1000)
    stream = LineInbox(child)
    async with asyncio.timeout(5):
        await stream.open(Origin("test"))
        assert await stream.receive() == b"line"
        while child._stdout().is_reading():  # noqa: ASYNC110 - until more lines have come; then the child has to wait: memory is bounded
            await asyncio.sleep(0.01)
        await stream.send(b"go on")
        found = [await stream.receive() for _ in range(100)]
        assert found == [b"line"] * 99 + [b"last"]
        with pytest.raises(EOFError):
            await stream.receive()
    await stream.aclose()
    assert stream.ends == 1


async def test_what_came_before_a_line_past_the_limit_still_counts() -> None:
    program = "import sys; sys.stdout.write('one\\ntwo\\n' + 'x' * 2000); sys.stdout.flush(); sys.stdin.read()"
    stream = LineInbox(ChildStream([sys.executable, "-c", program], max_message=1000))
    await stream.open(Origin("test"))
    assert [await stream.receive(), await stream.receive()] == [b"one", b"two"]
    with pytest.raises(EOFError):
        await stream.receive()
    assert "max_message=" in str(stream.explain(Origin("test")))
    await stream.aclose()


async def test_nothing_is_heard_of_a_child_after_its_end() -> None:
    """What it has left behind may write for as long as it likes."""
    program = "import subprocess, sys; subprocess.Popen(['sh', '-c', 'sleep 0.4; echo late']); print('early', flush=True)"
    stream = LineInbox(ChildStream([sys.executable, "-c", program], max_message=1000))
    await stream.open(Origin("test"))
    assert await stream.receive() == b"early"
    with pytest.raises(EOFError):
        await stream.receive()
    await asyncio.sleep(0.4)
    with pytest.raises(EOFError):
        await stream.receive()
    await stream.aclose()


async def test_a_child_that_speaks_no_mcp_is_quoted_when_the_connect_times_out() -> None:
    with pytest.raises(RequestTimeout, match=r"(?s)within 0\.5 s.*serve MCP on stdin and stdout\?.*Uvicorn running") as caught:
        async with Client(["sh", "-c", "echo Uvicorn running >&2; cat > /dev/null"], connect_timeout=0.5):
            pytest.fail("it does not answer")
    assert caught.value.method == "initialize"  # VN-15: after server/discover was not answered


async def test_what_a_child_writes_to_stderr_can_be_read() -> None:  # SD-03
    body = 'print("a step", file=sys.stderr, flush=True); text(message, "done")'
    async with Client(script(body)) as client:
        await client.call_tool("t")
    assert client.stderr == "a step\n"


async def test_lines_may_end_in_crlf() -> None:
    body = 'sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {"content": []}}) + "\\r\\n"); sys.stdout.flush()'
    async with Client(script(body)) as client:
        assert (await client.call_tool("t")).content == []


async def test_an_error_without_id_is_for_the_only_request_that_waits() -> None:
    body = 'send(error={"code": -32700, "message": "could not read that"})'
    async with Client(script(body)) as client:
        with pytest.raises(ServerError, match="could not read that") as caught:
            await client.call_tool("t")
    assert caught.value.status is None


async def test_a_child_gets_its_environment_and_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOARD_OLD", "inherited")
    monkeypatch.setenv("BOARD_KEY", "inherited")
    body = 'text(message, json.dumps([os.path.basename(os.getcwd()), os.environ.get("BOARD_OLD"), os.environ.get("BOARD_KEY")]))'
    async with Client(script(body), env={"BOARD_KEY": "é given"}, cwd=tmp_path) as client:
        assert json.loads(words(await client.call_tool("t"))) == [tmp_path.name, "inherited", "é given"]


async def test_a_file_is_found_from_here_wherever_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "app.py").write_text(
        "import os\nfrom callboard import Server\nserver = Server('s')\n@server.tool\ndef where() -> str:\n    return os.getcwd()\n"
    )
    monkeypatch.chdir(tmp_path)
    async with Client("app.py", cwd="elsewhere") as client:
        assert words(await client.call_tool("where")).endswith(f"{tmp_path.name}/elsewhere")


# Cancelling.


@pytest.mark.parametrize("how", ["cancel", "time out"])
async def test_cancelling_tells_the_server(how: str) -> None:
    """CN-01, CN-02, SD-05, A12; CN-05: the late answer harms nobody."""
    body = """
if method == "notifications/cancelled":
    cancelled = params["requestId"]
elif params["name"] == "slow":
    slow = message
    note("progress", progressToken=params["_meta"]["progressToken"], progress=1)
else:
    text(slow, "late")
    text(message, str(cancelled == slow["id"]))
"""
    begun = asyncio.Event()
    async with Client(script(body)) as client, asyncio.timeout(5):
        call = client.call_tool("slow", on_progress=lambda *_: begun.set(), timeout=0.5 if how == "time out" else None)
        task = asyncio.create_task(call)
        await begun.wait()
        if how == "cancel":
            task.cancel()
        with pytest.raises((asyncio.CancelledError, RequestTimeout)):
            await task
        assert words(await client.call_tool("probe")) == "True"


# The end of a child.


async def test_a_child_that_dies_is_named_with_its_last_words() -> None:
    """A39: at once, though the limit is 30 s; the calls beside it fail as well, and so do later ones."""
    body = 'print("the database is on fire", file=sys.stderr, flush=True); os._exit(3)'
    async with Client(script(body)) as client, asyncio.timeout(1):
        for caught in await asyncio.gather(*(client.call_tool("t") for _ in range(3)), return_exceptions=True):
            assert isinstance(caught, ProcessExited)
            assert caught.returncode == 3
            assert "exit code 3" in str(caught)
            assert "the database is on fire" in caught.stderr
            assert caught.method == "tools/call"
        with pytest.raises(ProcessExited):
            await client.call_tool("t")


async def test_a_child_that_is_killed_is_named_by_its_signal() -> None:
    async with Client(script("os.kill(os.getpid(), signal.SIGKILL)")) as client:
        with pytest.raises(ProcessExited, match="SIGKILL") as caught:
            await client.call_tool("t")
    assert caught.value.returncode == -signal.SIGKILL


async def test_a_child_that_can_t_start_fails_the_connect() -> None:
    with pytest.raises(ConnectionFailed, match="no-such-program"):
        async with Client(["no-such-program", "--stdio"]):
            pytest.fail("it can't start")
    with pytest.raises(ConnectionFailed, match="denied"):
        async with Client(["/etc/passwd"]):
            pytest.fail("it can't start")


async def test_a_child_that_dies_on_import_fails_the_connect_with_its_traceback() -> None:
    with pytest.raises(ProcessExited, match="ModuleNotFoundError") as caught:
        async with Client([sys.executable, "-c", "import no_such_module"]):
            pytest.fail("it died")
    assert caught.value.returncode == 1


async def test_only_the_tail_of_stderr_is_kept() -> None:
    body = 'sys.stderr.write("a" * 100_000 + "the end"); sys.stderr.flush(); os._exit(1)'
    async with Client(script(body)) as client:
        with pytest.raises(ProcessExited) as caught:
            await client.call_tool("t")
    assert caught.value.stderr.endswith("the end")
    assert len(caught.value.stderr) == 8192


async def test_a_server_of_another_protocol_is_refused_on_connect() -> None:
    """VN-15."""
    refuse = 'send(id=json.loads(line)["id"], error={"code": -32602, "message": "initialize first"})'
    old = SCRIPT.split("for line")[0] + f"for line in sys.stdin: {refuse}"
    with pytest.raises(ConnectionFailed, match=r"2026-07-28.*initialize first"):
        async with Client([sys.executable, "-c", old]):
            pytest.fail("it speaks another protocol")


@pytest.mark.parametrize("pipe", ["1", "0"])
async def test_a_child_that_closes_a_pipe_and_lives_on_is_an_error(pipe: str) -> None:
    pid = Pid()
    body = f"{PID}os.close({pipe})\ntime.sleep(60)"
    async with Client(script(body)) as client, asyncio.timeout(5):
        with pytest.raises(ConnectionFailed, match="closed its pipes"):
            await asyncio.gather(client.call_tool("t", on_progress=pid), client.call_tool("t", {"x": "y" * 200_000}))
        pid.kill()  # or closing would wait for it


async def test_a_grandchild_that_holds_the_pipes_can_t_keep_a_call_waiting() -> None:
    body = PID.replace("os.getpid()", "subprocess.Popen(['sleep', '60']).pid") + "os._exit(4)"
    pid = Pid()
    async with Client(script(body, before="import subprocess\n")) as client, asyncio.timeout(1):
        with pytest.raises(ProcessExited, match="exit code 4"):
            await client.call_tool("t", on_progress=pid)
        assert alive(pid.value)
    await until_dead(pid.value)


async def test_a_line_past_the_limit_is_an_error_that_names_it() -> None:
    async with Client(script('text(message, "x" * 200_000)'), max_message=100_000) as client, asyncio.timeout(5):
        with pytest.raises(InvalidAnswer, match=r"100000 bytes.*max_message"):
            await client.call_tool("t")


async def test_a_child_that_does_not_read_can_t_hang_the_client() -> None:
    pid = Pid()
    async with Client(script(PID + "time.sleep(60)")) as client, asyncio.timeout(5):
        for _ in range(2):
            with pytest.raises(RequestTimeout):
                await client.call_tool("t", {"x": "y" * 2**20}, timeout=0.2, on_progress=pid)
        pid.kill()


# Closing.


async def test_a_child_that_heeds_the_end_of_its_input_is_not_signalled(tmp_path: Path) -> None:
    """SD-06, SD-07."""
    mark = tmp_path / "clean"
    code = f"import sys; sys.stdin.read(); open({str(mark)!r}, 'w').close()"
    connection = LineConnection(lambda: ChildStream([sys.executable, "-c", code], max_message=1000, grace=5))
    await connection.open(Origin("test"), Inbox())
    await connection.close()
    assert mark.exists()
    await connection.close()


@pytest.mark.parametrize("ignore", ["", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "])
async def test_a_stubborn_child_is_gone_in_bounded_time_with_all_it_started(ignore: str) -> None:
    """SD-07: end of input, SIGTERM, SIGKILL; the whole process group; no zombie."""
    code = (
        f"{ignore}import os, subprocess, sys, time; print(os.getpid(), subprocess.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)"
    )
    stream = LineInbox(ChildStream([sys.executable, "-c", code], max_message=1000, grace=0.1))
    await stream.open(Origin("test"))
    pids = [int(word) for word in (await stream.receive()).split()]
    async with asyncio.timeout(1):
        await stream.aclose()
    assert reaped(pids[0])
    for pid in pids:
        await until_dead(pid)


async def test_closing_that_is_cancelled_still_kills() -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    stream = LineInbox(ChildStream([sys.executable, "-c", code], max_message=1000, grace=30))
    await stream.open(Origin("test"))
    pid = int(await stream.receive())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await stream.aclose()
    await until_dead(pid)


async def test_another_task_may_close_and_what_waits_fails() -> None:
    begun = asyncio.Event()
    body = 'note("progress", progressToken=params["_meta"]["progressToken"], progress=1)'
    async with Client(script(body)) as client, asyncio.timeout(5):
        waiting = asyncio.create_task(client.call_tool("t", on_progress=lambda *_: begun.set()))
        await begun.wait()
        await asyncio.create_task(client.close())
        with pytest.raises(ConnectionFailed, match="client was closed"):
            await waiting
        with pytest.raises(ClientError, match="not open"):
            await client.discover()


# Subscriptions: several on one pipe, told apart by id.

LISTEN = """
if method == "subscriptions/listen":
    meta = {"io.modelcontextprotocol/subscriptionId": message["id"]}
    note("subscriptions/acknowledged", notifications=params["notifications"], _meta=meta)
    globals().setdefault("open_streams", []).append(message["id"])
elif method == "notifications/cancelled":
    open_streams.remove(params["requestId"])
elif params["name"] == "publish":
    for each in open_streams:
        note("resources/updated", uri="a://%d" % each, _meta={"io.modelcontextprotocol/subscriptionId": each})
    note("resources/updated", uri="a://nobody", _meta={"io.modelcontextprotocol/subscriptionId": 999})
    text(message, str(len(open_streams)))
elif params["name"] == "end":
    first, second = open_streams
    note("cancelled", requestId=first)
    send(id=second, result={"resultType": "complete", "_meta": {"io.modelcontextprotocol/subscriptionId": second}})
    text(message, "ended")
"""


def uri(change: Any) -> str:
    assert change.params is not None
    return str(change.params.uri)


async def test_subscriptions_on_one_pipe_are_told_apart() -> None:
    """SD-04."""
    async with Client(script(LISTEN)) as client, asyncio.timeout(5):
        async with client.listen(uris=["a://2"]) as one, client.listen(uris=["a://3"]) as two:
            assert words(await client.call_tool("publish")) == "2"
            assert (uri(await anext(one)), uri(await anext(two))) == ("a://2", "a://3")
        # SB-08: leaving sends the cancellation.
        assert words(await client.call_tool("publish")) == "0"


async def test_a_server_ends_a_subscription_by_either_message() -> None:
    """CN-03, SB-09: a client takes each."""
    async with Client(script(LISTEN)) as client, asyncio.timeout(5), client.listen(tools=True) as one, client.listen(tools=True) as two:
        await client.call_tool("end")
        assert [change async for change in one] == []
        assert [change async for change in two] == []


async def test_a_log_message_reaches_the_client_s_callback() -> None:
    logs: list[types.LoggingMessageNotificationParams] = []
    body = 'note("message", level="info", data="hello"); text(message, "done")'
    async with Client(script(body), on_log=logs.append) as client:
        await client.call_tool("t")
    assert [log.data for log in logs] == ["hello"]

"""Closing a client, whichever task does it and whatever goes on meanwhile: it is bounded, and nothing is left."""

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import fault_child
import pytest
from endings import Remains, children, ends, handed_back, watched
from fault_proxy import Fault, FaultProxy
from upstream import board, serve

from callboard import Context, Server
from callboard.client.client import Client
from callboard.client.errors import ClientError, ConnectionFailed, RequestTimeout
from callboard.client.stdio import ChildStream

MODERN, LEGACY = "2026-07-28", "2025-11-25"
VERSIONS = (MODERN, LEGACY)
WAYS = [(way, version) for way in ("memory", "http", "stdio") for version in VERSIONS]
# Seconds of one rung of the ladder that a child process is taken down by, in these tests; there are three.
GRACE = 0.2
CLOSING = 3 * GRACE + 0.2


@pytest.fixture(autouse=True)
def short_ladder(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = ChildStream.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "grace", GRACE)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serve() as url:
        yield url


def spoken(version: str) -> dict[str, Any]:
    return {"versions": (version,)}


@pytest.fixture(params=WAYS, ids=" ".join)
def make_client(request: pytest.FixtureRequest, url: str) -> Callable[..., Client]:
    """Makes a client whose tool `wait` begins, and does not return."""
    way, version = request.param
    targets: Mapping[str, Callable[[], Any]] = {
        "memory": board,
        "http": lambda: url,
        "stdio": lambda: fault_child.command("ignore", times=100),
    }
    return lambda **options: Client(targets[way](), **{**spoken(version), **options})


@contextlib.asynccontextmanager
async def nothing_left() -> AsyncIterator[Remains]:
    async with watched() as remains, remains.none_of("client"):
        yield remains


async def begin(client: Client) -> asyncio.Task[Any]:
    """A call that has begun, and does not end by itself."""
    begun = asyncio.Event()
    arguments = {"seconds": 60}
    task = asyncio.create_task(client.call_tool("wait", arguments, on_progress=lambda *_: begun.set()))
    waiting = asyncio.create_task(begun.wait())
    await asyncio.wait({task, waiting}, timeout=5, return_when=asyncio.FIRST_COMPLETED)
    assert begun.is_set(), task
    return task


async def open_client(client: Client) -> Client:
    handed_back(await ends(client.__aenter__(), 5, "open"))
    return client


# Which task, how often, in the middle of what.


async def test_another_task_closes_and_every_call_says_so(make_client: Callable[..., Client]) -> None:
    async with nothing_left():
        client = await open_client(make_client())
        calls = [await begin(client) for _ in range(3)]
        handed_back(await ends(client.close(), CLOSING, "close"))
        for outcome in [await ends(asyncio.wait_for(call, None), 0.5, "the call") for call in calls]:
            assert isinstance(outcome.error, ConnectionFailed)
            assert "client was closed" in str(outcome.error)
            assert outcome.error.method == "tools/call"
        with pytest.raises(ClientError, match="not open"):
            await client.call_tool("wait")


async def test_many_tasks_close_at_once_and_again(make_client: Callable[..., Client]) -> None:
    async with nothing_left():
        client = await open_client(make_client())
        call = await begin(client)
        for outcome in await asyncio.gather(*(ends(client.close(), CLOSING, "close") for _ in range(3))):
            handed_back(outcome)
        handed_back(await ends(client.close(), 0.1, "close again"))
        with pytest.raises(ConnectionFailed):
            await call


async def test_closing_that_is_cancelled_leaves_nothing(make_client: Callable[..., Client]) -> None:
    async with nothing_left():
        client = await open_client(make_client())
        call = await begin(client)
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0)
        closing.cancel()
        await ends(asyncio.wait_for(closing, None), CLOSING, "the close that was cancelled")
        handed_back(await ends(client.close(), CLOSING, "close"))
        with pytest.raises(ConnectionFailed):
            await call


TURNS = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89)
"""How many turns of the loop an opening gets before something comes in between."""


async def test_opening_that_is_cancelled_leaves_nothing(make_client: Callable[..., Client]) -> None:
    """Whoever gives up on opening has nothing to close."""

    async def play(turns: int) -> None:
        client = make_client()
        opening = asyncio.create_task(client.__aenter__())
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        outcome = await ends(asyncio.wait_for(opening, None), CLOSING, f"the open that was cancelled after {turns} turns")
        if outcome.error is None:  # it had been open already
            await client.close()
        else:
            assert isinstance(outcome.error, asyncio.CancelledError), repr(outcome.error)

    async with nothing_left():
        await asyncio.gather(*(play(turns) for turns in TURNS))


async def test_closing_while_it_opens_leaves_nothing(make_client: Callable[..., Client]) -> None:
    async def play(turns: int) -> None:
        client = make_client()
        opening = asyncio.create_task(client.__aenter__())
        for _ in range(turns):
            await asyncio.sleep(0)
        handed_back(await ends(client.close(), CLOSING, f"close after {turns} turns"))
        opened = await ends(asyncio.wait_for(opening, None), 1, f"the open that was closed after {turns} turns")
        if opened.error is None:
            handed_back(await ends(client.close(), CLOSING, "close"))
        else:
            assert isinstance(opened.error, ClientError), repr(opened.error)

    async with nothing_left():
        await asyncio.gather(*(play(turns) for turns in TURNS))


class Stop(BaseException):
    """As KeyboardInterrupt is: no Exception."""


@pytest.mark.parametrize("error", [ValueError, Stop, asyncio.CancelledError])
async def test_what_goes_wrong_in_the_block_comes_out_of_it(make_client: Callable[..., Client], error: type[BaseException]) -> None:
    async with nothing_left():
        calls = []

        async def main() -> None:
            async with make_client() as client:
                calls.append(await begin(client))
                raise error

        with pytest.raises(error):
            await main()
        with pytest.raises(ConnectionFailed):
            await calls[0]


async def test_a_group_that_fails_takes_its_calls_along(make_client: Callable[..., Client]) -> None:
    """A12: structured concurrency, the way users' programs end."""
    async with nothing_left():

        async def main() -> None:
            async with make_client() as client, asyncio.TaskGroup() as group:
                group.create_task(client.call_tool("wait", {"seconds": 60}))
                await asyncio.sleep(0.05)
                raise ValueError

        with pytest.raises(ExceptionGroup):
            await main()


async def test_a_callback_may_close_the_client(make_client: Callable[..., Client]) -> None:
    """Whoever hears of progress has seen enough."""
    async with nothing_left():
        client = await open_client(make_client())

        async def enough(*_: object) -> None:
            await client.close()

        outcome = await ends(client.call_tool("wait", {"seconds": 60}, on_progress=enough), CLOSING, "the call")
        assert isinstance(outcome.error, ConnectionFailed), repr(outcome.error)
        handed_back(await ends(client.close(), CLOSING, "close"))


async def test_who_hears_of_changes_may_close_the_client(make_client: Callable[..., Client]) -> None:
    """The stream of changes is the client's own: its callback must not wait for itself."""
    closed = asyncio.Event()

    async def enough(_: Any) -> None:
        await client.close()
        closed.set()

    async with nothing_left():
        client = make_client(on_change=enough)
        await open_client(client)
        if client.target != "upstream" and not client.target.startswith("http"):
            await client.close()  # the child says nothing of changes
            return
        call = await begin(client)
        with contextlib.suppress(ConnectionFailed):
            await client.call_tool("grow", {"name": f"tool_{id(client)}"})
        async with asyncio.timeout(5):
            await closed.wait()
        with pytest.raises(ConnectionFailed):
            await call


async def test_who_answers_the_server_may_close_the_client(make_client: Callable[..., Client]) -> None:
    async def enough() -> list[Any]:
        await client.close()
        return []

    async with nothing_left():
        client = make_client(on_roots=enough)
        await open_client(client)
        if client.target != "upstream" and not client.target.startswith("http"):
            await client.close()  # the child asks nothing
            return
        outcome = await ends(client.call_tool("ask_roots"), CLOSING, "the call that asks")
        assert isinstance(outcome.error, ClientError), repr(outcome)
        handed_back(await ends(client.close(), CLOSING, "close"))


async def test_an_answer_that_is_being_thought_about_does_not_hold_up_the_close(make_client: Callable[..., Client]) -> None:
    asked = asyncio.Event()

    async def think() -> list[Any]:
        asked.set()
        await asyncio.Event().wait()
        return []

    async with nothing_left():
        client = make_client(on_roots=think)
        await open_client(client)
        if client.target != "upstream" and not client.target.startswith("http"):
            await client.close()
            return
        call = asyncio.create_task(client.call_tool("ask_roots"))
        async with asyncio.timeout(5):
            await asked.wait()
        handed_back(await ends(client.close(), CLOSING, "close"))
        call.cancel()
        with pytest.raises((asyncio.CancelledError, ClientError)):
            await call


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_subscription_that_is_not_acknowledged_does_not_hold_up_the_close(version: str, url: str) -> None:
    armed = False

    def script(ask: Any) -> Fault | None:
        return Fault("silent") if armed and ask.method in {"subscriptions/listen", "resources/subscribe"} else None

    async with FaultProxy(url, script) as proxy, nothing_left():
        client = await open_client(Client(proxy.url, on_change=lambda _: None, **spoken(version)))
        armed = True
        waiting = asyncio.create_task(client.subscribe("note://one"))
        await asyncio.sleep(0.1)
        handed_back(await ends(client.close(), CLOSING, "close"))
        outcome = await ends(asyncio.wait_for(waiting, None), 0.5, "subscribe")
        assert isinstance(outcome.error, ClientError), repr(outcome)


async def test_a_callback_that_never_returns_does_not_hold_up_the_close(make_client: Callable[..., Client]) -> None:
    async with nothing_left():
        client = await open_client(make_client())
        called = asyncio.Event()

        async def stuck(*_: object) -> None:
            called.set()
            await asyncio.Event().wait()

        call = asyncio.create_task(client.call_tool("wait", {"seconds": 60}, on_progress=stuck))
        await called.wait()
        handed_back(await ends(client.close(), CLOSING, "close"))
        call.cancel()
        with pytest.raises((asyncio.CancelledError, ClientError)):
            await call


async def test_streams_that_are_open_end_with_the_client(make_client: Callable[..., Client]) -> None:
    client = make_client()
    async with nothing_left():
        await open_client(client)
        waiting = [asyncio.create_task(hear(client)) for _ in range(3)]
        await asyncio.sleep(0.05)
        handed_back(await ends(client.close(), CLOSING, "close"))
        for task in waiting:
            outcome = await ends(asyncio.wait_for(task, None), 0.5, "the stream")
            assert outcome.error is None or isinstance(outcome.error, ClientError), repr(outcome.error)


async def hear(client: Client) -> None:
    async with client.listen(tools=True) as changes:
        async for _ in changes:
            pass


async def test_a_client_is_closed_by_another_task_than_the_one_that_opened_it(make_client: Callable[..., Client]) -> None:
    """A43: as fixtures do."""
    async with nothing_left():
        client = make_client()
        await asyncio.create_task(client.__aenter__())
        await asyncio.create_task(client.list_tools())
        await asyncio.create_task(client.__aexit__(None, None, None))


# Children that do not want to go.


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["hang", "stop", "talk_on", "flood_stdout", "flood_stderr", "close_stdin", "close_stdout", "giant_line"])
async def test_a_child_that_does_not_want_to_go_is_gone(kind: str, version: str) -> None:
    """SD-07, LC-11: no zombie, no process."""
    async with nothing_left():
        client = await open_client(Client(fault_child.command(kind), timeout=0.5, **spoken(version)))
        await ends(client.call_tool("echo", {"text": "x"}), 1, "the call")
        handed_back(await ends(client.close(), CLOSING, "close"))


@pytest.mark.parametrize("kind", ["hang", "stop", "talk_on", "grandchild"])
async def test_a_close_that_is_cancelled_takes_the_child_along(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """SD-07: at once then, and with all that it started."""
    defaults = ChildStream.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "grace", 60.0)
    async with nothing_left():
        client = await open_client(Client(fault_child.command(kind), timeout=0.3))
        await ends(client.call_tool("echo", {"text": "x"}), 1, "the call")
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0.05)
        closing.cancel()
        await ends(asyncio.wait_for(closing, None), 0.5, "the close that was cancelled")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["hang", "stop", "flood_stdout", "close_stdout", "leave", "giant_line", "garbage", "wrong_id"])
async def test_a_child_that_does_not_want_to_begin_is_gone(kind: str, version: str) -> None:
    async with nothing_left():
        command = fault_child.command(kind, at="any", times=100)
        client = Client(command, timeout=0.5, connect_timeout=0.5, **spoken(version))
        outcome = await ends(client.__aenter__(), 2.0 + CLOSING, "open")
        assert isinstance(outcome.error, ClientError), outcome


async def test_a_child_that_reads_nothing_holds_up_nobody() -> None:
    async with nothing_left():
        client = await open_client(Client(fault_child.command("stop"), timeout=0.3))
        for _ in range(3):
            outcome = await ends(client.call_tool("echo", {"text": "x" * 2**20}), 0.3, "a call that is not read")
            assert isinstance(outcome.error, RequestTimeout)
        handed_back(await ends(client.close(), CLOSING, "close"))


async def test_a_process_that_left_the_group_and_holds_the_pipes_does_not_hold_up_the_close(tmp_path: Path) -> None:
    """What a child has let go of is not ours to end; that it has our pipes must not matter."""
    code = """
        import os, sys
        if os.fork() == 0:
            os.setsid()
            open(sys.argv[1], "w").write(str(os.getpid()))
            import time; time.sleep(60)
        os.execv(sys.executable, [sys.executable, "-I", "-S", *sys.argv[2:]])
    """
    note = tmp_path / "pid"
    command = [sys.executable, "-I", "-S", "-c", textwrap.dedent(code), str(note), *fault_child.command("leave")[3:]]
    async with nothing_left():
        client = await open_client(Client(command))
        try:
            outcome = await ends(client.call_tool("echo", {"text": "x"}), 1, "the call")
            assert isinstance(outcome.error, ConnectionFailed)
            handed_back(await ends(client.close(), CLOSING, "close"))
        finally:
            os.kill(int(note.read_text()), signal.SIGKILL)


# Servers that do not want to let go.


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_session_whose_end_is_not_answered_is_left(url: str, cancelled: bool) -> None:
    """HL-25: DELETE is a courtesy."""

    def script(ask: Any) -> Fault | None:
        return Fault("silent") if ask.verb in {"DELETE", "GET"} else None

    async with FaultProxy(url, script) as proxy, nothing_left():
        client = await open_client(Client(proxy.url, versions=(LEGACY,)))
        call = await begin(client)
        if cancelled:
            closing = asyncio.create_task(client.close())
            await asyncio.sleep(0.02)
            closing.cancel()
            await ends(asyncio.wait_for(closing, None), 1)
        handed_back(await ends(client.close(), 1, "close"))
        with pytest.raises(ConnectionFailed):
            await call


async def test_a_server_in_memory_that_does_not_heed_cancellation_is_left() -> None:
    """Its own task lives on until it is done: nobody can end that from outside. The client is closed all the same."""
    released = asyncio.Event()
    server = Server("stubborn")

    @server.tool
    async def wait(seconds: float, ctx: Context) -> str:
        ctx.progress(0)
        while not released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await released.wait()
        return "at last"

    async with nothing_left():
        client = await open_client(Client(server))
        call = await begin(client)
        handed_back(await ends(client.close(), 15, "close"))
        with pytest.raises(ConnectionFailed):
            await call
        released.set()


# The end of the program.

PROGRAM = """
import asyncio, os, signal, sys
sys.path[:0] = {path!r}
import fault_child
from callboard.client.client import Client

async def main():
    client = Client(fault_child.command({kind!r}), timeout=20)
    await client.__aenter__()
    print(*(entry for entry in os.listdir("/proc") if entry.isdigit() and parent(entry) == os.getpid()), flush=True)
    {body}

def parent(pid):
    try:
        return int(open(f"/proc/{{pid}}/stat").read().rpartition(")")[2].split()[1])
    except OSError:
        return 0

asyncio.run(main())
"""


def run_program(kind: str, body: str) -> tuple[int, int, str]:
    """Runs a program that begins a client; gives its exit code, the pid of its child, and what it said on stderr."""
    text = PROGRAM.format(path=sys.path, kind=kind, body=body.replace("\n", "\n    "))
    ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=30, check=False)
    return ran.returncode, int(ran.stdout.split()[0]), ran.stderr


async def dies(pid: int) -> bool:
    """Whether a process that is nobody's is gone soon."""
    for _ in range(200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        await asyncio.sleep(0.01)
    return False


INTERRUPT = """
asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.SIGINT)
async with client:
    await client.call_tool("wait", {})
"""
INTERRUPT = INTERRUPT.replace("async with client:\n    ", "try:\n    ") + "finally:\n    await client.close()"


@pytest.mark.parametrize("kind", ["ignore", "hang"])
async def test_ctrl_c_takes_the_child_along(kind: str) -> None:
    code, pid, said = await asyncio.to_thread(run_program, kind, INTERRUPT)
    assert await dies(pid)
    assert code == -signal.SIGINT, said
    assert "KeyboardInterrupt" in said


@pytest.mark.parametrize("body", ["pass", "sys.exit(4)", "asyncio.create_task(client.list_tools())"])
async def test_a_program_that_never_closes_its_client_leaves_no_child(body: str) -> None:
    """The end of its input is what the child hears then."""
    code, pid, said = await asyncio.to_thread(run_program, "ignore", body)
    assert await dies(pid)
    assert code == (4 if "exit" in body else 0), said


def test_a_loop_that_is_closed_leaves_no_child() -> None:
    """A client that was forgotten ends with its loop."""

    async def main() -> int:
        client = Client(fault_child.command("hang"))
        await client.__aenter__()
        (pid,) = children().keys() - before
        return pid

    before = children().keys()
    pid = asyncio.run(main())
    gc.collect()
    assert asyncio.run(dies(pid)), "the child lives on"

"""Calls that `callboard.run` answers past the HTTP parser, against uvicorn's own protocol without a socket: nobody can tell the difference."""

import asyncio
import gc
import re
from collections.abc import Iterator
from typing import Any

import pytest
from unit.transport.whole_stage import Line, Stage, request, third_answer
from uvicorn.protocols.http import auto, h11_impl, httptools_impl
from virtual_time import settle, virtual_time

from benchmarks.traffic import Exchange, call
from callboard import Server, asgi
from callboard.auth import BearerTokens
from callboard.transport import http_protocol
from callboard.transport.asgi import App
from callboard.transport.http_protocol import answer_at_once, make_protocol
from callboard.transport.slow_clients import Sweep
from callboard.transport.stream import SHORTCUTS
from callboard.transport.whole_call import FORGET_AFTER, MOST_REMEMBERED, WholeCall

TEXT = {"text": "hello"}


@pytest.fixture(autouse=True)
def shortcuts() -> Iterator[None]:
    before = dict(SHORTCUTS)
    answer_at_once()
    yield
    SHORTCUTS.clear()
    SHORTCUTS.update(before)


ECHO = request(call("echo", TEXT))
ANSWERED = [
    pytest.param(call("echo", TEXT), id="result"),
    pytest.param(call("echo", {"text": 1}), id="wrong arguments"),
    pytest.param(call("none", TEXT), id="unknown tool"),
    pytest.param(call("fail", TEXT), id="crash"),
    pytest.param(call("wait", TEXT), id="suspended"),
    pytest.param(call("tell", TEXT, token="t"), id="stream"),
    pytest.param(call("tasks", TEXT), id="timeouts and groups"),
]


async def answer(exchange: Exchange, *, stock: bool) -> bytes:
    """How an exchange is answered the third time."""
    stage = Stage()
    stage.go.set()
    line = Line(stage.app, stock=stock)
    data = request(exchange)
    return await third_answer(line, data, stock=stock)


@pytest.mark.parametrize("exchange", ANSWERED)
@virtual_time
async def test_the_answer_is_the_same_as_uvicorns(exchange: Exchange) -> None:
    ours, theirs = await answer(exchange, stock=False), await answer(exchange, stock=True)
    assert ours
    assert sorted(ours.split(b"\r\n")) == sorted(theirs.split(b"\r\n"))


@virtual_time
async def test_requests_sent_one_behind_the_other_are_answered_in_order() -> None:
    stage = Stage()
    line = Line(stage.app)
    wait, echo = request(call("wait", TEXT, request_id="w")), request(call("echo", TEXT, request_id="e"))
    stage.go.set()
    for data in (wait, echo):
        await line.warm(data)
    stage.go.clear()
    for second in (echo, wait):
        line.pipe.data = b""
        line.protocol.data_received(wait)
        assert type(line.protocol.cycle) is WholeCall
        line.protocol.data_received(second)  # the parser's, which has it wait
        line.protocol.data_received(echo)
        await settle()
        assert line.pipe.data == b""
        stage.go.set()
        await settle()
        ids = re.findall(rb'"id":"(.)"', line.pipe.data)
        assert ids == [b"w", b"e" if second is echo else b"w", b"e"]
        stage.go.clear()
    assert await line.is_whole(echo)
    assert (await line.say(echo + echo)).count(b"HTTP/1.1 200") == 2
    assert not line.state.tasks


@virtual_time
async def test_a_request_in_pieces_is_the_parsers() -> None:
    line = Line(Stage().app)
    await line.warm(ECHO)
    for at in (1, 30, len(ECHO) - 40, len(ECHO) - 1):
        assert await line.say(ECHO[:at]) == b""
        assert (await line.say(ECHO[at:])).startswith(b"HTTP/1.1 200")
    assert await line.is_whole(ECHO)
    # what looks like one within another's body is none
    long = request(call("echo", {"text": "x" * len(ECHO)}))
    assert await line.say(long[: -len(ECHO)]) == b""
    assert (await line.say(ECHO)).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("known", [False, True])
@virtual_time
async def test_a_body_is_as_long_as_its_head_says(known: bool) -> None:
    # SA15: also where less of it, or more, would be a message
    line = Line(Stage().app)
    exchange = call("echo", TEXT)
    padded = request(exchange._replace(body=exchange.body + b"  "))
    await line.warm(padded if known else ECHO)
    assert await line.say(padded[:-2]) == b""
    assert (await line.say(padded[-2:])).startswith(b"HTTP/1.1 200")
    assert (await line.say(padded + b"  ")).startswith(b"HTTP/1.1 200")
    assert line.pipe.closing  # the blanks are no request


async def waiting_call() -> tuple[Stage, Line]:
    """A call that waits for `Stage.go`, on its way past the parser."""
    stage = Stage()
    stage.go.set()
    line = Line(stage.app)
    wait = request(call("wait", TEXT))
    await line.warm(wait)
    stage.go.clear()
    stage.ended.clear()
    line.pipe.data = b""
    line.protocol.data_received(wait)
    return stage, line


@pytest.mark.parametrize("when", [pytest.param(0.0, id="before it starts"), pytest.param(0.01, id="soon"), pytest.param(0.2, id="later")])
@virtual_time
async def test_a_client_that_goes_away_ends_its_call(when: float) -> None:
    # SA25, HM-15
    stage, line = await waiting_call()
    if when:
        await asyncio.sleep(when)
    line.pipe.closing = True
    line.protocol.connection_lost(None)
    await asyncio.sleep(0.5)
    assert stage.ended == ["cancelled"]
    assert line.pipe.data == b""
    assert not line.state.tasks


@pytest.mark.parametrize("when", [0.0, 0.01, 0.2])
@virtual_time
async def test_a_stop_lets_a_call_finish_and_closes(when: float) -> None:
    stage, line = await waiting_call()
    if when:
        await asyncio.sleep(when)
    line.protocol.shutdown()
    assert not line.pipe.closing
    stage.go.set()
    await settle()
    assert b"connection: close\r\n" in line.pipe.data
    assert b'"hello"' in line.pipe.data.replace(b"\\", b"")
    assert line.pipe.closing


@virtual_time
async def test_a_call_that_outlives_the_grace_period_is_cancelled() -> None:
    stage, line = await waiting_call()
    await asyncio.sleep(1)
    (task,) = line.state.tasks  # what uvicorn cancels
    task.cancel()
    await settle()
    assert stage.ended == ["cancelled"]
    assert line.pipe.data.startswith(b"HTTP/1.1 500")
    assert not line.state.tasks


@virtual_time
async def test_what_a_call_leaves_in_its_context_the_next_one_does_not_see() -> None:
    line = Line(Stage().app)
    data = request(call("leave_mark", TEXT))
    await line.warm(data)
    for _ in range(3):
        assert b"nobody" in await line.say(data)


NEVER = {
    "close": request(call("echo", TEXT), b"Connection: close"),
    "1.0": ECHO.replace(b"HTTP/1.1", b"HTTP/1.0"),
    "1.0 kept": request(call("echo", TEXT), b"Connection: keep-alive").replace(b"HTTP/1.1", b"HTTP/1.0"),
    "expect": request(call("echo", TEXT), b"Expect: 100-continue"),
    "upgrade": request(call("echo", TEXT), b"Connection: Upgrade", b"Upgrade: h2c"),
    "proxy": request(call("echo", TEXT), b"X-Forwarded-For: 8.8.8.8"),
    "encoding": request(call("echo", TEXT), b"Content-Encoding: gzip"),
    "host": ECHO.replace(b"Host: 127.0.0.1", b"Host: evil.example"),
    "twice": request(call("echo", TEXT), b"Mcp-Name: echo"),
    "path": ECHO.replace(b"/mcp", b"/mcp/"),
    "verb": request(call("echo", TEXT), verb="PUT"),
    "media": ECHO.replace(b"Content-Type: application/json", b"Content-Type: text/plain"),
    "version": ECHO.replace(b"2026-07-28", b"2025-11-25"),
    "chunks": ECHO.replace(b"Content-Length: ", b"Transfer-Encoding: chunked\r\nX: "),
    "none": b"GET / HTTP/1.1\r\n\r\n",
    "garbage": b"\r\n\r\n",
}


@pytest.mark.parametrize("data", NEVER.values(), ids=NEVER)
@virtual_time
async def test_what_is_special_is_always_the_parsers(data: bytes) -> None:
    # SA15, SA18
    first = Line(Stage().app)
    for _ in range(4):
        line = Line(first.protocol.mcp, beside=first)
        assert not await line.is_whole(data)
        line.protocol.connection_lost(None)  # what it began ends with it
        await settle()


@virtual_time
async def test_a_head_is_known_only_of_who_sent_it_and_byte_for_byte() -> None:
    app = Stage().app
    line = Line(app)
    await line.warm(ECHO)
    assert not await Line(app, peer="10.0.0.1", beside=line).is_whole(ECHO)
    known = len(line.protocol.heads)
    head = ECHO.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    assert line.protocol.heads.get(("127.0.0.1", head)) is not None
    assert line.protocol.heads.get(("10.0.0.1", head)) is None
    for changed in (ECHO.replace(b"Mcp-Name", b"mcp-name"), request(call("echo", TEXT), b"X-Trace: 1")):
        assert await Line(app, beside=line).is_whole(changed)  # read, not known
    assert not await Line(app, beside=line).is_whole(ECHO.replace(b"\r\n\r\n", b"\n\n"))
    assert len(line.protocol.heads) == known
    assert await Line(app, beside=line).is_whole(ECHO)


@virtual_time
async def test_heads_are_forgotten_after_a_minute() -> None:
    # they may hold credentials
    line = Line(Stage().app)
    await line.warm(ECHO)
    await asyncio.sleep(FORGET_AFTER + 1)
    assert len(line.protocol.heads) == 0
    assert await line.is_whole(ECHO)
    assert len(line.protocol.heads) == 1


@virtual_time
async def test_heads_that_are_made_up_take_bounded_room() -> None:
    line = Line(Stage().app)
    padding = b"p" * 6000
    data = b""
    for number in range(400):
        data = request(call("echo", TEXT), b"X: %d%b" % (number, padding))
        await line.say(data)
        await line.say(data)
        assert len(line.protocol.heads) <= MOST_REMEMBERED // 6000
    assert await line.is_whole(data)


@virtual_time
async def test_who_asks_is_found_out_with_every_call() -> None:
    # AR-11
    tokens = BearerTokens({"a-token-of-32-characters-for-ann": "ann"})
    line = Line(Stage(auth=tokens).app)
    data = request(call("echo", TEXT), b"Authorization: Bearer a-token-of-32-characters-for-ann")
    await line.warm(data)
    tokens.generation += 1
    assert not await line.is_whole(data)
    assert await line.is_whole(data)
    assert (await line.say(ECHO)).startswith(b"HTTP/1.1 401")


async def test_a_whole_call_leaves_nothing_behind() -> None:
    # on the loop itself: the one with a virtual clock makes garbage of its own
    stage = Stage()
    stage.go.set()
    line = Line(stage.app)

    async def send(data: bytes) -> bool:
        line.protocol.data_received(data)
        whole = type(line.protocol.cycle) is WholeCall
        for _ in range(10):
            await asyncio.sleep(0)
        return whole

    for tool in ("echo", "wait", "none"):
        data = request(call(tool, TEXT))
        for _ in range(2):
            await send(data)
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                assert await send(data)
            assert gc.collect() == 0
        finally:
            gc.enable()


# Other makes of uvicorn


def test_a_protocol_that_is_made_otherwise_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(asyncio.Protocol):
        def __init__(self, config: object) -> None:
            self.config = config

    monkeypatch.setattr(auto, "AutoHTTPProtocol", Other)
    assert make_protocol(asgi(Server("x")), Sweep(), max_connections=1) is None


@pytest.mark.parametrize("missing", ["_PARSED", "_ATTRIBUTES", "_METHODS", "_CALLBACKS"])
def test_whatever_part_is_missing_the_protocol_is_left_alone(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, missing, {*getattr(http_protocol, missing), "gone"})
    assert make_protocol(asgi(Server("x")), Sweep(), max_connections=1) is None


def test_a_cycle_that_is_made_otherwise_gets_no_whole_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cycle:
        def __init__(self, scope: object, transport: object) -> None: ...

    monkeypatch.setattr(httptools_impl, "RequestResponseCycle", Cycle)
    made: Any = make_protocol(asgi(Server("x")), Sweep(), max_connections=1)
    assert made.heads is None
    assert issubclass(made, httptools_impl.HttpToolsProtocol)


def test_the_other_parser_is_guarded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "AutoHTTPProtocol", h11_impl.H11Protocol)
    made = make_protocol(asgi(Server("x")), Sweep(), max_connections=1)
    assert made is not None
    assert issubclass(made, h11_impl.H11Protocol)


def test_whoever_wraps_the_application_sees_every_request() -> None:
    class Wrapped(App):
        """An application of somebody's own."""

    app = asgi(Server("x"))
    app.__class__ = Wrapped
    made: Any = make_protocol(app, Sweep(), max_connections=1)
    assert made.heads is None

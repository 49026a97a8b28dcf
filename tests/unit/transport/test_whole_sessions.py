"""What clients of 2025 send in their sessions, past the HTTP parser, against uvicorn's own protocol: nobody can tell the difference."""

import asyncio
import gc
import gzip
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from unit.transport.whole_stage import Line, Stage, request, third_answer
from virtual_time import settle, virtual_time

from benchmarks import legacy_traffic as old
from benchmarks.traffic import Exchange, encode
from callboard import Server, asgi
from callboard.auth import BearerTokens
from callboard.limits import Limits
from callboard.transport.http_protocol import answer_at_once
from callboard.transport.stream import SHORTCUTS
from callboard.transport.whole_call import FORGET_AFTER, MOST_REMEMBERED, WholeCall, _find_session

TEXT = {"text": "hello"}
CLIENT = {"jsonrpc": "2.0", "id": 7, "result": {}}
ANN = b"Authorization: Bearer a-token-of-32-characters-for-ann"
BOB = b"Authorization: Bearer a-token-of-32-characters-for-bob"
AGAIN = {**old.HELLO, "_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}}


@pytest.fixture(autouse=True)
def shortcuts() -> Iterator[None]:
    before = dict(SHORTCUTS)
    answer_at_once()
    yield
    SHORTCUTS.clear()
    SHORTCUTS.update(before)


async def open_session(line: Line, *lines: bytes) -> bytes:
    """Open a session; the header that names it."""
    answer = await line.say(request(old.initialize(), *lines))
    found = re.search(rb"(?i)mcp-session-id: [!-~]+", answer)
    assert found, answer
    assert (await line.say(request(old.initialized(), found[0], *lines))).startswith(b"HTTP/1.1 202")
    return found[0]


def without_version(exchange: Exchange) -> Exchange:
    """As a client of 2025-03-26 sends it."""
    return exchange._replace(headers={name: value for name, value in exchange.headers.items() if name != "MCP-Protocol-Version"})


def json_of(message: Any) -> Exchange:
    """A message of our own in a session."""
    return Exchange(old.HEADERS, encode(message))


ANSWERED = [
    pytest.param(old.call("echo", TEXT), id="result"),
    pytest.param(old.call("echo", {"text": 1}), id="wrong arguments"),
    pytest.param(old.call("none", TEXT), id="unknown tool"),
    pytest.param(old.call("fail", TEXT), id="crash"),
    pytest.param(old.call("wait", TEXT), id="suspended"),
    pytest.param(old.call("tell", TEXT, token="t"), id="stream"),
    pytest.param(old.call("tasks", TEXT), id="timeouts and groups"),
    pytest.param(old.request("tools/list", {}), id="list"),
    pytest.param(old.request("no/such", {}), id="unknown method"),
    pytest.param(old.initialize(), id="opened again"),
    pytest.param(old.initialized(), id="notification"),
    pytest.param(json_of(CLIENT), id="answer to nothing"),
    pytest.param(without_version(old.call("echo", TEXT)), id="no version"),
]


async def answer(exchange: Exchange, *, stock: bool) -> bytes:
    """How an exchange is answered the third time."""
    stage = Stage()
    stage.go.set()
    line = Line(stage.app, stock=stock)
    data = request(exchange, await open_session(line))
    return await third_answer(line, data, stock=stock)


@pytest.mark.parametrize("exchange", ANSWERED)
@virtual_time
async def test_the_answer_is_the_same_as_uvicorns(exchange: Exchange) -> None:
    ours, theirs = await answer(exchange, stock=False), await answer(exchange, stock=True)
    assert ours
    assert sorted(ours.split(b"\r\n")) == sorted(theirs.split(b"\r\n"))


class Visits(msgspec.Struct):
    many: int = 0


def without_ids(said: bytes) -> list[bytes]:
    """Lines of an answer, in order of the alphabet, without what is random: ids of sessions, and of errors."""
    return sorted(re.sub(rb"(?i)(mcp-session-id: |\(id |content-length: )[!-~]+", rb"\1", said).split(b"\r\n"))


async def others(line: Line, exchange: Exchange, *, count: int = 2, verb: str = "POST") -> None:
    """Send an exchange in sessions of their own, so that what is the same of their heads is known."""
    for _ in range(count):
        await line.say(request(exchange, await open_session(line), verb=verb))


@pytest.mark.parametrize("exchange", ANSWERED)
@virtual_time
async def test_the_first_of_its_kind_in_a_session_is_answered_like_those_of_other_sessions(exchange: Exchange) -> None:
    answers = []
    for stock in (False, True):
        stage = Stage()
        stage.go.set()
        line = Line(stage.app, stock=stock)
        await others(line, exchange)
        data = request(exchange, await open_session(line))
        if not stock:
            assert await line.is_whole(data)
            data = request(exchange, await open_session(line))
        answers.append(without_ids(await line.say(data)))
    assert len(answers[0]) > 3
    assert answers[0] == answers[1]


@pytest.mark.parametrize("end", [b"", b"Content-Length: 0"], ids=["no length", "length 0"])
@virtual_time
async def test_sessions_begin_and_end_as_with_uvicorns_protocol(end: bytes) -> None:
    # HL-01, HL-21
    bye = Exchange(old.HEADERS, b"")
    told: list[list[list[bytes]]] = []
    for stock in (False, True):
        line = Line(Stage().app, stock=stock)
        told.append([])
        for _ in range(4):
            told[-1].append(without_ids(await line.say(request(old.initialize()))))
            session = await open_session(line)
            data = request(bye, session, verb="DELETE").replace(b"Content-Length: 0\r\n", end + b"\r\n" if end else b"")
            for _ in range(2):
                told[-1].append(without_ids(await line.say(data)))
        if not stock:
            assert await line.is_whole(request(old.initialize()))
            assert await line.is_whole(
                request(bye, await open_session(line), verb="DELETE").replace(b"Content-Length: 0\r\n", end and end + b"\r\n")
            )
    assert told[0] == told[1]


@virtual_time
async def test_what_is_known_of_one_session_is_not_done_in_another() -> None:
    server = Server("counter", state=Visits)

    @server.tool
    async def visit(state: Visits) -> str:
        state.many += 1
        return f"visit {state.many}"

    line = Line(asgi(server))
    visit_it = old.call("visit", {})
    await others(line, visit_it)
    one, two = await open_session(line), await open_session(line)
    for session, seen in ((one, 1), (two, 1), (one, 2), (two, 2), (two, 3)):
        assert await line.is_whole(request(visit_it, session))
        assert b"visit %d" % seen in line.pipe.data


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(b"", b"x", id="another length"),
        pytest.param(b"", b" ", id="a space behind"),
        pytest.param(b"", b"\xe9", id="not ASCII"),
        pytest.param(b"", b"\r\n x", id="folded"),
        pytest.param(b"", b"\nX-Other: 1", id="a line feed alone"),
        pytest.param(b"", b"\x00", id="zero"),
        pytest.param(b"X-", b"", id="another name"),
        pytest.param(b"X-Other: 1\r\n ", b"", id="in a folded line"),
    ],
)
@virtual_time
async def test_where_more_differs_than_the_session_the_parser_reads_it(before: bytes, after: bytes) -> None:
    # SA15
    echo = old.call("echo", TEXT)
    line = Line(Stage().app)
    await others(line, echo, count=3)
    session = await open_session(line)
    data = request(echo, before + session + after)
    ours, theirs = Line(line.protocol.mcp, beside=line), Line(line.protocol.mcp, stock=True)
    mine, stocks = [await each.say(data) for each in (ours, theirs)]
    assert mine[:12] == stocks[:12]
    assert mine[:12] == b"HTTP/1.1 400" or without_ids(mine) == without_ids(stocks)  # the text of what is no HTTP is our own
    assert await Line(line.protocol.mcp, beside=line).is_whole(request(echo, session))


@virtual_time
async def test_what_is_known_of_one_address_is_not_of_another() -> None:
    # HM-03
    echo = old.call("echo", TEXT)
    line = Line(Stage().app)
    await others(line, echo, count=3)
    data = request(echo, await open_session(line))
    assert not await Line(line.protocol.mcp, peer="10.0.0.1", beside=line).is_whole(data)
    assert (await Line(line.protocol.mcp, peer="10.0.0.1", beside=line).say(data)).startswith(b"HTTP/1.1 403")
    assert await line.is_whole(data)


@virtual_time
async def test_what_is_known_of_a_head_with_a_short_id_does_not_let_a_long_one_in() -> None:
    # HL-23, SA26
    echo = old.call("echo", TEXT)
    line = Line(Stage(limits=Limits(max_headers=300)).app)
    await others(line, echo, count=3)
    short, long = (b"mcp-session-id: " + b"x" * length for length in (32, 200))
    assert await line.is_whole(request(echo, short))
    assert line.pipe.data.startswith(b"HTTP/1.1 404")
    for _ in range(3):
        assert (await line.say(request(echo, long))).startswith(b"HTTP/1.1 431")


def test_an_id_that_may_go_on_in_the_next_line_is_never_taken_for_another() -> None:
    # SA15: httptools 0.6.1 puts folded lines together
    head = b"POST /mcp HTTP/1.1\r\nMcp-Session-Id: one\r\n%bX: 1\r\n\r\n"
    assert _find_session(head % b"")
    assert not any(_find_session(head % more) for more in (b" two\r\n", b"\ttwo\r\n", b" \r\n"))


@virtual_time
async def test_outlines_are_forgotten_as_heads_are() -> None:
    echo = old.call("echo", TEXT)
    line = Line(Stage().app)
    await others(line, echo, count=3)
    heads = line.protocol.heads
    assert len(heads)
    await asyncio.sleep(FORGET_AFTER)
    assert not len(heads)
    assert await line.is_whole(request(echo, await open_session(line)))  # it is read again
    for number in range(3 * MOST_REMEMBERED // 12_000):
        await others(line, echo._replace(headers={**echo.headers, "X-Long": f"{number:012000}"}))
    assert 0 < len(heads) <= MOST_REMEMBERED // 12_000 + 100


NEVER = {
    "malformed": Exchange(old.HEADERS, b"{"),
    "batch": json_of([CLIENT]),
    "long": old.call("echo", {"text": "x" * 5000}),
    "the body is of the current protocol": old.request("tools/list", AGAIN),
    "unknown version": Exchange({**old.HEADERS, "MCP-Protocol-Version": "2025-11-25x"}, old.call("echo", TEXT).body),
    "media": Exchange({**old.HEADERS, "Content-Type": "text/plain"}, old.call("echo", TEXT).body),
    "accept": Exchange({**old.HEADERS, "Accept": "text/html"}, old.call("echo", TEXT).body),
    "origin": Exchange({**old.HEADERS, "Origin": "https://evil.example"}, old.call("echo", TEXT).body),
}


@pytest.mark.parametrize("exchange", NEVER.values(), ids=NEVER)
@virtual_time
async def test_what_is_special_is_always_the_parsers(exchange: Exchange) -> None:
    # SA15, SA18
    line = Line(Stage().app)
    data = request(exchange, await open_session(line))
    for _ in range(3):
        assert not await Line(line.protocol.mcp, beside=line).is_whole(data)


@virtual_time
async def test_heads_that_are_out_of_order_are_the_parsers() -> None:
    line = Line(Stage().app)
    session = await open_session(line)
    echo = old.call("echo", TEXT)
    for data in (
        request(echo, session, session),
        request(echo, session, b"MCP-SESSION-ID: other"),
        request(echo, session, b"Accept: application/json"),
        request(echo, session, b"Transfer-Encoding: chunked"),
        request(echo, session, b"Connection: close"),
        request(echo, session, b"X-Forwarded-For: 8.8.8.8"),
        request(echo, session, b"Content-Encoding: gzip"),
        request(echo, session).replace(b"Host: 127.0.0.1", b"Host: evil.example"),
        request(echo, session, verb="DELETE"),
    ):
        for _ in range(3):
            assert not await Line(line.protocol.mcp, beside=line).is_whole(data)


@virtual_time
async def test_a_body_that_is_compressed_is_the_parsers() -> None:
    line = Line(Stage(encodings=["gzip"]).app)
    session = await open_session(line)
    echo = old.call("echo", TEXT)
    data = request(echo._replace(body=gzip.compress(echo.body)), session, b"Content-Encoding: gzip")
    for _ in range(3):
        assert not await line.is_whole(data)
        assert b"hello" in line.pipe.data


@pytest.mark.parametrize("limits", [Limits(message_rate=(1000, 1.0)), Limits(address_rate=(1000, 1.0)), Limits(max_body=60)])
@virtual_time
async def test_limits_hold(limits: Limits) -> None:
    # SA26
    line = Line(Stage().app)
    session = await open_session(line)
    data = request(old.call("echo", TEXT), session)
    bounded = Line(Stage(limits=limits).app)
    for _ in range(3):
        assert await line.is_whole(data)
        assert not await Line(bounded.protocol.mcp, beside=bounded).is_whole(data)


@pytest.mark.parametrize(("policy", "ended"), [("streaming", "done"), ("never", "done"), ("always", "cancelled")])
@pytest.mark.parametrize("when", [0.0, 0.01, 0.2])
@virtual_time
async def test_a_call_outlives_its_connection_where_it_may(policy: str, ended: str, when: float) -> None:
    # HL-07
    stage = Stage(cancel_on_disconnect=policy)
    stage.go.set()
    line = Line(stage.app)
    wait = request(old.call("wait", TEXT), await open_session(line))
    await line.warm(wait)
    stage.go.clear()
    stage.ended.clear()
    line.pipe.data = b""
    line.protocol.data_received(wait)
    await asyncio.sleep(when)
    line.pipe.closing = True
    line.protocol.connection_lost(None)
    await asyncio.sleep(0.5)
    assert stage.ended == (["cancelled"] if ended == "cancelled" else [])
    stage.go.set()
    await settle()
    assert stage.ended == [ended]
    assert line.pipe.data == b""
    assert not line.state.tasks


@virtual_time
async def test_a_call_may_take_only_so_long() -> None:
    stage = Stage(request_timeout=2.0)
    stage.go.set()
    line = Line(stage.app)
    wait = request(old.call("wait", TEXT), await open_session(line))
    await line.warm(wait)
    stage.go.clear()
    line.protocol.data_received(wait)
    await asyncio.sleep(3)
    assert b"request_timeout" in line.pipe.data


@virtual_time
async def test_a_session_that_was_ended_is_unknown_under_a_known_head() -> None:
    # HL-23
    line = Line(Stage().app)
    session = await open_session(line)
    data = request(old.call("echo", TEXT), session)
    await line.warm(data)
    ended = await line.say(request(Exchange(old.HEADERS, b""), session, verb="DELETE"))
    assert ended.startswith(b"HTTP/1.1 204")
    assert not {b"content-length", b"transfer-encoding"} & {each.partition(b":")[0].lower() for each in ended.split(b"\r\n")}
    assert await line.is_whole(data)
    assert line.pipe.data.startswith(b"HTTP/1.1 404")


@virtual_time
async def test_a_session_is_its_owners_and_who_asks_is_found_out_with_every_call() -> None:
    # SA23, AR-11
    tokens = BearerTokens({ANN.split()[-1].decode(): "ann", BOB.split()[-1].decode(): "bob"})
    line = Line(Stage(auth=tokens).app)
    session = await open_session(line, ANN)
    data = request(old.call("echo", TEXT), session, ANN)
    await line.warm(data)
    for _ in range(4):
        assert (await line.say(data.replace(ANN, BOB))).startswith(b"HTTP/1.1 404")
    tokens.generation += 1
    assert not await line.is_whole(data)
    assert await line.is_whole(data)
    assert (await line.say(data.replace(ANN + b"\r\n", b""))).startswith(b"HTTP/1.1 401")


@virtual_time
async def test_a_stop_lets_a_call_finish_and_closes() -> None:
    stage = Stage()
    stage.go.set()
    line = Line(stage.app)
    wait = request(old.call("wait", TEXT), await open_session(line))
    await line.warm(wait)
    stage.go.clear()
    line.protocol.data_received(wait)
    line.protocol.shutdown()
    assert not line.pipe.closing
    stage.go.set()
    await settle()
    assert b"connection: close\r\n" in line.pipe.data
    assert line.pipe.closing


async def test_a_whole_call_leaves_nothing_behind() -> None:
    # on the loop itself: the one with a virtual clock makes garbage of its own
    stage = Stage()
    stage.go.set()
    line = Line(stage.app)
    session = await open_session(line)

    async def send(data: bytes) -> bool:
        line.protocol.data_received(data)
        whole = type(line.protocol.cycle) is WholeCall
        for _ in range(10):
            await asyncio.sleep(0)
        return whole

    for exchange in (old.call("echo", TEXT), old.call("wait", TEXT), old.call("none", TEXT), old.initialized()):
        data = request(exchange, session)
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

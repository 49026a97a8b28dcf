"""Requests of 2025 sessions over HTTP, and what the HTTP transport owes to credentials, against a bare socket."""

import asyncio
import json
import socket
from typing import Any

import pytest
from unit.client.wire_peer import Heard, Inbox, Line, WirePeer, ask, line_to
from virtual_time import now, virtual_time

from callboard.client.errors import ConnectionFailed, HttpError, InvalidAnswer, Origin
from callboard.client.http import HttpConnection

PROGRESS = {"method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}}


def ok(message: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message["id"], "result": {"ok": True}}


async def result(heard: Heard) -> None:
    await heard.result()


# The session's id, and what comes beside an answer.


async def test_the_session_that_an_answer_opens_is_told() -> None:
    """HL-20."""

    async def answer(heard: Heard) -> None:
        if heard.id == 1:
            await heard.result(Mcp_Session_Id="s~1!")
        elif heard.id == 2:
            await heard.stream(MCP_SESSION_ID="s-2")
            await heard.answer(2)
            await heard.end()
        else:
            await heard.result()

    async with line_to(answer) as line:
        assert (await line.exchange(1)).session == "s~1!"
        assert (await line.exchange(2)).session == "s-2"
        found = await line.exchange(3)
    assert (found.session, found.status) == (None, 200)


@pytest.mark.parametrize("session", ["s 1", "s\x7f", "é", ""])
async def test_a_session_with_other_than_visible_characters_is_refused(session: str) -> None:
    """HL-20."""

    async def answer(heard: Heard) -> None:
        await heard.result(Mcp_Session_Id=session)

    async with line_to(answer) as line:
        with pytest.raises(InvalidAnswer, match="visible ASCII"):
            await line.exchange()


async def test_a_request_carries_the_headers_it_was_given() -> None:
    """HL-21, VN-22, HM-05."""
    async with line_to(result, headers={"X-Team": "blue"}) as line:
        await line.exchange(1, headers={})
        await line.exchange(2)
    bare, session = line.peer.heard
    assert "mcp-protocol-version" not in bare.headers
    assert session.headers["mcp-session-id"] == "s-1"
    assert session.headers["mcp-protocol-version"] == "2025-11-25"
    for heard in (bare, session):
        assert heard.headers["accept"] == "application/json, text/event-stream"
        assert heard.headers["content-type"] == "application/json"
        assert heard.headers["x-team"] == "blue"


async def test_what_comes_before_an_answer_goes_where_it_belongs() -> None:
    """HL-05, HL-06, JR-07: notes in order to the request, also the session's own; a request to the receiver; foreign types nowhere."""

    async def answer(heard: Heard) -> None:
        await heard.stream()
        await heard.event({"id": "srv-1", "method": "elicitation/create", "params": {}})
        await heard.event(PROGRESS)
        await heard.event({"method": "notifications/tools/list_changed"})
        await heard.event({"method": "notifications/clock"}, event="clock")
        await heard.answer(heard.id)
        await heard.end()

    async with line_to(answer) as line:
        await line.exchange()
    assert line.notes == ["notifications/progress", "notifications/tools/list_changed"]
    assert [(request.id, request.method) for request in line.inbox.requests] == [("srv-1", "elicitation/create")]
    assert line.inbox.notes == []


@pytest.mark.parametrize("streaming", [False, True])
async def test_an_array_is_taken_apart(streaming: bool) -> None:
    """HL-03, JR-20."""

    async def answer(heard: Heard) -> None:
        note = {"jsonrpc": "2.0", **PROGRESS}
        asked = {"jsonrpc": "2.0", "id": "srv-1", "method": "ping"}
        foreign = {"jsonrpc": "2.0", "id": 77, "result": {}}
        batch = [note, foreign, asked, ok(heard.message), note]
        if streaming:
            await heard.stream()
            await heard.event(json.dumps(batch))
            await heard.end()
        else:
            await heard.json(batch)

    async with line_to(answer) as line:
        found = await line.exchange()
    assert bytes(found.response.result or b"") == b'{"ok": true}'
    assert line.notes == ["notifications/progress"] * 2
    assert [request.method for request in line.inbox.requests] == ["ping"]


async def test_an_array_without_the_answer_is_an_invalid_answer() -> None:
    async def answer(heard: Heard) -> None:
        await heard.json([{"jsonrpc": "2.0", "id": 77, "result": {}}])

    async with line_to(answer) as line:
        with pytest.raises(InvalidAnswer, match="no JSON-RPC response"):
            await line.exchange()


async def test_a_refusal_has_whatever_id() -> None:
    """A60, HL-23: what the server says and its status reach the caller."""

    async def answer(heard: Heard) -> None:
        error = {"code": -32600, "message": "Session not found"}
        body = json.dumps({"jsonrpc": "2.0", "id": "server-error", "error": error}).encode()
        await heard.plain(404 if heard.id == 1 else 200, body, "application/json")

    async with line_to(answer) as line:
        found = await line.exchange(1)
        assert (found.response.id, found.status) == ("server-error", 404)
        assert b"Session not found" in bytes(found.response.error or b"")
        with pytest.raises(InvalidAnswer, match="another request"):
            await line.exchange(2)


@pytest.mark.parametrize("content_type", ["Text/Event-Stream; charset=utf-8", "text/event-stream;charset=UTF-8"])
async def test_a_content_type_has_any_case_and_parameters(content_type: str) -> None:
    async def answer(heard: Heard) -> None:
        await heard.head(200, content_type, Transfer_Encoding="chunked")
        await heard.answer(heard.id)
        await heard.end()

    async with line_to(answer) as line:
        assert (await line.exchange()).status == 200


async def test_a_stream_with_an_error_status_is_an_http_error() -> None:
    """A42."""

    async def answer(heard: Heard) -> None:
        await heard.plain(502, b"data: bad gateway\n\n", "text/event-stream")

    async with line_to(answer) as line:
        with pytest.raises(HttpError, match="bad gateway"):
            await line.exchange()


@pytest.mark.parametrize("status", [202, 204])
async def test_a_request_that_is_taken_for_a_notification_is_named(status: int) -> None:
    async def answer(heard: Heard) -> None:
        await heard.plain(status, b"", None)

    async with line_to(answer) as line:
        with pytest.raises(InvalidAnswer, match=f"HTTP {status} without a body"):
            await line.exchange()
        assert len(line.peer.heard) == 1  # nothing is left to be cancelled


@pytest.mark.parametrize(
    ("status", "stated", "expected"),
    [(429, "7", 7), (503, "0", 0), (503, "Thu, 01 Jan 1970 00:00:00 GMT", 0), (429, "soon", None), (429, "9" * 40, None), (500, "7", None)],
)
async def test_a_wait_that_the_server_asks_for_is_told(status: int, stated: str, expected: float | None) -> None:
    """A42."""

    async def answer(heard: Heard) -> None:
        await heard.plain(status, b"busy", Retry_After=stated)

    async with line_to(answer) as line:
        with pytest.raises(HttpError, match="busy") as caught:
            await line.exchange()
    assert caught.value.retry_after == expected
    assert ("asks to wait" in str(caught.value)) == (expected is not None)


async def test_an_answer_that_ends_early_says_how_far_it_came() -> None:
    """A41."""

    async def answer(heard: Heard) -> None:
        if heard.id == 1:
            await heard.head(200, Content_Length="100")
            await heard.raw(b'{"jsonrpc"')
        else:
            await heard.stream()
            await heard.event(PROGRESS)
            await heard.raw(b"5\r\nda")
        heard.writer.close()

    async with line_to(answer) as line:
        with pytest.raises(ConnectionFailed, match="broke after 10 bytes of the answer") as caught:
            await line.exchange(1, told=False)
        assert caught.value.sent
        with pytest.raises(ConnectionFailed, match="after 1 event of the stream"):
            await line.exchange(2, told=False)


async def test_what_was_never_sent_says_so() -> None:
    async with WirePeer(result) as peer:
        pass
    connection = HttpConnection(peer.url, max_message=1000, headers={})
    await connection.open(Origin(peer.url), Inbox())
    with pytest.raises(ConnectionFailed, match="can't connect") as caught:
        await connection.exchange(ask(peer), Line(peer, connection).note)
    assert not caught.value.sent
    await connection.close()
    with pytest.raises(ConnectionFailed, match="was closed") as caught:
        await connection.exchange(ask(peer), Line(peer, connection).note)
    assert not caught.value.sent


async def test_connecting_has_a_limit_of_its_own() -> None:
    """The backlog of a socket that nobody accepts from is full: TCP keeps the rest waiting."""
    server = socket.create_server(("127.0.0.1", 0), backlog=0)
    url = f"http://127.0.0.1:{server.getsockname()[1]}/"
    fillers = [await asyncio.open_connection(*server.getsockname()) for _ in range(1)]
    connection = HttpConnection(url, max_message=1000, headers={}, connect_timeout=0.2)
    await connection.open(Origin(url), Inbox())
    peer = WirePeer(result, port=server.getsockname()[1])
    try:
        with pytest.raises(ConnectionFailed, match=r"within 0\.2 s.*connect_timeout=") as caught:
            await asyncio.wait_for(connection.exchange(ask(peer), Line(peer, connection).note), 5)
        assert not caught.value.sent
    finally:
        await connection.close()
        for _, writer in fillers:
            writer.close()
            await writer.wait_closed()
        server.close()


# Streams that are taken up again.


@virtual_time
async def test_a_stream_is_taken_up_where_it_ended_when_the_server_says() -> None:
    """HL-08, HL-09, HL-10, HL-19: the wait is what the server said, exactly; the GET carries the last id and the session."""

    async def answer(heard: Heard) -> None:
        await heard.stream()
        if heard.method == "POST":
            await heard.event(id="a-0", retry=500)
        elif heard.headers["last-event-id"] == "a-0":
            await heard.event(PROGRESS, id="a-1", retry=1500)
        else:
            await heard.answer(1, id="a-2")
        await heard.end()

    async with line_to(answer, headers={"X-Team": "blue"}) as line:
        began = now()
        assert (await line.exchange(resumed=True)).status == 200
        assert line.notes == ["notifications/progress"]
        _, first, second = line.peer.heard
        assert (first.method, second.method) == ("GET", "GET")
        assert [heard.at - began for heard in (first, second)] == pytest.approx([0.5, 2.0], abs=0.05)
        assert second.headers["last-event-id"] == "a-1"
        for heard in (first, second):
            assert heard.headers["accept"] == "text/event-stream"
            assert heard.headers["mcp-session-id"] == "s-1"
            assert heard.headers["mcp-protocol-version"] == "2025-11-25"
            assert heard.headers["x-team"] == "blue"
            assert "content-type" not in heard.headers


@virtual_time
async def test_a_broken_stream_is_taken_up_at_once() -> None:
    """HL-10: waiting is for streams that the server ends in good order."""

    async def answer(heard: Heard) -> None:
        await heard.stream()
        if heard.method == "POST":
            await heard.event(PROGRESS, id="a-0", retry=5000)
            await heard.raw(b"ff\r\ndata: {")
            heard.writer.close()
        else:
            await heard.answer(1)
            await heard.end()

    async with line_to(answer) as line:
        began = now()
        await line.exchange(resumed=True)
        assert line.peer.of("GET")[0].at - began == pytest.approx(0.1, abs=0.05)


async def test_giving_up_closes_the_response_that_took_up_a_stream() -> None:
    gone = asyncio.Event()

    async def answer(heard: Heard) -> None:
        await heard.stream()
        await heard.event(id="a-0", retry=1)
        if heard.method == "GET":
            await heard.gone()
            gone.set()
        await heard.end()

    async with line_to(answer) as line, asyncio.timeout(10):
        waiting = asyncio.create_task(line.exchange(resumed=True, told=False))
        await line.peer.until("GET")
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await gone.wait()


@virtual_time
async def test_a_server_that_dies_is_not_waited_for() -> None:
    """A41: the connection broke, and nothing listens there any more."""

    async def answer(heard: Heard) -> None:
        await heard.stream()
        await heard.event(PROGRESS, id="a-0", retry=5000)
        await heard.gone()

    async with line_to(answer) as line:
        waiting = asyncio.create_task(line.exchange(resumed=True, told=False))
        await line.peer.until("tools/call")
        await asyncio.sleep(1)
        await line.peer.__aexit__(None, None, None)
        began = now()
        with pytest.raises(ConnectionFailed, match="broke after 1 event of the stream, and the server is gone: can't connect") as caught:
            await waiting
        assert now() - began < 0.3
        assert caught.value.sent


@virtual_time
async def test_a_server_can_t_ask_for_more_than_a_minute() -> None:
    async def answer(heard: Heard) -> None:
        await heard.stream()
        if heard.method == "POST":
            await heard.event(id="a-0", retry=10**9)
        else:
            await heard.answer(1)
        await heard.end()

    async with line_to(answer) as line:
        began = now()
        await line.exchange(resumed=True)
        assert now() - began == pytest.approx(60, abs=0.2)


@pytest.mark.parametrize(("resumed", "event_id"), [(False, "a-0"), (True, None), (True, "x" * 5000)])
async def test_a_stream_that_can_t_be_taken_up_is_lost(resumed: bool, event_id: str | None) -> None:
    """HM-14: nor is one of 2026, whatever ids it has."""

    async def answer(heard: Heard) -> None:
        await heard.stream()
        await heard.event(PROGRESS, id=event_id)
        await heard.end()

    async with line_to(answer) as line:
        with pytest.raises(ConnectionFailed, match="ended after 1 event of the stream"):
            await line.exchange(resumed=resumed, told=False)
    assert len(line.peer.heard) == 1


@virtual_time
async def test_a_stream_is_given_up_after_five_gets_that_failed() -> None:
    async def answer(heard: Heard) -> None:
        if heard.method == "POST":
            await heard.stream()
            await heard.event(id="a-0")
            await heard.end()
        elif len(line.peer.of("GET")) % 2:
            await heard.plain(502)
        else:
            heard.abort()

    async with line_to(answer) as line:
        began = now()
        with pytest.raises(ConnectionFailed, match=r"tried to take up its stream 5 times"):
            await line.exchange(resumed=True, told=False)
        # aiohttp itself repeats a GET at once whose pooled connection turns out to be dead
        found = sorted({round(heard.at - began, 1) for heard in line.peer.of("GET")})
        assert found == [1, 2.5, 4.5, 7, 10]


@virtual_time
async def test_a_server_that_comes_back_finds_its_client() -> None:
    """A17: GETs that fail count in a row only, and an event ends the row."""
    gets = 0

    async def answer(heard: Heard) -> None:
        nonlocal gets
        if heard.method == "POST":
            await heard.stream()
            await heard.event(id="a-0", retry=100)
            await heard.end()
            return
        gets += 1
        if gets % 4:
            await heard.plain(503)
            return
        await heard.stream()
        if gets == 12:
            await heard.answer(1)
        else:
            await heard.event(id=f"a-{gets}")
        await heard.end()

    async with line_to(answer) as line:
        await line.exchange(resumed=True)
    assert gets == 12


@virtual_time
async def test_a_server_that_only_ends_streams_does_not_make_us_spin() -> None:
    async def answer(heard: Heard) -> None:
        await heard.stream()
        if heard.method == "POST":
            await heard.event(id="a-0", retry=0)
        await heard.end()

    async with line_to(answer) as line:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10):
                await line.exchange(resumed=True, told=False)
        assert 50 < len(line.peer.of("GET")) <= 100


@pytest.mark.parametrize(
    ("status", "expected"), [(404, "the session is gone"), (405, "takes up no streams"), (400, "does not take it up again: HTTP 400")]
)
async def test_a_server_that_does_not_take_up_a_stream_ends_its_request(status: int, expected: str) -> None:
    async def answer(heard: Heard) -> None:
        if heard.method == "GET":
            await heard.plain(status, b"no")
            return
        await heard.stream()
        await heard.event(id="a-0", retry=1)
        await heard.end()

    async with line_to(answer) as line:
        with pytest.raises(ConnectionFailed, match=expected):
            await line.exchange(resumed=True, told=False)
    assert len(line.peer.of("GET")) == 1

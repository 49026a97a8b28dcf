"""The transport of 2024-11-05, against a bare socket."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from endings import ends, handed_back, watched
from unit.client.line_inbox import LineInbox
from unit.client.wire_peer import Answer, Heard, Inbox, Keys, WirePeer, ask, no_note
from virtual_time import now, virtual_time

from callboard.client.connection import Challenged
from callboard.client.errors import AuthorizationFailed, ConnectionFailed, HttpError, InvalidAnswer, Origin
from callboard.client.line import LineConnection
from callboard.client.sse_2024 import SseStream


class OldServer:
    """Answers of a server of 2024-11-05.

    Attributes:
        stream: The stream of the client that came last.
        endpoint: What its first event says.
        status: Of every POST's answer.
    """

    def __init__(self, endpoint: str = "/messages?session=7", status: int = 202) -> None:
        self.stream: Heard | None = None
        self.endpoint = endpoint
        self.status = status
        self.answers = True

    async def __call__(self, heard: Heard) -> None:
        if heard.method == "GET":
            await heard.stream()
            await heard.event(self.endpoint, event="endpoint")
            self.stream = heard
            await heard.gone()
            return
        await heard.plain(self.status, b"Accepted")
        if self.answers and self.stream is not None and "id" in heard.message:
            await self.stream.answer(heard.id, event="message")


@asynccontextmanager
async def stream_to(answer: Answer, **options: Any) -> AsyncIterator[tuple[LineInbox, WirePeer]]:
    """A peer with that answer, and a stream to it that is not open yet."""
    async with WirePeer(answer) as peer:
        stream = LineInbox(SseStream(peer.url, **{"max_message": 1000, "headers": {}, **options}))
        try:
            yield stream, peer
        finally:
            await stream.aclose()


@pytest.mark.parametrize("endpoint", ["/messages?session=7", "messages?session=7", "{base}/messages?session=7#x", "?session=7", " /m/é "])
async def test_messages_go_to_the_endpoint_that_the_first_event_names(endpoint: str) -> None:
    """HL-27."""
    server = OldServer()
    async with stream_to(server, headers={"X-Team": "blue"}) as (stream, peer):
        server.endpoint = endpoint.replace("{base}", peer.url.removesuffix("/mcp"))
        await stream.open(Origin(peer.url))
        await stream.send(b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
        assert b'"id": 1' in await stream.receive()
        get, post = peer.heard
        assert (get.path, get.headers["accept"]) == ("/mcp", "text/event-stream")
        expected = {"?session=7": "/mcp?session=7", " /m/é ": "/m/%C3%A9"}.get(endpoint, "/messages?session=7")
        assert (post.path, post.message["method"]) == (expected, "ping")
        assert post.headers["content-type"] == "application/json"
        for heard in (get, post):
            assert heard.headers["x-team"] == "blue"
            assert "mcp-protocol-version" not in heard.headers


@pytest.mark.parametrize(
    "endpoint", ["http://evil.example/m", "https://{host}/m", "//evil.example/m", "http://127.0.0.1:1/m", "http://[::1", "file:///etc", ""]
)
async def test_an_endpoint_of_another_origin_is_refused(endpoint: str) -> None:
    """HL-27: headers, credentials and arguments would go there."""
    server = OldServer()
    async with stream_to(server, headers={"X-Key": "secret"}) as (stream, peer):
        server.endpoint = endpoint.replace("{host}", peer.url.split("/")[2])
        with pytest.raises(InvalidAnswer, match="endpoint"):
            await stream.open(Origin(peer.url))
        assert [heard.method for heard in peer.heard] == ["GET"]


async def test_a_login_in_the_url_goes_to_the_endpoint_too() -> None:
    server = OldServer("/m")
    async with WirePeer(server) as peer:
        stream = LineInbox(SseStream(peer.url.replace("//", "//joe:pw@"), max_message=1000, headers={}))
        server.endpoint = peer.url.replace("/mcp", "/m")
        await stream.open(Origin(peer.url))
        await stream.send(b"{}")
        await stream.aclose()
    assert {heard.headers["authorization"] for heard in peer.heard} == {"Basic am9lOnB3"}


async def test_a_stream_that_begins_otherwise_is_none_of_2024() -> None:
    async def answer(heard: Heard) -> None:
        await heard.stream()
        await heard.event({"method": "notifications/a"})
        await heard.gone()

    async with stream_to(answer) as (stream, peer):
        with pytest.raises(InvalidAnswer, match="'message' instead of 'endpoint'"):
            await stream.open(Origin(peer.url))


@pytest.mark.parametrize(
    ("status", "content_type"), [(404, "text/plain"), (405, "text/plain"), (200, "text/html"), (500, "text/event-stream")]
)
async def test_an_answer_that_is_no_stream_is_an_http_error(status: int, content_type: str) -> None:
    """HL-26."""

    async def answer(heard: Heard) -> None:
        await heard.plain(status, b"what?", content_type)

    async with stream_to(answer) as (stream, peer):
        with pytest.raises(HttpError, match="what") as caught:
            await stream.open(Origin(peer.url))
    assert caught.value.status == status


@virtual_time
@pytest.mark.parametrize("silence", ["connection", "stream", "stream with comments"])
async def test_a_server_that_names_no_endpoint_is_not_waited_for(silence: str) -> None:
    async def answer(heard: Heard) -> None:
        if silence != "connection":
            await heard.stream()
        for _ in range(1000 if "comments" in silence else 0):
            await heard.chunk(b": hello\n\n")
            await asyncio.sleep(1)
        await heard.gone()

    async with stream_to(answer, connect_timeout=5) as (stream, peer):
        began = now()
        with pytest.raises(ConnectionFailed):
            await stream.open(Origin(peer.url))
        assert now() - began == pytest.approx(5, abs=0.1)


async def test_a_stream_that_ends_before_its_endpoint_says_so() -> None:
    async def answer(heard: Heard) -> None:
        await heard.stream()
        await heard.end()

    async with stream_to(answer) as (stream, peer):
        with pytest.raises(ConnectionFailed, match="ended after 0 events"):
            await stream.open(Origin(peer.url))


@pytest.mark.parametrize("how", ["end", "abort"])
async def test_the_end_of_the_stream_is_told(how: str) -> None:
    """A41."""
    server = OldServer()
    async with stream_to(server) as (stream, peer):
        await stream.open(Origin(peer.url))
        assert server.stream is not None
        await server.stream.event({"method": "notifications/a"})
        assert b"notifications/a" in await stream.receive()
        if how == "end":
            await server.stream.end()
        else:
            server.stream.abort()
        for _ in range(2):
            with pytest.raises(EOFError):
                await stream.receive()
        with pytest.raises(EOFError):
            await stream.send(b"{}")
        error = stream.explain(Origin(peer.url, "tools/call", 3))
        assert isinstance(error, ConnectionFailed)
        assert (error.method, error.request_id) == ("tools/call", 3)
        assert "after 2 events of the stream" in str(error)


async def test_a_message_past_the_limit_is_named() -> None:
    """A45."""
    server = OldServer()
    async with stream_to(server) as (stream, peer):
        await stream.open(Origin(peer.url))
        assert server.stream is not None
        await server.stream.chunk(b"data: {}\n\ndata: " + b"x" * 2000)
        assert await stream.receive() == b"{}"
        with pytest.raises(EOFError):
            await stream.receive()
        error = stream.explain(Origin(peer.url))
    assert isinstance(error, InvalidAnswer)
    assert "max_message=" in str(error)


async def test_other_events_and_empty_ones_are_passed_over() -> None:
    server = OldServer()
    async with stream_to(server) as (stream, peer):
        await stream.open(Origin(peer.url))
        assert server.stream is not None
        await server.stream.event("12:00", event="ping")
        await server.stream.chunk(b": keep-alive\n\nevent: message\ndata:\n\n")
        await server.stream.event("{}", event="message")
        assert await stream.receive() == b"{}"


async def test_a_post_that_is_refused_says_why() -> None:
    server = OldServer(status=413)
    async with stream_to(server) as (stream, peer):
        await stream.open(Origin(peer.url))
        with pytest.raises(HttpError, match="HTTP 413"):
            await stream.send(b"{}")
        server.status = 200
        await stream.send(b"{}")


async def test_credentials_are_asked_for_by_the_stream_and_by_its_posts() -> None:
    server = OldServer()

    async def guard(heard: Heard) -> None:
        wanted = "Bearer b" if heard.method == "GET" else "Bearer c"
        await (server(heard) if heard.headers["authorization"] == wanted else heard.plain(401))

    keys = Keys("a", "b", "c")
    async with stream_to(guard, auth=keys) as (stream, peer):
        await stream.open(Origin(peer.url))
        await stream.send(b"{}")
        assert peer.heard[-1].headers["dpop"] == f"POST {peer.url.removesuffix('/mcp')}/messages?session=7"
    assert [challenge.http_method for challenge in keys.challenges] == ["GET", "POST"]
    async with stream_to(guard, auth=Keys("a")) as (stream, peer):
        with pytest.raises(Challenged):
            await stream.open(Origin(peer.url))


async def test_a_login_that_fails_ends_the_opening() -> None:
    class Refused(Keys):
        async def answer(self, challenge: object) -> bool:
            raise AuthorizationFailed("nobody logged in", Origin("x"))

    async def answer(heard: Heard) -> None:
        await heard.plain(401)

    async with stream_to(answer, auth=Refused("a")) as (stream, peer):
        with pytest.raises(AuthorizationFailed, match="nobody logged in"):
            await stream.open(Origin(peer.url))


async def test_a_connection_speaks_over_it_and_opens_it_anew() -> None:
    """HL-27, SD-08: a session each, since the stream is the session."""
    server = OldServer()
    async with WirePeer(server) as peer:
        connection = LineConnection(lambda: SseStream(peer.url, max_message=1000, headers={}))
        inbox = Inbox()
        await connection.open(Origin(peer.url), inbox)
        found = await asyncio.gather(*(connection.exchange(ask(peer, number), no_note) for number in range(1, 6)))
        assert [each.response.id for each in found] == [1, 2, 3, 4, 5]
        assert server.stream is not None
        await server.stream.event({"id": "srv-1", "method": "roots/list"})
        await inbox.arrival.wait()
        server.answers = False
        waiting = asyncio.create_task(connection.exchange(ask(peer, 6), no_note))
        await peer.until("tools/call", 6)
        server.stream.abort()
        with pytest.raises(ConnectionFailed):
            await asyncio.wait_for(waiting, 2)
        server.answers = True
        await connection.open(Origin(peer.url), inbox)
        await connection.exchange(ask(peer, 7), no_note)
        await connection.close()
        assert len(peer.of("GET")) == 2


async def test_closing_leaves_nothing_and_ends_what_waits() -> None:
    server = OldServer()
    server.answers = False
    async with WirePeer(server) as peer, watched() as remains:
        connection = LineConnection(lambda: SseStream(peer.url, max_message=1000, headers={}))
        async with remains.none_of("all"):
            await connection.open(Origin(peer.url), Inbox())
            waiting = asyncio.create_task(connection.exchange(ask(peer), no_note))
            await peer.until("tools/call")
            handed_back(await ends(connection.close(), 1))
            with pytest.raises(ConnectionFailed, match="client was closed"):
                await waiting
        await peer.hang_up()

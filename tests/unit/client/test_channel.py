"""The channel of a 2025 session, against a bare socket."""

import asyncio
import logging

import pytest
from unit.client.wire_peer import SESSION, Answer, Heard, Inbox, Keys, WirePeer, line_to
from virtual_time import now, settle, virtual_time

from callboard.client.errors import AuthorizationFailed, Origin
from callboard.client.http import HttpConnection

CHANGED = {"method": "notifications/tools/list_changed"}


def channel(answer: Answer) -> Answer:
    """GETs are answered by `answer`, all else by 200."""

    async def either(heard: Heard) -> None:
        if heard.method == "GET":
            await answer(heard)
        else:
            await heard.plain(200, b"", None)

    return either


async def test_what_the_server_says_unasked_is_heard() -> None:
    """HL-13, HL-15, HL-21, JR-07: notes and requests are handed on in order; answers, other types and comments are not."""
    done = asyncio.Event()

    async def answer(heard: Heard) -> None:
        await heard.stream()
        await heard.chunk(b": keep-alive\n\nid: g-0\ndata:\n\n")
        await heard.event(CHANGED)
        await heard.event({"id": "srv-1", "method": "roots/list"})
        await heard.event({"method": "notifications/clock"}, event="clock")
        await heard.answer(1)
        await heard.event('[{"jsonrpc":"2.0","method":"notifications/a"},{"jsonrpc":"2.0","id":2,"method":"ping"}]')
        await heard.event({"method": "notifications/b"})
        await done.wait()

    async with line_to(channel(answer), headers={"X-Team": "blue"}) as line, asyncio.timeout(10):
        await line.connection.begin(SESSION)
        while "notifications/b" not in line.inbox.notes:
            line.inbox.arrival.clear()
            await line.inbox.arrival.wait()
        done.set()
        assert line.inbox.notes == [CHANGED["method"], "notifications/a", "notifications/b"]
        assert [request.method for request in line.inbox.requests] == ["roots/list", "ping"]
    heard = line.peer.heard[0]
    assert heard.headers["accept"] == "text/event-stream"
    assert heard.headers["mcp-session-id"] == "s-1"
    assert heard.headers["mcp-protocol-version"] == "2025-11-25"
    assert heard.headers["x-team"] == "blue"
    assert not {"content-type", "last-event-id"} & heard.headers.keys()


@virtual_time
async def test_a_session_begins_without_waiting_long_for_its_channel() -> None:
    """The head may come with the first event, hours later."""

    async def answer(heard: Heard) -> None:
        await asyncio.sleep(100)
        await heard.stream()
        await heard.event(CHANGED)
        await heard.gone()

    async with line_to(channel(answer)) as line:
        began = now()
        await line.connection.begin(SESSION)
        assert now() - began == pytest.approx(0.5, abs=0.01)
        await line.inbox.arrival.wait()
        assert now() - began == pytest.approx(100, abs=0.1)


async def test_a_session_begins_as_soon_as_its_channel_is_there() -> None:
    async def answer(heard: Heard) -> None:
        await heard.stream()
        await heard.gone()

    async with line_to(channel(answer)) as line:
        began = asyncio.get_running_loop().time()
        await line.connection.begin(SESSION)
        assert asyncio.get_running_loop().time() - began < 0.4


@virtual_time
@pytest.mark.parametrize("status", [200, 202, 302, 400, 401, 403, 404, 405, 406, 409, 501])
async def test_a_server_without_a_channel_is_left_alone(status: int, caplog: pytest.LogCaptureFixture) -> None:
    """HL-14: quietly, whatever it answers."""

    async def answer(heard: Heard) -> None:
        await heard.plain(status, b"no channel here", Location="/elsewhere")

    caplog.set_level(logging.INFO)
    async with line_to(channel(answer)) as line:
        began = now()
        await line.connection.begin(SESSION)
        assert now() - began < 0.5
        await asyncio.sleep(1000)
        assert len(line.peer.of("GET")) == 1
    assert caplog.messages == []


@virtual_time
async def test_a_channel_that_ends_is_opened_anew_where_it_ended(caplog: pytest.LogCaptureFixture) -> None:
    """HL-10, HL-18: after a second, or when the server says; without a word, since servers end idle channels all the time."""

    async def answer(heard: Heard) -> None:
        await heard.stream()
        number = len(line.peer.of("GET"))
        if number == 1:
            await heard.event(CHANGED, id="g-1")
        elif number == 2:
            await heard.event(CHANGED, id="g-2", retry=7000)
            heard.abort()
            return
        else:
            await heard.event({"method": "notifications/last"})
            await heard.gone()
        await heard.end()

    caplog.set_level(logging.INFO)
    async with line_to(channel(answer)) as line:
        began = now()
        await line.connection.begin(SESSION)
        while "notifications/last" not in line.inbox.notes:
            line.inbox.arrival.clear()
            await line.inbox.arrival.wait()
        gets = line.peer.of("GET")
        assert [heard.at - began for heard in gets] == pytest.approx([0, 1, 8], abs=0.1)
        assert [heard.headers.get("last-event-id") for heard in gets] == [None, "g-1", "g-2"]
    assert caplog.messages == []


@virtual_time
async def test_a_server_that_ends_every_channel_at_once_is_asked_ever_more_rarely() -> None:
    """At most every 30 s or so; never less, for as long as the session lives."""

    async def answer(heard: Heard) -> None:
        await heard.stream()
        await heard.end()

    async with line_to(channel(answer)) as line:
        await line.connection.begin(SESSION)
        await asyncio.sleep(600)
        first = len(line.peer.of("GET"))
        assert 20 <= first <= 30
        await asyncio.sleep(600)
        assert 19 <= len(line.peer.of("GET")) - first <= 21


@virtual_time
async def test_a_server_that_wants_no_wait_gets_a_short_one() -> None:
    async def answer(heard: Heard) -> None:
        await heard.stream()
        await heard.event(CHANGED, retry=0)
        await heard.end()

    async with line_to(channel(answer)) as line:
        await line.connection.begin(SESSION)
        await asyncio.sleep(10)
        assert 90 <= len(line.peer.of("GET")) <= 101


@virtual_time
async def test_a_channel_that_has_lived_for_long_is_opened_anew_after_a_second() -> None:
    """Proxies cut what is silent for a minute."""

    async def answer(heard: Heard) -> None:
        await heard.stream()
        await asyncio.sleep(60)
        await heard.end()

    async with line_to(channel(answer)) as line:
        began = now()
        await line.connection.begin(SESSION)
        await asyncio.sleep(200)
        assert [heard.at - began for heard in line.peer.of("GET")] == pytest.approx([0, 61, 122, 183], abs=0.2)


@virtual_time
async def test_a_server_that_was_away_finds_its_channel_again(caplog: pytest.LogCaptureFixture) -> None:
    """A17: refused connections and 5xx are waited out, from the first GET on; a 4xx in between, too: the old channel may still be there."""
    statuses = [503, 502, 200, 409, 500, 200]

    async def answer(heard: Heard) -> None:
        status = statuses.pop(0) if statuses else 200
        if status != 200:
            await heard.plain(status)
            return
        await heard.stream()
        if statuses:
            heard.abort()
            return
        await heard.event(CHANGED)
        await heard.gone()

    caplog.set_level(logging.INFO)
    async with line_to(channel(answer)) as line:
        await line.connection.begin(SESSION)
        await line.inbox.arrival.wait()
    assert not statuses
    assert caplog.messages == []


@virtual_time
async def test_a_channel_outlives_its_server() -> None:
    """A17: down for ten minutes, then up again on the same port."""

    async def answer(heard: Heard) -> None:
        await heard.stream()
        await heard.event(CHANGED)
        await heard.gone()

    inbox = Inbox()
    async with WirePeer(channel(answer)) as peer:
        connection = HttpConnection(peer.url, max_message=1000, headers={})
        await connection.open(Origin(peer.url), inbox)
        await connection.begin(SESSION)
        await inbox.arrival.wait()
    await asyncio.sleep(600)
    inbox.arrival.clear()
    async with WirePeer(channel(answer), port=peer.port):
        await inbox.arrival.wait()
        await connection.close()
    assert len(inbox.notes) == 2


@virtual_time
@pytest.mark.parametrize("status", [404, 405])
async def test_a_session_that_is_gone_has_no_channel_any_more(status: int) -> None:
    """HL-23: the next request finds out."""

    async def answer(heard: Heard) -> None:
        if len(line.peer.of("GET")) == 1:
            await heard.stream()
            await heard.end()
        else:
            await heard.plain(status)

    async with line_to(channel(answer)) as line:
        await line.connection.begin(SESSION)
        await asyncio.sleep(1000)
        assert len(line.peer.of("GET")) == 2


@virtual_time
async def test_an_event_past_the_limit_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """A45: what came whole before it counts, and the channel is opened anew."""

    async def answer(heard: Heard) -> None:
        await heard.stream()
        await heard.chunk(b'data: {"jsonrpc":"2.0","method":"notifications/a"}\n\ndata: ' + b"x" * 2000)
        await heard.gone()

    caplog.set_level(logging.INFO)
    async with line_to(channel(answer), max_message=1000) as line:
        await line.connection.begin(SESSION)
        await asyncio.sleep(10)
        assert len(line.peer.of("GET")) > 2
        assert set(line.inbox.notes) == {"notifications/a"}
    (message,) = caplog.messages
    assert "1000 bytes" in message
    assert "max_message=" in message


@virtual_time
async def test_nonsense_is_passed_over_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    async def answer(heard: Heard) -> None:
        await heard.stream()
        for _ in range(100):
            await heard.event("garbage")
        await heard.event(CHANGED)
        await heard.gone()

    caplog.set_level(logging.INFO)
    async with line_to(channel(answer)) as line:
        await line.connection.begin(SESSION)
        await line.inbox.arrival.wait()
    assert len(caplog.messages) == 1


async def test_a_channel_gets_its_credentials_by_itself() -> None:
    async def answer(heard: Heard) -> None:
        if heard.headers["authorization"] == "Bearer c":
            await heard.stream()
            await heard.event(CHANGED)
            await heard.gone()
        else:
            await heard.plain(401)

    keys = Keys("a", "b", "c")
    async with line_to(channel(answer), auth=keys) as line, asyncio.timeout(10):
        await line.connection.begin(SESSION)
        await line.inbox.arrival.wait()
        assert line.peer.of("GET")[-1].headers["dpop"] == f"GET {line.peer.url}"
    assert [challenge.http_method for challenge in keys.challenges] == ["GET", "GET"]


@virtual_time
async def test_a_channel_without_credentials_is_no_channel(caplog: pytest.LogCaptureFixture) -> None:
    class Refused(Keys):
        async def answer(self, challenge: object) -> bool:
            raise AuthorizationFailed("nobody logged in", Origin("x"))

    async def answer(heard: Heard) -> None:
        await heard.plain(401)

    caplog.set_level(logging.INFO)
    async with line_to(channel(answer), auth=Refused("a")) as line:
        await line.connection.begin(SESSION)
        await asyncio.sleep(1000)
        assert len(line.peer.of("GET")) == 1
    assert [message for message in caplog.messages if "nobody logged in" in message]
    caplog.clear()
    async with line_to(channel(answer), auth=Keys("a")) as line:
        await line.connection.begin(SESSION)
        await asyncio.sleep(1000)
        assert len(line.peer.of("GET")) == 1
    assert caplog.messages == []


@virtual_time
async def test_closing_ends_a_channel_in_whatever_state_it_is() -> None:
    async def answer(heard: Heard) -> None:
        if heard.headers["mcp-session-id"] == "waits":
            await heard.plain(503)
            return
        if heard.headers["mcp-session-id"] == "hears":
            await heard.stream()
        await heard.gone()

    for state in ("waits", "hears", "silent"):
        async with line_to(channel(answer)) as line:
            beginning = asyncio.create_task(line.connection.begin({"Mcp-Session-Id": state}))
            await line.peer.until("GET")
            await settle()
            began = now()
            await line.connection.close()
            assert now() - began < 0.2
            await beginning
        assert [task for task in asyncio.all_tasks() if "channel" in task.get_name()] == []

"""How requests of a session over HTTP are given up, what has no answer, credentials, and the end, against a bare socket."""

import asyncio
import logging
import ssl
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from endings import ends, handed_back, watched
from unit.client.wire_peer import SESSION, Heard, Inbox, Keys, Line, WirePeer, ask, line_to, self_signed
from virtual_time import now, virtual_time

from callboard.client.auth import HttpRequest
from callboard.client.connection import Challenged
from callboard.client.errors import AuthorizationFailed, ClientError, ConnectionFailed, HttpError, Origin
from callboard.client.http import HttpConnection
from callboard.wire.jsonrpc import RawNotification

PROGRESS = {"method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}}


def ok(message: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message["id"], "result": {"ok": True}}


async def result(heard: Heard) -> None:
    await heard.result()


# Giving up.


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("how", ["cancel", "callback"])
async def test_a_request_that_is_given_up_is_told(how: str, streaming: bool) -> None:
    """HL-07, CN-01, A12."""

    async def answer(heard: Heard) -> None:
        if heard.message["method"] == "notifications/cancelled":
            await heard.plain(202, b"", None)
            return
        if streaming or how == "callback":
            await heard.stream()
            await heard.event(PROGRESS)
        assert await heard.gone()

    async def fail(note: RawNotification) -> None:
        raise HttpError(400, "mine", Origin("elsewhere", "x", 1))

    async with line_to(answer) as line, asyncio.timeout(10):
        task = asyncio.create_task(line.connection.exchange(ask(line.peer, 7), fail if how == "callback" else line.note))
        await line.peer.until("tools/call")
        if how == "cancel":
            task.cancel()
        with pytest.raises(asyncio.CancelledError if how == "cancel" else HttpError):
            await task
        (notice,) = await line.peer.until("notifications/cancelled")
    assert notice.message["params"] == {"requestId": 7}
    assert notice.headers["mcp-session-id"] == "s-1"


async def test_a_request_that_is_not_to_be_told_is_cancelled_by_closing_its_response() -> None:
    """CN-01, HM-15."""
    gone = asyncio.Event()

    async def answer(heard: Heard) -> None:
        await heard.stream()
        if await heard.gone():
            gone.set()

    async with line_to(answer) as line, asyncio.timeout(10):
        task = asyncio.create_task(line.exchange(told=False))
        await line.peer.until("tools/call")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await gone.wait()
    assert len(line.peer.heard) == 1


@pytest.mark.parametrize("wrong", ["HTTP error", "no JSON-RPC", "nobody there", "no login", "no issuer"])
async def test_nothing_is_told_where_nothing_is_at_work(wrong: str) -> None:
    class Failing(Keys):
        async def headers(self, http_method: str, url: str) -> Mapping[str, str]:
            if wrong == "no login":
                raise AuthorizationFailed("nobody logged in", Origin("x"))
            if wrong == "no issuer":
                raise ConnectionFailed("can't connect", Origin("issuer"))
            return {}

    async def answer(heard: Heard) -> None:
        await heard.plain(500 if wrong == "HTTP error" else 200, b"{}", "application/json")

    async with line_to(answer, auth=Failing("a")) as line:
        if wrong == "nobody there":
            await line.peer.__aexit__(None, None, None)
        with pytest.raises(ClientError) as caught:
            await line.exchange()
        assert getattr(caught.value, "sent", False) is False
        await asyncio.sleep(0)
        assert not line.connection._notices
    assert not line.peer.of("notifications/cancelled")


@virtual_time
async def test_telling_takes_two_seconds_at_most_and_closing_waits_for_it() -> None:
    async def answer(heard: Heard) -> None:
        await heard.gone()

    async with line_to(answer) as line:
        task = asyncio.create_task(line.exchange(resumed=True))
        await line.peer.until("tools/call")
        task.cancel()
        await asyncio.wait([task])
        began = now()
        await line.connection.close()
        assert now() - began == pytest.approx(2, abs=0.05)
    assert len(line.peer.of("notifications/cancelled")) == 1


# Notifications and responses.


@pytest.mark.parametrize(("status", "body"), [(202, b""), (200, b'{"jsonrpc":"2.0","id":9,"result":{}}'), (204, b"")])
async def test_any_success_will_do_for_a_notification(status: int, body: bytes) -> None:
    """HL-04."""

    async def answer(heard: Heard) -> None:
        await heard.plain(status, body, "application/json" if body else None)

    async with line_to(answer) as line:
        for _ in range(3):
            await line.connection.send(b'{"jsonrpc":"2.0","method":"notifications/initialized"}', SESSION, Origin(line.peer.url))
        assert line.peer.connections == 1
    assert line.peer.heard[0].headers["mcp-session-id"] == "s-1"


async def test_a_notification_that_is_refused_says_why() -> None:
    async def answer(heard: Heard) -> None:
        await heard.plain(404, b"no such session")

    async with line_to(answer) as line:
        with pytest.raises(HttpError, match="no such session") as caught:
            await line.connection.send(b"{}", SESSION, Origin(line.peer.url, "notifications/initialized"))
    assert caught.value.status == 404


# Credentials.


async def test_the_credentials_win_over_a_user_s_own_header_and_learn_from_answers() -> None:
    async def answer(heard: Heard) -> None:
        await heard.result(DPoP_Nonce="n-1")

    keys = Keys("a")
    async with line_to(answer, headers={"authorization": "mine", "X-Team": "blue"}, auth=keys) as line:
        await line.exchange()
        assert keys.url == line.peer.url
    (heard,) = line.peer.heard
    assert [value for name, value in heard.pairs if name == "authorization"] == ["Bearer a"]
    assert heard.headers["dpop"] == f"POST {line.peer.url}"
    assert heard.headers["x-team"] == "blue"
    assert keys.learned[0]["dpop-nonce"] == "n-1"


@pytest.mark.parametrize("status", [401, 403])
async def test_a_request_that_lacks_credentials_says_what_the_server_wants(status: int) -> None:
    """A30."""

    async def answer(heard: Heard) -> None:
        await heard.plain(status, b"log in", WWW_Authenticate='Bearer resource_metadata="x"')

    async with line_to(answer, auth=Keys("a")) as line:
        with pytest.raises(Challenged, match="log in") as caught:
            await line.exchange()
        assert not line.connection._notices
    challenge = caught.value.challenge
    assert (challenge.status, challenge.http_method, challenge.url, challenge.protocol) == (status, "POST", line.peer.url, "2025-11-25")
    assert ("www-authenticate", 'Bearer resource_metadata="x"') in challenge.headers
    assert challenge.sent["Authorization"] == "Bearer a"
    async with line_to(answer) as line:
        with pytest.raises(HttpError, match="give it a header" if status == 401 else "refuses this client") as refused:
            await line.exchange()
    assert not isinstance(refused.value, Challenged)


async def test_what_is_sent_gets_its_credentials_by_itself() -> None:
    async def answer(heard: Heard) -> None:
        allowed = heard.headers["authorization"] in ("Bearer c", "Bearer d")
        await heard.plain(202 if allowed else 401, b"", None)

    keys = Keys("a", "b", "c")
    async with line_to(answer, auth=keys) as line:
        await line.connection.send(b"{}", SESSION, Origin(line.peer.url))
        assert [challenge.sent["Authorization"] for challenge in keys.challenges] == ["Bearer a", "Bearer b"]
    keys = Keys("u", "v", "w", "x", "y", "z")
    async with line_to(answer, auth=keys) as line:
        with pytest.raises(Challenged):
            await line.connection.send(b"{}", SESSION, Origin(line.peer.url))
    assert len(keys.challenges) == 3


async def test_a_login_in_the_url_gives_way_to_credentials() -> None:
    async with WirePeer(result) as peer:
        connection = HttpConnection(peer.url.replace("//", "//joe:secret@"), max_message=1000, headers={}, auth=Keys("a"))
        await connection.open(Origin(peer.url), Inbox())
        await connection.exchange(ask(peer), Line(peer, connection).note)
        await connection.close()
    assert peer.heard[0].headers["authorization"] == "Bearer a"


# Fetching, for whoever gets the credentials.


async def test_a_fetch_carries_its_own_headers_and_no_others() -> None:
    async def answer(heard: Heard) -> None:
        if heard.path == "/moved":
            await heard.plain(302, b"", Location="/other")
        else:
            await heard.plain(400, b'{"error":"x"}', "application/json", X_B="1")

    keys = Keys("a")
    async with line_to(answer, headers={"X-Team": "blue"}, auth=keys) as line:
        assert keys.fetch is not None
        base = line.peer.url.removesuffix("/mcp")
        found = await keys.fetch(HttpRequest("POST", f"{base}/token?q=1", {"Content-Type": "text/x"}, b"a=b"))
        moved = await keys.fetch(HttpRequest("GET", f"{base}/moved"))
    assert (found.status, found.headers["x-b"], found.body) == (400, "1", b'{"error":"x"}')
    assert (moved.status, moved.headers["location"]) == (302, "/other")
    heard, _ = line.peer.heard
    assert (heard.method, heard.path, heard.body, heard.headers["content-type"]) == ("POST", "/token?q=1", b"a=b", "text/x")
    assert not {"x-team", "authorization", "mcp-session-id"} & heard.headers.keys()
    assert keys.learned == []


async def test_a_fetch_that_fails_tells_no_secret() -> None:
    async def answer(heard: Heard) -> None:
        if heard.path.startswith("/large"):
            await heard.plain(200, b"x" * (2**20 + 1))
        elif heard.path.startswith("/endless"):
            await heard.stream()
            while True:
                await heard.chunk(b"x" * 2**16)
        else:
            heard.abort()

    keys = Keys("a")
    async with line_to(answer, auth=keys) as line:
        assert keys.fetch is not None
        for path, expected in [("large", "1048576 bytes"), ("endless", "1048576 bytes"), ("broken", "broke")]:
            url = line.peer.url.replace("//", "//joe:secret@").replace("mcp", f"{path}?code=secret")
            with pytest.raises(ConnectionFailed, match=expected) as caught:
                await keys.fetch(HttpRequest("GET", url))
            assert "secret" not in str(caught.value)
            assert f"/{path}" in str(caught.value)
        with pytest.raises(ConnectionFailed, match="no URL"):
            await keys.fetch(HttpRequest("GET", "http://[::1"))


@virtual_time
async def test_a_fetch_ends_after_ten_seconds() -> None:
    async def answer(heard: Heard) -> None:
        await heard.gone()

    keys = Keys("a")
    async with line_to(answer, auth=keys) as line:
        assert keys.fetch is not None
        began = now()
        with pytest.raises(ConnectionFailed, match="within 10 s"):
            await keys.fetch(HttpRequest("GET", line.peer.url))
        assert now() - began == pytest.approx(10, abs=0.1)


# Closing.


async def test_closing_ends_the_session() -> None:
    """HL-25."""

    async def answer(heard: Heard) -> None:
        await heard.plain(405 if heard.method in ("GET", "DELETE") else 202, b"", None)

    async with line_to(answer, headers={"X-Team": "blue"}) as line:
        await line.connection.begin(SESSION)
        await asyncio.gather(line.connection.close(), line.connection.close())
        await line.connection.close()
    (heard,) = line.peer.of("DELETE")
    assert heard.headers["mcp-session-id"] == "s-1"
    assert heard.headers["mcp-protocol-version"] == "2025-11-25"
    assert heard.headers["x-team"] == "blue"


async def test_closing_asks_nobody_to_log_in() -> None:
    async def answer(heard: Heard) -> None:
        await heard.plain(401 if heard.method == "DELETE" else 405)

    keys = Keys("a", "b")
    async with line_to(answer, auth=keys) as line:
        await line.connection.begin(SESSION)
    assert keys.challenges == []
    assert line.peer.of("DELETE")[0].headers["dpop"] == f"DELETE {line.peer.url}"


async def test_a_session_without_an_id_has_no_end_to_tell() -> None:
    """HL-20."""

    async def answer(heard: Heard) -> None:
        await heard.plain(405)

    async with line_to(answer) as line:
        await line.connection.begin({"MCP-Protocol-Version": "2025-11-25"})
    assert [heard.method for heard in line.peer.heard] == ["GET"]


async def test_a_second_session_replaces_the_first() -> None:
    """HL-24."""
    gone: asyncio.Queue[str] = asyncio.Queue()

    async def answer(heard: Heard) -> None:
        if heard.method == "GET":
            await heard.stream()
            await heard.gone()
            gone.put_nowait(heard.headers["mcp-session-id"])
        else:
            await heard.plain(200)

    async with line_to(answer) as line:
        await line.connection.begin(SESSION)
        await line.connection.begin({**SESSION, "Mcp-Session-Id": "s-2"})
        async with asyncio.timeout(10):
            assert await gone.get() == "s-1"
    assert [(heard.method, heard.headers["mcp-session-id"]) for heard in line.peer.heard] == [
        ("GET", "s-1"),
        ("GET", "s-2"),
        ("DELETE", "s-2"),
    ]


@virtual_time
async def test_closing_waits_two_seconds_for_a_server_that_says_nothing() -> None:
    async def answer(heard: Heard) -> None:
        await heard.gone()

    async with line_to(answer) as line:
        await line.connection.begin(SESSION)
        waiting = asyncio.create_task(line.exchange())
        await line.peer.until("tools/call")
        began = now()
        closing = asyncio.create_task(line.connection.close())
        with pytest.raises(ConnectionFailed, match="client was closed"):
            await waiting
        assert now() == began  # at once, and not when the server has been told
        await closing
        assert now() - began == pytest.approx(2, abs=0.05)
    assert not line.peer.of("notifications/cancelled")


@virtual_time
async def test_closing_ends_what_waits_to_take_up_a_stream() -> None:
    async def answer(heard: Heard) -> None:
        await heard.stream()
        await heard.event(id="a-0", retry=50_000)
        await heard.end()

    async with line_to(answer) as line:
        waiting = asyncio.create_task(line.exchange(resumed=True))
        await line.peer.until("tools/call")
        await asyncio.sleep(1)
        began = now()
        await line.connection.close()
        with pytest.raises(ConnectionFailed, match="client was closed"):
            await waiting
        assert now() == began


@pytest.mark.parametrize("resumed", [False, True])
async def test_a_callback_may_close_the_connection_of_its_own_request(resumed: bool) -> None:
    async def answer(heard: Heard) -> None:
        if heard.method == "DELETE":
            await heard.plain(200)
        elif heard.method == "GET":
            await heard.plain(405)
        else:
            await heard.stream()
            await heard.event(PROGRESS, id="a-0", retry=1)
            await heard.gone()

    async with line_to(answer) as line, asyncio.timeout(10):
        await line.connection.begin(SESSION)

        async def close(note: RawNotification) -> None:
            await line.connection.close()

        with pytest.raises(ConnectionFailed) as caught:
            await line.connection.exchange(ask(line.peer, resumed=resumed), close)
        assert caught.value.text == "the client was closed before the answer came"
        assert not line.connection._notices
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
    assert len(line.peer.of("DELETE")) == 1


async def test_a_callback_that_swallows_its_cancellation_leaves_its_task_as_it_was() -> None:
    called = asyncio.Event()

    async def answer(heard: Heard) -> None:
        await heard.stream()
        await heard.event(PROGRESS)
        await heard.gone()

    async def stubborn(note: RawNotification) -> None:
        called.set()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)

    async def call(line: Line) -> int:
        with pytest.raises(ConnectionFailed, match="client was closed"):
            await line.connection.exchange(ask(line.peer), stubborn)
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    async with line_to(answer) as line, asyncio.timeout(10):
        calling = asyncio.create_task(call(line))
        await called.wait()
        await line.connection.close()
        assert await calling == 0


async def test_a_closed_connection_may_be_opened_anew() -> None:
    async with line_to(result) as line:
        await line.exchange(1)
        await line.connection.close()
        await line.connection.open(Origin(line.peer.url), line.inbox)
        await line.exchange(2)
        await line.connection.open(Origin(line.peer.url), line.inbox)
        await line.exchange(3)


@pytest.mark.parametrize("secure", [False, True])
async def test_closing_leaves_nothing(secure: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A43: requests in flight, cancelled ones and a channel, over TLS too, where the other side never says goodbye."""
    context = None
    if secure:
        pem = self_signed(tmp_path)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(pem)
        # aiohttp reads the system's certificates once, when it is imported
        monkeypatch.setattr("aiohttp.connector._SSL_CONTEXT_VERIFIED", ssl.create_default_context(cafile=str(pem)))

    async def answer(heard: Heard) -> None:
        if heard.method == "DELETE":
            await heard.plain(200)
        elif heard.method == "POST" and heard.id < 3:
            await heard.result()
        else:
            await heard.stream()
            await heard.event(PROGRESS)
            await asyncio.sleep(60)

    async with WirePeer(answer, ssl=context) as peer, watched() as remains:
        connection = HttpConnection(peer.url, max_message=1000, headers={})
        line = Line(peer, connection)
        async with remains.none_of("all"):
            await connection.open(Origin(peer.url), line.inbox)
            await connection.begin(SESSION)
            await asyncio.gather(line.exchange(1), line.exchange(2))
            tasks = [asyncio.create_task(line.exchange(number, told=False)) for number in (3, 4, 5)]
            await peer.until("tools/call", 5)
            tasks[0].cancel()
            handed_back(await ends(connection.close(), 2))
            found = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(error) for error in found] == [asyncio.CancelledError, ConnectionFailed, ConnectionFailed]
        await peer.hang_up()


async def test_secrets_are_in_no_error_and_no_log(caplog: pytest.LogCaptureFixture) -> None:
    async def answer(heard: Heard) -> None:
        if heard.id == 1:
            await heard.plain(401, b"no")
        elif heard.id == 2:
            heard.abort()
        elif heard.id == 3:
            await heard.raw(b"nonsense\r\n\r\n")
        else:
            await heard.head(200, Content_Length="x")

    caplog.set_level(logging.DEBUG)
    async with line_to(answer, headers={"X-Key": "secret-1"}, auth=Keys("secret-2")) as line:
        for number in (1, 2, 3, 4):
            with pytest.raises(ClientError) as caught:
                await line.exchange(number, told=False)
            error: BaseException | None = caught.value
            while error is not None:
                assert "secret" not in f"{error!r} {error} {error.args} {vars(error) if number > 1 else ''}"
                error = error.__context__
    assert "secret" not in caplog.text

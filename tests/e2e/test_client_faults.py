"""What each fault on the way to a server becomes: the error that names it, at once where it can be known at once; and the next call works.

The server is ours and right; what goes wrong is the proxy's doing (tests/fault_proxy.py). Random faults are in tests/fuzz/test_client_faults.py.
"""

import asyncio
import re
import traceback
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest
from endings import ends, handed_back, watched
from fault_proxy import FAULTS, Fault, FaultProxy, Script
from upstream import serve

from callboard.client.client import Client
from callboard.client.errors import ClientError, ConnectionFailed, HttpError, InvalidAnswer, RequestTimeout, ServerError

MODERN, LEGACY = "2026-07-28", "2025-11-25"
VERSIONS = (MODERN, LEGACY)
SECRET = "s3cr3t-t0k3n"
# Seconds: of silence, where only that ends a call; in all, where only that does; and where neither may.
SILENCE, TOTAL, PLENTY = 0.4, 1.0, 20.0
# What is known at once takes no longer; it is the machine that is slow, with all that runs beside this.
AT_ONCE = 2.0


class Due(NamedTuple):
    """What a call comes to that meets a fault.

    Attributes:
        error: What it raises; None: it returns the right result.
        says: What stands in the error, as a pattern.
        status: Of an `HttpError`.
        is_late: Whether only the limit ends it.
    """

    error: type[ClientError] | None
    says: str = ""
    status: int | None = None
    is_late: bool = False


RIGHT = Due(None)
LATE = Due(RequestTimeout, r"no answer within 0\.4 s", is_late=True)
BROKEN = Due(ConnectionFailed, "broke|ended|lost")
NO_HTTP = Due(InvalidAnswer, "not HTTP")
NO_JSON = Due(InvalidAnswer, "JSON")
TOO_LARGE = Due(InvalidAnswer, r"1048576 bytes.*max_message")
DUE = {
    "silent": LATE,
    "drop_before": BROKEN,
    "drop_after": BROKEN,
    "half_close": BROKEN,
    "delay": RIGHT,
    "cut_head": BROKEN,
    "cut_body": BROKEN,
    "cut_chunk": BROKEN,
    "cut_frame": BROKEN,
    "no_answer": BROKEN,
    "close_after": RIGHT,
    "slow_head": RIGHT,
    "slow_body": RIGHT,
    "endless_head": LATE,
    "endless_interim": LATE,
    "bad_gateway": Due(HttpError, "502.*bad gateway", 502),
    "unavailable": Due(HttpError, "503.*upstream is restarting", 503),
    "too_many": Due(HttpError, "429.*slow down", 429),
    "crash": Due(HttpError, "500.*Internal Server Error", 500),
    "forbidden": Due(HttpError, "403.*not from here", 403),
    "redirect": Due(HttpError, "307.*not followed", 307),
    "no_content": Due(InvalidAnswer, "204 without a body"),
    "accepted": Due(InvalidAnswer, "202 without a body"),
    "garbage": NO_HTTP,
    "bad_length": NO_HTTP,
    "long_length": LATE,
    "bad_chunk": NO_HTTP,
    "garbage_json": NO_JSON,
    "deep_json": NO_JSON,
    "strange_json": NO_JSON,
    "wrong_shape": Due(InvalidAnswer, "does not fit"),
    "bad_utf8": NO_JSON,
    "wrong_type": Due(HttpError, "200.*text/html.*log in", 200),
    "wrong_id": Due(InvalidAnswer, "another request"),
    "empty": Due(InvalidAnswer, "200"),
    "huge": TOO_LARGE,
    "huge_event": TOO_LARGE,
    "gzip_bomb": Due(InvalidAnswer),
    "endless_comments": LATE,
    "endless_events": LATE,
    "endless_strangers": LATE,
    "other_first": RIGHT,
    "duplicate": RIGHT,
    "session_gone": Due(ServerError, "Session not found"),
    "session_lost": Due(ServerError, "no valid session id"),
    "session_unknown": Due(HttpError, "404.*Not Found", 404),
}
# Kinds that are tried side by side, where what comes of them is the same.
DECKS = [sorted(FAULTS)[at::8] for at in range(8)]
# A session is opened anew, and the call sent again: it has not been run (A03).
OF_A_SESSION = {"session_gone": RIGHT, "session_lost": RIGHT, "session_unknown": RIGHT}
# The rest of the stream is fetched where it broke off (HL-19).
OF_A_SESSIONS_STREAM = {"cut_body": RIGHT}


def options(**more: Any) -> dict[str, Any]:
    """Options of a client."""
    return {"timeout": PLENTY, "total_timeout": PLENTY, "connect_timeout": PLENTY, "max_message": 2**20, **more}


def in_era(version: str) -> dict[str, Any]:
    return {"versions": (version,)}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serve() as url:
        yield url


@asynccontextmanager
async def through(url: str, script: Script, version: str = MODERN, **more: Any) -> AsyncIterator[tuple[Client, FaultProxy]]:
    """A client of a server behind a proxy."""
    async with FaultProxy(url, script) as proxy:
        headers = {"Authorization": f"Bearer {SECRET}"}
        client = Client(proxy.url, headers=headers, **options(**more), **in_era(version))
        handed_back(await ends(client.__aenter__(), PLENTY, "open"))
        try:
            yield client, proxy
        finally:
            handed_back(await ends(client.close(), 1, "close"))


def once(fault: Fault, method: str = "tools/call") -> Script:
    """Strikes at the first request of a method."""
    left = [fault]
    return lambda ask: left.pop() if left and method in {ask.method, ask.verb} else None


def always(fault: Fault, method: str = "tools/call") -> Script:
    """Strikes at each request of a method."""
    return lambda ask: fault if method in {ask.method, ask.verb} else None


async def call(client: Client, *, streaming: bool = False, **limits: Any) -> str:
    """A tool that says the same again."""
    if streaming:
        result = await client.call_tool("count", {"text": "é"}, on_progress=lambda *_: None, **limits)
    else:
        result = await client.call_tool("echo", {"text": "é"}, **limits)
    (block,) = result.content
    return str(getattr(block, "text", ""))


def check(error: BaseException, due: Due, client: Client) -> None:
    """An error says which request failed, where, and why; and no secret."""
    assert due.error is not None, repr(error)
    assert isinstance(error, due.error), repr(error)
    assert type(error) is not ClientError
    assert re.search(due.says, str(error), re.DOTALL), str(error)
    assert (error.target, error.method) == (client.target, "tools/call")
    assert isinstance(error.request_id, int)
    assert str(error).startswith("tools/call ")
    assert getattr(error, "status", due.status) == due.status or isinstance(error, ServerError)
    assert SECRET not in "".join(traceback.format_exception(error))
    chain: BaseException | None = error
    while chain is not None:  # a tool that reports crashes keeps these, too
        assert SECRET not in repr(chain)
        chain = chain.__cause__ or chain.__context__


def make_fault(kind: str) -> Fault:
    return Fault(kind, pause=0.1 if kind == "delay" else 0.0)


async def try_fault(kind: str, version: str, streaming: bool, url: str) -> None:
    """One call that meets a fault, and one that meets none."""
    due = DUE[kind]
    if version == LEGACY:
        due = OF_A_SESSION.get(kind, due)
        due = OF_A_SESSIONS_STREAM.get(kind, due) if streaming else due
    limit = SILENCE if due.is_late else PLENTY
    async with through(url, once(make_fault(kind)), version) as (client, proxy):
        outcome = await ends(call(client, streaming=streaming, timeout=limit), limit, kind)
        assert [fault.kind for _, fault in proxy.struck] == [kind]
        if due is RIGHT:
            assert handed_back(outcome) == "é"
        else:
            assert outcome.error is not None, outcome.value
            check(outcome.error, due, client)
            assert due.is_late or outcome.seconds < AT_ONCE
        assert handed_back(await ends(call(client), PLENTY, "the next call")) == "é"


async def all_of(work: dict[str, Coroutine[Any, Any, None]]) -> None:
    """Side by side; what fails says which it is."""
    found = await asyncio.gather(*work.values(), return_exceptions=True)
    failures = []
    for name, each in zip(work, found, strict=True):
        if isinstance(each, BaseException):
            each.add_note(name)
            failures.append(each)
    if failures:
        raise BaseExceptionGroup("; ".join(work), failures)


@pytest.mark.parametrize("kind", DUE)
async def test_a_fault_has_its_error_and_the_next_call_works(kind: str, url: str, caplog: pytest.LogCaptureFixture) -> None:
    """A41, A42, A60, HM-14, CN-07."""
    async with watched():
        await all_of(
            {
                f"{version} {'stream' if streaming else 'json'}": try_fault(kind, version, streaming, url)
                for version in VERSIONS
                for streaming in (False, True)
            }
        )
    assert SECRET not in caplog.text


def test_every_fault_is_tried() -> None:
    """Those that need a test of their own have one below."""
    assert FAULTS.keys() - DUE.keys() == {"endless_progress", "reset_reuse"}


@pytest.mark.parametrize("version", VERSIONS)
async def test_progress_without_end_ends_by_the_limit_in_all(version: str, url: str) -> None:
    """A15, CN-08."""
    async with through(url, once(Fault("endless_progress")), version) as (client, _):
        outcome = await ends(call(client, streaming=True, timeout=0.7, total_timeout=TOTAL), TOTAL, "endless progress")
        assert isinstance(outcome.error, RequestTimeout)
        assert outcome.error.seconds == TOTAL
        assert outcome.seconds >= TOTAL - 0.01
        assert await call(client) == "é"


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_connection_that_ends_while_it_is_idle_is_no_error(version: str, url: str) -> None:
    """Servers close connections that nobody uses; the next call opens another."""
    async with through(url, always(Fault("close_after")), version) as (client, _):
        for _ in range(5):
            assert await call(client) == "é"
            await asyncio.sleep(0.02)  # the end of the connection is on its way


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_connection_that_ends_just_as_it_is_used_is_named(version: str, url: str) -> None:
    async with through(url, once(Fault("reset_reuse")), version) as (client, _):
        assert await call(client) == "é"
        outcome = await ends(call(client), 5)
        if outcome.error is not None:
            check(outcome.error, BROKEN, client)
        assert await call(client) == "é"


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_server_that_dies_fails_all_that_waits_and_may_come_back(version: str, url: str) -> None:
    """A17, A41: a thousandth of the limit is enough."""
    async with through(url, lambda _: None, version) as (client, proxy):
        begun: list[asyncio.Event] = [asyncio.Event() for _ in range(5)]

        async def wait(event: asyncio.Event) -> None:
            await client.call_tool("wait", {"seconds": 30}, on_progress=lambda *_: event.set())

        waiting = [asyncio.create_task(ends(wait(event), 10)) for event in begun]
        for event in begun:
            await event.wait()
        await proxy.vanish()
        for outcome in await asyncio.gather(*waiting):
            assert isinstance(outcome.error, ConnectionFailed)
            assert outcome.error.method == "tools/call"
        refused = await ends(call(client), 1)
        assert isinstance(refused.error, ConnectionFailed)
        assert "is the server running" in str(refused.error)
        await proxy.listen()
        assert await call(client) == "é"


@pytest.mark.parametrize("kind", ["huge", "huge_event"])
async def test_what_is_too_large_is_not_read_to_the_end(kind: str, url: str) -> None:
    """A45."""
    async with through(url, once(Fault(kind))) as (client, proxy):
        with pytest.raises(InvalidAnswer, match="max_message"):
            await call(client)
        assert proxy.written < 16 * 2**20  # the limit, and what is in the pipes


async def try_channel(kind: str, url: str) -> None:
    """Calls of a session whose stream meets a fault."""
    async with through(url, always(make_fault(kind), "GET"), LEGACY) as (client, proxy):
        for _ in range(3):
            assert await call(client) == "é"
            assert await call(client, streaming=True) == "é"
        await asyncio.sleep(0.1)
        # Whoever opens it again waits in between: an attack on the server would be the other fault.
        assert len([ask for ask in proxy.asks if ask.verb == "GET"]) <= 5


@pytest.mark.parametrize("kinds", DECKS, ids=lambda kinds: f"{kinds[0]} and others")
async def test_the_stream_of_a_session_may_fail_as_it_likes(kinds: list[str], url: str) -> None:
    """HL-14: what the server says of its own accord is lost then; calls are not."""
    async with watched() as remains, remains.none_of("client"):
        await all_of({kind: try_channel(kind, url) for kind in kinds})


@pytest.mark.parametrize(
    "kind", ["silent", "drop_before", "bad_gateway", "redirect", "garbage", "endless_comments", "huge", "endless_head"]
)
async def test_closing_does_not_wait_for_a_server_that_does_not_answer(kind: str, url: str) -> None:
    """HL-25: the session's end is told, and no answer is needed."""
    async with through(url, always(Fault(kind), "DELETE"), LEGACY) as (client, proxy):
        assert await call(client) == "é"
    assert [ask.verb for ask in proxy.asks].count("DELETE") in {1, 2}


async def try_opening(kind: str, method: str, url: str) -> None:
    """Open a client whose first words meet a fault."""
    versions: dict[str, Any] = {} if method == "server/discover" else {"versions": (LEGACY,)}
    async with FaultProxy(url, always(make_fault(kind), method)) as proxy:
        client = Client(proxy.url, **options(connect_timeout=0.5), **versions)
        opened = await ends(client.__aenter__(), 0.5, "open")
        if opened.error is not None:
            assert isinstance(opened.error, ClientError)
            assert type(opened.error) is not ClientError
            assert proxy.url in str(opened.error)
        else:
            outcome = await ends(call(client, total_timeout=TOTAL), TOTAL)
            assert outcome.error is None or isinstance(outcome.error, ClientError)
        handed_back(await ends(client.close(), 1, "close"))


@pytest.mark.parametrize("kinds", DECKS, ids=lambda kinds: f"{kinds[0]} and others")
async def test_a_client_that_can_not_open_says_why(kinds: list[str], url: str) -> None:
    methods = ("server/discover", "initialize", "notifications/initialized")
    async with watched() as remains, remains.none_of("client"):
        await all_of({f"{kind} {method}": try_opening(kind, method, url) for kind in kinds for method in methods})

"""What a function can know of, and send to, the request that it serves."""

import asyncio
import math
import sys
import threading
from contextlib import suppress
from typing import Any, get_origin

import msgspec
import pytest
from asgi_driver import LATEST, make_meta
from oracles import mcp_types_notification
from served import make_context, make_lifted, make_mount, taken

from callboard import Context, Server
from callboard.core.exchange import HARD_CAP, SOFT_CAP, State
from callboard.server.state import Hello
from callboard.wire.versions import LOG_LEVELS


def asking(**meta: Any) -> Context:
    """The context of a request with these keys in its envelope."""
    return make_context(request=make_lifted(meta=make_meta(**meta)))


async def on_thread(function: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, function)


# What it carries


async def test_it_says_what_the_request_said() -> None:
    # A49
    server = Server("desk")
    mount = make_mount(server, options={"limit": 3})
    meta = make_meta({"elicitation": {}}, clientInfo={"name": "acme", "version": "1"}, traceparent="00-a-b-01")
    request = make_lifted("tools/call", {"name": "x"}, request_id="7", meta=meta, headers={b"x-api-key": b"k"})
    ctx = make_context(mount, request, principal="ann", scope_state={"db": 1})
    assert (ctx.request_id, ctx.method, ctx.protocol_version) == ("7", "tools/call", LATEST)
    assert ctx.request is request
    assert ctx.client_info.name == "acme"
    assert ctx.client_capabilities == {"elicitation": {}}
    assert ctx.headers == {"x-api-key": "k"}
    assert ctx.meta == meta
    assert (ctx.principal, ctx.scope_state, ctx.options, ctx.server, ctx.session_id) == ("ann", {"db": 1}, {"limit": 3}, server, None)


async def test_what_is_not_there_is_none() -> None:
    # MT-04
    ctx = make_context()
    assert ctx.client_info is None
    assert ctx.headers is None
    assert ctx.options is None
    assert ctx.principal is None
    assert ctx.scope_state is None


async def test_locals_begin_with_the_lifespans_values_and_are_this_requests_own() -> None:
    # A49
    client = object()
    mount = make_mount(values={"client": client})
    first, second = make_context(mount), make_context(mount)
    first.locals["user"] = "ann"
    assert first.locals["client"] is client
    assert "user" not in second.locals
    assert mount.values == {"client": client}


async def test_generic_forms_stand_in_annotations() -> None:
    # A50
    form: Any = Context
    assert get_origin(form[int, str]) is Context


# Progress


async def test_progress_reaches_the_client_at_once() -> None:
    # PR-01, PR-02, MT-10
    for token in ("p9", 9):
        ctx = asking(progressToken=token)
        ctx.progress(1)
        ctx.progress(2.5, 4, "half")
        first, second = taken(ctx)
        assert first == {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": token, "progress": 1}}
        assert second["params"] == {"progressToken": token, "progress": 2.5, "total": 4, "message": "half"}
        for note in (first, second):
            mcp_types_notification(note["method"], note["params"])


async def test_without_a_token_there_is_no_progress() -> None:
    # PR-02, PR-04
    ctx = asking()
    await ctx.progress(1)
    assert taken(ctx) == []
    assert ctx.exchange.state is State.OPEN


async def test_progress_only_increases() -> None:
    # PR-03
    ctx = asking(progressToken=1)
    for value in (1, 1, 0.5, 2, -1, 2.0, 2.25):
        ctx.progress(value)
    assert [note["params"]["progress"] for note in taken(ctx)] == [1, 2, 2.25]


async def test_progress_may_begin_anywhere() -> None:
    # PR-03
    ctx = asking(progressToken=1)
    for value in (-5, 0):
        ctx.progress(value)
    assert [note["params"]["progress"] for note in taken(ctx)] == [-5, 0]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
async def test_what_is_no_number_on_the_wire_is_not_sent_as_null(value: float) -> None:
    # PR-03, SA07
    ctx = asking(progressToken=1)
    with suppress(ValueError):
        ctx.progress(value)
    with suppress(ValueError):
        ctx.progress(1, value)
    for note in taken(ctx):
        mcp_types_notification(note["method"], note["params"])


@pytest.mark.parametrize("cancelled", [True, False])
async def test_after_the_end_there_is_no_progress(cancelled: bool) -> None:
    # PR-04, HM-15
    ctx = asking(progressToken=1, logLevel="debug")
    if cancelled:
        ctx.exchange.cancel()
    else:
        ctx.exchange.finish(200, b"{}")
    for _ in range(2):
        ctx.progress(1)
        ctx.log("info", "x")
        assert taken(ctx) in ([], [{}])


async def test_progress_from_threads_only_increases_too() -> None:
    # PR-03: whatever thread is fastest
    ctx = asking(progressToken=1)
    start = threading.Barrier(4)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:

        def work() -> None:
            start.wait()
            for value in range(2000):
                ctx.progress(value)

        await asyncio.gather(*(on_thread(work) for _ in range(4)))
    finally:
        sys.setswitchinterval(interval)
    await asyncio.sleep(0)
    ctx.exchange.finish(200, b"{}")
    values = [note["params"]["progress"] for note in taken(ctx) if "method" in note]
    assert values == sorted(set(values))
    assert values[-1] == 1999


# Logs


@pytest.mark.parametrize("wanted", LOG_LEVELS)
async def test_logs_at_or_above_the_asked_level_are_sent(wanted: str) -> None:
    # LG-01, LG-03
    ctx = asking(logLevel=wanted)
    for level in LOG_LEVELS:
        ctx.log(level, {"n": [1]}, "crane")
    notes = taken(ctx)
    assert [note["params"]["level"] for note in notes] == list(LOG_LEVELS[LOG_LEVELS.index(wanted) :])
    for note in notes:
        assert note["params"]["logger"] == "crane"
        mcp_types_notification(note["method"], note["params"])


async def test_without_a_level_no_log_is_sent() -> None:
    # LG-01
    ctx = asking(progressToken=1)
    await ctx.log("emergency", "fire")
    assert taken(ctx) == []


async def test_an_unknown_level_is_the_authors_error() -> None:
    # LG-03
    with pytest.raises(ValueError, match="warning"):
        asking().log("warn", "x")


@pytest.mark.parametrize("data", [None, True, 1.5, "text", ["a"], {"a": None}])
async def test_a_log_holds_any_json(data: Any) -> None:
    # LG-03
    ctx = asking(logLevel="debug")
    ctx.log("info", data)
    (note,) = taken(ctx)
    assert note["params"] == {"level": "info", "data": data}


# Slow readers


async def test_a_flood_is_bounded_and_its_last_progress_arrives() -> None:
    # SA26
    ctx = asking(progressToken=1, logLevel="debug")
    text = "x" * 200
    for number in range(20_000):
        ctx.progress(number, message=text)
        ctx.log("info", text)
    assert ctx.exchange.open
    assert ctx.exchange._size < 2 * SOFT_CAP < HARD_CAP
    assert ctx.exchange.dropped > 0
    ctx.exchange.finish(200, b"{}")
    notes = taken(ctx)
    assert notes[-1] == {}
    assert [note["params"]["progress"] for note in notes if note.get("method") == "notifications/progress"][-1] == 19_999


async def test_who_awaits_waits_for_the_reader() -> None:
    # PR-06
    ctx = asking(progressToken=1)
    text = "x" * 10_000
    number = 0
    while not ctx.exchange.congested:
        number += 1
        ctx.progress(number, message=text)
    waiting = asyncio.ensure_future(self_awaiting(ctx, number + 1))
    await asyncio.sleep(0)
    assert not waiting.done()
    assert taken(ctx)
    async with asyncio.timeout(5):
        await waiting


async def self_awaiting(ctx: Context, number: int) -> None:
    await ctx.progress(number, message="x")


async def test_who_waits_for_a_reader_that_goes_away_is_freed() -> None:
    # HM-15
    ctx = asking(logLevel="debug")
    while not ctx.exchange.congested:
        ctx.log("info", "x" * 10_000)

    async def wait() -> None:
        await ctx.log("info", "x")

    waiting = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    ctx.exchange.cancel()
    async with asyncio.timeout(5):
        await waiting


# Threads


async def test_a_thread_can_emit_and_wait() -> None:
    # A20
    ctx = asking(progressToken=1, logLevel="info")

    async def double(value: int) -> int:
        await asyncio.sleep(0)
        return value * 2

    def work() -> int:
        ctx.progress(1)
        ctx.log("info", "x")
        return ctx.wait(double(21))

    assert await on_thread(work) == 42
    assert [note["method"] for note in taken(ctx)] == ["notifications/progress", "notifications/message"]


async def test_waiting_on_the_loop_is_refused() -> None:
    async def nothing() -> None: ...

    with pytest.raises(RuntimeError, match="await"):
        make_context().wait(nothing())


async def test_a_thread_learns_that_nobody_waits_any_more() -> None:
    # CN-04, SA25
    ctx = asking(progressToken=1)
    assert not ctx.cancelled
    ctx.exchange.cancel()
    assert await on_thread(lambda: ctx.cancelled)
    await on_thread(lambda: ctx.progress(1))
    assert taken(ctx) == []


async def test_errors_of_what_a_thread_waits_for_are_its_own() -> None:
    async def fail() -> None:
        raise KeyError("x")

    ctx = make_context()
    with pytest.raises(KeyError):
        await on_thread(lambda: ctx.wait(fail()))


def test_a_thread_that_outlives_the_loop_emits_nothing_and_breaks_nothing() -> None:
    # SA25
    async def make() -> Context:
        return asking(progressToken=1)

    ctx = asyncio.run(make())
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(ctx.progress(1)))
    thread.start()
    thread.join(5)
    assert len(results) == 1


async def congest(ctx: Context) -> None:
    """Let logs be dropped, then let the reader catch up."""
    while not ctx.exchange.dropped:
        ctx.log("emergency", "x" * 20_000)
    taken(ctx)


@pytest.mark.parametrize("wanted", ["debug", "warning", "error", "emergency"])
async def test_a_reader_that_was_too_slow_learns_how_much_it_missed(wanted: str) -> None:
    # SA26, LG-01: at the level that it asked for
    ctx = asking(logLevel=wanted)
    await congest(ctx)
    ctx.log("emergency", "again")
    report, last = taken(ctx)
    assert last["params"]["data"] == "again"
    assert "dropped" in report["params"]["data"]
    assert LOG_LEVELS.index(report["params"]["level"]) >= LOG_LEVELS.index(wanted)


async def test_a_thread_tells_of_it_on_the_loop() -> None:
    # A20: an exchange is not to be touched from other threads
    woken: list[int] = []
    ctx = asking(logLevel="debug")
    await congest(ctx)
    ctx.exchange.wake = lambda: woken.append(threading.get_ident())
    await on_thread(lambda: ctx.log("emergency", "again"))
    await asyncio.sleep(0)
    assert set(woken) == {threading.get_ident()}


# Sessions


class Talk:
    """What a context needs of a session."""

    def __init__(self, **options: Any) -> None:
        self.id = "s1"
        self.options: Any = options
        self.hello = Hello(session_id="s1", options=options)
        self.log_level: str | None = "info"
        self.kept_state: Any = None
        self.closed: list[tuple[Any, float, bool]] = []
        self.thread = threading.get_ident()

    def disconnect(self, exchange: Any, retry: float) -> None:
        self.closed.append((exchange, retry, threading.get_ident() == self.thread))

    def report(self, task: Any) -> None:
        """Nobody listens."""

    async def ask(self, method: str, params: Any, **_more: Any) -> Any:
        return method, params


class Cart(msgspec.Struct):
    count: int = 0


def in_session(session: Talk, server: Server | None = None) -> Context:
    ctx = make_context(make_mount(server, options={"region": "eu"}))
    return Context(ctx.mount, ctx.request, ctx.exchange, session=session)


async def test_a_session_brings_its_id_and_its_options() -> None:
    session = Talk(region="us")
    ctx = in_session(session)
    assert (ctx.session, ctx.session_id, ctx.options) == (session, "s1", {"region": "us"})


async def test_options_of_a_session_stand_even_when_there_are_none() -> None:
    session = Talk()
    session.options = None
    assert in_session(session).options is None


async def test_a_call_may_close_its_connection_from_any_thread() -> None:
    # HL-09
    session = Talk()
    ctx = in_session(session)
    ctx.disconnect()
    await on_thread(lambda: ctx.disconnect(2.5))
    await asyncio.sleep(0)
    assert session.closed == [(ctx.exchange, 0.5, True), (ctx.exchange, 2.5, True)]


async def test_without_a_session_closing_the_connection_does_nothing() -> None:
    ctx = make_context()
    ctx.disconnect()
    assert ctx.exchange.state is State.OPEN


def make_till() -> Server:
    """A server with a tool that declares the state."""
    server = Server("till", state=Cart)

    @server.tool
    async def add(cart: Cart) -> None:
        """Add one."""

    return server


async def test_the_state_is_this_requests_own_where_there_is_no_session() -> None:
    mount = make_mount(make_till())
    call = make_lifted("tools/call", {"name": "add"})
    first, second = make_context(mount, call), make_context(mount, call)
    first.state.count += 1
    assert (first.state, second.state) == (Cart(1), Cart(0))
    first.state = Cart(7)
    assert first.state == Cart(7)
    with pytest.raises(TypeError, match="can't be kept as Cart"):
        first.state = Cart("many")  # type: ignore[arg-type] # a session would not keep it either


@pytest.mark.parametrize("session", [Talk(), None])
async def test_a_call_that_did_not_declare_the_state_has_none(session: Talk | None) -> None:
    ctx = make_context(make_mount(make_till()))
    ctx = Context(ctx.mount, ctx.request, ctx.exchange, session=session)
    complaint = r"ctx\.state: calls that use it run one at a time; declare it: `def f\(state: Cart, \.\.\.\)`"
    with pytest.raises(RuntimeError, match=complaint):
        _ = ctx.state
    with pytest.raises(RuntimeError, match=complaint):
        ctx.state = Cart(3)


async def test_a_session_gives_the_draft() -> None:
    ctx = in_session(Talk(), make_till())
    ctx.give_state(Cart(3))
    assert ctx.state == Cart(3)


async def test_without_state_of_the_server_there_is_none() -> None:
    with pytest.raises(RuntimeError, match=r"ctx\.state: this server has none; give it one: Server\(\.\.\., state=Cart\)"):
        _ = make_context().state


async def test_a_call_has_not_crashed_until_somebody_says_so() -> None:
    assert make_context().crashed is False


@pytest.mark.parametrize("message", [5, b"x", "half \ud800"])
async def test_a_progress_message_is_a_text(message: Any) -> None:
    ctx = make_context(make_mount())
    with pytest.raises(TypeError, match=r"ctx\.progress: message"):
        ctx.progress(1, 2, message)

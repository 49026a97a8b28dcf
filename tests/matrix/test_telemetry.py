"""What sinks are told: each request once, however it comes, by names that the server knows, with nothing of anybody in it (SA13, LG-06)."""

import asyncio
import gc
import json
import logging
import re
import weakref
from contextvars import ContextVar
from typing import Any

import pytest
from asgi_driver import JSON, Client, make_headers, make_meta, make_request
from handlers import Counter
from legacy_driver import V11, Legacy
from log_lines import watch_logs
from matrix.test_logs import ERAS, MAIL, connected, make_server
from rounds import Rounds
from shapes import respond
from telemetry_sinks import Broken, Recorder
from virtual_time import virtual_time

import callboard
from callboard import Handler, Reply, Server, asgi
from callboard.auth import BearerTokens
from callboard.errors import Reason, RegistrationError
from callboard.limits import Limits
from callboard.server.context import Context
from callboard.server.sinks import MAX_LEARNED
from callboard.stores.memory import MemoryStore
from callboard.telemetry import OpenTelemetry, Prometheus
from callboard.telemetry.events import (
    EVENTS,
    OUTCOMES,
    AuthChecked,
    Event,
    RequestRefused,
    RequestStarted,
    RequestStopped,
    ServerClosed,
    ServerOpened,
    SessionEnded,
    SessionOpened,
    StoreUsed,
    StreamClosed,
    StreamOpened,
    TaskEnded,
    TaskStarted,
)

each_era = pytest.mark.parametrize("era", ERAS)


def make_watched(**options: Any) -> tuple[Server, Recorder]:
    """A server with something of every kind, and what it tells."""
    recorder = Recorder()
    return make_server(telemetry=recorder, **options), recorder


@each_era
@pytest.mark.parametrize(
    ("method", "params", "said"),
    [
        ("tools/call", {"name": "add", "arguments": {"a": 1}}, ("add", "ok", None, None)),
        ("tools/call", {"name": "add", "arguments": {"a": "x"}}, ("add", "tool_error", None, None)),
        ("tools/call", {"name": "fail"}, ("fail", "tool_error", None, None)),
        ("tools/call", {"name": "refuse"}, ("refuse", "error", 4013, "CUSTOM")),
        ("tools/call", {"name": "crash"}, ("crash", "error", -32603, "INTERNAL")),
        ("tools/call", {"name": "slow"}, ("slow", "timed_out", None, None)),
        ("tools/call", {"name": MAIL}, ("other", "error", -32602, "UNKNOWN_TOOL")),
        ("tools/list", {}, (None, "ok", None, None)),
        ("resources/read", {"uri": "note://index"}, ("note://index", "ok", None, None)),
        ("resources/read", {"uri": f"note://{MAIL}/x"}, ("note://{owner}/{text}", "ok", None, None)),
        ("resources/read", {"uri": f"other://{MAIL}"}, ("other", "error", None, "RESOURCE_NOT_FOUND")),
        ("prompts/get", {"name": "greet", "arguments": {"name": MAIL}}, ("greet", "ok", None, None)),
        (
            "completion/complete",
            {"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "name", "value": MAIL}},
            ("greet", "ok", None, None),
        ),
    ],
)
async def test_a_request_is_told_of_once(era: str, method: str, params: JSON, said: tuple[Any, ...]) -> None:
    server, told = make_watched()
    async with connected(era, server) as ask:
        await ask(method, params)
    (event,) = told.stopped(method)
    started = event.started
    component, outcome, code, reason = said
    assert (started.component, event.outcome, event.reason) == (component, outcome, reason)
    assert event.code == code or (code is None and event.code is not None and reason is not None)
    assert event.outcome in OUTCOMES
    assert (started.transport, started.version) == ("http", "2026-07-28" if era == "modern" else era)
    assert 0 <= event.seconds < 60
    assert event.bytes_out
    assert (started.session is None) == (era == "modern")
    assert (event.error_id == started.request) == (params.get("name") == "crash")
    assert MAIL not in told.text


async def test_an_error_id_is_the_one_that_the_client_is_told() -> None:
    server, told = make_watched()
    answer = await Client(asgi(server)).call("crash", {})
    (event,) = told.stopped()
    assert f"(id {event.error_id})" in answer.error["message"]


async def test_what_goes_on_is_an_outcome() -> None:
    server, told = make_watched()

    @server.tool(task="always")
    async def work() -> str:
        return "done"

    await Rounds(asgi(server), respond).call("ask")
    client, meta = Client(asgi(server)), make_meta({"extensions": {"io.modelcontextprotocol/tasks": {}}})
    task = (await client.call("work", {}, meta=meta)).result["taskId"]
    await client.request("tasks/get", {"taskId": task}, meta=meta)
    assert [event.outcome for event in told.stopped()] == ["input_required", "ok", "task"]
    assert [event.outcome for event in told.stopped("tasks/get")] == ["ok"]
    assert task not in told.text


@pytest.mark.parametrize("era", ["modern", V11])
async def test_a_call_whose_client_leaves_is_cancelled(era: str) -> None:
    server, told = make_watched()
    app = asgi(server, cancel_on_disconnect="always")
    if era == "modern":
        async with Client(app).open("tools/call", {"name": "wait"}):
            await asyncio.sleep(0.05)
    else:
        session = await Legacy(app, era).connect()
        exchange = session.start(session.make_call("wait"))
        await asyncio.sleep(0.05)
        await exchange.drop()
    await asyncio.sleep(0.05)
    await app.aclose()
    assert [event.outcome for event in told.stopped()] == ["cancelled"]


@virtual_time
async def test_a_call_of_2025_that_takes_too_long() -> None:
    server, told = make_watched()

    @server.tool
    async def nap() -> str:
        await asyncio.sleep(3)
        return ""

    app = asgi(server, request_timeout=1)
    session = await Legacy(app).connect()
    await session.call("nap")
    await asyncio.sleep(5)
    await app.aclose()
    assert [event.outcome for event in told.stopped()] == ["timed_out"]


@virtual_time
async def test_a_session_is_told_of_from_its_beginning_to_its_end() -> None:
    server, told = make_watched()

    @server.tool
    async def leave() -> Any:
        return Reply("bye", stop_reason="enough")

    app = asgi(server, session_ttl=60)
    sessions = [await Legacy(app).connect() for _ in range(4)]
    await sessions[0].delete()
    await sessions[1].call("leave")
    await asyncio.sleep(61)
    last = await Legacy(app).connect()
    await app.aclose()
    known = [server.journal.hash(session.id) for session in (*sessions, last)]
    assert [event.session for event in told.of(SessionOpened)] == known
    assert {event.version for event in told.of(SessionOpened)} == {V11}
    ended = {event.session: event for event in told.of(SessionEnded)}
    assert len(told.of(SessionEnded)) == 5
    assert [ended[name].reason for name in known if name] == ["deleted", "enough", "expired", "expired", "shutdown"]
    assert all(event.seconds is not None for event in ended.values())
    (stopping,) = told.stopped()
    assert (stopping.outcome, stopping.stop_reason) == ("ok", "enough")
    assert [event.outcome for event in told.stopped("initialize")] == ["ok"] * 5
    assert not any(session.id and session.id in told.text for session in (*sessions, last))


async def test_a_session_that_can_not_begin_is_none() -> None:
    def options(_caller: Any) -> Any:
        raise ValueError(MAIL)

    server, told = make_watched()
    await Legacy(asgi(server, options=options)).try_initialize()
    (event,) = told.stopped("initialize")
    assert (event.outcome, event.reason) == ("error", "OPTIONS")
    assert not told.of(SessionOpened)


async def test_streams_are_told_of_until_they_close() -> None:
    server, told = make_watched()
    app = asgi(server)
    async with Client(app).listen(toolsListChanged=True) as stream:
        await stream.message()
        assert [event.kind for event in told.of(StreamOpened)] == ["listen"]
        assert not told.of(StreamClosed)
    await asyncio.sleep(0.05)
    session = await Legacy(app).connect()
    async with session.listen():
        assert [event.kind for event in told.of(StreamOpened)] == ["listen", "get"]
    await asyncio.sleep(0.05)
    await app.aclose()
    assert [event.kind for event in told.of(StreamClosed)] == ["listen", "get"]
    assert [event.outcome for event in told.stopped("subscriptions/listen")] == ["cancelled"]


async def test_a_listen_stream_that_is_refused_never_opened() -> None:
    server, told = make_watched()
    await Client(asgi(server)).request("subscriptions/listen", {"notifications": {}}, accept="application/json")
    assert told.stopped("subscriptions/listen")[0].reason == "NOT_ACCEPTABLE"
    assert not told.of(StreamOpened)


@pytest.mark.parametrize(
    ("body", "headers", "said"),
    [
        (b"{", {}, (None, "PARSE")),
        (json.dumps(make_request("no/such")).encode(), {"mcp-method": "no/such"}, ("other", "METHOD_NOT_FOUND")),
        (json.dumps(make_request("tools/call", {"name": "x"})).encode(), {"mcp-name": MAIL}, ("tools/call", "HEADER_MISMATCH")),
        (b"{}", {"host": "evil.example"}, ("POST", "HOST")),
        (b"{}", {"content-type": "text/plain"}, ("POST", "MEDIA_TYPE")),
        (b"x" * 5000, {}, ("POST", "BODY_TOO_LARGE")),
    ],
)
async def test_what_is_refused_before_it_runs(body: bytes, headers: dict[str, str], said: tuple[str | None, str]) -> None:
    server, told = make_watched()
    known = {**make_headers(make_request("tools/call", {"name": "x"})), **headers}
    await Client(asgi(server, limits=Limits(max_body=4096))).start(body, known).end()
    (event,) = told.of(RequestRefused)
    assert (event.method, event.reason) == said
    assert not told.of(RequestStarted)
    assert MAIL not in told.text


async def test_rates_are_refusals_of_a_reason() -> None:
    server, told = make_watched()
    client = Client(asgi(server, limits=Limits(message_rate="1/h")))
    await client.call("add", {"a": 1})
    await client.call("add", {"a": 1})
    assert [event.reason for event in told.of(RequestRefused)] == ["RATE"]
    assert [event.outcome for event in told.stopped()] == ["ok"]


async def test_credentials_are_looked_at_once_a_while() -> None:
    server, told = make_watched()
    client = Client(asgi(server, auth=BearerTokens({"t" * 40: MAIL})))
    for credential in ("Bearer " + "t" * 40, "Bearer " + "t" * 40, "Bearer wrong", None):
        await client.call("add", {"a": 1}, authorization=credential)
    assert [event.outcome for event in told.of(AuthChecked)] == ["granted", "invalid", "missing"]
    assert [event.reason for event in told.of(RequestRefused)] == ["UNAUTHORIZED"] * 2
    assert [event.started.principal for event in told.stopped()] == [server.journal.hash(MAIL)] * 2
    assert MAIL not in told.text
    assert "tttt" not in told.text


async def test_a_pipe_is_told_of_likewise() -> None:
    server, told = make_watched()
    for version in ("2026-07-28", V11):
        async with callboard.Client(server, versions=version) as client:
            await client.call_tool("add", {"a": 1})
    assert {(event.started.transport, event.outcome, event.started.bytes_in) for event in told.stopped()} == {("pipe", "ok", None)}
    assert len(told.stopped()) == 2
    assert [event.transport for event in told.of(SessionOpened)] == ["pipe"]
    assert [event.reason for event in told.of(SessionEnded)] == ["closed"]
    assert [event.name for event in told.events if isinstance(event, ServerOpened | ServerClosed)] == ["server.open", "server.close"] * 2


async def test_each_request_of_a_batch_is_one() -> None:
    server, told = make_watched()
    session = await Legacy(asgi(server), "2025-03-26").connect()
    await session.post([session.make_call("add", {"a": 1}), session.make_call("fail")])
    assert sorted(event.outcome for event in told.stopped()) == ["ok", "tool_error"]


async def test_what_a_mounted_server_serves_is_told_by_the_one_that_it_is_mounted_on() -> None:
    server, told = make_watched()
    own = Recorder()
    inner = Server("inner", telemetry=own)
    inner.tool(name="add")(lambda: "")
    server.mount("sub", inner)
    client = Client(asgi(server))
    await client.call("sub_add", {})
    await client.call("sub_none", {"a": 1})
    assert [event.started.component for event in told.stopped()] == ["sub_add", "other"]
    assert not own.events


@virtual_time
async def test_a_task_is_told_of_from_its_beginning_to_its_end() -> None:
    server, told = make_watched()

    @server.tool(task="always")
    async def work(fails: bool) -> str:
        await asyncio.sleep(3)
        if fails:
            raise ValueError(MAIL)
        return "done"

    app = asgi(server)
    client, meta = Client(app), make_meta({"extensions": {"io.modelcontextprotocol/tasks": {}}})
    for fails in (False, True):
        await client.call("work", {"fails": fails}, meta=meta)
    assert [event.component for event in told.of(TaskStarted)] == ["work", "work"]
    assert not told.of(TaskEnded)
    await asyncio.sleep(5)
    await app.aclose()
    assert sorted((event.component, event.status) for event in told.of(TaskEnded)) == [("work", "completed"), ("work", "failed")]
    assert all(event.seconds is not None for event in told.of(TaskEnded))
    assert [event.outcome for event in told.stopped()] == ["task", "task"]


async def test_a_store_that_says_how_long_it_takes_is_told_of() -> None:
    class Slow(MemoryStore):
        observe: Any = None

    store = Slow()
    server, told = make_watched(store=store)
    app = asgi(server)
    await Client(app).call("add", {"a": 1})
    store.observe("run", 0.25, False)
    store.observe("bus", 0.5, True)
    assert [(event.operation, event.seconds, event.failed) for event in told.of(StoreUsed)] == [("run", 0.25, False), ("bus", 0.5, True)]
    await app.aclose()


async def test_a_request_that_is_told_of_leaves_no_garbage() -> None:
    server = make_server(telemetry=[Recorder(), OpenTelemetry()])
    client = Client(asgi(server))
    await client.call("add", {"a": 1})
    gc.collect()
    gc.disable()
    try:
        before = sum(isinstance(each, Context) for each in gc.get_objects())
        await client.call("add", {"a": 1})
        await client.call("fail", {})
        assert sum(isinstance(each, Context) for each in gc.get_objects()) == before
    finally:
        gc.enable()


@each_era
@pytest.mark.parametrize("name", ["remember", "forget"])
async def test_who_keeps_how_a_request_began_keeps_nothing_of_what_its_function_knew(era: str, name: str) -> None:
    """The garbage collector does not look into the events: nothing may hang on them for ever."""

    class Known:
        pass

    known: ContextVar[Any] = ContextVar("known")
    seen: list[weakref.ref[Known]] = []
    kept: list[Event] = []

    class Keeper:
        def take(self, event: Event) -> None:
            kept.append(event)

    server = make_server(telemetry=[Keeper(), Prometheus(), OpenTelemetry(share=0.0)])

    @server.tool
    async def remember() -> str:
        known.set(Known())
        seen.append(weakref.ref(known.get()))
        return "done"

    @server.tool
    async def forget() -> str:
        await remember()
        raise RuntimeError("no")

    async with connected(era, server) as ask:
        await asyncio.gather(ask("tools/call", {"name": name}))  # in a task, as servers do: the context is of this task alone
    gc.collect()
    assert [each() for each in seen] == [None]
    assert kept


async def test_a_handler_teaches_the_names_that_it_answers_to() -> None:
    told = Recorder()

    handler = Counter()
    handler.server_options = {"telemetry": told}
    client = Client(asgi(handler))
    for name in ("look", "look", MAIL, "refuse"):
        await client.call(name, {})
    assert [event.started.component for event in told.stopped()] == ["look", "look", "other", "other"]
    assert MAIL not in told.text


async def test_a_handler_that_answers_to_all_names_teaches_few() -> None:
    told = Recorder()

    class Parrot(Handler[Any]):
        async def call_tool(self, name: str, arguments: Any, ctx: Any, state: Any) -> str:
            return name

    handler = Parrot()
    handler.server_options = {"telemetry": told}
    client = Client(asgi(handler))
    for number in range(2 * MAX_LEARNED):
        await client.call(f"name-{number}", {})
    assert len({event.started.component for event in told.stopped()}) == MAX_LEARNED + 1


@pytest.mark.parametrize("era", ["modern", V11])
async def test_a_sink_that_fails_harms_nobody(era: str) -> None:
    told = Recorder()
    with watch_logs(logging.WARNING) as taken:
        async with connected(era, make_server(telemetry=[Broken(), told])) as ask:
            for _ in range(3):
                answer = await ask("tools/call", {"name": "add", "arguments": {"a": 1}})
                assert answer.result["structuredContent"]
    assert len(told.stopped()) == 3
    found = [re.findall(r"fails with ([\w.]+)", record["message"]) for record in taken.of("callboard")]
    names = [name for (name,) in found]
    assert len(names) == len(set(names)) >= 4
    assert all("RuntimeError" in record["error"]["traceback"] for record in taken.of("callboard"))


@pytest.mark.parametrize("given", [Recorder, "prometheus", [object()], 5])
def test_what_is_no_sink_is_refused(given: Any) -> None:
    with pytest.raises(RegistrationError, match="telemetry is a sink"):
        Server("s", telemetry=given)


@pytest.mark.parametrize("era", ["modern", V11])
async def test_a_sink_that_says_what_it_takes_is_told_of_nothing_else(era: str) -> None:
    class Picky(Recorder):
        takes = frozenset({"request.stop", "session.end"})

    told = Picky()
    async with connected(era, make_server(telemetry=told)) as ask:
        await ask("tools/call", {"name": "add", "arguments": {"a": 1}})
    assert {event.name for event in told.events} == ({"request.stop"} if era == "modern" else Picky.takes)


@pytest.mark.parametrize("takes", [{"request.stop", "request.end"}, "request.stop"])
def test_a_sink_that_takes_what_is_never_told_is_refused(takes: Any) -> None:
    told = Recorder()
    told.takes = takes  # type: ignore[attr-defined]
    with pytest.raises(RegistrationError, match=r"Recorder.takes is a set of names of events, server.open, .* is none of them"):
        Server("s", telemetry=told)


async def test_levels_are_read_where_they_are_asked_for() -> None:
    server, told = make_watched()
    release = asyncio.Event()
    loop = asyncio.get_running_loop()

    @server.tool
    def block() -> str:
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result()
        return ""

    app = asgi(server, limits=Limits(threads=1))
    calls = [asyncio.create_task(Client(app).call("block", {})) for _ in range(2)]
    async with asyncio.timeout(10):
        while not told.of(ServerOpened) or told.of(ServerOpened)[0].levels().thread_queue < 1:  # noqa: ASYNC110 - numbers tell nobody
            await asyncio.sleep(0)
    levels = told.of(ServerOpened)[0].levels()
    assert (levels.in_flight, levels.threads_busy, levels.threads, levels.thread_queue) == (2, 1, 1, 1)
    release.set()
    await asyncio.gather(*calls)
    assert told.of(ServerOpened)[0].levels().in_flight == 0
    await app.aclose()
    assert told.of(ServerOpened)[0].levels().threads == 0


async def test_a_trace_is_read_as_far_as_it_is_one() -> None:
    server, told = make_watched()
    parent = f"00-{'c' * 32}-{'b' * 16}-01"
    client = Client(asgi(server))
    await client.call("add", {"a": 1}, meta=make_meta(traceparent=parent, tracestate="a=b", baggage="x" * 9000), traceparent=parent)
    await client.call("add", {"a": 1}, meta=make_meta(traceparent={"c": 1}, tracestate="a=b"), traceparent="\xff", tracestate="a=b")
    first, second = (event.started for event in told.stopped())
    assert first.trace == {"traceparent": parent, "tracestate": "a=b"}
    assert first.http_trace == {"traceparent": parent}
    assert second.trace == second.http_trace == {}


def test_events_have_names_of_their_own() -> None:
    assert all(name == kind.name for name, kind in EVENTS.items())
    assert len(EVENTS) == 13
    assert {RequestStarted, RequestStopped} <= set(EVENTS.values())
    assert Reason.RATE.name == "RATE"

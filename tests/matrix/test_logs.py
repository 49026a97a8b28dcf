"""One line for each request, on the current protocol and in sessions of 2025: who, what, how long, and what it came to."""

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from asgi_driver import JSON, Client, Exchange, make_headers, make_meta, make_request
from legacy_driver import V11, Legacy
from log_lines import Taken, watch_logs
from rounds import EVERYTHING, Rounds
from shapes import respond

from benchmarks import legacy_traffic
from benchmarks.in_process import open_session, python_calls
from benchmarks.traffic import call
from callboard import Context, Fail, Server, ToolError, asgi
from callboard.auth.principal import Principal
from callboard.errors import Reason
from callboard.server.journal import REQUESTS, Journal
from callboard.types import Secret

MAIL = "ada.lovelace@example.com"
KEY = "k" * 32


def make_server(**options: Any) -> Server:
    """Something of every kind."""
    server = Server("s", **options)

    @server.tool
    async def add(a: int, password: str = "", key: Secret[str] = "") -> int:
        return a

    @server.tool
    async def fail() -> str:
        raise ToolError("no")

    @server.tool
    async def refuse() -> str:
        raise Fail.custom(4013, "no")

    @server.tool
    async def crash() -> str:
        raise ValueError("x")

    @server.tool(timeout=0.01)
    async def slow() -> str:
        await asyncio.sleep(60)
        return ""

    @server.tool
    async def ask(ctx: Context) -> str:
        return (await ctx.elicit("Name?", str)).value

    @server.tool
    async def wait() -> str:
        await asyncio.sleep(60)
        return ""

    @server.tool(scopes={"admin"})
    async def admin() -> str:
        return ""

    @server.tool(rate="1/h")
    async def rare() -> str:
        return ""

    @server.resource("note://{owner}/{text}")
    async def note(owner: str, text: str) -> str:
        return text

    @server.resource("note://index")
    async def index() -> str:
        return ""

    @server.prompt
    async def greet(name: str) -> str:
        return name

    @server.complete("greet", "name")
    async def complete(value: str) -> list[str]:
        return [value]

    return server


Ask = Callable[..., Awaitable[Any]]


@asynccontextmanager
async def connected(era: str, server: Server, **options: Any) -> AsyncIterator[Ask]:
    """What asks a server for something in an era, given a method, params and headers."""
    app = asgi(server, **options)
    if era == "modern":
        yield Client(app).request
    else:
        session = await Legacy(app, era).connect(capabilities=EVERYTHING)

        async def ask(method: str, params: Any = None, **headers: str | None) -> Any:
            return await session.post(session.make(method, params), **headers)

        yield ask
    await app.aclose()


ERAS = ["modern", "2025-11-25", "2025-06-18", "2025-03-26"]
each_era = pytest.mark.parametrize("era", ERAS)


@each_era
@pytest.mark.parametrize(
    ("method", "params", "said"),
    [
        ("tools/call", {"name": "add", "arguments": {"a": 1}}, {"tool": "add", "outcome": "ok"}),
        ("tools/call", {"name": "add", "arguments": {"a": "x"}}, {"tool": "add", "outcome": "tool error"}),
        ("tools/call", {"name": "fail"}, {"tool": "fail", "outcome": "tool error"}),
        ("tools/call", {"name": "refuse"}, {"tool": "refuse", "outcome": "error", "code": 4013, "reason": "CUSTOM"}),
        ("tools/call", {"name": "crash"}, {"tool": "crash", "outcome": "error", "code": -32603, "reason": "INTERNAL"}),
        ("tools/call", {"name": "slow"}, {"tool": "slow", "outcome": "timed out"}),
        ("tools/call", {"name": "none"}, {"tool": "none", "outcome": "error", "code": -32602, "reason": "UNKNOWN_TOOL"}),
        ("tools/list", {}, {"outcome": "ok"}),
        ("resources/read", {"uri": "note://index"}, {"resource": "note://index", "outcome": "ok"}),
        ("resources/read", {"uri": f"note://{MAIL}/x"}, {"resource": "note://{owner}/{text}", "outcome": "ok"}),
        ("resources/read", {"uri": f"other://{MAIL}"}, {"resource": "other:...", "outcome": "error", "reason": "RESOURCE_NOT_FOUND"}),
        ("prompts/get", {"name": "greet", "arguments": {"name": MAIL}}, {"prompt": "greet", "outcome": "ok"}),
        (
            "completion/complete",
            {"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "name", "value": MAIL}},
            {"prompt": "greet", "argument": "name", "outcome": "ok"},
        ),
        ("no/such", {}, {"outcome": "error", "code": -32601, "reason": "METHOD_NOT_FOUND"}),
    ],
)
async def test_a_request_is_one_line(era: str, method: str, params: JSON, said: JSON) -> None:
    with watch_logs(logging.INFO) as taken:
        async with connected(era, make_server()) as ask:
            await ask(method, params)
    (line,) = [line for line in taken.requests if line["method"] == method]
    assert said.items() <= line.items()
    assert line["transport"] == "http"
    assert MAIL not in taken.text
    assert "arguments" not in line
    if "version" in line:  # it came so far
        assert line["version"] == ("2026-07-28" if era == "modern" else era)
        assert 0 <= line["duration_ms"] < 60_000
        assert line["bytes_out"] > 0
        assert ("session" in line) == (era != "modern")


async def test_what_a_client_is_asked_is_an_outcome_on_the_current_protocol() -> None:
    with watch_logs(logging.INFO) as taken:
        await Rounds(asgi(make_server()), respond).call("ask")
    assert [line["outcome"] for line in taken.requests] == ["input required", "ok"]


async def test_a_task_and_its_id_that_is_hashed() -> None:
    server = Server("s")

    @server.tool(task="always")
    async def work() -> str:
        return "done"

    client = Client(asgi(server))
    meta = make_meta({"extensions": {"io.modelcontextprotocol/tasks": {}}})
    with watch_logs() as taken:
        task = (await client.call("work", {}, meta=meta)).result["taskId"]
        await client.request("tasks/get", {"taskId": task}, meta=meta)
    first, second = taken.requests
    assert first["outcome"] == "task"
    assert second["task"] == server.journal.hash(task)
    assert task not in taken.text


@pytest.mark.parametrize("era", ["modern", V11])
async def test_a_call_whose_client_leaves(era: str) -> None:
    app = asgi(make_server(), cancel_on_disconnect="always")
    with watch_logs(logging.INFO) as taken:
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
    (line,) = [line for line in taken.requests if line["method"] == "tools/call"]
    assert line["outcome"] == "cancelled"
    assert line["duration_ms"] > 10


async def test_a_call_of_2025_that_takes_too_long() -> None:
    server = Server("s")

    @server.tool
    async def nap() -> str:
        await asyncio.sleep(0.3)
        return ""

    app = asgi(server, request_timeout=0.05)
    with watch_logs(logging.INFO) as taken:
        session = await Legacy(app).connect()
        await session.call("nap")
        await asyncio.sleep(0.5)
    await app.aclose()
    assert [line["outcome"] for line in taken.requests if line["method"] == "tools/call"] == ["timed out"]


async def test_a_listen_stream_is_a_line_when_it_ends() -> None:
    with watch_logs(logging.INFO) as taken:
        async with Client(asgi(make_server())).listen(toolsListChanged=True) as stream:
            await stream.message()
            assert not taken.requests
        await asyncio.sleep(0.05)
    (line,) = taken.requests
    assert (line["method"], line["outcome"]) == ("subscriptions/listen", "cancelled")


async def test_sessions_are_named_by_hashes_and_opened_in_the_log() -> None:
    server = make_server()
    with watch_logs() as taken:
        session = await Legacy(asgi(server)).connect()
        await session.call("add", {"a": 1})
    opening, calling = taken.requests
    assert (opening["method"], opening["outcome"], opening["version"]) == ("initialize", "ok", V11)
    assert opening["session"] == calling["session"] == server.journal.hash(session.id)
    assert session.id is not None
    assert session.id not in taken.text


async def test_a_session_that_can_not_be_opened() -> None:
    def options(_caller: Any) -> Any:
        raise ValueError(MAIL)

    with watch_logs(logging.INFO) as taken:
        answer = await Legacy(asgi(make_server(), options=options)).try_initialize()
    assert answer.status == 500
    assert [(line["method"], line["outcome"], line["reason"]) for line in taken.requests] == [("initialize", "error", "OPTIONS")]
    assert MAIL not in str(answer.body)


@pytest.mark.parametrize("keys", [[KEY], None])
async def test_principals_are_named_by_keyed_hashes(keys: list[str] | None) -> None:
    """LG-06: nobody can guess a mail address from the log; whoever has the key finds its lines."""
    hashes = set()
    for _ in range(2):
        server = make_server(keys=keys)
        with watch_logs() as taken:
            await Client(asgi(server, principal=lambda _: MAIL)).call("add", {"a": 1})
        (line,) = taken.requests
        assert re.fullmatch("[0-9a-f]{12}", line["principal"])
        assert line["principal"] == server.journal.hash(MAIL)
        assert MAIL not in taken.text
        hashes.add(line["principal"])
    assert len(hashes) == (1 if keys else 2)


@pytest.mark.parametrize("era", ["modern", V11])
@pytest.mark.parametrize(
    ("headers", "shown"),
    [
        ({"x_request_id": "0f8fad5b-d9cb-469f-a165-70867728950e"}, "0f8fad5b-d9cb-469f-a165-70867728950e"),
        ({"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, "0af7651916cd43dd8448eb211c80319c"),
        ({"x_request_id": "abcdefgh.1", "traceparent": f"00-{'a' * 32}-{'b' * 16}-00"}, "abcdefgh.1"),
        ({"x_request_id": "short"}, None),
        ({"x_request_id": "x" * 65}, None),
        ({"x_request_id": f"{MAIL}-12345"}, None),
        ({"x_request_id": "12345678 outcome=ok"}, None),
        ({"x_request_id": "12345678\xa0"}, None),
        ({"traceparent": f"00-{'0' * 32}-{'b' * 16}-00"}, None),
        ({"traceparent": f"ff-{'a' * 32}-{'b' * 16}-00"}, None),
        ({}, None),
    ],
)
async def test_an_error_id_is_the_id_of_the_request(era: str, headers: dict[str, str], shown: str | None) -> None:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    for level in (logging.INFO, logging.WARNING):
        with watch_logs(level) as taken:
            async with connected(era, make_server()) as ask:
                answer = await ask("tools/call", {"name": "crash"}, **named)
        found = re.search(r"\(id ([\w.-]+)\)", answer.error["message"])
        assert found
        assert found[1] == shown or (shown is None and re.fullmatch("[0-9a-f]{8}", found[1]))
        (crashed,) = taken.of("callboard")
        assert found[1] in crashed["message"]
        assert "ValueError" in crashed["error"]["traceback"]
        lines = [line for line in taken.requests if line["method"] == "tools/call"]
        assert [line["request"] for line in lines] == ([found[1]] if level == logging.INFO else [])


async def test_a_trace_may_come_in_meta() -> None:
    with watch_logs(logging.INFO) as taken:
        await Client(asgi(make_server())).call("add", {"a": 1}, meta=make_meta(traceparent=f"00-{'c' * 32}-{'b' * 16}-00"))
        await Client(asgi(make_server())).call("add", {"a": 1}, meta=make_meta(traceparent={"c": "c" * 32}))
    assert [line["request"] == "c" * 32 for line in taken.requests] == [True, False]


async def test_what_functions_log_has_the_id_of_their_request() -> None:
    server = Server("s")

    @server.tool
    async def say() -> str:
        logging.getLogger("mine").warning("async")
        return ""

    @server.tool
    def shout() -> str:
        logging.getLogger("mine").warning("on a thread")
        return ""

    with watch_logs(logging.INFO) as taken:
        for tool in ("say", "shout"):
            await Client(asgi(server)).call(tool, {})
    assert [line["request"] for line in taken.of("mine")] == [line["request"] for line in taken.requests]


@each_era
async def test_arguments_are_there_at_debug_alone_and_redacted(era: str) -> None:
    arguments = {"a": 1, "password": "tr0ub4dor", "key": "h3artbreaker"}
    with watch_logs() as taken:
        async with connected(era, make_server()) as ask:
            await ask("tools/call", {"name": "add", "arguments": arguments})
            await ask("tools/call", {"name": "none", "arguments": arguments})
            await ask("prompts/get", {"name": "greet", "arguments": {"name": "h3artbreaker"}})
    shown = [line.get("arguments") for line in taken.requests if line["method"] in {"tools/call", "prompts/get"}]
    assert shown == [{"a": 1, "password": "***", "key": "***"}, None, None]
    assert "tr0ub4dor" not in taken.text
    assert "h3artbreaker" not in taken.text


async def test_nothing_is_asked_but_the_level_while_nobody_reads() -> None:
    REQUESTS.setLevel(logging.WARNING)
    try:
        app = asgi(make_server())
        modern = await python_calls(app, call("add", {"a": 1}))
        legacy = await python_calls(app, legacy_traffic.call("add", {"a": 1}, sessions=(await open_session(app),)))
    finally:
        REQUESTS.setLevel(logging.NOTSET)
    for entered in (modern, legacy):
        ours = [name for name in entered if "journal" in name or "callboard/logs" in name or "redaction" in name]
        assert not ours
        assert len([name for name in entered if name.endswith("isEnabledFor")]) <= 1


@pytest.mark.parametrize("era", ["modern", V11])
async def test_refusals_are_events_and_lines(era: str) -> None:
    # SA23, SA27
    granted = Principal(MAIL, ["reader"])
    with watch_logs(logging.INFO) as taken:
        async with connected(era, make_server(), principal=lambda _: granted) as ask:
            await ask("tools/call", {"name": "admin"})
            await ask("tools/call", {"name": "rare"})
            await ask("tools/call", {"name": "rare"})
    assert [(event["event"], event["tool"]) for event in taken.events] == [("scope", "admin"), ("rate", "rare")]
    refused = [line for line in taken.requests if line["outcome"] == "error"]
    assert [line["reason"] for line in refused] == ["SCOPE", "RATE"]
    assert [event["request"] for event in taken.events] == [line["request"] for line in refused]
    assert MAIL not in taken.text


async def test_a_session_of_somebody_else_is_an_event() -> None:
    # SA23
    who = ["ada"]
    server = make_server()
    app = asgi(server, principal=lambda _: who[0])
    session = await Legacy(app).connect()
    who[0] = "eve"
    with watch_logs(logging.INFO) as taken:
        assert (await session.call("add", {"a": 1})).status == 404
        assert (await session.delete()).status == 404
    await app.aclose()
    assert len(taken.events) == 2
    hashes = {name: server.journal.hash(value) for name, value in (("session", session.id), ("owner", "ada"), ("principal", "eve"))}
    assert all({**hashes, "event": "session"}.items() <= event.items() for event in taken.events)
    assert session.id is not None
    assert session.id not in taken.text
    assert [line["reason"] for line in taken.requests] == ["SESSION_NOT_FOUND"] * 2


async def test_a_state_that_was_changed_is_an_event() -> None:
    # SA28
    with watch_logs(logging.INFO) as taken:
        answer = await Client(asgi(make_server())).request(
            "tools/call", {"name": "ask", "requestState": "cb1.forged", "inputResponses": {}}
        )
    assert answer.status == 400
    assert [(event["event"], event["tool"]) for event in taken.events] == [("state", "ask")]
    assert "forged" not in taken.text


@pytest.mark.parametrize(
    ("changed", "peer", "event"),
    [
        ({"host": "evil.example"}, "127.0.0.1", "host"),
        ({"origin": "https://evil.example"}, "127.0.0.1", "origin"),
        ({}, "192.0.2.7", "peer"),
        ({"content-length": "999999999"}, "127.0.0.1", "size"),
        ({"x-big": "x" * 20_000}, "127.0.0.1", "size"),
    ],
)
async def test_what_is_refused_at_the_door_is_an_event_and_a_line(changed: dict[str, str], peer: str, event: str) -> None:
    # SA08, SA16
    message = make_request("tools/call", {"name": "add"})
    client = Client(asgi(make_server()), peer=(peer, 1))
    with watch_logs(logging.INFO) as taken:
        await client.send(b"{}", {**make_headers(message), **changed})
    (found,) = taken.events
    assert (found["event"], found["peer"]) == (event, peer)
    (line,) = taken.requests
    assert (line["method"], line["outcome"]) == ("POST", "error")


async def test_a_line_that_can_not_be_written_fails_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    server = make_server()
    monkeypatch.delattr(Journal, "hash")
    with watch_logs(logging.INFO) as taken:
        answer = await Client(asgi(server)).call("add", {"a": 1})
    assert answer.result["structuredContent"] == 1
    assert [record["message"] for record in taken.of("callboard")] == ["A request can't be logged."]


def test_every_reason_has_a_name_in_the_log() -> None:
    assert all(re.fullmatch("[A-Z_]+", reason.name) for reason in Reason)


def test_taken_tells_a_forged_line() -> None:
    """The tests above can fail: a formatter of the standard library lets a line through."""
    taken = Taken()
    taken.lines.append("2026-01-01T00:00:00.000Z INFO a: b\nforged")
    with pytest.raises(AssertionError):
        taken.check()


async def test_streams_and_ends_of_sessions_are_lines() -> None:
    server = make_server()
    with watch_logs(logging.INFO) as taken:
        session = await Legacy(asgi(server)).connect()
        async with session.listen():
            pass
        await session.delete()
        await session.get()
    found = [(line["method"], line["outcome"], line.get("session"), line.get("reason")) for line in taken.requests[1:]]
    known = server.journal.hash(session.id)
    assert found == [("GET", "ok", known, None), ("DELETE", "ok", known, None), ("GET", "error", None, "SESSION_NOT_FOUND")]


async def test_the_transport_of_2024_is_named() -> None:
    server = make_server()
    app = asgi(server, sse_path="/sse")
    with watch_logs(logging.INFO) as taken:
        stream = Client(app, path="/sse").start(b"", {"host": "127.0.0.1:8000", "accept": "text/event-stream"}, verb="GET")
        await stream.until(lambda: b"session_id=" in stream.body)
        place, _, query = stream.body.decode().partition("data: ")[2].partition("\n")[0].strip().partition("?")
        headers = [(b"host", b"127.0.0.1:8000"), (b"content-type", b"application/json")]
        opening = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
        for message in (
            {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": opening},
            {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "add", "arguments": {"a": 1}}},
        ):
            poster = Client(app, path=place)
            scope = {**poster.scope("POST", headers), "query_string": query.encode()}
            exchange = Exchange(app, scope, json.dumps(message).encode(), None)
            await asyncio.wait([exchange.task], timeout=5)
        await stream.until(lambda: b'"id":1' in stream.body)
        stream.disconnect()
        await stream.gone()
    await app.aclose()
    lines = {line["method"]: line for line in taken.requests}
    assert lines["initialize"]["transport"] == lines["tools/call"]["transport"] == "sse"
    assert lines["GET"]["outcome"] in {"ok", "cancelled"}
    assert query.partition("=")[2] not in taken.text


async def test_what_crashes_is_named_without_values() -> None:
    server = Server("s")

    @server.resource("note://{owner}")
    async def note(owner: str) -> str:
        raise ValueError("x")

    with watch_logs() as taken:
        await Client(asgi(server)).request("resources/read", {"uri": f"note://{MAIL}"})
    assert [record["message"].partition(",")[0] for record in taken.of("callboard")] == ["resources/read 'note://{owner}' failed"]
    assert MAIL not in taken.text

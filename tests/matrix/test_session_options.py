"""Options of an endpoint as clients of 2025 meet them: bound options, no sessions, the handshake, versions, what it says of itself."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from asgi_driver import Client
from legacy_driver import V03, V06, V11, VERSIONS, Legacy, Session
from shop import Cart, Shop
from starlette.applications import Starlette
from starlette.routing import Mount
from virtual_time import virtual_time

from callboard import Server, asgi
from callboard.limits import Limits
from callboard.server.mount import Caller

ORIGIN = "https://app.example"


@pytest.fixture
def shop() -> Shop:
    return Shop()


async def options_of(session: Session) -> Any:
    """What a function sees as `ctx.options`."""
    return (await session.call("who")).result["structuredContent"]["options"]


def token_of(caller: Caller) -> dict[str, Any]:
    """Options that depend on who asks."""
    assert caller.headers is not None
    return {"token": caller.headers.get("x-token")}


# Bound options


@virtual_time
async def test_a_mapping_is_what_every_function_sees(shop: Shop) -> None:
    app = asgi(shop.server, options={"region": "eu"})
    assert await options_of(await Legacy(app).connect()) == {"region": "eu"}
    assert (await Client(app).call("who")).result["structuredContent"]["options"] == {"region": "eu"}
    off = asgi(shop.server, options={"region": "eu"}, sessions="off")
    assert await options_of(Legacy(off, V06).sessionless()) == {"region": "eu"}


@virtual_time
async def test_a_factory_is_asked_once_per_session_whatever_comes_later(shop: Shop) -> None:
    """Scenario 35: not again, even with other credentials."""
    callers: list[Any] = []

    def bind(caller: Any) -> dict[str, Any]:
        callers.append(caller)
        return {"token": caller.headers["x-token"], "who": caller.principal, "state": caller.scope_state["user"]}

    app = asgi(shop.server, options=bind, principal=lambda scope: "alice")
    client = Legacy(app, headers={"x-token": "one"}, state={"user": "a"})
    session = await client.connect()
    expected = {"token": "one", "who": "alice", "state": "a"}
    assert await options_of(session) == expected
    client.headers, client.state = {"x-token": "two"}, {"user": "b"}
    for _ in range(3):
        assert await options_of(session) == expected
        await session.request("ping")
        await session.call("add")
    async with session.listen():
        pass
    assert len(callers) == 1
    other = await client.connect()
    assert (await options_of(other))["token"] == "two"
    assert await options_of(session) == expected
    assert len(callers) == 2
    await session.delete()
    assert len(callers) == 2


@virtual_time
async def test_on_the_current_protocol_a_factory_is_asked_for_each_request(shop: Shop) -> None:
    # DESIGN section 6
    client = Client(asgi(shop.server, options=token_of))
    for token in ("one", "two"):
        assert (await client.call("who", x_token=token)).result["structuredContent"]["options"] == {"token": token}


@virtual_time
async def test_without_sessions_a_factory_is_asked_for_each_request(shop: Shop) -> None:
    client = Legacy(asgi(shop.server, options=token_of, sessions="off"), V06)
    for token in ("one", "two"):
        client.headers = {"x-token": token}
        assert await options_of(client.sessionless()) == {"token": token}


@pytest.mark.parametrize("kind", ["raises", "text", "list", "exits"])
@virtual_time
async def test_a_factory_that_fails_is_500_without_detail_and_starts_nothing(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Scenario 34: no session, no task, no row, no state; the detail is in the log."""
    broken = [True]
    begun: list[Any] = []

    def bind(caller: Any) -> Any:
        if not broken[0]:
            return {"fine": True}
        if kind == "raises":
            raise ValueError("password=hunter2")
        if kind == "exits":
            raise SystemExit("password=hunter2")
        return "password=hunter2" if kind == "text" else ["password=hunter2"]

    def begin(hello: Any) -> Cart:
        begun.append(hello)
        return Cart()

    shop = Shop(state=begin)
    client = Legacy(asgi(shop.server, options=bind, limits=Limits(max_sessions=1)))
    caplog.set_level(logging.ERROR)
    for _ in range(3):
        answer = await client.try_initialize(request_id="i")
        assert (answer.status, answer.message["id"], answer.error) == (500, "i", {"code": -32603, "message": answer.error["message"]})
        assert b"hunter2" not in answer.body
        assert b"ValueError" not in answer.body
        assert "mcp-session-id" not in answer.headers
    assert (begun, shop.over) == ([], [])
    assert {task for task in asyncio.all_tasks() if task is not asyncio.current_task()} == set()
    assert len(caplog.records) == 3
    broken[0] = False
    assert await options_of(await client.connect()) == {"fine": True}


@virtual_time
async def test_a_factory_may_wait_and_a_burst_does_not_pass_the_cap(shop: Shop) -> None:
    # scenario 18: capacity is checked again when the options are there
    async def bind(caller: Caller) -> dict[str, Any]:
        await asyncio.sleep(1)
        return token_of(caller)

    client = Legacy(asgi(shop.server, options=bind, limits=Limits(max_sessions=2)), headers={"x-token": "one"})
    answers = await asyncio.gather(*(client.try_initialize(request_id=number) for number in range(6)))
    assert sorted(answer.status for answer in answers) == [200, 200, 503, 503, 503, 503]
    session = Session(client, next(answer.headers["mcp-session-id"] for answer in answers if answer.status == 200), V11)
    assert await options_of(session) == {"token": "one"}


@virtual_time
async def test_a_client_that_leaves_while_its_options_are_made_opens_no_session(shop: Shop) -> None:
    async def bind(caller: Caller) -> dict[str, Any]:
        await asyncio.sleep(5)
        return {}

    client = Legacy(asgi(shop.server, options=bind, limits=Limits(max_sessions=1)))
    opening = asyncio.create_task(client.try_initialize())
    await asyncio.sleep(1)
    opening.cancel()
    await asyncio.wait([opening])
    await asyncio.sleep(10)
    await client.connect()


@virtual_time
async def test_at_capacity_nothing_is_asked(shop: Shop) -> None:
    """Contract: capacity first, then the factory, then the state."""
    asked: list[Any] = []

    def bind(caller: Caller) -> dict[str, Any]:
        asked.append(caller)
        return {}

    client = Legacy(asgi(shop.server, limits=Limits(max_sessions=1), options=bind))
    await client.connect()
    assert (await client.try_initialize()).status == 503
    assert len(asked) == 1


@virtual_time
async def test_an_initialize_that_can_not_be_read_asks_nothing(shop: Shop) -> None:
    asked: list[Any] = []

    def bind(caller: Caller) -> dict[str, Any]:
        asked.append(caller)
        return {}

    client = Legacy(asgi(shop.server, options=bind))
    await client.try_initialize(params={"capabilities": 5})
    assert asked == []


# Session ids


@virtual_time
async def test_ids_can_be_made_by_the_application(shop: Shop) -> None:
    names = iter(["till-1", "till-2"])
    client = Legacy(asgi(shop.server, session_id=lambda: next(names)))
    assert [(await client.connect()).id for _ in range(2)] == ["till-1", "till-2"]


@pytest.mark.parametrize("made", ["", "a b", "é", "a\r\nx: y", "x" * 100_000, None, 5])
@virtual_time
async def test_an_id_that_no_header_can_carry_opens_nothing(shop: Shop, made: Any, caplog: pytest.LogCaptureFixture) -> None:
    """HL-20: visible ASCII."""
    caplog.set_level(logging.ERROR)
    answer = await Legacy(asgi(shop.server, session_id=lambda: made)).try_initialize()
    assert answer.error["code"] == -32603
    assert "mcp-session-id" not in answer.headers
    assert caplog.records


@virtual_time
async def test_ids_whose_making_fails_open_nothing(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> str:
        raise ValueError("password=hunter2")

    client = Legacy(asgi(shop.server, session_id=fail))
    answer = await client.try_initialize(request_id="i")
    assert (answer.message["id"], answer.error["code"]) == ("i", -32603)
    assert b"hunter2" not in answer.body
    assert "hunter2" in caplog.text


@virtual_time
async def test_an_id_that_is_taken_never_opens_somebody_elses_session(shop: Shop) -> None:
    client = Legacy(asgi(shop.server, session_id=lambda: "always"))
    session = await client.connect()
    await session.call("add")
    answer = await client.try_initialize()
    assert answer.error["code"] == -32603
    assert (await session.call("look")).text == "1"


# No sessions


@pytest.mark.parametrize("version", VERSIONS)
@virtual_time
async def test_without_sessions_everything_works_that_needs_none(shop: Shop, version: str, caplog: pytest.LogCaptureFixture) -> None:
    """A09: no header, no hook, no line in the error log, a hundred times."""
    caplog.set_level(logging.WARNING)
    client = Legacy(asgi(shop.server, sessions="off"), version)
    answer = await client.try_initialize()
    assert (answer.status, answer.result["protocolVersion"]) == (200, version)
    assert "mcp-session-id" not in answer.headers
    session = client.sessionless()
    assert (await session.notify("notifications/initialized")).status == 202
    assert (await session.cancel(1)).status == 202
    assert (await session.request("ping")).result == {}
    assert (await session.request("logging/setLevel", {"level": "error"})).result == {}
    assert (await session.request("resources/subscribe", {"uri": "shop://prices"})).result == {}
    assert (await session.request("resources/unsubscribe", {"uri": "shop://prices"})).result == {}
    assert len((await session.request("tools/list")).result["tools"]) > 5
    for _ in range(100):
        assert (await session.call("echo", {"text": "x"}, request_id=1)).text == "x"
    assert caplog.records == []
    assert shop.over == []


@pytest.mark.parametrize("version", VERSIONS)
@virtual_time
async def test_without_sessions_progress_comes_before_the_result_all_the_same(shop: Shop, version: str) -> None:
    """A13."""
    session = Legacy(asgi(shop.server, sessions="off"), version).sessionless()
    answer = await session.call("count", {"to": 5}, token="t")
    assert [note["params"]["progress"] for note in answer.notes if "progress" in note["params"]] == [1, 2, 3, 4, 5]
    assert answer.text == "counted"


@pytest.mark.parametrize("verb", ["GET", "DELETE"])
@pytest.mark.parametrize("session_id", [None, "b9f3"])
@virtual_time
async def test_without_sessions_there_is_no_stream_and_nothing_to_delete(shop: Shop, verb: str, session_id: str | None) -> None:
    """A18: 405 with `Allow`, at once."""
    session = Session(Legacy(asgi(shop.server, sessions="off")), session_id, V11)
    answer = await (session.get() if verb == "GET" else session.delete())
    assert (answer.status, answer.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize(("header", "version"), [(None, V03), (V03, V03), (V06, V06), (V11, V11)])
@virtual_time
async def test_without_sessions_the_header_tells_the_version(shop: Shop, header: str | None, version: str) -> None:
    """VN-23: 2025-03-26 where nothing tells it."""
    session = Legacy(asgi(shop.server, sessions="off"), version).sessionless()
    answer = await session.call("who", mcp_protocol_version=header)
    assert f'"version":"{version}"' in answer.text.replace(" ", "")
    assert ("structuredContent" in answer.result) == (version != V03)


@virtual_time
async def test_without_sessions_a_session_id_of_old_means_nothing(shop: Shop) -> None:
    session = Session(Legacy(asgi(shop.server, sessions="off")), "b9f3c51d7a0e", V11)
    assert (await session.call("who")).result["structuredContent"]["session"] is None


@virtual_time
async def test_without_sessions_an_unserved_version_is_refused(shop: Shop) -> None:
    """VN-24."""
    session = Legacy(asgi(shop.server, sessions="off")).sessionless()
    assert (await session.call("who", mcp_protocol_version="2024-01-01")).status == 400


@virtual_time
async def test_without_sessions_leaving_a_stream_ends_its_call(shop: Shop) -> None:
    """Tied to the connection; nobody could come back for it."""
    session = Legacy(asgi(shop.server, sessions="off")).sessionless()
    async with session.open("report", {"seconds": 50}) as stream:
        await stream.message()
        await stream.drop()
    assert shop.stopped == ["report"]


# The handshake


@virtual_time
async def test_a_strict_handshake_serves_nothing_but_ping_before_it_is_complete(shop: Shop) -> None:
    """Scenario 36."""
    session = await Legacy(asgi(shop.server, handshake="strict")).initialize()
    assert (await session.request("ping")).result == {}
    for method, params in (("tools/list", None), ("tools/call", {"name": "add"}), ("logging/setLevel", {"level": "info"}), ("x/y", None)):
        answer = await session.request(method, params, request_id="q")
        assert (answer.status, answer.message["id"], answer.error["code"]) == (400, "q", -32600)
    assert (await session.notify("notifications/initialized")).status == 202
    assert (await session.call("add")).text == "1"


@virtual_time
async def test_a_lenient_one_serves_at_once(shop: Shop) -> None:
    session = await Legacy(asgi(shop.server)).initialize()
    assert (await session.call("add")).text == "1"


# Versions


@pytest.mark.parametrize(("asked", "agreed"), [(V11, V06), (V06, V06), (V03, V06), ("x", V06)])
@virtual_time
async def test_only_versions_that_are_served_are_agreed_on(shop: Shop, asked: str, agreed: str) -> None:
    """VN-20."""
    app = asgi(shop.server, versions=["2026-07-28", V06])
    client = Legacy(app, asked)
    answer = await client.try_initialize()
    assert answer.result["protocolVersion"] == agreed
    assert (await Client(app).call("add")).text == "1"
    session = await client.connect()
    assert (await session.call("add", mcp_protocol_version=V11)).status == 400


@virtual_time
async def test_where_only_2025_is_served_a_current_client_learns_it(shop: Shop) -> None:
    app = asgi(shop.server, versions=[V11, V06])
    answer = await Client(app).call("add")
    assert (answer.status, answer.error["code"]) == (400, -32022)
    assert answer.error["data"]["supported"] == [V11, V06]
    assert (await (await Legacy(app).connect()).call("add")).text == "1"


@virtual_time
async def test_where_only_the_current_version_is_served_a_2025_client_learns_it(shop: Shop) -> None:
    client = Legacy(asgi(shop.server, versions=["2026-07-28"]))
    answer = await client.try_initialize()
    assert answer.status == 400
    assert answer.error["data"]["supported"] == ["2026-07-28"]
    session = client.sessionless()
    for refused in (await session.get(), await session.delete()):
        assert (refused.status, refused.headers["allow"]) == (405, "POST")


# What it says of itself, and to whom


@virtual_time
async def test_instructions_of_the_endpoint_win(shop: Shop) -> None:
    server = Server("shop", instructions="The server's.")
    assert (await Legacy(asgi(server)).initialize()).opening["instructions"] == "The server's."
    app = asgi(server, instructions="The endpoint's.")
    assert (await Legacy(app).initialize()).opening["instructions"] == "The endpoint's."
    assert (await Client(app).request("server/discover")).result["instructions"] == "The endpoint's."
    assert "instructions" not in (await Legacy(asgi(shop.server)).initialize()).opening


@pytest.mark.parametrize("version", VERSIONS)
@virtual_time
async def test_capabilities_that_are_given_are_what_is_told(version: str) -> None:
    given = {"tools": {}, "experimental": {"x": {"a": 1}}, "extensions": {"io.example/x": {}}}
    session = await Legacy(asgi(Server("plain", capabilities=given)), version).initialize()
    told = session.opening["capabilities"]
    assert (told["tools"], told["experimental"]) == ({}, {"x": {"a": 1}})
    assert "extensions" not in told


@virtual_time
async def test_where_every_answer_is_json_nothing_streams(shop: Shop) -> None:
    client = Legacy(asgi(shop.server, json_only=True))
    session = await client.connect()
    answer = await session.call("count", {"to": 3}, token="t")
    assert (answer.is_stream, answer.text) == (False, "counted")
    assert (await session.call("add")).text == "1"
    refused = await session.get()
    assert refused.status == 405
    assert {name.strip() for name in refused.headers["allow"].split(",")} == {"POST", "DELETE"}
    assert "logging" not in session.opening["capabilities"]
    assert "listChanged" not in session.opening["capabilities"]["tools"]
    assert (await session.delete()).status == 204


@pytest.mark.parametrize("verb", ["POST", "GET", "DELETE"])
@pytest.mark.parametrize(("origin", "allowed"), [(None, True), (ORIGIN, True), ("https://evil.example", False), ("null", False)])
@virtual_time
async def test_origins_are_checked_on_every_verb(shop: Shop, verb: str, origin: str | None, allowed: bool) -> None:
    """Scenario 33; SA16; HM-02."""
    session = await Legacy(asgi(shop.server, origins=[ORIGIN])).connect()
    if verb == "GET":
        exchange = session.start_listening(origin=origin)
        status = await exchange.head()
        await exchange.drop()
    else:
        answer = await (session.call("echo", {"text": "x"}, origin=origin) if verb == "POST" else session.delete(origin=origin))
        status = answer.status
    assert status == ({"POST": 200, "GET": 200, "DELETE": 204}[verb] if allowed else 403)
    if not allowed:
        assert (shop.ran, shop.over) == ([], [])
        assert (await session.request("ping")).result == {}


@virtual_time
async def test_a_page_can_read_the_session_and_use_all_it_needs(shop: Shop) -> None:
    """A57."""
    client = Legacy(asgi(shop.server, origins=[ORIGIN], cors=True), headers={"origin": ORIGIN})
    session = await client.connect()
    assert session.id
    opening = await client.try_initialize()
    exposed = {name.strip().lower() for name in opening.headers["access-control-expose-headers"].split(",")}
    assert "mcp-session-id" in exposed
    asked = "content-type, mcp-session-id, mcp-protocol-version, last-event-id"
    for verb in ("POST", "GET", "DELETE"):
        preflight = await session.send(
            "OPTIONS",
            b"",
            {
                "host": "127.0.0.1:8000",
                "origin": ORIGIN,
                "access-control-request-method": verb,
                "access-control-request-headers": asked,
            },
        ).end()
        assert preflight.status == 204
        assert verb in preflight.headers["access-control-allow-methods"]
        assert {name.strip() for name in preflight.headers["access-control-allow-headers"].lower().split(",")} >= set(asked.split(", "))
    for answer in (await session.call("echo", {"text": "x"}), await session.delete(), await session.request("ping")):
        assert answer.headers["access-control-allow-origin"] == ORIGIN


# Inside other applications


@virtual_time
async def test_sessions_work_in_an_application_that_knows_nothing_of_them(shop: Shop) -> None:
    """A32."""
    host = Starlette(routes=[Mount("/api", asgi(shop.server))])
    session = await Legacy(host, path="/api/mcp").connect()
    assert [(await session.call("add")).text for _ in range(2)] == ["1", "2"]
    async with session.listen() as stream:
        shop.server.notify(str(session.id), {"method": "notifications/tools/list_changed"})
        await stream.message()
    assert (await session.delete()).status == 204


@virtual_time
async def test_a_lifespan_is_entered_once_for_the_server_and_a_state_begins_once_per_session() -> None:
    """A33: ten stateless requests and three sessions."""
    entered: list[str] = []
    begun: list[Any] = []

    @asynccontextmanager
    async def lifespan(_: Server) -> AsyncIterator[dict[str, Any]]:
        entered.append("in")
        yield {}

    def begin(hello: Any) -> Cart:
        begun.append(hello.session_id)
        return Cart()

    shop = Shop(state=begin, lifespan=lifespan)
    app = asgi(shop.server)
    sessions = [await Legacy(app).connect() for _ in range(3)]
    for _ in range(10):
        assert (await Client(app).call("echo", {"text": "x"})).text == "x"
    for session in sessions:
        for _ in range(3):
            await session.call("add")
    assert entered == ["in"]
    assert begun == [session.id for session in sessions]


# What clients write in their own way


@pytest.mark.parametrize("version", VERSIONS)
@virtual_time
async def test_blanks_after_the_sessions_id_are_no_part_of_it(shop: Shop, version: str) -> None:
    # RFC 9110, 5.5
    session = await Legacy(asgi(shop.server), version).connect()
    for blanks in (" ", "  ", "\t"):
        assert (await session.request("ping", mcp_session_id=f"{session.id}{blanks}")).result == {}
    assert (await session.delete(mcp_session_id=f"{session.id} ")).status == 204


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("ping", {"params": None}),
        ("tools/list", {"params": None}),
        ("tools/list", {"params": {"cursor": None, "_meta": None}}),
        ("resources/templates/list", {"params": {"cursor": None}}),
        ("tools/call", {"params": {"name": "look", "arguments": None, "_meta": None}}),
        ("prompts/get", {"params": {"name": "advertise", "arguments": None}}),
        ("resources/read", {"params": {"uri": "shop://prices", "_meta": None}}),
        ("logging/setLevel", {"params": {"level": "info", "_meta": None}}),
    ],
)
@virtual_time
async def test_null_is_how_some_clients_write_what_is_absent(shop: Shop, version: str, method: str, more: dict[str, Any]) -> None:
    session = await Legacy(asgi(shop.server), version).connect()
    answer = await session.post({"jsonrpc": "2.0", "id": 7, "method": method, **more})
    assert (answer.status, answer.message["id"], "result" in answer.message) == (200, 7, True)
    notice = await session.post({"jsonrpc": "2.0", "method": "notifications/initialized", "params": None})
    assert (notice.status, notice.body) == (202, b"")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("fault", ["batch", "no message", "stray response", "number out of range", "event id"])
@virtual_time
async def test_an_error_has_its_id_as_the_sessions_version_wants_it(shop: Shop, version: str, fault: str) -> None:
    """JR-09: also where the header that names the version is left out; and an id is never made up."""
    bodies = {"batch": b"[]", "no message": b"5", "number out of range": b'{"jsonrpc":"2.0","id":1e400,"method":"ping"}'}
    bodies["stray response"] = b'{"jsonrpc":"2.0","id":"stray","result":{}}'
    session = await Legacy(asgi(shop.server), version).connect()
    for stated in (None, version):
        if fault == "event id":
            answer = await session.get("junk", mcp_protocol_version=stated)
        else:
            answer = await session.send("POST", bodies[fault], session.headers(mcp_protocol_version=stated)).end()
        assert "error" in answer.message
        assert ("id" in answer.message, answer.message.get("id")) == (version != V11, None)

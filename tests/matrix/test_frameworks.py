"""Inside other ASGI applications: routed to, mounted, behind their middleware, under their test clients."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from asgi_driver import Application, Client, make_headers, make_meta, make_request, read_events
from desk import Desk
from fastapi import FastAPI
from legacy_driver import Legacy
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from callboard import Context, Server, asgi

CALL = make_request("tools/call", {"name": "echo", "arguments": {"text": "hi"}})
COUNT = make_request("tools/call", {"name": "count", "arguments": {"to": 3}}, meta=make_meta(progressToken=1))


def routed() -> Any:
    app = Starlette()
    app.add_route("/mcp", asgi(Desk().server))  # type: ignore[arg-type]
    return app


def routed_in_fastapi() -> Any:
    app = FastAPI()
    app.add_route("/mcp", asgi(Desk().server))  # type: ignore[arg-type]
    return app


def route() -> Any:
    return Starlette(routes=[Route("/mcp", asgi(Desk().server))])


def mounted_at_its_path() -> Any:
    app = FastAPI()
    app.mount("/mcp", asgi(Desk().server))
    return app


def mounted_above_its_path() -> Any:
    return Starlette(routes=[Mount("/api", asgi(Desk().server))])


def mounted_at_the_root() -> Any:
    return Starlette(routes=[Route("/health", lambda _: JSONResponse({})), Mount("/", asgi(Desk().server))])


def mounted_twice_over() -> Any:
    return Starlette(routes=[Mount("/outer", Starlette(routes=[Mount("/inner", asgi(Desk().server))]))])


PLACES = [
    pytest.param(routed, "/mcp", id="add_route in Starlette"),
    pytest.param(routed_in_fastapi, "/mcp", id="add_route in FastAPI"),
    pytest.param(route, "/mcp", id="Route"),
    pytest.param(mounted_at_its_path, "/mcp/", id="mount in FastAPI"),
    pytest.param(mounted_above_its_path, "/api/mcp", id="Mount above"),
    pytest.param(mounted_above_its_path, "/api/mcp/", id="Mount above, slash"),
    pytest.param(mounted_above_its_path, "/api/", id="Mount itself"),
    pytest.param(mounted_at_the_root, "/mcp", id="Mount at the root"),
    pytest.param(mounted_at_the_root, "/mcp/", id="Mount at the root, slash"),
    pytest.param(mounted_twice_over, "/outer/inner/mcp", id="Mount in a Mount"),
]


@pytest.mark.parametrize(("make", "path"), PLACES)
async def test_it_is_served_without_lifespan_wiring(make: Callable[[], Application], path: str) -> None:
    # A32
    client = Client(make(), path=path)
    answer = await client.post(CALL)
    assert (answer.status, answer.text) == (200, "hi")
    assert len((await client.post(COUNT)).notes) == 3
    assert (await client.send(b"", make_headers({"method": "x"}), verb="GET")).status == 405


@pytest.mark.parametrize(("make", "path"), PLACES)
async def test_sessions_are_served_there_too(make: Callable[[], Application], path: str) -> None:
    # A32, HL-01: no router keeps GET or DELETE away
    session = await Legacy(make(), path=path).connect()
    assert (await session.call("echo", {"text": "hi"})).text == "hi"
    counted = await session.call("count", {"to": 3}, token=1)
    assert (counted.text, [note["method"] for note in counted.notes].count("notifications/progress")) == ("counted", 3)
    async with session.listen():
        assert (await session.call("echo", {"text": "hi"})).text == "hi"
    assert (await session.delete()).status == 204
    assert (await session.call("echo", {"text": "hi"})).status == 404


@pytest.mark.parametrize("framework", [Starlette, FastAPI])
async def test_two_routes_serve_both_spellings(framework: Callable[[], Any]) -> None:
    """With one route the other spelling is the framework's 307; alone the application never redirects."""
    app, endpoint = framework(), asgi(Desk().server)
    app.add_route("/mcp", endpoint)
    app.add_route("/mcp/", endpoint)
    for path in ("/mcp", "/mcp/"):
        assert (await Client(app, path=path).post(CALL)).status == 200
        assert (await Client(endpoint, path=path).post(CALL)).status == 200


async def test_other_paths_of_the_application_are_its_own() -> None:
    app = mounted_at_the_root()
    with TestClient(app, base_url="http://127.0.0.1") as client:
        assert client.get("/health").json() == {}


@pytest.mark.parametrize("make", [routed, routed_in_fastapi])
async def test_a_hundred_after_another_and_fifty_at_once(make: Callable[[], Application]) -> None:
    # A09, A32
    client = Client(make())
    for number in range(100):
        assert (await client.call("echo", {"text": str(number)}, request_id=number)).text == str(number)
    answers = await asyncio.gather(*(client.call("echo", {"text": str(number)}, request_id=number) for number in range(50)))
    assert [answer.text for answer in answers] == [str(number) for number in range(50)]


# Test clients: a loop per request


@pytest.mark.parametrize("make", [routed, routed_in_fastapi])
@pytest.mark.parametrize("entered", [True, False])
def test_a_test_client_works(make: Callable[[], Any], entered: bool) -> None:
    # A32
    client = TestClient(make(), base_url="http://127.0.0.1:8000")
    if entered:
        with client:
            use(client)
    else:
        use(client)


def use(client: TestClient) -> None:
    for number in range(5):
        call = make_request("tools/call", {"name": "sync_echo", "arguments": {"text": "hi"}}, request_id=number)
        response = client.post("/mcp", json=call, headers=make_headers(call, host=None))
        assert response.status_code == 200
        assert response.json()["result"]["content"][0]["text"] == "hi"
        streamed = client.post("/mcp", json=COUNT, headers=make_headers(COUNT, host=None))
        assert len(list(read_events(streamed.content))) == 4


@pytest.mark.parametrize("make", [routed, routed_in_fastapi])
def test_a_session_lasts_as_long_as_its_event_loop(make: Callable[[], Any]) -> None:
    # A32, HL-23: a test client that was not entered has a loop for each request, so its sessions are over at once, which it is told
    client = TestClient(make(), base_url="http://127.0.0.1:8000")
    for _ in range(3):
        assert open_and_call(client) == 404
    with client:
        assert [open_and_call(client) for _ in range(3)] == [200, 200, 200]
    assert open_and_call(client) == 404


def open_and_call(client: TestClient) -> int:
    """Open a session and call a tool in it; the status of the call."""
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "tester", "version": "1"}}
    opened = client.post("/mcp", json={"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
    assert (opened.status_code, opened.json()["result"]["protocolVersion"]) == (200, "2025-11-25")
    headers = {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "sync_echo", "arguments": {"text": "hi"}}}
    return client.post("/mcp", json=call, headers=headers).status_code


def test_the_default_host_of_test_clients_is_named_in_the_refusal() -> None:
    # A34
    client = TestClient(routed())
    response = client.post("/mcp", json=CALL, headers=make_headers(CALL, host=None))
    assert response.status_code == 421
    assert "testserver" in response.json()["error"]["message"]
    assert "hosts" in response.json()["error"]["message"]
    app = Starlette(routes=[Route("/mcp", asgi(Desk().server, hosts=["testserver"]))])
    response = TestClient(app).post("/mcp", json=CALL, headers=make_headers(CALL, host=None))
    assert response.status_code == 200


def test_lifespans_are_entered_once_with_and_without_the_applications() -> None:
    # A32, A33
    events: list[str] = []

    @asynccontextmanager
    async def lifespan(_server: Server) -> AsyncIterator[None]:
        events.append("in")
        yield
        events.append("out")

    server = Server("desk", lifespan=lifespan)
    server.tool(name="echo")(lambda: "")
    alone = asgi(server)
    with TestClient(alone, base_url="http://127.0.0.1:8000") as client:
        for _ in range(3):
            call = make_request("tools/call", {"name": "echo"})
            assert client.post("/mcp", json=call, headers=make_headers(call, host=None)).status_code == 200
    assert events == ["in", "out"]


# Middleware of others


class Tag(BaseHTTPMiddleware):
    """A middleware that reads the request and changes the response."""

    async def dispatch(self, request: Request, call_next: Any) -> Response:
        request.state.user = request.headers.get("x-user", "nobody")
        response: Response = await call_next(request)
        response.headers["x-tag"] = "seen"
        return response


def behind(*middleware: Any) -> Any:
    server = Desk().server

    @server.tool
    async def user(ctx: Context) -> str:
        return str(ctx.scope_state["user"])

    return Starlette(routes=[Route("/mcp", asgi(server))], middleware=[Middleware(kind) for kind in middleware])


async def test_a_function_middleware_of_starlette_goes_around_it() -> None:
    # A49, A13
    client = Client(behind(Tag))
    answer = await client.call("user", x_user="ann")
    assert (answer.text, answer.headers["x-tag"]) == ("ann", "seen")
    answer = await client.post(COUNT)
    assert (answer.is_stream, len(answer.notes), answer.text) == (True, 3, "counted")


async def test_a_client_that_goes_away_behind_it_is_noticed() -> None:
    # SA25
    desk = Desk()
    app = Starlette(routes=[Route("/mcp", asgi(desk.server))], middleware=[Middleware(Tag)])
    async with Client(app).open("tools/call", {"name": "hang"}, meta=make_meta(progressToken=1)) as stream:
        await stream.message()
        stream.disconnect()
        await stream.gone()
    assert desk.ended == ["cancelled"]


async def test_compression_leaves_streams_alone() -> None:
    client = Client(behind(GZipMiddleware))
    answer = await client.post(COUNT, accept_encoding="gzip")
    assert (answer.is_stream, answer.text) == (True, "counted")


async def test_an_application_around_it_may_hold_requests_back() -> None:
    inner = asgi(Desk().server)

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        async def receive_later() -> Any:
            await asyncio.sleep(0)
            return await receive()

        async def send_later(event: Any) -> None:
            await asyncio.sleep(0)
            await send(event)
            await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            await group.create_task(inner(scope, receive_later, send_later))

    client = Client(slow)
    assert (await client.post(CALL)).text == "hi"
    assert len((await client.post(COUNT)).notes) == 3


async def test_an_eager_disconnect_after_the_request_is_a_client_that_went_away() -> None:
    """Some adapters say `http.disconnect` as soon as the body has been read; quick calls must be answered all the same."""
    sent: list[Any] = []
    events = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Any:
        return events.pop(0) if events else {"type": "http.disconnect"}

    async def send(event: Any) -> None:
        sent.append(event)

    events[0]["body"] = json.dumps(COUNT).encode()
    app = asgi(Desk().server)
    scope = Client(app).scope("POST", [(name.encode(), value.encode()) for name, value in make_headers(COUNT).items()])
    await app(scope, receive, send)
    assert sent[0]["status"] == 200

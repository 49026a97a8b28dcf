"""Streamable HTTP as an ASGI application: which requests are served where, and how the others are refused."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from asgi_driver import LATEST, Client, Event, make_headers, make_meta, make_request
from legacy_driver import V03, V06, V11

from callboard import Context, RegistrationError, Server, asgi
from callboard.limits import Limits
from callboard.transport.asgi import LINGER_BYTES, App

MODERN_ONLY = {"versions": [LATEST]}
CALL = make_request("tools/call", {"name": "echo", "arguments": {"text": "hi"}})


def make_server(**options: Any) -> Server:
    server = Server("desk", version="1", **options)

    @server.tool
    async def echo(text: str) -> str:
        return text

    @server.tool
    async def count(ctx: Context, to: int = 1) -> str:
        for number in range(to):
            ctx.progress(number)
            await asyncio.sleep(0)
        return "done"

    return server


def make_app(**options: Any) -> App:
    return asgi(make_server(), **options)


async def run_lifespan(app: App, *steps: str) -> list[Event]:
    """The application's answers to lifespan events."""
    waiting = [{"type": f"lifespan.{step}"} for step in steps]
    sent: list[Event] = []

    async def receive() -> Event:
        return waiting.pop(0)

    async def send(event: Event) -> None:
        sent.append(event)

    await app({"type": "lifespan", "asgi": {"version": "3.0"}}, receive, send)
    return sent


# Where it is served


@pytest.mark.parametrize("path", ["/mcp", "/mcp/"])
async def test_the_endpoint_is_served_with_and_without_a_slash(path: str) -> None:
    # HM-01
    answer = await Client(make_app()).post(CALL, path=path)
    assert answer.status == 200
    assert answer.text == "hi"


@pytest.mark.parametrize("path", ["/", "", "/mcpx", "/mcp/x", "/MCP", "/x/mcp", "/.well-known/oauth-protected-resource", "//mcp"])
async def test_other_paths_are_not(path: str) -> None:
    # HM-01
    answer = await Client(make_app()).post(CALL, path=path)
    assert answer.status == 404
    assert "/mcp" in answer.error["message"]


@pytest.mark.parametrize("path", ["/", "tools", "/api/v1/tools/"])
async def test_the_path_is_an_option(path: str) -> None:
    app = make_app(path=path)
    answer = await Client(app).post(CALL, path="/" + path.strip("/"))
    assert answer.status == 200


@pytest.mark.parametrize(
    ("options", "allow"),
    [
        pytest.param(MODERN_ONLY, "POST", id="current protocol only"),
        pytest.param({}, "POST, GET, DELETE", id="both eras"),
        pytest.param({"json_only": True}, "POST, DELETE", id="both eras, no streams"),
        pytest.param({"sessions": "off"}, "POST", id="both eras, no sessions"),
    ],
)
@pytest.mark.parametrize("verb", ["GET", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS", "TRACE", "FOO"])
async def test_other_verbs_are_refused_at_once(verb: str, options: dict[str, Any], allow: str) -> None:
    # HM-20, A18, A06, JR-09: to a client of the current protocol GET and DELETE are other verbs, whoever else has sessions here
    answer = await Client(make_app(**options)).send(b"", make_headers({"method": "x"}), verb=verb)
    assert answer.status == 405
    assert answer.headers["allow"] == allow
    assert "id" not in answer.message


@pytest.mark.parametrize(("options", "status"), [(MODERN_ONLY, 405), ({"sessions": "off"}, 405), ({}, 400)])
@pytest.mark.parametrize("verb", ["GET", "DELETE"])
async def test_who_names_no_version_is_asked_for_its_session_where_there_are_sessions(
    verb: str, options: dict[str, Any], status: int
) -> None:
    # HM-20, HL-22, A06
    sent = await run_app(make_app(**options), verb, b"", make_headers({"method": "x"}, mcp_protocol_version=None, mcp_method=None))
    assert sent[0]["status"] == status
    assert (b"allow" in dict(sent[0]["headers"])) == (status == 405)


async def test_a_websocket_is_closed() -> None:
    sent: list[Event] = []

    async def receive() -> Event:
        return {"type": "websocket.connect"}

    async def send(event: Event) -> None:
        sent.append(event)

    await make_app()({"type": "websocket", "path": "/mcp", "headers": []}, receive, send)
    assert [event["type"] for event in sent] == ["websocket.close"]


# Refusals: each with a JSON-RPC body without id, before anything runs


@pytest.mark.parametrize(
    ("changed", "status", "setting"),
    [
        pytest.param({"host": "mcp.example.com"}, 421, "hosts", id="A34 host"),
        pytest.param({"host": None}, 421, "hosts", id="no host"),
        pytest.param({"origin": "https://evil.example"}, 403, "origins", id="SA16 origin"),
        pytest.param({"origin": "null"}, 403, "origins", id="SA16 null"),
        pytest.param({"origin": "http://localhost:3000"}, 403, "origins", id="SA16 other port"),
        pytest.param({"origin": "https://127.0.0.1.evil"}, 403, "origins", id="SA16 suffix"),
        pytest.param({"content_type": "text/plain"}, 415, "application/json", id="SA14"),
        pytest.param({"content_type": None}, 415, "application/json", id="no content type"),
        pytest.param({"content_encoding": "gzip"}, 415, "Content-Encoding", id="SA09"),
        pytest.param({"accept": "text/html"}, 406, "text/event-stream", id="accept"),
        pytest.param({"accept": ""}, 406, "text/event-stream", id="accept nothing"),
        pytest.param({"x_padding": "x" * 20_000}, 431, "max_headers", id="headers"),
        pytest.param({"content_length": "99999999"}, 413, "max_body", id="SA08 length"),
    ],
)
async def test_a_refusal_names_the_setting(changed: dict[str, str | None], status: int, setting: str) -> None:
    # HM-02, HM-04, SA08, SA09, SA14, SA16, A34, JR-09
    answer = await Client(make_app()).post(CALL, **changed)
    assert answer.status == status
    assert answer.headers["content-type"] == "application/json"
    assert setting in answer.error["message"]
    assert "id" not in answer.message


async def test_other_machines_are_let_in_only_by_option() -> None:
    # HM-03
    for options, status in (({}, 403), ({"allow_remote": True}, 200)):
        answer = await Client(make_app(**options), peer=("10.1.2.3", 5)).post(CALL)
        assert answer.status == status
    assert (await Client(make_app(), peer=None).post(CALL)).status == 200


async def test_hosts_and_origins_are_options() -> None:
    # A34
    app = make_app(hosts=("MCP.example.com",), origins=("https://App.example.com",))
    answer = await Client(app).post(CALL, host="mcp.example.com", origin="https://app.example.com")
    assert answer.status == 200
    assert (await Client(app).post(CALL)).status == 421


@pytest.mark.parametrize("name", ["mcp-method", "mcp-name", "mcp-protocol-version"])
async def test_a_mirrored_header_that_comes_twice_is_refused(name: str) -> None:
    # HH-06, EC-05
    headers = [(key.encode(), value.encode()) for key, value in make_headers(CALL).items()]
    answer = await Client(make_app()).send(json.dumps(CALL).encode(), [*headers, (name.encode(), b"x")])
    assert answer.status == 400
    assert answer.error["code"] == -32020


async def test_accept_may_come_in_several_lines() -> None:
    # HM-05: RFC 9110, 5.3
    headers = [(key.encode(), value.encode()) for key, value in make_headers(CALL, accept="text/event-stream").items()]
    answer = await Client(make_app()).send(json.dumps(CALL).encode(), [*headers, (b"accept", b"application/json")], method="tools/call")
    assert answer.status == 200
    assert not answer.is_stream
    message = make_request("tools/call", {"name": "count"}, meta=make_meta(progressToken=1))
    headers = [(key.encode(), value.encode()) for key, value in make_headers(message, accept="text/event-stream").items()]
    answer = await Client(make_app()).send(json.dumps(message).encode(), [*headers, (b"accept", b"application/json")], method="tools/call")
    assert answer.is_stream


@pytest.mark.parametrize("accept", [None, "*/*", "application/json, text/event-stream", "text/event-stream, application/json"])
async def test_a_plain_call_is_answered_in_json(accept: str | None) -> None:
    # HM-08
    answer = await Client(make_app()).post(CALL, accept=accept)
    assert (answer.status, answer.is_stream, answer.text) == (200, False, "hi")


@pytest.mark.parametrize(("accept", "streams"), [("application/json", False), ("text/event-stream", True)])
async def test_a_client_that_takes_one_kind_gets_that(accept: str, streams: bool) -> None:
    # HM-08
    message = make_request("tools/call", {"name": "count", "arguments": {"to": 3}}, meta=make_meta(progressToken="t"))
    answer = await Client(make_app()).post(message, accept=accept)
    assert (answer.status, answer.is_stream, answer.text) == (200, streams, "done")
    assert len(answer.notes) == (3 if streams else 0)


async def test_json_only_is_json_only() -> None:
    # HM-08, A19
    app = make_app(json_only=True)
    message = make_request("tools/call", {"name": "count", "arguments": {"to": 3}}, meta=make_meta(progressToken="t"))
    answer = await Client(app).post(message)
    assert (answer.is_stream, answer.text) == (False, "done")
    assert (await Client(app).post(message, accept="text/event-stream")).status == 406
    listen = await Client(app).request("subscriptions/listen", {"notifications": {}})
    assert (listen.status, listen.error["code"]) == (404, -32601)
    discovered = await Client(app).request("server/discover")
    assert discovered.result["capabilities"]["tools"] == {}


# Bodies


class Body:
    """An ASGI receive that gives a body in pieces, and says what has been read of it."""

    def __init__(self, pieces: list[bytes], *, endless: bytes = b"", cut: bool = False) -> None:
        self._pieces = pieces
        self._endless = endless
        self._cut = cut
        self.read = 0

    async def __call__(self) -> Event:
        if self._pieces:
            piece = self._pieces.pop(0)
            self.read += len(piece)
            return {"type": "http.request", "body": piece, "more_body": bool(self._pieces or self._endless or self._cut)}
        if self._endless:
            self.read += len(self._endless)
            return {"type": "http.request", "body": self._endless, "more_body": True}
        return {"type": "http.disconnect"}


async def run_app(app: App, verb: str, body: Body | bytes, headers: dict[str, str]) -> list[Event]:
    """What the application sends, unjudged."""
    sent: list[Event] = []

    async def send(event: Event) -> None:
        sent.append(event)

    receive = Body([body]) if isinstance(body, bytes) else body
    await app(Client(app).scope(verb, [(key.encode(), value.encode()) for key, value in headers.items()]), receive, send)
    return sent


async def post_body(app: App, body: Body, **changed: str | None) -> list[Event]:
    return await run_app(app, "POST", body, make_headers(CALL, **changed))


async def test_a_body_may_come_in_pieces() -> None:
    whole = json.dumps(CALL).encode()
    sent = await post_body(make_app(), Body([whole[at : at + 7] for at in range(0, len(whole), 7)]))
    assert sent[0]["status"] == 200
    sent = await post_body(make_app(), Body([b"", whole, b""]))
    assert sent[0]["status"] == 200


@pytest.mark.parametrize("limit", [1000, 1 << 20, 16 << 20])
async def test_a_body_fits_up_to_the_limit(limit: int) -> None:
    # A44, SA08: n-1, n, n+1
    app = make_app(limits=Limits(max_body=limit))
    bare = len(json.dumps(make_request("tools/call", {"name": "echo", "arguments": {"text": ""}})))
    for size, status in ((limit - 1, 200), (limit, 200), (limit + 1, 413)):
        message = make_request("tools/call", {"name": "echo", "arguments": {"text": "x" * (size - bare)}})
        whole = json.dumps(message).encode()
        assert len(whole) == size
        for pieces in ([whole], [whole[:100], whole[100:]]):
            sent = await post_body(app, Body(pieces))
            assert sent[0]["status"] == status


async def read_when_answered(app: App, body: Body, **changed: str | None) -> tuple[list[Event], int]:
    """Post a body; what was sent, and how much of the body had been read when the whole answer was out."""
    sent: list[Event] = []
    read: list[int] = []

    async def send(event: Event) -> None:
        sent.append(event)
        if event.get("body"):
            read.append(body.read)

    headers = [(key.encode(), value.encode()) for key, value in make_headers(CALL, **changed).items()]
    await app(Client(app).scope("POST", headers), body, send)
    return sent, read[0]


async def test_an_endless_body_is_refused_at_the_limit_and_not_read_for_ever() -> None:
    # SA08: what comes after the answer is thrown away, so that a client that still writes gets to read it
    body = Body([], endless=b" " * 1000)
    sent, read = await read_when_answered(make_app(limits=Limits(max_body=10_000)), body)
    assert sent[0]["status"] == 413
    assert (b"connection", b"close") in sent[0]["headers"]
    assert read <= 12_000
    assert body.read <= read + LINGER_BYTES + 1000


async def test_a_length_over_the_limit_is_refused_unread() -> None:
    # SA08
    body = Body([b"x"])
    sent, read = await read_when_answered(make_app(), body, content_length="5000000")
    assert sent[0]["status"] == 413
    assert (b"connection", b"close") in sent[0]["headers"]
    assert read == 0


async def test_over_http_2_nothing_says_connection_close() -> None:
    # SA08: RFC 9113, 8.2.2 forbids the header
    app = make_app(limits=Limits(max_body=100))
    scope = Client(app).scope("POST", [(key.encode(), value.encode()) for key, value in make_headers(CALL).items()])
    for changed in ({}, {"headers": [*scope["headers"], (b"content-length", b"101")]}):
        sent: list[Event] = []

        async def send(event: Event, sent: list[Event] = sent) -> None:
            sent.append(event)

        await app({**scope, **changed, "http_version": "2"}, Body([b"x" * 101]), send)
        assert sent[0]["status"] == 413
        assert b"connection" not in dict(sent[0]["headers"])


@pytest.mark.parametrize("pieces", [[], [b'{"jsonrpc":"2.0","id"'], [json.dumps(CALL).encode()]])
async def test_a_client_that_goes_away_in_its_body_runs_nothing(pieces: list[bytes]) -> None:
    # CN-04
    server = Server("desk")
    ran: list[str] = []

    @server.tool
    async def echo(text: str) -> str:
        ran.append(text)
        return text

    await post_body(asgi(server), Body(pieces, cut=True))
    assert ran == []


@pytest.mark.parametrize(
    ("body", "code"),
    [
        pytest.param(b"", -32700, id="empty"),
        pytest.param(b'{"jsonrpc":', -32700, id="SA01"),
        pytest.param(b'{"jsonrpc":"2.0","id":1,"method":"\xff\xfe"}', -32700, id="SA02"),
        pytest.param(b'{"jsonrpc":"2.0","id":null,"method":"x"}', -32600, id="SA03 null"),
        pytest.param(b'{"jsonrpc":"2.0","id":1.5,"method":"x"}', -32600, id="SA03 fraction"),
        pytest.param(b'{"jsonrpc":"2.0","id":true,"method":"x"}', -32600, id="SA03 boolean"),
        pytest.param(b'{"jsonrpc":"2.0","id":{},"method":"x"}', -32600, id="SA03 object"),
        pytest.param(b'[{"jsonrpc":"2.0","id":1,"method":"x"}]', -32600, id="SA04 batch"),
        pytest.param(b"[]", -32600, id="SA04 empty batch"),
        pytest.param(b"5", -32600, id="SA04 scalar"),
        pytest.param(b"[" * 20_000, -32700, id="SA05"),
        pytest.param(b'{"jsonrpc":"2.0","id":1,"result":{}}', -32600, id="JR-06 response"),
        pytest.param(b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":""}}', -32600, id="JR-06 error"),
    ],
)
async def test_what_is_no_request_is_refused_without_id(body: bytes, code: int) -> None:
    # SA01, SA02, SA03, SA04, SA05, JR-09, JR-20, HM-06, EC-01
    answer = await Client(make_app()).send(body, make_headers({"method": "x"}))
    assert answer.status == 400
    assert answer.error["code"] == code
    assert "id" not in answer.message


async def test_a_faulty_envelope_is_refused_with_its_id() -> None:
    # JR-08, JR-09
    answer = await Client(make_app()).send(b'{"id":"a","method":"x"}', make_headers({"method": "x"}))
    assert (answer.status, answer.message["id"], answer.error["code"]) == (400, "a", -32600)


@pytest.mark.parametrize("method", ["notifications/cancelled", "notifications/initialized", "notifications/roots/list_changed", "foo"])
async def test_a_notification_is_accepted_without_a_body(method: str) -> None:
    # HM-07, HM-22, JR-12, CN-06: an invalid cancellation is ignored
    answer = await Client(make_app()).post({"jsonrpc": "2.0", "method": method, "params": {"requestId": 99}})
    assert (answer.status, answer.body) == (202, b"")
    assert "content-type" not in answer.headers


async def test_a_notification_that_contradicts_itself_is_refused() -> None:
    # HM-07
    answer = await Client(make_app()).post({"jsonrpc": "2.0", "method": "notifications/x"}, mcp_method="notifications/y")
    assert (answer.status, answer.error["code"]) == (400, -32020)
    assert "id" not in answer.message


# CORS


async def preflight(app: App, origin: str, **more: str) -> Any:
    headers = {
        "host": "127.0.0.1:8000",
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "content-type,mcp-protocol-version,mcp-method,mcp-name,mcp-param-region",
        **more,
    }
    return await Client(app).send(b"", headers, verb="OPTIONS")


async def test_a_preflight_is_answered_where_cors_is_on() -> None:
    # SA17, A57
    answer = await preflight(make_app(origins=("https://app.example.com",), cors=True), "https://app.example.com")
    assert (answer.status, answer.body) == (204, b"")
    assert "content-length" not in answer.headers  # RFC 9110 section 8.6
    assert answer.headers["access-control-allow-origin"] == "https://app.example.com"
    assert answer.headers["access-control-allow-methods"] == "POST, GET, DELETE"
    assert "mcp-param-region" in answer.headers["access-control-allow-headers"]
    assert answer.headers["vary"] == "origin"
    assert "*" not in answer.headers.values()


async def test_a_preflight_allows_what_there_is() -> None:
    # SA17, A57
    app = make_app(origins=("https://app.example.com",), cors=True, **MODERN_ONLY)
    assert (await preflight(app, "https://app.example.com")).headers["access-control-allow-methods"] == "POST"


async def test_a_preflight_without_cors_is_no_method() -> None:
    # SA17: never 401
    answer = await preflight(make_app(origins=("https://app.example.com",)), "https://app.example.com")
    assert answer.status == 405
    assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_a_preflight_of_another_origin_is_refused() -> None:
    # SA16, SA17
    answer = await preflight(make_app(origins=("https://app.example.com",), cors=True), "https://evil.example")
    assert answer.status == 403
    assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_answers_expose_their_headers_to_the_origin_that_asked() -> None:
    # A57
    app = make_app(origins=("https://app.example.com", "https://b.example"), cors=True)
    for message, status in ((CALL, 200), ({"jsonrpc": "2.0", "method": "x"}, 202), (make_request("x"), 404)):
        answer = await Client(app).post(message, origin="https://app.example.com")
        assert answer.status == status
        assert answer.headers["access-control-allow-origin"] == "https://app.example.com"
        assert "mcp-session-id" in answer.headers["access-control-expose-headers"]
    answer = await Client(app).post(CALL)
    assert "access-control-allow-origin" not in answer.headers


async def test_streams_expose_their_headers_too() -> None:
    # A57
    app = make_app(origins=("https://app.example.com",), cors=True)
    message = make_request("tools/call", {"name": "count"}, meta=make_meta(progressToken=1))
    answer = await Client(app).post(message, origin="https://app.example.com")
    assert answer.is_stream
    assert answer.headers["access-control-allow-origin"] == "https://app.example.com"


# Lifespan


async def test_without_lifespan_events_it_starts_with_the_first_request() -> None:
    # A32, A33
    entered: list[str] = []

    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[dict[str, Any]]:
        entered.append(server.name)
        yield {}

    app = asgi(make_server(lifespan=lifespan))
    for _ in range(3):
        assert (await Client(app).post(CALL)).status == 200
    assert entered == ["desk"]
    await app.endpoint.close()


async def test_lifespan_events_start_and_stop_it() -> None:
    # A33
    events: list[str] = []

    @asynccontextmanager
    async def lifespan(_server: Server) -> AsyncIterator[None]:
        events.append("in")
        yield
        events.append("out")

    app = asgi(make_server(lifespan=lifespan))
    sent = await run_lifespan(app, "startup", "shutdown")
    assert [event["type"] for event in sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert events == ["in", "out"]


async def test_a_lifespan_that_fails_says_so_to_the_server_and_to_clients(caplog: pytest.LogCaptureFixture) -> None:
    # A32, SA35
    @asynccontextmanager
    async def lifespan(_server: Server) -> AsyncIterator[None]:
        raise RuntimeError("no database at db:5432")
        yield

    app = asgi(make_server(lifespan=lifespan))
    (event,) = await run_lifespan(app, "startup")
    assert event["type"] == "lifespan.startup.failed"
    assert "no database" in event["message"]
    answer = await Client(app).post(CALL)
    assert answer.status == 500
    assert answer.error["code"] == -32603
    assert answer.message["id"] == 1
    assert "database" not in answer.error["message"]
    assert "no database" in caplog.text


async def test_a_store_that_is_not_there_is_said_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    # HH-12
    app = asgi(make_server(store="redis://:s3cr3t@127.0.0.1:1/0"))
    (event,) = await run_lifespan(app, "startup")
    assert event["type"] == "lifespan.startup.failed"
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "redis://127.0.0.1:1/0 can't be reached" in record.getMessage()
    assert not record.exc_info
    assert "s3cr3t" not in caplog.text + event["message"]


async def test_a_lifespan_that_fails_on_its_way_out_says_so(caplog: pytest.LogCaptureFixture) -> None:
    @asynccontextmanager
    async def lifespan(_server: Server) -> AsyncIterator[None]:
        yield
        raise RuntimeError("flush failed")

    sent = await run_lifespan(asgi(make_server(lifespan=lifespan)), "startup", "shutdown")
    assert [event["type"] for event in sent] == ["lifespan.startup.complete", "lifespan.shutdown.failed"]
    assert "flush failed" in caplog.text


# Who asks


async def test_the_principal_is_what_the_option_tells() -> None:
    # A49
    server = Server("desk")

    @server.tool
    async def who(ctx: Context) -> str:
        return f"{ctx.principal} {ctx.scope_state['tenant']}"

    app = asgi(server, principal=lambda scope: dict(scope["headers"]).get(b"x-user", b"nobody").decode())
    answer = await Client(app, state={"tenant": "t1"}).call("who", x_user="ann")
    assert answer.text == "ann t1"


async def test_a_principal_that_can_not_be_told_is_this_requests_error(caplog: pytest.LogCaptureFixture) -> None:
    # SA35
    def fail(_scope: Event) -> str:
        raise KeyError("secret-table")

    answer = await Client(asgi(make_server(), principal=fail)).post(CALL)
    assert answer.error["code"] == -32603
    assert "secret" not in answer.error["message"]
    assert "secret-table" in caplog.text


async def test_sessions_do_not_exist() -> None:
    # HM-21, HM-14
    answer = await Client(make_app()).post(CALL, mcp_session_id="abc", last_event_id="9")
    assert answer.status == 200
    assert not [name for name in answer.headers if "session" in name]


async def test_many_made_up_callers_cost_bounded_memory() -> None:
    app = make_app()
    client = Client(app)
    for number in range(1000):
        await client.post(CALL, host=f"h{number}.example", accept=f"text/x{number}")
        await client.post(CALL, accept=f"text/x{number}")
    assert len(app._callers) <= 256
    assert len(app._accepts) <= 256


def test_the_versions_are_those_under_test() -> None:
    assert make_app().endpoint.versions == (LATEST, V11, V06, V03)
    assert make_app(**MODERN_ONLY).endpoint.versions == (LATEST,)


def test_hosts_are_several_even_when_there_is_one() -> None:
    """A str is a sequence too, of letters: every request would be refused."""
    with pytest.raises(RegistrationError, match="hosts"):
        make_app(hosts="localhost")

"""`asgi(auth=...)` as clients of both eras meet it: every request is judged anew, and who is refused learns what to do."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

import pytest
from asgi_driver import JSON, Answer, Client, Exchange, make_headers, make_request
from legacy_driver import Legacy
from starlette.applications import Starlette
from starlette.routing import Mount, Route
from virtual_time import now, virtual_time

from callboard import Context, RegistrationError, Server, asgi
from callboard.auth import Grant, Principal, Refusal, Verifier
from callboard.transport.asgi import App

RESOURCE = "https://mcp.example.com/mcp"
WELL_KNOWN = "/.well-known/oauth-protected-resource"
WHERE = f"https://mcp.example.com{WELL_KNOWN}/mcp"
V11 = "2025-11-25"


class Book(Verifier):
    """Knows tokens by heart; a test may strike one out."""

    issuers = ("https://login.example.com",)

    def __init__(self) -> None:
        self.known = {
            "alice": Principal("alice", {"mcp", "read"}),
            "alice-more": Principal("alice", {"mcp", "read", "write"}),
            "bob": Principal("bob", {"mcp"}),
            "nobody": Principal("nobody"),
        }

    async def verify(self, credential: str) -> Grant | Refusal:
        if credential == "broken":
            raise RuntimeError("password=hunter2")
        principal = self.known.get(credential)
        return Refusal("invalid", "The token is unknown.") if principal is None else Grant(principal)


def make_server() -> Server:
    server = Server("guarded")

    @server.tool
    async def whoami(ctx: Context) -> str:
        return str(ctx.principal)

    @server.tool(scopes={"write"})
    async def write(ctx: Context) -> str:
        return f"{ctx.principal} wrote"

    @server.tool
    async def move(size: int, ctx: Context) -> str:
        if size > 10:
            ctx.require("read", "write")
        return f"moved {size}"

    @server.resource("note://x", scopes={"read"})
    def note() -> str:
        return "x"

    return server


def make_app(book: Book | None = None, **options: Any) -> App:
    more: dict[str, Any] = {"resource": RESOURCE, "scopes": ["mcp"], **options}
    return asgi(make_server(), auth=book or Book(), **more)


async def ask_now(app: App, token: str | None, method: str, params: Mapping[str, Any] | None = None) -> Answer:
    """A request of a client of the current protocol."""
    return await Client(app).request(method, params, authorization=None if token is None else f"Bearer {token}")


def encode(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


async def ask_2025(app: App, token: str | None, method: str, params: Mapping[str, Any] | None = None) -> Answer:
    """The same of a client of 2025, in a session that alice opened."""
    session = await Legacy(app, V11, headers={"authorization": "Bearer alice"}).connect()
    session.client.headers = {} if token is None else {"authorization": f"Bearer {token}"}
    return await session.request(method, params)


async def on_both(app: App, token: str | None, method: str, params: Mapping[str, Any] | None = None) -> list[Answer]:
    return [await ask_now(app, token, method, params), await ask_2025(app, token, method, params)]


async def test_who_is_known_is_served() -> None:
    for answer in await on_both(make_app(), "alice", "tools/call", {"name": "whoami"}):
        assert answer.text == "alice"


@pytest.mark.parametrize(
    ("token", "status", "told"),
    [
        (None, 401, f'Bearer resource_metadata="{WHERE}", scope="mcp"'),
        (
            "forged",
            401,
            f'Bearer error="invalid_token", error_description="The token is unknown.", resource_metadata="{WHERE}", scope="mcp"',
        ),
        ("a b", 400, "Bearer error="),
        ("nobody", 403, 'Bearer error="insufficient_scope", scope="mcp"'),
    ],
)
async def test_who_is_not_is_told_what_to_do(token: str | None, status: int, told: str) -> None:
    # SA29, AR-03, AR-04, AR-05, AR-06: every time, whatever was sent before on this connection or in this session (AR-10, AR-11)
    for answer in await on_both(make_app(), token, "tools/call", {"name": "whoami"}):
        assert answer.status == status
        assert answer.headers["www-authenticate"].startswith(told)
        assert answer.error["code"] == status
        assert "id" not in answer.message


async def test_a_token_in_the_query_is_none() -> None:
    # SA29, AR-10
    client = Client(make_app())
    message = make_request("tools/call", {"name": "whoami"})
    scope = client.scope("POST", encode(make_headers(message)))
    scope["query_string"] = b"access_token=alice&token=alice"
    answer = await Exchange(client.app, scope, json.dumps(message).encode(), None).end()
    assert answer.status == 401


@pytest.mark.parametrize("verb", ["GET", "DELETE"])
async def test_streams_and_ends_of_sessions_need_a_token_too(verb: str) -> None:
    app = make_app()
    session = await Legacy(app, V11, headers={"authorization": "Bearer alice"}).connect()
    session.client.headers = {}
    answer = await (session.get() if verb == "GET" else session.delete())
    assert answer.status == 401
    session.client.headers = {"authorization": "Bearer alice"}
    assert (await session.call("whoami")).text == "alice"  # it is still there


async def test_a_session_is_its_principals_whatever_the_token() -> None:
    # AR-08, SA23
    app = make_app()
    assert (await ask_2025(app, "alice-more", "tools/call", {"name": "write"})).text == "alice wrote"
    answer = await ask_2025(app, "bob", "tools/call", {"name": "whoami"})
    assert (answer.status, answer.headers.get("www-authenticate")) == (404, None)


async def test_a_token_that_was_revoked_ends_what_it_opened() -> None:
    book = Book()
    app = make_app(book)
    session = await Legacy(app, V11, headers={"authorization": "Bearer bob"}).connect()
    assert (await session.call("whoami")).text == "bob"
    del book.known["bob"]
    assert (await session.call("whoami")).status == 401


@pytest.mark.parametrize(
    ("method", "params", "needed"),
    [
        ("tools/call", {"name": "write"}, "mcp write"),
        ("tools/call", {"name": "move", "arguments": {"size": 11}}, "mcp read write"),
        ("resources/read", {"uri": "note://x"}, "mcp read"),
    ],
)
async def test_a_scope_that_is_missing_is_asked_for(method: str, params: JSON, needed: str) -> None:
    # AR-06: all that the operation needs in one challenge, also where the function says so
    for answer in [await ask_now(make_app(), "bob", method, params), await ask_as_bob(method, params)]:
        assert answer.status == 403
        assert answer.headers["www-authenticate"] == (
            f'Bearer error="insufficient_scope", scope="{needed}", resource_metadata="{WHERE}", '
            'error_description="A scope that this needs was not granted."'
        )
        assert answer.error["code"] == 403


async def ask_as_bob(method: str, params: JSON) -> Answer:
    session = await Legacy(make_app(), V11, headers={"authorization": "Bearer bob"}).connect()
    return await session.request(method, params)


async def test_what_a_function_requires_was_granted() -> None:
    answer = await ask_now(make_app(), "alice-more", "tools/call", {"name": "move", "arguments": {"size": 11}})
    assert answer.text == "moved 11"


async def test_a_principal_that_nobody_guards_is_challenged_in_no_way() -> None:
    app = asgi(make_server(), principal=lambda _: Principal("bob"))
    client = Client(app)
    answer = await client.call("write")
    assert (answer.status, answer.headers.get("www-authenticate")) == (403, None)


async def test_functions_see_no_credential() -> None:
    # AR-08, SA31: what they don't have they can't pass on
    server = Server("guarded")

    @server.tool
    async def headers(ctx: Context) -> list[str]:
        return [*(ctx.headers or {}), *((ctx.options or {}).get("names", ()))]

    app = asgi(server, auth=Book(), resource=RESOURCE, options=lambda caller: {"names": list(caller.headers or {})})
    answers = await on_both(app, "alice", "tools/call", {"name": "headers"})
    for answer in answers:
        assert b"authorization" not in answer.body
        assert b"mcp-protocol-version" in answer.body


async def test_a_verifier_that_fails_lets_nobody_in(caplog: pytest.LogCaptureFixture) -> None:
    # SA35
    answer = await ask_now(make_app(), "broken", "tools/call", {"name": "whoami"})
    assert answer.status == 500
    assert b"hunter2" not in answer.body
    assert "auth=" in caplog.text


async def test_a_preflight_needs_no_token() -> None:
    # SA17, A57
    app = make_app(origins=["https://app.example"], cors=True)
    headers = [
        (b"host", b"127.0.0.1:8000"),
        (b"origin", b"https://app.example"),
        (b"access-control-request-method", b"POST"),
        (b"access-control-request-headers", b"authorization,content-type"),
    ]
    answer = await Client(app).send(b"", headers, verb="OPTIONS")
    assert answer.status == 204
    assert "authorization" in answer.headers["access-control-allow-headers"]


@pytest.mark.parametrize("path", [WELL_KNOWN, f"{WELL_KNOWN}/mcp"])
async def test_everybody_may_read_how_it_is_protected(path: str) -> None:
    # AR-02, AR-03
    answer = await fetch(make_app(), path)
    assert answer[0] == 200
    assert json.loads(answer[2])["authorization_servers"] == ["https://login.example.com"]
    assert answer[1]["access-control-allow-origin"] == "*"
    assert (await fetch(make_app(), path, "POST"))[0] == 405
    assert (await fetch(make_app(), path, "HEAD"))[2] == b""


async def fetch(app: Any, path: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of a page that is no JSON-RPC."""
    sent: list[Any] = []

    async def send(event: Any) -> None:
        sent.append(event)

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    await app(Client(app).scope(method, [(b"host", b"127.0.0.1:8000"), (b"origin", b"https://anywhere.example")], path), receive, send)
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers, b"".join(event.get("body", b"") for event in sent[1:])


async def test_a_host_puts_the_document_at_its_root() -> None:
    app = make_app(resource="https://mcp.example.com/tools")
    routes = [*(Route(path, page) for path, page in app.metadata_routes), Mount("/tools", app)]
    for path in (WELL_KNOWN, f"{WELL_KNOWN}/tools"):
        status, _, body = await fetch(Starlette(routes=routes), path)
        assert (status, json.loads(body)["resource"]) == (200, "https://mcp.example.com/tools")


async def test_the_document_is_held_to_the_rules_of_hosts() -> None:
    scope_headers = [(b"host", b"evil.example")]
    answer = await Client(make_app(), path=WELL_KNOWN).send(b"", scope_headers, verb="GET")
    assert answer.status == 421


async def test_two_authorization_headers_are_one_too_many() -> None:
    message = make_request("tools/call", {"name": "whoami"})
    headers = [*encode(make_headers(message)), (b"authorization", b"Bearer alice"), (b"authorization", b"Bearer bob")]
    answer = await Client(make_app()).send(json.dumps(message).encode(), headers)
    assert answer.status == 400


@pytest.mark.parametrize(
    ("options", "culprit"),
    [
        ({"principal": lambda _: "x", "auth": Book(), "resource": RESOURCE}, "leave principal= out"),
        ({"auth": Book()}, "resource= is needed"),
        ({"resource": RESOURCE}, "resource= says what tokens must hold"),
        ({"scopes": ["mcp"]}, "scopes= says"),
        ({"auth": "secret-token"}, "not str"),
    ],
)
def test_options_that_can_not_work(options: JSON, culprit: str) -> None:
    with pytest.raises(RegistrationError, match=culprit) as raised:
        asgi(make_server(), **options)
    assert "secret-token" not in str(raised.value)


def aging(seconds: float) -> Book:
    """Alice's token holds for so long."""
    book = Book()
    book.known["alice"] = Principal("alice", {"mcp"}, claims={"exp": time.time() + seconds})
    return book


@virtual_time
async def test_no_stream_outlives_the_token_that_opened_it() -> None:
    """AR-11: it ends in good order, and the client comes back with the token that it has then."""
    client = Client(make_app(aging(600)))
    async with client.open("subscriptions/listen", {"notifications": {}}, authorization="Bearer alice") as stream:
        await stream.message()
        await asyncio.sleep(590)
        assert not stream.task.done()
        await asyncio.sleep(20)
        assert (await stream.end()).result["resultType"] == "complete"


@virtual_time
async def test_nor_does_a_get_stream_of_a_session() -> None:
    session = await Legacy(make_app(aging(200)), V11, headers={"authorization": "Bearer alice"}).connect()
    began = now()
    answer = await session.get()
    assert answer.status == 200
    assert 190 < now() - began < 210


@virtual_time
async def test_clocks_that_differ_close_no_stream_at_once() -> None:
    client = Client(make_app(aging(-20)))
    async with client.open("subscriptions/listen", {"notifications": {}}, authorization="Bearer alice") as stream:
        await asyncio.sleep(29)
        assert not stream.task.done()
        await asyncio.sleep(2)
        assert (await stream.end()).result["resultType"] == "complete"

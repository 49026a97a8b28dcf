"""What an adversary tried against `asgi(auth=...)`: credentials that stand in for others, verifiers that break, what leaks past scopes."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import pytest
from asgi_driver import JSON, Answer, Client, make_headers, make_meta, make_request
from legacy_driver import Legacy
from virtual_time import now, virtual_time

from callboard import Context, RegistrationError, Server, asgi
from callboard.auth import ApiKeys, BearerTokens, Grant, Principal, Refusal, Verifier
from callboard.transport.asgi import App

TOKEN = "t" * 32
KEY = "k" * 32
V11 = "2025-11-25"
WELL_KNOWN = "/.well-known/oauth-protected-resource"
Verdict = Callable[[str], Any]


class Made(Verifier):
    """Gives what a test says.

    Args:
        verdict: Makes it of a credential.
        find: Finds the credential; a bearer token by default.
    """

    def __init__(self, verdict: Verdict, find: Callable[[Mapping[bytes, bytes], Any], Any] | None = None) -> None:
        self.verdict = verdict
        self.finder = find
        self.asked = 0

    def find(self, headers: Mapping[bytes, bytes], scope: Any) -> Any:
        return super().find(headers, scope) if self.finder is None else self.finder(headers, scope)

    async def verify(self, credential: str) -> Any:
        self.asked += 1
        return self.verdict(credential)


class Login(Made):
    """The same, with an authorization server."""

    issuers = ("https://login.example.com",)


def make_server() -> Server:
    server = Server("guarded")

    @server.tool
    async def whoami(ctx: Context) -> str:
        return str(ctx.principal)

    return server


async def ask(app: App, **headers: str) -> Answer:
    return await Client(app).call("whoami", None, **headers)  # type: ignore[arg-type] # names of headers are none of its parameters


def later(seconds: float = 600) -> float:
    return time.time() + seconds


# Several credentials


@pytest.mark.parametrize("first", [BearerTokens, ApiKeys])
async def test_of_two_credentials_the_first_verifiers_decides_whatever_is_remembered(first: type) -> None:
    """A remembered one of the second verifier made its owner of somebody whose own credential comes first, but was new."""
    verifiers: dict[type, Verifier] = {
        BearerTokens: BearerTokens({TOKEN: "ada", "u" * 32: "bob"}),
        ApiKeys: ApiKeys({KEY: "machine", "j" * 32: "robot"}),
    }
    app = asgi(make_server(), auth=sorted(verifiers.values(), key=lambda verifier: type(verifier) is not first))
    assert (await ask(app, authorization=f"Bearer {TOKEN}")).text == "ada"
    assert (await ask(app, x_api_key=KEY)).text == "machine"
    expected = ("bob", "ada") if first is BearerTokens else ("machine", "robot")
    for _ in range(2):
        assert (await ask(app, authorization=f"Bearer {'u' * 32}", x_api_key=KEY)).text == expected[0]
        assert (await ask(app, authorization=f"Bearer {TOKEN}", x_api_key="j" * 32)).text == expected[1]
    assert (await ask(app, authorization="Bearer wrong", x_api_key=KEY)).text == "machine"  # the first that grants


async def test_what_was_found_elsewhere_is_not_told_by_a_header_again() -> None:
    """Who a client certificate shows was remembered by the Authorization header that came along, for whoever sends the same."""
    verifier = Made(lambda name: Grant(Principal(name), later()), lambda _, scope: scope["state"]["certificate"])
    app = asgi(make_server(), auth=verifier)
    for name in ("ada", "eve"):
        for _ in range(2):
            answer = await Client(app, state={"certificate": name}).call("whoami", authorization="Basic c2hhcmVkOnByb3h5")
            assert answer.text == name


async def test_a_credential_in_a_header_of_its_own_comes_once() -> None:
    """Of two, a proxy in front may have looked at the other one."""
    app = asgi(make_server(), auth=[BearerTokens({TOKEN: "ada"}), ApiKeys({KEY: "machine"}, header="x-internal-key")])
    message = make_request("tools/call", {"name": "whoami"})
    headers = [(name.encode(), value.encode()) for name, value in make_headers(message).items()]
    for second in (KEY, "w" * 32):
        twice = [*headers, (b"x-internal-key", KEY.encode()), (b"x-internal-key", second.encode())]
        answer = await Client(app).send(json.dumps(message).encode(), twice)
        assert answer.status == 400
        assert "x-internal-key is there twice" in answer.error["message"]


@pytest.mark.parametrize("accept", [None, "application/json"])
@pytest.mark.parametrize("name", ["authorization", "x-api-key", "host", "origin", "mcp-method", "mcp-name", "content-type"])
async def test_no_header_of_weight_comes_twice_with_or_without_accept(name: str, accept: str | None) -> None:
    """SA15: without Accept one was added, and made up for the one that was there twice when they were counted."""
    app = asgi(make_server(), auth=[BearerTokens({TOKEN: "ada"}), ApiKeys({KEY: "machine"})])
    message = make_request("tools/call", {"name": "whoami"})
    given = {**make_headers(message, accept=accept, authorization=f"Bearer {TOKEN}"), "x-api-key": KEY, "origin": "http://127.0.0.1:8000"}
    headers = [(key.encode(), value.encode()) for key, value in given.items()]
    body = json.dumps(message).encode()
    assert (await Client(app).send(body, headers)).status == 200
    answer = await Client(app).send(body, [(name.encode(), b"other"), *headers])
    assert answer.status == 400
    assert f"{name} is there twice" in answer.error["message"]


async def test_blanks_around_a_key_are_not_the_keys() -> None:
    """Some HTTP servers take them off, others don't (RFC 9110 section 5.5)."""
    app = asgi(make_server(), auth=ApiKeys({KEY: "machine"}))
    for value in (f"{KEY}  ", f" {KEY}", f"{KEY}\t"):
        assert (await ask(app, x_api_key=value)).text == "machine"


# Verifiers that break


def fail(error: BaseException) -> Verdict:
    def verdict(_: str) -> Any:
        raise error

    return verdict


@pytest.mark.parametrize(
    ("verdict", "told"),
    [
        (lambda _: None, "verify gave NoneType"),
        (lambda _: "ada", "verify gave str"),
        (lambda _: Principal("ada"), "verify gave Principal"),
        (lambda _: Grant("ada"), "no Principal with an identity"),  # type: ignore[arg-type]
        (lambda _: Grant(Principal("")), "no Principal with an identity"),
        (lambda _: Grant(Principal(None)), "identity is a str"),  # type: ignore[arg-type]
        (lambda _: Grant(Principal("ada", claims=None)), "claims is a mapping"),  # type: ignore[arg-type]
        (lambda _: Grant(Principal("ada"), "soon"), "until is Unix time"),  # type: ignore[arg-type]
        (lambda _: Grant(Principal("ada"), time.time() * 1000), "until is Unix time, in seconds"),
        (lambda _: Grant(Principal("ada"), True), "until is Unix time"),
        (lambda _: Grant(Principal("ada"), math.nan), "until is Unix time"),
        (lambda _: Refusal("unknown"), "KeyError"),  # type: ignore[arg-type]
        (fail(SystemExit(3)), "SystemExit"),
        (fail(asyncio.CancelledError()), "CancelledError"),
    ],
)
async def test_a_verdict_that_is_none_lets_nobody_in(verdict: Verdict, told: str, caplog: pytest.LogCaptureFixture) -> None:
    # neither this time nor with what is remembered of it
    app = asgi(make_server(), auth=Made(verdict))
    for _ in range(2):
        with caplog.at_level(logging.ERROR):
            answer = await ask(app, authorization=f"Bearer {TOKEN}")
        assert answer.status == 500
        assert told in caplog.text
        assert TOKEN not in caplog.text


@pytest.mark.parametrize("found", [None, b"ada", Grant(Principal("ada"))])
async def test_what_is_found_is_a_text(found: Any, caplog: pytest.LogCaptureFixture) -> None:
    """`find` that gives None where a header is missing would have `verify` decide about None."""
    verifier = Made(lambda credential: Grant(Principal(repr(credential))), lambda *_: found)
    assert (await ask(asgi(make_server(), auth=verifier))).status == 500
    assert verifier.asked == 0
    assert f"find gave {type(found).__name__}" in caplog.text


class Stuck(Verifier):
    """Answers when it is told to, or never."""

    def __init__(self) -> None:
        self.told = asyncio.Event()

    async def verify(self, credential: str) -> Grant | Refusal:
        if credential == "impatient":
            raise TimeoutError
        await self.told.wait()
        return Grant(Principal(credential))


@virtual_time
async def test_a_verifier_that_hangs_is_waited_for_so_long(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who sent it may be gone: each request that was given up would wait for ever."""
    monkeypatch.setattr("callboard.auth.guard.PATIENCE", 5.0)
    app = asgi(make_server(), auth=Stuck())
    began = now()
    answer = await ask(app, authorization="Bearer ada")
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert 4.9 < now() - began < 5.1
    assert "took longer than 5 s" in caplog.text
    assert (await ask(app, authorization="Bearer impatient")).status == 500  # its own time limit is its own doing


async def test_so_many_are_verified_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strangers who don't wait for their answers must not fill the memory."""
    monkeypatch.setattr("callboard.auth.guard.MAX_ASKED", 3)
    verifier = Stuck()
    app = asgi(make_server(), auth=verifier)
    waiting = [asyncio.create_task(ask(app, authorization=f"Bearer token{number}")) for number in range(5)]
    done, rest = await asyncio.wait(waiting, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    while len(done) < 2:
        more, rest = await asyncio.wait(rest, timeout=10, return_when=asyncio.FIRST_COMPLETED)
        done |= more
    assert [task.result().status for task in done] == [503, 503]
    assert (await ask(app)).status == 401  # nothing has to be verified
    verifier.told.set()
    assert sorted([(await task).status for task in rest]) == [200] * 3
    assert (await ask(app, authorization="Bearer later")).text == "later"


@pytest.mark.parametrize("until", [None, 0, -1, -math.inf])
async def test_what_is_over_already_is_not_remembered(until: float | None) -> None:
    verifier = Made(lambda _: Grant(Principal("ada"), until))
    app = asgi(make_server(), auth=verifier)
    for count in (1, 2):
        assert (await ask(app, authorization=f"Bearer {TOKEN}")).text == "ada"
        assert verifier.asked == count


@pytest.mark.parametrize("said", [5, b"ada", ["ada"], 1.5])
async def test_a_name_that_is_none_is_nobodys(said: Any) -> None:
    """So it is with `principal=`: objects that are equal by chance would share sessions and tasks."""
    assert (await ask(asgi(make_server(), principal=lambda _: said))).status == 500


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
async def test_a_name_that_has_to_be_awaited_is_none() -> None:
    async def name(_: Any) -> str:
        return "ada"

    assert (await ask(asgi(make_server(), principal=name))).status == 500  # type: ignore[arg-type]


async def test_who_has_no_name_is_not_all_who_have_none() -> None:
    """An empty name was one principal, whose tasks and sessions everybody without a name could reach."""
    assert (await ask(asgi(make_server(), principal=lambda _: ""))).text == "None"


# Options that would have let everybody in, or nobody


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"scopes": iter(["mcp"])}, "scopes is a list"),
        ({"scopes": (scope for scope in ["mcp"])}, "scopes is a list"),
        ({"implies": {"all": iter(["mcp"])}}, "implies"),
        ({"implies": [("all", "mcp")]}, "implies is a dict"),
        ({"resource": "https://mcp.example.com/mcp?"}, "without query"),
        ({"resource": "https://mcp.example.com/mcp#"}, "without query"),
    ],
)
def test_options_that_would_not_hold(options: JSON, told: str) -> None:
    """An iterator is empty after it has been checked: then no scope would be needed."""
    more: dict[str, Any] = {"resource": "https://mcp.example.com/mcp", **options}
    with pytest.raises(RegistrationError, match=told):
        asgi(make_server(), auth=Login(lambda _: None), **more)


@pytest.mark.parametrize("scope", ["read write", 'a"b', "a\\b", "a\r\nset-cookie: b", "Ünal", ""])
def test_a_scope_of_a_tool_is_one_that_can_be_granted(scope: str) -> None:
    """Nobody would ever have had it, and challenges left out what a header can't hold."""
    with pytest.raises(RegistrationError, match="without blanks and quotes"):
        make_server().tool(lambda: "x", name="x", scopes={scope})


async def test_an_escaped_path_leads_to_its_document() -> None:
    # AR-03: ASGI servers unescape paths
    app = asgi(make_server(), auth=Login(lambda _: Refusal("invalid")), resource="https://mcp.example.com/my%20team/mcp")
    answer = await ask(app)
    assert f'resource_metadata="https://mcp.example.com{WELL_KNOWN}/my%20team/mcp"' in answer.headers["www-authenticate"]
    assert [path for path, _ in app.metadata_routes] == [f"{WELL_KNOWN}/my team/mcp", WELL_KNOWN]
    sent: list[Any] = []

    async def send(event: Any) -> None:
        sent.append(event)

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    await app(Client(app).scope("GET", [(b"host", b"127.0.0.1:8000")], f"{WELL_KNOWN}/my team/mcp"), receive, send)
    assert json.loads(sent[1]["body"])["resource"] == "https://mcp.example.com/my%20team/mcp"


# What leaks past scopes


def holder(granted: Mapping[str, Collection[str]]) -> Made:
    return Made(lambda token: Grant(Principal("ada", granted[token])))


async def test_a_template_tells_of_nothing_that_its_listener_may_not_ask_for() -> None:
    # SA21, SB-02: what is hidden, and what needs a scope, may fit a template that everybody may read
    server = make_server()
    server.resource("note://merger", visible=lambda ctx: "board" in ctx.scopes)(lambda: "secret")
    server.resource("note://payroll", scopes={"board"})(lambda: "secret")
    server.resource("note://{+name}/minutes", scopes={"board"})(lambda name: name)
    server.resource("note://{+name}")(lambda name: name)
    app = asgi(server, auth=holder({"board": ["board"], "staff": []}))
    asked: JSON = {"notifications": {"resourceSubscriptions": ["note://{+name}"]}}
    told = ["note://merger", "note://payroll", "note://a/minutes", "note://a/b"]
    for token, expected in (("staff", ["note://a/b"]), ("board", told)):
        async with Client(app).open("subscriptions/listen", asked, authorization=f"Bearer {token}") as stream:
            await stream.message()
            for uri in ("note://merger", "note://merger", "note://payroll", "note://a/minutes", "note://a/b"):
                server.resource_updated(uri)
            assert sorted([(await stream.message())["params"]["uri"] for _ in expected]) == sorted(expected)


async def test_scopes_are_asked_for_in_every_round_and_of_every_request_of_a_session() -> None:
    # MR-07, AR-11: what was granted when it began doesn't count
    server = make_server()

    @server.tool(scopes={"write"})
    async def erase(ctx: Context) -> str:
        answer = await ctx.elicit("Really?", bool)
        return f"erased: {answer.action}"

    app = asgi(server, auth=holder({"wide": ["write"], "narrow": []}))
    meta = make_meta({"elicitation": {"form": {}}})
    first = await Client(app).call("erase", {}, meta=meta, authorization="Bearer wide")
    key = next(iter(first.result["inputRequests"]))
    params = {
        "name": "erase",
        "arguments": {},
        "requestState": first.result["requestState"],
        "inputResponses": {key: {"action": "accept", "content": {"value": True}}},
    }
    assert (await Client(app).request("tools/call", params, meta=meta, authorization="Bearer narrow")).status == 403
    assert (await Client(app).request("tools/call", params, meta=meta, authorization="Bearer wide")).text == "erased: accept"
    session = await Legacy(app, V11, headers={"authorization": "Bearer wide"}).connect()
    session.client.headers = {"authorization": "Bearer narrow"}
    assert (await session.call("erase")).status == 403


async def test_a_batch_is_judged_call_by_call() -> None:
    server = make_server()
    server.tool(lambda: "wrote", name="write", scopes={"write"})
    server.tool(lambda: "seen", name="hidden", visible=lambda ctx: "write" in ctx.scopes)
    app = asgi(server, auth=holder({"narrow": []}))
    session = await Legacy(app, "2025-03-26", headers={"authorization": "Bearer narrow"}).connect()
    answer = await session.post([session.make_call("write", request_id=1), session.make_call("hidden", request_id=2)])
    assert [answer.by_id[key]["error"]["code"] for key in answer.by_id] == [403, -32602]


# What outlives its credential


@virtual_time
async def test_a_stream_whose_credential_says_no_end_ends_all_the_same() -> None:
    """AR-11: who was struck out since must not hear of anything for ever."""
    app = asgi(make_server(), auth=holder({"ada": []}))
    session = await Legacy(app, V11, headers={"authorization": "Bearer ada"}).connect()
    began = now()
    assert (await session.get()).status == 200
    assert 3590 < now() - began < 3610

"""Duties that the protocol lays on servers in a sentence each: to whom to listen, whom to count, what to keep inside."""

from collections.abc import Mapping
from typing import Any

import pytest
from asgi_driver import JSON, Answer, Client, make_meta
from legacy_driver import Legacy
from virtual_time import virtual_time

from callboard import Context, Server, asgi
from callboard.auth import BearerTokens, Principal
from callboard.limits import Limits
from callboard.transport.asgi import App

ADA, EVE = "token-of-ada-0123456789", "token-of-eve-0123456789"
KNOWN = {ADA: Principal("ada", ["write"]), EVE: Principal("eve")}
CITIES = [f"Oslo {number}" for number in range(300)]


def make_server() -> Server:
    server = Server("duties")

    @server.tool
    async def whoami(ctx: Context) -> str:
        return str(ctx.principal)

    @server.tool(scopes={"write"}, rate="3/min")
    async def write(text: str) -> str:
        return text

    @server.tool
    async def spoil() -> float:
        return float("nan")

    @server.tool
    async def count(ctx: Context) -> str:
        for step in range(10_000):
            ctx.progress(step + 1, 10_000, f"step {step + 1}")
        return "counted"

    @server.prompt(scopes={"write"})
    def trip(city: str) -> str:
        return city

    @server.complete("trip", "city")
    def cities(prefix: str) -> list[str]:
        return [city for city in CITIES if city.startswith(prefix)]

    return server


def make_app(**options: Any) -> App:
    return asgi(make_server(), auth=BearerTokens(KNOWN), **options)


async def on_both(app: App, token: str | None, method: str, params: Mapping[str, Any], **headers: str) -> list[Answer]:
    """A request of a client of the current protocol, and of one of 2025 in a session of its own."""
    sent: dict[str, Any] = {**headers, **({} if token is None else {"authorization": f"Bearer {token}"})}
    session = await Legacy(app, headers=sent).connect()
    return [await Client(app).request(method, params, **sent), await session.request(method, dict(params))]


@pytest.mark.parametrize(
    "headers",
    [
        {"x-user": "ada"},
        {"x-forwarded-user": "ada", "x-auth-request-user": "ada", "x-forwarded-email": "ada@example.com"},
        {"x-principal": "ada", "remote-user": "ada", "forwarded": "for=ada;by=ada"},
        {"mcp-param-tenant": "ada", "mcp-param-user": "ada"},
        {"cookie": f"token={ADA}", "x-api-key": ADA, "proxy-authorization": f"Bearer {ADA}"},
    ],
)
async def test_no_header_but_the_credential_says_who_asks(headers: dict[str, Any]) -> None:
    """HH-25, AR-10: and nothing that a client says of itself."""
    app = make_app()
    for answer in await on_both(app, EVE, "tools/call", {"name": "whoami"}, **headers):
        assert answer.text == "eve"
    for answer in await on_both(app, EVE, "tools/call", {"name": "write", "arguments": {"text": "x"}}, **headers):
        assert answer.status == 403
    assert (await Client(app).call("whoami", {}, **headers)).status == 401


async def test_nobody_is_asked_who_they_are_unless_the_server_says_so() -> None:
    """AR-01: authorization is an option."""
    client = Client(asgi(make_server()))
    assert (await client.call("whoami", {})).text == "None"
    answer = await client.call("whoami", {}, authorization="Bearer anything")
    assert (answer.text, "www-authenticate" in answer.headers) == ("None", False)


async def test_a_token_that_was_made_for_another_server_is_none_here() -> None:
    """SC-02, AR-08: whatever it is good for elsewhere."""
    elsewhere = asgi(make_server(), auth=BearerTokens({"token-for-another-server": Principal("ada", ["write"])}))
    assert (await Client(elsewhere).call("whoami", {}, authorization="Bearer token-for-another-server")).text == "ada"
    for answer in [
        await Client(make_app()).call("whoami", {}, authorization="Bearer token-for-another-server"),
        await Legacy(make_app(), headers={"authorization": "Bearer token-for-another-server"}).try_initialize(),
    ]:
        assert answer.status == 401


@virtual_time
async def test_tools_check_what_comes_who_asks_how_often_and_what_goes_out() -> None:
    """TL-20: the arguments, the scopes, the rate, the result."""
    app = make_app()

    async def write(token: str, arguments: JSON) -> Answer:
        return await Client(app).call("write", arguments, authorization=f"Bearer {token}")

    assert (await write(ADA, {"text": 5})).result["isError"]
    assert (await write(EVE, {"text": "x"})).status == 403
    assert (await write(ADA, {"text": "x"})).text == "x"
    assert (await write(ADA, {"text": "x"})).text == "x"
    refused = await write(ADA, {"text": "x"})
    assert (refused.status, refused.headers["retry-after"]) == (429, "20")
    assert (await Client(app).call("spoil", {}, authorization=f"Bearer {ADA}")).error["code"] == -32603


async def test_suggestions_are_for_those_who_may_use_what_they_are_for() -> None:
    """CP-05: and no more of them than the protocol has room for."""
    asked = {"ref": {"type": "ref/prompt", "name": "trip"}, "argument": {"name": "city", "value": "Oslo"}}
    app = make_app()
    for answer in await on_both(app, EVE, "completion/complete", asked):
        assert answer.error["code"] == 403
        assert "Oslo" not in str(answer.message)
    for answer in await on_both(app, ADA, "completion/complete", asked):
        completion = answer.result["completion"]
        assert (len(completion["values"]), completion["hasMore"]) == (100, True)
    for answer in await on_both(app, ADA, "completion/complete", {**asked, "argument": {"name": "city", "value": 5}}):
        assert answer.error["code"] == -32602


@virtual_time
async def test_one_principal_over_the_rate_leaves_the_others_alone() -> None:
    """A54, SA27, CP-05: messages are counted per principal, lists and suggestions too."""
    app = make_app(limits=Limits(message_rate="2/min"))
    for token in (ADA, EVE):
        client = Client(app)
        statuses = [(await client.request("tools/list", authorization=f"Bearer {token}")).status for _ in range(3)]
        assert statuses == [200, 200, 429]
        refused = await client.call("whoami", {}, authorization=f"Bearer {token}")
        assert (refused.status, refused.error["code"], refused.headers["retry-after"]) == (429, 429, "30")


@virtual_time
async def test_progress_is_bounded_and_goes_to_who_asked_for_it() -> None:
    """PR-06: a flood is thinned out, and its last note arrives; each note is of the call that asked, and its message is for people."""
    app = make_app()
    client = Client(app)
    noted = await client.call("count", {}, meta=make_meta(progressToken="mine"), authorization=f"Bearer {ADA}")
    notes = [note["params"] for note in noted.notes if note["method"] == "notifications/progress"]
    assert noted.text == "counted"
    assert 1 <= len(notes) < 2_000
    assert notes[-1]["progress"] == 10_000
    assert {note["progressToken"] for note in notes} == {"mine"}
    assert all(isinstance(note["message"], str) for note in notes)
    assert [note["progress"] for note in notes] == sorted({note["progress"] for note in notes})
    silent = await client.call("count", {}, authorization=f"Bearer {ADA}")
    assert (silent.text, silent.notes) == ("counted", [])


async def test_what_is_logged_to_a_client_holds_no_credential_and_no_traceback() -> None:
    """LG-06: an unexpected exception reaches the log of the server alone."""
    server = Server("s")

    @server.tool
    async def fail(ctx: Context) -> str:
        ctx.log("error", "it failed")
        raise RuntimeError("postgres://admin:hunter2@db/")

    answer = await Client(asgi(server, auth=BearerTokens(KNOWN))).call(
        "fail", {}, meta=make_meta(logLevel="debug"), authorization=f"Bearer {ADA}"
    )
    told = str([answer.message, *answer.notes])
    assert "it failed" in told
    assert "hunter2" not in told
    assert ADA not in told

"""Whole logins over sockets: our client, the demo authorization server of examples/, and a server with `auth=JWT(...)`.

tests/interop/test_login.py does the same with the official clients.
"""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from e2e.serving import free_port, process, wait_until_listening
from login_stage import CIMD, REDIRECT, Answer, Stage, authorizing, staged
from source_tree import ROOT

from callboard import Client, oauth
from callboard.auth import Introspection
from callboard.client.errors import AuthorizationFailed
from examples.authorization_server import AuthorizationServer

MODERN, NOVEMBER, JUNE, MARCH = "2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26"
ERAS = [MODERN, NOVEMBER, JUNE]
READ, BOTH = ["ada", "notes:read"], ["ada", "notes:read", "notes:write"]


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with staged() as running:
        yield running


def login(stage: Stage, **options: Any) -> oauth.OAuth:
    return oauth.OAuth(**{"browse": stage.visit, "redirect_uri": REDIRECT, **options})


async def look(client: Client) -> list[str]:
    seen: list[str] = json.loads((await client.call_tool("whoami")).text)
    return seen


def grants(stage: Stage) -> list[str]:
    """Scopes that browsers were asked for."""
    return [page["scope"] for page in stage.pages]


@pytest.mark.parametrize("version", [*ERAS, MARCH])
async def test_a_login_a_step_up_a_renewal_and_a_new_key(stage: Stage, version: str) -> None:
    """AC-02, AC-05, AC-07, AC-08, AC-09, AC-13, AC-14, AC-15; AR-03, AR-04, AR-05, AR-06, AR-07, AR-08."""
    async with Client(stage.url, auth=login(stage), versions=version, timeout=20) as client:
        assert await look(client) == READ
        assert (await client.call_tool("write", {"text": "bread"})).text == "1"
        assert await look(client) == BOTH
        assert grants(stage) == ["notes:read", "notes:read notes:write"]
        await client.call_tool("age")
        assert await look(client) == BOTH  # renewed, without a browser
        await client.call_tool("rotate")
        assert await look(client) == BOTH  # a token of the last key
        await client.call_tool("age")
        assert await look(client) == BOTH  # a token of the new one, which the server has to look for
        assert (await client.call_tool("write", {"text": "milk"})).text == "2"
    assert len(stage.pages) == 2
    assert stage.pages[0]["resource"] == stage.url


@pytest.mark.parametrize("version", ERAS)
async def test_a_client_by_its_document(stage: Stage, version: str) -> None:  # AC-09, AC-10
    async with Client(stage.url, auth=login(stage, client_metadata_url=CIMD), versions=version) as client:
        assert await look(client) == READ
    assert stage.pages[0]["client_id"] == CIMD
    assert not stage.authorization.registered.rows


@pytest.mark.parametrize("version", ERAS)
async def test_a_program_without_a_user(stage: Stage, version: str) -> None:
    secret = stage.authorization.add_machine("robot")
    auth = oauth.ClientCredentials("robot", secret, issuer=stage.authorization.issuer)
    async with Client(stage.url, auth=auth, versions=version) as client:
        assert await look(client) == ["robot", "notes:read"]
        assert (await client.call_tool("write", {"text": "bread"})).text == "1"  # it gets more by itself
        await client.call_tool("age")
        assert await look(client) == ["robot", "notes:read", "notes:write"]


async def test_the_next_client_has_the_tokens(stage: Stage) -> None:
    storage = oauth.MemoryStorage()
    for _ in range(3):
        async with Client(stage.url, auth=login(stage, storage=storage)) as client:
            assert await look(client) == READ
            await client.call_tool("age")
    assert len(stage.pages) == 1


async def test_a_key_is_revoked(stage: Stage) -> None:
    """The server looks for the keys again within the hour; then tokens of the old one are over, remembered or not."""
    async with Client(stage.url, auth=login(stage)) as client:
        assert await look(client) == READ
        generation = stage.verifier.generation
        stage.authorization.rotate(revoke=True)
        stage.ticks.ahead += 3601
        token = (await stage.program().log_in())["access_token"]
        assert (await ask(stage, token)).status == 200
        assert stage.verifier.generation == generation + 1
        assert await look(client) == READ
    assert len(stage.pages) == 1


async def test_a_key_rotates_when_the_server_has_just_looked(stage: Stage) -> None:
    """Tokens of a new key are good at once, though the server looked for keys a moment ago."""
    async with Client(stage.url, auth=login(stage)) as client:
        assert await look(client) == READ
        stage.authorization.rotate()
        stage.age(keys=0)
        assert await look(client) == READ
    assert len(stage.pages) == 1


async def test_a_login_is_revoked() -> None:
    """RFC 7662: a server that asks about each token learns of it at once; then somebody logs in anew."""

    def introspect(authorization: AuthorizationServer, url: str) -> Introspection:
        secret = authorization.add_machine("notes", serves=url)
        return Introspection(f"{authorization.issuer}/introspect", "notes", secret, authorization.issuer, remember=0)

    async with staged(introspect) as stage:
        async with Client(stage.url, auth=login(stage)) as client:
            assert await look(client) == READ
            assert (await client.call_tool("write", {"text": "bread"})).text == "1"
            stage.authorization.logins.rows.clear()
            assert await look(client) == BOTH  # refused, not to be renewed, granted again
        other = (await stage.program(stage.other).log_in())["access_token"]
        assert (await ask(stage, other)).status == 401
    assert len(stage.pages) == 3


async def test_somebody_says_no() -> None:
    async with staged(auto_consent=False) as stage:
        said: dict[str, str] = {"answer": "no", "user": "ada"}

        async def decide(page: str) -> str:
            async with aiohttp.ClientSession() as session:
                async with session.get(page) as shown:
                    (ticket,) = re.findall(r'name="ticket" value="([^"]+)"', await shown.text())
                async with session.post(page, data={"ticket": ticket, **said}, allow_redirects=False) as response:
                    return response.headers["location"]

        with pytest.raises(AuthorizationFailed, match="access_denied"):
            async with Client(stage.url, auth=login(stage, browse=decide)):
                pass
        said["answer"] = "yes"
        async with Client(stage.url, auth=login(stage, browse=decide)) as client:
            said["answer"] = "no"
            with pytest.raises(AuthorizationFailed, match="access_denied"):
                await client.call_tool("write", {"text": "bread"})
            assert await look(client) == READ  # what was granted before still is


async def ask(stage: Stage, token: str | None) -> Answer:
    """An answer to a request that needs nothing but to get in."""
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "server/discover",
        "params": {
            "_meta": {
                "io.modelcontextprotocol/protocolVersion": MODERN,
                "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
                "io.modelcontextprotocol/clientCapabilities": {},
            }
        },
    }
    headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": MODERN, "mcp-method": "server/discover"}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    async with aiohttp.ClientSession() as session, session.post(stage.url, json=body, headers=headers) as response:
        return Answer(response.status, {name.lower(): value for name, value in response.headers.items()}, await response.text())


async def test_tokens_that_are_none_here(stage: Stage) -> None:
    """AR-05, AR-08: for another server, of another authorization server, over, or none; each is told where to log in."""
    good = (await stage.program().log_in())["access_token"]
    other = (await stage.program(stage.other).log_in())["access_token"]
    async with authorizing([stage.url], clock=stage.clock) as stranger:
        foreign = Stage(stranger, stage.verifier, stage.clock, stage.ticks, stage.url, stage.other)
        strange = (await foreign.program().log_in())["access_token"]
    assert (await ask(stage, good)).status == 200
    for token in (other, strange, f"{good[:-4]}AAAA", "no-token"):
        refused = await ask(stage, token)
        challenge = refused.headers["www-authenticate"]
        assert refused.status == 401
        assert 'error="invalid_token"' in challenge
        assert f'resource_metadata="{stage.url.replace("/mcp", "")}/.well-known/oauth-protected-resource/mcp"' in challenge
        assert 'scope="notes:read"' in challenge
        assert token not in challenge + refused.text
    stage.age()
    assert 'error="invalid_token"' in (await ask(stage, good)).headers["www-authenticate"]
    missing = await ask(stage, None)
    assert (missing.status, "error" in missing.headers["www-authenticate"]) == (401, False)


async def test_a_token_without_the_scope_of_the_server(stage: Stage) -> None:  # AR-06, AR-07
    program = stage.program()
    await program.register()
    nothing = (await program.exchange((await program.authorize(scope=None)).back["code"])).json["access_token"]
    refused = await ask(stage, nothing)
    assert refused.status == 403
    assert 'error="insufficient_scope"' in refused.headers["www-authenticate"]
    assert 'scope="notes:read"' in refused.headers["www-authenticate"]
    assert (await ask(stage, (await program.log_in("notes:write"))["access_token"])).status == 200  # the broader one implies it


async def test_many_calls_that_all_need_more_make_one_login(stage: Stage) -> None:
    async with Client(stage.url, auth=login(stage)) as client:
        await asyncio.gather(*(client.call_tool("write", {"text": str(number)}) for number in range(10)))
    assert grants(stage) == ["notes:read", "notes:read notes:write"]


BROWSER = """
import sys, urllib.request
print(urllib.request.urlopen(sys.argv[1], timeout=20).status)
"""


async def test_the_examples_and_a_browser(tmp_path: Path) -> None:
    """The three programs as somebody would start them; the system's browser is one that follows redirects."""
    here, there = free_port(), free_port()
    url, browser = f"http://127.0.0.1:{here}/mcp", tmp_path / "browser.py"
    browser.write_text(BROWSER, encoding="utf-8")
    authorization = [sys.executable, "-W", "error", "examples/authorization_server.py", "--port", str(there), "--resource", url]
    protected = [sys.executable, "-W", "error", "examples/protected.py", "--port", str(here), "--issuer", f"http://127.0.0.1:{there}"]
    with (
        process([*authorization, "--auto-consent"], tmp_path / "as", cwd=ROOT) as one,
        process(protected, tmp_path / "mcp", cwd=ROOT) as other,
    ):
        wait_until_listening(one, there, tmp_path / "as")
        wait_until_listening(other, here, tmp_path / "mcp")
        ran = await asyncio.create_subprocess_exec(
            *(sys.executable, "examples/login.py", url),
            cwd=ROOT,
            env={**os.environ, "BROWSER": f"{sys.executable} {browser} %s"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        printed, complaints = await asyncio.wait_for(ran.communicate(), 60)
    assert b"['ada', 'notes:read']" in printed, (printed, complaints)
    assert b"OK" in printed
    assert (tmp_path / "as").read_text(encoding="utf-8").startswith("DEMO ONLY: no passwords.")

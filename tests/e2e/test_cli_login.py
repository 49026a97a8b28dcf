"""`callboard login` with a browser, an authorization server and an MCP server, and what the other commands make of the tokens."""

import asyncio
import json
import os
import re
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from authorization_server import AuthorizationServer
from authorization_server import Client as Known
from protected_server import ProtectedServer, guarded

CALLBOARD = [sys.executable, "-m", "callboard"]
# Follows redirects, as a browser does whose user says yes.
BROWSER = """import sys, urllib.error, urllib.request
print("a word of the browser's", file=sys.stderr)
try:
    urllib.request.urlopen(sys.argv[1], timeout=20).close()
except urllib.error.HTTPError:
    pass
"""
PAGE = re.compile(rb"http://127\.0\.0\.1:\d+/\S*[?&]state=\S*")


class Ran(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


class Home:
    """A user's home and environment.

    Args:
        folder: The home.
    """

    def __init__(self, folder: Path) -> None:
        self.tokens = folder / "config" / "callboard" / "tokens"
        browser = folder / "browser.py"
        browser.write_text(BROWSER)
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("CALLBOARD")},
            "HOME": str(folder),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "BROWSER": f"{sys.executable} {browser} %s",
        }
        self._folder = folder

    async def start(self, *words: str, **environ: str) -> asyncio.subprocess.Process:
        """Start the command in the home."""
        return await asyncio.create_subprocess_exec(
            *CALLBOARD,
            *words,
            cwd=self._folder,
            env={**self.environ, **environ},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def run(self, *words: str, **environ: str) -> Ran:
        """Run the command to its end."""
        started = await self.start(*words, **environ)
        try:
            out, err = await asyncio.wait_for(started.communicate(), 40)
        except TimeoutError:
            started.kill()
            await started.wait()
            raise
        assert b"Traceback (most recent call last)" not in err, err.decode()
        return Ran(started.returncode or 0, out.decode(), err.decode())

    def kept(self) -> str:
        """All that is kept, as text."""
        return "".join(file.read_text() for file in sorted(self.tokens.glob("*"))) if self.tokens.exists() else ""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def sent_tokens(protected: ProtectedServer) -> set[str]:
    """The tokens that a server has seen."""
    return {request.headers["authorization"].partition(" ")[2] for request in protected.requests if "authorization" in request.headers}


def late(seconds: float) -> Callable[[], float]:
    """A clock that is ahead of everybody's."""
    return lambda: time.time() + seconds


def forget_age(home: Home, seconds: float) -> None:
    """Make all tokens older than they are, so that the command's own clock says that they have ended."""
    for file in home.tokens.glob("*.json"):
        entry = json.loads(file.read_text())
        if "obtained" in entry["value"]:
            entry["value"]["obtained"] -= seconds
            file.write_text(json.dumps(entry))


async def test_somebody_logs_in_and_the_other_commands_use_it(home: Home) -> None:
    """AC-02 to AC-11, AC-16."""
    async with guarded() as (authorization, protected):
        refused = await home.run("list", protected.url)
        assert (refused.code, refused.out) == (1, "")
        assert refused.err.endswith(f"\nTo log in: callboard login {protected.url}\n")
        assert not home.tokens.exists()

        ran = await home.run("login", protected.url)
        assert (ran.code, ran.out) == (0, "Logged in at protected.\n"), ran.err
        assert "a word of the browser's" in ran.err  # it was opened
        assert [request.kind for request in authorization.requests] == ["metadata", "register", "authorize", "token"]
        assert not authorization.violations

        listed = await home.run("list", protected.url)
        assert listed == (0, "tools\ttest-tool\t\n", "")
        called = await home.run("call", protected.url, "test-tool")
        assert called == (0, "the play goes on\n", "")
        assert len(authorization.requests) == 4
        (token,) = sent_tokens(protected)
        assert token in home.kept()


async def test_only_the_owner_can_read_what_is_kept(home: Home) -> None:
    """AC-16."""
    async with guarded() as (_, protected):
        assert (await home.run("login", protected.url)).code == 0
    assert stat.S_IMODE(home.tokens.stat().st_mode) == 0o700
    files = list(home.tokens.iterdir())
    assert len(files) >= 3
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


async def test_without_a_browser_the_page_is_printed(home: Home) -> None:
    async with guarded() as (_, protected):
        started = await home.start("login", protected.url, "--no-browser", BROWSER="false")
        assert started.stderr is not None
        said = await asyncio.wait_for(started.stderr.readuntil(b"state="), 30) + await started.stderr.readline()
        assert said.startswith(b"Open this page in a browser of this machine:\nhttp://127.0.0.1:")
        (page,) = PAGE.findall(said)
        opened = await asyncio.create_subprocess_exec(sys.executable, "-c", BROWSER, page.decode(), stderr=asyncio.subprocess.DEVNULL)
        assert await asyncio.wait_for(opened.wait(), 30) == 0
        out, err = await asyncio.wait_for(started.communicate(), 30)
        assert (started.returncode, out, err) == (0, b"Logged in at protected.\n", b"")


async def test_ctrl_c_ends_the_wait_for_a_browser(home: Home) -> None:
    async with guarded() as (_, protected):
        started = await home.start("login", protected.url, "--no-browser")
        assert started.stderr is not None
        said = await asyncio.wait_for(started.stderr.readuntil(b"state="), 30)
        started.send_signal(2)
        out, err = await asyncio.wait_for(started.communicate(), 10)
        assert (started.returncode, out) == (1, b"")
        assert err.endswith(b"Aborted!\n")
        assert b"Traceback" not in said + err


async def test_an_ended_token_is_renewed_without_a_browser(home: Home) -> None:
    """AC-15."""
    async with guarded() as (authorization, protected):
        assert (await home.run("login", protected.url)).code == 0
        authorization.clock = late(5000)
        forget_age(home, 5000)
        listed = await home.run("list", protected.url, BROWSER="false")
        assert listed == (0, "tools\ttest-tool\t\n", "")
        assert [request.form["grant_type"] for request in authorization.sent("token")] == ["authorization_code", "refresh_token"]
        forget_age(home, -5000)
        assert (await home.run("list", protected.url)).code == 0  # what was renewed is kept
        assert len(authorization.sent("token")) == 2


async def test_a_revoked_login_says_to_log_in_again(home: Home) -> None:
    """AC-15: and nobody is sent to a page, nor registered, unasked."""
    async with guarded() as (authorization, protected):
        assert (await home.run("login", protected.url)).code == 0
        for token in (*authorization.tokens.values(), *authorization.refresh_tokens.values()):
            token.revoked = True
        registered = len(authorization.sent("register"))
        ran = await home.run("list", protected.url)
        assert (ran.code, ran.out) == (1, "")
        assert ran.err.endswith(f"somebody has to log in again\nTo log in: callboard login {protected.url}\n"), ran.err
        assert len(authorization.sent("authorize")) == 1
        assert len(authorization.sent("register")) == registered
        assert (await home.run("login", protected.url)).code == 0
        assert (await home.run("list", protected.url)).code == 0


async def test_a_tool_that_needs_another_scope(home: Home) -> None:
    """AC-14: what the command says to do helps, and is the same again where nothing was done."""
    async with guarded() as (_, protected):
        protected.challenge_scope = "mcp:basic"
        protected.needs = {"tools/call": frozenset({"mcp:basic", "mcp:write"})}
        assert (await home.run("login", protected.url)).code == 0
        assert (await home.run("list", protected.url)).code == 0
        ran = None
        for _ in range(2):
            ran = await home.run("call", protected.url, "test-tool")
            assert ran.code == 1
            assert ran.err.endswith(f"\nTo log in: callboard login {protected.url} --scope mcp:basic --scope mcp:write\n"), ran.err
        assert ran is not None
        assert (await home.run(*ran.err.splitlines()[-1].split()[4:])).code == 0
        assert (await home.run("call", protected.url, "test-tool")).code == 0


async def test_a_token_is_for_one_url_alone(home: Home) -> None:
    """AC-12."""
    trusted = AuthorizationServer()
    async with guarded(trusted) as (_, protected), guarded(AuthorizationServer()) as (_, stranger):
        assert (await home.run("login", protected.url)).code == 0
        for words in (
            ["list", stranger.url],
            ["list", f"{protected.origin}/other"],
            ["list", protected.url.replace("127.0.0.1", "localhost")],
        ):
            protected.requests.clear()
            assert (await home.run(*words)).code == 1
            assert not sent_tokens(stranger) | sent_tokens(protected), words
        # The stranger says that the authorization server of the first is its own, too.
        stranger.authorization = trusted
        ran = await home.run("list", stranger.url)
        assert ran.code == 1
        assert ran.err.endswith(f"To log in: callboard login {stranger.url}\n")
        assert not sent_tokens(stranger)


async def test_a_header_of_the_user_s_goes_before_the_kept_login(home: Home) -> None:
    async with guarded() as (_, protected):
        assert (await home.run("login", protected.url)).code == 0
        protected.requests.clear()
        ran = await home.run("list", protected.url, "-H", "authorization: Bearer mine")
        assert ran.code == 1
        assert sent_tokens(protected) == {"mine"}


async def test_a_client_that_is_registered_stays_who_it_is(home: Home) -> None:
    """AC-09, AC-16: the secret comes from the environment each time, and is never kept."""
    secret = "a-secret-of-its-own"
    server = AuthorizationServer(auth_methods=("client_secret_basic",), dcr=False, lifetime=100)
    server.clients["app"] = Known("app", secret, ("http://127.0.0.1/callback",), "client_secret_basic", any_port=True)
    async with guarded(server) as (authorization, protected):
        options = ("--client-id", "app", "--issuer", authorization.issuer)
        ran = await home.run("login", protected.url, *options, CALLBOARD_CLIENT_SECRET=secret)
        assert ran == (0, "Logged in at protected.\n", "a word of the browser's\n")
        assert secret not in home.kept()
        assert (await home.run("list", protected.url)).code == 0
        authorization.clock = late(500)
        forget_age(home, 500)
        assert (await home.run("list", protected.url, CALLBOARD_CLIENT_SECRET=secret)).code == 0
        assert not authorization.violations


async def test_a_login_asks_for_what_it_is_told_to(home: Home) -> None:
    """AC-13: an earlier login is no answer to a wish for more."""
    async with guarded() as (authorization, protected):
        assert (await home.run("login", protected.url)).code == 0
        assert (await home.run("login", protected.url, "--scope", "mcp:read mcp:write", "--scope", "mcp:basic")).code == 0
        assert set(authorization.sent("authorize")[-1].query["scope"].split()) == {"mcp:read", "mcp:write", "mcp:basic"}


async def test_a_login_that_fails_says_why(home: Home) -> None:
    async with guarded(AuthorizationServer(deny="access_denied")) as (_, protected):
        ran = await home.run("login", protected.url)
        assert (ran.code, ran.out) == (1, "")
        assert "access_denied" in ran.err
        assert (await home.run("list", protected.url)).code == 1
    async with guarded(AuthorizationServer(dcr=False)) as (_, protected):
        ran = await home.run("login", protected.url)
        assert ran.code == 1
        assert "registers no clients by itself" in ran.err


async def test_a_server_that_asks_for_no_login(home: Home) -> None:
    class Open(ProtectedServer):
        def _check(self, request: object) -> None:
            """Everybody may come in."""

    from recording_app import serving

    server = Open(AuthorizationServer())
    async with serving(server.authorization, server):
        assert await home.run("login", server.url) == (0, "protected asks for no login.\n", "")
        assert home.kept() == ""


async def test_a_configuration_uses_what_was_kept(home: Home, tmp_path: Path) -> None:
    async with guarded() as (_, protected), guarded() as (_, stranger):
        assert (await home.run("login", protected.url)).code == 0
        (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"mine": {"url": protected.url}, "other": {"url": stranger.url}}}))
        ran = await home.run("list", "mcp.json")
        assert (ran.code, ran.out) == (0, "tools\tmine_test-tool\t\n")
        assert f"To log in: callboard login {stranger.url}" in ran.err
        assert not sent_tokens(stranger)

"""What the command says where a server gives out its tokens itself: there is nobody to log in at, so it names the header (AR-04, AR-05)."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.serving import free_port, process, wait_until_listening

CALLBOARD = [sys.executable, "-m", "callboard"]
TOKEN, WRONG = "desk-token-0123456789abcdef0123456789", "desk-token-that-is-wrong-0123456789ab"
SERVER = """from callboard import Server, asgi
from callboard.auth import {kind}
server = Server("desk")
app = asgi(server, auth={kind}({{"{token}": "desk"}}))
"""
LIMIT = 60.0


@pytest.fixture(scope="module", params=["BearerTokens", "ApiKeys"])
def door(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A server that knows one credential: the verifier's name and the URL."""
    folder = tmp_path_factory.mktemp("door")
    (folder / "door.py").write_text(SERVER.format(kind=request.param, token=TOKEN))
    port = free_port()
    with process([*CALLBOARD, "run", "door.py", "--port", str(port)], folder / "log", cwd=folder) as started:
        wait_until_listening(started, port, folder / "log")
        yield request.param, f"http://127.0.0.1:{port}/mcp"


def say(folder: Path, *words: str) -> str:
    """What the command says on its way out, which must be a failure."""
    environ = {**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    ran = subprocess.run([*CALLBOARD, *words], cwd=folder, env=environ, capture_output=True, timeout=LIMIT, check=False, text=True)
    assert (ran.returncode, ran.stdout) == (1, ""), ran.stderr
    assert "Traceback" not in ran.stderr
    assert "desk-token" not in ran.stderr
    return ran.stderr


def test_whoever_comes_without_a_credential_learns_which_header_is_wanted(door: tuple[str, str], tmp_path: Path) -> None:
    kind, url = door
    said = say(tmp_path, "list", url)
    if kind == "ApiKeys":
        assert said.endswith("\nIt wants this header, with a credential of yours: -H 'x-api-key: KEY'\n")
        assert "callboard login" not in said
    else:
        assert "\nIt wants a token, and names nobody who gives one. With one of yours: -H 'Authorization: Bearer TOKEN'\n" in said


def test_a_login_that_can_t_be_leads_to_no_other_login(door: tuple[str, str], tmp_path: Path) -> None:
    kind, url = door
    said = say(tmp_path, "login", url, "--no-browser")
    assert "callboard login" not in said
    assert said.endswith("-H 'x-api-key: KEY'\n" if kind == "ApiKeys" else "-H 'Authorization: Bearer TOKEN'\n")


def test_a_credential_that_is_refused_is_named_with_the_reason(door: tuple[str, str], tmp_path: Path) -> None:
    kind, url = door
    name, value = ("X-Api-Key", WRONG) if kind == "ApiKeys" else ("authorization", f"Bearer {WRONG}")
    said = say(tmp_path, "list", url, "-H", f"{name}: {value}")
    assert said.endswith(f"\nIt refused the header {name} given with -H. Give another.\n")
    assert "is not known." in said
    assert "callboard login" not in said


@pytest.mark.parametrize("door", ["BearerTokens"], indirect=True)
def test_a_credential_that_is_none_is_no_matter_of_versions(door: tuple[str, str], tmp_path: Path) -> None:
    """AR-05, VN-14: a 400 with a challenge; this is what `-H "Authorization: Bearer $TOKEN"` sends where TOKEN is not set."""
    said = say(tmp_path, "list", door[1], "-H", "Authorization: Bearer ")
    assert "The Authorization header holds no bearer token." in said
    assert "no protocol version" not in said
    assert said.endswith("\nIt refused the header Authorization given with -H. Give another.\n")

"""A client held by a fixture, as users' tests have it (A43): set up and torn down in tasks of the plugin's choosing, without a word."""

import subprocess
import sys
from pathlib import Path

import pytest

SERVER = """
from callboard import Client, Server

server = Server("board")

@server.tool
async def add(a: int, b: int) -> int:
    return a + b
"""
TESTS = f"""
import pytest
{SERVER}
pytestmark = MARK

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.fixture(params=[server, __file__.replace("test_it", "program")])
async def client(request):
    async with Client(request.param) as client:
        yield client

async def test_one(client):
    assert (await client.call_tool("add", {{"a": 1, "b": 2}})).structured_content == 3

async def test_two(client):
    async with client.listen(tools=True):
        assert (await client.call_tool("add", {{"a": 2, "b": 2}})).structured_content == 4
"""
SETTINGS = """
[pytest]
filterwarnings = error
asyncio_default_fixture_loop_scope = function
asyncio_mode = MODE
"""


@pytest.mark.parametrize(("mode", "mark"), [("auto", "[]"), ("strict", "pytest.mark.anyio")], ids=["pytest-asyncio", "anyio"])
def test_fixtures_that_hold_a_client_are_torn_down_cleanly(tmp_path: Path, mode: str, mark: str) -> None:
    """A43."""
    (tmp_path / "program.py").write_text(SERVER)
    (tmp_path / "test_it.py").write_text(TESTS.replace("MARK", mark))
    (tmp_path / "pytest.ini").write_text(SETTINGS.replace("MODE", mode))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "4 passed" in ran.stdout

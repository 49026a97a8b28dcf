"""The folder `legacy/` holds everything that exists only for 2025 clients: deleted, it leaves a working server of the current protocol."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import callboard

PACKAGE = Path(callboard.__file__).resolve().parent
PROGRAM = '''
import asyncio, json
import callboard
from callboard import Client, Context, RegistrationError, Server, asgi
from asgi_driver import Client as Browser

server = Server("yard")

@server.tool
async def add(a: int, b: int, ctx: Context) -> int:
    """Add."""
    ctx.progress(1, 1)
    return a + b

async def main():
    found = {"at": callboard.__file__}
    async with Client(server) as client:
        found["memory"] = (await client.call_tool("add", {"a": 1, "b": 2})).structured_content
    browser = Browser(asgi(server, sessions="off", request_timeout=5.0))
    found["http"] = (await browser.call("add", {"a": 3, "b": 4})).result["structuredContent"]
    found["versions"] = (await browser.request("server/discover")).result["supportedVersions"]
    opening = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}}
    refused = await browser.post(opening, mcp_protocol_version=None, mcp_method=None)
    found["initialize"] = [refused.status, refused.error["code"], refused.error["data"]["supported"]]
    try:
        asgi(server, versions=["2025-11-25"])
    except RegistrationError as error:
        found["asked for"] = str(error)
    print(json.dumps(found))

asyncio.run(main())
'''


def test_the_current_protocol_works_with_the_folder_deleted(tmp_path: Path) -> None:
    copy = tmp_path / "callboard"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("legacy", "__pycache__"))
    assert not (copy / "legacy").exists()
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).resolve().parent.parent)])
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"},
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert Path(found.pop("at")).is_relative_to(tmp_path)
    assert "2026-07-28" in found.pop("asked for")
    assert found == {
        "memory": 3,
        "http": 7,
        "versions": ["2026-07-28"],
        "initialize": [400, -32020, ["2026-07-28"]],
    }


def test_nothing_but_the_composition_root_knows_the_folder() -> None:
    importers = [
        path.name
        for path in PACKAGE.rglob("*.py")
        if "callboard.legacy" in path.read_text() and "legacy" not in path.parts[len(PACKAGE.parts)]
    ]
    assert importers == ["compose.py"]

"""`callboard doctor` and `callboard run` of a program that made its own application, as people run them."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from e2e.serving import free_port, process, wait_until_listening

CALLBOARD = [sys.executable, "-m", "callboard"]
SECRET = "s3cret-of-nobody-else-0123456789"
PLAIN = '''
import os
print("loading")
os.system("echo a child of the program")
from callboard import Server, types

server = Server("plain", version="2")

@server.tool(annotations=types.ToolAnnotations(destructive_hint=True))
async def drop(name: str) -> str:
    """Drop it."""
    raise SystemExit("it ran")
'''
GUARDED = f'''
import callboard
from callboard import Server, types
from callboard.auth import BearerTokens, Principal

server = Server("guarded", keys=["{SECRET}{SECRET}"])

@server.tool(scopes={{"write"}}, timeout=5, annotations=types.ToolAnnotations(destructive_hint=True))
async def drop(name: str) -> str:
    """Drop it."""
    return name

app = callboard.asgi(server, auth=BearerTokens({{"{SECRET}": Principal("ada", ["write"])}}), path="/own")
'''
OPEN = """
import callboard
from callboard import Server
other = callboard.asgi(Server("open", mask_errors=False), allow_remote=True, hosts=["*"])
"""
HOSTED = """
import callboard
from callboard import Server
from callboard.auth import JWT
from starlette.applications import Starlette
from starlette.routing import Mount, Route

server = Server("hosted", keys=["k" * 32])
mcp = callboard.asgi(server, auth=JWT("https://as.example", keys=KEY), resource="https://h.example/mcp", hosts=["h.example"])
app = Starlette(routes=[Mount("/", Starlette(routes=[Route("/mcp", mcp)]))PAGES])
""".replace("KEY", repr({"kty": "OKP", "crv": "Ed25519", "kid": "1", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}))
PROGRAMS = {
    "plain": PLAIN,
    "guarded": GUARDED,
    "open": OPEN,
    "hidden": HOSTED.replace("PAGES", ""),
    "published": HOSTED.replace("PAGES", ", *(Route(*route) for route in mcp.metadata_routes)"),
    "wrapped": HOSTED.replace("PAGES", "") + "from starlette.middleware.cors import CORSMiddleware\napp = CORSMiddleware(mcp)\n",
    "rooted": HOSTED.replace("PAGES", "") + "app = Starlette(routes=[Route('/x', None.__class__), Mount('/', mcp)])\n",
    "several": OPEN + "another = callboard.asgi(Server('another'))\n",
    "serving": "import callboard\nserver = callboard.Server('s')\ncallboard.run(server, port=8000)\n",
    "piping": "import asyncio, callboard\nserver = callboard.Server('s')\nasyncio.run(callboard.stdio(server))\n",
    "broken": "import callboard\ncallboard.asgi(callboard.Server('s'), hosts='example.com')\n",
}
Doctor = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("programs")
    for name, text in PROGRAMS.items():
        (path / f"{name}.py").write_text(text)
    return path


@pytest.fixture
def doctor(folder: Path) -> Doctor:
    def run(*words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        command, env = [*CALLBOARD, "doctor", *words], {**os.environ, **environment}
        return subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL, env=env
        )

    return run


def findings(ran: "subprocess.CompletedProcess[str]") -> dict[str, str]:
    assert ran.returncode == 0, ran.stderr
    return {finding["id"]: finding["severity"] for finding in json.loads(ran.stdout)["findings"]}


def test_a_server_is_looked_at_as_run_would_serve_it(doctor: Doctor) -> None:
    ran = doctor("plain.py")
    assert (ran.returncode, ran.stdout.splitlines()[0]) == (0, "plain 2: plain.py, as `callboard run` serves it")
    assert "  tool  drop" in ran.stdout
    assert "DESTRUCTIVE" in ran.stdout
    assert "Destructive, and without scopes of their own: drop." in ran.stdout
    assert "[scopes= or visible= of the tool]" in ran.stdout
    assert sorted(ran.stderr.splitlines()) == ["a child of the program", "loading"]


def test_an_address_for_all_is_a_danger(doctor: Doctor) -> None:
    assert findings(doctor("plain.py", "--json", "--host", "0.0.0.0"))["open-to-everybody"] == "danger"
    assert doctor("plain.py", "--strict", "--host", "::1").returncode == 0
    ran = doctor("guarded.py", "--host", "0.0.0.0")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "--host is for a server" in ran.stderr


def test_as_json_nothing_else_is_said(doctor: Doctor) -> None:
    ran = doctor("plain.py:server", "--json")
    found = json.loads(ran.stdout)
    assert found["program"] == "plain.py:server"
    assert found["inventory"]["http"]["exposure"] == "local"
    assert [part["name"] for part in found["inventory"]["parts"]] == ["drop"]
    assert findings(ran)["unseen-options"] == "note"


def test_the_application_that_a_program_made_is_looked_at(doctor: Doctor) -> None:
    found = findings(doctor("guarded.py", "--json"))
    assert {id: found[id] for id in ("auth", "keys", "scopes")} == dict.fromkeys(("auth", "keys", "scopes"), "ok")  # noqa: A001
    assert "unseen-options" not in found
    assert "open-to-this-machine" in findings(doctor("guarded.py:server", "--json"))


def test_no_secret_is_shown(doctor: Doctor) -> None:
    for words in (("guarded.py",), ("guarded.py", "--json")):
        ran = doctor(*words)
        assert ran.returncode == 0, ran.stderr
        assert SECRET not in ran.stdout + ran.stderr


def test_nobody_who_reads_it_is_no_failure(folder: Path) -> None:
    command = f"exec {' '.join(CALLBOARD)} doctor open.py --strict >&-"
    ran = subprocess.run(["sh", "-c", command], cwd=folder, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (1, "")


def test_strict_is_for_pipelines(doctor: Doctor) -> None:
    assert doctor("guarded.py", "--strict").returncode == 0
    ran = doctor("open.py", "--strict")
    assert ran.returncode == 1
    lines = [line.strip() for line in ran.stdout.splitlines()]
    first = lines.index("Findings") + 1
    assert lines[first].startswith("danger")
    assert any(line.startswith("danger  Texts of unexpected exceptions") for line in lines)
    assert any(line.startswith("warning Host may be anything") for line in lines)


def test_several_processes_need_the_same_keys(doctor: Doctor) -> None:
    assert doctor("plain.py", "--strict").returncode == 0
    assert findings(doctor("plain.py", "--json", WEB_CONCURRENCY="4"))["random-keys"] == "warning"
    assert doctor("plain.py", "--strict", WEB_CONCURRENCY="4").returncode == 1


@pytest.mark.parametrize(
    ("program", "severity"),
    [
        ("hidden.py", "warning"),
        ("hidden.py:app", "warning"),
        ("published.py", None),
        ("hidden.py:mcp", None),
        ("wrapped.py", None),
        ("rooted.py", None),
    ],
)
def test_inside_of_another_application(doctor: Doctor, program: str, severity: str | None) -> None:
    """AR-03: its root is not ours; who puts the documents there is told when they are missing."""
    assert findings(doctor(program, "--json")).get("metadata-hidden") == severity


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (("several.py",), 2, "several MCP applications; say which: several.py:other or several.py:another"),
        (("missing.py",), 2, "no file missing.py"),
        (("plain.py:nothing",), 2, "no 'nothing'"),
        (("serving.py",), 1, "serving.py, line 3: callboard.run serves while the program is being loaded: put it under `if __name__"),
        (("piping.py",), 1, "piping.py, line 3: callboard.stdio serves while"),
        (("broken.py",), 1, "broken.py, line 2: hosts takes a list"),
        ((), 2, "Missing argument"),
    ],
)
def test_what_can_not_be_looked_at(doctor: Doctor, words: tuple[str, ...], code: int, expected: str) -> None:
    ran = doctor(*words)
    assert (ran.returncode, ran.stdout) == (code, "")
    assert expected in ran.stderr
    assert "Traceback" not in ran.stderr


def post(url: str, **headers: str) -> tuple[int, Any]:
    body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json", **headers}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_run_serves_the_application_that_the_program_made(folder: Path, tmp_path: Path) -> None:
    """AR-11: a guard that a program has put up is not left out because of how it is started."""
    port, log = free_port(), tmp_path / "log"
    with process([*CALLBOARD, "run", "guarded.py", "--port", str(port)], log, cwd=folder) as started:
        wait_until_listening(started, port, log)
        url = f"http://127.0.0.1:{port}/own"
        assert post(url)[0] == 401
        assert post(url, authorization=f"Bearer {SECRET}")[0] != 401
        assert post(f"http://127.0.0.1:{port}/mcp")[0] == 404


@pytest.mark.parametrize("program", ["hidden.py", "hidden.py:app", "wrapped.py"])
def test_run_leaves_nothing_out_that_stands_around_it(folder: Path, program: str) -> None:
    command = [*CALLBOARD, "run", program, "--port", str(free_port())]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=30, check=False)
    assert ran.returncode == 2
    assert "inside another application: serve that" in ran.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--path", "/other"], "made its application with callboard.asgi: say there"),
        (["--limit", "max_body=1KiB"], "made its application with callboard.asgi: say there"),
        (["--host", "0.0.0.0"], "lets no other machine in: say allow_remote=True there"),
    ],
)
def test_run_changes_nothing_of_it(folder: Path, words: list[str], expected: str) -> None:
    command = [*CALLBOARD, "run", "guarded.py", "--port", str(free_port()), *words]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=30, check=False)
    assert ran.returncode == 2
    assert expected in ran.stderr


def test_limits_of_the_command_line(folder: Path, tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"
    with process(
        [*CALLBOARD, "run", "plain.py", "--port", str(port), "--limit", "max_body=1KiB", "--log-format", "json"], log, cwd=folder
    ) as started:
        wait_until_listening(started, port, log)
        url = f"http://127.0.0.1:{port}/mcp"
        assert post(url, **{"content-length": "2000"})[0] == 413
        assert post(url)[0] != 413
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    assert any(line.get("logger") == "callboard.security" for line in lines), log.read_text()

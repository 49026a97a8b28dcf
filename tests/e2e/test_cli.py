"""The command `callboard` as people run it: processes, sockets, terminals."""

import asyncio
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from e2e.serving import free_port, process, wait_until_listening

from callboard import Client, types
from callboard.client.errors import ConnectionFailed, ServerError

CALLBOARD = [sys.executable, "-m", "callboard"]
ROOT = Path(__file__).resolve().parent.parent.parent
ASKING = """
from callboard import Context, Server

server = Server("asking")

@server.tool
async def ask(ctx: Context) -> str:
    return str(await ctx.roots())
"""
PROGRAM = '''
import asyncio, os
print("loading")
os.system("echo a child of the program")
from callboard import Context, Fail, Server, ToolError, image

server = Server("board", version="3", instructions="Be kind.")
spare = Server("spare")

@server.tool
async def echo(text: str, times: int = 1) -> str:
    """Say it again."""
    return text * times

@server.tool
async def add(a: int, b: float) -> float:
    """Add two numbers.\\n\\nMore of it."""
    return a + b

@server.tool
async def steps(count: int, ctx: Context) -> str:
    for step in range(count):
        ctx.progress(step + 1, count, f"step {step + 1}")
        await asyncio.sleep(0.05)
    return "done"

@server.tool
async def tenant(ctx: Context) -> str:
    return f"{ctx.headers['x-tenant']} {ctx.headers['authorization']}"

@server.tool
async def picture() -> list:
    return [image(b"12345", "image/png")]

@server.tool
async def crash() -> str:
    return str(1 / 0)

@server.tool
async def refuse() -> str:
    raise Fail.custom(4001, "not today")

@server.tool
async def fail() -> str:
    raise ToolError("no such day \\x1b[31m")

@server.resource("note://one")
def one() -> str:
    return "first"

@server.resource("note://by/{name}")
def by(name: str) -> str:
    return name

@server.prompt
def greet(name: str) -> str:
    """Say hello."""
    return f"Hello {name}"
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("program")
    (path / "board.py").write_text(PROGRAM)
    (path / "asking.py").write_text(ASKING)
    return path


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    """The program, served by `callboard run`."""
    port, log = free_port(), folder / "log"
    with process([*CALLBOARD, "run", "board.py", "--port", str(port), "--path", "/api/mcp"], log, cwd=folder) as started:
        wait_until_listening(started, port, log)
        yield f"http://127.0.0.1:{port}/api/mcp"


@pytest.fixture
def callboard(folder: Path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Runs the command in the program's folder."""

    def run(*words: str, traceback: bool = False) -> "subprocess.CompletedProcess[str]":
        ran = subprocess.run([*CALLBOARD, *words], cwd=folder, capture_output=True, text=True, timeout=30, check=False)
        assert ("Traceback (most recent call last)" in ran.stderr) == traceback
        return ran

    return run


Callboard = Callable[..., "subprocess.CompletedProcess[str]"]


def on_a_terminal(folder: Path, *words: str) -> str:
    """What a terminal of 100 columns shows, and the exit code at the end."""
    parent, child = pty.openpty()
    environment = {**os.environ, "COLUMNS": "100", "TERM": "xterm"}
    ran = subprocess.Popen([*CALLBOARD, *words], cwd=folder, stdin=child, stdout=child, stderr=child, env=environment)
    os.close(child)
    shown = b""
    try:
        while chunk := os.read(parent, 65536):
            shown += chunk
    except OSError:
        pass  # how Linux says that the other end is closed
    os.close(parent)
    return f"{shown.decode()}exit {ran.wait(10)}"


def test_the_program_is_listed_over_http(callboard: Callboard, url: str) -> None:
    ran = callboard("list", url)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        "tools\techo\tSay it again.",
        "tools\tadd\tAdd two numbers.",
        "tools\tsteps\t",
        "tools\ttenant\t",
        "tools\tpicture\t",
        "tools\tcrash\t",
        "tools\trefuse\t",
        "tools\tfail\t",
        "resources\tnote://one\t",
        "resourceTemplates\tnote://by/{name}\t",
        "prompts\tgreet\tSay hello.",
    ]


@pytest.mark.parametrize("target", ["board.py", "board.py:server", "board:server", f"{sys.executable} -m callboard run board.py --stdio"])
def test_a_program_is_listed_over_stdio(callboard: Callboard, target: str) -> None:
    """A38: what the program prints as it loads does not reach the protocol."""
    ran = callboard("list", target, "--json")
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["server"] == {"name": "board", "version": "3"}
    assert found["instructions"] == "Be kind."
    assert [tool["name"] for tool in found["tools"]] == ["echo", "add", "steps", "tenant", "picture", "crash", "refuse", "fail"]
    assert found["tools"][0]["inputSchema"]["properties"]["text"] == {"type": "string"}
    assert [template["uriTemplate"] for template in found["resourceTemplates"]] == ["note://by/{name}"]


def test_only_what_a_server_offers_is_listed(callboard: Callboard) -> None:
    ran = callboard("list", "board.py:spare", "--json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {"server": {"name": "spare", "version": "0"}}


@pytest.mark.parametrize("text", ["12345", '{"a":1}', "null", " é ", "a=b", "\x1b[31m"])
def test_text_arguments_arrive_as_they_are(callboard: Callboard, url: str, text: str) -> None:
    """A24."""
    ran = callboard("call", url, "echo", f"text={text}")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"{text}\n", "")


def test_other_arguments_are_json(callboard: Callboard, url: str) -> None:
    assert callboard("call", url, "add", "a=1", "b=2.5").stdout == "3.5\n"
    assert callboard("call", url, "echo", "times=2", "--json-args", '{"text": "ab", "times": 9}').stdout == "abab\n"


def test_the_whole_result_as_json(callboard: Callboard, url: str) -> None:
    found = json.loads(callboard("call", url, "add", "a=1", "b=2", "--json").stdout)
    assert found["structuredContent"] == 3.0
    assert found["content"] == [{"type": "text", "text": "3.0"}]
    assert callboard("call", url, "picture").stdout == "[image: image/png, 6 bytes; --json shows it]\n"


def test_a_tool_that_crashes_shows_what_its_program_says(callboard: Callboard, url: str) -> None:
    ran = callboard("call", "board.py", "crash", traceback=True)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "The end of what the server wrote to standard error:\n" in ran.stderr
    assert "ZeroDivisionError" in ran.stderr
    assert "ZeroDivisionError" not in callboard("call", url, "crash").stderr
    refused = callboard("call", "board.py", "refuse").stderr
    assert refused.startswith("Error: tools/call 'refuse' at ")
    assert refused.endswith(": not today (error 4001)\n")


def test_a_tool_that_asks_is_refused_with_the_way_out(callboard: Callboard) -> None:
    ran = callboard("call", "asking.py", "ask")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "This call has to ask its client (roots/list)" in ran.stderr
    assert "callboard.Client does: on_elicit=" in ran.stderr


def test_what_is_no_server_is_said_in_short(callboard: Callboard) -> None:
    ran = callboard("list", f"{sys.executable} -c 'for number in range(9): print(number)'")
    assert ran.returncode == 1
    assert "ended with exit code 0" in ran.stderr
    assert ran.stderr.count("ignored a line") == 1


def test_headers_go_with_the_requests(callboard: Callboard, url: str) -> None:
    ran = callboard("call", url, "tenant", "--header", "X-Tenant:acme", "-H", "Authorization: Bearer a:b ")
    assert (ran.returncode, ran.stdout) == (0, "acme Bearer a:b\n")


def test_a_tool_that_fails(callboard: Callboard, url: str) -> None:
    ran = callboard("call", url, "fail")
    assert (ran.returncode, ran.stdout, ran.stderr) == (1, "", "Error: no such day \n")
    ran = callboard("call", url, "fail", "--json")
    assert (ran.returncode, json.loads(ran.stdout)["isError"]) == (1, True)


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (("ecko", "text=a"), 2, "no tool 'ecko'; did you mean echo?"),
        (("add", "a=one", "b=2"), 2, "'a' must be integer, not 'one'"),
        (("add", "one"), 2, "write key=value"),
        (("add", "a=1"), 1, "b: required, missing"),
        (("steps", "count=100", "--timeout", "0.2"), 1, "within 0.2 s"),
    ],
)
def test_a_wrong_call_is_refused_with_the_reason(callboard: Callboard, url: str, words: tuple[str, ...], code: int, expected: str) -> None:
    ran = callboard("call", url, *words)
    assert (ran.returncode, ran.stdout) == (code, "")
    assert expected in ran.stderr


def test_a_server_that_can_t_be_reached_is_named(callboard: Callboard, url: str) -> None:
    wrong = url.replace("/api/mcp", "/mcp")
    ran = callboard("list", wrong)
    assert ran.returncode == 1
    assert wrong in ran.stderr
    ran = callboard("list", "no-such-program --stdio")
    assert ran.returncode == 1
    assert "can't start no-such-program --stdio: No such file" in ran.stderr


def test_a_terminal_shows_tables_and_progress(folder: Path, url: str) -> None:
    shown = on_a_terminal(folder, "list", url)
    assert shown.endswith("exit 0")
    assert re.search(r"│ add\s+│ a, b\s+│ Add two numbers\.\s+│", shown)
    assert re.search(r"│ echo\s+│ text, times=1\s+│ Say it again\.\s+│", shown)
    assert "Resource templates" in shown
    shown = on_a_terminal(folder, "call", url, "steps", "count=10")
    assert re.search(r"step \d+ .*━", shown)
    assert "done\r\nexit 0" in shown
    shown = on_a_terminal(folder, "call", url, "fail")
    assert "no such day \ufffd[31m\r\nexit 1" in shown  # no colours of the server's making


# run


@pytest.mark.parametrize(
    ("text", "code", "expected"),
    [
        (None, 2, "no file prog.py"),
        ("x = 1", 2, "no server at its top level"),
        ("from callboard import Server\na = Server('a')\nb = Server('b')", 2, "say which: prog.py:a or prog.py:b"),
        ("def f():\n    raise OSError('no disk')\nf()", 1, "OSError: no disk"),
        ("from callboard import Server\ns = Server('s')\n@s.tool\ndef f(*args): ...", 1, "prog.py, line 3"),
    ],
)
def test_a_program_that_can_t_be_served(tmp_path: Path, text: str | None, code: int, expected: str) -> None:
    if text is not None:
        (tmp_path / "prog.py").write_text(text)
    ran = subprocess.run(
        [*CALLBOARD, "run", "prog.py", "--stdio"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert (ran.returncode, ran.stdout) == (code, "")
    assert expected in ran.stderr
    assert "loader.py" not in ran.stderr
    assert "Traceback (most recent call last)" not in ran.stderr


def test_a_taken_port_is_one_sentence(callboard: Callboard) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = callboard("run", "board.py", "--port", str(port))
    assert (ran.returncode, ran.stderr) == (
        2, f"Error: Can't serve: port {port} on 127.0.0.1 is in use: stop what serves there, or choose another one.\n",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("raised", "options", "code", "said"),
    [
        ("RegistrationError('no such table')", [], 2, "no such table"),
        ("RuntimeError('no database')", [], 1, "no database"),
        (None, ["--store", "redis://:s3cret@127.0.0.1:1/0"], 1, "The store redis://127.0.0.1:1/0 can't be reached"),
    ],
)
def test_what_fails_at_the_start_is_said_once(tmp_path: Path, raised: str | None, options: list[str], code: int, said: str) -> None:
    """HH-12: not once more by the HTTP server, whose exit code would be another, too."""
    (tmp_path / "prog.py").write_text(
        "from contextlib import asynccontextmanager\nfrom callboard import RegistrationError, Server\n"
        f"@asynccontextmanager\nasync def lifespan(_):\n    if {raised is not None}:\n        raise {raised}\n    yield\n"
        "server = Server('s', lifespan=lifespan)\n"
    )
    words = [*CALLBOARD, "run", "prog.py", "--port", "0", *options]
    ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
    assert (ran.returncode, ran.stdout) == (code, ""), ran.stderr
    (line,) = [line for line in ran.stderr.splitlines() if " ERROR " in line]
    assert f"The server's lifespan failed: {said}" in line
    assert ("Traceback" in ran.stderr) is (raised is not None and "Runtime" in raised)
    assert "startup failed" not in ran.stderr
    assert "s3cret" not in ran.stderr


@pytest.mark.parametrize("options", [[], ["--reload"]])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_is_told_to_stop_stops_well(folder: Path, tmp_path: Path, number: signal.Signals, options: list[str]) -> None:
    """A40."""
    port, log = free_port(), tmp_path / "log"
    with process([*CALLBOARD, "run", "board.py", "--port", str(port), *options], log, cwd=folder) as started:
        wait_until_listening(started, port, log)
        started.send_signal(number)
        assert started.wait(5) == 0
    assert "Traceback" not in log.read_text()
    assert "Aborted" not in log.read_text()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_ctrl_c_in_a_terminal_reaches_a_reloading_server_once(folder: Path, tmp_path: Path) -> None:
    """The terminal signals the watcher's whole process group; a second signal would mean "at once" to the server."""
    port, log = free_port(), tmp_path / "log"
    with process([*CALLBOARD, "run", "board.py", "--port", str(port), "--reload", "--log-level", "info"], log, cwd=folder) as started:
        wait_until_listening(started, port, log)
        os.killpg(started.pid, signal.SIGINT)
        assert started.wait(5) == 0
    text = log.read_text()
    assert "Application shutdown complete." in text or "Finished server process" in text
    assert "appears unsupported" not in text
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


async def test_open_streams_end_well_when_a_server_is_told_to_stop(folder: Path, tmp_path: Path) -> None:
    """A40, SB-09."""
    port, log = free_port(), tmp_path / "log"
    with process([*CALLBOARD, "run", "board.py", "--port", str(port)], log, cwd=folder) as started:
        wait_until_listening(started, port, log)
        async with Client(f"http://127.0.0.1:{port}/mcp") as client, client.listen(tools=True) as changes:
            started.send_signal(signal.SIGTERM)
            assert [change async for change in changes] == []
        assert started.wait(5) == 0


async def test_a_changed_file_is_served_in_less_than_two_seconds(tmp_path: Path) -> None:
    """A55: and a broken one leaves the watcher waiting for the next change. A busy machine gets as long as its first start took, thrice."""
    program, port, log = tmp_path / "prog.py", free_port(), tmp_path / "log"
    source = "from callboard import Server\nserver = Server('s')\n@server.tool\ndef f() -> str:\n    'NAME'\n    return ''\n"

    async def write(name: str) -> None:
        program.write_text(source.replace("NAME", name))

    async def described_as(name: str) -> None:
        """Return once the tool has that description; between two processes nobody answers."""
        found: Any = None
        try:
            async with asyncio.timeout(limit):
                while found != name:
                    with suppress(ConnectionFailed, ServerError):  # one that is about to end says so
                        found = (await client.list_tools())[0].description
                    await asyncio.sleep(0.02)
        except TimeoutError:
            pytest.fail(f"still {found!r}; the log says:\n{log.read_text()}")

    await write("old")
    began = time.monotonic()
    with process([*CALLBOARD, "run", "prog.py", "--port", str(port), "--reload"], log, cwd=tmp_path) as started:
        wait_until_listening(started, port, log)
        limit = max(2.0, 3 * (time.monotonic() - began))
        async with Client(f"http://127.0.0.1:{port}/mcp") as client:
            await described_as("old")
            await write("new")
            await described_as("new")
            program.write_text("oops")
            async with asyncio.timeout(5):
                while b"has ended" not in log.read_bytes():  # noqa: ASYNC110 - the log has no event
                    await asyncio.sleep(0.02)
            await write("mended")
            await described_as("mended")
    assert "NameError" in log.read_text()


def test_over_stdio_standard_output_is_the_protocol_s(folder: Path) -> None:
    """A38, SD-02."""
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}})
    ran = subprocess.run(
        [*CALLBOARD, "run", "board.py", "--stdio"], cwd=folder, input=line + "\n", capture_output=True, text=True, timeout=30, check=False
    )
    (answer,) = ran.stdout.splitlines()
    assert json.loads(answer)["id"] == 1
    assert "loading" in ran.stderr
    assert "a child of the program" in ran.stderr
    assert ran.returncode == 0


@pytest.mark.parametrize(("level", "seen"), [("info", ["I see", "tools/call 'crash' failed"]), ("critical", [])])
async def test_the_log_level_is_of_all_that_is_logged_over_stdio_too(tmp_path: Path, level: str, seen: list[str]) -> None:
    (tmp_path / "board.py").write_text(PROGRAM.replace("return str(1 / 0)", "import logging; logging.info('I see'); return str(1 / 0)"))
    async with Client([*CALLBOARD, "run", "board.py", "--stdio", "--log-level", level], cwd=tmp_path) as client:
        with pytest.raises(ServerError):
            await client.call_tool("crash")
    assert [text for text in ("I see", "tools/call 'crash' failed") if text in client.stderr] == seen


async def test_the_client_serves_a_file_itself(folder: Path) -> None:
    async with Client(folder / "board.py") as client:
        assert (await client.call_tool("echo", {"text": "hi"})).content == [types.TextContent(text="hi")]


def test_the_installed_command_is_the_same() -> None:
    command = Path(sys.executable).with_name("callboard")
    if not command.exists():
        pytest.skip("the package is not installed in this environment")
    assert subprocess.run([command, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout.startswith("callboard, ")


# make demo


def demo(**settings: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(ROOT / "examples" / "demo.py")]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "ONCE": "1", **settings})


def test_the_demo_shows_all_and_ends() -> None:
    ran = demo(PORT=str(free_port()))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stderr == ""
    for line in ("1. discover", "2. list", "3. call", "4. call with progress", "5. read", "6. prompt", "7. bad calls", "Done."):
        assert f"\n{line}" in ran.stdout
    assert re.search(r"progress 2/\d+ ", ran.stdout)


def test_the_demo_on_a_taken_port_names_the_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ran = demo(PORT=str(taken.getsockname()[1]))
    assert ran.returncode == 1
    assert "is in use" in ran.stderr
    assert "PORT=9000 make demo" in ran.stderr
    assert "Traceback" not in ran.stderr

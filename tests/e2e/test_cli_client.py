"""`callboard read`, `prompt`, `listen`, `call` and `list` with servers of both eras, over HTTP and stdio, as people and scripts run them."""

import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest
from e2e.serving import free_port, process, wait_until_listening
from e2e.silence import stay_silent

CALLBOARD = [sys.executable, "-m", "callboard"]
LIMIT = 40.0  # seconds that a command may take on a busy machine
PROGRAM = '''
import sys
from callboard import Context, Server, ToolError, embed, run

server = Server("board\\x1b]0;title\\x07", version="3")

@server.tool
async def touch(uri: str, times: int = 1) -> str:
    """Update a resource."""
    for _ in range(times):
        server.resource_updated(uri)
    return "touched"

@server.tool
async def grow() -> str:
    """Add a tool and a prompt."""
    def extra() -> str: return ""
    server.add(extra)
    return "grown"

@server.tool(task="always")
async def slow(ctx: Context) -> str:
    """Work for a while."""
    import asyncio
    for step in range(3):
        ctx.progress(step + 1, 3, f"step {step + 1}\\x1b[2J")
        await asyncio.sleep(0.2)
    return "slow and done"

@server.tool
async def nothing() -> None:
    """Do nothing."""

@server.tool
async def many(lines: int = 1) -> str:
    return "line\\n" * lines

@server.tool
async def bad() -> str:
    raise ToolError("no \\x1b[31m\\x9b31m day")

@server.tool
async def leave() -> str:
    import os
    os._exit(7)

@server.resource("note://one")
def one() -> str:
    """A note.\\x1b[1m"""
    return "first \\u00e9 \\x1b[31m\\x9b"

@server.resource("note://picture", mime_type="image/png")
def picture() -> bytes:
    return bytes(range(256))

@server.resource("note://empty")
def empty() -> str:
    return ""

@server.resource("note://by/{name}")
def by(name: str) -> str:
    return name

@server.prompt
def pack(city: str, days: int = 3) -> str:
    """Pack."""
    return f"Pack for {city}, {days} days\\x1b[31m"

if __name__ == "__main__" and len(sys.argv) == 1:
    run(server, transport="stdio")
elif __name__ == "__main__":
    run(server, port=int(sys.argv[2]), versions=None if sys.argv[1] == "new" else ["2025-11-25", "2025-06-18", "2025-03-26"])
'''
Ran = subprocess.CompletedProcess[bytes]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("program")
    (path / "board.py").write_text(PROGRAM)
    (path / "home").mkdir()
    return path


@pytest.fixture(scope="module", params=["new", "old"])
def url(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    """The program over HTTP: all versions, and those of 2025 alone."""
    with served(folder, request.param) as found:
        yield found


@contextmanager
def server(folder: Path, era: str, port: int) -> Iterator[tuple["subprocess.Popen[bytes]", str]]:
    log = folder / f"log-{era}"
    with process([sys.executable, "board.py", era, str(port)], log, cwd=folder) as started:
        wait_until_listening(started, port, log)
        yield started, f"http://127.0.0.1:{port}/mcp"


@contextmanager
def served(folder: Path, era: str, port: int = 0) -> Iterator[str]:
    with server(folder, era, port or free_port()) as (_, url):
        yield url


@pytest.fixture
def environ(folder: Path) -> dict[str, str]:
    """An environment where nobody has ever logged in."""
    return {**os.environ, "HOME": str(folder / "home"), "XDG_CONFIG_HOME": str(folder / "home"), "COLUMNS": "100", "TERM": "xterm"}


@pytest.fixture
def callboard(folder: Path, environ: dict[str, str]) -> Callable[..., Ran]:
    """Runs the command in the program's folder, with pipes."""

    def run(*words: str | bytes, **more: str) -> Ran:
        ran = subprocess.run([*CALLBOARD, *words], cwd=folder, env={**environ, **more}, capture_output=True, timeout=LIMIT, check=False)
        assert b"Traceback (most recent call last)" not in ran.stderr, ran.stderr.decode()
        return ran

    return run


Callboard = Callable[..., Ran]


class Terminal:
    """A command on a terminal of its own, which may be told to stop with Ctrl-C."""

    def __init__(self, words: tuple[str, ...], folder: Path, environ: dict[str, str]) -> None:
        self._parent, child = pty.openpty()
        launch = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
        command = [sys.executable, "-c", launch, *CALLBOARD, *words]
        self._started = subprocess.Popen(command, cwd=folder, env=environ, stdin=child, stdout=child, stderr=child, start_new_session=True)
        os.close(child)
        self.shown = ""

    def until(self, text: str) -> None:
        """Wait until something is shown."""
        while text not in self.shown:
            assert self._read(), f"{text!r} was never shown: {self.shown!r}"

    def ctrl_c(self) -> None:
        os.write(self._parent, b"\x03")

    def end(self) -> int:
        """Wait for the end; the exit code."""
        while self._read():
            pass
        os.close(self._parent)
        return self._started.wait(10)

    def _read(self) -> bool:
        if not select.select([self._parent], [], [], LIMIT)[0]:
            self._started.kill()
            return False
        try:
            chunk = os.read(self._parent, 65536)
        except OSError:  # how Linux says that the other end is closed
            return False
        self.shown += chunk.decode(errors="replace")
        return bool(chunk)


@pytest.fixture
def terminal(folder: Path, environ: dict[str, str]) -> Callable[..., Terminal]:
    return lambda *words: Terminal(words, folder, environ)


def strange(text: str) -> list[str]:
    """Control characters that are neither line ends nor colours of our own."""
    return [letter for letter in text if not letter.isprintable() and letter not in "\r\n\t\x1b"]


# read


def test_a_resource_is_read(callboard: Callboard, url: str, tmp_path: Path) -> None:
    """A pipe gets the bytes as they are."""
    ran = callboard("read", url, "note://one")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "first \u00e9 \x1b[31m\x9b".encode(), b"")
    assert callboard("read", url, "note://picture").stdout == bytes(range(256))
    assert callboard("read", url, "note://by/ada").stdout == b"ada"
    assert callboard("read", url, "note://empty", "-o", "-").stdout == b""
    ran = callboard("read", url, "note://picture", "-o", str(tmp_path / "picture.png"))
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"", b"")
    assert (tmp_path / "picture.png").read_bytes() == bytes(range(256))
    found = json.loads(callboard("read", url, "note://picture", "--json").stdout)
    assert found["contents"][0]["mimeType"] == "image/png"


def test_a_resource_that_there_is_not(callboard: Callboard, url: str) -> None:
    ran = callboard("read", url, "note://two")
    assert (ran.returncode, ran.stdout) == (1, b"")
    assert ran.stderr.startswith(f"Error: resources/read 'note://two' at {url}: ".encode())
    assert b"not found" in ran.stderr


def test_a_file_that_can_t_be_written(callboard: Callboard, tmp_path: Path) -> None:
    ran = callboard("read", "board.py", "note://one", "-o", str(tmp_path))
    assert (ran.returncode, b"is a directory" in ran.stderr) == (2, True)
    ran = callboard("read", "board.py", "note://picture", "-o", "/dev/full")
    assert (ran.returncode, ran.stderr) == (1, b"Error: /dev/full can't be written: No space left on device.\n")


def test_a_terminal_is_shown_what_can_be_shown(terminal: Callable[..., Terminal]) -> None:
    for words, shown in (
        (("read", "board.py", "note://one"), "first \u00e9 \ufffd[31m\ufffd\r\n"),
        (("read", "board.py", "note://picture"), "[note://picture: image/png, 256 bytes; --output writes them into a file]\r\n"),
        (("prompt", "board.py", "pack", "city=Oslo"), "user: Pack for Oslo, 3 days\ufffd[31m\r\n"),
    ):
        on = terminal(*words)
        assert (on.end(), on.shown) == (0, shown)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("list", "board.py"), 0),
        (("list", "board.py", "--json"), 0),
        (("read", "board.py", "note://one", "--json"), 0),
        (("call", "board.py", "bad"), 1),
        (("call", "board.py", "bad", "--json"), 1),
        (("call", "board.py", "slow"), 0),
        (("prompt", "board.py", "pack", "city=a\u009bb"), 0),
        (("prompt", "board.py", "no\x1b[31m\u009b"), 2),
        (("read", "board.py", "no\u009b"), 1),
        (("read", "http://127.0.0.1:9/\u009b", "x"), 1),
    ],
)
def test_no_command_lets_a_server_s_control_characters_on_a_terminal(
    terminal: Callable[..., Terminal], words: tuple[str, ...], code: int
) -> None:
    on = terminal(*words)
    assert on.end() == code, on.shown
    assert not strange(on.shown), repr(on.shown)
    for sequence in ("\x1b]0;title", "\x1b[31m", "\x1b[2J"):
        # our own colours are others: tables are bold and italic, bars 91, 35, 90 and 33
        assert sequence not in on.shown


def test_warnings_of_strange_lines_are_told_without_control_characters(terminal: Callable[..., Terminal]) -> None:
    on = terminal("list", f"{sys.executable} -c 'print(chr(27) + chr(0x9b))'")
    assert on.end() == 1
    assert "Warning: ignored a line" in on.shown
    assert not strange(on.shown)
    assert "\x1b" not in on.shown


# prompt


def test_a_prompt_is_filled_in(callboard: Callboard, url: str) -> None:
    ran = callboard("prompt", url, "pack", "city=a=\u00e9 b", "days=12")
    assert (ran.returncode, ran.stdout.decode(), ran.stderr) == (0, "user: Pack for a=\u00e9 b, 12 days\x1b[31m\n", b"")
    found = json.loads(callboard("prompt", url, "pack", "city=Oslo", "--json").stdout)
    assert found["messages"][0]["role"] == "user"


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (("pakc",), 2, "The server has no prompt 'pakc'; did you mean pack?"),
        (("pack",), 1, "city: required, missing"),
        (("pack", "city=a", "days=x"), 1, "days"),
        (("pack", "city"), 2, "write key=value"),
    ],
)
def test_a_wrong_prompt_is_refused_with_the_reason(
    callboard: Callboard, url: str, words: tuple[str, ...], code: int, expected: str
) -> None:
    ran = callboard("prompt", url, *words)
    assert (ran.returncode, ran.stdout) == (code, b"")
    assert expected in ran.stderr.decode()


# listen


class Listening:
    """`callboard listen`, once it listens."""

    def __init__(self, folder: Path, environ: dict[str, str], *words: str) -> None:
        self.process = subprocess.Popen(
            [*CALLBOARD, "listen", *words],
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.out, self.err = self.process.stdout, self.process.stderr
        self.greeting = self.err.readline().decode()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        self.out.close()
        self.err.close()

    def end(self, number: int | None = None) -> tuple[int, str, str]:
        """Exit code and what else was printed; a signal may ask for the end."""
        if number is not None:
            os.killpg(self.process.pid, number)
        out, err = self.process.communicate(timeout=LIMIT)
        return self.process.returncode, out.decode(), err.decode()


@pytest.fixture
def listen(folder: Path, environ: dict[str, str]) -> Callable[..., Listening]:
    return lambda *words: Listening(folder, environ, *words)


Listen = Callable[..., Listening]


def test_changes_are_told_line_by_line(listen: Listen, callboard: Callboard, url: str) -> None:
    """SB-05, SB-10: and Ctrl-C is the ordinary end."""
    with listen(url, "--uri", "note://one") as heard:
        assert heard.greeting == "Listening for changes: tools, prompts, resources, note://one. Ctrl-C ends it.\n"
        assert callboard("call", url, "touch", "uri=note://two").returncode == 0
        assert callboard("call", url, "touch", "uri=note://one").returncode == 0
        assert heard.out.readline() == b"updated\tnote://one\n"
        assert callboard("call", url, "grow").returncode == 0
        assert heard.out.readline() == b"changed\ttools\n"
        assert heard.end(signal.SIGINT) == (0, "", "")


def test_so_many_changes_as_json(listen: Listen, callboard: Callboard, url: str) -> None:
    with listen(url, "--uri", "note://one", "--uri", "note://empty", "--count", "2", "--json") as heard:
        for uri in ("note://one", "note://empty"):
            assert callboard("call", url, "touch", f"uri={uri}").returncode == 0
        code, out, err = heard.end()
        assert (code, err) == (0, "")
        told = [json.loads(line) for line in out.splitlines()]
        assert {change["method"] for change in told} == {"notifications/resources/updated"}
        assert [change["params"]["uri"] for change in told] == ["note://one", "note://empty"]


def test_ctrl_c_on_a_terminal_ends_listening_to_a_program(terminal: Callable[..., Terminal]) -> None:
    on = terminal("listen", "board.py")
    on.until("Ctrl-C ends it.\r\n")
    on.ctrl_c()
    assert on.end() == 0
    assert on.shown == "Listening for changes: tools, prompts, resources. Ctrl-C ends it.\r\n^C"


def test_a_server_that_tells_of_no_changes(callboard: Callboard, folder: Path) -> None:
    (folder / "bare.py").write_text(BARE)
    target = f"{sys.executable} bare.py"
    ran = callboard("listen", target)
    assert (ran.returncode, ran.stdout) == (2, b"")
    assert ran.stderr == b"Error: The server tells of no changes of its lists; --uri asks for those of a resource.\n"
    ran = callboard("listen", target, "--uri", "note://one")
    assert (ran.returncode, ran.stdout) == (1, b"")
    assert b"Error: " in ran.stderr


BARE = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("method") == "initialize":
        info = {"name": "bare", "version": "1"}
        answer = {"result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}, "resources": {}}, "serverInfo": info}}
    elif message.get("method") == "tools/list":
        answer = {"result": {"tools": [{"name": "a\\tb\\nc", "description": "d\\te", "inputSchema": {"type": "object"}}]}}
    elif message.get("method") == "resources/list":
        answer = {"result": {"resources": []}}
    elif message.get("method") == "resources/templates/list":
        answer = {"result": {"resourceTemplates": []}}
    elif message.get("method") == "resources/read":
        answer = {"result": {"contents": [{"uri": "a://b", "blob": "A"}]}}
    elif message.get("method") == "tools/call":
        answer = {"result": {"content": [], "isError": True}}
    else:
        answer = {"error": {"code": -32601, "message": "no such method"}}
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)
"""


def test_a_bare_server_of_somebody_else_s(callboard: Callboard, folder: Path) -> None:
    (folder / "bare.py").write_text(BARE)
    target = f"{sys.executable} bare.py"
    ran = callboard("list", target)
    assert (ran.returncode, ran.stdout.decode()) == (0, "tools\ta\ufffdb\ufffdc\td\te\n")  # one line, three columns, whatever it is called
    ran = callboard("read", target, "a://b")
    assert (ran.returncode, ran.stderr) == (1, b"Error: The server's blob of a://b is no base64; --json shows it as it is.\n")
    ran = callboard("prompt", target, "p")
    assert (ran.returncode, ran.stderr) == (2, b"Error: The server has no prompt 'p'; it has none\n")
    ran = callboard("call", target, "a\tb\nc")
    assert (ran.returncode, ran.stderr) == (1, b"Error: the tool failed, and does not say why\n")
    assert json.loads(callboard("list", target, "--json").stdout)["resources"] == []


def test_a_broken_stream_is_opened_anew_and_told_of(listen: Listen, folder: Path) -> None:
    """SB-10: what was missed counts as changed."""
    port = free_port()
    with server(folder, "new", port) as (started, url), listen(url, "--count", "3") as heard:
        started.kill()
        assert b"is opened anew" in heard.err.readline()
        with served(folder, "new", port):
            code, out, _ = heard.end()
        assert (code, sorted(out.splitlines())) == (0, ["changed\tprompts", "changed\tresources", "changed\ttools"])


def test_a_server_that_ends_the_stream_at_once(listen: Listen, folder: Path) -> None:
    """SB-09: whoever counts on more changes must know."""
    with served(folder, "new") as url:
        heard = listen(url)
    with heard:
        assert heard.end() == (1, "", "Error: The server has ended the stream of changes.\n")


def test_a_reader_that_has_seen_enough(folder: Path, environ: dict[str, str], listen: Listen, callboard: Callboard, url: str) -> None:
    for words in (("call", url, "many", "lines=200000"), ("call", url, "many", "lines=200000", "--json"), ("list", url)):
        ran = subprocess.Popen([*CALLBOARD, *words], cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert ran.stdout is not None
        assert ran.stderr is not None
        with ran.stdout, ran.stderr:
            ran.stdout.read(1)
            ran.stdout.close()
            assert ran.wait(LIMIT) in {0, 1}
            assert ran.stderr.read() == b""
    with listen(url, "--uri", "note://one") as heard:
        heard.out.close()
        assert callboard("call", url, "touch", "uri=note://one").returncode == 0
        assert heard.process.wait(LIMIT) in {0, 1}
        assert heard.err.read() == b""


# call, and servers in trouble


def test_a_task_is_waited_for(callboard: Callboard, url: str) -> None:
    """TX-01."""
    ran = callboard("call", url, "slow")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"slow and done\n", b"")
    assert callboard("call", url, "nothing").stdout == b""


def test_a_server_that_goes_away_in_a_call(callboard: Callboard, folder: Path) -> None:
    ran = callboard("call", "board.py", "leave")
    assert (ran.returncode, ran.stdout) == (1, b"")
    assert b"Error: tools/call 'leave' at board.py: the server process ended with exit code 7" in ran.stderr
    with served(folder, "new") as url:
        ran = callboard("call", url, "leave")
    assert (ran.returncode, ran.stdout) == (1, b"")
    assert ran.stderr.startswith(f"Error: tools/call 'leave' at {url}: ".encode())


@pytest.mark.parametrize("words", [("list",), ("read", "note://one"), ("prompt", "pack"), ("call", "many"), ("listen",)])
def test_a_server_that_never_answers(callboard: Callboard, words: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/mcp"
        waited: list[float] = []
        threading.Thread(target=stay_silent, args=(silent, waited), daemon=True).start()
        ran = callboard(words[0], url, *words[1:], "--timeout", "0.3")
        silent.shutdown(socket.SHUT_RDWR)
    assert (ran.returncode, ran.stdout) == (1, b"")
    assert b"within 0.3 s" in ran.stderr
    assert waited
    assert sum(waited) < LIMIT / 2


@pytest.mark.parametrize("words", [("list",), ("read", "note://one"), ("prompt", "pack"), ("call", "many"), ("listen",)])
def test_a_server_that_wants_a_login(callboard: Callboard, words: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as refusing:
        url = f"http://127.0.0.1:{refusing.getsockname()[1]}/mcp"
        threading.Thread(target=refuse, args=(refusing,), daemon=True).start()
        ran = callboard(words[0], url, *words[1:])
        assert (ran.returncode, ran.stdout) == (1, b"")
        assert ran.stderr.decode().endswith(f"\nTo log in: callboard login {url}\n")
        if words[0] == "list":  # what is in a query may be a secret
            assert callboard("list", f"{url}?key=s3cret").stderr.decode().endswith(f"\nTo log in: callboard login '{url}?key=***'\n")
        refusing.shutdown(socket.SHUT_RDWR)


def refuse(server: socket.socket) -> None:
    """Answers 401 to everybody, until the socket is shut down."""
    while True:
        try:
            connection = server.accept()[0]
        except OSError:
            return
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


# what comes in and goes out


def test_an_encoding_that_lacks_a_letter_gets_an_escape(callboard: Callboard) -> None:
    ran = callboard("prompt", "board.py", "pack", "city=\u20ac \u00e9", PYTHONIOENCODING="latin-1")
    assert (ran.returncode, ran.stdout) == (0, b"user: Pack for \\u20ac \xe9, 3 days\x1b[31m\n")
    ran = callboard("prompt", "board.py", "p\u20ac", PYTHONIOENCODING="latin-1")
    assert (ran.returncode, ran.stderr) == (2, b"Error: The server has no prompt 'p\\u20ac'; it has pack\n")


@pytest.mark.parametrize("words", [("list", "board.py"), ("read", "board.py", "note://one"), ("call", "board.py", "many", "--json")])
def test_output_that_can_t_be_written_is_a_sentence(folder: Path, environ: dict[str, str], words: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        ran = subprocess.run([*CALLBOARD, *words], cwd=folder, env=environ, stdout=full, stderr=subprocess.PIPE, timeout=LIMIT, check=False)
    assert (ran.returncode, ran.stderr) == (1, b"Error: the output can't be written: No space left on device.\n")
    launch = "import os, sys; os.close(1); os.close(2); os.execv(sys.argv[1], sys.argv[1:])"
    closed = [sys.executable, "-c", launch, *CALLBOARD, *words]
    assert subprocess.run(closed, cwd=folder, env=environ, timeout=LIMIT, check=False).returncode == 0


def test_bytes_that_are_no_text_are_refused(callboard: Callboard) -> None:
    for words in (
        (b"prompt", b"board.py", b"pack", b"city=\xff"),
        (b"read", b"board.py", b"\xff"),
        (b"call", b"board.py", b"touch", b"uri=\xff"),
    ):
        ran = callboard(*words)
        assert (ran.returncode, ran.stdout) == (1, b"")
        assert b"can't be written as JSON" in ran.stderr


# several servers


def configure(folder: Path, **servers: Any) -> str:
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    return "mcp.json"


def test_several_servers_with_their_prefixes(callboard: Callboard, folder: Path, url: str) -> None:
    target = configure(
        folder,
        far={"url": url},
        near={"command": sys.executable, "args": ["board.py"], "cwd": str(folder), "versions": ["2025-06-18"]},
    )
    listed = callboard("list", target)
    assert (listed.returncode, listed.stderr.count(b"Warning: Server")) == (0, 0)
    lines = listed.stdout.decode().splitlines()
    assert {"tools\tfar_many\t", "tools\tnear_many\t", "prompts\tfar_pack\tPack.", "prompts\tnear_pack\tPack."} <= set(lines)
    assert callboard("call", target, "near_many").stdout == b"line\n\n"
    assert callboard("read", target, "note://by/ada").stdout == b"ada"
    assert callboard("prompt", target, "far_pack", "city=Oslo").stdout.startswith(b"user: Pack for Oslo")
    ran = callboard("call", target, "many")
    assert (ran.returncode, b"did you mean" in ran.stderr) == (2, True)


def test_one_server_of_several_that_fails_is_named(callboard: Callboard, folder: Path) -> None:
    target = configure(
        folder,
        broken={"command": "no-such-program"},
        near={"command": sys.executable, "args": ["board.py"], "cwd": str(folder), "versions": ["2025-06-18"]},
    )
    ran = callboard("list", target)
    assert (ran.returncode, b"tools\tnear_many\t\n" in ran.stdout) == (0, True)
    assert ran.stderr.count(b"Warning: Server 'broken' is left out: ") == 1
    ran = callboard("call", target, "broken_t")
    assert ran.returncode == 1
    assert b"Warning: Server 'broken' is left out: " in ran.stderr
    assert b"no tool 'broken_t'; " in ran.stderr
    assert b"(without broken, which can't be used)" in ran.stderr


def test_a_configuration_that_can_t_be_read(callboard: Callboard, folder: Path) -> None:
    (folder / "bad.json").write_text('{"mcpServers": {"a": {"url": "ftp://x", "headers": {"A": "${NO_SUCH}"}}}}')
    for target in ("bad.json", "none.json"):
        ran = callboard("list", target)
        assert (ran.returncode, ran.stdout) == (2, b"")
        assert target.encode() in ran.stderr

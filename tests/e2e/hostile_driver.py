"""Clients of both eras by hand, against `hostile_server.py`; and whether that process is as it was.

with stall(folder) as target:
    speaker = target.speaker("2025-11-25")
    answer = speaker.send(b"garbage")
"""

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

from asgi_driver import LATEST, make_headers, make_request
from e2e.raw_http import Response, Wire, ask, make_head
from e2e.serving import free_port, process, wait_until_listening

SERVER = Path(__file__).with_name("hostile_server.py")
V03, V06, V11 = "2025-03-26", "2025-06-18", "2025-11-25"
ERAS = (LATEST, V11, V06, V03)
MIB = 1 << 20
BOUND = 10.0
# What a process may have grown by once it has seen everything twice: the allocator keeps what large bodies took.
GROWTH = 32 * MIB
ALLOWED = "application/json, text/event-stream"


class Speaker:
    """A client of one protocol version, with its session where it has one.

    Args:
        port: Where the server listens.
        version: The version.
        headers: Sent with every request.
        opens: Whether it opens a session, where its version has them.

    Attributes:
        version: The version.
        session: Id of its session; empty without one.
    """

    def __init__(self, port: int, version: str, headers: Mapping[str, str] | None = None, *, opens: bool = True) -> None:
        self.port = port
        self.version = version
        self.session = ""
        self._more = dict(headers or {})
        self._next = 0
        if opens and not self.is_modern:
            self._open()

    @property
    def is_modern(self) -> bool:
        """Whether it speaks the current protocol."""
        return self.version == LATEST

    def _open(self) -> None:
        hello = {"protocolVersion": self.version, "capabilities": {"elicitation": {}}, "clientInfo": {"name": "hostile", "version": "1"}}
        answer = self.send(self.encode("initialize", hello))
        assert answer.status == 200, answer.body
        assert answer.message["result"]["protocolVersion"] == self.version
        self.session = answer.headers["mcp-session-id"]
        note = json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}).encode()
        assert self.send(note).status == 202

    def close(self) -> None:
        """End the session."""
        if self.session:
            assert ask(self.port, make_head(None, self.headers(), verb="DELETE")).status in {204, 404}

    def headers(self, message: Mapping[str, Any] | None = None, **changed: Any) -> dict[str, str]:
        """Headers that belong to a message; `changed` as in `make_headers`."""
        host = f"127.0.0.1:{self.port}"
        if self.is_modern:
            return {**make_headers(message or make_request("tools/list"), host=host), **self._more, **_changes(changed)} | _drop(changed)
        found = {"host": host, "content-type": "application/json", "accept": ALLOWED, **self._more}
        if self.session:
            found["mcp-session-id"] = self.session
            if self.version != V03:
                found["mcp-protocol-version"] = self.version
        return {**found, **_changes(changed)} | _drop(changed)

    def encode(self, method: str, params: Mapping[str, Any] | None = None, *, request_id: Any = None) -> bytes:
        """A request."""
        return json.dumps(self.request(method, params, request_id=request_id)).encode()

    def request(
        self, method: str, params: Mapping[str, Any] | None = None, *, request_id: Any = None, meta: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """A request as a value; a fresh id where none is given."""
        self._next += 1
        number = self._next if request_id is None else request_id
        if self.is_modern:
            return make_request(method, params, request_id=number, meta=meta)
        more = {"_meta": dict(meta)} if meta else {}
        return {"jsonrpc": "2.0", "id": number, "method": method, "params": {**(params or {}), **more}}

    def raw(self, body: bytes, message: Mapping[str, Any] | None = None, *, verb: str = "POST", **changed: Any) -> bytes:
        """A whole HTTP request with any body, under headers that belong to a message (the list of tools by default)."""
        headers = {key: value for key, value in self.headers(message, **changed).items() if value}
        return make_head(None if verb != "POST" else len(body), headers, verb=verb) + body

    def send(self, body: bytes, message: Mapping[str, Any] | None = None, *, verb: str = "POST", **changed: Any) -> Response:
        """Send it over a connection of its own."""
        return ask(self.port, self.raw(body, message, verb=verb, **changed))

    def post(self, method: str, params: Mapping[str, Any] | None = None, *, request_id: Any = None, **changed: Any) -> Response:
        """Send a request."""
        message = self.request(method, params, request_id=request_id)
        return self.send(json.dumps(message).encode(), message, **changed)

    def call(self, tool: str, arguments: Mapping[str, Any] | None = None, **changed: Any) -> Response:
        """Call a tool."""
        return self.post("tools/call", {"name": tool, "arguments": dict(arguments or {})}, **changed)

    def raw_call(self, tool: str, arguments: Mapping[str, Any] | None = None, *, request_id: Any = None, **more: Any) -> bytes:
        """A whole call, to be sent by hand; `meta` goes into the request."""
        params = {"name": tool, "arguments": dict(arguments or {})}
        message = self.request("tools/call", params, request_id=request_id, meta=more.pop("meta", None))
        return self.raw(json.dumps(message).encode(), message, **more)

    def serves(self) -> None:
        """Demand that the next call is served."""
        answer = self.call("quick")
        assert answer.status == 200, answer.body
        assert answer.message["result"]["content"][0]["text"] == "quick"

    def expect(self, answer: Response, status: int, code: int, *, legacy: tuple[int, int] | None = None) -> dict[str, Any]:
        """Demand an error; `legacy` is (status, code) for clients of 2025 where it differs."""
        wanted = (status, code) if self.is_modern or legacy is None else legacy
        assert (answer.status, answer.message["error"]["code"]) == wanted, answer.body
        found: dict[str, Any] = answer.message
        return found

    def has_no_id(self, message: Mapping[str, Any]) -> bool:
        """Whether an error tells nobody's id, as each version has it: JSON-RPC's null until 2025-06-18."""
        return message.get("id", "absent") is None if self.version in {V06, V03} else "id" not in message


def _changes(changed: Mapping[str, Any]) -> dict[str, str]:
    return {key.replace("_", "-"): value for key, value in changed.items() if value is not None}


def _drop(changed: Mapping[str, Any]) -> dict[str, str]:
    return {key.replace("_", "-"): "" for key, value in changed.items() if value is None}


class Target:
    """A server that runs.

    Attributes:
        port: Where it listens.
        started: Its process.
        log: What it has printed.
        is_over: Whether a test has ended it.
    """

    is_over = False

    def __init__(self, port: int, started: "Popen[bytes]", log: Path) -> None:
        self.port = port
        self.started = started
        self.log = log
        self._speakers: dict[str, Speaker] = {}
        self._before: dict[str, Any] = {}

    def speaker(self, version: str) -> Speaker:
        """The client of a version that all tests of a module share."""
        if version not in self._speakers:
            self._speakers[version] = Speaker(self.port, version)
        return self._speakers[version]

    def wire(self) -> Wire:
        """A connection."""
        return Wire(self.port)

    def health(self, **headers: str) -> dict[str, Any]:
        """What goes on in the process."""
        found: dict[str, Any] = Speaker(self.port, LATEST, headers).call("health").structured
        return found

    def runs(self) -> list[str]:
        """Names of what has run so far."""
        found: list[str] = Speaker(self.port, LATEST).call("ran").structured
        return found

    @contextmanager
    def unharmed(self, version: str) -> Iterator[Speaker]:
        """The client of a version, whatever it sends: demands afterwards that nothing has run, and that its next call is served."""
        speaker = self.speaker(version)
        before = self.runs()
        yield speaker
        assert self.runs() == before, "something ran"
        speaker.serves()

    def settle(self, ready: Any, seconds: float = BOUND) -> dict[str, Any]:
        """Wait until something is true of the process."""
        deadline = time.monotonic() + seconds
        while not ready(found := self.health()):
            assert time.monotonic() < deadline, found
        return found

    def remember(self) -> None:
        """Take the process as it is for what it should be."""
        self._before = self.health()

    def check(self, *, growth: int = GROWTH) -> None:
        """Demand that nothing is left of what was done to the process.

        Raises:
            AssertionError: It has more tasks, descriptors or listeners than before, or has grown.
        """
        for speaker in self._speakers.values():
            speaker.close()
        self._speakers.clear()
        before = self._before
        found = self.settle(
            lambda now: (
                now["tasks"] <= before["tasks"] and now["descriptors"] <= before["descriptors"] and now["listeners"] <= before["listeners"]
            )
        )
        assert found["resident"] - before["resident"] < growth, (before, found)
        assert self.started.poll() is None


@contextmanager
def stall(
    folder: Path, *, plain: bool = False, quiet: bool = True, watched: bool = True, growth: int = GROWTH, **options: Any
) -> Iterator[Target]:
    """Runs the server, and demands that it is as it was when the block is left.

    Args:
        folder: For its log.
        plain: Whether it runs under stock uvicorn.
        quiet: Whether it may print nothing but events of security, one on a line.
        watched: Whether its health is asked for before and after, which takes calls that everybody may make.
        growth: Bytes that it may grow by.
        **options: As `hostile_server.py` takes them.
    """
    port, log = free_port(), folder / "log"
    words = [sys.executable, str(SERVER), str(port), *(["uvicorn"] if plain else []), json.dumps(options)]
    with process(words, log) as started:
        wait_until_listening(started, port, log)
        target = Target(port, started, log)
        if watched:
            for version in ERAS:
                target.speaker(version).serves()
                target.speaker(version).call("sync_echo", {"text": "warm"})
            target.remember()
        yield target
        if watched and not target.is_over:
            target.check(growth=growth)
    check_log(log.read_bytes(), quiet=quiet)


def check_log(printed: bytes, *, quiet: bool) -> None:
    """Demand that nobody wrote into a log what a terminal or a reader of lines would obey; and no more than events, where it is quiet."""
    lines = printed.decode("ascii").splitlines()
    assert all(line.isprintable() for line in lines), lines
    assert not quiet or all(" event=" in line for line in lines), lines


def stream_messages(answer: Response) -> list[dict[str, Any]]:
    """The messages of an event stream, whatever else is on it."""
    return [json.loads(line[6:]) for line in answer.body.split(b"\n") if line.startswith(b"data: {")]

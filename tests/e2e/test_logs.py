"""What a process writes while secrets pass through it: JSON or text, a line for each request, and none of the secrets. AR-10, LG-06."""

import asyncio
import base64
import http.client
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from e2e.serving import free_port, process, wait_until_listening
from log_lines import check_json, check_text

PROGRAM = '''
import asyncio
import logging

from callboard import Context, Server, asgi
from callboard.auth import ApiKeys, BearerTokens
from callboard.types import Secret

logging.getLogger().setLevel(1)
server = Server("secretive", keys=["5eal-0f-the-server-5eal-0f-the-server"])


@server.tool
async def store(name: str, value: Secret[str], ctx: Context, password: str = "") -> str:
    """Keep something."""
    logging.getLogger("mine").info("stored %s", name)
    return f"{name} {ctx!r} {ctx.request!r} {ctx.request.params!r} {ctx.headers!r} {ctx.mount!r} {ctx.server!r} {ctx.exchange!r}"


@server.tool
async def ask(ctx: Context, text: str = "") -> str:
    """Ask."""
    return (await ctx.elicit("Name?", str)).value


@server.tool
async def crash(value: Secret[str]) -> str:
    """Fail."""
    raise ValueError("it failed")


app = asgi(server, auth=[BearerTokens({"t0ken-of-ada-that-is-long-enough": "ada@example.com"}), ApiKeys({"k3y-of-eve-that-is-long-enough": "eve"})])
'''
TOKEN, API_KEY = "t0ken-of-ada-that-is-long-enough", "k3y-of-eve-that-is-long-enough"
BAD_TOKEN, QUERY_TOKEN = "bad-t0ken-of-mallory-123456", "qu3ry-t0ken-of-mallory-123456"
VALUE, PASSWORD = "v4lue-that-is-marked", "p4ssword-by-its-name"
MODERN, LEGACY = "2026-07-28", "2025-11-25"


class Caller:
    """Sends requests to a process, and keeps everything that it answers.

    Attributes:
        bodies: Heads and bodies of all answers.
        secrets: What must stand in no log; grows as the server gives more.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.bodies: list[str] = []
        self.secrets = {TOKEN, API_KEY, BAD_TOKEN, QUERY_TOKEN, VALUE, PASSWORD, "5eal-0f-the-server"}

    def send(self, message: Any, headers: Mapping[str, str], *, path: str = "/mcp", verb: str = "POST") -> tuple[int, dict[str, str], Any]:
        """Send one message; its status, headers and JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            common = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
            connection.request(verb, path, None if message is None else json.dumps(message), {**common, **headers})
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        found = {name.lower(): value for name, value in response.getheaders()}
        self.bodies.append(f"{found} {text}")
        data = next((line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")), text)
        return response.status, found, json.loads(data) if data.startswith("{") else None

    def call(self, tool: str, arguments: Any, credential: Mapping[str, str], **more: Any) -> tuple[int, dict[str, str], Any]:
        """Call a tool on the current protocol."""
        capabilities: dict[str, Any] = {"elicitation": {"form": {}}}
        meta = {"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": capabilities}
        params = {"name": tool, "arguments": arguments, "_meta": meta, **more}
        head = {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": tool}
        return self.send({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}, {**head, **credential})

    def call_in_session(self, session: str, tool: str, arguments: Any, credential: Mapping[str, str]) -> tuple[int, dict[str, str], Any]:
        """Call a tool in a session."""
        message = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
        return self.send(message, {"mcp-session-id": session, "mcp-protocol-version": LEGACY, **credential})


@contextmanager
def running(tmp_path: Path, *options: str) -> Iterator[tuple[Caller, Path]]:
    """The program under `callboard run`."""
    program, log, port = tmp_path / "secretive.py", tmp_path / "log.txt", free_port()
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "callboard", "run", str(program), "--port", str(port), *options]
    with process(command, log, cwd=tmp_path) as started:
        wait_until_listening(started, port, log)
        yield Caller(port), log


def pass_secrets(caller: Caller) -> None:
    """A day in the life: good and bad credentials, both eras, a question with its state, a crash, a session of somebody else."""
    bearer, key = {"authorization": f"Bearer {TOKEN}"}, {"x-api-key": API_KEY}
    arguments = {"name": "n", "value": VALUE, "password": PASSWORD}
    for credential in (bearer, key):
        status, _, answer = caller.call("store", arguments, credential)
        assert (status, answer["result"].get("isError")) == (200, None), answer
    assert caller.call("store", arguments, {"authorization": f"Bearer {BAD_TOKEN}"})[0] == 401
    assert caller.call("store", arguments, {"authorization": f"Basic {base64.b64encode(BAD_TOKEN.encode()).decode()}"})[0] == 401
    assert caller.send({}, {}, path=f"/mcp?access_token={QUERY_TOKEN}")[0] == 401
    caller.call("store", {"name": 1, "value": [VALUE], "password": {"a": PASSWORD}, "other": PASSWORD}, bearer)
    caller.call("crash", {"value": VALUE}, bearer)
    state = caller.call("ask", {}, bearer)[2]["result"]["requestState"]
    caller.secrets.add(state)
    caller.call("ask", {}, bearer, requestState=state + "x", inputResponses={})
    caller.call("ask", {}, key, requestState=state, inputResponses={})
    opening = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
    opened = caller.send({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": opening}, bearer)
    session = opened[1]["mcp-session-id"]
    caller.secrets.add(session)
    assert caller.call_in_session(session, "store", arguments, bearer)[0] == 200
    assert caller.call_in_session(session, "crash", {"value": VALUE}, bearer)[0] == 200
    assert caller.call_in_session(session, "store", arguments, key)[0] == 404
    assert caller.send(None, {"mcp-session-id": session, **key}, verb="DELETE")[0] == 404
    assert caller.send(None, {"mcp-session-id": session, **bearer}, verb="DELETE")[0] == 204


@pytest.mark.parametrize(("form", "level"), [("json", "debug"), ("text", "debug"), (None, "debug"), ("json", "info")])
def test_no_secret_is_written_or_told(tmp_path: Path, form: str | None, level: str) -> None:
    # AR-10, LG-06, SA23, SA29, SA35
    options = ["--log-level", level, *(["--log-format", form] if form else [])]
    with running(tmp_path, *options) as (caller, log):
        pass_secrets(caller)
    written = log.read_text()
    for secret in caller.secrets:
        for known in (secret, base64.b64encode(secret.encode()).decode().rstrip("=")):
            assert known not in written, known
    given = {secret for secret in caller.secrets if "-" in secret and secret in {TOKEN, API_KEY, BAD_TOKEN, QUERY_TOKEN, VALUE, PASSWORD}}
    for body in caller.bodies:
        assert not [secret for secret in given if secret in body], body
    assert "ada@example.com" not in written
    lines = [line for line in written.splitlines() if "callboard.requests" in line]
    assert bool(lines) == (form is not None)


def test_json_is_json_from_the_first_line_to_the_last(tmp_path: Path) -> None:
    with running(tmp_path, "--log-format", "json", "--log-level", "debug") as (caller, log):
        pass_secrets(caller)
        caller.send({}, {"host": "evil.example"})
    found = [check_json(line) for line in log.read_text().splitlines()]
    assert {"uvicorn.error", "callboard.requests", "callboard.security", "callboard", "mine"} <= {line["logger"] for line in found}
    requests = [line for line in found if line["logger"] == "callboard.requests"]
    assert {line["outcome"] for line in requests} >= {"ok", "error", "input required", "tool error"}
    assert {line["event"] for line in found if line["logger"] == "callboard.security"} >= {"auth", "session", "state", "host"}
    stored = [line for line in requests if line.get("tool") == "store" and line["outcome"] == "ok"]
    assert len({line["principal"] for line in stored}) == 2
    assert all(line["arguments"] == {"name": "n", "value": "***", "password": "***"} for line in stored)
    assert [line["request"] for line in found if line["logger"] == "mine"] == [line["request"] for line in stored]


def test_text_is_lines_of_records_and_of_tracebacks(tmp_path: Path) -> None:
    with running(tmp_path, "--log-format", "text") as (caller, log):
        pass_secrets(caller)
    records: list[list[str]] = []
    for line in log.read_text().splitlines():
        if line.startswith("    | "):
            records[-1].append(line)
        else:
            records.append([line])
    for record in records:
        check_text("\n".join(record))
    assert any("ValueError: it failed" in line for record in records for line in record)


def test_a_flood_of_refusals_fills_no_disk(tmp_path: Path) -> None:
    with running(tmp_path) as (caller, log):
        for _ in range(300):
            assert caller.call("store", {}, {"authorization": f"Bearer {BAD_TOKEN}"})[0] == 401
    assert log.read_text().count("its credential is no good") == 20


async def test_a_pipe_logs_to_stderr_alone(tmp_path: Path) -> None:
    program = tmp_path / "secretive.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "callboard", "run", str(program), "--stdio", "--log-format", "json", "--log-level", "debug"]
    started = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    opening = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "c\n\x1b[1m", "version": "1"}}
    call = {"name": "store", "arguments": {"name": "n", "value": VALUE, "password": PASSWORD}}
    messages: list[dict[str, Any]] = [
        {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": opening},
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call},
        {"jsonrpc": "2.0", "id": 2, "method": "x\n2026-01-01T00:00:00.000Z forged", "params": {}},
    ]
    said, written = await asyncio.wait_for(started.communicate("".join(json.dumps(each) + "\n" for each in messages).encode()), 30)
    assert {json.loads(line)["id"] for line in said.splitlines()} == {0, 1, 2}
    found = [check_json(line) for line in written.decode().splitlines()]
    requests = [line for line in found if line["logger"] == "callboard.requests"]
    assert len(requests) == 3
    assert {line["transport"] for line in requests} == {"pipe"}
    assert VALUE not in written.decode()
    assert PASSWORD not in written.decode()

"""The service and the image of examples/deploy, run as systemd and Docker would: start, readiness, reload, kill, stop, exit codes.

There is no systemd and no Docker in the tests. `Service` does with the settings of the unit file what systemd.service(5) says of them.
"""

import asyncio
import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from e2e.proxies import DEPLOY, LEGACY, NAME, call, replaced
from e2e.serving import free_port, spawn
from redis_server import RedisServer, require_program

TOKENS = [f"a-token-that-nobody-guesses-{number}" for number in range(20)]  # each has a rate
READY = 30.0  # seconds until it must serve


def settings() -> dict[str, str]:
    """Settings of the unit, without sections; each of those that are used here is there once."""
    lines = (line.partition("=") for line in (DEPLOY / "callboard.service").read_text(encoding="utf-8").splitlines())
    return {name: value for name, equals, value in lines if equals and not name.startswith("#")}


class Service:
    """The unit, run in a folder.

    Args:
        folder: Stands in for /srv/notes and /run/callboard.
        environment: What /etc/callboard/env would hold.
        changes: Of its command.

    Attributes:
        main: The main process.
        socket: Where it listens.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str], changes: Mapping[str, str] | None = None) -> None:
        self._unit = settings()
        self.socket = folder / "http.sock"
        self._folder = folder
        callboard = f"{sys.executable} -m callboard"
        here = {"/srv/notes/.venv/bin/callboard": callboard, "/run/callboard/http.sock": str(self.socket), **(changes or {})}
        self._command = shlex.split(replaced(self._unit["ExecStart"], here))
        given = dict(pair.split("=", 1) for pair in shlex.split(self._unit["Environment"]))
        self._environment = {**os.environ, **given, "CREDENTIALS_DIRECTORY": str(folder), **environment}
        self.main: subprocess.Popen[bytes]
        shutil.copy(DEPLOY / "app.py", folder)
        lines = (f"{hashlib.sha256(token.encode()).hexdigest()} caller-{number}\n" for number, token in enumerate(TOKENS))
        (folder / "tokens").write_text("".join(lines), encoding="utf-8")

    def start(self) -> None:
        """Runs ExecStart."""
        with (self._folder / "journal").open("ab") as journal:
            self.main = spawn(
                self._command,
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=journal,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def reload(self) -> None:
        """Runs ExecReload."""
        words = shlex.split(self._unit["ExecReload"].replace("$MAINPID", str(self.main.pid)))
        subprocess.run(words, check=True)

    def stop(self) -> int:
        """KillMode=mixed: KillSignal to the main process, and SIGKILL to all that is left after TimeoutStopSec; the exit code."""
        self.main.send_signal(signal.Signals[self._unit["KillSignal"]])
        try:
            return self.main.wait(float(self._unit["TimeoutStopSec"]))
        finally:
            self.kill_rest()

    def kill_rest(self) -> None:
        """What systemd does with what the main process leaves behind."""
        for pid in self.members():
            os.kill(pid, signal.SIGKILL)

    def members(self) -> list[int]:
        """Processes of the unit: those that are of the main process's session, or have its socket in their command line."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if str(self.socket).encode() in words and int(folder.name) != os.getpid():
                found.append(int(folder.name))
        return sorted(found)

    def begins_again(self, code: int) -> bool:
        """Whether systemd starts it again: Restart=on-failure, but for RestartPreventExitStatus."""
        assert self._unit["Restart"] == "on-failure"
        clean = {0, *(-getattr(signal, name) for name in ("SIGHUP", "SIGINT", "SIGTERM", "SIGPIPE"))}
        return code not in clean and str(code) not in self._unit["RestartPreventExitStatus"].split()

    def journal(self) -> str:
        """What it printed."""
        return (self._folder / "journal").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    require_program()
    redis = RedisServer()
    try:
        yield f"redis://127.0.0.1:{redis.port}/0"
    finally:
        redis.close()


@pytest.fixture
def service(store: str, tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path, {"CALLBOARD_STORE": store})
    made.start()
    try:
        yield made
    finally:
        made.kill_rest()
        made.main.wait(10)


@asynccontextmanager
async def client(service: Service) -> AsyncIterator[aiohttp.ClientSession]:
    """Connections to its socket, as nginx has them."""
    connector = aiohttp.UnixConnector(str(service.socket), force_close=True)
    async with aiohttp.ClientSession(f"http://{NAME}", connector=connector, headers={"authorization": f"Bearer {TOKENS[0]}"}) as session:
        yield session


async def ready(service: Service) -> None:
    """Returns once `/readyz` says so."""
    deadline = time.monotonic() + READY
    async with client(service) as session:
        while time.monotonic() < deadline:
            try:
                async with session.get("/readyz") as response:
                    if response.status == 200:
                        return
            except OSError:
                assert service.main.poll() is None, service.journal()
            await asyncio.sleep(0.1)
    raise AssertionError(f"it does not get ready:\n{service.journal()}")


async def note(session: aiohttp.ClientSession, sid: str) -> int:
    """How many lines a session of 2025 has written down, with one more."""
    message = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "note", "arguments": {"line": "x"}}}
    async with session.post("/mcp", json=message, headers=in_session(sid)) as response:
        assert response.status == 200, await response.text()
        return int((await response.json())["result"]["content"][0]["text"])


def in_session(sid: str) -> dict[str, str]:
    """Headers of a request of 2025."""
    return {"accept": "application/json, text/event-stream", "mcp-protocol-version": LEGACY, **({"mcp-session-id": sid} if sid else {})}


async def begin(session: aiohttp.ClientSession) -> str:
    """Opens a session; its id."""
    params = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "visitor", "version": "1"}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    async with session.post("/mcp", json=message, headers=in_session("")) as response:
        assert response.status == 200, await response.text()
        assert "mcp-session-id" in response.headers, await response.text()
        return response.headers["mcp-session-id"]


async def ask(session: aiohttp.ClientSession, number: int) -> int:
    """The status of a call of the current protocol, on a connection of its own."""
    headers, body = call("count", to=0)
    headers["authorization"] = f"Bearer {TOKENS[number % len(TOKENS)]}"
    async with session.post("/mcp", data=body, headers=headers) as response:
        await response.read()
        return response.status


async def test_a_reload_replaces_the_workers_and_refuses_nobody(service: Service) -> None:
    """ExecReload; the main process stays, and so do sessions, which are in the store."""
    await ready(service)
    before = service.members()
    async with asyncio.timeout(2 * READY), client(service) as session:
        sid = await begin(session)
        assert await note(session, sid) == 1
        service.reload()
        statuses: list[int] = []
        while set(service.members()) & set(before) != {service.main.pid}:
            statuses.append(await ask(session, 1 + len(statuses)))
            await asyncio.sleep(0.05)
        assert set(statuses) == {200}
        assert await note(session, sid) == 2
    assert service.main.poll() is None
    assert service.stop() == 0
    assert not service.begins_again(0)
    assert not service.members(), "nothing is left behind"


async def test_what_is_killed_begins_again_and_sessions_go_on(service: Service) -> None:
    """Restart=on-failure; what the dead one has left on the disk, its socket, is no hindrance."""
    await ready(service)
    async with client(service) as session:
        sid = await begin(session)
        assert await note(session, sid) == 1
    service.main.kill()
    code = service.main.wait(10)
    service.kill_rest()
    assert service.begins_again(code)
    service.start()
    await ready(service)
    async with client(service) as session:
        assert await note(session, sid) == 2
    assert service.stop() == 0


@pytest.mark.parametrize(
    ("environment", "changes", "says"),
    [
        ({"CALLBOARD_STORE": ""}, {}, "store"),
        ({}, {"app.py": "no_such_app.py"}, "no_such_app.py"),
    ],
)
def test_what_can_not_work_is_not_tried_again(tmp_path: Path, environment: dict[str, str], changes: dict[str, str], says: str) -> None:
    """Exit code 2, and a sentence in the journal."""
    service = Service(tmp_path, {"CALLBOARD_STORE": "redis://127.0.0.1:1/0", **environment}, changes)
    service.start()
    code = service.main.wait(READY)
    assert (code, service.begins_again(code)) == (2, False)
    assert says in service.journal()
    assert "Traceback" not in service.journal()


def test_the_image_serves_gets_healthy_and_stops(store: str, tmp_path: Path) -> None:
    """Its command, with what compose sets; the health check is the image's own."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    said: dict[str, Any] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        said[name] = json.loads(rest.partition("CMD ")[2] or rest) if name in {"ENTRYPOINT", "CMD", "HEALTHCHECK"} else rest
    port, health = free_port(), free_port()
    ports = {"8000": str(port), "9000": str(health), "0.0.0.0": "127.0.0.1"}
    command: list[str] = [*said["ENTRYPOINT"][1:], *said["CMD"]]
    words = [ports.get(word, word) for word in command]
    check: list[str] = [sys.executable, "-c", said["HEALTHCHECK"][2].replace("9000", str(health))]
    shutil.copy(DEPLOY / "app.py", tmp_path)
    (tmp_path / "tokens").write_text(f"{'0' * 64} nobody\n", encoding="utf-8")
    environment = {**os.environ, "CREDENTIALS": str(tmp_path), "CALLBOARD_STORE": store, "FORWARDED_ALLOW_IPS": "*"}
    with (tmp_path / "log").open("wb") as log:
        started = spawn([sys.executable, "-m", "callboard", *words], cwd=tmp_path, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + READY
            while subprocess.run(check, check=False, capture_output=True).returncode != 0:
                assert started.poll() is None, (tmp_path / "log").read_text(encoding="utf-8")
                assert time.monotonic() < deadline
            started.send_signal(signal.Signals[said["STOPSIGNAL"]])
            assert started.wait(READY) == 0
            assert subprocess.run(check, check=False, capture_output=True).returncode == 1
        finally:
            started.kill()
            started.wait(10)

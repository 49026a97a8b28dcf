"""A real Redis for tests: on a free port of the loopback, in a folder of its own, ended by its process id.

from redis_server import RedisServer, redis_server  # noqa: F401 - the fixture
"""

import asyncio
import atexit
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Self, TypeVar

import pytest

__all__ = ["PROGRAM", "Proxy", "RedisServer", "free_port", "needs_redis", "redis_server", "require_program", "share_server"]

T = TypeVar("T")
PROGRAM = shutil.which("redis-server") or shutil.which("valkey-server")
REQUIRED = os.environ.get("REQUIRE_PEERS") == "1"
LIMIT = 20.0  # seconds until it must answer
needs_redis = pytest.mark.skipif(PROGRAM is None and not REQUIRED, reason="There is no redis-server on PATH.")


def require_program() -> str:
    """The program; skips the test where there is none, or fails it where CI says that there must be."""
    if PROGRAM is None:
        (pytest.fail if REQUIRED else pytest.skip)("There is no redis-server on PATH.")
    return PROGRAM


def free_port() -> int:
    """A port that nobody listened on a moment ago; low enough for a cluster's node, which takes the one 10,000 above it as well."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port < 55_000:
            return port


class RedisServer:
    """One redis-server.

    Args:
        **options: Of its configuration, with `_` for `-`, such as `appendonly="yes"`, `appendfsync="always"`; `None` leaves one out.

    Attributes:
        port: Where it listens.
        folder: Its own.
        process: Of it; another one after a restart.
    """

    def __init__(self, **options: Any) -> None:
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="callboard-redis-"))
        self.sentinel = bool(options.pop("sentinel", False))
        self._password = options.get("requirepass")
        if self._password is not None:
            options["requirepass"] = f'"{self._password}"'
        settings = {"port": self.port, "bind": "127.0.0.1", "dir": self.folder, "save": '""', "daemonize": "no"}
        settings |= {
            "logfile": self.folder / "log",
            "loglevel": "notice",
            **{name.replace("_", "-"): value for name, value in options.items()},
        }
        self._file = self.folder / "redis.conf"
        self._file.write_text("".join(f"{name} {value}\n" for name, value in settings.items() if value is not None), encoding="utf-8")
        self._cli = ["-p", str(self.port)]
        if options.get("tls_port"):
            self._cli = ["-p", str(options["tls_port"]), "--tls", "--cacert", str(options["tls_ca_cert_file"])]
        self.process: subprocess.Popen[bytes]
        self.start()

    @property
    def url(self) -> str:
        """Its URL, without a password."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it and wait until it answers."""
        arguments = [require_program(), str(self._file), *(["--sentinel"] if self.sentinel else [])]
        self.process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + LIMIT
        while b"PONG" not in self.cli("PING"):
            if self.process.poll() is not None or time.monotonic() > until:
                said = (self.folder / "log").read_text(encoding="utf-8", errors="replace") if (self.folder / "log").exists() else ""
                self.kill()
                raise RuntimeError(f"redis-server does not answer: {said[-2000:]}")
            time.sleep(0.02)

    def cli(self, *command: str) -> bytes:
        """What redis-cli prints for a command."""
        environment = {**os.environ, **({"REDISCLI_AUTH": str(self._password)} if self._password else {})}
        program = shutil.which("redis-cli") or "valkey-cli"
        return subprocess.run([program, *self._cli, *command], capture_output=True, check=False, env=environment, timeout=LIMIT).stdout

    def pause(self) -> None:
        """Let it stand still (SIGSTOP): connections stay, nothing is answered."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it in good order (SIGTERM)."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            self.process.wait(LIMIT)

    def kill(self) -> None:
        """End it at once (SIGKILL): what it has not written down is lost."""
        self.process.kill()
        self.process.wait(LIMIT)

    def restart(self, *, kill: bool = False) -> None:
        """End it and start it again on its port, with what it has written down."""
        (self.kill if kill else self.stop)()
        self.start()

    def close(self) -> None:
        """End it and remove its folder."""
        self.process.kill()
        self.process.wait(LIMIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Proxy:
    """A way to a server that can be broken: in a thread of its own, so that it works whatever the test does.

    Args:
        target: The server's port.

    Attributes:
        port: Where it listens.
        accepted: Connections that it was asked for.
    """

    def __init__(self, target: int) -> None:
        self.port = 0
        self.accepted = 0
        self._target = target
        self._refuses = False
        self._loop = asyncio.new_event_loop()
        self._flows = asyncio.Event()
        self._answers = asyncio.Event()
        self._flows.set()
        self._answers.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._server = self._do(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.port = self._server.sockets[0].getsockname()[1]

    @property
    def url(self) -> str:
        """Of a Redis behind it."""
        return f"redis://127.0.0.1:{self.port}/0"

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(LIMIT)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self._writers.add(writer)
        try:
            await self._flows.wait()
            if self._refuses:
                return
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self._target)
            self._writers.add(to_server)
            await asyncio.gather(self._pump(reader, to_server, self._flows), self._pump(from_server, writer, self._answers))
        except OSError:
            pass
        finally:
            writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flows: asyncio.Event) -> None:
        try:
            while data := await reader.read(65536):
                await flows.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.transport.abort()
            self._writers.discard(writer)

    def stall(self, *, answers_alone: bool = False) -> None:
        """Nothing gets through any more, and nobody is told: a partition of the network.

        Args:
            answers_alone: Whether what is asked reaches the server all the same.
        """
        if not answers_alone:
            self._loop.call_soon_threadsafe(self._flows.clear)
        self._loop.call_soon_threadsafe(self._answers.clear)

    def cut(self) -> None:
        """End all connections, and refuse new ones."""
        self._refuses = True
        self._do(self._abort())

    def freeze(self) -> None:
        """Nothing gets through the connections that there are, for ever, and nobody is told; new ones work."""
        self._do(self._freeze())

    async def _freeze(self) -> None:
        self._flows.clear()
        self._answers.clear()
        self._flows, self._answers = asyncio.Event(), asyncio.Event()
        self._flows.set()
        self._answers.set()

    def drop(self) -> None:
        """End all connections; new ones are welcome."""
        self._do(self._abort())

    def restore(self) -> None:
        """Let everything through again, what was held back first."""
        self._refuses = False
        self._loop.call_soon_threadsafe(self._flows.set)
        self._loop.call_soon_threadsafe(self._answers.set)

    async def _abort(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()
        self._writers.clear()

    def close(self) -> None:
        """End it, and its thread."""
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT)
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        self._refuses = True
        self._flows.set()
        self._answers.set()
        await self._abort()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_shared: list[RedisServer] = []


def share_server() -> RedisServer:
    """One Redis for all tests of this process; it ends with it."""
    require_program()
    if not _shared:
        _shared.append(RedisServer(appendonly="yes", appendfsync="always"))
        atexit.register(_shared[0].close)
    return _shared[0]


@pytest.fixture(scope="session")
def redis_server() -> RedisServer:
    """One Redis for all tests of a run, with an append-only file. Each takes a prefix or a server's name of its own; nobody ends it."""
    return share_server()

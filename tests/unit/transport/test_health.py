"""Whether a process lives and serves: what probes are told, and how long they wait."""

import asyncio
import json
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from virtual_time import virtual_time

import callboard
from callboard import Server
from callboard.auth import BearerTokens
from callboard.errors import RegistrationError
from callboard.limits import Limits
from callboard.stores.memory import MemoryStore
from callboard.transport.asgi import App
from callboard.transport.health import Health, serve_probes
from callboard.transport.listening import bind_port


class Moody(MemoryStore):
    """A store that answers, fails or hangs as it is told, and counts who asks."""

    def __init__(self) -> None:
        super().__init__()
        self.mood = "well"
        self.asked = 0

    async def check(self) -> None:
        self.asked += 1
        if self.mood == "hangs":
            await asyncio.sleep(1e6)
        if self.mood == "fails":
            raise OSError("redis://:s3cret@nowhere")


async def ask(app: App, path: str, method: str = "GET", **more: Any) -> tuple[int, dict[bytes, bytes], bytes]:
    """Status, headers and body."""
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": [(b"host", b"10.0.0.7:8000")], "client": ("10.0.0.1", 1), **more}
    await app(scope, receive, send)
    return sent[0]["status"], dict(sent[0]["headers"]), b"".join(message.get("body", b"") for message in sent)


async def test_anybody_may_ask_from_anywhere_and_is_told_one_word() -> None:
    # SA40
    """Not by its Host, its address, without a credential, and past the rates. # SA39"""
    app = callboard.asgi(Server("s"), auth=BearerTokens({"x" * 32: "ann"}), limits=Limits(address_rate="1/min"))
    for _ in range(3):
        assert (await ask(app, "/healthz"))[::2] == (200, b'{"status":"ok"}')
        assert (await ask(app, "/readyz"))[::2] == (200, b'{"status":"ok"}')
    assert (await ask(app, "/readyz", "HEAD"))[::2] == (200, b"")
    status, headers, _ = await ask(app, "/readyz", "POST")
    assert (status, headers[b"allow"]) == (405, b"GET, HEAD")
    await app.aclose()


async def test_it_is_found_where_it_is_mounted_at_the_root() -> None:
    app = callboard.asgi(Server("s"))
    assert (await ask(app, "/api/healthz", root_path="/api"))[0] == 200
    assert (await ask(app, "/healthz/x"))[0] == 403


async def test_a_server_that_is_about_to_end_is_not_ready_but_lives() -> None:
    app = callboard.asgi(Server("s"))
    await app.endpoint.open()
    app.drain()
    status, headers, body = await ask(app, "/readyz")
    assert (status, headers[b"retry-after"], body) == (503, b"1", b'{"status":"draining"}')
    assert (await ask(app, "/healthz"))[0] == 200
    await app.aclose()


async def test_other_paths_and_none() -> None:
    app = callboard.asgi(Server("s"), health=("/live", "/ready"))
    assert (await ask(app, "/live"))[0] == 200
    assert (await ask(app, "/healthz"))[0] != 200
    assert (await ask(callboard.asgi(Server("s"), health=None), "/healthz"))[0] != 200


@pytest.mark.parametrize("health", ["/healthz", ("/a",), ("/a", "/a"), ("/a", "/mcp"), ("a", "/b"), (1, 2)])
def test_paths_that_can_t_be(health: Any) -> None:
    with pytest.raises(RegistrationError, match="health"):
        callboard.asgi(Server("s"), health=health)


@virtual_time
async def test_a_store_that_hangs_is_waited_for_less_than_a_second_and_asked_once() -> None:
    store = Moody()
    app = callboard.asgi(Server("s", store=store))
    await app.endpoint.open()
    loop = asyncio.get_running_loop()
    assert await app.health.check() == "ok"
    await asyncio.sleep(2)
    store.mood, store.asked, began = "hangs", 0, loop.time()
    assert await asyncio.gather(*(app.health.check() for _ in range(50))) == ["store"] * 50
    assert loop.time() - began < 1
    assert store.asked == 1
    await app.aclose()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


@virtual_time
async def test_a_store_that_fails_is_asked_again_after_a_second_and_not_named(caplog: pytest.LogCaptureFixture) -> None:
    store = Moody()
    app = callboard.asgi(Server("s", store=store))
    await app.endpoint.open()
    store.mood = "fails"
    for _ in range(5):
        assert await app.health.check() == "store"
    assert store.asked == 1
    store.mood = "well"
    await asyncio.sleep(1.1)
    assert await app.health.check() == "ok"
    assert "s3cret" not in (await ask(app, "/readyz"))[2].decode()
    await app.aclose()


@virtual_time
async def test_a_lifespan_that_takes_long_is_entered_once_and_not_waited_for() -> None:
    entered = 0

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[dict[str, Any]]:
        nonlocal entered
        entered += 1
        await asyncio.sleep(10)
        yield {}

    app = callboard.asgi(Server("s", lifespan=lifespan))
    assert [await app.health.check() for _ in range(3)] == ["starting"] * 3
    assert await Health(app.endpoint, opens=False).check() == "starting"
    await asyncio.sleep(10)
    assert await app.health.check() == "ok"
    assert entered == 1
    await app.aclose()


async def exchange(port: int, data: bytes) -> bytes:
    """What comes back before the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    answer = await reader.read()
    writer.close()
    return answer


async def test_a_port_of_its_own() -> None:
    word = "draining"

    async def ready() -> str:
        return word

    sockets = bind_port("127.0.0.1", 0)
    port = sockets[0].getsockname()[1]
    end = await serve_probes(sockets, ready)
    head, _, body = (await exchange(port, b"GET /readyz?x=1 HTTP/1.1\r\nhost: x\r\n\r\n")).partition(b"\r\n\r\n")
    assert (head.split(b"\r\n")[0], json.loads(body)) == (b"HTTP/1.1 503 Service Unavailable", {"status": "draining"})
    word = "ok"
    assert (await exchange(port, b"GET /readyz HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 200 OK")
    assert (await exchange(port, b"HEAD /healthz HTTP/1.1\r\n\r\n")).endswith(b"\r\n\r\n")
    assert (await exchange(port, b"GET / HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 404 ")
    assert (await exchange(port, b"POST /readyz HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 405 ")
    assert (await exchange(port, b"\x16\x03\x01\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
    assert await exchange(port, b"GET /" + b"x" * 100_000) == b""  # no end in sight
    idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(130)]
    # Whoever holds connections open there makes no probe fail: an orchestrator would end a process that is well. # SA39
    assert (await exchange(port, b"GET /readyz HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200 OK")
    for _, writer in idle:
        writer.transport.abort()
    end()

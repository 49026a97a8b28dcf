"""Through nginx: names and paths, verbs, who asks, who is believed, connections that are used again."""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import aiohttp
import pytest
from e2e.http_clients import whole
from e2e.loopback import host
from e2e.proxies import LIMIT, NAME, VERSIONS, Proxy, Visitor, ask, backend, call, fenced, nginx
from e2e.raw_http import make_head
from source_tree import ROOT

each_version = pytest.mark.parametrize("version", VERSIONS)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with backend(tmp_path_factory.mktemp("backend")) as (_, port):
        yield port


@pytest.fixture(scope="module")
def proxy(port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    with nginx(tmp_path_factory.mktemp("nginx"), f"127.0.0.1:{port}") as started:
        yield started


@each_version
async def test_a_session_has_all_its_verbs(proxy: Proxy, version: str) -> None:
    async with asyncio.timeout(LIMIT), proxy.client(version) as client:
        visitor = Visitor(client)
        await visitor.begin()
        assert [await visitor.call("tally"), await visitor.call("tally")] == ["1", "2"]
        async with visitor.listen() as answer:
            head = await answer.head()
            assert (head.status, head.headers["content-type"]) == (200, "text/event-stream")
        async with client.request("DELETE", visitor.headers()) as answer:
            assert (await answer.head()).status == 204
        assert (await visitor.send("tools/list", {}))[0] == 404
        async with client.request("PUT", visitor.headers()) as answer:
            assert (await answer.head()).status == 405


@each_version
async def test_another_name_ends_at_the_proxy(proxy: Proxy, version: str) -> None:
    headers, body = call("caller")
    headers["host"] = "evil.example"
    async with asyncio.timeout(LIMIT), proxy.client(version) as client, client.request("POST", headers, body) as answer:
        assert (await answer.head()).status == 421
        assert b"jsonrpc" not in await whole(answer)


@each_version
async def test_a_page_of_the_server_itself_may_call_and_no_other(proxy: Proxy, version: str) -> None:
    """The proxy passes `Host` on, so that Callboard compares what the browser compared (SA14)."""
    headers, body = call("caller")
    async with asyncio.timeout(LIMIT), proxy.client(version) as client:
        for origin, status in ((f"https://{NAME}", 200), ("https://evil.example", 403)):
            async with client.request("POST", {**headers, "origin": origin}, body) as answer:
                assert (await answer.head()).status == status


@each_version
async def test_who_asks_is_who_connected_whatever_they_say(proxy: Proxy, version: str) -> None:
    """nginx replaces the header; a client's own word for it is gone."""
    async with asyncio.timeout(LIMIT), proxy.client(version) as client:
        for claimed in ("203.0.113.9", "203.0.113.9, 127.0.0.1", "::1"):
            assert await ask(client, "caller", headers={"x-forwarded-for": claimed, "forwarded": f"for={claimed}"}) == "127.0.0.1"


def ask_from(source: str, port: int, **headers: str) -> str:
    """Who asks, as Callboard sees a peer of an address that goes past the proxy."""
    given, body = call("caller")
    with socket.create_connection(("127.0.0.1", port), timeout=10, source_address=(source, 0)) as wire:
        wire.sendall(make_head(len(body), {**given, **headers, "connection": "close"}) + body)
        received = b""
        while piece := wire.recv(65536):
            received += piece
    found: str = json.loads(received.partition(b"\r\n\r\n")[2])["result"]["content"][0]["text"]
    return found


def test_only_a_trusted_proxy_is_believed(port: int) -> None:
    """Another address of this machine is none: what it says of others counts for nothing."""
    assert ask_from("127.0.0.1", port, **{"x-forwarded-for": "203.0.113.9"}) == "203.0.113.9"
    assert ask_from("127.0.0.2", port, **{"x-forwarded-for": "203.0.113.9"}) == "127.0.0.2"


@asynccontextmanager
async def counted(port: int, seen: list[int]) -> AsyncIterator[int]:
    """A way to a port that counts connections."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(1)
        there, back = await asyncio.open_connection("127.0.0.1", port)
        try:
            await asyncio.gather(pump(reader, back), pump(there, writer))
        finally:
            back.transport.abort()

    async with host(relay) as way:
        yield way


async def test_connections_to_callboard_are_used_again(port: int, tmp_path: Path) -> None:
    """The next call needs no new connection: two workers of nginx, each with its own (A52)."""
    seen: list[int] = []
    async with counted(port, seen) as way:
        started = nginx(tmp_path, f"127.0.0.1:{way}")
        proxy = await asyncio.to_thread(started.__enter__)
        try:
            async with asyncio.timeout(LIMIT):
                for _ in range(10):
                    async with proxy.client() as client:  # a new connection to nginx each
                        for _ in range(3):
                            await ask(client, "caller")
        finally:
            await asyncio.to_thread(started.__exit__, None, None, None)
    assert len(seen) <= 2


AUTH_PAGE = ROOT / "docs" / "deploy" / "auth-proxy.md"


async def grant(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """What authenticates: it knows one token, and says whose it is."""
    while head := (await reader.readuntil(b"\r\n\r\n")).decode("latin-1"):
        is_known = "authorization: bearer good\r\n" in head.lower()
        lines = "HTTP/1.1 202 Accepted\r\nX-Auth-Request-User: ada\r\n" if is_known else "HTTP/1.1 401 Unauthorized\r\n"
        writer.write(f"{lines}Content-Length: 0\r\n\r\n".encode())


@each_version
async def test_behind_an_auth_proxy_the_proxy_says_who_asks(tmp_path: Path, version: str) -> None:
    """The guide's lines; a client that says it itself says nothing (HH-25)."""
    inside, around = fenced(AUTH_PAGE, "nginx")
    async with host(grant) as gate:
        changes = {
            "            proxy_pass http://callboard;": f"{inside}            proxy_pass http://callboard;",
            "        location / {": f"{around.replace('127.0.0.1:4180', f'127.0.0.1:{gate}')}        location / {{",
        }
        stack = serve_with_auth(tmp_path, changes)
        proxy = await asyncio.to_thread(stack.__enter__)
        try:
            async with asyncio.timeout(LIMIT), proxy.client(version) as client:
                assert await ask(client, "caller", headers={"authorization": "Bearer good", "x-user": "root"}) == "ada"
                headers, body = call("caller")
                for more in ({}, {"authorization": "Bearer bad"}, {"x-user": "root"}):
                    async with client.request("POST", {**headers, **more}, body) as answer:
                        head = await answer.head()
                        assert (head.status, head.headers.get("www-authenticate", "")[:6]) == (401, "Bearer")
                where = f"https://127.0.0.1:{proxy.port}/.well-known/oauth-protected-resource/mcp"
                trusts = ssl.create_default_context(cafile=str(proxy.certificate))
                async with aiohttp.request("GET", where, headers={"host": NAME}, ssl=trusts) as response:
                    assert (await response.json())["resource"] == f"https://{NAME}/mcp"
        finally:
            await asyncio.to_thread(stack.__exit__, None, None, None)


@contextmanager
def serve_with_auth(folder: Path, changes: dict[str, str]) -> Iterator[Proxy]:
    """Callboard that believes the proxy, behind an nginx that asks who it is."""
    with backend(folder, WHO="1") as (_, port), nginx(folder / "nginx", f"127.0.0.1:{port}", changes) as proxy:
        yield proxy

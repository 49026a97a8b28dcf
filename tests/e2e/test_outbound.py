"""Requests of verifiers over real sockets: what hosts may do to them, and that nothing is left behind."""

import asyncio
import base64
import gzip
import json
import ssl
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from e2e.loopback import Serve, host
from e2e.serving import free_port
from minting import AUDIENCE, ISSUER, claims, header, jwk, jwks, mint, private_key

from callboard.auth.introspection import Introspection
from callboard.auth.jwt import JWT
from callboard.auth.outbound import Answer, Ask, Outbound, OutboundError
from callboard.auth.verifier import Grant, Refusal

KEY = private_key("P-256")


def saying(head: str, body: bytes = b"", *, length: bool = True) -> Serve:
    """Answers each request of a connection with the same."""
    size = f"Content-Length: {len(body)}\r\n" if length else "Connection: close\r\n"
    answer = f"HTTP/1.1 {head}\r\n{size}\r\n".encode() + body

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
            if not length:
                return

    return serve


async def dripping(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One byte now and then, without end."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.2)


async def flooding(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Chunks without end."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
        await writer.drain()


async def breaking(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Half an answer."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
    await writer.drain()


FAULTS: list[tuple[Serve, str]] = [
    (flooding, "more than 1048576 bytes"),
    (saying("200 OK", b" " * (2**20 + 1)), "more than 1048576 bytes"),
    (saying("200 OK\r\nContent-Encoding: gzip", gzip.compress(b" " * 2**26)), "compressed"),
    (saying("200 OK\r\nContent-Encoding: deflate, br", b"x"), "compressed"),
    (breaking, "broke off"),
    (saying("200 OK\r\nBad header\xff", b"{}"), "no answer that can be read"),
    (saying("200 OK\r\nX: " + "y" * 20_000, b"{}"), "no answer that can be read"),
    (saying("999999 hello", b""), "no answer that can be read"),
]


@pytest.mark.parametrize(("serve", "told"), FAULTS)
async def test_what_is_no_answer(serve: Serve, told: str) -> None:
    outbound = Outbound()
    async with host(serve) as port:
        with pytest.raises(OutboundError, match=told) as caught:
            await asyncio.wait_for(outbound.send(Ask(f"http://127.0.0.1:{port}/jwks?hunter2")), 60)
        await outbound.close()
    assert "hunter2" not in str(caught.value)


async def test_nobody_is_there() -> None:
    outbound = Outbound()
    for url, told in ((f"http://127.0.0.1:{free_port()}/", "can't be reached"), ("http://nowhere.invalid/", "can't be found")):
        with pytest.raises(OutboundError, match=told):
            await outbound.send(Ask(url))
    await outbound.close()


async def test_redirects_and_cookies_are_not_followed() -> None:
    """A host that sends us on may send us anywhere."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 302 Found\r\nLocation: /other\r\nSet-Cookie: a=hunter2\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()

    outbound = Outbound()
    async with host(serve) as port:
        for _ in range(2):
            assert await outbound.send(Ask(f"http://127.0.0.1:{port}/a?b=%2F%41")) == Answer(302, b"")
        await outbound.close()
    assert len(heads) == 2
    assert all(head.startswith(b"GET /a?b=%2F%41 HTTP/1.1") for head in heads), "the URL is sent as it is written"
    assert not any(b"hunter2" in head or b"cookie" in head.lower() for head in heads)


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("default login hunter2 password hunter2\n", encoding="utf-8")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    outbound = Outbound()
    async with host(serve) as port:
        assert await outbound.send(Ask(f"http://127.0.0.1:{port}/")) == Answer(200, b"{}")
        await outbound.close()
    assert b"authorization" not in heads[0].lower()


async def test_a_certificate_that_nobody_vouches_for(tmp_path: Path) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    built = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(KEY.public_key()).serial_number(1)
    made = built.not_valid_before(now).not_valid_after(now + timedelta(days=1)).sign(KEY, hashes.SHA256())
    both = KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + made.public_bytes(Encoding.PEM)
    (tmp_path / "both.pem").write_bytes(both)
    secured = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secured.load_cert_chain(tmp_path / "both.pem")
    outbound = Outbound()
    async with host(saying("200 OK", b"{}"), ssl=secured) as port:
        with pytest.raises(OutboundError, match="not trusted"):
            await outbound.send(Ask(f"https://localhost:{port}/"))
        await outbound.close()


@pytest.mark.parametrize("serve", [dripping, flooding, breaking])
async def test_keys_that_come_slowly_or_without_end(serve: Serve) -> None:
    """Five seconds and one mebibyte in all, whatever the host does."""
    async with host(serve) as port:
        tokens = JWT(ISSUER, AUDIENCE, jwks_uri=f"http://127.0.0.1:{port}/jwks")
        begun = time.monotonic()
        found = await tokens.verify(good_token())
        assert time.monotonic() - begun < 6
        assert isinstance(found, Refusal)
        assert found.kind == "unavailable"
        await tokens.close()


def good_token(**changes: Any) -> str:
    now = int(time.time())
    return mint(KEY, header(kid="real"), claims(exp=now + 600, iat=now, **changes))


async def test_keys_by_discovery() -> None:
    """AC-03 over real sockets: metadata below a path, then the keys."""
    paths: list[str] = []
    documents: dict[str, Any] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
            paths.append(path)
            body = json.dumps(documents[path]).encode() if path in documents else b""
            writer.write(f"HTTP/1.1 {'200 OK' if body else '404 No'}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            await writer.drain()

    async with host(serve) as port:
        issuer = f"http://127.0.0.1:{port}/realms/a"
        documents["/.well-known/openid-configuration/realms/a"] = {"issuer": issuer, "jwks_uri": f"http://localhost:{port}/keys"}
        documents["/keys"] = json.loads(jwks(jwk(KEY, "real")))
        tokens = JWT(issuer, AUDIENCE)
        found = await tokens.verify(good_token(iss=issuer))
        assert isinstance(found, Grant)
        assert found.principal == f"{issuer}#sub=ann"
        await tokens.close()
    assert paths == ["/.well-known/oauth-authorization-server/realms/a", "/.well-known/openid-configuration/realms/a", "/keys"]


class Introspected:
    """An introspection endpoint; connections are kept.

    Attributes:
        connections: How many were made.
        heads: Of all requests.
    """

    def __init__(self) -> None:
        self.connections = 0
        self.heads: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        for number in range(1000):
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
            form = await reader.readexactly(length)
            self.heads.append(head)
            active = b"token=good" in form
            body = json.dumps({"active": active, "sub": "ann", "aud": AUDIENCE, "scope": "a b"} if active else {"active": False}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
            if b"token=good-bye" in form and number:
                return  # the connection ends, and nobody said so


async def test_introspection() -> None:
    """RFC 7662 over real sockets: connections are kept, and one that ended unseen costs nobody anything."""
    endpoint = Introspected()
    async with host(endpoint.serve) as port:
        tokens = Introspection(f"http://127.0.0.1:{port}/introspect", "mcp", "s3:cret", "http://127.0.0.1:1", audience=AUDIENCE)
        for text in ("good-1", "good-2", "good-bye", "good-3", "good-4"):
            found = await tokens.verify(text)
            assert isinstance(found, Grant)
            assert found.principal.scopes == {"a", "b"}
        assert await tokens.verify("bad") == Refusal("invalid", "The access token is not active.")
        assert endpoint.connections == 2
        many = await asyncio.gather(*(tokens.verify(f"good {number}") for number in range(100)))
        assert sum(isinstance(one, Grant) for one in many) == 32
        assert endpoint.connections <= 34
        await tokens.close()
    assert all(base64.b64encode(b"mcp:s3%3Acret") in head for head in endpoint.heads)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_introspection_on_one_event_loop_after_another() -> None:
    async def once() -> None:
        async with host(Introspected().serve) as port:
            tokens._endpoint = f"http://127.0.0.1:{port}/introspect"
            assert isinstance(await tokens.verify("good"), Grant)
            await tokens.close()

    tokens = Introspection("http://127.0.0.1:1/introspect", "mcp", "secret", "http://127.0.0.1:1", audience=AUDIENCE)
    for _ in range(3):
        asyncio.run(once())


async def test_an_introspection_endpoint_that_drips() -> None:
    async with host(dripping) as port:
        tokens = Introspection(f"http://127.0.0.1:{port}/introspect", "mcp", "secret", "http://127.0.0.1:1", audience=AUDIENCE)
        begun = time.monotonic()
        found = await asyncio.gather(*(tokens.verify(f"token {number}") for number in range(100)))
        assert time.monotonic() - begun < 6
        assert {one.kind for one in found if isinstance(one, Refusal)} == {"unavailable"}
        await tokens.close()

"""SA36, SA37 over a socket: servers that lie to our client, and places where it must not go or send anybody."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from asgi_driver import LATEST
from e2e.hostile_driver import V11
from e2e.loopback import host

from callboard import Client, oauth
from callboard.client.errors import ClientError

Json = dict[str, Any]
Lie = Callable[[Any], list[Json]]
VERSIONS = (LATEST, V11)
NOBODY = (
    "javascript:alert(1)",
    "file:///etc/passwd",
    "data:text/html,x",
    "http://169.254.169.254/latest",
    "http://10.0.0.1/x",
    "ftp://x/",
    "//x",
    "",
)


def result(request_id: Any, text: str = "right", **more: Any) -> Json:
    """An answer to a call."""
    return {"jsonrpc": "2.0", "id": request_id, "result": {"resultType": "complete", "content": [{"type": "text", "text": text}], **more}}


def note(text: str) -> Json:
    """A notification of the server's."""
    return {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": text}}


def error_of_nobody(code: int = -32700) -> Json:
    """An error for a request that could not be read."""
    return {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": "unreadable"}}


# What comes on the stream in answer to a call; the text that the call must come to, or None for an error of that call.
LIES: dict[str, tuple[Lie, str | None]] = {
    "the truth": (lambda _: [result(_)], "right"),
    "another's answer first": (lambda _: [result(f"{_}x", "wrong"), result(_)], "right"),
    "a text for a number": (lambda _: [result(str(_), "wrong"), result(_)], "right"),
    "a list for a number": (lambda _: [result([_], "wrong"), result(_)], None),
    "another's answer alone": (lambda _: [result("x", "wrong")], None),
    "the answer twice": (lambda _: [result(_), result(_, "wrong")], "right"),
    "an error after the answer": (lambda _: [result(_), {"jsonrpc": "2.0", "id": _, "error": {"code": -1, "message": "x"}}], "right"),
    "an unknown kind of result": (lambda _: [result(_, resultType="hologram")], None),
    "a kind that is no text": (lambda _: [result(_, resultType=7)], None),
    "a note after the answer": (lambda _: [result(_), note("late")], "right"),
    "a note that is none": (lambda _: [{"jsonrpc": "2.0", "method": "notifications/none", "params": 7}, result(_)], "right"),
    "an error of nobody's": (lambda _: [error_of_nobody()], None),
    "an answer and an error": (lambda _: [{**result(_), "error": {"code": -1, "message": "x"}}], None),
    "neither": (lambda _: [{"jsonrpc": "2.0", "id": _}], None),
    "an answer that is no object": (lambda _: [{"jsonrpc": "2.0", "id": _, "result": 7}], None),
    "content that is none": (lambda _: [result(_, content="wrong")], None),
    "another JSON-RPC": (lambda _: [{**result(_), "jsonrpc": "1.0"}], None),
    "nothing": (lambda _: [], None),
}


class Liar:
    """A server by hand that tells the truth but about calls of the tool `lie`.

    Attributes:
        lie: What it answers to those.
    """

    def __init__(self) -> None:
        self.lie: Lie = LIES["the truth"][0]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer what comes on one connection."""
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = next((int(line.partition(b":")[2]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), 0)
            body = await reader.readexactly(length)
            if not head.startswith(b"POST"):
                writer.write(b"HTTP/1.1 405 No\r\ncontent-length: 0\r\n\r\n")
                continue
            writer.write(self._answer(json.loads(body)))
            await writer.drain()

    def _answer(self, message: Json) -> bytes:
        method, number = message["method"], message.get("id")
        if number is None:
            return b"HTTP/1.1 202 OK\r\ncontent-length: 0\r\n\r\n"
        messages = [result(number)]
        if method in {"server/discover", "initialize"}:
            about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "liar", "version": "1"}, "ttlMs": 0, "cacheScope": "private"}
            versions: Json = {"supportedVersions": [LATEST]} if method == "server/discover" else {"protocolVersion": V11}
            messages = [{"jsonrpc": "2.0", "id": number, "result": {"resultType": "complete", **versions, **about}}]
        elif message["params"].get("name") == "lie":
            messages = self.lie(number)
        stream = b"".join(b"data: %b\n\n" % json.dumps(each).encode() for each in messages)
        return b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n%b" % (len(stream), stream)


@asynccontextmanager
async def lied_to(version: str) -> AsyncIterator[tuple[Liar, Client]]:
    """A liar, and a client of it."""
    liar = Liar()
    async with host(liar.serve) as port, Client(f"http://127.0.0.1:{port}/mcp", versions=version, timeout=3) as client:
        yield liar, client


@pytest.mark.parametrize(("lie", "text"), LIES.values(), ids=LIES)
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_lie_is_passed_over_or_that_calls_error(version: str, lie: Lie, text: str | None) -> None:
    # SA36: never the answer of another call, and the next call works
    async with lied_to(version) as (liar, client):
        liar.lie = lie
        for _ in range(2):
            if text is None:
                with pytest.raises(ClientError):
                    await client.call_tool("lie", {})
            else:
                assert (await client.call_tool("lie", {})).text == text
            assert (await client.call_tool("honest", {})).text == "right"


@pytest.mark.parametrize("version", VERSIONS)
async def test_calls_at_once_keep_their_own_answers(version: str) -> None:
    # SA36: each stream carries everybody's answers
    async with lied_to(version) as (liar, client):
        liar.lie = lambda number: [*(result(other, "wrong") for other in range(40) if other != number), result(number, f"for {number}")]
        answers = await asyncio.gather(*(client.call_tool("lie", {}) for _ in range(20)))
        texts = [answer.text for answer in answers]
        assert "wrong" not in texts
        assert len(set(texts)) == 20


# Places


class Gate:
    """A server that lets nobody in and says where to log in.

    Attributes:
        documents: Path -> JSON document.
        challenge: Where it says that its metadata is.
        visits: Paths that were asked for.
    """

    def __init__(self) -> None:
        self.documents: dict[str, Json] = {}
        self.challenge = ""
        self.visits: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer what comes on one connection."""
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = next((int(line.partition(b":")[2]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), 0)
            await reader.readexactly(length)
            path = head.split()[1].decode()
            self.visits.append(path)
            found = self.documents.get(path)
            if path == "/mcp":
                told = f'Bearer resource_metadata="{self.challenge}"'.encode()
                writer.write(b"HTTP/1.1 401 No\r\nwww-authenticate: %b\r\ncontent-length: 0\r\n\r\n" % told)
            elif found is None:
                writer.write(b"HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n")
            else:
                body = json.dumps(found).encode()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
            await writer.drain()


async def log_in(gate: Gate, port: int, sent: list[str]) -> None:
    """Try to call, and demand that the login is refused before anybody is sent anywhere."""

    async def browse(url: str) -> str:
        sent.append(url)
        raise RuntimeError("nobody is here")

    auth = oauth.OAuth(browse=browse, redirect_uri="http://127.0.0.1:8123/callback")
    with pytest.raises((ClientError, BaseExceptionGroup)):
        async with asyncio.timeout(10), Client(f"http://127.0.0.1:{port}/mcp", auth=auth, timeout=5, versions=V11) as client:
            await client.call_tool("x", {})
    assert gate.visits


def describe(base: str, **changed: str) -> dict[str, Json]:
    """Metadata as a good server has it, with something changed in that of its authorization server."""
    resource = {"resource": f"{base}/mcp", "authorization_servers": [changed.pop("issuer_named", base)]}
    server = {
        "issuer": base,
        "authorization_endpoint": f"{base}/authorize",
        "token_endpoint": f"{base}/token",
        "registration_endpoint": f"{base}/register",
        "response_types_supported": ["code"],
        "code_challenge_methods_supported": ["S256"],
        **changed,
    }
    return {"/.well-known/oauth-protected-resource/mcp": resource, "/.well-known/oauth-authorization-server": server}


@pytest.mark.parametrize("url", NOBODY)
@pytest.mark.parametrize("what", ["challenge", "issuer_named", "authorization_endpoint", "token_endpoint", "registration_endpoint"])
async def test_nobody_is_sent_to_a_dangerous_place(what: str, url: str) -> None:
    # SA37: neither the browser, nor the client itself
    gate, sent = Gate(), list[str]()
    async with host(gate.serve) as port:
        base = f"http://127.0.0.1:{port}"
        gate.challenge = url if what == "challenge" else f"{base}/.well-known/oauth-protected-resource/mcp"
        gate.documents = {} if what == "challenge" else describe(base, **{what: url})
        await log_in(gate, port, sent)
    assert not any(url and place.startswith(url) for place in sent)
    assert all(place.startswith(f"{base}/authorize") for place in sent)
    assert not [path for path in gate.visits if path.startswith(("/token", "javascript", "file", "/x"))]


async def test_a_good_place_is_gone_to() -> None:
    # SA37: without this the test above would pass for a client that never logs in
    gate, sent = Gate(), list[str]()
    async with host(gate.serve) as port:
        base = f"http://127.0.0.1:{port}"
        gate.challenge = f"{base}/.well-known/oauth-protected-resource/mcp"
        gate.documents = {**describe(base), "/register": {"client_id": "x", "redirect_uris": ["http://127.0.0.1:8123/callback"]}}
        await log_in(gate, port, sent)
    assert [place.startswith(f"{base}/authorize?") for place in sent] == [True]

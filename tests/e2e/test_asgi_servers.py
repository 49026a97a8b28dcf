"""The application on the ASGI servers people run: uvicorn, granian and hypercorn, in every HTTP version that each speaks.

What is asked of all: a plain call, a stream whose notes arrive while the call still runs, a listen stream that hears of a change, and
a handler that is cancelled when its client goes away.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from e2e.http_clients import HOST, Answer, Connect, HttpClient, frames, http1, http2, http3, whole
from e2e.serving import free_port, process, wait_until_listening

PROTOCOL = "io.modelcontextprotocol/"
VERSION = "2026-07-28"
LIMIT = 10.0  # seconds for one test's conversation


class Setup(NamedTuple):
    """One server in one HTTP version.

    Attributes:
        command: What follows `python -m`; `{port}`, `{cert}` and `{key}` are filled in.
        connect: The client for that version.
        tls: Whether it needs a certificate.
        silent: Why the server doesn't tell the application that a client went away; empty when it does.
    """

    command: str
    connect: Connect
    tls: bool = False
    silent: str = ""


CERTIFIED = "--certfile {cert} --keyfile {key}"
GRANIAN = "granian --interface asgi --host 127.0.0.1 --port {port} --no-ws"
SETUPS = {
    "uvicorn-http1": Setup("uvicorn server:app --port {port}", http1),
    "granian-http1": Setup(f"{GRANIAN} --http 1 server:app", http1),
    "granian-http2": Setup(f"{GRANIAN} --http 2 server:app", http2),
    "granian-http2-tls": Setup(f"{GRANIAN} --http 2 --ssl-certificate {{cert}} --ssl-keyfile {{key}} server:app", http2, tls=True),
    "hypercorn-http1": Setup("hypercorn server:app --bind 127.0.0.1:{port}", http1),
    "hypercorn-http2": Setup("hypercorn server:app --bind 127.0.0.1:{port}", http2),
    "hypercorn-http2-tls": Setup(f"hypercorn server:app --bind 127.0.0.1:{{port}} {CERTIFIED}", http2, tls=True),
    "hypercorn-http3": Setup(
        f"hypercorn server:app --bind 127.0.0.1:{{port}} --quic-bind 127.0.0.1:{{port}} {CERTIFIED}",
        http3,
        tls=True,
        silent="hypercorn 0.18 passes on neither the reset of an HTTP/3 stream nor the end of its connection",
    ),
}


class Endpoint(NamedTuple):
    """A server that runs.

    Attributes:
        setup: What it is.
        port: Where it listens.
        certificate: What its clients must trust; None without TLS.
    """

    setup: Setup
    port: int
    certificate: Path | None

    @asynccontextmanager
    async def client(self) -> AsyncIterator[HttpClient]:
        async with self.setup.connect(self.port, self.certificate) as client:
            yield client


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for this machine's loopback address that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOST)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(HOST))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "cert.pem", folder / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return paths


@pytest.fixture(scope="module", params=list(SETUPS))
def endpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    setup = SETUPS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    cert, key = make_certificate(folder)
    port = free_port()
    words = setup.command.format(port=port, cert=cert, key=key).split()
    with process([sys.executable, "-m", *words], folder / "log") as started:
        wait_until_listening(started, port, folder / "log")
        yield Endpoint(setup, port, cert if setup.tls else None)
    printed = (folder / "log").read_text(errors="replace")
    assert "Traceback" not in printed, printed


def message(method: str, params: Mapping[str, Any], *, token: str | None = None) -> tuple[dict[str, str], bytes]:
    """Headers and body of a request of the current protocol."""
    meta = {f"{PROTOCOL}protocolVersion": VERSION, f"{PROTOCOL}clientCapabilities": {}}
    if token is not None:
        meta["progressToken"] = token
    headers = {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": VERSION,
        "mcp-method": method,
    }
    if "name" in params:
        headers["mcp-name"] = params["name"]
    return headers, json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}).encode()


def call(tool: str, *, token: str | None = None, **arguments: Any) -> tuple[dict[str, str], bytes]:
    """Headers and body of a call."""
    return message("tools/call", {"name": tool, "arguments": arguments}, token=token)


async def ask(client: HttpClient, tool: str, **arguments: Any) -> str:
    """The text that a tool answers with."""
    async with client.post(*call(tool, **arguments)) as answer:
        (block,) = json.loads(await whole(answer))["result"]["content"]
        return str(block["text"])


class Listener:
    """Messages of an event stream, one at a time."""

    def __init__(self, answer: Answer) -> None:
        self._frames = frames(answer)

    async def message(self) -> dict[str, Any]:
        return dict(json.loads(await anext(self._frames)))

    async def at_end(self) -> bool:
        return await anext(self._frames, None) is None


async def test_a_call_answers_json(endpoint: Endpoint) -> None:
    async with asyncio.timeout(LIMIT), endpoint.client() as client, client.post(*call("add", a=2, b=3)) as answer:
        head = await answer.head()
        assert (head.status, head.headers["content-type"]) == (200, "application/json")
        assert json.loads(await whole(answer))["result"]["structuredContent"] == {"total": 5}


async def test_a_refusal_keeps_its_status(endpoint: Endpoint) -> None:
    async with asyncio.timeout(LIMIT), endpoint.client() as client, client.post(*call("no_such_tool")) as answer:
        assert (await answer.head()).status == 400
        assert json.loads(await whole(answer))["error"]["code"] == -32602


async def test_notes_arrive_while_the_call_runs(endpoint: Endpoint) -> None:
    """`perform` waits for its cue after the first note: a server that holds pieces back never gets it."""
    async with asyncio.timeout(LIMIT), endpoint.client() as client, client.post(*call("perform", token="t")) as answer:
        head = await answer.head()
        assert (head.status, head.headers["content-type"]) == (200, "text/event-stream")
        stream = Listener(answer)
        first = await stream.message()
        assert (first["method"], first["params"]["message"]) == ("notifications/progress", "enters")
        assert await ask(client, "prompt_actor", line="speaks") == "whispered"
        assert (await stream.message())["params"]["message"] == "speaks"
        assert (await stream.message())["result"]["content"] == [{"type": "text", "text": "bows"}]
        assert await stream.at_end()


async def test_a_listener_hears_of_a_change(endpoint: Endpoint) -> None:
    wanted = message("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    async with asyncio.timeout(LIMIT), endpoint.client() as client, client.post(*wanted) as answer:
        assert (await answer.head()).status == 200
        stream = Listener(answer)
        acknowledged = await stream.message()
        assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
        assert acknowledged["params"]["notifications"] == {"toolsListChanged": True}
        await ask(client, "announce", name="encore")
        changed = await stream.message()
        assert changed["method"] == "notifications/tools/list_changed"
        assert changed["params"]["_meta"] == {f"{PROTOCOL}subscriptionId": 1}


async def test_a_client_that_goes_away_cancels_its_call(endpoint: Endpoint) -> None:
    if endpoint.setup.silent:
        pytest.skip(endpoint.setup.silent)
    async with asyncio.timeout(LIMIT), endpoint.client() as client:
        async with client.post(*call("hold", token="t", name="gone")) as answer:
            assert (await Listener(answer).message())["params"]["message"] == "holding"
        began = time.monotonic()
        assert await ask(client, "released") == "gone"
        assert time.monotonic() - began < 0.5  # SA25


async def test_listeners_that_went_away_make_room(endpoint: Endpoint) -> None:
    """The server takes 20 at a time, and asks those past that to try again: so 100 get in only if the departed are noticed."""
    if endpoint.setup.silent:
        pytest.skip(endpoint.setup.silent)
    wanted = message("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    async with asyncio.timeout(LIMIT), endpoint.client() as client:
        heard = 0
        while heard < 100:
            async with client.post(*wanted) as answer:
                status = (await answer.head()).status
                assert status in {200, 503}
                if status == 200:
                    await Listener(answer).message()
                    heard += 1


async def test_many_calls_share_a_client(endpoint: Endpoint) -> None:
    async with asyncio.timeout(LIMIT), endpoint.client() as client:
        answers = await asyncio.gather(*(ask(client, "double", number=number) for number in range(50)))
        assert answers == [str(2 * number) for number in range(50)]

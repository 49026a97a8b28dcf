"""nginx and Caddy with the very files of examples/deploy, a Callboard server behind them, and clients before them."""

import io
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
from asgi_driver import make_headers, make_request
from e2e.asgi_servers import make_certificate
from e2e.http_clients import HOST, Answer, Http1Answer, HttpClient, events, http2, whole
from e2e.serving import HERE, free_port, process, wait_until_listening
from source_tree import ROOT

DEPLOY = ROOT / "examples" / "deploy"
NAME = "notes.example.com"
LEGACY = "2025-11-25"
LIMIT = 20.0  # seconds for one test's conversation
VERSIONS = ("http1", "http2")


def need(program: str) -> str:
    """Path of a program; skips where there is none, and fails where REQUIRE_PEERS=1 says that there must be one."""
    found = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if found is None:
        (pytest.fail if os.environ.get("REQUIRE_PEERS") == "1" else pytest.skip)(f"{program} is not installed here")
    return str(found)


def replaced(text: str, changes: Mapping[str, str]) -> str:
    """A text with pieces exchanged, each of which must be there.

    Raises:
        AssertionError: One is not: the file is no longer what the test believes.
    """
    for old, new in changes.items():
        assert old in text, f"{old!r} is not in the file"
        text = text.replace(old, new)
    return text


def fenced(page: Path, language: str) -> list[str]:
    """The code blocks of a guide in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


class Proxy(NamedTuple):
    """A proxy that runs.

    Attributes:
        process: Its main process.
        port: Where it listens, with TLS.
        certificate: What its clients trust.
        config: Its file.
        log: What it printed.
    """

    process: "subprocess.Popen[bytes]"
    port: int
    certificate: Path
    config: Path
    log: Path

    @asynccontextmanager
    async def client(self, version: str = "http1") -> AsyncIterator[HttpClient]:
        """A client that speaks one version of HTTP."""
        if version == "http2":
            async with http2(self.port, self.certificate) as client:
                yield Named(client)
            return
        trusts = ssl.create_default_context(cafile=str(self.certificate))
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusts), timeout=aiohttp.ClientTimeout(total=None)) as session:
            yield Named(Http1Tls(session, f"https://{HOST}:{self.port}/mcp"))

    def reload(self) -> None:
        """Has it read its file anew."""
        self.process.send_signal(signal.SIGHUP)


class Http1Tls(NamedTuple):
    """HTTP/1.1 over TLS, a connection per request in flight."""

    session: aiohttp.ClientSession
    url: str

    @asynccontextmanager
    async def request(self, method: str, headers: Mapping[str, str], body: bytes = b"") -> AsyncIterator[Answer]:
        """See `HttpClient.request`."""
        response = await self.session.request(method, self.url, headers=headers, data=io.BytesIO(body) if body else None)
        transport = response.connection.transport if response.connection is not None else None
        try:
            yield Http1Answer(response)
        finally:
            if transport is not None and not response.content.at_eof():
                transport.abort()  # a close would wait for the other side, and outlive the test
            response.close()


class Named(NamedTuple):
    """A client that asks for the server by its public name."""

    inner: HttpClient

    def request(self, method: str, headers: Mapping[str, str], body: bytes = b"") -> Any:
        """A request, under the name that the proxy knows."""
        host = headers.get("host", NAME)
        given = {name: value for name, value in headers.items() if name != "host"}
        return self.inner.request(method, {**given, (":authority" if not isinstance(self.inner, Http1Tls) else "host"): host}, body)


@contextmanager
def backend(folder: Path, port: int | None = None, *words: str, **environment: str) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """Runs `callboard run proxied_server.py`; gives the process and its port."""
    port = port or free_port()
    log = folder / f"backend-{port}.log"
    command = [sys.executable, "-m", "callboard", "run", str(HERE / "proxied_server.py"), "--port", str(port), *words]
    with process(["env", *(f"{name}={value}" for name, value in environment.items()), *command], log) as started:
        wait_until_listening(started, port, log)
        yield started, port


@contextmanager
def nginx(folder: Path, upstream: str, changes: Mapping[str, str] | None = None, *, file: str = "nginx.conf") -> Iterator[Proxy]:
    """Runs nginx with examples/deploy/nginx.conf, with what differs on this machine put in.

    Args:
        folder: For its files.
        upstream: What stands in for `127.0.0.1:8000`.
        changes: What is exchanged besides.
        file: Another file of that folder.
    """
    program = need("nginx")
    folder.mkdir(exist_ok=True)
    port = free_port()
    cert, key = make_certificate(folder)
    temp = " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    here = {
        "127.0.0.1:8000": upstream,
        "listen 443 ssl": f"listen {HOST}:{port} ssl",
        "/etc/nginx/tls/cert.pem": str(cert),
        "/etc/nginx/tls/key.pem": str(key),
        "/var/log/nginx/mcp.log": f"{folder}/access.log",
        "worker_processes auto;": "worker_processes 2;",
        "worker_rlimit_nofile 65536;": "",  # needs a right that containers lack
        "http {": f"http {{ {temp}",
    }
    config = folder / "nginx.conf"
    config.write_text(replaced((DEPLOY / file).read_text(encoding="utf-8"), {**here, **(changes or {})}), encoding="utf-8")
    user = "user root; " if os.geteuid() == 0 else ""
    globals_ = f"{user}daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log notice;"
    command = [program, "-p", str(folder), "-c", str(config), "-e", str(folder / "error.log"), "-g", globals_]
    with process(command, folder / "log") as started:
        wait_until_listening(started, port, folder / "log")
        yield Proxy(started, port, cert, config, folder / "error.log")


@contextmanager
def caddy(folder: Path, upstream: str, changes: Mapping[str, str] | None = None) -> Iterator[Proxy]:
    """Runs Caddy with examples/deploy/Caddyfile, with what differs on this machine put in; see `nginx`."""
    program = need("caddy")
    folder.mkdir(exist_ok=True)
    port = free_port()
    cert, key = make_certificate(folder)
    here = {
        "127.0.0.1:8000": upstream,
        "{\n\tservers {": f"{{\n\tadmin off\n\tauto_https off\n\tstorage file_system {folder}\n\tdefault_sni {NAME}\n\tservers {{",
        f"{{$PUBLIC_HOST:{NAME}}} {{": f"https://{NAME}:{port} {{\n\tbind {HOST}\n\ttls {cert} {key}",
    }
    config = folder / "Caddyfile"
    config.write_text(replaced((DEPLOY / "Caddyfile").read_text(encoding="utf-8"), {**here, **(changes or {})}), encoding="utf-8")
    command = ["env", f"HOME={folder}", program, "run", "--config", str(config), "--adapter", "caddyfile"]
    with process(command, folder / "log") as started:
        wait_until_listening(started, port, folder / "log")
        yield Proxy(started, port, cert, config, folder / "log")


def post(method: str, params: Mapping[str, Any], *, token: str | None = None, **headers: str) -> tuple[dict[str, str], bytes]:
    """Headers and body of a request of the current protocol."""
    message = make_request(method, params)
    if token is not None:
        message["params"]["_meta"]["progressToken"] = token
    return make_headers(message, host=NAME, **headers), json.dumps(message).encode()


def call(tool: str, *, token: str | None = None, **arguments: Any) -> tuple[dict[str, str], bytes]:
    """Headers and body of a call."""
    return post("tools/call", {"name": tool, "arguments": arguments}, token=token)


async def ask(client: HttpClient, tool: str, *, headers: Mapping[str, str] | None = None, **arguments: Any) -> str:
    """The text that a tool answers with."""
    given, body = call(tool, **arguments)
    async with client.request("POST", {**given, **(headers or {})}, body) as answer:
        (block,) = json.loads(await whole(answer))["result"]["content"]
        return str(block["text"])


class Visitor:
    """A client of 2025-11-25 in a session.

    Attributes:
        session: Its id.
    """

    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self.session = ""

    def headers(self, **more: str) -> dict[str, str]:
        """Of a request in the session."""
        known = {"content-type": "application/json", "accept": "application/json, text/event-stream", "mcp-protocol-version": LEGACY}
        return {**known, **({"mcp-session-id": self.session} if self.session else {}), **more}

    async def send(self, method: str, params: Mapping[str, Any], number: int | None = 1) -> tuple[int, str]:
        """Status and text of an answer."""
        message = {"jsonrpc": "2.0", "method": method, "params": params, **({} if number is None else {"id": number})}
        async with self._client.request("POST", self.headers(), json.dumps(message).encode()) as answer:
            head = await answer.head()
            self.session = head.headers.get("mcp-session-id", self.session)
            return head.status, (await whole(answer)).decode()

    async def begin(self) -> None:
        """Opens the session."""
        params = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "visitor", "version": "1"}}
        status, text = await self.send("initialize", params)
        assert status == 200, text
        assert (await self.send("notifications/initialized", {}, None))[0] == 202

    async def call(self, tool: str, **arguments: Any) -> str:
        """The text that a tool answers with."""
        status, text = await self.send("tools/call", {"name": tool, "arguments": arguments})
        assert status == 200, text
        message = json.loads(text.rpartition("data: ")[2] if text.startswith(("id:", "data:", "event:", ":")) else text)
        return str(message["result"]["content"][0]["text"])

    def listen(self, last: str = "") -> Any:
        """The session's stream, from after an event."""
        given = self.headers(accept="text/event-stream", **({"last-event-id": last} if last else {}))
        return self._client.request("GET", given)


async def next_event(answer: Answer) -> tuple[str, dict[str, Any]]:
    """Id and message of the next event that says something."""
    async for event in events(answer):
        if event.data:
            return event.id, json.loads(event.data)
    raise EOFError("the stream ended")

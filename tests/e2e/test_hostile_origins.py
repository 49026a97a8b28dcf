"""SA16, SA17, SA41 over a socket: web pages, names that are not this server's, and preflights, in every shape of deployment."""

import json
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import Any

import pytest
from asgi_driver import LATEST, make_headers, make_request
from e2e.asgi_servers import running
from e2e.hostile_driver import ERAS, V11, Speaker, Target, stall
from e2e.http_clients import whole
from e2e.raw_http import Response, ask, make_head
from e2e.serving import free_port, process, wait_until_listening

APP = "https://app.example.com"
FORWARDED: dict[str, Any] = {
    "x-forwarded-host": "evil.example",
    "forwarded": "host=evil.example;proto=https",
    "x-original-host": "evil.example",
    "x-host": "evil.example",
    "x-forwarded-server": "evil.example",
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with stall(tmp_path_factory.mktemp("origins")) as target:
        yield target


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """It takes calls of one web application, and is known by one name."""
    options: dict[str, Any] = {"hosts": ["mcp.example.com", "127.0.0.1"], "origins": [APP], "cors": True}
    with stall(tmp_path_factory.mktemp("cors"), **options) as target:
        yield target


@pytest.fixture(params=ERAS)
def speaker(request: pytest.FixtureRequest, target: Target) -> Iterator[Speaker]:
    """Its next call is served, whatever was sent, and nothing has run."""
    with target.unharmed(request.param) as speaker:
        yield speaker


def refused(answer: Response, status: int, setting: str) -> str:
    """Demand a refusal that names the setting, as JSON-RPC without an id; its text."""
    assert (answer.status, answer.message["error"]["code"]) == (status, -32600)
    assert "id" not in answer.message
    text: str = answer.message["error"]["message"]
    assert setting in text
    assert not any(name.startswith("access-control-") for name in answer.headers)
    return text


ORIGINS = [
    "https://evil.example",
    "null",
    "http://localhost:3000",
    "http://127.0.0.1",
    "http://127.0.0.1:1",
    "https://127.0.0.1.evil",
    "http://127.0.0.1@evil.example",
    "file://",
    "chrome-extension://abc",
    "",
    "http://[::1]:80",
]


def test_a_page_of_another_origin_runs_nothing(speaker: Speaker) -> None:
    # SA16
    for origin in ORIGINS:
        for answer in (
            speaker.call("echo", {"text": "x"}, origin=origin or " "),
            speaker.send(b"garbage", origin=origin or " "),
            ask(speaker.port, make_head(None, speaker.headers(origin=origin or " "), verb="GET")),
            ask(speaker.port, make_head(None, speaker.headers(origin=origin or " "), verb="DELETE")),
        ):
            assert repr(origin) in refused(answer, 403, "origins=")


def test_its_own_page_may_call(speaker: Speaker) -> None:
    # SA16: without this the test above would pass for a server that refuses all
    for origin in (f"http://127.0.0.1:{speaker.port}", f"HTTP://127.0.0.1:{speaker.port}"):
        assert speaker.call("quick", origin=origin).status == 200


HOSTS = [
    "evil.example",
    "evil.example:@",
    "127.0.0.1.evil.example:@",
    "localhost.evil.example",
    "user@127.0.0.1:@",
    "127.0.0.1:@@evil.example",
    "evil.example#127.0.0.1",
    "127.0.0.1 evil.example",
    "127.0.0.1, evil.example",
    "[::1].evil.example",
    "0.0.0.0:@",
    "127.1:@",
    "0x7f000001:@",
    "2130706433",
    "xn--localhost-.example",
    "192.168.1.1:@",
]


def test_a_name_that_is_not_the_servers_is_refused(speaker: Speaker) -> None:
    # HM-04, A34: DNS rebinding
    for name in HOSTS:
        host = name.replace("@", str(speaker.port), 1) if name.endswith(":@") else name
        text = refused(speaker.call("echo", {"text": "x"}, host=host), 421, "hosts=")
        assert repr(host.lower()) in text.lower() or "unprintable" in text


LOCAL = ["127.0.0.1:@", "LOCALHOST:@", "localhost", "localhost.", "localhost.:@", "[::1]:@", "[0:0:0:0:0:0:0:1]", "127.0.0.1.:@"]


def test_a_loopback_name_is_the_servers_however_it_is_written(speaker: Speaker) -> None:
    # HM-04
    for host in LOCAL:
        assert speaker.call("quick", host=host.replace("@", str(speaker.port))).status == 200


def test_no_host_is_refused(speaker: Speaker) -> None:
    # HM-04: by us, or by the HTTP server before us
    answer = speaker.call("echo", {"text": "x"}, host=None)
    assert answer.status in {400, 421}


def test_what_a_forwarding_header_says_counts_for_nothing(speaker: Speaker) -> None:
    # HM-04: anybody can send one
    for name, value in FORWARDED.items():
        assert speaker.call("quick", **{name: value}).status == 200
        honest = value.replace("evil.example", f"127.0.0.1:{speaker.port}")
        refused(speaker.call("echo", {"text": "x"}, host="evil.example", **{name: honest}), 421, "hosts=")
        refused(speaker.call("echo", {"text": "x"}, origin="https://evil.example", **{name: value}), 403, "origins=")


def test_a_client_that_came_through_a_proxy_is_not_of_this_machine(speaker: Speaker) -> None:
    # HM-03: uvicorn takes the word of a proxy on this machine for where a client is
    answer = speaker.call("echo", {"text": "x"}, x_forwarded_for="203.0.113.9")
    assert "proxy" in refused(answer, 403, "allow_remote")


# Preflights


def preflight(port: int, origin: str | None, **more: str) -> Response:
    """What a browser asks before it lets a page call."""
    headers = {"host": f"127.0.0.1:{port}", "access-control-request-method": "POST", **({"origin": origin} if origin else {}), **more}
    return ask(port, make_head(None, {key.replace("_", "-"): value for key, value in headers.items()}, verb="OPTIONS"))


def test_a_preflight_is_answered_for_a_page_that_may_call(shared: Target) -> None:
    # SA17, A57
    asked = "authorization, content-type, mcp-protocol-version, mcp-method, mcp-name, mcp-session-id"
    answer = preflight(shared.port, APP, access_control_request_headers=asked)
    assert answer.status == 204
    assert answer.headers["access-control-allow-origin"] == APP
    allowed = {name.strip() for name in answer.headers["access-control-allow-headers"].split(",")}
    assert allowed >= set(asked.split(", "))
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "*" not in json.dumps(answer.headers)
    assert "access-control-allow-credentials" not in answer.headers
    assert answer.headers["vary"].lower() == "origin"
    private = preflight(shared.port, APP, access_control_request_private_network="true")
    assert private.headers["access-control-allow-private-network"] == "true"


@pytest.mark.parametrize("version", [LATEST, V11])
def test_the_page_can_read_what_it_needs(shared: Target, version: str) -> None:
    # A57
    speaker = shared.speaker(version)
    for answer in (speaker.call("quick", origin=APP), speaker.call("nothing", origin=APP), speaker.send(b"{", origin=APP)):
        assert answer.headers["access-control-allow-origin"] == APP
        exposed = {name.strip() for name in answer.headers["access-control-expose-headers"].split(",")}
        assert {"mcp-session-id", "www-authenticate", "retry-after"} <= exposed
        assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize("origin", ["https://evil.example", "null", APP + ".evil", "http://app.example.com", APP + ":8443"])
def test_a_preflight_of_another_page_gets_nothing(shared: Target, origin: str) -> None:
    # SA17
    refused(preflight(shared.port, origin), 403, "origins=")


def test_a_preflight_that_injects_gets_a_plain_list(shared: Target) -> None:
    # SA13, SA17
    answer = preflight(shared.port, APP, access_control_request_headers="x-a, <script>")
    assert answer.headers["access-control-allow-headers"] == "content-type, mcp-protocol-version, mcp-method, mcp-name"


def test_without_cors_there_are_no_preflights(target: Target) -> None:
    # SA17: never 401, never *
    answer = preflight(target.port, f"http://127.0.0.1:{target.port}")
    assert answer.status == 405
    assert "POST" in answer.headers["allow"]
    assert not any(name.startswith("access-control-") for name in answer.headers)
    assert preflight(target.port, None).status == 405
    refused(preflight(target.port, APP), 403, "origins=")


def test_a_preflight_needs_no_token(tmp_path_factory: pytest.TempPathFactory) -> None:
    # SA17: browsers send none
    tokens = {"a-token-of-alice": ["alice", []]}
    with stall(tmp_path_factory.mktemp("auth"), origins=[APP], cors=True, tokens=tokens, watched=False) as target:
        answer = preflight(target.port, APP, access_control_request_headers="authorization, content-type")
        assert answer.status == 204
        assert "authorization" in answer.headers["access-control-allow-headers"]
        unknown = Speaker(target.port, LATEST).call("quick", origin=APP)
        assert (unknown.status, unknown.headers["access-control-allow-origin"]) == (401, APP)
        assert "www-authenticate" in unknown.headers


# Shapes of deployment


def test_behind_a_proxy_the_public_name_is_the_servers(shared: Target) -> None:
    # A34: the proxy passes Host on
    speaker = shared.speaker(LATEST)
    for host in ("mcp.example.com", "mcp.example.com:443", "MCP.example.com."):
        assert speaker.call("quick", host=host).status == 200
        assert speaker.call("quick", host=host, x_forwarded_proto="https").status == 200
    for host in ("localhost", "other.example.com", "x.mcp.example.com"):
        refused(speaker.call("echo", {"text": "x"}, host=host), 421, "hosts=")


def test_over_a_unix_socket_the_host_is_looked_at_too(tmp_path: Path) -> None:
    # HM-04: a web page reaches it through the proxy in front
    path, log = tmp_path / "s", tmp_path / "log"
    program = f"import uvicorn; from desk import Desk; from callboard import asgi; uvicorn.run(asgi(Desk().server), uds={str(path)!r}, log_level='error')"
    tests = Path(__file__).resolve().parents[1]
    with process([sys.executable, "-c", program], log, cwd=tests) as started:
        message = make_request("tools/list")
        body = json.dumps(message).encode()
        for host, status in (("localhost", 200), ("evil.example", 421), ("", 421)):
            headers = make_headers(message, host=host)
            assert ask_unix(path, make_head(len(body), headers) + body, started) == status


def ask_unix(path: Path, request: bytes, started: "Popen[bytes]") -> int:
    """Status of an answer over a unix socket; it is tried until somebody listens."""
    while started.poll() is None:
        try:
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(10)
                client.connect(str(path))
                client.sendall(request)
                return int(client.recv(65536).split()[1])
        except (ConnectionRefusedError, FileNotFoundError):
            with suppress(TimeoutExpired):
                started.wait(0.02)
    raise AssertionError("the server has ended")


@pytest.mark.parametrize("name", ["granian-http2", "hypercorn-http2"])
async def test_over_http_2_the_authority_is_the_host(name: str, tmp_path: Path) -> None:
    # HM-04: there is no Host header; the server puts :authority in its place
    with running(name, tmp_path) as endpoint:
        async with endpoint.client() as client:
            message = make_request("tools/list")
            body = json.dumps(message).encode()
            local = f"127.0.0.1:{endpoint.port}"
            for authority, origin, status in (
                (local, f"http://{local}", 200),
                ("evil.example", None, 421),
                (f"evil.example@{local}", None, 421),
                (local, "https://evil.example", 403),
            ):
                headers = make_headers(message, host=None, origin=origin)
                async with client.request("POST", {":authority": authority, **headers}, body) as answer:
                    assert (await answer.head()).status == status
                    await whole(answer)


MOUNTED = """
import uvicorn
from desk import Desk
from starlette.applications import Starlette
from starlette.routing import Mount
from callboard import asgi
app = asgi(Desk().server)
uvicorn.run(Starlette(routes=[Mount("/deep/inside", app=app)]), port={port}, log_level="error")
"""


def test_mounted_in_another_application_it_looks_for_itself(tmp_path: Path) -> None:
    # HM-02, HM-04
    port, log = free_port(), tmp_path / "log"
    with process([sys.executable, "-c", MOUNTED.format(port=port)], log, cwd=Path(__file__).resolve().parents[1]) as started:
        wait_until_listening(started, port, log)
        message = make_request("tools/list")
        body = json.dumps(message).encode()
        for changed, status in (({}, 200), ({"host": "evil.example"}, 421), ({"origin": "https://evil.example"}, 403)):
            headers = {**make_headers(message, host=f"127.0.0.1:{port}"), **changed}
            for path in ("/deep/inside/", "/deep/inside/mcp"):
                assert ask(port, make_head(len(body), headers, path=path) + body).status == status


# The development surface


@pytest.mark.parametrize("path", ["/", "/inspector", "/ui", "/docs", "/openapi.json", "/sse", "/mcp/../", "/mcp/x", "/.env", "//mcp"])
def test_there_is_no_web_page_and_nothing_that_a_get_starts(target: Target, path: str) -> None:
    # SA41
    before = target.runs()
    for verb in ("GET", "PUT", "TRACE"):
        answer = ask(target.port, make_head(None, {"host": f"127.0.0.1:{target.port}", "accept": "text/html"}, verb=verb, path=path))
        assert answer.status in {400, 404, 405}
        assert "html" not in answer.headers.get("content-type", "")
    assert target.runs() == before


@pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 is this machine on Linux alone")
@pytest.mark.parametrize("options", [["--reload"], []])
def test_the_command_binds_loopback_alone(tmp_path: Path, options: list[str]) -> None:
    # SA41, HM-03
    (tmp_path / "app.py").write_text(
        "from callboard import Server\nserver = Server('x')\n\n\n@server.tool\nasync def quick() -> str:\n    return 'quick'\n"
    )
    port, log = free_port(), tmp_path / "log"
    words = [sys.executable, "-m", "callboard", "run", "app.py", "--port", str(port), *options]
    with process(words, log, cwd=tmp_path) as started:
        wait_until_listening(started, port, log)
        Speaker(port, LATEST).serves()
        for address in ("127.0.0.2", socket.gethostbyname(socket.gethostname())):
            if address == "127.0.0.1":
                continue
            with pytest.raises(OSError, match="refused"):
                socket.create_connection((address, port), timeout=2)
        assert Speaker(port, LATEST).call("quick", origin="http://localhost:6274").status == 403

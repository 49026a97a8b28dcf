"""`callboard run` with TLS, a port for probes, a Unix socket and an access log, as those who ask it see it."""

import json
import signal
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from e2e.asgi_servers import make_certificate
from e2e.serving import free_port, process, wait_until_listening

RUN = [sys.executable, "-m", "callboard", "run", "drain_program.py:app"]


def fetch(connected: socket.socket, path: str) -> tuple[int, bytes]:
    """Status and body of a GET."""
    with connected:
        connected.settimeout(20)
        connected.sendall(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\nuser-agent: probe\r\n\r\n".encode())
        answer = b""
        while piece := connected.recv(65536):
            answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), body


@contextmanager
def stopped_well(words: list[str], log: Path, port: int) -> Iterator[None]:
    """A server that is served while the block runs, and then told to stop."""
    with process([*RUN, *words], log) as started:
        wait_until_listening(started, port, log)
        yield
        started.send_signal(signal.SIGTERM)
        assert started.wait(30) == 0
    assert "Traceback" not in log.read_text()


def test_https_and_a_port_for_probes_and_a_line_for_each_request(tmp_path: Path) -> None:
    # SA39: probes need neither TLS nor credential on their own port; nothing secret is in the log
    port, health, log = free_port(), free_port(), tmp_path / "log"
    certificate, key = make_certificate(tmp_path)
    words = ["--port", str(port), "--health-port", str(health), "--ssl-certfile", str(certificate), "--ssl-keyfile", str(key)]
    with stopped_well([*words, "--access-log", "json"], log, port):
        trust = ssl.create_default_context(cafile=str(certificate))
        secure = trust.wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname="127.0.0.1")
        assert fetch(secure, "/nowhere?token=s3cret")[0] == 404
        assert fetch(socket.create_connection(("127.0.0.1", health)), "/readyz") == (200, b'{"status":"ok"}')
        assert fetch(socket.create_connection(("127.0.0.1", health)), "/mcp")[0] == 404
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    (line,) = [line for line in lines if line["logger"] == "callboard.access"]
    assert {name: line[name] for name in ("method", "path", "status", "peer", "agent")} == {
        "method": "GET", "path": "/nowhere", "status": 404, "peer": "127.0.0.1", "agent": "probe",
    }  # fmt: skip
    assert "s3cret" not in log.read_text()
    assert any(f"https://127.0.0.1:{port}/mcp" in line["message"] for line in lines)


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="this system has no Unix sockets")
def test_a_unix_socket(tmp_path: Path) -> None:
    path, health, log = tmp_path / "s", free_port(), tmp_path / "log"
    with stopped_well(["--uds", str(path), "--health-port", str(health)], log, health):
        while fetch(socket.create_connection(("127.0.0.1", health)), "/readyz")[0] != 200:
            pass
        connected = socket.socket(socket.AF_UNIX)
        connected.connect(str(path))
        assert fetch(connected, "/readyz") == (200, b'{"status":"ok"}')
        assert path.stat().st_mode & 0o777 == 0o660
    assert not path.exists()

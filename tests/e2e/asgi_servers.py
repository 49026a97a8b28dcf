"""The ASGI servers people run, in every HTTP version that each speaks, with stage.py on them."""

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from e2e.http_clients import HOST, Connect, HttpClient, http1, http2, http3
from e2e.serving import free_port, process, wait_until_listening


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
    "uvicorn-http1": Setup("uvicorn stage:app --port {port}", http1),
    "granian-http1": Setup(f"{GRANIAN} --http 1 stage:app", http1),
    "granian-http2": Setup(f"{GRANIAN} --http 2 stage:app", http2),
    "granian-http2-tls": Setup(f"{GRANIAN} --http 2 --ssl-certificate {{cert}} --ssl-keyfile {{key}} stage:app", http2, tls=True),
    "hypercorn-http1": Setup("hypercorn stage:app --bind 127.0.0.1:{port}", http1),
    "hypercorn-http2": Setup("hypercorn stage:app --bind 127.0.0.1:{port}", http2),
    "hypercorn-http2-tls": Setup(f"hypercorn stage:app --bind 127.0.0.1:{{port}} {CERTIFIED}", http2, tls=True),
    "hypercorn-http3": Setup(
        f"hypercorn stage:app --graceful-timeout 0 --bind 127.0.0.1:{{port}} --quic-bind 127.0.0.1:{{port}} {CERTIFIED}",
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


@contextmanager
def running(name: str, folder: Path) -> Iterator[Endpoint]:
    """Runs a server; what it prints goes into the folder and may hold no traceback.

    Args:
        name: A key of SETUPS.
        folder: For its certificate and its log.
    """
    setup = SETUPS[name]
    cert, key = make_certificate(folder)
    port = free_port()
    words = setup.command.format(port=port, cert=cert, key=key).split()
    with process([sys.executable, "-m", *words], folder / "log") as started:
        wait_until_listening(started, port, folder / "log")
        yield Endpoint(setup, port, cert if setup.tls else None)
    printed = (folder / "log").read_text(errors="replace")
    assert "Traceback" not in printed, printed

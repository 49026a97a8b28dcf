"""What it costs to tell all workers something, and to speak TLS: parts of `benchmarks.costs`."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.contenders import Contender, Process
from benchmarks.environments import ROOT
from benchmarks.meters import Meters, cpu_seconds
from benchmarks.traffic import TIMEOUT, call, send

READERS, TOLD = 50, 100  # of one Redis, and what each is told
PACE = 0.02  # seconds between two things that are told
CLIENTS, ASKED = 8, 800  # of our own, who know TLS
HELLO = {"text": "hello world"}
PUBLISHER = """
import asyncio, sys, time
from callboard.stores.redis import RedisStore
async def main(url, many, pause):
    store = RedisStore(url, timeout=30.0)
    store.name("bench")
    await store.open()
    await asyncio.sleep(0.5)
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(many):
        store.bus.publish("callboard.bench", b"x" * 100)
        if pause:
            await asyncio.sleep(pause)
        elif number % 500 == 499:
            await asyncio.sleep(0.05)
    await asyncio.sleep(1.0)
    print("done", flush=True)
    sys.stdin.readline()
    await store.close()
asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
"""


def publish(url: str, many: int, pause: float, heard: Process, meters: Meters, quiet: dict[str, float]) -> dict[str, float]:
    """CPU in microseconds per message of the Bus: of a worker that is not concerned, and of the Redis for its three readers."""
    command = [sys.executable, "-c", PUBLISHER, url, str(many), str(pause)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True) as teller:
        assert teller.stdin is not None
        assert teller.stdout is not None
        teller.stdout.readline()
        before, begin = meters.read(heard), time.monotonic()
        teller.stdin.write("\n")
        teller.stdin.flush()
        teller.stdout.readline()
        after, took = meters.read(heard), time.monotonic() - begin
        teller.stdin.write("\n")
        teller.stdin.flush()
    return {what: ((after[what] - before[what]) * 1e6 - quiet[what] * took) / many for what in ("worker", "redis")}


def hear(meters: Meters, first: str, again: str, tell: str) -> float:
    """CPU of the Redis in microseconds for each of those that hear a message which is told now and then.

    Args:
        meters: Its meters.
        first, again: What a reader sends at first, and after each message; nothing where that is empty.
        tell: What tells all of them.
    """
    readers = [socket.create_connection(("127.0.0.1", meters.redis.port), TIMEOUT) for _ in range(READERS)]
    teller = socket.create_connection(("127.0.0.1", meters.redis.port), TIMEOUT)

    def take_turn(many: list[socket.socket]) -> float:
        for reader in many:
            reader.sendall(first.encode() + b"\r\n")
            if not again:
                reader.recv(65_536)  # that it has subscribed
        before = cpu_seconds(meters.pid)
        for _ in range(TOLD):
            teller.sendall(tell.encode() + b"\r\n")
            teller.recv(65_536)
            for reader in many:
                reader.recv(65_536)
                if again:
                    reader.sendall(again.encode() + b"\r\n")
            time.sleep(PACE)
        return cpu_seconds(meters.pid) - before

    few = take_turn(readers[:1])
    all_of_them = take_turn(readers[1:])
    for peer in (*readers, teller):
        peer.close()
    return (all_of_them - few) / TOLD / (READERS - 2) * 1e6


def weigh_readers(meters: Meters) -> dict[str, float]:
    """What each reader of the Bus costs the Redis for a message, and each who hears a channel."""
    read = "XREAD BLOCK 60000 STREAMS bench:bus $"
    tell = "XADD bench:bus MAXLEN 100 * m " + "x" * 100
    return {
        "reader_redis_us": hear(meters, read, read, tell),
        "hearer_redis_us": hear(meters, "SUBSCRIBE bench:all", "", "PUBLISH bench:all " + "x" * 60),
    }


SECURE = """
import os, ssl
from benchmarks.server import make_app
from callboard.transport.http_server import Settings, serve_with
serve_with(make_app(), Settings("127.0.0.1", int(os.environ["PORT"]), "warning", certfile=os.environ["BENCH_CERTIFICATE"]))
"""


def make_certificate(folder: Path) -> Path:
    """A certificate and its key (P-256), for a day."""
    key, made = folder / "key.pem", folder / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1"]
    subprocess.run([*command, "-subj", "/CN=127.0.0.1", "-keyout", str(key), "-out", str(made)], check=True, capture_output=True)
    made.write_bytes(made.read_bytes() + key.read_bytes())
    return made


def ask_often(process: Process, context: ssl.SSLContext | None, *, anew: bool) -> float:
    """CPU of the server for a request in microseconds, from some clients of our own, which may connect anew for each."""
    exchange = call("aecho", HELLO)

    def talk(many: int) -> None:
        connection = None
        for _ in range(many):
            if connection is None:
                plain = HTTPConnection("127.0.0.1", process.port, timeout=TIMEOUT)
                connection = plain if context is None else HTTPSConnection("127.0.0.1", process.port, timeout=TIMEOUT, context=context)
            send(connection, exchange)
            if anew:
                connection.close()
                connection = None

    before = cpu_seconds(process.pid)
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(talk, [ASKED // CLIENTS] * CLIENTS))
    return (cpu_seconds(process.pid) - before) / ASKED * 1e6


def weigh_tls(plain: Process, rounds: int) -> dict[str, float]:
    """What TLS adds to a call on an open connection, and to a connection, in microseconds and floors of plain calls."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with TemporaryDirectory() as folder:
        path = make_certificate(Path(folder))
        contender = Contender("tls", (sys.executable, "-c", SECURE), {"BENCH_CERTIFICATE": str(path)})
        secure = Process(contender, BENCH_MODE="session-json")
        try:
            runs = [
                {
                    "plain": ask_often(plain, None, anew=False),
                    "secure": ask_often(secure, context, anew=False),
                    "plain_anew": ask_often(plain, None, anew=True),
                    "secure_anew": ask_often(secure, context, anew=True),
                }
                for _ in range(rounds + 1)
            ][1:]
        finally:
            secure.stop()
    found = {f"{name}_us": median(run[name] for run in runs) for name in runs[0]}
    return {
        **found,
        "call_ratio": median(run["secure"] / run["plain"] for run in runs),
        "connection_ratio": median((run["secure_anew"] - run["secure"]) / run["plain"] for run in runs),
        "plain_connection_ratio": median((run["plain_anew"] - run["plain"]) / run["plain"] for run in runs),
    }

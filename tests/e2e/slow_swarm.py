"""Clients that take their time, as a process: `python slow_swarm.py PORT HEADS BODIES READERS`.

Some send a head at one byte a second, some a body, some read nothing of a large answer or of a long stream. Says "ready" once all of them are
there, and ends when its stdin does.
"""

import select
import socket
import sys
import time
from contextlib import suppress

from asgi_driver import make_meta
from e2e.raw_http import make_call

# More than the system takes off a server's hands for a reader that reads nothing.
BLOB = 3_500_000
NOTES, NOTE = 400, 10_000


class Slow:
    """One that sends a byte a second."""

    def __init__(self, port: int, start: bytes) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.socket.sendall(start)

    def drip(self) -> None:
        """Send another byte, as long as there is a connection."""
        with suppress(OSError):
            self.socket.send(b"x")


def read_nothing(port: int, number: int) -> socket.socket:
    """Ask for a large answer, or for a long stream, and read nothing of it."""
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.settimeout(20)
    reader.connect(("127.0.0.1", port))
    if number % 2:
        reader.sendall(make_call("flood", {"count": NOTES, "size": NOTE}, port=port, meta=make_meta(progressToken="p")))
    else:
        reader.sendall(make_call("blob", {"size": BLOB}, port=port))
    return reader


def main() -> None:
    """Be slow until stdin ends."""
    port, heads, bodies, readers = (int(argument) for argument in sys.argv[1:])
    head = b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "
    body = make_call("echo", {"text": "x" * 2000}, port=port)[:-1500]
    slow = [Slow(port, head) for _ in range(heads)] + [Slow(port, body) for _ in range(bodies)]
    reading = [read_nothing(port, number) for number in range(readers)]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    step = 1.0 / max(1, len(slow))
    number, started = 0, time.monotonic()
    while True:
        due = started + number * step
        if select.select([sys.stdin], [], [], max(0.0, due - time.monotonic()))[0]:
            break
        if slow:
            slow[number % len(slow)].drip()
        number += 1
    for reader in reading:
        reader.close()


if __name__ == "__main__":
    main()

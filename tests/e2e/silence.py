"""A server that takes connections and says nothing."""

import socket
import time
from contextlib import suppress


def stay_silent(server: socket.socket, waited: list[float]) -> None:
    """Takes connections one after another, answers none, and notes how long each was held, until the socket is shut down."""
    while True:
        try:
            connection = server.accept()[0]
        except OSError:
            return
        with connection:
            began = time.monotonic()
            waited.append(0.0)
            with suppress(OSError):
                while connection.recv(65536):
                    pass
            waited[-1] = time.monotonic() - began

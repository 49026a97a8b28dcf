"""Of 12,000 clients that open a session and never end it, 10,000 are served and the rest told to come back; all expire in time."""

import json
import time

from benchmarks.contenders import Process, callboard
from benchmarks.harness import Bound, Options, Report, run_claim, serving
from benchmarks.legacy_traffic import HEADERS, initialize
from benchmarks.traffic import Exchange, ask_tool, open_connection, send

CLIENTS, ROOM = 12_000, 10_000
TTL = 20.0  # seconds; all clients come within it
PATIENCE = 5.0  # seconds that the last session may be late
SLACK = 50  # objects that caches may have come to hold


def crowd(process: Process) -> tuple[list[str], int]:
    """Let all clients come; the sessions that were opened, and how many were refused in good form."""
    connection = open_connection(process.port)
    sessions: list[str] = []
    refused = 0
    for _ in range(CLIENTS):
        response, body = send(connection, initialize())
        if response.status == 200:
            sessions.append(response.headers["mcp-session-id"])
        elif response.status == 503 and response.headers["retry-after"] and json.loads(body)["error"]["code"] == -32603:
            refused += 1
    connection.close()
    return sessions, refused


def count_living(process: Process, sessions: list[str]) -> int:
    """How many of some sessions can still be ended."""
    connection = open_connection(process.port)
    statuses = [send(connection, Exchange(HEADERS, b"", (session,)), "DELETE")[0].status for session in sessions]
    connection.close()
    return sum(status != 404 for status in statuses)


def measure(_options: Options) -> Report:
    """One crowd, and a client after its time."""
    with serving([callboard()], mode="session-json", BENCH_TTL=str(TTL)) as processes:
        process = processes["callboard"]
        connection = open_connection(process.port)
        send(connection, initialize())
        before = ask_tool(connection, "sweep")["objects"]
        begin = time.monotonic()
        sessions, refused = crowd(process)
        taken = time.monotonic() - begin
        time.sleep(TTL + PATIENCE)
        living = count_living(process, sessions[:100] + sessions[-100:])
        connection = open_connection(process.port)
        objects = ask_tool(connection, "sweep")["objects"] - before
        welcome, _ = send(connection, initialize())
        connection.close()
    row = {"opened": len(sessions), "refused": refused, "seconds": taken, "living": living, "objects_left": objects}
    return Report(
        {"callboard": row},
        [
            Bound("sessions that were opened, off from 10,000", abs(len(sessions) + 1 - ROOM), 0),
            Bound("clients that were neither served nor refused in good form", CLIENTS - len(sessions) - refused, 0),
            Bound("seconds that this took, within the sessions' time to live", taken, TTL),
            Bound("sessions alive after it", living, 0),
            Bound("objects left after it", objects, SLACK),
            Bound("status of a client after it", welcome.status, 200),
        ],
    )


if __name__ == "__main__":
    run_claim(measure)

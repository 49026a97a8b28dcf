"""An idle session takes 2 KB at most and no task; its memory comes back when it is deleted or expires.

Measured as resident memory at 5,000 sessions. After their end the process is within 15 % of what it was before.
"""

import time

from benchmarks.contenders import Contender, Process, callboard, mcp_high, real_floor
from benchmarks.harness import Bound, Options, Report, run_claim, serving
from benchmarks.legacy_traffic import HEADERS, call, close_session, open_session
from benchmarks.traffic import Exchange, ask, ask_tool, open_connection, send

SESSIONS = 5_000
WARM = 100
SETTLE = 1.0  # seconds of quiet before memory is read
TTL = 12.0  # seconds; opening all of them takes less
PATIENCE = 5.0  # seconds that the last of them may be late


def read_memory(process: Process) -> float:
    """Resident memory in KiB, once the process is quiet."""
    time.sleep(SETTLE)
    return process.rss_kb()


def warm_up(process: Process) -> None:
    """Some whole sessions, one call each."""
    connection = open_connection(process.port)
    for _ in range(WARM):
        session = open_session(connection)
        ask(connection, call("aecho", {"text": "hello world"}, sessions=(session,)))
        close_session(connection, session)
    connection.close()


def fill(process: Process) -> tuple[list[str], dict[str, float]]:
    """Open all sessions; their ids, and what they take."""
    warm_up(process)
    before = read_memory(process)
    connection = open_connection(process.port)
    sessions = [open_session(connection) for _ in range(SESSIONS)]
    connection.close()
    return sessions, {"empty_kb": before, "session_kb": (read_memory(process) - before) / SESSIONS}


def delete_all(contender: Contender) -> dict[str, float]:
    """Memory of idle sessions, and after they are deleted."""
    with serving([contender], mode="session-json") as processes:
        process = processes[contender.name]
        sessions, row = fill(process)
        connection = open_connection(process.port)
        for session in sessions:
            close_session(connection, session)
        connection.close()
        return {**row, "left": read_memory(process) / row["empty_kb"]}


def expire_all() -> dict[str, float]:
    """Memory of idle sessions, and after they have expired; tasks and objects that they take.

    Raises:
        RuntimeError: Some have not.
    """
    with serving([callboard()], mode="session-json", BENCH_TTL=str(TTL)) as processes:
        process = processes["callboard"]
        warm_up(process)
        connection = open_connection(process.port)
        before = ask_tool(connection, "census"), ask_tool(connection, "sweep")
        sessions, row = fill(process)
        connection = open_connection(process.port)
        full = ask_tool(connection, "census"), ask_tool(connection, "sweep")
        time.sleep(TTL + PATIENCE)
        connection = open_connection(process.port)
        for session in (sessions[0], sessions[-1]):
            response, _ = send(connection, Exchange(HEADERS, b"", (session,)), "DELETE")
            if response.status != 404:
                raise RuntimeError(f"a session that should have expired answers {response.status}")
        after = ask_tool(connection, "sweep")
        connection.close()
        return {
            **row,
            "left": read_memory(process) / row["empty_kb"],
            "tasks_more": full[0]["tasks"] - before[0]["tasks"],
            "objects_each": (full[1]["objects"] - before[1]["objects"]) / SESSIONS,
            "objects_left": after["objects"] - before[1]["objects"],
        }


def measure(options: Options) -> Report:
    """Weigh each, one after the other."""
    rows = {contender.name: delete_all(contender) for contender in (callboard(), real_floor(options.floors), mcp_high())}
    rows["callboard, expired"] = expired = expire_all()
    return Report(
        rows,
        [
            Bound("KB of memory per idle session", rows["callboard"]["session_kb"], 2),
            Bound("tasks of 5,000 idle sessions", expired["tasks_more"], 0),
            Bound("memory after DELETE / before", rows["callboard"]["left"], 1.15),
            Bound("memory after expiry / before", expired["left"], 1.15),
            Bound("objects left after expiry", expired["objects_left"], 50),
        ],
    )


if __name__ == "__main__":
    run_claim(measure)

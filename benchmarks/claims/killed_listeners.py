"""A thousand listen streams, five hundred of them reset at once: the server's count is right with the first request that asks for it."""

import time

from benchmarks.contenders import Process, callboard
from benchmarks.harness import Bound, Options, Report, run_claim, serving
from benchmarks.traffic import Listener, ask_tool, open_connection

STREAMS, KILLED = 1000, 500
PATIENCE = 10.0
AT_ONCE = 50.0  # milliseconds


def kill_half(process: Process) -> dict[str, float]:
    """Open the streams, reset half of them, ask until the count is right."""
    connection = open_connection(process.port)
    listeners = [Listener(process.port, number) for number in range(STREAMS)]
    before = ask_tool(connection, "census")["listeners"]
    for listener in listeners[:KILLED]:
        listener.kill()
    begin = time.perf_counter()
    count = first = ask_tool(connection, "census")["listeners"]
    while count != STREAMS - KILLED and time.perf_counter() < begin + PATIENCE:
        count = ask_tool(connection, "census")["listeners"]
    taken = (time.perf_counter() - begin) * 1e3
    for listener in listeners[KILLED:]:
        listener.close()
    connection.close()
    return {"before": before, "asked_at_once": first, "after": count, "right_after_ms": taken}


def measure(_options: Options) -> Report:
    """Kill once."""
    with serving([callboard()]) as processes:
        row = kill_half(processes["callboard"])
    return Report(
        {"callboard": row},
        [
            Bound("listeners missing before the kill", STREAMS - row["before"], 0),
            Bound("listeners wrongly counted in the end", abs(row["after"] - (STREAMS - KILLED)), 0),
            Bound("milliseconds until the count was right", row["right_after_ms"], AT_ONCE),
        ],
    )


if __name__ == "__main__":
    run_claim(measure)

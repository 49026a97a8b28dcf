"""Server CPU of a short session: at most 1.6 times the conforming floor, 1/5 of mcp.

A session is initialize, notifications/initialized, one `tools/call` and DELETE; a request is a quarter of one.
"""

import re
from functools import partial

from benchmarks import load
from benchmarks.contenders import Process, callboard, mcp_high, real_floor
from benchmarks.harness import Bound, Options, Report, ratio, run_claim, serving, take_turns
from benchmarks.legacy_traffic import HEADERS, call, initialize, initialized
from benchmarks.traffic import Exchange, wire_bytes

CONNECTIONS = 8
SESSION_ID = re.compile(rb"\r\nmcp-session-id: *(\S+)", re.IGNORECASE)


def live(port: int) -> load.Script:
    """The script of one session after the other.

    Raises:
        RuntimeError: `initialize` opened none.
    """
    opening, calling, closing = initialize(), call("aecho", {"text": "hello world"}), Exchange(HEADERS, b"")
    while True:
        answer = yield wire_bytes(opening, port)
        found = SESSION_ID.search(answer)
        if found is None:
            raise RuntimeError(f"no session: {answer!r}")
        session = found[1].decode()
        yield wire_bytes(initialized(), port, session=session)
        yield wire_bytes(calling, port, session=session)
        yield wire_bytes(closing, port, method="DELETE", session=session)


def run(process: Process, *, seconds: float) -> load.Load:
    """Sessions on eight connections."""
    return load.run_sockets(process.port, partial(live, process.port), CONNECTIONS, seconds)


def measure(options: Options) -> Report:
    """Compare the three."""
    with serving([callboard(), real_floor(options.floors), mcp_high()], mode="session-json") as processes:
        rows = take_turns({name: (process, partial(run, process)) for name, process in processes.items()}, options)
    return Report(
        rows,
        [
            Bound("CPU per session, Callboard / conforming floor", ratio(rows, "callboard", "real"), 1.6),
            Bound("CPU per session, Callboard / mcp", ratio(rows, "callboard", "mcp-high"), 1 / 5),
        ],
    )


if __name__ == "__main__":
    run_claim(measure)

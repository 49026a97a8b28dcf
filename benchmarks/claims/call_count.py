"""Python functions that one `tools/call` enters, in process, from ASGI to ASGI: at most 60; in a session of a 2025 client at most 120.

A call in a session has a task of its own, and asyncio's event loop, which is counted here, is Python too: some 25 functions of these.
"""

import asyncio
from collections import Counter

from benchmarks import legacy_traffic
from benchmarks.harness import Bound, Options, Report, run_claim
from benchmarks.in_process import open_session, python_calls
from benchmarks.server import OPTIONS, make_app
from benchmarks.traffic import call, request

LIMIT, SESSION_LIMIT = 60, 120
TEXT = {"text": "hello world"}


def measure(_options: Options) -> Report:
    """Count, and print what is counted."""
    OPTIONS["sessions"] = "auto"
    app = make_app()

    async def count_all() -> dict[str, list[str]]:
        sessions = (await open_session(app),)
        streaming = legacy_traffic.call("aecho", TEXT, sessions=sessions)
        streaming.headers["Accept"] = "text/event-stream"
        exchanges = {
            "async tool": call("aecho", TEXT),
            "suspending tool": call("pause", TEXT),
            "4 KB result": call("search", {"query": "q"}),
            "tools/list": request("tools/list"),
            "in a session": legacy_traffic.call("aecho", TEXT, sessions=sessions),
            "in a session, streamed": streaming,
            "initialize": legacy_traffic.initialize(),
        }
        return {name: await python_calls(app, exchange) for name, exchange in exchanges.items()}

    entered = asyncio.run(count_all())
    for name in ("async tool", "in a session"):
        print(f"\n{name}")
        for function, times in Counter(entered[name]).items():
            print(f"{times:3d} {function.rpartition('/')[2]}")
    rows = {name: {"python_calls": float(len(functions))} for name, functions in entered.items()}
    return Report(
        rows,
        [
            Bound("Python calls per tools/call of an async tool", rows["async tool"]["python_calls"], LIMIT),
            Bound("the same in a session", rows["in a session"]["python_calls"], SESSION_LIMIT),
        ],
    )


if __name__ == "__main__":
    run_claim(measure)

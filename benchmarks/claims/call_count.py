"""Python functions that one `tools/call` enters, in process, from ASGI to ASGI: at most 60."""

import asyncio
from collections import Counter

from benchmarks.harness import Bound, Options, Report, run_claim
from benchmarks.in_process import python_calls
from benchmarks.server import make_app
from benchmarks.traffic import call, request

LIMIT = 60


def measure(_options: Options) -> Report:
    """Count, and print what is counted."""
    app = make_app()
    exchanges = {
        "async tool": call("aecho", {"text": "hello world"}),
        "suspending tool": call("pause", {"text": "hello world"}),
        "4 KB result": call("search", {"query": "q"}),
        "tools/list": request("tools/list"),
    }

    async def count_all() -> dict[str, list[str]]:
        return {name: await python_calls(app, exchange) for name, exchange in exchanges.items()}

    entered = asyncio.run(count_all())
    for function, times in Counter(entered["async tool"]).items():
        print(f"{times:3d} {function.rpartition('/')[2]}")
    rows = {name: {"python_calls": float(len(functions))} for name, functions in entered.items()}
    return Report(rows, [Bound("Python calls per tools/call of an async tool", rows["async tool"]["python_calls"], LIMIT)])


if __name__ == "__main__":
    run_claim(measure)

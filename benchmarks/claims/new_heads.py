"""Server CPU per `tools/call` where no two requests have the same head, as with tracing: at most 1.35 times the conforming floor.

`async_call` sends the same head again and again, as clients do that trace nothing; `callboard.run` then spares itself the parser.
"""

from functools import partial
from itertools import count

from benchmarks.contenders import Process, callboard, real_floor
from benchmarks.harness import CONNECTIONS, Bound, Options, Report, check, ratio, run_claim, serving, take_turns
from benchmarks.load import Load, Script, run_sockets
from benchmarks.traffic import Exchange, call, wire_bytes

TRACE = b"traceparent: 00-%032x-%016x-01\r\n"


def say(exchange: Exchange, port: int, numbers: "count[int]") -> Script:
    """The script of one request over and over, each time with a header of its own."""
    line, separator, rest = wire_bytes(exchange, port).partition(b"\r\n")
    while True:
        number = next(numbers)
        yield line + separator + TRACE % (number, number) + rest


def send(exchange: Exchange, process: Process, seconds: float) -> Load:
    """Load one server."""
    numbers = count(1)
    return run_sockets(process.port, lambda: say(exchange, process.port, numbers), CONNECTIONS, seconds)


def measure(options: Options) -> Report:
    """Compare the two."""
    exchange = call("aecho", {"text": "hello world"})
    with serving([callboard(), real_floor(options.floors)]) as processes:
        for process in processes.values():
            check(process, exchange)
        rows = take_turns({name: (process, partial(send, exchange, process)) for name, process in processes.items()}, options)
    return Report(rows, [Bound("CPU per call with new heads, Callboard / conforming floor", ratio(rows, "callboard", "real"), 1.35)])


if __name__ == "__main__":
    run_claim(measure)

"""Server CPU per `tools/call` of a tool that suspends once: at most 1.5 times a raw floor that suspends too and watches for a hang-up.

The floor is always our own: nobody else's suspends.
"""

from benchmarks.contenders import callboard, raw_floor
from benchmarks.harness import Bound, Options, Report, compare, ratio, run_claim, serving
from benchmarks.traffic import call


def measure(options: Options) -> Report:
    """Compare the two; the floor's tool that does not suspend stands beside them."""
    pause, echo = call("pause", {"text": "hello world"}), call("aecho", {"text": "hello world"})
    with serving([callboard(), raw_floor()]) as processes:
        ours, floor = processes["callboard"], processes["asgi"]
        rows = compare({"callboard": (ours, pause), "asgi": (floor, pause), "asgi, not suspending": (floor, echo)}, options)
    return Report(rows, [Bound("CPU per suspending call, Callboard / raw floor", ratio(rows, "callboard", "asgi"), 1.5)])


if __name__ == "__main__":
    run_claim(measure)

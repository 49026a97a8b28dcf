"""Server CPU per call that reports progress ten times: at most 0.6 times the conforming floor, for a 2025 client 1/20 of mcp.

What is emitted in one turn of the event loop leaves in one send, in every protocol version; the floor sends each event when it is there.
"""

from benchmarks import legacy_traffic, traffic
from benchmarks.contenders import Process, callboard, mcp_high, real_floor
from benchmarks.harness import Bound, Options, Report, compare, open_sessions, ratio, run_claim, serving
from benchmarks.traffic import Exchange

STEPS = {"n": 10}
TOKEN = "t"


def measure(options: Options) -> Report:
    """Compare them on the current protocol, for 2025 clients without sessions, and in sessions that take turns."""
    contenders = [callboard(), real_floor(options.floors), mcp_high()]
    targets: dict[str, tuple[Process, Exchange]] = {}
    with serving(contenders, mode="stateless-sse") as stateless, serving(contenders, mode="session-sse") as stateful:
        for name, process in stateless.items():
            targets[name] = process, legacy_traffic.call("slow", STEPS, token=TOKEN)
            targets[f"{name}, current"] = process, traffic.call("slow", STEPS, token=TOKEN)
        for name, process in stateful.items():
            targets[f"{name}, session"] = process, legacy_traffic.call("slow", STEPS, sessions=open_sessions(process), token=TOKEN)
        rows = compare(targets, options)
    bounds = [
        Bound("CPU per call, current protocol, Callboard / conforming floor", ratio(rows, "callboard, current", "real, current"), 0.6)
    ]
    for kind, text in (("", "2025 client"), (", session", "2025 session")):
        bounds += [
            Bound(f"CPU per call, {text}, Callboard / conforming floor", ratio(rows, f"callboard{kind}", f"real{kind}"), 0.6),
            Bound(f"CPU per call, {text}, Callboard / mcp", ratio(rows, f"callboard{kind}", f"mcp-high{kind}"), 1 / 20),
        ]
    return Report(rows, bounds)


if __name__ == "__main__":
    run_claim(measure)

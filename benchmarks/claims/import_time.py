"""`import callboard` takes at most a fifth of what `from mcp.server import MCPServer` takes."""

import subprocess
import sys
import time

from benchmarks.contenders import SERVER_CORE, on_core
from benchmarks.environments import ROOT, interpreter
from benchmarks.harness import Bound, Options, Report, medians, ratio, run_claim

PROBE = """
import sys, time
before = time.perf_counter()
{statement}
taken = time.perf_counter() - before
resident = open("/proc/self/status").read().partition("VmRSS:")[2].split()[0]
print(taken * 1e3, len(sys.modules), int(resident) / 1024)
"""


def load(python: str, statement: str) -> dict[str, float]:
    """Run one statement in a fresh interpreter."""
    begin = time.perf_counter()
    with on_core(SERVER_CORE):
        ran = subprocess.run([python, "-c", PROBE.format(statement=statement)], capture_output=True, text=True, check=True, cwd=ROOT)
    whole = time.perf_counter() - begin
    taken, modules, resident = ran.stdout.split()
    return {"import_ms": float(taken), "process_ms": whole * 1e3, "modules": float(modules), "rss_mb": float(resident)}


def measure(options: Options) -> Report:
    """Compare the imports; the first round, which reads the disk, does not count."""
    statements = {
        "python": (sys.executable, "pass"),
        "callboard": (sys.executable, "import callboard"),
        "callboard, a server": (sys.executable, "from callboard import Server; Server('x')"),
        "mcp": (interpreter("v-mcp"), "from mcp.server import MCPServer"),
        "fastmcp": (interpreter("v-fastmcp"), "from fastmcp import FastMCP"),
    }
    rounds = [{name: load(*statement) for name, statement in statements.items()} for _ in range(max(options.rounds, 3) + 1)][1:]
    rows = {name: medians([taken[name] for taken in rounds]) for name in statements}
    return Report(
        rows,
        [
            Bound("time of the import, Callboard / mcp", ratio(rows, "callboard", "mcp", "import_ms"), 1 / 5),
            Bound("the same, with the interpreter's start and end", ratio(rows, "callboard", "mcp", "process_ms"), 1 / 5),
        ],
    )


if __name__ == "__main__":
    run_claim(measure)

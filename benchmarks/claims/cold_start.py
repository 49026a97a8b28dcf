"""From starting the process to the first `tools/list` answered over stdio: at most a quarter of mcp's time."""

import json
import subprocess
import time

from benchmarks.contenders import SERVER_CORE, Contender, callboard, environment, fastmcp, mcp_high, on_core, rss_kb
from benchmarks.environments import ROOT
from benchmarks.harness import Bound, Options, Report, medians, ratio, run_claim
from benchmarks.traffic import line


def start(contender: Contender) -> dict[str, float]:
    """Start a server, ask for its tools, let it end."""
    question = line("tools/list") + b"\n"
    begin = time.perf_counter()
    with (
        on_core(SERVER_CORE),
        subprocess.Popen(
            contender.command,
            env=environment(contender, BENCH_STDIO="1"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(question)
        process.stdin.flush()
        answer = process.stdout.readline()
        taken = time.perf_counter() - begin
        if not json.loads(answer)["result"]["tools"]:
            raise RuntimeError(f"{contender.name} lists no tools: {answer!r}")
        resident = rss_kb(process.pid) / 1024
        process.stdin.close()
        process.wait()
    return {"list_ms": taken * 1e3, "exit_ms": (time.perf_counter() - begin - taken) * 1e3, "rss_mb": resident}


def measure(options: Options) -> Report:
    """Compare cold starts; the first round, which reads the disk, does not count."""
    contenders = [callboard(), mcp_high(), fastmcp()]
    rounds = [{contender.name: start(contender) for contender in contenders} for _ in range(options.rounds + 1)][1:]
    rows = {contender.name: medians([taken[contender.name] for taken in rounds]) for contender in contenders}
    return Report(rows, [Bound("time to the first list, Callboard / mcp", ratio(rows, "callboard", "mcp-high", "list_ms"), 1 / 4)])


if __name__ == "__main__":
    run_claim(measure)

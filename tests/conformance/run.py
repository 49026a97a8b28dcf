"""Runs the official MCP conformance suite against tests/conformance/server.py, and has it play the servers for tests/conformance/client.py.

    make conformance                                    every leg
    make conformance ARGS="--scenario 'tools-.*' -v"    some scenarios, with every check that fell short
    make conformance ARGS="--leg extensions"            one leg

A leg is one version of the suite speaking one version of the protocol, on one side. Each scenario gets a process of its own and is judged by the
checks it writes down, since the suite's exit status passes warnings over. A scenario that falls short must stand in expected.json
with its reason; one that stands there and passes is an error too. Of a client the exit status counts, too. Legs run side by side, each
against a server of its own; within a leg one scenario follows another, since some change the server's lists and some measure time.
The server of a `fleet-` leg is two workers with a Redis, which serve the suite's requests in turns. docs/conformance.md says more.
"""
# ruff: noqa: T201 - a command that reports

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from conformance.fleet import check_turns, fleet, read_turns
from redis_server import PROGRAM, REQUIRED

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
HOME = Path(os.environ.get("CONFORMANCE_HOME") or ROOT / ".cache" / "conformance")

Check = Mapping[str, Any]
Expected = Mapping[str, Mapping[str, str]]

NODE = "node@22"  # both suites stop with a SyntaxError on older ones
PACKAGE = "@modelcontextprotocol/conformance"
MARGIN = 15  # seconds that the suite gets to end a client that took too long
STARTUP = 20.0  # seconds until the fixture must listen
CACHED = {**os.environ, "NODE_COMPILE_CACHE": str(HOME / "compiled")}  # most of a scenario's time is Node reading the suite
SHORT = ("FAILURE", "WARNING", "SKIPPED")


class Leg(NamedTuple):
    """One version of the suite speaking one version of the protocol.

    Attributes:
        suite: Version of the npm package.
        tag: What the suite's list calls this leg's scenarios; every scenario when empty.
        arguments: What the suite must be told to speak that version.
        side: What of ours it tests.
        fleet: Whether several workers are the server.
    """

    suite: str
    tag: str
    arguments: tuple[str, ...] = ()
    side: Literal["server", "client"] = "server"
    fleet: bool = False


OLD, NEW = "0.1.16", "0.2.0-alpha.12"
SERVERS = {
    "2026-07-28": Leg(NEW, "2026-07-28", arguments=("--spec-version", "2026-07-28")),
    "2025-11-25": Leg(NEW, "2025-11-25", arguments=("--spec-version", "2025-11-25")),
    "2025-06-18": Leg(NEW, "2025-06-18", arguments=("--spec-version", "2025-06-18")),
    "2025-03-26": Leg(NEW, "2025-03-26", arguments=("--spec-version", "2025-03-26")),
    "extensions": Leg(NEW, "extension"),
    "0.1.16": Leg(OLD, ""),
}
LEGS = {
    **SERVERS,
    # The older suite asks nothing of a fleet that the newer one doesn't.
    **{f"fleet-{name}": leg._replace(fleet=True) for name, leg in SERVERS.items() if leg.suite == NEW},
    "client-2026-07-28": Leg(NEW, "2026-07-28", ("--spec-version", "2026-07-28"), "client"),
    "client-2025-11-25": Leg(NEW, "2025-11-25", ("--spec-version", "2025-11-25"), "client"),
    "client-0.1.16": Leg(OLD, "", (), "client"),
    "client-extensions": Leg(NEW, "extension", ("--spec-version", "2026-07-28", "--force"), "client"),
    "client-extensions-2025": Leg(NEW, "extension", (), "client"),  # the suite speaks 2025-11-25 unless it is forced
    "client-2025-06-18": Leg(NEW, "2025-06-18", ("--spec-version", "2025-06-18"), "client"),
    "client-2025-03-26": Leg(NEW, "2025-03-26", ("--spec-version", "2025-03-26"), "client"),
}
TURNS = "every-worker-serves"  # our own, last scenario of a fleet's legs
# What the suite prints of a client that did not end as it should, or the client itself: in some scenarios the suite lets it.
CRASHES = ("CLIENT TIMED OUT", "CLIENT EXITED WITH ERROR", "Traceback (most recent call last)")


class Result(NamedTuple):
    """What came of one scenario.

    Attributes:
        verdict: PASS; WARN and FAIL by the worst check; SKIP when no check of the scenario's own proved anything.
        counts: How many checks ended how.
        short: Each check that fell short: how, its id and what it says.
        seconds: How long it took.
    """

    verdict: str
    counts: Counter[str]
    short: tuple[tuple[str, str, str], ...]
    seconds: float = 0.0


def judge(checks: Sequence[Check] | None, crash: str = "") -> Result:
    """Verdict on a scenario from the checks it wrote down, None when it wrote nothing, and from how a client ended."""
    if checks is None:
        return Result("FAIL", Counter(FAILURE=1), (("FAILURE", "no-result", "the suite wrote no result: see harness.log"),))
    counts = Counter(str(check["status"]) for check in checks)
    short = tuple((str(check["status"]), str(check["id"]), complaint(check)) for check in checks if check["status"] in SHORT)
    # `wire-schema-*` is the suite's own check of every message; it alone says nothing about the scenario.
    proved = any(check["status"] == "SUCCESS" and not str(check["id"]).startswith("wire-schema-") for check in checks)
    if crash:
        counts["FAILURE"] += 1
        short = (("FAILURE", "client", f"{crash}: see harness.log"), *short)
    verdict = "FAIL" if counts["FAILURE"] else "WARN" if counts["WARNING"] else "PASS" if proved else "SKIP"
    return Result(verdict, counts, short)


def complaint(check: Check) -> str:
    """What a check says about itself."""
    details = check.get("details") or {}
    return str(check.get("errorMessage") or details.get("message") or details.get("reason") or check.get("description") or "")


def surprises(results: Mapping[str, Mapping[str, Result | None]], expected: Expected) -> list[str]:
    """Why the run is not what expected.json says: a sentence each.

    Args:
        results: Leg -> scenario -> what came of it; None for one that was not run.
        expected: Leg -> scenario -> why it may fall short.
    """
    found = []
    for leg, outcomes in results.items():
        reasons = expected.get(leg, {})
        found += [f"{leg} {name} stands in expected.json, and there is no such scenario" for name in reasons if name not in outcomes]
        for name, result in outcomes.items():
            if result is not None and (result.verdict == "PASS") == (name in reasons):
                stale = f"{leg} {name} passes: take it out of expected.json"
                found.append(stale if name in reasons else f"{leg} {name} falls short ({result.verdict})")
    return found


def install() -> str:
    """Installs Node 22 and the suite's versions through npm, once.

    Returns:
        Path of the node binary.
    """
    for folder, package in {"node": NODE, **{suite: f"{PACKAGE}@{suite}" for suite in (OLD, NEW)}}.items():
        place = HOME / folder
        if (place / "node_modules").exists() and (place / ".done").exists():
            continue
        npm = shutil.which("npm")
        if npm is None:
            sys.exit("the conformance suite comes through npm, which is not installed (Debian: apt-get install nodejs npm)")
        place.mkdir(parents=True, exist_ok=True)
        print(f"installing {package} into {place}", flush=True)
        command = [npm, "install", "--prefix", str(place), "--no-audit", "--no-fund", "--loglevel=error", package]
        if subprocess.run(command, cwd=place, check=False).returncode:
            sys.exit(f"npm could not install {package}; its reason stands above")
        (place / ".done").touch()
    return str(HOME / "node" / "node_modules" / "node" / "bin" / "node")


def suite(version: str) -> str:
    """Path of the program of one version of the suite."""
    return str(HOME / version / "node_modules" / PACKAGE / "dist" / "index.js")


def scenarios(node: str, leg: Leg) -> list[str]:
    """Names of a leg's scenarios, in the suite's order."""
    command = [node, suite(leg.suite), "list", f"--{leg.side}"]
    listed = subprocess.run(command, env=CACHED, capture_output=True, text=True, timeout=60, check=True)
    rows = re.findall(r"^  - (\S+)(?: \[([^\]]*)\])?$", listed.stdout, re.MULTILINE)
    return [name for name, tags in rows if not leg.tag or leg.tag in tags.split(",")]


def run(node: str, leg: Leg, scenario: str, url: str | None, out: Path, timeout: int) -> Result:
    """Runs one scenario in a process of its own and judges it."""
    out.mkdir(parents=True)
    asked = (
        ("--url", str(url))
        if leg.side == "server"
        else ("--command", f"{sys.executable} {HERE / 'client.py'}", "--timeout", str(timeout * 1000))
    )
    before = ["loopback.mjs", *(["turns.mjs"] if leg.fleet else [])]
    program = [node, *(word for name in before for word in ("--import", str(HERE / name))), suite(leg.suite)]
    command = [*program, leg.side, *asked, "--scenario", scenario, "-o", str(out), *leg.arguments]
    began = time.monotonic()
    with (out / "harness.log").open("wb") as log:
        # A session of its own: what the suite leaves behind ends with it.
        process = subprocess.Popen(
            command, env=CACHED, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            process.wait(timeout + (MARGIN if leg.side == "client" else 0))
        except subprocess.TimeoutExpired:
            print(f"{scenario}: stopped after {timeout} s", flush=True)
        finally:
            end_group(process)
    written = next(out.rglob("checks.json"), None)
    checks = None if written is None else json.loads(written.read_text(encoding="utf-8"))
    said = "".join(path.read_text(encoding="utf-8", errors="replace") for path in (out / "harness.log", *out.rglob("stderr.txt")))
    return judge(checks, crash=next((crash for crash in CRASHES if crash in said), ""))._replace(seconds=time.monotonic() - began)


def end_group(process: "subprocess.Popen[bytes]") -> None:
    """Ends a process that leads a session, and all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)


def serve(leg: Leg, url: str | None, log: Path) -> AbstractContextManager[str | None]:
    """What a leg's scenarios are to ask: what already runs, a fleet, or one process; nothing for clients."""
    if url is not None or leg.side == "client":
        return nullcontext(url)
    return fleet(log) if leg.fleet else fixture(log)


@contextmanager
def fixture(log: Path) -> Iterator[str]:
    """Starts tests/conformance/server.py on a free loopback port; gives its URL once it listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "server.py")],
            env={**os.environ, "PORT": str(port)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            if not listens(process, port):
                sys.exit(f"tests/conformance/server.py did not listen within {STARTUP:.0f} s:\n{log.read_text(errors='replace')}")
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            end_group(process)


def listens(process: "subprocess.Popen[bytes]", port: int) -> bool:
    """Waits until a port takes connections; False when the process ends first or time runs out."""
    deadline = time.monotonic() + STARTUP
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            try:
                process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
            return False
        return True
    return False


def show(leg: str, scenario: str, result: Result, reason: str | None, *, verbose: bool) -> None:
    """Prints a scenario's line, and each check that fell short when asked or when nobody expected it."""
    counts = result.counts
    numbers = f"ok={counts['SUCCESS']} fail={counts['FAILURE']} warn={counts['WARNING']} skip={counts['SKIPPED']}"
    note = "" if reason is None else f"  [expected: {reason}]"
    print(f"{result.verdict:4} {leg:22} {scenario:46} {numbers} {result.seconds:.1f}s{note}", flush=True)
    if verbose or (result.verdict != "PASS" and reason is None):
        for status, name, text in result.short:
            print(f"       {status} {name}: {text}", flush=True)


def options() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(prog="make conformance ARGS=...", description="The official conformance suite against our fixtures.")
    parser.add_argument("--leg", action="append", choices=list(LEGS), help="repeatable; by default all")
    parser.add_argument("--scenario", default=".*", help="regular expression that the whole name must match")
    parser.add_argument("--url", help="a server that already runs; by default the fixture, on a free port")
    parser.add_argument("--timeout", type=int, default=60, help="seconds per scenario")
    parser.add_argument("--jobs", "-j", type=int, default=2, help="legs at a time; 1 with --url, where all share a server")
    parser.add_argument("--install", action="store_true", help="install Node and the suite, and run nothing")
    parser.add_argument("--verbose", "-v", action="store_true", help="print every check that fell short")
    asked = parser.parse_args()
    if asked.url and any(LEGS[leg].fleet for leg in asked.leg or ()):
        parser.error("--url is one server; a fleet's legs start their own")
    return asked


def choose(asked: argparse.Namespace) -> list[str]:
    """The legs to run: those asked for, by default all; says which of them can't be."""
    legs = asked.leg or [name for name, leg in LEGS.items() if not (asked.url and leg.fleet)]
    fleets = [name for name in legs if LEGS[name].fleet]
    if PROGRAM is not None or not fleets:
        return legs
    lack = f"{', '.join(fleets)}: there is no redis-server on PATH (Debian: apt-get install redis-server)"
    if REQUIRED:
        sys.exit(lack)
    print(f"skipped: {lack}", flush=True)
    return [name for name in legs if name not in fleets]


def measure(node: str, leg: str, asked: argparse.Namespace, reasons: Mapping[str, str], out: Path) -> dict[str, Result | None]:
    """Runs a leg's asked scenarios one after another and prints a line each.

    Returns:
        Scenario -> what came of it; None for one that was not asked for.
    """
    results: dict[str, Result | None] = dict.fromkeys(scenarios(node, LEGS[leg]))
    wanted = [name for name in results if re.fullmatch(asked.scenario, name)]
    if not wanted:
        return results
    out.mkdir()
    starts = {}
    with serve(LEGS[leg], asked.url, out / "server.log") as url:
        for name in wanted:
            starts[name] = time.time()
            results[name] = result = run(node, LEGS[leg], name, url, out / name, asked.timeout)
            show(leg, name, result, reasons.get(name), verbose=asked.verbose)
    if LEGS[leg].fleet:
        checks = check_turns(read_turns((out / "server.log").read_text(encoding="utf-8"), starts))
        # One request shows nothing; a whole leg must.
        results[TURNS] = turns = judge(checks) if checks or wanted == [*results] else None
        if turns is not None:
            show(leg, TURNS, turns, None, verbose=asked.verbose)
    return results


def measure_all(
    node: str, legs: Sequence[str], asked: argparse.Namespace, expected: Expected, out: Path
) -> dict[str, dict[str, Result | None]]:
    """Runs legs side by side."""
    with ThreadPoolExecutor(1 if asked.url else asked.jobs) as lanes:
        measured = lanes.map(lambda leg: measure(node, leg, asked, expected.get(leg, {}), out / leg), legs)
        return dict(zip(legs, measured, strict=True))


def main() -> None:
    """Runs, reports and exits 1 when the outcome is not the expected one."""
    asked = options()
    expected: Expected = json.loads((HERE / "expected.json").read_text(encoding="utf-8"))
    node = install()
    if asked.install:
        return
    legs = choose(asked)
    if not legs:
        return
    out = HOME / "results"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    results = measure_all(node, legs, asked, expected, out)
    ran = [result for outcomes in results.values() for result in outcomes.values() if result is not None]
    if not ran:
        sys.exit(f"no scenario is called {asked.scenario}")
    checks = sum((result.counts for result in ran), Counter[str]())
    found = surprises(results, expected)
    print(
        f"\nchecks: {checks['SUCCESS']} ok, {checks['FAILURE']} failed, {checks['WARNING']} warned, {checks['SKIPPED']} skipped; see {out}"
    )
    for sentence in found:
        print(f"unexpected: {sentence}")
    passed = sum(result.verdict == "PASS" for result in ran)
    print(f"expected to fall short: {len(ran) - passed - sum('falls short' in sentence for sentence in found)}")
    print(f"conformance: {passed} passed, {len(found)} failed")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()

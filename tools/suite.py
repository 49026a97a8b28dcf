"""Runs the tests, several files at once, since most wait for others and one core is not all there is.

    python -m tools.suite test [pytest arguments]     what needs no other process; what measures CPU time comes last, alone
    python -m tools.suite e2e [pytest arguments]      sockets, child processes, the command

Where the arguments name tests, one process runs just these. Exit status 0 when all have passed.
"""

import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

from tools.lanes import Lanes

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
FILES = {
    "test": [TESTS / "unit", TESTS / "matrix", TESTS / "fuzz", TESTS / "conformance", *sorted(TESTS.glob("test_*.py"))],
    "e2e": [TESTS / "e2e"],
}
LANES = {"test": 2, "e2e": 3}  # the latter wait more than they compute
CLOCKS = {"process_time", "thread_time"}
# What takes longest begins first, so that nothing long is left when all else is over.
FIRST = (
    "test_budgets.py",
    "test_our_server.py",
    "test_asking_clients.py",
    "test_session_traffic.py",
    "test_asking_shapes.py",
    "test_architecture.py",
    "test_session_histories.py",
    "test_client_faults.py",
    "test_fixtures.py",
    "test_cli.py",
)


def measures(item: pytest.Item) -> bool:
    """Whether a test measures CPU time, by itself or by a function that it calls: other processes make it longer."""
    todo: list[Callable[..., Any]] = [innermost(item.function)] if isinstance(item, pytest.Function) else []
    seen: set[object] = set()
    while todo:
        function = todo.pop()
        if not isinstance(function, FunctionType) or function in seen or not Path(function.__code__.co_filename).is_relative_to(TESTS):
            continue
        seen.add(function)
        names = names_of(function.__code__)
        if names & CLOCKS:
            return True
        todo += [innermost(found) for name in names if callable(found := function.__globals__.get(name))]
    return False


def innermost(function: Callable[..., Any]) -> Callable[..., Any]:
    """What a test is below its decorators, those of Hypothesis included."""
    below: Callable[..., Any] = inspect.unwrap(getattr(getattr(function, "hypothesis", None), "inner_test", function))
    return below


def names_of(code: CodeType) -> set[str]:
    """Names that a function refers to, those of the functions in it included."""
    return set(code.co_names).union(*(names_of(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


def main(what: str, arguments: list[str]) -> int:
    """Run all of it, and say what came of it."""
    os.chdir(ROOT)
    if any((ROOT / argument.partition("::")[0]).exists() for argument in arguments):
        return pytest.main(["-q", *arguments])
    lanes = Lanes(LANES[what], FIRST, measures if what == "test" else lambda _: False)
    return pytest.main(["-q", *map(str, FILES[what]), *arguments], plugins=[lanes])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))

"""Every example runs, says OK and nothing else, and would fail if what it shows were not so."""

import ast
import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from source_tree import ROOT

from callboard import Client
from callboard.types import ResourceListChangedNotification

EXAMPLES = ROOT / "examples"
# Programs that serve until they are told to stop; they have tests of their own.
SERVED = {"tasks_on_workers.py", "docs_server.py", "demo.py", "authorization_server.py", "protected.py"}
NAMES = sorted(path.name for path in EXAMPLES.glob("*.py") if path.name not in SERVED)
MAX_LINES = 80
# A server on standard output's other side prints on purpose; one that refuses a request says so.
TALKS = {"stdio_child.py", "login.py", "components.py", "mrtr_by_hand.py", "telemetry.py"}

Ran = subprocess.CompletedProcess[str]
each_example = pytest.mark.parametrize("name", NAMES)


def run(program: Path, folder: Path) -> Ran:
    """Runs a program in a folder; warnings are errors, in processes that it starts too."""
    return subprocess.run(
        [sys.executable, "-W", "error", program],
        cwd=folder,
        env={**os.environ, "PYTHONWARNINGS": "error"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def break_last_assert(source: str) -> str:
    """Turns the last assertion of a program's `main` round."""
    tree = ast.parse(source)
    (main,) = (node for node in tree.body if isinstance(node, ast.AsyncFunctionDef) and node.name == "main")
    last = max((node for node in ast.walk(main) if isinstance(node, ast.Assert)), key=lambda node: node.lineno)
    last.test = ast.UnaryOp(ast.Not(), last.test)
    return ast.unparse(ast.fix_missing_locations(tree))


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    """Two examples run at a time."""
    with ThreadPoolExecutor(2) as executor:
        yield executor


@pytest.fixture(scope="module")
def intact(pool: ThreadPoolExecutor, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Future[Ran]]:
    """What each example does, run somewhere else than where it lies."""
    return {name: pool.submit(run, EXAMPLES / name, tmp_path_factory.mktemp("anywhere")) for name in NAMES}


@pytest.fixture(scope="module")
def broken(pool: ThreadPoolExecutor, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Future[Ran]]:
    """What each example does when its last assertion is turned round."""
    folder = tmp_path_factory.mktemp("broken")
    for name in SERVED:  # an example may start one
        shutil.copy(EXAMPLES / name, folder)
    for name in NAMES:
        (folder / name).write_text(break_last_assert((EXAMPLES / name).read_text(encoding="utf-8")), encoding="utf-8")
    return {name: pool.submit(run, folder / name, folder) for name in NAMES}


@each_example
def test_example_runs(name: str, intact: dict[str, Future[Ran]]) -> None:
    ran = intact[name].result()
    assert (ran.returncode, ran.stdout) == (0, "OK\n"), ran.stdout + ran.stderr
    assert name in TALKS or not ran.stderr


@each_example
def test_example_would_fail(name: str, broken: dict[str, Future[Ran]]) -> None:
    ran = broken[name].result()
    assert ran.returncode == 1
    assert "OK" not in ran.stdout
    assert "AssertionError" in ran.stderr


@each_example
def test_example_is_short_and_says_what_it_shows(name: str) -> None:
    source = (EXAMPLES / name).read_text(encoding="utf-8")
    assert len(source.splitlines()) <= MAX_LINES
    assert ast.get_docstring(ast.parse(source))


def test_every_example_is_in_the_index() -> None:
    index = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    assert {path.name for path in EXAMPLES.glob("*.py") if f"(../examples/{path.name})" not in index} == set()


def test_what_is_served_is_there() -> None:
    assert {name for name in SERVED if not (EXAMPLES / name).exists()} == set()


async def test_the_docs_server_tells_of_a_new_page_over_stdio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCS_DIR", str(tmp_path))
    async with Client(EXAMPLES / "docs_server.py") as client, client.listen(resources=True) as changes:
        (tmp_path / "new.md").write_text("# New page", encoding="utf-8")
        async with asyncio.timeout(5):
            assert isinstance(await anext(changes), ResourceListChangedNotification)
        assert [(resource.uri, resource.title) for resource in await client.list_resources()] == [("docs://new.md", "New page")]

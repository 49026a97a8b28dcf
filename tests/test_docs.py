"""The documentation is true: its code runs, its JSON parses, its links and make targets exist.

Every ```python block of a page runs, in the page's order and in one namespace, with `await` allowed at its top level, as a reader who types it
into one file would have it; `__name__` is not `__main__`, so nothing serves. A block that can't run here says so: ```python norun.
"""

import ast
import asyncio
import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import msgspec
import pytest
from source_tree import ROOT, modules

from callboard.limits import Limits
from tools.requirements import existing_tests

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#|mailto:)(?P<target>[^)#\s]+)")
TARGET = re.compile(r"(?:`|^)make ([a-z][a-z0-9-]*)", re.MULTILINE)

each_page = pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])


class Block(NamedTuple):
    """A fenced block: what its opening line says, its text, the line it begins on."""

    info: str
    body: str
    line: int


def blocks(page: Path, language: str) -> Iterator[Block]:
    """Fenced blocks of a page in one language."""
    text = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        if match["info"].split()[:1] == [language]:
            yield Block(match["info"], match["body"], text.count("\n", 0, match.start()) + 1)


def runnable(page: Path) -> list[Block]:
    return [block for block in blocks(page, "python") if "norun" not in block.info.split()]


def run(page: Path, block: Block, module: ModuleType, runner: asyncio.Runner) -> None:
    """Runs one block in the page's namespace."""
    padded = "\n" * block.line + block.body
    code = compile(padded, str(page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    ran = eval(code, module.__dict__)
    if inspect.iscoroutine(ran):
        runner.run(asyncio.wait_for(ran, 30))


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES if runnable(page)])
def test_code_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType(f"docs_{page.stem.lower()}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.chdir(tmp_path)
    with asyncio.Runner() as runner:
        for block in runnable(page):
            run(page, block, module, runner)


@each_page
def test_json_parses(page: Path) -> None:
    for block in blocks(page, "json"):
        json.loads(block.body)


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    dead = [match["target"] for match in LINK.finditer(text) if not (page.parent / match["target"]).exists()]
    assert not dead


@each_page
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(TARGET.findall(page.read_text(encoding="utf-8"))) <= targets


def test_the_readme_shows_a_server_in_fifteen_lines() -> None:
    readme = ROOT / "README.md"
    first = runnable(readme)[0].body
    assert "Server(" in first
    assert "callboard.run(" in first
    assert len(first.splitlines()) <= 15
    assert len(readme.read_text(encoding="utf-8").splitlines()) < 200


ROW = re.compile(r"^\| (?P<names>`\w+`(?:, `\w+`)*) \| (?P<defaults>[^|]+) \|", re.MULTILINE)
UNITS = {"KiB": 1024, "MiB": 1024**2, "s": 1, "h": 3600}
WORDS: dict[str, Any] = {"off": None, "none": (), "three quarters of `threads`": None, "1,000 in 1 s": (1000, 1.0)}


def test_every_limit_is_told_of_with_its_default() -> None:
    text = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
    table = text[text.index("| `Limits(...)` |") : text.index("**Rates**")]
    told: dict[str, Any] = {}
    for row in ROW.finditer(table):
        for name, default in zip(re.findall(r"\w+", row["names"]), row["defaults"].strip().split("; "), strict=True):
            number, _, unit = default.replace(",", "").partition(" ")
            told[name] = WORDS[default] if default in WORDS else int(number) * UNITS.get(unit, 1)
    assert told == msgspec.structs.asdict(Limits())


def test_every_guide_is_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    missing = [page.name for page in (ROOT / "docs").glob("*.md") if page.name != "index.md" and f"({page.name})" not in index]
    assert not missing, f"docs/index.md names every guide but {missing}"


def test_the_design_names_every_module() -> None:
    design = (ROOT / "DESIGN.md").read_text(encoding="utf-8")
    missing = [
        path.name for path in modules().values() if not path.name.startswith("__") and not re.search(rf"\b{re.escape(path.name)}\b", design)
    ]
    assert not missing, f"DESIGN.md section 2 says nothing of {missing}"


def test_the_threat_model_names_tests_that_exist() -> None:
    known = {name.rpartition("::")[2].partition("[")[0] for name in existing_tests()}
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "SECURITY.md").read_text(encoding="utf-8")))
    assert len(named) > 20
    assert named <= known, f"SECURITY.md names tests that do not exist: {sorted(named - known)}"

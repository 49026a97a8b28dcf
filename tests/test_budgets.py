"""Size budgets, for every Python file of the project. There is no list of exceptions: a file that doesn't fit is cut in two."""

import ast
import re
from pathlib import Path

import pytest
from source_tree import FUNCTIONS, GENERATED, ROOT, Function, comments, docstrings, functions, python_files

MAX_FILE = 600  # lines
MAX_FUNCTION = 60  # lines without the docstring
MAX_COMPLEXITY = 10  # McCabe
BLANKET_NOQA = re.compile(r"#\s*(?:ruff:\s*|flake8:\s*)?noqa(?!:\s*[A-Z]+\d)", re.IGNORECASE)
SILENCERS = re.compile("noqa|ignore|basic", re.IGNORECASE)  # no comment is blanket without one of these
BLANKET_IGNORE = re.compile(r"#\s*(?:type:\s*ignore(?!\[)|pyright:\s*ignore(?!\[)|mypy:\s*ignore-errors|pyright:\s*basic)")

each_file = pytest.mark.parametrize("path", [pytest.param(path, id=str(path.relative_to(ROOT))) for path in python_files()])


def length(function: Function) -> int:
    """Lines of a function from `def` to its end, nested functions included, without docstrings."""
    return span(function) - sum(docstrings(function).values())


def span(function: Function) -> int:
    """Lines of a function from `def` to its end, all included."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def complexity(function: Function) -> int:
    """McCabe complexity as ruff counts it, but for nested functions, which have their own: one more than the statements that branch."""
    return 1 + sum(branches(statement) for statement in function.body)


def branches(node: ast.AST) -> int:
    """Branching statements at and below a node, nested functions and classes left out."""
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        return 0
    return branching(node) + sum(branches(child) for child in ast.iter_child_nodes(node))


def branching(node: ast.AST) -> int:
    """How many ways one node adds."""
    if isinstance(node, ast.Match):
        last = node.cases[-1]
        return len(node.cases) - (last.guard is None and isinstance(last.pattern, ast.MatchAs) and last.pattern.pattern is None)
    if isinstance(node, ast.Try):
        return len(node.handlers) + bool(node.orelse)
    return isinstance(node, ast.If | ast.For | ast.AsyncFor | ast.While)


def ours(node: ast.Import | ast.ImportFrom) -> bool:
    """Whether a statement imports from this project."""
    if isinstance(node, ast.ImportFrom):
        return bool(node.level) or (node.module or "").split(".")[0] == "callboard"
    return any(alias.name.split(".")[0] == "callboard" for alias in node.names)


@each_file
def test_files_are_short(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert path == GENERATED or lines <= MAX_FILE, f"{lines} lines; the budget is {MAX_FILE}: give one of its concepts a file of its own"


@each_file
def test_functions_are_short(path: Path) -> None:
    long = [
        f"{function.name} (line {function.lineno}): {lines}"
        for function in functions(path)
        if span(function) > MAX_FUNCTION and (lines := length(function)) > MAX_FUNCTION
    ]
    assert not long, f"functions over {MAX_FUNCTION} lines: {long}"


@each_file
def test_functions_are_simple(path: Path) -> None:
    tangled = [
        f"{function.name} (line {function.lineno}): {paths}"
        for function in functions(path)
        if (paths := complexity(function)) > MAX_COMPLEXITY
    ]
    assert not tangled, f"functions of complexity over {MAX_COMPLEXITY}: {tangled}"


@each_file
def test_imports_of_ours_stand_at_the_top(path: Path) -> None:
    late = [
        f"line {node.lineno}"
        for function in functions(path)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom) and ours(node)
    ]
    assert path.name in {"__init__.py", "compose.py"} or not late, f"imports of callboard inside functions: {late}"


@each_file
def test_checkers_are_never_silenced_wholesale(path: Path) -> None:
    if not SILENCERS.search(path.read_text(encoding="utf-8")):
        return
    blanket = [f"line {line}: {text}" for line, text in comments(path) if BLANKET_NOQA.search(text) or BLANKET_IGNORE.search(text)]
    assert path == GENERATED or not blanket, f"name the rule that is silenced: {blanket}"


def test_the_measure_measures() -> None:
    """A function of 62 lines with a docstring of two is 60 long; its nested function counts for length, not for complexity."""
    source = "def f():\n    '''One.\n    Two.'''\n" + "    x = 1\n" * 56 + "    def g():\n        if x:\n            return 2\n\n"
    (function,) = (node for node in ast.parse(source).body if isinstance(node, FUNCTIONS))
    assert (length(function), complexity(function)) == (60, 1)
    assert complexity(next(node for node in ast.walk(function) if isinstance(node, FUNCTIONS) and node.name == "g")) == 2

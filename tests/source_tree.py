"""What the tests about the source read: its files, its modules, who imports whom, its comments."""

import ast
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
GENERATED = SOURCE / "callboard" / "wire" / "v2026_07_28.py"
FOLDERS = ("src", "tests", "examples", "benchmarks", "tools")

Function = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Edge(NamedTuple):
    """One import.

    Attributes:
        module: Dotted name of what is imported: a module of ours where one has that name, else what the statement says.
        line: Where it stands.
        deferred: Whether it stands inside a function.
        typing_only: Whether it stands under `if TYPE_CHECKING`.
    """

    module: str
    line: int
    deferred: bool
    typing_only: bool


def python_files() -> list[Path]:
    """Every Python file that is ours; environments and packages of others below the folders are passed over."""
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")) if not foreign(path)]


def foreign(path: Path) -> bool:
    """Whether a path lies in an environment, a package folder or a cache."""
    return any(part.startswith(".") or part in {"node_modules", "__pycache__"} for part in path.relative_to(ROOT).parts)


@cache
def tree(path: Path) -> ast.Module:
    """Syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def comments(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every comment of a file."""
    with tokenize.open(path) as lines:
        for token in tokenize.generate_tokens(lines.readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string


def functions(path: Path) -> Iterator[Function]:
    """Every function of a file, methods and nested ones included."""
    return (node for node in ast.walk(tree(path)) if isinstance(node, FUNCTIONS))


def docstrings(root: ast.AST) -> dict[int, int]:
    """Identity of each docstring's node below a node -> how many lines it takes."""
    return {
        id(first.value): (first.end_lineno or first.lineno) - first.lineno + 1
        for node in ast.walk(root)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body
        for first in node.body[:1]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    }


@cache
def modules() -> dict[str, Path]:
    """Dotted name -> file, for every module of the package; a package stands under its own name."""
    return {dotted(path): path for path in sorted((SOURCE / "callboard").rglob("*.py"))}


def dotted(path: Path) -> str:
    """Dotted name of a file below src/."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def edges(name: str) -> list[Edge]:
    """Every import of a module of ours, also under TYPE_CHECKING and inside functions."""
    path = modules()[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    root = tree(path)
    deferred = {id(inner) for node in ast.walk(root) if isinstance(node, FUNCTIONS) for inner in ast.walk(node)}
    typing_only = {id(node) for guard in ast.walk(root) if is_typing_guard(guard) for node in ast.walk(guard)}
    return [
        Edge(target, node.lineno, id(node) in deferred, id(node) in typing_only)
        for node in ast.walk(root)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for target in targets(node, package)
    ]


def is_typing_guard(node: ast.AST) -> bool:
    """Whether a node is `if TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and ast.unparse(node.test).rpartition(".")[2] == "TYPE_CHECKING"


def targets(node: ast.Import | ast.ImportFrom, package: str) -> list[str]:
    """Dotted names that an import statement loads."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = absolute(node, package)
    below = [f"{base}.{alias.name}" for alias in node.names]
    named = [candidate for candidate in below if candidate in modules()]
    return named if len(named) == len(below) else [base, *named]


def absolute(node: ast.ImportFrom, package: str) -> str:
    """Dotted name of the module that a `from` statement names, its leading dots resolved."""
    if not node.level:
        return node.module or ""
    above = package.split(".")[: len(package.split(".")) - node.level + 1]
    return ".".join([*above, *([node.module] if node.module else [])])

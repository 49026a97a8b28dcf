"""Docstrings as data: what a function does, what each parameter means.

Google, NumPy and Sphinx conventions are read, also mixed in one text. A text that follows none of them is all description.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from textwrap import dedent

import msgspec

__all__ = ["Docstring", "parse"]


class Docstring(msgspec.Struct, frozen=True):
    """A docstring taken apart.

    Attributes:
        summary: The first paragraph of the description, on one line.
        description: Everything except the sections on parameters, results and exceptions, dedented.
        params: Name of a parameter -> its description on one line.
        returns: What the function returns, on one line; None when the text doesn't say.
    """

    summary: str = ""
    description: str = ""
    params: dict[str, str] = {}
    returns: str | None = None


# Heading of a section or name of a Sphinx field -> what its body is. Other sections (`Example:`, `Note:`) belong to the description.
_PARAMS = dict.fromkeys(
    ("args", "arguments", "parameters", "params", "other parameters", "keyword args", "keyword arguments", "attributes"), "params"
)
_SECTIONS = {
    **_PARAMS,
    **dict.fromkeys(("returns", "return", "yields", "yield"), "returns"),
    **dict.fromkeys(("raises", "raise", "except", "exceptions", "warns"), "drop"),
}
_FIELDS = {
    **dict.fromkeys(("param", "parameter", "arg", "argument", "key", "keyword"), "params"),
    **dict.fromkeys(("return", "returns"), "returns"),
    **dict.fromkeys(("raises", "raise", "except", "exception", "type", "rtype", "meta"), "drop"),
}
_FIELD = re.compile(r":(\w+)(?: +([^:\n]*))?:(?: +(.*))?$")
_GOOGLE_ENTRY = re.compile(r"\*{0,2}(\w+) *(?:\(.*?\))? *:(?: +(.*))?$")
_NUMPY_ENTRY = re.compile(r"(\*{0,2}\w+(?:, *\*{0,2}\w+)*) *(?::.*)?$")


def parse(doc: str | None) -> Docstring:
    """Take a docstring apart. Any text is accepted.

    Args:
        doc: The text as it stands in the source, or None.
    """
    lines = inspect.cleandoc(doc or "").splitlines()
    text: list[str] = []
    params: dict[str, str] = {}
    returns: list[str] = []
    for kind, body in _blocks(lines):
        if kind == "text":
            text += body
        elif kind == "returns":
            returns += body
        elif kind.startswith("params"):
            for name, about in _ENTRIES[kind](body):
                params.setdefault(name, _line(about))
    description = re.sub(r"\n{3,}", "\n\n", "\n".join(line.rstrip() for line in text)).strip()
    return Docstring(_line(description.split("\n\n", 1)[0].splitlines()), description, params, _line(returns) or None)


def _line(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())


def _blocks(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Cut the text into (kind of block, its lines)."""
    at = 0
    while at < len(lines):
        kind, body, end = _numpy_section(lines, at) or _google_section(lines, at) or _field(lines, at) or ("text", [lines[at]], at + 1)
        yield kind, body
        at = end


def _numpy_heading(lines: list[str], at: int) -> bool:
    return at + 1 < len(lines) and bool(lines[at].strip()) and re.fullmatch(r"-{3,}", lines[at + 1].strip()) is not None


def _numpy_section(lines: list[str], at: int) -> tuple[str, list[str], int] | None:
    if not _numpy_heading(lines, at) or (kind := _SECTIONS.get(lines[at].strip().lower())) is None:
        return None
    end = at + 2
    while end < len(lines) and not _numpy_heading(lines, end):
        end += 1
    return ("params numpy" if kind == "params" else kind), _dedented(lines[at + 2 : end]), end


def _google_section(lines: list[str], at: int) -> tuple[str, list[str], int] | None:
    heading = lines[at].rstrip()
    if not heading.endswith(":") or (kind := _SECTIONS.get(heading[:-1].lower())) is None:
        return None
    end = _indented(lines, at + 1)
    if at == 0 and end == 1:  # a heading on the first line: cleandoc took the indentation of what follows for the text's own
        end = next((blank for blank, line in enumerate(lines) if not line.strip()), len(lines))
    body = _dedented(lines[at + 1 : end])
    return None if not any(body) else ("params google" if kind == "params" else kind, body, end)


def _field(lines: list[str], at: int) -> tuple[str, list[str], int] | None:
    match = _FIELD.match(lines[at])
    if match is None or (kind := _FIELDS.get(match[1])) is None:
        return None
    end = _indented(lines, at + 1)
    body = [match[3] or "", *lines[at + 1 : end]]
    words = (match[2] or "").split()
    if kind != "params":
        return kind, body, end
    # `:param int days:` names the type first
    return ("params sphinx", [words[-1].lstrip("*"), *body], end) if words else None


def _indented(lines: list[str], at: int) -> int:
    """Where the indented block that starts at `at` ends."""
    while at < len(lines) and (not lines[at].strip() or lines[at][0].isspace()):
        at += 1
    return at


def _dedented(lines: list[str]) -> list[str]:
    return dedent("\n".join(lines)).splitlines()


def _google_entries(body: list[str]) -> Iterator[tuple[str, list[str]]]:
    at = 0
    while at < len(body):
        end = _indented(body, at + 1)
        if match := _GOOGLE_ENTRY.match(body[at]):
            yield match[1], [match[2] or "", *body[at + 1 : end]]
        at = end


def _numpy_entries(body: list[str]) -> Iterator[tuple[str, list[str]]]:
    at = 0
    while at < len(body):
        end = _indented(body, at + 1)
        if match := _NUMPY_ENTRY.match(body[at]):
            for name in match[1].split(","):
                yield name.strip(" *"), body[at + 1 : end]
        at = end


def _sphinx_entries(body: list[str]) -> Iterator[tuple[str, list[str]]]:
    yield body[0], body[1:]


_ENTRIES = {"params google": _google_entries, "params numpy": _numpy_entries, "params sphinx": _sphinx_entries}

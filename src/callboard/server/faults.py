"""What is wrong with a value, all of it at once, in words that a model can act on; never with the value itself.

JSON Schema is the common language: `describe` says what a schema expects.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import msgspec

from callboard.errors import CallboardError
from callboard.server.subschemas import resolve

__all__ = ["MAX_FINDINGS", "ArgumentFaults", "Fault", "Finding", "covered", "describe", "read_message", "show_path", "unknown_names"]

MAX_FAULTS = 20
"""How many faults one answer lists."""
MAX_FINDINGS = 200
"""How many faults are read of those found."""
MAX_NAMES = 20
"""How many names or choices one sentence lists."""
MAX_KEY = 64
"""How many characters of a key that the client made up are repeated."""

MAX_TEXT = 200
"""How many characters of a pattern or choice are told."""

Finding = tuple[tuple[str | int, ...], str]
"""Where, and what is expected there."""


class Fault(msgspec.Struct, frozen=True):
    """One thing that is wrong.

    Attributes:
        path: Where: `days`, `address.street`, `items[2]`; empty for the whole.
        expected: What is expected there: `must be an integer between 1 and 14`.
    """

    path: str
    expected: str


class ArgumentFaults(CallboardError):  # noqa: N818 it is a list of faults
    """Arguments that don't fit their schema. The text is for the model that made them (TL-13).

    Args:
        findings: Where, and what is expected there; repeats are dropped.
        complete: Whether there can't be more.

    Attributes:
        faults: All of them.
    """

    def __init__(self, findings: Iterable[Finding], *, complete: bool = True) -> None:
        unique = dict.fromkeys((tuple(path), expected) for path, expected in findings)
        self.faults = tuple(Fault(show_path(path), expected) for path, expected in unique)
        wrong = len({path[:1] for path, _ in unique})
        lines = [f"- {fault.path or 'arguments'}: {fault.expected}" for fault in self.faults[:MAX_FAULTS]]
        if not complete:
            lines.append("- and there may be more")
        elif len(self.faults) > MAX_FAULTS:
            lines.append(f"- and {len(self.faults) - MAX_FAULTS} more")
        count = "Arguments" if not complete else "1 argument" if wrong == 1 else f"{wrong} arguments"
        super().__init__("\n".join([f"{count} {'is' if complete and wrong == 1 else 'are'} wrong:", *lines]))


def show_path(path: Iterable[str | int]) -> str:
    """Write a path the way people do; keys that are no names in brackets, long ones cut."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif step.isidentifier() and len(step) <= MAX_KEY:
            text += f".{step}" if text else step
        else:
            text += f"[{_json(step[:MAX_KEY])}]"
    return text


def covered(path: tuple[str | int, ...], findings: Iterable[Finding]) -> bool:
    """Whether a fault at, above or below a path is known already."""
    return any(known[: len(path)] == path[: len(known)] for known, _ in findings)


_AT = re.compile(r"(.*?)(?: - at `(key` in `)?(\$.*)`)?", re.DOTALL)
_OF_MSGSPEC = (
    *("Expected ", "Integer value ", "Number ", "Object ", "Duration "),
    *("Invalid RFC3339 ", "Invalid ISO8601 ", "Invalid UUID", "Invalid base64 "),
)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")


def read_message(error: msgspec.ValidationError) -> tuple[tuple[str | int, ...], str, bool]:
    """Take a message of msgspec apart: where, what is expected, and whether msgspec says so.

    Other texts are of a `__post_init__`: the author's, who says what no schema can.
    """
    match = _AT.fullmatch(str(error))
    assert match is not None  # the pattern takes any text
    text, of_key, where = match.groups()
    path = tuple(key or int(at) for key, at in _STEP.findall(where or ""))
    if text.startswith(("Invalid enum value", "Invalid value")):  # it repeats the value
        text = "Expected one of the values that the schema lists"
    if of_key:
        text = f"Object key: {text[0].lower()}{text[1:]}"
    if text.startswith(_OF_MSGSPEC):
        return path, f"{text[0].lower()}{text[1:]}", True
    return path, text, False


def unknown_names(names: Iterable[str], known: Iterable[str], path: tuple[str | int, ...]) -> Iterator[Finding]:
    """Say of names that there are no such fields.

    Args:
        names: The names.
        known: Those that there are.
        path: Of the object; empty for the arguments.
    """
    listed = _names(known)
    hint = f"unknown {'field' if path else 'argument'}; there are{f': {listed}' if listed else ' none'}"
    yield from (((*path, name), hint) for name in names)


_NOUNS = {
    "array": "an array",
    "boolean": "true or false",
    "integer": "an integer",
    "null": "null",
    "number": "a number",
    "object": "an object",
    "string": "a string",
}
_FORMATS = {
    "date": "a date like 2026-01-31",
    "date-time": "a date and time like 2026-01-31T09:30:00Z",
    "duration": "a duration like PT1H30M",
    "email": "an email address",
    "time": "a time like 09:30:00",
    "uri": "a URI",
    "uuid": "a UUID",
}
_AMOUNTS = (("minLength", "maxLength", "character"), ("minItems", "maxItems", "item"), ("minProperties", "maxProperties", "field"))
_LIMITS = (("exclusiveMinimum", "greater than"), ("exclusiveMaximum", "less than"), ("multipleOf", "that is a multiple of"))


def describe(schema: Any, root: dict[str, Any], *, depth: int = 4) -> str:
    """Say what a schema expects: `an integer between 1 and 14`.

    Args:
        schema: The schema, or the part of one.
        root: The whole, where local references lead.
        depth: How far alternatives and references are followed.
    """
    if not isinstance(schema, dict) or depth == 0:
        return "what the schema says"
    if isinstance(reference := schema.get("$ref"), str):
        return describe(resolve(root, reference), root, depth=depth - 1)
    if "const" in schema:
        return _json(schema["const"])
    if isinstance(choices := schema.get("enum"), list):
        return _names(map(_json, choices)) if len(choices) == 1 else f"one of {_names(map(_json, choices))}"
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(alternatives, list):
        return " or ".join(dict.fromkeys(describe(inner, root, depth=depth - 1) for inner in alternatives[:MAX_NAMES]))
    return " ".join([_noun(schema), *_details(schema)])


def _noun(schema: dict[str, Any]) -> str:
    types = schema.get("type")
    if types == "string" and schema.get("contentEncoding") == "base64":
        return "bytes in base64"
    if types == "string" and isinstance(name := schema.get("format"), str):
        return _FORMATS.get(name, f"a string in the format {name!r}")
    if types == "object" and isinstance(required := schema.get("required"), list) and required:
        return f"an object with {_names(required)}"
    names = types if isinstance(types, list) else [types]
    return " or ".join(_NOUNS.get(str(name), "a value") for name in names)


def _details(schema: dict[str, Any]) -> Iterator[str]:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        yield f"between {low} and {high}"
    elif low is not None:
        yield f"of at least {low}"
    elif high is not None:
        yield f"of at most {high}"
    for keyword, words in _LIMITS:
        if keyword in schema:
            yield f"{words} {schema[keyword]}"
    for least, most, unit in _AMOUNTS:
        yield from _amount(schema.get(least), schema.get(most), unit)
    if "pattern" in schema:
        yield f"matching {_cut(str(schema['pattern']))}"
    if schema.get("uniqueItems"):
        yield "without repeats"


def _amount(least: Any, most: Any, unit: str) -> Iterator[str]:
    last = least if most is None else most
    if last is None:
        return
    count = f"{last} {unit}{'' if last == 1 else 's'}"
    if least == most:
        yield f"of exactly {count}"
    elif least and most is not None:
        yield f"of {least} to {count}"
    else:
        yield f"of at {'least' if most is None else 'most'} {count}"


def _names(names: Iterable[Any]) -> str:
    listed = [_cut(str(name)) for name in islice(names, MAX_NAMES + 1)]
    return ", ".join(listed[:MAX_NAMES]) + (", ..." if len(listed) > MAX_NAMES else "")


def _json(value: Any) -> str:
    try:
        return _cut(msgspec.json.encode(value).decode())
    except (ValueError, TypeError):  # a key with half a surrogate pair
        return ascii(value)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."

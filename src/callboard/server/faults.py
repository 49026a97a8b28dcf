"""What is wrong with a value, all of it at once, in words that a model can act on; never with the value itself.

JSON Schema is the common language: `jsonschema_rs` finds the faults, `describe` says what the schema expects there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import msgspec

from callboard.errors import CallboardError
from callboard.server.subschemas import locate, resolve

__all__ = ["ArgumentFaults", "Fault", "Finding", "Judge", "covered", "describe", "read_message", "show_path"]

MAX_FAULTS = 20
"""How many faults one answer lists."""
MAX_FINDINGS = 200
"""How many faults are read of those found."""
MAX_NAMES = 20
"""How many names or choices one sentence lists."""
MAX_KEY = 64
"""How many characters of a key that the client made up are repeated."""

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

    Attributes:
        faults: All of them.
    """

    def __init__(self, findings: Iterable[Finding]) -> None:
        unique = dict.fromkeys((tuple(path), expected) for path, expected in findings)
        self.faults = tuple(Fault(show_path(path), expected) for path, expected in unique)
        wrong = len({path[:1] for path, _ in unique})
        lines = [f"- {fault.path or 'arguments'}: {fault.expected}" for fault in self.faults[:MAX_FAULTS]]
        if len(self.faults) > MAX_FAULTS:
            lines.append(f"- and {len(self.faults) - MAX_FAULTS} more")
        super().__init__("\n".join([f"{wrong} argument{' is' if wrong == 1 else 's are'} wrong:", *lines]))


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
    if text.startswith(("Expected ", "Integer value ", "Number ", "Object ")):
        return path, f"{text[0].lower()}{text[1:]}", True
    return path, text, False


class Judge:
    """A JSON Schema that lists what is wrong. It is compiled on first use; nothing that it refers to is ever fetched (JS-03).

    Args:
        schema: The schema.
        formats: Names of formats that count, each with its check. Other formats are annotations.
    """

    __slots__ = ("_formats", "_schema", "_validator")

    def __init__(self, schema: dict[str, Any], formats: dict[str, Callable[[str], bool]] | None = None) -> None:
        self._schema = schema
        self._formats = formats
        self._validator: Any = None

    def compile(self) -> Callable[[Any], bool]:
        """Compile the schema and give the check whether a JSON value fits.

        Raises:
            ValueError: The schema is invalid.
        """
        if self._validator is None:
            import jsonschema_rs

            formats = self._formats
            self._validator = jsonschema_rs.validator_for(
                self._schema, formats=formats, validate_formats=formats is not None, retriever=_refuse
            )
        fits: Callable[[Any], bool] = self._validator.is_valid
        return fits

    def findings(self, instance: Any, *, first_only: bool = False) -> list[Finding]:
        """List what is wrong with a JSON value; empty where the schema has nothing against it.

        Args:
            instance: The value.
            first_only: Stop at the first fault: every fault costs microseconds, and there may be as many as values.
        """
        self.compile()
        try:
            errors = self._first(instance) if first_only else list(islice(self._validator.iter_errors(instance), MAX_FINDINGS))
        except ValueError:  # its own limit of depth
            return [((), "nested too deeply")]
        mistyped = {tuple(error.instance_path) for error in errors if error.kind.name == "type"}
        telling = [error for error in errors if error.kind.name == "type" or tuple(error.instance_path) not in mistyped]
        return [finding for error in telling for finding in _read(error, self._schema, instance)]

    def _first(self, instance: Any) -> list[Any]:
        import jsonschema_rs

        try:
            self._validator.validate(instance)
        except jsonschema_rs.ValidationError as error:
            return [error]
        return []


def _refuse(uri: str) -> Any:
    raise ValueError(f"{uri} is not fetched")


def _read(error: Any, root: dict[str, Any], instance: Any) -> Iterator[Finding]:
    """Translate one error of `jsonschema_rs`; its kind says which details it has."""
    path = tuple(error.instance_path)
    kind = error.kind
    parent = _parent(error, root)
    unexpected = getattr(kind, "unexpected", None)
    if kind.name == "falseSchema" and error.schema_path[-1:] == ["additionalProperties"]:  # it doesn't say which
        unexpected = locate(instance, path)
    if isinstance(name := getattr(kind, "property", None), str):
        yield (*path, name), "required, missing"
    elif unexpected is not None:
        known = _names(parent.get("properties", ())) if isinstance(parent, dict) else ""
        hint = f"unknown {'field' if path else 'argument'}; there are{f': {known}' if known else ' none'}"
        yield from (((*path, name), hint) for name in unexpected)
    elif kind.name == "propertyNames":
        yield path, f"every key must be {describe(parent, root)}"
    elif (context := getattr(kind, "context", None)) is not None:
        yield from _read_union(error, context, root, instance)
    elif kind.name in _DESCRIBABLE and isinstance(parent, dict):
        yield path, f"must be {describe(parent, root)}"
    else:
        yield path, f"must satisfy {kind.name!r} of the schema"


def _parent(error: Any, root: dict[str, Any]) -> Any:
    """The schema that has the keyword; of one with an `$id` of its own, to which paths are relative, the keyword alone."""
    document = (error.absolute_keyword_location or "").partition("#")[0]
    if document and document != str(root.get("$id")).rstrip("#"):
        return {error.kind.name: error.kind.value}
    return locate(root, error.schema_path[:-1])


def _read_union(error: Any, branches: list[list[Any]], root: dict[str, Any], instance: Any) -> Iterator[Finding]:
    """Faults of the one alternative that was meant, as far as type and tags tell which; else what the alternatives are."""
    path = tuple(error.instance_path)
    parent = _parent(error, root)
    meant: list[list[Any]] = []
    tags: dict[tuple[str | int, ...], list[str]] = {}
    for branch in branches:
        wrong = [e for e in branch if tuple(e.instance_path) == path and e.kind.name in {"type", "enum", "const", "falseSchema"}]
        tag = [e for e in branch if len(e.instance_path) == len(path) + 1 and e.kind.name in {"enum", "const"}]
        for inner in tag:
            tags.setdefault(tuple(inner.instance_path), []).append(describe(_parent(inner, root), root))
        if not wrong and not tag and branch:
            meant.append(branch)
    if len(meant) == 1:
        for inner in meant[0]:
            yield from _read(inner, root, instance)
    elif not meant and len(tags) == 1:
        ((where, choices),) = tags.items()
        yield where, f"must be {' or '.join(dict.fromkeys(choices))}"
    elif branches and all(not branch for branch in branches):
        yield path, f"must fit exactly one of the alternatives: {describe(parent, root)}"
    else:
        yield path, f"must be {describe(parent, root)}"


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
_DESCRIBABLE = {
    *("type", "enum", "const", "anyOf", "oneOf", "minimum", "maximum", "pattern", "format", "uniqueItems"),
    *(keyword for low, high, _ in _AMOUNTS for keyword in (low, high)),
    *(keyword for keyword, _ in _LIMITS),
}


def describe(schema: Any, root: dict[str, Any], *, depth: int = 3) -> str:
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
        yield f"matching {schema['pattern']}"
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
    listed = [str(name) for name in islice(names, MAX_NAMES + 1)]
    return ", ".join(listed[:MAX_NAMES]) + (", ..." if len(listed) > MAX_NAMES else "")


def _json(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (ValueError, TypeError):  # a key with half a surrogate pair
        return ascii(value)

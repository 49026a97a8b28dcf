"""Words of a command line as arguments of a tool, by the tool's schema."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import click
import msgspec
from click.core import ParameterSource

from callboard.errors import RegistrationError
from callboard.server.limits import Limits

__all__ = ["JSON_TYPES", "Refusal", "name_store", "parse_headers", "parse_limits", "parse_object", "parse_pairs", "parse_texts", "suggest"]

JSON_TYPES: dict[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}


_SIZES = {"KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
# What somebody means by a size who writes the unit otherwise.
_SIZE_LIKE = re.compile(r"[\d.]+ ?[kmg]i?b?", re.ASCII | re.IGNORECASE)


class Refusal(click.ClickException):
    """The command was wrong."""

    exit_code = 2


def parse_headers(lines: Sequence[str]) -> dict[str, str]:
    """Read lines of the form `NAME: VALUE`.

    Raises:
        Refusal: One is of another form.
    """
    found: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise Refusal("--header takes 'NAME: VALUE', with a colon.")  # not what was given: it may be a secret
        found[name.strip()] = value.strip()
    return found


def name_store() -> str:
    """What has said where the command that runs keeps its sessions: its option, or the environment."""
    source = click.get_current_context().get_parameter_source("store")
    return "CALLBOARD_STORE" if source is ParameterSource.ENVIRONMENT else "--store"


def parse_limits(pairs: Sequence[str]) -> Limits:
    """Read limits of the form `NAME=VALUE`: a number, a size such as `8MiB`, a rate such as `60/min`, `none`, or names with commas.

    Raises:
        Refusal: One is of another form, or no such limit.
    """
    fields = {field.name: field.default for field in msgspec.structs.fields(Limits)}
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if name not in fields:
            raise Refusal(f"--limit takes NAME=VALUE, as in max_body=8MiB; {name!r} is no limit: {suggest(name, list(fields))}")
        if not equals:
            raise Refusal(f"--limit takes NAME=VALUE, as in max_body=8MiB; {name} has no value.")
        found[name] = _read_limit(text.strip(), fields[name])
    try:
        return Limits(**found)
    except RegistrationError as error:
        sized = next((text for text in found.values() if isinstance(text, str) and _SIZE_LIKE.fullmatch(text)), None)
        way_out = "" if sized is None else f" A size is a number of bytes, or has KiB, MiB or GiB behind it, as in 8MiB; {sized!r} has not."
        raise Refusal(f"{error}{way_out}") from error


def _read_limit(text: str, default: Any) -> Any:
    """A limit's value as far as it can be read; what it comes to is checked with the others."""
    if text == "none":
        return None
    if isinstance(default, tuple | frozenset) and not default:
        return [name for name in text.split(",") if name]
    number, unit = (text[:-3], text[-3:]) if text[-3:] in _SIZES else (text, "")
    try:
        return int(number) * _SIZES.get(unit, 1)
    except ValueError:
        pass
    try:
        return text if "/" in text or unit else float(text)
    except ValueError:
        return text


def parse_object(text: str) -> dict[str, Any]:
    """Read the arguments that `--json-args` gives.

    Raises:
        Refusal: It is no JSON object.
    """
    try:
        value = _parse_json(text)
    except ValueError as error:
        raise Refusal(f"--json-args is no JSON: {error}.") from error
    if not isinstance(value, dict):
        raise Refusal(f'--json-args must be an object, such as \'{{"city": "Oslo"}}\', not {JSON_TYPES[type(value)]}.')
    return value


def parse_pairs(pairs: Sequence[str], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Read `key=value` words by the tool's input schema.

    Raises:
        Refusal: A word is of another form, a value does not fit, or a key comes twice.
    """
    properties = schema.get("properties") or {}
    return {key: _parse_value(key, text, _types(properties.get(key), schema)) for key, text in parse_texts(pairs).items()}


def parse_texts(pairs: Sequence[str]) -> dict[str, str]:
    """Read `key=value` words, each value as it stands.

    Raises:
        Refusal: A word is of another form, or a key comes twice.
    """
    values: dict[str, str] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise Refusal(f"{pair!r} is no argument: write key=value.")
        if key in values:
            raise Refusal(f"Argument {key!r} is given twice.")
        values[key] = text
    return values


def _parse_value(key: str, text: str, types: set[str] | None) -> Any:
    """A parameter that may be a string is one, byte for byte (A24); without a type, what is JSON is JSON."""
    if types is not None and "string" in types:
        return text
    try:
        value = _parse_json(text)
    except ValueError:
        if types is None:
            return text
        value = text
    kind = JSON_TYPES[type(value)]
    if types is None or kind in types or (kind == "integer" and "number" in types) or (isinstance(value, float) and value.is_integer()):
        return value
    raise Refusal(f"Argument {key!r} must be {' or '.join(sorted(types))}, not {text!r}.")


def _parse_json(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def _types(schema: Any, root: Mapping[str, Any], depth: int = 16) -> set[str] | None:
    """JSON types that a schema allows; None when it does not say. Local references are followed, to a bounded depth."""
    if not isinstance(schema, Mapping) or not depth:
        return None
    if isinstance(kind := schema.get("type"), str | list):
        return {kind} if isinstance(kind, str) else set(kind)
    if isinstance(values := [schema["const"]] if "const" in schema else schema.get("enum"), list):
        return {JSON_TYPES[type(value)] for value in values}
    if isinstance(reference := schema.get("$ref"), str) and reference.startswith("#/"):
        found: Any = root
        for step in reference[2:].split("/"):
            found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
        return _types(found, root, depth - 1)
    branches = schema.get("anyOf") or schema.get("oneOf") or (schema.get("allOf") or [])[:1]
    kinds = [_types(branch, root, depth - 1) for branch in branches]
    return {kind for each in kinds if each is not None for kind in each} if kinds and None not in kinds else None


def suggest(name: str, known: Sequence[str]) -> str:
    """What may have been meant by a name that is not known."""
    if near := difflib.get_close_matches(name, known):
        return f"did you mean {' or '.join(near)}?"
    return f"it has {', '.join(known[:10])}{', ...' if len(known) > 10 else ''}" if known else "it has none"

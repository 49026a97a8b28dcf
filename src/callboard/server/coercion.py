"""The failure path of arguments: read them exactly, and make `5.0` an integer where the schema asks for one.

Nothing else is coerced: a string stays a string, byte for byte.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec

from callboard.server.faults import ArgumentFaults, Finding
from callboard.server.subschemas import field_schema, item_schema, resolve

__all__ = ["Mender", "encode_exact", "parse_exact", "parse_plain"]

MAX_VALUES = 20_000
"""Arguments with more values than this are taken as they are: their integral floats stay floats. It bounds a hostile call's time."""
MAX_DIGITS = 308
"""Integral floats with more digits than a 64-bit float can have stay floats."""


_exact = msgspec.json.Decoder(float_hook=Decimal).decode
_plain = msgspec.json.Decoder().decode
encode_exact = msgspec.json.Encoder(decimal_format="number").encode
"""Encode what `parse_exact` gave, digit for digit."""


def parse_exact(raw: bytes | msgspec.Raw) -> Any:
    """Decode JSON with every non-integer number as `Decimal`.

    Raises:
        ArgumentFaults: It is no JSON, or holds what can't be delivered.
    """
    try:
        return _parse(_exact, raw)
    except InvalidOperation:  # an exponent beyond Decimal's, and so beyond that of a float
        raise ArgumentFaults(_unreadable(bytes(raw))) from None


def parse_plain(raw: bytes | msgspec.Raw) -> Any:
    """Decode JSON as usual.

    Raises:
        ArgumentFaults: It is no JSON, or holds what can't be delivered.
    """
    return _parse(_plain, raw)


def _parse(decode: Any, raw: bytes | msgspec.Raw) -> Any:
    try:
        return decode(raw)
    except RecursionError:
        raise ArgumentFaults([((), "nested too deeply")]) from None
    except msgspec.DecodeError:
        raise ArgumentFaults(_unreadable(bytes(raw))) from None


def _unreadable(raw: bytes) -> list[Finding]:
    """Why a strict reader refuses it: half of a surrogate pair (SA06), numbers out of range, or no JSON at all."""
    try:
        found = list(_defects((), json.loads(raw)))
    except RecursionError:
        return [((), "nested too deeply")]
    except ValueError:
        found = []
    return found or [((), "must be JSON in UTF-8, with integers of at most 4,300 digits")]


def _defects(path: tuple[str | int, ...], value: Any) -> Iterator[Finding]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _defects(path, key)
            yield from _defects((*path, key), inner)
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield from _defects((*path, at), inner)
    elif isinstance(value, float) and value - value != 0:
        yield path, "must be a finite number within the range of a 64-bit float"
    elif isinstance(value, str) and not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
        yield path, "must be Unicode text; it holds half of a surrogate pair"


class Mender:
    """Makes integral floats integers where a schema asks for an integer and takes no other number.

    Args:
        schema: The schema.

    Attributes:
        values: How many values `mend` has seen.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        self._root = schema
        self._known: dict[tuple[int, ...], list[dict[str, Any]]] = {}
        self.values = 0

    def mend(self, value: Any) -> Any:
        """Mend what `parse_exact` gave.

        Returns:
            `value` itself when there is nothing to do or too much (`MAX_VALUES`), else a copy.
        """
        try:
            return self._mend(value, self._leaves([self._root]))
        except OverflowError:
            return value

    def _mend(self, value: Any, leaves: list[dict[str, Any]]) -> Any:
        if isinstance(value, Decimal):
            return int(value) if _is_integral(value) and _asks_integer(value, leaves) else value
        if isinstance(value, dict):
            self._count(len(value))
            fitting = [leaf for leaf in leaves if _fits(value, leaf)]
            changed = {key: self._mend_part(inner, [field_schema(leaf, key) for leaf in fitting]) for key, inner in value.items()}
            return changed if any(changed[key] is not inner for key, inner in value.items()) else value
        if isinstance(value, list):
            self._count(len(value))
            items = [self._mend_part(inner, [item_schema(leaf, at) for leaf in leaves]) for at, inner in enumerate(value)]
            return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
        return value

    def _mend_part(self, value: Any, schemas: list[Any]) -> Any:
        return self._mend(value, self._leaves(schemas)) if isinstance(value, Decimal | dict | list) else value

    def _count(self, values: int) -> None:
        self.values += values
        if self.values > MAX_VALUES:
            raise OverflowError

    def _leaves(self, schemas: list[Any]) -> list[dict[str, Any]]:
        """The schemas with everything that they refer to or combine."""
        key = tuple(map(id, schemas))
        leaves = self._known.get(key)
        if leaves is None:
            leaves = self._known[key] = []
            waiting = list(schemas)
            while waiting:
                schema = waiting.pop()
                if not isinstance(schema, dict) or any(schema is leaf for leaf in leaves):
                    continue
                leaves.append(schema)
                if isinstance(reference := schema.get("$ref"), str):
                    waiting.append(resolve(self._root, reference))
                for keyword in ("allOf", "anyOf", "oneOf"):
                    waiting += schema.get(keyword, ())
        return leaves


def _is_integral(value: Decimal) -> bool:
    return value.is_finite() and value.adjusted() <= MAX_DIGITS and value == value.to_integral_value()


def _asks_integer(value: Decimal, leaves: list[dict[str, Any]]) -> bool:
    """Whether some schema takes it as an integer only, and none as it is."""
    asks = False
    for leaf in leaves:
        types = leaf.get("type")
        names = types if isinstance(types, list) else [types]
        choices = leaf.get("enum", [leaf["const"]] if "const" in leaf else [])
        if "number" in names or not leaf.keys() & {"type", "enum", "const", "$ref", "allOf", "anyOf", "oneOf"}:
            return False
        asks = asks or "integer" in names or any(type(choice) is int and choice == value for choice in choices)
    return asks


def _fits(value: dict[str, Any], leaf: dict[str, Any]) -> bool:
    """Whether the tags of an alternative allow the object."""
    properties = leaf.get("properties")
    if not isinstance(properties, dict):
        return True
    for name, schema in properties.items():
        if name in value and isinstance(schema, dict):
            choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
            if choices is not None and value[name] not in choices:
                return False
    return True

"""What the strings of a JSON value stand for, as its JSON Schema says: dates, durations, UUIDs, bytes.

A string becomes something else only where every alternative that the schema has for it says so, and only if it is written that way.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from callboard.server.subschemas import resolve, walk

__all__ = ["Reader"]

FORMATS: Final[dict[str, type]] = {
    "date": dt.date,
    "date-time": dt.datetime,
    "duration": dt.timedelta,
    "time": dt.time,
    "uuid": uuid.UUID,
}
"""Format -> what its strings are read as."""
MAX_DEPTH: Final = 100
"""How deep a value is read; what is further inside stays JSON."""
MAX_NESTING: Final = 64
"""How many references and alternatives inside each other are followed in one place."""
MAX_ALTERNATIVES: Final = 64
"""A place with more alternatives than this stays JSON, and all that is in it."""
MAX_TOGETHER: Final = 256
"""The same for schemas that hold together."""
MAX_PLACES: Final = 2_000
"""How many places are remembered."""

_TYPES: Final[dict[type, tuple[str, ...]]] = {
    bool: ("boolean",),
    float: ("number", "integer"),
    int: ("integer", "number"),
    str: ("string",),
    type(None): ("null",),
}
_Alternative = tuple[dict[str, Any], ...]
"""Schemas that hold together for one value."""
_NOTHING: Final[tuple[_Alternative, ...]] = ((),)
_DECODED: Final[dict[str, type]] = {"base64": bytes}


class Reader:
    """Reads JSON values by a schema. What it costs is in proportion to the value.

    Args:
        schema: Any JSON Schema; what makes no sense in it is passed over, and what it refers to elsewhere is not fetched (JS-03).

    Attributes:
        idle: Whether it has nothing to do: values stay as they are.
    """

    __slots__ = ("_places", "_read", "_root", "idle")

    def __init__(self, schema: dict[str, Any]) -> None:
        self._root = schema
        self._read: dict[int, tuple[_Alternative, ...]] = {}
        self._places: dict[tuple[tuple[int, ...], ...], _Place] = {}
        self.idle = not any(_kind(node) for _, node in walk(schema))

    def read(self, value: Any) -> Any:
        """A value with its strings read; the value itself is left as it is. It never fails: what doesn't fit stays JSON."""
        if self.idle:
            return value
        try:
            return self._at(value, self._place(((self._root,),)), 0)
        except RecursionError:  # of the caller's stack: a value this deep has its own limit
            return value

    def _at(self, value: Any, place: _Place, depth: int) -> Any:
        if isinstance(value, str):
            return place.text(value)
        if depth == MAX_DEPTH or not isinstance(value, dict | list):
            return value
        meant = place.meant(value)
        known = place.next.setdefault(meant, {})
        found: list[Any] = []
        for step, part in value.items() if isinstance(value, dict) else enumerate(value):
            key = place.key_of(step)
            if key not in known:
                known[key] = self._inside([place.alternatives[at] for at in meant], step)
            inner = known[key]
            found.append(part if inner is None else self._at(part, inner, depth + 1))
        return dict(zip(value, found, strict=True)) if isinstance(value, dict) else found

    def _inside(self, meant: list[_Alternative], step: str | int) -> _Place | None:
        """The place at a step; None where nothing is said of it."""
        groups = [tuple(_said(alternative, step)) for alternative in meant]
        return self._place(tuple(groups)) if any(groups) else None

    def _place(self, groups: tuple[tuple[Any, ...], ...]) -> _Place:
        """The place where one of several groups of schemas holds."""
        key = tuple(tuple(map(id, group)) for group in groups)
        place = self._places.get(key)
        if place is None:
            if len(self._places) >= MAX_PLACES:
                for old in self._places.values():
                    old.next.clear()
                self._places.clear()
            found: dict[tuple[int, ...], _Alternative] = {}
            for group in groups:
                for alternative in self._together(group, 0, ()):
                    found[tuple(map(id, alternative))] = alternative
            place = self._places[key] = _Place(list(found.values()) if len(found) <= MAX_ALTERNATIVES else [()])
        return place

    def _together(self, schemas: tuple[Any, ...], depth: int, within: tuple[int, ...]) -> tuple[_Alternative, ...]:
        """The alternatives of schemas that hold together."""
        found = _NOTHING
        for schema in schemas:
            found = _crossed(found, self._options(schema, depth, within))
        return found

    def _options(self, schema: Any, depth: int, within: tuple[int, ...]) -> tuple[_Alternative, ...]:
        """The alternatives of one schema: those of `anyOf` and `oneOf`, each with what holds for all of them."""
        if schema is False:
            return ()
        if not isinstance(schema, dict) or depth > MAX_NESTING or id(schema) in within:
            return _NOTHING
        known = self._read.get(id(schema))
        if known is not None:
            return known
        inside = (*within, id(schema))
        also = [resolve(self._root, reference)] if isinstance(reference := schema.get("$ref"), str) else []
        also += _listed(schema, "allOf")
        found = self._together(tuple(also), depth + 1, inside)
        for keyword in ("anyOf", "oneOf"):
            if branches := _listed(schema, keyword):
                found = _crossed(found, tuple(option for branch in branches for option in self._options(branch, depth + 1, inside)))
        self._read[id(schema)] = found = _crossed(((schema,),), found)
        return found


class _Place:
    """What stands for the value in one place, and how it is read.

    Args:
        alternatives: What the value may be.

    Attributes:
        alternatives: As given.
        next: By the alternatives that are meant, and then by step: the places of the parts, None for those of which nothing is said.
    """

    __slots__ = ("_arrays", "_kinds", "_names", "_objects", "_prefix", "alternatives", "next")

    def __init__(self, alternatives: list[_Alternative]) -> None:
        self.alternatives = alternatives
        self.next: dict[tuple[int, ...], dict[str | int | None, _Place | None]] = {}
        kinds = [next(filter(None, map(_kind, one)), None) for one in alternatives if _takes(one, "string")]
        self._kinds: list[type] = [] if None in kinds else list(dict.fromkeys(filter(None, kinds)))
        schemas = [schema for one in alternatives for schema in one]
        self._names = {name for schema in schemas if isinstance(fields := schema.get("properties"), dict) for name in fields}
        self._arrays = tuple(at for at, one in enumerate(alternatives) if _takes(one, "array"))
        self._objects = tuple(at for at, one in enumerate(alternatives) if _takes(one, "object"))
        self._prefix = max((len(_listed(schema, keyword)) for schema in schemas for keyword in ("prefixItems", "items")), default=0)

    def key_of(self, step: str | int) -> str | int | None:
        """What tells steps apart of which not the same is said: all fields without a name of their own are one, and all further items."""
        if isinstance(step, str):
            return step if step in self._names else None
        return min(step, self._prefix)

    def text(self, value: str) -> Any:
        """A string as what it stands for."""
        for kind in self._kinds:
            try:
                return msgspec.convert(value, kind)
            except (msgspec.ValidationError, ValueError, OverflowError):
                continue
        return value

    def meant(self, value: dict[str, Any] | list[Any]) -> tuple[int, ...]:
        """Which alternatives a value may be."""
        if isinstance(value, list):
            return self._arrays
        if len(self._objects) <= 1:
            return self._objects
        return tuple(at for at in self._objects if all(_suits(schema, value) for schema in self.alternatives[at]))


def _listed(schema: dict[str, Any], keyword: str) -> list[Any]:
    held = schema.get(keyword)
    return held if isinstance(held, list) else []


def _crossed(ones: tuple[_Alternative, ...], others: tuple[_Alternative, ...]) -> tuple[_Alternative, ...]:
    """Every alternative of one with every one of the other; of too many nothing is left."""
    if len(ones) * len(others) > MAX_ALTERNATIVES:
        return _NOTHING
    found = tuple(_joined(one, other) for one in ones for other in others)
    return found if all(len(one) <= MAX_TOGETHER for one in found) else _NOTHING


def _joined(one: _Alternative, other: _Alternative) -> _Alternative:
    """Both together, nothing twice."""
    known = set(map(id, one))
    return (*one, *(schema for schema in other if id(schema) not in known))


def _kind(schema: dict[str, Any]) -> type | None:
    """What a schema says that strings are."""
    name, encoding = schema.get("format"), schema.get("contentEncoding")
    kind = FORMATS.get(name) if isinstance(name, str) else None
    return kind or (_DECODED.get(encoding) if isinstance(encoding, str) else None)


def _takes(alternative: _Alternative, name: str) -> bool:
    """Whether values of a type are taken, as far as types say."""
    for schema in alternative:
        types = schema.get("type", name)
        if name not in (types if isinstance(types, list) else (types,)):
            return False
    return True


def _suits(schema: dict[str, Any], value: dict[str, Any]) -> bool:
    """Whether an object may be meant, as far as the names of its fields, and the one value that some must have, say."""
    if not all(name in value for name in _listed(schema, "required") if isinstance(name, str)):
        return False
    properties = schema.get("properties")
    fields = properties if isinstance(properties, dict) else {}
    if schema.get("additionalProperties") is False and "patternProperties" not in schema and not value.keys() <= fields.keys():
        return False
    return all(_may_be(fields[name], part) for name, part in value.items() if name in fields and not isinstance(part, dict | list))


def _may_be(schema: Any, value: Any) -> bool:
    """Whether a schema may mean a value that is neither object nor array, as far as itself says."""
    if not isinstance(schema, dict):
        return schema is not False
    if "const" in schema:
        return bool(schema["const"] == value)
    choices = schema.get("enum")
    return value in choices if isinstance(choices, list) else any(_takes((schema,), name) for name in _TYPES.get(type(value), ()))


def _said(alternative: _Alternative, step: str | int) -> Iterator[Any]:
    """What schemas say of the part at a step; patterns of names aside."""
    for schema in alternative:
        found: Any = None
        if isinstance(step, str):
            properties = schema.get("properties")
            if isinstance(properties, dict) and step in properties:
                found = properties[step]
            elif "patternProperties" not in schema:
                found = schema.get("additionalProperties")
        else:
            items = schema.get("items")
            prefix, rest = (items, schema.get("additionalItems")) if isinstance(items, list) else (schema.get("prefixItems"), items)
            found = prefix[step] if isinstance(prefix, list) and step < len(prefix) else rest
        if isinstance(found, dict):
            yield found

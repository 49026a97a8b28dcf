"""Walking a JSON Schema: which keywords hold schemas, and what a path or a local reference points to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["children", "field_schema", "item_schema", "locate", "resolve", "walk"]

Path = tuple[str | int, ...]

# Keywords by what they hold. Everything else (`enum`, `const`, `default`, `examples`, unknown keywords) is data.
_ONE = (
    "additionalItems",
    "additionalProperties",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
)
_LIST = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_MAP = ("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties")
_ALL = frozenset({*_ONE, *_LIST, *_MAP})


def children(schema: dict[str, Any]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The schemas directly inside a schema, each with the way there. Boolean schemas are passed over."""
    holding = schema.keys() & _ALL  # most have none, or one: looking for each would take the time of all
    if not holding:
        return
    for key in _ONE:
        if key in holding and isinstance(inner := schema[key], dict):
            yield (key,), inner
    for key in _LIST:
        if key in holding and isinstance(members := schema[key], list):
            yield from (((key, at), member) for at, member in enumerate(members) if isinstance(member, dict))
    for key in _MAP:
        if key in holding and isinstance(named := schema[key], dict):
            yield from (((key, name), inner) for name, inner in named.items() if isinstance(inner, dict))


def walk(schema: dict[str, Any]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A schema and every schema inside it, each with the way there. No recursion: the depth may be hostile."""
    waiting: list[tuple[Path, dict[str, Any]]] = [((), schema)]
    while waiting:
        path, node = waiting.pop()
        yield path, node
        waiting += [((*path, *step), inner) for step, inner in children(node)]


def field_schema(schema: dict[str, Any], name: str) -> Any:
    """What a schema says of a field; patterns of names aside. None for nothing."""
    properties = schema.get("properties")
    return properties[name] if isinstance(properties, dict) and name in properties else schema.get("additionalProperties")


def item_schema(schema: dict[str, Any], at: int) -> Any:
    """What a schema says of an item. None for nothing."""
    prefix = schema.get("prefixItems", ())
    return prefix[at] if at < len(prefix) else schema.get("items")


def locate(root: Any, path: Iterable[str | int]) -> Any:
    """What stands at a path; an empty schema where nothing does."""
    for step in path:
        try:
            root = root[step]
        except (KeyError, IndexError, TypeError):
            return {}
    return root


def resolve(root: Any, reference: str) -> Any:
    """The schema that a JSON pointer like `#/$defs/Day` names; an empty schema for other references and where nothing stands there."""
    if not reference.startswith("#/"):
        return root if reference == "#" else {}
    for part in reference[2:].split("/"):
        step = part.replace("~1", "/").replace("~0", "~")
        root = locate(root, [int(step) if isinstance(root, list) and step.isascii() and step.isdigit() else step])
    return root

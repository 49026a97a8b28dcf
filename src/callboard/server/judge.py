"""Why a JSON Schema refuses a value: the way from the whole to the places that are at fault.

`jsonschema_rs` says whether a value fits, in linear time, and what the keywords of one place have against it. The way is ours: asked for
all errors, it lists those of every alternative at every level of a union, without end where a union holds itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any
from urllib.parse import quote

from callboard.server.faults import MAX_FINDINGS, Finding, describe, unknown_names
from callboard.server.subschemas import resolve, walk

__all__ = ["Judge"]

MAX_DEPTH = 200
"""How deep faults are looked for. What is wrong further inside is told of the place where the search ends."""
MAX_DEPTH_OF_BIG = 16
"""The same for big values."""
MAX_OF_PART = 10
"""How many faults of one argument are told."""

Path = tuple[str | int, ...]
Check = Callable[[Any], bool]

_BASE = "callboard://schema/root"
_KIND = frozenset({"type", "enum", "const"})
_OWN = _KIND | {
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minLength", "maxLength", "pattern", "format", "minItems", "maxItems", "uniqueItems"),
    *("minProperties", "maxProperties", "required", "dependentRequired"),
}
"""Keywords that say something of a value without looking into it."""
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_UNIONS = ("anyOf", "oneOf")
_OPAQUE = ("not", "contains", "unevaluatedItems", "unevaluatedProperties", "dependencies", *_REFERENCES)
"""Keywords that the search doesn't follow."""


class Judge:
    """A JSON Schema that lists what is wrong. It is compiled on first use; nothing that it refers to is ever fetched (JS-03).

    Args:
        schema: The schema.
        formats: Names of formats that count, each with its check. Other formats are annotations.
        patterns: Options of `jsonschema_rs` for regular expressions; None for its own.

    Attributes:
        schema: As given.
    """

    __slots__ = ("_formats", "_names", "_patterns", "_registry", "_validators", "schema")

    def __init__(self, schema: dict[str, Any], formats: dict[str, Callable[[str], bool]] | None = None, *, patterns: Any = None) -> None:
        self.schema = schema
        self._formats = formats
        self._patterns = patterns
        self._registry: Any = None
        self._names: dict[str | int, Any] = {}
        self._validators: dict[Any, Any] = {}

    def compile(self) -> Check:
        """Compile the schema and give the check whether a JSON value fits.

        Raises:
            ValueError: The schema is invalid.
        """
        fits: Check = self._compiled(id(self.schema), lambda: self.schema).is_valid
        return fits

    def findings(self, instance: Any, *, big: bool = False) -> tuple[list[Finding], bool]:
        """List what is wrong with a JSON value.

        Args:
            instance: The value.
            big: Of every part the first fault alone is told: a fault costs microseconds, and there may be as many as values.

        Returns:
            The faults, none where the schema has nothing against the value or can't be compiled; and whether those are all.
        """
        try:
            fits = self.compile()
        except ValueError:  # a pattern that only Python reads
            return [], True
        try:
            if fits(instance):
                return [], True
            search = _Search(self, MAX_DEPTH_OF_BIG if big else MAX_DEPTH, 1 if big else MAX_OF_PART)
            found = list(dict.fromkeys(islice(search.look(self.schema, instance, ()), MAX_FINDINGS)))
            return found or [((), "must fit the schema")], search.complete and len(found) < MAX_FINDINGS
        except (ValueError, RecursionError):  # its own limit of depth, or ours
            return [((), "nested too deeply")], True

    def check(self, schema: Any) -> Check:
        """Give the check of a schema inside the schema."""
        if not isinstance(schema, dict):
            return lambda _: schema is not False
        key = id(schema)
        fits: Check = (self._validators.get(key) or self._compiled(key, lambda: {"$ref": f"{_BASE}{self._name(schema)}"})).is_valid
        return fits

    def check_own(self, schema: dict[str, Any], keywords: frozenset[str] = _OWN) -> Any:
        """Give the validator of a schema's own keywords."""
        return self._compiled((id(schema), keywords), lambda: {key: schema[key] for key in schema.keys() & keywords})

    def check_name(self, pattern: str) -> Check:
        """Give the check whether a name matches a pattern."""
        fits: Check = self._compiled(pattern, lambda: {"pattern": pattern}).is_valid
        return fits

    def target(self, reference: Any) -> Any:
        """The schema inside the schema that a reference names; True, which takes everything, where it isn't found."""
        if not isinstance(reference, str):
            return True
        self._read_names()
        return self._names.get(reference) or resolve(self.schema, reference) or True

    def _name(self, schema: dict[str, Any]) -> str:
        self._read_names()
        return quote(self._names[id(schema)], safe="#/")

    def _read_names(self) -> None:
        """Find the pointer of every schema inside the schema, and those that have names of their own."""
        if self._names:
            return
        import jsonschema_rs

        self._registry = jsonschema_rs.Registry([(_BASE, self.schema)], retriever=_refuse)
        for path, node in walk(self.schema):
            self._names[id(node)] = "#" + "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)
            for key, mark in (("$id", ""), ("$anchor", "#"), ("$dynamicAnchor", "#")):
                if isinstance(name := node.get(key), str):
                    self._names[mark + name] = node

    def _compiled(self, key: Any, schema: Callable[[], dict[str, Any]]) -> Any:
        """The validator of a schema, compiled once."""
        if key not in self._validators:
            import jsonschema_rs

            dialect = {"$schema": self.schema["$schema"]} if "$schema" in self.schema else {}
            self._validators[key] = jsonschema_rs.validator_for(
                {**schema(), **dialect},
                formats=self._formats,
                validate_formats=self._formats is not None,
                retriever=_refuse,
                registry=self._registry,
                pattern_options=self._patterns,
            )
        return self._validators[key]


def _refuse(uri: str) -> Any:
    raise ValueError(f"{uri} is not fetched")


class _Search:
    """The way to the faults. Every step goes towards what doesn't fit, and of alternatives only into the one that was meant.

    So it costs about as much as reading the value once per level.

    Attributes:
        complete: Whether nothing has been left out so far.
    """

    def __init__(self, judge: Judge, depth: int, of_part: int) -> None:
        self.complete = True
        self._judge = judge
        self._depth = depth
        self._of_part = of_part
        self._seen: set[tuple[int, Path]] = set()

    def look(self, schema: Any, value: Any, path: Path) -> Iterator[Finding]:
        """Yield what is wrong with a value that the schema refuses; nothing where it has been said."""
        if (id(schema), path) in self._seen:
            return
        self._seen.add((id(schema), path))
        if not isinstance(schema, dict):
            yield path, "must be left out"
        elif len(path) >= self._depth:
            yield path, self._expected(schema)
        else:
            told = False
            for finding in self._inside(schema, value, path):
                told = True
                yield finding
            if not told and not any((id(inner), path) in self._seen for inner in self._in_place(schema, value)):
                yield from self._unexplained(schema, value, path)

    def _inside(self, schema: dict[str, Any], value: Any, path: Path) -> Iterator[Finding]:
        own = self._judge.check_own(schema)
        errors = [] if own.is_valid(value) else list(own.iter_errors(value))
        if any(error.kind.name == "type" for error in errors):
            yield path, self._expected(schema)
            return
        for error in errors:
            missing = getattr(error.kind, "property", None)
            yield ((*path, missing), "required, missing") if isinstance(missing, str) else (path, self._expected(schema))
        if isinstance(value, dict):
            yield from self._keys(schema, value, path)
        for step, inner, part in _misfits(self._judge, schema, value):
            found = self.look(inner, part, (*path, step))
            yield from found if path else self._few(found)
        for inner in self._in_place(schema, value):
            if not self._judge.check(inner)(value):
                yield from self.look(inner, value, path)
        for keyword in _UNIONS:
            if keyword in schema:
                yield from self._alternatives(keyword, schema[keyword], value, path)

    def _few(self, found: Iterator[Finding]) -> Iterator[Finding]:
        """Of what is wrong with a part of the whole not so much that nothing is told of the others."""
        for count, finding in enumerate(found):
            if count == self._of_part:
                self.complete = False
                return
            yield finding

    def _keys(self, schema: dict[str, Any], value: dict[str, Any], path: Path) -> Iterator[Finding]:
        """Keys that must not be there."""
        if schema.get("additionalProperties") is False:
            yield from unknown_names(
                (name for name in value if not _schemas_of(self._judge, schema, name)), schema.get("properties", ()), path
            )
        if "propertyNames" in schema and not all(map(self._judge.check(rule := schema["propertyNames"]), value)):
            yield path, f"every key {self._expected(rule)}"

    def _in_place(self, schema: dict[str, Any], value: Any) -> Iterator[Any]:
        """The schemas inside a schema that hold for the same value."""
        yield from (self._judge.target(schema[keyword]) for keyword in _REFERENCES if keyword in schema)
        yield from schema.get("allOf", ())
        if "if" in schema:
            yield schema.get("then" if self._judge.check(schema["if"])(value) else "else", True)
        if isinstance(value, dict):
            yield from (inner for name, inner in schema.get("dependentSchemas", {}).items() if name in value)

    def _alternatives(self, keyword: str, branches: list[Any], value: Any, path: Path) -> Iterator[Finding]:
        """Faults of the one alternative that was meant, as far as types, tags and names of fields tell which; else what there is."""
        fitting = sum(1 for branch in branches if self._judge.check(branch)(value))
        if fitting == 1 or (fitting and keyword == "anyOf"):
            return
        options = [_Option(self._judge, leaves, value) for leaves in self._options(branches, value)]
        tags = [option.tags for option in options if option.suits]
        meant = None if fitting else _meant([option for option in options if option.suits and not option.tags])
        if meant is not None:
            for leaf in meant.leaves:
                if not self._judge.check(leaf)(value):
                    yield from self.look(leaf, value, path)
        elif not fitting and all(tags) and len(names := {name for found in tags for name in found}) == 1:
            (name,) = names
            yield (*path, name), f"must be {' or '.join(dict.fromkeys(found[name] for found in tags))}"
        else:
            what = describe({keyword: branches}, self._judge.schema)
            yield path, f"must fit exactly one of the alternatives: {what}" if fitting else f"must be {what}"

    def _options(self, branches: list[Any], value: Any) -> Iterator[list[dict[str, Any]]]:
        """The alternatives, those of unions inside too, each with the schemas that it puts together."""
        waiting = list(reversed(branches))
        seen: list[Any] = []
        while waiting:
            leaves = [branch] if isinstance(branch := waiting.pop(), dict) and not any(branch is one for one in seen) else []
            seen.append(branch)
            for leaf in leaves:
                leaves += [inner for inner in self._in_place(leaf, value) if isinstance(inner, dict) and inner not in leaves]
            inner = [one for leaf in leaves for keyword in _UNIONS for one in leaf.get(keyword, ())]
            if inner and not any(leaf.keys() & {*_KIND, "properties"} for leaf in leaves):
                waiting += reversed(inner)
            elif leaves:
                yield leaves

    def _unexplained(self, schema: dict[str, Any], value: Any, path: Path) -> Iterator[Finding]:
        """What only the whole of a schema says."""
        keyword = next((keyword for keyword in _OPAQUE if keyword in schema), None)
        if keyword == "unevaluatedProperties" and isinstance(value, dict):
            known = [name for leaves in self._options([schema], value) for leaf in leaves for name in leaf.get("properties", ())]
            unknown = list(unknown_names((name for name in value if name not in known), known, path))
            if unknown:
                yield from unknown
                return
        yield path, f"must satisfy {keyword!r} of the schema" if keyword else self._expected(schema)

    def _expected(self, schema: dict[str, Any]) -> str:
        return f"must be {describe(schema, self._judge.schema)}"


class _Option:
    """An alternative, and how a value relates to it.

    Attributes:
        leaves: The schemas that it puts together.
        suits: Whether the value is of its type.
        tags: Fields of the value that have not one of the values that it allows, and which those are.
        known: How many fields of the value are its.
        strange: How many are not, and how many are missing.
    """

    def __init__(self, judge: Judge, leaves: list[dict[str, Any]], value: Any) -> None:
        self.leaves = leaves
        self.suits = all(judge.check_own(leaf, _KIND).is_valid(value) for leaf in leaves)
        given = value if isinstance(value, dict) else {}
        fields = {name: inner for leaf in leaves for name, inner in leaf.get("properties", {}).items()}
        required = {name for leaf in leaves for name in leaf.get("required", ())}
        self.known = len(fields.keys() & given.keys())
        self.strange = len(required - given.keys()) + len(given.keys() - fields.keys())
        self.tags = {
            name: describe(inner, judge.schema)
            for name, inner in fields.items()
            if name in given and isinstance(inner, dict) and inner.keys() & _KIND - {"type"} and not judge.check(inner)(given[name])
        }


def _meant(options: list[_Option]) -> _Option | None:
    """The only one; else the one whose fields are the nearest, if they tell."""
    if len(options) == 1:
        return options[0]
    least = min((option.strange for option in options if option.known), default=None)
    nearest = [option for option in options if option.known and option.strange == least]
    return nearest[0] if len(nearest) == 1 else None


def _misfits(judge: Judge, schema: dict[str, Any], value: Any) -> Iterator[tuple[str | int, Any, Any]]:
    """The parts of a value that don't fit what a schema says of them: step, schema, part."""
    if isinstance(value, dict):
        rest = schema.get("additionalProperties", True) or True  # false is told of by name
        fits, named = judge.check(rest), schema.keys() & {"properties", "patternProperties"}
        for name, part in value.items():
            if inners := _schemas_of(judge, schema, name) if named else []:
                yield from ((name, inner, part) for inner in inners if not judge.check(inner)(part))
            elif not fits(part):
                yield name, rest, part
    elif isinstance(value, list):
        items = schema.get("items", True)
        prefix, rest = (items, schema.get("additionalItems", True)) if isinstance(items, list) else (schema.get("prefixItems", []), items)
        fits = judge.check(rest)
        for at, part in enumerate(value):
            if at < len(prefix):
                if not judge.check(prefix[at])(part):
                    yield at, prefix[at], part
            elif not fits(part):
                yield at, rest, part


def _schemas_of(judge: Judge, schema: dict[str, Any], name: str) -> list[Any]:
    """What a schema says of a field by name."""
    properties = schema.get("properties", {})
    found = [properties[name]] if name in properties else []
    return found + [inner for pattern, inner in schema.get("patternProperties", {}).items() if judge.check_name(pattern)(name)]

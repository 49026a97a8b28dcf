"""What of a tool's arguments may stand in a log: their values without what is secret, and not too much of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import msgspec

__all__ = ["HIDDEN", "Redactor", "looks_secret", "read_redactor"]

HIDDEN = "***"
"""Stands for a value that is not shown."""
# Bytes of arguments that are looked at; characters of a text and of a key, entries of a list or object, depth, and values in all.
MAX_BYTES = 64 * 1024
MAX_TEXT = 200
MAX_KEY = 64
MAX_ENTRIES = 20
MAX_DEPTH = 8
MAX_VALUES = 200
# Redactors of tools that are kept.
MAX_KEPT = 4096

_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[^A-Za-z0-9]+")
# EL-10, and what HTTP and MCP keep secret.
_ANYWHERE = re.compile(
    r"password|passwd|passphrase|passcode|secret|credential|authori[sz]ation|apikey|cookie|requeststate|sessionid"
    r"|(api|access|private|signing|encryption|ssh|auth)_?key|card_?number|credit_?card|session_?id|request_state|connection_?string"
)
_WORD = re.compile(r"(^|_)(pass|pwd|pin|cvv|cvc|otp|totp|mfa|ssn|iban|auth|bearer|jwt|cursor|private_?key|pem)\d*(_|$)")
_TOKEN = re.compile(r"token")
# Credentials by their look, wherever they stand.
_CREDENTIAL = re.compile(
    r"\b(?:bearer|basic|dpop|token)\s+[\w\-.~+/=]{6,}|\beyJ[\w-]{6,}\.[\w-]+(?:\.[\w-]*)?|-----BEGIN [A-Z ]*PRIVATE KEY-----.*"
    r"|\b(?:gh[opsru]_|github_pat_|glpat-|sk-|xox[a-z]-|npm_|pypi-|AKIA|ASIA|AIza)[\w-]{8,}|(?<=cookie:)[^\r\n]*",
    re.IGNORECASE | re.DOTALL,
)
# As far as the last @: a password may have one.
_USERINFO = re.compile(r"://[^/\s?#]*@")
_OPTION = re.compile(r"(?<!\S)(--?)([a-z][\w\-]{0,63})(\s+)(\S+)", re.IGNORECASE)
# A name and its value in a query, a JSON text, a header or a setting.
_PAIR = re.compile(r"([\w\-]{1,64})((?:%22|\\?[\"'\]])?\s*[:=]\s*(?:\\?[\"'])?)([^\s\"'&,;}]+)")
_Schema = dict[str, Any]


def looks_secret(name: str, value: Any = "") -> bool:
    """Whether a name is that of a secret (EL-10). A number of tokens is none.

    Args:
        name: Of an argument or a key, in whatever case.
        value: What it has.
    """
    snake = _WORDS.sub("_", name[:MAX_KEY]).lower()
    if _ANYWHERE.search(snake) or _ANYWHERE.search(snake.replace("_", "")) or _WORD.search(snake):
        return True
    return bool(_TOKEN.search(snake)) and not isinstance(value, bool | int | float)


class _Place:
    """All that the schema says of one place in the arguments.

    Attributes:
        secret: Whether what is there is never shown.
        named: Schemas of its properties.
        others: Schemas of what has other names; None where there should be nothing, so that nothing of it is shown.
        kinds: Types that values may have; None for any.
        first: Schemas of its first items.
        items: Schemas of its other items.
    """

    __slots__ = ("first", "items", "kinds", "named", "others", "secret")

    def __init__(self, schemas: Iterable[_Schema]) -> None:
        self.secret = False
        schemas = list(schemas)
        said = [schema["type"] for schema in schemas if "type" in schema]
        is_typed = bool(said) and all("type" in schema or not _REFERRING.isdisjoint(schema) for schema in schemas)
        self.kinds = {kind for kinds in said for kind in ([kinds] if isinstance(kinds, str) else kinds)} if is_typed else None
        self.named: dict[str, list[_Schema]] = {}
        self.first: list[list[_Schema]] = []
        self.items: list[_Schema] = []
        others: list[_Schema] = []
        is_open = True
        for schema in schemas:
            self.secret = self.secret or schema.get("writeOnly") is True or schema.get("format") == "password"
            properties = _mapping(schema.get("properties"))
            for name, inner in properties.items():
                self.named.setdefault(name, []).extend(_schemas([inner]))
            more = schema.get("additionalProperties")
            is_open = is_open and more is not False and not (properties and more is None)
            others += _schemas([more, schema.get("unevaluatedProperties"), *_mapping(schema.get("patternProperties")).values()])
            self.items += _schemas([schema.get("items"), schema.get("contains"), schema.get("unevaluatedItems")])
            for at, inner in enumerate(schema.get("prefixItems") or ()):
                if at >= len(self.first):
                    self.first.append([])
                self.first[at] += _schemas([inner])
        self.others: list[_Schema] | None = others if others or is_open else None


class Redactor:
    """Shows the arguments of one tool.

    What is hidden: what the schema marks `writeOnly` or `format: password` (`types.Secret`, pydantic's `SecretStr`), at any depth and
    behind references and alternatives; what has the name of a secret; what looks like a credential; and what the schema says nothing of.

    Args:
        schema: JSON Schema of the arguments.
    """

    def __init__(self, schema: _Schema) -> None:
        self._root = schema
        self._marks = _marks(schema)
        self._places: dict[tuple[int, ...], _Place] = {}

    def show(self, raw: bytes | msgspec.Raw) -> Any:
        """What may be shown, as a JSON value.

        Args:
            raw: The arguments as JSON.
        """
        size = len(memoryview(raw))
        if size > MAX_BYTES:
            return f"({size} bytes)"
        try:
            arguments = msgspec.json.decode(raw)
        except (msgspec.DecodeError, RecursionError):
            return HIDDEN
        if not isinstance(arguments, dict):
            return HIDDEN
        return self._show(arguments, [self._root], MAX_DEPTH, [MAX_VALUES])

    def _show(self, value: Any, schemas: list[_Schema], depth: int, left: list[int]) -> Any:
        place = self._find(schemas)
        left[0] -= 1
        if place.secret or (self._marks and place.kinds is not None and place.kinds.isdisjoint(_name_kinds(value))):
            return HIDDEN  # of what should not be there nobody knows what it is: a bare secret, where a list of them is wanted
        if isinstance(value, str):
            return show_text(value)
        if not isinstance(value, dict | list):
            return value if not isinstance(value, int) or abs(value) < 2**63 else HIDDEN
        if depth == 0 or left[0] <= 0:
            return f"({len(value)} entries)"
        if isinstance(value, dict):
            return self._show_object(value, place, depth, left)
        shown = []
        for at, item in enumerate(value[:MAX_ENTRIES]):
            shown.append(self._show(item, place.first[at] if at < len(place.first) else place.items, depth - 1, left))
        return shown if len(value) <= MAX_ENTRIES else [*shown, f"({len(value) - MAX_ENTRIES} more)"]

    def _show_object(self, value: Mapping[str, Any], place: _Place, depth: int, left: list[int]) -> dict[str, Any]:
        shown: dict[str, Any] = {}
        for name, inner in list(value.items())[:MAX_ENTRIES]:
            schemas = [*place.named.get(name, ()), *(place.others or ())]
            is_known = name in place.named or place.others is not None
            key = show_text(name)[:MAX_KEY] if is_known else HIDDEN  # what should not be there may be a secret in the wrong place
            shown[key] = HIDDEN if not is_known or looks_secret(name, inner) else self._show(inner, schemas, depth - 1, left)
        if len(value) > MAX_ENTRIES:
            shown["..."] = f"({len(value) - MAX_ENTRIES} more)"
        return shown

    def _find(self, schemas: list[_Schema]) -> _Place:
        key = tuple(map(id, schemas))
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = _Place(self._open(schemas))
        return place

    def _open(self, schemas: Iterable[_Schema]) -> Iterable[_Schema]:
        """Schemas, what they refer to, and all their alternatives."""
        waiting = list(schemas)
        seen: dict[int, _Schema] = {}
        while waiting:
            schema = waiting.pop()
            if id(schema) in seen:
                continue
            seen[id(schema)] = schema
            for word in _REFERENCES:
                if isinstance(schema.get(word), str):
                    waiting += _schemas([self._resolve(schema[word])])
            for word in ("allOf", "anyOf", "oneOf"):
                waiting += _schemas(schema.get(word) or ())
            waiting += _schemas([schema.get("then"), schema.get("else"), *_mapping(schema.get("dependentSchemas")).values()])
        return seen.values()

    def _resolve(self, reference: str) -> Any:
        """What a reference of this document points to; a schema that hides all where that is not to be found."""
        node: Any = self._root
        if not reference.startswith("#/") and reference != "#":
            return _OPAQUE  # an anchor, or another document
        for part in reference[1:].split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            node = node.get(name) if isinstance(node, dict) else None
        return node if isinstance(node, dict | bool) else _OPAQUE


_OPAQUE: _Schema = {"writeOnly": True}
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
# A schema that has no type, but one of these, has those of others.
_REFERRING = frozenset({*_REFERENCES, "allOf", "anyOf", "oneOf"})
_KINDS = {dict: {"object"}, list: {"array"}, str: {"string"}, bool: {"boolean"}, int: {"integer", "number"}, float: {"integer", "number"}}


def _name_kinds(value: Any) -> set[str]:
    """What JSON Schema may call a value's type."""
    return _KINDS.get(type(value), {"null"})


def _marks(schema: Any) -> bool:
    """Whether a schema marks anything as secret."""
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            if node.get("writeOnly") is True or node.get("format") == "password":
                return True
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node
    return False


def _schemas(given: Iterable[Any]) -> list[_Schema]:
    return [schema for schema in given if isinstance(schema, dict)]


def _mapping(given: Any) -> Mapping[str, Any]:
    return given if isinstance(given, dict) else {}


def show_text(text: str) -> str:
    """A text without credentials that stand in it, cut."""
    cut = text[: 4 * MAX_TEXT]
    cut = _CREDENTIAL.sub(HIDDEN, cut)
    cut = _USERINFO.sub(f"://{HIDDEN}@", cut)
    cut = _OPTION.sub(lambda found: found[1] + found[2] + found[3] + HIDDEN if looks_secret(found[2]) else found[0], cut)
    cut = _hide_pairs(cut)
    return cut if len(cut) <= MAX_TEXT and len(text) <= 4 * MAX_TEXT else f"{cut[:MAX_TEXT]}... ({len(text)} characters)"


def _hide_pairs(text: str) -> str:
    """Hide what follows the name of a secret. What follows another name may hold such a pair in turn: `https://host/?token=...`."""
    shown, at = [], 0
    while (found := _PAIR.search(text, at)) is not None:
        is_secret = looks_secret(found[1])
        shown.append(text[at : found.start(3)])
        if is_secret:
            shown.append(HIDDEN)
        at = found.end() if is_secret else found.start(3)
    return "".join([*shown, text[at:]])


class _Definition(msgspec.Struct):
    schema: Any = msgspec.field(name="inputSchema", default=None)


@lru_cache(MAX_KEPT)
def read_redactor(definition: bytes) -> Redactor:
    """The redactor of a tool: compiled once, with the first call that is logged with its arguments.

    Args:
        definition: Its entry in `tools/list`, encoded.
    """
    schema = msgspec.json.decode(definition, type=_Definition).schema
    return Redactor(schema if isinstance(schema, dict) else _OPAQUE)

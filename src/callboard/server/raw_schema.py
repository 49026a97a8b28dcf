"""The engine for tools that bring their own JSON Schema: it is advertised as it is, and validates.

Dialects: 2020-12 (the default), 2019-09, draft 7, 6 and 4, as `$schema` says (JS-01). Nothing is ever fetched (JS-03).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from callboard.errors import RegistrationError
from callboard.server.arguments import Arguments, Misfit
from callboard.server.coercion import parse_plain
from callboard.server.faults import ArgumentFaults
from callboard.server.judge import Judge
from callboard.server.subschemas import resolve, walk

__all__ = ["DIALECTS", "RawArguments", "RawResult", "compile_schema", "count_subschemas", "read_schema"]

MAX_BYTES = 1_048_576
"""Size of a schema as JSON (JS-05)."""
MAX_DEPTH = 64
"""How deep its subschemas may nest (JS-05)."""
MAX_LISTED = 16_384
"""Of arguments with more bytes than this the first fault of each alone is told."""
MAX_SUBSCHEMAS = 10_000
"""How many subschemas one value may meet in one place, references followed (JS-05)."""
MAX_WORK = 10_000_000
"""How many subschemas the values of one call's arguments may meet in all: a second or two (JS-05)."""

DIALECTS = {
    f"{uri}{end}": name
    for uri, name in (
        ("https://json-schema.org/draft/2020-12/schema", "2020-12"),
        ("https://json-schema.org/draft/2019-09/schema", "2019-09"),
        ("http://json-schema.org/draft-07/schema", "draft 7"),
        ("http://json-schema.org/draft-06/schema", "draft 6"),
        ("http://json-schema.org/draft-04/schema", "draft 4"),
    )
    for end in ("", "#")
}
"""What `$schema` may be -> name of the dialect (JS-01)."""
_IN_PLACE = {"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas"}
_decode = msgspec.json.Decoder().decode


class RawArguments(Arguments):
    """Arguments by a JSON Schema of the author's.

    Args:
        schema: The schema.
        label: Name and place of its owner, for error texts.

    Raises:
        RegistrationError: The schema is invalid, not of an object, of an unknown dialect, too big, or refers to another document.
    """

    def __init__(self, schema: dict[str, Any] | bytes, label: str) -> None:
        document = read_schema(schema, f"{label}: the input schema")
        if document.get("type") != "object":  # TL-05
            raise RegistrationError(f'{label}: the input schema must have "type": "object" at its root; arguments are an object.')
        super().__init__(document)
        self._fits = compile_schema(self.judge, document, f"{label}: the input schema")
        self._cost = count_subschemas(document)

    def bind(self, raw: bytes | msgspec.Raw | None) -> dict[str, Any]:
        """Give the arguments as they are, once the schema has nothing against them; see `Arguments.bind`."""
        values: dict[str, Any] = parse_plain(raw or b"{}")
        if raw is not None and self._cost * len(raw) > MAX_WORK and self._cost * _count_values(bytes(raw)) > MAX_WORK:
            raise ArgumentFaults(
                [((), "must have fewer values: the schema has so many alternatives that checking them would take too long")]
            )
        if not self._fits(values):
            big = len(raw or b"") > MAX_LISTED
            findings, complete = self.judge.findings(values, big=big)
            raise ArgumentFaults(findings, complete=complete and not big)
        return values


class RawResult:
    """A result's schema as the author gave it, and the encoder that holds results to it.

    Args:
        schema: The schema; its root may be of any type (TL-06).
        encode: Encodes a value.
        label: Name and place of its owner, for error texts.

    Attributes:
        schema: As given.
        nullable: Whether null may stand in what `encode` gives, which is what NaN becomes.

    Raises:
        RegistrationError: As for arguments.
    """

    def __init__(self, schema: dict[str, Any] | bytes, encode: Callable[[Any], bytes], label: str) -> None:
        self.schema = read_schema(schema, f"{label}: the output schema")
        self.nullable = True
        self._judge = Judge(self.schema)
        self._fits = compile_schema(self._judge, self.schema, f"{label}: the output schema")
        self._encode = encode

    def encode(self, value: Any) -> bytes:
        """Encode a value.

        Raises:
            Misfit: It doesn't fit the schema (TL-08).
            Exception: It can't be encoded.
        """
        data = self._encode(value)
        instance = _decode(data)
        if not self._fits(instance):
            raise Misfit(self._judge.findings(instance)[0])
        return data


def read_schema(schema: dict[str, Any] | bytes, what: str) -> dict[str, Any]:
    """Copy a schema through JSON, keywords and their order kept, and check its size (JS-05).

    Args:
        schema: The schema.
        what: What it is of, for error texts.

    Raises:
        RegistrationError: It is no JSON, no object, or too big.
    """
    try:
        data = schema if isinstance(schema, bytes) else msgspec.json.encode(schema)
        document = _decode(data)
    except (msgspec.DecodeError, TypeError, ValueError, RecursionError) as error:
        raise RegistrationError(f"{what} is no JSON ({error}).") from None
    if not isinstance(document, dict):
        raise RegistrationError(f"{what} must be an object, not {type(document).__name__}.")
    if len(data) > MAX_BYTES:
        raise RegistrationError(f"{what} has {len(data)} bytes; {MAX_BYTES} are the limit (raw_schema.MAX_BYTES).")
    if deep := next((path for path, _ in walk(document) if len(path) > 2 * MAX_DEPTH), None):
        raise RegistrationError(f"{what} nests {len(deep) // 2} deep; {MAX_DEPTH} is the limit (raw_schema.MAX_DEPTH).")
    if count_subschemas(document) > MAX_SUBSCHEMAS:
        raise RegistrationError(
            f"{what} applies more than {MAX_SUBSCHEMAS} subschemas to one value (raw_schema.MAX_SUBSCHEMAS); flatten its $refs and allOf."
        )
    return document


def _count_values(text: bytes) -> int:
    """About how many values there are in JSON, and never fewer."""
    return 1 + sum(len(text) - len(text.replace(mark, b"")) for mark in (b",", b"[", b"{"))


def count_subschemas(document: dict[str, Any]) -> int:
    """How many subschemas one value may meet in one place, references followed; more than the limit where they go too deep to count."""
    costs: dict[int, int] = {}
    try:
        return max(_cost(node, document, costs) for _, node in walk(document))
    except RecursionError:
        return MAX_SUBSCHEMAS + 1


def _cost(schema: Any, root: dict[str, Any], costs: dict[int, int]) -> int:
    """How many subschemas one value meets, references followed and counted every time: doubling chains grow without bound."""
    if not isinstance(schema, dict):
        return 1
    known = costs.get(id(schema))
    if known is not None:
        return known
    costs[id(schema)] = 1  # a circle
    inner = [resolve(root, schema["$ref"])] if isinstance(schema.get("$ref"), str) else []
    for keyword in _IN_PLACE & schema.keys():
        value = schema[keyword]
        inner += (
            value if isinstance(value, list) else value.values() if keyword == "dependentSchemas" and isinstance(value, dict) else [value]
        )
    costs[id(schema)] = total = 1 + sum(_cost(part, root, costs) for part in inner)
    return total


def compile_schema(judge: Judge, schema: dict[str, Any], what: str) -> Callable[[Any], bool]:
    """Compile a schema and give the check whether a JSON value fits.

    Args:
        judge: The schema's.
        schema: The schema, read.
        what: What it is of, for error texts.

    Raises:
        RegistrationError: It is of an unknown dialect (JS-01), refers to another document (JS-03), or is invalid.
    """
    dialect = schema.get("$schema", "https://json-schema.org/draft/2020-12/schema")
    if dialect not in DIALECTS:  # JS-01
        known = ", ".join(uri for uri in DIALECTS if not uri.endswith("#"))
        raise RegistrationError(f"{what} declares the dialect {dialect!r}; known are {known}.")
    try:
        return judge.compile()
    except ValueError as error:  # also a ValidationError, and an invalid reference
        outside = sorted({ref for _, node in walk(schema) if isinstance(ref := node.get("$ref"), str) and not ref.startswith("#")})
        reason = str(error).split("\n", 1)[0]
        if outside:
            reason = (
                f"it refers to {', '.join(outside)}, and nothing is ever fetched; put the schema under $defs and refer to '#/$defs/...'"
            )
        raise RegistrationError(f"{what} can't be used: {reason}.") from None

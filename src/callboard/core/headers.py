"""HTTP headers that mirror the body: the value codec, the `x-mcp-header` map of a tool, and both directions of the comparison.

A proxy routes by `Mcp-Name` and `Mcp-Param-*` without reading the body, so a server has to make sure that both say the same (HH-06, HH-19).
Values that HTTP can't carry travel as `=?base64?<base64 of UTF-8>?=` (HH-16). One rule decides what is plain, for both directions: visible
ASCII, spaces inside but not at the ends, and not of the sentinel's form.

Header names are ASGI's: lower-case bytes. A mapping can't show that a header came twice; who builds it has to refuse that.
"""

from __future__ import annotations

import re
from binascii import Error as BinasciiError
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

__all__ = [
    "ANNOTATION",
    "HeaderAnnotationError",
    "HeaderParam",
    "HeaderValueError",
    "compare_name",
    "compare_params",
    "compile_param_map",
    "decode_value",
    "encode_value",
    "mirror_params",
    "mirror_value",
]

ANNOTATION: Final = "x-mcp-header"
"""Keyword of a property's schema that asks for a header (HH-09)."""

SAFE_INTEGER: Final = 2**53 - 1
"""Largest magnitude of a mirrored integer (HH-12): what every JSON reader holds exactly."""

_PREFIX, _SUFFIX = "=?base64?", "?="
# Goes on the wire as it is. The look-ahead is HH-17 to the letter: it also catches `=?base64?=`, where the markers share a character.
_is_plain = re.compile(r"(?!=\?base64\?.*(?<=\?)=\Z)(?:[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)?").fullmatch
# What may arrive: the tab is legal in a field value, though never sent plain by this codec.
_is_field_value = re.compile(r"[\t\x20-\x7e]*").fullmatch
_is_token = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+").fullmatch
# HH-20: 42.0 is 42. The bound on digits keeps `int` cheap; leading zeros may use it up.
_is_integer = re.compile(r"(-?[0-9]{1,32})(?:\.0{1,32})?").fullmatch

# Keywords under which a schema can stand, other than `properties`, the only way an annotation may be reached (HH-13). Keywords that hold
# data (`const`, `enum`, `default`, `examples`) are absent: what looks like an annotation there is none. `$ref` is never followed.
_SCHEMA_KEYWORDS = frozenset({
    "additionalItems", "additionalProperties", "allOf", "anyOf", "contains", "contentSchema", "else", "if", "items", "not", "oneOf",
    "prefixItems", "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
})  # fmt: skip
_SCHEMA_MAP_KEYWORDS = frozenset({"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties"})


class HeaderValueError(ValueError):
    """A value that can't be read from a header, or can't be mirrored into one."""


class HeaderAnnotationError(ValueError):
    """An `x-mcp-header` annotation breaks the rules, which makes its tool invalid (HH-13, HH-14).

    Attributes:
        path: Where the annotated schema stands, as keys from the root of the input schema.
    """

    def __init__(self, path: tuple[str, ...], problem: str) -> None:
        super().__init__(f"{ANNOTATION} at {'.'.join(path) or 'the root of the schema'}: {problem}")
        self.path = path


class HeaderParam(NamedTuple):
    """A parameter of a tool that a header mirrors.

    Attributes:
        header: Header name as ASGI gives it, for example `b"mcp-param-region"`.
        name: Header name to show and to send, for example `Mcp-Param-Region`.
        path: Property names that lead to the value in the arguments.
        type: JSON type that the schema declares.
    """

    header: bytes
    name: str
    path: tuple[str, ...]
    type: Literal["string", "integer", "boolean"]


def encode_value(value: str) -> str:
    """Make a text safe for a header (HH-16, HH-17).

    Args:
        value: Any text.

    Returns:
        The text itself when it is plain, else its base64 form between the sentinel's markers.

    Raises:
        HeaderValueError: The text holds a lone surrogate, which UTF-8 can't express.
    """
    if _is_plain(value):
        return value
    try:
        payload = b2a_base64(value.encode(), newline=False).decode()
    except UnicodeEncodeError:
        raise HeaderValueError("value holds a lone surrogate, which no header can carry") from None
    return _PREFIX + payload + _SUFFIX


def decode_value(value: str) -> str:
    """Read a header value (HH-08, HH-18).

    Args:
        value: What came, one character per byte (latin-1); white space around it does not count.

    Returns:
        The text that was meant. Without both exact markers, the value is literal.

    Raises:
        HeaderValueError: Characters that no field value may hold (SA13), base64 with a wrong alphabet, padding or stray bits, or a payload
            that is not UTF-8.
    """
    if not _is_field_value(value):
        raise HeaderValueError("holds characters that a header value may not hold: wrap it as =?base64?...?=")
    value = value.strip(" \t")
    if not (value.startswith(_PREFIX) and value.endswith(_SUFFIX) and len(value) >= len(_PREFIX) + len(_SUFFIX)):
        return value
    payload = value[len(_PREFIX) : -len(_SUFFIX)].encode()
    try:
        decoded = a2b_base64(payload, strict_mode=True)
        # Two spellings of one value would let a proxy and this server disagree, so only the canonical one counts.
        if b2a_base64(decoded, newline=False) == payload:
            return decoded.decode()
    except (BinasciiError, UnicodeDecodeError):
        pass
    raise HeaderValueError("is not valid base64 of UTF-8 between its =?base64? and ?= markers")


def mirror_value(value: str | int | bool) -> str:  # noqa: FBT001
    """Write an argument as text, before `encode_value` (HH-16).

    Args:
        value: Argument of a JSON type that may be mirrored.

    Returns:
        A string as it is, an integer in decimal, a boolean as `true` or `false`.

    Raises:
        HeaderValueError: An integer outside +-(2^53-1) (HH-12).
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if not -SAFE_INTEGER <= value <= SAFE_INTEGER:
        raise HeaderValueError("integer is outside +-(2^53-1), so no header can mirror it")
    return str(value)


def compare_name(header: bytes | None, expected: str) -> bool:
    """Tell whether a standard header such as `Mcp-Name` says what the body says (HH-06, HH-07, HH-08).

    Args:
        header: Value as ASGI gives it; None when the header is missing.
        expected: Value in the body.

    Returns:
        True when they are the same text, case included.
    """
    if header is None:
        return False
    text = header.decode("latin-1")
    if text == expected and ((text.isascii() and text.isidentifier()) or _is_plain(text)):  # most names need no regular expression
        return True
    try:
        return decode_value(text) == expected
    except HeaderValueError:
        return False


def compile_param_map(input_schema: Mapping[str, Any]) -> tuple[HeaderParam, ...]:
    """Find the annotated parameters of a tool and check every annotation (HH-11, HH-12, HH-13).

    Takes time linear in the schema's size; it follows no `$ref`.

    Args:
        input_schema: JSON Schema of the tool's arguments.

    Returns:
        The parameters in the schema's order; empty when no header is asked for.

    Raises:
        HeaderAnnotationError: An annotation breaks a rule; the message says where, which rule, and what to do.
    """
    found: dict[str, HeaderParam] = {}
    stack: list[_Position] = [(input_schema, None, True)]
    while stack:
        schema, place, reachable = stack.pop()
        if not isinstance(schema, dict):
            continue
        if ANNOTATION in schema:
            where = _keys(place)
            param = _read_annotation(schema, where, reachable=reachable)
            other = found.setdefault(param.name.lower(), param)
            if other is not param:
                raise HeaderAnnotationError(where, f"property {'.'.join(other.path)!r} has this name already; case makes no difference")
        stack.extend(reversed(list(_subschemas(schema, place, reachable=reachable))))
    return tuple(found.values())


def compare_params(params: tuple[HeaderParam, ...], headers: Mapping[bytes, bytes], arguments: Mapping[str, Any]) -> str | None:
    """Check the mirrored headers of a call against its arguments (HH-19, HH-20).

    A header and its argument are both there and equal, or both absent; null is absent. A header whose argument is absent is refused: a proxy
    would have routed by a value that the call does not have. An argument that no header can mirror, an array say, counts as absent here;
    the tool's own validation refuses it.

    Args:
        params: What `compile_param_map` found for the tool.
        headers: Headers by lower-case name.
        arguments: Arguments of the call.

    Returns:
        None when all is well, else the first culprit's header and what is wrong with it, without the value.
    """
    for header, name, path, kind in params:
        raw = headers.get(header)
        value = _mirrorable(_value_at(arguments, path))
        if raw is None:
            if value is not None:
                return f"{name}: missing, but argument {'.'.join(path)!r} has a value"
            continue
        if value is None:
            return f"{name}: sent, but argument {'.'.join(path)!r} has no value that a header mirrors"
        try:
            text = decode_value(raw.decode("latin-1"))
            expected = mirror_value(value)
        except HeaderValueError as error:
            return f"{name}: {error}"
        if text != expected and not (kind == "integer" and _same_integer(text, expected)):
            return f"{name}: differs from argument {'.'.join(path)!r}"
    return None


def mirror_params(params: tuple[HeaderParam, ...], arguments: Mapping[str, Any]) -> dict[str, str]:
    """Write the headers that a client sends with a call (HH-15, HH-16).

    Args:
        params: What `compile_param_map` found for the tool.
        arguments: Arguments of the call.

    Returns:
        Encoded values by header name; nothing for an argument that is absent, null, or of a kind that headers do not mirror.

    Raises:
        HeaderValueError: An integer outside +-(2^53-1), or text with a lone surrogate; the message names the argument.
    """
    headers: dict[str, str] = {}
    for _, name, path, _ in params:
        value = _mirrorable(_value_at(arguments, path))
        if value is None:
            continue
        try:
            headers[name] = encode_value(mirror_value(value))
        except HeaderValueError as error:
            raise HeaderValueError(f"argument {'.'.join(path)!r}: {error}") from None
    return headers


# Keys from the root, innermost first: shared by siblings, so that a walk is linear however deep the schema is.
_Place: TypeAlias = "tuple[_Place, str] | None"
# A schema, its place, and whether `properties` alone led there.
_Position: TypeAlias = "tuple[Any, _Place, bool]"


def _keys(place: _Place) -> tuple[str, ...]:
    keys: list[str] = []
    while place is not None:
        place, key = place
        keys.append(key)
    return tuple(reversed(keys))


def _read_annotation(schema: dict[str, Any], where: tuple[str, ...], *, reachable: bool) -> HeaderParam:
    if not (reachable and where):
        raise HeaderAnnotationError(where, "only a property reached from the root through `properties` alone may have it; move it there")
    token, kind = schema[ANNOTATION], schema.get("type")
    if not (isinstance(token, str) and _is_token(token)):
        raise HeaderAnnotationError(where, "its value ends a header name: one or more letters, digits and !#$%&'*+-.^_`|~")
    if not (isinstance(kind, str) and kind in {"string", "integer", "boolean"}):
        raise HeaderAnnotationError(
            where, "`type` must be exactly string, integer or boolean; leave an optional property out of `required`"
        )
    name = f"Mcp-Param-{token}"
    # The keys alternate: `properties`, a name, `properties`, a name.
    return HeaderParam(name.lower().encode(), name, where[1::2], cast("Literal['string', 'integer', 'boolean']", kind))


def _subschemas(schema: dict[str, Any], place: _Place, *, reachable: bool) -> Iterator[_Position]:
    for keyword, value in schema.items():
        below: _Place = (place, keyword)
        if keyword == "properties" and isinstance(value, dict):
            yield from ((child, (below, name), reachable) for name, child in value.items())
        elif keyword in _SCHEMA_MAP_KEYWORDS and isinstance(value, dict):
            yield from ((child, (below, name), False) for name, child in value.items())
        elif keyword in _SCHEMA_KEYWORDS:
            yield from ((child, below, False) for child in (value if isinstance(value, list) else (value,)))


def _value_at(arguments: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value = arguments.get(path[0])
    for name in path[1:]:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def _mirrorable(value: Any) -> str | int | bool | None:
    """What a header mirrors of an argument: None for null and for containers, which no header carries."""
    if isinstance(value, float):
        # A fraction fits no mirrored type; other clients send it all the same, and the tool's validation explains it better than a mismatch.
        return int(value) if value.is_integer() else repr(value)
    return value if isinstance(value, str | int) else None


def _same_integer(text: str, expected: str) -> bool:
    left, right = _is_integer(text), _is_integer(expected)
    return left is not None and right is not None and int(left[1]) == int(right[1])

"""The engine that most tools use: msgspec decodes straight into keyword arguments, and checks results by decoding them."""

from __future__ import annotations

import copy
import datetime as dt
import functools
import uuid
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from enum import Enum
from typing import Any

import msgspec

from callboard.server.annotation import Filler, compile_filler, open_alias, rebuild
from callboard.server.arguments import Misfit, TypedArguments, Unsupported
from callboard.server.faults import Finding, covered, describe, read_message
from callboard.server.json_schema import Generator, json_default
from callboard.server.signature import EMPTY, Parameter, Signature

__all__ = ["MsgspecArguments", "MsgspecResult", "is_changeable", "is_convertible"]

_IMMUTABLE = (str, int, float, bool, bytes, type(None), Enum, Decimal, uuid.UUID, dt.date, dt.time, dt.timedelta)


def is_convertible(kind: type) -> Callable[[str], bool]:
    """What tells whether a text is one of this type."""

    def check(text: str) -> bool:
        try:
            msgspec.convert(text, kind)
        except msgspec.ValidationError:
            return False
        return True

    return check


# Every other format is an annotation, also those that jsonschema_rs knows.
_ANNOTATIONS = (
    *("email", "hostname", "idn-email", "idn-hostname", "ipv4", "ipv6", "iri", "iri-reference", "json-pointer", "regex"),
    *("relative-json-pointer", "uri", "uri-reference", "uri-template"),
)
_FORMATS: dict[str, Callable[[str], bool]] = {
    **dict.fromkeys(_ANNOTATIONS, lambda _: True),
    "date": is_convertible(dt.date),
    "date-time": is_convertible(dt.datetime),
    "duration": is_convertible(dt.timedelta),
    "time": is_convertible(dt.time),
    "uuid": is_convertible(uuid.UUID),
}
"""What formats mean when faults are listed: exactly what msgspec takes."""


class MsgspecArguments(TypedArguments):
    """Arguments by msgspec: one decode, one `asdict`.

    Args:
        signature: The function's.
        strict: Whether unknown arguments are refused; ignored otherwise.

    Raises:
        Unsupported: msgspec refuses an annotation.
    """

    refusals = (msgspec.DecodeError, RecursionError)

    def __init__(self, signature: Signature, *, strict: bool) -> None:
        generator = Generator(output=False)
        self._types = {parameter.name: rebuild(parameter.annotation, open_alias) for parameter in signature.parameters}
        properties = {parameter.name: self._property(generator, parameter) for parameter in signature.parameters}
        super().__init__(_root(signature.parameters, properties, generator.defs, strict=strict), _FORMATS)
        fields = [_field(parameter, self._types[parameter.name]) for parameter in signature.parameters]
        # a class whose name is all underscores: others mangle a parameter like `__x`
        struct = msgspec.defstruct("_", fields, kw_only=True, forbid_unknown_fields=strict)
        self._decode = msgspec.json.Decoder(struct).decode
        fill = compile_filler(self._types.values())
        self._asdict = functools.partial(_filled, fill) if fill else msgspec.structs.asdict

    def bind(self, raw: bytes | msgspec.Raw | None) -> dict[str, Any]:
        """See `Arguments.bind`."""
        try:
            return self._asdict(self._decode(raw or b"{}"))
        except (msgspec.DecodeError, RecursionError):
            return self.explain(raw or b"{}")

    def convert(self, data: bytes) -> dict[str, Any]:
        """See `TypedArguments.convert`."""
        return self._asdict(self._decode(data))

    def findings(self, instance: Any, known: list[Finding]) -> Iterator[Finding]:
        """See `TypedArguments.findings`: every parameter that the schema has nothing against is decoded by itself."""
        if not isinstance(instance, dict):
            return
        for name, kind in self._types.items():
            if name not in instance or covered((name,), known):
                continue
            try:
                msgspec.json.decode(msgspec.json.encode(instance[name]), type=kind)
            except msgspec.ValidationError as error:
                path, text, of_msgspec = read_message(error)
                if of_msgspec and " - at " not in str(error):
                    text = f"must be {describe(self.input_schema['properties'][name], self.input_schema)}"
                yield (name, *path), text

    def _property(self, generator: Generator, parameter: Parameter) -> dict[str, Any]:
        kind = self._types[parameter.name]
        try:
            schema = generator.read(kind)
        except (TypeError, NameError) as error:
            raise Unsupported(parameter.name, str(error)) from None
        except Unsupported as error:
            raise Unsupported(parameter.name, error.reason) from None
        return {**({"description": parameter.description} if parameter.description else {}), **schema, **_default(parameter, kind)}


class MsgspecResult:
    """A result's schema, and its encoder.

    Args:
        annotation: What the function returns.
        fallback: Encodes what msgspec can't.

    Attributes:
        schema: What `encode` gives, as JSON Schema.
        nullable: Whether null may stand in it, which is what msgspec makes of NaN.

    Raises:
        Unsupported: msgspec refuses the annotation.
    """

    def __init__(self, annotation: Any, fallback: Callable[[Any], Any]) -> None:
        kind = rebuild(annotation, open_alias)
        generator = Generator(output=True)
        try:
            self.schema = generator.document(kind)
        except (TypeError, NameError) as error:
            raise Unsupported(None, str(error)) from None
        self.nullable = generator.nullable
        self._decode = msgspec.json.Decoder(kind).decode
        self._encode = msgspec.json.Encoder(enc_hook=fallback).encode

    def encode(self, value: Any) -> bytes:
        """Encode a value and hold it to the schema by decoding it again (TL-08).

        Types are not checked when a Struct or dataclass is made, so this is the only place that can. It costs 1.5 times the encoding:
        0.2 us for a small object, 4 us for one of 4 KB.

        Raises:
            Misfit: It doesn't fit.
            Exception: It can't be encoded; of msgspec's choice.
        """
        data = self._encode(value)
        try:
            self._decode(data)
        except msgspec.ValidationError as error:
            path, text, _ = read_message(error)
            raise Misfit([(path, text)]) from error
        return data


def _root(parameters: Iterable[Parameter], properties: dict[str, Any], defs: dict[str, Any], *, strict: bool) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    if properties:
        schema["properties"] = properties
    if required := [parameter.name for parameter in parameters if parameter.required]:
        schema["required"] = required
    if strict:
        schema["additionalProperties"] = False
    if defs:
        schema["$defs"] = defs
    return schema


def _filled(fill: Filler, arguments: msgspec.Struct) -> dict[str, Any]:
    values = msgspec.structs.asdict(arguments)
    fill(values.values())
    return values


def _default(parameter: Parameter, kind: Any) -> dict[str, Any]:
    return {} if parameter.default is EMPTY else json_default(parameter.default, kind)


def _field(parameter: Parameter, kind: Any) -> tuple[str, Any] | tuple[str, Any, Any]:
    default = parameter.default
    if default is EMPTY:
        return parameter.name, kind
    if isinstance(default, _IMMUTABLE) or default is msgspec.UNSET:
        return parameter.name, kind, default
    make = functools.partial(copy.deepcopy, default) if is_changeable(default) else lambda: default
    return parameter.name, kind, msgspec.field(default_factory=make)


def is_changeable(default: Any) -> bool:
    """Whether each call needs a copy: as for lists. What can be hashed is shared, so that `is` finds a sentinel."""
    try:
        hash(default)
    except TypeError:
        return True
    return False

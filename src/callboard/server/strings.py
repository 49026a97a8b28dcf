"""Arguments that arrive as strings (prompt arguments, variables of a resource template) to the types that a function declares.

What no plain text gives, a list or an object, is read as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from callboard.errors import Fail, Reason, RegistrationError
from callboard.server.annotation import compile_filler, open_alias, rebuild
from callboard.server.arguments import Unsupported
from callboard.server.faults import describe, read_message, show_path
from callboard.server.json_schema import Generator
from callboard.server.signature import Parameter, Signature

__all__ = ["StringArguments"]


class StringArguments:
    """Compiled once per function.

    Args:
        signature: The function's; its parameters are the arguments.
        strict: Whether an argument that the function doesn't take is a fault.

    Raises:
        RegistrationError: A parameter's type can't be read from a string.
    """

    __slots__ = ("_fill", "_known", "_required", "_strict", "_typed")

    def __init__(self, signature: Signature, *, strict: bool) -> None:
        self._typed = {parameter.name: _Typed(parameter, signature.label) for parameter in signature.parameters if not _is_text(parameter)}
        self._fill = compile_filler(parameter.annotation for parameter in signature.parameters)
        self._known = frozenset(parameter.name for parameter in signature.parameters)
        self._required = tuple(parameter.name for parameter in signature.parameters if parameter.required)
        self._strict = strict

    def bind(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Turn the values into keyword arguments.

        Raises:
            Fail: Arguments are missing, unknown or of the wrong type (INVALID_PARAMS, PM-04); the text names all of them.
        """
        faults = [f"{name}: required, missing" for name in self._required if name not in values]
        if self._strict:
            faults += [f"{show_path([name])}: unknown argument" for name in values if name not in self._known]
        kwargs: dict[str, Any] = {}
        for name, value in values.items():
            if name not in self._known:
                continue
            typed = self._typed.get(name)
            if typed is None:
                kwargs[name] = value
                continue
            try:
                kwargs[name] = typed.read(value)
            except (msgspec.DecodeError, ValueError, RecursionError) as error:
                faults.append(f"{name}: {typed.expectation(error)}")
        if faults:
            raise Fail(Reason.INVALID_PARAMS, "; ".join(faults) + ".")
        if self._fill:
            self._fill(kwargs.values())
        return kwargs


def _is_text(parameter: Parameter) -> bool:
    return parameter.annotation is str or parameter.annotation is Any


class _Typed:
    """A parameter that is more than a text."""

    __slots__ = ("_expected", "_kind")

    def __init__(self, parameter: Parameter, label: str) -> None:
        self._kind = rebuild(parameter.annotation, open_alias)
        generator = Generator(output=False)
        try:
            schema = generator.read(self._kind)
        except (TypeError, NameError, Unsupported) as error:
            reason = error.reason if isinstance(error, Unsupported) else error
            raise RegistrationError(
                f"{label}: parameter {parameter.name!r} can't be read from a string ({reason}); take a str, or a type that msgspec reads."
            ) from None
        self._expected = describe(schema, {"$defs": generator.defs})

    def read(self, value: Any) -> Any:
        """Read a value: a string, or a list of strings where a template makes one."""
        try:
            return msgspec.convert(value, self._kind, strict=False)
        except msgspec.ValidationError:
            if not isinstance(value, str) or value.lstrip()[:1] not in {"[", "{"}:
                raise
        return msgspec.json.decode(value, type=self._kind)

    def expectation(self, error: Exception) -> str:
        """Say what was expected, without the value, which the engine's message may repeat."""
        if isinstance(error, msgspec.ValidationError):
            path, text, of_msgspec = read_message(error)
            if not of_msgspec:
                return text
            if path:
                return f"at {show_path(path)}: {text}"
        as_json = " in JSON" if self._expected.startswith(("an array", "an object")) else ""
        return f"must be {self._expected}{as_json}"

"""Arguments that arrive as strings (prompt arguments, variables of a resource template) to the types that a function declares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from callboard.errors import Fail, Reason, RegistrationError
from callboard.server.signature import Signature

__all__ = ["StringArguments"]


class StringArguments:
    """Compiled once per function.

    Args:
        signature: The function's; its parameters are the arguments.
        strict: Whether an argument that the function doesn't take is a fault.

    Raises:
        RegistrationError: A parameter's type can't be read from a string.
    """

    __slots__ = ("_known", "_required", "_strict", "_typed")

    def __init__(self, signature: Signature, *, strict: bool) -> None:
        self._typed: dict[str, Any] = {}
        self._known = frozenset(parameter.name for parameter in signature.parameters)
        self._required = tuple(parameter.name for parameter in signature.parameters if parameter.required)
        self._strict = strict
        for parameter in signature.parameters:
            if parameter.annotation in {str, Any}:
                continue
            try:
                msgspec.json.schema(parameter.annotation)
            except (TypeError, NameError) as error:
                raise RegistrationError(
                    f"{signature.label}: parameter {parameter.name!r} can't be read from a string ({error}); take a str, or a type that msgspec reads."
                ) from None
            self._typed[parameter.name] = parameter.annotation

    def bind(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Turn the values into keyword arguments.

        Raises:
            Fail: Arguments are missing, unknown or of the wrong type (INVALID_PARAMS, PM-04); the text names all of them.
        """
        faults = [f"{name}: required, missing" for name in self._required if name not in values]
        if self._strict:
            faults += [f"{name}: unknown argument" for name in values if name not in self._known]
        kwargs: dict[str, Any] = {}
        for name, value in values.items():
            if name not in self._known:
                continue
            typed = self._typed.get(name)
            if typed is None:
                kwargs[name] = value
                continue
            try:
                kwargs[name] = msgspec.convert(value, typed, strict=False)
            except msgspec.ValidationError as error:
                faults.append(f"{name}: {_expectation(error)}")
        if faults:
            raise Fail(Reason.INVALID_PARAMS, "Arguments: " + "; ".join(faults) + ".")
        return kwargs


def _expectation(error: msgspec.ValidationError) -> str:
    """What was expected; msgspec may quote an enum's rejected value, which is the client's own text and must not be echoed."""
    text = str(error)
    return text if text.startswith("Expected") else "not one of the allowed values"

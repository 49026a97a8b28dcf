"""From a signature, a JSON Schema or a return annotation to compiled converters: the choice of the engine.

One engine per tool: msgspec, unless an annotation needs pydantic; the schema that is advertised is the one that validates.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterator
from typing import Any, Protocol, get_origin

import msgspec

from callboard.errors import RegistrationError
from callboard.server.annotation import needs_pydantic
from callboard.server.arguments import Arguments, Unsupported
from callboard.server.faults import ArgumentFaults, Fault
from callboard.server.msgspec_schema import MsgspecArguments, MsgspecResult, is_changeable
from callboard.server.pydantic_schema import PydanticArguments, PydanticResult
from callboard.server.raw_schema import RawArguments
from callboard.server.signature import Parameter, Signature

__all__ = ["ArgumentFaults", "Arguments", "Fault", "Result", "compile_arguments", "compile_raw_schema", "compile_return"]

_STREAMS = {AsyncGenerator, AsyncIterable, AsyncIterator, Iterator}
_INSTALL = "pydantic is not installed: pip install 'callboard[pydantic]'"


class Result(Protocol):
    """A compiled result type.

    Attributes:
        schema: JSON Schema of what `encode` gives.
        nullable: Whether null may stand in it; encoders write null for NaN.
    """

    schema: dict[str, Any]
    nullable: bool

    def encode(self, value: Any) -> bytes:
        """Encode a value as JSON that fits the schema; raises what the engine raises when it can't."""
        ...


def compile_arguments(signature: Signature, *, strict: bool = True) -> Arguments:
    """Compile what turns a call's `arguments` into keyword arguments.

    Args:
        signature: The function's.
        strict: Whether unknown arguments are refused; ignored otherwise.

    Raises:
        RegistrationError: A parameter has a type that neither engine takes, or a default that can't be copied. The text names it.
    """
    for parameter in signature.parameters:
        _check_default(signature.label, parameter)
    try:
        return _compile_arguments(signature, strict=strict)
    except RegistrationError:
        raise
    except Exception:  # what an annotation that is no type makes the engines raise may be anything
        for parameter in signature.parameters:
            _check_type(signature, parameter)
        raise


def _check_default(label: str, parameter: Parameter) -> None:
    """A default that can be changed is copied for every call."""
    if is_changeable(parameter.default):
        try:
            copy.deepcopy(parameter.default)
        except Exception as error:  # noqa: BLE001 of the author's choice
            raise RegistrationError(
                f"{label}: the default of parameter {parameter.name!r} can't be copied for each call ({error}); use None, or Depends()."
            ) from None


def _check_type(signature: Signature, parameter: Parameter) -> None:
    try:
        _compile_arguments(msgspec.structs.replace(signature, parameters=(parameter,)), strict=True)
    except RegistrationError:
        raise
    except Exception as error:  # noqa: BLE001 as above
        kind = parameter.annotation
        hint = f" (write list[{_shown(kind[0])}])" if isinstance(kind, list) and kind else ""
        raise RegistrationError(
            f"{signature.label}: parameter {parameter.name!r} is {_shown(kind)}{hint}, which is no type ({type(error).__name__}: {error})."
        ) from None


def _compile_arguments(signature: Signature, *, strict: bool) -> Arguments:
    reason = "it needs pydantic"
    if not any(needs_pydantic(parameter.annotation, parameter.default) for parameter in signature.parameters):
        try:
            return MsgspecArguments(signature, strict=strict)
        except Unsupported as refusal:
            culprit, reason = refusal.culprit, refusal.reason
    else:
        culprit = None
    try:
        return PydanticArguments(signature, strict=strict)
    except Unsupported as refusal:
        culprit, reason = refusal.culprit or culprit, refusal.reason
    except ImportError:
        culprit, reason = culprit or _first_foreign(signature.parameters), f"{reason}; {_INSTALL}"
    kind = next((parameter.annotation for parameter in signature.parameters if parameter.name == culprit), "?")
    raise RegistrationError(
        f"{signature.label}: parameter {culprit!r} is {_shown(kind)}, which can't be read from JSON ({reason}). "
        "Use a type that msgspec or pydantic validates, or provide the value with Depends()."
    )


def compile_raw_schema(schema: dict[str, Any] | bytes, *, label: str = "the tool") -> Arguments:
    """Compile a JSON Schema; `bind` gives the arguments as they are. Its keywords and their order are kept.

    Args:
        schema: The schema.
        label: Name and place of its owner, for error texts.

    Raises:
        RegistrationError: The schema can't be used; see `RawArguments`.
    """
    return RawArguments(schema, label)


def compile_return(annotation: Any, fallback: Callable[[Any], Any], *, label: str) -> Result:
    """Compile the encoder of a return annotation.

    Args:
        annotation: What the function returns.
        fallback: Encodes values that msgspec can't.
        label: Name and place of the function, for error texts.

    Raises:
        RegistrationError: Neither engine takes the type.
    """
    reason = "it needs pydantic"
    if get_origin(annotation) in _STREAMS:
        raise RegistrationError(f"{label}: it returns {_shown(annotation)}, but a call gives one value; return a list.")
    if not needs_pydantic(annotation):
        try:
            return MsgspecResult(annotation, fallback)
        except Unsupported as refusal:
            reason = refusal.reason
    try:
        return PydanticResult(annotation)
    except Unsupported as refusal:
        reason = refusal.reason
    except ImportError:
        reason = f"{reason}; {_INSTALL}"
    except Exception as error:  # noqa: BLE001 what is no type makes the engines raise anything
        reason = f"{type(error).__name__}: {error}"
    raise RegistrationError(
        f"{label}: it returns {_shown(annotation)}, which can't be written as JSON ({reason}). "
        "Return a type that msgspec or pydantic encodes, content blocks, or leave the annotation away to decide by the value."
    )


def _first_foreign(parameters: tuple[Parameter, ...]) -> str | None:
    return next((parameter.name for parameter in parameters if needs_pydantic(parameter.annotation, parameter.default)), None)


def _shown(annotation: Any) -> str:
    for habit, meant in ((any, "typing.Any"), (callable, "a type")):
        if annotation is habit:
            return f"the function {habit.__name__}() (write {meant})"
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")

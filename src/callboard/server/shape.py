"""From what a tool returns to content: decided once from the annotation, encoded once per call.

| annotation | content | structuredContent, outputSchema |
|---|---|---|
| `None` | none | none |
| `str` | one text block | none |
| content blocks, a list of them (strings may stand among them) | as they are | none |
| none, `Any`, unions with content blocks | as the value's own type asks | the former only |
| `bytes` | refused when registered | |
| anything else | one text block with the JSON | both |

A `Fail` may be returned instead of raised; in the annotation it counts as nothing, like `NoReturn`. `Reply` counts as what stands beside it.
"""

from __future__ import annotations

import functools
import inspect
from collections import deque
from collections.abc import AsyncIterable, Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView
from pathlib import PurePath
from typing import Any, NoReturn, TypeAlias, Union, get_args, get_origin

import msgspec
import typing_extensions

from callboard.core.outcome import NeedInput, Reply
from callboard.errors import CallboardError, Fail, RegistrationError, ToolError
from callboard.server.arguments import Misfit
from callboard.server.faults import show_path
from callboard.server.raw_schema import RawResult
from callboard.server.schema import Result, compile_return
from callboard.server.signature import EMPTY, members
from callboard.types import AudioContent, CallToolResult, EmbeddedResource, ImageContent, ResourceLink, TextContent

__all__ = ["ResultError", "Shape", "ToolResult", "compile_result", "encode_value"]

Block = TextContent | ImageContent | AudioContent | EmbeddedResource | ResourceLink

_BLOCKS = (TextContent, ImageContent, AudioContent, EmbeddedResource, ResourceLink)
_NOTHING: tuple[Any, ...] = (Fail, NeedInput, Reply, NoReturn, typing_extensions.Never)
_BYTES = (bytes, bytearray, memoryview)
_REFUSED = (*_BYTES, Reply)
_PUT_TOGETHER = (CallToolResult, Reply)
_REPLY_WAY_OUT = "a Reply holds the value itself, no further Reply"
_BYTES_WAY_OUT = "bytes have no place in a result; return image(), audio() or embed() from callboard.types"


class ResultError(CallboardError):
    """What a tool returned can't be sent. It is the author's to mend; the text names the function and has no values in it."""


ToolResult: TypeAlias = tuple[list[Block], msgspec.Raw | None, dict[str, Any] | None]
"""Content blocks; `structuredContent` as JSON, None where there is none (JSON's null is `Raw(b"null")`); the author's own `_meta`."""


class Shape:
    """A compiled return annotation.

    Args:
        output_schema: JSON Schema of `structuredContent`.
        shape: Makes the result.

    Attributes:
        output_schema: As given; None where the tool has none.
        shape: Takes what the function returned and gives a `ToolResult`. It raises `ResultError` for what can't be sent,
            `ToolError` for a `CallToolResult` that is one, and a `Fail` that was returned.
    """

    __slots__ = ("output_schema", "shape")

    def __init__(self, output_schema: dict[str, Any] | None, shape: Callable[[Any], ToolResult]) -> None:
        self.output_schema = output_schema
        self.shape = shape


def compile_result(annotation: Any, *, raw_output_schema: dict[str, Any] | None = None, label: str = "the function") -> Shape:
    """Compile what turns a return value into a result.

    Args:
        annotation: The return annotation; `EMPTY` for none.
        raw_output_schema: A JSON Schema that takes the annotation's place.
        label: Name and place of the function, for error texts.

    Raises:
        RegistrationError: The annotation has no JSON form, or the schema can't be used.
    """
    if raw_output_schema is not None:
        raw = RawResult(raw_output_schema, encode_value, label)
        return Shape(raw.schema, _structured(raw, label))
    annotation = _without_failures(annotation)
    kinds = members(annotation)
    if any(kind is byte for kind in kinds for byte in _BYTES):
        raise RegistrationError(f"{label}: {_BYTES_WAY_OUT}.")
    if annotation is str:
        return Shape(None, _open(_shape_text, label))
    if any(_is_open(kind) for kind in kinds) or all(kind is str or kind is type(None) or kind is None for kind in kinds):
        return Shape(None, _open(_shape_value, label))
    result = compile_return(annotation, _encode_foreign, label=label)
    return Shape(result.schema, _structured(result, label))


def encode_value(value: Any) -> bytes:
    """Encode any value as JSON: what msgspec encodes, pydantic models (by alias, computed fields included) at any depth.

    Raises:
        ResultError: It has no JSON form.
    """
    return _guarded(value, _encode_dumped if hasattr(type(value), "__pydantic_serializer__") else _encode_any, nullable=True)


def _without_failures(annotation: Any) -> Any:
    kinds = members(annotation)
    rest = tuple(kind for kind in kinds if kind not in _NOTHING) if any(kind is none for kind in kinds for none in _NOTHING) else kinds
    if len(rest) == len(kinds):
        return annotation
    return Union[rest] if rest else None  # noqa: UP007 computed members


def _is_open(kind: Any) -> bool:
    """Whether only the value can tell what it becomes: content, or something without a type."""
    if kind is EMPTY or kind is Any or kind is object:
        return True
    if isinstance(kind, type) and issubclass(kind, (*_BLOCKS, CallToolResult)):
        return True
    origin = get_origin(kind) or kind
    if not isinstance(origin, type) or not issubclass(origin, list | tuple | Sequence) or issubclass(origin, str | msgspec.Struct):
        return False
    args = get_args(kind)
    return any(_is_open(member) for arg in args for member in members(arg)) or (not args and origin in {list, tuple, Sequence})


def _open(shape: Callable[[Any], ToolResult], label: str) -> Callable[[Any], ToolResult]:
    """For what may be a text: which needs no second call."""

    def shape_open(value: Any) -> ToolResult:
        if type(value) is str and value.isascii():
            return [TextContent(text=value)], None, None
        try:
            return shape(value)
        except ResultError as error:
            raise _named(error, value, label) from error.__cause__

    return shape_open


def _named(error: ResultError, value: Any, label: str) -> Exception:
    """What to raise instead: the error with the name of the function, or the failure that was returned."""
    return value if isinstance(value, Fail) else ResultError(f"{label}: {error}")


def _shape_text(value: Any) -> ToolResult:
    if type(value) is str:
        if not value.isascii():
            _check_text(value)
        return [TextContent(text=value)], None, None
    if isinstance(value, str):  # of a subclass, an enum for example
        return _shape_text(str.__str__(value))
    raise ResultError(f"it returned {type(value).__name__}, but its annotation says str")


def _shape_value(value: Any) -> ToolResult:
    if type(value) is dict:
        return _shape_data(encode_value(value))
    if value is None:
        return [], None, None
    if isinstance(value, str):
        return _shape_text(value)
    if isinstance(value, _BLOCKS):
        return [value], None, None
    if isinstance(value, list | tuple) and isinstance(next((item for item in value if not isinstance(item, str)), None), _BLOCKS):
        return [_block(item) for item in value], None, None
    if isinstance(value, _REFUSED):
        raise ResultError(_BYTES_WAY_OUT if isinstance(value, _BYTES) else _REPLY_WAY_OUT)
    if isinstance(value, CallToolResult):
        return _shape_result(value, encode_value, required=False)
    return _shape_data(encode_value(value))


def _structured(result: Result, label: str) -> Callable[[Any], ToolResult]:
    encode, nullable = result.encode, result.nullable

    def shape(value: Any) -> ToolResult:
        try:
            if isinstance(value, _PUT_TOGETHER):
                return _shape_result(value, functools.partial(_guarded, encode=encode, nullable=nullable), required=True)
            data = _guarded(value, encode, nullable=nullable)
        except ResultError as error:
            raise _named(error, value, label) from error.__cause__
        return [TextContent(text=str(data, "utf-8"))], msgspec.Raw(data), None  # as `_shape_data` does: most results come this way

    return shape


def _shape_data(data: bytes) -> ToolResult:
    """TL-10: the JSON stands in a text block too."""
    return [TextContent(text=str(data, "utf-8"))], msgspec.Raw(data), None


def _shape_result(value: CallToolResult | Reply, encode: Callable[[Any], bytes], *, required: bool) -> ToolResult:
    """A result that the author has put together: content of its own beside structured content."""
    if isinstance(value, Reply):
        raise ResultError(_REPLY_WAY_OUT)
    structured = value.structured_content
    if value.is_error is True:
        raise ToolError(value.content, structured=None if structured is msgspec.UNSET else structured)
    given = {} if value.meta is msgspec.UNSET else value.meta
    # of a result that was got from another server, what the protocol says there is said anew (MT-05)
    meta = {key: item for key, item in given.items() if not key.startswith("io.modelcontextprotocol/")} or None
    if structured is msgspec.UNSET:
        if required:
            raise ResultError("the tool has an output schema, so its CallToolResult needs structured_content")  # TL-08
        return value.content, None, meta
    return value.content, msgspec.Raw(encode(structured)), meta


def _block(item: Any) -> Block:
    if isinstance(item, str):
        return _shape_text(item)[0][0]
    if isinstance(item, _BLOCKS):
        return item
    raise ResultError(f"a list of content blocks has {type(item).__name__} in it; make it a block or a str")


def _check_text(text: str) -> None:
    """SA07: half of a surrogate pair, as `os.fsdecode` makes of a file name that is no UTF-8, can't be sent."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ResultError(f"its text has half of a surrogate pair at character {error.start}; decode with errors='replace'") from None


def _guarded(value: Any, encode: Callable[[Any], bytes], *, nullable: bool) -> bytes:
    """Encode, and refuse in our words what can't be sent (SA07)."""
    try:
        data = encode(value)
    except Exception as error:  # noqa: BLE001 it is the author's code that is called
        reason = _reason(value, error)
        # where the reason says it all, a traceback through our own code only hides it
        raise ResultError(reason or f"{_CANT.format(value)} ({type(error).__name__})") from (None if reason else error)
    if nullable and data.rfind(b"null") >= 0 and (reason := _not_finite(value)):  # what msgspec and pydantic make of NaN and infinity
        raise ResultError(reason)
    return data


_CANT = "{0.__class__.__name__} can't be encoded as JSON"


def _reason(value: Any, error: Exception) -> str | None:
    """Why a value can't be sent, without any of it: messages of the engines may repeat it. None for errors of the author's own code."""
    if isinstance(error, Misfit):
        return _not_finite(value) or f"it does not fit its type: {error}"
    if isinstance(error, _NotFinite):
        return str(error)
    if isinstance(error, UnicodeEncodeError) or "surrogates not allowed" in str(error):
        return "a text in it has half of a surrogate pair; decode with errors='replace'"
    if isinstance(error, RecursionError):
        return "it contains itself, or nests too deeply"
    if isinstance(error, _Foreign) or str(error).startswith("Exceeds the limit"):
        return f"{_CANT.format(value)} ({error})"
    return None


def _not_finite(value: Any) -> str | None:
    try:
        found = next(((path, number) for path, number in _numbers((), value) if number - number != 0), None)
    except RecursionError:
        return None
    return f"{show_path(found[0]) or 'the value'} is {found[1]}, which has no JSON form; return None" if found else None


def _numbers(path: tuple[str | int, ...], value: Any) -> Iterator[tuple[tuple[str | int, ...], float]]:
    """Every float in a value."""
    if isinstance(value, float):
        yield path, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _numbers((*path, str(key)), inner)
    elif isinstance(value, list | tuple | set | frozenset):
        for at, inner in enumerate(value):
            yield from _numbers((*path, at), inner)
    else:
        for name in _field_names(value):
            yield from _numbers((*path, name), getattr(value, name, None))


def _field_names(value: Any) -> list[str]:
    cls = type(value)
    if hasattr(cls, "__pydantic_serializer__"):
        return list(vars(value))
    fields = getattr(cls, "__attrs_attrs__", None)
    if fields is not None:
        return [field.name for field in fields]
    names = getattr(cls, "__struct_fields__", ()) or getattr(cls, "__dataclass_fields__", ())
    return list(names)


class _NotFinite(ValueError):  # noqa: N818 its text becomes a ResultError's
    """A number has no JSON form."""


class _Foreign(TypeError):  # noqa: N818 its text becomes part of a ResultError's
    """A value has no JSON form."""

    def __init__(self, value: Any) -> None:
        kind = type(value).__name__
        if value is None or isinstance(value, bool | list | tuple | dict | set | frozenset | msgspec.Struct):  # elsewhere they are encoded
            super().__init__(f"a key of a dict is {kind}; make it a str")
        elif inspect.isawaitable(value):
            super().__init__(f"{kind} is no value yet; await it, or make the function async")
        elif isinstance(value, AsyncIterable):
            super().__init__(f"{kind} is no value yet; return [item async for item in ...]")
        elif isinstance(value, Iterable):
            super().__init__(f"objects of type {kind} have no JSON form; return list(...)")
        else:
            super().__init__(f"objects of type {kind} have no JSON form")


def _encode_foreign(value: Any) -> Any:
    """Encode what msgspec can't: pydantic models inside other values, and everyday types of the standard library and of numpy."""
    serializer = getattr(type(value), "__pydantic_serializer__", None)
    if serializer is not None:
        return serializer.to_python(value, mode="json", by_alias=True, warnings="error")
    if isinstance(value, bool):  # a key: elsewhere they are encoded
        return str(value).lower()
    for kinds, convert in _PLAIN:
        if isinstance(value, kinds):
            plain = convert(value)
            break
    else:
        if not hasattr(value, "tolist"):
            raise _Foreign(value)
        plain = value.tolist()
    if isinstance(plain, list) and (reason := _not_finite(plain)):  # nobody can see it afterwards: an iterator is used up
        raise _NotFinite(reason)
    return plain


_PLAIN: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (str, str.__str__),
    (int, int),
    (float, float),
    (PurePath, str),
    (Mapping, dict),
    ((deque, range, KeysView, ValuesView, ItemsView, Iterator), list),
)
"""Types with an obvious form that msgspec doesn't encode, subclasses of its own among them."""


def _encode_dumped(value: Any) -> bytes:
    return _encode_any(_encode_foreign(value))


_encode_any = msgspec.json.Encoder(enc_hook=_encode_foreign).encode

"""What a tool answers, and its structured content as Python values."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Protocol, Self, TypeVar, overload

import msgspec
from msgspec import UNSET

from callboard.client.errors import ClientError, InvalidAnswer, Origin
from callboard.server.annotation import compile_filler, needs_pydantic
from callboard.server.faults import read_message, show_path
from callboard.wire import v2026_07_28 as v

__all__ = ["Reading", "ToolResult"]

T = TypeVar("T")

MAX_TOLD = 500
"""How many characters of a failure are repeated."""
_WRAPPED = "result"


class Reading(Protocol):
    """How a tool's structured content is read.

    Attributes:
        wraps: Whether the content proper is under `result`.
    """

    @property
    def wraps(self) -> bool:
        """Whether the content proper is under `result`."""
        ...

    def read(self, structured: Any) -> Any:
        """Make Python values of what strings stand for; the rest stays JSON."""
        ...


class _Plain:
    """The reading without a schema: JSON as it is."""

    wraps = False

    def read(self, structured: Any) -> Any:
        return structured


class ToolResult(v.CallToolResult, kw_only=True, dict=True):
    """What a tool answers: `content`, `is_error` and `structured_content` as sent, and what can be made of them.

    A copy knows nothing of the tool's schema.
    """

    _reading: ClassVar[Reading] = _Plain()
    _origin: ClassVar[Origin] = Origin("a tool")

    def bind(self, origin: Origin, reading: Reading | None = None) -> Self:
        """Say whose result it is, and how to read it.

        Args:
            origin: The call.
            reading: What the tool's schema says; None for nothing.
        """
        known: dict[str, Any] = vars(self)
        known["_origin"] = origin
        if reading is not None:
            known["_reading"] = reading
        return self

    @property
    def structured(self) -> Any:
        """The structured content as JSON values, as sent; None when there is none. `structured_content` tells absence from null (TL-09)."""
        return None if self.structured_content is UNSET else self.structured_content

    @cached_property
    def data(self) -> Any:
        """The structured content as Python values; None when there is none.

        Where the tool's output schema says so, strings are `datetime`, `date`, `time`, `timedelta`, `UUID` or `bytes`; one that is not
        written that way stays a string. Servers that put a value that is no object into `{"result": ...}` are understood.
        What a tool says of its failure stays JSON.
        """
        return self._unwrapped(self._reading.read(self.structured))

    @property
    def text(self) -> str:
        """All text of the content, a line break between blocks; empty without text."""
        return "\n".join(block.text for block in self.content if isinstance(block, v.TextContent))

    @overload
    def decode(self, kind: type[T]) -> T: ...

    @overload
    def decode(self, kind: Any) -> Any: ...

    def decode(self, kind: Any) -> Any:
        """The structured content as a type: a dataclass, `Struct`, `TypedDict`, `list[int]`, a pydantic model or anything made of these.

        Args:
            kind: The type.

        Raises:
            InvalidAnswer: The content does not fit the type, or there is none. The text names the place, not the value.
            ClientError: The tool has failed, so there is nothing to decode.
            TypeError: The type can't be read from JSON.
        """
        if self.is_error is True:
            raise ClientError(f"the tool failed, so there is nothing to decode: {self.text[:MAX_TOLD] or 'it says no more'}", self._origin)
        if self.structured_content is UNSET:
            raise InvalidAnswer("the result has no structured content to decode; read .content or .text", self._origin)
        convert = _converter(kind) if _is_hashable(kind) else _compile(kind)
        whole, value = self.structured_content, self._unwrapped(self.structured_content)
        try:
            return convert(value)
        except _Unfit as misfit:
            if value is not whole:  # what looks like a wrapper may be the type itself
                with suppress(_Unfit):
                    return convert(whole)
            raise InvalidAnswer(f"the structured content does not fit {_shown(kind)}: {misfit}", self._origin) from None

    def _unwrapped(self, value: Any) -> Any:
        if not isinstance(value, dict) or value.keys() != {_WRAPPED} or self.is_error is True:
            return value
        return value[_WRAPPED] if self._reading.wraps or self._is_marked else value

    @property
    def _is_marked(self) -> bool:
        """Whether the result itself says that it is wrapped, as fastmcp's do."""
        mark = self.meta.get("fastmcp") if isinstance(self.meta, dict) else None
        return isinstance(mark, dict) and mark.get("wrap_result") is True


class _Unfit(Exception):  # noqa: N818 it becomes an InvalidAnswer
    """A value is not of a type; the text says where and what is expected."""

    def __init__(self, path: tuple[str | int, ...], expected: str) -> None:
        super().__init__(f"{show_path(path) or 'the value'}: {expected}")


def _is_hashable(kind: Any) -> bool:
    try:
        hash(kind)
    except TypeError:  # metadata of an Annotated may be anything
        return False
    return True


def _compile(kind: Any) -> Callable[[Any], Any]:
    """What makes a type of JSON values."""
    return _by_pydantic(kind) if needs_pydantic(kind) else _by_msgspec(kind)


_converter = lru_cache(maxsize=256)(_compile)


def _by_msgspec(kind: Any) -> Callable[[Any], Any]:
    fill = compile_filler([kind])

    def convert(value: Any) -> Any:
        try:
            made = msgspec.convert(value, kind, str_keys=True)
        except msgspec.ValidationError as error:
            path, expected, _ = read_message(error)
            raise _Unfit(path, expected) from None
        except RecursionError:
            raise _Unfit((), "nested too deeply") from None
        if fill is not None:
            fill([made])
        return made

    return convert


def _by_pydantic(kind: Any) -> Callable[[Any], Any]:
    from pydantic import TypeAdapter, ValidationError

    read = TypeAdapter(kind).validate_json

    def convert(value: Any) -> Any:
        try:
            return read(msgspec.json.encode(value))
        except ValidationError as refusal:
            first = refusal.errors(include_url=False, include_input=False)[0]
            tags = first.get("ctx", {}).get("expected_tags")  # a message on an unknown tag repeats it
            raise _Unfit(first["loc"], f"must have a tag of {tags}" if tags else f"{first['msg'][:1].lower()}{first['msg'][1:]}") from None

    return convert


def _shown(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")

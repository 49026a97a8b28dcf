"""Type annotations as trees: which need pydantic, how to replace their parts."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
import typing_extensions

__all__ = ["needs_pydantic", "open_alias", "rebuild"]

_FOREIGN = ("pydantic", "pydantic_core", "annotated_types")
_BACKPORT: tuple[Any, ...] = tuple({typing_extensions.TypeAliasType} - {getattr(typing, "TypeAliasType", None)})
_MARKS = ("__get_pydantic_core_schema__", "__pydantic_core_schema__", "__pydantic_validator__")


def needs_pydantic(annotation: Any, default: Any = None) -> bool:
    """Whether pydantic must validate: a model or type of its own, or a constraint that msgspec would pass over in silence.

    Args:
        annotation: A resolved annotation; fields of classes in it are looked at too.
        default: The parameter's default, which may be a `Field(...)`.
    """
    return _is_foreign(default) or any(_is_foreign(part) for part in _parts(annotation))


def _is_foreign(part: Any) -> bool:
    module = getattr(part if isinstance(part, type) else type(part), "__module__", "")
    return module.partition(".")[0] in _FOREIGN or any(hasattr(part, mark) for mark in _MARKS)


def _parts(annotation: Any) -> Iterator[Any]:
    """An annotation, everything in it, and the fields of the classes in it."""
    waiting = [annotation]
    seen: list[Any] = []
    while waiting:
        part = waiting.pop()
        if any(part is known for known in seen):
            continue
        seen.append(part)
        if get_origin(part) is Annotated:
            waiting.append(part.__origin__)
            yield from part.__metadata__
        elif get_origin(part) is not Literal:
            yield part
            waiting += get_args(part)
            waiting += _fields(get_origin(part) or part)
            waiting += [part.__value__] if hasattr(part, "__value__") else []


def _fields(cls: Any) -> list[Any]:
    """Annotations of the fields of a class that has fields."""
    if isinstance(cls, typing.NewType):
        return [cls.__supertype__]
    if not isinstance(cls, type) or not _has_fields(cls):
        return []
    try:
        return list(typing_extensions.get_type_hints(cls, include_extras=True).values())
    except Exception:  # noqa: BLE001 an annotation is code; the engine will say what is wrong with it
        return []


def _has_fields(cls: type) -> bool:
    is_tuple = issubclass(cls, tuple) and hasattr(cls, "_fields")
    return (
        is_dataclass(cls)
        or issubclass(cls, msgspec.Struct)
        or is_tuple
        or typing_extensions.is_typeddict(cls)
        or hasattr(cls, "__attrs_attrs__")
    )


def open_alias(annotation: Any) -> Any:
    """What an alias stands for that msgspec doesn't know: one made with `typing_extensions`. Anything else as it is."""
    while isinstance(annotation, _BACKPORT):
        annotation = annotation.__value__
    return annotation


def rebuild(annotation: Any, replace: Callable[[Any], Any]) -> Any:
    """Replace parts of an annotation, from the outside in.

    Args:
        annotation: The annotation.
        replace: Takes a part, gives what stands in its place; what it gives is rebuilt in turn unless it is another form of the same part.
    """
    new = replace(annotation)
    args = get_args(new)
    origin = get_origin(new)
    if new is not annotation and origin is Annotated:
        return new
    if origin is Annotated:
        return Annotated[(rebuild(new.__origin__, replace), *new.__metadata__)]
    if origin is None or origin is Literal or not args:
        return new
    inner = tuple(arg if arg is Ellipsis or isinstance(arg, list) else rebuild(arg, replace) for arg in args)
    if inner == args:
        return new
    return Union[inner] if origin in {Union, types.UnionType} else origin[inner]  # noqa: UP007 computed members

"""Type annotations as trees: which need pydantic, what is in them, how to replace their parts."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
import typing_extensions

__all__ = ["Filler", "compile_filler", "field_types", "needs_pydantic", "open_alias", "parts", "rebuild"]

Filler = Callable[[Iterable[Any]], None]
"""Takes decoded values and puts into the dataclasses in them the defaults that are missing."""

_FOREIGN = ("pydantic", "pydantic_core", "annotated_types")
_BACKPORT: tuple[Any, ...] = tuple({typing_extensions.TypeAliasType} - {getattr(typing, "TypeAliasType", None)})
_MARKS = ("__get_pydantic_core_schema__", "__pydantic_core_schema__", "__pydantic_validator__")


def needs_pydantic(annotation: Any, default: Any = None) -> bool:
    """Whether pydantic must validate: a model or type of its own, or a constraint that msgspec would pass over in silence.

    Args:
        annotation: A resolved annotation; fields of classes in it are looked at too.
        default: The parameter's default, which may be a `Field(...)`.
    """
    return _is_foreign(default) or any(_is_foreign(part) for part in parts(annotation))


def _is_foreign(part: Any) -> bool:
    module = getattr(part if isinstance(part, type) else type(part), "__module__", "")
    return module.partition(".")[0] in _FOREIGN or any(hasattr(part, mark) for mark in _MARKS)


def parts(annotation: Any) -> Iterator[Any]:
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
            continue
        yield part
        if get_origin(part) is Literal:
            continue
        waiting += get_args(part)
        waiting += field_types(part).values()
        waiting += [getattr(part, name) for name in ("__value__", "__supertype__") if hasattr(part, name)]


def field_types(cls: Any) -> dict[str, Any]:
    """Annotations of a class's fields in their order; none of what has no fields or can't be read. Type arguments are passed over."""
    cls = get_origin(cls) or cls
    if not isinstance(cls, type) or not _has_fields(cls):
        return {}
    try:
        return typing_extensions.get_type_hints(cls, include_extras=True)
    except Exception:  # noqa: BLE001 an annotation is code; the engine will say what is wrong with it
        return {}


def _has_fields(cls: type) -> bool:
    is_tuple = issubclass(cls, tuple) and hasattr(cls, "_fields")
    return (
        is_dataclass(cls)
        or issubclass(cls, msgspec.Struct)
        or is_tuple
        or typing_extensions.is_typeddict(cls)
        or hasattr(cls, "__attrs_attrs__")
    )


def compile_filler(annotations: Iterable[Any]) -> Filler | None:
    """Compile what mends dataclasses that msgspec has made; None where no type in the annotations needs it.

    msgspec leaves a field that it was not given to the default in the class, where `vars()` and its own encoder don't look.

    Args:
        annotations: Types of the values.
    """
    classes = [cls for annotation in annotations for part in parts(annotation) if isinstance(cls := get_origin(part) or part, type)]
    known = {cls: found for cls in classes if (found := _fields_to_fill(cls))}
    if not known:
        return None
    names = {cls: tuple(field_types(cls)) for cls in classes}

    def fill(values: Iterable[Any]) -> None:
        waiting = list(values)
        while waiting:
            value = waiting.pop()
            cls = type(value)
            if cls in known:
                held = vars(value)
                filled = {name: held.get(name, default) for name, default in known[cls] if name in held or default is not MISSING}
                object.__setattr__(value, "__dict__", filled | held)  # in the order of the fields; a frozen one takes no other way
            if isinstance(value, dict):
                waiting += value.values()
            elif isinstance(value, list | tuple | set | frozenset):
                waiting += value
            elif cls in names:
                waiting += [getattr(value, name, None) for name in names[cls]]

    return fill


def _fields_to_fill(cls: Any) -> list[tuple[str, Any]]:
    """Fields of a dataclass with their defaults, `MISSING` for none; no fields where none has its default in the class."""
    if not is_dataclass(cls):
        return []
    found = [(field.name, field.default) for field in fields(cls) if getattr(cls, field.name, field.default) is field.default]
    return found if any(default is not MISSING for _, default in found) else []


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

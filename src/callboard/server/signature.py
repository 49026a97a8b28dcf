"""A function's signature as data: resolved annotations, who fills which parameter, how to call it by keyword.

What is read: plain and async functions, bound methods, `functools.partial`, `functools.wraps`-ed functions and objects with `__call__`;
annotations that are strings, `Annotated`, aliases and `NewType`s, also of classes that are local to the function around.
A parameter without annotation takes anything (`Any`).
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator, Mapping
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
import typing_extensions

from callboard.errors import RegistrationError
from callboard.server.docstring import Docstring, parse

__all__ = ["EMPTY", "Injected", "Parameter", "Signature", "accepts", "members", "plain_type", "read"]

EMPTY: Any = inspect.Parameter.empty
"""Stands for "no default" and "no return annotation"."""

Injected = Callable[[Any, Any], Hashable | None]
"""Takes a parameter's plain type and default; gives the key of what is injected, or None where the client gives the value."""

_ALIASES: tuple[Any, ...] = tuple(
    {getattr(module, "TypeAliasType", typing_extensions.TypeAliasType) for module in (typing, typing_extensions)}
)


class Parameter(msgspec.Struct, frozen=True):
    """A parameter that the client fills.

    Attributes:
        name: Its name in Python.
        annotation: Its resolved annotation, `Annotated` kept; `Any` without one. `None` as default makes it optional.
        default: Its default; `EMPTY` for none.
        description: From the docstring, else from a text or `Doc` in `Annotated`.
    """

    name: str
    annotation: Any
    default: Any = EMPTY
    description: str | None = None

    @property
    def required(self) -> bool:
        """Whether there is no default."""
        return self.default is EMPTY


class Signature(msgspec.Struct, frozen=True):
    """What a function takes and gives.

    Attributes:
        name: Its name.
        label: Name and place for error texts: `forecast() at weather.py:12`.
        doc: Its docstring.
        parameters: What the client fills, in order.
        injections: Parameter name -> key, as the `injected` predicate gave it.
        returns: Resolved return annotation, `EMPTY` without one; of a function that returns an awaitable: what awaiting gives.
        is_async: Whether `call` gives an awaitable.
        call: Takes every parameter by keyword, positional-only ones too.
    """

    name: str
    label: str
    doc: Docstring
    parameters: tuple[Parameter, ...]
    injections: dict[str, Hashable]
    returns: Any
    is_async: bool
    call: Callable[..., Any]


def read(fn: Callable[..., Any], *, injected: Injected | None = None, may_yield: bool = False) -> Signature:
    """Read a function's signature.

    Args:
        fn: The function or other callable.
        injected: Says which parameters are injected; none are by default. It gets the type behind `Annotated`, `Optional` and type
            arguments (`Context` for `Annotated[Context[A] | None, ...]`), and the default.
        may_yield: Whether `fn` may be a generator function.

    Raises:
        RegistrationError: An annotation can't be resolved, or the function takes what no client can give. The text names function,
            place, parameter and way out.
    """
    plain, bound = _unwrap(fn)
    target = _opened(fn)
    name = str(getattr(target, "__name__", type(target).__name__))
    label = _label(name, plain)
    try:
        signature = inspect.signature(fn)
    except (ValueError, TypeError, NameError) as error:
        raise RegistrationError(f"{label}: its signature can't be read ({error}); wrap it in a function with annotations.") from None
    if not may_yield and (inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain)):
        raise RegistrationError(f"{label}: it yields, but a call gives one value; return it (use `ctx.progress` for news on the way).")
    _check_wrapper(label, fn, signature)
    doc = parse(_doc(target, plain))
    scope = _Scope(label, plain)
    parameters: list[Parameter] = []
    injections: dict[str, Hashable] = {}
    for at, parameter in enumerate(signature.parameters.values()):
        if parameter.name in bound:
            continue
        _check_kind(label, parameter, first=at == 0, plain=plain)
        annotation = Any if parameter.annotation is EMPTY else scope.resolve(parameter.annotation, f"parameter {parameter.name!r}")
        key = _injection(label, parameter, annotation, injected) if injected else None
        if key is not None:
            injections[parameter.name] = key
            continue
        description = _described(annotation) or doc.params.get(parameter.name)
        if parameter.default is None and not _takes_none(annotation):
            try:
                annotation = annotation | None if isinstance(annotation, type) else Union[annotation, None]  # noqa: UP007 a string form is no type
            except TypeError:
                raise RegistrationError(f"{label}: parameter {parameter.name!r} is {annotation!r}, which is no type.") from None
        parameters.append(Parameter(parameter.name, annotation, parameter.default, description))
    returns = EMPTY if signature.return_annotation is EMPTY else scope.resolve(signature.return_annotation, "the return annotation")
    is_async, returns = _awaiting(plain, returns)
    return Signature(
        name, label, doc, tuple(parameters), injections, returns, is_async, _by_keyword(fn, plain, signature, is_async=is_async)
    )


def _injection(label: str, parameter: inspect.Parameter, annotation: Any, injected: Injected) -> Hashable | None:
    """What a parameter is injected with, as its default or `Annotated` says, else its type."""
    kind = plain_type(annotation)
    try:
        said = next((key for mark in (parameter.default, *_marks(annotation)) if (key := injected(EMPTY, mark)) is not None), None)
        return injected(kind, parameter.default) if said is None else said
    except RegistrationError as error:
        raise RegistrationError(f"{label}: parameter {parameter.name!r}: {error}") from None


def _marks(annotation: Any) -> Iterator[Any]:
    """What stands in the `Annotated`s of an annotation, through aliases and unions."""
    if isinstance(annotation, _ALIASES):
        yield from _marks(annotation.__value__)
    elif get_origin(annotation) is Annotated:
        yield from annotation.__metadata__
        yield from _marks(annotation.__origin__)
    elif get_origin(annotation) in {Union, types.UnionType}:
        yield from (mark for member in get_args(annotation) for mark in _marks(member))


def plain_type(annotation: Any) -> Any:
    """The class behind `Annotated`, aliases, `X | None` and type arguments; other unions stay as they are."""
    while True:
        others = [member for member in members(annotation) if member is not type(None)]
        if len(others) != 1:
            return annotation
        origin = get_origin(others[0])
        if origin is None:
            return others[0]
        annotation = origin


def members(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, unions inside it opened; of anything else: itself. `Annotated` and aliases are opened."""
    while True:
        if isinstance(annotation, _ALIASES):
            annotation = annotation.__value__
        elif get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        else:
            break
    if get_origin(annotation) in {Union, types.UnionType}:
        return tuple(inner for member in get_args(annotation) for inner in members(member))
    return (annotation,)


def _takes_none(annotation: Any) -> bool:
    return any(member in {Any, None, type(None), object} for member in members(annotation) if isinstance(member, Hashable))


def _described(annotation: Any) -> str | None:
    """A description that stands in the annotation: `Annotated[int, "text"]`, `Annotated[int, Doc("text")]`."""
    if get_origin(annotation) is Annotated:
        for metadata in get_args(annotation)[1:]:
            text = metadata if isinstance(metadata, str) else getattr(metadata, "documentation", None)
            if isinstance(text, str):
                return text
    return None


def _opened(fn: Any) -> Any:
    """What partials are of."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn


def _doc(target: Any, plain: Any) -> str | None:
    """The docstring; of an object with `__call__` that method's own, else its class's."""
    own = inspect.isroutine(target) or inspect.isclass(target) or plain.__doc__
    return inspect.getdoc(plain if own else type(target))


def _unwrap(fn: Any) -> tuple[Any, frozenset[str]]:
    """The function behind partials, methods and objects, and the parameters that partials have filled by name.

    A filled parameter is the author's: the client neither sees nor sets it.
    """
    bound: set[str] = set()
    while True:
        if isinstance(fn, functools.partial):
            bound |= fn.keywords.keys()
            fn = fn.func
        elif inspect.ismethod(fn):
            fn = fn.__func__
        elif inspect.isroutine(fn) or inspect.isclass(fn) or not hasattr(type(fn), "__call__"):  # noqa: B004 the class is what counts
            return fn, frozenset(bound)
        else:
            fn = type(fn).__call__


def _label(name: str, plain: Any) -> str:
    code = getattr(inspect.unwrap(plain), "__code__", None)
    return f"{name}() at {code.co_filename}:{code.co_firstlineno}" if code else f"{name}()"


def _check_kind(label: str, parameter: inspect.Parameter, *, first: bool, plain: Any) -> None:
    if parameter.kind is parameter.VAR_POSITIONAL:
        raise RegistrationError(
            f"{label}: *{parameter.name} has no names that a client could use; take a list: `{parameter.name}: list[...]`."
        )
    if parameter.kind is parameter.VAR_KEYWORD:
        raise RegistrationError(
            f"{label}: **{parameter.name} has no schema; name the parameters, or take one `{parameter.name}: dict[str, ...]`."
        )
    is_method = "." in getattr(plain, "__qualname__", "").rpartition("<locals>.")[2]
    if first and is_method and parameter.name in {"self", "cls"} and parameter.annotation is EMPTY:
        raise RegistrationError(
            f"{label}: parameter {parameter.name!r} is not bound; make an instance and add its method: `add(thing.{plain.__name__})`."
        )


def _check_wrapper(label: str, fn: Any, shown: inspect.Signature) -> None:
    """Refuse a decorator's wrapper that needs what the function it wraps doesn't name: nobody could give it."""
    try:
        taken = inspect.signature(fn, follow_wrapped=False)
    except (ValueError, TypeError):  # a wrapper in C, as of functools.cache
        return
    for parameter in taken.parameters.values():
        is_named = parameter.kind not in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}
        if is_named and parameter.default is EMPTY and parameter.name not in shown.parameters:
            raise RegistrationError(
                f"{label}: the wrapper around it needs {parameter.name!r}, which the function doesn't name; "
                f"give it a default, or let the function take {parameter.name!r}, too."
            )


class _Scope:
    """Where the names of a function's string annotations are looked up: its globals, what it closes over, the functions around it."""

    def __init__(self, label: str, plain: Any) -> None:
        self._label = label
        function = inspect.unwrap(plain)
        self._globals: dict[str, Any] = getattr(function, "__globals__", {})
        self._locals = {**_surroundings(function), **_closure(function)}

    def resolve(self, annotation: Any, what: str) -> Any:
        """Resolve strings in an annotation, at any depth."""
        holder = types.SimpleNamespace(__annotations__={"x": annotation})
        try:
            return typing_extensions.get_type_hints(holder, self._globals, self._locals, include_extras=True)["x"]
        except Exception as error:  # noqa: BLE001 an annotation is code and may raise anything
            shown = annotation if isinstance(annotation, str) else repr(annotation)
            raise RegistrationError(
                f"{self._label}: {what} is {shown}, which can't be resolved ({type(error).__name__}: {error}); "
                "import or define the names it uses where they exist at run time, not under TYPE_CHECKING."
            ) from None


def _closure(function: Any) -> dict[str, Any]:
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    found: dict[str, Any] = {}
    for name, cell in zip(names, getattr(function, "__closure__", None) or (), strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return found


def _surroundings(function: Any) -> dict[str, Any]:
    """Local names of the functions around, as far as they are still running: decorators run there."""
    name = getattr(function, "__qualname__", "")
    found: Mapping[str, Any] = {}
    frame = inspect.currentframe() if "<locals>" in name else None
    while frame is not None:
        if frame.f_globals is function.__globals__ and name.startswith(f"{frame.f_code.co_qualname}.<locals>."):
            found = {**frame.f_locals, **found}
        frame = frame.f_back
    return dict(found)


def _awaiting(plain: Any, returns: Any) -> tuple[bool, Any]:
    """Whether a call gives an awaitable, and what awaiting it gives."""
    function = plain
    while not inspect.iscoroutinefunction(function) and hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    if inspect.iscoroutinefunction(function):
        return True, returns
    if get_origin(returns) in {Awaitable, Coroutine}:
        return True, get_args(returns)[-1]
    return False, returns


def _by_keyword(fn: Callable[..., Any], plain: Any, signature: inspect.Signature, *, is_async: bool) -> Callable[..., Any]:
    """`fn` itself where it can be called by keyword as it is, else an adapter."""
    positional = [name for name, parameter in signature.parameters.items() if parameter.kind is parameter.POSITIONAL_ONLY]
    if positional:
        target = fn

        def call(**kwargs: Any) -> Any:
            return target(*[kwargs.pop(name) for name in positional], **kwargs)

        fn = call
    if is_async and not inspect.iscoroutinefunction(plain):
        # a plain wrapper around a coroutine function mostly hands its awaitable on, but need not
        inner = fn

        async def call_and_await(**kwargs: Any) -> Any:
            value = inner(**kwargs)
            return await value if inspect.isawaitable(value) else value

        fn = call_and_await
    return fn


def accepts(function: Callable[..., Any], *args: Any) -> bool:
    """Whether a function can be called with these arguments; taken to be so of what is built in, whose signature can't be read."""
    try:
        inspect.signature(function).bind(*args)
    except TypeError:
        return False
    except ValueError:
        return True
    return True

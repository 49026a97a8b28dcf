"""Reading signatures: every way to write a function and its annotations."""

from __future__ import annotations

import asyncio
import functools
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator
from typing import Annotated, Any, Generic, Optional, TypeVar

import pytest
import typing_extensions

from callboard.errors import RegistrationError
from callboard.server.signature import EMPTY, Signature, read

A = TypeVar("A")
B = TypeVar("B")


class Ctx(Generic[A, B]):
    """Stands for what is injected by type."""


class Need:
    """Stands for what is injected by default value."""


CtxAlias = typing_extensions.TypeAliasType("CtxAlias", Ctx[int, str])


def injected(annotation: Any, default: Any) -> Hashable | None:
    return "need" if isinstance(default, Need) else "ctx" if annotation is Ctx else None


def types_of(signature: Signature) -> dict[str, Any]:
    return {parameter.name: parameter.annotation for parameter in signature.parameters}


def plain(city: str, days: int = 3, *, fast: bool = False) -> list[str]:
    """Forecast.

    Args:
        city: Name of the city.
        days: How many.
    """
    return [city] * days if fast else []


def test_what_is_read_of_a_plain_function() -> None:
    signature = read(plain)
    assert (signature.name, signature.doc.summary, signature.is_async, signature.call) == ("plain", "Forecast.", False, plain)
    assert signature.label == f"plain() at {__file__}:{plain.__code__.co_firstlineno}"
    assert [(p.name, p.annotation, p.default, p.description, p.required) for p in signature.parameters] == [
        ("city", str, EMPTY, "Name of the city.", True),
        ("days", int, 3, "How many.", False),
        ("fast", bool, False, None, False),
    ]
    assert signature.returns == list[str]
    assert not signature.injections


def test_without_annotations_anything_goes() -> None:
    signature = read(lambda x, y=3: (x, y))
    assert types_of(signature) == {"x": Any, "y": Any}
    assert signature.returns is EMPTY


def test_a_default_of_none_makes_it_optional() -> None:
    def f(a: int = None, b: Any = None, c: int | None = None, d: Annotated[int, "text"] = None) -> None:  # type: ignore[assignment] # noqa: RUF013 the case
        """."""

    optional = Optional[Annotated[int, "text"]]  # noqa: UP045 pyright knows no | of Annotated
    assert types_of(read(f)) == {"a": int | None, "b": Any, "c": int | None, "d": optional}


def test_string_annotations_find_local_names() -> None:
    class Day: ...

    def inner(a: Day, b: list[Day], c: Optional[Day], d: dict[str, "Day"]) -> Day:  # noqa: UP037, UP045 the case
        raise NotImplementedError

    def closing(a: Day) -> type:
        return Day

    signature = read(inner)
    assert list(types_of(signature).values()) == [Day, list[Day], Day | None, dict[str, Day]]
    assert signature.returns is Day
    assert types_of(read(closing)) == {"a": Day}


def test_a_closure_serves_after_the_function_around_has_returned() -> None:
    def make() -> Callable[..., Any]:
        class Day: ...

        def closing(a: Day) -> type:
            return Day

        return closing

    fn = make()
    assert types_of(read(fn))["a"] is fn(None)


def test_a_name_that_is_assigned_later_is_not_there_yet() -> None:
    def early(a: Later) -> type:
        return Later

    with pytest.raises(RegistrationError, match="parameter 'a' is Later"):
        read(early)

    class Later: ...

    assert types_of(read(early)) == {"a": Later}


def test_descriptions_in_annotations_win() -> None:
    class Doc:
        documentation = "in a Doc"

    def f(a: Annotated[int, "in a string"], b: Annotated[int, Doc()], c: Annotated[int, 5]) -> None:
        """F.

        Args:
            a: in the docstring
            c: in the docstring
        """

    assert [p.description for p in read(f).parameters] == ["in a string", "in a Doc", "in the docstring"]


@pytest.mark.parametrize(
    "annotation",
    [
        Ctx,
        Ctx[int, str],
        Optional[Ctx[int, str]],  # noqa: UP045 the case
        Ctx | None,
        Annotated[Ctx[int, str], "text"],
        Annotated[Annotated[Ctx[int, str], 1] | None, "text"],
        "Ctx",
        "Ctx[int, str]",
        "Optional[Ctx]",
        "Ctx[int, str] | None",
        CtxAlias,
    ],
    ids=str,
)
def test_injection_by_type_in_every_form(annotation: Any) -> None:
    """A50."""

    def f(city: str, ctx: Any = None) -> None: ...

    f.__annotations__["ctx"] = annotation
    signature = read(f, injected=injected)
    assert (signature.injections, list(types_of(signature))) == ({"ctx": "ctx"}, ["city"])


def test_injection_by_default() -> None:
    def f(city: str, db: Any = Need(), count: int = 3) -> None: ...  # noqa: B008 the case

    signature = read(f, injected=injected)
    assert (signature.injections, list(types_of(signature))) == ({"db": "need"}, ["city", "count"])


def test_other_unions_are_not_injected() -> None:
    def f(a: Ctx[int, str] | int, b: list[Ctx[int, str]]) -> None: ...

    assert read(f, injected=injected).injections == {}


class Counter:
    """Counts."""

    def add(self, by: int) -> int:
        """Add."""
        return by + 1

    @staticmethod
    def fixed(by: int) -> int:
        return by + 2

    @classmethod
    def made(cls, by: int) -> int:
        return by + 3

    def __call__(self, by: int) -> int:
        """Call."""
        return by + 4


@pytest.mark.parametrize(
    ("fn", "name", "result"),
    [
        (Counter().add, "add", 2),
        (Counter.fixed, "fixed", 3),
        (Counter.made, "made", 4),
        (Counter(), "Counter", 5),
        (functools.partial(Counter().add), "add", 2),
        (functools.lru_cache(Counter.fixed), "fixed", 3),
    ],
    ids=["method", "static", "class method", "object", "partial", "cached"],
)
def test_callables(fn: Callable[..., int], name: str, result: int) -> None:
    signature = read(fn)
    assert types_of(signature) == {"by": int}
    assert (signature.call(by=1), signature.returns) == (result, int)
    assert signature.name.removeprefix("__").removesuffix("__") in {name, "call"}


def test_what_a_partial_fills_is_not_the_clients() -> None:
    signature = read(functools.partial(plain, days=9, fast=True))
    assert types_of(signature) == {"city": str}
    assert signature.call(city="x") == ["x"] * 9
    assert types_of(read(functools.partial(plain, "x"))) == {"days": int, "fast": bool}


def wrapped(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return wrapper


async def fetch(city: str) -> str:
    """Fetch."""
    await asyncio.sleep(0)
    return city


class Fetcher:
    async def __call__(self, city: str) -> str:
        return await fetch(city)


def later(city: str) -> Awaitable[str]:
    return fetch(city)


@pytest.mark.parametrize(
    "fn",
    [fetch, functools.partial(fetch), functools.partial(functools.partial(fetch)), Fetcher(), Fetcher().__call__, wrapped(fetch), later],
    ids=["function", "partial", "partial of partial", "object", "method", "wrapped", "awaitable"],
)
async def test_async_functions_are_known(fn: Callable[..., Any]) -> None:
    signature = read(fn)
    assert (signature.is_async, signature.returns, types_of(signature)) == (True, str, {"city": str})
    assert await signature.call(city="x") == "x"


async def test_a_wrapper_may_answer_itself() -> None:
    @functools.wraps(fetch)
    def cached(city: str) -> Any:
        return f"cached {city}"

    signature = read(cached)
    assert (signature.name, signature.doc.summary) == ("fetch", "Fetch.")
    assert await signature.call(city="x") == "cached x"


def test_a_wrapped_function_keeps_its_parameters() -> None:
    signature = read(wrapped(plain))
    assert (types_of(signature), signature.name) == ({"city": str, "days": int, "fast": bool}, "plain")
    assert signature.call(city="x", days=1, fast=True) == ["x"]


async def test_positional_only_parameters_are_given_by_name() -> None:
    def f(a: int, b: int = 2, /, c: int = 3) -> tuple[int, ...]:
        return a, b, c

    async def g(a: int, /) -> int:
        return a

    assert read(f).call(a=1, b=5, c=7) == (1, 5, 7)
    assert await read(g).call(a=1) == 1


def numbers() -> Iterator[int]:
    yield 1


async def more_numbers() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("fn", [numbers, more_numbers])
def test_generators_are_refused_unless_asked_for(fn: Callable[..., Any]) -> None:
    with pytest.raises(RegistrationError, match=r"numbers\(\) at .*: it yields"):
        read(fn)
    assert read(fn, may_yield=True).parameters == ()


def unresolved(a: Nowhere) -> None:  # type: ignore[name-defined] # noqa: F821 the case
    """."""


def unresolved_return() -> list[Nowhere]:  # type: ignore[name-defined] # noqa: F821 the case
    raise NotImplementedError


def starred(*cities: str) -> None: ...


def keyworded(**options: str) -> None: ...


REFUSED: list[tuple[Callable[..., Any], str]] = [
    (unresolved, r"unresolved\(\) at .*test_signature.py:\d+: parameter 'a' is Nowhere, .*NameError.* not under TYPE_CHECKING"),
    (unresolved_return, r"the return annotation is list\[Nowhere\]"),
    (starred, r"starred\(\) at .*: \*cities .* take a list: `cities: list"),
    (keyworded, r"keyworded\(\) at .*: \*\*options .* name the parameters"),
    (Counter.add, r"add\(\) at .*: parameter 'self' is not bound; .*`add\(thing.add\)`"),
    (typing.cast("Callable[..., Any]", dict.fromkeys), r"fromkeys\(\)|its signature"),
]


@pytest.mark.parametrize(("fn", "text"), REFUSED[:-1])
def test_refusals_name_function_place_parameter_and_way_out(fn: Callable[..., Any], text: str) -> None:
    with pytest.raises(RegistrationError, match=text):
        read(fn)


def test_a_function_without_a_readable_signature_is_refused() -> None:
    with pytest.raises(RegistrationError, match=r"its signature can't be read .* wrap it in a function"):
        read(min)


class Greeter:
    """Greets."""

    def __call__(self, name: str) -> str:
        return name


class Waver(Greeter):
    def __call__(self, name: str) -> str:
        """Waves.

        Args:
            name: To whom.
        """
        return name


class Silent:
    def __call__(self) -> None: ...


@pytest.mark.parametrize(
    ("fn", "name", "doc"),
    [
        (Greeter(), "Greeter", "Greets."),
        (Waver(), "Waver", "Waves."),
        (Silent(), "Silent", ""),
        (functools.partial(Greeter(), name="x"), "Greeter", "Greets."),
    ],
    ids=str,
)
def test_objects_that_can_be_called_have_the_name_of_their_class(fn: Callable[..., Any], name: str, doc: str) -> None:
    """M8."""
    signature = read(fn)
    assert (signature.name, signature.doc.description) == (name, doc)
    assert signature.label.startswith(f"{name}() at ")


class Mark:
    """Stands for a `Depends`."""


def marked(kind: Any, mark: Any) -> Any:
    if mark is Mark:
        raise RegistrationError("write Mark().")
    return mark if isinstance(mark, Mark) else None


MARK = Mark()
Marked = typing_extensions.TypeAliasType("Marked", Annotated[str, MARK])


@pytest.mark.parametrize(
    "annotation",
    [
        Annotated[str, MARK],
        Annotated[str | None, "text", MARK],
        Optional[Annotated[str, MARK]],  # noqa: UP045 the case
        Marked,
        Annotated[Annotated[str, MARK], "text"],
        Annotated[Marked, "text"],
    ],
    ids=str,
)
def test_injections_by_annotation(annotation: Any) -> None:
    """M7: what stands in `Annotated` is asked about like a default; a client must never fill it in."""

    def f(a: int, x: Any) -> None: ...

    f.__annotations__["x"] = annotation
    signature = read(f, injected=marked)
    assert signature.injections == {"x": MARK}
    assert [parameter.name for parameter in signature.parameters] == ["a"]


def test_errors_of_injections_name_function_and_parameter() -> None:
    def f(x: Any = Mark) -> None: ...

    with pytest.raises(RegistrationError, match=r"f\(\) at .*: parameter 'x': write Mark\(\)"):
        read(f, injected=marked)


def test_a_wrapper_that_needs_what_nobody_gives_is_refused() -> None:
    """M29."""

    def inner(a: int) -> int:
        return a

    @functools.wraps(inner)
    def needing(*args: Any, ctx: Any, **kwargs: Any) -> int:
        return inner(*args, **kwargs)

    @functools.wraps(inner)
    def content(*args: Any, ctx: Any = None, **kwargs: Any) -> int:
        return inner(*args, **kwargs)

    with pytest.raises(RegistrationError, match=r"inner\(\) at .*: the wrapper around it needs 'ctx', which the function doesn't name"):
        read(needing)
    assert [parameter.name for parameter in read(content).parameters] == ["a"]


@pytest.mark.parametrize("annotation", [[int], {"a": int}, (int, str), Optional], ids=str)
def test_what_is_no_type_is_named(annotation: Any) -> None:
    """M29."""

    def f(x: Any = None) -> None: ...

    f.__annotations__["x"] = annotation
    with pytest.raises(RegistrationError, match=r"f\(\) at .*: parameter 'x' is .*, which is no type"):
        read(f)

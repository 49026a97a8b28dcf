"""What a session keeps: its type, how it begins, and the copy that a call gets."""

import dataclasses
import enum
from collections.abc import Callable
from typing import Annotated, Any, Generic, NewType, TypedDict, TypeVar

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard import Context, RegistrationError, Server
from callboard.server.state import Hello, Hooks, StateKind

T = TypeVar("T")


class Cart(msgspec.Struct):
    count: int = 0
    items: list[str] = []


@dataclasses.dataclass
class Basket:
    count: int = 0
    items: list[str] = dataclasses.field(default_factory=list)


@attrs.define
class Trolley:
    count: int = 0


class Box(TypedDict, total=False):
    count: int


class Crate(TypedDict):
    count: int


class Shelf(msgspec.Struct, Generic[T]):
    items: list[T] = []


class Tree(msgspec.Struct):
    left: "Tree | None" = None


class Phase(enum.Enum):
    IDLE = "idle"


class Frozen(msgspec.Struct, frozen=True):
    count: int = 0


Counts = NewType("Counts", dict[str, int])
Number = NewType("Number", int)


class Model(pydantic.BaseModel):
    count: int = 0


class Plain:
    pass


def begin_cart(hello: Hello) -> Cart:
    return Cart(0 if hello.session_id is None else len(hello.session_id))


# Types


@pytest.mark.parametrize(
    ("source", "first"),
    [
        (Cart, Cart()),
        (Basket, Basket()),
        (Trolley, Trolley()),
        (Box, {}),
        (Counts, {}),
        (Number, 0),
        (Shelf[int], Shelf()),
        (Tree, Tree()),
        (Frozen, Frozen()),
    ],
    ids=str,
)
def test_a_type_begins_as_it_is_made_without_arguments(source: Any, first: Any) -> None:
    kind = StateKind(source)
    assert kind.draft(kind.begin(Hello())) == first


@pytest.mark.parametrize(
    ("source", "culprit", "way_out"),
    [
        pytest.param(Model, "Model", "Struct", id="pydantic model"),
        pytest.param(Shelf[Model], "Model is pydantic's", "Struct", id="pydantic model inside"),
        pytest.param(Shelf[Annotated[int, pydantic.Field(gt=0)]], "pydantic's", "Struct", id="pydantic constraint inside"),
        pytest.param(Plain, "Plain", "Struct", id="plain class"),
        pytest.param(Shelf[Plain], "objects of Plain", "Struct", id="plain class inside"),
        pytest.param(Shelf[object], "objects of object", "Struct", id="object inside"),
        pytest.param(Shelf[Callable[[], int]], "Callable", "Struct", id="function inside"),
        pytest.param(Shelf[Cart | Frozen], "can't be read back", "Struct", id="ambiguous union inside"),
        pytest.param(Crate, "Crate", "def begin", id="required keys"),
        pytest.param(Phase, "Phase", "def begin", id="an enum has no first"),
        pytest.param(Cart | None, "Cart | None", "def begin", id="a union has no first"),
        pytest.param(Cart(), "Cart(", "state=Cart", id="an instance"),
        pytest.param({}, "{}", "state=Cart", id="a dict"),
        pytest.param("Cart", "'Cart'", "state=Cart", id="a string"),
    ],
)
def test_a_type_that_can_not_be_kept_is_refused_when_the_server_is_made(source: Any, culprit: str, way_out: str) -> None:
    with pytest.raises(RegistrationError) as caught:
        Server("desk", state=source)
    assert culprit in str(caught.value)
    assert way_out in str(caught.value)


@pytest.mark.parametrize("source", [int, str, dict, dict[str, int], list[str], Any], ids=str)
def test_a_type_that_any_argument_may_have_needs_a_name_of_its_own(source: Any) -> None:
    with pytest.raises(RegistrationError, match=r"every parameter of such a type would be the state; .*NewType"):
        Server("desk", state=source)


# Factories


def test_a_factory_sees_who_the_session_is_for() -> None:
    kind = StateKind(begin_cart)
    assert kind.type is Cart
    assert kind.draft(kind.begin(Hello(session_id="abc"))) == Cart(3)


class Maker:
    def __call__(self) -> Cart:
        return Cart(7)

    def begin(self, hello: Hello | None = None, start: int = 5) -> "Cart":
        assert hello is not None
        return Cart(start)


def begin_by_keyword(*, hello: Hello) -> Annotated[Cart, "a cart"]:
    return Cart(len(hello.version))


def begin_or_not() -> Cart | None:
    return None


@pytest.mark.parametrize(
    ("factory", "first"),
    [(Maker(), Cart(7)), (Maker().begin, Cart(5)), (begin_by_keyword, Cart(10)), (begin_or_not, None)],
    ids=["object", "method, default and string form", "keyword", "optional"],
)
def test_a_factory_may_have_any_form(factory: Any, first: Any) -> None:
    kind = StateKind(factory)
    assert kind.key is Cart
    assert kind.draft(kind.begin(Hello(version="2025-11-25"))) == first


def begin_unsaid(hello):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201 the case
    return Cart(hello)


async def begin_later(hello: Hello) -> Cart:
    return Cart(len(hello.version))


def begin_twice(hello: Hello, more: int) -> Cart:
    return Cart(len(hello.version) + more)


def begin_plain() -> Plain:
    return Plain()


def begin_dict() -> dict[str, int]:
    return {}


@pytest.mark.parametrize(
    ("factory", "way_out"),
    [
        (begin_unsaid, r"begin_unsaid\(\) at .*annotate it: `def begin\(hello\) -> Cart`"),
        (lambda: Cart(), r"annotate it"),  # noqa: PLW0108 the case
        (begin_later, r"begin_later\(\) at .* is async.*plain `def`"),
        (begin_twice, r"begin_twice\(\) at .* gets one argument, hello"),
        (begin_plain, r"objects of Plain"),
        (begin_dict, r"NewType\(\"Cart\", dict\[str, int\]\)"),
    ],
)
def test_a_factory_that_can_not_work_says_why(factory: Any, way_out: str) -> None:
    with pytest.raises(RegistrationError, match=way_out):
        Server("desk", state=factory)


def test_a_factory_is_not_called_before_there_is_a_session() -> None:
    called = []

    def begin() -> Cart:
        called.append(1)
        return Cart()

    server = Server("desk", state=begin)
    assert called == []
    assert server.state is not None
    server.state.begin(Hello())
    assert called == [1]


# Copies


def test_a_draft_is_a_copy() -> None:
    kind = StateKind(Cart)
    kept = kind.seal(Cart(1, ["a"]))
    draft = kind.draft(kept)
    draft.items.append("b")
    assert kind.draft(kept) == Cart(1, ["a"])
    assert kind.draft(kind.seal(draft)) == Cart(1, ["a", "b"])


@given(st.builds(Cart, st.integers(-(2**63), 2**64 - 1), st.lists(st.text(st.characters(exclude_categories=["Cs"])))))
def test_what_is_kept_comes_back_as_it_was(cart: Cart) -> None:
    kind = StateKind(Cart)
    assert kind.draft(kind.seal(cart)) == cart


@pytest.mark.parametrize(
    "left",
    [
        Cart(items=[object()]),  # type: ignore[list-item]
        Cart(count="hunter2"),  # type: ignore[arg-type]
        Cart(2**70),
        Cart(items=["\ud800hunter2"]),
        {"count": "hunter2"},
        object(),
        "hunter2",
        None,
    ],
    ids=["object inside", "wrong field", "too big", "half a surrogate pair", "wrong key", "object", "wrong type", "None"],
)
def test_what_could_not_be_read_again_is_not_kept(left: Any) -> None:
    """An author's mistake costs its own call, not every one that follows."""
    with pytest.raises(TypeError, match="can't be kept as Cart") as caught:
        StateKind(Cart).seal(left)
    assert "hunter2" not in str(caught.value)


def test_what_a_factory_gives_is_held_to_its_annotation() -> None:
    def begin() -> Cart:
        return {"count": "x"}  # type: ignore[return-value]

    with pytest.raises(TypeError, match="can't be kept as Cart"):
        StateKind(begin).begin(Hello())


# Hooks


def test_without_hooks_there_are_none() -> None:
    assert Server("desk").hooks == Hooks()


async def test_hooks_are_called_as_they_were_given() -> None:
    calls: list[Any] = []

    async def end(reason: str, state: Cart) -> None:
        calls.append((reason, state.count))

    def note(value: str, ctx: Context | None) -> None:
        calls.append((value, ctx))

    hooks = Server("desk", state=Cart, terminate=end, set_log_level=note, subscribe=note, unsubscribe=note).hooks
    assert hooks.terminate is not None
    await hooks.terminate("expired", Cart(3))
    for hook, value in ((hooks.set_log_level, "info"), (hooks.subscribe, "a://b"), (hooks.unsubscribe, "a://c")):
        assert hook is not None
        hook(value, None)
    assert calls == [("expired", 3), ("info", None), ("a://b", None), ("a://c", None)]


@pytest.mark.parametrize("channels", [["news", "mail"], ("news", "mail"), lambda _state: iter(["news", "mail"])])
def test_channels_are_topics_however_they_are_given(channels: Any) -> None:
    hooks = Server("desk", channels=channels).hooks
    assert hooks.channels is not None
    assert [hooks.channels(None), hooks.channels(None)] == [("news", "mail")] * 2


def test_channels_may_depend_on_the_state() -> None:
    def channels(state: Cart) -> list[str]:
        return [f"cart {state.count}", *state.items]

    hooks = Server("desk", state=Cart, channels=channels).hooks
    assert hooks.channels is not None
    assert hooks.channels(Cart(2, ["tea"])) == ("cart 2", "tea")


@pytest.mark.parametrize("given", ["news", [1], None, 5])
def test_topics_that_are_none_are_refused(given: Any) -> None:
    hooks = Server("desk", channels=lambda _state: given).hooks
    assert hooks.channels is not None
    with pytest.raises(TypeError, match="channels"):
        hooks.channels(None)
    if given is not None:
        with pytest.raises(RegistrationError, match="channels"):
            Server("desk", channels=given)


async def channels_later(_state: Cart) -> list[str]:
    return []


@pytest.mark.parametrize(
    ("hooks", "way_out"),
    [
        ({"channels": channels_later}, "channels is async"),
        ({"channels": lambda state, more: [state, more]}, r"called as channels\(state\)"),
        ({"terminate": "bye"}, r"terminate must be a function, `def terminate\(reason, state\)`, not 'bye'"),
        ({"terminate": lambda reason: reason}, r"called as terminate\(reason, state\)"),
        ({"set_log_level": lambda level: level}, r"called as set_log_level\(level, ctx\)"),
        ({"subscribe": lambda: None}, r"called as subscribe\(uri, ctx\)"),
        ({"unsubscribe": 1}, r"def unsubscribe\(uri, ctx\)"),
        ({"on_terminate": print}, r"Server takes no 'on_terminate'; .*terminate"),
        ({"auth": print}, r"Server takes no 'auth', .* callboard\.asgi\(server, auth=\.\.\.\)"),
    ],
)
def test_a_hook_that_can_not_be_called_says_how_it_will_be(hooks: dict[str, Any], way_out: str) -> None:
    with pytest.raises(RegistrationError, match=way_out):
        Server("desk", **hooks)

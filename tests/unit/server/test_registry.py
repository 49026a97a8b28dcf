"""Components by name, and their list pages as bytes."""

import base64
from contextlib import suppress
from itertools import chain
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.errors import Fail, Reason, RegistrationError
from callboard.server.component import Completer, Facts, Prompt, Resource, Template, Tool
from callboard.server.registry import Kind, Registry


async def echo(text: str) -> str:
    return text


async def nothing() -> str:
    return ""


def make_registry(tools: int = 0, *, page_size: int = 50) -> tuple[Registry, list[str]]:
    """A registry with tools, and what it told of its changes since."""
    told: list[str] = []
    registry = Registry(page_size=page_size, changed=told.append)
    for number in range(tools):
        registry.add(Tool(echo, facts=Facts(name=f"tool{number}")))
    told.clear()
    return registry, told


def names(page: dict[str, Any]) -> list[str]:
    return [entry["name"] for entry in msgspec.json.decode(page["tools"])]


def walk(registry: Registry, kind: Kind = "tools") -> list[list[str]]:
    """Names page by page, as a client gets them."""
    pages, cursor = [], None
    while True:
        page = registry.page(kind, cursor)
        pages.append(names(page))
        if "nextCursor" not in page:
            return pages
        cursor = page["nextCursor"]


# Pages


@pytest.mark.parametrize(("tools", "sizes"), [(0, [0]), (1, [1]), (49, [49]), (50, [50]), (51, [50, 1]), (120, [50, 50, 20])])
def test_lists_come_in_pages(tools: int, sizes: list[int]) -> None:
    # PG-01, A61
    registry, _ = make_registry(tools)
    pages = walk(registry)
    assert [len(page) for page in pages] == sizes
    assert list(chain.from_iterable(pages)) == [f"tool{number}" for number in range(tools)]


def test_the_order_is_that_of_adding() -> None:
    # TL-03
    registry, _ = make_registry()
    for name in ("b", "c", "a"):
        registry.add(Tool(echo, facts=Facts(name=name)))
    assert walk(registry) == [["b", "c", "a"]]
    registry.remove("tools", "b")
    registry.add(Tool(echo, facts=Facts(name="b")))
    assert walk(registry) == [["c", "a", "b"]]


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "garbage",
        "é",
        "=",
        "AAAA",
        base64.urlsafe_b64encode(b"prompts:50").decode(),
        base64.urlsafe_b64encode(b"tools:").decode(),
        base64.urlsafe_b64encode(b"tools:-1").decode(),
        base64.urlsafe_b64encode(b"tools:x").decode(),
        base64.urlsafe_b64encode(b"tools:1.5").decode(),
        base64.urlsafe_b64encode("tools:²".encode()).decode(),
        base64.urlsafe_b64encode(b"tools:" + b"9" * 5000).decode(),
        base64.urlsafe_b64encode(b"\xff\xfe").decode(),
        base64.b64encode(b"tools:50??>").decode(),
    ],
)
def test_garbage_is_no_cursor(cursor: str) -> None:
    # PG-05
    registry, _ = make_registry(60)
    with pytest.raises(Fail) as caught:
        registry.page("tools", cursor)
    assert caught.value.reason is Reason.CURSOR


@given(st.text(max_size=20) | st.binary(max_size=12).map(lambda raw: base64.urlsafe_b64encode(raw).decode()))
def test_any_cursor_has_an_answer(cursor: str) -> None:
    # PG-05
    registry, _ = make_registry(1)
    with suppress(Fail):
        assert registry.page("tools", cursor).keys() >= {"tools"}


def test_a_cursor_of_one_list_is_none_of_another() -> None:
    # PG-05
    registry, _ = make_registry(60)
    with pytest.raises(Fail):
        registry.page("prompts", registry.page("tools", None)["nextCursor"])


def test_made_up_cursors_cost_no_memory() -> None:
    registry, _ = make_registry(60)
    for offset in range(0, 100_000, 50):
        registry.page("tools", base64.urlsafe_b64encode(b"tools:%d" % offset).decode())
    assert len(registry._pages["tools"]) <= 2


def test_a_page_that_was_cached_is_not_its_readers_to_change() -> None:
    registry, _ = make_registry(1)
    registry.page("tools", None)["resultType"] = "x"
    assert registry.page("tools", None).keys() == {"tools"}


def test_a_page_is_built_once_until_something_changes() -> None:
    registry, _ = make_registry(3)
    first = registry.page("tools", None)["tools"]
    assert registry.page("tools", None)["tools"] is first
    registry.add(Prompt(nothing))
    assert registry.page("tools", None)["tools"] is first
    registry.remove("tools", "tool1")
    assert names(registry.page("tools", None)) == ["tool0", "tool2"]


def test_a_cursor_outlives_changes() -> None:
    # PG-05: stable cursors; at worst a component is missed or seen twice
    registry, _ = make_registry(60)
    cursor = registry.page("tools", None)["nextCursor"]
    for number in range(55):
        registry.remove("tools", f"tool{number}")
    assert names(registry.page("tools", cursor)) == []


@pytest.mark.parametrize("size", [0, -1])
def test_a_page_holds_something(size: int) -> None:
    with pytest.raises(RegistrationError, match="page_size"):
        make_registry(page_size=size)


# Adding and removing


def test_a_name_twice_is_refused_with_both_places() -> None:
    # TL-15
    registry, _ = make_registry()
    registry.add(Tool(echo))
    with pytest.raises(RegistrationError) as caught:
        registry.add(Tool(nothing, facts=Facts(name="echo")))
    text = str(caught.value)
    assert "echo() at" in text
    assert "nothing() at" in text
    assert text.count("test_registry.py") == 2


def test_names_are_told_apart_by_case_and_by_kind() -> None:
    # TL-15
    registry, _ = make_registry()
    registry.add(Tool(nothing, facts=Facts(name="a")))
    registry.add(Tool(nothing, facts=Facts(name="A")))
    registry.add(Prompt(nothing, facts=Facts(name="a")))
    assert walk(registry) == [["a", "A"]]


def test_removing_what_is_not_there_is_an_error() -> None:
    registry, told = make_registry()
    with pytest.raises(KeyError, match="tools"):
        registry.remove("tools", "x")
    assert told == []


def test_every_change_is_told() -> None:
    # SB-11
    registry, told = make_registry()
    registry.add(Tool(nothing, facts=Facts(name="a")))
    registry.add(Prompt(nothing))
    registry.add(Resource(nothing, "a://b"))
    registry.add(Template(echo, "a://{text}"))
    registry.add(Completer(lambda value: [value], "a://{text}", "text"))
    registry.remove("tools", "a")
    registry.remove("templates", "a://{text}")
    assert told == ["tools", "prompts", "resources", "resources", "tools", "resources"]


def test_what_was_offered_stays_so() -> None:
    # MT-18: a list that has run empty is still a list
    registry, _ = make_registry(1)
    registry.remove("tools", "tool0")
    assert registry.offered == {"tools"}
    assert walk(registry) == [[]]


def test_a_completion_twice_is_refused_with_both_places() -> None:
    registry, _ = make_registry()

    def one(value: str) -> list[str]:
        return [value]

    def two(value: str) -> list[str]:
        return [value]

    registry.add(Completer(one, "p", "a"))
    registry.add(Completer(two, "p", "b"))
    with pytest.raises(RegistrationError, match=r"one\(\) at.*two\(\) at"):
        registry.add(Completer(two, "p", "a"))


# Templates


def test_the_first_template_that_fits_is_taken() -> None:
    registry, _ = make_registry()

    async def read(name: str) -> str:
        return name

    registry.add(Template(read, "a://{+name}"))
    registry.add(Template(read, "a://x/{name}"))
    found = next(registry.find_templates("a://x/y"), None)
    assert found is not None
    assert (found[0].key, found[1]) == ("a://{+name}", {"name": "x/y"})
    assert not any(registry.find_templates("b://x"))

"""Components written as classes: what they become, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from served import definition, refusal, reply

from callboard import CacheHint, Context, Depends, NotFound, RegistrationError, Server
from callboard.types import Resource, ToolAnnotations


class SearchFlights:
    """Find flights."""

    title = "Flights"
    annotations = ToolAnnotations(read_only_hint=True)
    meta = {"team": "air"}  # noqa: RUF012 - as an author writes it
    cache = CacheHint(ttl_ms=5)

    async def execute(self, to: str, ctx: Context, limit: int = 2) -> list[str]:
        """Not what the class says.

        Args:
            to: Where to.
        """
        return [f"{to} {number} {ctx.method}" for number in range(limit)]


@dataclass
class Greeting:
    word: str = "Hello"
    name: str = "greet"

    def render(self, who: str) -> str:
        """Greet somebody."""
        return f"{self.word} {who}"

    def complete(self, argument: str, text: str) -> list[str]:
        return [f"{argument}:{text}"]


class Notes:
    """Notes."""

    prefix = "notes://"
    mime_type = "text/markdown"
    templates = ("notes://{name}", "notes://by/{year}/{name}")

    def __init__(self) -> None:
        self.texts = {"notes://a": "# A", "notes://b": "# B"}

    def list(self) -> list[Any]:
        return ["notes://a", {"uri": "notes://b", "name": "b", "title": "B"}, Resource(uri="notes://c", name="c")]

    def read(self, uri: str) -> str:
        if uri not in self.texts:
            raise NotFound
        return self.texts[uri]

    def complete(self, argument: str, text: str, others: dict[str, str]) -> Sequence[str]:
        return [f"{argument} {text} {sorted(others)}"]


def make(*components: Any, **options: Any) -> Server:
    server = Server("desk", **options)
    for component in components:
        server.add(component)
    return server


@pytest.mark.parametrize("given", [SearchFlights, SearchFlights()], ids=["class", "instance"])
async def test_a_class_is_a_tool(given: Any) -> None:
    server = make(given)
    said = definition(server, "tools", "search_flights", "Tool")
    assert (said["title"], said["description"]) == ("Flights", "Find flights.")
    assert (said["annotations"], said["_meta"]) == ({"readOnlyHint": True}, {"team": "air"})
    assert said["inputSchema"]["properties"]["to"]["description"] == "Where to."
    assert "ctx" not in said["inputSchema"]["properties"]
    result = await reply(server, "tools/call", {"name": "search_flights", "arguments": {"to": "Oslo", "limit": 1}})
    assert result["structuredContent"] == ["Oslo 0 tools/call"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Search", "search"),
        ("HTTPGet", "http_get"),
        ("GetURL", "get_url"),
        ("Load2Files", "load2_files"),
        ("already_snake", "already_snake"),
    ],
)
def test_the_name_is_that_of_the_class_in_snake_case(name: str, expected: str) -> None:
    server = make(type(name, (), {"execute": lambda self: "x"}))
    assert [*server.registry.tools] == [expected]


async def test_a_class_may_take_what_every_function_may() -> None:
    class Add:
        snapshot = True
        timeout = 5
        input_schema = None

        def execute(self, amount: int, cart: Cart, tax: int = Depends(lambda: 7)) -> int:
            return cart.count + amount + tax

    server = make(Add, state=Cart)
    assert server.registry.tools["add"].policy.timeout == 5
    result = await reply(server, "tools/call", {"name": "add", "arguments": {"amount": 1}})
    assert result["structuredContent"] == 8


class Cart(msgspec.Struct):
    count: int = 0


async def test_a_raw_schema_gives_a_dict() -> None:
    class Raw:
        input_schema = {"type": "object", "properties": {"a": {"type": "integer"}}}  # noqa: RUF012
        output_schema = {"type": "object"}  # noqa: RUF012

        def execute(self, arguments: dict[str, Any]) -> dict[str, Any]:
            return arguments

    result = await reply(make(Raw), "tools/call", {"name": "raw", "arguments": {"a": 1}})
    assert result["structuredContent"] == {"a": 1}


async def test_a_class_is_a_prompt_and_completes_its_arguments() -> None:
    server = make(Greeting, Greeting("Bye", "part"))
    assert definition(server, "prompts", "greet", "Prompt")["description"] == "Greet somebody."
    result = await reply(server, "prompts/get", {"name": "part", "arguments": {"who": "Ada"}})
    assert result["messages"][0]["content"]["text"] == "Bye Ada"
    params = {"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "who", "value": "A"}}
    assert (await reply(server, "completion/complete", params))["completion"]["values"] == ["who:A"]


# Repositories


async def test_a_repository_lists_and_reads() -> None:
    server = make(Notes)
    listed = (await reply(server, "resources/list"))["resources"]
    assert [(item["uri"], item["name"]) for item in listed] == [("notes://a", "a"), ("notes://b", "b"), ("notes://c", "c")]
    assert (await reply(server, "resources/read", {"uri": "notes://a"}))["contents"] == [
        {"uri": "notes://a", "text": "# A", "mimeType": "text/markdown"}
    ]
    templates = (await reply(server, "resources/templates/list"))["resourceTemplates"]
    assert [template["uriTemplate"] for template in templates] == list(Notes.templates)
    params = {"ref": {"type": "ref/resource", "uri": "notes://{name}"}, "argument": {"name": "name", "value": "x"}}
    assert (await reply(server, "completion/complete", params))["completion"]["values"] == ["name x []"]


@pytest.mark.parametrize("uri", ["notes://nope", "other://a"])
async def test_what_a_repository_has_not_is_not_found(uri: str) -> None:
    # RS-05
    fail = await refusal(make(Notes), "resources/read", {"uri": uri})
    assert (fail.data, fail.text) == ({"uri": uri}, "Resource not found.")


@pytest.mark.parametrize("uri", ["notes://../a", "notes://x/%2e%2e/a", "notes:///etc/passwd"])
async def test_a_uri_that_leads_out_of_a_repository_is_refused(uri: str) -> None:
    # RS-08
    assert (await refusal(make(Notes), "resources/read", {"uri": uri})).data == {"uri": uri}


async def test_the_first_repository_whose_prefix_fits_reads() -> None:
    def reader(said: str, begins: str) -> type:
        return type(said, (), {"prefix": begins, "read": lambda self, uri: f"{said} {uri}"})

    server = make(reader("first", "docs://a/"), reader("second", "docs://"), reader("third", "docs://b/"))
    found = [(await reply(server, "resources/read", {"uri": uri}))["contents"][0]["text"] for uri in ("docs://a/x", "docs://b/x")]
    assert found == ["first docs://a/x", "second docs://b/x"]
    server.remove("repositories", "docs://a/")
    assert (await reply(server, "resources/read", {"uri": "docs://a/x"}))["contents"][0]["text"] == "second docs://a/x"


async def test_a_repository_goes_with_its_templates_and_completions() -> None:
    server = make(Notes)
    server.remove("repositories", "notes://")
    assert (server.registry.templates, server.registry.completers, server.registry.repositories) == ({}, {}, {})
    server.add(Notes)


class Pages:
    """Pages of `size` resources, out of `total`."""

    def __init__(self, prefix: str, total: int, size: int = 3) -> None:
        self.prefix, self.total, self.size = prefix, total, size

    async def list(self, cursor: str | None, ctx: Context) -> tuple[list[str], str | None]:
        begin = int(cursor or 0)
        end = min(begin + self.size, self.total)
        return [f"{self.prefix}{number}" for number in range(begin, end)], str(end) if end < self.total else None

    def read(self, uri: str) -> str:
        return uri


async def walk(server: Server, method: str = "resources/list", key: str = "resources") -> list[list[str]]:
    pages: list[list[str]] = []
    cursor: dict[str, Any] = {}
    while True:
        page = await reply(server, method, cursor)
        pages.append([item["uri"] for item in page[key]])
        if "nextCursor" not in page:
            return pages
        cursor = {"cursor": page["nextCursor"]}
        assert len(pages) < 50


@pytest.mark.parametrize("totals", [(0,), (7,), (0, 0, 5), (3, 3), (1, 0, 9, 0)])
@pytest.mark.parametrize("own", [0, 4, 5, 9])
async def test_lists_that_come_in_pages_follow_each_other(totals: tuple[int, ...], own: int) -> None:
    # PG-01
    server = make(*[Pages(f"p{index}://", total) for index, total in enumerate(totals)], page_size=5)
    for number in range(own):
        server.resource(f"own://{number}")(lambda: "x")
    pages = await walk(server)
    expected = [f"own://{number}" for number in range(own)]
    expected += [f"p{index}://{number}" for index, total in enumerate(totals) for number in range(total)]
    assert [uri for page in pages for uri in page] == expected
    assert all(page for page in pages[:-1])


async def test_a_repository_that_gives_empty_pages_for_ever_ends_each_page() -> None:
    class Empty:
        prefix = "e://"

        def list(self, cursor: str | None) -> tuple[list[str], str]:
            return [], "more"

        def read(self, uri: str) -> str:
            return uri

    assert "nextCursor" in await reply(make(Empty, page_size=5), "resources/list")


@pytest.mark.parametrize("cursor", ["x", "WzBd", "Wy0xLCBudWxsXQ==", "dG9vbHM6MA=="])
async def test_a_strange_cursor_is_refused(cursor: str) -> None:
    # PG-05
    fail = await refusal(make(Pages("p://", 5)), "resources/list", {"cursor": cursor})
    assert fail.reason.name == "CURSOR"


async def test_a_list_that_fails_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        prefix = "x://"

        def list(self) -> list[str]:
            raise OSError("no disk")

        def read(self, uri: str) -> str:
            return uri

    class Stray(Broken):
        prefix = "y://"

        def list(self) -> list[str]:
            return ["elsewhere://a"]

    assert await walk(make(Broken, Stray, Notes)) == [["notes://a", "notes://b", "notes://c"]]
    assert "no disk" in caplog.text
    assert "whose URI begins with 'y://'" in caplog.text


# Refusals


def _class(name: str = "Thing", **members: Any) -> type:
    return type(name, (), members)


def _needs(self: Any, size: int) -> None:
    """Takes an argument."""


REFUSED = [
    pytest.param(
        _class(), "server.add takes a function.*not the class Thing: a tool has `execute`.*`prefix` and `read`.*`render`", id="no role"
    ),
    pytest.param(_class()(), "a tool has `execute`", id="an instance of no role"),
    pytest.param(42, "not 42: a tool has `execute`", id="a number"),
    pytest.param(_class(execute=len, render=len), r"Thing is a tool \(execute\) and a prompt \(render\) at once", id="two roles"),
    pytest.param(
        _class(execute=lambda self: "", __init__=_needs), "Thing can't be made without arguments .*hand over an instance", id="arguments"
    ),
    pytest.param(_class(read=lambda self, uri: ""), "Thing has `read`, but no `prefix`", id="no prefix"),
    pytest.param(_class(read=lambda self, uri: "", prefix="docs"), "prefix is what its URIs begin with", id="no scheme"),
    pytest.param(_class(read=lambda self, path: "", prefix="d://"), "read takes `uri`.*it takes path", id="read without uri"),
    pytest.param(
        _class(read=lambda self, uri: "", prefix="d://", list=lambda self, page: []),
        "list takes `cursor`.*it takes page",
        id="list of what",
    ),
    pytest.param(
        _class(read=lambda self, uri: "", prefix="d://", templates=("e://{x}",)), "'e://{x}' is not within its prefix", id="template"
    ),
    pytest.param(_class(read=lambda self, uri: "", prefix="d://", templates="d://{x}"), "templates is a list", id="one template"),
    pytest.param(_class(read=lambda self, uri: "", prefix="d://", templates=("d://{x",)), "d://", id="no template"),
    pytest.param(_class(render=lambda self, a: "", complete=lambda self, text: []), "it takes `argument`", id="completion of nothing"),
    pytest.param(_class(render=lambda self, a: "", complete=("x",)), "Thing.complete must be a method", id="completion that is none"),
    pytest.param(_class(execute=lambda self: "", cache={}), "cache must be a CacheHint", id="an attribute that is an option"),
    pytest.param(_class(execute=lambda self: "", name="no spaces"), "can't name a tool", id="name"),
]


@pytest.mark.parametrize(("component", "text"), REFUSED)
def test_what_can_not_work_is_refused_with_what_is_missing(component: Any, text: str) -> None:
    server = Server("desk")
    with pytest.raises(RegistrationError, match=text):
        server.add(component)
    assert not list(server.registry)


@pytest.mark.parametrize(
    "component", [SearchFlights, Greeting, Notes, type("Other", (), {"prefix": "notes://", "read": lambda self, uri: ""})]
)
def test_duplicates_fail_and_name_both_places(component: Any) -> None:
    server = make(SearchFlights, Greeting, Notes)
    before = list(server.registry)
    with pytest.raises(RegistrationError, match=r"is there twice: at .*test_classes.py:\d+.* and at .*test_classes.py:\d+"):
        server.add(component)
    assert list(server.registry) == before


def test_a_component_of_another_state_is_refused() -> None:
    class Add:
        def execute(self, cart: Cart) -> int:
            return cart.count

    other = make(Add, state=Cart)
    with pytest.raises(RegistrationError, match="state of another server"):
        make(other.registry.tools["add"])

"""Attacks on components, mounts, providers and policies: each of these got through once."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from asgi_driver import JSON, Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from legacy_driver import Legacy
from virtual_time import run, settle, virtual_time

import callboard
from callboard import CacheHint, Context, RegistrationError, Server, asgi, types
from callboard.auth.principal import Principal
from callboard.limits import Limits
from callboard.server.component import Facts, Resource, Template, Tool
from callboard.server.policy import Policy
from callboard.server.provider import FunctionProvider
from callboard.server.workers import MAX_WAITING
from callboard.skills import Skills

PUBLIC = CacheHint(60_000, "public")


@dataclass
class Cart:
    items: int = 0


def connect(server: Server, who: str | None = None, limits: Limits | None = None) -> Client:
    return Client(asgi(server, limits=limits, principal=lambda scope: scope["state"].get("principal")), state={"principal": who})


def is_ada(ctx: Context) -> bool:
    return ctx.principal == "ada"


def give(name: str) -> Tool:
    """A tool that gives its name."""
    return Tool(lambda: name, facts=Facts(name=name))


async def list_names(server: Server, who: str | None = None) -> list[str]:
    return [tool["name"] for tool in (await connect(server, who).request("tools/list")).result["tools"]]


# What is hidden

KEYS = {
    "tool": ["a", "b"],
    "prompt": ["a", "b"],
    "resource": ["a://x", "a://y/z"],
    "template": ["a://{v}", "a://{+v}"],
    "repository": ["a://", "a://y/"],
}
PARTS = st.tuples(
    st.sampled_from([(kind, key) for kind, keys in KEYS.items() for key in keys]),
    st.booleans(),  # hidden
    st.integers(0, 2),  # how deep it is mounted
    st.booleans(),  # from a provider
    st.sampled_from([(), ("read",)]),
)
REFS = [{"type": "ref/prompt", "name": f"{prefix}{name}"} for prefix in ("", "m_", "m_m_") for name in "abc"] + [
    {"type": "ref/resource", "uri": uri} for uri in ("a://{v}", "a://{+v}", "a://{q}", "a://y/{q}", "a://x")
]
REQUESTS: st.SearchStrategy[tuple[str, JSON]] = st.one_of(
    st.sampled_from([(f"{kind}/list", {}) for kind in ("tools", "prompts", "resources", "resources/templates")]),
    st.sampled_from(REFS[:9]).map(lambda ref: ("tools/call", {"name": ref["name"], "arguments": {}})),
    st.sampled_from(REFS[:9]).map(lambda ref: ("prompts/get", {"name": ref["name"], "arguments": {"q": "1"}})),
    st.sampled_from(["a://x", "a://y/z", "a://y", "a://../x", "b://x"]).map(lambda uri: ("resources/read", {"uri": uri})),
    st.tuples(st.sampled_from(REFS), st.sampled_from("qv")).map(
        lambda pair: ("completion/complete", {"ref": pair[0], "argument": {"name": pair[1], "value": "x"}})
    ),
)


def make_part(kind: str, key: str, visible: Any, scopes: tuple[str, ...]) -> Any:
    """A component that says what it is."""
    options: dict[str, Any] = {"visible": visible, "scopes": scopes}
    if kind == "tool":
        return Tool(lambda: kind, facts=Facts(name=key), policy=Policy(**options))
    if kind == "resource":
        return Resource(lambda: kind, key, facts=Facts(name=kind), policy=Policy(**options))
    if kind == "template":
        return Template(lambda v: f"{key} {v}", key, facts=Facts(name=kind), policy=Policy(**options))
    if visible is not None:
        options["visible"] = staticmethod(visible)
    if kind == "prompt":
        options |= {"name": key, "render": lambda _self, q: q}
    else:
        options |= {
            "prefix": key,
            "templates": [f"{key}{{q}}"],
            "list": lambda _self: [f"{key}1"],
            "read": lambda _self, uri: f"{key} {uri}",
        }
    return type("Part", (), {**options, "complete": lambda _self, argument, text: [argument, text]})()


def build(parts: list[Any], *, with_hidden: bool) -> Server:
    """Three servers, each mounted on the one before."""
    servers = [Server(f"s{depth}", page_size=2) for depth in range(3)]
    given_by: list[list[Any]] = [[], [], []]
    servers[1].mount("m", servers[2])
    servers[0].mount("m", servers[1])
    for kind in KEYS:
        servers[0].add(
            make_part(kind, "open" if kind in {"tool", "prompt"} else {"template": "open://x/{v}"}.get(kind, f"open://{kind}"), None, ())
        )
    for (kind, key), is_hidden, depth, is_provided, scopes in parts:
        if with_hidden or not is_hidden:
            part = make_part(kind, key, is_ada if is_hidden else None, scopes)
            (given_by[depth].append if is_provided else servers[depth].add)(part)
    for server, given_parts in zip(servers, given_by, strict=True):
        server.provide(functools.partial(lambda parts, _ctx: parts, given_parts))
    return servers[0]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(PARTS, max_size=8, unique_by=lambda part: part[0]), st.lists(REQUESTS, max_size=8), st.sampled_from([(), ("read",)]))
def test_a_server_that_hides_something_answers_like_one_that_has_it_not(
    parts: list[Any], requests: list[tuple[str, JSON]], granted: tuple[str, ...]
) -> None:
    # SA21, A48
    async def compare() -> None:
        bob: Any = Principal("bob", granted)
        clients = [connect(build(parts, with_hidden=with_hidden), bob) for with_hidden in (True, False)]
        sessions = [await Legacy(client.app, state={"principal": bob}).connect() for client in clients]
        for method, params in requests:
            one, other = [await client.request(method, params) for client in clients]
            assert (one.status, one.body) == (other.status, other.body)
            one_2025, other_2025 = [await session.request(method, params, request_id=1) for session in sessions]
            assert one_2025.body == other_2025.body
        grants: list[Any] = []
        for client in clients:
            async with client.listen(resourceSubscriptions=["a://x", "a://y/z", "a://{v}", "a://y/{q}"]) as stream:
                grants.append(await stream.message())
        assert grants[0] == grants[1]
        for session in sessions:
            await session.delete()

    run(compare)


# What a shared cache may keep


@pytest.mark.parametrize("levels", [0, 2])
@pytest.mark.parametrize(("uri", "scope"), [(f"{name}://x", "private") for name in "abcd"] + [("e://x", "public"), ("f://x", "public")])
async def test_what_not_everybody_may_read_is_private(uri: str, scope: str, levels: int) -> None:
    # CA-03: a cache between us and our clients would give it to all of them
    server = Server("desk", cache=PUBLIC)
    server.resource("a://x", visible=is_ada)(lambda: "x")
    server.resource("b://{x}", scopes={"read"}, cache=PUBLIC)(lambda x: x)
    server.resource("c://x", visible=lambda _: False)(lambda: "x")
    server.resource("c://{x}")(lambda x: x)
    server.provide(lambda _: [Resource(lambda: "x", "d://x", facts=Facts(name="d"))])
    server.resource("e://x")(lambda: "x")
    server.resource("f://x", rate="60/min")(lambda: "x")
    for level in range(levels):
        server, child = Server(f"desk {level}", cache=PUBLIC), server
        server.mount("m", child)
    found = (await connect(server, Principal("ada", {"read"})).request("resources/read", {"uri": uri})).result
    assert (found["ttlMs"], found["cacheScope"]) == (60_000, scope)


# Predicates and scopes that never say no


def yields(_ctx: Context) -> Iterator[bool]:
    yield False


async def yields_later(_ctx: Context) -> AsyncIterator[bool]:
    yield False


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"visible": staticmethod(yields)}, "it would never say no"),
        ({"visible": staticmethod(yields_later)}, "it would never say no"),
        ({"scopes": map(str, range(10))}, "scopes is a set of str"),
        ({"scopes": None}, "scopes is a set of str"),
        ({"rate": (10**400, 1)}, "rate is"),
        ({"rate": "9" * 5000 + "/s"}, "rate is"),
        ({"icons": 5}, "icons a list of types.Icon"),
        ({"meta": 5}, "meta a mapping"),
    ],
)
def test_an_option_that_would_let_everybody_in_or_fail_later_is_refused(options: dict[str, Any], text: str) -> None:
    server = Server("desk")
    with pytest.raises(RegistrationError, match=text):
        server.add(type("Run", (), {"execute": lambda _self: "x", **options}))
    with pytest.raises(RegistrationError, match=text):
        server.add(type("Read", (), {"prefix": "a://", "templates": ["a://{x}"], "read": lambda _self, uri: uri, **options}))
    with pytest.raises(RegistrationError, match=text):
        server.add(type("Write", (), {"render": lambda _self: "x", **options}))


@pytest.mark.parametrize("ttl_ms", [1.5, True, "60", None, -1])
def test_a_hint_is_whole_milliseconds(ttl_ms: Any) -> None:
    # CA-01
    with pytest.raises(RegistrationError, match="ttl_ms is an integer"):
        CacheHint(ttl_ms)
    given: Any = {"ttl_ms": 60_000}
    with pytest.raises(RegistrationError, match="cache must be a CacheHint"):
        Server("desk", cache=given)


async def wait_for_another(_ctx: Context) -> bool:
    other = asyncio.ensure_future(asyncio.sleep(10))
    other.cancel()
    await other
    return True


async def test_a_predicate_that_waits_for_what_was_cancelled_hides() -> None:
    # SA21: it is no cancellation of the request
    server = Server("desk")
    server.tool(visible=wait_for_another, name="hidden")(lambda: "x")
    server.provide(wait_for_another)
    server.add(give("open"))
    assert await list_names(server) == ["open"]
    answers = [(await connect(server).call(name, {})).error for name in ("hidden", "nosuch")]
    assert answers[0] == {**answers[1], "message": "Unknown tool 'hidden'.", "data": {"name": "hidden"}}


# Turns


async def test_what_fits_next_may_take_the_state() -> None:
    server = Server("desk", state=Cart)
    server.resource("a://x", visible=is_ada)(lambda: "static")

    @server.resource("a://{name}")
    def count(name: str, cart: Cart) -> str:
        cart.items += 1
        return f"{name} {cart.items}"

    read = ("resources/read", {"uri": "a://x"})
    session = await Legacy(connect(server).app, state={"principal": "bob"}).connect()
    assert [(await session.request(*read)).result["contents"][0]["text"] for _ in range(2)] == ["x 1", "x 2"]
    assert (await connect(server, "bob").request(*read)).result["contents"][0]["text"] == "x 1"
    assert (await connect(server, "ada").request(*read)).result["contents"][0]["text"] == "static"


# Mounts


@pytest.mark.parametrize("levels", [1, 2])
async def test_what_the_parent_took_out_and_made_anew_is_not_the_childs_to_remove(levels: int) -> None:
    parent, child = Server("parent"), Server("child")
    above = parent
    for level in range(levels - 1):
        above, middle = Server(f"middle {level}"), above
        above.mount("m", middle)
    parent.mount("shop", child)

    @child.prompt
    def order(item: str) -> str:
        return item

    child.complete("order", "item")(lambda text: [text])
    child.add(give("order"))
    parent.remove("tools", "shop_order")
    parent.remove("prompts", "shop_order")
    parent.add(Tool(lambda: "mine", facts=Facts(name="shop_order")))
    child.remove("tools", "order")
    child.remove("prompts", "order")
    assert (await connect(parent).call("shop_order", {})).text == "mine"
    assert (await connect(above).call("m_" * (levels - 1) + "shop_order", {})).text == "mine"
    assert not child.registry.tools
    assert not parent.registry.completers
    child.add(give("order2"))
    child.remove("tools", "order2")
    assert list(parent.registry.tools) == ["shop_order"]


@pytest.mark.parametrize("levels", [0, 1, 2])
async def test_a_repository_is_taken_out_with_its_templates(levels: int) -> None:
    class Docs:
        prefix = "docs://"
        templates = ("docs://{name}",)

        def read(self, uri: str) -> str:
            return uri

        def complete(self, argument: str, text: str) -> list[str]:
            return [argument, text]

    server = Server("desk")
    server.add(Docs)
    server.resource("other://{name}")(lambda name: name)
    for level in range(levels):
        server, child = Server(f"desk {level}"), server
        server.mount("m", child)
    server.remove("repositories", "docs://")
    assert list(server.registry.templates) == ["other://{name}"]
    assert not server.registry.completers
    assert (await connect(server).request("resources/read", {"uri": "docs://x"})).status == 400


async def test_a_provider_whose_names_can_not_be_mounted_is_absent(caplog: pytest.LogCaptureFixture) -> None:
    parent, child = Server("parent"), Server("child")
    child.provide(lambda _: [give("n" * 128)])
    parent.mount("m", child)
    parent.add(give("open"))
    assert await list_names(parent) == ["open"]
    assert (await connect(parent).call("nosuch", {})).status == 400
    assert "128 of A-Z" in caplog.text


def refuse_to_start(_server: Server) -> Any:
    @asynccontextmanager
    async def live() -> AsyncIterator[Mapping[str, Any]]:
        await wait_for_another(None)  # type: ignore[arg-type]
        yield {}

    return live()


def refuse_to_end(_server: Server) -> Any:
    @asynccontextmanager
    async def live() -> AsyncIterator[Mapping[str, Any]]:
        yield {}
        await wait_for_another(None)  # type: ignore[arg-type]

    return live()


@pytest.mark.parametrize("lifespan", [refuse_to_start, refuse_to_end])
async def test_a_child_that_cancels_itself_fails_alone(lifespan: Callable[[Server], Any], caplog: pytest.LogCaptureFixture) -> None:
    parent, child = Server("parent"), Server("child", lifespan=lifespan)
    parent.mount("m", child)
    parent.add(give("open"))
    async with callboard.Client(parent) as client:
        assert [tool.name for tool in await client.list_tools()] == ["open"]
    assert "The lifespan of 'child', mounted as 'm', failed" in caplog.text


async def test_a_layer_that_serves_twice_meets_the_parent_twice() -> None:
    servers: list[str] = []

    def twice(service: Callable[[Any, Context], Awaitable[Any]]) -> Callable[[Any, Context], Awaitable[Any]]:
        async def serve(request: Any, ctx: Context) -> Any:
            await service(request, ctx)
            servers.append(ctx.server.name)
            return await service(request, ctx)

        return serve

    parent, child = Server("parent", middleware=[twice]), Server("child")
    child.tool(rate=(3, 1000), name="count")(lambda: "x")
    parent.mount("m", child)
    assert [(await connect(parent).call("m_count", {})).status for _ in range(2)] == [200, 429]
    assert servers == ["parent", "parent"]


async def test_a_layer_may_change_what_is_completed_in_a_child() -> None:
    from msgspec.structs import replace

    def shout(service: Callable[[Any, Context], Awaitable[Any]]) -> Callable[[Any, Context], Awaitable[Any]]:
        async def serve(request: Any, ctx: Context) -> Any:
            argument = replace(request.params.argument, value=request.params.argument.value.upper())
            return await service(replace(request, params=replace(request.params, argument=argument)), ctx)

        return serve

    child, middle, parent = Server("child"), Server("middle"), Server("parent", middleware=[shout])

    @child.prompt
    def greet(who: str, city: str) -> str:
        return who + city

    @child.complete("greet", "who")
    def complete(text: str, others: dict[str, str]) -> list[str]:
        return [text, *others]

    middle.mount("x", child)
    parent.mount("y", middle)
    asked: JSON = {"ref": {"type": "ref/prompt", "name": "y_x_greet"}, "argument": {"name": "who", "value": "a"}}
    found = (await connect(parent).request("completion/complete", {**asked, "context": {"arguments": {"city": "x"}}})).result
    assert found["completion"]["values"] == ["A", "city"]


async def test_what_a_parent_lists_it_serves() -> None:
    """What the child says of itself to its own clients is not the parent's."""
    child, parent = Server("child", capabilities={"tools": {}}), Server("parent")
    child.prompt(name="greet")(lambda: "hi")
    parent.mount("m", child)
    assert (await connect(parent).request("prompts/get", {"name": "m_greet"})).result["messages"][0]["content"]["text"] == "hi"


# Providers


@virtual_time
async def test_without_a_free_thread_nobody_knows_what_a_provider_gives() -> None:
    server, opened = Server("desk"), threading.Event()
    server.provide(lambda _: [give("given")])

    @server.tool
    def wait() -> str:
        opened.wait()
        return "x"

    client = connect(server, limits=Limits(threads=1))
    async with asyncio.TaskGroup() as group:
        for _ in range(MAX_WAITING + 1):
            group.create_task(client.call("wait", {}))
        await settle()
        answers = [await client.request("tools/list"), await client.call("given", {})]
        opened.set()
    assert [answer.status for answer in answers] == [503, 503]


def close_account() -> str:
    return "closed"


class Lasting:
    rate = "1/h"

    def execute(self) -> str:
        return "x"


async def test_a_wrapper_that_is_made_for_a_request_is_not_kept() -> None:
    def audit(function: Callable[[], str]) -> Callable[[], str]:
        @functools.wraps(function)
        def run() -> str:
            return function()

        return run

    provider = FunctionProvider(lambda _: [audit(close_account)], cache=CacheHint(), strict=True, state=None)
    server = Server("desk")
    server.registry.provide(provider)
    assert [await list_names(server) for _ in range(3)] == [["close_account"]] * 3
    assert not provider._made


async def test_a_class_that_is_given_again_and_again_is_never_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callboard.server.provider._REMEMBERED", 2)
    server = Server("desk")
    server.provide(lambda _: [Lasting, type("Other", (), {"execute": lambda _self: "x"})])
    assert [(await connect(server).call("lasting", {})).status for _ in range(3)] == [200, 429, 429]


# Lists


async def test_a_cursor_of_a_repository_is_none_of_another_list() -> None:
    # PG-05
    class Pages:
        prefix = "a://"

        def list(self, cursor: str | None) -> tuple[list[str], str]:
            return ["a://x"], "next"

        def read(self, uri: str) -> str:
            return uri

    server = Server("desk", page_size=1)
    server.add(Pages)
    server.add(Tool(lambda: "x", facts=Facts(name="x"), policy=Policy(visible=lambda _: True)))
    cursor = (await connect(server).request("resources/list")).result["nextCursor"]
    assert (await connect(server).request("tools/list", {"cursor": cursor})).error["code"] == -32602


async def test_an_entry_that_would_spoil_a_list_is_in_none(caplog: pytest.LogCaptureFixture) -> None:
    class Wrong:
        prefix = "a://"

        def list(self) -> list[types.Resource]:
            return [types.Resource(uri="a://x", name=5)]  # type: ignore[arg-type]

        def read(self, uri: str) -> str:
            return uri

    server = Server("desk")
    server.add(Wrong)
    server.resource("b://x")(lambda: "x")
    assert [each["uri"] for each in (await connect(server).request("resources/list")).result["resources"]] == ["b://x"]
    assert "Expected `str`, got `int`" in caplog.text


async def test_a_repository_has_the_options_of_a_resource() -> None:
    class Docs:
        prefix = "docs://"
        templates = ("docs://{name}",)
        annotations = types.Annotations(priority=0.5)
        size = 3  # its own: a size is of one resource

        def read(self, uri: str) -> str:
            return uri

    server = Server("desk")
    server.add(Docs)
    (template,) = (await connect(server).request("resources/templates/list")).result["resourceTemplates"]
    assert template["annotations"] == {"priority": 0.5}
    for name, value in (("mime_type", 5), ("title", 5), ("templates", None), ("templates", 5)):
        with pytest.raises(RegistrationError):
            Server("desk").add(type("Docs2", (Docs,), {name: value}))


# Extensions


@pytest.mark.parametrize("name", ["notes", "/notes", "com.example/", "com..example/x", "-a/x", "1.a/x", "a/b/c", "com.example/x_", "a b/c"])
def test_the_id_of_an_extension_begins_with_a_domain(name: str) -> None:
    # EX-01
    extension: Any = type("Notes", (), {"id": name, "settings": dict, "methods": dict, "components": list})()
    with pytest.raises(RegistrationError, match="is no id of an extension"):
        Server("desk").extend(extension)
    extension.id = "com.example-1/notes_2.x"
    Server("desk").extend(extension)


@pytest.mark.parametrize(("given", "shown"), [("skills", "str"), (Server, "the class Server"), (None, "NoneType")])
def test_what_is_no_extension_is_named(given: Any, shown: str) -> None:
    with pytest.raises(RegistrationError, match=rf'server.extend takes an extension, like Skills\("skills"\), not {shown}.'):
        Server("desk").extend(given)


def test_an_extension_is_no_component() -> None:
    extension: Any = type("Notes", (), {"id": "com.example/notes", "settings": dict, "methods": dict, "components": list})()
    with pytest.raises(RegistrationError, match=r"an extension goes to server\.extend"):
        Server("desk").add(extension)


async def test_an_extension_that_is_refused_leaves_nothing(tmp_path: Path) -> None:
    # SK-01
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "SKILL.md").write_text(f"---\nname: {name}\ndescription: d\n---\n")
    server = Server("desk")
    server.resource("skill://b/SKILL.md")(lambda: "mine")
    with pytest.raises(RegistrationError, match="is there twice"):
        server.extend(Skills(tmp_path))
    assert list(server.registry.resources) == ["skill://b/SKILL.md"]
    assert not server.extensions
    assert "skills/list" not in server.methods
    server.remove("resources", "skill://b/SKILL.md")
    server.extend(Skills(tmp_path))
    with pytest.raises(RegistrationError, match="needs 'resources' among the server's capabilities="):
        Server("desk", capabilities={"tools": {}}).extend(Skills(tmp_path))

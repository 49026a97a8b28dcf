"""What a server has depends on who asks: predicates and providers, and that nobody can tell what is hidden from what never was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

import msgspec
import pytest
from asgi_driver import JSON, Client
from legacy_driver import Legacy

from callboard import CacheHint, Context, RegistrationError, Server, asgi
from callboard.server.component import Facts, Prompt, Resource, Template, Tool

WHO = {"ada": True, "bob": False, None: False}


def is_admin(ctx: Context) -> bool:
    return ctx.principal == "ada"


def audit() -> str:
    """What happened."""
    return "audited"


class Reports:
    """Reports, for admins."""

    prefix = "report://"
    templates = ("report://{year}",)

    def list(self, ctx: Context) -> Iterable[str]:
        return [f"report://{ctx.principal}"]

    def read(self, uri: str) -> str:
        return uri

    def complete(self, argument: str, text: str) -> Iterable[str]:
        return [f"{argument}{text}"]


class Brief:
    """A brief."""

    def render(self, topic: str) -> str:
        return f"Brief {topic}"

    def complete(self, argument: str, text: str) -> Iterable[str]:
        return [f"{argument}{text}"]


def by_predicate(server: Server) -> None:
    server.tool(audit, visible=is_admin)
    for component in (Reports, Brief):
        made: Any = component()
        made.visible = is_admin
        server.add(made)
    server.resource("audit://log", visible=is_admin)(lambda: "log")
    server.resource("audit://log/{day}", visible=is_admin)(lambda day: day)
    server.complete("audit://log/{day}", "day")(lambda text: [text])


def day(day: str) -> str:
    return day


LOG = Resource(audit, "audit://log", facts=Facts(name="log"))
LOGS = Template(day, "audit://log/{day}")


def by_provider(server: Server) -> None:
    @server.provide
    def more(ctx: Context) -> Iterator[Any]:
        if is_admin(ctx):
            yield from (audit, Reports, Brief, LOG, LOGS)


def by_async_provider(server: Server) -> None:
    @server.provide
    async def more(ctx: Context) -> AsyncIterator[Any]:
        await asyncio.sleep(0)
        if is_admin(ctx):
            for given in (Tool(audit), Reports(), Brief(), LOG, LOGS):
                yield given


def on_child(declare: Callable[[Server], None]) -> Callable[[Server], None]:
    def mount(server: Server) -> None:
        child = Server("child")
        declare(child)
        server.mount("m", child)

    return mount


WAYS: dict[str, tuple[Callable[[Server], None], str]] = {
    "visible": (by_predicate, ""),
    "provider": (by_provider, ""),
    "async provider": (by_async_provider, ""),
    "mounted": (on_child(by_predicate), "m_"),
    "mounted provider": (on_child(by_provider), "m_"),
    "mounted twice": (on_child(on_child(by_predicate)), "m_m_"),
    "provider mounted twice": (on_child(on_child(by_async_provider)), "m_m_"),
}
each_way = pytest.mark.parametrize("way", WAYS)


def make_server(way: str, **options: Any) -> tuple[Server, str]:
    server = Server("desk", **options)

    @server.tool
    def echo(text: str) -> str:
        return text

    @server.resource("open://x")
    def x() -> str:
        return "x"

    @server.prompt
    def greet(who: str) -> str:
        return who

    server.complete("greet", "who")(lambda text: [text])
    declare, prefix = WAYS[way]
    declare(server)
    return server, prefix


def make_client(server: Server, who: str | None) -> Client:
    return Client(asgi(server, principal=lambda scope: scope["state"].get("principal")), state={"principal": who})


LISTS = [
    ("tools/list", "tools", "name", ["echo"], ["{}audit"]),
    ("prompts/list", "prompts", "name", ["greet"], ["{}brief"]),
    ("resources/list", "resources", "uri", ["open://x"], ["audit://log", "report://ada"]),
    ("resources/templates/list", "resourceTemplates", "uriTemplate", [], ["report://{{year}}", "audit://log/{{day}}"]),
]


@each_way
@pytest.mark.parametrize(("method", "key", "name", "common", "more"), LISTS)
async def test_a_list_has_what_the_caller_may_see(way: str, method: str, key: str, name: str, common: list[str], more: list[str]) -> None:
    # A48
    server, prefix = make_server(way, cache=CacheHint(60_000, "public"))
    for who, is_shown in WHO.items():
        result = (await make_client(server, who).request(method)).result
        expected = [*common, *([each.format(prefix) for each in more] if is_shown else [])]
        assert sorted(item[name] for item in result[key]) == sorted(expected)
        assert result["cacheScope"] == "private"
        session = await Legacy(make_client(server, who).app, state={"principal": who}).connect()
        older = (await session.request(method)).result
        assert [item[name] for item in older[key]] == [item[name] for item in result[key]]


def asks(prefix: str, hidden: str, unknown: str) -> list[tuple[str, JSON, JSON]]:
    """Requests for what is hidden, and the same for what never was; both names equally long."""
    item = {"name": "topic", "value": "x"}
    return [
        ("tools/call", {"name": f"{prefix}audit", "arguments": {}}, {"name": f"{prefix}{unknown}", "arguments": {}}),
        ("tools/call", {"name": f"{prefix}audit", "arguments": []}, {"name": f"{prefix}{unknown}", "arguments": []}),
        ("prompts/get", {"name": f"{prefix}brief", "arguments": {}}, {"name": f"{prefix}{unknown}", "arguments": {}}),
        ("resources/read", {"uri": "audit://log"}, {"uri": f"{unknown}://log"}),
        ("resources/read", {"uri": "audit://log/today"}, {"uri": f"{unknown}://log/today"}),
        ("resources/read", {"uri": "report://x"}, {"uri": f"{unknown[:5]}t://x"}),
        (
            "completion/complete",
            {"ref": {"type": "ref/prompt", "name": f"{prefix}brief"}, "argument": item},
            {"ref": {"type": "ref/prompt", "name": f"{prefix}{unknown}"}, "argument": item},
        ),
        (
            "completion/complete",
            {"ref": {"type": "ref/resource", "uri": "report://{year}"}, "argument": item},
            {"ref": {"type": "ref/resource", "uri": f"{unknown}://{{year}}"}, "argument": item},
        ),
        (
            "completion/complete",
            {"ref": {"type": "ref/resource", "uri": "audit://log"}, "argument": item},
            {"ref": {"type": "ref/resource", "uri": f"{unknown}://log"}, "argument": item},
        ),
    ]


def blank(body: bytes, params: JSON) -> bytes:
    """An answer without what it was asked for."""
    ref = params.get("ref", params)
    return body.replace(str(ref.get("name") or ref["uri"]).encode(), b"it")


@each_way
@pytest.mark.parametrize("index", range(len(asks("", "", ""))))
async def test_what_is_hidden_is_unknown_byte_for_byte(way: str, index: int) -> None:
    # SA21, A48
    server, prefix = make_server(way)
    method, hidden, unknown = asks(prefix, "", "nosuc")[index]
    client = make_client(server, "bob")
    mine, theirs = await client.request(method, hidden), await client.request(method, unknown)
    assert (mine.status, mine.headers.keys()) == (theirs.status, theirs.headers.keys()) == (400, theirs.headers.keys())
    assert blank(mine.body, hidden) == blank(theirs.body, unknown)
    session = await Legacy(client.app, state={"principal": "bob"}).connect()
    mine_2025 = await session.request(method, hidden, request_id=1)
    theirs_2025 = await session.request(method, unknown, request_id=1)
    assert blank(mine_2025.body, hidden) == blank(theirs_2025.body, unknown)


@each_way
async def test_who_may_see_it_uses_it(way: str) -> None:
    server, prefix = make_server(way)
    client = make_client(server, "ada")
    assert (await client.call(f"{prefix}audit", {})).text == "audited"
    prompt = await client.request("prompts/get", {"name": f"{prefix}brief", "arguments": {"topic": "x"}})
    assert prompt.result["messages"][0]["content"]["text"] == "Brief x"
    for uri, text in (
        ("report://2026", "report://2026"),
        ("report://a/b", "report://a/b"),
        ("audit://log/today", "today"),
        ("open://x", "x"),
    ):
        assert (await client.request("resources/read", {"uri": uri})).result["contents"][0]["text"] == text
    for ref, argument in (
        ({"type": "ref/prompt", "name": f"{prefix}brief"}, "topic"),
        ({"type": "ref/resource", "uri": "report://{year}"}, "year"),
    ):
        answer = await client.request("completion/complete", {"ref": ref, "argument": {"name": argument, "value": "!"}})
        assert answer.result["completion"]["values"] == [f"{argument}!"]


@each_way
@pytest.mark.parametrize("uri", ["audit://log", "audit://log/today", "audit://log/{day}", "report://{year}", "report://x"])
async def test_a_stream_hears_of_what_its_client_may_see(way: str, uri: str) -> None:
    # SA21, SB-02
    server, _ = make_server(way)
    for who, is_shown in WHO.items():
        async with make_client(server, who).listen(resourceSubscriptions=[uri, "open://x", "nosuch://x"]) as stream:
            granted = (await stream.message())["params"]["notifications"]["resourceSubscriptions"]
            assert granted == ([uri, "open://x"] if is_shown else ["open://x"])


async def test_a_stream_hears_of_nothing_that_needs_a_scope() -> None:
    server = Server("desk")
    server.resource("a://x", scopes={"x"})(lambda: "x")
    server.resource("a://{x}/y", scopes={"x"})(lambda x: x)
    async with Client(asgi(server)).listen(resourceSubscriptions=["a://x", "a://{x}/y", "a://1/y"]) as stream:
        assert (await stream.message())["params"]["notifications"]["resourceSubscriptions"] == []


@pytest.mark.parametrize("way", ["visible", "mounted", "mounted twice"])
@pytest.mark.parametrize("uri", ["audit://log", "audit://log/today", "report://x"])
async def test_a_session_hears_of_what_its_client_may_see(way: str, uri: str) -> None:
    """What providers give is not known beforehand, so that anybody may wait for it."""
    # SA21
    server, _ = make_server(way)
    for who, is_shown in WHO.items():
        session = await Legacy(make_client(server, who).app, state={"principal": who}).connect()
        assert (await session.request("resources/subscribe", {"uri": uri})).result == {}
        assert (await session.request("resources/subscribe", {"uri": "open://x"})).result == {}
        async with session.listen() as stream:
            server.resource_updated(uri)
            server.resource_updated("open://x")
            first = await stream.message()
            assert first["params"]["uri"] == (uri if is_shown else "open://x")


# Predicates


def for_all() -> str:
    return "for all"


@pytest.mark.parametrize("levels", [0, 1, 2])
async def test_the_next_that_fits_serves_where_the_first_is_hidden(levels: int) -> None:
    # SA21
    server = Server("desk")
    server.tool(lambda: "for admins", name="x", visible=is_admin)
    server.provide(lambda ctx: [Tool(for_all, facts=Facts(name="x"))])
    server.resource("a://x", visible=is_admin)(lambda: "for admins")
    server.resource("a://{x}", visible=is_admin)(lambda x: f"{x} for admins")
    server.resource("a://{+x}")(lambda x: f"{x} for all")
    for _ in range(levels):
        outer = Server("outer")
        outer.mount("m", server)
        server = outer
    for who, first, second in (("ada", "for admins", "y for admins"), ("bob", "x for all", "y for all")):
        client = make_client(server, who)
        texts = [(await client.request("resources/read", {"uri": uri})).result["contents"][0]["text"] for uri in ("a://x", "a://y")]
        assert texts == [first, second]
        assert (await make_client(server, who).call("m_" * levels + "x", {})).text == first.removeprefix("x ")


async def test_a_predicate_sees_what_middleware_found_out() -> None:
    # A49
    def login(service: Any) -> Any:
        async def logged_in(request: Any, ctx: Context) -> Any:
            ctx.locals["role"] = "admin" if ctx.principal == "ada" else "user"
            return await service(request, ctx)

        return logged_in

    server = Server("desk", middleware=[login])
    child = Server("child")
    child.tool(audit, visible=lambda ctx: ctx.locals["role"] == "admin")
    server.mount("m", child)
    assert (await make_client(server, "ada").call("m_audit", {})).text == "audited"
    assert (await make_client(server, "bob").call("m_audit", {})).status == 400


async def test_a_child_that_knows_more_of_the_caller_hides_more() -> None:
    # SA21
    def login(service: Any) -> Any:
        async def logged_in(request: Any, ctx: Context) -> Any:
            ctx.locals["barred"] = True
            return await service(request, ctx)

        return logged_in

    child = Server("child", middleware=[login])
    child.tool(audit, visible=lambda ctx: "barred" not in ctx.locals)
    child.prompt(audit, visible=lambda ctx: "barred" not in ctx.locals)
    child.resource("a://x", visible=lambda ctx: "barred" not in ctx.locals)(audit)
    server = Server("desk")
    server.mount("m", child)
    client = make_client(server, None)
    assert (await client.call("m_audit", {})).error == (await client.call("m_other", {})).error | {
        "message": "Unknown tool 'm_audit'.",
        "data": {"name": "m_audit"},
    }
    assert (await client.request("prompts/get", {"name": "m_audit"})).error["message"] == "Unknown prompt 'm_audit'."
    assert (await client.request("resources/read", {"uri": "a://x"})).error["message"] == "Resource not found."


async def test_a_predicate_of_a_child_sees_its_lifespan() -> None:
    server, child = Server("desk"), Server("child", lifespan=Values)
    child.tool(audit, visible=lambda ctx: "ada" in ctx.locals["admins"] and ctx.server is child)
    server.mount("m", child)
    assert (await make_client(server, None).request("tools/list")).result["tools"][0]["name"] == "m_audit"
    assert (await make_client(server, None).call("m_audit", {})).text == "audited"


class Values:
    """A lifespan."""

    def __init__(self, _server: Server) -> None:
        pass

    async def __aenter__(self) -> dict[str, Any]:
        return {"admins": ["ada"]}

    async def __aexit__(self, *_error: object) -> None:
        pass


async def test_pages_are_cut_of_what_is_visible() -> None:
    # PG-01, B27
    server = Server("desk", page_size=2)
    for number in range(9):
        server.tool(audit, name=f"t{number}", cache=CacheHint(number + 5), visible=is_admin if number % 2 else None)
    for who, expected in (("ada", list(range(9))), ("bob", [0, 2, 4, 6, 8])):
        client, cursor = make_client(server, who), JSON()
        found: list[int] = []
        hints: set[tuple[int, str]] = set()
        while True:
            result = (await client.request("tools/list", cursor)).result
            found += [int(tool["name"][1:]) for tool in result["tools"]]
            hints.add((result["ttlMs"], result["cacheScope"]))
            if "nextCursor" not in result:
                break
            cursor = {"cursor": result["nextCursor"]}
        assert (found, hints) == (expected, {(5, "private")})


async def test_a_list_is_kept_again_when_nothing_is_hidden_any_more() -> None:
    server = Server("desk", cache=CacheHint(5, "public"))
    server.tool(lambda: "x", name="x")
    server.tool(audit, visible=is_admin)
    server.add(Reports)
    assert server.registry.varying == {"tools", "resources"}
    server.remove("tools", "audit")
    server.remove("repositories", "report://")
    assert server.registry.varying == set()
    assert (await make_client(server, "bob").request("tools/list")).result["cacheScope"] == "public"


# Providers


async def test_a_provider_that_fails_is_absent_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    server = Server("desk")
    server.tool(lambda: "x", name="x")

    @server.provide
    def broken(ctx: Context) -> list[Any]:
        raise OSError("no directory")

    @server.provide
    async def late(ctx: Context) -> Any:
        yield audit
        raise OSError("gone")

    @server.provide
    def strange(ctx: Context) -> list[Any]:
        return [5]

    @server.provide
    def nothing(ctx: Context) -> None:
        return None

    @server.provide
    def good(ctx: Context) -> list[Any]:
        return [lambda: "good"]

    client = make_client(server, None)
    assert [tool["name"] for tool in (await client.request("tools/list")).result["tools"]] == ["x"]
    assert "no directory" in caplog.text
    assert "gone" in caplog.text
    assert "strange() at" in caplog.text
    assert "<lambda>" in caplog.text, "a function without a name can't be a tool"


@pytest.mark.parametrize("kind", [OSError, SystemExit])
async def test_a_provider_of_a_child_that_fails_harms_nobody(kind: type[BaseException]) -> None:
    child = Server("child")
    child.tool(audit)

    @child.provide
    async def broken(ctx: Context) -> list[Any]:
        raise kind

    server = Server("desk")
    server.mount("m", child)
    client = make_client(server, None)
    assert [tool["name"] for tool in (await client.request("tools/list")).result["tools"]] == ["m_audit"]
    assert (await client.call("m_audit", {})).text == "audited"
    assert (await client.call("m_other", {})).status == 400


async def test_a_provider_is_asked_once_for_a_request() -> None:
    asked: list[str] = []
    child = Server("child")

    @child.provide
    async def more(ctx: Context) -> list[Any]:
        asked.append(ctx.method)
        return [audit]

    server = Server("desk")
    server.mount("m", child)
    assert (await make_client(server, None).call("m_audit", {})).text == "audited"
    await make_client(server, None).request("tools/list")
    assert asked == ["tools/call", "tools/list"]


async def test_what_is_there_for_all_comes_before_what_a_provider_gives() -> None:
    server = Server("desk")
    server.tool(lambda: "own", name="audit")
    server.provide(lambda ctx: [audit])
    client = make_client(server, None)
    assert (await client.call("audit", {})).text == "own"
    assert len((await client.request("tools/list")).result["tools"]) == 1


async def test_a_provider_makes_what_it_likes_for_each_request() -> None:
    server = Server("desk")

    @server.provide
    async def more(ctx: Context) -> list[Any]:
        def whoami() -> str:
            return str(ctx.principal)

        return [whoami]

    for who in ("ada", "bob"):
        assert (await make_client(server, who).call("whoami", {})).text == who


class Cart(msgspec.Struct):
    """A state."""

    count: int = 0


def day_after(_ctx: Context, _day: str) -> list[Any]:
    return []


class Counted:
    """A tool whose calls are counted."""

    rate = "1/h"

    def execute(self) -> str:
        return "x"


class Stateful:
    """A tool that takes the state."""

    def execute(self, cart: Cart) -> int:
        return cart.count


@pytest.mark.parametrize(("given", "text"), [(Stateful, "can't take the state"), (Counted(), "its calls can't be counted")])
async def test_what_a_provider_can_not_give_is_said_in_the_log(given: Any, text: str, caplog: pytest.LogCaptureFixture) -> None:
    server = Server("desk", state=Cart)
    server.provide(lambda ctx: [given])
    assert (await make_client(server, None).request("tools/list")).result["tools"] == []
    assert text in caplog.text


@pytest.mark.parametrize(
    ("provider", "text"), [(5, "takes a function of the Context"), (day_after, r"day_after\(\) at .*called with one argument, the Context")]
)
def test_what_can_not_provide_is_refused(provider: Any, text: str) -> None:
    server = Server("desk")
    with pytest.raises(RegistrationError, match=text):
        server.provide(provider)


def test_a_provider_stays_the_function_it_is() -> None:
    server = Server("desk")

    @server.provide
    def more(ctx: Context) -> list[Any]:
        return []

    assert more(None) == []  # type: ignore[arg-type]


async def test_a_prompt_made_elsewhere_may_be_provided() -> None:
    made = Prompt(day, facts=Facts(name="day"))
    server = Server("desk")
    server.provide(lambda ctx: [made])
    answer = await make_client(server, None).request("prompts/get", {"name": "day", "arguments": {"day": "Monday"}})
    assert answer.result["messages"][0]["content"]["text"] == "Monday"

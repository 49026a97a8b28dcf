"""Servers mounted on others: names, what keeps belonging to the child, what comes and goes, and children that fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest
from asgi_driver import JSON, Client
from hypothesis import given
from hypothesis import strategies as st
from legacy_driver import V11, Legacy
from rounds import Rounds, accept

from callboard import CacheHint, Context, Fail, NeedInput, Outcome, RegistrationError, Request, Server, Service, asgi
from callboard.handler import Handler
from callboard.server.mounting import Mounted


class Cart(msgspec.Struct):
    """What a session keeps."""

    count: int = 0


def make_child(name: str = "shop", **options: Any) -> Server:
    server = Server(name, **options)

    @server.tool
    async def order(item: str, ctx: Context, amount: int = 1) -> str:
        """Order something."""
        return f"{amount} {item} from {ctx.server.name}"

    @server.tool
    async def look(ctx: Context) -> dict[str, Any]:
        return {key: str(value) for key, value in ctx.locals.items()}

    @server.resource("shop://rules")
    def rules() -> str:
        return "rules"

    @server.resource("shop://item/{name}")
    def item(name: str) -> str:
        return name

    @server.prompt
    def pitch(item: str) -> str:
        return f"Buy {item}"

    @server.complete("pitch", "item")
    def items(text: str) -> list[str]:
        return [f"{text}!"]

    @server.complete("shop://item/{name}", "name")
    def names(text: str) -> list[str]:
        return [f"{text}?"]

    return server


def make_hall(child: Server | None = None, **options: Any) -> Server:
    server = Server("hall", **options)

    @server.tool
    def hello(ctx: Context) -> str:
        return f"hello from {ctx.server.name}"

    server.mount("shop", make_child() if child is None else child)
    return server


def deep(server: Server, levels: int) -> Server:
    """The server, mounted on one that is mounted on one."""
    for level in range(levels):
        outer = Server(f"level {level}")
        outer.mount("l", server)
        server = outer
    return server


async def listed(client: Client, method: str, key: str, name: str) -> list[str]:
    return [item[name] for item in (await client.request(method)).result[key]]


# What is there


@pytest.mark.parametrize("levels", [0, 1, 3])
async def test_names_have_the_prefix_and_uris_have_none(levels: int) -> None:
    # TL-16
    client = Client(asgi(deep(make_hall(), levels)))
    prefix = "l_" * levels
    assert await listed(client, "tools/list", "tools", "name") == [f"{prefix}hello", f"{prefix}shop_order", f"{prefix}shop_look"]
    assert await listed(client, "prompts/list", "prompts", "name") == [f"{prefix}shop_pitch"]
    assert await listed(client, "resources/list", "resources", "uri") == ["shop://rules"]
    assert await listed(client, "resources/templates/list", "resourceTemplates", "uriTemplate") == ["shop://item/{name}"]
    assert (await client.call(f"{prefix}shop_order", {"item": "tea"})).text == "1 tea from shop"
    assert (await client.call(f"{prefix}hello")).text == "hello from hall"
    assert (await client.request("resources/read", {"uri": "shop://rules"})).result["contents"][0]["text"] == "rules"
    assert (await client.request("resources/read", {"uri": "shop://item/tea"})).result["contents"][0]["text"] == "tea"
    prompt = await client.request("prompts/get", {"name": f"{prefix}shop_pitch", "arguments": {"item": "tea"}})
    assert prompt.result["messages"][0]["content"]["text"] == "Buy tea"
    for ref, expected in (
        ({"type": "ref/prompt", "name": f"{prefix}shop_pitch"}, "t!"),
        ({"type": "ref/resource", "uri": "shop://item/{name}"}, "t?"),
    ):
        argument = {"name": "item" if "name" in ref else "name", "value": "t"}
        answer = await client.request("completion/complete", {"ref": ref, "argument": argument})
        assert answer.result["completion"]["values"] == [expected]


@pytest.mark.parametrize("name", ["order", "shop_", "shop_hello", "shop_shop_order", "hall_hello"])
async def test_other_names_are_unknown(name: str) -> None:
    refused = await Client(asgi(make_hall())).call(name, {})
    assert (refused.status, refused.error["message"]) == (400, f"Unknown tool {name!r}.")


async def test_a_child_serves_by_itself_too() -> None:
    child = make_child()
    make_hall(child)
    assert (await Client(asgi(child)).call("order", {"item": "tea"})).text == "1 tea from shop"


async def test_2025_clients_see_the_same() -> None:
    session = await Legacy(asgi(make_hall())).connect()
    assert (await session.call("shop_order", {"item": "tea"})).text == "1 tea from shop"
    assert session.opening["capabilities"]["prompts"] == {"listChanged": True}
    assert "completions" in session.opening["capabilities"]


# What keeps belonging to the child


def tag(name: str, seen: list[str]) -> Callable[[Service], Service]:
    def layer(service: Service) -> Service:
        async def tagged(request: Request, ctx: Context) -> Outcome:
            seen.append(f"{name} {request.method} {getattr(request.params, 'name', '')}")
            ctx.locals[name] = "here"
            outcome = await service(request, ctx)
            seen.append(f"{name} done")
            return outcome

        return tagged

    return layer


async def test_middleware_runs_inside_the_parents() -> None:
    # A49
    seen: list[str] = []
    hall = make_hall(make_child(middleware=[tag("inner", seen)]), middleware=[tag("outer", seen)])
    client = Client(asgi(hall))
    assert (await client.call("shop_look")).result["structuredContent"] == {"outer": "here", "inner": "here"}
    assert seen == ["outer tools/call shop_look", "inner tools/call look", "inner done", "outer done"]
    seen.clear()
    await client.call("hello")
    await client.request("tools/list")
    assert not [line for line in seen if "inner" in line]


async def test_middleware_of_a_child_may_refuse_and_change_a_request() -> None:
    def guard(service: Service) -> Service:
        async def guarded(request: Request, ctx: Context) -> Outcome:
            if request.method == "resources/read":
                return Fail.custom(7, "closed")
            params = msgspec.structs.replace(request.params, arguments=msgspec.Raw(b'{"item":"coffee"}'))
            return await service(msgspec.structs.replace(request, params=params), ctx)

        return guarded

    client = Client(asgi(make_hall(make_child(middleware=[guard]))))
    assert (await client.call("shop_order", {"item": "tea"})).text == "1 coffee from shop"
    assert (await client.request("resources/read", {"uri": "shop://rules"})).error["code"] == 7


async def test_options_of_a_child_hold_for_its_parts() -> None:
    child = make_child(strict_input=False, cache=CacheHint(5_000, "public"))
    client = Client(asgi(make_hall(child, cache=CacheHint(9_000, "public"))))
    assert (await client.call("shop_order", {"item": "tea", "colour": "green"})).text == "1 tea from shop"
    assert (await client.call("hello", {"colour": "green"})).result["isError"]
    read = (await client.request("resources/read", {"uri": "shop://rules"})).result
    assert (read["ttlMs"], read["cacheScope"]) == (5_000, "public")
    tools = (await client.request("tools/list")).result
    assert (tools["ttlMs"], tools["cacheScope"]) == (5_000, "public")
    private = Client(asgi(make_hall(cache=CacheHint(9_000, "public"))))
    assert (await private.request("tools/list")).result["cacheScope"] == "private"


async def test_state_is_the_parents() -> None:
    hall = Server("hall", state=Cart)
    child = Server("shop", state=hall.state)

    @child.tool
    async def add(cart: Cart) -> int:
        cart.count += 1
        return cart.count

    hall.mount("shop", child)
    session = await Legacy(asgi(hall)).connect()
    answers = await asyncio.gather(*(session.call("shop_add", {}) for _ in range(3)))
    assert sorted(answer.text for answer in answers) == ["1", "2", "3"]


# Asking, progress, logs


async def test_a_child_asks_through_its_parent() -> None:
    child = Server("shop")
    ran: list[str] = []

    @child.tool
    async def confirm(item: str, ctx: Context) -> str:
        async def count() -> int:
            ran.append(item)
            return 3

        amount = await ctx.once("amount", count)
        answer = await ctx.elicit(f"{amount} {item}?", bool)
        return f"{item} {answer.value}"

    @child.tool
    async def by_hand(ctx: Context) -> Any:
        if ctx.input is None:
            return NeedInput({"ok": {"method": "elicitation/create", "params": form("Sure?")}}, state={"n": 1})
        return f"{ctx.input.state} {ctx.input.responses['ok']['action']}"

    hall = deep(make_hall(child), 1)
    rounds = Rounds(asgi(hall), lambda _key, _request: accept(value=True))
    assert (await rounds.call("l_shop_confirm", {"item": "tea"})).text == "tea True"
    assert (len(rounds.asked), ran) == (1, ["tea"])
    assert (await rounds.call("l_shop_by_hand")).text == "{'n': 1} accept"

    session = await Legacy(asgi(hall), V11).connect(capabilities={"elicitation": {"form": {}}})
    async with session.open("l_shop_confirm", {"item": "tea"}) as stream:
        asked = await stream.message()
        await session.respond(asked, accept(value=False))
        assert (await stream.end()).text == "tea False"


def form(message: str) -> JSON:
    schema = {"type": "object", "properties": {"value": {"type": "boolean"}}}
    return {"mode": "form", "message": message, "requestedSchema": schema}


async def test_a_state_of_one_tool_is_none_of_another_with_the_same_name() -> None:
    hall = Server("hall")
    for prefix in ("a", "b"):
        child = Server(prefix)

        @child.tool
        async def confirm(ctx: Context) -> str:
            return str((await ctx.elicit("Sure?", bool)).value)

        hall.mount(prefix, child)
    rounds = Rounds(asgi(hall), lambda _key, _request: None)
    first = (await rounds.once("tools/call", {"name": "a_confirm"})).result
    key = next(iter(first["inputRequests"]))
    params = {"name": "b_confirm", "requestState": first["requestState"], "inputResponses": {key: accept(value=True)}}
    assert (await rounds.once("tools/call", params)).error["code"] == -32602


async def test_progress_and_logs_come_through() -> None:
    child = Server("shop")

    @child.tool
    async def work(ctx: Context) -> str:
        ctx.progress(1, 2)
        ctx.log("error", "half")
        return "done"

    session = await Legacy(asgi(make_hall(child))).connect()
    answer = await session.call("shop_work", {}, token="t")
    assert [note["method"] for note in answer.messages[:-1]] == ["notifications/progress", "notifications/message"]


# What comes and goes


async def test_what_a_child_gets_later_is_there_and_told() -> None:
    child = make_child()
    client = Client(asgi(deep(make_hall(child), 1)))
    async with client.listen(toolsListChanged=True, promptsListChanged=True, resourcesListChanged=True) as stream:
        await stream.message()
        child.tool(lambda: "new", name="later")
        assert (await stream.message())["method"] == "notifications/tools/list_changed"
        assert (await client.call("l_shop_later")).text == "new"
        child.remove("tools", "later")
        assert (await stream.message())["method"] == "notifications/tools/list_changed"
        assert (await client.call("l_shop_later")).status == 400
        child.prompt(lambda: "new", name="later")
        assert (await stream.message())["method"] == "notifications/prompts/list_changed"
        child.resource("shop://later")(lambda: "new")
        assert (await stream.message())["method"] == "notifications/resources/list_changed"
        assert (await client.request("resources/read", {"uri": "shop://later"})).status == 200
        child.provide(lambda ctx: [])
        assert {(await stream.message())["method"] for _ in range(3)} == {
            "notifications/tools/list_changed",
            "notifications/prompts/list_changed",
            "notifications/resources/list_changed",
        }


async def test_a_completion_goes_with_its_prompt() -> None:
    child = make_child()
    hall = make_hall(child)
    child.remove("prompts", "pitch")
    assert [*hall.registry.completers] == [("shop://item/{name}", "name")]
    child.prompt(lambda item: item, name="pitch")
    child.complete("pitch", "item")(lambda text: [text])
    assert ("shop_pitch", "item") in hall.registry.completers


async def test_what_a_child_says_is_heard() -> None:
    child = make_child()
    hall = deep(make_hall(child, channels=["news"]), 0)
    app = asgi(hall)
    async with Client(app).listen(resourceSubscriptions=["shop://rules", "shop://item/{name}"]) as stream:
        await stream.message()
        child.resource_updated("shop://rules")
        assert (await stream.message())["params"]["uri"] == "shop://rules"
        child.resource_updated("shop://item/tea")
        assert (await stream.message())["params"]["uri"] == "shop://item/tea"
    session = await Legacy(app).connect()
    async with session.listen() as stream:
        child.broadcast("news", {"method": "notifications/tools/list_changed"})
        assert (await stream.message())["method"] == "notifications/tools/list_changed"
        child.log(session.id or "", "error", "broken")
        assert (await stream.message())["params"]["data"] == "broken"


async def test_a_bus_that_two_servers_share_says_it_once() -> None:
    hall = Server("hall")
    child = make_child(store=hall.store)
    hall.mount("shop", child)
    told: list[bytes] = []
    hall.bus.subscribe("callboard.changes", told.append)
    child.resource_updated("shop://rules")
    assert len(told) == 1


def test_what_comes_later_and_is_taken_is_refused_everywhere() -> None:
    child = make_child()
    hall = make_hall(child)
    hall.tool(lambda: "x", name="shop_later")
    before = list(child.registry), list(hall.registry)
    with pytest.raises(RegistrationError, match=r"'shop_later' is there twice: at .*test_mount.py:\d+ and at .*mounted as 'shop'"):
        child.tool(lambda: "x", name="later")
    with pytest.raises(RegistrationError, match="can't name a tool"):
        child.tool(lambda: "x", name="x" * 125)
    assert [[part.source for part in parts] for parts in (list(child.registry), list(hall.registry))] == [
        [part.source for part in parts] for parts in before
    ]


@given(st.lists(st.tuples(st.sampled_from(["add", "remove", "mount"]), st.integers(0, 3), st.integers(0, 3)), max_size=30))
def test_whatever_comes_and_goes_a_server_has_what_is_under_it(steps: list[tuple[str, int, int]]) -> None:
    """Servers in any order of mounting: what is refused changes nothing, and each always has its own and what its children have."""
    servers = [Server(f"s{number}") for number in range(4)]
    own: list[set[str]] = [set() for _ in servers]
    children: list[set[int]] = [set() for _ in servers]

    def tools(number: int) -> set[str]:
        return own[number] | {f"m{child}_{name}" for child in children[number] for name in tools(child)}

    for step, first, second in steps:
        with suppress(RegistrationError, KeyError):
            if step == "add":
                servers[first].tool(lambda: "x", name=f"t{second}")
                own[first].add(f"t{second}")
            elif step == "remove":
                servers[first].remove("tools", f"t{second}")
                own[first].discard(f"t{second}")
            else:
                servers[first].mount(f"m{second}", servers[second])
                children[first].add(second)
        for number, server in enumerate(servers):
            assert server.registry.tools.keys() == tools(number)


# Refusals


class Desk(Handler[None]):
    """A server of another kind."""


def _cycle() -> None:
    inner, outer = make_child("inner"), Server("outer")
    outer.mount("i", inner)
    inner.mount("o", outer)


def _own() -> None:
    server = Server("hall")
    server.mount("x", server)


def _twice() -> None:
    child = make_child()
    make_hall(child).mount("other", child)


def _taken_prefix() -> None:
    make_hall().mount("shop", Server("other"))


def _taken_name() -> None:
    hall = Server("hall")
    hall.tool(lambda: "x", name="shop_order")
    hall.mount("shop", make_child())


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (_own, "'hall' has 'hall' mounted, or is it"),
    (_cycle, "'outer' has 'inner' mounted, or is it"),
    (_twice, r"resources: 'shop://rules' is there twice: at .*mounted as 'shop' and at .*mounted as 'other'"),
    (_taken_prefix, "'shop' is the prefix of 'shop' already, so not of 'other'"),
    (_taken_name, "'shop_order' is there twice"),
    (lambda: Server("hall").mount("x", object()), r"takes a Server, not object: write server.mount\('x', other\)"),  # type: ignore[arg-type]
    (lambda: Server("hall").mount(Server("x"), "x"), r'takes a Server, not str: write server.mount\("prefix", other\)'),  # type: ignore[arg-type]
    (lambda: Server("hall").mount("x", Desk().server), "'Desk' is a handler, which answers whole requests"),
    (lambda: Server("hall").mount("no space", Server("x")), "a prefix is made of"),
    (lambda: Server("hall").mount("", Server("x")), "a prefix is made of"),
    (lambda: Server("hall").mount("x", Server("x", state=Cart)), "'x' has a state of its own; give it this server's"),
    (lambda: Server("hall", state=Cart).mount("x", Server("x", state=Cart)), "'x' has a state of its own"),
]


@pytest.mark.parametrize(("mount", "text"), REFUSED)
def test_what_can_not_be_mounted_is_refused(mount: Callable[[], Any], text: str) -> None:
    with pytest.raises(RegistrationError, match=text):
        mount()


def test_a_mount_that_is_refused_leaves_nothing() -> None:
    hall = Server("hall")
    hall.tool(lambda: "x", name="shop_look")
    with pytest.raises(RegistrationError):
        hall.mount("shop", make_child())
    assert [part.source for part in hall.registry] == [hall.registry.tools["shop_look"].source]
    assert hall.lifespan.dependents == []


# Lifespans


class Life:
    """A lifespan that says what happens to it."""

    def __init__(self, name: str, log: list[str], *, fails: type[BaseException] | None = None, fails_late: bool = False) -> None:
        self.name, self.log, self.fails, self.fails_late = name, log, fails, fails_late

    @asynccontextmanager
    async def __call__(self, server: Server) -> AsyncIterator[dict[str, Any]]:
        self.log.append(f"+{self.name}")
        if self.fails is not None:
            raise self.fails("no database")
        yield {self.name: server.name, "last": self.name}
        self.log.append(f"-{self.name}")
        if self.fails_late:
            raise OSError("disk full")


async def test_lifespans_are_entered_with_the_parents_and_their_values_are_locals() -> None:
    # A33
    log: list[str] = []
    child = make_child(lifespan=Life("child", log))
    hall = make_hall(child, lifespan=Life("hall", log))
    first, second = asgi(hall), asgi(deep(hall, 1))
    for app, prefix in ((first, ""), (second, "l_")):
        answer = await Client(app).call(f"{prefix}shop_look")
        assert answer.result["structuredContent"] == {"hall": "hall", "child": "shop", "last": "child"}
    assert log == ["+hall", "+child"]
    await first.aclose()
    assert log == ["+hall", "+child"]
    await second.aclose()
    assert log == ["+hall", "+child", "-child", "-hall"]


async def test_a_child_that_comes_while_the_parent_runs_is_entered_by_its_first_call() -> None:
    log: list[str] = []
    hall = Server("hall")
    app = asgi(hall)
    client = Client(app)
    await client.request("server/discover")
    hall.mount("shop", make_child(lifespan=Life("child", log)))
    assert log == []
    answers = await asyncio.gather(*(client.call("shop_look") for _ in range(3)))
    assert {str(answer.result["structuredContent"]) for answer in answers} == {"{'child': 'shop', 'last': 'child'}"}
    await app.aclose()
    assert log == ["+child", "-child"]


@pytest.mark.parametrize("error", [OSError, SystemExit])
async def test_a_child_that_does_not_begin_fails_alone(error: type[BaseException], caplog: pytest.LogCaptureFixture) -> None:
    log: list[str] = []
    child = make_child(lifespan=Life("child", log, fails=error))
    child.provide(lambda ctx: [lambda: "x"])
    hall = make_hall(child, lifespan=Life("hall", log))
    hall.mount("other", other := Server("other"))
    other.tool(lambda: "fine", name="work")
    app = asgi(hall)
    client = Client(app)
    assert (await client.call("hello")).text == "hello from hall"
    assert (await client.call("other_work")).text == "fine"
    for method, params in (
        ("tools/call", {"name": "shop_order", "arguments": {"item": "x"}}),
        ("resources/read", {"uri": "shop://rules"}),
        ("prompts/get", {"name": "shop_pitch", "arguments": {"item": "x"}}),
    ):
        answer = await client.request(method, params)
        assert (answer.status, answer.error) == (200, {"code": -32603, "message": "The mounted server shop is not available."})
    assert len(await listed(client, "tools/list", "tools", "name")) == 4
    assert log == ["+hall", "+child"], "it is tried once"
    assert "no database" in caplog.text
    assert "mounted as 'shop'" in caplog.text
    await app.aclose()
    assert log == ["+hall", "+child", "-hall"]


async def test_a_child_that_does_not_end_well_holds_nobody_up(caplog: pytest.LogCaptureFixture) -> None:
    log: list[str] = []
    hall = make_hall(make_child(lifespan=Life("child", log, fails_late=True)), lifespan=Life("hall", log))
    app = asgi(hall)
    await Client(app).call("hello")
    await app.aclose()
    assert log == ["+hall", "+child", "-child", "-hall"]
    assert "disk full" in caplog.text


async def test_a_parent_that_does_not_begin_begins_no_child() -> None:
    log: list[str] = []
    hall = make_hall(make_child(lifespan=Life("child", log)), lifespan=Life("hall", log, fails=OSError))
    assert (await Client(asgi(hall)).call("hello")).status == 500
    assert log == ["+hall"]


async def test_a_start_that_is_cancelled_leaves_nothing_entered() -> None:
    log: list[str] = []
    entered = asyncio.Event()

    @asynccontextmanager
    async def slow(_server: Server) -> AsyncIterator[None]:
        log.append("+slow")
        entered.set()
        await asyncio.Event().wait()
        yield

    hall = make_hall(make_child(lifespan=slow), lifespan=Life("hall", log))
    starting = asyncio.create_task(hall.lifespan.enter())
    await entered.wait()
    starting.cancel()
    await asyncio.wait([starting])
    assert starting.cancelled()
    assert log == ["+hall", "+slow", "-hall"]


async def test_a_crash_in_a_child_is_that_calls(caplog: pytest.LogCaptureFixture) -> None:
    child = Server("shop")

    @child.tool
    def crash() -> str:
        raise OSError("secret")

    answer = await Client(asgi(make_hall(child))).call("shop_crash")
    assert answer.error["code"] == -32603
    assert "secret" not in answer.body.decode()
    assert "tools/call 'shop_crash'" in caplog.text


def test_a_name_says_where_it_is_mounted() -> None:
    assert Mounted("a", Server("b")).place("f() at x.py:1") == "f() at x.py:1, mounted as 'a'"

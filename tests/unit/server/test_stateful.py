"""Functions that declare the state: what they get, what the client sees of it, when they run."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any, NewType, Optional

import msgspec
import pydantic
import pytest
import typing_extensions
from served import ask, make_context, make_lifted, make_mount, refusal, reply

from callboard import CacheHint, Context, Depends, Reason, RegistrationError, Reply, Server, ToolError, dispatch
from callboard.server.component import Completer, Component, Prompt, Resource, Template, Tool
from callboard.server.state import Hello, Turn


class Cart(msgspec.Struct):
    count: int = 0
    items: list[str] = []


class Order(msgspec.Struct):
    number: int = 40


class Model(pydantic.BaseModel):
    amount: int


Count = NewType("Count", int)
Carts = typing_extensions.TypeAliasType("Carts", Cart)
ADD = {"name": "add"}


async def add(cart: Cart, amount: int = 1) -> int:
    cart.count += amount
    return cart.count


def server_of(*tools: Callable[..., Any], state: Any = Cart, **options: Any) -> Server:
    server = Server("desk", state=state, **options)
    for tool in tools:
        server.add(tool)
    return server


def context_of(server: Server, method: str = "tools/call", params: dict[str, Any] | None = None) -> Context:
    request = make_lifted(method, params)
    return make_context(make_mount(server), request)


async def call(server: Server, name: str, **arguments: Any) -> Any:
    """What a tool says, as JSON."""
    found = await reply(server, "tools/call", {"name": name, "arguments": arguments})
    return msgspec.json.decode(found["content"][0]["text"])


def arguments_of(server: Server, name: str) -> list[str]:
    """Arguments that a tool advertises."""
    definition = msgspec.json.decode(server.registry.tools[name].definition)
    return list(definition["inputSchema"].get("properties", {}))


# Who gets it


@pytest.mark.parametrize(
    "annotation",
    [
        Cart,
        "Cart",
        Cart | None,
        Optional[Cart],  # noqa: UP045 the case
        "Cart | None",
        Annotated[Cart, "what is in it"],
        Annotated[Cart | None, "what is in it"],
        "Annotated[Cart, 'what is in it']",
        Carts,
    ],
    ids=str,
)
@pytest.mark.parametrize("default", [..., None, Cart(100)], ids=["no default", "None", "a cart"])
async def test_the_state_is_injected_by_any_form_of_its_type(annotation: Any, default: Any) -> None:
    async def look(amount: int, cart: Any = default) -> int:
        return int(cart.count) + amount

    look.__annotations__["cart"] = annotation
    if default is ...:
        look.__defaults__ = ()
    server = server_of(look)
    assert arguments_of(server, "look") == ["amount"]
    assert await call(server, "look", amount=2) == 2


async def test_without_sessions_every_request_begins_anew() -> None:
    server = server_of(add)
    assert [await call(server, "add", amount=2) for _ in range(3)] == [2, 2, 2]


async def test_a_function_on_a_thread_gets_it_too() -> None:
    threads = []

    def add_there(cart: Cart) -> None:
        cart.count += 1
        threads.append(threading.current_thread())

    server = server_of(add_there)
    ctx = context_of(server, params={"name": "add_there"})
    await dispatch(server, ctx.request, ctx)
    assert ctx.state == Cart(1)
    assert threads != [threading.current_thread()]


async def test_pydantic_arguments_stand_beside_it() -> None:
    async def order(model: Model, cart: Cart) -> int:
        return cart.count + model.amount

    server = server_of(order)
    assert arguments_of(server, "order") == ["model"]
    assert await call(server, "order", model={"amount": 3}) == 3


async def test_raw_arguments_stand_beside_it() -> None:
    server = server_of()

    @server.tool(input_schema={"type": "object"})
    async def raw(arguments: dict[str, Any], cart: Cart) -> int:
        return cart.count + len(arguments)

    assert await call(server, "raw", a=1, b=2) == 2


async def test_a_named_builtin_is_the_state_and_its_namesake_an_argument() -> None:
    def begin() -> Count:
        return Count(5)

    async def look(count: Count, other: int) -> int:
        return count + other

    server = server_of(look, state=begin)
    assert arguments_of(server, "look") == ["other"]
    assert await call(server, "look", other=2) == 7


async def test_a_union_with_something_else_is_an_argument() -> None:
    async def either(cart: Cart | int) -> str:
        return type(cart).__name__

    assert arguments_of(server_of(either), "either") == ["cart"]


async def test_without_state_of_the_server_its_type_is_an_argument_like_any_other() -> None:
    server = Server("desk")
    server.add(add)
    assert arguments_of(server, "add") == ["cart", "amount"]
    assert await call(server, "add", cart={"count": 4}) == 5


async def test_servers_with_different_state_share_functions() -> None:
    async def both(cart: Cart, order: Order) -> str:
        return f'"{cart.count} {order.number}"'

    carts, orders = server_of(both, add), server_of(both, state=Order)
    assert (arguments_of(carts, "both"), arguments_of(orders, "both")) == (["order"], ["cart"])
    assert await call(carts, "both", order={"number": 1}) == "0 1"
    assert await call(orders, "both", cart={"count": 2}) == "2 40"
    assert await call(carts, "add") == 1


async def test_a_factory_begins_the_state_of_a_request_without_session() -> None:
    hellos: list[Hello] = []

    def begin(hello: Hello) -> Cart:
        hellos.append(hello)
        return Cart(10)

    server = server_of(add, state=begin)
    request = make_lifted("tools/call", ADD)
    ctx = make_context(make_mount(server, options={"region": "eu"}), request)
    assert hellos == []
    await dispatch(server, request, ctx)
    assert ctx.state == Cart(11)
    (hello,) = hellos
    assert (hello.session_id, hello.version, hello.params, hello.options) == (None, "2026-07-28", {}, {"region": "eu"})
    assert hello.capabilities is ctx.client_capabilities


async def test_who_takes_no_state_begins_none() -> None:
    begun = []

    def begin() -> Cart:
        begun.append(1)
        return Cart()

    async def echo(text: str) -> str:
        return text

    await reply(server_of(echo, state=begin), "tools/call", {"name": "echo", "arguments": {"text": "x"}})
    assert begun == []


# Every kind of component


def full_server() -> Server:
    """Something of every kind, once with the state and once without."""
    server = server_of(add)

    @server.tool
    async def plain() -> None: ...

    @server.tool(snapshot=True)
    async def watch(cart: Cart) -> int:
        return cart.count

    @server.resource("shop://cart")
    def cart_page(cart: Cart) -> str:
        cart.count += 1
        return str(cart.count)

    @server.resource("shop://plain")
    def plain_page() -> str:
        return ""

    @server.resource("shop://shelf/{name}")
    def shelf(name: str, cart: Cart) -> str:
        cart.items.append(name)
        return ",".join(cart.items)

    @server.resource("shop://hall/{name}")
    def hall(name: str) -> str:
        return name

    @server.prompt
    async def advertise(cart: Cart, tone: str = "kind", other: str = "") -> str:
        cart.count += 1
        return f"{tone}{other} {cart.count}"

    @server.prompt
    async def plain_prompt() -> str:
        return ""

    @server.complete("advertise", "tone")
    async def tones(value: str, cart: Cart) -> list[str]:
        cart.count += 1
        return [f"{value}{cart.count}"]

    @server.complete("shop://shelf/{name}", "name")
    async def shelves(value: str) -> list[str]:
        return [value]

    return server


def completing(ref: dict[str, str], argument: str) -> dict[str, Any]:
    return {"ref": ref, "argument": {"name": argument, "value": "v"}}


ADVERTISE = {"type": "ref/prompt", "name": "advertise"}
TURNS = [
    ("tools/call", {"name": "add"}, Turn.IN_TURN),
    ("tools/call", {"name": "plain"}, Turn.NOW),
    ("tools/call", {"name": "watch"}, Turn.SNAPSHOT),
    ("tools/call", {"name": "nobody"}, Turn.NOW),
    ("resources/read", {"uri": "shop://cart"}, Turn.IN_TURN),
    ("resources/read", {"uri": "shop://plain"}, Turn.NOW),
    ("resources/read", {"uri": "shop://shelf/tea"}, Turn.IN_TURN),
    ("resources/read", {"uri": "shop://hall/tea"}, Turn.NOW),
    ("resources/read", {"uri": "shop://nowhere"}, Turn.NOW),
    ("prompts/get", {"name": "advertise"}, Turn.IN_TURN),
    ("prompts/get", {"name": "plain_prompt"}, Turn.NOW),
    ("prompts/get", {"name": "nobody"}, Turn.NOW),
    ("completion/complete", completing(ADVERTISE, "tone"), Turn.IN_TURN),
    ("completion/complete", completing(ADVERTISE, "other"), Turn.NOW),
    ("completion/complete", completing({"type": "ref/resource", "uri": "shop://shelf/{name}"}, "name"), Turn.NOW),
    ("tools/list", {}, Turn.NOW),
    ("server/discover", {}, Turn.NOW),
]


@pytest.mark.parametrize(("method", "params", "turn"), TURNS, ids=[f"{method} {params}" for method, params, _ in TURNS])
def test_a_request_waits_its_turn_only_for_the_state(method: str, params: dict[str, Any], turn: Turn) -> None:
    """DESIGN section 4: calls that take state run one at a time; everything else never queues."""
    assert full_server().turn(make_lifted(method, params)) is turn


def test_who_may_be_hidden_waits_with_those_that_wait() -> None:
    """SA21: the time that "unknown" takes must not tell that something is there."""
    server = Server("desk", state=Cart)
    server.add(add)

    @server.tool(visible=lambda _: False)
    async def plain() -> str:
        return ""

    @server.tool(visible=lambda _: False, snapshot=True)
    async def watcher(cart: Cart) -> str:
        return str(cart)

    def turn(name: str) -> Turn:
        return server.turn(make_lifted("tools/call", {"name": name}))

    assert [turn(name) for name in ("nobody", "plain", "watcher", "add")] == [Turn.NOW, Turn.NOW, Turn.SNAPSHOT, Turn.IN_TURN]

    @server.tool(visible=lambda _: False)
    async def keeper(cart: Cart) -> str:
        return str(cart)

    assert [turn(name) for name in ("nobody", "plain", "watcher", "keeper")] == [Turn.WAIT, Turn.WAIT, Turn.LATE, Turn.IN_TURN]
    assert server.turn(make_lifted("prompts/get", {"name": "nobody"})) is Turn.NOW
    assert [turn.queues for turn in Turn] == [False, True, False, True, True]
    assert [turn.has_state for turn in Turn] == [False, True, True, False, True]


def test_without_state_nothing_waits() -> None:
    server = Server("desk")
    server.add(add)
    assert server.turn(make_lifted("tools/call", ADD)) is Turn.NOW


@pytest.mark.parametrize(
    ("method", "params", "found", "left"),
    [
        ("tools/call", {"name": "add", "arguments": {"amount": 3}}, '"text":"3"', Cart(3)),
        ("tools/call", {"name": "watch"}, '"text":"0"', Cart()),
        ("resources/read", {"uri": "shop://cart"}, '"text":"1"', Cart(1)),
        ("resources/read", {"uri": "shop://shelf/tea"}, '"text":"tea"', Cart(0, ["tea"])),
        ("prompts/get", {"name": "advertise", "arguments": {"tone": "loud"}}, "loud 1", Cart(1)),
        ("completion/complete", completing(ADVERTISE, "tone"), '["v1"]', Cart(1)),
    ],
)
async def test_every_kind_of_function_gets_the_state(method: str, params: dict[str, Any], found: str, left: Cart) -> None:
    server = full_server()
    ctx = context_of(server, method, params)
    outcome = await dispatch(server, ctx.request, ctx)
    assert isinstance(outcome, Reply)
    assert found in msgspec.json.encode(outcome.value).decode()
    assert ctx.state == left


async def test_the_state_is_no_argument_of_anything() -> None:
    server = full_server()
    prompts = (await reply(server, "prompts/list"))["prompts"]
    assert [argument["name"] for argument in prompts[0]["arguments"]] == ["tone", "other"]
    tools = (await reply(server, "tools/list"))["tools"]
    assert not any("cart" in tool["inputSchema"].get("properties", {}) for tool in tools)
    sneaked = await reply(server, "tools/call", {"name": "add", "arguments": {"cart": {"count": 99}}})
    assert sneaked["isError"] is True
    assert (await refusal(server, "prompts/get", {"name": "advertise", "arguments": {"cart": "{}"}})).reason is Reason.INVALID_PARAMS


# Depends


def total(cart: Cart) -> int:
    return cart.count


def touch(cart: Cart, ctx: Context) -> Iterator[Cart]:
    assert ctx.state is cart
    cart.items.append("in")
    yield cart
    cart.items.append("out")


async def touch_more(cart: Cart, before: int = Depends(total)) -> AsyncIterator[int]:
    cart.count += 1
    yield before


async def test_providers_get_the_same_state_as_the_function() -> None:
    async def tool(cart: Cart, touched: Cart = Depends(touch), before: int = Depends(touch_more)) -> list[Any]:
        return [cart is touched, before, cart.count, list(cart.items)]

    server = server_of(tool)
    ctx = context_of(server, params={"name": "tool"})
    outcome = await dispatch(server, ctx.request, ctx)
    assert isinstance(outcome, Reply)
    assert outcome.value["content"][0].text == '[true,0,1,["in"]]'
    assert ctx.state == Cart(1, ["in", "out"])


async def test_a_function_whose_provider_takes_the_state_takes_it() -> None:
    def nested(count: int = Depends(total)) -> int:
        return count

    async def tool(count: int = Depends(nested)) -> int:
        return count

    async def marked(count: Annotated[int, Depends(total)]) -> int:
        return count

    server = server_of(tool, marked)
    for name in ("tool", "marked"):
        assert server.turn(make_lifted("tools/call", {"name": name})) is Turn.IN_TURN
        assert await call(server, name) == 0


async def test_a_provider_of_a_state_is_asked_where_it_stands() -> None:
    def other() -> Cart:
        return Cart(99)

    async def by_default(cart: Cart = Depends(other)) -> int:
        return cart.count

    async def by_mark(cart: Annotated[Cart, Depends(other)]) -> int:
        return cart.count

    server = server_of(by_default, by_mark)
    for name in ("by_default", "by_mark"):
        assert await call(server, name) == 99
        assert server.turn(make_lifted("tools/call", {"name": name})) is Turn.NOW


def test_without_state_of_the_server_a_provider_can_not_have_it() -> None:
    async def tool(count: int = Depends(total)) -> int:
        return count

    with pytest.raises(
        RegistrationError, match=r"total\(\) at .* gets only a Context, the server's state and other Depends; cart has no default"
    ):
        Server("desk").add(tool)


# What a call leaves


async def test_a_reply_replaces_the_state() -> None:
    server = server_of()

    @server.tool
    async def replace(count: int, cart: Cart) -> int | Reply:
        return Reply(cart.count, state=Cart(count))

    @server.resource("shop://cart")
    def page(cart: Cart) -> Reply:
        return Reply("page", CacheHint(500, "public"), state=Cart(cart.count + 1))

    @server.resource("shop://shelf/{name}")
    def shelf(name: str, cart: Cart) -> Reply:
        return Reply(name, state=Cart(cart.count, [name]))

    @server.prompt
    def say(cart: Cart) -> Reply:
        return Reply(["hello", "there"], state=Cart(cart.count + 3))

    @server.complete("shop://shelf/{name}", "name")
    def names(value: str, cart: Cart) -> Reply:
        return Reply([value], state=Cart(cart.count + 4))

    shelf_ref = {"type": "ref/resource", "uri": "shop://shelf/{name}"}
    for method, params, found, left in (
        ("tools/call", {"name": "replace", "arguments": {"count": 5}}, '"structuredContent":0', Cart(5)),
        ("resources/read", {"uri": "shop://cart"}, '"text":"page"', Cart(1)),
        ("resources/read", {"uri": "shop://shelf/tea"}, '"text":"tea"', Cart(0, ["tea"])),
        ("prompts/get", {"name": "say"}, '"text":"there"', Cart(3)),
        ("completion/complete", completing(shelf_ref, "name"), '["v"]', Cart(4)),
    ):
        ctx = context_of(server, method, params)
        outcome = await dispatch(server, ctx.request, ctx)
        assert isinstance(outcome, Reply)
        assert found in msgspec.json.encode(outcome.value).decode()
        assert ctx.state == left
        assert outcome.state is msgspec.UNSET
    hint = await ask(server, "resources/read", {"uri": "shop://cart"})
    assert isinstance(hint, Reply)
    assert hint.cache == CacheHint(500, "public")


async def test_a_reply_keeps_the_schema_of_what_stands_beside_it() -> None:
    async def number(cart: Cart) -> int | Reply:
        return Reply(cart.count)

    async def anything(cart: Cart) -> Reply:
        return Reply({"count": cart.count})

    server = server_of(number, anything)
    number_of, anything_of = (await reply(server, "tools/list"))["tools"]
    assert number_of["outputSchema"]["type"] == "integer"
    assert "outputSchema" not in anything_of
    assert await call(server, "anything") == {"count": 0}


@pytest.mark.parametrize("state", [None, Cart])
async def test_who_has_not_taken_the_state_can_not_replace_it(state: Any) -> None:
    async def careless() -> Any:
        return Reply(1, state=Cart(5))

    with pytest.raises(TypeError, match=r"careless\(\) at .*: Reply\(state=\.\.\.\) replaces the state that the function was given"):
        await ask(server_of(careless, state=state), "tools/call", {"name": "careless"})


async def test_a_reply_without_state_is_the_value_in_it() -> None:
    async def plain() -> Any:
        return Reply("text")

    found = await reply(server_of(plain, state=None), "tools/call", {"name": "plain"})
    assert found["content"][0]["text"] == "text"


async def test_a_failure_in_band_leaves_what_the_call_did() -> None:
    async def refuse(cart: Cart) -> str:
        cart.count += 1
        raise ToolError("Out of stock.")

    server = server_of(refuse)
    ctx = context_of(server, params={"name": "refuse"})
    outcome = await dispatch(server, ctx.request, ctx)
    assert isinstance(outcome, Reply)
    assert outcome.value["isError"] is True
    assert (ctx.state, ctx.crashed) == (Cart(1), False)


async def test_arguments_that_do_not_fit_leave_it_alone() -> None:
    server = server_of(add)
    ctx = context_of(server, params={"name": "add", "arguments": {"amount": "x"}})
    await dispatch(server, ctx.request, ctx)
    assert (ctx.state, ctx.crashed) == (Cart(), False)


async def test_work_that_a_time_limit_stopped_is_marked() -> None:
    server = server_of()

    @server.tool(timeout=0.001)
    async def slow(cart: Cart) -> None:
        cart.count += 1
        await asyncio.Event().wait()

    ctx = context_of(server, params={"name": "slow"})
    outcome = await dispatch(server, ctx.request, ctx)
    assert isinstance(outcome, Reply)
    assert outcome.value["isError"] is True
    assert ctx.crashed


@pytest.mark.parametrize("returns", [int, list[int], int | None, list[Cart]], ids=str)
async def test_what_is_no_object_says_so(returns: Any) -> None:
    """TL-07: older protocols wrap it, whatever this value is."""

    async def number() -> Any:
        return [] if returns in {list[int], list[Cart]} else 1

    number.__annotations__["return"] = returns
    outcome = await ask(server_of(number), "tools/call", {"name": "number"})
    assert isinstance(outcome, Reply)
    assert outcome.wrap


@pytest.mark.parametrize("returns", [Cart, dict[str, int], None, str, Any], ids=str)
async def test_what_is_an_object_or_has_no_schema_is_not_wrapped(returns: Any) -> None:
    async def value() -> Any:
        return {Cart: Cart(), None: None, str: "x"}.get(returns, {"a": 1})

    value.__annotations__["return"] = returns
    outcome = await ask(server_of(value), "tools/call", {"name": "value"})
    assert isinstance(outcome, Reply)
    assert not outcome.wrap


# Registration


def test_a_snapshot_is_of_a_state() -> None:
    server = server_of()
    with pytest.raises(RegistrationError, match=r"plain\(\) at .*: snapshot=True, but it takes no state"):

        @server.tool(snapshot=True)
        async def plain() -> None: ...


def test_compiled_components_say_what_state_they_take() -> None:
    server = server_of()
    state = server.state
    assert state is not None

    def read(cart: Cart, name: str = "") -> str:
        return name

    def complete(value: str, cart: Cart) -> list[str]:
        return [value]

    components: list[Component] = [
        Tool(add, state=state),
        Resource(read, "a://b", state=state),
        Template(read, "a://{name}", state=state),
        Prompt(read, state=state),
        Completer(complete, "read", "name", state=state),
    ]
    for component in components:
        assert component.state is state
        server.add(component)
    for other in (Server("other"), server_of(), server_of(state=Order)):
        with pytest.raises(RegistrationError, match=r"add\(\) at .* takes the state of another server; make it with state=server\.state"):
            other.add(Tool(add, state=state))

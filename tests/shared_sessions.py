"""What sessions that several workers serve must do, as scenarios for a fleet of any store: in memory on a virtual clock, or over a Redis.

    async def scenario(fleet: Fleet) -> None: ...

A fleet is a few workers, each with a server and an application of its own; `fleet.app` sends each request to the next one.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import msgspec
from legacy_driver import Exchange, Legacy, Session

from callboard import Context, Server, asgi
from callboard.legacy.http import Legacy as LegacySide
from callboard.legacy.shared_table import SharedTable
from callboard.stores.base import Store
from callboard.transport.asgi import App

__all__ = ["SCENARIOS", "Cart", "End", "Fleet", "Scenario"]

CHANGED = {"method": "notifications/tools/list_changed"}


class Cart(msgspec.Struct):
    """The state of a session."""

    items: list[int] = []


class End(NamedTuple):
    """What a `terminate` hook was told."""

    worker: int
    reason: str
    items: list[int]


class Fleet:
    """Workers of one server.

    Args:
        stores: The store as each worker sees it.
        ttl: Seconds that a session may be idle.
        **options: Of `asgi`.

    Attributes:
        servers: One for each worker.
        apps: Likewise.
        ends: What hooks were told.
        gates: Calls of `held` wait until theirs is opened.
        begun: Calls of `held` that have begun, as (worker, item).
    """

    def __init__(self, stores: Sequence[Store], *, ttl: float = 300.0, **options: Any) -> None:
        self.ends: list[End] = []
        self.gates: dict[int, asyncio.Event] = {}
        self.begun: list[tuple[int, int]] = []
        self.principals: dict[str, str] = {}
        self.servers = [self._make(number, store) for number, store in enumerate(stores)]
        self.apps: list[App] = [asgi(server, session_ttl=ttl, **options) for server in self.servers]
        self._turn = 0

    def _make(self, number: int, store: Store) -> Server:
        def end(reason: str, cart: Cart) -> None:
            self.ends.append(End(number, reason, cart.items))

        server = Server("desk", store=store, state=Cart, channels=["news"], terminate=end)

        @server.tool
        async def add(item: int, cart: Cart) -> list[int]:
            cart.items.append(item)
            return [number, *cart.items]

        @server.tool
        async def held(item: int, cart: Cart, ctx: Context) -> list[int]:
            await ctx.progress(1, message="begun")
            self.begun.append((number, item))
            await self.gates.setdefault(item, asyncio.Event()).wait()
            cart.items.append(item)
            await ctx.progress(2, message="done")
            return [number, *cart.items]

        @server.tool
        async def free(item: int, ctx: Context) -> int:
            await ctx.progress(1, message="begun")
            self.begun.append((number, item))
            await self.gates.setdefault(item, asyncio.Event()).wait()
            await ctx.progress(2, message="done")
            return number

        @server.tool
        async def peek() -> int:
            return number

        @server.tool
        async def ask(ctx: Context) -> str:
            answer = await ctx.elicit("Your name?", str)
            return f"{number} {answer.value}"

        @server.tool
        async def shout(ctx: Context) -> int:
            ctx.log("info", "quiet")
            ctx.log("error", "loud")
            return number

        @server.tool
        async def part(ctx: Context) -> int:
            await ctx.progress(1, message="before")
            await ctx.disconnect(0.5)
            await self.gates.setdefault(0, asyncio.Event()).wait()
            await ctx.progress(2, message="after")
            return number

        @server.resource("desk://{name}")
        def page(name: str) -> str:
            return name

        return server

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve a request with the worker whose turn it is, or the one that the header `x-worker` names."""
        named = dict(scope.get("headers", ())).get(b"x-worker")
        if named is None:
            self._turn += 1
        await self.apps[self._turn % len(self.apps) if named is None else int(named)](scope, receive, send)

    async def connect(self, version: str = "2025-11-25", **more: Any) -> Session:
        """A client's session."""
        return await Legacy(self.app, version=version).connect(**more)

    def table(self, number: int) -> SharedTable:
        """The sessions of one worker."""
        older = self.apps[number].endpoint.older
        assert isinstance(older, LegacySide)
        assert older._shared is not None
        return older._shared

    def open_gate(self, item: int) -> None:
        """Let the call of an item go on."""
        self.gates.setdefault(item, asyncio.Event()).set()

    async def until(self, ready: Callable[[], Any]) -> None:
        """Wait until something is so."""
        for _ in range(3_000):
            if ready():
                return
            await asyncio.sleep(0.01)
        raise AssertionError("it did not come to that")

    async def close(self) -> None:
        """End every worker."""
        for app in self.apps:
            await app.aclose()


Scenario = Callable[[Fleet], Awaitable[None]]
SCENARIOS: list[Scenario] = []


def scenario(run: Scenario) -> Scenario:
    """Enlist a scenario."""
    SCENARIOS.append(run)
    return run


def value(answer: Any) -> Any:
    """What a call gave."""
    content = answer.message["result"]["structuredContent"]
    return content.get("result", content)


def at(number: int) -> dict[str, Any]:
    """Headers that send a request to one worker."""
    return {"x_worker": str(number)}


async def stream_of(exchange: Exchange) -> list[tuple[str | None, Any]]:
    """Event ids and messages of a stream that ends, empty events left out."""
    frames: list[tuple[str | None, Any]] = []
    while True:
        try:
            frame = await exchange.frame()
        except AssertionError:
            return frames
        if frame.message is not None:
            frames.append((frame.event_id, frame.message))


@scenario
async def state_is_right_whichever_worker_serves(fleet: Fleet) -> None:
    # A01
    session = await fleet.connect()
    for item in range(6):
        assert value(await session.call("add", {"item": item}))[1:] == list(range(item + 1))
    seen = {value(await session.call("add", {"item": 9}))[0] for _ in range(2)}
    assert len(seen) == 2


@scenario
async def calls_at_once_lose_nothing(fleet: Fleet) -> None:
    session = await fleet.connect()
    answers = await asyncio.gather(*(session.call("add", {"item": item}) for item in range(12)))
    longest = max((value(answer)[1:] for answer in answers), key=len)
    assert sorted(longest) == list(range(12))
    assert sorted(len(value(answer)) for answer in answers) == list(range(2, 14))


@scenario
async def a_call_waits_for_the_one_before_it_on_another_worker(fleet: Fleet) -> None:
    session = await fleet.connect()
    first = session.begin("held", {"item": 1}, **at(0))
    await fleet.until(lambda: fleet.begun)
    second = session.begin("add", {"item": 2}, **at(1))
    await asyncio.sleep(0.05)
    assert not second.task.done()
    fleet.open_gate(1)
    assert value(await first.end()) == [0, 1]
    assert value(await second.end()) == [1, 1, 2]


@scenario
async def a_call_without_state_waits_for_nobody(fleet: Fleet) -> None:
    session = await fleet.connect()
    held = session.begin("held", {"item": 1}, **at(0))
    await fleet.until(lambda: fleet.begun)
    fleet.open_gate(2)
    assert value(await session.call("free", {"item": 2}, **at(1))) == 1
    fleet.open_gate(1)
    await held.end()


@scenario
async def a_cancellation_reaches_the_call_on_another_worker(fleet: Fleet) -> None:
    # CN-01
    session = await fleet.connect()
    held = session.begin("held", {"item": 1}, request_id=77, **at(0))
    await fleet.until(lambda: fleet.begun)
    assert (await session.cancel(77, **at(1))).status == 202
    await held.end()
    fleet.open_gate(1)
    assert value(await session.call("add", {"item": 2}, **at(1))) == [1, 2]


@scenario
async def an_answer_reaches_whoever_asked(fleet: Fleet) -> None:
    session = await fleet.connect(capabilities={"elicitation": {}})
    async with session.open("ask", **at(0)) as stream:
        asked = await stream.message()
        assert asked["method"] == "elicitation/create"
        answered = await session.respond(asked, {"action": "accept", "content": {"value": "Ada"}})
        assert answered.status == 202
        assert "Ada" in (await stream.message())["result"]["content"][0]["text"]


@scenario
async def a_delete_ends_it_everywhere_and_once(fleet: Fleet) -> None:
    session = await fleet.connect()
    await session.call("add", {"item": 5})
    held = session.begin("held", {"item": 1}, **at(0))
    await fleet.until(lambda: fleet.begun)
    listening = session.start_listening(**at(1))
    assert await listening.head() == 200
    assert (await session.delete(**at(1))).status == 204
    assert "error" in (await held.end()).message
    await listening.end()
    for number in range(len(fleet.apps)):
        assert (await session.post(session.make_call("add", {"item": 1}), **at(number))).status == 404
        assert (await session.delete(**at(number))).status == 404
    assert [(end.reason, end.items) for end in fleet.ends] == [("deleted", [5])]


@scenario
async def what_is_said_to_many_comes_once_and_in_order(fleet: Fleet) -> None:
    session = await fleet.connect()
    async with session.listen(**at(1)) as stream:
        await stream.frame()
        for number in range(6):
            fleet.servers[number % 2].broadcast("news", {"method": "notifications/message", "params": {"level": "info", "data": number}})
        told = [note["params"]["data"] for note in await stream.take(6)]
        # Of two workers that speak at once nobody knows which is first.
        assert [[number for number in told if number % 2 == worker] for worker in (0, 1)] == [[0, 2, 4], [1, 3, 5]]


@scenario
async def what_is_said_while_nobody_reads_is_there_later(fleet: Fleet) -> None:
    # HL-18
    session = await fleet.connect()
    async with session.listen(**at(0)) as stream:
        first = await stream.frame()
        fleet.servers[1].broadcast("news", CHANGED)
        second = await stream.frame()
    assert (first.event_id, second.event_id) == ("g0-0", "g0-1")
    for _ in range(2):
        fleet.servers[1].broadcast("news", CHANGED)
    await asyncio.sleep(0.05)
    async with session.listen(after="g0-0", **at(1)) as stream:
        frames = [frame for frame in [await stream.frame() for _ in range(4)] if frame.message is not None]
    assert [frame.event_id for frame in frames] == ["g0-1", "g0-2", "g0-3"]


@scenario
async def one_session_is_told_what_is_for_it(fleet: Fleet) -> None:
    session, other = await fleet.connect(), await fleet.connect()
    async with session.listen(**at(0)) as stream, other.listen(**at(1)) as quiet:
        await stream.frame()
        await quiet.frame()
        fleet.servers[1].notify(session.id or "", CHANGED)
        assert (await stream.message())["method"] == CHANGED["method"]
        assert quiet.untaken == []


@scenario
async def a_subscription_holds_in_every_worker(fleet: Fleet) -> None:
    session = await fleet.connect()
    assert "result" in (await session.request("resources/subscribe", {"uri": "desk://a"}, **at(0))).message
    async with session.listen(**at(1)) as stream:
        await stream.frame()
        fleet.servers[0].resource_updated("desk://b")
        fleet.servers[0].resource_updated("desk://a")
        assert (await stream.message())["params"]["uri"] == "desk://a"
        assert "result" in (await session.request("resources/unsubscribe", {"uri": "desk://a"}, **at(0))).message
        await asyncio.sleep(0.05)
        fleet.servers[0].resource_updated("desk://a")
        fleet.servers[0].broadcast("news", CHANGED)
        assert (await stream.message())["method"] == CHANGED["method"]


@scenario
async def a_list_that_authors_decide_is_told_of_in_every_worker(fleet: Fleet) -> None:
    # SB-11
    session = await fleet.connect()
    async with session.listen(**at(1)) as stream:
        await stream.frame()
        for kind in ("tools", "resources"):
            fleet.servers[0].list_changed(kind)
            assert (await stream.message())["method"] == f"notifications/{kind}/list_changed"


@scenario
async def a_log_level_holds_in_every_worker(fleet: Fleet) -> None:
    # LG-03
    session = await fleet.connect()
    assert "result" in (await session.request("logging/setLevel", {"level": "error"}, **at(0))).message
    answer = await session.call("shout", token=1, **at(1))
    assert [note["params"]["data"] for note in answer.notes] == ["loud"]


@scenario
async def a_stream_that_broke_goes_on_at_another_worker(fleet: Fleet) -> None:
    # HL-17
    session = await fleet.connect()
    exchange = session.begin("free", {"item": 1}, token=1, **at(0))
    primed, begun = await exchange.frame(), await exchange.frame()
    assert begun.message is not None
    taken = session.start_listening(begun.event_id, **at(1))
    assert await taken.head() == 200
    await exchange.end()
    fleet.open_gate(1)
    events = await stream_of(taken)
    assert [event_id for event_id, _ in events] == [f"{(primed.event_id or '').rpartition('-')[0]}-{number}" for number in (2, 3)]
    assert events[-1][1]["result"]["structuredContent"] == {"result": 0}


@scenario
async def a_stream_is_replayed_whole_at_another_worker(fleet: Fleet) -> None:
    session = await fleet.connect()
    fleet.open_gate(1)
    exchange = session.begin("held", {"item": 1}, token=1, **at(0))
    primed = await exchange.frame()
    rest = await stream_of(exchange)
    again = session.start_listening(primed.event_id, **at(1))
    assert await stream_of(again) == rest
    assert [event_id for event_id, _ in rest] == [f"{(primed.event_id or '').rpartition('-')[0]}-{number}" for number in (1, 2, 3)]


@scenario
async def a_call_that_hangs_up_is_taken_up_elsewhere(fleet: Fleet) -> None:
    # HL-09
    session = await fleet.connect()
    exchange = session.begin("part", token=1, **at(0))
    answer = await exchange.end()
    seen = [frame.event_id for frame in answer.frames if frame.event_id is not None]
    assert answer.messages[-1]["params"]["message"] == "before"
    taken = session.start_listening(seen[-1], **at(1))
    assert await taken.head() == 200
    fleet.open_gate(0)
    events = await stream_of(taken)
    assert events[-1][1]["result"]["structuredContent"] == {"result": 0}


@scenario
async def a_stream_of_only_an_answer_can_be_asked_for_again(fleet: Fleet) -> None:
    session = await fleet.connect()
    answer = await session.call("add", {"item": 3}, accept="text/event-stream", **at(0))
    assert value(answer) == [0, 3]
    (primed,) = [frame for frame in answer.frames if frame.message is None]
    again = session.start_listening(primed.event_id, **at(1))
    ((_, message),) = await stream_of(again)
    assert message == answer.message


@scenario
async def an_event_id_that_never_was_is_refused(fleet: Fleet) -> None:
    session = await fleet.connect()
    for event_id in ("g0-7", "c1-0", "cabc.1.MQ-1", "g0-01", "g0--1", "nonsense", "g0-99999999999999999999"):
        assert (await session.get(event_id)).status == 400, event_id


@scenario
async def a_reader_that_comes_back_elsewhere_takes_over(fleet: Fleet) -> None:
    session = await fleet.connect()
    old = session.start_listening(**at(0))
    assert (await old.frame()).event_id == "g0-0"
    async with session.listen(after="g0-0", **at(1)) as stream:
        await old.end()
        fleet.servers[0].broadcast("news", CHANGED)
        assert (await stream.message())["method"] == CHANGED["method"]


@scenario
async def a_second_reader_waits_for_the_first(fleet: Fleet) -> None:
    # HL-16
    session = await fleet.connect()
    async with session.listen(**at(1)) as second_place:
        await second_place.frame()
        async with session.listen(**at(0)) as waits:
            await waits.frame()
            fleet.servers[0].broadcast("news", CHANGED)
            await second_place.message()
            assert waits.untaken == []
            second_place.gate.set()
            second_place.disconnect()
            await second_place.gone()
            await asyncio.sleep(0.1)
            fleet.servers[0].broadcast("news", CHANGED)
            assert (await waits.message())["method"] == CHANGED["method"]


@scenario
async def an_id_is_its_owners_alone(fleet: Fleet) -> None:
    # A26, SA23
    session = await fleet.connect()
    assert (await session.call("add", {"item": 1}, x_user="ada", **at(1))).status == 404
    assert (await session.call("add", {"item": 1}, x_user="ada", **at(0))).status == 404
    assert value(await session.call("add", {"item": 1}, **at(1))) == [1, 1]


@scenario
async def a_batch_is_served_by_any_worker(fleet: Fleet) -> None:
    session = await fleet.connect("2025-03-26")
    batch = [session.make_call("add", {"item": item}) for item in (1, 2)]
    answer = await session.post(batch, **at(1))
    assert len(answer.messages) == 2
    last = await session.call("add", {"item": 3}, **at(0))
    assert json.loads(last.message["result"]["content"][0]["text"]) == [0, 1, 2, 3]


@scenario
async def a_worker_that_ends_leaves_its_sessions_to_the_others(fleet: Fleet) -> None:
    session = await fleet.connect()
    await session.call("add", {"item": 1}, **at(0))
    listening = session.start_listening(**at(0))
    assert (await listening.frame()).event_id == "g0-0"
    await fleet.apps[0].aclose()
    await listening.end()
    fleet.servers[1].broadcast("news", CHANGED)
    assert value(await session.call("add", {"item": 2}, **at(1))) == [1, 1, 2]
    async with session.listen(after="g0-0", **at(1)) as stream:
        assert (await stream.message())["method"] == CHANGED["method"]
    assert fleet.ends == []


def principal_of(scope: Any) -> str | None:
    """Who asks, as `x-user` says."""
    name: bytes | None = dict(scope["headers"]).get(b"x-user")
    return None if name is None else name.decode()

"""Random traffic of a few sessions over HTTP, on virtual time: whatever a client does and whenever, the promises of a session hold.

Calls of all kinds with ids of few values, cancellations, connections that are dropped, streams that come and go, sessions that end.
"""

import asyncio
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from legacy_driver import V03, V11, Answer, Exchange, Legacy, Session, read_frames
from msgspec import Struct
from shop import TOPIC, Cart, Shop
from virtual_time import now, run, settle

from callboard import Context, Server, ToolError, asgi
from callboard.limits import Limits

CLIENTS = 2
IDS: list[Any] = [1, 2, "1", "2"]


class Act(Struct, frozen=True):
    """One thing that a client does.

    Attributes:
        kind: What.
        client: Which client.
        id: Id of the request that it is about.
        tool: Tool to call.
        seconds: How long the call takes, or how long to wait.
        pick: Which of its open connections it drops.
    """

    kind: str
    client: int = 0
    id: Any = 1
    tool: str = "add"
    seconds: float = 0
    pick: int = 0


TOOLS = ["put", "put_and_refuse", "put_and_crash", "watch", "report", "nap", "put_in_a_thread"]
acts = st.builds(
    Act,
    kind=st.sampled_from(["call"] * 6 + ["cancel", "cancel", "drop", "wait", "wait", "listen", "push", "ping", "delete", "turn"]),
    client=st.integers(0, CLIENTS - 1),
    id=st.sampled_from(IDS),
    tool=st.sampled_from(TOOLS),
    seconds=st.sampled_from([0, 0.01, 0.1, 1, 3]),
    pick=st.integers(0, 5),
)


def make_shop(**options: Any) -> Shop:
    """A shop whose slow tools count in their session's cart."""
    shop = Shop(**options)
    tool = shop.server.tool

    @tool
    async def put(seconds: float, cart: Cart) -> int:
        cart.count += 1
        await asyncio.sleep(seconds)
        return cart.count

    @tool
    def put_in_a_thread(seconds: float, cart: Cart) -> int:
        cart.count += 1
        return cart.count

    @tool
    async def put_and_refuse(seconds: float, cart: Cart, ctx: Context) -> str:
        cart.count += 1
        ctx.progress(1)
        await asyncio.sleep(seconds)
        raise ToolError(str(cart.count))

    @tool
    async def put_and_crash(seconds: float, cart: Cart) -> str:
        cart.count += 1
        await asyncio.sleep(seconds)
        raise ValueError("on purpose")

    return shop


class Visitor:
    """One client, what it has sent, and in what order.

    Attributes:
        session: Its session.
        calls: Each request it has sent: what, and how it is answered.
        streams: Its GET streams.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.calls: list[tuple[Act, Exchange]] = []
        self.streams: list[Exchange] = []
        self.dropped: set[int] = set()

    async def act(self, act: Act, shop: Shop) -> None:
        """Do one thing."""
        session = self.session
        if act.kind == "call":
            token = None if act.pick % 2 else f"{act.id}"
            self.calls.append((act, session.begin(act.tool, {"seconds": act.seconds}, request_id=act.id, token=token)))
        elif act.kind == "ping":
            self.calls.append((act, session.start(session.make("ping", request_id=act.id))))
        elif act.kind == "cancel":
            assert (await session.cancel(act.id)).status in {202, 404}
        elif act.kind == "listen":
            self.streams.append(session.start_listening())
        elif act.kind == "drop":
            everything = [exchange for _, exchange in self.calls] + self.streams
            if everything:
                chosen = everything[act.pick % len(everything)]
                self.dropped.add(id(chosen))
                chosen.disconnect()
        elif act.kind == "push":
            shop.server.broadcast(TOPIC, {"method": "notifications/tools/list_changed"})
        elif act.kind == "delete":
            assert (await session.delete()).status in {204, 404}
        elif act.kind == "turn":
            await asyncio.sleep(0)
        else:
            await asyncio.sleep(act.seconds)


def check(act: Act, answer: Answer) -> Literal["none"] | int | None:
    """One request's answer: at most one terminal message, with its id; the count that it tells, if it does."""
    finals = [message for message in answer.messages if "method" not in message]
    assert len(finals) <= 1, answer.messages
    if not finals:
        assert answer.status in {200, 202, 499}, answer.status
        return "none"
    (final,) = finals
    assert answer.messages[-1] is final
    assert final["id"] == act.id
    assert type(final["id"]) is type(act.id)
    if "error" in final:
        assert final["error"]["code"] in {-32600, -32603}, final
        return None
    if act.tool in {"put", "put_and_refuse", "put_in_a_thread"} and act.kind == "call":
        return int(final["result"]["content"][0]["text"])
    return None


@pytest.mark.parametrize("policy", ["streaming", "never", "always"])
@settings(max_examples=60, deadline=None)
@given(script=st.lists(acts, max_size=40), versions=st.lists(st.sampled_from([V03, V11]), min_size=CLIENTS, max_size=CLIENTS))
def test_whatever_clients_do_the_promises_hold(
    policy: Literal["streaming", "never", "always"], script: list[Act], versions: list[str]
) -> None:
    # A07, A08, A11, SA24, CN-06, HL-16; scenarios 1, 3, 4, 7, 13, 15, 16
    async def main() -> None:
        shop = make_shop()
        app = asgi(shop.server, limits=Limits(session_max_pending=4), request_timeout=5, cancel_on_disconnect=policy, session_ttl=1000)
        visitors = [Visitor(await Legacy(app, version).connect()) for version in versions]
        tasks = asyncio.all_tasks()
        for act in script:
            await visitors[act.client].act(act, shop)
        await asyncio.sleep(200)
        for visitor in visitors:
            told = []
            for act, exchange in visitor.calls:
                if id(exchange) in visitor.dropped:
                    await exchange.gone()
                else:
                    told.append(check(act, await exchange.end()))
            counts = [count for count in told if isinstance(count, int)]
            assert counts == sorted(set(counts)), "each call that is kept counts once, in the order they came"
            look = await visitor.session.call("look")
            if look.status == 200:
                last = max(counts, default=0)
                assert last <= int(look.text) <= len(visitor.calls)
            for stream in visitor.streams:
                stream.disconnect()
                await stream.gone()
            await visitor.session.delete()
        await settle()
        assert asyncio.all_tasks() == tasks
        assert [reason for reason, _ in shop.over] == ["deleted"] * CLIENTS

    run(main)


class Step(Struct, frozen=True):
    """What a tool does, or what its client does.

    Attributes:
        kind: What.
        turns: Turns of the event loop until then.
        seconds: Seconds until then.
    """

    kind: str
    turns: int = 0
    seconds: float = 0


def steps(*kinds: str) -> st.SearchStrategy[list[Step]]:
    """Some of these, at any time."""
    times = st.sampled_from([0, 0, 0.001, 0.06, 1])
    return st.lists(st.builds(Step, kind=st.sampled_from(kinds), turns=st.integers(0, 6), seconds=times), max_size=12)


async def at(step: Step) -> None:
    """Wait for a step's time."""
    for _ in range(step.turns):
        await asyncio.sleep(0)
    if step.seconds:
        await asyncio.sleep(step.seconds)


async def follow(session: Session, exchange: Exchange, script: list[Step]) -> list[Any]:
    """Read a call's stream to its end, through all that goes wrong with its connections."""
    found: list[Any] = []
    last: str | None = None
    dead: list[Exchange] = []
    for step in script:
        await at(step)
        if step.kind == "stop reading":
            exchange.gate.clear()
        elif step.kind == "break":
            exchange.severed = True
            exchange.gate.set()
        elif exchange.sent and not exchange.task.done():
            if step.kind == "leave":
                await exchange.drop()
            found, last = take(exchange, found, last)
            if last is not None:
                dead.append(exchange)
                exchange = session.start_listening(last)
    exchange.gate.set()
    while not found or "result" not in found[-1]:
        await asyncio.wait([exchange.task])
        found, last = take(exchange, found, last)
        if not found or "result" not in found[-1]:
            assert last is not None, exchange.sent
            exchange = session.start_listening(last)
    for connection in dead:
        await connection.drop()
    return found


def take(exchange: Exchange, found: list[Any], last: str | None) -> tuple[list[Any], str | None]:
    """What a connection has brought."""
    for frame in read_frames(exchange.body):
        last = frame.event_id or last
        if frame.message is not None:
            found = [*found, frame.message]
    return found, last


@settings(max_examples=150, deadline=None)
@given(
    work=steps("note", "note", "hang up"), script=steps("stop reading", "break", "leave", "come back"), version=st.sampled_from([V03, V11])
)
def test_a_client_that_comes_back_with_its_last_event_gets_every_one_once(work: list[Step], script: list[Step], version: str) -> None:
    # HL-17, HL-18, HL-19
    async def main() -> None:
        server = Server("work")

        @server.tool
        async def do(ctx: Context) -> str:
            ctx.progress(0)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            for number, step in enumerate(work, 1):
                await at(step)
                if step.kind == "note":
                    ctx.progress(number)
                else:
                    ctx.disconnect(retry=0.1)
            return "done"

        session = await Legacy(asgi(server, cancel_on_disconnect="never"), version).connect()
        tasks = asyncio.all_tasks()
        call = session.begin("do", token="t", request_id=1)
        await call.head()
        messages = await follow(session, call, script)
        told = [message["params"]["progress"] for message in messages[:-1]]
        assert told == [0, *(number for number, step in enumerate(work, 1) if step.kind == "note")]
        await settle()
        assert asyncio.all_tasks() - tasks == set()

    run(main)


@settings(max_examples=150, deadline=None)
@given(script=steps("push", "push", "push", "stop reading", "break", "leave", "come back"), version=st.sampled_from([V03, V11]))
def test_a_client_that_names_its_last_event_hears_every_push_once(script: list[Step], version: str) -> None:
    # HL-16, HL-17, HL-18
    async def main() -> None:
        shop = Shop()
        session = await Legacy(asgi(shop.server), version).connect()
        tasks = asyncio.all_tasks()
        connections = [session.start_listening()]
        await connections[0].head()
        sent, found, last = 1, list[Any](), None
        push_number(shop, 0)
        last = (await connections[0].frame()).event_id
        for step in script:
            await at(step)
            channel = connections[-1]
            if step.kind == "push":
                push_number(shop, sent)
                sent += 1
            elif step.kind == "stop reading":
                channel.gate.clear()
            elif step.kind == "break":
                channel.severed = True
                channel.gate.set()
            else:
                if step.kind == "leave":
                    await channel.drop()
                found, last = take(channel, found, last)
                connections.append(session.start_listening(last))
        await settle()
        found, last = take(connections[-1], found, last)
        connections.append(session.start_listening(last))
        await settle()
        found, last = take(connections[-1], found, last)
        for channel in connections:
            await channel.drop()
        assert [message["params"]["data"] for message in found] == list(range(sent))
        await settle()
        assert asyncio.all_tasks() == tasks

    run(main)


def push_number(shop: Shop, number: int) -> None:
    """Tell every session a number."""
    shop.server.broadcast(TOPIC, {"method": "notifications/message", "params": {"level": "info", "data": number}})


quiet_acts = st.builds(
    Act,
    kind=st.sampled_from(["call", "call", "listen", "leave", "wait", "wait", "wait", "ping", "cancel"]),
    id=st.sampled_from(IDS),
    tool=st.sampled_from(TOOLS),
    seconds=st.sampled_from([0, 0.5, 1.5, 1.99, 2.01, 4]),
    pick=st.integers(0, 5),
)


@settings(max_examples=100, deadline=None)
@given(script=st.lists(quiet_acts, max_size=25))
def test_a_session_ends_when_nothing_has_happened_for_its_time_and_not_before(script: list[Act]) -> None:
    # A04, A05; scenarios 11 and 12: held by calls and streams, whatever became of them
    async def main() -> None:
        over: list[float] = []

        async def end(reason: str, cart: Cart) -> None:
            over.append(now())

        shop = make_shop(terminate=end)
        session = await Legacy(asgi(shop.server, session_ttl=2)).connect()
        rested, exchanges, streams = [now()], set[Exchange](), list[Exchange]()
        for act in script:
            if act.kind == "wait":
                await asyncio.sleep(act.seconds)
            elif act.kind == "leave" and streams:
                await streams.pop().drop()
            elif act.kind == "listen":
                streams.append(session.start_listening())
                watch(streams[-1], rested, exchanges)
            elif act.kind == "call":
                watch(session.begin(act.tool, {"seconds": act.seconds}, request_id=act.id), rested, exchanges)
            elif act.kind == "ping":
                watch(session.start(session.make("ping")), rested, exchanges)
            elif act.kind == "cancel":
                await session.cancel(act.id)
                rested.append(now())
            await settle()
            if over:
                break
            assert now() - max(rested) < 2.01 or exchanges, "it should have ended"
        for stream in streams:
            await stream.drop()
        await asyncio.sleep(60)
        (moment_of_end,) = over
        assert moment_of_end - max(moment for moment in rested if moment <= moment_of_end) == pytest.approx(2, abs=0.02)

    run(main)


def watch(exchange: Exchange, rested: list[float], exchanges: set[Exchange]) -> None:
    """Note when a request is over."""
    exchanges.add(exchange)

    def over(_: Any) -> None:
        exchanges.discard(exchange)
        rested.append(now())

    exchange.task.add_done_callback(over)

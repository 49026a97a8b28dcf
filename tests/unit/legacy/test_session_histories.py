"""Random histories of a session's shell: actor, connections and table on virtual time, seen from outside.

Calls that suspend, crash, hang up, cling or run on a thread; clients that cancel, go away, stop reading and come back; sessions that time
out, are deleted, expire. `HISTORIES=10000` walks the full number here, too.
"""

import asyncio
import gc
import json
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import pytest
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st
from legacy_driver import V03, V11, Frame, read_frames
from msgspec import Struct
from msgspec.structs import replace
from shop import TOPIC, Cart
from unit.legacy.lobby import Lobby, Wire, is_a_request_s, lobby, make, make_call
from virtual_time import run

from callboard import Context, Server, ToolError
from callboard.legacy.actor import Actor, Work
from callboard.limits import Limits
from callboard.wire.jsonrpc import RawRequest

HISTORIES: Final = int(os.environ.get("HISTORIES", "300"))
PART: Final = 100
IDS: Final[list[Any]] = [1, 2, 3, 4, "1", "2", "3"]
TOOLS: Final = ["add", "add", "refuse", "crash", "cling", "thread", "look_at", "speak", "plain"]
POLICIES: Final = ["streaming", "never", "always"]


class Act(Struct, frozen=True):
    """One thing that happens.

    Attributes:
        kind: What.
        session: In which session.
        id: Id of the request that it is about.
        tool: Tool to call.
        seconds: How long that takes, or how long to wait.
        pick: Which of the connections it is about.
    """

    kind: str
    session: int = 0
    id: Any = 1
    tool: str = "add"
    seconds: float = 0
    pick: int = 0


KINDS: Final = [
    *["call"] * 8,
    *["come back"] * 4,
    *["turn"] * 4,
    *["cancel", "wait", "leave"] * 2,
    *["listen", "stop reading", "read on", "break", "push", "expire", "end", "ping", "subscribe"],
]
acts = st.builds(
    Act,
    kind=st.sampled_from(KINDS),
    session=st.sampled_from([0, 0, 1]),
    id=st.sampled_from(IDS),
    tool=st.sampled_from(TOOLS),
    seconds=st.sampled_from([0, 0, 0.01, 0.06, 1, 4]),
    pick=st.integers(0, 7),
)


class Stage:
    """A server whose functions do what calls do in the worst case, and keep account of it.

    Attributes:
        over: Session ids whose hook has run, and the count it was given.
        inside: How many calls of each session have the state now.
        kept: Counts that calls of each session have left.
    """

    def __init__(self) -> None:
        self.over: list[tuple[str, int]] = []
        self.inside: dict[str, int] = {}
        self.order: dict[str, list[int]] = {}
        self.server = Server("stage", state=self.begin, terminate=self.end, channels=[TOPIC])
        for tool in (self.add, self.refuse, self.crash, self.cling, self.thread, self.speak, self.plain):
            self.server.tool(tool)
        self.server.tool(snapshot=True)(self.look_at)
        self.server.resource("a:a")(self.look)

    def begin(self, hello: Any) -> Cart:
        return Cart(items=[hello.session_id])

    async def end(self, reason: str, cart: Cart) -> None:
        self.over.append((cart.items[0], cart.count))

    async def alone(self, number: int, seconds: float, ctx: Context) -> None:
        """Take some time, with the state; nobody else has it meanwhile."""
        session = str(ctx.session_id)
        self.order.setdefault(session, []).append(number)
        assert self.inside.get(session, 0) == 0, "two calls with one state"
        self.inside[session] = 1
        try:
            if seconds:
                await asyncio.sleep(seconds)
        finally:
            self.inside[session] = 0

    async def add(self, number: int, seconds: float, cart: Cart, ctx: Context) -> int:
        cart.count += 1
        await self.alone(number, seconds, ctx)
        return cart.count

    async def refuse(self, number: int, seconds: float, cart: Cart, ctx: Context) -> str:
        cart.count += 1
        ctx.progress(1)
        await self.alone(number, seconds, ctx)
        raise ToolError(str(cart.count))

    async def crash(self, number: int, seconds: float, cart: Cart, ctx: Context) -> str:
        cart.count += 100
        await self.alone(number, seconds, ctx)
        raise ValueError("on purpose")

    async def cling(self, number: int, seconds: float, cart: Cart, ctx: Context) -> int:
        """Swallow a cancellation, and go on for a while."""
        cart.count += 1
        with suppress(asyncio.CancelledError):
            await self.alone(number, seconds, ctx)
        await self.alone(number, seconds / 2, ctx)
        return cart.count

    def thread(self, number: int, seconds: float, cart: Cart) -> int:
        cart.count += 1
        return cart.count

    async def look_at(self, number: int, seconds: float, cart: Cart, ctx: Context) -> str:
        cart.count += 1000
        ctx.progress(1)
        await asyncio.sleep(seconds)
        ctx.progress(2)
        return "seen"

    async def speak(self, number: int, seconds: float, ctx: Context) -> str:
        """Say a lot, and hang up in between."""
        ctx.log("info", number)
        ctx.disconnect(retry=0.1)
        ctx.progress(1)
        await asyncio.sleep(seconds)
        ctx.progress(2)
        ctx.disconnect(retry=0.1)
        ctx.disconnect(retry=0.2)
        return "spoken"

    async def look(self) -> str:
        return "a resource, so that changes can be subscribed to"

    async def plain(self, number: int, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "plain"


def message_of(act: Act, number: int) -> RawRequest:
    """The request that is sent."""
    if act.kind == "call":
        return make_call(act.tool, act.id, token=None if act.pick % 2 else str(number), number=number, seconds=act.seconds)
    return make("ping", request_id=act.id) if act.kind == "ping" else make("resources/subscribe", {"uri": f"a:{act.pick}"}, act.id)


class Caller:
    """What the client of one session has sent and got.

    Attributes:
        wires: Its connections: the POSTs, the GETs, in the order they began.
        calls: POSTs with a request: which request.
    """

    def __init__(self, stage: Stage, actor: Actor) -> None:
        self.stage = stage
        self.actor = actor
        self.wires: list[Wire] = []
        self.calls: dict[Wire, RawRequest] = {}

    def post(self, message: RawRequest, **more: Any) -> None:
        wire = Wire()
        self.wires.append(wire)
        self.calls[wire] = message
        wire.post(self.actor, message, **more)

    async def act(self, act: Act, number: int) -> None:
        """Do one thing."""
        if act.kind in {"turn", "wait"}:
            await asyncio.sleep(act.seconds if act.kind == "wait" else 0)
        elif act.kind in {"call", "ping", "subscribe"}:
            self.post(message_of(act, number), streams=act.pick < 6)
        elif act.kind == "listen":
            self.listen(None)
        elif act.kind == "come back":
            seen = [ids[-1] for wire in self.wires if (ids := [event_id for event_id in wire.ids if event_id is not None])]
            if seen:
                self.listen(seen[act.pick % len(seen)])
        elif act.kind in {"leave", "stop reading", "read on", "break"}:
            open_ones = [wire for wire in self.wires if wire.task is not None and not wire.task.done()]
            if open_ones:
                self.disturb(act.kind, open_ones[act.pick % len(open_ones)])
        else:
            self.intervene(act, number)

    def intervene(self, act: Act, number: int) -> None:
        """Something happens to a call, or to the session."""
        actor = self.actor
        work = actor.machine.calls.get(act.id)
        if act.kind == "cancel":
            actor.cancel(act.id)
        elif act.kind == "expire" and isinstance(work, Work):
            actor.expire(work)
        elif act.kind == "end" and act.pick == 0:
            actor.end("deleted")
        elif act.kind == "push":
            self.stage.server.notify(actor.id, {"method": "notifications/message", "params": {"level": "info", "data": number}})

    def disturb(self, kind: str, wire: Wire) -> None:
        """Something happens to a connection."""
        if kind == "leave":
            wire.gone.set()
        elif kind == "stop reading":
            wire.gate.clear()
        elif kind == "read on":
            wire.gate.set()
        else:
            wire.fault = OSError("gone")
            wire.gone.set()
            wire.gate.set()

    def listen(self, after: str | None) -> None:
        wire = Wire()
        self.wires.append(wire)
        wire.listen(self.actor, after)

    async def leave(self) -> None:
        """Read what there is, and close every connection."""
        for wire in self.wires:
            wire.gate.set()
            wire.gone.set()
        for wire in self.wires:
            with suppress(OSError):  # that of a connection which broke
                await wire.end()

    def check(self) -> None:
        """What came over all connections together."""
        events: dict[str, Any] = {}
        for wire in self.wires:
            self.check_wire(wire, events)
        finals = [event_id.partition("-")[0] for event_id, message in events.items() if "method" not in message]
        assert len(finals) == len(set(finals)), "one terminal message on a track"
        pushes = [message["params"]["data"] for message in events.values() if message.get("method") == "notifications/message"]
        spoken = [number for number in pushes if isinstance(number, int)]
        assert len(spoken) == len(set(spoken)), "HL-16: a message is on one track"
        for track in {event_id.partition("-")[0] for event_id in events if event_id.startswith("c")}:
            self.check_rest_of(
                track, sorted(int(event_id.partition("-")[2]) for event_id in events if event_id.startswith(f"{track}-")), track in finals
            )

    def check_rest_of(self, track: str, seen: list[int], answered: bool) -> None:
        """Whoever comes back for a call's stream gets the rest of it, the answer last; of one without an answer there is nothing."""
        found = self.actor.machine.find(f"{track}-{seen[0]}")
        if found is None:
            assert not answered
            return
        rest = [frame for frame in read_frames(self.actor.machine.replay(*found)) if frame.message is not None]
        assert [frame.event_id for frame in rest] == [f"{track}-{number}" for number in range(seen[0] + 1, found[0].last + 1)]
        assert set(seen) <= set(range(seen[0], found[0].last + 1))
        if found[0].last > seen[0]:
            assert rest[-1].message is not None
            assert "method" not in rest[-1].message
        else:
            assert answered

    def check_wire(self, wire: Wire, events: dict[str, Any]) -> None:
        """One connection: its response is in order, and no event says two things."""
        if not wire.sent:
            return
        kind = dict(wire.sent[0]["headers"]).get(b"content-type")
        if kind == b"application/json":
            message = json.loads(wire.body)
            if wire in self.calls:
                assert message["id"] == self.calls[wire].id
                assert type(message["id"]) is type(self.calls[wire].id)
            return
        frames = wire.frames
        finals = [frame for frame in frames if frame.message is not None and "method" not in frame.message]
        assert len(finals) <= 1
        assert not finals or frames[-1] is finals[0], "PR-04"
        if finals and wire in self.calls:
            assert finals[0].message is not None
            assert finals[0].message["id"] == self.calls[wire].id
        self.check_order(frames, events)

    def check_order(self, frames: list[Frame], events: dict[str, Any]) -> None:
        """HL-17, HL-18: numbers of one track, in order, without a gap."""
        numbered = [frame.event_id.split("-") for frame in frames if frame.event_id is not None]
        assert len({track for track, _ in numbered}) <= 1
        numbers = [int(number) for _, number in numbered]
        told = [int(frame.event_id.split("-")[1]) for frame in frames if frame.event_id is not None and frame.message is not None]
        assert numbers == sorted(numbers)
        assert told == list(range(told[0], told[0] + len(told))) if told else True
        for frame in frames:
            if frame.event_id is not None and frame.message is not None:
                assert events.setdefault(frame.event_id, frame.message) == frame.message, "an id is never used again"


async def live(script: list[Act], policy: str, version: str, *, replies: bool) -> None:
    """One history, and what must be true of it."""
    stage = Stage()
    rules: dict[str, Any] = {"limits": Limits(session_max_pending=3, session_buffer=1000), "request_timeout": 3, "session_ttl": 500}
    async with lobby(stage.server, cancel_on_disconnect=policy, reply_on_cancel=replies, **rules) as place:
        callers = [Caller(stage, await place.open(version)) for _ in range(2)]
        tasks = asyncio.all_tasks()
        for number, act in enumerate(script):
            await callers[act.session].act(act, number)
        for caller in callers:
            for wire in caller.wires:
                wire.gate.set()
        await asyncio.sleep(100)
        for caller in callers:
            await caller.leave()
            caller.check()
            await check_rest(caller)
        assert asyncio.all_tasks() == tasks
        await check_end(place, stage, callers)
        if not gc.isenabled():
            assert_no_garbage()
    for order in stage.order.values():
        assert order == sorted(order), "calls that take the state run in the order they came"


async def check_rest(caller: Caller) -> None:
    """When all is over a session is as it was before, but for its state and what can be replayed."""
    machine = caller.actor.machine
    assert machine.calls == {}
    assert machine.attached == 0
    assert machine.outlets() == []
    assert not any(track.call for track in (machine._tracks or {}).values())
    if machine.ended:
        return
    assert machine.idle
    look = Wire()
    look.post(caller.actor, make_call("add", 99, number=10**6, seconds=0))
    await look.end()
    count = int(json.loads(look.body)["result"]["content"][0]["text"])
    told = [int(found) for wire in caller.calls if (found := number_of(wire)) is not None]
    assert count < 100, "neither a crash nor a snapshot leaves anything"
    assert count > max(told, default=0), "no lost state"
    assert len(told) == len(set(told)), "each that is kept counts once"


def number_of(wire: Wire) -> str | None:
    """The count that an answer tells."""
    if not wire.sent or not wire.body:
        return None
    is_json = wire.body.startswith(b"{")
    message = json.loads(wire.body) if is_json else next((each for each in wire.messages if "method" not in each), {})
    content = message.get("result", {}).get("content") or [{}]
    found = str(content[0].get("text"))
    return found if found.isdigit() else None


async def check_end(place: Lobby, stage: Stage, callers: list[Caller]) -> None:
    """The time of every session runs out, and nothing is left of any."""
    assert (len(place.table.slow), len(place.table.deadlines)) == (0, 0)
    before = {caller.actor.id for caller in callers if not caller.actor.machine.ended}
    assert place.table.sessions.keys() == before
    await asyncio.sleep(501)
    assert sorted(session for session, _ in stage.over) == sorted(caller.actor.id for caller in callers), "terminate, once each"
    assert place.is_empty


def assert_no_garbage() -> None:
    """What needs the collector to go away piles up between its rounds, with the requests that it holds."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        assert {type(thing).__name__ for thing in gc.garbage if is_a_request_s(thing)} == set()
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


histories = given(
    script=st.lists(acts, min_size=15, max_size=60),
    policy=st.sampled_from(POLICIES),
    version=st.sampled_from([V03, V11]),
    replies=st.booleans(),
)


@pytest.fixture
def silence() -> Iterator[None]:
    """What calls do on purpose need not be logged."""
    log = logging.getLogger("callboard")
    log.disabled = True
    yield
    log.disabled = False


@pytest.mark.usefixtures("silence")
@pytest.mark.parametrize("part", range(-(-HISTORIES // PART)))
def test_whatever_happens_the_promises_of_a_session_are_kept(part: int) -> None:
    """A07, A08, A11, SA24, CN-06, HL-16, HL-17, HL-18."""

    @seed(part)
    @settings(max_examples=PART, deadline=None)
    @histories
    def walk(script: list[Act], policy: str, version: str, replies: bool) -> None:
        run(lambda: live(script, policy, version, replies=replies))

    walk()


@pytest.mark.usefixtures("silence")
def test_no_history_leaves_garbage() -> None:
    @seed(0)
    @settings(max_examples=20, deadline=None, phases=[Phase.generate])
    @histories
    def walk(script: list[Act], policy: str, version: str, replies: bool) -> None:
        without_threads = [
            replace(act, tool="add") if act.tool == "thread" else act for act in script
        ]  # the virtual clock holds their frames
        gc.freeze()
        run(lambda: live(without_threads, policy, version, replies=replies))

    gc.collect()
    gc.disable()
    try:
        walk()
    finally:
        gc.enable()

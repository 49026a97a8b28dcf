"""HTTP responses of a session: what goes out, in which order, and what happens when connections come, go and come back."""

import asyncio
import json
from typing import Any

import pytest
from legacy_driver import V03, V11, Frame
from shop import Shop
from unit.legacy.lobby import Wire, lobby, make, make_call
from virtual_time import now, settle, virtual_time

from callboard import Context, Server
from callboard.core.exchange import HARD_CAP
from callboard.legacy.actor import Actor
from callboard.legacy.connection import LAST_WORDS
from callboard.transport.stream import WATCH_AFTER

BIG = b'"%b"' % (b"x" * 256 * 1024)


def said(wire: Wire) -> list[Any]:
    """What has come on a stream: progress numbers, and `done` for the result."""
    return [message["params"]["progress"] if "method" in message else "done" for message in wire.messages]


def writers() -> int:
    """How many connections are being written to."""
    coroutines = [task.get_coro() for task in asyncio.all_tasks()]
    return sum("_write_waiting" in getattr(coroutine, "__qualname__", "") for coroutine in coroutines)


class Talk:
    """A server whose tool says what the test tells it to.

    Attributes:
        ctx: The Context of the call.
        go: Lets the call end.
    """

    def __init__(self) -> None:
        self.server = Server("talk")
        self.go = asyncio.Event()
        self.stopped = False
        self.server.tool(self.talk)
        self.server.tool(self.quick)

    async def talk(self, ctx: Context) -> str:
        self.ctx = ctx
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.stopped = True
            raise
        return "done"

    async def quick(self) -> str:
        return "done"

    def say(self, *numbers: int) -> None:
        for number in numbers:
            self.ctx.progress(number)

    async def begin(self, actor: Actor, *numbers: int, wire: Wire | None = None) -> Wire:
        """Call the tool, and let it say something."""
        wire = wire or Wire()
        wire.post(actor, make_call("talk", 1, token="t"))
        await settle()
        self.say(*numbers)
        await settle()
        return wire

    async def end(self) -> None:
        self.go.set()
        await settle()


# ----------------------------------------------------------------------------------------------------------------- what goes out


@virtual_time
async def test_an_answer_without_notes_is_plain_json_in_two_sends() -> None:
    talk, wire = Talk(), Wire()
    async with lobby(talk.server) as place:
        actor = await place.open()
        wire.post(actor, make_call("quick", 1))
        await wire.end()
        assert (wire.status, dict(wire.sent[0]["headers"])[b"content-type"], len(wire.sent)) == (200, b"application/json", 2)
        assert json.loads(wire.body)["result"]["content"][0]["text"] == "done"
        assert actor.machine.find("c1-1") is None, "nothing of it is kept"


@virtual_time
async def test_a_note_before_the_answer_makes_it_a_stream() -> None:
    """HL-08: with an empty event first."""
    talk = Talk()
    async with lobby(talk.server) as place:
        wire = await talk.begin(await place.open(), 1, 2)
        await talk.end()
        await wire.end()
        assert (wire.status, dict(wire.sent[0]["headers"])[b"content-type"]) == (200, b"text/event-stream")
        assert wire.ids == ["c1-0", "c1-1", "c1-2", "c1-3"]
        assert said(wire) == [1, 2, "done"]
        assert wire.complete


@virtual_time
async def test_an_old_client_gets_no_empty_event() -> None:
    talk = Talk()
    async with lobby(talk.server) as place:
        wire = await talk.begin(await place.open(V03), 1)
        await talk.end()
        assert wire.ids == ["c1-1", "c1-2"]


@virtual_time
async def test_what_is_said_in_one_turn_of_the_loop_leaves_in_one_send() -> None:
    talk = Talk()
    async with lobby(talk.server) as place:
        wire = await talk.begin(await place.open(), *range(10))
        assert len(wire.sent) == 2
        talk.say(10, 11)
        await talk.end()
        assert len(wire.sent) == 3
        assert said(wire) == [*range(12), "done"]


@pytest.mark.parametrize(("version", "ids"), [(V11, ["c1-0", "c1-1"]), (V03, ["c1-1"])])
@virtual_time
async def test_a_client_that_takes_streams_only_gets_one_of_one_message(version: str, ids: list[str]) -> None:
    talk, wire = Talk(), Wire()
    async with lobby(talk.server) as place:
        actor = await place.open(version)
        wire.post(actor, make_call("quick", 1), streams_only=True)
        await wire.end()
        assert (wire.ids, said(wire)) == (ids, ["done"])
        again = Wire()
        again.listen(actor, "c1-0")
        await settle()
        assert said(again) == ["done"]


@virtual_time
async def test_a_refusal_is_no_event_of_any_track() -> None:
    talk, wire = Talk(), Wire()
    async with lobby(talk.server) as place:
        actor = await place.open()
        await talk.begin(actor)
        wire.post(actor, make_call("quick", 1), streams_only=True)
        await wire.end()
        assert (wire.status, json.loads(wire.body)["error"]["code"]) == (400, -32600)
        wire = Wire()
        wire.post(actor, make("nonsense", request_id=2), streams_only=True)
        await wire.end()
        assert wire.ids == [None]
        assert actor.machine.outlets() == []


@virtual_time
async def test_a_call_that_was_cancelled_ends_without_an_answer() -> None:
    """CN-04; HTTP needs a status all the same."""
    talk = Talk()
    async with lobby(talk.server) as place:
        actor = await place.open()
        wire = await talk.begin(actor)
        actor.cancel(1)
        await wire.end()
        assert (wire.status, wire.body, wire.complete) == (202, b"", True)
        wire = await talk.begin(actor, 1)
        actor.cancel(1)
        await wire.end()
        assert (wire.status, said(wire), wire.complete) == (200, [1], True)
        assert actor.machine.find("c1-1") is None, "nobody comes back for it"


# ------------------------------------------------------------------------------------------------------------ the client goes away


@pytest.mark.parametrize(
    ("policy", "streams", "stops"),
    [("streaming", True, True), ("streaming", False, False), ("never", True, False), ("always", False, True)],
)
@virtual_time
async def test_whether_a_call_ends_with_its_connection_is_a_matter_of_policy(policy: str, streams: bool, stops: bool) -> None:
    """HL-07."""
    talk, wire = Talk(), Wire()
    async with lobby(talk.server, cancel_on_disconnect=policy) as place:
        wire.post(await place.open(), make_call("talk", 1), streams=streams)
        await asyncio.sleep(2 * WATCH_AFTER)
        if streams:
            talk.ctx.log("info", "x")
            await settle()
        wire.gone.set()
        await wire.end()
        assert talk.stopped == stops
        await talk.end()
        assert place.table.sessions


@virtual_time
async def test_nobody_watches_a_client_for_a_moment() -> None:
    talk, wire = Talk(), Wire()
    async with lobby(talk.server, cancel_on_disconnect="always") as place:
        tasks = len(asyncio.all_tasks())
        wire.post(await place.open(), make_call("talk", 1), streams=False)
        await settle()
        assert len(asyncio.all_tasks()) == tasks + 2, "the request's and the call's"
        await asyncio.sleep(2 * WATCH_AFTER)
        assert len(asyncio.all_tasks()) == tasks + 3
        await talk.end()
        assert len(asyncio.all_tasks()) == tasks


@virtual_time
async def test_nothing_is_kept_for_a_client_that_went_away_before_it_knew_an_event() -> None:
    talk, wire = Talk(), Wire()
    async with lobby(talk.server, cancel_on_disconnect="never") as place:
        actor = await place.open()
        wire.post(actor, make_call("talk", 1, token="t"))
        await asyncio.sleep(2 * WATCH_AFTER)
        wire.gone.set()
        await wire.end()
        talk.say(1)
        await talk.end()
        assert not talk.stopped
        assert actor.machine.find("c1-1") is None
        assert actor.machine.idle


@pytest.mark.parametrize("fault", [OSError(), RuntimeError("the server's own"), ConnectionResetError()])
@virtual_time
async def test_a_connection_that_breaks_loses_nothing(fault: Exception) -> None:
    talk = Talk()
    async with lobby(talk.server, cancel_on_disconnect="never") as place:
        actor = await place.open()
        wire = await talk.begin(actor, 1)
        wire.fault = fault
        talk.say(2)
        await settle()
        await wire.end()
        talk.say(3)
        await talk.end()
        again = Wire()
        again.listen(actor, "c1-1")
        await again.end()
        assert (said(again), again.ids) == ([2, 3, "done"], ["c1-2", "c1-3", "c1-4"])


@virtual_time
async def test_a_connection_that_breaks_at_its_head_loses_nothing() -> None:
    talk = Talk()
    async with lobby(talk.server, cancel_on_disconnect="never") as place:
        actor = await place.open()
        wire = await talk.begin(actor, 1)
        wire.gone.set()
        await wire.end()
        assert actor.machine.find("c1-1") is not None
        broken = Wire()
        broken.gate.clear()
        broken.listen(actor, "c1-1")
        await asyncio.sleep(0)
        talk.say(2)
        await settle()
        broken.fault = OSError()
        broken.gate.set()
        await broken.end()
        again = Wire()
        again.listen(actor, "c1-1")
        await talk.end()
        assert said(again) == [2, "done"]


@virtual_time
async def test_a_request_whose_task_is_cancelled_leaves_its_call_alone() -> None:
    talk = Talk()
    async with lobby(talk.server) as place:
        actor = await place.open()
        wire = await talk.begin(actor, 1)
        assert wire.task is not None
        wire.task.cancel()
        await asyncio.wait({wire.task})
        assert wire.task.cancelled()
        talk.say(2)
        await talk.end()
        assert not talk.stopped
        found = actor.machine.find("c1-1")
        assert found is not None
        assert actor.machine.replay(*found).count(b"id: ") == 2


@virtual_time
async def test_a_request_whose_task_is_cancelled_leaves_no_writer_behind() -> None:
    talk, wire = Talk(), Wire()
    async with lobby(talk.server) as place:
        actor = await place.open()
        await talk.begin(actor, 1, wire=wire)
        wire.gate.clear()
        talk.say(2)
        await settle()
        assert wire.task is not None
        wire.task.cancel()
        await settle()
        assert writers() == 0
        wire = Wire()
        wire.listen(actor, "c1-1")
        await talk.end()
        assert said(wire) == [2, "done"]


@virtual_time
async def test_the_end_of_an_old_connection_stops_no_later_call_of_the_same_id() -> None:
    talk, slow, later = Talk(), Wire(), Wire()
    async with lobby(talk.server, cancel_on_disconnect="always") as place:
        actor = await place.open()
        await talk.begin(actor, 1, wire=slow)
        slow.gate.clear()
        await talk.end()
        talk.go.clear()
        later.post(actor, make_call("talk", 1))
        await settle()
        slow.gone.set()
        await settle()
        assert not talk.stopped
        await talk.end()
        assert json.loads(later.body)["result"]
        slow.gate.set()
        await slow.end()


@virtual_time
async def test_a_client_that_never_reads_its_stream_of_the_session_loses_it_but_not_what_comes_later() -> None:
    dead, again = Wire(), Wire()
    async with lobby(Shop().server) as place:
        actor = await place.open()
        dead.listen(actor)
        await settle()
        dead.gate.clear()
        for _ in range(2 * HARD_CAP // len(BIG)):
            actor.push(BIG)
            await asyncio.sleep(0)
        await dead.end()
        assert actor.machine.idle
        assert writers() == 0
        actor.push(b'{"n": 1}')
        again.listen(actor, "g0-1")
        await settle()
        assert again.messages[-1] == {"n": 1}


@pytest.mark.parametrize(("policy", "stops"), [("streaming", True), ("never", False)])
@virtual_time
async def test_a_client_that_never_reads_the_stream_of_a_call_is_gone(policy: str, stops: bool) -> None:
    talk, dead = Talk(), Wire()
    async with lobby(talk.server, cancel_on_disconnect=policy) as place:
        actor = await place.open()
        await talk.begin(actor, 1, wire=dead)
        dead.gate.clear()
        for _ in range(2 * HARD_CAP // len(BIG)):
            talk.ctx.exchange.emit(BIG)
            await asyncio.sleep(0)
        await dead.end()
        assert writers() == 0
        assert talk.stopped == stops
        await talk.end()
        assert actor.machine.idle
        assert actor.machine.find("c1-1") is None, "nobody comes back for what has no answer"


# ------------------------------------------------------------------------------------------------------------------- hanging up


@pytest.mark.parametrize("before", [[], [1]])
@virtual_time
async def test_a_call_can_close_its_connection_and_go_on(before: list[int]) -> None:
    """HL-09; before it has said anything, too, and twice."""
    talk = Talk()
    async with lobby(talk.server) as place:
        actor = await place.open()
        wire = await talk.begin(actor, *before)
        talk.ctx.disconnect(retry=0.25)
        talk.ctx.disconnect(retry=0.25)
        await wire.end()
        last = len(before)
        assert said(wire) == before
        assert wire.frames[0] == Frame("c1-0", None, None)
        assert wire.frames[-1] == Frame(f"c1-{last}", 250, None)
        talk.say(7)
        talk.ctx.disconnect()
        await settle()
        again = Wire()
        again.listen(actor, f"c1-{last}")
        await settle()
        assert said(again) == [7]
        await talk.end()
        assert said(again) == [7, "done"]
        assert not talk.stopped


@virtual_time
async def test_what_is_said_right_before_and_after_a_call_hangs_up_is_not_lost() -> None:
    talk = Talk()
    async with lobby(talk.server) as place:
        actor = await place.open()
        wire = await talk.begin(actor)
        talk.say(1)
        talk.ctx.disconnect(retry=1)
        talk.say(2)
        await wire.end()
        last = int((wire.ids[-1] or "").removeprefix("c1-"))
        again = Wire()
        again.listen(actor, f"c1-{last}")
        talk.say(3)
        await talk.end()
        assert [*said(wire), *said(again)] == [1, 2, 3, "done"]


@virtual_time
async def test_a_client_that_closes_a_connection_on_which_a_call_hung_up_does_not_stop_it() -> None:
    talk = Talk()
    async with lobby(talk.server, cancel_on_disconnect="always") as place:
        wire = await talk.begin(await place.open(), 1)
        wire.gate.clear()
        talk.say(2)
        await settle()
        talk.ctx.disconnect()
        wire.gone.set()
        await settle()
        wire.gate.set()
        await wire.end()
        await talk.end()
        assert not talk.stopped


@virtual_time
async def test_a_stream_of_the_session_that_is_hung_up_is_whole() -> None:
    wire = Wire()
    async with lobby(Shop().server) as place:
        actor = await place.open()
        wire.listen(actor)
        await settle()
        actor.push(b"{}")
        actor.end("deleted")
        await wire.end()
        assert wire.complete
        assert wire.ids == ["g0-0", "g0-1"]


@virtual_time
async def test_a_client_that_reads_nothing_does_not_hold_up_the_end_of_its_session() -> None:
    wire = Wire()
    async with lobby(Shop().server) as place:
        actor = await place.open()
        wire.listen(actor)
        await settle()
        wire.gate.clear()
        actor.push(b"{}")
        await settle()
        began = now()
        actor.end("deleted")
        await wire.end()
        assert now() - began == pytest.approx(LAST_WORDS)
        await settle()
        assert writers() == 0


# ------------------------------------------------------------------------------------------------------------ the client comes back


@virtual_time
async def test_the_rest_of_a_stream_comes_over_the_new_connection_and_the_old_one_closes() -> None:
    """HL-18."""
    talk, again = Talk(), Wire()
    async with lobby(talk.server) as place:
        actor = await place.open()
        wire = await talk.begin(actor, 1, 2)
        again.listen(actor, "c1-1")
        talk.say(3)
        await wire.end()
        assert wire.complete
        await talk.end()
        assert (said(wire), said(again)) == ([1, 2], [2, 3, "done"])
        assert again.ids == ["c1-2", "c1-3", "c1-4"]
        assert not talk.stopped


@pytest.mark.parametrize("times", [2, 5])
@virtual_time
async def test_a_client_that_comes_back_twice_at_once_has_every_response_whole(times: int) -> None:
    talk = Talk()
    wires = [Wire() for _ in range(times)]
    async with lobby(talk.server) as place:
        actor = await place.open()
        await talk.begin(actor, 1)
        for wire in wires:
            wire.listen(actor, "c1-0")
        await talk.end()
        assert [wire.complete for wire in wires] == [True] * times
        assert [wire.status for wire in wires] == [409] * (times - 1) + [200]
        assert said(wires[-1]) == [1, "done"]
        assert not talk.stopped


@virtual_time
async def test_a_connection_on_which_nobody_reads_gives_way_in_bounded_time() -> None:
    talk, dead, again = Talk(), Wire(), Wire()
    async with lobby(talk.server) as place:
        actor = await place.open()
        await talk.begin(actor, 1, wire=dead)
        dead.gate.clear()
        talk.say(2)
        await settle()
        talk.say(3)
        again.listen(actor, "c1-1")
        began = now()
        await dead.end()
        assert now() - began == pytest.approx(LAST_WORDS)
        await settle()
        assert writers() == 0
        await talk.end()
        assert said(again) == [2, 3, "done"]
        assert not talk.stopped


@virtual_time
async def test_what_waits_on_a_dead_stream_of_the_session_goes_out_over_the_new_one() -> None:
    dead, again = Wire(), Wire()
    async with lobby(Shop().server) as place:
        actor = await place.open()
        dead.listen(actor)
        await settle()
        dead.gate.clear()
        for number in range(1, 4):
            actor.push(b'{"n": %d}' % number)
            await settle()
        again.listen(actor, "g0-0")
        await settle()
        actor.push(b'{"n": 4}')
        await settle()
        assert [message["n"] for message in again.messages] == [1, 2, 3, 4]
        assert again.ids == ["g0-1", "g0-2", "g0-3", "g0-4"]


@virtual_time
async def test_several_streams_of_a_session_each_get_a_message_of_their_own() -> None:
    """HL-16."""
    first, second = Wire(), Wire()
    async with lobby(Shop().server) as place:
        actor = await place.open()
        first.listen(actor)
        second.listen(actor)
        await settle()
        actor.push(b"{}")
        await settle()
        assert (first.ids, second.ids) == (["g0-0", "g0-1"], ["g1-0"])
        first.gone.set()
        await first.end()
        actor.push(b"{}")
        await settle()
        assert (first.ids, second.ids) == (["g0-0", "g0-1"], ["g1-0", "g1-1"])


@virtual_time
async def test_connections_hold_the_time_of_a_session_off() -> None:
    talk, slow, channel = Talk(), Wire(), Wire()
    async with lobby(talk.server, session_ttl=10, cancel_on_disconnect="never") as place:
        actor = await place.open()
        channel.listen(actor)
        await talk.begin(actor, 1, wire=slow)
        slow.gate.clear()
        await talk.end()
        await asyncio.sleep(30)
        channel.gone.set()
        await channel.end()
        await asyncio.sleep(30)
        assert not actor.machine.ended, "its last words are being written"
        slow.gate.set()
        await slow.end()
        await asyncio.sleep(9)
        assert not actor.machine.ended
        await asyncio.sleep(2)
        assert actor.machine.ended
        assert place.is_empty

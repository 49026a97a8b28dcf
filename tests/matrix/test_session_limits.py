"""How many sessions, how much may wait, how long a caller and an idle session wait."""

import asyncio
import gc
import logging
from typing import Any

import pytest
from legacy_driver import Legacy, Session, ends
from shop import Shop
from virtual_time import now, settle, virtual_time

from callboard import RegistrationError, asgi
from callboard.limits import Limits


@pytest.fixture
def shop() -> Shop:
    return Shop()


async def alive(session: Session) -> bool:
    """Whether it is still there; asking keeps it alive."""
    return (await session.request("ping")).status == 200


# How much may wait


@virtual_time
async def test_past_the_cap_a_call_is_refused_at_once_and_the_others_are_served(shop: Shop) -> None:
    """Scenario 8."""
    session = await Legacy(asgi(shop.server, limits=Limits(session_max_pending=1))).connect()
    began = now()
    running, queued = (session.begin("add_slowly", {"seconds": 1}) for _ in range(2))
    refused = await session.call("add", request_id="third")
    assert (refused.status, refused.message["id"], refused.error["code"]) == (200, "third", -32603)
    assert "overloaded" in refused.error["message"].lower()
    assert now() == began
    assert [answer.text for answer in await ends([running, queued])] == ["1", "2"]
    assert (await session.call("add")).text == "3"


@virtual_time
async def test_a_hundred_calls_may_wait_by_default(shop: Shop) -> None:
    session = await Legacy(asgi(shop.server)).connect()
    calls = [session.begin("add_slowly", {"seconds": 0.1}) for _ in range(105)]
    answers = await ends(calls)
    assert ["error" in answer.message for answer in answers] == [False] * 101 + [True] * 4
    assert (await session.call("look")).text == "101"


@virtual_time
async def test_what_takes_no_state_is_not_counted(shop: Shop) -> None:
    session = await Legacy(asgi(shop.server, limits=Limits(session_max_pending=0))).connect()
    slow = session.begin("add_slowly", {"seconds": 1})
    naps = [session.begin("nap", {"seconds": 1}) for _ in range(50)]
    assert (await session.call("add")).error["code"] == -32603
    assert {answer.text for answer in await ends(naps)} == {"rested"}
    assert (await slow.end()).text == "1"


@virtual_time
async def test_a_place_in_the_queue_is_free_again_however_it_was_left(shop: Shop) -> None:
    """A07: by its turn, by a cancellation, by the time limit."""
    session = await Legacy(asgi(shop.server, limits=Limits(session_max_pending=1), request_timeout=3)).connect()
    for _ in range(3):
        slow = session.begin("add_slowly", {"seconds": 4, "name": "slow"})
        session.begin("add_slowly", {"seconds": 1}, request_id="c")
        await session.cancel("c")
        waits = session.begin("add_slowly", {"seconds": 1}, request_id="w")
        assert (await session.call("add")).error["code"] == -32603
        assert (await waits.end()).error["code"] == -32603
        assert (await slow.end()).error["code"] == -32603
        await asyncio.sleep(2)
    assert shop.ran == ["slow"] * 3
    assert (await session.call("look")).text == "3"


# How long a caller waits


@virtual_time
async def test_a_caller_is_freed_while_the_work_goes_on_and_is_kept(shop: Shop) -> None:
    """Scenario 9."""
    session = await Legacy(asgi(shop.server, request_timeout=0.1)).connect()
    began = now()
    answer = await session.call("add_slowly", {"seconds": 0.3}, request_id="s")
    assert (answer.status, answer.message["id"], answer.error["code"]) == (200, "s", -32603)
    assert "timed out" in answer.error["message"].lower()
    assert now() - began == pytest.approx(0.1)
    assert shop.stopped == []
    await asyncio.sleep(0.25)
    assert (await session.call("look")).text == "1"


@virtual_time
async def test_a_later_call_waits_for_the_work_of_one_that_timed_out(shop: Shop) -> None:
    """Scenario 9: the work keeps its turn."""
    session = await Legacy(asgi(shop.server, request_timeout=1)).connect()
    began = now()
    await session.call("add_slowly", {"seconds": 1.5})
    assert (await session.call("look")).text == "1"
    assert now() - began == pytest.approx(1.5)


@virtual_time
async def test_a_call_that_times_out_in_the_queue_never_runs(shop: Shop) -> None:
    """Scenario 10."""
    session = await Legacy(asgi(shop.server, request_timeout=0.1)).connect()
    began = now()
    first = session.begin("add_slowly", {"seconds": 0.3, "name": "first"})
    second = session.begin("add_slowly", {"seconds": 0, "name": "second"})
    answers = await ends([first, second])
    assert [answer.error["code"] for answer in answers] == [-32603, -32603]
    assert now() - began == pytest.approx(0.1)
    await asyncio.sleep(1)
    assert shop.ran == ["first"]
    assert (await session.call("look")).text == "1"


@virtual_time
async def test_time_counts_from_when_the_call_came_not_from_its_turn(shop: Shop) -> None:
    """Queue wait included."""
    session = await Legacy(asgi(shop.server, request_timeout=1)).connect()
    began = now()
    first, second = (session.begin("add_slowly", {"seconds": 0.7}) for _ in range(2))
    assert (await first.end()).text == "1"
    assert (await second.end()).error["code"] == -32603
    assert now() - began == pytest.approx(1)
    await asyncio.sleep(1)
    assert (await session.call("look")).text == "2"


@virtual_time
async def test_a_caller_that_has_had_bytes_is_not_cut_off(shop: Shop) -> None:
    """No time limit on a stream."""
    session = await Legacy(asgi(shop.server, request_timeout=1)).connect()
    answer = await session.call("report", {"seconds": 100}, token="t")
    assert (len(answer.notes), answer.text) == (2, "reported")


@virtual_time
async def test_calls_that_take_no_state_have_the_time_limit_too(shop: Shop) -> None:
    session = await Legacy(asgi(shop.server, request_timeout=1)).connect()
    answer = await session.call("nap", {"seconds": 100})
    assert (answer.status, answer.error["code"]) == (200, -32603)
    assert shop.stopped == []


@virtual_time
async def test_a_minute_is_the_default(shop: Shop) -> None:
    session = await Legacy(asgi(shop.server)).connect()
    began = now()
    slow = session.begin("nap", {"seconds": 61})
    fast = session.begin("nap", {"seconds": 59})
    assert "timed out" in (await slow.end()).error["message"].lower()
    assert now() - began == pytest.approx(60)
    assert (await fast.end()).text == "rested"


# How long an idle session waits


@virtual_time
async def test_a_session_that_nobody_uses_is_gone_after_its_time(shop: Shop) -> None:
    """A04."""
    session = await Legacy(asgi(shop.server, session_ttl=300)).connect()
    await asyncio.sleep(299)
    assert await alive(session)
    await asyncio.sleep(299)
    assert await alive(session)
    await asyncio.sleep(301)
    assert not await alive(session)
    assert shop.over == [("expired", 0)]


@virtual_time
async def test_five_minutes_are_the_default(shop: Shop) -> None:
    app = asgi(shop.server)
    first, second = await Legacy(app).connect(), await Legacy(app).connect()
    await asyncio.sleep(299)
    assert await alive(first)
    await asyncio.sleep(2)
    assert not await alive(second)
    assert await alive(first)


@virtual_time
async def test_a_session_is_not_kept_for_ever_by_notifications_that_are_refused(shop: Shop) -> None:
    """A05: what is no use of a session does not keep it: a request of somebody else, or in its name but unread."""
    client = Legacy(asgi(shop.server, session_ttl=10, principal=lambda scope: scope["state"].get("user")), state={"user": "a"})
    await client.connect()
    stranger = Session(client, (await client.connect()).id, client.version)
    client.state = {"user": "b"}
    for _ in range(4):
        await asyncio.sleep(4)
        assert (await stranger.request("ping")).status == 404
    assert [reason for reason, _ in shop.over] == ["expired", "expired"]


@pytest.mark.parametrize(
    ("tool", "arguments", "token"),
    [
        pytest.param("add_slowly", {"seconds": 0.4}, None, id="its turn"),
        pytest.param("nap", {"seconds": 0.4}, None, id="at once"),
        pytest.param("watch", {"seconds": 0.4}, "t", id="snapshot"),
        pytest.param("report", {"seconds": 0.4}, "t", id="stream"),
    ],
)
@virtual_time
async def test_a_call_holds_its_session(shop: Shop, tool: str, arguments: dict[str, Any], token: str | None) -> None:
    """Scenario 11: also right after it, and not for ever."""
    session = await Legacy(asgi(shop.server, session_ttl=0.1)).connect()
    assert "result" in (await session.call(tool, arguments, token=token)).message
    await asyncio.sleep(0.09)
    assert await alive(session)
    await asyncio.sleep(0.11)
    assert not await alive(session)
    assert [reason for reason, _ in shop.over] == ["expired"]


@virtual_time
async def test_calls_in_the_queue_hold_their_session(shop: Shop) -> None:
    """Scenario 11."""
    session = await Legacy(asgi(shop.server, session_ttl=0.1)).connect()
    answers = await ends([session.begin("add_slowly", {"seconds": 0.2}) for _ in range(5)])
    assert [answer.text for answer in answers] == ["1", "2", "3", "4", "5"]
    assert await alive(session)


@virtual_time
async def test_work_whose_caller_has_timed_out_holds_its_session(shop: Shop) -> None:
    """Scenarios 9 and 11: else the state of the work that goes on would be lost."""
    session = await Legacy(asgi(shop.server, session_ttl=0.1, request_timeout=0.1)).connect()
    await session.call("add_slowly", {"seconds": 1})
    await asyncio.sleep(0.95)
    assert (await session.call("look")).text == "1"


@virtual_time
async def test_an_open_channel_holds_its_session(shop: Shop) -> None:
    """Scenario 12."""
    session = await Legacy(asgi(shop.server, session_ttl=0.1)).connect()
    async with session.listen() as stream:
        await asyncio.sleep(0.5)
        assert not stream.ended
        assert shop.over == []
    await asyncio.sleep(0.09)
    assert shop.over == []
    await asyncio.sleep(0.02)
    assert shop.over == [("expired", 0)]
    assert not await alive(session)


@virtual_time
async def test_one_of_several_channels_is_enough(shop: Shop) -> None:
    """Scenario 12."""
    session = await Legacy(asgi(shop.server, session_ttl=0.1)).connect()
    async with session.listen():
        async with session.listen():
            await asyncio.sleep(0.2)
        await asyncio.sleep(0.2)
        assert await alive(session)
    await asyncio.sleep(0.11)
    assert not await alive(session)


@pytest.mark.parametrize("end", ["cancel", "drop", "timeout", "crash"])
@virtual_time
async def test_the_time_runs_again_however_a_call_ended(shop: Shop, end: str) -> None:
    """The issue: re-armed on every release path."""
    session = await Legacy(asgi(shop.server, session_ttl=10, request_timeout=2, cancel_on_disconnect="always")).connect()
    call = session.begin("crash" if end == "crash" else "nap", {} if end == "crash" else {"seconds": 5}, request_id=1)
    await asyncio.sleep(0.1)
    if end == "cancel":
        await session.cancel(1)
    if end == "drop":
        call.disconnect()
    await asyncio.wait([call.task])
    await asyncio.sleep(9.5)
    assert shop.over == []
    await asyncio.sleep(6)
    assert shop.over == [("expired", 0)]


# How many sessions


@virtual_time
async def test_past_the_cap_no_session_begins_until_one_has_ended(shop: Shop) -> None:
    """Scenario 18."""
    client = Legacy(asgi(shop.server, limits=Limits(max_sessions=2)))
    first = await client.connect()
    await client.connect()
    answer = await client.try_initialize(request_id="third")
    assert (answer.status, answer.message["id"], answer.error["code"]) == (503, "third", -32603)
    assert int(answer.headers["retry-after"]) >= 1
    assert "mcp-session-id" not in answer.headers
    await first.delete()
    await client.connect()
    assert (await client.try_initialize()).status == 503


@virtual_time
async def test_two_endpoints_of_one_server_have_a_cap_each(shop: Shop) -> None:
    """Scenario 19."""
    first, second = (Legacy(asgi(shop.server, limits=Limits(max_sessions=1))) for _ in range(2))
    opened = [await client.connect() for client in (first, second)]
    assert [(await client.try_initialize()).status for client in (first, second)] == [503, 503]
    opened[0].client = second
    assert (await opened[0].request("ping")).status == 404, "a session belongs to its endpoint"


@virtual_time
async def test_a_burst_does_not_pass_the_cap(shop: Shop) -> None:
    """One process has no reason to overshoot."""
    client = Legacy(asgi(shop.server, limits=Limits(max_sessions=5)))
    answers = await asyncio.gather(*(client.try_initialize(request_id=number) for number in range(20)))
    assert sorted(answer.status for answer in answers) == [200] * 5 + [503] * 15


@virtual_time
async def test_what_a_client_makes_a_session_remember_of_it_is_bounded(shop: Shop) -> None:
    """A07."""
    client = Legacy(asgi(shop.server))
    await client.connect(capabilities={"experimental": {"x": {"y": "z" * 1000}}})
    answer = await client.try_initialize(capabilities={"experimental": {"x": {"y": "z" * 1_000_000}}}, request_id=1)
    assert (answer.message["id"], answer.error["code"]) == (1, -32602)
    assert "mcp-session-id" not in answer.headers


@virtual_time
async def test_what_a_client_says_of_itself_is_bounded_in_values_too(shop: Shop) -> None:
    """A07: decoded, an empty array takes a hundred times its two bytes."""
    client = Legacy(asgi(shop.server))
    await client.connect(capabilities={"experimental": {"x": {"y": [{}] * 200}}})
    answer = await client.try_initialize(capabilities={"experimental": {"x": {"y": [{}] * 600}}}, request_id=1)
    assert (answer.message["id"], answer.error["code"]) == (1, -32602)
    assert "512" in answer.error["message"]
    assert "mcp-session-id" not in answer.headers


@virtual_time
async def test_a_long_uri_is_not_kept_by_subscribing_to_it(shop: Shop) -> None:
    """A07."""
    session = await Legacy(asgi(shop.server)).connect()
    fits, long = (f"shop://{'x' * (length - 7)}" for length in (2048, 2049))
    assert (await session.request("resources/subscribe", {"uri": fits})).result == {}
    answer = await session.request("resources/subscribe", {"uri": long})
    assert answer.error["code"] == -32602
    assert "2048" in answer.error["message"]
    async with session.listen() as stream:
        shop.server.resource_updated(long)
        shop.server.resource_updated(fits)
        assert (await stream.message())["params"]["uri"] == fits
        await settle()
        assert stream.untaken == []


@virtual_time
async def test_idle_sessions_are_reaped_and_their_places_free(shop: Shop) -> None:
    """A05: nobody deletes, and nothing is left of them; none costs a task while it is idle."""
    client = Legacy(asgi(shop.server, limits=Limits(max_sessions=1000), session_ttl=2))
    await client.connect()
    tasks = asyncio.all_tasks()
    for _ in range(999):
        await client.initialize()
    assert asyncio.all_tasks() == tasks
    assert (await client.try_initialize()).status == 503
    await asyncio.sleep(4)
    assert shop.over == [("expired", 0)] * 1000
    assert asyncio.all_tasks() == tasks
    for _ in range(1000):
        await client.initialize()


@virtual_time
async def test_calls_leave_nothing_in_their_session(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A07: thousands of calls, cancelled ones, streams and refusals, and as many objects as before."""
    monkeypatch.setattr(logging.getLogger("callboard"), "disabled", True)  # pytest keeps every record
    session = await Legacy(asgi(shop.server, limits=Limits(session_buffer=16))).connect()

    async def use(rounds: int) -> None:
        for number in range(rounds):
            await session.call("add")
            await session.call("echo", {"text": "x"})
            await session.call("count", {"to": 2}, token=number)
            await session.call("crash")
            slow = session.begin("nap", {"seconds": 5}, request_id="slow")
            await session.cancel("slow")
            await slow.end()
        shop.ran.clear()
        shop.stopped.clear()
        session._methods.clear()

    await use(50)
    gc.collect()
    before = len(gc.get_objects())
    await use(400)
    gc.collect()
    assert len(gc.get_objects()) - before < 200
    assert {task for task in asyncio.all_tasks() if task is not asyncio.current_task()} == set()


@virtual_time
async def test_sessions_that_were_deleted_leave_nothing(shop: Shop) -> None:
    """A05, A07: open and delete as often as you like."""
    client = Legacy(asgi(shop.server))

    async def use(rounds: int) -> int:
        for _ in range(rounds):
            session = await client.connect()
            await session.call("add")
            await session.delete()
        shop.over.clear()
        gc.collect()
        return len(gc.get_objects())

    before = await use(50)
    assert await use(400) - before < 200


# Options that can't work


@pytest.mark.parametrize(
    "options",
    [
        {"max_sessions": 5},
        {"session_ttl": 0},
        {"session_ttl": -1},
        {"session_max_pending": 5},
        {"request_timeout": 0},
        {"session_buffer": 5},
        {"sessions": "on"},
        {"sessions": True},
        {"handshake": "loose"},
        {"cancel_on_disconnect": True},
        {"cancel_on_disconnect": "sometimes"},
        {"versions": ["2024-11-05"]},
        {"versions": "2025-11-25"},
        {"versions": []},
        {"session_id": "fixed"},
        {"options": 5},
        {"options": "a=b"},
    ],
    ids=str,
)
def test_an_option_that_can_not_work_is_refused_when_the_application_is_made(shop: Shop, options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(RegistrationError, match=name):
        asgi(shop.server, **options)

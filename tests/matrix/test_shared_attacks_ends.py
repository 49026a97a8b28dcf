"""Attacks on sessions that several workers serve: strangers, many at once, and what one process would not do either."""

import asyncio

from legacy_driver import Legacy, Session
from shared_faults import make_fleet
from shared_sessions import CHANGED, at, principal_of
from virtual_time import virtual_time

from callboard.limits import Limits


@virtual_time
async def test_a_stranger_does_not_keep_a_session() -> None:
    # A05
    fleet = make_fleet(principal=principal_of, ttl=20.0)
    known = await Legacy(fleet.app, headers={"x-user": "ada"}).connect()
    other = await Legacy(fleet.app, headers={"x-user": "ada"}).connect()
    stranger = Session(Legacy(fleet.app, headers={"x-user": "eve"}), known.id, known.version)
    for _ in range(20):
        await asyncio.sleep(2)
        answers = [await stranger.request("ping", **at(number)) for number in range(2)]
        unknown = Session(Legacy(fleet.app, headers={"x-user": "eve"}), "0" * len(known.id or ""), known.version)
        answers.append(await unknown.request("ping", request_id=answers[0].message["id"]))
        assert {answer.status for answer in answers} == {404}
        assert {answer.message["error"]["message"] for answer in answers} == {answers[0].message["error"]["message"]}
        assert "result" in (await other.request("ping")).message
    assert [end.reason for end in fleet.ends] == ["expired"]
    await fleet.close()


@virtual_time
async def test_a_thousand_sessions_whose_time_is_up_end_soon() -> None:
    # A05
    fleet = make_fleet(ttl=60.0, limits=Limits(max_sessions=1_000))
    client = Legacy(fleet.app)
    for _ in range(1_000):
        await client.initialize()
    assert (await client.try_initialize()).status == 503
    await asyncio.sleep(70)
    assert len(fleet.ends) == 1_000
    for _ in range(1_000):
        await client.initialize()
    await fleet.close()


@virtual_time
async def test_an_event_that_could_not_have_gone_out_is_refused() -> None:
    for version, buffer in (("2025-11-25", 0), ("2025-03-26", 256), ("2025-06-18", 256)):
        fleet = make_fleet(limits=Limits(session_buffer=buffer))
        session = await fleet.connect(version)
        async with session.listen(**at(0)) as stream:
            assert (await session.get("g0-0", **at(1))).status == 400
            fleet.servers[1].broadcast("news", CHANGED)
            assert (await stream.message())["method"] == CHANGED["method"]
        await fleet.close()

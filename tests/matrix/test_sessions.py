"""Life of a session: how it begins, who may use it, how it ends; and what is answered to whom it is not."""

import asyncio
import logging
import re
from typing import Any

import pytest
from asgi_driver import Client
from legacy_driver import V03, V06, V11, VERSIONS, Answer, Legacy, Session
from shop import Shop
from virtual_time import virtual_time

from callboard import asgi
from callboard.limits import Limits

SECRET = "b9f3c51d7a0e"


@pytest.fixture
def shop() -> Shop:
    return Shop()


def as_user(scope: Any) -> str | None:
    """Who asks, as middleware in front has established."""
    user: str | None = scope["state"].get("user")
    return user


async def everywhere(session: Session) -> dict[str, Answer]:
    """What each verb and kind of message answers."""
    return {
        "request": await session.request("tools/list", request_id="r1"),
        "call": await session.call("echo", {"text": "x"}, request_id=9),
        "ping": await session.request("ping"),
        "notification": await session.notify("notifications/initialized"),
        "cancellation": await session.cancel(1),
        "response": await session.respond({"id": "server-1"}, {}),
        "get": await session.get(),
        "resumption": await session.get("g0-1"),
        "delete": await session.delete(),
    }


# Beginning


@pytest.mark.parametrize("version", VERSIONS)
@virtual_time
async def test_initialize_opens_a_session_and_names_it_in_a_header(shop: Shop, version: str) -> None:
    # HL-20, LC-02, VN-20
    client = Legacy(asgi(shop.server, instructions="Buy."), version)
    answer = await client.try_initialize(request_id="i1")
    assert (answer.status, answer.message["id"]) == (200, "i1")
    assert re.fullmatch(r"[\x21-\x7e]{16,}", answer.headers["mcp-session-id"])
    assert answer.result["protocolVersion"] == version
    assert answer.result["serverInfo"]["name"] == "shop"
    assert answer.result["instructions"] == "Buy."
    assert "tools" in answer.result["capabilities"]


@virtual_time
async def test_a_client_that_takes_streams_only_gets_initialize_as_a_stream(shop: Shop) -> None:
    # HL-05
    answer = await Legacy(asgi(shop.server)).try_initialize(accept="text/event-stream")
    assert answer.is_stream
    assert answer.headers["mcp-session-id"]
    assert answer.result["protocolVersion"] == V11


@virtual_time
async def test_session_ids_are_long_and_never_alike(shop: Shop) -> None:
    # HL-20, SC-05
    client = Legacy(asgi(shop.server))
    ids = {(await client.initialize()).id for _ in range(200)}
    assert len(ids) == 200
    assert all(found is not None and len(found) >= 22 for found in ids)


@virtual_time
async def test_only_initialize_names_the_session(shop: Shop) -> None:
    session = await Legacy(asgi(shop.server)).connect()
    answers = [
        await session.call("add"),
        await session.call("count", {"to": 2}, token="t"),
        await session.call("nothing"),
        await session.request("ping"),
        await session.notify("notifications/initialized"),
        await session.delete(),
    ]
    assert all("mcp-session-id" not in answer.headers for answer in answers)


@pytest.mark.parametrize("asked", ["2024-11-05", "2024-10-07", "2026-07-28", "1900-01-01", "latest", "", None])
@virtual_time
async def test_an_unknown_version_is_answered_with_the_newest_of_2025(shop: Shop, asked: str | None) -> None:
    # VN-20: never with the current one, which has no sessions
    client = Legacy(asgi(shop.server), V11)
    answer = await client.try_initialize(params={"protocolVersion": asked})
    if asked is None:
        assert answer.status in {200, 400}
    else:
        assert answer.result["protocolVersion"] == V11


@pytest.mark.parametrize(
    "params",
    [{"capabilities": []}, {"capabilities": "all"}, {"clientInfo": 5}, {"protocolVersion": 5}, {"clientInfo": {"name": 1, "version": "1"}}],
)
@virtual_time
async def test_an_initialize_that_can_not_be_read_is_refused_and_opens_nothing(shop: Shop, params: dict[str, Any]) -> None:
    client = Legacy(asgi(shop.server, limits=Limits(max_sessions=1)))
    answer = await client.try_initialize(params=params, request_id=3)
    assert (answer.message["id"], answer.error["code"]) == (3, -32602)
    assert "mcp-session-id" not in answer.headers
    await client.connect()


@virtual_time
async def test_what_a_client_said_of_itself_is_known_throughout_the_session(shop: Shop) -> None:
    session = await Legacy(asgi(shop.server), V06).connect(capabilities={"sampling": {}})
    who = (await session.call("who")).result["structuredContent"]
    assert who["session"] == session.id
    assert (who["version"], who["client"], who["capabilities"]) == (V06, "tester", {"sampling": {}})


@virtual_time
async def test_a_session_can_not_be_initialized_again(shop: Shop) -> None:
    client = Legacy(asgi(shop.server))
    session = await client.connect()
    await session.call("add")
    answer = await client.try_initialize(session_id=session.id, request_id=7)
    assert (answer.status, answer.message["id"], answer.error["code"]) == (400, 7, -32600)
    assert (await session.call("look")).text == "1"
    other = await client.connect()
    assert other.id != session.id
    assert (await other.call("look")).text == "0"


@virtual_time
async def test_initialize_with_the_id_of_a_dead_session_is_refused_like_anything_else(shop: Shop) -> None:
    # HL-23, HL-24: a client starts anew without the id
    answer = await Legacy(asgi(shop.server)).try_initialize(session_id=SECRET)
    assert (answer.status, answer.error["code"]) == (404, -32600)


@virtual_time
async def test_a_current_client_does_not_notice_sessions(shop: Shop) -> None:
    # HH: the current protocol ignores Mcp-Session-Id
    app = asgi(shop.server)
    session = await Legacy(app).connect()
    answer = await Client(app).call("who", mcp_session_id=session.id)
    assert answer.result["structuredContent"]["session"] is None
    assert (await Client(app).call("who", mcp_session_id=SECRET)).status == 200


# Messages without a session, or for one that is gone


@virtual_time
async def test_a_message_without_the_session_is_refused_with_its_id(shop: Shop) -> None:
    """HL-22."""
    session = await Legacy(asgi(shop.server)).connect()
    session.id = None
    answers = await everywhere(session)
    assert {name: answer.status for name, answer in answers.items()} == dict.fromkeys(answers, 400)
    assert (answers["request"].message["id"], answers["request"].error["code"]) == ("r1", -32600)
    assert (answers["call"].message["id"], answers["call"].error["code"]) == (9, -32600)
    assert "Mcp-Session-Id" in answers["call"].error["message"]
    assert shop.ran == []


@pytest.mark.parametrize("kind", ["made up", "deleted", "expired"])
@virtual_time
async def test_an_unknown_session_is_404_everywhere(shop: Shop, kind: str) -> None:
    """A02, A04, A60, SA22; scenario 16; HL-23."""
    session = await Legacy(asgi(shop.server, session_ttl=2)).connect()
    if kind == "made up":
        session.id = SECRET
    elif kind == "deleted":
        assert (await session.delete()).status == 204
    else:
        await asyncio.sleep(2.1)
    before = asyncio.get_running_loop().time()
    answers = await everywhere(session)
    assert {name: answer.status for name, answer in answers.items()} == dict.fromkeys(answers, 404)
    assert (answers["request"].message["id"], answers["request"].error["code"]) == ("r1", -32600)
    assert (answers["call"].message["id"], answers["call"].error["code"]) == (9, -32600)
    assert all(answer.error["code"] == -32600 for answer in answers.values())
    assert asyncio.get_running_loop().time() - before < 0.1, "at once, whatever the verb (A04)"
    assert shop.ran == []


@pytest.mark.parametrize("junk", ["", " ", "x" * 5000, "a b", "\x00", "\xe9", "../..", "\u2028".encode().decode("latin-1")])
@virtual_time
async def test_no_text_in_the_header_opens_or_breaks_anything(shop: Shop, junk: str, caplog: pytest.LogCaptureFixture) -> None:
    """SA13, of the session id."""
    caplog.set_level(logging.NOTSET)
    session = await Legacy(asgi(shop.server)).connect()
    known, session.id = session.id, junk
    for name, answer in (await everywhere(session)).items():
        assert answer.status in {400, 404}, name
        assert junk.encode("latin-1") not in answer.body or not junk.strip()
    assert all(junk not in record.getMessage() for record in caplog.records if junk.strip())
    session.id = known
    assert (await session.call("echo", {"text": "x"})).text == "x"


@virtual_time
async def test_get_and_delete_without_a_session_leave_nothing_behind(shop: Shop) -> None:
    """A06."""
    client = Legacy(asgi(shop.server, limits=Limits(max_sessions=1)))
    session = client.sessionless()
    tasks = asyncio.all_tasks()
    for _ in range(100):
        assert (await session.get()).status == 400
        assert (await session.delete()).status == 400
    assert asyncio.all_tasks() == tasks
    await client.connect()


@virtual_time
async def test_other_verbs_are_told_which_there_are(shop: Shop) -> None:
    # HL-01
    session = await Legacy(asgi(shop.server)).connect()
    for verb in ("PUT", "PATCH", "HEAD", "OPTIONS"):
        answer = await session.send(verb, b"", session.headers()).end()
        assert answer.status == 405
        assert {name.strip() for name in answer.headers["allow"].split(",")} == {"POST", "GET", "DELETE"}


@pytest.mark.parametrize("options", [{}, {"json_only": True}, {"sessions": "off"}], ids=str)
@virtual_time
async def test_a_current_client_that_tries_another_verb_is_refused_in_its_own_words(shop: Shop, options: dict[str, Any]) -> None:
    """JR-09: the current protocol has no `id` where none is known."""
    session = Legacy(asgi(shop.server, **options)).sessionless()
    for answer in (await session.get(mcp_protocol_version="2026-07-28"), await session.delete(mcp_protocol_version="2026-07-28")):
        assert answer.status == 405
        assert "POST" in answer.headers["allow"]
        assert "id" not in answer.message


# Versions on the way


@pytest.mark.parametrize("version", ["2024-11-05", "1900-01-01", "2025-06-19", "x", ""])
@pytest.mark.parametrize("verb", ["POST", "GET", "DELETE"])
@virtual_time
async def test_a_version_header_that_is_not_served_is_refused(shop: Shop, version: str, verb: str) -> None:
    """VN-24."""
    session = await Legacy(asgi(shop.server)).connect()
    if verb == "POST":
        answer = await session.call("echo", {"text": "x"}, mcp_protocol_version=version)
    elif verb == "GET":
        answer = await session.get(mcp_protocol_version=version)
    else:
        answer = await session.delete(mcp_protocol_version=version)
    assert answer.status == 400
    assert shop.ran == []
    assert (await session.call("echo", {"text": "x"})).text == "x"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("header", [*VERSIONS, None])
@virtual_time
async def test_the_version_of_the_session_wins_over_another_that_is_served(shop: Shop, version: str, header: str | None) -> None:
    # VN-23: a session is a way to know
    session = await Legacy(asgi(shop.server), version).connect()
    answer = await session.call("who", mcp_protocol_version=header)
    assert f'"version":"{version}"' in answer.text.replace(" ", "")


@virtual_time
async def test_the_version_header_of_initialize_itself_may_be_anything_served(shop: Shop) -> None:
    answer = await Legacy(asgi(shop.server), V06).try_initialize(mcp_protocol_version=V11)
    assert answer.result["protocolVersion"] == V06


# Whose it is


@virtual_time
async def test_a_session_of_somebody_else_is_no_session(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """A26, SA23, SC-05: POST, GET, DELETE, cancellations and replays alike; the function does not run, and a log tells."""
    client = Legacy(asgi(shop.server, principal=as_user), state={"user": "alice"})
    session = await client.connect()
    slow = session.begin("nap", {"seconds": 5}, request_id="nap")
    await session.call("echo", {"text": "x"})
    shop.ran.clear()
    for user in ("bob", None):
        client.state = {"user": user}
        answers = await everywhere(session)
        assert {name: answer.status for name, answer in answers.items()} == dict.fromkeys(answers, 404)
    assert shop.ran == []
    assert [record for record in caplog.records if record.name.startswith("callboard")]
    made_up = Session(client, SECRET, V11)
    assert (await made_up.request("tools/list", request_id=77)).body == (await session.request("tools/list", request_id=77)).body
    client.state = {"user": "alice"}
    assert (await slow.end()).text == "rested"
    assert (await session.delete()).status == 204


@virtual_time
async def test_functions_see_who_sent_this_very_request(shop: Shop) -> None:
    """A27: not who opened the session."""
    client = Legacy(asgi(shop.server), headers={"x-token": "one"}, state={"user": "a"})
    session = await client.connect()
    for token, user in (("one", "a"), ("two", "b")):
        client.headers, client.state = {"x-token": token}, {"user": user}
        who = (await session.call("who")).result["structuredContent"]
        assert (who["token"], who["scope"]) == (token, user)


# End


@virtual_time
async def test_delete_ends_a_session_once(shop: Shop) -> None:
    """A08."""
    session = await Legacy(asgi(shop.server)).connect()
    await session.call("add")
    answer = await session.delete()
    assert (answer.status, answer.body) == (204, b"")
    assert shop.over == [("deleted", 1)]
    assert (await session.delete()).status == 404
    assert shop.over == [("deleted", 1)]


@pytest.mark.parametrize("version", [V03, V06])
@virtual_time
async def test_a_new_session_can_follow_one_that_ended(shop: Shop, version: str) -> None:
    # HL-24
    client = Legacy(asgi(shop.server, limits=Limits(max_sessions=1)), version)
    for _ in range(3):
        session = await client.connect()
        assert (await session.call("add")).text == "1"
        await session.delete()
    assert shop.over == [("deleted", 1)] * 3

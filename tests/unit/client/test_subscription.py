"""Listen streams of the client over HTTP, against a peer that is nobody's framework."""

import asyncio
import logging
from typing import Any

import pytest
from oracles import shared_schema, validate
from unit.client.peers import Asked, http_client

from callboard import types
from callboard.client import subscription
from callboard.client.errors import ClientError, InvalidAnswer, RequestTimeout, ServerError


async def acknowledge(asked: Asked, granted: dict[str, Any]) -> dict[str, Any]:
    meta = {"io.modelcontextprotocol/subscriptionId": asked.message["id"]}
    await asked.stream()
    await asked.event(method="notifications/subscriptions/acknowledged", params={"notifications": granted, "_meta": meta})
    return meta


async def test_a_subscription_hands_out_changes_until_the_server_ends_it() -> None:
    """SB-01, SB-07, SB-09."""

    async def reply(asked: Asked) -> None:
        meta = await acknowledge(asked, {"toolsListChanged": True, "resourceSubscriptions": ["a://b"]})
        await asked.event(method="notifications/tools/list_changed", params={"_meta": meta})
        await asked.chunk(b": keep-alive\n\n")
        await asked.event(method="notifications/resources/updated", params={"uri": "a://b", "_meta": meta})
        await asked.event(id=asked.message["id"], result={"resultType": "complete", "_meta": meta})
        await asked.end()

    async with http_client(reply) as (client, peer), client.listen(tools=True, uris=["a://b"]) as changes:
        assert changes.granted == types.SubscriptionFilter(tools_list_changed=True, resource_subscriptions=["a://b"])
        found = [change async for change in changes]
    assert [type(change).__name__ for change in found] == ["ToolListChangedNotification", "ResourceUpdatedNotification"]
    assert getattr(found[1].params, "uri", None) == "a://b"
    assert peer.asked[0].params["notifications"] == {"toolsListChanged": True, "resourceSubscriptions": ["a://b"]}


@shared_schema
async def test_a_subscription_asks_as_the_protocol_says() -> None:
    async def reply(asked: Asked) -> None:
        await acknowledge(asked, {"toolsListChanged": True})
        await asked.gone()

    async with http_client(reply) as (client, peer), client.listen(tools=True, prompts=True, resources=True, uris=["a://b"]):
        validate("SubscriptionsListenRequest", peer.asked[0].message)


async def test_what_a_server_does_not_grant_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def reply(asked: Asked) -> None:
        await acknowledge(asked, {"toolsListChanged": True})
        await asked.gone()

    async with http_client(reply) as (client, _):
        with caplog.at_level(logging.WARNING, "callboard.client"):
            async with client.listen(tools=True, prompts=True, resources=True):
                pass
    assert "prompts_list_changed, resources_list_changed" in caplog.text


async def test_a_subscription_that_would_stay_silent_is_an_error() -> None:
    async def reply(asked: Asked) -> None:
        await acknowledge(asked, {})
        await asked.gone()

    async with http_client(reply) as (client, _), asyncio.timeout(5):
        with pytest.raises(ClientError, match=r"nothing that was asked for \(resource_subscriptions, tools_list_changed\)"):
            async with client.listen(tools=True, uris=["a://b"]):
                pytest.fail("nothing would come")
        async with client.listen() as changes:
            assert changes.granted == types.SubscriptionFilter()


async def test_leaving_a_subscription_closes_its_stream() -> None:
    """SB-08."""
    gone = asyncio.Event()

    async def reply(asked: Asked) -> None:
        await acknowledge(asked, {"toolsListChanged": True})
        assert await asked.gone()
        gone.set()

    async with http_client(reply) as (client, _), asyncio.timeout(2):
        async with client.listen(tools=True) as changes:
            waiting = asyncio.create_task(anext(changes))
            await asyncio.sleep(0)
        await gone.wait()
        with pytest.raises(StopAsyncIteration):
            await waiting


async def test_a_subscription_that_breaks_is_opened_anew_and_tells_of_all_that_may_have_changed() -> None:
    """SB-10, A17: nothing that happened in between is told by the server."""
    opened = 0

    async def reply(asked: Asked) -> None:
        nonlocal opened
        opened += 1
        if opened == 2:
            await asked.body_answer(502, b"<html>bad gateway</html>", "text/html")
            return
        meta = await acknowledge(asked, {"promptsListChanged": True, "resourceSubscriptions": ["test://a"]})
        if opened == 1:
            await asked.event(method="notifications/prompts/list_changed", params={"_meta": meta})
            asked.writer.close()
        else:
            await asked.gone()

    async with http_client(reply) as (client, _), client.listen(prompts=True, uris=["test://a"]) as changes, asyncio.timeout(5):
        told = [await anext(changes) for _ in range(3)]
        assert [type(change).__name__ for change in told] == [
            "PromptListChangedNotification",
            "PromptListChangedNotification",
            "ResourceUpdatedNotification",
        ]
        assert opened == 3


async def test_a_subscription_outlives_a_server_that_is_replaced_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """SB-09, CA-08: one worker ends it, the next one is about to end, a third one ends it soon, and only the fourth one stays."""
    monkeypatch.setattr(subscription, "SHORT", 0.05)
    opened = 0

    async def reply(asked: Asked) -> None:
        nonlocal opened
        opened += 1
        if opened == 2:
            await asked.error(-32603, "The server is shutting down.", status=503)
            return
        meta = await acknowledge(asked, {"promptsListChanged": True})
        if opened == 4:
            await asked.gone()
            return
        if opened == 1:
            await asyncio.sleep(0.2)
        await asked.event(id=asked.message["id"], result={"resultType": "complete", "_meta": meta})
        await asked.end()

    async with http_client(reply) as (client, _), client.listen(prompts=True) as changes, asyncio.timeout(5):
        told = [await anext(changes) for _ in range(2)]
        assert [type(change).__name__ for change in told] == ["PromptListChangedNotification"] * 2
        assert opened == 4


async def test_a_subscription_that_a_server_ends_at_once_again_and_again_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """CA-08: nobody asks for ever."""
    monkeypatch.setattr(subscription, "SHORT", 0.5)
    monkeypatch.setattr(subscription, "MOST_DELAY", 0.001)
    monkeypatch.setattr(subscription, "FIRST_DELAY", 0.001)
    opened = 0

    async def reply(asked: Asked) -> None:
        nonlocal opened
        opened += 1
        meta = await acknowledge(asked, {"promptsListChanged": True})
        if opened == 1:
            await asyncio.sleep(0.6)
        await asked.event(id=asked.message["id"], result={"resultType": "complete", "_meta": meta})
        await asked.end()

    async with http_client(reply) as (client, _), client.listen(prompts=True) as changes, asyncio.timeout(5):
        told = [change async for change in changes]
    assert len(told) == opened - 1
    assert opened <= 2 + subscription.BRIEF


async def test_a_subscription_that_is_refused_when_it_is_opened_anew_says_so() -> None:
    """SB-10: what came before the break is handed out first."""
    opened = 0

    async def reply(asked: Asked) -> None:
        nonlocal opened
        opened += 1
        if opened == 2:
            await asked.error(-32601, "no listening any more", status=404)
            return
        meta = await acknowledge(asked, {"promptsListChanged": True})
        await asked.event(method="notifications/prompts/list_changed", params={"_meta": meta})
        asked.writer.close()

    async with http_client(reply) as (client, _), client.listen(prompts=True) as changes, asyncio.timeout(5):
        assert type(await anext(changes)).__name__ == "PromptListChangedNotification"
        with pytest.raises(ServerError, match="no listening any more"):
            await anext(changes)


async def test_a_subscription_that_is_refused_raises_on_entry() -> None:
    async def reply(asked: Asked) -> None:
        await asked.error(-32601, "no listening here", status=404)

    async with http_client(reply) as (client, _):
        with pytest.raises(ServerError, match="no listening here"):
            async with client.listen(tools=True):
                pytest.fail("it was not acknowledged")


async def test_a_subscription_that_is_never_acknowledged_times_out() -> None:
    async def reply(asked: Asked) -> None:
        await asked.stream()
        await asked.gone()

    async with http_client(reply, timeout=0.1) as (client, _):
        with pytest.raises(RequestTimeout):
            async with client.listen(tools=True):
                pytest.fail("it was not acknowledged")


async def test_a_subscription_that_ends_unacknowledged_is_an_invalid_answer() -> None:
    async def reply(asked: Asked) -> None:
        await asked.result({"resultType": "complete"})

    async with http_client(reply) as (client, _):
        with pytest.raises(InvalidAnswer, match="acknowledged"):
            async with client.listen(tools=True):
                pytest.fail("it was not acknowledged")

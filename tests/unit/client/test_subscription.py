"""Listen streams of the client over HTTP, against a peer that is nobody's framework."""

import asyncio
import logging
from typing import Any

import pytest
from oracles import shared_schema, validate
from unit.client.peers import Asked, http_client

from callboard import types
from callboard.client.errors import ClientError, ConnectionFailed, InvalidAnswer, RequestTimeout, ServerError


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


async def test_a_subscription_that_breaks_says_so() -> None:
    """SB-10: what came before the break is handed out first."""

    async def reply(asked: Asked) -> None:
        meta = await acknowledge(asked, {"promptsListChanged": True})
        await asked.event(method="notifications/prompts/list_changed", params={"_meta": meta})
        asked.writer.close()

    async with http_client(reply) as (client, _), client.listen(prompts=True) as changes:
        assert type(await anext(changes)).__name__ == "PromptListChangedNotification"
        with pytest.raises(ConnectionFailed):
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

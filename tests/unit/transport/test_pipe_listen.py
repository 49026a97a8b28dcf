"""Listen streams over lines."""

from typing import Any

from unit.transport.lines import SUBSCRIPTION, call, cancel, listen, same, text_of
from unit.transport.stage import Stage, serving

from callboard import Context, Fail, Reason, Server


async def test_a_listen_stream_begins_with_its_acknowledgement() -> None:
    """SB-03, SB-05: per subscription id, whose JSON type stays."""
    stage = Stage()
    async with serving(stage.server) as (pipe, reader):
        for subscription in (1, "1"):
            pipe.feed(listen(subscription, toolsListChanged=True))
        acknowledged = "notifications/subscriptions/acknowledged"
        await reader.until(lambda message: same((message.get("params") or {}).get("_meta", {}).get(SUBSCRIPTION), "1"))
        stage.server.remove("tools", "large")
        await reader.until(lambda message: message.get("method") == "notifications/tools/list_changed")
        for subscription in (1, "1"):
            own = [message for message in reader.messages if same(message["params"]["_meta"][SUBSCRIPTION], subscription)]
            assert own[0]["method"] == acknowledged
            assert own[0]["params"]["notifications"] == {"toolsListChanged": True}


async def test_a_cancelled_listen_stream_ends_without_a_word() -> None:
    """SB-08, CN-04."""
    stage = Stage()
    async with serving(stage.server) as (pipe, reader):
        pipe.feed(listen(5, toolsListChanged=True))
        await reader.until(lambda message: message.get("method") == "notifications/subscriptions/acknowledged")
        assert len(stage.server.hub) == 1
        pipe.feed(cancel(5))
        pipe.feed(call(6, "echo", text="x"))
        await reader.answer(6)
        assert len(stage.server.hub) == 0
        stage.server.remove("tools", "large")
        pipe.feed(call(7, "echo", text="x"))
        await reader.answer(7)
        assert [message.get("id") for message in reader.messages] == [None, 6, 7]


async def test_a_listen_stream_that_the_server_ends_gets_its_result_and_then_a_cancellation() -> None:
    """SB-09, CN-03: in this order; the official clients call an end that begins with the cancellation a loss."""
    stage = Stage()
    async with serving(stage.server) as (pipe, reader):
        pipe.feed(listen("s", toolsListChanged=True))
        await reader.until(lambda message: message.get("method") == "notifications/subscriptions/acknowledged")
        stage.server.hub.close()
        await reader.until(lambda message: message.get("method") == "notifications/cancelled")
        result, notice = reader.messages[1:]
        assert result["id"] == "s"
        assert result["result"]["resultType"] == "complete"
        assert result["result"]["_meta"][SUBSCRIPTION] == "s"
        assert notice["params"] == {"requestId": "s"}


async def test_a_refused_listen_is_an_error_and_nothing_else() -> None:
    """CN-03: there is no stream that a cancellation could end."""

    def refuse(_service: Any) -> Any:
        async def serve(_request: Any, _ctx: Context) -> Fail:
            return Fail(Reason.OVERLOADED)

        return serve

    server = Server("full", middleware=[refuse])
    async with serving(server) as (pipe, reader):
        pipe.feed(listen("s", toolsListChanged=True))
        await reader.answer("s")
        assert [message.get("id") for message in reader.messages] == ["s"]


async def test_a_listener_that_never_reads_is_given_up() -> None:
    """Its stream ends with an error, since a line can't be closed; the connection and the others go on."""
    stage = Stage()
    server = stage.server

    @server.resource("note://{name}")
    async def note(name: str) -> str:
        return name

    async with serving(server) as (pipe, reader):
        pipe.feed(listen("all", resourceSubscriptions=["note://{name}"]))
        await reader.until(lambda message: message.get("method") == "notifications/subscriptions/acknowledged")
        reader.stop()
        pipe.feed(call(0, "echo", text="fills the pipe"))
        await reader.answer(0)
        for number in range(100):
            server.resource_updated(f"note://{number}" + "n" * 60_000)
        assert len(server.hub) == 0, "the place is free at once"
        reader.go_on()
        error = (await reader.answer("all"))["error"]
        assert error["code"] == -32603
        assert "waited unread" in error["message"]
        assert reader.notes("notifications/cancelled") == [{"requestId": "all"}]
        pipe.feed(call(1, "echo", text="on"))
        assert text_of(await reader.answer(1)) == "on"

"""Middleware is Service to Service."""

import asyncio
from typing import Any

from asgi_driver import Client
from served import make_context, make_lifted

from callboard import Context, Fail, Layer, Reason, Reply, Request, Server, Service, asgi
from callboard.core.outcome import Outcome
from callboard.server.middleware import compose


def note(events: list[str], name: str) -> Layer:
    """A layer that says when it is passed."""

    def layer(inner: Service) -> Service:
        async def service(request: Request, ctx: Context) -> Outcome:
            events.append(f"{name} in")
            outcome = await inner(request, ctx)
            events.append(f"{name} out")
            return outcome

        return service

    return layer


async def end(_request: Request, _ctx: Context) -> Outcome:
    return Reply({})


async def test_the_first_layer_is_outermost() -> None:
    events: list[str] = []
    service = compose(end, [note(events, "a"), note(events, "b")])
    assert await service(make_lifted(), make_context()) == Reply({})
    assert events == ["a in", "b in", "b out", "a out"]


async def test_without_layers_it_is_the_service_itself() -> None:
    assert compose(end, []) is end


def make_server(*layers: Layer, **options: Any) -> Server:
    server = Server("desk", middleware=layers, **options)

    @server.tool
    async def echo(text: str, ctx: Context) -> str:
        return f"{text} {ctx.locals.get('user', 'nobody')}"

    return server


async def test_what_a_layer_puts_in_locals_is_what_the_tool_sees() -> None:
    # A49
    def layer(inner: Service) -> Service:
        async def service(request: Request, ctx: Context) -> Outcome:
            ctx.locals["user"] = (ctx.headers or {}).get("x-user")
            return await inner(request, ctx)

        return service

    answer = await Client(asgi(make_server(layer))).call("echo", {"text": "hi"}, x_user="ann")
    assert answer.text == "hi ann"


async def test_a_layer_may_answer_itself() -> None:
    def layer(inner: Service) -> Service:
        async def service(request: Request, ctx: Context) -> Outcome:
            if request.method == "tools/call":
                return Fail.custom(4711, "Closed on Sundays.")
            return await inner(request, ctx)

        return service

    client = Client(asgi(make_server(layer)))
    answer = await client.call("echo", {"text": "hi"})
    assert (answer.status, answer.error) == (200, {"code": 4711, "message": "Closed on Sundays."})
    assert (await client.request("tools/list")).status == 200


async def test_a_layer_sees_every_request_and_its_outcome() -> None:
    seen: list[tuple[str, str]] = []

    def layer(inner: Service) -> Service:
        async def service(request: Request, ctx: Context) -> Outcome:
            outcome = await inner(request, ctx)
            seen.append((request.method, type(outcome).__name__))
            return outcome

        return service

    client = Client(asgi(make_server(layer)))
    await client.request("server/discover")
    await client.request("tools/list")
    await client.call("echo", {"text": "hi"})
    await client.call("nobody")
    assert seen == [("server/discover", "Reply"), ("tools/list", "Reply"), ("tools/call", "Reply"), ("tools/call", "Fail")]


async def test_a_layer_may_change_the_outcome() -> None:
    def layer(inner: Service) -> Service:
        async def service(request: Request, ctx: Context) -> Outcome:
            outcome = await inner(request, ctx)
            if isinstance(outcome, Reply):
                outcome.value["_meta"] = {"com.example/node": "n1"}
            return outcome

        return service

    answer = await Client(asgi(make_server(layer))).request("tools/list")
    assert answer.result["_meta"]["com.example/node"] == "n1"


async def test_what_a_layer_raises_is_that_requests_error() -> None:
    # SA35
    def layer(_inner: Service) -> Service:
        async def service(_request: Request, _ctx: Context) -> Outcome:
            raise KeyError("hunter2")

        return service

    answer = await Client(asgi(make_server(layer))).call("echo", {"text": "hi"})
    assert (answer.status, answer.error["code"]) == (200, -32603)
    assert "hunter2" not in answer.error["message"]


async def test_what_is_no_outcome_is_that_requests_error() -> None:
    def layer(_inner: Service) -> Service:
        async def service(_request: Request, _ctx: Context) -> Any:
            return None

        return service

    answer = await Client(asgi(make_server(layer))).call("echo", {"text": "hi"})
    assert answer.error["code"] == -32603


async def test_a_layer_may_limit_the_time() -> None:
    def layer(inner: Service) -> Service:
        async def service(request: Request, ctx: Context) -> Outcome:
            try:
                async with asyncio.timeout(0.01):
                    return await inner(request, ctx)
            except TimeoutError:
                return Fail(Reason.OVERLOADED)

        return service

    server = make_server(layer)

    @server.tool
    async def hang() -> str:
        await asyncio.Event().wait()
        return ""

    answer = await Client(asgi(server)).call("hang")
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")

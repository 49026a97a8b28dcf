"""What every transport does with a message: lifespan, context, service, answer, crash guard."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from asgi_driver import judge, make_meta, make_request

from callboard import Context, Fail, NeedInput, Reason, RegistrationError, Reply, Server
from callboard.compose import endpoint
from callboard.core.exchange import Exchange, State
from callboard.limits import Limits
from callboard.transport.endpoint import Endpoint
from callboard.wire.jsonrpc import RawRequest, decode


class Odd(BaseException):
    """Not an Exception: what some libraries use to unwind."""


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def make_server(result: Any = None, error: BaseException | None = None, **options: Any) -> Server:
    """A server whose tool returns or raises what is given."""
    server = Server("desk", **options)

    @server.tool
    async def act(ctx: Context) -> Any:
        if error is not None:
            raise error
        return result

    return server


async def answer(point: Endpoint, message: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Status and response of one message."""
    mount = await point.open()
    exchange = Exchange(lambda: None)
    parsed = decode(json.dumps(message).encode())
    assert isinstance(parsed, RawRequest)
    await point.answer(mount, point.era, parsed, exchange)
    write = exchange.take()
    assert write is not None
    assert write.last
    response: dict[str, Any] = json.loads(write.notes[-1])
    judge(response, message["method"])
    return write.status, response


async def act(server: Server) -> tuple[int, dict[str, Any]]:
    return await answer(endpoint(server), make_request("tools/call", {"name": "act"}))


# The crash guard


@pytest.mark.parametrize(
    "error",
    [
        ValueError("hunter2"),
        KeyError("hunter2"),
        AssertionError("hunter2"),
        RecursionError("hunter2"),
        MemoryError("hunter2"),
        SystemExit("hunter2"),
        StopAsyncIteration("hunter2"),
        asyncio.CancelledError("hunter2"),
        TimeoutError("hunter2"),
        ExceptionGroup("hunter2", [ValueError("hunter2"), KeyError("hunter2")]),
        BaseExceptionGroup("hunter2", [asyncio.CancelledError("hunter2"), ValueError("hunter2")]),
        Odd("hunter2"),
        UnspeakableError(),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("masked", [True, False])
async def test_whatever_a_function_raises_is_that_calls_error(error: BaseException, masked: bool, caplog: pytest.LogCaptureFixture) -> None:
    # SA35
    status, response = await act(make_server(error=error, mask_errors=masked))
    assert (status, response["id"], response["error"]["code"]) == (200, 1, -32603)
    assert not masked or "hunter2" not in response["error"]["message"]
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


async def test_an_interrupt_is_the_processs() -> None:
    with pytest.raises(KeyboardInterrupt):
        await act(make_server(error=KeyboardInterrupt()))


def nested() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    "result",
    ["\ud800", {"a": "\ud800"}, b"bytes", object(), {"a": object()}, nested(), float("nan"), {"a": float("inf")}],
    ids=["lone surrogate", "lone surrogate inside", "bytes", "object", "object inside", "cycle", "NaN", "infinity"],
)
async def test_what_can_not_be_encoded_is_that_calls_error(result: Any) -> None:
    # SA07
    point = endpoint(make_server(result))
    async with asyncio.timeout(1):
        status, response = await answer(point, make_request("tools/call", {"name": "act"}))
    assert (status, response["id"], response["error"]["code"]) == (200, 1, -32603)
    assert (await answer(point, make_request("tools/list")))[0] == 200


@pytest.mark.parametrize(
    "fail",
    [
        Fail(Reason.INVALID_PARAMS, "\ud800"),
        Fail(Reason.INVALID_PARAMS, "x", {"a": object()}),
        Fail(Reason.CUSTOM, "without a code"),
        Fail.custom(5, "x", {"a": nested()}),
    ],
)
async def test_a_failure_that_can_not_be_encoded_is_an_internal_error(fail: Fail) -> None:
    # SA07
    _, response = await act(make_server(error=fail))
    assert response["error"]["code"] == -32603


@pytest.mark.parametrize("value", [{"content": [], "_meta": 5}, {"content": object()}, {1: 2, "content": []}])
async def test_a_layers_reply_that_can_not_be_encoded_is_that_calls_error(value: Any) -> None:
    # SA07
    def layer(_inner: Any) -> Any:
        async def service(_request: Any, _ctx: Any) -> Reply:
            return Reply(dict(value))

        return service

    server = Server("desk", middleware=[layer])
    server.tool(name="act")(lambda: "")
    mount = endpoint(server)
    opened = await mount.open()
    exchange = Exchange(lambda: None)
    parsed = decode(json.dumps(make_request("tools/call", {"name": "act"})).encode())
    assert isinstance(parsed, RawRequest)
    await mount.answer(opened, mount.era, parsed, exchange)
    write = exchange.take()
    assert write is not None
    assert json.loads(write.notes[-1])["id"] == 1


async def test_an_era_refuses_before_anything_runs() -> None:
    # MT-04
    status, response = await answer(endpoint(make_server(error=ValueError())), make_request("nothing"))
    assert (status, response["error"]["code"]) == (404, -32601)


async def test_a_cancelled_task_stays_cancelled() -> None:
    # CN-04, HM-15
    started = asyncio.Event()
    server = Server("desk")

    @server.tool
    async def hang() -> str:
        started.set()
        await asyncio.Event().wait()
        return ""

    point = endpoint(server)
    task = asyncio.create_task(answer(point, make_request("tools/call", {"name": "hang"})))
    async with asyncio.timeout(1):
        await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_asking_the_client_is_an_answer() -> None:
    # MR-01, MR-03, JR-13
    asked = {"ok": {"method": "roots/list"}}
    server = Server("desk", middleware=[lambda _inner: give(NeedInput(asked, "state"))])
    status, response = await answer(endpoint(server), make_request("tools/call", {"name": "x"}, meta=make_meta({"roots": {}})))
    assert (status, response["result"]["resultType"]) == (200, "input_required")


def give(outcome: Any) -> Any:
    async def service(_request: Any, _ctx: Any) -> Any:
        return outcome

    return service


# Opening and closing


async def test_it_opens_once() -> None:
    # A33
    entered: list[int] = []

    @asynccontextmanager
    async def lifespan(_server: Server) -> AsyncIterator[dict[str, Any]]:
        entered.append(1)
        await asyncio.sleep(0)
        yield {"n": 5}
        entered.append(-1)

    point = endpoint(make_server(lifespan=lifespan))
    mounts = await asyncio.gather(*(point.open() for _ in range(5)))
    assert all(mount is mounts[0] for mount in mounts)
    assert mounts[0].values == {"n": 5}
    assert entered == [1]
    await point.close()
    assert entered == [1, -1]
    await point.close()
    assert entered == [1, -1]


async def test_two_mounts_of_one_server_share_its_lifespan() -> None:
    # A33
    events: list[str] = []

    @asynccontextmanager
    async def lifespan(_server: Server) -> AsyncIterator[None]:
        events.append("in")
        yield
        events.append("out")

    server = make_server(lifespan=lifespan)
    first, second = endpoint(server), endpoint(server)
    await first.open()
    await second.open()
    await first.close()
    assert events == ["in"]
    await second.close()
    assert events == ["in", "out"]


def test_every_loop_opens_anew() -> None:
    # A32
    point = endpoint(make_server("ok"))
    for _ in range(3):
        status, response = asyncio.run(answer(point, make_request("tools/call", {"name": "act"})))
        assert (status, response["result"]["content"][0]["text"]) == (200, "ok")


async def test_options_are_bound() -> None:
    point = endpoint(make_server(), options={"limit": 3}, limits=Limits(max_listens=1))
    mount = await point.open()
    assert mount.options == {"limit": 3}
    assert mount.limits == Limits(max_listens=1)


def test_options_that_are_no_mapping_are_refused() -> None:
    options: Any = ["a"]
    with pytest.raises(RegistrationError, match="options"):
        endpoint(make_server(), options=options)


async def test_an_answer_after_the_client_has_gone_is_dropped() -> None:
    # CN-06, HM-15
    point = endpoint(make_server("ok"))
    mount = await point.open()
    exchange = Exchange(lambda: None)
    exchange.cancel()
    parsed = decode(json.dumps(make_request("tools/call", {"name": "act"})).encode())
    assert isinstance(parsed, RawRequest)
    await point.answer(mount, point.era, parsed, exchange)
    assert exchange.take() is None
    assert exchange.state is State.CANCELLED

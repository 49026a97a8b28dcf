"""What sinks are told of a store that is a real Redis."""

import asyncio

from legacy_driver import Legacy
from matrix.test_logs import make_server
from redis_server import RedisServer, redis_server  # noqa: F401 - the fixture
from telemetry_sinks import Recorder

from callboard import asgi
from callboard.telemetry.events import SessionEnded, SessionOpened, StoreUsed


async def test_a_redis_says_how_long_it_takes(redis_server: RedisServer) -> None:  # noqa: F811 - the fixture
    told = Recorder()
    server = make_server(telemetry=told, store=redis_server.url)
    app = asgi(server)
    session = await Legacy(app).connect()
    await session.call("add", {"a": 1})
    server.resource_updated("note://index")
    async with asyncio.timeout(10):
        while not any(event.operation == "bus" for event in told.of(StoreUsed)):  # noqa: ASYNC110 - a sink tells nobody
            await asyncio.sleep(0.01)
    await session.delete()
    await app.aclose()
    assert {event.operation for event in told.of(StoreUsed)} >= {"run", "bus"}
    assert all(0 <= event.seconds < 10 and not event.failed for event in told.of(StoreUsed))
    assert len(told.of(SessionOpened)) == len(told.of(SessionEnded)) == 1
    assert [event.outcome for event in told.stopped()] == ["ok"]

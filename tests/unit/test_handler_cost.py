"""What a handler's requests leave behind: nothing that takes the garbage collector to go away."""

import asyncio
import gc
from collections.abc import Iterator

import pytest
from handlers import Counter, Jobs

from benchmarks import legacy_traffic
from benchmarks.in_process import App, open_session, send_once
from benchmarks.traffic import call
from callboard import asgi
from callboard.legacy import home
from callboard.transport import stream


@pytest.fixture(autouse=True)
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The garbage collector runs only when it is asked to, and whatever watches a waiting call starts at once."""
    monkeypatch.setattr(stream, "WATCH_AFTER", 0.0)
    monkeypatch.setattr(home, "WATCH_AFTER", 0.0)
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def garbage(app: App, tool: str, *, old: bool) -> int:
    """Objects that three calls leave for the collector."""
    exchange = legacy_traffic.call(tool, {"steps": 0}, sessions=(await open_session(app),)) if old else call(tool, {"steps": 0})
    for measured in (False, True):
        if measured:
            gc.collect()
        for _ in range(3):
            await send_once(app, exchange)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
    return gc.collect()


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("tool", ["bump", "look", "fail", "refuse"])
async def test_a_call_leaves_no_garbage(tool: str, *, old: bool) -> None:
    assert await garbage(asgi(Counter()), tool, old=old) == 0


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("tool", ["mail", "work", "close"])
async def test_a_stream_leaves_no_garbage(tool: str, *, old: bool) -> None:
    assert await garbage(asgi(Jobs()), tool, old=old) == 0

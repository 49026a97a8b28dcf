"""Hearing of signals before whoever handles them."""

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

from callboard.transport.signals import SignalHook


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Whatever happens, the handlers of this process are what they were."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


async def test_the_server_s_handler_is_called_after_us() -> None:  # A40
    heard: list[object] = []

    def handle(number: int, frame: FrameType | None) -> None:
        heard.append(number)

    signal.signal(signal.SIGTERM, handle)
    hook = SignalHook(lambda: heard.append("told"))
    hook.install()
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(0.01)
    assert heard == [signal.SIGTERM, "told"]
    hook.remove()
    assert signal.getsignal(signal.SIGTERM) is handle


async def test_a_loop_s_handler_is_called_too() -> None:
    heard: list[str] = []
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, heard.append, "theirs")
    try:
        hook = SignalHook(lambda: heard.append("ours"))
        hook.install()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.05)
        assert sorted(heard) == ["ours", "theirs"]
        hook.remove()
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


async def test_a_signal_that_nobody_handles_stays_so() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    hook = SignalHook(lambda: None)
    hook.install()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


async def test_a_handler_that_somebody_set_after_us_stays() -> None:
    signal.signal(signal.SIGTERM, lambda *_: None)
    hook = SignalHook(lambda: None)
    hook.install()

    def later(number: int, frame: FrameType | None) -> None: ...

    signal.signal(signal.SIGTERM, later)
    hook.remove()
    assert signal.getsignal(signal.SIGTERM) is later


def test_in_another_thread_it_does_nothing() -> None:
    signal.signal(signal.SIGTERM, handler := (lambda *_: None))

    async def live() -> None:
        hook = SignalHook(lambda: None)
        hook.install()
        hook.remove()

    thread = threading.Thread(target=lambda: asyncio.run(live()))
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is handler

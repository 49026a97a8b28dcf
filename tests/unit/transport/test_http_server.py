"""What `callboard.run` adds to uvicorn, where it can be told apart without a socket; the rest is in tests/e2e/test_http.py."""

from collections.abc import Iterator

import pytest
from uvicorn.protocols.http import httptools_impl

from callboard.transport.http_server import answer_at_once
from callboard.transport.stream import SHORTCUTS, find_shortcut, take_whole


@pytest.fixture(autouse=True)
def shortcuts() -> Iterator[None]:
    before = dict(SHORTCUTS)
    SHORTCUTS.clear()
    yield
    SHORTCUTS.clear()
    SHORTCUTS.update(before)


def test_the_cycle_of_this_uvicorn_has_a_shortcut() -> None:
    answer_at_once()
    assert list(SHORTCUTS) == [httptools_impl.RequestResponseCycle]


def test_a_uvicorn_that_is_made_otherwise_is_served_the_ordinary_way(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cycle:
        def __init__(self, scope: object, transport: object) -> None: ...

    monkeypatch.setattr(httptools_impl, "RequestResponseCycle", Cycle)
    answer_at_once()
    assert SHORTCUTS == {}


async def test_whoever_wraps_receive_and_send_sees_everything() -> None:
    async def receive() -> dict[str, object]:
        return {}

    async def send(_: object) -> None: ...

    answer_at_once()
    assert take_whole(receive) is None
    assert find_shortcut(send) is None

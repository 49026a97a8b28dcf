"""What `callboard.run` adds to uvicorn, where it can be told apart without a socket; the rest is in tests/e2e/test_http.py."""

from collections.abc import Iterator
from typing import Any

import pytest
from uvicorn.protocols.http import httptools_impl

from callboard import Server, asgi
from callboard.auth import BearerTokens
from callboard.transport.http_protocol import answer_at_once
from callboard.transport.http_server import Settings, make_settings, warn_of_strangers
from callboard.transport.stream import SHORTCUTS, find_shortcut, take_whole
from callboard.transport.whole_call import WholeCall


@pytest.fixture(autouse=True)
def shortcuts() -> Iterator[None]:
    before = dict(SHORTCUTS)
    SHORTCUTS.clear()
    yield
    SHORTCUTS.clear()
    SHORTCUTS.update(before)


def test_the_cycle_of_this_uvicorn_has_a_shortcut() -> None:
    answer_at_once()
    assert list(SHORTCUTS) == [httptools_impl.RequestResponseCycle, WholeCall]


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


def test_what_a_platform_says_to_others_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEB_CONCURRENCY", "auto")
    assert make_settings(asgi(Server("s")), Settings()).workers == 1


@pytest.mark.parametrize(
    ("options", "warns"),
    [({}, False), ({"allow_remote": True}, True), ({"allow_remote": True, "auth": BearerTokens({"x" * 32: "ann"})}, False)],
)
def test_whoever_lets_strangers_in_unasked_is_told(options: dict[str, Any], warns: bool, caplog: pytest.LogCaptureFixture) -> None:
    # SC-10
    warn_of_strangers(asgi(Server("open"), **options))
    assert ("open lets clients of other machines in" in caplog.text) is warns

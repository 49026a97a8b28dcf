"""Pages that can be opened or not, and turns that many wait for."""

import asyncio
import socket

import pytest

from callboard.client.errors import AuthorizationFailed
from callboard.client.oauth.pages import HeadlessPage, Opened, browser_page
from callboard.client.oauth.redirect import RedirectReceiver
from callboard.client.oauth.turn import Turn


async def test_the_port_of_an_earlier_registration_or_another_one() -> None:  # AC-11
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with browser_page(f"http://127.0.0.1:{port}/callback") as page:
            assert f":{port}/" not in page.redirect_uris[0]
        with pytest.raises(AuthorizationFailed, match="port"):
            await Opened(RedirectReceiver(port=port)).__aenter__()
    async with browser_page(f"http://127.0.0.1:{port}/callback") as page:
        assert f":{port}/" in page.redirect_uris[0]
    async with browser_page() as page:
        assert page.redirect_uris[0].startswith("http://127.0.0.1:")


async def test_a_page_without_a_browser() -> None:
    async def browse(url: str) -> str:
        return f"back from {url}"

    async with HeadlessPage(browse, "http://127.0.0.1/callback") as page:
        assert await page("https://as.example.com") == "back from https://as.example.com"
        assert page.redirect_uris == ("http://127.0.0.1/callback",)


async def test_a_turn_is_given_up_by_its_last_waiter_alone() -> None:
    ended = asyncio.Event()

    async def work() -> bool:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return True

    turn = Turn(work(), interactive=True)
    first, second = (asyncio.create_task(turn.wait()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait({first})
    assert not turn.is_over()
    second.cancel()
    await asyncio.wait({second})
    assert turn.is_over()
    assert ended.is_set()
    assert first.cancelled()
    assert second.cancelled()


async def test_a_turn_that_nobody_looks_at_fails_in_silence() -> None:
    async def work() -> bool:
        await asyncio.sleep(0)
        raise OSError("x")

    turn = Turn(work(), interactive=False)
    for _ in range(4):
        await asyncio.sleep(0)
    assert turn.is_over()
    with pytest.raises(OSError, match="x"):
        await turn.wait()

"""The browser comes back once; everybody else who knocks gets a page that says nothing."""

import asyncio
import contextlib
import socket
import urllib.request
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.client.errors import AuthorizationFailed
from callboard.client.oauth import redirect
from callboard.client.oauth.redirect import RedirectReceiver

PAGE = "https://as.example/authorize?state=st%20ate&x=1"
BACK = "/callback?code=s3cr3t&state=st%20ate"


async def knock(uri: str, data: bytes) -> bytes:
    """What comes back for bytes on a connection."""
    host, _, port = uri.split("/")[2].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    try:
        async with asyncio.timeout(5):
            return await reader.read()
    finally:
        writer.close()


async def get(uri: str, target: str, *, method: str = "GET", host: str | None = None, more: str = "") -> tuple[int, str]:
    """Status of an answer, and all of it."""
    host = uri.split("/")[2] if host is None else host
    text = (await knock(uri, f"{method} {target} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n".encode())).decode()
    return int(text.split(" ")[1]), text


class Browser:
    """What opens pages: it keeps them."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.pages: list[str] = []
        self._loop = asyncio.get_running_loop()

    def __call__(self, url: str) -> bool:
        self.pages.append(url)
        self._loop.call_soon_threadsafe(self.opened.set)
        return True


@contextlib.asynccontextmanager
async def login(url: str = PAGE, **options: Any) -> AsyncIterator[tuple[RedirectReceiver, "asyncio.Task[str]"]]:
    """A receiver that has opened a page and waits."""
    browser = Browser()
    async with RedirectReceiver(open_page=browser, **options) as receiver:
        task = asyncio.create_task(receiver(url))
        await browser.opened.wait()
        assert browser.pages == [url]
        try:
            yield receiver, task
        finally:
            task.cancel()


async def test_the_browser_comes_back() -> None:
    """AC-16."""
    async with login() as (receiver, task):
        assert receiver.redirect_uri.startswith("http://127.0.0.1:")
        status, page = await get(receiver.redirect_uri, BACK)
        assert await task == receiver.redirect_uri + BACK.removeprefix("/callback")
        assert status == 200
        head, _, body = page.partition("\r\n\r\n")
        for line in ("Cache-Control: no-store", "Content-Security-Policy: default-src 'none'", "Referrer-Policy: no-referrer"):
            assert line in head
        assert "s3cr3t" not in page
        assert "<script" not in body
        assert (await get(receiver.redirect_uri, BACK))[0] == 404  # once
    assert "s3cr3t" not in repr(receiver)


async def test_errors_of_the_authorization_server_come_back_too() -> None:
    async with login() as (receiver, task):
        target = "/callback?error=access_denied&error_description=%3Cscript%3Ealert(1)%3C/script%3E&state=st+ate"
        status, page = await get(receiver.redirect_uri, target)
        assert (await task).endswith(target.removeprefix("/callback"))
        assert status == 200
        assert "alert" not in page
        assert "denied" not in page


@pytest.mark.parametrize(
    ("target", "method", "expected"),
    [
        ("/favicon.ico", "GET", 404),
        ("/", "GET", 404),
        ("/callback/", "GET", 404),
        ("/callback2?code=x&state=st%20ate", "GET", 404),
        ("//callback?code=x&state=st%20ate", "GET", 404),
        (BACK, "POST", 405),
        (BACK, "HEAD", 405),
        ("/callback?code=x", "GET", 400),
        ("/callback?code=x&state=other", "GET", 400),
        ("/callback?code=x&state=st%20ate&state=other", "GET", 400),
        ("http://127.0.0.1/callback?code=x&state=st%20ate", "GET", 400),
    ],
)
async def test_what_does_not_count(target: str, method: str, expected: int) -> None:
    """SC-07: what others send does not end a login."""
    async with login() as (receiver, task):
        status, page = await get(receiver.redirect_uri, target, method=method)
        assert status == expected
        assert "other" not in page.lower().replace("other login", "")
        assert not task.done()
        await get(receiver.redirect_uri, BACK)
        assert await task


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", "", "127.0.0.1:{port}, evil.example"])
async def test_another_host_name_is_dns_rebinding(host: str) -> None:
    """SC-03."""
    async with login() as (receiver, task):
        port = receiver.redirect_uri.split(":")[2].split("/")[0]
        assert (await get(receiver.redirect_uri, BACK, host=host.format(port=port)))[0] == 400
        assert (await get(receiver.redirect_uri, BACK, more=f"Host: 127.0.0.1:{port}\r\n"))[0] == 400
        assert not task.done()


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
async def test_localhost_leads_here_too() -> None:
    """AC-11: a redirect URI for authorization servers that take nothing else."""
    async with login() as (receiver, task):
        if len(receiver.redirect_uris) == 1:
            pytest.skip("no ::1 here")
        port = receiver.redirect_uri.split(":")[2].split("/")[0]
        assert receiver.redirect_uris[1] == f"http://localhost:{port}/callback"
        reader, writer = await asyncio.open_connection("::1", int(port))
        writer.write(f"GET {BACK} HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n".encode())
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()
        assert await task == f"http://localhost:{port}{BACK}"


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /callback?code=x&state=st%20ate\r\n\r\n",
        b"GET /callback?code=x&state=st%20ate HTTP/2.0\r\nHost: HOST\r\n\r\n",
        b"GET  /callback HTTP/1.1\r\nHost: HOST\r\n\r\n",
        b"GET /callback?code=\x00&state=st%20ate HTTP/1.1\r\nHost: HOST\r\n\r\n",
        b"GET /callback?code=\xff&state=st%20ate HTTP/1.1\r\nHost: HOST\r\n\r\n",
        b"GET /callback?code=x&state=st%20ate#y HTTP/1.1\r\nHost: HOST\r\n\r\n",
        b"GET /callback?code=x&state=st%20ate HTTP/1.1\r\nHost: HOST\r\nno header\r\n\r\n",
        b"GET /callback?code=x&state=st%20ate HTTP/1.1\r\nHost: HOST\r\n folded\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    ],
)
async def test_requests_that_are_none(data: bytes) -> None:
    async with login() as (receiver, task):
        answer = await knock(receiver.redirect_uri, data.replace(b"HOST", receiver.redirect_uri.split("/")[2].encode()))
        assert answer.startswith(b"HTTP/1.1 400")
        assert not task.done()


async def test_a_head_may_be_too_large_or_never_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redirect, "HEAD_TIME", 0.05)
    async with login() as (receiver, task):
        answer = await knock(receiver.redirect_uri, b"GET /callback?code=" + b"x" * 3 * redirect.MAX_HEAD)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 431")
        with contextlib.suppress(ConnectionResetError):
            assert await knock(receiver.redirect_uri, b"GET /callback?code=x HTTP/1.1\r\nHost: ") == b""
        assert not task.done()
        await get(receiver.redirect_uri, BACK)
        assert await task


async def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redirect, "MAX_CONNECTIONS", 2)
    async with login() as (receiver, task):
        port = int(receiver.redirect_uri.split(":")[2].split("/")[0])
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        assert (await get(receiver.redirect_uri, BACK))[0] == 200  # whoever fills them and says nothing keeps nobody out
        assert await task
    for reader, writer in idle:
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""  # the oldest is cut for the one that comes, the others when the block is left
        writer.close()


async def test_nobody_comes_back() -> None:
    with pytest.raises(AuthorizationFailed, match=r"nobody came back .* within 0.05 s; log in again") as caught:
        async with login(timeout=0.05) as (_, task):
            await task
    assert "as.example" in str(caught.value)
    assert "st%20ate" not in str(caught.value)
    async with login(timeout=0.3) as (receiver, task):
        await get(receiver.redirect_uri, "/callback?state=a")
        await get(receiver.redirect_uri, "/callback?state=b")
        with pytest.raises(AuthorizationFailed, match="2 answers of other logins"):
            await task


@pytest.mark.parametrize("url", ["javascript:alert(1)", "file:///etc/passwd", "data:text/html,x", "https:///x", "-x"])
async def test_pages_that_no_browser_is_sent_to(url: str) -> None:
    """SC-07."""
    browser = Browser()
    async with RedirectReceiver(open_page=browser) as receiver:
        with pytest.raises(AuthorizationFailed, match="http and https"):
            await receiver(url)
    assert browser.pages == []


def fails(url: str) -> bool:
    raise OSError(url)


@pytest.mark.parametrize("opener", [lambda url: False, fails])
async def test_without_a_browser_the_page_is_shown(opener: Callable[[str], bool]) -> None:
    shown: asyncio.Queue[str] = asyncio.Queue()
    async with RedirectReceiver(open_page=opener, show=shown.put_nowait) as receiver:
        task = asyncio.create_task(receiver(PAGE))
        assert PAGE in await shown.get()
        await get(receiver.redirect_uri, BACK)
        assert await task


async def test_logins_come_one_after_the_other() -> None:
    browser = Browser()
    async with RedirectReceiver(open_page=browser) as receiver:
        first, second = (asyncio.create_task(receiver(f"https://as.example/?state={state}")) for state in "ab")
        await browser.opened.wait()
        assert (await get(receiver.redirect_uri, "/callback?state=b"))[0] == 400
        browser.opened.clear()
        await get(receiver.redirect_uri, "/callback?state=a")
        assert (await first).endswith("state=a")
        await browser.opened.wait()
        await get(receiver.redirect_uri, "/callback?state=b")
        assert (await second).endswith("state=b")


async def test_a_port_that_is_taken() -> None:
    async with RedirectReceiver() as receiver:
        port = int(receiver.redirect_uri.split(":")[2].split("/")[0])
        with pytest.raises(AuthorizationFailed, match="choose another port"):
            async with RedirectReceiver(port=port):
                pass
    async with RedirectReceiver(port=port, path="/oauth/back") as fixed:
        assert fixed.redirect_uri == f"http://127.0.0.1:{port}/oauth/back"
    with pytest.raises(RuntimeError, match="async with"):
        assert fixed.redirect_uri


async def test_the_port_is_taken_again() -> None:
    """The redirect URI may have been registered (AC-11)."""
    receiver = RedirectReceiver()
    async with receiver:
        uri = receiver.redirect_uri
    async with receiver:
        assert receiver.redirect_uri == uri
    async with RedirectReceiver(port=int(uri.split(":")[2].split("/")[0])), receiver:
        assert receiver.redirect_uri != uri  # somebody else has it now


@pytest.mark.parametrize("path", ["", "callback", "/a b", "/a?b", "/a#b", "/\r\n", "/é"])
def test_paths_that_are_none(path: str) -> None:
    with pytest.raises(ValueError, match="is no path"):
        RedirectReceiver(path=path)


async def test_nothing_is_left_when_a_login_is_given_up() -> None:
    before = asyncio.all_tasks()
    async with login() as (receiver, task):
        idle = await asyncio.open_connection("127.0.0.1", int(receiver.redirect_uri.split(":")[2].split("/")[0]))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await get(receiver.redirect_uri, BACK))[0] == 404
    idle[1].close()
    assert asyncio.all_tasks() == before


async def test_a_real_user_agent() -> None:
    def browse(url: str) -> bool:
        back = url.partition("back=")[2].partition("&")[0]
        with urllib.request.urlopen(f"{back}?code=1&state=z", timeout=5) as answer:
            assert answer.status == 200
        return True

    async with RedirectReceiver(open_page=browse) as receiver:
        back = await receiver(f"https://as.example/?back={receiver.redirect_uri}&state=z")
        assert back == f"{receiver.redirect_uri}?code=1&state=z"


@given(st.binary(max_size=80))
def test_any_head_is_read_or_refused(data: bytes) -> None:
    for head in (data, b"GET /" + data + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n" + data + b"\r\n\r\n"):
        found = redirect._parse(head)
        if found is not None:
            assert found.target.startswith("/")
            assert found.target.isprintable()

"""Through nginx: what its reloads and restarts of Callboard cost, workers of which each knows its own sessions, a Unix socket."""

import asyncio
import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import aiohttp
import pytest
from e2e.http_clients import HttpClient, events, whole
from e2e.proxies import LIMIT, VERSIONS, Proxy, Visitor, ask, backend, call, fenced, next_event, nginx, post
from e2e.serving import HERE, process
from source_tree import ROOT

SHORT = {"worker_shutdown_timeout 30s": "worker_shutdown_timeout 1s"}
PAGE = ROOT / "docs" / "deploy" / "nginx.md"
each_version = pytest.mark.parametrize("version", VERSIONS)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with backend(tmp_path_factory.mktemp("backend")) as (_, port):
        yield port


@pytest.fixture(scope="module")
def proxy(port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    with nginx(tmp_path_factory.mktemp("nginx"), f"127.0.0.1:{port}", SHORT) as started:
        yield started


async def test_reloads_of_the_proxy_lose_no_call(proxy: Proxy) -> None:
    """Each over a connection of its own, while nginx reads its file anew five times; one call is longer than a reload."""
    async with asyncio.timeout(LIMIT):
        async with proxy.client() as client:
            slow = asyncio.create_task(ask(client, "ticks", count=4, pause=0.1))
            answers = []
            for number in range(50):
                if number % 10 == 0:
                    proxy.reload()
                async with proxy.client() as fresh:
                    answers.append(await ask(fresh, "measure", text="x" * number))
            assert answers == [str(number) for number in range(50)]
            assert await slow == "done"


@each_version
async def test_a_stream_that_a_reload_cuts_off_is_taken_up_where_it_was(proxy: Proxy, version: str) -> None:
    """`worker_shutdown_timeout` ends it; with the last event's id nothing is lost, and nothing comes twice (SS-19)."""
    async with asyncio.timeout(LIMIT):
        async with proxy.client(version) as before:
            visitor = Visitor(before)
            await visitor.begin()
            async with visitor.listen() as answer:
                assert (await answer.head()).status == 200
                async with proxy.client() as other:
                    await ask(other, "shout", line="first")
                last, message = await next_event(answer)
                assert message["params"]["data"] == "first"
                proxy.reload()
                with suppress(aiohttp.ClientPayloadError):
                    await whole(answer)
        async with proxy.client(version) as after:
            for line in ("second", "third"):
                await ask(after, "shout", line=line)
            again = Visitor(after)
            again.session = visitor.session
            async with again.listen(last) as answer:
                stream = events(answer)
                assert [json.loads((await anext(stream)).data)["params"]["data"] for _ in range(2)] == ["second", "third"]


async def first_answer(client: HttpClient, visitor: Visitor | None = None) -> int:
    """The first status that is not 502: nginx says that while nobody is behind it."""
    while True:
        if visitor is not None:
            status = (await visitor.send("tools/call", {"name": "tally", "arguments": {}}))[0]
        else:
            async with client.request("POST", *call("caller")) as answer:
                status = (await answer.head()).status
        if status != 502:
            return status
        await asyncio.sleep(0.05)


async def test_a_restart_behind_the_proxy_ends_streams_in_order_and_then_all_goes_on(tmp_path: Path) -> None:
    """SIGTERM: a listen stream gets its closing result. A session of one process is gone with it: 404 has the client begin anew (SS-21)."""
    with backend(tmp_path) as (old, port), nginx(tmp_path / "nginx", f"127.0.0.1:{port}") as proxy:
        async with asyncio.timeout(LIMIT), proxy.client() as client:
            visitor = Visitor(client)
            await visitor.begin()
            wanted = post("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
            async with client.request("POST", *wanted) as answer:
                stream = events(answer)
                await anext(stream)
                old.send_signal(signal.SIGTERM)
                assert "result" in json.loads([event.data async for event in stream][-1])
            assert await asyncio.to_thread(old.wait, 10) == 0
            async with client.request("POST", *call("caller")) as answer:
                assert (await answer.head()).status == 502
            started = backend(tmp_path, port)
            await asyncio.to_thread(started.__enter__)
            try:
                assert await first_answer(client) == 200
                assert await first_answer(client, visitor) == 404
                visitor.session = ""
                await visitor.begin()
                assert await visitor.call("tally") == "1"
            finally:
                await asyncio.to_thread(started.__exit__, None, None, None)


@contextmanager
def pinned(folder: Path) -> Iterator[Proxy]:
    """Two processes that know nothing of each other, behind the guide's lines."""
    around, inside = fenced(PAGE, "nginx")
    with backend(folder, None, WORKER="a-") as (_, first), backend(folder, None, WORKER="b-") as (_, second):
        lines = around.replace("127.0.0.1:8001", f"127.0.0.1:{first}").replace("127.0.0.1:8002", f"127.0.0.1:{second}")
        # The file's own upstream gives way to the guide's.
        text = (ROOT / "examples" / "deploy" / "nginx.conf").read_text(encoding="utf-8")
        whole_upstream = text[text.index("    upstream callboard {") : text.index("    # Anybody who asks")]
        changes = {whole_upstream: f"# 127.0.0.1:8000\n{lines}\n", "proxy_pass http://callboard;": inside.strip()}
        with nginx(folder / "nginx", "127.0.0.1:8000", changes) as proxy:
            yield proxy


async def test_ids_that_name_their_worker_lead_to_it(tmp_path: Path) -> None:
    """Without a store: each session's calls come to its process, new ones go to both; hashing the id would not do."""
    with pinned(tmp_path) as proxy:
        async with asyncio.timeout(LIMIT):
            seen = set()
            for _ in range(8):
                async with proxy.client() as client:
                    visitor = Visitor(client)
                    await visitor.begin()
                    processes = {await visitor.call("process") for _ in range(4)}
                    assert len(processes) == 1
                    assert [await visitor.call("tally") for _ in range(2)] == ["1", "2"]
                    seen |= {visitor.session[:2]}
                    assert processes.pop().startswith(visitor.session[:2])
            assert seen == {"a-", "b-"}


def wait_for(path: Path) -> None:
    """Returns once a socket is there."""
    deadline = time.monotonic() + LIMIT
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


async def test_a_unix_socket_in_place_of_a_port(tmp_path: Path) -> None:
    """Nobody gets past the proxy there; FORWARDED_ALLOW_IPS=* has it believed, since the peer of such a socket has no address."""
    path = tmp_path / "s"
    command = [sys.executable, "-m", "callboard", "run", str(HERE / "proxied_server.py"), "--uds", str(path)]
    with process(["env", "FORWARDED_ALLOW_IPS=*", *command], tmp_path / "callboard.log"):
        await asyncio.to_thread(wait_for, path)
        with nginx(tmp_path / "nginx", f"unix:{path}") as proxy:
            async with asyncio.timeout(LIMIT), proxy.client() as client:
                assert await ask(client, "caller", headers={"x-forwarded-for": "203.0.113.9"}) == "127.0.0.1"
                visitor = Visitor(client)
                await visitor.begin()
                assert await visitor.call("tally") == "1"

"""Through Caddy, with the file of examples/deploy: events at once, silence, who leaves, limits, restarts.

Its time limits are scaled to 2 s, and what Callboard says into silence to each second.
"""

import asyncio
import json
import time
from collections.abc import Iterator

import pytest
from e2e.http_clients import HttpClient, events, whole
from e2e.proxies import LIMIT, NAME, VERSIONS, Proxy, Visitor, ask, backend, caddy, call, next_event, post

SCALED = {"read_header 10s": "read_header 2s", "read_body 30s": "read_body 2s", "idle 2m": "idle 2s"}
SILENCE = 7.0  # seconds, more than three of these
each_version = pytest.mark.parametrize("version", VERSIONS)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with backend(tmp_path_factory.mktemp("backend"), KEEP_ALIVE="1") as (_, port):
        yield port


@pytest.fixture(scope="module")
def proxy(port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    with caddy(tmp_path_factory.mktemp("caddy"), f"127.0.0.1:{port}", SCALED) as started:
        yield started


@each_version
async def test_progress_arrives_within_100_ms(proxy: Proxy, version: str) -> None:
    """The best of three rounds: a busy machine is late now and then, a proxy that holds back always."""
    rounds = []
    async with asyncio.timeout(LIMIT), proxy.client(version) as client:
        for _ in range(3):
            found = []
            async with client.request("POST", *call("ticks", token="t", count=30, pause=0.02)) as answer:
                async for event in events(answer):
                    message = json.loads(event.data)
                    if "params" in message:
                        found.append(time.monotonic() - float(message["params"]["message"]))
            assert len(found) > 10
            rounds.append(max(found))
            if rounds[-1] < 0.1:
                return
    raise AssertionError(f"progress took {min(rounds)} s")


async def start(client: HttpClient, tool: str, name: str) -> None:
    """Calls a tool that does not come to an end."""
    async with client.request("POST", *call(tool, token="t", name=name)) as answer:
        await whole(answer)


@each_version
@pytest.mark.parametrize("tool", ["hold", "mute"])
async def test_a_client_that_goes_away_cancels_its_call(proxy: Proxy, version: str, tool: str) -> None:
    """`flush_interval -1`, which guides often name, would keep the call running in newer versions of Caddy (SA25)."""
    async with asyncio.timeout(LIMIT), proxy.client(version) as client:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(start(client, tool, version), 0.5)
        assert await ask(client, "released") == version


async def sit_still(proxy: Proxy, version: str, over: asyncio.Barrier) -> list[str]:
    """What silent streams hear once silence is over for all: a listen stream and that of a session."""
    async with proxy.client(version) as client:
        visitor = Visitor(client)
        await visitor.begin()
        wanted = post("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        async with client.request("POST", *wanted) as listening, visitor.listen() as watching:
            stream = events(listening)
            assert "acknowledged" in (await anext(stream)).data
            changed = asyncio.ensure_future(anext(stream))
            waiting = [changed, heard := asyncio.ensure_future(next_event(watching))]
            assert not (await asyncio.wait(waiting, timeout=SILENCE))[0], "a stream ended, or spoke, too early"
            await over.wait()
            await ask(client, "announce", name=f"encore-{version}")
            return [json.loads((await changed).data)["method"], (await heard)[1]["method"]]


async def test_silent_streams_live_on(proxy: Proxy) -> None:
    """A16."""
    over = asyncio.Barrier(len(VERSIONS))
    async with asyncio.timeout(LIMIT + SILENCE):
        found = await asyncio.gather(*(sit_still(proxy, version, over) for version in VERSIONS))
    assert found == [["notifications/tools/list_changed"] * 2] * len(VERSIONS)


async def test_the_rest_of_it(proxy: Proxy) -> None:
    """Names, paths, who asks, sessions and their verbs, limits."""
    headers, body = call("caller")
    async with asyncio.timeout(LIMIT), proxy.client() as client:
        assert await ask(client, "caller", headers={"x-forwarded-for": "203.0.113.9"}) == "127.0.0.1"
        visitor = Visitor(client)
        await visitor.begin()
        assert [await visitor.call("tally"), await visitor.call("tally")] == ["1", "2"]
        async with client.request("DELETE", visitor.headers()) as answer:
            assert (await answer.head()).status == 204
        for origin, status in ((f"https://{NAME}", 200), ("https://evil.example", 403)):
            async with client.request("POST", {**headers, "origin": origin}, body) as answer:
                assert (await answer.head()).status == status
        async with client.request("POST", {**headers, "x-token": "t" * 15_000}, body) as answer:
            assert (await answer.head()).status == 200


def sized_call(size: int) -> tuple[dict[str, str], bytes]:
    """A call whose body has so many bytes."""
    headers, body = call("measure", text="")
    return headers, body.replace(b'"text": ""', b'"text": "%s"' % (b"x" * (size - len(body))))


async def test_bodies_up_to_the_limit_pass(proxy: Proxy) -> None:
    limit = 4 * 2**20
    async with asyncio.timeout(LIMIT), proxy.client() as client:
        for size, status in ((limit, 200), (limit + 1, 413)):
            async with client.request("POST", *sized_call(size)) as answer:
                assert (await answer.head()).status == status
                assert ("max_body" in (await whole(answer)).decode()) == (status == 413)

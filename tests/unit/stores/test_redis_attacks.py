"""The store in Redis against a Redis that says odd things, strangers who write into it, and callers who leave."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from redis_server import RedisServer, needs_redis, redis_server  # noqa: F401 - the fixture

from callboard.errors import StoreError
from callboard.server.seals import ROOT, find_secret
from callboard.stores.redis import RedisStore, Script
from callboard.stores.topics import LOST

Answer = Callable[[list[bytes]], bytes]


@asynccontextmanager
async def odd_redis(answer: Answer) -> AsyncIterator[str]:
    """Something at a port that answers each command as told; its URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readline():
                parts = []
                for _ in range(int(head[1:])):
                    size = int((await reader.readline())[1:])
                    parts.append((await reader.readexactly(size + 2))[:-2])
                writer.write(answer(parts))
                await writer.drain()
        except (OSError, EOFError, ValueError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"redis://user:hunter2@127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
    finally:
        server.close()
        await server.wait_closed()


def know_nothing(parts: list[bytes]) -> bytes:
    """As a Redis says that it knows no such command: with all that it was given."""
    if parts[0] in {b"AUTH", b"PING", b"CLIENT", b"SELECT"}:
        return b"+OK\r\n"
    given = b" ".join(b"'%s'" % part for part in parts[1:])
    return b"-ERR unknown command '%s', with args beginning with: %s\r\n" % (parts[0], given)


async def test_what_a_command_was_given_is_in_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async with odd_redis(know_nothing) as url:
        store = RedisStore(url, timeout=1.0, prefix="s3cr3t")
        with caplog.at_level(logging.DEBUG), pytest.raises(StoreError, match="unknown command 'SET'") as caught:
            await store.open()
        await store.close()
    assert "s3cr3t" not in str(caught.value) + caplog.text
    assert "hunter2" not in str(caught.value) + caplog.text


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (b"-WRONGPASS hunter2 is not it", r"refuses the password in the URL, or its user \(WRONGPASS\): write redis://:password@127"),
        (
            b"-ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?",
            "wants no password of its default user",
        ),
        (b"-NOAUTH Authentication required.", "refuses the password in the URL"),
    ],
)
async def test_who_is_not_let_in_learns_the_way_in_and_no_password(said: bytes, told: str, caplog: pytest.LogCaptureFixture) -> None:
    # HH-12
    async with odd_redis(lambda parts: said + b"\r\n" if parts[0] == b"AUTH" else b"+OK\r\n") as url:
        store = RedisStore(url, timeout=5.0)
        with caplog.at_level(logging.DEBUG), pytest.raises(StoreError, match=f"{told}.*redis://user:password@127") as caught:
            await store.open()
        await store.close()
    assert "hunter2" not in str(caught.value) + caplog.text


ODD = [
    b"*-1\r\n",
    b":7\r\n",
    b"$-1\r\n",
    b"*1\r\n*2\r\n$1\r\nx\r\n:9\r\n",
    b"*2\r\n$1\r\na\r\n$1\r\nb\r\n",
    b"?what\r\n",
    b"-\r\n",
    b"-MOVED 1 127.0.0.1:1\r\n",
    b"-LOADING wait\r\n",
    b"-READONLY no\r\n",
    b"-NOSCRIPT no\r\n",
    b"$3\r\nabc\r\n+twice\r\n",
]


@pytest.mark.parametrize("said", ODD)
async def test_whatever_it_says_ends_in_a_store_error(said: bytes) -> None:
    def answer(parts: list[bytes]) -> bytes:
        return b"+OK\r\n" if parts[0] in {b"AUTH", b"PING", b"CLIENT", b"SELECT"} else said

    before = asyncio.all_tasks()
    async with odd_redis(answer) as url:
        store = RedisStore(url, timeout=0.3)
        async with asyncio.timeout(10):
            with pytest.raises(StoreError):
                await store.open()
            await store.close()
    left = {task for task in asyncio.all_tasks() - before if "serve" not in repr(task.get_coro())}
    assert left == set(), "nothing runs on"


async def hear(heard: list[bytes], message: bytes) -> None:
    """Wait until a message is there."""
    async with asyncio.timeout(8):
        while message not in heard:  # noqa: ASYNC110 - the Bus has nothing else to wait for
            await asyncio.sleep(0.01)


@asynccontextmanager
async def opened(url: str, name: str) -> AsyncIterator[RedisStore]:
    """A store of one server."""
    store = RedisStore(url, prefix="attacks")
    store.name(name)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


FOREIGN: list[tuple[str | bytes, ...]] = [
    ("x", "y"),
    ("t", b"\xff\xfe", "m", "x", "n", "1"),
    ("t", "news", "m", "x", "n", "9" * 5000),
    ("t", "news", "m", "x", "n", "-5"),
    ("t", "news", "m", "x", "n", ""),
    ("t", "news", "m", "x", "n", "1", "more", "more"),
    ("", ""),
]


@needs_redis
@pytest.mark.parametrize("fields", FOREIGN)
async def test_a_stranger_in_the_stream_stops_nobody(redis_server: RedisServer, fields: tuple[str | bytes, ...]) -> None:  # noqa: F811
    async with opened(redis_server.url, "stream") as store:
        heard: list[bytes] = []
        lost: list[bytes] = []
        store.bus.subscribe("news", heard.append)
        store.bus.subscribe(LOST, lost.append)
        await store.execute("XADD", store.key("{bus}"), "*", *fields)
        for number in range(3):
            store.bus.publish("news", b"%d" % number)
        await hear(heard, b"2")
        assert [each for each in heard if each != b"x"] == [b"0", b"1", b"2"]
        await store.execute("DEL", store.key("{bus}"), store.key("{bus}", "size"))


@needs_redis
@pytest.mark.parametrize("spoil", ["count", "size", "stream"])
async def test_a_bus_whose_keys_were_spoiled_works_again_once_they_are_right(
    redis_server: RedisServer,  # noqa: F811
    spoil: str,
) -> None:
    async with opened(redis_server.url, f"spoiled-{spoil}") as store:
        heard: list[bytes] = []
        store.bus.subscribe("news", heard.append)
        stream, size = store.key("{bus}"), store.key("{bus}", "size")
        if spoil == "count":
            await store.execute("HSET", size, "count", "many")
        else:
            key = size if spoil == "size" else stream
            await store.execute("DEL", key)
            await store.execute("SET", key, "a text")
        store.bus.publish("news", b"1")
        link = store._link
        assert link is not None
        link.cut("as a broken connection would")
        await asyncio.sleep(0.4)
        await store.execute("DEL", stream, size)
        await hear(heard, b"1")
        store.bus.publish("news", b"2")
        await hear(heard, b"2")


@needs_redis
async def test_who_leaves_in_the_middle_of_a_pipeline_mixes_no_answers(redis_server: RedisServer) -> None:  # noqa: F811
    async with opened(redis_server.url, "pipeline") as store:
        for wait in range(4):
            calls = [asyncio.ensure_future(store.execute("ECHO", str(number))) for number in range(300)]
            for _ in range(wait):
                await asyncio.sleep(0)
            for call in calls[::3]:
                call.cancel()
            ended = await asyncio.gather(*calls, return_exceptions=True)
            assert all(each == str(number).encode() for number, each in enumerate(ended) if number % 3)


@needs_redis
async def test_a_command_of_the_wrong_kind_costs_nobody_else_an_answer(redis_server: RedisServer) -> None:  # noqa: F811
    async with opened(redis_server.url, "kinds") as store:
        key = store.key("k")
        await store.execute("SET", key, "text")
        wrong = [
            store.execute("HGET", key, "f"),
            store.execute("NOSUCH", key),
            store.execute("GET"),
            store.run(Script("return redis.call('HGET', KEYS[1], 'f')"), (key,)),
            store.run(Script("this is no Lua"), (key,)),
            store.run(Script("error('x')"), (key,)),
            store.run(Script("return redis.error_reply('MY own')"), (key,)),
        ]
        ended = await asyncio.gather(*wrong, *(store.execute("GET", key) for _ in wrong), return_exceptions=True)
        assert [type(each) for each in ended[: len(wrong)]] == [StoreError] * len(wrong)
        assert ended[len(wrong) :] == [b"text"] * len(wrong)
        for bad in (None, object(), ["a"], {"a": 1}):
            with pytest.raises((TypeError, ValueError, StoreError)):
                await store.execute("SET", key, bad)
        assert await store.execute("GET", key) == b"text"


@needs_redis
async def test_what_waits_when_it_is_closed_is_told(redis_server: RedisServer) -> None:  # noqa: F811
    async with opened(redis_server.url, "closed") as store:
        calls = [asyncio.ensure_future(store.execute("BLPOP", store.key(f"never{number}"), 60)) for number in range(3)]
        await asyncio.sleep(0.1)
        async with asyncio.timeout(10):
            await store.close()
            ended = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(each) for each in ended] == [StoreError] * 3
        with pytest.raises(StoreError, match="not open"):
            await store.execute("PING")
        await store.open()
        assert await store.execute("PING") in {b"PONG", "PONG"}


@needs_redis
async def test_servers_with_odd_names_meet_in_no_key(redis_server: RedisServer) -> None:  # noqa: F811
    names = ["a", "a:kv", "a:kv:x", "{a}", "a{", "%7Ba%7D", "a b", "a*", "*", "\u00e9", "e\u0301", "A", "\n", "kv"]
    keys = set()
    for name in names:
        async with opened(redis_server.url, name) as store:
            assert await store.kv.put("x", name.encode(), expect=0) is not None, name
            keys.add(store.key("kv", "x"))
            assert "{" not in store.key(""), "no name decides which slot of a cluster everything is in"
    assert len(keys) == len(names)


@needs_redis
@pytest.mark.parametrize("put", [b"", b"x", b"1234567", b"12345678", b"123456789"])
async def test_what_somebody_else_has_put_where_the_secret_is_keeps_nobody_waiting_for_ever(
    redis_server: RedisServer,  # noqa: F811
    put: bytes,
) -> None:
    async with opened(redis_server.url, "secret") as store:
        key = store.key("kv", ROOT)
        await store.execute("SET", key, put)
        async with asyncio.timeout(5):
            if len(put) < 8:
                with pytest.raises(StoreError, match="Somebody else"):
                    await find_secret(store.kv)
            else:
                secret = await find_secret(store.kv)
                assert len(secret) == 32
                assert await find_secret(store.kv) == secret
        await store.execute("DEL", key)

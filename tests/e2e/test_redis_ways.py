"""All that a store's URL can say: passwords, databases, TLS, sockets, sentinels, clusters. What is wrong is named, and no password shown."""

import asyncio
import logging
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from redis_server import LIMIT, Proxy, RedisServer, free_port, needs_redis, require_program

from callboard.errors import StoreError
from callboard.stores.redis import RedisStore, Script

pytestmark = needs_redis
PASSWORD = "geheim/+ä"  # as a URL has it: percent-encoded
IN_URL = "geheim%2F+%C3%A4"
MOVE = Script("return redis.call('INCRBY', KEYS[1], redis.call('STRLEN', KEYS[2]) + 1)")


@asynccontextmanager
async def opened(url: str, name: str = "ways", patience: float = 2.0) -> AsyncIterator[RedisStore]:
    store = RedisStore(url, timeout=patience)
    store.name(name)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def until(holds: object) -> None:
    assert callable(holds)
    async with asyncio.timeout(LIMIT):
        while not holds():  # noqa: ASYNC110 - it is true in another process
            await asyncio.sleep(0.01)


async def use(url: str) -> None:
    """Everything once: keys, a log, the Bus, messages to workers."""
    async with opened(url) as store, opened(url) as other:
        heard: list[bytes] = []
        other.bus.subscribe("t", heard.append)
        other.direct = heard.append
        await asyncio.gather(*(store.kv.put(f"k{number}", b"%d" % number, ttl=100) for number in range(20)))
        found = [await other.kv.get(f"k{number}") for number in range(20)]
        assert [entry and entry.value for entry in found] == [b"%d" % number for number in range(20)]
        assert found[3] is not None
        assert await other.kv.put("k3", b"new", expect=found[3].version) is not None
        number = await store.log.append("s", b"event", keep=10)
        assert [event.id for event in await other.log.read("s", number - 1)] == [number]
        await store.log.drop("s")
        tag = "{" + store.worker + "}"
        assert await store.run(MOVE, (store.key(tag, "a"), store.key(tag, "b"))) == 1
        store.bus.publish("t", b"bus")
        store.tell(other.worker, b"direct")
        await until(lambda: sorted(heard) == [b"bus", b"direct"])
        assert await store.alive(other.worker)
        await store.check()


async def refusal(url: str) -> str:
    """Why a store can't be opened, shown without what is secret."""
    store = RedisStore(url, timeout=1.0)
    with pytest.raises(StoreError) as caught:
        await store.open()
    told = f"{caught.value!r} {caught.value} {caught.value.__cause__!r} {store!r}"
    assert "geheim" not in told
    assert "%C3" not in told
    return str(caught.value)


@pytest.fixture(scope="module")
def guarded() -> Iterator[RedisServer]:
    """One with a password, and a socket."""
    require_program()
    with RedisServer(requirepass=PASSWORD, unixsocket="redis.sock", databases=4) as made:
        yield made


async def test_a_password_opens_and_a_wrong_one_is_told_at_once(guarded: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    where = f"127.0.0.1:{guarded.port}"
    with caplog.at_level(logging.DEBUG):
        await use(f"redis://:{IN_URL}@{where}/0")
        await use(f"redis://default:{IN_URL}@{where}/2")
        for wrong in ("redis://:geheimer", "redis://ann:geheimer", "redis://ann", "redis+cluster://:geheimer"):
            told = await refusal(f"{wrong}@{where}")
            assert (
                f"it refuses the password in the URL, or its user (WRONGPASS): write {wrong.partition(':')[0]}://:password@{where}" in told
            )
            assert "ann" not in told
        for bare in (f"redis://{where}/0", f"redis+cluster://{where}", f"unix://{guarded.folder}/redis.sock"):
            told, (scheme, _, place) = await refusal(bare), bare.partition("://")
            way = f"write {scheme}://:password@{place}, or {scheme}://user:password@{place}."
            assert told == f"The store {bare} can't be reached: it wants a password (NOAUTH), and the URL has none: {way}"
        told = await refusal(f"redis+sentinel://:{IN_URL}@{where}/main")
        assert f"the sentinel {where}: it wants a password (NOAUTH), and the URL has none: write ?sentinel_password=password" in told
        assert "DB index" in await refusal(f"redis://:{IN_URL}@{where}/9")
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("callboard")]
    assert "geheim" not in " ".join(ours)


async def test_a_user_that_may_do_what_docs_stores_md_says_is_enough(guarded: RedisServer) -> None:
    rules = ("on", ">geheim", "~callboard:*", "&callboard:*", "+@all", "-@dangerous")
    assert b"OK" in await asyncio.to_thread(guarded.cli, "ACL", "SETUSER", "board", *rules)
    await use(f"redis://board:geheim@127.0.0.1:{guarded.port}/0")
    store = RedisStore(f"redis://board:geheim@127.0.0.1:{guarded.port}/0", prefix="elsewhere", timeout=0.5)
    with pytest.raises(StoreError, match="refuses a command"):
        await store.open()


async def test_databases_are_apart_channels_and_all(guarded: RedisServer) -> None:
    """Channels know no databases: their names do."""
    base = f"redis://:{IN_URL}@127.0.0.1:{guarded.port}"
    async with opened(f"{base}/0") as first, opened(f"{base}/1") as second:
        heard: list[bytes] = []
        first.direct = second.direct = heard.append
        await first.kv.put("k", b"v")
        assert await second.kv.get("k") is None
        first.tell("all", b"1")
        await until(lambda: heard)
        await second.check()
        await asyncio.sleep(0.05)
        assert heard == [b"1"]


async def test_servers_of_one_redis_are_apart(guarded: RedisServer) -> None:
    url = f"redis://:{IN_URL}@127.0.0.1:{guarded.port}/0"
    async with opened(url, "a") as first, opened(url, "a:kv") as second, opened(url, "{b}") as third:
        await first.kv.put("kv:k", b"v")
        assert await second.kv.get("k") is None
        await third.kv.put("k", b"v")
        assert third.key("x") == "callboard:%7Bb%7D:x"


def test_uvloop_does_as_well(guarded: RedisServer) -> None:
    """What `callboard run` serves on."""
    uvloop = pytest.importorskip("uvloop")

    async def use_and_lose() -> None:
        with Proxy(guarded.port) as proxy:
            url = f"redis://:{IN_URL}@127.0.0.1:{proxy.port}/3"
            await use(url)
            async with opened(url, patience=0.5) as store:
                await asyncio.to_thread(proxy.freeze)
                with pytest.raises(StoreError, match="did not answer"):
                    await store.check()
                await until(lambda: store.epoch > 0)
                await store.check()

    uvloop.run(use_and_lose())


async def test_a_socket(guarded: RedisServer) -> None:
    await use(f"unix://:{IN_URL}@{guarded.folder}/redis.sock?db=1")
    assert "nowhere.sock" in await refusal(f"unix://:{IN_URL}@{guarded.folder}/nowhere.sock")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1, signed by itself."""
    folder = tmp_path_factory.mktemp("tls")
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("There is no openssl on PATH.")
    names = [
        "-subj",
        "/CN=127.0.0.1",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-keyout",
        f"{folder}/key.pem",
        "-out",
        f"{folder}/cert.pem",
    ]
    subprocess.run([program, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names], check=True, capture_output=True)
    return folder


async def test_tls(certificates: Path) -> None:
    port = free_port()
    files = {
        "tls_cert_file": certificates / "cert.pem",
        "tls_key_file": certificates / "key.pem",
        "tls_ca_cert_file": certificates / "cert.pem",
    }
    with RedisServer(tls_port=port, tls_auth_clients="no", **files):
        where = f"rediss://127.0.0.1:{port}/0"
        await use(f"{where}?ssl_ca_certs={certificates}/cert.pem")
        await use(f"{where}?ssl_cert_reqs=none")
        assert "certificate verify failed" in (await refusal(where)).lower()
        assert "can't be reached" in await refusal(f"redis://127.0.0.1:{port}/0")


async def monitor(sentinel: RedisServer, master: RedisServer) -> None:
    await asyncio.to_thread(sentinel.cli, "SENTINEL", "REMOVE", "main")
    assert b"OK" in await asyncio.to_thread(sentinel.cli, "SENTINEL", "MONITOR", "main", "127.0.0.1", str(master.port), "1")


async def test_sentinels_name_the_master_and_the_next_one() -> None:
    """A failover: the old master refuses writes, or is gone; the new one is asked for. What sentinels take 10 s for is done by hand."""
    with (
        RedisServer() as first,
        RedisServer(replicaof=f"127.0.0.1 {first.port}") as second,
        RedisServer(sentinel=True, save=None) as sentinel,
    ):
        await monitor(sentinel, first)
        url = f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{sentinel.port}/main/0"
        await use(url)
        assert "knows no master called 'other'" in await refusal(url.replace("/main/", "/other/"))
        await until(lambda: b"state=online" in first.cli("INFO", "replication"))
        async with opened(url) as store:
            version = await store.kv.put("k", b"before")
            assert version is not None
            await until(lambda: b"before" in second.cli("GET", store.key("kv", "k")))
            assert b"OK" in await asyncio.to_thread(second.cli, "REPLICAOF", "NO", "ONE")
            await monitor(sentinel, second)
            assert b"OK" in await asyncio.to_thread(first.cli, "REPLICAOF", "127.0.0.1", str(second.port))
            with pytest.raises(StoreError, match="refuses a command"):  # it was not done, and it is the caller's to try again
                await store.kv.put("k2", b"after")
            async with asyncio.timeout(LIMIT):
                while b"after" not in await asyncio.to_thread(second.cli, "GET", store.key("kv", "k2")):
                    with suppress(StoreError):
                        await store.kv.put("k2", b"after")
            assert await store.kv.get("k") == (b"before", version)


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[RedisServer, RedisServer]]:
    """Two nodes that share the slots."""
    require_program()
    with RedisServer(cluster_enabled="yes") as first, RedisServer(cluster_enabled="yes") as second:
        first.cli("CLUSTER", "MEET", "127.0.0.1", str(second.port))
        for server, slots in ((first, ("0", "8191")), (second, ("8192", "16383"))):
            if b"OK" not in server.cli("CLUSTER", "ADDSLOTSRANGE", *slots):
                pytest.skip("This Redis is older than 7.")
        for server in (first, second):
            for _ in range(500):
                if b"cluster_state:ok" in server.cli("CLUSTER", "INFO") and server.cli("CLUSTER", "SLOTS").count(b"127.0.0.1") == 2:
                    break
        yield first, second


async def test_a_cluster(cluster: tuple[RedisServer, RedisServer]) -> None:
    await use(f"redis+cluster://127.0.0.1:{free_port()},127.0.0.1:{cluster[1].port}")
    sizes = [int((await asyncio.to_thread(server.cli, "DBSIZE")).split()[-1]) for server in cluster]
    assert min(sizes) > 2, "what is in it lies on both nodes"


async def test_a_slot_that_moves_is_followed(cluster: tuple[RedisServer, RedisServer]) -> None:
    first, second = cluster
    async with opened(f"redis+cluster://127.0.0.1:{first.port}") as store:
        name = store.key("kv", "wanders")
        slot = (await asyncio.to_thread(first.cli, "CLUSTER", "KEYSLOT", name)).split()[-1].decode()
        owner, other = (first, second) if int(slot) < 8192 else (second, first)
        ids = {server: (await asyncio.to_thread(server.cli, "CLUSTER", "MYID")).split()[-1].decode() for server in cluster}
        assert b"OK" in await asyncio.to_thread(other.cli, "CLUSTER", "SETSLOT", slot, "IMPORTING", ids[owner])
        assert b"OK" in await asyncio.to_thread(owner.cli, "CLUSTER", "SETSLOT", slot, "MIGRATING", ids[other])
        version = await store.kv.put("wanders", b"asked")  # ASK: the owner has it no more
        assert version is not None
        for server in (other, owner):
            assert b"OK" in await asyncio.to_thread(server.cli, "CLUSTER", "SETSLOT", slot, "NODE", ids[other])
        assert await store.kv.get("wanders") == (b"asked", version)  # MOVED
        assert await store.kv.put("wanders", b"moved", expect=version) is not None

"""Parts of the store in Redis that need none: how commands are written, one line for an outage, what a store without a Redis says."""

import asyncio
import logging
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.errors import RegistrationError, StoreError
from callboard.stores.memory import MAX_KEPT, MemoryBus, MemoryStore
from callboard.stores.opening import open_store
from callboard.stores.redis import RedisStore, Script
from callboard.stores.redis_dial import Outage, _pack_slowly

PARTS = st.binary(max_size=20) | st.text(max_size=10).filter(lambda text: text.isprintable()) | st.integers(-(2**62), 2**62)


@given(st.lists(PARTS, min_size=1, max_size=6))
def test_commands_are_written_alike_with_and_without_hiredis(command: list[bytes | str | int]) -> None:
    hiredis = pytest.importorskip("hiredis")
    assert _pack_slowly(tuple(command)) == hiredis.pack_command(tuple(command))


def test_a_script_is_called_by_its_digest_and_given_whole_once_it_is_not_known() -> None:
    script = Script("return 1")
    assert script.digest == "e0e1f9fabfc9d4800c877a703b823ac0578ff8db"
    begin, end = b"*6\r\n$7\r\nEVALSHA\r\n$40\r\n", b"\r\n$1\r\n1\r\n$1\r\nk\r\n$1\r\n1\r\n$1\r\nx\r\n"
    assert script.call(("k",), (1, b"x")) == begin + script.digest.encode() + end
    assert b"$4\r\nEVAL\r\n$8\r\nreturn 1\r\n$1\r\n0\r\n" in script.call((), (), whole=True)


def test_an_outage_is_one_line_when_it_begins_and_one_when_it_has_ended(caplog: pytest.LogCaptureFixture) -> None:
    now = 10.0
    outage = Outage("redis://h:1/0", lambda: now)
    with caplog.at_level(logging.DEBUG):
        outage.back("a")
        outage.gone("a", "no answer within 2 s")
        outage.gone("a", "refused")
        outage.gone("b", "refused")
        now = 14.25
        outage.back("b")
        outage.back("a")
        outage.gone("b", "refused")
        outage.forget("b")
    assert [record.getMessage() for record in caplog.records] == [
        "The store redis://h:1/0 is gone: no answer within 2 s. Trying to get it back.",
        "The store redis://h:1/0 is back after 4.2 s.",
        "The store redis://h:1/0 is gone: refused. Trying to get it back.",
    ]
    assert outage.reason == ""


async def test_a_store_that_is_not_open_says_so() -> None:
    store = RedisStore("redis://h:1/0")
    for work in (store.execute("GET", "k"), store.run(Script("return 1"), ()), store.check(), store.kv.get("k"), store.alive("x")):
        with pytest.raises(StoreError, match=r"redis://h:1/0 is not open"):
            await work
    store.tell("all", b"lost")
    await store.close()
    assert not store.hears
    assert store.bus.position == ""


def test_a_store_without_redis_py_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['redis'] = None\n"
        "from callboard.errors import RegistrationError\n"
        "from callboard.stores.opening import open_store\n"
        "try: open_store('redis://h', 'server')\n"
        "except RegistrationError as error: print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60).stdout
    assert "pip install 'callboard[redis]'" in said


def test_what_is_no_store_is_refused() -> None:
    with pytest.raises(RegistrationError, match="begins with another scheme"):
        open_store("localhost:6379", "server")
    with pytest.raises(RegistrationError, match="not the class RedisStore"):
        open_store(RedisStore, "server")  # type: ignore[arg-type] # that is the mistake
    with pytest.raises(ValueError, match="shared=True"):
        MemoryStore().twin()


async def test_what_the_memory_keeps_of_its_bus_is_bounded() -> None:
    bus = MemoryBus()
    for number in range(MAX_KEPT[0] + 500):
        bus.publish("t", b"%d" % number)
    assert len(await bus.since("0-0")) == MAX_KEPT[0]
    for _ in range(100):
        bus.publish("t", b"x" * 100_000)
    assert sum(len(message) for _, _, message in await bus.since("0-0")) <= MAX_KEPT[1]
    assert len(await bus.since(bus.position)) == 0


async def test_twins_in_memory_can_be_deaf() -> None:
    store = MemoryStore(shared=True)
    twin = store.twin()
    heard: list[bytes] = []
    twin.direct = heard.append
    twin.hears = False
    store.tell(twin.worker, b"1")
    twin.hears = True
    store.tell(twin.worker, b"2")
    assert heard == [], "never within the turn that told it"
    await asyncio.sleep(0)
    assert heard == [b"2"]

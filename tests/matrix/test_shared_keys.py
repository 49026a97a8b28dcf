"""What seals `requestState`, and makes the hashes in the log, in all processes of a server that share a store."""

import asyncio
from typing import Any

import pytest
from asgi_driver import JSON
from rounds import Rounds
from shapes import respond

from callboard import Context, NeedInput, Server, asgi
from callboard.errors import RegistrationError, StoreError
from callboard.handler import Handler
from callboard.server.fleet import check_state, join
from callboard.server.seals import PERIOD, ROOT, find_secret
from callboard.stores.base import Kv
from callboard.stores.memory import MemoryKv, MemoryStore

KEY = "k" * 32
FORM = {"type": "object", "properties": {"sure": {"type": "boolean"}}}
ASK = {"sure": {"method": "elicitation/create", "params": {"message": "Sure?", "requestedSchema": FORM}}}


class CommonStore(MemoryStore):
    """What several servers keep in one memory, as several processes do elsewhere.

    Attributes:
        is_down: Whether it answers nobody.
    """

    def __init__(self) -> None:
        super().__init__()
        self.shared = True
        self.is_down = False
        self.kv: Kv = _Kv(self)


class _Kv(MemoryKv):
    def __init__(self, store: CommonStore) -> None:
        super().__init__()
        self._store = store

    async def get(self, key: str) -> Any:
        await asyncio.sleep(0)  # others come between
        self._check()
        return await super().get(key)

    async def put(self, key: str, value: bytes, *, expect: int | None = None, ttl: float | None = None) -> int | None:
        await asyncio.sleep(0)
        self._check()
        return await super().put(key, value, expect=expect, ttl=ttl)

    def _check(self) -> None:
        if self._store.is_down:
            raise StoreError("The store at test is down.")


def make_worker(store: MemoryStore, **options: Any) -> Server:
    """One process of a server with a tool that asks by hand."""
    server = Server("desk", store=store, **options)

    @server.tool
    def delete(ctx: Context) -> str | NeedInput:
        """Delete it."""
        return NeedInput(ASK, state="asked") if ctx.input is None else f"deleted, {ctx.input.state}"

    return server


async def begin(store: MemoryStore, **options: Any) -> tuple[Server, Rounds]:
    """A process that serves."""
    server = make_worker(store, **options)
    await join(server)
    return server, Rounds(asgi(server), respond)


async def ask(worker: Rounds) -> str:
    """The state of a call that has asked."""
    state: str = (await worker.once("tools/call", {"name": "delete"})).result["requestState"]
    return state


async def go_on(worker: Rounds, state: str) -> JSON:
    """What the client gets that comes back with a state."""
    return (await worker.once("tools/call", {"name": "delete", "requestState": state})).message


def is_done(message: JSON) -> bool:
    """Whether a call went on to its end; an error can only be the one of a state that does not open."""
    if "error" in message:
        assert message["error"]["code"] == -32602
    return "result" in message


async def test_what_one_process_sealed_another_one_opens_without_any_keys_given() -> None:
    # MR-06
    store = CommonStore()
    workers = await asyncio.gather(*(begin(store) for _ in range(4)))
    hashes = {server.journal.hash("ann") for server, _ in workers}
    assert len(hashes) == 1, "a line of one process is found by what is known of another's"
    states = [await ask(rounds) for _, rounds in workers]
    for state in states:
        for _, rounds in workers:
            assert is_done(await go_on(rounds, state))


async def test_another_server_in_another_store_opens_nothing() -> None:
    (_, one), (_, other) = await begin(CommonStore()), await begin(CommonStore())
    assert not is_done(await go_on(other, await ask(one)))


async def test_keys_that_were_given_are_the_ones() -> None:
    store = CommonStore()
    (given, ours), (_, others) = await begin(store, keys=[KEY]), await begin(store)
    assert not is_done(await go_on(others, await ask(ours)))
    assert given.journal.hash("ann") == (await begin(CommonStore(), keys=[KEY]))[0].journal.hash("ann")
    alone = await begin(CommonStore(), keys=[KEY])
    assert await alone[0].store.kv.get(ROOT) is None, "nothing is made that nobody needs"
    assert is_done(await go_on(alone[1], await ask(ours)))


async def test_who_wants_keys_to_be_given_gets_none_of_the_store(caplog: pytest.LogCaptureFixture) -> None:
    _, rounds = await begin(CommonStore(), keys=())
    assert (await rounds.once("tools/call", {"name": "delete"})).error["code"] == -32603
    assert "no keys" in caplog.text


async def test_keys_change_by_themselves_and_open_as_long_as_a_state_lasts() -> None:
    # MR-06
    store, now = CommonStore(), [PERIOD * 700 - 5.0]
    workers = [await begin(store, request_state_ttl=10) for _ in range(2)]
    for server, _ in workers:
        server.seals.clock = lambda: now[0]
    (_, one), (other_server, other) = workers
    state = await ask(one)
    now[0] += 9
    assert is_done(await go_on(other, state)), "sealed in the last period"
    new = await ask(other)
    now[0] -= 8  # a clock that is slow
    assert is_done(await go_on(one, new)), "sealed in the next one"
    assert new[:9] != state[:9], "by another key"
    now[0] += 2 * PERIOD
    assert not is_done(await go_on(other, state))
    assert other_server.seals.is_random


async def test_where_the_store_has_lost_its_data_they_agree_again() -> None:
    store = CommonStore()
    old_server, old = await begin(store)
    state = await ask(old)
    assert await store.kv.delete(ROOT)
    _, new = await begin(store)
    assert is_done(await go_on(old, await ask(new))), "who was there before looks again"
    assert is_done(await go_on(old, state)), "and still opens what it sealed"
    assert is_done(await go_on(new, await ask(old)))
    assert not is_done(await go_on(new, state))
    assert old_server.seals.is_random


async def test_a_secret_that_got_lost_is_put_back_by_who_has_it() -> None:
    store = CommonStore()
    server, _ = await begin(store)
    secret = await find_secret(store.kv)
    await store.kv.put(ROOT, b"short")
    assert await find_secret(store.kv, secret) == secret
    assert await find_secret(store.kv) == secret
    assert server.seals.is_random


async def test_a_state_that_one_process_took_no_other_one_takes() -> None:
    # MR-08
    store = CommonStore()
    workers = [(await begin(store, single_use=True))[1] for _ in range(2)]
    state = await ask(workers[0])
    took = await asyncio.gather(*(go_on(worker, state) for worker in workers * 3))
    assert sum(map(is_done, took)) == 1


async def test_while_nobody_can_tell_whether_a_state_was_used_it_is_not_taken(caplog: pytest.LogCaptureFixture) -> None:
    # MR-08
    store = CommonStore()
    _, worker = await begin(store, single_use=True)
    state = await ask(worker)
    store.is_down = True
    answer = await worker.once("tools/call", {"name": "delete", "requestState": state})
    assert (answer.status, answer.error["code"]) == (503, -32603)
    assert "The store at test is down." in caplog.text
    assert "store at test" not in str(answer.error)
    store.is_down = False
    assert is_done(await go_on(worker, state))


async def test_without_the_store_no_process_begins_with_keys_of_its_own() -> None:
    store = CommonStore()
    store.is_down = True
    with pytest.raises(StoreError):
        await join(make_worker(store))


async def test_a_process_alone_is_as_it_was() -> None:
    server, rounds = await begin(MemoryStore())
    assert is_done(await go_on(rounds, await ask(rounds)))
    assert await server.store.kv.get(ROOT) is None


class Cart:
    """What msgspec can't read back."""


class Shop(Handler[Cart]):
    """A handler that keeps it."""

    async def init(self, hello: Any) -> Cart:
        """A cart."""
        return Cart()


def test_a_state_that_can_t_be_kept_in_a_store_is_found_at_the_start() -> None:
    server = Shop().server
    check_state(server)
    server.keep_in(CommonStore())
    with pytest.raises(RegistrationError, match="init gives has no encoded form"):
        check_state(server)
    check_state(make_worker(CommonStore()))


class Counter(Handler[int]):
    """A handler whose state has a form."""


class Plain(Handler):
    """A handler without any state."""


@pytest.mark.parametrize("handler", [Counter, Plain])
def test_a_state_that_can_be_kept_passes(handler: type[Handler[Any]]) -> None:
    server = handler().server
    server.keep_in(CommonStore())
    check_state(server)

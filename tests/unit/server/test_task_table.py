"""How many tasks there may be, how long they are kept, and what of them outlives a connection, a mount and a process."""

import asyncio
import gc
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
from errands import Errands, Follower, principal
from rounds import accept
from virtual_time import now, settle, virtual_time

from callboard import Client, Context, RegistrationError, Server, ToolError, asgi
from callboard.limits import Limits
from callboard.server.task_table import SOON
from callboard.tasks import MemoryTasks

T = TypeVar("T")


@dataclass
class Cart:
    """A state."""

    items: int = 0


@pytest.mark.parametrize(
    ("option", "value"),
    [("ttl", 0), ("ttl", "1"), ("max_age", -1), ("poll", 0), ("poll", float("inf")), ("max_tasks", 5), ("speed", 1)],
)
def test_an_option_that_cannot_work_is_refused(option: str, value: Any) -> None:
    with pytest.raises(RegistrationError, match=option):
        MemoryTasks(**{option: value})


def test_task_is_one_of_three() -> None:
    server: Any = Server("s")
    with pytest.raises(RegistrationError, match="'never'"):
        server.tool(name="a", task="sometimes")(lambda: 1)


def test_a_task_cannot_hold_the_state_of_a_session() -> None:
    server = Server("s", state=Cart)

    def add(cart: Cart) -> int:
        return cart.items

    with pytest.raises(RegistrationError, match="snapshot=True"):
        server.tool(task="allowed")(add)
    server.tool(task="allowed", snapshot=True)(add)


@virtual_time
async def test_a_task_is_kept_for_its_time_after_its_end() -> None:
    # TX-05, TX-14
    client = Follower(Errands(ttl=60, poll=2.5).app)
    task_id = await client.begin("walk", {"seconds": 50})
    created = await client.get(task_id)
    assert (created["ttlMs"] // 1000, created["pollIntervalMs"]) == (60, 2500)
    await asyncio.sleep(101)
    assert (await client.get(task_id))["status"] == "completed", "work that runs is not dropped"
    await asyncio.sleep(58)
    assert (await client.get(task_id))["status"] == "completed"
    await asyncio.sleep(2)
    assert (await client.ask("tasks/get", task_id)).error["code"] == -32602


@virtual_time
async def test_work_that_takes_too_long_is_stopped() -> None:
    errands = Errands(max_age=30)
    client = Follower(errands.app)
    task_id = await client.begin("hold")
    await asyncio.sleep(31)
    ended = await client.get(task_id)
    assert (ended["status"], ended["error"]["code"]) == ("failed", -32603)
    assert "max_age" in ended["error"]["message"]
    assert errands.seen == [("begun", False), ("stopped", True)]


@virtual_time
async def test_there_are_so_many_and_no_more() -> None:
    errands = Errands(Limits(max_tasks=2), ttl=60)
    client = Follower(errands.app)
    first, second = [await client.begin("hold") for _ in range(2)]
    for tool in ("hold", "quick", "must"):
        refused = await client.call(tool)
        assert (refused.status, refused.error["code"]) == (503, -32603)
        assert "max_tasks" in refused.error["message"]
    assert len(errands.seen) == 2, "it has not begun"
    assert (await client.call("greet")).text == "Hello, you!"
    await client.cancel(first)
    assert (await client.call("hold")).status == 503, "it is kept, and takes its place"
    await asyncio.sleep(61)
    for _ in range(5):
        assert (await client.call("quick")).text == "at once"
    assert (await client.get(await client.begin("must")))["status"] == "completed"
    await client.cancel(second)


@virtual_time
async def test_one_principal_cannot_take_all() -> None:
    errands = Errands(Limits(max_tasks_per_principal=1))
    ann, bob, nobody = (Follower(errands.app, who) for who in ("ann", "bob", None))
    task_id = await ann.begin("hold")
    refused = await ann.call("hold")
    assert (refused.status, "max_tasks_per_principal" in refused.error["message"]) == (503, True)
    for client in (bob, nobody, nobody):
        await client.begin("hold")
    errands.go.set()
    await settle()
    assert (await ann.get(task_id))["status"] == "completed"


@virtual_time
async def test_results_outlive_the_connection_and_the_mount() -> None:
    # TX-06
    errands = Errands()
    done, held = await Follower(errands.app).begin("must"), await Follower(errands.app).begin("hold")
    app: Any = errands.app
    await app.aclose()
    assert errands.seen == [("begun", False), ("stopped", True)]
    client = Follower(asgi(errands.server, principal=principal))
    assert (await client.get(done))["status"] == "completed"
    ended = await client.get(held)
    assert (ended["status"], ended["error"]["code"]) == ("failed", -32603)
    assert "restarted" in ended["error"]["message"]


@virtual_time
async def test_a_function_that_will_not_end_has_a_second() -> None:
    errands = Errands()

    @errands.server.tool(task="allowed")
    async def linger() -> str:
        while True:
            try:
                await asyncio.sleep(3)
            except asyncio.CancelledError:
                continue
            return "late"

    await Follower(errands.app).begin("linger")
    app: Any = errands.app
    began = now()
    await app.aclose()
    assert now() - began == pytest.approx(1, abs=0.1)
    await asyncio.sleep(5)


@virtual_time
async def test_tasks_of_a_process_that_is_gone_have_failed() -> None:
    # DESIGN: a task id says which process made it
    old = Errands()
    task_id = await Follower(old.app).begin("hold")
    new = Follower(Errands(ttl=60, max_age=600).app)
    ended = await new.get(task_id)
    assert (ended["status"], "restarted" in ended["error"]["message"]) == ("failed", True)
    boot, created, secret = task_id.split("-")
    await new.cancel(task_id)
    await new.update(task_id, a=accept())
    for strange in (f"{boot}-{int(created, 16) + 1000:08x}-{secret}", f"{boot}-{int(created, 16) - 1000:08x}-{secret}", f"{boot}-{secret}"):
        assert (await new.ask("tasks/get", strange)).error["code"] == -32602, "none that it could have made and still keep"


async def test_a_thread_learns_that_it_is_cancelled_and_its_result_is_dropped() -> None:
    # TX-10
    errands = Errands()
    begun, seen = threading.Event(), threading.Event()

    @errands.server.tool(task="allowed")
    def grind(ctx: Context) -> str:
        begun.set()
        ctx.progress(1, message="Grinding.")
        while not ctx.cancelled:
            pass
        seen.set()
        return "ground"

    client = Follower(errands.app)
    task_id = await client.begin("grind")
    await asyncio.to_thread(begun.wait, 10)
    await client.cancel(task_id)
    assert await asyncio.to_thread(seen.wait, 10)
    assert (await client.get(task_id))["status"] == "cancelled"


async def test_what_is_soon_over_is_no_task_though_it_waits() -> None:
    # TX-03: on a thread, or a few turns of the loop
    errands = Errands()

    @errands.server.tool(task="allowed")
    def threaded() -> str:
        return "done"

    client = Follower(errands.app)
    answer = await client.call("threaded")
    assert answer.result["resultType"] == "complete"
    assert answer.text == "done"
    tasks = errands.tasks
    assert (tasks._jobs, tasks._places.taken) == ({}, 0)


@virtual_time
async def test_a_client_that_leaves_while_the_answer_is_held_back_leaves_nothing_behind() -> None:
    errands = Errands()
    ended: list[str] = []

    @errands.server.tool(task="allowed")
    async def slow() -> str:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("slow")
        return "never"

    client = Follower(errands.app)
    call = asyncio.create_task(client.call("slow"))
    await asyncio.sleep(SOON / 2)
    (job,) = errands.tasks._jobs.values()
    assert job.held
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await settle()
    assert (ended, errands.tasks._jobs, errands.tasks._places.taken) == (["slow"], {}, 0)


@pytest.mark.parametrize("error", [ValueError("broken"), ToolError("broken")])
@virtual_time
async def test_a_call_that_fails_beside_an_ask_leaves_nothing_behind(error: Exception) -> None:
    errands = Errands()

    async def fail() -> None:
        raise error

    @errands.server.tool(task="allowed")
    async def clumsy(ctx: Context) -> str:
        await asyncio.sleep(SOON / 4)
        await asyncio.gather(ctx.elicit("Anyone?", str), fail())
        return "never"

    before = asyncio.all_tasks()
    await Follower(errands.app).call("clumsy")
    await settle()
    assert asyncio.all_tasks() == before
    assert (errands.tasks._jobs, errands.tasks._places.taken) == ({}, 0)


@virtual_time
async def test_tasks_whose_end_is_known_make_room_for_others() -> None:
    errands = Errands(Limits(max_tasks=3, max_tasks_per_principal=2))
    ann, bob = Follower(errands.app, "ann"), Follower(errands.app, "bob")
    first, second = [await ann.begin("walk", {"seconds": 1}) for _ in range(2)]
    await asyncio.sleep(2)
    assert (await ann.call("walk", {"seconds": 1})).status == 503, "she has not seen how they ended"
    assert (await ann.get(first))["status"] == "completed"
    third = await ann.begin("walk", {"seconds": 1})
    assert (await ann.ask("tasks/get", first)).error["code"] == -32602
    assert (await ann.get(second))["status"] == "completed"
    fourth = await bob.begin("walk", {"seconds": 1})
    fifth = await bob.begin("walk", {"seconds": 1})
    assert (await ann.ask("tasks/get", second)).error["code"] == -32602, "all are too many: the oldest that has been read goes"
    for who, task_id in ((ann, third), (bob, fourth), (bob, fifth)):
        assert (await who.get(task_id))["status"] == "working"


def test_a_task_of_another_event_loop_can_be_answered_and_cancelled() -> None:
    errands = Errands()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def there(work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, loop).result(10)

    async def begin(tool: str) -> str:
        client = Follower(errands.app)
        task_id = await client.begin(tool)
        if tool == "confirm":
            await _until(client, task_id, "input_required")
        return task_id

    async def here(asks: str, holds: str) -> list[str]:
        client = Follower(asgi(errands.server))
        await client.update(asks, sure=accept(value=True))
        await client.cancel(holds)
        await _until(client, asks, "completed")
        return [(await client.get(task_id))["status"] for task_id in (asks, holds)]

    try:
        assert asyncio.run(here(there(begin("confirm")), there(begin("hold")))) == ["completed", "cancelled"]
        assert errands.seen == [("begun", False), ("stopped", True)]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@virtual_time
async def test_the_client_follows_a_task_in_memory() -> None:
    # TX-13
    errands = Errands()
    async with Client(errands.server, on_elicit=_accept_all, tasks=True) as client:
        assert (await client.call_tool("walk")).content[0].text == "there"  # type: ignore[union-attr]
        assert (await client.call_tool("both")).structured_content == ["first?", "second?"]
        assert (await client.call_tool("ask_first")).content[0].text == "Who?, And who?, 1"  # type: ignore[union-attr]


async def _accept_all(request: Any) -> dict[str, Any]:
    return {"value": request.message}


async def _until(client: Follower, task_id: str, status: str) -> None:
    """Look at a task until it stands there: its event loop is another one."""
    async with asyncio.timeout(10):
        while (await client.get(task_id))["status"] != status:  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(("tool", "ends"), [("quick", False), ("must", False), ("hold", True)])
def test_a_task_leaves_no_garbage(tool: str, ends: bool) -> None:
    """What needs the collector to go away would pile up with all that the call held."""

    async def main() -> int:
        client = Follower(Errands().app)

        async def once() -> None:
            created = (await client.call(tool)).result
            if ends:
                await client.cancel(created["taskId"])
            for _ in range(3):
                await asyncio.sleep(0)

        await once()
        gc.collect()
        for _ in range(3):
            await once()
        return gc.collect()

    gc.collect()
    gc.disable()
    try:
        assert asyncio.run(main()) == 0
    finally:
        gc.enable()


@virtual_time
async def test_results_that_are_kept_are_bounded_and_whoever_keeps_most_loses_theirs() -> None:
    """Two principals: one that makes big results costs the other nothing."""
    errands = Errands(Limits(max_kept=3_000, max_result=2_000))

    @errands.server.tool(task="always")
    async def write(size: int) -> str:
        return "x" * size

    ada, bob = Follower(errands.app, "ada"), Follower(errands.app, "bob")
    mine = (await bob.call("write", {"size": 100})).result["taskId"]
    theirs = []
    for _ in range(5):
        theirs.append((await ada.call("write", {"size": 1000})).result["taskId"])
        await settle()
    assert errands.tasks._kept <= 3_000
    assert (await bob.get(mine))["status"] == "completed"
    assert [("error" in (await ada.ask("tasks/get", task_id)).message) for task_id in theirs] == [True, True, True, False, False]
    huge = (await ada.call("write", {"size": 2_500})).result["taskId"]
    await settle()
    assert "max_result" in str((await ada.get(huge))["error"])
    await asyncio.sleep(3601)
    errands.tasks._sweep()
    assert (errands.tasks._kept, errands.tasks._jobs) == (0, {})

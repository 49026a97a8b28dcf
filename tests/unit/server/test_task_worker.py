"""What a worker does with a task that it is handed, once or twice or when its worker has died; pydocket itself is tested end to end."""

import asyncio
import runpy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from errands import KNOWING, Follower
from fleet_store import Fleet
from rounds import accept
from source_tree import ROOT
from virtual_time import now, settle, virtual_time

from callboard import Client, Context, RegistrationError, Server, ToolError, asgi
from callboard.auth import Principal
from callboard.compose import endpoint
from callboard.limits import Limits
from callboard.server.task_ledger import LOST
from callboard.server.task_queue import INBOX
from callboard.server.task_worker import MOST_LOST, STOPPED, TaskWorker, docket_url
from callboard.tasks import DocketTasks


@dataclass
class Cart:
    """A state."""

    items: int = 0


class Program:
    """What servers and workers run: each has one of its own.

    Args:
        member: Of the fleet.
        **options: Of `DocketTasks`.
    """

    def __init__(self, member: Any, **options: Any) -> None:
        self.tasks = DocketTasks(**options)
        self.server = Server("depot", store=member, tasks=self.tasks, state=Cart)
        self.go = asyncio.Event()
        self.seen: list[str] = []
        tool = self.server.tool

        @tool(task="allowed", idempotent=True)
        async def carry(ctx: Context) -> str:
            mark = await ctx.once("mark", self.mark)
            ctx.progress(1, message=f"{ctx.chain_id} {mark}")
            name = (await ctx.elicit("Who?", str, key="who")).value
            await self.work()
            return f"{name} {mark}"

        @tool(task="allowed")
        async def pay(ctx: Context) -> str:
            await self.work()
            return f"paid by {ctx.principal}"

        @tool(task="allowed", snapshot=True)
        def count(cart: Cart) -> int:
            return cart.items

        @tool(task="always", scopes={"any:scope"})
        async def need() -> str:
            raise ToolError("Not today.")

    def mark(self) -> str:
        """What `ctx.once` makes."""
        self.seen.append("made")
        return f"mark {len(self.seen)}"

    async def work(self) -> None:
        """Work until told to end."""
        self.seen.append("begun")
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.seen.append("stopped")
            raise


def principal(scope: Mapping[str, Any]) -> Principal | None:
    """Who asks."""
    who = scope["state"].get("principal")
    return None if who is None else Principal(who, ["any:scope"])


class Site:
    """A serving process, and workers that take what it hands over.

    Attributes:
        fleet: What they share.
        program: The serving process's.
        client: Of it.
    """

    def __init__(self, who: str | None = None, limits: Limits | None = None, **options: Any) -> None:
        self.fleet = Fleet()
        self.options = options
        self.program = Program(self.fleet.member("server"), **options)
        self.app: Any = asgi(self.program.server, principal=principal, limits=limits)
        self.client = Follower(self.app, who, KNOWING)
        self.runs: list[asyncio.Task[None]] = []
        self.ends: list[Any] = [self.app.aclose]

    async def worker(self, name: str) -> tuple[Program, TaskWorker]:
        """Start a worker."""
        program = Program(self.fleet.member(name), **self.options)
        made = endpoint(program.server)
        mount = await made.open()
        assert program.server.tasks is not None
        assert program.server.tasks.tasks is program.tasks
        self.ends.append(made.close)
        return program, TaskWorker(mount, program.tasks, grace=0.5)

    def entries(self) -> list[str]:
        """Digests of what waits for a worker."""
        return [entry.decode().partition(" ")[0] for entry in self.fleet.lists.get(INBOX, [])]

    async def hand(self, worker: TaskWorker) -> "asyncio.Task[None]":
        """Hand what came last to a worker, as pydocket does; what it does with it."""
        run = asyncio.create_task(worker._perform(self.entries()[-1]))
        self.runs.append(run)
        await asyncio.sleep(0.2)
        return run

    async def close(self) -> None:
        """End all."""
        for run in self.runs:
            run.cancel()
        await asyncio.gather(*self.runs, return_exceptions=True)
        for end in self.ends:
            await end()


@virtual_time
async def test_a_task_that_is_handed_out_twice_runs_once() -> None:
    site = Site("ann")
    (one, first), (other, second) = await site.worker("one"), await site.worker("other")
    task_id = await site.client.begin("pay")
    assert (await site.client.get(task_id))["status"] == "working"
    for worker in (first, second, first):
        await site.hand(worker)
    one.go.set()
    await asyncio.sleep(2)
    assert "paid by ann" in str((await site.client.get(task_id))["result"])
    again = await site.hand(second)
    assert (one.seen, other.seen, again.done()) == (["begun"], [], True)
    await site.close()


@virtual_time
async def test_what_is_idempotent_is_begun_again_and_remembers() -> None:
    site = Site()
    (one, first), (other, second) = await site.worker("one"), await site.worker("other")
    task_id = await site.client.begin("carry")
    dying = await site.hand(first)
    said = (await site.client.get(task_id))["statusMessage"]
    await site.client.update(task_id, who=accept(value="Ann"))
    await asyncio.sleep(1)
    assert one.seen == ["made", "begun"]
    site.fleet.dead.add("one")
    await asyncio.sleep(1)
    dying.cancel()
    await site.hand(second)
    await asyncio.sleep(6)
    assert (other.seen, (await site.client.get(task_id))["statusMessage"]) == (["begun"], said)
    other.go.set()
    await asyncio.sleep(1)
    assert "Ann mark 1" in str((await site.client.get(task_id))["result"]), "it was neither asked nor made again"
    await site.close()


@virtual_time
async def test_what_is_not_idempotent_fails_with_its_worker() -> None:
    site = Site()
    (_, first), (other, second) = await site.worker("one"), await site.worker("other")
    task_id = await site.client.begin("pay")
    await site.hand(first)
    site.fleet.dead.add("one")
    await site.hand(second)
    await asyncio.sleep(6)
    ended = await site.client.get(task_id)
    assert (ended["status"], ended["error"]["message"], other.seen) == ("failed", LOST, [])
    await site.close()


@virtual_time
async def test_a_task_that_kills_its_workers_is_given_up() -> None:
    site = Site()
    task_id = await site.client.begin("carry")
    for number in range(MOST_LOST + 2):
        _, worker = await site.worker(f"w{number}")
        await site.hand(worker)
        await asyncio.sleep(6)
        site.fleet.dead.add(f"w{number}")
    ended = await site.client.get(task_id)
    assert (ended["status"], f"{MOST_LOST + 1} times" in ended["error"]["message"]) == ("failed", True)
    await site.close()


@virtual_time
async def test_a_worker_that_ends_gives_back_what_may_be_begun_again() -> None:
    site = Site()
    (one, first), (other, second) = await site.worker("one"), await site.worker("other")
    paid = await site.client.begin("pay")
    await site.hand(first)
    carried = await site.client.begin("carry")
    run = await site.hand(first)
    await site.client.update(carried, who=accept(value="Ann"))
    await asyncio.sleep(1)
    await first._give_up()
    await asyncio.wait([run], timeout=5)
    assert run.done()
    assert (await site.client.get(paid))["error"]["message"] == STOPPED
    waits = await site.client.get(carried)
    assert (waits["status"], "stopped" in waits["statusMessage"]) == ("working", True)
    assert one.seen.count("stopped") == 2
    assert len(site.entries()) == 3, "it was put where workers look"
    await site.hand(second)
    other.go.set()
    await asyncio.sleep(1)
    assert "Ann mark" in str((await site.client.get(carried))["result"])
    await site.close()


@virtual_time
async def test_a_worker_that_ends_does_not_wait_for_the_tasks_of_others() -> None:
    """pydocket hands out again what is cancelled; what returns it takes for done."""
    site = Site()
    (_, first), (_, second) = await site.worker("one"), await site.worker("other")
    await site.client.begin("pay")
    await site.hand(first)
    waits = await site.hand(second)
    assert not waits.done()
    second._ending.set()
    await asyncio.wait([waits], timeout=0.1)
    assert waits.cancelled()
    await site.close()


@virtual_time
async def test_a_worker_ends_while_the_store_is_away() -> None:
    site = Site()
    one, first = await site.worker("one")
    for tool in ("pay", "carry"):
        await site.client.begin(tool)
        await site.hand(first)
    site.fleet.kv.is_down = True
    began = now()
    await first._give_up()
    await asyncio.wait(site.runs, timeout=1)
    assert now() - began < 12
    assert all(run.done() for run in site.runs)
    site.fleet.kv.is_down = False
    assert "stopped" in one.seen
    await site.close()


@virtual_time
async def test_a_cancelled_task_is_stopped_and_one_that_waits_is_not_begun() -> None:
    # TX-10
    site = Site()
    one, first = await site.worker("one")
    running = await site.client.begin("pay")
    run = await site.hand(first)
    await site.client.cancel(running)
    await asyncio.sleep(1)
    assert (one.seen, run.done()) == (["begun", "stopped"], True)
    waiting = await site.client.begin("pay")
    await site.client.cancel(waiting)
    await site.hand(first)
    assert one.seen == ["begun", "stopped"]
    assert (await site.client.get(waiting))["status"] == "cancelled"
    await site.close()


@virtual_time
async def test_a_program_without_the_tool_says_so() -> None:
    site = Site()
    one, first = await site.worker("one")
    task_id = await site.client.begin("pay")
    one.server.remove("tools", "pay")
    await site.hand(first)
    ended = await site.client.get(task_id)
    assert (ended["status"], "no tool 'pay'" in ended["error"]["message"]) == ("failed", True)
    await site.close()


@virtual_time
async def test_tools_of_mounted_servers_are_run_too() -> None:
    site = Site()
    one, first = await site.worker("one")
    for program in (site.program, one):
        inner = Server("inner")

        @inner.tool(task="allowed")
        async def weigh(ctx: Context) -> str:
            return f"weighed by {ctx.server.name}"

        program.server.mount("shop", inner)
    task_id = await site.client.begin("shop_weigh")
    await site.hand(first)
    assert "weighed by inner" in str((await site.client.get(task_id))["result"])
    await site.close()


@virtual_time
async def test_a_task_that_nobody_takes_has_its_time() -> None:
    site = Site(max_age=60)
    one, first = await site.worker("one")
    task_id = await site.client.begin("pay")
    found = await site.program.tasks.recorded.ledger.find(task_id)
    assert found is not None
    seconds, text = found.record.created
    found.record.created = (seconds - 61, text)
    await site.program.tasks.recorded.ledger.put(found.record, found.version)
    assert "max_age" in (await site.client.get(task_id))["error"]["message"]
    await site.hand(first)
    assert one.seen == []
    await site.close()


@virtual_time
async def test_while_the_store_is_away_nothing_is_lost() -> None:
    site = Site()
    one, first = await site.worker("one")
    task_id = await site.client.begin("pay")
    site.fleet.kv.is_down = True
    await site.hand(first)
    await asyncio.sleep(5)
    site.fleet.kv.is_down = False
    await asyncio.sleep(2)
    assert one.seen == ["begun"]
    site.fleet.kv.is_down = True
    one.go.set()
    await asyncio.sleep(5)
    site.fleet.kv.is_down = False
    await asyncio.sleep(2)
    assert (await site.client.get(task_id))["status"] == "completed"
    await site.close()


@virtual_time
async def test_there_are_so_many_and_no_more() -> None:
    site = Site("ann", Limits(max_tasks=3, max_tasks_per_principal=2), ttl=60)
    for _ in range(2):
        await site.client.begin("pay")
    refused = await site.client.call("pay")
    assert (refused.status, "max_tasks_per_principal" in refused.error["message"]) == (503, True)
    nobody = Follower(site.app, None, KNOWING)
    last = await nobody.begin("pay")
    refused = await nobody.call("pay")
    assert (refused.status, "(max_tasks)" in refused.error["message"]) == (503, True)
    await nobody.cancel(last)
    await settle()
    assert (await nobody.call("pay")).status == 503, "it is kept, and takes its place"
    await asyncio.sleep(61)
    await nobody.begin("pay")
    await site.close()


@virtual_time
async def test_without_the_store_there_is_no_task() -> None:
    site = Site("ann")
    await site.client.begin("pay")
    site.fleet.kv.is_down = True
    for client in (site.client, Follower(site.app, None, KNOWING), Follower(site.app, None, KNOWING)):
        assert (await client.call("pay")).error["code"] == -32603
    site.fleet.kv.is_down = False
    assert (len(site.entries()), site.program.tasks._places.taken) == (1, 1)
    await site.close()


@virtual_time
async def test_the_local_user_may_everything_there_too() -> None:
    # SD-11
    site = Site()
    _, first = await site.worker("one")
    async with Client(site.program.server, tasks=True) as client:
        call = asyncio.create_task(client.call_tool("count", {}))
        await asyncio.sleep(0.5)
        await site.hand(first)
        assert (await call).structured_content in ({"result": 0}, 0)
    await site.close()


@virtual_time
async def test_options_that_json_cannot_say_are_named(caplog: pytest.LogCaptureFixture) -> None:
    site = Site()
    app: Any = asgi(site.program.server, options={"pool": object()})
    answer = await Follower(app, None, KNOWING).call("pay")
    assert answer.error["code"] == -32603
    assert "options=" in caplog.text
    await app.aclose()
    await site.close()


@pytest.mark.parametrize(("option", "value"), [("ttl", 0), ("max_age", "1"), ("poll", -1), ("redelivery", 0)])
def test_an_option_that_cannot_work_is_refused(option: str, value: Any) -> None:
    with pytest.raises(RegistrationError, match=option):
        DocketTasks(**{option: value})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("redis://u:valkey@h:1/0", "redis://u:valkey@h:1/0"),
        ("valkey://h:1/0", "redis://h:1/0"),
        ("valkeys://h:1/0", "rediss://h:1/0"),
        ("redis+sentinel://h:1/m/0", "redis+sentinel://h:1/m/0"),
    ],
)
def test_pydocket_is_given_its_spelling_of_the_url(given: str, expected: str) -> None:
    assert docket_url(given) == expected


async def test_the_example_is_run_by_a_worker() -> None:
    path = ROOT / "examples" / "tasks_on_workers.py"
    found = runpy.run_path(str(path))["server"]
    again = runpy.run_path(str(path))["server"]
    fleet = Fleet()
    for name, server in (("server", found), ("worker", again)):
        server.keep_in(fleet.member(name))
    made = endpoint(again)
    worker = TaskWorker(await made.open(), again.tasks.tasks)
    async with Client(found, tasks=True) as client:
        call = asyncio.create_task(client.call_tool("print_book", {"title": "Moby Dick", "copies": 3}))
        while not fleet.lists.get(INBOX):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
        await worker._perform(fleet.lists[INBOX][0].decode().partition(" ")[0])
        assert "3 copies of Moby Dick" in str((await call).content)
    await made.close()


async def test_it_takes_a_redis() -> None:
    server = Server("depot", tasks=DocketTasks())
    server.tool(task="allowed", name="pay")(lambda: 1)
    assert server.tasks is not None
    with pytest.raises(RegistrationError, match=r"store='redis://"):
        server.tasks.settle()

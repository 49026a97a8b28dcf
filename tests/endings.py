"""Holds code to its promise that it ends: each step within its time, and at the end nothing is left of it.

async with watched() as remains:
    async with remains.none_of("case 7"):
        client = Client(...)
        outcome = await ends(client.call_tool("t"), 1.0)
        await ends(client.close(), 1.0)
    # here: no task that began in the block lives on
# and here: no descriptor, child process, zombie or thread that was not there before
"""

import asyncio
import io
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sized
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakSet

__all__ = ["MARGIN", "Outcome", "Remains", "children", "ends", "handed_back", "tables", "watched"]

# Seconds that a step may take beyond its limit: what a loaded machine adds. What hangs takes longer than any margin.
MARGIN = 3.0
# Seconds until what was let go is gone: a descriptor is closed a turn of the loop after its transport, a process is reaped by a thread.
SETTLING = 2.0
_case: ContextVar[str] = ContextVar("_case", default="")


class Outcome(NamedTuple):
    """What a step came to.

    Attributes:
        value: What it returned; None when it raised.
        error: What it raised; None when it returned.
        seconds: How long it took.
    """

    value: Any
    error: BaseException | None
    seconds: float


async def ends(work: Coroutine[Any, Any, Any], limit: float, name: str = "it") -> Outcome:
    """Run something that has to end by itself, whether by a result or by an error.

    Raises:
        AssertionError: It took longer than `limit` seconds and the margin; the text shows where it stands.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    task = loop.create_task(work)
    await asyncio.wait({task}, timeout=limit + MARGIN)
    if not task.done():
        text = io.StringIO()
        task.print_stack(file=text)
        task.cancel()
        await asyncio.wait({task}, timeout=MARGIN)
        raise AssertionError(f"{name} has not ended after {limit:g} s and a margin of {MARGIN:g} s:\n{text.getvalue()}")
    seconds = loop.time() - began
    if task.cancelled():
        return Outcome(None, asyncio.CancelledError(), seconds)
    error = task.exception()
    return Outcome(None if error else task.result(), error, seconds)


def handed_back(outcome: Outcome) -> Any:
    """What a step returned; what it raised is raised again."""
    if outcome.error is not None:
        raise outcome.error
    return outcome.value


def tables(root: Any, package: str) -> dict[str, int]:
    """How much each container holds that an object keeps: its own, and those of the objects of the same package that it reaches."""
    sizes: dict[str, int] = {}
    waiting, seen = [("", root)], {id(root)}
    while waiting:
        place, found = waiting.pop()
        if isinstance(found, Sized) and not isinstance(found, str | bytes | bytearray):
            sizes[place] = len(found)
            inside = list(found.values() if isinstance(found, dict) else found if isinstance(found, Iterable) else ())[:100]
            parts = {str(at): each for at, each in enumerate(inside)}
        else:
            slots = [name for kind in type(found).__mro__ for name in getattr(kind, "__slots__", ())]
            parts = {**getattr(found, "__dict__", {}), **{name: getattr(found, name) for name in slots if hasattr(found, name)}}
        for name, part in parts.items():
            ours = type(part).__module__.startswith(package) or isinstance(part, dict | list | set | deque | tuple | WeakSet)
            if ours and id(part) not in seen:
                seen.add(id(part))
                waiting.append((f"{place}.{name}", part))
    return sizes


def _children_of(task: Path) -> list[int]:
    """Of a thread; of one that has ended meanwhile none."""
    try:
        return [int(pid) for pid in (task / "children").read_text().split()]
    except FileNotFoundError:
        assert not task.exists(), "this kernel does not tell of child processes (CONFIG_PROC_CHILDREN)"
        return []


def children() -> dict[int, str]:
    """Child processes of this one, the dead ones that nobody has reaped among them: pid -> name and state."""
    found: dict[int, str] = {}
    for pid in [pid for task in Path("/proc/self/task").iterdir() for pid in _children_of(task)]:
        with suppress(OSError):
            name, _, rest = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")
            found[pid] = f"{name.partition('(')[2]} {rest.split()[0]}"
    return found


def _descriptors() -> dict[int, str]:
    found: dict[int, str] = {}
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # of the listing itself
            found[int(entry.name)] = str(entry.readlink())
    return found


def _threads() -> dict[int, str]:
    return {each.ident or 0: each.name for each in threading.enumerate()}


class Remains:
    """What began, and may be left. Made by `watched`."""

    def __init__(self) -> None:
        self._kinds: dict[str, Callable[[], dict[int, str]]] = {"descriptors": _descriptors, "children": children, "threads": _threads}
        self._before = {kind: look() for kind, look in self._kinds.items()}
        self._tasks: dict[str, WeakSet[asyncio.Task[Any]]] = {}

    def make_task(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        """The loop's task factory: a task belongs to the case that it began in."""
        task = asyncio.Task(work, loop=loop, **options)
        if case := _case.get():
            self._tasks.setdefault(case, WeakSet()).add(task)
        return task

    @asynccontextmanager
    async def none_of(self, case: str) -> AsyncIterator[None]:
        """A block of which no task may live on.

        Raises:
            AssertionError: One does.
        """
        token = _case.set(case)
        try:
            yield
        finally:
            _case.reset(token)
        await _until(lambda: not self._alive(case))
        assert not self._alive(case), f"{case}: these tasks live on: {self._alive(case)}"

    def _alive(self, case: str) -> list[str]:
        return [repr(task) for task in self._tasks.get(case, ()) if not task.done()]

    def left(self) -> dict[str, dict[int, str]]:
        """What is there that was not there before, by kind."""
        found: dict[str, dict[int, str]] = {}
        for kind, look in self._kinds.items():
            fresh = {key: name for key, name in look().items() if self._before[kind].get(key) != name}
            if fresh:
                found[kind] = fresh
        return found


async def _until(settled: Callable[[], bool]) -> None:
    deadline = asyncio.get_running_loop().time() + SETTLING
    while not settled() and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110 - the kernel tells nobody
        await asyncio.sleep(0.01)


@asynccontextmanager
async def watched() -> AsyncIterator[Remains]:
    """Watch what begins in the block.

    Raises:
        AssertionError: A descriptor, a child process, a zombie or a thread is left of it.
    """
    loop = asyncio.get_running_loop()
    remains, former = Remains(), loop.get_task_factory()
    loop.set_task_factory(remains.make_task)
    try:
        yield remains
    finally:
        loop.set_task_factory(former)
    await _until(lambda: not remains.left())
    assert not remains.left(), f"this is left: {remains.left()}"

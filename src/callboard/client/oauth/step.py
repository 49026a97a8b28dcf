"""What a plan of OAuth's may ask of the world, and the one loop that does it.

A plan is a generator: it yields steps, is sent what came of each, and returns what it was made for. It holds no socket, no clock and no
browser, so that a test walks it in microseconds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeAlias, TypeVar

import msgspec

from callboard.client.auth import Fetch, HttpRequest, HttpResponse

__all__ = ["Browse", "Plan", "Step", "perform"]

T = TypeVar("T")


class Browse(msgspec.Struct, frozen=True):
    """Send somebody to a page; the answer is the URL that their browser was sent back to.

    Attributes:
        url: The page.
    """

    url: str


Step: TypeAlias = HttpRequest | Browse
Plan: TypeAlias = Generator[Step, Any, T]
"""Yields an `HttpRequest` and is sent an `HttpResponse`, or yields a `Browse` and is sent a URL."""


async def perform(plan: Plan[T], fetch: Fetch, browse: Callable[[str], Awaitable[str]]) -> T:
    """Do the steps of a plan, one after the other.

    Args:
        plan: The plan.
        fetch: Sends requests; what it raises is raised inside the plan.
        browse: Sends somebody to a page and gives the URL they came back to; likewise.

    Returns:
        What the plan returns.
    """
    answer: HttpResponse | str | None = None
    try:
        step = next(plan)
        while True:
            try:
                answer = await (fetch(step) if isinstance(step, HttpRequest) else browse(step.url))
            except Exception as error:  # noqa: BLE001 - the plan may have another way; if not, it is raised again
                step = plan.throw(error)
            else:
                step = plan.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        plan.close()

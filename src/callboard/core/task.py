"""Machine of one task: work that goes on after its request is answered. Sans-IO; `extensions/task_table.py` is its shell.

States::

    WORKING ──────── ask ───────> INPUT_REQUIRED
       │   <── nothing waits ────      │
       └── complete | fail | cancel ───┴──> COMPLETED | FAILED | CANCELLED

Rules:
    1. The last three are final (TX-09, TK-04): what comes later is dropped, and who brought it is told.
    2. A task is INPUT_REQUIRED as long as an ask waits for its answer. A few answers may come at a time, and those to anything that does
       not wait are nobody's (TX-11).
    3. A key names one ask of a task for ever (TX-12): what is asked once more, or asked alike, gets a key with a number of its own.
    4. FAILED is what ends in a protocol error. What a tool says of its own failure is a result: COMPLETED (TX-09).
    5. A task is kept for `ttl` seconds after its end, and never dropped before. `ttlMs` counts from its creation: what it says at any time
       is kept, since an end that is still to come only makes it later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from callboard.errors import REASONS, Fail

__all__ = ["OVER", "Moment", "Result", "Status", "Task"]

Status: TypeAlias = Literal["working", "input_required", "completed", "failed", "cancelled"]
OVER = frozenset({"completed", "failed", "cancelled"})
"""The statuses in which a task ends."""
# Characters of a status message.
MAX_MESSAGE = 1000


class Moment(NamedTuple):
    """What a clock says.

    Attributes:
        seconds: Unix time.
        text: The same in ISO 8601.
    """

    seconds: float
    text: str


class Result(msgspec.Struct, frozen=True):
    """What a completed task came to.

    Attributes:
        value: The result's fields, an encoded object.
        is_error: Whether the tool says that it failed.
        wrap: As `Reply.wrap`.
    """

    value: bytes
    is_error: bool = False
    wrap: bool = False


class Task:
    """One task.

    Args:
        task_id: Its id.
        now: When it is created.
        ttl: Seconds that it is kept after its end.
        poll: Seconds that a client should wait between two looks at it.

    Attributes:
        id: Its id.
        status: Where it stands.
        message: What it says of that, for people; empty for nothing.
        created: When it was created.
        updated: When it last changed.
        ttl: As given.
        pending: Asks that wait, as input requests by key.
        result: What it came to, once it is completed.
        fail: Why it failed, once it did.
        keys: Keys that it has asked by, each with the number of the last ask of that name (rule 3).
    """

    __slots__ = ("created", "fail", "id", "keys", "message", "pending", "poll", "result", "status", "ttl", "updated")

    def __init__(self, task_id: str, now: Moment, *, ttl: float, poll: float) -> None:
        self.id = task_id
        self.status: Status = "working"
        self.message = ""
        self.created = self.updated = now
        self.ttl = ttl
        self.poll = poll
        self.pending: dict[str, dict[str, Any]] = {}
        self.result: Result | None = None
        self.fail: Fail | None = None
        self.keys: dict[str, int] = {}

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.status in OVER

    @property
    def expires(self) -> float | None:
        """Unix time at which it is dropped; None before its end."""
        return self.updated.seconds + self.ttl if self.over else None

    def say(self, message: str, now: Moment) -> bool:
        """Say how the work is getting on; whether that is news."""
        message = message[:MAX_MESSAGE]
        if self.over or message == self.message:
            return False
        self.message, self.updated = message, now
        return True

    def ask(self, key: str, request: Mapping[str, Any], now: Moment) -> str | None:
        """Ask the client.

        Args:
            key: What the ask is known by in the work.
            request: The input request (MR-04).
            now: The time.

        Returns:
            What it is known by to the client; None when the task is over.
        """
        if self.over:
            return None
        unique = key
        while unique in self.keys:
            self.keys[key] += 1
            unique = f"{key}#{self.keys[key]}"
        self.keys[unique] = 1
        self.pending[unique] = dict(request)
        self.status, self.updated = "input_required", now
        return unique

    def answer(self, responses: Mapping[str, Any], now: Moment) -> dict[str, Any]:
        """Take answers; those to asks that wait, by key."""
        taken = {key: response for key, response in responses.items() if key in self.pending}
        for key in taken:
            self.withdraw(key, now)
        return taken

    def withdraw(self, key: str, now: Moment) -> bool:
        """An ask waits no more; whether it did."""
        if self.pending.pop(key, None) is None:
            return False
        self.updated = now
        if not self.pending:
            self.status = "working"
        return True

    def complete(self, result: Result, now: Moment) -> bool:
        """The work has come to a result; whether that counts (rule 1)."""
        if self.over:
            return False
        self.result = result
        self.message = ""  # what it was at is not what it is now
        self._end("completed", now)
        return True

    def refuse(self, fail: Fail, now: Moment) -> bool:
        """The work has come to a protocol error; whether that counts."""
        if self.over:
            return False
        self.fail = Fail(fail.reason, fail.text, fail.data)  # without the frames that it was raised in
        self.fail.code = fail.code
        self.message = fail.text[:MAX_MESSAGE]  # TX-09
        self._end("failed", now)
        return True

    def cancel(self, message: str, now: Moment) -> bool:
        """Nobody wants it any more; whether that counts."""
        if self.over:
            return False
        self.message = message
        self._end("cancelled", now)
        return True

    def _end(self, status: Status, now: Moment) -> None:
        self.pending.clear()
        self.status, self.updated = status, now

    def render(self, now: Moment) -> dict[str, Any]:
        """What every message about it says: the fields of a `Task` (TX-05)."""
        last = self.updated if self.over else now
        value: dict[str, Any] = {
            "taskId": self.id,
            "status": self.status,
            "createdAt": self.created.text,
            "lastUpdatedAt": self.updated.text,
            "ttlMs": round((max(last.seconds - self.created.seconds, 0.0) + self.ttl) * 1000),
            "pollIntervalMs": round(self.poll * 1000),
        }
        if self.message:
            value["statusMessage"] = self.message
        return value

    def render_whole(self, now: Moment) -> dict[str, Any]:
        """All of it: the fields of a `DetailedTask` (TX-08)."""
        value = self.render(now)
        if self.status == "input_required":
            value["inputRequests"] = dict(self.pending)
        elif self.result is not None:
            value["result"] = msgspec.Raw(self.result.value)
        elif self.fail is not None:
            value["error"] = _render_fail(self.fail)
        return value


def _render_fail(fail: Fail) -> dict[str, Any]:
    rule = REASONS.get(fail.reason)
    error = {"code": fail.code if rule is None else rule.code, "message": fail.text}
    return error if fail.data is None else {**error, "data": fail.data}

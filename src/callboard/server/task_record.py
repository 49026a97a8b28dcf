"""What of a task is kept in a store, so that any process can say how it stands, answer and cancel it; and its form as bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from callboard.core.task import OVER, Moment, Result, Status, Task
from callboard.errors import AskError, Fail, NoAnswerError, Reason
from callboard.wire.jsonrpc import encode

__all__ = [
    "Failure",
    "Given",
    "Record",
    "Who",
    "Work",
    "give_answers",
    "read_record",
    "restore",
    "take_answers",
    "write_down",
    "write_record",
]


class Failure(msgspec.Struct, omit_defaults=True):
    """An error.

    Attributes:
        kind: Name of its `Reason`; `ask` and `no answer` for what a client did not answer.
        text: What it says.
        code: Its own code; None for the reason's.
        data: Its data as JSON; None without.
    """

    kind: str
    text: str
    code: int | None = None
    data: bytes | None = None


class Given(msgspec.Struct, omit_defaults=True):
    """What a client answered, and the process that asks has not taken yet.

    Attributes:
        result: The result as JSON; None for an error.
        failure: The error.
    """

    result: bytes | None = None
    failure: Failure | None = None


class Who(msgspec.Struct, omit_defaults=True):
    """A principal.

    Attributes:
        identity: Tells them from everybody else.
        scopes: What they were granted; None for everything, as of the local user.
        subject: What their authorization server calls them.
        claims: What else is known of them, as JSON; never their credential.
    """

    identity: str
    scopes: list[str] | None
    subject: str
    claims: bytes = b"{}"


class Work(msgspec.Struct, omit_defaults=True):
    """All that a worker needs to run a call which another process has taken.

    Attributes:
        tool: Name of the tool.
        version: Protocol version of the call.
        capabilities: What the client declared, as JSON.
        chain: Identifies the call, however often it is begun: `ctx.chain_id`.
        arguments: As JSON; None without.
        client: The client's name and version as JSON; None when it says nothing.
        meta: `_meta` as sent; None without.
        who: Who called; None for nobody.
        options: Bound options as JSON; None without.
        state: State of the session, a snapshot; None without.
        idempotent: Whether it may be begun again where its worker is gone.
        memory: What was asked and answered so far, and what `ctx.once` has made, as JSON; None before anything was.
        begun: How often it was begun.
        lost: How often its worker died.
        max_result: Bytes that its result may have, as whoever is asked for it has it; None for what its worker has.
    """

    tool: str
    version: str
    capabilities: bytes
    chain: str
    arguments: bytes | None = None
    client: bytes | None = None
    meta: bytes | None = None
    who: Who | None = None
    options: bytes | None = None
    state: bytes | None = None
    idempotent: bool = False
    memory: bytes | None = None
    begun: int = 0
    lost: int = 0
    max_result: int | None = None


class Record(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One task.

    Attributes:
        id: Its id.
        owner: Whose it is.
        worker: Who runs it, as the store names processes; empty while nobody does.
        status: Where it stands, as all that follows up to `fail` in the words of `core.task.Task`.
        answers: What has been answered and is not taken yet, by key.
        work: What to run, where a worker is to; None where the process that took the call runs it.
    """

    id: str
    created: tuple[float, str]
    updated: tuple[float, str]
    ttl: float
    poll: float
    owner: str | None = None
    worker: str = ""
    status: Status = "working"
    message: str = ""
    pending: dict[str, bytes] = {}
    keys: dict[str, int] = {}
    result: Result | None = None
    fail: Failure | None = None
    answers: dict[str, Given] = {}
    work: Work | None = None

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.status in OVER

    @property
    def expires(self) -> float | None:
        """Unix time at which it is dropped; None before its end."""
        return self.updated[0] + self.ttl if self.over else None


_decode = msgspec.msgpack.Decoder(Record).decode
_encode = msgspec.msgpack.Encoder().encode


def read_record(data: bytes) -> Record:
    """Read a record.

    Raises:
        msgspec.MsgspecError: It is none.
    """
    return _decode(data)


def write_record(record: Record) -> bytes:
    """The bytes of a record."""
    return _encode(record)


def write_down(task: Task, record: Record) -> None:
    """Make a record say what a task does."""
    record.status, record.message = task.status, task.message
    record.created = task.created.seconds, task.created.text
    record.updated = task.updated.seconds, task.updated.text
    record.ttl, record.poll = task.ttl, task.poll
    record.pending = {key: encode(request) for key, request in task.pending.items()}
    record.keys = dict(task.keys)
    record.result = task.result
    record.fail = None if task.fail is None else pack(task.fail)
    most = None if record.work is None else record.work.max_result
    if most is not None and record.result is not None and len(record.result.value) > most:
        # Who serves it would refuse to, again and again, and its client would never learn that it is over.
        size = len(record.result.value)
        fail = Fail(Reason.INTERNAL, f"The answer has {size} bytes, more than the {most} that one may have (max_result).")
        record.status, record.message, record.result, record.fail = "failed", fail.text, None, pack(fail)


def restore(record: Record) -> Task:
    """The task that a record is of."""
    task = Task(record.id, Moment(*record.created), ttl=record.ttl, poll=record.poll)
    task.status, task.message = record.status, record.message
    task.updated = Moment(*record.updated)
    task.pending = {key: msgspec.json.decode(request) for key, request in record.pending.items()}
    task.keys = dict(record.keys)
    task.result = record.result
    if record.fail is not None:
        fail = unpack(record.fail)
        assert isinstance(fail, Fail)
        task.fail = fail
    return task


def pack(error: Exception) -> Failure:
    """An error as it is kept."""
    if isinstance(error, Fail):
        return Failure(error.reason.name, error.text, error.code, None if error.data is None else encode(error.data))
    if isinstance(error, AskError):
        kind = "no answer" if isinstance(error, NoAnswerError) else "ask"
        return Failure(kind, str(error.content), error.code, None if error.data is None else encode(error.data))
    return Failure("ask", type(error).__name__, 0)


def unpack(failure: Failure) -> Exception:
    """The error that was kept."""
    data: Any = None if failure.data is None else msgspec.json.decode(failure.data)
    if failure.kind == "no answer":
        return NoAnswerError(failure.text)
    if failure.kind == "ask":
        return AskError(failure.code or 0, failure.text, data)
    reason = Reason.__members__.get(failure.kind, Reason.INTERNAL)  # a newer version of ours may know more of them
    fail = Fail(reason, failure.text, data)
    fail.code = failure.code
    return fail


def take_answers(record: Record) -> dict[str, Any]:
    """What has been answered, by key: results, and errors as exceptions."""
    return {key: _take(given) for key, given in record.answers.items()}


def _take(given: Given) -> Any:
    return unpack(given.failure) if given.failure is not None else msgspec.json.decode(given.result or b"{}")


def give_answers(record: Record, task: Task, responses: Mapping[str, Any], now: Moment) -> bool:
    """Take answers into a record; whether there were any to what waits (TX-11)."""
    taken = task.answer(responses, now)
    for key, response in taken.items():
        record.answers[key] = Given(None, pack(response)) if isinstance(response, Exception) else Given(encode(response))
    if taken:
        write_down(task, record)
    return bool(taken)

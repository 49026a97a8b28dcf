"""How a call asks its client, whatever the client (DESIGN.md section "Asking the client").

Where an ask goes:

    a task's record         the function stays where it is until `tasks/update` brings the answer
    a session of 2025       a request to the client, on the call's own stream
    the current protocol    the call is suspended: answered with what it asks, and run again from its top when the answers come (MR-01)

How a call is suspended: an ask without an answer waits. A few turns of the loop after the last new one, and once no `ctx.once` is at work,
the call's task is cancelled; not by an exception of ours, which `except Exception` or `gather(return_exceptions=True)` could take for a
failure. From then on the call comes to `NeedInput`, whatever its function does.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET

from callboard.core.era import Request
from callboard.core.exchange import Exchange
from callboard.core.inputs import MAX_ROUNDS, Ask, AskTwiceError, Log, Memory, find_missing
from callboard.core.outcome import NeedInput, Outcome
from callboard.errors import Fail, NoAnswerError, Reason, ToolError
from callboard.server.form import Form, FormError
from callboard.server.mount import Session
from callboard.server.sampling import Sampled
from callboard.server.seals import Seals
from callboard.types import Answer
from callboard.wire import v2026_07_28 as v
from callboard.wire.versions import LATEST

__all__ = ["Asks", "Input", "Misfit", "read_elicited", "read_roots", "read_sampled"]

T = TypeVar("T")
# Turns of the loop from the last new ask to the suspension: enough for other branches to ask too, and for the failure of one to arrive.
PATIENCE = 4
# Seconds that what `ctx.once` makes may keep a question from going out: it may be waiting for just that question's branch.
HOLD = 10.0
MAX_REFUSED = 1000
_ACTIONS = ("accept", "decline", "cancel")  # no set: what a client sends may have no hash
_Result: TypeAlias = dict[str, Any]
_making: ContextVar[Asks | None] = ContextVar("making", default=None)
"""What a `ctx.once` is at work for, in its function."""


class Input(msgspec.Struct, frozen=True):
    """What a client sends with a retry, for functions that return `NeedInput` by hand. It is client input: check it.

    Attributes:
        state: What the function gave as `NeedInput(state=)`, as JSON has it; None without.
        responses: Results by the keys that were asked.
    """

    state: Any
    responses: dict[str, _Result]


class Asking(Protocol):
    """What asks need of a server."""

    seals: Seals
    ask_timeout: float


class Misfit(Exception):  # noqa: N818 - it becomes a Fail
    """An answer that does not fit its question; the text says where, and never repeats it."""


class Asks:
    """What one call asks.

    Args:
        server: The server.
        request: The call.
        exchange: Its way out.
        session: Its session; None without.
        principal: Who called.
        memory: Of earlier rounds; None in the first.
        responses: What the client answers now.

    Attributes:
        log: What has been asked, and what is remembered.
        suspended: Whether the call is to be answered with what it asks.
        failure: What ends the call, whatever its function makes of it; None as long as nothing does.
        route: Where asks go in place of the client, as those of a task do; None for the client. Takes an ask, gives its result.
        task: The task that runs the function; None where that runs on a thread.
        limit: The time limit of the function; None without.
    """

    __slots__ = (
        "_asking",
        "_cancelled",
        "_cancels",
        "_exchange",
        "_held",
        "_left",
        "_making",
        "_need",
        "_principal",
        "_refused",
        "_request",
        "_sending",
        "_server",
        "_session",
        "_turn",
        "_waiting",
        "failure",
        "limit",
        "log",
        "route",
        "suspended",
        "task",
    )

    def __init__(
        self,
        server: Asking,
        request: Request,
        exchange: Exchange,
        session: Session | None,
        principal: str | None,
        memory: Memory | None = None,
        responses: Mapping[str, _Result] | None = None,
    ) -> None:
        self._server = server
        self._request = request
        self._exchange = exchange
        self._session = session
        self._principal = principal
        self.log = Log(Memory(secrets.token_urlsafe(16)) if memory is None else memory, responses or {})
        self.suspended = False
        self.failure: Exception | None = None
        self.route: Callable[[Ask], Awaitable[_Result]] | None = None
        self.task: asyncio.Task[Any] | None = None
        self._waiting: set[asyncio.Future[_Result]] = set()
        self._sending: set[asyncio.Task[_Result]] = set()
        self._turn = 0
        self._held: asyncio.TimerHandle | None = None
        self._need: NeedInput | None = None
        self._making: set[str] = set()
        self._cancelled: asyncio.Task[Any] | None = None
        self._cancels = 0
        self._refused = 0
        self.limit: asyncio.Timeout | None = None
        self._asking = 0
        self._left: float | None = None

    async def ask(self, method: str, params: dict[str, Any], key: str | None, read: Callable[[_Result], T]) -> T:
        """Ask the client and wait for the answer.

        Args:
            method: `elicitation/create`, `sampling/createMessage` or `roots/list`.
            params: Its parameters, in the words of the current protocol.
            key: What it is known by; None for a digest of what is asked.
            read: Makes the answer of a result, or raises `Misfit`.

        Raises:
            Fail: The client did not declare the capability (MISSING_CAPABILITY), or its answer does not fit (INVALID_PARAMS).
            AskError: A 2025 client answered with an error, or not in time.
            AskTwiceError: Another ask of this call can't be told from this one.
        """
        if self.suspended:
            await self._refuse()
        if _making.get() is self:
            self.failure = RuntimeError("The function of a ctx.once asks the client, and would again in each round: ask outside of it.")
            raise self.failure
        try:
            ask = self.log.identify(method, params, key)
        except AskTwiceError as error:
            self.failure = error
            raise
        result = self.log.recall(ask)
        is_fresh = False
        for _ in range(MAX_ROUNDS):
            if result is None:
                result, is_fresh = await self._deliver(ask), True
            try:
                answer = read(result)
            except Misfit as misfit:
                if self.route is None and (is_fresh or not self.log.refuse(ask)):
                    text = f"The answer to {ask.key[:100]!r} does not fit what was asked: {misfit}"
                    self.failure = Fail(Reason.INVALID_PARAMS, text)
                    raise self.failure from None
                result = None  # ask again
            else:
                self.log.accept(ask, result)
                return answer
        raise ToolError(f"The client gave {MAX_ROUNDS} answers that did not fit what was asked.")

    async def once(self, key: str, function: Callable[[], Any]) -> Any:
        """See `Context.once`.

        Args:
            key: What the value is known by.
            function: Makes the value.
        """
        if not isinstance(key, str):
            raise TypeError(f"ctx.once: its key is a text, not {key!r}.")
        if not callable(function):
            raise TypeError(f"ctx.once({key!r}) takes a function, async or not, that makes the value, not {type(function).__name__}.")
        saved, kind = self.log.memory.saved, _returned_type(function)
        if key not in saved:
            if self.suspended:
                await self._refuse()
            if key in self._making:
                raise AskTwiceError(f"ctx.once({key!r}) is at work already in this call: await it once, or give each a key of its own.")
            self._making.add(key)
            token = _making.set(self)
            try:
                # Not on one of the threads for `def` functions: those may all be waiting for just this.
                value = function() if inspect.iscoroutinefunction(function) else await asyncio.to_thread(_call, function)
                saved[key] = _encode_saved(key, await value if inspect.isawaitable(value) else value, kind)
            finally:
                _making.reset(token)
                self._making.discard(key)
                if self._waiting and not self._making:
                    self._suspend_soon()
        return msgspec.json.decode(saved[key], type=kind)

    def settle(self, outcome: Outcome | None) -> Outcome | None:
        """What a call comes to, now that its function is through, and asks that nobody waits for any more are dropped.

        Args:
            outcome: What its function came to; None when it was cancelled.

        Returns:
            The same; `NeedInput` when it was suspended.

        Raises:
            CancelledError: It was cancelled, and not by us.
            Exception: What ends it, whatever its function made of that.
        """
        self._stand_down()
        self.task = None
        self._see_cancelled()
        if self.failure is not None:
            failure, self.failure, self.suspended = self.failure, None, False  # what a layer makes of it counts
            self.log.pending.clear()
            try:
                raise failure
            finally:
                del failure  # it holds this frame
        if not self.suspended:
            self.log.pending.clear()
            return outcome
        if self._need is None:
            self._need = self.need(self.log.pending)
            self._refused = 0
        elif outcome is not None:
            return outcome  # a layer has seen it, and made something else of it
        return self._need

    def is_settled_by(self, error: BaseException) -> bool:
        """Whether what a function, or a layer, raises is of no account: what the call comes to was settled before.

        Once layers have seen that, only what they ask themselves is: a cancellation that comes then is the client's, or the server's.
        """
        if self.failure is not None:
            return True
        return self.suspended and (self._need is None or (self._refused > 0 and isinstance(error, asyncio.CancelledError)))

    def abandon(self) -> None:
        """Ask the client of a session no more for what nobody waits for: the call is over, and threads must not wait on for its sake."""
        for sending in self._sending:
            sending.cancel()
        if self.route is None:  # else it has become a task, whose function goes on
            self._stand_down()

    async def drop(self) -> None:
        """The same, and see that the client is told while it still can be (CN-07)."""
        if self._sending:
            self.abandon()
            await asyncio.wait(self._sending)

    def _see_cancelled(self) -> None:
        """Take back our own cancellation of this task, and see whether there was another one since."""
        if self._cancelled is None or self._cancelled is not asyncio.current_task():
            return
        is_cancelled = self._cancelled.uncancel() > self._cancels
        self._cancelled = None
        if is_cancelled:
            raise asyncio.CancelledError

    def need(self, asked: Mapping[str, Ask], state: Any = UNSET) -> NeedInput:
        """The outcome that asks, with what must be remembered sealed into it.

        Args:
            asked: What is asked, by key.
            state: The author's own, where they ask by hand.

        Raises:
            Fail: It can't be sealed, or there was no end of asking.
        """
        memory = self.log.next_memory({key: ask.digest for key, ask in asked.items()}, state)
        sealed = self._server.seals.seal(memory, self._request, self._principal)
        return NeedInput({key: ask.request for key, ask in asked.items()}, sealed, is_sealed=True)

    def check(self, ask: Ask) -> None:
        """See that the client can be asked (MR-05).

        Raises:
            Fail: It did not declare the capability (MISSING_CAPABILITY).
            TypeError: Requests of this method can't ask.
        """
        if not self._request.row.asks:
            raise TypeError(f"{self._request.method} can't ask the client: tools/call, resources/read and prompts/get can (MR-02).")
        envelope = self._request.envelope
        if self._session is None and self.route is None and envelope.version != LATEST:
            text = f"This call has to ask its client ({ask.method}), which takes a session with protocol {envelope.version}."
            raise Fail(Reason.MISSING_CAPABILITY, text)
        missing = find_missing(ask.method, ask.params, envelope.capabilities)
        if missing is not None:
            text = f"This call has to ask its client ({ask.method}), which declared no such capability (protocol {envelope.version})."
            raise Fail(Reason.MISSING_CAPABILITY, text, {"requiredCapabilities": missing})

    async def send(self, ask: Ask) -> _Result:
        """Send an ask to the client of a session, or to where asks go in its place.

        Raises:
            AskError: There was no answer.
        """
        if self.route is not None:
            return await self.route(ask)
        assert self._session is not None
        answer: _Result = await self._session.ask(ask.method, ask.params, exchange=self._exchange, timeout=self._server.ask_timeout)
        return answer

    async def _deliver(self, ask: Ask) -> _Result:
        self.check(ask)
        pending = self.log.pending
        pending[ask.key] = ask
        try:
            if self.route is None and self._session is None:
                return await self._wait()
            self._stop_clock()
            try:
                return await (self.send(ask) if self.route is not None else self._send_apart(ask))
            finally:
                self._start_clock()
        finally:
            if not self.suspended:
                pending.pop(ask.key, None)

    async def _refuse(self) -> None:
        """Let nothing begin any more: what the call comes to is settled.

        A function that takes this for a failure to try again must not stop the event loop; in the end it waits.

        Raises:
            CancelledError: Always.
        """
        self._refused += 1
        await (asyncio.sleep(0) if self._refused < MAX_REFUSED else asyncio.get_running_loop().create_future())
        raise asyncio.CancelledError

    async def _send_apart(self, ask: Ask) -> _Result:
        """Ask the client of a session, in a task that can be ended on its own; see `abandon`."""
        if not self._exchange.open:
            raise NoAnswerError("The call is over: nobody waits for what it asks.")
        sending = asyncio.ensure_future(self.send(ask))
        self._sending.add(sending)
        try:
            return await sending
        finally:
            self._sending.discard(sending)

    def _stop_clock(self) -> None:
        """The time limit of a tool is for its work, not for how long a user thinks: in rounds it does not count that either."""
        limit = self.limit
        if limit is not None and not self._asking and not limit.expired() and (end := limit.when()) is not None:
            self._left = end - asyncio.get_running_loop().time()
            limit.reschedule(None)
        self._asking += 1

    def _start_clock(self) -> None:
        self._asking -= 1
        if self._asking == 0 and self._left is not None:
            left, self._left = self._left, None
            if self.limit is not None:
                self.limit.reschedule(asyncio.get_running_loop().time() + left)

    async def _wait(self) -> _Result:
        """Wait for what does not come in this round."""
        never: asyncio.Future[_Result] = asyncio.get_running_loop().create_future()
        self._waiting.add(never)
        self._suspend_soon()
        try:
            return await never
        finally:
            self._waiting.discard(never)

    def _suspend_soon(self) -> None:
        self._turn += 1
        asyncio.get_running_loop().call_soon(self._suspend, self._turn, PATIENCE)

    def _suspend(self, turn: int, patience: int) -> None:
        if turn != self._turn or not self._waiting or self.suspended:
            return
        loop = asyncio.get_running_loop()
        if patience > 0:
            loop.call_soon(self._suspend, turn, patience - 1)
        elif not self._making:
            self._end_here()
        elif self._held is None:
            self._held = loop.call_later(HOLD, self._end_here)

    def _end_here(self) -> None:
        if self.suspended or not self._waiting:
            return
        self.suspended = True
        if self.task is not None:
            self._cancelled = self.task
            self._cancels = self.task.cancelling()  # not always 0: a TaskGroup that failed may leave one behind
            self.task.cancel()
        asyncio.get_running_loop().call_soon(self._release)  # those that the call's own task does not wait for, as on threads

    def _stand_down(self) -> None:
        """Suspend nothing any more, and let go of who waits for that."""
        self._turn += 1
        if self._held is not None:
            self._held.cancel()
            self._held = None
        self._release()

    def _release(self) -> None:
        for future in list(self._waiting):
            future.cancel()


def _call(function: Callable[[], T]) -> T:
    try:
        return function()
    except StopIteration as error:  # no future can carry it
        raise RuntimeError("The function of a ctx.once raised StopIteration.") from error


def _encode_saved(key: str, value: Any, kind: Any) -> msgspec.Raw:
    """The JSON of a value; where it would be read back as something else, it is better to know at once."""
    try:
        encoded = msgspec.Raw(msgspec.json.encode(value))
        read = msgspec.json.decode(encoded, type=kind)
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"ctx.once({key!r}): its value has no JSON form ({error}).") from error
    if kind is Any and type(read) is not type(value):
        made, given = type(value).__name__, type(read).__name__
        raise TypeError(f"ctx.once({key!r}): JSON gives {given} back where its function made {made}; let a `def` say so: `-> {made}`.")
    return encoded


def _returned_type(function: Callable[[], Any]) -> Any:
    """What a function says it returns, where JSON can be read as that."""
    try:
        kind = inspect.signature(function, eval_str=True).return_annotation
        msgspec.json.Decoder(kind)
    except Exception:  # noqa: BLE001 - no annotation that helps: then plain JSON values it is
        return Any
    return Any if kind is inspect.Signature.empty else kind


def read_elicited(result: _Result, form: Form | None) -> Answer[Any]:
    """Read a result of `elicitation/create` (EL-07).

    Raises:
        Misfit: It is none, or its content does not fit the form.
    """
    action = result.get("action")
    if action not in _ACTIONS:
        raise Misfit("action is accept, decline or cancel.")
    if action != "accept" or form is None:
        return Answer(action)
    try:
        return Answer(action, form.read(result.get("content", {})))
    except FormError as error:
        raise Misfit("; ".join(f"{fault.path or 'the form'}: {fault.expected}" for fault in error.faults)) from None


def read_sampled(result: _Result) -> Sampled:
    """Read a result of `sampling/createMessage` (SM-06).

    Raises:
        Misfit: It is none.
    """
    try:
        return msgspec.convert(result, Sampled)
    except msgspec.ValidationError as error:
        raise Misfit(str(error).partition(" - at ")[2] or "role, content and model are needed.") from None


def read_roots(result: _Result) -> list[v.Root]:
    """Read a result of `roots/list`.

    Raises:
        Misfit: It is none.
    """
    try:
        return msgspec.convert(result, v.ListRootsResult).roots
    except msgspec.ValidationError:
        raise Misfit("roots is a list of objects with a uri.") from None

"""The asyncio shell of one session: it owns the tasks of its calls, what is asked of its client, and its end. `session.py` decides.

An idle session has no task, no timer and no connection.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from secrets import token_urlsafe
from typing import Any, ClassVar

import msgspec

from callboard.core.era import Envelope, Headers, Request
from callboard.core.exchange import Exchange, State
from callboard.core.peer import Peer
from callboard.core.task import Task
from callboard.errors import AskError, Fail, NoAnswerError, Reason
from callboard.legacy.asks import lift_answer, lower_ask
from callboard.legacy.codec import Codec, Opening
from callboard.legacy.home import Home
from callboard.legacy.methods import OWN, lift_own, serve_own
from callboard.legacy.session import Call, Phase, Session, Track
from callboard.legacy.tasks import encode_status
from callboard.server.state import Hello, Turn
from callboard.server.subscriptions import MAX_RESOURCES
from callboard.transport.endpoint import read_cancelled
from callboard.transport.stream import nobody
from callboard.wire.jsonrpc import RawNotification, RawRequest, RawResponse, RequestId

__all__ = ["Actor", "Work", "make_hello"]

_log = logging.getLogger("callboard")
# Characters of a URI that a session remembers.
MAX_URI = 2048
# Seconds that calls get to end when their session does, before its last hook runs all the same.
SETTLE = 1.0
# The same for calls that were being stopped before.
LINGER = 0.2
_RUNNING, _OVER = Phase.RUNNING, Phase.OVER
_CANCELLED = State.CANCELLED


def make_hello(opening: Opening, session_id: str | None, options: Any) -> Hello:
    """What the server's functions learn of how a client opened its session."""
    params = msgspec.json.decode(opening.params, type=dict[str, Any]) if len(opening.params) else {}
    return Hello(opening.client_info, opening.capabilities, opening.version, params, session_id, options)


class Work(Call):
    """A call, and what the shell needs to run it.

    Attributes:
        actor: The session that it belongs to.
        request: The lifted request.
        principal: Who asks.
        scope_state: ASGI state of the request.
        task: Where it runs; None before its turn.
        begun: Whether its first step has been taken.
        connection: What it is answered on, as long as its client is there.
    """

    __slots__ = ("actor", "begun", "connection", "principal", "request", "scope_state", "task")

    def __init__(self, actor: Actor, request: Request, turn: Turn, exchange: Exchange, principal: str | None, scope_state: Any) -> None:
        self.id = request.id  # as Call does: a call more for each request would show
        self.turn = turn
        self.exchange = exchange
        self.phase = _RUNNING
        self.track = None
        self.actor = actor
        self.request = request
        self.principal = principal
        self.scope_state = scope_state
        self.task: asyncio.Task[None] | None = None
        self.begun = False
        self.connection: Any = None


class Actor:
    """One session.

    What is kept of it is kept here: `shared.py` has one whose store other workers use, too.

    Args:
        home: What all sessions share.
        session_id: Its id.
        codec: The version that was agreed on.
        opening: What the client said when it opened it.
        options: What is bound to it.
        state: The state it begins with, as it is kept; None for a server without state.
        owner: Who opened it, and alone may use it.
        channel: Where what the server says of its own accord goes, when it has a pipe; None over HTTP.
    """

    machine_type: ClassVar[type[Session]] = Session
    # Whether what a call leaves must be kept elsewhere before it is answered.
    shares: ClassVar[bool] = False

    __slots__ = (
        "_peer",
        "channel",
        "codec",
        "envelope",
        "home",
        "id",
        "machine",
        "opening",
        "options",
        "owner",
        "topics",
    )

    def __init__(
        self,
        home: Home,
        session_id: str,
        codec: Codec,
        opening: Opening,
        options: Any,
        state: Any,
        owner: str | None,
        channel: Exchange | None = None,
    ) -> None:
        self.home = home
        self.id = session_id
        self.codec = codec
        self.opening = opening
        self.options = options
        self.owner = owner
        self.channel = channel
        limits = home.mount.limits
        self.machine = self.machine_type(state, max_pending=limits.session_max_pending, keep=limits.session_buffer, kept=home.kept)
        self.envelope = Envelope(codec.version, opening.capabilities, opening.client_info, "info")
        self.topics: set[str] | None = None
        self._rest()
        self._peer: Peer | None = None

    @property
    def hello(self) -> Hello:
        """How the client introduced itself."""
        opening = self.opening
        return make_hello(opening, self.id, self.options)

    @property
    def log_level(self) -> str | None:
        """The least severe level that the client wants to see now."""
        return self.envelope.log_level

    @property
    def kept_state(self) -> Any:
        """Its state, encoded, as the last call left it."""
        return self.machine.state

    # Requests

    def start(
        self, message: RawRequest, exchange: Exchange, *, headers: Headers | None, principal: str | None, scope_state: Any
    ) -> Work | None:
        """Take a request. Its exchange is woken when it is answered, which may be at once.

        Returns:
            The call; None when it was refused, and so is answered.
        """
        machine = self.machine
        own = message.method in OWN
        request: Request | Fail
        if message.method == "initialize":
            request = Fail(Reason.SESSION_OPEN)
        elif not machine.initialized and self.home.rules.handshake == "strict" and message.method != "ping":
            request = Fail(Reason.NOT_INITIALIZED)
        elif own:
            request = lift_own(message, headers, self.envelope)
        else:
            request = self.codec.lift(message, headers, self.envelope)
        if isinstance(request, Fail):
            self.home.endpoint.note_refusal(message.method, request, headers=headers, principal=principal, modern=False)
            self._answer(exchange, message.id, request)
            return None
        turn = self.home.server.turn(request, streams=exchange.streams)
        work = Work(self, request, turn, exchange, principal, scope_state)
        if (reason := machine.submit(work)) is not None:
            self.home.endpoint.note_refusal(message.method, Fail(reason), headers=headers, principal=principal, modern=False)
            self._answer(exchange, message.id, Fail(reason))
            return None
        if self.channel is None:  # a pipe's client has time limits of its own, and can cancel
            self.home.slow.set(work)
        if work.phase is _RUNNING:
            work.task = self.home.loop.create_task(self._run(work))
        return work

    def expire(self, work: Work) -> None:
        """The request has taken longer than it may."""
        if self.machine.expire(work):
            text = f"Request timed out after {self.home.rules.request_timeout:g} s (request_timeout)."
            self._answer(work.exchange, work.id, Fail(Reason.TIMED_OUT, text))
        self._rest()

    def cancel(self, request_id: RequestId) -> None:
        """The client wants no answer to a request any more; one that is not in flight is no matter (CN-06)."""
        work = self.machine.stop(request_id)
        if isinstance(work, Work):
            self._stop(work, Fail(Reason.CANCELLED) if self.home.rules.reply_on_cancel else None)
            self._rest()

    def drop(self, work: Work) -> None:
        """The connection of a call is gone: by the rule of this endpoint the call ends, or goes on for whoever comes back for it."""
        if work.phase is _OVER:
            return  # another call may have its id by now
        policy = self.home.rules.cancel_on_disconnect
        exchange = work.exchange
        streaming = exchange.streams and (exchange.begun or work.request.envelope.progress_token is not None)
        if policy == "always" or (policy == "streaming" and streaming):
            self.cancel(work.id)
        else:
            self.detach(work)

    def detach(self, work: Work) -> None:
        """Go on with a call that has no connection: what it says is kept for replay."""
        exchange = work.exchange
        if not exchange.begun and exchange.open:
            exchange.streams = False  # its client knows no event id to come back with
        exchange.wake = partial(self._collect, work)
        self._collect(work)

    def disconnect(self, exchange: Exchange, retry: float) -> None:
        """Close the connection that a call is answered on; see `Context.disconnect`."""
        work = next((call for call in self.machine.calls.values() if call.exchange is exchange), None)
        if (
            work is None
            or not exchange.streams
            or not exchange.open
            or not self.codec.features.priming
            or not self.home.mount.limits.session_buffer
        ):
            return
        assert isinstance(work, Work)
        exchange.open_stream()
        if work.connection is not None:
            work.connection.hang_up(retry)

    def _begin(self, work: Work) -> None:
        work.task = self.home.loop.create_task(self._run(work))

    async def _run(self, work: Work) -> None:
        work.begun = True
        home, request = self.home, work.request
        context = home.endpoint.context_type(home.mount, request, work.exchange, work.principal, work.scope_state, self)
        kind, state = home.server.state, None
        try:
            if work.turn.has_state:
                context.give_state(kind.draft(self.machine.state))
            service = serve_own if request.method in OWN else None
            status, answer = await home.endpoint.serve(context, self.codec, service)
            if work.turn is Turn.IN_TURN and not context.crashed:
                state = kind.seal(context.state)
            if self.shares:
                status, answer = await self._leave(work, state, status, answer)
        except Exception as error:  # noqa: BLE001 - of the state's own type; what functions raise does not come here
            status, answer = self.codec.render(request.id, home.server.crash(f"{request.method}: its state", error), request)
        except BaseException:
            self._over(work, None)
            if work.exchange.open:  # nobody else would answer
                self._answer(work.exchange, work.id, Fail(Reason.SESSION_ENDED))
            raise
        self._over(work, state)
        work.exchange.finish(status, answer)
        work.exchange.wake()
        if context.stop_reason is not None and not context.crashed:
            self.end(context.stop_reason)

    async def _leave(self, work: Work, state: Any, status: int, answer: bytes) -> tuple[int, bytes]:
        """Keep what a call leaves where other workers find it; what it is answered with then."""
        raise NotImplementedError

    def _over(self, work: Work, state: Any) -> None:
        home, machine = self.home, self.machine
        work.task = None  # its traceback may hold the call
        if not home.slow.unset(work):
            home.deadlines.unset(work)
        following = machine.finish(work, state)
        if following is not None and not machine.ended:
            assert isinstance(following, Work)
            self._begin(following)
        if not machine.calls and not machine.attached:
            self._rest()

    def _stop(self, work: Work, fail: Fail | None) -> None:
        """End a call that the machine has stopped; with an answer, as long as none has begun, or without."""
        if fail is not None and not work.exchange.begun:
            self._answer(work.exchange, work.id, fail)
        else:
            work.exchange.cancel()
            work.exchange.wake()
        if work.task is None:
            self.home.slow.unset(work)
            self.home.deadlines.unset(work)
        else:
            work.task.cancel()
            if not work.begun:  # then nothing of it will ever run, its end neither
                self._over(work, None)

    def _rest(self) -> None:
        """Something has ended: where nothing else happens the session's time runs."""
        machine = self.machine
        if not machine.calls and not machine.attached and not machine.ended and self.channel is None:
            self.home.idle.set(self)

    def _answer(self, exchange: Exchange, request_id: RequestId, fail: Fail) -> None:
        exchange.finish(*self.codec.render(request_id, fail, None))
        exchange.wake()

    def settle(self, work: Work) -> None:
        """A call is over: keep what has not been written, then nothing more comes on its track."""
        exchange = work.exchange
        write = exchange.take()
        if write is not None and exchange.streams:
            self._keep_notes(work, write.notes)
        if work.track is not None:
            self.machine.close(work.track, forget=exchange.state is _CANCELLED)

    def _collect(self, work: Work) -> None:
        """Keep what a call says while nobody reads it."""
        exchange = work.exchange
        if not exchange.open:
            exchange.wake = nobody
            self.settle(work)
        elif (write := exchange.take()) is not None and exchange.streams:
            self._keep_notes(work, write.notes)

    def _keep_notes(self, work: Work, notes: list[bytes]) -> None:
        """Make messages that nobody reads now events of a call's track."""
        self.machine.stamp(self.machine.open_track(work), notes)

    # What the server says of its own accord

    def push(self, note: bytes, key: str = "", *, droppable: bool = False) -> None:
        """Send a notification that belongs to no call.

        Args:
            note: The encoded notification.
            key: Notes of the same key may replace each other while they wait.
            droppable: Whether it may be lost when the client reads too slowly.
        """
        if self.machine.ended:
            return
        if self.channel is not None:
            self.channel.emit(note, key=key, droppable=droppable)
            return
        if self.home.rules.json_only:
            return
        track = self.machine.route()
        if track.outlet is None:
            self.machine.stamp(track, [note])
        else:
            track.outlet.exchange.emit(note, key=key, droppable=droppable)

    def report(self, task: Task) -> None:
        """Tell the client how a task of its stands."""
        self.push(encode_status(task), task.id)

    def wants(self, level: str | None) -> bool:
        """Whether a log message of this level goes to this client; None is no log message."""
        return level is None or self.home.severity[level] >= self.home.severity[self.envelope.log_level or "info"]

    def set_level(self, level: str) -> None:
        """Log from this level on (LG-03)."""
        self.envelope = msgspec.structs.replace(self.envelope, log_level=level)

    def subscribe(self, uri: str) -> None:
        """Hear of changes of a resource.

        Raises:
            Fail: There are too many, or it is too long.
        """
        if len(uri) > MAX_URI:
            raise Fail(Reason.INVALID_PARAMS, f"params.uri: at most {MAX_URI} characters of a resource that is subscribed to.")
        if self.topics is not None and len(self.topics) >= MAX_RESOURCES and f"uri:{uri}" not in self.topics:
            raise Fail(Reason.INVALID_PARAMS, f"At most {MAX_RESOURCES} subscriptions in one session.")
        self.join(f"uri:{uri}")

    def unsubscribe(self, uri: str) -> None:
        """Stop hearing of changes of a resource."""
        if self.topics is not None:
            self.topics.discard(f"uri:{uri}")
            self.home.part(self, f"uri:{uri}")

    def join(self, topic: str) -> None:
        """Hear a topic; a session that has ended hears nothing."""
        if self.machine.ended:
            return
        if self.topics is None:
            self.topics = set()
        self.topics.add(topic)
        self.home.join(self, topic)

    # What the client sends besides requests

    def notice(self, message: RawNotification) -> None:
        """Take a notification."""
        if message.method == "notifications/initialized":
            self.machine.initialized = True
        elif message.method == "notifications/cancelled":
            request_id = read_cancelled(message)
            if request_id is not None:
                self.cancel(request_id)
        if not self.machine.ended:
            self._hear(message)
        self._rest()

    def _hear(self, message: RawNotification) -> None:
        self.home.endpoint.hear(self.home.mount, message, envelope=self.envelope, session=self, state=self.machine.state)

    def respond(self, message: RawResponse) -> bool:
        """Take the answer to a request of ours; whether there was one."""
        found = None if self._peer is None else self._peer.answer(message)
        if found is None:
            return False
        future, result = found
        if not future.done():
            if isinstance(result, AskError):
                future.set_exception(result)
            else:
                future.set_result(result)
        return True

    async def ask(self, method: str, params: Any, *, exchange: Exchange | None = None, timeout: float = 60.0) -> Any:  # noqa: ASYNC109
        """Send the client a request, and wait for its result; see `callboard.server.context.Session`.

        Raises:
            Fail: The protocol of this client has no words for it.
            AskError: The client answered with an error.
            NoAnswerError: It did not answer in time, the session ended, or there is no stream to ask on.
        """
        if self.machine.ended:
            raise NoAnswerError("The session has ended.")
        if self._peer is None:
            self._peer = self._make_peer()
        codec = self.codec
        lowered = lower_ask(codec.features, method, params, version=codec.version, elicitation_id=token_urlsafe(16))
        if isinstance(lowered, Fail):
            raise lowered
        answer: asyncio.Future[Any] = self.home.loop.create_future()
        request_id, message = self._peer.ask(answer, method, lowered)
        try:
            self._send(message, exchange)
            async with asyncio.timeout(timeout):
                return lift_answer(method, await answer)
        except TimeoutError:
            raise NoAnswerError(f"The client did not answer {method} within {timeout:g} s.") from None
        finally:
            if (note := self._peer.give_up(request_id, "nobody waits for it any more")) is not None and not self.machine.ended:
                self._send(note, exchange, lenient=True)

    def _make_peer(self) -> Peer:
        """What numbers the requests to its client."""
        return Peer()

    @property
    def channel_read(self) -> bool:
        """Whether its client reads a GET stream."""
        return self.machine.channel_read

    def _send(self, message: bytes, exchange: Exchange | None, *, lenient: bool = False) -> None:
        """Send on a call's stream, or on one of the session's own."""
        if self.channel is not None:
            self.channel.emit(message)
            return
        if exchange is not None and exchange.emit(message):
            return
        if self.channel_read and (exchange is None or (exchange.open and not exchange.streams)):
            self.push(message)
        elif not lenient:
            raise NoAnswerError("There is no stream to ask the client on: it takes none for this call, and reads no GET stream.")

    # Connections

    def enter(self) -> None:
        """A connection hangs on the session: its time does not run."""
        self.machine.attached += 1

    def leave(self) -> None:
        """A connection is gone."""
        self.machine.attached -= 1
        self._rest()

    def attach(self, track: Track, outlet: Any) -> None:
        """Write a track to a connection from now on; one that it had before is closed."""
        if track.outlet is not None:
            if track.is_channel:
                self._keep(track, track.outlet.exchange)
            track.outlet.give_way()
        track.outlet = outlet

    def release(self, track: Track, outlet: Any) -> None:
        """A connection is closed; what a GET stream had not written yet is kept for replay."""
        track.outlet = None
        if track.is_channel:
            self._keep(track, outlet.exchange)

    def _keep(self, track: Track, exchange: Exchange) -> None:
        """Keep for replay what a GET stream has not written."""
        if (write := exchange.take()) is not None:
            self.machine.stamp(track, write.notes)
        exchange.cancel()

    # The end

    def end(self, reason: str) -> asyncio.Task[None] | None:
        """End the session: calls stop, connections close, then the server's `terminate` runs, once.

        Args:
            reason: `deleted`, `expired`, `shutdown` or `closed`, or what a call said that ended it.

        Returns:
            The task in which the rest happens; None when there is no rest, or it had ended before.
        """
        stopped = self._stop_all()
        if stopped is None:
            return None
        self.home.note_end(self.id, reason)
        tasks, seconds = stopped
        if not tasks and self.home.server.hooks.terminate is None:
            return None
        return self.home.see_off(self._terminate(reason, tasks, seconds))

    def _stop_all(self, fail: Fail | None = None) -> tuple[list[asyncio.Task[None]], float] | None:
        """Stop its calls and close its connections.

        Args:
            fail: What callers are told; that the session has ended by default.

        Returns:
            What has to end yet, and how many seconds it has; None when the session had ended before.
        """
        stopped = self.machine.end()
        if stopped is None:
            return None
        self.home.forget(self)
        for outlet in self.machine.outlets():
            if outlet.call is None:
                outlet.hang_up(None)
        tasks = [work.task for work in self.machine.calls.values() if isinstance(work, Work) and work.task is not None]
        # Those that were being stopped before have had their time; the last hook does not overtake them, all the same.
        seconds = SETTLE if any(isinstance(work, Work) and work.task is not None for work in stopped) else LINGER
        for work in stopped:
            assert isinstance(work, Work)
            self._stop(work, fail or Fail(Reason.SESSION_ENDED))
        for future in () if self._peer is None else self._peer.clear():
            if not future.done():
                future.set_exception(NoAnswerError("The session has ended."))
        return tasks, seconds

    async def _terminate(self, reason: str, tasks: list[asyncio.Task[None]], seconds: float) -> None:
        await self.see_out(tasks, seconds)
        await self.home.run_terminate(reason, self.machine.state)

    @staticmethod
    async def see_out(tasks: list[asyncio.Task[None]], seconds: float) -> None:
        """Wait until calls that were stopped have ended, and their answers are on the way, within bounded time."""
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

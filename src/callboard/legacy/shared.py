"""The asyncio shell of a session that every worker of a server may serve: what `actor.py` keeps here is kept in the store, too.

Each worker has an object of this for each session that it has seen of late: a copy of the record, and the calls and connections that are
here. What one call needs of the store:

| | before it runs | before it is answered |
|---|---|---|
| takes the state in turn | `enter`: the turn, and the state | `leave`: the state, and the answer where it is an event |
| takes a snapshot | `state` | - |
| takes none | - | - |
| streams | as above | `append`, before each write: what a client has seen can be replayed |

Rules:
    1. A worker's own calls stand in the queue of its own machine: only the first of them stands in the one of the store.
    2. What the store has not taken is not answered with a result: 503, and the turn is given up as soon as the store is back.
    3. A turn that somebody else has given away, because this worker was silent for too long, keeps nothing.
    4. What is said of its own accord goes to `g0` in the store, and comes from there to whichever worker has the reader.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from secrets import token_hex
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import msgspec

from callboard.core.exchange import Exchange, State
from callboard.core.peer import Peer
from callboard.errors import Fail, NoAnswerError, Reason, StoreError
from callboard.legacy.actor import Actor, Work
from callboard.legacy.codec import Codec, Opening
from callboard.legacy.home import Home
from callboard.legacy.session import Session, Track
from callboard.legacy.shared_session import Delta, Saving, SharedSession, find_place, read_track
from callboard.legacy.stored import ALL, CHANNEL, Answer, Found, Relayed, SessionStore, Turned, worker_of
from callboard.transport.endpoint import read_cancelled
from callboard.wire.jsonrpc import RawNotification, RawResponse, encode

__all__ = ["SharedActor", "SharedHome"]

_log = logging.getLogger("callboard")
_OPEN = State.OPEN
# Seconds that a call waits for its turn before it looks whether the one before it is still there.
PATIENCE = 1.0
# Seconds between two tries to reach a store that is gone.
AGAIN = 0.5
# Characters of all that a session hears of: each change of it is written as a whole.
MAX_TOPICS = 64 * 1024
# Characters of a worker's name.
MAX_WORKER = 64
_NOT_SAVED = "What this call said was too much to wait for the store, which could not be reached."
_NOT_KEPT = "The session's state was not kept: this worker was cut off for so long that another call has had its turn. Try again."


# Who makes changes -> those changes: whoever is answered must know whether the store has them.
_made: WeakKeyDictionary[asyncio.Task[Any], list[asyncio.Task[None]]] = WeakKeyDictionary()


class SharedHome(Home):
    """What the sessions of an endpoint share that are in a store.

    Attributes:
        stored: The store.
        busy: Sessions on which connections hang or in which calls run, and some in which that is over.
    """

    stored: SessionStore
    busy: dict[Any, None]

    def next_token(self) -> str:
        """A ticket, or what a reader is known by: in use until it is given back or `done_with`."""
        raise NotImplementedError

    def done_with(self, token: str) -> None:
        """A ticket or a reader is not in use any more, and the store does not have it."""

    def insist(self, act: Callable[[], Awaitable[object]]) -> None:
        """Do something as soon as the store can be reached; nobody waits for it."""

    def free(self, session_id: str, ticket: str) -> None:
        """Give a turn back, as soon as the store can be reached."""

    def free_reader(self, session_id: str, token: str) -> None:
        """Give the place of a reader back, as soon as the store can be reached."""

    async def relearn(self, actor: SharedActor) -> bool:
        """Have a session know its record anew; whether it is still there. If not, it is let go of."""
        raise NotImplementedError

    async def news_since(self, actor: SharedActor, position: str) -> list[tuple[str, bytes]]:
        """What has been said to many since a position of the Bus, as far as it is for this session."""
        raise NotImplementedError


class SharedActor(Actor):
    """One session, as far as it is here.

    Args:
        home: As `Actor`; so are the others, but for `found`.
        session_id: Its id.
        codec: The version that was agreed on.
        opening: What the client said when it opened it.
        options: What is bound to it.
        found: What the store has of it.

    Attributes:
        record: What every worker knows of it, as it was found.
        revision: Which one that is.
        epoch: Of the messages that would have told of another one; -1 once one has.
        touched: When the store last heard of it, by the loop's clock.
        readers: Connections that read `g0`, or wait to, by token.
        followers: Connections that read the track of another worker's call, by its name.
    """

    machine_type: ClassVar[type[Session]] = SharedSession
    shares: ClassVar[bool] = True
    home: SharedHome
    machine: SharedSession

    __slots__ = (
        "_answered",
        "_behind",
        "_changing",
        "_is_read",
        "_news",
        "_pending",
        "_position",
        "_pump",
        "_savings",
        "_tickets",
        "_turns",
        "epoch",
        "followers",
        "readers",
        "record",
        "revision",
        "touched",
    )

    def __init__(self, home: SharedHome, session_id: str, codec: Codec, opening: Opening, options: Any, found: Found) -> None:
        self.readers: dict[str, Any] = {}
        self.followers: dict[str, Any] = {}
        self._tickets: dict[Work, str] = {}
        self._turns: dict[str, asyncio.Future[None]] = {}
        self._savings: dict[str, Saving] = {}
        # Tracks of which the store has the answer, before that is written.
        self._answered: set[str] = set()
        # Changes that the store may not have yet, and the task of the newest.
        self._pending: list[Delta] = []
        self._changing: asyncio.Task[None] | None = None
        self._is_read = False
        self._news: deque[tuple[str, bytes]] = deque()
        self._position = found.record.news
        self._behind = False
        self._pump: asyncio.Task[None] | None = None
        self.touched = home.loop.time()
        Actor.__init__(self, home, session_id, codec, opening, options, None, found.record.owner)
        self.machine.mark = token_hex(6)
        self.learn(found, home.stored.epoch)

    # What is known of it

    def learn(self, found: Found, epoch: int) -> None:
        """Take a record that was found; `epoch`: of the messages that would have told of another one since; -1 where one has."""
        self.record, self.revision = found
        self.epoch = epoch
        self._position = max(self._position, found.record.news, key=find_place)
        record = found.record
        for delta in self._pending:
            record = delta.apply(record)
        self.envelope = msgspec.structs.replace(self.envelope, log_level=record.log_level)
        self.machine.initialized = self.machine.initialized or record.initialized
        known = set(self.topics or ())
        for topic in known.difference(record.topics):
            Actor.unsubscribe(self, topic.removeprefix("uri:"))
        for topic in record.topics:
            if topic not in known:
                self.join(topic)

    @property
    def stale(self) -> bool:
        """Whether what is known of it may be out of date."""
        stored = self.home.stored
        return self.epoch != stored.epoch or not stored.hears

    def set_level(self, level: str) -> None:
        """Log from this level on, in every worker."""
        Actor.set_level(self, level)
        self._change(Delta(level=level))

    def subscribe(self, uri: str) -> None:
        """Hear of changes of a resource, in every worker."""
        if len(uri) + sum(map(len, self.topics or ())) > MAX_TOPICS:
            text = f"The URIs that one session subscribes to have at most {MAX_TOPICS} characters together, where processes share a store."
            raise Fail(Reason.INVALID_PARAMS, text)
        Actor.subscribe(self, uri)
        self._change(Delta(topic=f"uri:{uri}"))

    def unsubscribe(self, uri: str) -> None:
        """Stop hearing of changes of a resource."""
        Actor.unsubscribe(self, uri)
        self._change(Delta(topic=f"uri:{uri}", heard=False))

    def notice(self, message: RawNotification) -> None:
        """Take a notification; a cancellation of a call that is not here goes to where it is."""
        if message.method == "notifications/cancelled":
            request_id = read_cancelled(message)
            if request_id is not None and request_id not in self.machine.calls:
                self.home.stored.tell(ALL, Relayed(self.id, "cancel", encode(request_id)))
        known = self.machine.initialized
        Actor.notice(self, message)
        if self.machine.initialized and not known:
            self._change(Delta(initialized=True))

    def _hear(self, message: RawNotification) -> None:
        if self.home.server.hears:
            self.home.see_off(self._hear_with_state(message))

    async def _hear_with_state(self, message: RawNotification) -> None:
        self.machine.state = await self.home.stored.state(self.id)
        if self.machine.state is not None:
            Actor._hear(self, message)  # noqa: SLF001 - its own class's

    def _change(self, delta: Delta) -> None:
        """Have every worker know what this one does; what comes next is answered when they can."""
        self._pending.append(delta)
        change = self._changing = self.home.see_off(self._tell_change(self._changing, delta))
        if (maker := asyncio.current_task()) is not None:
            _made.setdefault(maker, []).append(change)

    async def _tell_change(self, before: asyncio.Task[None] | None, delta: Delta) -> None:
        try:
            if before is not None:
                await asyncio.wait({before})
            while not self.machine.ended:
                based_on, record = self.revision, delta.apply(self.record)
                revision = await self.home.stored.change(self.id, based_on, record)
                if revision is not None:
                    if self.revision == based_on:  # else a newer one has been found meanwhile
                        self.record, self.revision = record, revision
                    return
                if not await self.home.relearn(self):
                    return
        except StoreError:
            self.epoch = -1  # what holds is what the store has
            raise
        finally:
            self._pending.remove(delta)

    async def told(self) -> Fail | None:
        """Wait until the store has what was changed; why it has not what this task has changed."""
        maker, changing = asyncio.current_task(), self._changing
        own = [] if maker is None else _made.pop(maker, [])
        waits = {*own, *(() if changing is None else (changing,))}
        if waits:
            await asyncio.wait(waits)
        if self._changing is changing:
            self._changing = None
        failed = any(not change.cancelled() and isinstance(change.exception(), StoreError) for change in own)
        return Fail(Reason.STORE) if failed else None

    # Calls

    async def _run(self, work: Work) -> None:
        work.begun = True
        self.home.busy[self] = None
        try:
            fail = await self._enter(work)
        except BaseException:
            self._over(work, None)
            if work.exchange.open:
                self._answer(work.exchange, work.id, Fail(Reason.SESSION_ENDED))
            raise
        if fail is None:
            await Actor._run(self, work)  # noqa: SLF001 - its own class's
            return
        self._over(work, None)
        self._answer(work.exchange, work.id, fail)

    async def _enter(self, work: Work) -> Fail | None:
        """Get what a call needs before it can run; why it can't."""
        try:
            if work.turn.queues:
                return await self._await_turn(work)
            if work.turn.has_state:
                self.machine.state = await self.home.stored.state(self.id)
                return None if self.machine.state is not None else self._lost()
        except StoreError:
            return Fail(Reason.STORE)
        except Fail as fail:
            return fail
        return None

    async def _await_turn(self, work: Work) -> Fail | None:
        stored, limits = self.home.stored, self.home.mount.limits
        ticket = self._tickets[work] = self.home.next_token()
        turn = self._turns[ticket] = self.home.loop.create_future()
        try:
            entered = await stored.enter(self.id, ticket, max_pending=limits.session_max_pending)
            while entered is not None and not entered.turn:
                await asyncio.wait({turn}, timeout=PATIENCE)
                if turn.done():  # if it is not true any more, the next word of it counts
                    turn = self._turns[ticket] = self.home.loop.create_future()
                else:
                    await self._look_ahead(ticket)
                entered = await stored.enter(self.id, ticket)
        finally:
            del self._turns[ticket]
        if entered is None:
            self.home.done_with(self._tickets.pop(work))
            return self._lost()
        self.touched = self.home.loop.time()
        self.machine.state = entered.state
        return None

    async def _look_ahead(self, ticket: str) -> None:
        """See whether whoever has the turn is still there, and pass the turn on where they are not."""
        stored = self.home.stored
        head = await stored.head(self.id)
        if head is None or head == ticket:
            return
        if await stored.alive(worker_of(head)):  # it may have been told that it could not get the turn, which came all the same
            stored.tell(worker_of(head), Relayed(self.id, "ticket", head.encode()))
        else:
            await stored.evict(self.id, head)

    def _lost(self) -> Fail:
        """The store does not know it any more."""
        self.home.loop.call_soon(self.let_go)
        return Fail(Reason.SESSION_NOT_FOUND)

    def turned(self, message: Turned) -> None:
        """It is the turn of a ticket."""
        turn = self._turns.get(message.ticket)
        if turn is not None and not turn.done():
            turn.set_result(None)

    async def _leave(self, work: Work, state: Any, status: int, answer: bytes) -> tuple[int, bytes]:
        fail = await self.told()
        if fail is None and work in self._tickets:
            fail = await self._keep_state(work, state, self._as_event(work, status, answer))
        return (status, answer) if fail is None else self.codec.render(work.id, fail, None)

    async def _keep_state(self, work: Work, state: bytes | None, event: Answer | None) -> Fail | None:
        """Give the turn back, and what was made of it; where that fails, `_over` does it later, without."""
        ticket = self._tickets[work]
        leaving = self.home.see_off(self.home.stored.leave(self.id, ticket, state, event))
        try:
            kept = await asyncio.shield(leaving)  # who cancels the call now is too late: it is through
        except StoreError:
            return Fail(Reason.STORE)
        self.home.done_with(self._tickets.pop(work))
        self.touched = self.home.loop.time()
        if kept and event is not None:
            self._answered.add(event.track)
        return None if kept or state is None else Fail(Reason.INTERNAL, _NOT_KEPT)

    def _as_event(self, work: Work, status: int, answer: bytes) -> Answer | None:
        """The answer as the only event of a stream, where it will be one."""
        exchange = work.exchange
        alone = exchange.state is _OPEN and exchange.streams_only and exchange.held is None and status == 200 and answer
        if not alone or work.connection is None or not self.home.mount.limits.session_buffer:
            return None
        return Answer(self.machine.open_track(work).name, answer)

    def _over(self, work: Work, state: Any) -> None:  # noqa: ARG002 - the store has it
        ticket = self._tickets.pop(work, None)
        if ticket is not None:
            self.home.free(self.id, ticket)
        Actor._over(self, work, None)  # noqa: SLF001 - its own class's

    def expire(self, work: Work) -> None:
        """The request has taken longer than it may; one that still waits for its turn is dropped."""
        Actor.expire(self, work)
        ticket = self._tickets.get(work)
        if ticket in self._turns and work.task is not None:
            work.task.cancel()

    # Events of calls

    def is_saved(self, track: Track) -> bool:
        """Whether the store has the answer of a call already."""
        return track.name in self._answered

    async def save(self, track: str, notes: list[bytes], *, last: bool, saving: Saving | None = None) -> None:
        """Have the store keep events before they are written; where it can't, they are written all the same, and kept when it can.

        Args:
            track: Name of the track.
            notes: The messages.
            last: Whether nothing follows.
            saving: What the store has of it, where that is known.
        """
        if not self.home.mount.limits.session_buffer:
            return
        saving, stored = saving or self._savings.setdefault(track, Saving()), self.home.stored
        saving.waiting += notes
        flush = partial(saving.flush, partial(stored.append, self.id, track, worker=stored.worker, last=last))
        try:
            await flush()
        except StoreError:
            if last:  # whoever waits for the end of it elsewhere would wait for ever
                self.home.insist(flush)
        if last:
            self._savings.pop(track, None)
            if saving.saved < 0:
                self._end_track(track, Fail(Reason.INTERNAL, _NOT_SAVED))

    def reclaim(self, track: Track) -> None:
        """The client of a call has come back to the worker that runs it: whoever followed it elsewhere hangs up."""
        saved = self._savings.get(track.name)
        stored = self.home.stored
        self.home.see_off(stored.follow(self.id, track.name, 0 if saved is None else max(saved.saved, 0), stored.worker))

    def _keep_notes(self, work: Work, notes: list[bytes]) -> None:
        track = self.machine.open_track(work)
        self.machine.stamp(track, notes)
        self.home.see_off(self.save(track.name, notes, last=not work.exchange.open))

    def settle(self, work: Work) -> None:
        """A call is over: of one that was cancelled nothing is left, but for whoever waits for more."""
        track = work.track
        Actor.settle(self, work)
        if track is not None:
            self._answered.discard(track.name)
        saving = None if track is None else self._savings.get(track.name)
        if track is None or saving is None:
            return
        if work.exchange.state is State.CANCELLED:
            del self._savings[track.name]
            self._end_track(track.name, Fail(Reason.CANCELLED))
        else:  # whoever wrote the last of it may have been cancelled before the store had it
            self.home.see_off(self.save(track.name, [], last=True, saving=saving))

    def _end_track(self, track: str, fail: Fail) -> None:
        answer = self.codec.render_fail(read_track(track), fail)[1]
        self.home.insist(partial(self.home.stored.fail_track, self.id, track, answer))

    # What is asked of the client, and what is said unasked

    def push(self, note: bytes, key: str = "", *, droppable: bool = False) -> None:  # noqa: ARG002 - each is an event of its own
        """Send a notification that belongs to no call."""
        if not self.machine.ended and not self.home.rules.json_only:
            self.home.see_off(self.home.stored.push(self.id, note))

    def _make_peer(self) -> Peer:
        return Peer(f"server-{self.home.stored.worker}-{self.machine.mark}")

    @property
    def channel_read(self) -> bool:
        """Whether its client reads a GET stream somewhere, as of a moment ago."""
        return self._is_read

    async def ask(self, method: str, params: Any, *, exchange: Exchange | None = None, timeout: float = 60.0) -> Any:  # noqa: ASYNC109
        """See `Actor.ask`."""
        if exchange is None or not exchange.streams:
            try:
                self._is_read = await self.home.stored.reader(self.id) is not None
            except StoreError as error:
                raise NoAnswerError(str(error)) from error
        return await Actor.ask(self, method, params, exchange=exchange, timeout=timeout)

    def respond(self, message: RawResponse) -> bool:
        """Take the answer to a request of ours; one to another worker's goes there."""
        if Actor.respond(self, message):
            return True
        parts = message.id.split("-") if isinstance(message.id, str) else ()
        stored = self.home.stored
        worker = parts[1] if len(parts) == 4 and parts[0] == "server" else ALL
        if worker in {stored.worker, ALL} or not worker.isalnum() or len(worker) > MAX_WORKER:
            return False
        said: dict[str, Any] = {"jsonrpc": "2.0", "id": message.id}
        said |= {"result": message.result} if message.error is None else {"error": message.error}
        stored.tell(worker, Relayed(self.id, "answer", encode(said)))
        return True

    # News: what is said to many

    @property
    def reads(self) -> bool:
        """Whether the reader of `g0` is here."""
        return any(reader.turn for reader in self.readers.values())

    def catch_up(self) -> None:
        """Make all events that were said to many since it last heard of any."""
        self._behind = True
        self._start_pump()

    def hear_news(self, position: str, note: bytes | None) -> None:
        """Make an event of what is said to many.

        Args:
            position: Where it is on the Bus.
            note: The notification; None where it is nothing for this session.
        """
        if note is not None:
            self._news.append((position, note))
            self._start_pump()
        elif self._pump is None:
            self._position = position

    def _start_pump(self) -> None:
        if self._pump is None and not self.machine.ended:
            self._pump = self.home.see_off(self._push_news())

    async def _push_news(self) -> None:
        stored = self.home.stored
        try:
            while (self._behind or self._news) and not self.machine.ended and self.reads:
                try:
                    if self._behind:
                        await self._read_back()
                    while self._news:
                        position, note = self._news[0]
                        await stored.push(self.id, note, position)
                        self._position = position
                        self._news.popleft()
                except StoreError:
                    self._behind = True
                    await asyncio.sleep(AGAIN)
        finally:
            self._pump = None

    async def _read_back(self) -> None:
        self._behind = False
        if not await self.home.relearn(self):
            return
        found = await self.home.news_since(self, self._position)
        newest = find_place(found[-1][0]) if found else (0, 0)
        later = [news for news in self._news if find_place(news[0]) > newest]
        self._news = deque([*found, *later])

    # The end

    def release(self, track: Track, outlet: Any) -> None:
        """A connection is closed."""
        if track.name == CHANNEL:
            track.outlet = None
            outlet.exchange.cancel()
            if self.readers.pop(outlet.token, None) is not None:
                self.home.free_reader(self.id, outlet.token)
            return
        if self.followers.get(track.name) is outlet:
            del self.followers[track.name]
        Actor.release(self, track, outlet)

    def move(self, track_name: str) -> None:
        """The client that read a track here has come back for it elsewhere."""
        follower = self.followers.pop(track_name, None)
        if follower is not None:
            follower.give_way()
            return
        for work in list(self.machine.calls.values()):
            track = work.track
            if track is not None and track.name == track_name and track.outlet is not None:
                assert isinstance(work, Work)
                outlet, track.outlet = track.outlet, None
                outlet.give_way()
                work.connection = None
                self.detach(work)

    def _stop_all(self, fail: Fail | None = None) -> tuple[list[asyncio.Task[None]], float] | None:
        stopped = Actor._stop_all(self, fail)  # noqa: SLF001 - its own class's
        for outlet in [*self.readers.values(), *self.followers.values()]:
            outlet.hang_up(None)
        return stopped

    def end(self, reason: str) -> asyncio.Task[None] | None:
        """End the session everywhere, then run the server's `terminate`, once; where it is this worker that ends, let go of it."""
        leaves = reason == "shutdown"  # the session goes on elsewhere
        stopped = self._stop_all(Fail(Reason.OVERLOADED, "The server is shutting down.") if leaves else None)
        if stopped is None or (leaves and not stopped[0]):
            return None
        return self.home.see_off(self.see_out(*stopped) if leaves else self.end_everywhere(reason, *stopped))

    async def end_everywhere(self, reason: str, tasks: list[asyncio.Task[None]], seconds: float) -> None:
        """Take it out of the store; see `Actor.end`.

        Raises:
            StoreError: The store can't be reached: the session goes on.
        """
        ended = await self.home.stored.end(self.id)
        if ended is not None:
            self.home.note_end(self.id, reason)
            self.machine.state = ended.state
            await self._terminate(reason, tasks, seconds)

    def let_go(self) -> None:
        """Forget it here: it has ended, or other workers go on with it."""
        self._stop_all()

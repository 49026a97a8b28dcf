"""Several servers as one: what `Client` speaks to when it is pointed at a configuration.

| asked for | goes to |
|---|---|
| a tool or prompt, `weather_forecast` | the server `weather`, as `forecast` (TL-16); names have their prefix also where there is one server |
| a resource | URIs stay as they are: the server that lists it, whose template fits, or whichever has it |
| a listing | all servers, in the order of the configuration; the first that has a URI counts |
| a task | the server that made it |
| changes | all servers; where one stream breaks or ends, all are opened anew, but one that ended soon or has none, alone and after a rest |

A server that fails does not take the others with it: listings leave it out, its names give its error, and it is tried again after a while.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET

from callboard.client.answer import read, read_complete
from callboard.client.changes import ACKNOWLEDGED, FLAGS, missed, note_of
from callboard.client.config import Config, ServerSpec
from callboard.client.connection import OnNote
from callboard.client.errors import ClientError, ConnectionFailed, InvalidRequest, Origin, ServerError
from callboard.client.listing import Items
from callboard.client.member import MOST_COOLDOWN, Member
from callboard.client.peer import Answer, Peer
from callboard.client.requests import OnProgress, Patience
from callboard.client.result import ToolResult
from callboard.client.subscription import FIRST_DELAY, SHORT, is_passing
from callboard.core.uri import UriTemplate, UriTemplateError
from callboard.wire import v2026_07_28 as v
from callboard.wire.jsonrpc import RawNotification, encode

__all__ = ["Group", "form"]

logger = logging.getLogger("callboard.client")

MAX_TASKS: Final = 10_000
"""How many tasks are remembered with their servers."""
MAX_EARLY: Final = 10_000
"""How many changes may come before all servers have begun to tell of them."""

_NAMED: Final = {"tools/list": "tools/call", "prompts/list": "prompts/get"}
_BY_NAME: Final = frozenset(_NAMED.values())
_BY_URI: Final = frozenset({"resources/read", "resources/subscribe", "resources/unsubscribe"})
_TO_ALL: Final = frozenset({"server/discover", "ping"})
_BY_TASK: Final = frozenset({"tasks/get", "tasks/update", "tasks/cancel"})

_Send = Callable[[Peer, Mapping[str, Any], Patience], Awaitable[Answer]]


class _Share(NamedTuple):
    """What one server is to tell of."""

    member: Member
    peer: Peer
    wanted: v.SubscriptionFilter


class _Task(msgspec.Struct):
    task_id: Any = msgspec.field(name="taskId", default="")
    status: Any = "failed"


class Group:
    """See the module; to a client it is what a `Peer` is.

    Args:
        members: The servers.
        silence: The client's own limit of silence, which a server's may replace.

    Attributes:
        target: The servers, as text for errors.
    """

    legacy = False

    def __init__(self, members: Sequence[Member], silence: float | None) -> None:
        self.target = f"the servers {', '.join(member.name for member in members)}"
        self._members = tuple(members)
        self._silence = silence
        self._names: dict[str, dict[str, Member]] = {method: {} for method in _BY_NAME}
        self._uris: dict[str, Member] = {}
        self._templates: dict[str, tuple[UriTemplate, Member]] = {}
        self._looked = False
        self._tasks: dict[str, Member] = {}
        self._warned: set[tuple[Member, str]] = set()

    async def open(self) -> None:
        """Open all servers at once.

        Raises:
            ConnectionFailed: There is none that can be opened.
        """
        try:
            await self._all()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close all servers at once, within bounded time."""
        await asyncio.gather(*(member.close() for member in self._members), return_exceptions=True)

    @property
    def failures(self) -> Mapping[str, ClientError]:
        """By name: why a server can't be used just now."""
        return {member.name: member.failure for member in self._members if member.failure is not None}

    @property
    def version(self) -> str:
        """The protocol version that is spoken; of servers that speak different ones, each with its name."""
        spoken = {member.name: peer.version for member, peer in self._ready()}
        if len(set(spoken.values())) == 1:
            return next(iter(spoken.values()))
        return ", ".join(f"{name}: {version}" for name, version in spoken.items())

    @property
    def last_words(self) -> str:
        """The ends of what child processes wrote to standard error, each after the server's name."""
        return "\n".join(f"{member.name}: {peer.last_words}" for member, peer in self._ready() if peer.last_words)

    @property
    def in_flight(self) -> tuple[Origin, ...]:
        """The requests that wait for their answers; each server counts for itself, so ids have its prefix."""
        return tuple(
            origin._replace(request_id=f"{member.prefix}:{origin.request_id}")
            for member, peer in self._ready()
            for origin in peer.in_flight
        )

    def cancel(self, request_id: int | str) -> bool:
        """End a request, given an id of `in_flight`."""
        for member, peer in self._ready():
            for origin in peer.in_flight:
                if request_id == f"{member.prefix}:{origin.request_id}" and origin.request_id is not None:
                    return peer.cancel(origin.request_id)
        return False

    def ask_for_logs(self, level: str) -> bool:
        """From now on ask for messages of that level; False where a server must be told by a request of its own."""
        told = [peer.ask_for_logs(level) for _, peer in self._ready()]  # each, whatever the one before says
        return all(told)

    async def discover(self, patience: Patience) -> v.DiscoverResult:
        """What the servers are, as one: everything that one of them can do, and all instructions.

        Raises:
            ClientError: A server that can be used does not answer.
        """
        servers = await self._all()
        found = await asyncio.gather(*(peer.discover(self._limits(member, patience)) for member, peer in servers))
        capabilities = v.ServerCapabilities()
        for each in found:
            for field in capabilities.__struct_fields__:
                setattr(capabilities, field, _merged(getattr(capabilities, field), getattr(each.capabilities, field)))
        told = [f"{member.name}: {each.instructions}" for (member, _), each in zip(servers, found, strict=True) if each.instructions]
        return v.DiscoverResult(
            capabilities=capabilities,
            supported_versions=list(dict.fromkeys(version for each in found for version in each.supported_versions)),
            instructions="\n\n".join(told) if told else UNSET,
        )

    async def ask(self, method: str, params: Mapping[str, Any], patience: Patience, progress: OnProgress | None = None) -> Answer:
        """See `Peer.ask`."""

        async def send(peer: Peer, changed: Mapping[str, Any], limits: Patience) -> Answer:
            return await peer.ask(method, changed, limits, progress)

        return await self._dispatch(method, params, patience, send)

    async def exchange(
        self,
        method: str,
        params: Mapping[str, Any],
        patience: Patience,
        progress: OnProgress | None = None,
        take: OnNote | None = None,
        *,
        fresh: bool = False,
    ) -> Answer:
        """See `Peer.exchange`.

        Raises:
            InvalidRequest: It is not said which server is meant.
        """

        async def send(peer: Peer, changed: Mapping[str, Any], limits: Patience) -> Answer:
            if method in _TO_ALL and peer.legacy:  # LC-10
                return await peer.ask("ping", {}, limits)
            return await peer.exchange(method, changed, limits, progress, take, fresh=fresh)

        return await self._dispatch(method, params, patience, send)

    async def list(self, method: str, cursor: str | None, patience: Patience) -> Items[Any]:
        """List what the servers have; those that fail are left out, with a warning.

        Raises:
            InvalidRequest: A page is asked for: there are none.
            ClientError: No server can be listed.
        """
        if cursor is not None:
            raise InvalidRequest("a listing of several servers has no pages: leave the cursor out", Origin(self.target, method))
        servers = await self._all()
        listings = await asyncio.gather(
            *(peer.list(method, None, self._limits(member, patience)) for member, peer in servers), return_exceptions=True
        )
        failures = [listing for listing in listings if isinstance(listing, BaseException)]
        for failure in failures:
            if len(failures) == len(listings) or not isinstance(failure, ClientError):
                raise failure
        found: Items[Any] = Items()
        known: dict[str, Member] = {}
        for (member, _), listing in zip(servers, listings, strict=True):
            if isinstance(listing, BaseException):
                logger.warning("Server %r is left out of %s: %s", member.name, method, listing)
                continue
            for item in listing:
                self._add(found, known, member, method, item)
        self._learn(method, known)
        return found

    async def accept(self, name: str, raw: msgspec.Raw, origin: Origin, kind: str = "") -> ToolResult:
        """See `Peer.accept`."""
        member, own = await self._owner("tools/call", name) if name else (None, "")
        if member is None or member.ready is None:
            result: ToolResult = read_complete(ToolResult, raw, origin)
            return result.bind(origin)
        return await member.ready.accept(own, raw, origin, kind)

    async def asks_for_task(self, name: str) -> bool:  # noqa: ARG002 as Peer has it
        """Tasks of 2025-11-25 need a client that knows the one server: among several, calls run without."""
        return False

    async def hear(self, wanted: v.SubscriptionFilter, on_note: OnNote) -> None:
        """Have changes told; see `Peer.hear`. What all servers agreed to tell is told once.

        Raises:
            ClientError: No server tells of changes; or one stream broke.
        """
        tasks = getattr(wanted, "task_ids", UNSET)
        if tasks:
            member = await self._maker(tasks[0])
            await (await member.open()).hear(wanted, on_note)
            return
        await _Choir(await self._shares(wanted), on_note).listen(Origin(self.target, "subscriptions/listen"))

    # Which server

    def _ready(self) -> builtins.list[tuple[Member, Peer]]:
        return [(member, peer) for member in self._members if (peer := member.ready) is not None]

    async def _all(self) -> builtins.list[tuple[Member, Peer]]:
        """All servers that can be used.

        Raises:
            ConnectionFailed: There are none.
        """
        opened = await asyncio.gather(*(member.open_soon() for member in self._members), return_exceptions=True)
        found: list[tuple[Member, Peer]] = []
        for member, peer in zip(self._members, opened, strict=True):
            if isinstance(peer, Peer):
                found.append((member, peer))
            elif not isinstance(peer, ClientError):
                raise peer
        if not found:
            reasons = "; ".join(f"{name}: {error}" for name, error in self.failures.items())
            raise ConnectionFailed(f"no server can be used: {reasons}", Origin(self.target))
        return found

    async def _dispatch(self, method: str, params: Mapping[str, Any], patience: Patience, send: _Send) -> Answer:
        """Find the server of a request, and send it there."""
        if method in _BY_NAME:
            return await self._send_by_name(method, params, patience, send)
        if method in _TO_ALL or method == "logging/setLevel":
            return await self._send_to_all(method, params, patience, send)
        if method in _BY_URI:
            candidates = await self._readers(str(params.get("uri", "")))
        elif method == "completion/complete":
            return await self._complete(params, patience, send)
        elif method in _BY_TASK:
            candidates = [await self._maker(str(params.get("taskId", "")))]
        elif len(self._members) == 1:
            candidates = list(self._members)
        else:
            text = "several servers are connected, and nothing says which is meant: use a client of its own for that server"
            raise InvalidRequest(text, Origin(self.target, method))
        return await self._try(candidates, params, patience, send)

    async def _send_by_name(self, method: str, params: Mapping[str, Any], patience: Patience, send: _Send) -> Answer:
        member, own = await self._owner(method, str(params.get("name", "")))
        answer = await send(await member.open(), {**params, "name": own}, self._limits(member, patience))
        if answer.kind == "task":
            self._tasks[_task_of(answer)] = member
            if len(self._tasks) > MAX_TASKS:
                del self._tasks[next(iter(self._tasks))]
        return answer

    async def _send_to_all(self, method: str, params: Mapping[str, Any], patience: Patience, send: _Send) -> Answer:
        """Ask every server that can be used; the first that does not answer is told of."""
        servers = await self._all()
        if method == "logging/setLevel":  # LG-05; the others are told by each request
            servers = [(member, peer) for member, peer in servers if peer.legacy]
        answers = await asyncio.gather(*(send(peer, params, self._limits(member, patience)) for member, peer in servers))
        if method != "server/discover":
            return answers[0] if answers else Answer(msgspec.Raw(b"{}"), Origin(self.target, method))
        return Answer(msgspec.Raw(encode(await self.discover(patience))), Origin(self.target, method))

    async def _complete(self, params: Mapping[str, Any], patience: Patience, send: _Send) -> Answer:
        ref = msgspec.to_builtins(params.get("ref"))
        if isinstance(ref, dict) and ref.get("type") == "ref/prompt":
            member, own = await self._owner("prompts/get", str(ref.get("name", "")))
            return await self._try([member], {**params, "ref": {**ref, "name": own}}, patience, send)
        uri = str(ref.get("uri", "")) if isinstance(ref, dict) else ""
        known = self._templates.get(uri)
        return await self._try([known[1]] if known else await self._readers(uri), params, patience, send)

    async def _try(self, candidates: Sequence[Member], params: Mapping[str, Any], patience: Patience, send: _Send) -> Answer:
        """Ask one after the other until one has it: these requests only read."""
        for member in candidates[:-1]:
            try:
                return await send(await member.open(), params, self._limits(member, patience))
            except ClientError as error:
                if not isinstance(error, ServerError) and member.ready is not None:
                    raise
        member = candidates[-1]
        return await send(await member.open(), params, self._limits(member, patience))

    async def _owner(self, method: str, name: str) -> tuple[Member, str]:
        """The server of a tool or prompt, and its own name for it.

        Raises:
            InvalidRequest: There is no such server.
        """
        options = [(member, own) for member in self._members if (own := member.own(name)) is not None]
        known = self._names[method].get(name)
        if known is None and len(options) > 1:  # `a` has `b_c`, or `a_b` has `c`
            await self.list(next(listing for listing, asked in _NAMED.items() if asked == method), None, Patience(self._silence, None))
            known = self._names[method].get(name)
        for member, own in options:
            if member is known:
                return member, own
        if not options:
            starts = ", ".join(f"{member.prefix}_" for member in self._members)
            raise InvalidRequest(f"there is no server of that name: names begin with {starts}", Origin(self.target, method, subject=name))
        return max(options, key=lambda option: len(option[0].prefix))

    async def _readers(self, uri: str) -> builtins.list[Member]:
        """The servers that may have a resource: the one that lists it, those whose templates fit, or all."""
        found = list(self._with(uri))
        if not found and not self._looked:
            self._looked = True
            for method in ("resources/list", "resources/templates/list"):
                await self.list(method, None, Patience(self._silence, None))
            found = list(self._with(uri))
        return found or [member for member, _ in await self._all()]

    def _with(self, uri: str) -> Iterator[Member]:
        if uri in self._uris:
            yield self._uris[uri]
            return
        seen: set[Member] = set()
        for template, member in self._templates.values():
            if member not in seen and template.match(uri) is not None:
                seen.add(member)
                yield member

    async def _maker(self, task_id: str) -> Member:
        """The server of a task; one from before a restart is looked for."""
        if (known := self._tasks.get(task_id)) is not None:
            return known
        failed: Member | None = None
        for member, peer in await self._all():
            if peer.legacy:
                continue
            try:
                answer = await peer.exchange("tasks/get", {"taskId": task_id}, Patience(self._silence, None))
            except ClientError:
                continue
            if msgspec.json.decode(answer.raw, type=_Task).status != "failed":
                self._tasks[task_id] = member
                return member
            failed = failed or member  # or takes it for one of its own that a restart has ended
        if failed is not None:
            return failed
        raise InvalidRequest("no server knows this task", Origin(self.target, "tasks/get", subject=task_id))

    async def _shares(self, wanted: v.SubscriptionFilter) -> builtins.list[_Share]:
        """Which server is to tell of what."""
        uris: dict[Member, list[str]] = {}
        for uri in wanted.resource_subscriptions or ():
            uris.setdefault((await self._readers(uri))[0], []).append(uri)
        has_flags = any(getattr(wanted, flag) for flag in FLAGS)
        return [
            _Share(member, peer, msgspec.structs.replace(wanted, resource_subscriptions=uris.get(member, UNSET)))
            for member, peer in await self._all()
            if has_flags or member in uris
        ]

    # Listings

    def _add(self, found: Items[Any], known: dict[str, Member], member: Member, method: str, item: Any) -> None:
        """Take an item into a listing, under the name that the group has for it."""
        if method in _NAMED:
            item = msgspec.structs.replace(item, name=member.full(item.name))
        key = item.name if method in _NAMED else item.uri_template if method == "resources/templates/list" else item.uri
        if key in known and known[key] is not member:
            if (member, key) not in self._warned:
                self._warned.add((member, key))
                logger.warning("%r of server %r is left out: %r has it, too", key, member.name, known[key].name)
            return
        known[key] = member
        found.append(item)

    def _learn(self, method: str, known: dict[str, Member]) -> None:
        if method in _NAMED:
            self._names[_NAMED[method]] = known
        elif method == "resources/list":
            self._uris = known
        else:
            self._templates = dict(_templates(known))

    def _limits(self, member: Member, patience: Patience) -> Patience:
        """How long one server may take: its own limit where the request has none of its own. A copy, for what is waited is taken off it."""
        own = member.timeout is not None and patience.silence == self._silence
        return Patience(member.timeout if own else patience.silence, patience.total)


class _Choir:
    """Streams of several servers as one.

    Args:
        shares: What each is to tell.
        on_note: Gets one acknowledgement, and then what they tell.
    """

    def __init__(self, shares: Sequence[_Share], on_note: OnNote) -> None:
        self._shares = shares
        self._on_note = on_note
        self._granted: dict[str, v.SubscriptionFilter | None] = {}
        self._early: list[RawNotification] = []
        self._heard = len(shares)
        self._open = False
        self._telling = asyncio.Lock()

    async def listen(self, origin: Origin) -> None:
        """Listen until nobody is heard any more, or one has ended that had been heard for a while.

        Raises:
            ClientError: None has begun; or one broke after that.
        """
        waiting = {asyncio.create_task(self._one(share), name=f"callboard client hears {share.member.name}") for share in self._shares}
        failure: BaseException = ConnectionFailed("no server tells of changes", origin)
        try:
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    error = task.exception()
                    if error is not None and (self._open or not isinstance(error, ClientError)):
                        raise error
                    failure = error or failure
                if self._open and not all(task.exception() for task in done):
                    return  # who listens opens all anew, these, too
            if not self._open:
                raise failure
        finally:
            for task in waiting:
                task.cancel()
            if waiting:
                await asyncio.wait(waiting)

    async def _one(self, share: _Share) -> None:
        """Hear one server, and anew after a rest where it ends its stream soon, or gives none: it may be replaced just now.

        The others are heard meanwhile. The rests get longer, so that nobody hammers at a server that ends each stream at once.

        Raises:
            ClientError: Its stream broke; or it has none, and nobody else is heard.
        """
        loop, rest = asyncio.get_running_loop(), FIRST_DELAY
        while True:
            began, error = await self._hear(share)
            self._heard -= 1
            if error is None:
                if not self._heard or (self._open and began is not None and loop.time() - began > SHORT):
                    return
            elif not self._heard or (began is not None if self._open else not is_passing(error)):
                raise error
            logger.info("Server %r: its stream of changes is opened anew", share.member.name)
            await asyncio.sleep(rest * random.uniform(0.5, 1.5))  # noqa: S311 - so that clients do not come all at once
            rest = min(2 * rest, MOST_COOLDOWN)
            self._heard += 1

    async def _hear(self, share: _Share) -> tuple[float | None, ClientError | None]:
        """Hear one stream to its end: when the server began to tell, and what broke it."""
        began: float | None = None

        async def take(note: RawNotification) -> None:
            nonlocal began
            if note.method == ACKNOWLEDGED:
                origin = Origin(share.peer.target, "subscriptions/listen")
                granted: Any = read(v.SubscriptionsAcknowledgedNotificationParams, msgspec.Raw(note.params or b"{}"), origin)
                began = asyncio.get_running_loop().time()
                await self._settle(share.member, granted.notifications)
            elif self._open:
                await self._on_note(note)
            elif len(self._early) < MAX_EARLY:
                self._early.append(note)
            else:
                raise ClientError("too many changes before all servers have begun to tell of them", Origin(share.peer.target, note.method))

        failure: ClientError | None = None
        try:
            await share.peer.hear(share.wanted, take)
        except ClientError as error:
            if share.member.name not in self._granted:
                logger.warning("Server %r tells of no changes: %s", share.member.name, error)
            failure = error
        await self._settle(share.member, None)
        return began, failure

    async def _settle(self, member: Member, granted: v.SubscriptionFilter | None) -> None:
        """One more server has said what it tells; when all have, it is told on (SB-03). Who says it later has been missed (SB-10)."""
        async with self._telling:
            if granted is not None or member.name not in self._granted:
                self._granted[member.name] = granted
            if self._open:
                for note in missed(granted) if granted is not None else ():
                    await self._on_note(note)
                return
            told = [each for each in self._granted.values() if each is not None]
            if len(self._granted) < len(self._shares) or not told:
                return
            uris = [uri for each in told for uri in each.resource_subscriptions or ()]
            merged = v.SubscriptionFilter(
                **{flag: True for flag in FLAGS if any(getattr(each, flag) for each in told)}, resource_subscriptions=uris or UNSET
            )
            await self._on_note(note_of(ACKNOWLEDGED, {"notifications": merged}))
            while self._early:
                await self._on_note(self._early.pop(0))
            self._open = True


def _task_of(answer: Answer) -> str:
    """The id of a task that was just made (TX-05)."""
    return str(msgspec.json.decode(answer.raw, type=_Task).task_id)


def _merged(one: Any, other: Any) -> Any:
    """Two capabilities as one: what either can do."""
    if one is UNSET or other is UNSET:
        return other if one is UNSET else one
    if isinstance(one, dict):
        return {**one, **other}
    return type(one)(**{field: getattr(one, field) or getattr(other, field) for field in one.__struct_fields__})


def _templates(known: Mapping[str, Member]) -> Iterator[tuple[str, tuple[UriTemplate, Member]]]:
    for text, member in known.items():
        try:
            yield text, (UriTemplate(text), member)
        except UriTemplateError:  # it can't be matched, so nothing is sent there because of it
            continue


def form(config: Config, make: Callable[[ServerSpec], Peer], silence: float | None) -> Group:
    """Make a group of a configuration; nothing is opened.

    Args:
        config: The configuration; what it warns of goes into the log.
        make: Makes a peer for a server, not yet open.
        silence: The client's own limit of silence.

    Raises:
        ConfigError: A server can't be connected to as it is configured.
    """
    for warning in config.warnings:
        logger.warning("%s", warning)
    return Group([Member(spec, make) for spec in config.servers], silence)

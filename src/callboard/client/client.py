"""The client: one class for every server, whatever the way there and whichever protocol version the server speaks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import cache
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
from typing_extensions import deprecated

from callboard.client.answer import read, read_complete
from callboard.client.assembly import Way, assemble
from callboard.client.auth import Auth
from callboard.client.cache import Cache
from callboard.client.connection import MAX_MESSAGE, OnNote
from callboard.client.errors import ClientError, ConnectionFailed, InvalidRequest, Origin, RequestTimeout
from callboard.client.group import Group
from callboard.client.inputs import Inputs, OnElicit, OnRoots, OnSample
from callboard.client.listing import Items
from callboard.client.negotiate import check_versions
from callboard.client.opening import Hello
from callboard.client.peer import Peer
from callboard.client.requests import OnLog, OnProgress, Patience, subject
from callboard.client.result import ToolResult
from callboard.client.subscription import Subscription
from callboard.client.target import Target
from callboard.client.tasks import EXTENSION, Means, ToolTask
from callboard.client.watch import OnChange, Watch
from callboard.server.limits import Limits
from callboard.wire import v2026_07_28 as v

__all__ = ["Client", "Items", "OnChange", "OnLog", "OnProgress"]

T = TypeVar("T")


@cache
def _own_info() -> v.Implementation:
    from importlib.metadata import version  # slow to load

    return v.Implementation(name="callboard", version=version("callboard"))


class Client:
    """Talks to one MCP server: `async with Client("http://127.0.0.1:8000/mcp") as client: await client.call_tool("add", {"a": 1, "b": 2})`.

    Any number of tasks of one event loop may use it at once. It may be closed by another task than the one that opened it, and is used once.

    Args:
        target: A URL (`http://...`, `https://...`), a `.py` file (served over stdio in a child process by `callboard run`), a command as
            a list of words or a text (its stdin and stdout are the connection), a `Server` or `Handler` (in memory), or several servers:
            a mapping with `mcpServers` as hosts have it in their configuration, or such a `.json` file. Tools and prompts of several
            servers have the server's name before their own, as in `weather_forecast`.
        timeout: Seconds without a word of the server's about a request (its progress and logs are words), unless the request says
            otherwise; None for no limit.
        total_timeout: Seconds that a request may take in all, unless it says otherwise; None for no limit.
        connect_timeout: Seconds to connect and agree on a protocol version in; None for no limit.
        on_progress: Gets the progress of every request that has no callback of its own.
        on_log: Gets the server's log messages; without it, servers are asked for none. Deprecated by SEP-2577, see `set_log_level`.
        on_elicit: Answers the forms and URLs that a server asks somebody to fill in or to open, in the middle of a call; see `OnElicit`.
        on_sample: Answers a server that wants a message of a model; see `OnSample`. Deprecated likewise, and so is the next one.
        on_roots: Answers a server that asks which folders it should work with; see `OnRoots`.
        on_change: Hears of changes of the server's lists, and of the resources that were subscribed to.
        tasks: Whether calls of tools may become tasks on the server, which the client then waits for.
        log_level: The least severe level that `on_log` wants.
        client_info: How the client introduces itself; as `callboard` by default.
        capabilities: What the client declares it can do, as the protocol spells it, on top of what `on_elicit`, `on_sample`, `on_roots`
            and `tasks` declare; nothing by default.
        versions: Protocol versions that may be spoken, one or several of `2026-07-28`, `2025-11-25`, `2025-06-18`, `2025-03-26` and
            `2024-11-05`; None for all of them, the newest that the server speaks first.
        auth: Holds the credentials for a URL; see `callboard.oauth`. For several servers: their names, and who holds those for each.
        cache: Whether answers are kept for as long as the server allows (`ttlMs`); or a `Cache` that several clients share.
        max_message: Most bytes of one message from the server.
        headers: HTTP headers of every request, such as `{"Authorization": "Bearer ..."}`. The protocol's own can't be set.
        env: Variables of the child process, on top of this process's own.
        cwd: Folder that the child process runs in.
        principal: Who the client is to a server in memory, as `ctx.principal` has it: a name, or an `auth.Principal` with scopes.
        limits: Bounds of what the client can make a server in memory take; see `callboard.limits.Limits`.

    Raises:
        ValueError: `target` is a string or a path that names nothing to connect to; or `headers`, `env`, `cwd` or `versions` can't be
            used, or mean nothing for such a target.
        TypeError: `target` is something else.
    """

    def __init__(
        self,
        target: Target,
        *,
        timeout: float | None = 30.0,
        total_timeout: float | None = 3600.0,
        connect_timeout: float | None = 30.0,
        on_progress: OnProgress | None = None,
        on_log: OnLog | None = None,
        on_elicit: OnElicit | None = None,
        on_sample: OnSample | None = None,
        on_roots: OnRoots | None = None,
        on_change: OnChange | None = None,
        tasks: bool = False,
        log_level: v.LoggingLevel = "info",
        client_info: v.Implementation | None = None,
        capabilities: v.ClientCapabilities | Mapping[str, Any] | None = None,
        versions: str | Sequence[str] | None = None,
        auth: Auth | Mapping[str, Auth] | None = None,
        cache: bool | Cache = True,
        max_message: int = MAX_MESSAGE,
        headers: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        principal: str | None = None,
        limits: Limits | None = None,
    ) -> None:
        _check_limits(timeout=timeout, total_timeout=total_timeout, connect_timeout=connect_timeout)
        self._inputs = Inputs(on_elicit, on_sample, on_roots)
        hello = Hello(
            check_versions(versions),
            _declare(capabilities, self._inputs.capabilities, tasks=tasks),
            client_info or _own_info(),
            log_level if on_log is not None else None,
            connect_timeout,
        )
        kept = Cache() if cache is True else None if cache is False else cache

        way = Way(max_message, headers, env, cwd, auth, connect_timeout, principal, limits)
        self._peer = assemble(target, way, hello, timeout, lambda link, said: Peer(link, said, self._inputs, on_log, link.auth, kept))
        self.target = self._peer.target
        self._limits = Patience(timeout, total_timeout)
        self._on_progress = on_progress
        self._watch = Watch(self.listen, on_change, self.target) if on_change is not None else None
        self._streams: set[Subscription] = set()
        self._tasks = tasks
        self._used = False

    async def __aenter__(self) -> Self:
        """Connect, and agree on a protocol version.

        Raises:
            ConnectionFailed: The server can't be reached or started, or speaks no protocol version of this client's.
            AuthorizationFailed: It wants credentials that can't be had.
            ClientError: Any other failure; or this client was opened before.
        """
        if self._used:
            raise ClientError("a client is opened once: make a new one", Origin(self.target))
        self._used = True
        await self._peer.open()
        if self._watch is not None:
            try:
                await self._watch.open((await self.discover()).capabilities)
            except BaseException:
                await self.close()
                raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect, within bounded time; a session ends on the server, a child process ends. Requests in flight fail."""
        for stream in tuple(self._streams):
            stream.end(ConnectionFailed("the client was closed", stream.origin))
        try:
            if self._watch is not None:
                await self._watch.close()
        finally:
            await self._peer.close()

    def __repr__(self) -> str:
        return f"<Client of {self.target}>"

    @property
    def version(self) -> str:
        """The protocol version that is spoken."""
        return self._peer.version

    @property
    def failures(self) -> Mapping[str, ClientError]:
        """Of several servers, those that can't be used just now, and why; empty for one server."""
        return self._peer.failures if isinstance(self._peer, Group) else {}

    @property
    def stderr(self) -> str:
        """The end (at most 8 KiB) of what a child process has written to standard error; empty for other targets."""
        return self._peer.last_words

    @property
    def in_flight(self) -> tuple[Origin, ...]:
        """The requests that wait for their answers: method, id, and what each asks for."""
        return self._peer.in_flight

    def cancel(self, request: Origin | int | str) -> bool:
        """End a request that is in flight: the server is told, and whoever waits for it gets `RequestCancelled`.

        Cancelling the task that waits does the same, without an error for anybody.

        Args:
            request: One of `in_flight`, or its id.

        Returns:
            Whether it was in flight.
        """
        request_id = request.request_id if isinstance(request, Origin) else request
        return request_id is not None and self._peer.cancel(request_id)

    async def discover(self) -> v.DiscoverResult:
        """Ask what the server is and can do (VN-02); a server of 2025 has said it when the session began."""
        return await self._peer.discover(self._patience())

    async def ping(self) -> None:
        """Make sure that the server answers.

        Raises:
            ClientError: It does not.
        """
        if self._peer.legacy:
            await self._peer.ask("ping", {}, self._patience())
        else:  # LC-10
            await self._peer.exchange("server/discover", {}, self._patience(), fresh=True)

    @deprecated("Logging is deprecated by SEP-2577; removed at the earliest by the first revision of 2027-07-28 or later.", category=None)
    async def set_log_level(self, level: v.LoggingLevel) -> None:
        """Name the least severe level that `on_log` wants from now on.

        Deprecated since protocol 2026-07-28 (SEP-2577): it works until a revision removes it, at the earliest the first one on or after
        2027-07-28.

        Raises:
            ServerError: A server of 2025 does not know the level, or has no logs.
        """
        if not self._peer.ask_for_logs(level):
            await self._peer.ask("logging/setLevel", {"level": level}, self._patience())  # LG-05

    async def subscribe(self, uri: str) -> None:
        """Have `on_change` hear of updates of a resource.

        Raises:
            InvalidRequest: There is no `on_change`.
            ClientError: The server does not tell of them.
        """
        await self._watching("resources/subscribe", uri).add(uri)

    async def unsubscribe(self, uri: str) -> None:
        """Have `on_change` hear of it no more."""
        await self._watching("resources/unsubscribe", uri).remove(uri)

    async def list_tools(self, cursor: str | None = None) -> Items[v.Tool]:
        """List the tools: all of them, or the one page that begins at `cursor`.

        Over HTTP a tool whose `x-mcp-header` annotations break the rules is left out, with a warning in the log (HH-14).

        Raises:
            InvalidAnswer: The server's pages go round in circles, or there are more than 1,000.
        """
        return await self._peer.list("tools/list", cursor, self._patience())

    async def list_resources(self, cursor: str | None = None) -> Items[v.Resource]:
        """List the resources; see `list_tools`."""
        return await self._peer.list("resources/list", cursor, self._patience())

    async def list_resource_templates(self, cursor: str | None = None) -> Items[v.ResourceTemplate]:
        """List the resource templates; see `list_tools`."""
        return await self._peer.list("resources/templates/list", cursor, self._patience())

    async def list_prompts(self, cursor: str | None = None) -> Items[v.Prompt]:
        """List the prompts; see `list_tools`."""
        return await self._peer.list("prompts/list", cursor, self._patience())

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        on_progress: OnProgress | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - one clock for a request, where its error is made
        total_timeout: float | None = None,
    ) -> ToolResult:
        """Call a tool.

        What the server asks meanwhile is answered by the client's callbacks, and the call goes on; so do `read_resource` and `get_prompt`.

        Args:
            name: The tool.
            arguments: JSON values by parameter.
            on_progress: Gets this call's progress; the client's own callback otherwise.
            timeout: Seconds without a word of the server's about the call, counted anew whenever the client has answered something; the
                client's limit when None.
            total_timeout: Seconds it may take in all; the client's limit when None.

        Returns:
            The result: `.content`, `.structured`, `.data` (Python values, by the tool's output schema), `.decode(type)`. A failure of the
            tool's own is no exception: `is_error` is true, and `content` says what went wrong.

        Raises:
            ServerError: The server refused the call: no such tool, and the like.
            InputRequired: The server asks for something that no callback answers.
            InvalidAnswer: The result breaks the tool's output schema, among other things.
            ClientError: Any other failure; see `callboard.client.errors`.
        """
        patience = self._patience(timeout, total_timeout)
        if not self._tasks:
            answer = await self._peer.ask("tools/call", _call_of(self.target, name, arguments), patience, on_progress or self._on_progress)
            return await self._peer.accept(name, answer.raw, answer.origin, answer.kind)
        task = await self._call(name, arguments, patience, on_progress)
        if task.task_id is None:
            return await task.result()
        limit = asyncio.timeout(patience.total)
        try:
            async with limit:
                return await task.finish()
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise RequestTimeout(
                self._patience(timeout, total_timeout).total or 0, Origin(self.target, "tools/call", None, name), total=True
            ) from error

    async def start_tool(self, name: str, arguments: Mapping[str, Any] | None = None) -> ToolTask:
        """Call a tool without waiting for its end, where the server makes a task of the call; the client needs `tasks=True` for that.

        Args:
            name: The tool.
            arguments: JSON values by parameter.

        Returns:
            The task. Where the server makes none of the call, it is waited for after all, and `task_id` is None.

        Raises:
            ClientError: As for `call_tool`; or the client does not say `tasks=True`.
        """
        if not self._tasks:
            raise InvalidRequest(
                "no server makes a task unless it is told: Client(..., tasks=True)", Origin(self.target, "tools/call", subject=name)
            )
        return await self._call(name, arguments, self._patience(), None)

    def task(self, task_id: str, name: str = "") -> ToolTask:
        """Find a task again, also one of a client that is no more (TX-13).

        Args:
            task_id: Its id.
            name: The tool that was called, so that its result is read by its output schema; empty when it is not known.
        """
        return ToolTask(self._means(), name, task_id, Origin(self.target, "tasks/get", subject=task_id))

    async def read_resource(self, uri: str) -> v.ReadResourceResult:
        """Read a resource."""
        return await self._ask(v.ReadResourceResult, "resources/read", {"uri": uri})

    async def get_prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> v.GetPromptResult:
        """Fill in a prompt.

        Args:
            name: The prompt.
            arguments: Texts by argument: prompts take nothing else.

        Raises:
            InvalidRequest: An argument is no string.
        """
        params: dict[str, Any] = {"name": name}
        if arguments is not None:
            self._check_texts("prompts/get", name, arguments)
            params["arguments"] = arguments
        return await self._ask(v.GetPromptResult, "prompts/get", params)

    async def complete(
        self,
        ref: v.PromptReference | v.ResourceTemplateReference,
        argument: str,
        value: str,
        *,
        arguments: Mapping[str, str] | None = None,
    ) -> v.Completion:
        """Ask how an argument could go on.

        Args:
            ref: The prompt or the resource template.
            argument: Name of the argument.
            value: What has been typed of it.
            arguments: Arguments that are settled already.

        Raises:
            InvalidRequest: `ref` is no reference, or an argument is no string.
        """
        if not isinstance(ref, v.PromptReference | v.ResourceTemplateReference):
            kinds = 'types.PromptReference(name="...") or types.ResourceTemplateReference(uri="...")'
            raise InvalidRequest(f"ref is a {kinds}, not {type(ref).__name__}", Origin(self.target, "completion/complete"))
        self._check_texts("completion/complete", subject({"ref": ref}), {**(arguments or {}), argument: value})
        params: dict[str, Any] = {"ref": ref, "argument": {"name": argument, "value": value}}
        if arguments is not None:
            params["context"] = {"arguments": arguments}
        return (await self._ask(v.CompleteResult, "completion/complete", params)).completion

    def listen(self, *, tools: bool = False, prompts: bool = False, resources: bool = False, uris: Sequence[str] = ()) -> Subscription:
        """Subscribe to changes; use it as `async with client.listen(tools=True) as changes: async for change in changes: ...`.

        Args:
            tools: When the list of tools changes.
            prompts: When the list of prompts changes.
            resources: When the list of resources changes.
            uris: When one of these resources is updated.
        """
        flags = {"tools_list_changed": tools, "prompts_list_changed": prompts, "resources_list_changed": resources}
        if odd := [flag for flag in flags.values() if not isinstance(flag, bool)]:
            raise TypeError(f"listen takes True for the lists to hear of, not {type(odd[0]).__name__}; resources are named by uris=[...]")
        wanted = v.SubscriptionFilter(
            **{name: True for name, flag in flags.items() if flag}, resource_subscriptions=list(uris) if uris else msgspec.UNSET
        )

        async def run(on_note: OnNote) -> None:
            await self._peer.hear(wanted, on_note)

        return Subscription(run, wanted, Origin(self.target, "subscriptions/listen"), self._limits.silence, self._streams)

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        on_progress: OnProgress | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
        total_timeout: float | None = None,
    ) -> dict[str, Any]:
        """Send any request, for example one of an extension.

        Args:
            method: The method.
            params: Its parameters; entries of `_meta` go beside those of the client.
            on_progress: Gets its progress; nobody otherwise.
            timeout: Seconds without a word of the server's about it; the client's limit when None.
            total_timeout: Seconds it may take in all; the client's limit when None.

        Returns:
            The result as plain JSON, whatever its `resultType`.
        """
        answer = await self._peer.exchange(method, params or {}, self._patience(timeout, total_timeout), on_progress)
        found: dict[str, Any] = read(dict[str, Any], answer.raw, answer.origin)
        return found

    def _patience(self, silence: float | None = None, total: float | None = None) -> Patience:
        limits = self._limits
        if silence is not None or total is not None:
            _check_limits(timeout=silence, total_timeout=total)
        return Patience(limits.silence if silence is None else silence, limits.total if total is None else total)

    def _watching(self, method: str, uri: str) -> Watch:
        if self._watch is None:
            text = "updates would be told to nobody: give the client on_change=, or iterate over client.listen(uris=[...])"
            raise InvalidRequest(text, Origin(self.target, method, subject=uri))
        return self._watch

    def _check_texts(self, method: str, subject: str, arguments: Mapping[str, Any]) -> None:
        for name, value in arguments.items():
            if not isinstance(value, str):
                text = f"argument {name!r} must be a string, not {type(value).__name__}: write it as text, as a person would type it"
                raise InvalidRequest(text, Origin(self.target, method, subject=subject))

    async def _ask(self, kind: type[T], method: str, params: Mapping[str, Any]) -> T:
        answer = await self._peer.ask(method, params, self._patience(), self._on_progress)
        found: T = read_complete(kind, answer.raw, answer.origin)
        return found

    async def _call(self, name: str, arguments: Mapping[str, Any] | None, patience: Patience, on_progress: OnProgress | None) -> ToolTask:
        params = _call_of(self.target, name, arguments)
        asks = self._tasks and await self._peer.asks_for_task(name)
        if asks:
            params["task"] = {}
        answer = await self._peer.ask("tools/call", params, patience, on_progress or self._on_progress)
        raw, origin = answer.raw, answer.origin
        if asks or (answer.kind == "task" and self._tasks):
            return ToolTask.begin(self._means(), name, raw, origin)
        return ToolTask(self._means(), name, None, origin, raw)

    def _means(self) -> Means:
        return Means(self._send, self._peer.hear, self._peer.accept, self._inputs, self._peer.legacy)

    async def _send(self, method: str, params: Mapping[str, Any], limit: float | None) -> msgspec.Raw:
        patience = self._patience(limit) if limit != inf else Patience(None, self._limits.total)
        return (await self._peer.exchange(method, params, patience)).raw


def _call_of(target: str, name: str, arguments: Mapping[str, Any] | None) -> dict[str, Any]:
    """Params of a call.

    Raises:
        InvalidRequest: The arguments have no names.
    """
    if arguments is None:
        return {"name": name}
    if not isinstance(arguments, Mapping):
        text = f"arguments are a mapping of parameters to values, not {type(arguments).__name__}"
        raise InvalidRequest(text, Origin(target, "tools/call", subject=name))
    return {"name": name, "arguments": arguments}


def _check_limits(**limits: Any) -> None:
    """Refuse time limits that are none."""
    for name, value in limits.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise TypeError(f"{name}= is a number of seconds, or None for no limit, not {type(value).__name__}")
        if value is not None and not value > 0:
            raise ValueError(f"{name}= must be more than 0 seconds, not {value}; None is no limit")


def _declare(stated: v.ClientCapabilities | Mapping[str, Any] | None, implied: dict[str, Any], *, tasks: bool) -> Any:
    """What the client says it can do: what its options imply, and before that what it was told to say."""
    if not implied and not tasks:
        return stated or {}
    told: dict[str, Any] = msgspec.to_builtins(stated or {})
    if tasks:  # TX-01
        told["extensions"] = {EXTENSION: {}} | told.get("extensions", {})
    return implied | told

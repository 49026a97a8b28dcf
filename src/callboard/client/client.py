"""The client: one class for every server, whatever the way there. It speaks protocol 2026-07-28."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import count
from math import isfinite
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar

import msgspec

from callboard.client.answer import Kind, read, result
from callboard.client.connection import MAX_MESSAGE, Incoming, OnNote, Outgoing
from callboard.client.errors import (
    ClientError,
    ConnectionFailed,
    InputRequired,
    InvalidAnswer,
    InvalidRequest,
    Origin,
    RequestTimeout,
    ServerError,
)
from callboard.client.inputs import MAX_ROUNDS, Inputs, OnElicit, OnRoots, OnSample
from callboard.client.subscription import Subscription
from callboard.client.target import Target, connect_to
from callboard.client.tasks import EXTENSION, follow
from callboard.core.headers import (
    HeaderAnnotationError,
    HeaderParam,
    HeaderValueError,
    compile_param_map,
    encode_value,
    mirror_params,
)
from callboard.errors import REASONS, Reason
from callboard.wire import v2026_07_28 as v
from callboard.wire import versions
from callboard.wire.jsonrpc import RawNotification, encode_request
from callboard.wire.methods import METHODS

__all__ = ["Client", "Items", "OnLog", "OnProgress"]

logger = logging.getLogger("callboard.client")

T = TypeVar("T")
OnProgress: TypeAlias = Callable[[float, float | None, str | None], Awaitable[None] | None]
"""Takes progress, total and message; total and message are None when the server gave none. May be async."""
OnLog: TypeAlias = Callable[[v.LoggingMessageNotificationParams], Awaitable[None] | None]
"""Takes a log message of the server's. May be async."""

# A61: what ends a listing that would never end.
MAX_PAGES = 1000
_METHOD_NOT_FOUND = REASONS[Reason.METHOD_NOT_FOUND].code
_HEADER_MISMATCH = REASONS[Reason.HEADER_MISMATCH].code


class Items(list[T]):
    """A listing.

    Attributes:
        next_cursor: Where the next page begins; None when these are all.
    """

    next_cursor: str | None = None


_decode_progress = msgspec.json.Decoder(v.ProgressNotificationParams).decode
_decode_log = msgspec.json.Decoder(v.LoggingMessageNotificationParams).decode


@cache
def _own_info() -> v.Implementation:
    from importlib.metadata import version  # slow to load

    return v.Implementation(name="callboard", version=version("callboard"))


class Client:
    """Talks to one MCP server: `async with Client("http://127.0.0.1:8000/mcp") as client: await client.call_tool("add", {"a": 1, "b": 2})`.

    Any number of tasks of one event loop may use it at once. It may be closed by another task than the one that opened it, and is used once.

    Args:
        target: A URL (`http://...`, `https://...`), a `.py` file (served over stdio in a child process by `callboard run`), a command as
            a list of words (its stdin and stdout are the connection), or a `Server` or `Handler` (in memory).
        timeout: Seconds that a request may take in all, unless it says otherwise; None for no limit.
        on_progress: Gets the progress of every request that has no callback of its own.
        on_log: Gets the server's log messages; without it, servers are asked for none.
        on_elicit: Answers the forms and URLs that a server asks somebody to fill in or to open, in the middle of a call; see `OnElicit`.
        on_sample: Answers a server that wants a message of a model; see `OnSample`.
        on_roots: Answers a server that asks which folders it should work with; see `OnRoots`.
        tasks: Whether calls of tools may become tasks on the server, which the client then waits for.
        log_level: The least severe level that `on_log` wants.
        client_info: How the client introduces itself; as `callboard` by default.
        capabilities: What the client declares it can do, as the protocol spells it, on top of what `on_elicit`, `on_sample`, `on_roots`
            and `tasks` declare; nothing by default.
        max_message: Most bytes of one message from the server.
        headers: HTTP headers of every request, such as `{"Authorization": "Bearer ..."}`. The protocol's own can't be set.
        env: Variables of the child process, on top of this process's own.
        cwd: Folder that the child process runs in.

    Raises:
        ValueError: `target` is a string or a path that names nothing to connect to; or `headers`, `env` or `cwd` can't be used, or mean
            nothing for such a target.
        TypeError: `target` is something else.
    """

    def __init__(
        self,
        target: Target,
        *,
        timeout: float | None = 30.0,
        on_progress: OnProgress | None = None,
        on_log: OnLog | None = None,
        on_elicit: OnElicit | None = None,
        on_sample: OnSample | None = None,
        on_roots: OnRoots | None = None,
        tasks: bool = False,
        log_level: v.LoggingLevel = "info",
        client_info: v.Implementation | None = None,
        capabilities: v.ClientCapabilities | Mapping[str, Any] | None = None,
        max_message: int = MAX_MESSAGE,
        headers: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
    ) -> None:
        self.target, self._connection, self._probe = connect_to(target, max_message=max_message, headers=headers, env=env, cwd=cwd)
        self._timeout = timeout
        self._on_progress = on_progress
        self._on_log = on_log
        self._inputs = Inputs(on_elicit, on_sample, on_roots)
        self._tasks = tasks
        self._ids = count(1)
        self._params: dict[str, tuple[HeaderParam, ...]] = {}
        self._open = False
        self._used = False
        self._meta: dict[str, Any] = {
            versions.META_PROTOCOL_VERSION: versions.LATEST,
            versions.META_CLIENT_CAPABILITIES: _declare(capabilities, self._inputs.capabilities, tasks=tasks),
            versions.META_CLIENT_INFO: client_info or _own_info(),
        }
        if on_log is not None:
            self._meta[versions.META_LOG_LEVEL] = log_level

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            ConnectionFailed: The server can't be started, or speaks no protocol that this client knows.
            ClientError: This client was opened before.
        """
        if self._used:
            raise ClientError("a client is opened once: make a new one", Origin(self.target))
        self._used = True
        await self._connection.open(Origin(self.target))
        self._open = True
        if self._probe:
            try:
                await self._check_protocol()
            except BaseException:
                await self.close()
                raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect, within bounded time. Requests in flight fail with `ConnectionFailed`."""
        self._open = False
        await self._connection.close()

    @property
    def stderr(self) -> str:
        """The end (at most 8 KiB) of what a child process has written to standard error; empty for other targets."""
        return self._connection.last_words

    async def discover(self) -> v.DiscoverResult:
        """Ask what the server is and can do (VN-02)."""
        return await self._ask(v.DiscoverResult, "server/discover", {})

    async def list_tools(self, cursor: str | None = None) -> Items[v.Tool]:
        """List the tools: all of them, or the one page that begins at `cursor`.

        Over HTTP a tool whose `x-mcp-header` annotations break the rules is left out, with a warning in the log (HH-14).

        Raises:
            InvalidAnswer: The server's pages go round in circles, or there are more than 1,000.
        """
        found = await self._list(v.ListToolsResult, "tools/list", "tools", cursor)
        if not self._connection.mirrors:
            return found
        kept: Items[v.Tool] = Items(tool for tool in found if self._learn_params(tool))
        kept.next_cursor = found.next_cursor
        return kept

    async def list_resources(self, cursor: str | None = None) -> Items[v.Resource]:
        """List the resources; see `list_tools`."""
        return await self._list(v.ListResourcesResult, "resources/list", "resources", cursor)

    async def list_resource_templates(self, cursor: str | None = None) -> Items[v.ResourceTemplate]:
        """List the resource templates; see `list_tools`."""
        return await self._list(v.ListResourceTemplatesResult, "resources/templates/list", "resource_templates", cursor)

    async def list_prompts(self, cursor: str | None = None) -> Items[v.Prompt]:
        """List the prompts; see `list_tools`."""
        return await self._list(v.ListPromptsResult, "prompts/list", "prompts", cursor)

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        on_progress: OnProgress | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - one clock for a request, where its error is made
    ) -> v.CallToolResult:
        """Call a tool.

        What the server asks meanwhile is answered by the client's callbacks, and the call goes on; so do `read_resource` and `get_prompt`.

        Args:
            name: The tool.
            arguments: JSON values by parameter.
            on_progress: Gets this call's progress; the client's own callback otherwise.
            timeout: Seconds the call may take, counted anew whenever the client has answered something; the client's limit when None.

        Returns:
            The result. A failure of the tool's own is no exception: `is_error` is true, and `content` says what went wrong.

        Raises:
            ServerError: The server refused the call: no such tool, and the like.
            InputRequired: The server asks for something that no callback answers.
            ClientError: Any other failure; see `callboard.client.errors`.
        """
        params: dict[str, Any] = {"name": name}
        if arguments is not None:
            params["arguments"] = arguments
        try:
            return await self._ask(v.CallToolResult, "tools/call", params, on_progress=on_progress, timeout=timeout)
        except ServerError as error:
            if error.code != _HEADER_MISMATCH or not self._connection.mirrors:
                raise
        await self.list_tools()  # HH-21: the tool wants headers we did not know of
        return await self._ask(v.CallToolResult, "tools/call", params, on_progress=on_progress, timeout=timeout)

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
            InvalidRequest: An argument is no string.
        """
        self._check_texts("completion/complete", _subject({"ref": ref}), {**(arguments or {}), argument: value})
        params: dict[str, Any] = {"ref": ref, "argument": {"name": argument, "value": value}}
        if arguments is not None:
            params["context"] = {"arguments": arguments}
        return (await self._ask(v.CompleteResult, "completion/complete", params)).completion

    def listen(self, *, tools: bool = False, prompts: bool = False, resources: bool = False, uris: Sequence[str] = ()) -> Subscription:
        """Subscribe to changes; use it as `async with client.listen(tools=True) as changes`.

        Args:
            tools: When the list of tools changes.
            prompts: When the list of prompts changes.
            resources: When the list of resources changes.
            uris: When one of these resources is updated.
        """
        flags = {"tools_list_changed": tools, "prompts_list_changed": prompts, "resources_list_changed": resources}
        wanted = v.SubscriptionFilter(
            **{name: True for name, flag in flags.items() if flag}, resource_subscriptions=list(uris) if uris else msgspec.UNSET
        )
        request = self._compose("subscriptions/listen", {"notifications": wanted}, None)

        async def run(on_note: OnNote) -> None:
            async def take(note: RawNotification) -> None:
                await self._hand_on(note, None, request.origin)
                await on_note(note)

            result(await self._connection.exchange(request, take), request.origin)

        return Subscription(run, wanted, request.origin, self._timeout)

    async def request(self, method: str, params: Mapping[str, Any] | None = None, *, timeout: float | None = None) -> dict[str, Any]:  # noqa: ASYNC109
        """Send any request, for example one of an extension.

        Args:
            method: The method.
            params: Its parameters; entries of `_meta` go beside those of the client.
            timeout: Seconds it may take; the client's limit when None.

        Returns:
            The result as plain JSON, whatever its `resultType`.
        """
        incoming, origin = await self._exchange(method, params or {}, None, timeout)
        found: dict[str, Any] = read(dict[str, Any], result(incoming, origin), origin)
        return found

    async def _check_protocol(self) -> None:
        try:
            await self.discover()
        except ServerError as error:
            text = f"the server does not speak protocol {versions.LATEST}, and this client no other one; it said: {error.text}"
            raise ConnectionFailed(text, Origin(self.target)) from error
        except RequestTimeout as error:
            raise RequestTimeout(error.seconds, Origin(self.target, error.method), stderr=self._connection.last_words) from error

    def _learn_params(self, tool: v.Tool) -> bool:
        """Note which headers a tool wants; False when it breaks the rules (HH-14)."""
        try:
            self._params[tool.name] = compile_param_map(tool.input_schema)
        except HeaderAnnotationError as error:
            self._params.pop(tool.name, None)
            logger.warning("%s: left out tool %r: %s", self.target, tool.name, error)
            return False
        return True

    def _mirror(self, method: str, params: Mapping[str, Any], origin: Origin) -> dict[str, str]:
        """Headers that say what the body says (HH-03, HH-04, HH-09); without a known schema none for parameters (HH-22)."""
        headers = {"Mcp-Method": encode_value(method)}
        row = METHODS.get(method)
        mirrored = row.mirrored if row is not None else "taskId" if method.startswith("tasks/") else ""  # HH-05, TX-18
        if not mirrored:
            return headers
        try:
            headers["Mcp-Name"] = encode_value(str(params.get(mirrored, "")))
            if method == "tools/call" and (known := self._params.get(params.get("name", ""))):
                headers |= mirror_params(known, params.get("arguments") or {})
        except HeaderValueError as error:
            raise InvalidRequest(f"the request can't be sent: {error}", origin) from error
        return headers

    def _compose(self, method: str, params: Mapping[str, Any], progress: OnProgress | None) -> Outgoing:
        """Give a request its id, its envelope and its headers (MT-01..MT-03)."""
        request_id = next(self._ids)
        origin = Origin(self.target, method, request_id, _subject(params))
        if not self._open:
            raise ClientError("the client is not open: use it inside `async with Client(...) as client`", origin)
        meta = {**self._meta, **(params.get("_meta") or {})}
        if progress is not None:
            meta[versions.META_PROGRESS_TOKEN] = request_id  # PR-01: as unique as the id
        try:
            body = encode_request(request_id, method, {**params, "_meta": meta})
            # The encoder writes null for what JSON has no number for: the server would be told something else.
            culprit = _find_nonfinite(msgspec.to_builtins(params), "") if b"null" in body else None
        except (TypeError, ValueError, RecursionError, OverflowError) as error:
            raise InvalidRequest(f"the parameters can't be written as JSON: {error}", origin) from error
        if culprit is not None:
            raise InvalidRequest(f"{culprit}, which JSON has no number for: send None or a text, whichever the server takes", origin)
        headers = self._mirror(method, params, origin) if self._connection.mirrors else {}
        return Outgoing(origin, body, headers)

    def _check_texts(self, method: str, subject: str, arguments: Mapping[str, Any]) -> None:
        for name, value in arguments.items():
            if not isinstance(value, str):
                text = f"argument {name!r} must be a string, not {type(value).__name__}: write it as text, as a person would type it"
                raise InvalidRequest(text, Origin(self.target, method, subject=subject))

    async def _exchange(
        self, method: str, params: Mapping[str, Any], on_progress: OnProgress | None, limit: float | None
    ) -> tuple[Incoming, Origin]:
        progress = on_progress or self._on_progress
        request = self._compose(method, params, progress)

        async def on_note(note: RawNotification) -> None:
            await self._hand_on(note, progress, request.origin)

        seconds = self._timeout if limit is None else limit
        scope = asyncio.timeout(seconds)
        try:
            async with scope:
                return await self._connection.exchange(request, on_note), request.origin
        except TimeoutError as error:
            if seconds is None or not scope.expired():
                raise  # a callback's own
            raise RequestTimeout(seconds, request.origin) from error

    async def _hand_on(self, note: RawNotification, progress: OnProgress | None, origin: Origin) -> None:
        """Give progress and logs to whoever wants them; what does not fit the protocol is dropped, for the answer still counts."""
        done: Awaitable[None] | None = None
        if note.method == "notifications/progress" and progress is not None:
            step = self._read_note(_decode_progress, note)
            if step is not None and step.progress_token == origin.request_id:
                done = progress(step.progress, _given(step.total), _given(step.message))
        elif note.method == "notifications/message" and self._on_log is not None:
            log = self._read_note(_decode_log, note)
            done = self._on_log(log) if log is not None else None
        if done is not None and inspect.isawaitable(done):
            await done

    def _read_note(self, decode: Callable[[Any], T], note: RawNotification) -> T | None:
        try:
            return decode(note.params or b"{}")
        except msgspec.DecodeError as error:
            logger.warning("%s: dropped a notification: %s: %s", self.target, note.method, error)
            return None

    async def _ask(
        self,
        kind: type[T],
        method: str,
        params: Mapping[str, Any],
        *,
        on_progress: OnProgress | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> T:
        more: dict[str, Any] = {}
        rounds = 0
        while True:
            incoming, origin = await self._exchange(method, {**params, **more}, on_progress, timeout)
            raw = result(incoming, origin)
            found: Kind = read(Kind, raw, origin)
            if found.result_type != "input_required" or not METHODS[method].asks:  # MR-02
                break
            if rounds == MAX_ROUNDS:
                raise InputRequired(
                    found.input_requests, found.request_state, origin, f"for more than {MAX_ROUNDS} rounds; it was given up"
                )
            rounds += 1
            params = msgspec.to_builtins(params)  # MR-13: what is sent again stays as it is, whatever becomes of the caller's objects
            more = await self._inputs.prepare(found.input_requests, found.request_state, origin)
        if found.result_type == "task" and method == "tools/call" and self._tasks:  # TX-04
            raw = await follow(raw, self._send, self._inputs, origin)
        elif found.result_type != "complete":
            raise InvalidAnswer(f"the result is of the unknown type {found.result_type!r}", origin)  # JR-15
        answer: T = read(kind, raw, origin)
        return answer

    async def _send(self, method: str, params: Mapping[str, Any], limit: float | None) -> msgspec.Raw:
        return result(*await self._exchange(method, params, None, limit))

    async def _offers(self, capability: str) -> bool:
        return getattr((await self.discover()).capabilities, capability) is not msgspec.UNSET

    async def _list(self, kind: type[Any], method: str, field: str, cursor: str | None) -> Items[Any]:
        """Follow the cursors to the end (PG-02..PG-04), or fetch the one page that was asked for."""
        found: Items[Any] = Items()
        seen: set[str] = set()
        following = cursor
        while True:
            try:
                page = await self._ask(kind, method, {} if following is None else {"cursor": following})
            except ServerError as error:
                if error.code != _METHOD_NOT_FOUND or await self._offers(METHODS[method].capability):
                    raise
                return found  # a server without prompts has none
            found += getattr(page, field)
            following = _given(page.next_cursor)
            if following is None or cursor is not None:
                found.next_cursor = following
                return found
            if following in seen or len(seen) == MAX_PAGES - 1:
                fault = "repeats a cursor" if following in seen else f"has more than {MAX_PAGES} pages"
                raise InvalidAnswer(f"the listing {fault}; it was given up", Origin(self.target, method))
            seen.add(following)


def _declare(stated: v.ClientCapabilities | Mapping[str, Any] | None, implied: dict[str, Any], *, tasks: bool) -> Any:
    """What the client says it can do: what its options imply, and before that what it was told to say."""
    if not implied and not tasks:
        return stated or {}
    told: dict[str, Any] = msgspec.to_builtins(stated or {})
    if tasks:  # TX-01
        told["extensions"] = {EXTENSION: {}} | told.get("extensions", {})
    return implied | told


def _subject(params: Mapping[str, Any]) -> str:
    """What a request asks for: a tool, a prompt, a resource; empty when that is no string, or nothing."""
    ref = params.get("ref")
    found = params.get("name", params.get("uri")) if ref is None else getattr(ref, "name", getattr(ref, "uri", ""))
    return found if isinstance(found, str) else ""


def _find_nonfinite(value: Any, place: str) -> str | None:
    """Where the first infinity or NaN is, and what; None when there is none."""
    if isinstance(value, float):
        return None if isfinite(value) else f"{place} is {value}"
    inside: Iterator[tuple[str, Any]]
    if isinstance(value, dict):
        inside = ((f"{place}.{key}" if place else str(key), each) for key, each in value.items())
    elif isinstance(value, list | tuple):
        inside = ((f"{place}[{at}]", each) for at, each in enumerate(value))
    else:
        return None
    return next((found for where, each in inside if (found := _find_nonfinite(each, where))), None)


def _given(value: T | msgspec.UnsetType) -> T | None:
    return None if isinstance(value, msgspec.UnsetType) else value

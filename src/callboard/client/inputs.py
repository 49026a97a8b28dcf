"""What a server asks of its client in the middle of a call, and the callbacks that answer it (MR-11)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec

from callboard.client.answer import without_nulls
from callboard.client.errors import InputRequired, InvalidAnswer, InvalidRequest, Origin
from callboard.errors import RegistrationError
from callboard.server.faults import ArgumentFaults
from callboard.server.raw_schema import RawArguments
from callboard.wire import v2026_07_28 as v

__all__ = ["MAX_ROUNDS", "Inputs", "OnElicit", "OnRoots", "OnSample", "who_asks"]

T = TypeVar("T")
MAX_ROUNDS = 32
"""How often a request is sent again because the server asked for something."""

OnElicit: TypeAlias = Callable[[v.ElicitRequestFormParams | v.ElicitRequestURLParams], Any]
"""Shows somebody a form, or a URL. It may be async, and returns

    - what was filled in: a mapping, a `Struct` or a dataclass. Fields that are left out, or None, get the default that the form declares;
    - None: declined;
    - a `types.ElicitResult` for everything else: `action="cancel"`, or `action="accept"` for a URL that was opened.
"""
OnSample: TypeAlias = Callable[[v.CreateMessageRequestParams], v.CreateMessageResult | Awaitable[v.CreateMessageResult]]
"""Lets a model write a message. May be async; raise to refuse. Deprecated by SEP-2577, at the earliest removed after 2027-07-28."""
OnRoots: TypeAlias = Callable[[], Iterable[v.Root] | Awaitable[Iterable[v.Root]]]
"""Gives the folders and files, as `file://` URIs, that the server should work with. May be async; raise to refuse.

Deprecated by SEP-2577, at the earliest removed after 2027-07-28.
"""

_Build: TypeAlias = Callable[[Any], Any]
_asking: ContextVar[Origin] = ContextVar("the request that asks")


def who_asks() -> Origin:
    """Inside a callback: whose question it is (EL-14). `target` is the server; the rest names the call in which it asks, where that is known.

    Raises:
        LookupError: Nobody asks.
    """
    return _asking.get()


class _Ask(msgspec.Struct):
    method: str
    params: dict[str, Any] = {}


class _Row(NamedTuple):
    """A method that servers ask with.

    Attributes:
        option: The option of `Client` that answers it.
        capability: The capability that goes with it, and what that says.
        open: Reads its params; gives what the callback gets, and what makes a response of the callback's value.
    """

    option: str
    capability: tuple[str, dict[str, Any]]
    open: Callable[[dict[str, Any]], tuple[Any, _Build]]


class Inputs:
    """The callbacks of a client.

    Args:
        on_elicit: Answers `elicitation/create`.
        on_sample: Answers `sampling/createMessage`.
        on_roots: Answers `roots/list`.

    Attributes:
        capabilities: What a client can do that has these callbacks (EL-01, SM-01, RT-01).

    Raises:
        TypeError: One of them can't be called.
    """

    def __init__(self, on_elicit: OnElicit | None, on_sample: OnSample | None, on_roots: OnRoots | None) -> None:
        for option, callback in (("on_elicit", on_elicit), ("on_sample", on_sample), ("on_roots", on_roots)):
            if callback is not None and not callable(callback):
                raise TypeError(f"{option} is a function that answers what the server asks, not {type(callback).__name__}")
        given: dict[str, Callable[[Any], Any] | None] = {
            "elicitation/create": on_elicit,
            "sampling/createMessage": on_sample,
            "roots/list": on_roots and (lambda _: on_roots()),
        }
        self._callbacks = {method: callback for method, callback in given.items() if callback is not None}
        self.capabilities: dict[str, Any] = dict(_ROWS[method].capability for method in self._callbacks)

    async def prepare(self, requests: dict[str, Any], state: str | None, origin: Origin) -> dict[str, Any]:
        """Get all that a server asked for before it goes on.

        Args:
            requests: What it asked, by key; none when it only wants to be asked again.
            state: What it wants back as it is; None when it gave nothing.
            origin: The request that it did not answer yet.

        Returns:
            What the params of the next round hold besides those of the first (MR-13).

        Raises:
            InputRequired: Nobody here answers one of the requests; no callback has run then.
            InvalidAnswer: It asked against the protocol.
            InvalidRequest: A callback gave what can't be sent.
        """
        if not requests and state is None:
            raise InvalidAnswer("the server asks for input without saying which (MR-03)", origin)
        more: dict[str, Any] = {"inputResponses": await self.answer(requests, origin, state)} if requests else {}
        if state is not None:  # MR-12
            more["requestState"] = state
        return more

    async def answer(self, requests: Mapping[str, Any], origin: Origin, state: str | None = None) -> dict[str, Any]:
        """Run the callbacks, all at once; see `prepare`.

        Returns:
            The responses, by the server's keys.
        """
        asks = {key: _convert(request, _Ask, key, origin) for key, request in requests.items()}
        if unanswered := {ask.method for ask in asks.values()} - self._callbacks.keys():
            options = sorted(_ROWS[method].option for method in unanswered if method in _ROWS)
            advice = f"; the client takes {', '.join(options)}" if options else ""
            raise InputRequired(dict(requests), state, origin, f"which nobody here answers{advice}")
        opened = {key: self._open(key, ask, origin) for key, ask in asks.items()}
        try:
            async with asyncio.TaskGroup() as group:
                tasks = {key: group.create_task(run()) for key, run in opened.items()}
        except BaseExceptionGroup as raised:
            raise raised.exceptions[0] from None  # the callback's own; the other callbacks are cancelled
        return {key: task.result() for key, task in tasks.items()}

    def _open(self, key: str, ask: _Ask, origin: Origin) -> Callable[[], Any]:
        """Read a request; gives what runs its callback."""
        row = _ROWS[ask.method]
        try:
            try:
                argument, build = row.open(ask.params)
            except (msgspec.ValidationError, RegistrationError):
                argument, build = row.open(_without_nulls(ask.params))
        except (msgspec.ValidationError, RegistrationError) as error:
            raise InvalidAnswer(f"the server's {ask.method} {key!r} can't be answered: {error}", origin) from error

        async def run() -> Any:
            _asking.set(origin)
            value = self._callbacks[ask.method](argument)
            if inspect.isawaitable(value):
                value = await _whole(value, row.option, origin)
            try:
                return build(value)
            except (TypeError, ValueError) as error:
                raise InvalidRequest(f"what {row.option} gave can't be sent: {error}", origin) from error

        return run


async def _whole(value: Awaitable[Any], option: str, origin: Origin) -> Any:
    """What a callback gives; one that was cancelled from within must not look like a call that was."""
    try:
        return await value
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise InvalidRequest(f"{option} gave nothing: it was cancelled", origin) from error


def _convert(value: Any, kind: type[T], key: str, origin: Origin) -> T:
    try:
        given = {name: each for name, each in value.items() if each is not None} if isinstance(value, dict) else value
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise InvalidAnswer(f"the server asks for {key!r} against the protocol: {error}", origin) from error


def _without_nulls(params: dict[str, Any]) -> dict[str, Any]:
    form = params.get("requestedSchema")
    return {**without_nulls(params), "requestedSchema": without_nulls(form)} if isinstance(form, dict) else without_nulls(params)


def _checked(kind: type[T], value: Any) -> T:
    """A value as a type of the protocol's; what people make themselves was never looked at."""
    return msgspec.convert(msgspec.to_builtins(value), kind)


def _open_elicitation(params: dict[str, Any]) -> tuple[Any, _Build]:
    if params.get("mode") == "url":
        return msgspec.convert(params, v.ElicitRequestURLParams), _consent
    asked = msgspec.convert(params, v.ElicitRequestFormParams)  # EL-03: it is a form unless it says otherwise
    return asked, partial(_fill, asked.requested_schema, RawArguments(asked.requested_schema, "its form"))


def _consent(value: Any) -> v.ElicitResult:
    if value is not None and not isinstance(value, v.ElicitResult):
        raise TypeError("a URL is answered by types.ElicitResult(action='accept') or None")
    return _action(value)


def _fill(schema: dict[str, Any], form: RawArguments, value: Any) -> v.ElicitResult:
    """Fill in a form, hold it to its schema (EL-14) and make a response of it."""
    if isinstance(value, v.ElicitResult):
        content: Any = value.content or {}
    else:
        content = msgspec.to_builtins(value)
    result = _action(value)
    if result.action != "accept":
        return result
    if not isinstance(content, dict):
        raise TypeError(f"a form is filled in by a mapping, a Struct or a dataclass, not by {type(value).__name__}")
    fields = schema.get("properties", {}).items()
    defaults = {name: field["default"] for name, field in fields if isinstance(field, dict) and "default" in field}
    filled = defaults | {name: each for name, each in content.items() if each is not None}  # EL-06
    try:
        form.bind(msgspec.json.encode(filled))
    except ArgumentFaults as found:
        raise ValueError("; ".join(f"{fault.path or 'the form'}: {fault.expected}" for fault in found.faults)) from None
    return _checked(v.ElicitResult, v.ElicitResult(action="accept", content=filled))


def _action(value: Any) -> v.ElicitResult:
    """The response without its content, which only an accepted form has (EL-07)."""
    action = "decline" if value is None else value.action if isinstance(value, v.ElicitResult) else "accept"
    return _checked(v.ElicitResult, {"action": action})


def _open_sampling(params: dict[str, Any]) -> tuple[Any, _Build]:
    return msgspec.convert(params, v.CreateMessageRequestParams), _read_message


def _read_message(value: Any) -> v.CreateMessageResult:
    if not isinstance(value, v.CreateMessageResult | Mapping):
        raise TypeError(f"what a model wrote is a types.CreateMessageResult, not {type(value).__name__}")
    return _checked(v.CreateMessageResult, value)


def _open_roots(_: dict[str, Any]) -> tuple[Any, _Build]:
    return None, _list_roots


def _list_roots(value: Any) -> v.ListRootsResult:
    roots: list[Any] = list(value) if isinstance(value, Iterable) and not isinstance(value, str | Mapping) else [value]
    if odd := [type(root).__name__ for root in roots if not isinstance(root, v.Root | Mapping)]:
        raise TypeError(f'it gives a list of types.Root, like types.Root(uri="file:///srv"), not of {odd[0]}')
    found = _checked(v.ListRootsResult, {"roots": roots})
    if wrong := next((root.uri for root in found.roots if not root.uri.startswith("file://")), None):
        raise ValueError(f"a root is a file:// URI, not {wrong!r}")  # RT-03
    return found


_ROWS = {
    "elicitation/create": _Row("on_elicit", ("elicitation", {"form": {}, "url": {}}), _open_elicitation),
    "sampling/createMessage": _Row("on_sample", ("sampling", {"tools": {}}), _open_sampling),
    "roots/list": _Row("on_roots", ("roots", {}), _open_roots),
}

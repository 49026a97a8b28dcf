"""The callbacks of a handler: which ones it has, how each is called, and what a request comes to that is answered method by method."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import partial
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET

from callboard.core.era import Request
from callboard.core.headers import compare_params, compile_param_map
from callboard.core.outcome import Reply
from callboard.errors import Fail, Reason, RegistrationError
from callboard.handling.channel import Channel
from callboard.handling.wiremap import read_items
from callboard.server.signature import accepts
from callboard.server.workers import Workers
from callboard.wire.versions import LATEST

__all__ = ["Callback", "Callbacks", "find_callback", "optional"]

F = TypeVar("F", bound=Callable[..., Any])
_log = logging.getLogger("callboard")
_MARK = "__callboard_optional__"
# How each callback is called.
_TAKES: dict[str, tuple[str, ...]] = {
    "init": ("hello",),
    "handle_request": ("request", "channel", "state"),
    "handle_message": ("message", "channel", "state"),
    "handle_notification": ("notification", "channel", "state"),
    "handle_close": ("channel", "state"),
    "terminate": ("reason", "state"),
    "channels": ("state",),
    "list_tools": ("ctx", "state"),
    "call_tool": ("name", "arguments", "ctx", "state"),
    "list_resources": ("ctx", "state"),
    "list_resource_templates": ("ctx", "state"),
    "read_resource": ("uri", "ctx", "state"),
    "list_prompts": ("ctx", "state"),
    "get_prompt": ("name", "arguments", "ctx", "state"),
    "complete": ("ref", "argument", "ctx", "state"),
    "set_log_level": ("level", "ctx", "state"),
    "subscribe": ("uri", "ctx", "state"),
    "unsubscribe": ("uri", "ctx", "state"),
}
# What a capability is for: it is offered as soon as one of these is there.
_CAPABILITIES: dict[str, tuple[str, ...]] = {
    "tools": ("list_tools", "call_tool"),
    "resources": ("list_resources", "list_resource_templates", "read_resource"),
    "prompts": ("list_prompts", "get_prompt"),
    "completions": ("complete",),
}
_LISTS = {
    "tools/list": "list_tools",
    "resources/list": "list_resources",
    "resources/templates/list": "list_resource_templates",
    "prompts/list": "list_prompts",
}


def optional(function: F) -> F:
    """Mark a callback of the base class: a handler that leaves it as it is does not have it."""
    setattr(function, _MARK, True)
    return function


def find_callback(handler: Any, name: str) -> Callable[..., Any] | None:
    """A callback of a handler; None when the handler leaves it as the base class has it.

    Raises:
        RegistrationError: There is something else of that name.
    """
    function = getattr(handler, name, None)
    if function is None or getattr(function, _MARK, False):
        return None
    if not callable(function):
        raise RegistrationError(f"{type(handler).__qualname__}.{name} must be a method, not {function!r}.")
    found: Callable[..., Any] = function
    return found


class Callback:
    """One callback.

    Args:
        function: The bound method.
        name: Its name.
        label: Its name with the handler's, for error texts.

    Raises:
        RegistrationError: It can't be called as it will be.

    Attributes:
        takes_params: Whether it is a list callback that pages by itself.
    """

    __slots__ = ("_function", "_is_async", "takes_params")

    def __init__(self, function: Callable[..., Any], name: str, label: str) -> None:
        takes = _TAKES[name]
        # A third parameter of another name that has a default is the author's own.
        wants_params = not accepts(function, *takes) or "params" in inspect.signature(function).parameters
        self.takes_params = name in _LISTS.values() and wants_params and accepts(function, *takes, "params")
        if not self.takes_params and not accepts(function, *takes):
            more = f", or with params behind: {name}({', '.join((*takes, 'params'))})" if name in _LISTS.values() else ""
            raise RegistrationError(f"{label} is called as {name}({', '.join(takes)}){more}; let it take that.")
        self._function = function
        self._is_async = inspect.iscoroutinefunction(function)

    async def __call__(self, workers: Workers, *args: Any, bounded: bool = True) -> Any:
        """Call it: a plain `def` on a thread, like every function of an author."""
        if self._is_async:
            return await self._function(*args)
        principal = next((arg.principal for arg in args if isinstance(arg, Channel)), None)
        value = await workers.run(partial(self._function, *args), {}, bounded=bounded, principal=principal)
        return await value if inspect.isawaitable(value) else value


class Callbacks:
    """The callbacks that a handler has.

    Args:
        handler: The handler.

    Raises:
        RegistrationError: One can't be called as it will be.
    """

    __slots__ = ("_found", "label")

    def __init__(self, handler: Any) -> None:
        self.label = type(handler).__qualname__
        self._found: dict[str, Callback] = {}
        for name in _TAKES:
            function = find_callback(handler, name)
            if function is not None:
                self._found[name] = Callback(function, name, f"{self.label}.{name}")
        for name in vars(type(handler)).keys() - _TAKES.keys():
            if meant := get_close_matches(name, _TAKES, n=1, cutoff=0.88):
                _log.warning("%s.%s is no callback, so that nobody calls it; did you mean %s?", self.label, name, meant[0])

    def get(self, name: str) -> Callback | None:
        """A callback; None when the handler does not have it."""
        return self._found.get(name)

    def capabilities(self) -> dict[str, Any]:
        """What it can serve, as its callbacks say; notifications of change are in it, and left out where they can't be delivered.

        Raises:
            RegistrationError: It answers whole requests, so that nothing says which.
        """
        found: dict[str, Any] = {
            capability: {} if capability == "completions" else {"listChanged": True}
            for capability, names in _CAPABILITIES.items()
            if self._found.keys() & set(names)
        }
        if "resources" in found:
            found["resources"]["subscribe"] = True
        if not found and "handle_request" in self._found:
            raise RegistrationError(
                f'{self.label} answers whole requests, so nothing says which there are: give it capabilities, like {{"tools": {{}}}}.'
            )
        return found

    async def answer(self, request: Request, channel: Channel) -> Any:
        """What the handler makes of a request: the whole request where it has `handle_request`, else method by method."""
        whole = self.get("handle_request")
        if whole is not None:
            returned = await whole(channel.mount.workers, _opened(request, channel.mount.limits.max_arguments), channel, channel.state)
            if returned is None:
                raise TypeError(f"{self.label}: handle_request returned None for {request.method}: return what it comes to.")
            return returned
        if request.method in _LISTS:
            return await self._list(_LISTS[request.method], channel)
        serve = {
            "tools/call": self._call_tool,
            "resources/read": self._read_resource,
            "prompts/get": self._get_prompt,
            "completion/complete": self._complete,
        }
        return await serve[request.method](request.params, channel)

    async def _list(self, name: str, channel: Channel) -> Any:
        callback = self.get(name)
        if callback is None:
            return []
        workers, state = channel.mount.workers, channel.state
        if not callback.takes_params:
            return await callback(workers, channel, state)
        params: Any = channel.request.params
        cursor = getattr(params, "cursor", UNSET)
        return await callback(workers, channel, state, {} if cursor is UNSET else {"cursor": cursor})

    async def _find(self, method: str, name: str, channel: Channel) -> dict[str, Any] | Fail | None:
        """An item of a list that is read anew; None where nobody can know whether there is one."""
        callback = self.get(_LISTS[method])
        if callback is None or callback.takes_params:
            return None
        listed = await self._list(_LISTS[method], channel)
        if isinstance(listed, Fail):
            return listed
        items = read_items(method, listed.value if isinstance(listed, Reply) else listed)
        if items is None:
            return None
        found = next((item for item in items if item["name"] == name), None)
        if found is not None:
            return found
        kind, reason = ("tool", Reason.UNKNOWN_TOOL) if method == "tools/list" else ("prompt", Reason.UNKNOWN_PROMPT)
        return Fail(reason, f"Unknown {kind} {name[:100]!r}.", {"name": name})

    async def _call_tool(self, params: Any, channel: Channel) -> Any:
        call = self.get("call_tool")
        if call is None:
            return Fail(Reason.METHOD_NOT_FOUND, "Method not found: this server's tools can't be called.")
        arguments = _read_arguments(params.arguments, channel.mount.limits.max_arguments)
        if isinstance(arguments, Fail):
            return arguments
        tool = await self._find("tools/list", params.name, channel)
        if isinstance(tool, Fail):
            return tool
        if tool is not None:
            if (fail := _check_headers(channel.request, tool, arguments)) is not None:
                return fail
            output = tool.get("outputSchema")
            channel.wraps = isinstance(output, Mapping) and output.get("type") != "object"  # TL-07
        return await call(channel.mount.workers, params.name, arguments, channel, channel.state)

    async def _read_resource(self, params: Any, channel: Channel) -> Any:
        read = self.get("read_resource")
        if read is None:
            return None
        return await read(channel.mount.workers, params.uri, channel, channel.state)

    async def _get_prompt(self, params: Any, channel: Channel) -> Any:
        get = self.get("get_prompt")
        if get is None:
            return Fail(Reason.METHOD_NOT_FOUND, "Method not found: this server's prompts can't be had.")
        prompt = await self._find("prompts/list", params.name, channel)
        if isinstance(prompt, Fail):
            return prompt
        arguments = {} if params.arguments is UNSET else params.arguments
        missing = [name for name in _required(prompt) if name not in arguments]
        if missing:
            return Fail(Reason.INVALID_PARAMS, f"params.arguments: {', '.join(missing)} must be given.")  # PM-04
        return await get(channel.mount.workers, params.name, arguments, channel, channel.state)

    async def _complete(self, params: Any, channel: Channel) -> Any:
        complete = self.get("complete")
        if complete is None:
            return []
        return await complete(channel.mount.workers, params.ref, params.argument, channel, channel.state)


def _opened(request: Request, most: int) -> Request:
    """A request whose tool arguments can be read; the original stays, for what is sealed is bound to its bytes."""
    params: Any = request.params
    if request.method != "tools/call":
        return request
    arguments = _read_arguments(params.arguments, most)
    if isinstance(arguments, Fail):
        raise arguments
    return msgspec.structs.replace(request, params=msgspec.structs.replace(params, arguments=arguments))


def _read_arguments(raw: Any, most: int) -> dict[str, Any] | Fail:
    if raw is UNSET:
        return {}
    if isinstance(raw, msgspec.Raw):
        if len(raw) > most:
            return Fail(Reason.INVALID_PARAMS, f"params.arguments has {len(raw)} bytes, more than the {most} of one call (max_arguments).")
        raw = msgspec.json.decode(raw)
    return raw if isinstance(raw, dict) else Fail(Reason.INVALID_PARAMS, "params.arguments must be an object.")


def _check_headers(request: Request, tool: Mapping[str, Any], arguments: Mapping[str, Any]) -> Fail | None:
    """HH-19: arguments that headers mirror, as the tool's schema says."""
    if request.headers is None or request.envelope.version != LATEST:
        return None
    try:
        mirrored = compile_param_map(tool["inputSchema"])
    except ValueError as error:
        raise TypeError(f"tools/list, {tool['name']}: {error}") from None
    culprit = compare_params(mirrored, request.headers, arguments) if mirrored else None
    return Fail(Reason.HEADER_MISMATCH, f"A header and the arguments differ: {culprit}.") if culprit else None


def _required(prompt: Mapping[str, Any] | None) -> list[str]:
    """Names of the arguments that a prompt says it needs."""
    arguments = [] if prompt is None else msgspec.to_builtins(prompt.get("arguments", []))
    return [each["name"] for each in arguments if each.get("required")]

"""The state of a session: how it begins, the copy that a call gets, the bytes in between; and what a server does as sessions come and go.

A type is checked when the server is built, so that nothing of it can fail a session later: it is made, encoded and decoded once.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, auto
from functools import partial
from typing import Any, NewType, TypedDict, get_origin

import msgspec

from callboard.errors import RegistrationError
from callboard.server.annotation import needs_pydantic, parts
from callboard.server.limits import refuse_moved
from callboard.server.signature import EMPTY, accepts, plain_type, read
from callboard.server.workers import Workers

__all__ = ["Hello", "HookFields", "Hooks", "StateKind", "Turn", "can_keep", "read_hooks", "show_type"]

_KINDS = "a msgspec.Struct, a dataclass, an attrs class or a TypedDict"
_FACTORY = "`def begin(hello) -> Cart`"
_UNENCODABLE = (TypeError, ValueError, OverflowError, RecursionError, AttributeError, msgspec.MsgspecError)


class Hello(msgspec.Struct):
    """How a client introduced itself: to a state factory, and for as long as its session lives.

    Attributes:
        client_info: What it says its name and version are (`types.Implementation`); None when it says nothing. Not to be trusted (MT-06).
        capabilities: What it declared.
        version: Protocol version that was agreed on.
        params: Parameters of `initialize` as sent; empty on the current protocol.
        session_id: Id of the session; None where there is none.
        options: Bound options of the mount.
    """

    client_info: Any = None
    capabilities: dict[str, Any] = {}
    version: str = ""
    params: dict[str, Any] = {}
    session_id: str | None = None
    options: Any = None


class Turn(Enum):
    """When a request of a session runs.

    Attributes:
        NOW: At once; it takes no state.
        IN_TURN: When those before it that take state are through.
        SNAPSHOT: At once, on a copy of the state that is not written back.
        WAIT: As IN_TURN, without the state: what a name that nobody knows has to do where one that is hidden would wait (SA21).
        LATE: As SNAPSHOT, for the same reason in its turn.
        queues: Whether it waits for those before it.
        has_state: Whether it gets the state, or a copy.
    """

    NOW = auto()
    IN_TURN = auto()
    SNAPSHOT = auto()
    WAIT = auto()
    LATE = auto()

    def __init__(self, _number: int) -> None:
        self.queues = self.name in {"IN_TURN", "WAIT", "LATE"}
        self.has_state = self.name in {"IN_TURN", "SNAPSHOT", "LATE"}


class StateKind:
    """What the state of a server's sessions is.

    Args:
        source: A type that can be made without arguments, or a function `(hello) -> value`, whose return annotation is the type; it may
            leave `hello` out.

    Raises:
        RegistrationError: `source` is neither, or the type has no encoded form; the text names the type and the way out.

    Attributes:
        type: The type.
        key: What a parameter's annotation must come down to for the parameter to be the state.
    """

    # Whether values are kept as they are, and not as bytes.
    by_reference = False

    __slots__ = ("_decode", "_encode", "_make", "key", "type")

    def __init__(self, source: Any) -> None:
        self._make: Callable[[Hello], Any]
        if _is_type(source):
            self.type, self._make = source, partial(_make_empty, source)
        elif callable(source):
            self.type, self._make = _read_factory(source)
        else:
            raise RegistrationError(f"state takes a type or a function, not {source!r}: write state=Cart, or {_FACTORY} and state=begin.")
        self.key = plain_type(self.type)
        _check_type(self.type, self.key)
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(self.type).decode
        if _is_type(source):
            self._try()

    def begin(self, hello: Hello) -> bytes:
        """The state of a session that begins, encoded.

        Raises:
            TypeError: The factory gave what can't be kept.
            Exception: What the factory raised.
        """
        return self.seal(self._make(hello))

    async def open(self, hello: Hello, workers: Workers) -> bytes:  # noqa: ARG002 - a state that takes waiting needs them
        """The same, where it may take waiting.

        Args:
            hello: How the client introduced itself.
            workers: Threads for functions that block.
        """
        return self.begin(hello)

    def draft(self, encoded: bytes) -> Any:
        """A copy for one call, which may change it as it likes."""
        return self._decode(encoded)

    def seal(self, value: Any) -> bytes:
        """Encode what a call leaves.

        Raises:
            TypeError: It has no encoded form, or would not be read again as the state's type; its values are not in the text.
        """
        try:
            encoded = self._encode(value)
            self._decode(encoded)  # else the next call would fail, and every one after it
        except _UNENCODABLE as error:
            raise TypeError(f"The state can't be kept as {show_type(self.type)}: {error}") from error
        return encoded

    def _try(self) -> None:
        try:
            self.begin(Hello())
        except Exception as error:
            text = f"state={show_type(self.type)} can't be made without arguments ({error}): give its fields defaults, or write {_FACTORY}."
            raise RegistrationError(text) from error


def can_keep(kind: Any) -> bool:
    """Whether values of a type can be kept as bytes and read back as what they were."""
    if any(part is Any or part is object or needs_pydantic(part) or _is_custom(part) for part in parts(kind)):
        return False
    try:
        msgspec.msgpack.Decoder(kind)
    except TypeError:
        return False
    return True


def show_type(kind: Any) -> str:
    """A type as an error text names it."""
    name = None if get_origin(kind) else getattr(kind, "__qualname__", None) or getattr(kind, "__name__", None)
    return name or repr(kind)


def _is_type(source: Any) -> bool:
    return isinstance(source, type | NewType) or get_origin(source) is not None


def _make_empty(kind: Any, _hello: Hello) -> Any:
    while isinstance(kind, NewType):
        kind = kind.__supertype__
    return kind()


def _read_factory(factory: Callable[..., Any]) -> tuple[Any, Callable[[Hello], Any]]:
    signature = read(factory)
    if signature.is_async:
        raise RegistrationError(f"state: {signature.label} is async, but a state begins at once: make it a plain `def`.")
    if signature.returns in (EMPTY, Any, None):
        raise RegistrationError(f"state: {signature.label} doesn't say what it returns; annotate it: {_FACTORY}.")
    if len([parameter for parameter in signature.parameters if parameter.required]) > 1:
        raise RegistrationError(f"state: {signature.label} gets one argument, hello, which carries the client's name, session and options.")
    call = signature.call
    if not signature.parameters:
        return signature.returns, lambda _hello: call()
    name = next((parameter for parameter in signature.parameters if parameter.required), signature.parameters[0]).name
    return signature.returns, lambda hello: call(**{name: hello})


def _check_type(kind: Any, key: Any) -> None:
    """A state that every session keeps as bytes, and that no ordinary argument can be mistaken for."""
    shown = show_type(kind)
    if foreign := [part for part in parts(kind) if needs_pydantic(part)]:
        raise RegistrationError(f"state={shown}: {show_type(foreign[-1])} is pydantic's, which sessions can't keep; use {_KINDS}.")
    if custom := [part for part in parts(kind) if _is_custom(part)]:
        raise RegistrationError(f"state={shown}: objects of {show_type(custom[-1])} can't be kept as bytes; use {_KINDS}.")
    try:
        msgspec.msgpack.Decoder(kind)
    except TypeError as error:
        raise RegistrationError(f"state={shown} can't be read back from bytes ({error}); use {_KINDS}.") from None
    if getattr(key, "__module__", "").partition(".")[0] in sys.stdlib_module_names:
        raise RegistrationError(
            f"state={shown}: every parameter of such a type would be the state; "
            f'give it a name of its own: `Cart = typing.NewType("Cart", {shown})`, or {_KINDS}.'
        )


def _is_custom(part: Any) -> bool:
    try:
        return isinstance(msgspec.inspect.type_info(part), msgspec.inspect.CustomType)
    except Exception:  # noqa: BLE001 - no type: what else stands in an annotation
        return False


class Hooks(msgspec.Struct, frozen=True):
    """What a server does as sessions come and go, and when 2025 clients ask for what the current protocol has no methods for.

    Attributes:
        channels: Takes the state of a session that begins; gives the topics that it hears (`server.broadcast`).
        terminate: Takes a reason (`deleted`, `expired`, `shutdown`, `closed`) and the state when a session has ended.
        set_log_level: Takes a level and the Context.
        subscribe: Takes a URI and the Context.
        unsubscribe: Likewise.
    """

    channels: Callable[[Any], tuple[str, ...]] | None = None
    terminate: Callable[[str, Any], Any] | None = None
    set_log_level: Callable[[str, Any], Any] | None = None
    subscribe: Callable[[str, Any], Any] | None = None
    unsubscribe: Callable[[str, Any], Any] | None = None


class HookFields(TypedDict, total=False):
    """The hooks as keyword arguments of `Server`; `channels` may be a fixed list of topics."""

    channels: Iterable[str] | Callable[[Any], Iterable[str]] | None
    terminate: Callable[[str, Any], Any] | None
    set_log_level: Callable[[str, Any], Any] | None
    subscribe: Callable[[str, Any], Any] | None
    unsubscribe: Callable[[str, Any], Any] | None


# Options of `asgi` and `run` that other frameworks, or a guess, give to the server.
_OF_SERVING = frozenset(
    {"auth", "resource", "scopes", "implies", "hosts", "origins", "cors", "allow_remote", "path", "json_only", "versions"}
)

# What each hook takes, as its error says it.
_TAKES: dict[str, tuple[str, ...]] = {
    "terminate": ("reason", "state"),
    "set_log_level": ("level", "ctx"),
    "subscribe": ("uri", "ctx"),
    "unsubscribe": ("uri", "ctx"),
}


def read_hooks(fields: Mapping[str, Any]) -> Hooks:
    """Take the hooks among the keyword arguments of `Server`.

    Raises:
        RegistrationError: One is unknown, or can't be called as it will be; the text says how.
    """
    refuse_moved(fields)
    if served := sorted(fields.keys() & _OF_SERVING):
        raise RegistrationError(
            f"Server takes no {served[0]!r}, which says how it is served: callboard.asgi(server, {served[0]}=...) or callboard.run."
        )
    if unknown := sorted(fields.keys() - HookFields.__annotations__.keys()):
        raise RegistrationError(f"Server takes no {unknown[0]!r}; beside its own options it takes {', '.join(HookFields.__annotations__)}.")
    for name, takes in _TAKES.items():
        _check_callable(name, fields.get(name), takes)
    return Hooks(**{**fields, "channels": _read_channels(fields.get("channels"))})


def _read_channels(channels: Any) -> Callable[[Any], tuple[str, ...]] | None:
    if channels is None:
        return None
    if not callable(channels):
        topics = _check_topics(channels, RegistrationError)
        return lambda _state: topics
    _check_callable("channels", channels, ("state",))
    if inspect.iscoroutinefunction(channels):
        raise RegistrationError("channels is async, but a session begins at once: make it a plain `def channels(state) -> list[str]`.")
    return lambda state: _check_topics(channels(state), TypeError)


def _check_topics(topics: Any, error: type[TypeError]) -> tuple[str, ...]:
    if isinstance(topics, str) or not isinstance(topics, Iterable):
        raise error(f'channels takes topics as a list, not {type(topics).__name__}: write ["news"].')
    found = tuple(topics)
    if wrong := [topic for topic in found if not isinstance(topic, str)]:
        raise error(f"channels: a topic is a str, not {type(wrong[0]).__name__}.")
    return found


def _check_callable(name: str, hook: Any, takes: tuple[str, ...]) -> None:
    if hook is None:
        return
    shape = f"{name}({', '.join(takes)})"
    if not callable(hook):
        raise RegistrationError(f"{name} must be a function, `def {shape}`, not {hook!r}.")
    if not accepts(hook, *takes):
        raise RegistrationError(f"{name} is called as {shape}; let {show_type(hook)} take that.")

"""The state of a handler: what `init` gives, kept as bytes where they can be read back, else by reference."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
from msgspec import UNSET

from callboard.core.outcome import Accepted, Deferred, NeedInput, Reply
from callboard.errors import Fail, Reason, RegistrationError, ToolError
from callboard.handling.callbacks import Callback
from callboard.handling.channel import Stop, Stream
from callboard.server.state import Hello, StateKind, can_keep
from callboard.server.workers import Workers, is_imposed

__all__ = ["MISPLACED", "HandlerState", "StoppedError"]

_log = logging.getLogger("callboard")
# Instructions and outcomes that can stand in no place but the return of a callback for a request.
MISPLACED = (Accepted, Reply, Stream)


class StoppedError(Fail):
    """`init` said Stop.

    Attributes:
        stop_reason: The reason that it gave.
    """

    def __init__(self, stop_reason: str) -> None:
        super().__init__(Reason.STOPPED)
        self.stop_reason = stop_reason


class HandlerState(StateKind):
    """The state of a handler: what `init` gives.

    A declared type (`Handler[Cart]`) whose values msgspec can read back is kept as bytes, and every callback gets a copy. Anything else is
    kept as it is, by reference.

    Args:
        declared: The type; UNSET when the handler declares none.
        init: The callback; None for a state that is made without arguments.
        label: Name of the handler.

    Raises:
        RegistrationError: Without `init` the declared type can't be made.
    """

    __slots__ = ("_init", "by_reference")

    def __init__(self, declared: Any, init: Callback | None, label: str) -> None:
        self._init = init
        self.by_reference = (declared is not UNSET or init is not None) and not (declared is not UNSET and can_keep(declared))
        self.type = self.key = declared
        if declared is not UNSET and can_keep(declared):
            self._encode = msgspec.msgpack.Encoder().encode
            self._decode = msgspec.msgpack.Decoder(declared).decode
        else:
            self._encode = _hold
            self._decode = _release
        if init is None and declared is not UNSET:
            try:
                declared()
            except Exception as error:
                text = f"{label}: its state can't be made without arguments ({error}): give the fields defaults, or write init(hello)."
                raise RegistrationError(text) from error

    async def open(self, hello: Hello, workers: Workers) -> Any:
        """The state that `init` gives, as it is kept.

        Raises:
            Fail: `init` raised it, said Stop, or failed (then without detail: the log has it).
        """
        if self._init is None:
            return self.seal(None if self.type is UNSET else self.type())
        try:
            return self.seal(_read_state(await self._init(workers, hello)))
        except Fail:
            raise
        except BaseException as error:
            if is_imposed(error):
                raise
            _log.exception("init failed.")
            raise Fail(Reason.OPTIONS) from None


def _read_state(value: Any) -> Any:
    """What `init` returned, where that is a state.

    Raises:
        Fail: It refuses.
        TypeError: It is what only ends a request.
    """
    if isinstance(value, Stop):
        _log.info("init stopped: %.200r", value.reason)
        raise StoppedError(value.reason)
    if isinstance(value, Fail | ToolError):
        raise value
    if isinstance(value, (*MISPLACED, Deferred, NeedInput)):
        raise TypeError(f"init gives the state, or refuses with Stop or Fail; it returned {type(value).__name__}.")
    return value


def _hold(value: Any) -> Any:
    return (value,)  # None is a state, too


def _release(held: Any) -> Any:
    return held[0]

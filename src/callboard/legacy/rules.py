"""The options of sessions, checked when the transport is made."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Literal

import msgspec

from callboard.errors import RegistrationError
from callboard.wire.versions import LEGACY

__all__ = ["Rules", "make_session_id"]


def make_session_id() -> str:
    """128 random bits in hexadecimal digits (HL-20)."""
    return secrets.token_hex(16)


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """How 2025 clients are served.

    Attributes:
        versions: Protocol versions that may be agreed on, the preferred one first.
        sessions: `auto`: each client has one. `off`: every request stands alone, GET and DELETE are refused.
        handshake: `strict`: until `notifications/initialized` nothing but `ping` is served. `lenient`: whatever comes.
        session_ttl: Seconds that a session lives while nothing happens in it.
        request_timeout: Seconds until a caller that has had no bytes is told that it takes too long.
        session_id: Makes the id of a new session.
        cancel_on_disconnect: Which calls end when their connection does: `streaming` ones, `never`, `always`.
        single_stream: Whether a second GET stream is refused while one is open.
        reply_on_cancel: Whether the caller of a cancelled call is answered.
        json_only: Whether every answer is plain JSON; then there are no GET streams.
    """

    versions: tuple[str, ...] = LEGACY
    sessions: Literal["auto", "off"] = "auto"
    handshake: Literal["lenient", "strict"] = "lenient"
    session_ttl: float = 300.0
    request_timeout: float = 60.0
    session_id: Callable[[], str] = make_session_id
    cancel_on_disconnect: Literal["streaming", "never", "always"] = "streaming"
    single_stream: bool = False
    reply_on_cancel: bool = False
    json_only: bool = False

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise RegistrationError(f"{name} is one of {', '.join(map(repr, allowed))}, not {getattr(self, name)!r}.")
        for name in ("session_ttl", "request_timeout"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not value > 0:
                raise RegistrationError(f"{name} must be more than 0 seconds, not {value!r}.")
        if not callable(self.session_id):
            raise RegistrationError(f"session_id must be a function that makes an id, not {self.session_id!r}.")


_CHOICES = {
    "sessions": ("auto", "off"),
    "handshake": ("lenient", "strict"),
    "cancel_on_disconnect": ("streaming", "never", "always"),
}

"""What a server tells its sessions without having been asked: to a topic, to one session, or into one session's log.

A push travels over the Bus, so that it reaches a session whichever process holds it; who publishes waits for nobody.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from callboard.stores.base import Bus
from callboard.wire.jsonrpc import encode, encode_notification
from callboard.wire.versions import LOG_LEVELS

__all__ = ["PUSHES", "Push", "decode_push", "push_log", "push_to_session", "push_to_topic"]

PUSHES = "callboard.pushes"
"""The Bus topic that pushes travel on."""

_log = logging.getLogger("callboard")
_UPDATED = "notifications/resources/updated"


class Push(msgspec.Struct, omit_defaults=True):
    """What travels on the Bus.

    Attributes:
        note: The whole JSON-RPC notification, encoded.
        session: The session that it is for; None for all that hear `topic`.
        topic: The topic; None for one session.
        level: Severity of a log message: sessions that want less leave it out. None for anything else.
        key: A later push of the same key makes an earlier one that waits superfluous; empty for none.
    """

    note: msgspec.Raw
    session: str | None = None
    topic: str | None = None
    level: str | None = None
    key: str = ""


decode_push = msgspec.json.Decoder(Push).decode


def push_to_topic(bus: Bus, topic: str, notification: Any) -> None:
    """Tell all sessions that hear a topic; from any thread.

    Args:
        bus: What carries it.
        topic: The topic.
        notification: A `types` notification, or `{"method": ..., "params": ...}`.

    Raises:
        TypeError: An argument is none of that. What merely can't be encoded is logged and dropped.
    """
    method, params = _read_notification("broadcast", notification)
    _publish(bus, _check_str("broadcast", "topic", topic), method, params, topic=topic)


def push_to_session(bus: Bus, session_id: str, notification: Any) -> None:
    """Tell one session; from any thread. Without effect when there is none of that id.

    Args:
        bus: What carries it.
        session_id: The session.
        notification: A `types` notification, or `{"method": ..., "params": ...}`.

    Raises:
        TypeError: An argument is none of that. What merely can't be encoded is logged and dropped.
    """
    method, params = _read_notification("notify", notification)
    _publish(bus, _check_str("notify", "session_id", session_id), method, params, session=session_id)


def push_log(bus: Bus, session_id: str, level: str, data: Any, logger: str | None = None) -> None:
    """Write into the log of one session; from any thread.

    Args:
        bus: What carries it.
        session_id: The session.
        level: One of `LOG_LEVELS`.
        data: Any JSON value.
        logger: Name of the part that speaks.

    Raises:
        ValueError: `level` is none of these.
    """
    if level not in LOG_LEVELS:
        raise ValueError(f"server.log: unknown level {level!r}; use one of {', '.join(LOG_LEVELS)}.")
    params = {"level": level, "data": data} if logger is None else {"level": level, "logger": logger, "data": data}
    _publish(bus, _check_str("log", "session_id", session_id), "notifications/message", params, session=session_id, level=level)


def _read_notification(where: str, notification: Any) -> tuple[str, Any]:
    """Method and parameters, None for none."""
    method: Any = None
    params: Any = None
    if isinstance(notification, msgspec.Struct):
        config = notification.__struct_config__
        method = config.tag if config.tag_field == "method" else getattr(notification, "method", None)
        params = getattr(notification, "params", None)
    elif isinstance(notification, Mapping):
        method, params = notification.get("method"), notification.get("params")
    if not isinstance(method, str) or not method:
        raise TypeError(
            f"server.{where} takes a notification of callboard.types, or {{'method': ..., 'params': ...}}, not {type(notification).__name__}"
            f"{' without a method' if isinstance(notification, Mapping) else ''}."
        )
    params = dict(params) if isinstance(params, Mapping) else None if params is UNSET else params
    if not isinstance(params, dict | msgspec.Struct | None):
        raise TypeError(f"server.{where}: params of {method} must be a mapping, not {type(params).__name__}.")
    return method, params


def _check_str(where: str, name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"server.{where}: {name} is a str, not {type(value).__name__}.")
    return value


def _publish(bus: Bus, target: str, method: str, params: Any, **address: str) -> None:
    try:
        message = encode(Push(msgspec.Raw(encode_notification(method, params)), key=_key(method, params), **address))
    except (TypeError, ValueError, RecursionError):
        # The id of a session is as good as a password.
        to = repr(target) if "topic" in address else "a session"
        _log.exception("A push of %.100r to %s can't be encoded and is dropped.", method, to)
        return
    bus.publish(PUSHES, message)


def _key(method: str, params: Any) -> str:
    """What a later push replaces: of changes only the last one matters."""
    if method == _UPDATED:
        uri = params.get("uri") if isinstance(params, dict) else getattr(params, "uri", None)
        return uri if isinstance(uri, str) else ""
    return method if method.endswith("/list_changed") else ""

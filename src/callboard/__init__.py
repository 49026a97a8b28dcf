"""Callboard: MCP servers and clients for Python."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from callboard.core.era import Request
from callboard.core.outcome import CacheHint, NeedInput, Outcome, Reply
from callboard.errors import CallboardError, Fail, NotFound, Reason, RegistrationError, ToolError
from callboard.server.app import Server
from callboard.server.context import Context
from callboard.server.depends import Depends
from callboard.server.dispatch import dispatch
from callboard.server.middleware import Layer, Service
from callboard.server.mount import Caller
from callboard.server.state import Hello
from callboard.types import audio, embed, image, link, text

if TYPE_CHECKING:
    from callboard.client.client import Client
    from callboard.compose import asgi, stdio
    from callboard.handling.handler import Handler
    from callboard.serving import run

__all__ = [
    "CacheHint",
    "CallboardError",
    "Caller",
    "Client",
    "Context",
    "Depends",
    "Fail",
    "Handler",
    "Hello",
    "Layer",
    "NeedInput",
    "NotFound",
    "Outcome",
    "Reason",
    "RegistrationError",
    "Reply",
    "Request",
    "Server",
    "Service",
    "ToolError",
    "asgi",
    "audio",
    "dispatch",
    "embed",
    "image",
    "link",
    "run",
    "stdio",
    "text",
]

__version__ = "0.1.0"

# Loaded when first asked for: a server does not pay for the client, nor a client for the transports.
_LAZY = {
    "Client": "callboard.client.client",
    "Handler": "callboard.handling.handler",
    "asgi": "callboard.compose",
    "run": "callboard.serving",
    "stdio": "callboard.compose",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})

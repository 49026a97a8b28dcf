"""Handler mode under one roof: the class, what its callbacks are given, and what they can return.

What a callback returns is a result of its method:

    lists       all items, as types of `callboard.types` or mappings; or one page of them, `{"tools": [...], "nextCursor": ...}`
    call_tool   str, content blocks, a list of both, a `CallToolResult`, the result as a mapping (`content`, `structuredContent`), any
                other value as structured content, or None for no content
    read_resource   str, bytes, a list of contents, the result as a mapping (`contents`), or None when there is no such resource
    get_prompt  str, content blocks, messages, a list of them, or the result as a mapping (`messages`)
    complete    a list of str, or `{"values": [...], "total": ..., "hasMore": ...}`

A mapping is what goes over the wire. Its keys are the protocol's (`inputSchema`) or the attribute names of the type (`input_schema`).
"""

from callboard.core.outcome import Accepted, Deferred, NeedInput, Reply
from callboard.handling.channel import MAX_MAILBOX, Channel, Crashed, Finished, Notification, Published, Stop, Stream
from callboard.handling.handler import Handler, HandlerSession, handle_method
from callboard.server.state import Hello

__all__ = [
    "MAX_MAILBOX",
    "Accepted",
    "Channel",
    "Crashed",
    "Deferred",
    "Finished",
    "Handler",
    "HandlerSession",
    "Hello",
    "NeedInput",
    "Notification",
    "Published",
    "Reply",
    "Stop",
    "Stream",
    "handle_method",
]

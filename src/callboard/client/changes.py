"""What may change on a server, as it tells of it: of the session as a whole (2025), or on a stream that asked for it (2026-07-28)."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from callboard.client.answer import without_nulls
from callboard.wire import v2026_07_28 as v
from callboard.wire.jsonrpc import RawNotification, encode

__all__ = ["ACKNOWLEDGED", "CHANGES", "FLAGS", "Change", "grant", "is_wanted", "list_of", "missed", "note_of", "read_change", "restate"]

Change: TypeAlias = (
    v.ToolListChangedNotification | v.PromptListChangedNotification | v.ResourceListChangedNotification | v.ResourceUpdatedNotification
)
"""A list has changed, or a resource: `params.uri` of the last kind names it."""

FLAGS = {
    "tools_list_changed": "notifications/tools/list_changed",
    "prompts_list_changed": "notifications/prompts/list_changed",
    "resources_list_changed": "notifications/resources/list_changed",
}
"""Field of a subscription's filter -> what it asks for."""
_UPDATED = "notifications/resources/updated"
CHANGES = frozenset({*FLAGS.values(), _UPDATED})
"""Methods of the notifications that tell of a change."""
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
"""What a subscription begins with (SB-03)."""

# What ends a URI of which another one is a part.
_ENDS = "/?#"

_decode = msgspec.json.Decoder(Change).decode


def read_change(note: RawNotification) -> Change:
    """Read a notification whose method is one of `CHANGES`.

    Raises:
        msgspec.DecodeError: It does not fit the protocol.
    """
    # Only the envelope's two keys: the tag picks the type.
    envelope = encode({"method": note.method, "params": note.params or {}})
    change: Change
    try:
        change = _decode(envelope)
    except msgspec.ValidationError:
        change = msgspec.convert(without_nulls(msgspec.json.decode(envelope)), Change)
    return change


def note_of(method: str, params: Any) -> RawNotification:
    """Make a notification, as if it had come."""
    return RawNotification(method, msgspec.Raw(encode(params)))


def missed(granted: v.SubscriptionFilter) -> list[RawNotification]:
    """What may have happened while a stream was broken: it is not told again (SB-10)."""
    notes = [note_of(method, {}) for flag, method in FLAGS.items() if getattr(granted, flag)]
    return notes + [note_of(_UPDATED, {"uri": uri}) for uri in granted.resource_subscriptions or ()]


def restate(granted: v.SubscriptionFilter) -> list[Change]:
    """The same, as changes."""
    return [read_change(note) for note in missed(granted)]


def list_of(change: Change) -> str | None:
    """The list that has changed: `tools`, `prompts` or `resources`; None when it is one resource."""
    match change:
        case v.ToolListChangedNotification():
            return "tools"
        case v.PromptListChangedNotification():
            return "prompts"
        case v.ResourceListChangedNotification():
            return "resources"
        case _:
            return None


def grant(wanted: v.SubscriptionFilter, offers: v.ServerCapabilities) -> v.SubscriptionFilter:
    """What a session's server tells of, of what is wanted, by what it has declared (SB-15)."""
    kinds = {"tools_list_changed": offers.tools, "prompts_list_changed": offers.prompts, "resources_list_changed": offers.resources}
    granted = v.SubscriptionFilter()
    for flag in FLAGS:
        if getattr(wanted, flag) and getattr(kinds[flag] or None, "list_changed", False):
            setattr(granted, flag, True)
    if wanted.resource_subscriptions and getattr(offers.resources or None, "subscribe", False):
        granted.resource_subscriptions = wanted.resource_subscriptions
    return granted


def is_wanted(note: RawNotification, wanted: v.SubscriptionFilter) -> bool:
    """Whether a subscription asked for this; SB-11: an update may name a part of the resource."""
    flag = next((flag for flag, method in FLAGS.items() if method == note.method), None)
    if flag is not None:
        return bool(getattr(wanted, flag))
    change = read_change(note)
    if not isinstance(change, v.ResourceUpdatedNotification):
        return False
    uri = change.params.uri
    return any(
        uri == asked or (uri.startswith(asked) and (asked[-1:] in _ENDS or uri[len(asked)] in _ENDS))
        for asked in wanted.resource_subscriptions or ()
    )

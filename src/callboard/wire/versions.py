"""Protocol versions as data: which there are, which methods exist in which, what else differs.

Absence of a version from a method's row is how the method does not exist there (DP-05). Nothing here decides anything.
"""

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from msgspec import Struct

__all__ = [
    "CLIENT_NOTIFICATIONS",
    "CLIENT_REQUESTS",
    "ERAS",
    "FEATURES",
    "LATEST",
    "LEGACY",
    "LOG_LEVELS",
    "META_CLIENT_CAPABILITIES",
    "META_CLIENT_INFO",
    "META_LOG_LEVEL",
    "META_PROGRESS_TOKEN",
    "META_PROTOCOL_VERSION",
    "META_SERVER_INFO",
    "META_SUBSCRIPTION_ID",
    "META_TRACE",
    "MODERN",
    "SERVER_NOTIFICATIONS",
    "SERVER_REQUESTS",
    "Era",
    "Features",
]

Era: TypeAlias = Literal["modern", "legacy"]
"""`modern`: every request carries its own envelope. `legacy`: `initialize` opens a session (VN-08)."""

LATEST: Final = "2026-07-28"
MODERN: Final[tuple[str, ...]] = (LATEST,)
"""Versions that a request names in `_meta`, newest first."""
LEGACY: Final[tuple[str, ...]] = ("2025-11-25", "2025-06-18", "2025-03-26")
"""Versions that `initialize` negotiates, newest first."""

ERAS: Final[Mapping[str, Era]] = {**dict.fromkeys(MODERN, "modern"), **dict.fromkeys(LEGACY, "legacy")}
"""Version -> era; a string that is no key is no version we speak."""

META_PROTOCOL_VERSION: Final = "io.modelcontextprotocol/protocolVersion"
META_CLIENT_CAPABILITIES: Final = "io.modelcontextprotocol/clientCapabilities"
META_CLIENT_INFO: Final = "io.modelcontextprotocol/clientInfo"
META_LOG_LEVEL: Final = "io.modelcontextprotocol/logLevel"
META_SERVER_INFO: Final = "io.modelcontextprotocol/serverInfo"
META_SUBSCRIPTION_ID: Final = "io.modelcontextprotocol/subscriptionId"
META_PROGRESS_TOKEN: Final = "progressToken"  # noqa: S105 - the key, not a secret
META_TRACE: Final = ("traceparent", "tracestate", "baggage")
"""Reserved without a prefix; W3C Trace Context and Baggage say what they hold (MT-11)."""

LOG_LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""From the least to the most severe; a client that names one gets it and all that follow (LG-01, LG-03)."""

_ALL: Final = frozenset(ERAS)
_MODERN: Final = frozenset(MODERN)
_LEGACY: Final = frozenset(LEGACY)
_SINCE_06: Final = _LEGACY - {"2025-03-26"}
_ONLY_11: Final = frozenset({"2025-11-25"})

CLIENT_REQUESTS: Final[Mapping[str, frozenset[str]]] = {
    "completion/complete": _ALL,
    "initialize": _LEGACY,
    "logging/setLevel": _LEGACY,
    "ping": _LEGACY,
    "prompts/get": _ALL,
    "prompts/list": _ALL,
    "resources/list": _ALL,
    "resources/read": _ALL,
    "resources/subscribe": _LEGACY,
    "resources/templates/list": _ALL,
    "resources/unsubscribe": _LEGACY,
    "server/discover": _MODERN,
    "subscriptions/listen": _MODERN,
    "tasks/cancel": _ONLY_11,
    "tasks/get": _ONLY_11,
    "tasks/list": _ONLY_11,
    "tasks/result": _ONLY_11,
    "tools/call": _ALL,
    "tools/list": _ALL,
}
"""Request of a client -> versions that have it. Methods of extensions are not here: an extension brings its own."""

CLIENT_NOTIFICATIONS: Final[Mapping[str, frozenset[str]]] = {
    "notifications/cancelled": _ALL,
    "notifications/initialized": _LEGACY,
    "notifications/progress": _LEGACY,
    "notifications/roots/list_changed": _LEGACY,
    "notifications/tasks/status": _ONLY_11,
}
"""Notification of a client -> versions that have it. The current version has the one, and on stdio only (CN-01, HM-22)."""

SERVER_REQUESTS: Final[Mapping[str, frozenset[str]]] = {
    "elicitation/create": _SINCE_06,
    "ping": _LEGACY,
    "roots/list": _LEGACY,
    "sampling/createMessage": _LEGACY,
    "tasks/cancel": _ONLY_11,
    "tasks/get": _ONLY_11,
    "tasks/list": _ONLY_11,
    "tasks/result": _ONLY_11,
}
"""Request of a server -> versions that have it. The current version has none (JR-05): what a server asks travels in `inputRequests`."""

SERVER_NOTIFICATIONS: Final[Mapping[str, frozenset[str]]] = {
    "notifications/cancelled": _ALL,
    "notifications/elicitation/complete": _ONLY_11,
    "notifications/message": _ALL,
    "notifications/progress": _ALL,
    "notifications/prompts/list_changed": _ALL,
    "notifications/resources/list_changed": _ALL,
    "notifications/resources/updated": _ALL,
    "notifications/subscriptions/acknowledged": _MODERN,
    "notifications/tasks/status": _ONLY_11,
    "notifications/tools/list_changed": _ALL,
}
"""Notification of a server -> versions that have it."""


class Features(Struct, frozen=True, kw_only=True):
    """What a version can carry, besides its methods.

    Attributes:
        batching: A body may be an array of messages (JR-18, JR-20).
        structured_content: What a tool's `structuredContent` may be: absent altogether, an object, or any JSON value (TL-07, TL-09).
        titles: Components have `title`, and they and content blocks `_meta` (TL-04, TL-18, MT-20).
        resource_links: Content may be a `resource_link` (TL-18).
        icons: Implementations and components have `icons` (IC-01).
        elicitation: Modes in which a server may ask the user; empty where it can't (EL-01, EL-02).
        elicitation_lists: An answer's value may be a list of strings, and a choice may carry titles (EL-05, EL-07).
        sampling_tools: A sampling request may offer tools (SM-02).
        completion_context: `completion/complete` carries the arguments resolved so far (CP-02).
        version_header: HTTP requests name the version in `MCP-Protocol-Version` (HH-01, VN-22).
        priming: An event stream opens with an empty event that has an id, and may set `retry` (HL-08, HL-09).
        tasks: Tasks belong to the core protocol and clients ask for them (TK-01); the current version has an extension instead.
        error_without_id: An error whose request could not be read has no `id`; elsewhere it must have one (JR-09).
    """

    batching: bool = False
    structured_content: Literal["none", "object", "any"] = "none"
    titles: bool = True
    resource_links: bool = True
    icons: bool = False
    elicitation: tuple[Literal["form", "url"], ...] = ()
    elicitation_lists: bool = False
    sampling_tools: bool = False
    completion_context: bool = True
    version_header: bool = True
    priming: bool = False
    tasks: bool = False
    error_without_id: bool = False


FEATURES: Final[Mapping[str, Features]] = {
    "2026-07-28": Features(
        structured_content="any",
        icons=True,
        elicitation=("form", "url"),
        elicitation_lists=True,
        sampling_tools=True,
        error_without_id=True,
    ),
    "2025-11-25": Features(
        structured_content="object",
        icons=True,
        elicitation=("form", "url"),
        elicitation_lists=True,
        sampling_tools=True,
        priming=True,
        tasks=True,
        error_without_id=True,
    ),
    "2025-06-18": Features(structured_content="object", elicitation=("form",)),
    "2025-03-26": Features(batching=True, titles=False, resource_links=False, completion_context=False, version_header=False),
}
"""Version -> what it can carry."""

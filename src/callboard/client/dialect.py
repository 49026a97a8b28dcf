"""How a request is put in each protocol version: what goes beside its params, and into its HTTP headers.

Requests are made in the words of the current version; that is what every caller here speaks. `Modern` adds the envelope that each request
carries, `Legacy` what a session of 2025 carries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import msgspec

from callboard.client.answer import read
from callboard.client.errors import InvalidAnswer, Origin
from callboard.core.headers import encode_value
from callboard.wire import v2026_07_28 as v
from callboard.wire import versions
from callboard.wire.jsonrpc import encode
from callboard.wire.methods import METHODS

__all__ = ["Dialect", "Initialized", "Legacy", "Modern", "read_initialized"]

_WITH_TASKS = frozenset(version for version, features in versions.FEATURES.items() if features.tasks)


class Dialect(Protocol):
    """How requests are put.

    Attributes:
        version: The protocol version.
        told: Over HTTP, whether a server is told that a request is given up (CN-01); elsewhere it always is.
        resumed: Whether a broken event stream is taken up again (HM-14, HL-19).
        session: Id of the session; None without one.
    """

    version: str
    told: bool
    resumed: bool
    session: str | None

    def wrap(self, params: Mapping[str, Any], token: int | None) -> Mapping[str, Any] | None:
        """Put the envelope around params; `token` asks for progress (PR-01)."""
        ...

    def headers(self, method: str, params: Mapping[str, Any]) -> dict[str, str]:
        """HTTP headers of a request.

        Raises:
            HeaderValueError: A value can't be written.
        """
        ...


class Modern:
    """2026-07-28: every request says all there is to know (MT-01..MT-03).

    Args:
        version: The version.
        capabilities: What the client can do.
        info: Who it is.
        log_level: The least severe message it wants; None for none.
    """

    told = False
    resumed = False
    session: str | None = None

    def __init__(self, version: str, capabilities: Any, info: v.Implementation, log_level: str | None) -> None:
        self.version = version
        self._meta: dict[str, Any] = {
            versions.META_PROTOCOL_VERSION: version,
            versions.META_CLIENT_CAPABILITIES: capabilities,
            versions.META_CLIENT_INFO: info,
        }
        self._written: msgspec.Raw | None = None
        self.ask_for_logs(log_level)

    def ask_for_logs(self, level: str | None) -> None:
        """From now on ask for messages of that level (MT-09); None for none."""
        self._meta.pop(versions.META_LOG_LEVEL, None)
        if level is not None:
            self._meta[versions.META_LOG_LEVEL] = level
        self._written = None

    def wrap(self, params: Mapping[str, Any], token: int | None) -> Mapping[str, Any]:
        """Put the envelope around params; where they add nothing to it, it is the same for all requests, and is written once."""
        given = params.get("_meta")
        if given or token is not None:
            meta = {**self._meta, **(given or {})}
            if token is not None:
                meta[versions.META_PROGRESS_TOKEN] = token
            return {**params, "_meta": meta}
        if self._written is None:
            self._written = msgspec.Raw(encode(self._meta))
        return {**params, "_meta": self._written}

    def headers(self, method: str, params: Mapping[str, Any]) -> dict[str, str]:
        """Say in headers what the body says (HH-01, HH-03, HH-04)."""
        headers = {"MCP-Protocol-Version": self.version, "Mcp-Method": encode_value(method)}
        row = METHODS.get(method)
        mirrored = row.mirrored if row is not None else "taskId" if method.startswith("tasks/") else ""  # HH-05, TX-18
        if mirrored:
            headers["Mcp-Name"] = encode_value(str(params.get(mirrored, "")))
        return headers


class Legacy:
    """2025, and 2024-11-05: `initialize` has said the most of it.

    Args:
        version: The version that was negotiated, or is offered.
        session: Id of the session over HTTP; None before there is one, and where there is none.
        settled: Whether the version has been negotiated: only then do requests name it (VN-22).
        tasks: Whether calls of tools may ask for a task (TK-02).
    """

    told = True
    resumed = True

    def __init__(self, version: str, session: str | None = None, *, settled: bool = True, tasks: bool = False) -> None:
        self.version = version
        self.session = session
        self.tasks = tasks
        self._headers = {"MCP-Protocol-Version": version} if settled else {}
        if session is not None:
            self._headers["Mcp-Session-Id"] = session  # HL-21

    def wrap(self, params: Mapping[str, Any], token: int | None) -> Mapping[str, Any] | None:
        """Leave out what is empty: there is no envelope."""
        if token is not None:
            return {**params, "_meta": {**(params.get("_meta") or {}), versions.META_PROGRESS_TOKEN: token}}
        return params or None

    def headers(self, method: str, params: Mapping[str, Any]) -> dict[str, str]:
        """Name the session and its version."""
        del method, params
        return self._headers


class _Initialized(msgspec.Struct, rename="camel"):
    """What `initialize` is answered with (LC-02)."""

    protocol_version: str
    capabilities: dict[str, Any]
    server_info: v.Implementation
    instructions: str | msgspec.UnsetType = msgspec.UNSET


class Initialized(NamedTuple):
    """The same, as the current protocol has it.

    Attributes:
        version: The version that the server chose.
        server: What the server is.
        tasks: Whether calls of tools may ask for a task (TK-01).
    """

    version: str
    server: v.DiscoverResult
    tasks: bool


def read_initialized(raw: msgspec.Raw, origin: Origin) -> Initialized:
    """Read the answer to `initialize`.

    Raises:
        InvalidAnswer: It does not fit the protocol.
    """
    opened: _Initialized = read(_Initialized, raw, origin)
    try:
        capabilities = msgspec.convert(opened.capabilities, v.ServerCapabilities)
    except msgspec.ValidationError as error:
        raise InvalidAnswer(f"the server's capabilities do not fit the protocol: {error}", origin) from error
    found = v.DiscoverResult(
        supported_versions=[opened.protocol_version],
        capabilities=capabilities,
        instructions=opened.instructions,
        meta={versions.META_SERVER_INFO: msgspec.to_builtins(opened.server_info)},
    )
    requests = opened.capabilities.get("tasks", {}).get("requests", {}) if isinstance(opened.capabilities.get("tasks"), dict) else {}
    tasks = opened.protocol_version in _WITH_TASKS and "call" in (requests.get("tools") or {})
    return Initialized(opened.protocol_version, found, tasks)

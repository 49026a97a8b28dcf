"""The table of versions against the protocol's schemas of each version, the published tables, and itself."""

from collections.abc import Mapping
from datetime import date
from typing import Any, get_args

import pytest
from mcp_types import methods
from oracles import definitions, shared_schema

from callboard.wire import v2026_07_28 as wire
from callboard.wire import versions
from callboard.wire.versions import CLIENT_NOTIFICATIONS, CLIENT_REQUESTS, ERAS, FEATURES, LOG_LEVELS, SERVER_NOTIFICATIONS, SERVER_REQUESTS

TABLES = {
    "ClientRequest": CLIENT_REQUESTS,
    "ClientNotification": CLIENT_NOTIFICATIONS,
    "ServerRequest": SERVER_REQUESTS,
    "ServerNotification": SERVER_NOTIFICATIONS,
}


def having(table: Mapping[str, frozenset[str]], version: str) -> set[str]:
    return {method for method, found in table.items() if version in found}


def union_methods(union: str, version: str) -> set[str]:
    """Methods of the members of one of the schema's unions; none where the version has no such union."""
    known = definitions(version)
    schema: dict[str, Any] = known.get(union, {"anyOf": []})
    members = [known[member["$ref"].rpartition("/")[2]] for member in schema["anyOf"]] if "anyOf" in schema else [schema]
    return {member["properties"]["method"]["const"] for member in members}


@shared_schema
@pytest.mark.parametrize("version", ERAS)
@pytest.mark.parametrize("union", TABLES)
def test_methods_are_the_schemas(union: str, version: str) -> None:
    assert having(TABLES[union], version) == union_methods(union, version)


@pytest.mark.parametrize("version", ERAS)
def test_methods_are_those_that_a_peer_knows(version: str) -> None:
    """The published tables judge all versions before 2026 by the schema of the last one, and leave core tasks out."""
    published = {method for method, known in methods.CLIENT_REQUESTS if known == version}
    assert {method for method in having(CLIENT_REQUESTS, version) if not method.startswith("tasks/")} == published


def test_removed_methods_are_gone() -> None:
    """VN-09, LC-10, RT-05, DP-05."""
    gone = {"initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"}
    assert not gone & having(CLIENT_REQUESTS, versions.LATEST)
    assert having(CLIENT_NOTIFICATIONS, versions.LATEST) == {"notifications/cancelled"}
    assert not having(SERVER_REQUESTS, versions.LATEST)  # JR-05


def test_every_version_is_of_one_era_and_has_features() -> None:
    """VN-01: dates, newest first."""
    assert list(ERAS) == [*versions.MODERN, *versions.LEGACY] == sorted(ERAS, reverse=True)
    assert list(FEATURES) == list(ERAS)
    assert versions.MODERN[0] == versions.LATEST
    assert [date.fromisoformat(version).isoformat() for version in ERAS] == list(ERAS)


def test_tables_name_known_versions_only() -> None:
    assert {version for table in TABLES.values() for found in table.values() for version in found} == set(ERAS)


def names(version: str, definition: str) -> set[str]:
    """Properties of a definition; none where the version lacks it."""
    return set(definitions(version).get(definition, {}).get("properties", {}))


@shared_schema
@pytest.mark.parametrize("version", ERAS)
def test_features_are_the_schemas(version: str) -> None:
    known, features = definitions(version), FEATURES[version]
    assert features.batching == ("JSONRPCBatchRequest" in known)
    assert features.titles == ("title" in names(version, "Tool")) == ("_meta" in names(version, "TextContent"))
    assert features.resource_links == ("ResourceLink" in known)
    assert features.icons == ("icons" in names(version, "Tool"))
    assert features.sampling_tools == ("tools" in names(version, "CreateMessageRequestParams"))
    assert features.tasks == ("Task" in known)
    assert ("url" in features.elicitation) == ("ElicitRequestURLParams" in known)
    assert bool(features.elicitation) == ("ElicitRequest" in known)
    assert features.elicitation_lists == ("array" in str(known.get("ElicitResult")))
    structured = known["CallToolResult"]["properties"].get("structuredContent")
    assert features.structured_content == ("none" if structured is None else structured.get("type", "any"))
    error = known["JSONRPCError" if "JSONRPCError" in known else "JSONRPCErrorResponse"]
    assert features.error_without_id == ("id" not in error["required"])
    assert features.completion_context == ("context" in str(known["CompleteRequest"]) + str(known.get("CompleteRequestParams")))


def test_keys_of_meta_are_those_of_the_wire_types() -> None:
    ours = {value for name, value in vars(versions).items() if name.startswith("META_") and isinstance(value, str)}
    assert ours == {name for name in wire.NAMES.values() if name.startswith("io.modelcontextprotocol/")} | {"progressToken"}


def test_levels_are_those_of_the_wire_type_in_order_of_severity() -> None:
    """LG-03: the order of RFC 5424."""
    assert set(LOG_LEVELS) == set(get_args(wire.LoggingLevel))
    assert LOG_LEVELS == ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")

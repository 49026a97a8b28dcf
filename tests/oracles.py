"""Judges that are not ours: the protocol's JSON Schemas, where they are at hand, and the published `mcp_types` models.

from oracles import mcp_types_validate, shared_schema, validate

@shared_schema
def test_tools_list_is_schema_valid() -> None:
    validate("ListToolsResult", {...})
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import mcp_types
import pytest
from mcp_types import methods
from pydantic import BaseModel, TypeAdapter

LATEST = "2026-07-28"
TASKS = "io.modelcontextprotocol/tasks"


def schema_dir() -> Path | None:
    """Folder of the protocol's JSON Schemas, `../shared/schema` beside the project; None when it isn't there."""
    folder = Path(__file__).resolve().parent.parent.parent / "shared" / "schema"
    return folder if folder.is_dir() else None


shared_schema = pytest.mark.skipif(
    schema_dir() is None,
    reason="the protocol's JSON Schemas are not at hand in ../shared/schema (CONTRIBUTING.md says where they come from)",
)
"""Marks a test that needs the JSON Schemas."""


@cache
def schema(version: str = LATEST) -> dict[str, Any]:
    """The JSON Schema document of a protocol version, or of an extension.

    Raises:
        pytest.skip.Exception: The schemas are not at hand.
    """
    folder = schema_dir()
    if folder is None:
        pytest.skip(shared_schema.kwargs["reason"])
    name = "ext-tasks" if version == TASKS else f"mcp-{version}"
    document: dict[str, Any] = json.loads((folder / f"{name}.schema.json").read_text("utf-8"))
    return document


def definitions(version: str = LATEST) -> dict[str, Any]:
    """Name -> schema of every definition of a protocol version."""
    document = schema(version)
    found: dict[str, Any] = document.get("$defs") or document["definitions"]
    return found


@cache
def validator(definition: str, version: str = LATEST) -> Any:
    """A compiled validator of one definition.

    Raises:
        KeyError: The version has no such definition.
    """
    document = schema(version)
    key = "$defs" if "$defs" in document else "definitions"
    if definition not in document[key]:
        raise KeyError(f"protocol {version} defines no {definition}")
    return jsonschema_rs.validator_for({**document, "$ref": f"#/{key}/{definition}"})


def faults(definition: str, instance: Any, version: str = LATEST) -> list[str]:
    """What the JSON Schema objects to, each with its place; empty if nothing."""
    return [
        f"${''.join(f'[{step!r}]' for step in error.instance_path)}: {error.message}"
        for error in validator(definition, version).iter_errors(instance)
    ]


def validate(definition: str, instance: Any, version: str = LATEST) -> None:
    """Demand that `instance` (plain JSON values) is valid by the JSON Schema's definition.

    Raises:
        AssertionError: It is not; the text lists every fault.
    """
    found = faults(definition, instance, version)
    assert not found, f"not a valid {definition} of {version}: " + "; ".join(found)


def mcp_types_validate(name: str, instance: Any) -> Any:
    """Parse `instance` (plain JSON values) with the published model of that name, such as `Tool` or `JSONRPCMessage`.

    Unions and aliases of `mcp_types` work as well as its models. Names are the wire's (camelCase), as a peer would read them.

    Raises:
        AttributeError: `mcp_types` has no such name.
        pydantic.ValidationError: The model refuses it.
    """
    kind = getattr(mcp_types, name)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind.model_validate(instance, by_name=False)
    return TypeAdapter(kind).validate_python(instance, by_name=False)


def mcp_types_request(method: str, params: dict[str, Any], version: str = LATEST) -> Any:
    """Parse a client's request as a peer's server would, by version.

    Raises:
        KeyError: The version has no such method.
        pydantic.ValidationError: The peer refuses the params.
    """
    return methods.parse_client_request(method, version, params)


def mcp_types_result(method: str, result: dict[str, Any], version: str = LATEST) -> Any:
    """Parse a server's result as a peer's client would, by method and version.

    Raises:
        KeyError: The version has no such method.
        pydantic.ValidationError: The peer refuses the result.
    """
    return methods.parse_server_result(method, version, result)


def mcp_types_notification(method: str, params: dict[str, Any] | None, version: str = LATEST) -> Any:
    """Parse a server's notification as a peer's client would, by version.

    Raises:
        KeyError: The version has no such notification.
        pydantic.ValidationError: The peer refuses the params.
    """
    return methods.parse_server_notification(method, version, params)

"""Tools that bring their own JSON Schema."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

import msgspec
import pytest
from one_parameter import faults

from callboard.errors import RegistrationError
from callboard.server import raw_schema
from callboard.server.raw_schema import RawArguments
from callboard.server.schema import ArgumentFaults, compile_raw_schema
from callboard.server.shape import ResultError, compile_result
from callboard.types import CallToolResult, text

RICH: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "x-custom": {"zeta": 1, "alpha": 2},
    "type": "object",
    "properties": {
        "count": {"$ref": "#number"},
        "alpha": {"$dynamicRef": "#text"},
        "either": {"oneOf": [{"type": "integer"}, {"minimum": 5}]},
    },
    "$defs": {"n": {"$anchor": "number", "type": "integer"}, "t": {"$dynamicAnchor": "text", "type": "string", "format": "date"}},
    "if": {"required": ["count"]},
    "then": {"required": ["alpha"]},
    "dependentRequired": {"alpha": ["count"]},
    "propertyNames": {"maxLength": 6},
    "unevaluatedProperties": False,
}


def test_the_schema_is_advertised_unaltered() -> None:
    """JS-01, TL-06."""
    for given in (RICH, json.dumps(RICH).encode()):
        assert json.dumps(compile_raw_schema(given).input_schema) == json.dumps(RICH)


def test_later_changes_to_the_dict_change_nothing() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
    arguments = compile_raw_schema(schema)
    schema["properties"]["a"]["type"] = "string"
    assert arguments.input_schema["properties"]["a"] == {"type": "integer"}
    assert arguments.bind(b'{"a":1}') == {"a": 1}


@pytest.mark.parametrize("raw", [b'{"count":5.0,"alpha":"x"}', b'{"either":7.5}', b'{"either":"free"}', b"{}"])
def test_arguments_are_given_as_they_are(raw: bytes) -> None:
    assert repr(compile_raw_schema(RICH).bind(msgspec.Raw(raw))) == repr(json.loads(raw))
    assert compile_raw_schema(RICH).bind(None) == {}


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b'{"count":"1","alpha":2}', [("count", "must be an integer"), ("alpha", "must be a date like 2026-01-31")]),
        (b'{"count":1}', [("alpha", "required, missing")]),
        (b'{"alpha":"x"}', [("count", "required, missing")]),
        (b'{"either":7}', [("either", "must fit exactly one of the alternatives: an integer or a value of at least 5")]),
        (b'{"extra":1}', [("extra", "unknown argument; there are: count, alpha, either")]),
        (b"5", [("", "must be an object")]),
        (b"null", [("", "must be an object")]),
        (b'{"count":"\\ud800"}', [("count", "must be Unicode text; it holds half of a surrogate pair")]),
        (b'{"count":1e400}', [("count", "must be a finite number within the range of a 64-bit float")]),
        (b"{", [("", "must be JSON in UTF-8, with integers of at most 4,300 digits")]),
        (b'{"either":' + b"[" * 100_000 + b"]" * 100_000 + b"}", [("", "nested too deeply")]),
    ],
)
def test_faults(raw: bytes, expected: list[tuple[str, str]]) -> None:
    """TL-13, TL-20."""
    assert faults(compile_raw_schema(RICH), raw) == expected


def test_of_big_arguments_the_first_fault_of_each_alone_is_told() -> None:
    """M23: and the text doesn't say that it is all."""
    arguments = compile_raw_schema({"type": "object", "additionalProperties": {"items": {"type": "integer"}}})
    wrong = {"a": ["x", "x"], "b": ["x"]}
    assert [path for path, _ in faults(arguments, json.dumps(wrong).encode())] == ["a[0]", "a[1]", "b[0]"]
    with pytest.raises(ArgumentFaults, match=r"^Arguments are wrong:") as caught:
        arguments.bind(json.dumps(wrong).ljust(raw_schema.MAX_LISTED + 1).encode())
    assert [fault.path for fault in caught.value.faults] == ["a[0]", "b[0]"]
    assert str(caught.value).endswith("- and there may be more")


@pytest.mark.parametrize(
    "dialect",
    [
        "https://json-schema.org/draft/2020-12/schema",
        "https://json-schema.org/draft/2019-09/schema",
        "http://json-schema.org/draft-07/schema#",
        "http://json-schema.org/draft-06/schema#",
        "http://json-schema.org/draft-04/schema#",
    ],
)
def test_dialects(dialect: str) -> None:
    """JS-01: `items` as a list means one thing up to 2019-09 and is no schema in 2020-12."""
    schema = {"$schema": dialect, "type": "object", "properties": {"a": {"items": [{"type": "integer"}]}}}
    if "2020-12" in dialect:
        with pytest.raises(RegistrationError, match="can't be used"):
            compile_raw_schema(schema)
    else:
        assert faults(compile_raw_schema(schema), b'{"a":["x"]}') == [("a[0]", "must be an integer")]


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def doubling(steps: int, times: int) -> dict[str, Any]:
    defs: dict[str, Any] = {"a0": {}}
    for step in range(1, steps + 1):
        defs[f"a{step}"] = {"allOf": [{"$ref": f"#/$defs/a{step - 1}"}] * times}
    return {"type": "object", "properties": {"x": {"$ref": f"#/$defs/a{steps}"}}, "$defs": defs}


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "array"}, r'must have "type": "object" at its root; arguments are an object'),
        ({}, r'must have "type": "object" at its root'),
        (5, "must be an object, not int"),
        (b'{"type":', "is no JSON"),
        ({"type": "object", "x": object()}, "is no JSON"),
        ({"type": "object", "x": "\ud800"}, "is no JSON"),
        ({"type": "object", "properties": 5}, 'can\'t be used: 5 is not of type "object"'),
        ({"type": "object", "properties": {"a": {"type": "objekt"}}}, "can't be used"),
        ({"type": "object", "properties": {"a": {"pattern": "("}}}, "can't be used"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}}, "can't be used: Pointer '/\\$defs/none' does not exist"),
        (
            {"type": "object", "$schema": "http://json-schema.org/draft-03/schema#"},
            "dialect 'http://json-schema.org/draft-03/schema#'; known are",
        ),
        ({"type": "object", "$schema": 5}, "dialect 5; known are"),
        (nested(65), r"nests 65 deep; 64 is the limit \(raw_schema.MAX_DEPTH\)"),
        ({"type": "object", "description": "x" * raw_schema.MAX_BYTES}, r"bytes; 1048576 are the limit \(raw_schema.MAX_BYTES\)"),
        (doubling(40, 2), r"more than 10000 subschemas to one value \(raw_schema.MAX_SUBSCHEMAS\)"),
        (doubling(3000, 1), r"raw_schema.MAX_SUBSCHEMAS"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_schemas_that_cannot_be_used_are_refused_at_registration(schema: Any, text: str) -> None:
    """JS-01, JS-02, JS-05, TL-05."""
    with pytest.raises(RegistrationError, match=f"pack\\(\\) at x.py:1: the input schema.*{text}"):
        compile_raw_schema(schema, label="pack() at x.py:1")


def test_the_limits_are_reachable() -> None:
    for schema in (nested(64), doubling(10, 2), {"type": "object", "allOf": [True]}, {"type": "object", "description": "x" * 1_000_000}):
        assert compile_raw_schema(schema).bind(b"{}") == {}


@pytest.mark.parametrize(
    ("keyword", "place"),
    [("$ref", "root"), ("$ref", "property"), ("$ref", "unused definition"), ("$dynamicRef", "root"), ("$dynamicRef", "property")],
)
def test_other_documents_are_never_fetched(keyword: str, place: str) -> None:
    """SA34, JS-03, JS-04."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        for reference in (
            f"http://127.0.0.1:{listener.getsockname()[1]}/day",
            "http://169.254.169.254/x",
            "file:///etc/passwd",
            "other.json",
        ):
            outside = {keyword: reference}
            schemas: dict[str, dict[str, Any]] = {
                "root": {"type": "object", **outside},
                "property": {"type": "object", "properties": {"a": outside}},
                "unused definition": {"type": "object", "$defs": {"a": outside}},
            }
            with pytest.raises(RegistrationError) as caught:
                compile_raw_schema(schemas[place])
            assert reference in str(caught.value)
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_references_within_the_document_need_no_fetching() -> None:
    schema = {
        "$id": "https://example.com/root",
        "type": "object",
        "properties": {"a": {"$ref": "day"}, "b": {"$ref": "#/$defs/d"}},
        "$defs": {"d": {"$id": "day", "type": "integer"}},
        "default": {"$ref": "http://127.0.0.1/data-not-a-reference"},
    }
    assert faults(compile_raw_schema(schema), b'{"a":"x","b":"x"}') == [("a", "must be an integer"), ("b", "must be an integer")]


# results


def test_results_are_held_to_the_output_schema() -> None:
    """TL-06, TL-08."""
    schema = {"type": "array", "items": {"type": "integer", "maximum": 5}}
    shape = compile_result(str, raw_output_schema=schema)
    assert shape.output_schema == schema
    content, structured, _ = shape.shape([1, 2])
    assert (content, bytes(structured or b"")) == ([text("[1,2]")], b"[1,2]")
    with pytest.raises(
        ResultError, match=r"does not fit its type: \[1\]: must be an integer of at most 5; \[2\]: must be an integer of at most 5"
    ):
        shape.shape([1, 99, "secret"])
    with pytest.raises(ResultError, match="needs structured_content"):
        shape.shape(CallToolResult(content=[text("x")]))
    with pytest.raises(RegistrationError, match="the function: the output schema"):
        compile_result(None, raw_output_schema={"type": "objekt"})


def test_many_values_meet_many_alternatives_only_so_often() -> None:
    # SA34, JS-05: linear in both is a minute where both are large
    schema = {"type": "object", "properties": {"a": {"items": {"anyOf": [{"const": number} for number in range(9_000)]}}, "b": {}}}
    arguments = RawArguments(schema, "tool")
    fine = json.dumps({"a": [8_999] * 100}).encode()
    assert len(arguments.bind(fine)["a"]) == 100
    text = json.dumps({"a": ["x"], "b": "," * 100})
    with pytest.raises(ArgumentFaults, match="a"):
        arguments.bind(text.encode())
    started = time.process_time()
    with pytest.raises(ArgumentFaults, match="fewer values"):
        arguments.bind(json.dumps({"a": ["z"] * 20_000}).encode())
    assert time.process_time() - started < 1


def test_few_alternatives_take_as_many_values_as_there_are() -> None:
    # JS-05: what tools have
    arguments = RawArguments({"type": "object", "properties": {"a": {"items": {"enum": [1, 2]}}}}, "tool")
    assert len(arguments.bind(json.dumps({"a": [1] * 99_000}).encode())["a"]) == 99_000

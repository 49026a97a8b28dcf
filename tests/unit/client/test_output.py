"""Results are held to what tools have said of them."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from callboard.client.errors import InvalidAnswer, Origin
from callboard.client.output import OutputSchemas
from callboard.client.result import ToolResult
from callboard.wire import v2026_07_28 as v

ORIGIN = Origin("weather", "tools/call", 3, "forecast")
ANY = {"type": "object"}


def tool(schema: Any = UNSET, name: str = "forecast") -> v.Tool:
    return v.Tool(name=name, input_schema=ANY, output_schema=schema)


def schemas(schema: Any, version: str = "2026-07-28") -> OutputSchemas:
    made = OutputSchemas()
    made.learn([tool(schema)], version)
    return made


def accept(known: OutputSchemas, structured: Any = UNSET, *, name: str = "forecast", is_error: bool = False) -> Any:
    return known.accept(name, ToolResult(content=[], structured_content=structured, is_error=is_error), ORIGIN).data


@pytest.mark.parametrize(
    ("schema", "structured", "told"),
    [
        ({"type": "object", "properties": {"days": {"type": "integer"}}}, {"days": "s3cret"}, "days: must be an integer"),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, ["a", "s3cret"], r"\[1\]: must be one of "),
        ({"type": "integer"}, None, "the value: must be an integer"),
        ({"required": ["a"]}, {}, "a: required, missing"),
        ({"additionalProperties": False}, {"a": "s3cret"}, "a: unknown"),
        ({"$ref": "#/$defs/D", "$defs": {"D": {"minLength": 99}}}, "s3cret", "the value: must be "),
        ({"items": {"type": "integer"}}, ["s3cret"] * 9, "and there may be more"),
        ({"pattern": "^(?!s)x"}, "s3cret", "the value: must be a value matching"),
    ],
)
def test_a_result_that_breaks_its_schema_is_told_of(schema: Any, structured: Any, told: str) -> None:
    # TL-08
    with pytest.raises(InvalidAnswer, match=told) as caught:
        accept(schemas(schema), structured)
    assert "s3cret" not in str(caught.value)
    assert str(caught.value).startswith("tools/call 'forecast' at weather: the structured content does not fit the tool's output schema: ")


def test_a_result_that_keeps_it_is_read_by_it() -> None:
    # TL-06, TL-09
    assert accept(schemas({"type": ["array", "null"]}), None) is None
    assert accept(schemas({"type": "array"}), [1]) == [1]
    assert accept(schemas({"type": "string", "contentEncoding": "base64"}), "aGk=") == b"hi"
    assert accept(schemas({"type": "string", "format": "date"}), "soon") == "soon", "formats are annotations"


def test_a_promise_that_is_not_kept() -> None:
    # TL-08
    for version in ("2026-07-28", "2025-11-25", "2025-06-18"):
        with pytest.raises(InvalidAnswer, match="promises structured content"):
            accept(schemas(ANY, version))
    for version in ("2025-03-26", "2024-11-05"):
        assert accept(schemas(ANY, version)) is None, "these know no structured content"
        assert accept(schemas(ANY, version), {"a": 1}) == {"a": 1}


def test_a_failure_is_held_to_nothing() -> None:
    """A23: what a tool says of its failure need not fit."""
    known = schemas({"type": "object", "required": ["days"]})
    assert accept(known, {"reason": "no such city"}, is_error=True) == {"reason": "no such city"}
    assert accept(known, is_error=True) is None


def test_what_nobody_listed_is_held_to_nothing() -> None:
    known = schemas(ANY)
    assert accept(known, [1], name="other") == [1]
    assert accept(known, name="other") is None
    assert known.knows("forecast")
    assert not known.knows("other")
    known.learn([tool(name="plain")], "2026-07-28")
    assert known.knows("plain")
    assert accept(known, [1], name="plain") == [1]


def test_a_schema_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    known = schemas({"type": "array"})
    accept(known, [1])
    compiled = known._schemas["forecast"]
    known.learn([tool({"type": "array"}), tool(name="other")], "2026-07-28", whole=True)
    assert known._schemas["forecast"] is compiled
    known.learn([tool({"type": "integer"})], "2026-07-28")
    with pytest.raises(InvalidAnswer):
        accept(known, [1])
    known.learn([tool()], "2026-07-28")
    assert accept(known, [1]) == [1], "it promises nothing any more"
    known.learn([], "2026-07-28", whole=True)
    assert not known.knows("forecast")


@pytest.mark.parametrize("place", ["$ref", "nested"])
def test_nothing_is_fetched(place: str) -> None:
    # JS-03, JS-04
    reference = {"$ref": "http://127.0.0.1:9/schema.json"}
    known = schemas(reference if place == "$ref" else {"properties": {"a": {"items": reference}}})
    for _ in range(2):
        with pytest.raises(InvalidAnswer, match=r"refers to 'http://127.0.0.1:9/schema.json', and nothing is ever fetched; .*request"):
            accept(known, {"a": [1]})
    assert accept(known, {"a": [1]}, is_error=True)


def test_a_document_inside_is_no_other_document() -> None:
    # JS-06
    known = schemas({"$ref": "urn:day", "$defs": {"d": {"$id": "urn:day", "type": "string"}}})
    assert accept(known, "a") == "a"
    with pytest.raises(InvalidAnswer, match="does not fit"):
        accept(known, 1)


def test_dialects() -> None:
    # JS-01
    old = {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "integer"}], "additionalItems": False}
    assert accept(schemas(old), [1]) == [1]
    with pytest.raises(InvalidAnswer, match="does not fit"):
        accept(schemas(old), [1, 2])
    for dialect in ("http://json-schema.org/draft-03/schema#", 7, {"a": 1}):
        with pytest.raises(InvalidAnswer, match=r"of the dialect .*, which is unknown here; .*request"):
            accept(schemas({"$schema": dialect}), [1])


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nothing"},
        {"pattern": "("},
        {"pattern": r"(\w{1000}){1000}"},
        {"$ref": "#/$defs/missing"},
        {"allOf": [{"allOf": [{}] * 110}] * 110},
        {"properties": {f"p{number}": {"not": {"format": "date"}} for number in range(30_000)}},
        {"description": "x" * 2_000_000},
    ],
)
def test_a_schema_that_cannot_be_used_is_warned_of_once(schema: Any, caplog: pytest.LogCaptureFixture) -> None:
    # JS-02, JS-05
    known = schemas(schema)
    with caplog.at_level(logging.WARNING, "callboard.client"):
        for _ in range(3):
            assert accept(known, [1]) == [1]
    assert len(caplog.records) == 1
    assert "Tool 'forecast': its results are not checked: its output schema" in caplog.text


def test_a_check_that_would_take_long_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    # JS-05
    inner = {"properties": {"c": {"$ref": "#/$defs/n"}}}
    known = schemas({"$ref": "#/$defs/n", "$defs": {"n": {"allOf": [inner, {**inner, "type": "object"}]}}})
    value: Any = {}
    for _ in range(60):
        value = {"c": value}
    started = time.process_time()
    with caplog.at_level(logging.WARNING, "callboard.client"):
        for _ in range(3):
            assert accept(known, value) == value
    assert time.process_time() - started < 2
    assert "not checked where that would take long" in caplog.text
    assert len(caplog.records) == 1
    with pytest.raises(InvalidAnswer, match="does not fit"):
        accept(known, {"c": 1})


def test_patterns_cannot_hold_a_client() -> None:
    # JS-05
    known = schemas({"items": {"pattern": r"(a|aa)+\1$"}})
    started = time.process_time()
    with pytest.raises(InvalidAnswer):
        accept(known, [f"{'a' * 60}!"] * 1000)
    assert accept(known, [f"{'a' * 60}!"] * 100_000), "so many are not checked"
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    "inner", [{"$ref": "#"}, {"anyOf": [{"allOf": [{"$ref": "#"}, {"type": "array"}]}, {"type": "null"}]}, {"not": {"not": {"$ref": "#"}}}]
)
def test_what_is_nested_deeply_is_answered(inner: Any) -> None:
    # JS-05: the validator would crash the process
    value: Any = []
    for _ in range(100_000):
        value = [value]
    known = schemas({"items": inner, "type": "array"})
    with pytest.raises(InvalidAnswer, match="nested too deeply to be checked"):
        accept(known, value)
    assert accept(schemas({"items": {"items": {"type": "array"}}}), value) is value, "the schema goes no deeper"
    for _ in range(99_900):
        value = value.pop()
    assert accept(known, value) is value
    with pytest.raises(InvalidAnswer, match="does not fit"):
        accept(known, [[[[1]]]])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "result"]), inner, max_size=3),
    max_leaves=8,
)
KEYWORDS = st.sampled_from(
    [
        "$schema",
        "$ref",
        "$defs",
        "type",
        "properties",
        "items",
        "anyOf",
        "allOf",
        "required",
        "pattern",
        "enum",
        "a",
        "result",
        "$id",
        "$anchor",
        "not",
    ]
)
WORDS = st.sampled_from(["object", "array", "#", "#/$defs/a", "#a", "(", "a", "http://example.com"])
SCHEMAS = st.recursive(
    st.booleans() | WORDS | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYWORDS, inner, max_size=4),
    max_leaves=15,
)


@settings(max_examples=120, deadline=None)
@given(st.dictionaries(KEYWORDS, SCHEMAS, max_size=5), JSON, st.sampled_from(["2026-07-28", "2025-11-25", "2025-03-26"]))
def test_a_result_or_an_error_by_name(schema: dict[str, Any], structured: Any, version: str) -> None:
    """JS-01, JS-02, JS-04: whatever a server calls its schema."""
    known = schemas(schema, version)
    for _ in range(2):
        try:
            data = accept(known, structured)
        except InvalidAnswer as error:
            assert str(error).startswith("tools/call 'forecast' at weather: the ")  # noqa: PT017 either will do
        else:
            assert data == structured or data == structured["result"]

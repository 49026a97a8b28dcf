"""What a tool answers, as Python values."""

from __future__ import annotations

import dataclasses
import datetime as dt
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from msgspec import UNSET

from callboard.client.errors import ClientError, InvalidAnswer, Origin
from callboard.client.output import OutputSchema
from callboard.client.result import ToolResult
from callboard.wire import v2026_07_28 as v

ORIGIN = Origin("weather", "tools/call", 3, "forecast")
decode = msgspec.json.Decoder(ToolResult).decode


def result(structured: Any = UNSET, schema: dict[str, Any] | None = None, *, version: str = "2026-07-28", **fields: Any) -> ToolResult:
    made = ToolResult(content=[], structured_content=structured, **fields)
    return made.bind(ORIGIN, None if schema is None else OutputSchema("forecast", schema, version))


def test_it_is_the_protocols_result() -> None:
    raw = b'{"content":[{"type":"text","text":"hi"}],"resultType":"complete","isError":false,"structuredContent":{"a":1}}'
    read = decode(raw)
    assert isinstance(read, v.CallToolResult)
    assert msgspec.json.encode(read) == raw
    assert read == decode(raw).bind(ORIGIN)
    assert read.structured == read.data == {"a": 1}


def test_a_server_reaches_only_the_protocols_fields() -> None:
    read = decode(b'{"content":[],"data":7,"_data":7,"_reading":7,"_origin":7,"__dict__":{"data":7},"structured":7,"text":7}')
    assert (read.data, read.structured, read.text) == (None, None, "")


def test_absent_and_null() -> None:
    # TL-09
    absent, null = decode(b'{"content":[]}'), decode(b'{"content":[],"structuredContent":null}')
    assert absent.structured is absent.data is null.structured is null.data is None
    assert absent.structured_content is UNSET
    assert null.structured_content is None
    assert null.decode(int | None) is None
    with pytest.raises(InvalidAnswer, match="no structured content to decode"):
        absent.decode(int | None)


def test_text_is_all_text() -> None:
    # TL-18
    blocks = b'[{"type":"text","text":"a"},{"type":"image","data":"aGk=","mimeType":"image/png"},{"type":"text","text":"b\\n"}]'
    assert decode(b'{"content":' + blocks + b"}").text == "a\nb\n"


def test_data_is_read_by_the_schema() -> None:
    # TL-08
    schema = {"type": "object", "properties": {"day": {"type": "string", "format": "date"}}}
    read = result({"day": "2026-01-31", "n": 1}, schema)
    assert read.data == {"day": dt.date(2026, 1, 31), "n": 1}
    assert read.structured == {"day": "2026-01-31", "n": 1}
    assert read.data is read.data
    assert result({"day": "2026-01-31"}).data == {"day": "2026-01-31"}, "without a schema it is JSON"


WRAPPER = {
    "type": "object",
    "properties": {"result": {"type": "array", "items": {"type": "string", "format": "date"}}},
    "required": ["result"],
}
DAYS = ["2026-01-31"]


@pytest.mark.parametrize(
    ("schema", "version", "unwrapped"),
    [
        ({**WRAPPER, "x-fastmcp-wrap-result": True}, "2026-07-28", True),
        (WRAPPER, "2026-07-28", False),
        ({**WRAPPER, "title": "forecastOutput"}, "2026-07-28", True),
        ({**WRAPPER, "title": "otherOutput"}, "2026-07-28", False),
        (WRAPPER, "2025-11-25", True),
        (WRAPPER, "2025-06-18", True),
        ({**WRAPPER, "required": []}, "2025-11-25", False),
        ({**WRAPPER, "properties": {**WRAPPER["properties"], "more": {}}}, "2025-11-25", False),  # type: ignore[dict-item]
        ({"type": "object"}, "2025-11-25", False),
    ],
)
def test_a_wrapper_is_taken_off(schema: dict[str, Any], version: str, unwrapped: bool) -> None:
    # TL-07
    read = result({"result": DAYS}, schema, version=version)
    assert read.structured == {"result": DAYS}
    assert isinstance(read.data, list) is unwrapped
    if unwrapped:
        assert read.data == [dt.date(2026, 1, 31)]
        assert read.decode(list[dt.date]) == [dt.date(2026, 1, 31)]
    else:
        assert read.data.keys() == {"result"}


def test_a_wrapper_is_taken_off_where_the_result_says_so() -> None:
    assert result({"result": 5}, meta={"fastmcp": {"wrap_result": True}}).data == 5
    assert result({"result": 5}, meta={"fastmcp": {"wrap_result": "yes"}}).data == {"result": 5}
    assert result({"result": 5}, meta={"fastmcp": 7}).data == {"result": 5}
    assert result({"result": 5, "more": 1}, meta={"fastmcp": {"wrap_result": True}}).data == {"result": 5, "more": 1}
    assert result([5], {**WRAPPER, "x-fastmcp-wrap-result": True}).data == [5]


def test_what_looks_like_a_wrapper_may_be_the_type() -> None:
    class Total(msgspec.Struct):
        result: list[str]

    assert result({"result": DAYS}, WRAPPER, version="2025-11-25").decode(Total) == Total(DAYS)


class Point(TypedDict):
    x: int


@dataclasses.dataclass
class Stay:
    day: dt.date
    tags: set[str] = dataclasses.field(default_factory=set)
    note: str = "none"


class Room(msgspec.Struct):
    key: UUID
    price: Decimal


class Deep(msgspec.Struct):
    next: Deep | None = None


class Level(Enum):
    LOW = "low"


class Model(pydantic.BaseModel):
    day: dt.date
    raw: int = 0


@pytest.mark.parametrize(
    ("kind", "structured", "value"),
    [
        (int, 5, 5),
        (list[int], [1, 2], [1, 2]),
        (float, 1, 1.0),
        (dict[int, str], {"1": "a"}, {1: "a"}),
        (bytes, "aGk=", b"hi"),
        (Point, {"x": 1}, {"x": 1}),
        (Stay, {"day": "2026-01-31", "tags": ["a"]}, Stay(dt.date(2026, 1, 31), {"a"})),
        (
            Room,
            {"key": "f81d4fae-7dec-11d0-a765-00a0c91e6bf6", "price": "1.10"},
            Room(UUID("f81d4fae-7dec-11d0-a765-00a0c91e6bf6"), Decimal("1.10")),
        ),
        (Level, "low", Level.LOW),
        (Model, {"day": "2026-01-31"}, Model(day=dt.date(2026, 1, 31))),
        (list[Model | None], [None, {"day": "2026-01-31"}], [None, Model(day=dt.date(2026, 1, 31))]),
        (Annotated[int, msgspec.Meta(ge=1, extra={"a": []})], 5, 5),
        (Any, {"a": 1}, {"a": 1}),
    ],
)
def test_a_type_of_yours(kind: Any, structured: Any, value: Any) -> None:
    assert result(structured).decode(kind) == value


def test_a_dataclass_has_its_defaults() -> None:
    assert vars(result({"day": "2026-01-31"}).decode(Stay)) == {"day": dt.date(2026, 1, 31), "tags": set(), "note": "none"}


class Cat(pydantic.BaseModel):
    kind: Annotated[str, pydantic.Field(pattern="cat")]


class Tagged(pydantic.BaseModel):
    kind: str = ""


@pytest.mark.parametrize(
    ("kind", "structured", "told"),
    [
        (int, "s3cret", "does not fit int: the value: expected `int`, got `str`"),
        (list[Point], [{"x": 1}, {"x": "s3cret"}], r"list\[.*Point\]: \[1\].x: expected `int`, got `str`"),
        (Level, "s3cret", "the value: expected one of the values that the schema lists"),
        (Model, {"day": "s3cret"}, "Model: day: input should be a valid date"),
        (list[Model], [{"day": "2026-01-31", "raw": "s3cret"}], r"\[0\].raw: input should be a valid integer"),
        (Cat, {"kind": "s3cret"}, "kind: string should match pattern"),
        (Stay, {}, "missing required field `day`"),
    ],
)
def test_what_does_not_fit_a_type_is_told_without_the_value(kind: Any, structured: Any, told: str) -> None:
    with pytest.raises(InvalidAnswer, match=told) as caught:
        result(structured).decode(kind)
    assert "s3cret" not in str(caught.value)
    assert str(caught.value).startswith("tools/call 'forecast' at weather: ")
    assert caught.value.__cause__ is None


def test_a_tag_that_is_unknown_is_not_repeated() -> None:
    class Dog(pydantic.BaseModel):
        kind: pydantic.JsonValue = None

    class Lion(pydantic.BaseModel):
        kind: str

    def tag(value: Any) -> str:
        return str(value["kind"])

    animal = Annotated[Annotated[Dog, pydantic.Tag("dog")] | Annotated[Lion, pydantic.Tag("lion")], pydantic.Discriminator(tag)]
    with pytest.raises(InvalidAnswer, match="must have a tag of 'dog', 'lion'") as caught:
        result({"kind": "s3cret"}).decode(animal)
    assert "s3cret" not in str(caught.value)


def test_a_type_that_cannot_be_read_is_the_callers_fault() -> None:
    with pytest.raises(TypeError):
        result(5).decode(7)


def test_a_failure_is_not_decoded() -> None:
    # A23
    schema = {"type": "object", "properties": {"day": {"type": "string", "format": "date"}}}
    failed = ToolResult(content=[v.TextContent(text="no such city")], structured_content={"result": "2026-01-31"}, is_error=True)
    failed.bind(ORIGIN, OutputSchema("forecast", {**schema, "x-fastmcp-wrap-result": True}, "2025-11-25"))
    assert failed.data == {"result": "2026-01-31"}
    with pytest.raises(ClientError, match="the tool failed, so there is nothing to decode: no such city"):
        failed.decode(int)


def test_what_is_nested_deeply_is_told_of() -> None:
    value: Any = None
    for _ in range(5000):
        value = {"next": value}
    with pytest.raises(InvalidAnswer, match="nested too deeply"):
        result(value).decode(Deep)
    assert result(value, {"properties": {"a": {"format": "date"}}}).data == value

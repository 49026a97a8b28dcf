"""From return values to results."""

from __future__ import annotations

import asyncio
import datetime as dt
import enum
import json
import traceback
import typing
import uuid
from collections import ChainMap, UserDict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, Optional, TypedDict, Union

import attrs
import jsonschema_rs
import msgspec
import pytest
from pydantic import BaseModel, Field, computed_field

from callboard import Client, Server
from callboard.core.outcome import Reply
from callboard.errors import Fail, RegistrationError, ToolError
from callboard.server.shape import ResultError, Shape, compile_result, encode_value
from callboard.server.signature import EMPTY
from callboard.types import AudioContent, CallToolResult, Content, ImageContent, TextContent, audio, embed, image, link, text


class Day(msgspec.Struct):
    name: str
    high: float | None = None


class Node(msgspec.Struct):
    value: float
    children: list[Node] = []


class Point(NamedTuple):
    x: int
    y: int


class Options(TypedDict, total=False):
    depth: int


@dataclass
class Span:
    start: dt.date
    end: dt.date | None = None


@attrs.define
class Pair:
    left: float


class Opaque:
    """It has no JSON form."""


class Later:
    def __await__(self) -> Iterator[None]:
        yield


class Rows:
    """What it gives one by one may be anything: the columns of a data frame."""

    def __iter__(self) -> Iterator[str]:
        raise NotImplementedError


class Temperature(float):
    """As `numpy.float64` is."""


class Count(int):
    """A number with a unit."""


class Name(str):
    __slots__ = ()


class Table:
    """As numpy's arrays and scalars are."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def tolist(self) -> Any:
        return self._values


class Stream:
    def __aiter__(self) -> AsyncIterator[int]:
        raise NotImplementedError


class Color(enum.StrEnum):
    RED = "red"


class Model(BaseModel):
    inner: float = Field(serialization_alias="outer")

    @computed_field
    def double(self) -> float:
        return 2 * self.inner


def sent(shape: Shape, value: Any) -> Any:
    """The structured content of a result, checked: it stands in the text too, and fits the advertised schema."""
    content, structured, _ = shape.shape(value)
    assert structured is not None
    assert content == [text(bytes(structured).decode())]
    result = json.loads(bytes(structured))
    if shape.output_schema is not None:
        jsonschema_rs.meta.validate(shape.output_schema)
        jsonschema_rs.validate(shape.output_schema, result)
    return result


BLOCKS: list[Content] = [text("a"), image(b"png", "image/png"), audio(b"wav", "audio/wav"), link("x:y", name="y"), embed("x:y", "z")]
CONTENT_KINDS: list[Any] = [
    TextContent,
    Content,
    list[Content],
    list[ImageContent | str],
    tuple[TextContent, AudioContent],
    Sequence[Content],
    Union[Content, str, None],  # noqa: UP007 the case
    Optional[list[TextContent]],  # noqa: UP045 the case
    TextContent | Day,
    Annotated[list[TextContent], "text"],
    CallToolResult,
    list,
    tuple,
    list[Any],
    typing.List,  # noqa: UP006 the case
    Annotated[list[Annotated[Content, []]], {}],
    Any,
    object,
    EMPTY,
]


@pytest.mark.parametrize("annotation", CONTENT_KINDS, ids=str)
def test_content_goes_as_it_is(annotation: Any) -> None:
    """TL-11."""
    shape = compile_result(annotation)
    assert shape.output_schema is None
    for block in BLOCKS:
        assert shape.shape(block) == ([block], None, None)
    assert shape.shape(BLOCKS) == (BLOCKS, None, None)
    assert shape.shape((BLOCKS[1], "plain", BLOCKS[0])) == ([BLOCKS[1], text("plain"), BLOCKS[0]], None, None)
    assert shape.shape("plain") == ([text("plain")], None, None)
    assert shape.shape(None) == ([], None, None)
    assert sent(shape, Day("a")) == {"name": "a", "high": None}
    assert sent(shape, ["a", "b"]) == ["a", "b"]
    assert sent(shape, []) == []
    with pytest.raises(ResultError, match="a list of content blocks has int in it"):
        shape.shape([BLOCKS[0], 5])
    with pytest.raises(ResultError, match=r"return image\(\), audio\(\) or embed\(\)"):
        shape.shape(b"raw")


@pytest.mark.parametrize("value", ["plain", "", '{"a":1}', "é\u2028😀", Color.RED])
@pytest.mark.parametrize("annotation", [str, str | None, Annotated[str, "text"]], ids=str)
def test_strings_are_text_alone(annotation: Any, value: str) -> None:
    shape = compile_result(annotation)
    assert shape.output_schema is None
    content, structured, _ = shape.shape(value)
    assert (content, structured, type(getattr(content[0], "text", None))) == ([text(str(value))], None, str)


def test_none_is_no_content() -> None:
    for annotation in (None, type(None)):
        shape = compile_result(annotation)
        assert (shape.output_schema, shape.shape(None)) == (None, ([], None, None))


STRUCTURED: list[tuple[Any, Any, Any]] = [
    (int, 5, 5),
    (bool, False, False),
    (float, 1, 1),
    (int | None, None, None),
    (str | int, "a", "a"),
    (Literal["a", "b"], "a", "a"),
    (Color, Color.RED, "red"),
    (list[str], ["a"], ["a"]),
    (list[int], (), []),
    (tuple[int, str], (1, "a"), [1, "a"]),
    (set[int], {1}, [1]),
    (frozenset[str], frozenset("a"), ["a"]),
    (dict[str, list[int]], {"a": [1]}, {"a": [1]}),
    (dict[int, str], {1: "a"}, {"1": "a"}),
    (dict, {"a": None}, {"a": None}),
    (Day, Day("a", 1.5), {"name": "a", "high": 1.5}),
    (Day, {"name": "a"}, {"name": "a"}),
    (list[Day], [Day("a")], [{"name": "a", "high": None}]),
    (Node, Node(1, [Node(2)]), {"value": 1, "children": [{"value": 2, "children": []}]}),
    (Day | None, None, None),
    (Span, Span(dt.date(2026, 1, 31)), {"start": "2026-01-31", "end": None}),
    (Point, Point(1, 2), [1, 2]),
    (Options, {"depth": 1}, {"depth": 1}),
    (Pair, Pair(1.5), {"left": 1.5}),
    (dt.datetime, dt.datetime(2026, 1, 31, 9, 30), "2026-01-31T09:30:00"),  # noqa: DTZ001 also naive ones are sent
    (dt.time, dt.time(9, 30), "09:30:00"),
    (dt.timedelta, dt.timedelta(days=-1, seconds=1.5), "-PT86398.5S"),
    (uuid.UUID, uuid.UUID(int=7), str(uuid.UUID(int=7))),
    (dict[str, dt.date | uuid.UUID], {"a": uuid.UUID(int=7)}, {"a": str(uuid.UUID(int=7))}),
    (Decimal, Decimal("1.50"), "1.50"),
    (dict[str, bytes], {"a": b"hi"}, {"a": "aGk="}),
    (Annotated[int, msgspec.Meta(ge=1)], 5, 5),
]


@pytest.mark.parametrize(("annotation", "value", "expected"), STRUCTURED, ids=[f"{row[0]} {row[1]}" for row in STRUCTURED])
def test_anything_else_is_structured_content_and_text(annotation: Any, value: Any, expected: Any) -> None:
    """TL-06, TL-08, TL-09, TL-10."""
    shape = compile_result(annotation)
    assert shape.output_schema is not None
    assert sent(shape, value) == expected


@pytest.mark.parametrize(("annotation", "value", "expected"), STRUCTURED, ids=[f"{row[0]} {row[1]}" for row in STRUCTURED])
def test_without_annotation_the_value_decides(annotation: Any, value: Any, expected: Any) -> None:
    shape = compile_result(EMPTY)
    assert shape.output_schema is None
    if value is None:
        assert shape.shape(value) == ([], None, None)
    elif isinstance(value, str):
        assert shape.shape(value) == ([text(value)], None, None)
    else:
        assert sent(shape, value) == expected


def test_a_recursive_root_is_an_object() -> None:
    """A22."""
    node = {
        "type": "object",
        "properties": {"value": {"type": "number"}, "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}, "default": []}},
        "required": ["value"],
    }
    assert compile_result(Node).output_schema == {**node, "$defs": {"Node": node}}
    assert compile_result(Day).output_schema == {
        "type": "object",
        "properties": {"name": {"type": "string"}, "high": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None}},
        "required": ["name"],
    }


def test_moments_have_a_format_only_where_every_value_keeps_it() -> None:
    assert compile_result(dt.datetime).output_schema == {"type": "string"}
    assert compile_result(Annotated[dt.datetime, msgspec.Meta(tz=True)]).output_schema == {"type": "string", "format": "date-time"}
    with pytest.raises(ResultError, match="does not fit its type"):
        compile_result(Annotated[dt.datetime, msgspec.Meta(tz=True)]).shape(dt.datetime(2026, 1, 31))  # noqa: DTZ001 the case


cyclic: list[Any] = []
cyclic.append(cyclic)
NAN = float("nan")
INF = float("inf")

REFUSED: list[tuple[Any, Any, str]] = [
    (str, "\ud800", "its text has half of a surrogate pair at character 0"),
    (str, "é\udfff", "at character 1"),
    (str, 5, "it returned int, but its annotation says str"),
    (str | None, "\ud800", "half of a surrogate pair"),
    (list[Content], ["a", text("b"), "\ud800"], "half of a surrogate pair"),
    (dict, {"a": "\ud800"}, "a text in it has half of a surrogate pair"),
    (dict, {"\ud800": 1}, "a text in it has half of a surrogate pair"),
    (Day, Day("\ud800"), "a text in it has half of a surrogate pair"),
    (float, NAN, "the value is nan, which has no JSON form; return None"),
    (float | None, NAN, "the value is nan, which has no JSON form"),
    (Day, Day("a", INF), "high is inf"),
    (Node, Node(1, [Node(NAN)]), r"children\[0\].value is nan"),
    (dict, {"a": [1, {"b": -INF}]}, r"a\[1\].b is -inf"),
    (EMPTY, {"a": NAN, "b": None}, "a is nan"),
    (EMPTY, [Pair(NAN)], r"\[0\].left is nan"),
    (EMPTY, {"a": Span(NAN)}, r"a.start is nan"),  # type: ignore[arg-type] # the case
    (EMPTY, {"a": Model.model_construct(inner=NAN)}, r"a.inner is nan"),
    (EMPTY, cyclic, "it contains itself, or nests too deeply"),
    (list, cyclic, "it contains itself, or nests too deeply"),
    (EMPTY, object(), r"object can't be encoded as JSON \(objects of type object have no JSON form\)"),
    (EMPTY, {"a": object()}, r"dict can't be encoded as JSON \(objects of type object have no JSON form\)"),
    (EMPTY, {(1, 2): 1}, r"dict can't be encoded as JSON \(a key of a dict is tuple; make it a str\)"),
    (dict, {"a": {None: 1}}, r"a key of a dict is NoneType; make it a str"),
    (EMPTY, Rows(), r"objects of type Rows have no JSON form; return list\(...\)"),
    (list[int], Rows(), r"objects of type Rows have no JSON form; return list\(...\)"),
    (EMPTY, deque([1.0, NAN]), r"\[1\] is nan"),
    (list[float], (number for number in [INF]), r"\[0\] is inf"),
    (float, Temperature("nan"), "the value is nan"),
    (EMPTY, [Table([1.0, NAN])], r"\[1\] is nan"),
    (EMPTY, Later(), "Later is no value yet; await it, or make the function async"),
    (EMPTY, {"a": Stream()}, r"Stream is no value yet; return \[item async for item in ...\]"),
    (EMPTY, Reply({}), "a Reply holds the value itself"),
    (dict, Reply({}), "a Reply holds the value itself"),
    (EMPTY, 10**5000, r"int can't be encoded as JSON \(Exceeds the limit"),
    (dict, b"raw", "does not fit its type"),
    (int, "secret", "the value: expected `int`, got `str`"),
    (int, True, "the value: expected `int`, got `bool`"),
    (Day, Day(5), "name: expected `str`, got `int`"),  # type: ignore[arg-type] # the case
    (list[Day], [Day("a"), "secret"], r"\[1\]: expected `object`, got `str`"),
    (Literal["a"], "secret", "the value: expected one of the values that the schema lists"),
    (Annotated[int, msgspec.Meta(ge=5)], 1, "expected `int` >= 5"),
]


@pytest.mark.parametrize(("annotation", "value", "message"), REFUSED, ids=[row[2] for row in REFUSED])
def test_what_cannot_be_sent_is_refused_without_its_value(annotation: Any, value: Any, message: str) -> None:
    """SA07, TL-08."""
    with pytest.raises(ResultError, match=rf"^f\(\) at app.py:12: .*{message}") as caught:
        compile_result(annotation, label="f() at app.py:12").shape(value)
    assert "secret" not in str(caught.value)
    shown = "".join(traceback.format_exception(caught.value))
    assert shown.count("Traceback") == 1  # the engines' own say nothing more


def test_errors_of_the_author_stay_in_the_traceback() -> None:
    class Faulty(BaseModel):
        @computed_field
        def total(self) -> int:
            raise ZeroDivisionError

    with pytest.raises(ResultError, match=r"^f\(\): Faulty can't be encoded as JSON \(ZeroDivisionError\)") as caught:
        compile_result(EMPTY, label="f()").shape(Faulty())
    assert "in total" in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("annotation", [str, EMPTY, int, Day, str | Fail, Fail, NoReturn, list[Day] | Fail], ids=str)
def test_a_failure_may_be_returned(annotation: Any) -> None:
    """M17."""
    failure = Fail.custom(5, "gone")
    with pytest.raises(Fail) as caught:
        compile_result(annotation).shape(failure)
    assert caught.value is failure


def test_failures_in_an_annotation_count_as_nothing() -> None:
    assert compile_result(list[Day] | Fail).output_schema == compile_result(list[Day]).output_schema
    assert compile_result(str | Fail).output_schema is None
    for annotation in (Fail, NoReturn, Fail | None):
        assert compile_result(annotation).shape(None) == ([], None, None)


def test_a_reply_in_an_annotation_counts_as_what_stands_beside_it() -> None:
    assert compile_result(list[Day] | Reply).output_schema == compile_result(list[Day]).output_schema
    assert compile_result(Reply | Fail | None).shape(None) == ([], None, None)
    for annotation in (Reply, Reply | Fail):
        shape = compile_result(annotation)
        assert shape.output_schema is None
        assert shape.shape({"a": 1}) == compile_result(EMPTY).shape({"a": 1})


@pytest.mark.parametrize("annotation", [AsyncIterator[int], AsyncGenerator[int, None], Iterator[int]], ids=str)
def test_streams_are_refused_at_registration(annotation: Any) -> None:
    """M4."""
    with pytest.raises(RegistrationError, match=r"f\(\): it returns .*Iterator|Generator.* but a call gives one value; return a list"):
        compile_result(annotation, label="f()")


EVERYDAY: list[tuple[Any, Any, Any]] = [
    (float, Temperature(1.5), 1.5),
    (list[dict[str, float]], [{"a": Temperature(1.5)}], [{"a": 1.5}]),
    (int, Count(3), 3),
    (EMPTY, {Name("k"): Count(3), Count(4): Name("v")}, {"k": 3, "4": "v"}),
    (EMPTY, {True: 1, False: 2}, {"true": 1, "false": 2}),
    (EMPTY, {"a": PurePosixPath("/x/y")}, {"a": "/x/y"}),
    (dict[str, int], MappingProxyType({"a": 1}), {"a": 1}),
    (EMPTY, ChainMap({"a": 1}, {"b": 2}), {"a": 1, "b": 2}),
    (EMPTY, UserDict({"a": [1]}), {"a": [1]}),
    (EMPTY, deque([1, 2]), [1, 2]),
    (EMPTY, range(3), [0, 1, 2]),
    (list[int], {"a": 1}.values(), [1]),
    (list[str], {"a": 1}.keys(), ["a"]),
    (EMPTY, {"a": {"b": 1}.items()}, {"a": [["b", 1]]}),
    (list[int], (number for number in [1, 2]), [1, 2]),
    (EMPTY, map(str, [1]), ["1"]),
    (EMPTY, Table([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
    (dict[str, int], {"a": Table(5)}, {"a": 5}),
]


@pytest.mark.parametrize(("annotation", "value", "expected"), EVERYDAY, ids=[f"{row[0]} {type(row[1]).__name__}" for row in EVERYDAY])
def test_everyday_types_have_their_obvious_form(annotation: Any, value: Any, expected: Any) -> None:
    """M27."""
    assert sent(compile_result(annotation), value) == expected


def test_null_beside_finite_numbers_is_fine() -> None:
    for value in ({"a": None, "b": 1.5}, [None, Day("null")], {"null": Model(inner=1.5)}):
        assert "null" in str(sent(compile_result(EMPTY), value)).replace("None", "null")


def test_a_text_of_10_mb_is_sent() -> None:
    """SA07."""
    content, *_ = compile_result(str).shape("x" * 10_000_000)
    assert len(getattr(content[0], "text", "")) == 10_000_000


@pytest.mark.parametrize("annotation", [bytes, bytearray, memoryview, bytes | None, str | bytes, Annotated[bytes, "text"]], ids=str)
def test_bytes_are_refused_at_registration(annotation: Any) -> None:
    with pytest.raises(
        RegistrationError, match=r"photo\(\) at x.py:1: bytes have no place in a result; return image\(\), audio\(\) or embed\(\)"
    ):
        compile_result(annotation, label="photo() at x.py:1")


@pytest.mark.parametrize("annotation", [Callable[[], int], Opaque, list[Opaque]], ids=str)
def test_types_without_a_json_form_are_refused_at_registration(annotation: Any) -> None:
    with pytest.raises(RegistrationError, match=r"pack\(\) at x.py:1: it returns .* can't be written as JSON .* content blocks"):
        compile_result(annotation, label="pack() at x.py:1")


def test_a_result_put_together_by_the_author() -> None:
    given = CallToolResult(content=[text("two days")], structured_content=[Day("a")])
    for annotation in (CallToolResult, list[Day]):
        content, structured, _ = compile_result(annotation).shape(given)
        assert (content, bytes(structured or b"")) == ([text("two days")], b'[{"name":"a","high":null}]')
    with pytest.raises(ResultError, match="does not fit its type"):
        compile_result(int).shape(given)
    passed_on = CallToolResult(content=[text("x")], meta={"io.modelcontextprotocol/serverInfo": {"name": "inner"}})
    assert compile_result(EMPTY).shape(passed_on) == ([text("x")], None, None)
    own = CallToolResult(content=[text("x")], meta={"example.com/cost": 5, "io.modelcontextprotocol/serverInfo": {"name": "inner"}})
    assert compile_result(EMPTY).shape(own) == ([text("x")], None, {"example.com/cost": 5})
    assert compile_result(EMPTY).shape(CallToolResult(content=[text("x")])) == ([text("x")], None, None)


def test_an_error_result_is_not_held_to_the_output_schema() -> None:
    """A23."""
    with pytest.raises(ToolError) as caught:
        compile_result(list[Day]).shape(CallToolResult(content=[text("no such city")], structured_content={"code": 5}, is_error=True))
    assert (caught.value.content, caught.value.structured) == ([text("no such city")], {"code": 5})


@pytest.mark.parametrize(
    ("value", "data"),
    [
        ({"a": [1, None]}, b'{"a":[1,null]}'),
        (Day("a"), b'{"name":"a","high":null}'),
        (Model(inner=1), b'{"outer":1.0,"double":2.0}'),
        ([Model(inner=1)], b'[{"outer":1.0,"double":2.0}]'),
        (msgspec.Raw(b'{"a": 1}'), b'{"a": 1}'),
        ("a", b'"a"'),
    ],
)
def test_any_value_as_json(value: Any, data: bytes) -> None:
    assert encode_value(value) == data


def test_a_value_without_json_form_is_refused() -> None:
    with pytest.raises(ResultError, match="object can't be encoded as JSON"):
        encode_value(object())


def test_an_authors_meta_reaches_the_client_and_survives_a_proxy() -> None:
    """M13: what a client got is a result that a tool may return."""
    inner, outer = Server("inner"), Server("outer")

    @inner.tool
    def priced() -> CallToolResult:
        return CallToolResult(content=[text("x")], meta={"example.com/cost": 5})

    async def forward() -> CallToolResult:
        async with Client(inner) as there:

            @outer.tool
            async def proxy() -> CallToolResult:
                return await there.call_tool("priced")

            async with Client(outer) as here:
                return await here.call_tool("proxy")

    result = asyncio.run(forward())
    assert isinstance(result.meta, dict)
    assert result.meta["example.com/cost"] == 5
    assert result.meta["io.modelcontextprotocol/serverInfo"]["name"] == "outer"

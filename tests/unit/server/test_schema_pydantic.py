"""Arguments and results by pydantic: one engine for the whole tool, strict, and the same rules as by msgspec."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any, Literal

import annotated_types
import jsonschema_rs
import msgspec
import pydantic
import pytest
import typing_extensions
from one_parameter import compiled, faults
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, computed_field, field_validator, model_validator

from callboard.errors import RegistrationError
from callboard.server.arguments import Arguments
from callboard.server.pydantic_schema import PydanticArguments
from callboard.server.schema import compile_arguments
from callboard.server.shape import ResultError, Shape, compile_result
from callboard.server.signature import read


class Address(BaseModel):
    """Where.

    Attributes:
        street: The street.
        number: The number.
    """

    street: str = Field(alias="streetName")
    number: int = Field(1, description="Of the house.")


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    speed: float


class Tree(BaseModel):
    value: int
    children: list[Tree] = []

    @computed_field
    def double(self) -> int:
        return 2 * self.value


class Period(BaseModel):
    start: int
    end: int

    @model_validator(mode="after")
    def check(self) -> Period:
        if self.start > self.end:
            raise ValueError("start must not be after end")
        return self


class Shout(BaseModel):
    word: str

    @field_validator("word")
    @classmethod
    def upper(cls, word: str) -> str:
        if not word.isupper():
            raise AssertionError("word must be upper case")
        return word


@pydantic.dataclasses.dataclass
class Pair:
    left: int


class Row(msgspec.Struct):
    """A row.

    Attributes:
        key: Its key.
    """

    key: int


class Cell(msgspec.Struct):
    """Also a Struct, so that the union has no tag."""

    text: str


Json = typing_extensions.TypeAliasType("Json", "dict[str, Json] | list[Json] | int")


def modelled(fn: Callable[..., Any]) -> Arguments:
    arguments = compile_arguments(read(fn))
    assert isinstance(arguments, PydanticArguments)
    jsonschema_rs.meta.validate(arguments.input_schema)
    return arguments


def mixed(
    address: Address,
    _count: int = Field(3, ge=1, description="How many."),
    json: list[str] = [],  # noqa: B006 the case
    *,
    entry: Row | Cell | None = None,
    name: Annotated[str, annotated_types.MinLen(2)] = "xx",
    size: Annotated[int, msgspec.Meta(ge=2, extra_json_schema={"x-mcp-header": "Size"}), "How big."] = 2,
) -> None:
    """Mixed.

    Args:
        address: The address.
        _count: Not shown: the annotation wins.
        json: Some texts.
    """


def test_the_schema() -> None:
    assert modelled(mixed).input_schema == {
        "type": "object",
        "properties": {
            "address": {"$ref": "#/$defs/Address", "description": "The address."},
            "_count": {"default": 3, "description": "How many.", "minimum": 1, "type": "integer"},
            "json": {"default": [], "items": {"type": "string"}, "type": "array", "description": "Some texts."},
            "entry": {"anyOf": [{"$ref": "#/$defs/Row"}, {"$ref": "#/$defs/Cell"}, {"type": "null"}], "default": None},
            "name": {"default": "xx", "minLength": 2, "type": "string"},
            "size": {"default": 2, "minimum": 2, "type": "integer", "x-mcp-header": "Size", "description": "How big."},
        },
        "required": ["address"],
        "additionalProperties": False,
        "$defs": {
            "Address": {
                "description": "Where.",
                "properties": {
                    "streetName": {"type": "string"},
                    "number": {"default": 1, "description": "Of the house.", "type": "integer"},
                },
                "required": ["streetName"],
                "type": "object",
            },
            "Row": {
                "description": "A row.",
                "type": "object",
                "properties": {"key": {"type": "integer", "description": "Its key."}},
                "required": ["key"],
            },
            "Cell": {
                "description": "Also a Struct, so that the union has no tag.",
                "type": "object",
                "properties": {"text": {"type": "string"}},
                "required": ["text"],
            },
        },
    }


def test_binding() -> None:
    arguments = modelled(mixed)
    defaults = {"_count": 3, "json": [], "entry": None, "name": "xx", "size": 2}
    address = Address.model_validate({"streetName": "a"})
    assert arguments.bind(b'{"address":{"streetName":"a"}}') == {"address": address, **defaults}
    assert arguments.bind(msgspec.Raw(b'{"address":{"streetName":"a"},"entry":{"text":"t"}}'))["entry"] == Cell("t")
    assert arguments.bind(b'{"address":{"streetName":"a","number":5.0},"_count":7.0,"entry":{"key":1.0}}') == {
        "address": Address.model_validate({"streetName": "a", "number": 5}),
        **defaults,
        "_count": 7,
        "entry": Row(1),
    }
    first = arguments.bind(b'{"address":{"streetName":"a"}}')
    first["json"].append("x")
    assert arguments.bind(b'{"address":{"streetName":"a"}}')["json"] == []


def test_all_faults_are_listed_at_once() -> None:
    """TL-13."""
    wrong = {"address": {"street": 1}, "_count": 0, "json": ["a", 1], "entry": {"key": "secret"}, "name": "x", "size": "3", "extra": 1}
    assert sorted(faults(modelled(mixed), wrong)) == [
        ("_count", "must be an integer of at least 1"),
        ("address.streetName", "required, missing"),
        ("entry.key", "must be an integer"),
        ("extra", "unknown argument; there are: address, _count, json, entry, name, size"),
        ("json[1]", "must be a string"),
        ("name", "must be a string of at least 2 characters"),
        ("size", "must be an integer of at least 2"),
    ]


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (Cat | Dog, {"kind": "cow"}, [("x.kind", 'must be "cat" or "dog"')]),
        (Annotated[Cat | Dog, Field(discriminator="kind")], {"kind": "secret"}, [("x.kind", 'must be "cat" or "dog"')]),
        (Annotated[Cat | Dog, Field(discriminator="kind")], {"kind": "cat"}, [("x.lives", "required, missing")]),
        (Cat | Dog, {"kind": "cat", "lives": "9"}, [("x.lives", "must be an integer")]),
        (Tree, {"value": 1, "children": [{"value": "2"}]}, [("x.children[0].value", "must be an integer")]),
        (Period, {"start": 2, "end": 1}, [("x", "start must not be after end")]),
        (Shout, {"word": "quiet"}, [("x.word", "word must be upper case")]),
        (Pair, {"left": "1"}, [("x.left", "must be an integer")]),
        (dict[str, Address], {"k": {"streetName": 1}}, [("x.k.streetName", "must be a string")]),
        (Annotated[str, Field(max_length=2)], "abc", [("x", "must be a string of at most 2 characters")]),
        (Annotated[int, annotated_types.Interval(ge=1, le=5)], 9, [("x", "must be an integer between 1 and 5")]),
        (Json, ["a"], [("x[0]", "must be an object or an array or an integer")]),
        (dt.datetime | str | Pair, 5, [("x", "must be a date and time like 2026-01-31T09:30:00Z or a string or an object with left")]),
    ],
)
def test_faults(annotation: Any, value: Any, expected: list[tuple[str, str]]) -> None:
    found = faults(compiled(annotation), {"x": value})
    assert found == expected
    assert "secret" not in str(found)


def test_unions_that_msgspec_refuses() -> None:
    def f(when: dt.datetime | dt.date) -> None: ...

    assert modelled(f).bind(b'{"when":"2026-01-31"}') == {"when": dt.date(2026, 1, 31)}


def test_endless_lists_of_faults_are_not_read() -> None:
    even = compiled(list[Annotated[int, AfterValidator(refuse_odd)]])
    assert faults(even, {"x": [1, 2, 3]}) == [("x[0]", "must be even"), ("x[2]", "must be even")]
    assert faults(even, {"x": [1] * 1000}) == [("", "has 1000 faults, too many to list")]


def refuse_odd(number: int) -> int:
    if number % 2:
        raise ValueError("must be even")
    return number


STRICT: list[tuple[Any, str, Any]] = [
    (str, '"5"', "5"),
    (str, '"null"', "null"),
    (int, "5.0", 5),
    (float, "5", 5.0),
    (list[int], "[1.0]", [1]),
    (int | float, "5.0", 5.0),
    (int | str, '"5"', "5"),
    (bytes, '"aGk="', b"hi"),
    (Decimal, '"1.50"', Decimal("1.50")),
    (dt.date, '"2026-01-31"', dt.date(2026, 1, 31)),
    (dict[int, str], '{"1":"a"}', {1: "a"}),
    (set[int], "[1,1]", {1}),
    (tuple[int, str], '[1,"a"]', (1, "a")),
]


@pytest.mark.parametrize(("annotation", "value", "expected"), STRICT, ids=[f"{row[0]} {row[1]}" for row in STRICT])
def test_json_types_are_not_converted_into_each_other(annotation: Any, value: str, expected: Any) -> None:
    """A24."""

    def f(x: Any, model: Cat | None = None) -> None: ...

    f.__annotations__["x"] = annotation
    got = modelled(f).bind(f'{{"x":{value}}}'.encode())["x"]
    assert (got, repr(got)) == (expected, repr(expected))


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (str, "5"),
        (int, '"5"'),
        (int, "5.5"),
        (int, "true"),
        (float, '"5"'),
        (bool, "1"),
        (bool, '"true"'),
        (list[int], "{}"),
        (bytes, '"%"'),
    ],
)
def test_what_msgspec_refuses_pydantic_refuses(annotation: Any, value: str) -> None:
    def f(x: Any, model: Cat | None = None) -> None: ...

    f.__annotations__["x"] = annotation
    assert [path for path, _ in faults(modelled(f), f'{{"x":{value}}}'.encode())] == ["x"]


@pytest.mark.parametrize("raw", [b"{", b"5", b"null", b'{"x":"\\ud800"}', b'{"x":"\xff"}', b'{"x":' + b"[" * 5000 + b"]" * 5000 + b"}"])
def test_unreadable_arguments_are_faults(raw: bytes) -> None:
    """SA06."""
    assert faults(compiled(Annotated[str, Field(min_length=1)]), raw)


def test_unknown_arguments_are_ignored_when_not_strict() -> None:
    def f(x: Cat) -> None: ...

    arguments = compile_arguments(read(f), strict=False)
    assert "additionalProperties" not in arguments.input_schema
    assert arguments.bind(b'{"x":{"kind":"cat","lives":9},"y":1}') == {"x": Cat(kind="cat", lives=9)}


def test_aliases_and_defaults_in_field() -> None:
    def f(
        user: Annotated[int, Field(alias="userId")],
        tags: list[str] = Field(default_factory=lambda: ["a"], alias="tagList"),  # noqa: B008 the case
        count: Annotated[int, Field(default=3)] = 4,
        even: Annotated[int, AfterValidator(lambda n: n + 1)] = 0,
    ) -> None: ...

    arguments = modelled(f)
    assert list(arguments.input_schema["properties"]) == ["userId", "tagList", "count", "even"]
    assert arguments.bind(b'{"userId":1,"even":2}') == {"user": 1, "tags": ["a"], "count": 4, "even": 3}
    assert faults(arguments, {"user": 1}) == [
        ("userId", "required, missing"),
        ("user", "unknown argument; there are: userId, tagList, count, even"),
    ]


def broken(x: Cat, callback: Callable[[], int]) -> None: ...


class Undefined(BaseModel):
    value: Missing  # type: ignore[name-defined] # noqa: F821 the case


def undefined(model: Undefined) -> None: ...


class Catalogue(msgspec.Struct):
    cat: Cat


def struct_with_model(x: Catalogue) -> None: ...


def clash(x: Cat, row: Any) -> None: ...


clash.__annotations__["row"] = msgspec.defstruct("Cat", [("a", int)])


@pytest.mark.parametrize(
    ("fn", "text"),
    [
        (broken, r"broken\(\) at .*: parameter 'callback' is .*Callable.* can't be read from JSON"),
        (undefined, r"undefined\(\) at .*: parameter 'model' is Undefined, .*not fully defined"),
        (struct_with_model, r"struct_with_model\(\) at .*: parameter 'x' is Catalogue, .*Cat"),
        (clash, r"both called Cat"),
    ],
)
def test_refusals_name_the_parameter_and_the_way_out(fn: Callable[..., Any], text: str) -> None:
    with pytest.raises(RegistrationError, match=text):
        compile_arguments(read(fn))


def test_without_pydantic_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: Cat) -> None: ...

    signature = read(f)
    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(RegistrationError, match=r"parameter 'x' is Cat.* pip install 'callboard\[pydantic\]'"):
        compile_arguments(signature)
    with pytest.raises(RegistrationError, match=r"returns Cat.* pip install 'callboard\[pydantic\]'"):
        compile_result(Cat)


def test_pydantic_and_the_judge_are_loaded_on_first_use() -> None:
    code = """
import sys, msgspec
from callboard.server.schema import compile_arguments
from callboard.server.shape import compile_result
from callboard.server.signature import read
def f(x: int, y: list[str] | None = None) -> dict[str, int]: ...
compile_arguments(read(f)).bind(b'{"x": 1.0}')
compile_result(dict[str, int]).shape({"a": 1})
print([name for name in ("pydantic", "jsonschema_rs") if name in sys.modules])
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# results


def sent(shape: Shape, value: Any) -> Any:
    content, structured, _ = shape.shape(value)
    assert structured is not None
    assert [getattr(block, "text", None) for block in content] == [bytes(structured).decode()]
    result = msgspec.json.decode(structured)
    assert shape.output_schema is not None
    jsonschema_rs.validate(shape.output_schema, result)
    return result


def test_output_in_serialization_mode() -> None:
    """A21, TL-08."""

    class Model(BaseModel):
        inner: int = Field(validation_alias="inAlias", serialization_alias="outAlias")

        @computed_field(alias="total")
        def computed(self) -> int:
            return self.inner + 1

    shape = compile_result(list[Model])
    assert sent(shape, [Model.model_validate({"inAlias": 1})]) == [{"outAlias": 1, "total": 2}]
    assert shape.output_schema is not None
    assert shape.output_schema["$defs"]["Model"]["required"] == ["outAlias", "total"]


def test_a_recursive_root_is_an_object() -> None:
    """A22."""
    shape = compile_result(Tree)
    assert shape.output_schema is not None
    assert shape.output_schema["type"] == "object"
    assert "$ref" not in shape.output_schema
    assert sent(shape, Tree(value=1, children=[Tree(value=2)]))["children"][0]["double"] == 4


def test_a_root_that_is_used_once_has_no_definitions() -> None:
    assert compile_result(Cat).output_schema == {
        "properties": {"kind": {"const": "cat", "type": "string"}, "lives": {"type": "integer"}},
        "required": ["kind", "lives"],
        "type": "object",
    }


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (Cat, {"kind": "cat", "lives": 9}, {"kind": "cat", "lives": 9}),
        (Pair, Pair(1), {"left": 1}),
        (Row | Cell | Cat, Row(1), {"key": 1}),
        (dict[str, Cat | None], {"a": None}, {"a": None}),
        (Annotated[list[Decimal | str], Field(max_length=2)], [Decimal("1.5")], ["1.5"]),
        (list[dt.datetime | Pair], [dt.datetime(2026, 1, 1)], ["2026-01-01T00:00:00"]),  # noqa: DTZ001
        (Annotated[dt.timedelta, Field()], dt.timedelta(days=-1), "-P1D"),
    ],
)
def test_values_of_the_type_are_sent(annotation: Any, value: Any, expected: Any) -> None:
    shape = compile_result(annotation)
    assert sent(shape, value) == expected
    assert "date-time" not in str(shape.output_schema)


class Loose(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="constants")
    value: float = 0.0
    other: Any = None


def spoilt() -> Cat:
    return Cat.model_construct(kind="cat", lives="secret")


@pytest.mark.parametrize(
    ("annotation", "value", "text"),
    [
        (Cat, {"kind": "cat", "lives": "secret"}, r"does not fit its type: lives: must be a valid integer"),
        (Cat, 5, r"does not fit its type: the value: must be a valid dictionary or instance of Cat"),
        (Cat, spoilt(), r"does not fit its type: lives: must be int"),
        (list[Cat], [spoilt()], r"does not fit its type: lives: must be int"),
        (Annotated[int, Field(ge=5)], 1, r"does not fit its type: the value: must be greater than or equal to 5"),
        (Loose, Loose(value=float("nan")), r"Loose can't be encoded as JSON"),
        (Annotated[float, Field()], float("inf"), r"the value is inf, which has no JSON form"),
        (Shout, Shout.model_construct(word="\ud800"), r"half of a surrogate pair"),
        (Loose, Loose(other=object()), r"Loose can't be encoded as JSON \(PydanticSerializationError\)"),
    ],
)
def test_what_does_not_fit_is_refused_without_its_value(annotation: Any, value: Any, text: str) -> None:
    """TL-08, SA07."""
    with pytest.raises(ResultError, match=text) as caught:
        compile_result(annotation).shape(value)
    assert "secret" not in str(caught.value)

"""Every kind of annotation by msgspec: the schema that is advertised, and the values that it stands for."""

from __future__ import annotations

import datetime as dt
import enum
import json
import sys
import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, Optional, TypedDict, TypeVar

import attrs
import jsonschema_rs
import msgspec
import pytest
import typing_extensions
from one_parameter import compiled, faults

from callboard.errors import RegistrationError
from callboard.server.msgspec_schema import MsgspecArguments
from callboard.server.schema import compile_arguments
from callboard.server.shape import compile_result
from callboard.server.signature import read

T = TypeVar("T")


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Size(enum.StrEnum):
    S = "s"


class Point(NamedTuple):
    x: int
    y: int = 0


class Options(TypedDict, total=False):
    name: typing_extensions.Required[str]
    depth: int


@dataclass
class Span:
    start: int
    tags: list[str] = field(default_factory=list)


@attrs.define
class Pair:
    left: int
    right: str = "r"


class Node(msgspec.Struct):
    """A tree.

    Attributes:
        value: What it holds.
        children: Its branches.
    """

    value: int
    children: list[Node] = []


class Cat(msgspec.Struct, tag="cat"):
    lives: int


class Dog(msgspec.Struct, tag="dog"):
    speed: float


class Box(msgspec.Struct, Generic[T]):
    content: T


class Row(msgspec.Struct, array_like=True):
    key: str
    count: int = 0


class Tagged(msgspec.Struct, array_like=True, tag="t", forbid_unknown_fields=True):
    count: int


class Nothing(msgspec.Struct, array_like=True):
    """It has no fields."""


class Closed(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    first_name: str


UserId = NewType("UserId", int)
Ids = typing_extensions.TypeAliasType("Ids", list[int])

NODE = {
    "type": "object",
    "properties": {
        "value": {"type": "integer", "description": "What it holds."},
        "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}, "default": [], "description": "Its branches."},
    },
    "required": ["value"],
    "description": "A tree.",
}


# annotation, schema of the property, `$defs`, [(JSON value, Python value)], [JSON value that is refused]
KINDS: list[tuple[Any, dict[str, Any], dict[str, Any], list[tuple[Any, Any]], list[Any]]] = [
    (str, {"type": "string"}, {}, [("a", "a"), ("", "")], [1, None, True, [], {}]),
    (int, {"type": "integer"}, {}, [(1, 1), (-(10**30), -(10**30))], ["1", 1.5, True, None]),
    (float, {"type": "number"}, {}, [(1.5, 1.5), (2, 2.0)], ["1.5", True, None]),
    (bool, {"type": "boolean"}, {}, [(True, True)], [1, "true", None]),
    (None, {"type": "null"}, {}, [(None, None)], [0, ""]),
    (Any, {}, {}, [(None, None), ([1, {"a": 2}], [1, {"a": 2}])], []),
    (Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}, {}, [(1, 1), (None, None)], ["1"]),  # noqa: UP045 the case
    (None | int | str, {"anyOf": [{"type": "integer"}, {"type": "string"}, {"type": "null"}]}, {}, [("1", "1"), (1, 1)], [1.5, []]),
    (int | float, {"anyOf": [{"type": "integer"}, {"type": "number"}]}, {}, [(1, 1), (1.0, 1.0)], ["1"]),
    (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}, {}, [("a", "a")], ["c", 1]),
    (Literal[1, "a"], {"enum": [1, "a"]}, {}, [("a", "a"), (1, 1)], ["1", True]),
    (Color, {"type": "string", "enum": ["red", "blue"]}, {}, [("red", Color.RED)], ["RED", 1]),
    (Level, {"type": "integer", "enum": [1, 2]}, {}, [(2, Level.HIGH)], [3, "1"]),
    (Size, {"type": "string", "enum": ["s"]}, {}, [("s", Size.S)], ["S"]),
    (list[int], {"type": "array", "items": {"type": "integer"}}, {}, [([1, 2], [1, 2])], [["1"], 1, {}]),
    (list, {"type": "array"}, {}, [([1, "a"], [1, "a"])], [1]),
    (Sequence[str], {"type": "array", "items": {"type": "string"}}, {}, [(["a"], ["a"])], ["a"]),
    (
        tuple[int, str],
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 2, "maxItems": 2},
        {},
        [([1, "a"], (1, "a"))],
        [[1], [1, "a", 2], ["a", 1]],
    ),
    (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}, {}, [([], ()), ([1, 2], (1, 2))], [["a"]]),
    (set[int], {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, {}, [([1, 2], {1, 2}), ([1, 1], {1})], [["a"]]),
    (frozenset[str], {"type": "array", "items": {"type": "string"}, "uniqueItems": True}, {}, [(["a"], frozenset("a"))], [[1]]),
    (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}, {}, [({"a": 1}, {"a": 1})], [{"a": "1"}, []]),
    (dict, {"type": "object"}, {}, [({"a": [1]}, {"a": [1]})], [1]),
    (
        dict[int, str],
        {"type": "object", "propertyNames": {"pattern": "^-?(0|[1-9][0-9]*)$"}, "additionalProperties": {"type": "string"}},
        {},
        [({"1": "a"}, {1: "a"})],
        [{"a": "a"}],
    ),
    (
        dict[Literal["a"], Any],
        {"type": "object", "propertyNames": {"enum": ["a"]}},
        {},
        [({"a": 1}, {"a": 1})],
        [{"b": 1}],
    ),
    (
        Options,
        {"$ref": "#/$defs/Options"},
        {"Options": {"type": "object", "properties": {"name": {"type": "string"}, "depth": {"type": "integer"}}, "required": ["name"]}},
        [({"name": "a"}, {"name": "a"})],
        [{}, {"name": 1}],
    ),
    (
        Point,
        {"$ref": "#/$defs/Point"},
        {
            "Point": {
                "type": "array",
                "prefixItems": [{"type": "integer"}, {"type": "integer", "default": 0}],
                "minItems": 1,
                "maxItems": 2,
            }
        },
        [([1], Point(1)), ([1, 2], Point(1, 2))],
        [[], [1, 2, 3], ["a"]],
    ),
    (
        Span,
        {"$ref": "#/$defs/Span"},
        {
            "Span": {
                "type": "object",
                "properties": {"start": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string"}, "default": []}},
                "required": ["start"],
            }
        },
        [({"start": 1}, Span(1)), ({"start": 1, "tags": ["a"]}, Span(1, ["a"]))],
        [{"start": "1"}, {"tags": []}],
    ),
    (
        Pair,
        {"$ref": "#/$defs/Pair"},
        {
            "Pair": {
                "type": "object",
                "properties": {"left": {"type": "integer"}, "right": {"type": "string", "default": "r"}},
                "required": ["left"],
            }
        },
        [({"left": 1}, Pair(1))],
        [{}],
    ),
    (Node, {"$ref": "#/$defs/Node"}, {"Node": NODE}, [({"value": 1, "children": [{"value": 2}]}, Node(1, [Node(2)]))], [{"children": []}]),
    (
        Cat | Dog,
        {"anyOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}]},
        {
            "Cat": {
                "type": "object",
                "properties": {"type": {"type": "string", "enum": ["cat"]}, "lives": {"type": "integer"}},
                "required": ["type", "lives"],
            },
            "Dog": {
                "type": "object",
                "properties": {"type": {"type": "string", "enum": ["dog"]}, "speed": {"type": "number"}},
                "required": ["type", "speed"],
            },
        },
        [({"type": "cat", "lives": 9}, Cat(9)), ({"type": "dog", "speed": 2}, Dog(2.0))],
        [{"lives": 9}, {"type": "cow"}],
    ),
    (
        Box[int],
        {"$ref": "#/$defs/Box_int"},
        {"Box_int": {"type": "object", "properties": {"content": {"type": "integer"}}, "required": ["content"]}},
        [({"content": 1}, Box(1))],
        [{"content": "1"}],
    ),
    (
        Row,
        {"$ref": "#/$defs/Row"},
        {"Row": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer", "default": 0}], "minItems": 1}},
        [(["a"], Row("a")), (["a", 2, "more"], Row("a", 2))],
        [[], [1]],
    ),
    (
        Tagged,
        {"$ref": "#/$defs/Tagged"},
        {
            "Tagged": {
                "type": "array",
                "prefixItems": [{"type": "string", "enum": ["t"]}, {"type": "integer"}],
                "minItems": 2,
                "maxItems": 2,
            }
        },
        [(["t", 1], Tagged(1))],
        [["u", 1], ["t"], ["t", 1, 2]],
    ),
    (
        Nothing,
        {"$ref": "#/$defs/Nothing"},
        {"Nothing": {"type": "array", "minItems": 0, "description": "It has no fields."}},
        [([], Nothing()), ([1], Nothing())],
        [{}],
    ),
    (
        Closed,
        {"$ref": "#/$defs/Closed"},
        {
            "Closed": {
                "type": "object",
                "properties": {"firstName": {"type": "string"}},
                "required": ["firstName"],
                "additionalProperties": False,
            }
        },
        [({"firstName": "a"}, Closed("a"))],
        [{"first_name": "a"}, {"firstName": "a", "more": 1}],
    ),
    (dt.datetime, {"type": "string", "format": "date-time"}, {}, [("2026-01-31T09:30:00", dt.datetime(2026, 1, 31, 9, 30))], ["now", 1]),  # noqa: DTZ001
    (dt.date, {"type": "string", "format": "date"}, {}, [("2026-01-31", dt.date(2026, 1, 31))], ["2026-02-31"]),
    (dt.time, {"type": "string", "format": "time"}, {}, [("09:30:00", dt.time(9, 30))], ["25:00:00"]),
    (dt.timedelta, {"type": "string", "format": "duration"}, {}, [("PT1H", dt.timedelta(hours=1))], ["1h", 3600]),
    (uuid.UUID, {"type": "string", "format": "uuid"}, {}, [(str(uuid.UUID(int=7)), uuid.UUID(int=7))], ["7"]),
    (Decimal, {"type": ["string", "number"]}, {}, [("0.10", Decimal("0.10")), (0.5, Decimal("0.5")), (3, Decimal(3))], ["x", None]),
    (bytes, {"type": "string", "contentEncoding": "base64"}, {}, [("aGk=", b"hi")], ["%", 1]),
    (
        Annotated[bytes, msgspec.Meta(min_length=1, max_length=4)],
        {"type": "string", "contentEncoding": "base64", "minLength": 4, "maxLength": 8},
        {},
        [("aGk=", b"hi")],
        [""],
    ),
    (Annotated[int, msgspec.Meta(ge=1, lt=5)], {"type": "integer", "minimum": 1, "exclusiveMaximum": 5}, {}, [(4, 4)], [0, 5]),
    (Annotated[float, msgspec.Meta(gt=0, le=1)], {"type": "number", "maximum": 1, "exclusiveMinimum": 0}, {}, [(1, 1.0)], [0, 1.1]),
    (Annotated[int, msgspec.Meta(multiple_of=5)], {"type": "integer", "multipleOf": 5}, {}, [(10, 10)], [7]),
    (
        Annotated[str, msgspec.Meta(min_length=2, max_length=3, pattern="^a")],
        {"type": "string", "minLength": 2, "maxLength": 3, "pattern": "^a"},
        {},
        [("ab", "ab")],
        ["a", "abcd", "bb"],
    ),
    (
        Annotated[list[int], msgspec.Meta(min_length=1, max_length=2)],
        {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
        {},
        [([1], [1])],
        [[], [1, 2, 3]],
    ),
    (Annotated[dict[str, Any], msgspec.Meta(max_length=1)], {"type": "object", "maxProperties": 1}, {}, [({}, {})], [{"a": 1, "b": 2}]),
    (
        Annotated[str, msgspec.Meta(title="T", description="D", examples=["e"], extra_json_schema={"x-mcp-header": "City"})],
        {"type": "string", "title": "T", "description": "D", "examples": ["e"], "x-mcp-header": "City"},
        {},
        [("a", "a")],
        [1],
    ),
    (Annotated[int, "A text."], {"type": "integer", "description": "A text."}, {}, [(1, 1)], ["1"]),
    (UserId, {"type": "integer"}, {}, [(1, 1)], ["1"]),
    (Ids, {"type": "array", "items": {"type": "integer"}}, {}, [([1], [1])], [["a"]]),
    (
        dict[str, Ids],
        {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "integer"}}},
        {},
        [({"a": [1]}, {"a": [1]})],
        [],
    ),
]


@pytest.mark.parametrize(("annotation", "schema", "defs", "good", "bad"), KINDS, ids=[str(row[0]) for row in KINDS])
def test_every_kind(annotation: Any, schema: dict[str, Any], defs: dict[str, Any], good: list[tuple[Any, Any]], bad: list[Any]) -> None:
    """JS-02, TL-05."""
    arguments = compiled(annotation)
    assert isinstance(arguments, MsgspecArguments)
    whole = {"type": "object", "properties": {"x": schema}, "required": ["x"], "additionalProperties": False}
    assert arguments.input_schema == (whole | {"$defs": defs} if defs else whole)
    jsonschema_rs.meta.validate(arguments.input_schema)
    for value, expected in good:
        got = arguments.bind(json.dumps({"x": value}).encode())["x"]
        assert (got, type(got)) == (expected, type(expected))
    for value in bad:
        found = faults(arguments, {"x": value})
        assert found
        assert all(path.startswith("x") for path, _ in found)


if sys.version_info >= (3, 12):

    def test_type_statement() -> None:
        exec_globals: dict[str, Any] = {}
        exec("type Ids = list[int]", exec_globals)
        assert compiled(exec_globals["Ids"]).bind(b'{"x":[1]}') == {"x": [1]}


@dataclass(frozen=True)
class Base:
    a: int | None = None
    b: str = "x"
    tags: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Derived(Base):
    b: str = "z"


@dataclass(slots=True)
class Slotted:
    a: int = 1


@dataclass
class Mixed(Slotted):
    b: int = 2


class Holder(msgspec.Struct):
    base: Base
    more: dict[str, list[Base | None]] = {}


@pytest.mark.parametrize(
    ("annotation", "value", "whole"),
    [
        (Base, {}, {"a": None, "b": "x", "tags": []}),
        (Base, {"tags": ["t"], "b": "y"}, {"a": None, "b": "y", "tags": ["t"]}),
        (Derived, {}, {"a": None, "b": "z", "tags": []}),
        (Slotted, {}, {"a": 1}),
        (Mixed, {}, {"a": 1, "b": 2}),
        (list[Base], [{}], [{"a": None, "b": "x", "tags": []}]),
        (tuple[Base, int], [{}, 1], [{"a": None, "b": "x", "tags": []}, 1]),
        (Base | None, {}, {"a": None, "b": "x", "tags": []}),
        (
            Holder,
            {"base": {}, "more": {"k": [{}, None]}},
            {"base": {"a": None, "b": "x", "tags": []}, "more": {"k": [{"a": None, "b": "x", "tags": []}, None]}},
        ),
    ],
    ids=str,
)
def test_what_arrives_can_be_returned_whole(annotation: Any, value: Any, whole: Any) -> None:
    """M2: msgspec leaves defaults to the class, where `vars()` and its own encoder don't see them."""
    got = compiled(annotation).bind(msgspec.json.encode({"x": value}))["x"]
    assert msgspec.json.encode(got) == msgspec.json.encode(whole)


def test_defaults_stand_in_the_dict_of_a_dataclass() -> None:
    """M2: a second look fills them, too."""

    def f(x: Base, n: int = 0) -> None: ...

    arguments = compile_arguments(read(f))
    assert list(vars(arguments.bind(b'{"x":{"tags":[]},"n":1.0}')["x"])) == ["a", "b", "tags"]


class Ordered(TypedDict):
    zeta: str
    alpha: NotRequired[Literal["y", 2, None, "x"]]  # noqa: PYI061 the case


def test_the_authors_order_is_kept() -> None:
    """M5, M12."""
    assert compiled(Literal["a", 2, None]).input_schema["properties"]["x"] == {"enum": ["a", 2, None]}  # noqa: PYI061
    schema = compiled(list[Ordered]).input_schema
    assert list(schema["$defs"]["Ordered"]["properties"]) == ["zeta", "alpha"]
    assert schema["$defs"]["Ordered"]["properties"]["alpha"] == {"enum": ["y", 2, None, "x"]}
    assert compile_result(Literal["b", "a"]).output_schema == {"type": "string", "enum": ["b", "a"]}


@dataclass
class Wrong:
    count: int = "none"  # type: ignore[assignment] # the case
    size: int = 1


def test_defaults_that_do_not_fit_are_not_advertised() -> None:
    """M6: a sentinel outside of what is asked of clients is a good default."""

    def f(x: Wrong, y: int = "abc", z: Annotated[int, msgspec.Meta(ge=1)] = -1, ok: Annotated[int, msgspec.Meta(ge=1)] = 1) -> None: ...  # type: ignore[assignment]

    arguments = compile_arguments(read(f))
    assert [node.get("default") for node in arguments.input_schema["properties"].values()] == [None, None, None, 1]
    assert [node.get("default") for node in arguments.input_schema["$defs"]["Wrong"]["properties"].values()] == [None, 1]
    assert arguments.bind(b'{"x":{}}') == {"x": Wrong(), "y": "abc", "z": -1, "ok": 1}


def test_a_pattern_that_only_python_reads() -> None:
    """Judged by the engine alone, with its words."""
    assert faults(compiled(Annotated[str, msgspec.Meta(pattern="^a(?#c)$")]), {"x": "b"}) == [("x", "must be a string matching ^a(?#c)$")]


class Eq:
    """It can be changed and compared, so not hashed."""

    __hash__ = None  # type: ignore[assignment] # as `__eq__` without `__hash__` does

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("cannot pickle this")


MISSING = object()
LOCK = threading.Lock()


def test_sentinels_stay_what_they_are() -> None:
    """M28."""

    def f(a: Any = MISSING, b: str | int = MISSING, c: Any = LOCK, d: list[int] = [], e: Any = Eq) -> None: ...  # type: ignore[assignment] # noqa: B006 the case

    values = compile_arguments(read(f)).bind(None)
    assert (values["a"], values["b"], values["c"], values["e"]) == (MISSING, MISSING, LOCK, Eq)
    assert values["d"] is not compile_arguments(read(f)).bind(None)["d"]


def test_defaults_that_cannot_be_copied_are_refused() -> None:
    """M28."""

    def f(a: int, b: Any = Eq()) -> None: ...  # noqa: B008 the case

    with pytest.raises(
        RegistrationError, match=r"f\(\) at .*: the default of parameter 'b' can't be copied for each call \(cannot pickle this\)"
    ):
        compile_arguments(read(f))


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (5, "is 5, which is no type"),
        ([int], r"is \[<class 'int'>\] \(write list\[int\]\), which is no type"),
        ({"a": int}, "which is no type"),
        ((int, str), "which is no type"),
        (Optional, "is Optional, which is no type"),
        (typing_extensions.Self, "is Self, which is no type"),
        (any, r"is the function any\(\) \(write typing.Any\)"),
        (callable, r"is the function callable\(\)"),
    ],
    ids=str,
)
def test_what_is_no_type_is_named(annotation: Any, text: str) -> None:
    """M29."""

    def f(ok: int, x: Any) -> None: ...

    f.__annotations__["x"] = annotation
    with pytest.raises(RegistrationError, match=rf"f\(\) at .*: parameter 'x' .*{text}"):
        compile_arguments(read(f))
    with pytest.raises(RegistrationError, match=r"^f\(\): it returns "):
        compile_result(annotation, label="f()")

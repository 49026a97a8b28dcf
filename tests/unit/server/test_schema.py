"""Arguments by msgspec: schema, decoding, coercion, and the list of everything wrong."""

from __future__ import annotations

import datetime as dt
import enum
import json
import typing
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
import pytest
from one_parameter import compiled, faults, taking

from callboard.errors import RegistrationError
from callboard.server.arguments import MAX_LISTED
from callboard.server.coercion import MAX_VALUES
from callboard.server.faults import Fault
from callboard.server.judge import MAX_OF_PART
from callboard.server.schema import ArgumentFaults, compile_arguments
from callboard.server.signature import read

T = TypeVar("T")


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Node(msgspec.Struct):
    value: int
    children: list[Node] = []


class Cat(msgspec.Struct, tag="cat"):
    lives: int


class Dog(msgspec.Struct, tag="dog"):
    speed: float


class Box(msgspec.Struct, Generic[T]):
    content: T


@dataclass
class Period:
    start: int
    end: int

    def __post_init__(self) -> None:
        if self.start > self.end:
            raise ValueError("start must not be after end")


def test_no_arguments() -> None:
    """TL-05."""

    def f() -> None: ...

    arguments = compile_arguments(read(f))
    assert arguments.input_schema == {"type": "object", "additionalProperties": False}
    assert arguments.bind(None) == arguments.bind(b"{}") == arguments.bind(msgspec.Raw(b"{}")) == {}
    assert faults(arguments, {"x": 1, "y": 2}) == [("x", "unknown argument; there are none"), ("y", "unknown argument; there are none")]
    assert compile_arguments(read(f), strict=False).input_schema == {"type": "object"}


def test_unknown_arguments_are_ignored_when_not_strict() -> None:
    arguments = compile_arguments(taking(int), strict=False)
    assert arguments.input_schema == {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    assert arguments.bind(b'{"x":1,"y":2}') == {"x": 1}


NAMES = ["_private", "__mangled", "__dunder__", "self_", "class_", "json", "model_config", "type", "print", "größe", "raw"]


@pytest.mark.parametrize("name", NAMES)
def test_names_are_kept(name: str) -> None:
    scope: dict[str, Any] = {}
    exec(f"def f({name}: int, *, other: int = 2): pass", scope)
    assert compile_arguments(read(scope["f"])).bind(json.dumps({name: 1}).encode()) == {name: 1, "other": 2}


@pytest.mark.parametrize("text", ["12345", '{"a":1}', "null", "1e5", "true", "[1]", '"quoted"', "", " 1 ", "0x10", "é\u2028"])
@pytest.mark.parametrize("annotation", [str, str | None, str | int, str | int | list[int] | None, Any], ids=str)
def test_strings_stay_byte_identical(text: str, annotation: Any) -> None:
    """A24."""
    assert compiled(annotation).bind(json.dumps({"x": text}).encode()) == {"x": text}


INTEGRAL: list[tuple[Any, str, Any]] = [
    (int, "5.0", 5),
    (int, "5e2", 500),
    (int, "-0.0", 0),
    (int, "1e20", 10**20),
    (int | None, "5.0", 5),
    (list[int], "[1, 2.0]", [1, 2]),
    (tuple[int, float], "[1.0, 2.0]", (1, 2.0)),
    (dict[str, int], '{"a": 1.0}', {"a": 1}),
    (Node, '{"value": 1.0, "children": [{"value": 2.0}]}', Node(1, [Node(2)])),
    (Level, "1.0", Level.LOW),
    (Literal[1, "a"], "1.0", 1),
    (Annotated[int, msgspec.Meta(ge=5)], "5.0", 5),
    (Cat | Dog, '{"type": "cat", "lives": 9.0}', Cat(9)),
    (int | str, "5.0", 5),
    (Box[int], '{"content": 1.0}', Box(1)),
]


@pytest.mark.parametrize(("annotation", "value", "expected"), INTEGRAL, ids=[f"{row[0]} {row[1]}" for row in INTEGRAL])
def test_integral_floats_are_integers(annotation: Any, value: str, expected: Any) -> None:
    got = compiled(annotation).bind(f'{{"x": {value}}}'.encode())["x"]
    assert (got, repr(got)) == (expected, repr(expected))


def test_nothing_else_is_touched_when_an_integral_float_is_mended() -> None:
    def f(n: int, exact: Decimal, real: float, either: int | float, anything: Any) -> None: ...  # noqa: PYI041 the case

    raw = b'{"n": 1.0, "exact": 0.1000000000000000055511151231257827, "real": 2.0, "either": 3.0, "anything": 4.0}'
    bound = compile_arguments(read(f)).bind(raw)
    assert repr(bound) == repr(
        {"n": 1, "exact": Decimal("0.1000000000000000055511151231257827"), "real": 2.0, "either": 3.0, "anything": 4.0}
    )


def test_other_faults_are_listed_when_an_integral_float_is_mended() -> None:
    def f(n: int, when: dt.date, text: str) -> None: ...

    assert faults(compile_arguments(read(f)), {"n": 1.0, "when": "2026-01-31", "text": 5}) == [("text", "must be a string")]


def test_keys_that_only_the_engine_checks() -> None:
    assert faults(compiled(dict[float, int]), {"x": {"a": 1}}) == [("x", "object key: expected `float`, got `str`")]
    assert faults(compiled(list[dict[float, int]]), {"x": [{"a": 1}]}) == [("x[0]", "object key: expected `float`, got `str`")]


@pytest.mark.parametrize("value", ["5.5", '"5"', '"5.0"', "true", "null", "1e309", "1e999999999999999999999", "-1e400"])
def test_what_is_no_integer_is_a_fault(value: str) -> None:
    assert [path for path, _ in faults(compiled(int), f'{{"x": {value}}}'.encode())] == ["x"]


class Address(msgspec.Struct):
    street: str
    number: int = 1


def trip(
    city: str,
    address: Address,
    days: Annotated[int, msgspec.Meta(ge=1, le=14)] = 3,
    items: list[int] | None = None,
    color: Color = Color.RED,
    when: dt.datetime | None = None,
    pet: Cat | Dog | None = None,
) -> None: ...


def test_all_faults_are_listed_at_once() -> None:
    """TL-13."""
    arguments = compile_arguments(read(trip))
    wrong = {
        "address": {"number": "secret"},
        "days": 99,
        "items": [1, "secret", 2.5],
        "color": "secret",
        "when": "secret",
        "pet": {"type": "secret"},
        "extra": 1,
    }
    with pytest.raises(ArgumentFaults) as caught:
        arguments.bind(json.dumps(wrong).encode())
    assert sorted((fault.path, fault.expected) for fault in caught.value.faults) == [
        ("address.number", "must be an integer"),
        ("address.street", "required, missing"),
        ("city", "required, missing"),
        ("color", 'must be one of "red", "blue"'),
        ("days", "must be an integer between 1 and 14"),
        ("extra", "unknown argument; there are: city, address, days, items, color, when, pet"),
        ("items[1]", "must be an integer"),
        ("items[2]", "must be an integer"),
        ("pet.type", 'must be "cat" or "dog"'),
        ("when", "must be a date and time like 2026-01-31T09:30:00Z"),
    ]
    text = str(caught.value)
    assert text.startswith("8 arguments are wrong:\n- ")
    assert "- days: must be an integer between 1 and 14" in text.splitlines()
    assert "secret" not in text


def test_one_fault() -> None:
    with pytest.raises(ArgumentFaults) as caught:
        compiled(int).bind(b"{}")
    assert str(caught.value) == "1 argument is wrong:\n- x: required, missing"
    assert caught.value.faults == (Fault("x", "required, missing"),)


def test_what_only_the_engine_sees_is_listed_beside_what_the_schema_sees() -> None:
    def f(period: Period, code: bytes, amount: Decimal, count: int, keys: dict[int, int]) -> None: ...

    arguments = compile_arguments(read(f))
    wrong = {"period": {"start": 2, "end": 1}, "code": "%", "amount": "secret", "count": "x", "keys": {"1": 1}}
    assert sorted(faults(arguments, wrong)) == [
        ("amount", "Invalid decimal string"),
        ("code", "must be bytes in base64"),
        ("count", "must be an integer"),
        ("period", "start must not be after end"),
    ]


@pytest.mark.parametrize(
    ("raw", "fault"),
    [
        (b"null", ("", "must be an object with x")),
        (b"[]", ("", "must be an object with x")),
        (b"5", ("", "must be an object with x")),
        (b'{"x": "\\ud800"}', ("x", "must be Unicode text; it holds half of a surrogate pair")),
        (b'{"x": "a", "y": ["\\udfff"]}', ("y[0]", "must be Unicode text; it holds half of a surrogate pair")),
        (b'{"x": "a", "\\ud800": 1}', ("", "must be Unicode text; it holds half of a surrogate pair")),
        (b'{"x": 1e400}', ("x", "must be a finite number within the range of a 64-bit float")),
        (b'{"x": "a", "y": 1e400}', ("y", "must be a finite number within the range of a 64-bit float")),
        (b'{"x": NaN}', ("x", "must be a finite number within the range of a 64-bit float")),
        (b"{", ("", "must be JSON in UTF-8, with integers of at most 4,300 digits")),
        (b'{"x": "\xff"}', ("", "must be JSON in UTF-8, with integers of at most 4,300 digits")),
        (b'{"x": ' + b"1" * 5000 + b"}", ("", "must be JSON in UTF-8, with integers of at most 4,300 digits")),
        (b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", ("", "nested too deeply")),
        (b'{"x": ["\\ud800", ' + b"[" * 100_000, ("", "nested too deeply")),
        (
            b'{"\\ud800": {"\\ud800": 1e400}}',
            ('["\\ud800"]'.replace('"', "'") + "['\\ud800']", "must be a finite number within the range of a 64-bit float"),
        ),
        (b'{"y": ' + b"[" * 600 + b"]" * 600 + b"}", ("", "nested too deeply")),
    ],
)
def test_unreadable_arguments_are_faults(raw: bytes, fault: tuple[str, str]) -> None:
    """SA06."""
    assert fault in faults(compiled(str), raw)


def test_the_second_look_is_bounded() -> None:
    """JS-05, TL-20: it costs microseconds per value, which a hostile client must not turn into minutes."""
    ints = compiled(list[int])
    assert faults(ints, {"x": ["a"] * MAX_LISTED}) == [("x[0]", "must be an integer")]
    assert len(faults(ints, {"x": ["a"] * (MAX_LISTED - 1)})) == MAX_OF_PART
    assert ints.bind(json.dumps({"x": [1.0] * (MAX_VALUES - 1)}).encode())["x"] == [1] * (MAX_VALUES - 1)
    assert faults(ints, {"x": [1.0] * MAX_VALUES}) == [("x[0]", "expected `int`, got `float`")]
    long = {"x": "a" * 1_000_000, "y": 5.0}

    def f(x: str, y: int) -> None: ...

    assert compile_arguments(read(f)).bind(json.dumps(long).encode()) == {"x": long["x"], "y": 5}


def test_mutable_defaults_are_copied_per_call() -> None:
    def f(a: list[int] = [], b: dict[str, list[int]] = {"k": [1]}, c: Node = Node(1)) -> None: ...  # noqa: B006, B008 the case

    arguments = compile_arguments(read(f))
    first = arguments.bind(None)
    first["a"].append(1)
    first["b"]["k"].append(2)
    first["c"].children.append(Node(2))
    assert arguments.bind(None) == {"a": [], "b": {"k": [1]}, "c": Node(1)}
    assert arguments.input_schema["properties"]["b"]["default"] == {"k": [1]}


def test_defaults_are_advertised_where_they_have_a_json_form() -> None:
    marker = object()

    def f(a: Color = Color.BLUE, b: dt.date = dt.date(2026, 1, 1), c: Any = marker, d: int | None = None) -> None: ...

    arguments = compile_arguments(read(f))
    assert [node.get("default", "-") for node in arguments.input_schema["properties"].values()] == ["blue", "2026-01-01", "-", None]
    bound = arguments.bind(None)
    assert (bound["a"], bound["b"], bound["d"]) == (Color.BLUE, dt.date(2026, 1, 1), None)


def test_unset_tells_absent_from_null() -> None:
    def f(x: int | msgspec.UnsetType | None = msgspec.UNSET) -> None: ...

    arguments = compile_arguments(read(f))
    assert arguments.bind(None) == {"x": msgspec.UNSET}
    assert arguments.bind(b'{"x":null}') == {"x": None}
    assert arguments.input_schema["properties"]["x"] == {"anyOf": [{"type": "integer"}, {"type": "null"}]}


def test_classes_of_one_name_are_kept_apart() -> None:
    def named(kind: type) -> type[msgspec.Struct]:
        return msgspec.defstruct("Day", [("x", kind)])

    first, second = named(int), named(str)

    def f(a: Any, b: Any) -> None: ...

    f.__annotations__.update(a=first, b=second)
    schema = compile_arguments(read(f)).input_schema
    assert [node["$ref"] for node in schema["properties"].values()] == ["#/$defs/Day", "#/$defs/Day_2"]
    assert schema["$defs"]["Day_2"]["properties"]["x"] == {"type": "string"}


def unreadable(callback: Callable[[], int]) -> None: ...


def half_resolved(node: Broken) -> None: ...


class Broken(msgspec.Struct):
    value: Missing  # type: ignore[name-defined] # noqa: F821 the case


@pytest.mark.parametrize(
    ("fn", "text"),
    [
        (unreadable, r"unreadable\(\) at .*test_schema.py:\d+: parameter 'callback' is .*Callable.*can't be read from JSON .* Depends\(\)"),
        (half_resolved, r"half_resolved\(\) at .*: parameter 'node' is Broken, .*"),
    ],
)
def test_refusals_name_the_parameter_and_the_way_out(fn: Callable[..., Any], text: str) -> None:
    with pytest.raises(RegistrationError, match=text):
        compile_arguments(read(fn))


def test_typing_module_forms() -> None:
    def f(a: typing.List[int], b: typing.Dict[str, int], c: typing.Union[int, None], d: typing.Tuple[int, ...]) -> None: ...  # noqa: UP006, UP007

    assert compile_arguments(read(f)).bind(b'{"a":[1],"b":{"k":1},"c":null,"d":[1]}') == {"a": [1], "b": {"k": 1}, "c": None, "d": (1,)}

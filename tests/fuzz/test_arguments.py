"""Properties of arguments and results, with `jsonschema_rs` as the judge of what a schema says.

For made-up annotations: what the advertised input schema accepts is what `bind` accepts; what a tool returns fits the advertised output
schema; nothing that a client sends ends in anything but kwargs or `ArgumentFaults`.

JSON Schema can't say all that the engines check. `EXACT` kinds are those where it can. For the others `bind` may refuse more: formats of
dates and UUIDs, base64, decimal strings (formats are annotations in 2020-12). And a set takes repeats, although `uniqueItems` is advertised.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import json
import math
from collections.abc import Callable
from decimal import Decimal
from types import GenericAlias
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import jsonschema_rs
import msgspec
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from one_parameter import compiled
from typing_extensions import TypedDict

from callboard.server.arguments import Arguments
from callboard.server.schema import ArgumentFaults, compile_arguments, compile_raw_schema
from callboard.server.shape import ResultError, compile_result
from callboard.server.signature import read

FEW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])

Kind: TypeAlias = tuple[Any, st.SearchStrategy[Any]]
"""An annotation, and values of it."""

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
INTEGERS = st.integers(-(2**63), 2**63 - 1)
NAMES = st.sampled_from(["a", "b", "_c", "name", "type", "json", "größe"])


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Point(NamedTuple):
    x: int
    y: float = 0.0


class Options(TypedDict, total=False):
    depth: int
    name: str


class Cat(msgspec.Struct, tag="cat"):
    lives: int


class Dog(msgspec.Struct, tag="dog"):
    speed: float


class Tree(msgspec.Struct):
    value: int
    children: list[Tree] = []


def trees() -> st.SearchStrategy[Tree]:
    return st.recursive(st.builds(Tree, INTEGERS), lambda inner: st.builds(Tree, INTEGERS, st.lists(inner, max_size=2)), max_leaves=4)


EXACT: list[Kind] = [
    (str, TEXT),
    (int, INTEGERS),
    (float, FLOATS),
    (bool, st.booleans()),
    (None, st.none()),
    (Any, TEXT | INTEGERS | st.none() | st.lists(st.booleans(), max_size=2)),
    (Literal["a", "b"], st.sampled_from(["a", "b"])),
    (Literal[1, "a"], st.sampled_from([1, "a"])),
    (Color, st.sampled_from(Color)),
    (Level, st.sampled_from(Level)),
    (Point, st.builds(Point, INTEGERS, FLOATS)),
    (Options, st.fixed_dictionaries({}, optional={"depth": INTEGERS, "name": TEXT})),
    (Cat | Dog, st.builds(Cat, INTEGERS) | st.builds(Dog, FLOATS)),
    (Tree, trees()),
    (int | float, INTEGERS | FLOATS),
    (int | str, INTEGERS | TEXT),
    (Annotated[int, msgspec.Meta(ge=1, le=14)], st.integers(1, 14)),
    (Annotated[str, msgspec.Meta(min_length=1, max_length=3)], st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=3)),
]
LOOSE: list[Kind] = [
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    (dt.date, st.dates()),
    (dt.datetime, st.datetimes() | st.datetimes(timezones=st.just(dt.UTC))),
    (dt.time, st.times()),
    (dt.timedelta, st.timedeltas()),
    (set[int], st.sets(INTEGERS, max_size=3)),
    (dict[int, str], st.dictionaries(INTEGERS, TEXT, max_size=2)),
    (dict[str, bytes], st.dictionaries(TEXT, st.binary(max_size=4), max_size=2)),
]


def containers(inner: st.SearchStrategy[Kind]) -> st.SearchStrategy[Kind]:
    def optional(kind: Kind) -> Kind:
        return (kind[0] | None if kind[0] is not None else None), st.none() | kind[1]

    def listed(kind: Kind) -> Kind:
        return GenericAlias(list, (kind[0],)), st.lists(kind[1], max_size=3)

    def mapped(kind: Kind) -> Kind:
        return GenericAlias(dict, (str, kind[0])), st.dictionaries(TEXT, kind[1], max_size=3)

    def paired(first: Kind, second: Kind) -> Kind:
        return GenericAlias(tuple, (first[0], second[0])), st.tuples(first[1], second[1])

    def fields(make: Callable[[dict[str, Any]], Any]) -> st.SearchStrategy[Kind]:
        def build(kinds: dict[str, Kind]) -> Kind:
            cls = make({name: kind[0] for name, kind in kinds.items()})
            return cls, st.builds(cls, **{name: kind[1] for name, kind in kinds.items()})

        return st.dictionaries(NAMES, inner, max_size=3).map(build)

    return st.one_of(
        inner.map(optional),
        inner.map(listed),
        inner.map(mapped),
        st.builds(paired, inner, inner),
        fields(lambda types: msgspec.defstruct("Made", list(types.items()))),
        fields(lambda types: dataclasses.make_dataclass("Made", list(types.items()))),
    )


def kinds(base: list[Kind]) -> st.SearchStrategy[Kind]:
    return st.recursive(st.sampled_from(base), containers, max_leaves=4)


def models(base: list[Kind]) -> st.SearchStrategy[Kind]:
    """A pydantic model around the kinds that both engines know."""

    def build(found: dict[str, Kind]) -> Kind:
        fields: dict[str, Any] = {f"f_{name}": (kind[0], ...) for name, kind in found.items()}
        cls: Any = pydantic.create_model("Model", **fields)
        return cls, st.builds(cls, **{f"f_{name}": kind[1] for name, kind in found.items()})

    return st.dictionaries(st.sampled_from("abc"), st.sampled_from(base), max_size=3).map(build)


# To pydantic, true is 1 in a Literal or an enum of integers.
MODELLED = [
    kind for kind in EXACT if kind[0] not in {Cat | Dog, Tree, Point, Level, Literal[1, "a"]} and not hasattr(kind[0], "__metadata__")
]
JSON = st.recursive(
    st.none() | st.booleans() | INTEGERS | FLOATS | TEXT | st.sampled_from([0, 1, 2, 1.0, 2.0, 14.0, 15, "a", "red", "1", ""]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(TEXT | NAMES | st.sampled_from(["type", "value", "children"]), inner, max_size=3)
    ),
    max_leaves=6,
)


def encodable(kind: Kind) -> st.SearchStrategy[Any]:
    """Values of a kind as JSON values, some of them with an integer written as a float, or with one part replaced by something else."""

    def plain(value: Any) -> Any:
        return msgspec.json.decode(msgspec.json.encode(value, enc_hook=lambda model: model.model_dump(mode="json")))

    values = kind[1].map(plain)
    return values | values.map(floated) | st.builds(replaced, values, JSON, st.randoms(use_true_random=False))


def floated(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: floated(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [floated(inner) for inner in value]
    return float(value) if type(value) is int and float(value) == value else value


def replaced(value: Any, other: Any, random: Any) -> Any:
    if isinstance(value, dict) and value and random.random() < 0.7:
        key = random.choice(sorted(value))
        return {**value, key: replaced(value[key], other, random)}
    if isinstance(value, list) and value and random.random() < 0.7:
        at = random.randrange(len(value))
        return [*value[:at], replaced(value[at], other, random), *value[at + 1 :]]
    return other


def accepts(arguments: Arguments, instance: Any) -> bool:
    return isinstance(bound(arguments, json.dumps(instance).encode()), dict)


def bound(arguments: Arguments, raw: bytes) -> dict[str, Any] | str:
    """The keyword arguments, or what is wrong."""
    try:
        return arguments.bind(raw)
    except ArgumentFaults as faults:
        return "\n".join(fault.expected for fault in faults.faults)


@FEW
@given(st.data(), kinds(EXACT))
def test_what_the_schema_accepts_is_what_bind_accepts(data: st.DataObject, kind: Kind) -> None:
    """JS-02, TL-20."""
    arguments = compiled(kind[0])
    jsonschema_rs.meta.validate(arguments.input_schema)
    instance = {"x": data.draw(encodable(kind) | JSON)}
    assert accepts(arguments, instance) == jsonschema_rs.is_valid(arguments.input_schema, instance)


@FEW
@given(st.data(), models(MODELLED))
def test_what_the_schema_accepts_is_what_pydantic_accepts(data: st.DataObject, kind: Kind) -> None:
    """JS-02, TL-20."""
    arguments = compiled(kind[0])
    instance = {"x": data.draw(encodable(kind) | JSON)}
    assert accepts(arguments, instance) == jsonschema_rs.is_valid(arguments.input_schema, instance)


@FEW
@given(st.data(), kinds(EXACT + LOOSE))
def test_values_of_a_type_are_accepted_as_arguments(data: st.DataObject, kind: Kind) -> None:
    arguments = compiled(kind[0])
    instance = {"x": data.draw(kind[1])}
    raw = msgspec.json.encode(instance)
    assert arguments.bind(raw) == instance
    assert jsonschema_rs.is_valid(arguments.input_schema, msgspec.json.decode(raw))


@FEW
@given(st.data(), kinds(EXACT + LOOSE) | models(MODELLED))
def test_results_fit_the_output_schema(data: st.DataObject, kind: Kind) -> None:
    """TL-08, TL-10."""
    shape = compile_result(kind[0])
    value = data.draw(kind[1])
    content, structured, _ = shape.shape(value)
    if shape.output_schema is None:
        return
    assert structured is not None
    assert [getattr(block, "text", None) for block in content] == [bytes(structured).decode()]
    jsonschema_rs.meta.validate(shape.output_schema)
    assert shape.output_schema.get("$ref") is None
    jsonschema_rs.validate(shape.output_schema, json.loads(bytes(structured)))


@FEW
@given(st.data(), kinds(EXACT), kinds(EXACT))
def test_a_result_of_another_type_never_breaks_the_schema(data: st.DataObject, kind: Kind, other: Kind) -> None:
    """TL-08."""
    shape = compile_result(kind[0])
    try:
        _, structured, _ = shape.shape(data.draw(other[1]))
    except ResultError:
        return
    if shape.output_schema is not None and structured is not None:
        jsonschema_rs.validate(shape.output_schema, json.loads(bytes(structured)))


def modelled(x: Annotated[int, pydantic.Field(ge=1)], y: dict[str, str] | None = None) -> None: ...


def structured(x: int, y: Tree | None = None, z: Cat | Dog | None = None) -> None: ...


RAW = {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"oneOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["x"]}
ENGINES = {"msgspec": compile_arguments(read(structured)), "pydantic": compile_arguments(read(modelled)), "raw": compile_raw_schema(RAW)}
SPOILT = st.sampled_from(
    [b"{", b'"', b"\\ud800", b"\xff", b"1e999", b"1" * 5000, b"NaN", b"[" * 3000, b'{"x":' * 300, b"}", b":", b",", b"null"]
)


@pytest.mark.parametrize("engine", ENGINES)
@given(raw=st.binary(max_size=40) | JSON.map(json.dumps).map(str.encode) | st.lists(SPOILT, max_size=6).map(b"".join))
def test_whatever_is_sent_ends_in_kwargs_or_faults(engine: str, raw: bytes) -> None:
    """SA06."""
    outcome = bound(ENGINES[engine], raw)
    assert isinstance(outcome, dict) or outcome.strip()


@given(value=JSON | st.text() | st.floats())
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_whatever_is_returned_ends_in_json_or_a_result_error(value: Any) -> None:
    """SA07."""
    try:
        content, structured, _ = compile_result(Any).shape(value)
    except ResultError:
        assert (isinstance(value, float) and not math.isfinite(value)) or "\\ud" in ascii(value)
    else:
        assert msgspec.json.encode(content)
        assert structured is None or json.loads(bytes(structured)) == value

"""Arguments by pydantic that aren't models alone: dataclasses, Structs and TypedDicts beside them, unions, defaults."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
import pytest
import typing_extensions
from one_parameter import faults
from pydantic import BaseModel, Field, field_validator

from callboard.server.arguments import Arguments
from callboard.server.pydantic_schema import PydanticArguments, _effort
from callboard.server.schema import compile_arguments
from callboard.server.signature import read


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


def by_pydantic(fn: Callable[..., Any]) -> Arguments:
    arguments = compile_arguments(read(fn))
    assert isinstance(arguments, PydanticArguments)
    return arguments


@dataclasses.dataclass
class Spot:
    x: float
    p0: int = 5


@dataclasses.dataclass
class Named:
    name: str
    spot: Spot | None = None


class Options(typing_extensions.TypedDict):
    depth: int


def test_dataclasses_beside_models_and_in_unions() -> None:
    """M1: what is said of the argument list holds for no class inside."""

    def f(x: Spot | Named, y: Options | None = None, p0: Cat | None = None) -> None: ...

    arguments = by_pydantic(f)
    assert arguments.input_schema["$defs"]["Spot"] == {
        "type": "object",
        "properties": {"x": {"type": "number"}, "p0": {"default": 5, "type": "integer"}},
        "required": ["x"],
    }
    assert "additionalProperties" not in arguments.input_schema["$defs"]["Options"]
    assert arguments.bind(b'{"x":{"x":1.5,"p0":1}}') == {"x": Spot(1.5, 1), "y": None, "p0": None}
    assert arguments.bind(b'{"x":{"name":"a","spot":{"x":1},"more":1},"y":{"depth":1,"more":2},"p0":{"kind":"cat","lives":9}}') == {
        "x": Named("a", Spot(1)),
        "y": {"depth": 1},
        "p0": Cat(kind="cat", lives=9),
    }
    assert faults(arguments, {"x": {"x": 1}, "more": 1}) == [("more", "unknown argument; there are: x, y, p0")]


def test_aliases_of_every_form_win_over_the_name() -> None:
    def f(
        a: Annotated[int, Field(validation_alias="A")], b: Annotated[int, Field(alias="B")] = 1, c: int = Field(2, alias="C")
    ) -> None: ...

    assert by_pydantic(f).bind(b'{"A":1,"B":2,"C":3}') == {"a": 1, "b": 2, "c": 3}


class Boxed(msgspec.Struct):
    spot: Named


def test_structs_inside_keep_the_defaults_of_their_dataclasses() -> None:
    """M2."""

    def f(x: Boxed, model: Cat | None = None) -> None: ...

    assert vars(by_pydantic(f).bind(b'{"x":{"spot":{"name":"a"}}}')["x"].spot) == {"name": "a", "spot": None}


def test_defaults_that_do_not_fit_are_not_advertised() -> None:
    """M6."""

    class Limits(BaseModel):
        low: int = "none"  # type: ignore[assignment] # the case
        high: int = 9

    def f(x: Limits, y: Annotated[int, Field(ge=1)] = -1, z: Annotated[int, Field(ge=1)] = 1) -> None: ...

    arguments = by_pydantic(f)
    assert [node.get("default") for node in arguments.input_schema["properties"].values()] == [None, None, 1]
    assert [node.get("default") for node in arguments.input_schema["$defs"]["Limits"]["properties"].values()] == [None, 9]
    assert arguments.bind(b'{"x":{}}')["y"] == -1


class City(BaseModel):
    name: str

    @field_validator("name")
    @classmethod
    def check(cls, name: str) -> str:
        if name.startswith("X"):
            raise ValueError("no city begins with X")
        return name


def test_of_alternatives_that_fit_by_schema_the_authors_check_speaks() -> None:
    """M11."""

    def f(place: Spot | City | None, n: int = 0) -> None: ...

    assert faults(by_pydantic(f), {"place": {"name": "Xy"}}) == [("place.name", "no city begins with X")]
    assert faults(by_pydantic(f), {"place": {"name": "Xy"}, "n": "1"}) == [
        ("n", "must be an integer"),
        ("place.name", "no city begins with X"),
    ]


class And(BaseModel):
    left: And | Or | Lit
    right: And | Or | Lit


class Or(BaseModel):
    left: And | Or | Lit
    right: And | Or | Lit


class Lit(BaseModel):
    value: int


def both(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = {"left": value, "right": {"value": 1}}
    return value


@pytest.mark.parametrize("leaf", [1, "x"])
def test_alternatives_that_hold_themselves_cost_little(leaf: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A1: pydantic reads a value twice as often with every level; what would take long is refused."""

    def f(e: And | Or | Lit) -> None: ...

    arguments = by_pydantic(f)
    assert isinstance(arguments.bind(msgspec.json.encode({"e": both({"value": 1}, 10)}))["e"], And)
    began = time.process_time()
    for _ in range(2):
        found = faults(arguments, {"e": both({"value": leaf}, 60)})
        assert found == [("", "nested too deeply for the alternatives that they are made of")]
    assert time.process_time() - began < 0.5
    (line,) = caplog.messages
    assert line.startswith("f() at ")
    assert "Field(discriminator=...)" in line


def test_alternatives_that_do_not_fit_the_schema_cost_little() -> None:
    """A1: these take pydantic longest, seconds at this depth."""

    def f(e: And | Or | Lit) -> None: ...

    began = time.process_time()
    assert faults(by_pydantic(f), {"e": both({"value": "x"}, 12)}) == [("e", "must be an object with left, right or an object with value")]
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize("wide", [msgspec.json.encode({"e": [{"x": {}}] * 50_000}), b'{"e":["' + b'\\"{' * 100_000 + b'"]}'])
def test_the_guard_costs_little(wide: bytes) -> None:
    """A14: it reads braces outside of strings, nothing else."""
    began = time.process_time()
    effort, objects = _effort(wide, 2)
    assert effort <= 8 * objects
    assert time.process_time() - began < 0.2


def test_long_lists_of_alternatives_are_no_matter() -> None:
    def f(e: list[And | Or | Lit]) -> None: ...

    assert len(by_pydantic(f).bind(msgspec.json.encode({"e": [both({"value": 1}, 2)] * 3_000}))["e"]) == 3_000


class Not(BaseModel):
    op: Literal["not"]
    of: Condition


class Same(BaseModel):
    op: Literal["same"]
    of: Condition


class Is(BaseModel):
    op: Literal["is"]
    value: int


Condition = typing_extensions.TypeAliasType("Condition", Annotated[Not | Same | Is, Field(discriminator="op")])


def test_alternatives_with_a_discriminator_nest_as_they_like() -> None:
    """A1: the way out for authors."""

    def f(condition: Condition) -> None: ...

    def nested(leaf: Any) -> bytes:
        for _ in range(50):
            leaf = {"op": "not", "of": leaf}
        return msgspec.json.encode({"condition": leaf})

    arguments = by_pydantic(f)
    assert isinstance(arguments.bind(nested({"op": "is", "value": 1}))["condition"], Not)
    assert faults(arguments, nested({"op": "is", "value": "x"})) == [("condition" + ".of" * 50 + ".value", "must be an integer")]

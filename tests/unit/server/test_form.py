"""Forms: every primitive from every kind of class, read back as Python values, held against the protocol's schemas and other people's models."""

import dataclasses
import datetime as dt
import json
import sys
import uuid
from enum import Enum, IntEnum
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Optional

import attrs
import msgspec
import pytest
import typing_extensions as te
from forms import DEFAULTS, ENUM_ANSWER, ENUMS, RAW_DEFAULTS, refusals, refused
from msgspec import Meta
from oracles import faults, mcp_types_result, shared_schema, validate
from pydantic import BaseModel, Field

from callboard.server.form import FormError, compile_form


class Status(Enum):
    ACTIVE = "active"
    ON_HOLD = "on-hold"


class Region(Enum):
    FRANKFURT = "eu-1"
    US_EAST = "us-1"
    anywhere = "*"


Size = Literal["small", "large"]
Name = Annotated[str, Meta(min_length=2, max_length=20, pattern="^[A-Z]", title="Full name")]
Email = Annotated[str, Meta(extra_json_schema={"format": "email"})]
Link = Annotated[str, Meta(extra_json_schema={"format": "uri"})]
Age = Annotated[int, Meta(ge=18, le=120), "In years"]
Sizes = Annotated[list[Size], Meta(min_length=1, max_length=2)]
Titled = Annotated[Size, {"small": "Fits in a bag", "large": "Needs a car"}]


@dataclasses.dataclass
class Data:
    """An order.

    Attributes:
        name: Who gets it.
    """

    name: Name
    email: Email
    age: Age
    due: dt.date
    at: dt.datetime
    score: float
    go: bool
    status: Status
    region: Region
    size: Size
    titled: Titled
    sizes: Sizes
    regions: list[Region]
    note: str | None


class Record(msgspec.Struct):
    """An order.

    Attributes:
        name: Who gets it.
    """

    name: Name
    email: Email
    age: Age
    due: dt.date
    at: dt.datetime
    score: float
    go: bool
    status: Status
    region: Region
    size: Size
    titled: Titled
    sizes: Sizes
    regions: list[Region]
    note: str | None


class Typed(te.TypedDict):
    """An order.

    Attributes:
        name: Who gets it.
    """

    name: Name
    email: Email
    age: Age
    due: dt.date
    at: dt.datetime
    score: float
    go: bool
    status: Status
    region: Region
    size: Size
    titled: Titled
    sizes: Sizes
    regions: list[Region]
    note: str | None


@attrs.define
class Attrs:
    """An order.

    Attributes:
        name: Who gets it.
    """

    name: Name
    email: Email
    age: Age
    due: dt.date
    at: dt.datetime
    score: float
    go: bool
    status: Status
    region: Region
    size: Size
    titled: Titled
    sizes: Sizes
    regions: list[Region]
    note: str | None


class Model(BaseModel):
    """An order.

    Attributes:
        name: Who gets it.
    """

    name: str = Field(min_length=2, max_length=20, pattern="^[A-Z]", title="Full name")
    email: str = Field(json_schema_extra={"format": "email"})
    age: int = Field(ge=18, le=120, description="In years")
    due: dt.date
    at: dt.datetime
    score: float
    go: bool
    status: Status
    region: Region
    size: Size
    titled: Titled
    sizes: Annotated[list[Size], Field(min_length=1, max_length=2)]
    regions: list[Region]
    note: str | None


class Pick(Enum):
    FIRST_OPTION = "value1"
    SECOND_OPTION = "value2"
    THIRD_OPTION = "value3"


Options = Literal["option1", "option2", "option3"]


@dataclasses.dataclass
class Enums:
    untitledSingle: Options  # noqa: N815 the suite's names
    titledSingle: Pick  # noqa: N815
    untitledMulti: list[Options]  # noqa: N815
    titledMulti: list[Pick]  # noqa: N815


KINDS: list[Any] = [Data, Record, Typed, Attrs, Model]
REGIONS = [{"const": "eu-1", "title": "Frankfurt"}, {"const": "us-1", "title": "Us east"}, {"const": "*", "title": "anywhere"}]
PROPERTIES: dict[str, Any] = {
    "name": {"type": "string", "title": "Full name", "description": "Who gets it.", "minLength": 2, "maxLength": 20, "pattern": "^[A-Z]"},
    "email": {"type": "string", "format": "email"},
    "age": {"type": "integer", "description": "In years", "minimum": 18, "maximum": 120},
    "due": {"type": "string", "format": "date"},
    "at": {"type": "string", "format": "date-time"},
    "score": {"type": "number"},
    "go": {"type": "boolean"},
    "status": {"type": "string", "enum": ["active", "on-hold"]},
    "region": {"type": "string", "oneOf": REGIONS},
    "size": {"type": "string", "enum": ["small", "large"]},
    "titled": {"type": "string", "oneOf": [{"const": "small", "title": "Fits in a bag"}, {"const": "large", "title": "Needs a car"}]},
    "sizes": {"type": "array", "items": {"type": "string", "enum": ["small", "large"]}, "minItems": 1, "maxItems": 2},
    "regions": {"type": "array", "items": {"anyOf": REGIONS}},
    "note": {"type": "string"},
}
CONTENT: dict[str, Any] = {
    "name": "Ada",
    "email": "ada@example.com",
    "age": 36,
    "due": "2026-12-01",
    "at": "2026-12-01T09:30:00Z",
    "score": 9.5,
    "go": True,
    "status": "on-hold",
    "region": "*",
    "size": "large",
    "titled": "small",
    "sizes": ["small", "large"],
    "regions": ["us-1"],
}
VALUES: dict[str, Any] = {
    **CONTENT,
    "due": dt.date(2026, 12, 1),
    "at": dt.datetime(2026, 12, 1, 9, 30, tzinfo=dt.UTC),
    "status": Status.ON_HOLD,
    "region": Region.anywhere,
    "regions": [Region.US_EAST],
    "note": None,
}


def fields(value: Any) -> dict[str, Any]:
    """Fields of an instance, whatever it is."""
    return dict(value) if isinstance(value, dict) else {name: getattr(value, name) for name in VALUES}


@pytest.mark.parametrize("kind", KINDS)
def test_every_primitive_from_every_kind_of_class(kind: Any) -> None:
    """EL-04, EL-05: the flat schema; and the answer comes back as the class says."""
    form = compile_form(kind)
    assert form.schema["type"] == "object"
    assert form.schema["properties"] == PROPERTIES
    assert form.schema["required"] == [name for name in PROPERTIES if name != "note"]
    value = form.read(CONTENT)
    assert fields(value) == VALUES
    assert type(value) is (dict if kind is Typed else kind)
    assert fields(form.read({**CONTENT, "note": "soon"})) == {**VALUES, "note": "soon"}


@shared_schema
@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
@pytest.mark.parametrize("kind", [*KINDS, {"type": "object", "properties": DEFAULTS | ENUMS}, None, Region, list[Size], dt.date])
def test_forms_are_valid_by_the_protocol(kind: Any, version: str) -> None:
    """EL-04, EL-05."""
    schema = compile_form(kind).schema
    validate("ElicitRequestFormParams", {"message": "?", "requestedSchema": schema}, version)
    for node in schema["properties"].values():
        validate("PrimitiveSchemaDefinition", node, version)


@pytest.mark.parametrize("kind", [*KINDS, {"type": "object", "properties": DEFAULTS | ENUMS}, None, Region])
def test_other_peoples_clients_read_forms(kind: Any) -> None:
    request = {"method": "elicitation/create", "params": {"mode": "form", "message": "?", "requestedSchema": compile_form(kind).schema}}
    mcp_types_result("tools/call", {"resultType": "input_required", "inputRequests": {"q": request}})


@shared_schema
def test_the_narrowing_is_needed() -> None:
    """What the engines say of a UUID would not be valid; this keeps the oracle above honest."""
    assert faults("PrimitiveSchemaDefinition", {"type": "string", "format": "uuid"})


def test_every_fault_at_once_without_the_values() -> None:
    """EL-14, SEP-1034: what the user reads; in the order of the form."""
    wrong = {
        "name": "ada-SENTINEL",
        "email": "SENTINEL",
        "age": 7,
        "due": "SENTINEL",
        "at": 3.25,
        "score": 1,
        "go": True,
        "status": "SENTINEL",
        "region": "SENTINEL",
        "titled": ["SENTINEL"],
        "sizes": ["small", "SENTINEL"],
        "regions": [],
        "note": 5,
    }
    expected = {
        "name": "must be a string of 2 to 20 characters matching ^[A-Z]",
        "email": "must be an email address",
        "age": "must be an integer between 18 and 120",
        "due": "must be a date like 2026-01-31",
        "at": "must be a date and time like 2026-01-31T09:30:00Z",
        "status": 'must be one of "active", "on-hold"',
        "region": 'must be one of "eu-1", "us-1", "*"',
        "size": "required, missing",
        "titled": 'must be one of "small", "large"',
        "sizes[1]": 'must be one of "small", "large"',
        "note": "must be a string",
    }
    for kind in KINDS:
        found = refusals(compile_form(kind), wrong)
        assert found == expected
        assert list(found) == list(expected)
    with pytest.raises(FormError) as caught:
        compile_form(Data).read(wrong)
    assert "SENTINEL" not in str(caught.value)
    assert str(caught.value).splitlines()[:2] == ["The answer doesn't fit the form:", f"- name: {expected['name']}"]


@pytest.mark.parametrize("content", [None, "x", 5, [1], [], True])
def test_an_answer_is_an_object(content: Any) -> None:
    for kind in (Data, str, None, {"type": "object", "properties": {}}):
        assert refusals(compile_form(kind), content) == {"": "must be an object with the form's fields"}


def test_what_the_form_does_not_ask_for_is_dropped() -> None:
    """Clients that send more are not refused, and nothing unasked reaches the function."""

    class Closed(msgspec.Struct, forbid_unknown_fields=True):
        go: bool

    class ClosedModel(BaseModel, extra="forbid"):
        go: bool

    for kind in (Closed, ClosedModel):
        assert compile_form(kind).read({"go": True, "__class__": "x", "more": {}}).go is True
    raw = {"type": "object", "properties": {"go": {"type": "boolean"}}, "additionalProperties": False}
    assert compile_form(raw).read({"go": False, "more": 1}) == {"go": False}


def test_integral_floats_are_integers_and_nothing_else_is_coerced() -> None:
    """As in tool arguments: no text becomes a number, no number a boolean."""
    form = compile_form(Data)
    age = form.read({**CONTENT, "age": 36.0}).age
    assert (type(age), age) == (int, 36)
    assert compile_form(int).read({"value": 5.0}) == 5
    assert type(compile_form(float).read({"value": 5})) is float
    for kind, value in ((int, 5.5), (int, "5"), (int, True), (bool, 1), (bool, "true"), (str, 5), (float, "1"), (dt.date, 20260101)):
        assert set(refusals(compile_form(kind), {"value": value})) == {"value"}


@dataclasses.dataclass
class WithDefaults:
    name: str = "John Doe"
    age: int = 30
    score: float = 95.5
    status: Literal["active", "inactive", "pending"] = "active"
    verified: bool = True


class StructDefaults(msgspec.Struct):
    name: str = "John Doe"
    age: int = 30
    score: float = 95.5
    status: Literal["active", "inactive", "pending"] = "active"
    verified: bool = True


class ModelDefaults(BaseModel):
    name: str = "John Doe"
    age: int = 30
    score: float = 95.5
    status: Literal["active", "inactive", "pending"] = "active"
    verified: bool = True


@pytest.mark.parametrize("kind", [WithDefaults, StructDefaults, ModelDefaults, RAW_DEFAULTS])
def test_defaults_are_shown_and_stand_in(kind: Any) -> None:
    """EL-06, SEP-1034: a default on every type."""
    form = compile_form(kind)
    assert form.schema == {"type": "object", "properties": DEFAULTS}
    expected = {name: node["default"] for name, node in DEFAULTS.items()}
    for content, changed in (({}, {}), ({"age": 31, "verified": False}, {"age": 31, "verified": False})):
        value = form.read(content)
        assert (
            value == expected | changed if isinstance(value, dict) else all(getattr(value, n) == w for n, w in (expected | changed).items())
        )


def test_defaults_of_choices_dates_and_lists() -> None:
    @dataclasses.dataclass
    class More:
        region: Region = Region.US_EAST
        due: dt.date = dt.date(2026, 1, 31)
        sizes: Sizes = dataclasses.field(default_factory=lambda: ["large"])
        regions: set[Region] = dataclasses.field(default_factory=lambda: {Region.FRANKFURT})
        none: str | None = None
        odd: Annotated[int, Meta(ge=1)] = -1

    class MoreModel(BaseModel):
        region: Region = Region.US_EAST
        sizes: list[Size] = ["large"]

    form = compile_form(More)
    shown = {name: node.get("default") for name, node in form.schema["properties"].items()}
    assert shown == {"region": "us-1", "due": "2026-01-31", "sizes": ["large"], "regions": ["eu-1"], "none": None, "odd": None}
    assert "default" not in form.schema["properties"]["none"]
    assert "default" not in form.schema["properties"]["odd"], "a sentinel outside of what is asked for"
    assert form.read({}) == More()
    assert form.read({}).sizes is not form.read({}).sizes
    properties = compile_form(MoreModel).schema["properties"]
    assert (properties["region"]["default"], properties["sizes"]["default"]) == ("us-1", ["large"])


def test_defaults_of_a_typed_dict_stand_in_its_schema() -> None:
    """EL-06: a TypedDict has no defaults of its own."""

    class Loose(te.TypedDict):
        days: te.NotRequired[Annotated[int, Meta(extra_json_schema={"default": 3})]]
        note: str | None
        more: te.NotRequired[bool]

    form = compile_form(Loose)
    assert form.schema["properties"]["days"] == {"type": "integer", "default": 3}
    assert form.read({}) == {"days": 3, "note": None}


def test_optional_fields() -> None:
    """No answer can be null (EL-07): what may be None may be left out. Clients that send null for an empty field are understood."""

    class Optionals(msgspec.Struct):
        a: int | None
        b: Optional[Region]  # noqa: UP045 a form that people write
        c: Literal["x", None]  # noqa: PYI061 as above
        d: str | None = "d"

    form = compile_form(Optionals)
    assert "required" not in form.schema
    assert form.schema["properties"]["c"] == {"type": "string", "enum": ["x"]}
    assert form.read({}) == Optionals(None, None, None, "d")
    assert form.read({"a": 1, "b": "*", "c": "x", "d": None}) == Optionals(1, Region.anywhere, "x", None)
    assert refusals(form, {"a": "1"}) == {"a": "must be an integer"}
    assert refusals(compile_form(int), {"value": None}) == {"value": "must be an integer"}
    assert refusals(compile_form(RAW_DEFAULTS), {"age": None}) == {"age": "must be an integer"}


@pytest.mark.parametrize(
    ("kind", "schema", "content", "value"),
    [
        (str, {"type": "string"}, "x", "x"),
        (int, {"type": "integer"}, 5, 5),
        (float, {"type": "number"}, 0.5, 0.5),
        (bool, {"type": "boolean"}, False, False),
        (Size, {"type": "string", "enum": ["small", "large"]}, "small", "small"),
        (Status, {"type": "string", "enum": ["active", "on-hold"]}, "active", Status.ACTIVE),
        (Region, {"type": "string", "oneOf": REGIONS}, "eu-1", Region.FRANKFURT),
        (list[Size], {"type": "array", "items": {"type": "string", "enum": ["small", "large"]}}, ["small"], ["small"]),
        (set[Region], {"type": "array", "items": {"anyOf": REGIONS}}, ["*"], {Region.anywhere}),
        (dt.date, {"type": "string", "format": "date"}, "2026-01-31", dt.date(2026, 1, 31)),
        (dt.datetime, {"type": "string", "format": "date-time"}, "2026-01-31T09:30:00", dt.datetime(2026, 1, 31, 9, 30)),  # noqa: DTZ001
        (uuid.UUID, {"type": "string"}, str(uuid.UUID(int=5)), uuid.UUID(int=5)),
        (Annotated[int, Meta(gt=0, lt=10, description="How many")], {"type": "integer", "description": "How many", "minimum": 1, "maximum": 9}, 1, 1),
        (Annotated[float, Meta(gt=0)], {"type": "number", "minimum": 0}, 0.1, 0.1),
        (Annotated[int, Field(gt=0)], {"type": "integer", "minimum": 1}, 1, 1),
        (Annotated[list[Size], {"small": "S"}], {"type": "array", "items": {"anyOf": [{"const": "small", "title": "S"}, {"const": "large", "title": "large"}]}}, [], []),
        (Annotated[Region, {Region.anywhere: "No matter"}], {"type": "string", "oneOf": [{"const": "eu-1", "title": "eu-1"}, {"const": "us-1", "title": "us-1"}, {"const": "*", "title": "No matter"}]}, "*", Region.anywhere),
        (Annotated[str, te.Doc("Anything")], {"type": "string", "description": "Anything"}, "", ""),
        (Literal["only"], {"type": "string", "enum": ["only"]}, "only", "only"),
    ],
)  # fmt: skip
def test_a_bare_type_is_one_field(kind: Any, schema: dict[str, Any], content: Any, value: Any) -> None:
    form = compile_form(kind)
    assert form.schema == {"type": "object", "properties": {"value": schema}, "required": ["value"]}
    assert form.read({"value": content}) == value
    assert refusals(form, {}) == {"value": "required, missing"}


def test_limits_that_no_form_can_say_still_hold() -> None:
    """NumberSchema has `minimum` and `maximum`: the nearest is shown, the real ones decide."""
    for kind, value in ((Annotated[float, Meta(gt=0)], 0), (Annotated[int, Meta(multiple_of=5)], 7)):
        assert set(refusals(compile_form(kind), {"value": value})) == {"value"}


def test_none_asks_for_nothing() -> None:
    form = compile_form(None)
    assert form.schema == {"type": "object", "properties": {}}
    assert form.read({}) is None
    assert form.read({"more": 1}) is None


def test_renamed_fields_have_the_names_that_clients_see() -> None:
    class Renamed(msgspec.Struct, rename="camel"):
        """A form.

        Attributes:
            ship_to: Where to.
        """

        ship_to: Annotated[Size, {"small": "S", "large": "L"}]

    class Aliased(BaseModel):
        kind: ClassVar[int] = 5
        ship_to: Annotated[Size, {"small": "S", "large": "L"}] = Field(alias="shipTo")

    choices = [{"const": "small", "title": "S"}, {"const": "large", "title": "L"}]
    assert compile_form(Renamed).schema["properties"] == {"shipTo": {"type": "string", "oneOf": choices, "description": "Where to."}}
    assert compile_form(Aliased).schema["properties"] == {"shipTo": {"type": "string", "oneOf": choices}}
    for kind in (Renamed, Aliased):
        assert compile_form(kind).read({"shipTo": "small"}).ship_to == "small"
        assert refusals(compile_form(kind), {"ship_to": "small"}) == {"shipTo": "required, missing"}


def test_checks_of_the_class_itself() -> None:
    """What no schema can say is said by the author, at the form or at the field."""

    @dataclasses.dataclass
    class Range:
        low: int
        high: int

        def __post_init__(self) -> None:
            if self.low > self.high:
                raise ValueError("low must not be above high")

    form = compile_form(Range)
    assert refusals(form, {"low": 2, "high": 1}) == {"": "low must not be above high"}
    with pytest.raises(FormError, match="- form: low must not be above high"):
        form.read({"low": 2, "high": 1})


CULPRITS: list[tuple[Any, str]] = [
    (Record, "a form is flat"),
    (dict[str, int], "a form is flat"),
    (list[str], "lists of choices only"),
    (list[int], "lists of choices only"),
    (int | str, "one kind of value"),
    (bytes, "elicit_url"),
    (Literal[1, 2], "texts as choices"),
    (IntEnum("Level", ["LOW"]), "texts as choices"),
    (Any, "use one of str"),
    (complex, "no form can ask for"),
    (Annotated[Size, {"tiny": "T"}], "correct the keys"),
]


@pytest.mark.parametrize(("culprit", "way_out"), CULPRITS)
def test_what_is_no_form_is_refused_with_the_way_out(culprit: Any, way_out: str) -> None:
    struct = msgspec.defstruct("Order", [("fine", str), ("wrong", culprit)])
    text = refused(struct)
    assert text.startswith("The form Order: field 'wrong' is ")
    assert way_out in text
    if culprit is not complex:  # which pydantic takes by itself
        made = dataclasses.make_dataclass("Order", [("fine", str), ("wrong", culprit)])
        assert refused(made) == text


def test_what_is_no_type_is_refused() -> None:
    class Pair(NamedTuple):
        a: int

    class Array(msgspec.Struct, array_like=True):
        a: int

    for kind in (Pair, Array):
        assert "field 'value'" in refused(kind)
    for odd in (5, "x", dataclasses.field, object()):
        assert "is nothing that can be asked for; use a dataclass" in refused(odd)


def test_without_pydantic_the_text_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    class Secretive(BaseModel):
        a: int

    monkeypatch.setitem(sys.modules, "pydantic", None)
    assert "pip install 'callboard[pydantic]'" in refused(Secretive)


def test_the_fixture_of_enums_from_a_class() -> None:
    """EL-05: the suite's five but the deprecated one, which only a schema says; an Enum's names are titles."""

    form = compile_form(Enums)
    assert form.schema["properties"] == {name: node for name, node in ENUMS.items() if name != "legacyEnum"}
    answer = form.read({name: value for name, value in ENUM_ANSWER.items() if name != "legacyEnum"})
    assert answer == Enums("option1", Pick.FIRST_OPTION, ["option1", "option2"], [Pick.FIRST_OPTION, Pick.SECOND_OPTION])


def test_forms_are_compiled_once() -> None:
    for kind in (*KINDS, str, Region, list[Size], RAW_DEFAULTS):
        assert compile_form(kind) is compile_form(kind)
    backwards = compile_form(Literal["large", "small"])
    assert backwards.schema["properties"]["value"]["enum"] == ["large", "small"]
    assert compile_form(Literal["small", "large"]).schema["properties"]["value"]["enum"] == ["small", "large"]
    changed = json.loads(json.dumps(RAW_DEFAULTS))
    form = compile_form(changed)
    changed["properties"]["name"]["type"] = "integer"
    assert form.schema == RAW_DEFAULTS, "a later change to the mapping changes nothing"

"""Any form, any answer: a valid one comes back as the type says, an invalid one is refused, and nothing else is raised."""

import dataclasses
import datetime as dt
import uuid
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any, Literal, cast

import attrs
import msgspec
import typing_extensions as te
from forms import refusals
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Meta

from callboard.server.form import FormError, compile_form

Part = tuple[Any, st.SearchStrategy[Any], Callable[[Any], Any]]
WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=8)
WHOLE = st.integers(-(2**53), 2**53)
choices = st.lists(st.text("abcdef", min_size=1, max_size=4), min_size=1, max_size=4, unique=True)


def same(value: Any) -> Any:
    return value


def of_choices(names: list[str]) -> st.SearchStrategy[Part]:
    literal: Any = cast("Any", Literal)[tuple(names)]
    enum: Any = Enum("Choice", [(f"M{at}", name) for at, name in enumerate(names)])  # type: ignore[misc]
    one, some = st.sampled_from(names), st.lists(st.sampled_from(names), max_size=4)
    parts: Any = [
        (literal, one, same),
        (enum, one, enum),
        (list[literal], some, same),
        (list[enum], some, lambda values: [enum(value) for value in values]),
        (Annotated[literal, {names[0]: "T"}], one, same),
    ]
    return st.sampled_from(parts)


plain: list[Part] = [
    (str, WORDS, same),
    (Annotated[str, Meta(max_length=3)], WORDS.map(lambda text: text[:3]), same),
    (int, WHOLE, same),
    (Annotated[int, Meta(ge=0, le=9)], st.integers(0, 9), same),
    (float, st.floats(allow_nan=False, allow_infinity=False), same),
    (bool, st.booleans(), same),
    (dt.date, st.dates().map(dt.date.isoformat), dt.date.fromisoformat),
    (uuid.UUID, st.uuids().map(str), uuid.UUID),
]
part = st.one_of(st.sampled_from(plain), choices.flatmap(of_choices))


def make(style: str, parts: list[Part]) -> Any:
    named: list[tuple[str, Any]] = [(f"f{at}", kind) for at, (kind, _, _) in enumerate(parts)]
    if style == "dataclass":
        return dataclasses.make_dataclass("Made", named)
    if style == "struct":
        return msgspec.defstruct("Made", named)
    if style == "dict":
        return cast("Any", te.TypedDict)("Made", dict(named))
    return attrs.make_class("Made", {name: attrs.field(type=kind) for name, kind in named})


styles = st.sampled_from(["dataclass", "struct", "dict", "attrs"])
WRONG: list[Any] = [{"x": 1}, [5], [["x"]], "\x00 no choice, number or date \x00", None]


@settings(max_examples=100, deadline=None)
@given(styles, st.lists(part, min_size=1, max_size=5), st.data())
def test_a_valid_answer_to_any_form_is_read(style: str, parts: list[Part], data: st.DataObject) -> None:
    form = compile_form(make(style, parts))
    content = {f"f{at}": data.draw(values) for at, (_, values, _) in enumerate(parts)}
    value = form.read(content)
    for at, (_, _, convert) in enumerate(parts):
        name = f"f{at}"
        assert (value[name] if isinstance(value, dict) else getattr(value, name)) == convert(content[name])


@settings(max_examples=100, deadline=None)
@given(styles, st.lists(part, min_size=1, max_size=5), st.data())
def test_an_invalid_answer_to_any_form_is_refused(style: str, parts: list[Part], data: st.DataObject) -> None:
    form = compile_form(make(style, parts))
    content = {f"f{at}": data.draw(values) for at, (_, values, _) in enumerate(parts)}
    at = data.draw(st.integers(0, len(parts) - 1))
    wrong = data.draw(st.sampled_from(WRONG if parts[at][0] is not str else [one for one in WRONG if not isinstance(one, str)]))
    assert {path.partition("[")[0] for path in refusals(form, {**content, f"f{at}": wrong})} == {f"f{at}"}
    del content[f"f{at}"]
    assert refusals(form, content) == {f"f{at}": "required, missing"}


@settings(max_examples=200, deadline=None)
@given(
    styles,
    st.lists(part, max_size=4),
    st.recursive(
        st.none() | st.booleans() | WHOLE | st.floats() | WORDS,
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["f0", "f1", "f2", "f3", "x"]), inner),
    ),
)
def test_any_json_is_read_or_refused(style: str, parts: list[Part], content: Any) -> None:
    form = compile_form(make(style, parts))
    try:
        form.read(content)
    except FormError as refusal:
        assert refusal.faults  # noqa: PT017 either is right

"""URI templates: the RFC's expansions, matching by vectors and against other readers, what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.core.traversal import check_traversal
from callboard.core.uri import UriTemplate, UriTemplateError

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "vectors" / "uri.json").read_text(encoding="utf-8"))


def _rows(name: str) -> list[Any]:
    return [pytest.param(row, id=f"{row.get('case') or row['section']} {row['template']}") for row in VECTORS[name]]


# Expansion


@pytest.mark.parametrize("row", _rows("expand"))
def test_expands_as_the_rfc_shows(row: dict[str, str]) -> None:
    assert UriTemplate(row["template"], matching=False).expand(VECTORS["variables"]) == row["uri"]


@pytest.mark.parametrize(
    ("template", "values", "uri"),
    [
        ("{a}", {"a": 7}, "7"),
        ("{a}", {"a": 1.5}, "1.5"),
        ("{a}", {}, ""),
        ("{a*}", {"a": ["x", None, 2]}, "x,2"),
        ("{a}", {"a": []}, ""),
        ("{a*}", {"a": []}, ""),
        ("x{?a*}", {"a": {"b": None}}, "x"),
        ("{a}", {"a": ("x", "y")}, "x,y"),
        ("{?a*}", {"a": {"b": "", "c": 3}}, "?b=&c=3"),
        ("{;a*}", {"a": {"b": "", "c": 3}}, ";b;c=3"),
        ("{?a*}", {"a": ["", "x"]}, "?a=&a=x"),
        ("{+a}", {"a": "50%/%41%4"}, "50%25/%41%254"),
        ("{a}", {"a": "50%41"}, "50%2541"),
        ("é/{a:1}", {"a": "éé"}, "%C3%A9/%C3%A9"),
        ("%41{a}", {"a": "~"}, "%41~"),
    ],
)
def test_expands_other_values(template: str, values: dict[str, Any], uri: str) -> None:
    assert UriTemplate(template).expand(values) == uri


@pytest.mark.parametrize(("value", "kind"), [(["x"], "list"), ({"a": "x"}, "dict")])
def test_expansion_refuses_a_prefix_of_a_list(value: Any, kind: str) -> None:
    with pytest.raises(ValueError, match=rf"'a' has a prefix length.*not {kind}"):
        UriTemplate("{a:3}").expand({"a": value})


def test_expansion_refuses_a_lone_surrogate() -> None:
    with pytest.raises(ValueError, match="surrogate"):
        UriTemplate("{a}").expand({"a": "\ud800"})


def test_variables_are_in_order_and_once() -> None:
    template = UriTemplate("{b}/{a,b}{?c*}{#b}")
    assert template.variables == ("b", "a", "c")
    assert template.template == "{b}/{a,b}{?c*}{#b}"
    assert repr(template) == "UriTemplate('{b}/{a,b}{?c*}{#b}')"


# Matching


@pytest.mark.parametrize("row", _rows("match"))
def test_matches(row: dict[str, Any]) -> None:
    assert UriTemplate(row["template"]).match(row["uri"]) == row["values"]


@pytest.mark.parametrize("uri", ["t/\ud800", "t/x\udfff"])
def test_a_lone_surrogate_does_not_match(uri: str) -> None:
    assert UriTemplate("t/{a}").match(uri) is None


@pytest.mark.parametrize("row", _rows("bad_syntax"))
@pytest.mark.parametrize("matching", [True, False])
def test_bad_syntax_is_refused_at_its_position(row: dict[str, Any], matching: bool) -> None:
    with pytest.raises(UriTemplateError) as caught:
        UriTemplate(row["template"], matching=matching)
    assert (caught.value.template, caught.value.position) == (row["template"], row["position"])
    assert f"{row['template']!r}, position {row['position']}: " in str(caught.value)


def test_a_lone_surrogate_in_a_template_is_refused() -> None:
    with pytest.raises(UriTemplateError, match="position 1"):
        UriTemplate("a\ud800")


@pytest.mark.parametrize("row", _rows("expand_only"))
def test_what_can_not_be_matched_is_refused_but_expands(row: dict[str, Any]) -> None:
    with pytest.raises(UriTemplateError, match=re.escape(row["template"])) as caught:
        UriTemplate(row["template"])
    assert caught.value.position == row["position"]
    template = UriTemplate(row["template"], matching=False)
    assert template.expand({"a": "1", "b": "2", "c": "3", "z": "4"})
    with pytest.raises(ValueError, match="matching=False"):
        template.match("x")


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
WORD = TEXT.filter(bool)
PLAIN = TEXT.map(lambda text: text.replace("%", "").replace("?", "").replace("#", ""))


# What an expression takes, by expression: everything that its operator can carry both ways.
WIDE: dict[str, st.SearchStrategy[Any]] = {
    "{+wide}": PLAIN.filter(bool),
    "{/wide*}/end": st.lists(TEXT, min_size=1),
    "{;wide}/end": TEXT,
    "y{.wide}": TEXT,
    "{wide}{.l*}": WORD.filter(lambda text: "." not in text),
    "{wide*}": st.lists(TEXT, min_size=1).filter(any),
}
OPTIONAL: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "{?q,r,s*}": {"q": TEXT, "r": TEXT, "s": st.lists(TEXT, min_size=1) | st.dictionaries(st.sampled_from("xyz é&"), TEXT, min_size=1)},
    "{#f}": {"f": PLAIN},
}


@st.composite
def bindings(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """An unambiguous template of every operator, with values for it."""
    names = draw(st.lists(st.sampled_from("abc"), unique=True))
    values: dict[str, Any] = {name: draw(WORD) for name in names}
    wide = draw(st.sampled_from(list(WIDE)))
    values["wide"] = draw(WIDE[wide])
    template = "x://" + "".join(f"{{{name}}}/" for name in names) + wide
    for expression in draw(st.sampled_from([[], ["{?q,r,s*}"], ["{#f}"], ["{?q,r,s*}", "{#f}"]])):
        template += expression
        values.update({name: draw(texts) for name, texts in OPTIONAL[expression].items() if draw(st.booleans())})
    return template, values


@settings(deadline=None)
@given(bindings())
def test_matching_gives_back_what_was_expanded(binding: tuple[str, dict[str, Any]]) -> None:
    text, values = binding
    template = UriTemplate(text)
    assert template.match(template.expand(values)) == values


NARROW = "[^/?#]"
READERS = [
    ("{a}-{b}.{c}", rf"{NARROW}+-{NARROW}+\.{NARROW}+"),
    ("a{a}-a{b}a", rf"a{NARROW}+-a{NARROW}+a"),
    ("{a}{.b}-{c}", rf"{NARROW}+(\.{NARROW}*)?-{NARROW}+"),
    ("a{.b}/{c,d*}", rf"a(\.{NARROW}*)?/{NARROW}+"),
    ("{+a}/{b}.{c}", rf".+/{NARROW}+\.{NARROW}+"),
    ("{+a}.{b}/{c}", rf".+\.{NARROW}+/{NARROW}+"),
    ("{+a}./-{b}", rf".+\./-{NARROW}+"),
    ("{+a}/-/{+b}", ".+/-/.+"),
    ("a{/a*}/{b}", rf"a(/[^?#]*)?/{NARROW}+"),
    ("a{/a*}.{b}", rf"a(/[^?#]*)?\.{NARROW}+"),
    ("a{/a}/{b}-{c}", rf"a(/{NARROW}*)?/{NARROW}+-{NARROW}+"),
]


@pytest.mark.parametrize(("template", "pattern"), READERS, ids=[template for template, _ in READERS])
@settings(deadline=None)
@given(data=st.data())
def test_finds_a_match_exactly_where_a_backtracking_reader_does(template: str, pattern: str, data: st.DataObject) -> None:
    uri = "".join(data.draw(st.lists(st.sampled_from(["a", "b", "/", ".", "-", "/-/", "./-", "a/", "?"]), max_size=9)))
    values = UriTemplate(template).match(uri)
    assert (values is not None) == bool(re.fullmatch(pattern, uri))
    if values is not None:
        assert unquote(UriTemplate(template).expand(values)) == uri


# Traversal


@pytest.mark.parametrize("row", _rows("unsafe"))
def test_refuses_to_leave_the_place(row: dict[str, str]) -> None:
    """SA32: what is refused here never reaches the user's function."""
    values = UriTemplate(row["template"]).match(row["uri"])
    assert values is None or check_traversal(values) == "v"


@pytest.mark.parametrize("row", _rows("safe"))
def test_lets_harmless_values_pass(row: dict[str, str]) -> None:
    values = UriTemplate(row["template"]).match(row["uri"])
    assert values is not None
    assert check_traversal(values) is None


def test_names_the_first_unsafe_variable() -> None:
    assert check_traversal({"a": "x", "b": "..", "c": ".."}) == "b"

"""Arguments that arrive as strings, to the types that a function declares."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Any, Literal

import pytest

from callboard.errors import Fail, Reason, RegistrationError
from callboard.server.signature import read
from callboard.server.strings import StringArguments


class Colour(Enum):
    RED = "red"


def compile_strings(fn: Callable[..., Any], *, strict: bool = True) -> StringArguments:
    return StringArguments(read(fn), strict=strict)


def sample(text: str, number: int = 0, ratio: float = 0.0, flag: bool = False, day: date | None = None, anything: Any = None) -> str:
    return ""


def choice(colour: Colour, size: Literal["s", "m"] = "s") -> str:
    return ""


@pytest.mark.parametrize("text", ["12345", '{"a":1}', "null", "1e5", "", " x ", "true", "é\n", "\x00"])
def test_a_text_stays_what_it_is(text: str) -> None:
    # A24
    assert compile_strings(sample).bind({"text": text}) == {"text": text}
    assert compile_strings(sample).bind({"text": "x", "anything": text})["anything"] == text


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("number", "5", 5),
        ("number", "-5", -5),
        ("ratio", "2.5", 2.5),
        ("ratio", "2", 2.0),
        ("flag", "true", True),
        ("flag", "false", False),
        ("day", "2026-07-28", date(2026, 7, 28)),
    ],
)
def test_other_types_are_read(name: str, text: str, value: Any) -> None:
    found = compile_strings(sample).bind({"text": "", name: text})[name]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "text"),
    [("number", "5.5"), ("number", "five"), ("number", "0x10"), ("ratio", "1/2"), ("flag", "maybe"), ("day", "tomorrow")],
)
def test_what_does_not_fit_is_refused_without_echoing_it(name: str, text: str) -> None:
    # PM-04, PM-07
    with pytest.raises(Fail) as caught:
        compile_strings(sample).bind({"text": "", name: text})
    assert caught.value.reason is Reason.INVALID_PARAMS
    assert name in caught.value.text
    assert text not in caught.value.text


def test_choices_are_choices() -> None:
    assert compile_strings(choice).bind({"colour": "red", "size": "m"}) == {"colour": Colour.RED, "size": "m"}
    with pytest.raises(Fail) as caught:
        compile_strings(choice).bind({"colour": "hunter2", "size": "hunter3"})
    assert "colour" in caught.value.text
    assert "size" in caught.value.text
    assert "hunter" not in caught.value.text


def test_all_faults_are_named_at_once() -> None:
    # PM-04
    with pytest.raises(Fail) as caught:
        compile_strings(sample).bind({"number": "x", "extra": "1", "flag": "y"})
    for name in ("text", "number", "extra", "flag"):
        assert name in caught.value.text


def test_unknown_arguments_are_dropped_where_that_is_asked_for() -> None:
    assert compile_strings(sample, strict=False).bind({"text": "a", "extra": "1"}) == {"text": "a"}


def test_what_no_text_gives_is_refused_when_it_is_registered() -> None:
    class Own:
        pass

    def wants(thing: Own) -> str:
        return ""

    with pytest.raises(RegistrationError, match="thing"):
        compile_strings(wants)


def test_lists_of_a_template_bind_to_lists() -> None:
    def wants(parts: list[str]) -> str:
        return ""

    assert compile_strings(wants).bind({"parts": ["a", "b"]}) == {"parts": ["a", "b"]}


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"text": "", "number": "five"}, "number: must be an integer."),
        ({"text": "", "flag": "maybe"}, "flag: must be true or false."),
        ({"text": "", "day": "tomorrow"}, "day: must be a date like 2026-01-31 or null."),
        ({"number": "5", "extra": "1"}, "text: required, missing; extra: unknown argument."),
        ({"text": "", "b" * 1000: "1"}, f'["{"b" * 64}"]: unknown argument.'),
    ],
)
def test_faults_in_the_words_of_tools(values: dict[str, str], text: str) -> None:
    """M12, M14."""
    with pytest.raises(Fail) as caught:
        compile_strings(sample).bind(values)
    assert caught.value.text == text


def test_choices_are_told() -> None:
    """M14."""
    with pytest.raises(Fail) as caught:
        compile_strings(choice).bind({"colour": "hunter2", "size": "hunter3"})
    assert caught.value.text == 'colour: must be "red"; size: must be one of "s", "m".'


@dataclass
class Range:
    low: int
    high: int = 9


def ranges(numbers: list[int], between: Range | None = None, texts: str | list[str] = "") -> str:
    return ""


def test_lists_and_objects_are_read_from_json() -> None:
    """M20."""
    bound = compile_strings(ranges).bind({"numbers": "[1,2]", "between": '{"low":1}', "texts": "[1]"})
    assert bound == {"numbers": [1, 2], "between": Range(1), "texts": "[1]"}
    assert vars(bound["between"]) == {"low": 1, "high": 9}


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ("1,2", "numbers: must be an array in JSON."),
        ("[1", "numbers: must be an array in JSON."),
        ('["secret"]', "numbers: at [0]: expected `int`, got `str`."),
        ('{"a":1}', "numbers: must be an array in JSON."),
        ("[" * 5000, "numbers: at [0]: expected `int`, got `array`."),
        ('["\ud800"]', "numbers: must be an array in JSON."),
    ],
    ids=lambda value: value[:20].encode("ascii", "replace").decode(),
)
def test_what_is_no_such_json_is_refused(numbers: str, text: str) -> None:
    with pytest.raises(Fail) as caught:
        compile_strings(ranges).bind({"numbers": numbers})
    assert caught.value.text == text

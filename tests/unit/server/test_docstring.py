"""Docstrings of the three conventions, and of none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.server.docstring import Docstring, parse

GOOGLE = """Forecast for a city.

    It takes the nearest station.

    Args:
        city: Name of the city,
            in English.
        days (int, optional): How many days ahead: 1 to 14.
        *rest: More cities.

    Returns:
        One day per entry,
        in order.

    Raises:
        ValueError: There is no such city.

    Example:
        >>> forecast("Oslo")
    """

NUMPY = """Forecast for a city.

    It takes the nearest station.

    Parameters
    ----------
    city : str
        Name of the city,
        in English.
    days, hours : int, default 3
        How far ahead.
    plain
        No type.

    Returns
    -------
    list
        One day per entry.

    Raises
    ------
    ValueError
        There is no such city.

    Notes
    -----
    Slow.
    """

SPHINX = """Forecast for a city.

    :param city: Name of the city,
        in English.
    :param int days: How many days ahead.
    :type city: str
    :returns: One day per entry.
    :rtype: list
    :raises ValueError: There is no such city.

    It takes the nearest station.
    """


def test_google() -> None:
    assert parse(GOOGLE) == Docstring(
        "Forecast for a city.",
        'Forecast for a city.\n\nIt takes the nearest station.\n\nExample:\n    >>> forecast("Oslo")',
        {"city": "Name of the city, in English.", "days": "How many days ahead: 1 to 14.", "rest": "More cities."},
        "One day per entry, in order.",
    )


def test_numpy() -> None:
    assert parse(NUMPY) == Docstring(
        "Forecast for a city.",
        "Forecast for a city.\n\nIt takes the nearest station.\n\nNotes\n-----\nSlow.",
        {"city": "Name of the city, in English.", "days": "How far ahead.", "hours": "How far ahead.", "plain": "No type."},
        "list One day per entry.",
    )


def test_sphinx() -> None:
    assert parse(SPHINX) == Docstring(
        "Forecast for a city.",
        "Forecast for a city.\n\nIt takes the nearest station.",
        {"city": "Name of the city, in English.", "days": "How many days ahead."},
        "One day per entry.",
    )


@pytest.mark.parametrize(
    ("doc", "expected"),
    [
        (None, Docstring()),
        ("", Docstring()),
        ("  \n\t\n", Docstring()),
        ("One line.", Docstring("One line.", "One line.")),
        ("A summary\nof two lines.\n\n\n\nMore.", Docstring("A summary of two lines.", "A summary\nof two lines.\n\nMore.")),
        ("Args:\n    x: First.", Docstring("", "", {"x": "First."})),
        ("Do.\n\nArgs:\nnot indented", Docstring("Do.", "Do.\n\nArgs:\nnot indented")),
        ("Do.\n\nArgs:\n    x:\n        Below.\n    y: Beside.", Docstring("Do.", "Do.", {"x": "Below.", "y": "Beside."})),
        ("Do.\n\nArgs:\n    x (dict[str, Callable[[int], str]]): Typed.", Docstring("Do.", "Do.", {"x": "Typed."})),
        ("Do.\n\nArgs:\n    prose without a colon\n    x: First.\n    x: Again.", Docstring("Do.", "Do.", {"x": "First."})),
        ("Do.\n\nParameters\n----------", Docstring("Do.", "Do.")),
        (":param: nameless", Docstring(":param: nameless", ":param: nameless")),
        ("Args:\n    x: First,\n        in order.\n\n    Text.", Docstring("Text.", "Text.", {"x": "First, in order."})),
        (":unknown field: stays", Docstring(":unknown field: stays", ":unknown field: stays")),
        ("Point.\n\nAttributes:\n    x: Across.", Docstring("Point.", "Point.", {"x": "Across."})),
    ],
)
def test_odd_texts(doc: str | None, expected: Docstring) -> None:
    assert parse(doc) == expected


FRAGMENTS = [
    "Args:",
    "Returns:",
    "Parameters",
    "----------",
    ":param x:",
    ":returns:",
    "    x: y",
    "x : int",
    "\t",
    "    ",
    "Example:",
    ":",
    "-",
    "*",
]


@given(st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=12), max_size=12).map("\n".join) | st.text())
def test_any_text_is_accepted(doc: str) -> None:
    parsed = parse(doc)
    assert not set(parsed.params) - set("".join(char if char.isidentifier() or char.isalnum() else " " for char in doc).split())
    assert all("\n" not in line for line in (parsed.summary, parsed.returns or "", *parsed.params.values()))

"""Cutting a stream of bytes into lines."""

from hypothesis import given
from hypothesis import strategies as st

from callboard.transport.pipe import Lines


@given(st.lists(st.binary(max_size=12)), st.lists(st.integers(1, 9)), st.integers(1, 10))
def test_lines_do_not_depend_on_how_the_bytes_arrive(parts: list[bytes], sizes: list[int], max_line: int) -> None:
    data = b"\n".join(parts)
    expected = [line if len(line) <= max_line else None for line in data.split(b"\n")]

    lines, cut, rest = Lines(max_line), [], data
    for size in sizes:
        cut += lines.feed(rest[:size])
        rest = rest[size:]
    cut += lines.feed(rest)
    last = lines.end()

    whole = [line if len(line) <= max_line else None for line in cut]
    assert whole + ([] if expected[-1] is None else [last]) == expected


def test_an_overlong_line_is_not_kept() -> None:
    """SA38: what is held of it is bounded, and it is reported before its end comes."""
    lines = Lines(1000)
    piece = b"x" * 600
    assert lines.feed(piece) == []
    (beginning,) = lines.feed(piece)
    assert 1000 < len(beginning) <= 1000 + len(piece)
    for _ in range(1000):
        assert lines.feed(piece) == []
    assert lines.end() == b""
    assert lines.feed(piece + b"\nnext\n") == [b"next"]

"""`callboard run --limit NAME=VALUE`: what is read, and what is refused before a program is loaded."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.cli_arguments import Refusal, parse_limits
from callboard.limits import Limits


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([], Limits()),
        (["max_body=1000"], Limits(max_body=1000)),
        (["max_body=8MiB", "max_headers=64KiB"], Limits(max_body=8 << 20, max_headers=64 << 10)),
        (["address_rate=60/min"], Limits(address_rate="60/min")),
        (["log_rate=none"], Limits(log_rate=None)),
        (["head_timeout=2.5"], Limits(head_timeout=2.5)),
        (["body_timeout=3"], Limits(body_timeout=3)),
        (["uncounted_methods=ping,tools/list"], Limits(uncounted_methods=["ping", "tools/list"])),
        (["max_tasks=1", "max_tasks=2"], Limits(max_tasks=2)),
    ],
)
def test_what_is_read(pairs: list[str], expected: Limits) -> None:
    assert parse_limits(pairs) == expected


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        ("max_body", "takes NAME=VALUE, as in max_body=8MiB; max_body has no value."),
        ("max_bdy", "did you mean max_body"),
        ("max_bdy=1", "did you mean max_body"),
        ("max_body=large", "max_body must be an integer"),
        ("max_body=1.5", "max_body must be an integer"),
        ("max_body=8 MB", "max_body must be an integer"),
        ("max_body=1MB", "not '1MB'. A size is a number of bytes, or has KiB, MiB or GiB behind it, as in 8MiB; '1MB' has not."),
        ("max_body=1.5MiB", "KiB, MiB or GiB"),
        ("max_headers=64k", "KiB, MiB or GiB"),
        ("max_body=none", "max_body must be an integer"),
        ("max_body=0", "at least 1"),
        ("max_body=-1KiB", "at least 1"),
        ("address_rate=60", "address_rate is"),
        ("address_rate=60/day", "address_rate is"),
        ("head_timeout=nan", "head_timeout must be"),
        ("=1", "is no limit"),
    ],
)
def test_what_is_refused(pair: str, expected: str) -> None:
    with pytest.raises(Refusal) as refused:
        parse_limits([pair])
    assert expected in str(refused.value)


@given(st.text(max_size=40), st.sampled_from([*Limits.__struct_fields__, "x"]))
def test_whatever_is_given_ends_in_limits_or_a_refusal(text: str, name: str) -> None:
    with suppress(Refusal):
        assert isinstance(parse_limits([f"{name}={text}"]), Limits)

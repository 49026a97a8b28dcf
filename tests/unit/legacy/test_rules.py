"""The options of sessions."""

import math
from typing import Any

import pytest

from callboard.errors import RegistrationError
from callboard.legacy.rules import Rules, make_session_id
from callboard.wire.versions import LEGACY


def test_without_options_sessions_are_as_they_are_documented() -> None:
    rules = Rules()
    assert rules.versions == LEGACY
    assert (rules.sessions, rules.handshake, rules.cancel_on_disconnect) == ("auto", "lenient", "streaming")
    assert (rules.session_ttl, rules.request_timeout) == (300, 60)
    assert (rules.single_stream, rules.reply_on_cancel, rules.json_only) == (False, False, False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("sessions", value) for value in ("on", "", None, True, "OFF")],
        *[("handshake", value) for value in ("loose", None, 1)],
        *[("cancel_on_disconnect", value) for value in ("sometimes", False, None)],
        *[("session_ttl", value) for value in (0, -1, math.nan, "5m", None)],
        *[("request_timeout", value) for value in (0, -0.1, math.nan, None, "60")],
        *[("session_id", value) for value in (None, "id", 1)],
    ],
)
def test_an_option_that_can_not_work_is_refused_by_name(name: str, value: Any) -> None:
    given: dict[str, Any] = {name: value}
    with pytest.raises(RegistrationError, match=name):
        Rules(**given)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("sessions", "off"), ("handshake", "strict"), ("cancel_on_disconnect", "never"), ("cancel_on_disconnect", "always")],
        *[("session_ttl", 0.001), ("request_timeout", math.inf)],
    ],
)
def test_the_edges_of_an_option_are_fine(name: str, value: Any) -> None:
    given: dict[str, Any] = {name: value}
    assert getattr(Rules(**given), name) == value


def test_the_error_says_what_would_be_right() -> None:
    with pytest.raises(RegistrationError, match="'streaming', 'never', 'always', not 'sometimes'"):
        Rules(cancel_on_disconnect="sometimes")  # type: ignore[arg-type] # on purpose
    with pytest.raises(RegistrationError, match="more than 0 seconds, not 0"):
        Rules(session_ttl=0)


def test_a_session_id_is_128_random_bits() -> None:
    """HL-20."""
    ids = {make_session_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(len(each) == 32 and set(each) <= set("0123456789abcdef") for each in ids)

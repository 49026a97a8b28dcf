"""Rates over HTTP: whom a request is counted for, and which messages count."""

from typing import Any

import pytest

from callboard.errors import Fail, Reason
from callboard.limits import PER_ADDRESS, PER_PRINCIPAL, Limits
from callboard.transport.rates import Held, Rates, locate
from callboard.wire.jsonrpc import decode

CALL = decode(b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}')
HOME = ("203.0.113.7", 50_000)


class Clock:
    """A clock that stands until it is moved."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def refused(fail: Held) -> int:
    """Seconds to wait, after a look at the refusal."""
    assert isinstance(fail, Fail)
    assert fail.reason is Reason.RATE
    seconds: int = fail.data["retryAfter"]
    assert f"try again in {seconds} s" in fail.text
    return seconds


@pytest.mark.parametrize(
    ("host", "key", "network"),
    [
        ("203.0.113.7", "203.0.113.7", "203.0.113"),
        ("::ffff:203.0.113.7", "203.0.113.7", "203.0.113"),
        ("2001:db8:1:2:3:4:5:6", "20010db800010002/64", "20010db80001/48"),
        ("2001:db8:1:2::1%eth0", "20010db800010002/64", "20010db80001/48"),
        ("testclient", "testclient", "testclient"),
        ("", "", ""),
    ],
)
def test_an_address_is_counted_by_what_one_subscriber_has(host: str, key: str, network: str) -> None:
    assert tuple(part.lstrip("0") for part in locate(host)) == (key, network)


def test_without_rates_nothing_is_counted() -> None:
    rates = Rates(Limits(), Clock())
    assert (rates.by_address, rates.by_message) == (False, False)
    assert all(rates.refuse_address(HOME) is None and rates.refuse_message(None, HOME, CALL) is None for _ in range(1000))


def test_the_preset_of_addresses() -> None:
    """CM10's HTTP limit: 60 in 60 s, then 429 until there is room again, rounded up and at least 1 s."""
    clock = Clock()
    rates = Rates(Limits(address_rate=PER_ADDRESS), clock)
    for _ in range(60):
        assert rates.refuse_address(HOME) is None
    assert refused(rates.refuse_address(HOME)) == 1
    assert rates.refuse_address(("203.0.113.8", 1)) is None
    clock.now += 0.5
    assert refused(rates.refuse_address(HOME)) == 1
    clock.now += 0.5
    assert rates.refuse_address(HOME) is None


def test_addresses_of_one_network_of_ipv6_are_one() -> None:
    rates = Rates(Limits(address_rate=(2, 60)), Clock())
    assert rates.refuse_address(("2001:db8::1", 1)) is None
    assert rates.refuse_address(("2001:db8::2", 1)) is None
    found = rates.refuse_address(("2001:db8::3", 1))
    assert refused(found) == 30
    assert isinstance(found, Fail)
    assert "address_rate" in found.text
    assert rates.refuse_address(("2001:db8:0:1::3", 1)) is None


def test_the_preset_of_messages() -> None:
    clock = Clock()
    rates = Rates(Limits(message_rate=PER_PRINCIPAL), clock)
    for number in range(50):
        assert rates.refuse_message("ada", (f"203.0.113.{number}", 1), CALL) is None, "whatever the address"
    found = rates.refuse_message("ada", HOME, CALL)
    assert refused(found) == 6
    assert isinstance(found, Fail)
    assert "message_rate" in found.text
    assert rates.refuse_message("bob", HOME, CALL) is None
    assert rates.refuse_message(None, HOME, CALL) is None


def test_a_principal_called_like_an_address_shares_nothing_with_it() -> None:
    rates = Rates(Limits(message_rate=(1, 60)), Clock())
    assert rates.refuse_message("203.0.113.7", HOME, CALL) is None
    assert rates.refuse_message(None, HOME, CALL) is None
    refused(rates.refuse_message(None, HOME, CALL))


@pytest.mark.parametrize(
    ("body", "counts"),
    [
        (b'{"jsonrpc":"2.0","method":"notifications/progress"}', False),
        (b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}', True),
        (b'{"jsonrpc":"2.0","id":1,"result":{}}', False),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping"}', False),
        (b'{"jsonrpc":"2.0","id":1,"method":"completion/complete","params":{}}', True),
        (b"no JSON", True),
    ],
)
def test_which_messages_count(body: bytes, counts: bool) -> None:
    """CP-05: requests of completion are messages like others."""
    rates = Rates(Limits(message_rate=(1, 60), uncounted_methods={"ping"}), Clock())
    assert rates.refuse_message("ada", HOME, decode(body)) is None
    assert (rates.refuse_message("ada", HOME, decode(body)) is not None) is counts


def test_a_batch_is_no_way_around() -> None:
    rates = Rates(Limits(message_rate=(4, 60)), Clock())
    one: Any = b'{"jsonrpc":"2.0","id":%d,"method":"tools/list"}'
    three = decode(b"[%b]" % b",".join(one % number for number in range(3)))
    assert rates.refuse_message("ada", HOME, three) is None
    refused(rates.refuse_message("ada", HOME, three))
    assert rates.refuse_message("ada", HOME, CALL) is None
    huge = decode(b"[%b]" % b",".join(one % number for number in range(500)))
    refused(rates.refuse_message("ada", HOME, huge))

"""The bridge to what stands in front."""

from typing import Any

import pytest

from callboard.auth.principal import Principal
from callboard.auth.upstream import Upstream
from callboard.auth.verifier import Grant, Refusal, Scope
from callboard.errors import RegistrationError


async def found(value: Any) -> Grant | Refusal:
    verifier = Upstream(lambda scope: scope.get("user"))
    given = verifier.find({b"authorization": b"Bearer ann"}, {"user": value, "query_string": b"user=ann"})
    return given if isinstance(given, Refusal) else await verifier.verify(given)


async def test_who_it_is() -> None:
    ann = Principal("ann", ["a"], subject="7", claims={"x": 1})
    assert await found(ann) == Grant(ann)
    granted = await found(ann)
    assert isinstance(granted, Grant)
    assert granted.principal is ann
    assert granted.until is None, "nothing is remembered: the middleware may know better with the next request"
    assert await found("bob") == Grant(Principal("bob"))


async def test_nobody() -> None:
    """AR-10: headers and query are the client's word."""
    assert await found(None) == Refusal("missing")
    assert await found("") == Refusal("missing")
    assert await found(Principal("")) == Refusal("missing")


@pytest.mark.parametrize("value", [7, True, b"ann", ["ann"], {"user": "ann"}, object()])
async def test_a_bridge_that_gives_something_else_lets_nobody_in(value: Any) -> None:
    with pytest.raises(TypeError, match="neither a Principal"):
        await found(value)


def test_a_bridge_that_breaks_lets_nobody_in() -> None:
    def read(scope: Scope) -> str:
        return str(scope["no such key"])

    with pytest.raises(KeyError):
        Upstream(read).find({}, {})


async def _slow(scope: Scope) -> str:
    return "ann"


@pytest.mark.parametrize(("read", "issuers"), [(None, ()), ("user", ()), (_slow, ()), (str, "https://x.example"), (str, [7])])
def test_options_that_cant_work(read: Any, issuers: Any) -> None:
    with pytest.raises(RegistrationError):
        Upstream(read, issuers)


def test_what_it_says_of_itself() -> None:
    assert Upstream(str, ["https://x.example"]).issuers == ("https://x.example",)
    assert Upstream(str).facts() == {"reads": "str"}
    assert "str" in repr(Upstream(str))

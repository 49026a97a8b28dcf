"""The limits: names, defaults, what is refused, and where each is told of."""

import inspect
from typing import Any

import msgspec
import pytest

import callboard
from callboard import RegistrationError, Server
from callboard.compose import SessionOptions
from callboard.limits import PER_ADDRESS, PER_PRINCIPAL, Limits
from callboard.server.limits import read_rate, refuse_moved
from callboard.tasks import MemoryTasks

DEFAULTS = msgspec.structs.asdict(Limits())
RATES = {"address_rate", "message_rate", "log_rate"}
SECONDS = {"listen_lifetime", "head_timeout", "body_timeout", "write_timeout"}
COUNTS = DEFAULTS.keys() - RATES - SECONDS - {"uncounted_methods"}
MAY_BE_ZERO = {"max_listens", "session_buffer", "session_max_pending", "thread_queue"}


def make(name: str, value: Any) -> Limits:
    given: dict[str, Any] = {name: value}
    return Limits(**given)


@pytest.mark.parametrize("name", sorted(COUNTS))
@pytest.mark.parametrize("value", [-1, 1.5, "10", True, [], -(10**30)])
def test_a_count_that_can_not_work_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(RegistrationError, match=f"Limits: {name} must be an integer of at least"):
        make(name, value)


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_none_of_a_thing_only_where_that_makes_sense(name: str) -> None:
    if name in MAY_BE_ZERO:
        assert getattr(make(name, 0), name) == 0
    else:
        with pytest.raises(RegistrationError, match=name):
            make(name, 0)


@pytest.mark.parametrize("name", sorted(SECONDS))
@pytest.mark.parametrize("value", [0, -1, "5", None, True, float("nan")])
def test_a_time_that_can_not_work_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(RegistrationError, match=f"{name} must be a number of seconds above 0"):
        make(name, value)
    assert getattr(make(name, float("inf")), name) > 1e9


@pytest.mark.parametrize("name", sorted(RATES))
@pytest.mark.parametrize(
    "value", ["6/x", "0/s", "/s", "1.5/s", 5, (0, 1), (1, 0), (1, float("inf")), (1,), [1, 1.0], "9999999999/s", (True, 1)]
)
def test_a_rate_that_can_not_work_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(RegistrationError, match=f"Limits: {name} is"):
        make(name, value)
    assert getattr(make(name, None), name) is None


@pytest.mark.parametrize("methods", ["ping", 5, None, [1], iter(["ping"])])
def test_methods_that_are_not_counted_are_a_set_of_names(methods: Any) -> None:
    with pytest.raises(RegistrationError, match="uncounted_methods"):
        Limits(uncounted_methods=methods)


def test_what_could_not_be_read_safely_is_refused() -> None:
    with pytest.raises(RegistrationError, match="max_depth is at most 128"):
        Limits(max_depth=129)
    with pytest.raises(RegistrationError, match="stream_buffer must be at least 65536"):
        Limits(stream_buffer=1000)


def test_rates_are_off_until_somebody_wants_them_and_have_presets() -> None:
    assert (Limits().address_rate, Limits().message_rate) == (None, None)
    assert read_rate(PER_ADDRESS, "x") == (60, 60.0)
    assert read_rate(PER_PRINCIPAL, "x") == (50, 300.0)


def test_one_principal_never_has_all_by_default() -> None:
    for name, value in DEFAULTS.items():
        if name.endswith("_per_principal") and value is not None:
            assert value * 10 <= DEFAULTS[name.removesuffix("_per_principal")]


def test_each_limit_says_what_it_is() -> None:
    text = inspect.getdoc(Limits) or ""
    assert [name for name in DEFAULTS if f"    {name}: " not in text] == []


def test_limits_are_fixed_once_they_are_made() -> None:
    with pytest.raises(AttributeError):
        Limits().max_body = 1  # type: ignore[misc] # on purpose
    with pytest.raises(TypeError):
        Limits(1)  # type: ignore[call-arg] # on purpose


@pytest.mark.parametrize("name", sorted(DEFAULTS))
def test_a_limit_is_no_option_of_anything_else(name: str) -> None:
    """Whoever writes it where it was before is told where it is now."""
    assert name not in SessionOptions.__annotations__
    given: dict[str, Any] = {name: 5}
    makers: list[Any] = [
        lambda: callboard.asgi(Server("desk"), **given),
        lambda: callboard.run(Server("desk"), **given),
        lambda: Server("desk", **given),
        lambda: MemoryTasks(**given),
        lambda: refuse_moved([name]),
    ]
    for maker in makers:
        with pytest.raises(RegistrationError, match=rf"limits=Limits\({name}=\.\.\.\)"):
            maker()


@pytest.mark.parametrize("given", [{"max_body": 5}, 5, "max_body=5", Limits])
def test_what_is_no_limits_is_refused(given: Any) -> None:
    with pytest.raises(RegistrationError, match=r"limits takes a callboard\.limits\.Limits"):
        callboard.asgi(Server("desk"), limits=given)

"""Every input that is kept, fed to its driver; and drivers that are given a product with a fault, which they must find."""

from __future__ import annotations

import re
from functools import partial
from random import Random
from typing import Any

import pytest
from fuzz import auth_drivers, core_drivers
from fuzz.auth_drivers import NOW
from fuzz.drivers import CORPUS, DRIVERS, corpus_of
from fuzz.mutation import Mutator

from callboard.auth import claims
from callboard.auth.guard import Guard
from callboard.auth.jwt import JWT
from callboard.core import exchange, headers, seal, sse, uri
from callboard.legacy.actor import Actor
from callboard.legacy.home import Home
from callboard.transport import pipe, security, stream
from callboard.wire import jsonrpc
from callboard.wire.jsonrpc import RequestId


@pytest.mark.parametrize("name", DRIVERS)
def test_what_is_kept_shows_no_fault(name: str) -> None:
    kept = corpus_of(name)
    assert len(kept) >= 5, "a driver without a corpus starts from nothing"
    for path in kept:
        try:
            DRIVERS[name].run(path.read_bytes())
        except BaseException as error:
            error.add_note(f"input: {path.relative_to(CORPUS.parent)}")
            raise


def test_every_folder_has_a_driver() -> None:
    assert {path.name for path in CORPUS.iterdir()} <= DRIVERS.keys()


@pytest.mark.parametrize("name", DRIVERS)
def test_the_same_seed_makes_the_same_inputs(name: str) -> None:
    kept = [path.read_bytes() for path in corpus_of(name)]
    first, second = (Mutator(Random(7), DRIVERS[name].words, largest=DRIVERS[name].largest) for _ in range(2))
    made = [first.make(kept) for _ in range(200)]
    assert made == [second.make(kept) for _ in range(200)]
    assert len(set(made)) > 100
    assert all(len(data) <= DRIVERS[name].largest for data in made)


def forget_binding(ident: bytes, binding: bytes) -> bytes:
    return b"v1." + ident


def keep_sessions(home: Home, actor: Any) -> None:
    """As if the end of a session left it in the table."""


def fail(*_: Any) -> None:
    raise KeyError("planted")


async def let_in(*_: Any) -> str:
    return "anybody"


def never_answer(*_: Any) -> None:
    """As if an answer was forgotten."""


def cancel_all(actor: Actor, request_id: RequestId, cancel: Any = Actor.cancel) -> None:
    for each in list(actor.machine.calls):
        cancel(actor, each)


PLANTED: list[tuple[str, Any, str, Any]] = [
    ("decode", core_drivers, "decode", partial(jsonrpc.decode, max_depth=10**6)),
    ("decode", jsonrpc, "_find_repeated", lambda body, envelope: None),
    ("decode", jsonrpc, "_known_id", lambda value: value if isinstance(value, str | int | float) else None),
    ("headers", headers, "_is_plain", re.compile(r"[ -~]*").fullmatch),
    ("headers", headers, "_is_field_value", re.compile(r".*", re.DOTALL).fullmatch),
    ("headers", headers, "_same_integer", lambda text, expected: True),
    ("security", security, "_origin_allowed", lambda *_: True),
    ("security", security, "_host_allowed", lambda rules, name, port: "localhost" in name),
    ("sse", sse, "_LINE_END", re.compile(rb"\n")),
    ("sse", sse, "_field", lambda name, value: f"{name}: {value}\n".encode()),
    ("uri", core_drivers, "check_traversal", lambda values, windows: None),
    ("uri", uri, "_find_bad_literal", lambda literal: None),
    ("seal", seal, "_around", forget_binding),
    ("seal", seal, "_canonical", bytes),
    ("bearer", auth_drivers, "read_bearer", lambda value: value[7:].decode("latin-1")),
    ("jwt", claims, "check_expiry", lambda *_: NOW + 60),
    ("jwt", claims, "check_audience", lambda *_, required: None),
    ("jwt", JWT, "_is_signed", lambda *_: True),
    ("modern", exchange.Exchange, "finish", never_answer),
    ("modern", stream.Stream, "leave", never_answer),
    ("legacy", Home, "forget", keep_sessions),
    ("legacy", Actor, "cancel", cancel_all),
    ("guarded", Guard, "admit", let_in),
    ("stdio", pipe.Lines, "feed", lambda reader, data: data.splitlines()),
    ("stdio", jsonrpc, "_diagnose_unreadable", fail),
]
"""A driver, and a fault of the product in its domain: where, and what stands there in place of what is right."""


@pytest.mark.parametrize(
    ("name", "owner", "attribute", "planted"), PLANTED, ids=[f"{name}-{attribute}" for name, _, attribute, _ in PLANTED]
)
def test_a_driver_finds_a_fault_that_was_planted(
    name: str, owner: Any, attribute: str, planted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, attribute, planted)
    kept = [path.read_bytes() for path in corpus_of(name)]
    mutator = Mutator(Random(1), DRIVERS[name].words, largest=4096)
    with pytest.raises(Exception):  # noqa: B017, PT012 - whatever the planted fault comes to
        for data in [*kept, *(mutator.make(kept) for _ in range(3000))]:
            DRIVERS[name].run(data)

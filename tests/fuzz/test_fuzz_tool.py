"""The tool that feeds drivers: it sees exceptions and hangs, makes what fails smaller, and keeps it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from fuzz.drivers import DRIVERS, Driver

from tools import fuzz


def crash(data: bytes) -> None:
    if b"!" in data and data.count(b"?") > 1:
        raise KeyError("planted")


def spin(_: bytes) -> None:
    while True:
        pass


def backtrack(_: bytes) -> None:
    re.match(r"(a+)+$", "a" * 60 + "b")


@pytest.mark.parametrize("hangs", [spin, backtrack])
def test_a_hang_ends_after_a_second(hangs: Callable[[bytes], None]) -> None:
    fault = fuzz.Watch(Driver(hangs, ())).run(b"")
    assert fault is not None
    assert fault.kind == "HangError"


def test_what_raises_is_a_fault_and_the_rest_is_none() -> None:
    watch = fuzz.Watch(Driver(crash, ()))
    fault = watch.run(b"!??")
    assert fault is not None
    assert (fault.kind, fault.place.partition(":")[0]) == ("KeyError", "test_fuzz_tool.py")
    assert watch.run(b"!") is None


def test_a_failing_input_is_made_smaller_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = tmp_path / "tests" / "fuzz" / "corpus"
    start = tmp_path / "start"
    start.write_bytes(b"a?b")
    planted = {"planted": Driver(crash, (b"?", b"!"))}
    for name, value in {"ROOT": tmp_path, "WORK": tmp_path, "CORPUS": corpus, "DRIVERS": planted, "corpus_of": lambda _: [start]}.items():
        monkeypatch.setattr(fuzz, name, value)
    run = fuzz.Run("planted", seed=1, grow=False)
    assert run.feed(20_000, 60) == 1
    (kept,) = (corpus / "planted").iterdir()
    assert sorted(kept.read_bytes()) == sorted(b"!??")
    told = capsys.readouterr().out
    assert f"planted --replay {kept.relative_to(tmp_path)}" in told
    assert "1 faults" in told
    assert not list(tmp_path.glob("*.slot"))


def test_a_new_line_of_the_product_is_seen_once() -> None:
    lines = fuzz.Lines()
    driver = DRIVERS["bearer"]
    assert lines.trace(lambda: driver.run(b"Bearer a"))
    assert not lines.trace(lambda: driver.run(b"Bearer a"))
    assert lines.trace(lambda: driver.run(b"Basic a"))

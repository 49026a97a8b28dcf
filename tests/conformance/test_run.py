"""The runner's judgement: the suite's exit status says less than its checks do."""

import json
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
from conformance.fleet import check_turns, read_turns
from conformance.run import HERE, LEGS, Result, judge, surprises


def check(status: str, name: str = "tools-list", **more: Any) -> dict[str, Any]:
    return {"id": name, "status": status, "description": "what it looks at", **more}


def result(verdict: str) -> Result:
    return Result(verdict, Counter(), ())


@pytest.mark.parametrize(
    ("checks", "verdict"),
    [
        ([check("SUCCESS"), check("SUCCESS", "wire-schema-valid")], "PASS"),
        ([check("SUCCESS"), check("INFO"), check("SKIPPED")], "PASS"),
        ([check("SUCCESS"), check("WARNING")], "WARN"),
        ([check("WARNING"), check("FAILURE"), check("SUCCESS")], "FAIL"),
        ([check("SKIPPED"), check("INFO"), check("SUCCESS", "wire-schema-valid")], "SKIP"),
        ([], "SKIP"),
        (None, "FAIL"),
    ],
)
def test_a_scenario_is_as_good_as_its_worst_check(checks: list[dict[str, Any]] | None, verdict: str) -> None:
    assert judge(checks).verdict == verdict


def test_a_client_that_crashed_proved_nothing() -> None:
    judged = judge([check("SUCCESS")], crash="CLIENT TIMED OUT")
    assert judged.verdict == "FAIL"
    assert judged.short == (("FAILURE", "client", "CLIENT TIMED OUT: see harness.log"),)


def test_what_fell_short_is_named() -> None:
    judged = judge(
        [check("SUCCESS"), check("FAILURE", "a", errorMessage="broken"), check("SKIPPED", "b", details={"reason": "no such tool"})]
    )
    assert judged.short == (("FAILURE", "a", "broken"), ("SKIPPED", "b", "no such tool"))
    assert judged.counts == {"SUCCESS": 1, "FAILURE": 1, "SKIPPED": 1}


def test_the_expected_is_no_surprise() -> None:
    results = {"2026-07-28": {"one": result("PASS"), "two": result("FAIL"), "three": None}}
    assert surprises(results, {"2026-07-28": {"two": "later"}}) == []


@pytest.mark.parametrize("verdict", ["FAIL", "WARN", "SKIP"])
def test_falling_short_without_a_reason_is_a_surprise(verdict: str) -> None:
    assert surprises({"2026-07-28": {"one": result(verdict)}}, {}) == [f"2026-07-28 one falls short ({verdict})"]


def test_a_stale_reason_is_a_surprise() -> None:
    results = {"2026-07-28": {"one": result("PASS"), "two": None}}
    assert surprises(results, {"2026-07-28": {"one": "later", "two": "later", "gone": "later"}}) == [
        "2026-07-28 gone stands in expected.json, and there is no such scenario",
        "2026-07-28 one passes: take it out of expected.json",
    ]


def test_every_reason_is_given_for_a_leg() -> None:
    expected = json.loads((HERE / "expected.json").read_text(encoding="utf-8"))
    assert set(expected) <= set(LEGS)
    assert all(reason.strip() for reasons in expected.values() for reason in reasons.values())


def line(ended: float, worker: int, *, took: float = 0.0, logger: str = "callboard.requests", **more: Any) -> str:
    time = datetime.fromtimestamp(ended, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps({"time": time, "logger": logger, "worker": worker, "duration_ms": took * 1000, **more})


def test_a_request_belongs_to_the_scenario_that_made_it() -> None:
    log = [
        "what no formatter wrote",
        line(99, 1),  # before there was one
        line(101, 1, tool="which_worker"),
        line(101, 1, logger="callboard"),
        line(101, 1, tool="test_simple_text"),
        line(111, 2, took=10.5),  # a stream that ended with the process that read it
        line(111, 2),
    ]
    assert read_turns("\n".join(log), {"one": 100, "two": 110, "three": 120}) == {"one": {1: 1, 2: 1}, "two": {2: 1}, "three": {}}


def test_a_scenario_that_one_worker_served_alone_proves_nothing_of_a_fleet() -> None:
    turns = {"both": Counter({1: 1, 2: 3}), "alone": Counter({1: 3}), "once": Counter({1: 1}), "never": Counter[int]()}
    judged = judge(check_turns(turns))
    assert judged.verdict == "FAIL"
    assert judged.counts == {"SUCCESS": 1, "FAILURE": 1}
    assert judged.short == (("FAILURE", "alone", "3 requests were served by worker 1 alone"),)


def test_a_fleet_that_wrote_nothing_proved_nothing() -> None:
    assert judge(check_turns(read_turns("", {"one": 100}))).verdict == "SKIP"

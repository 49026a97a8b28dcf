"""Failures as data: the table of reasons, and the exceptions that user code raises."""

from typing import Any

import pytest

from callboard.errors import REASONS, RESERVED_CODES, CallboardError, Fail, NotFound, Reason, RegistrationError, ToolError

STANDARD = {-32700, -32600, -32601, -32602, -32603}
# The three codes of its own that the protocol defines, with the status it demands.
SPECIFIED = {Reason.HEADER_MISMATCH: (-32020, 400), Reason.MISSING_CAPABILITY: (-32021, 400), Reason.VERSION: (-32022, 400)}

# What the protocol has no code for: ours lie outside what it reserves, and say the same as the status.
OWN = {Reason.SCOPE: 403, Reason.RATE: 429, Reason.UNAUTHORIZED: 401, Reason.BAD_CREDENTIAL: 400, Reason.AUTH_UNAVAILABLE: 503}


def test_every_reason_has_its_rule() -> None:
    assert REASONS.keys() | {Reason.CUSTOM} == set(Reason)


@pytest.mark.parametrize("reason", REASONS)
def test_codes_are_those_of_the_specification(reason: Reason) -> None:
    # EC-01, EC-02, EC-04, EC-05, EC-06, EC-07, EC-08, EC-12, SA27
    rule = REASONS[reason]
    if reason in SPECIFIED:
        assert (rule.code, rule.status) == SPECIFIED[reason]
    elif reason in OWN:
        assert rule == (OWN[reason], OWN[reason], OWN[reason], OWN[reason], rule.text)
        assert rule.code not in RESERVED_CODES
    else:
        assert rule.code in STANDARD


@pytest.mark.parametrize("reason", REASONS)
def test_a_text_is_one_sentence(reason: Reason) -> None:
    # JR-11
    text = REASONS[reason].text
    assert text.endswith(".")
    assert "\n" not in text
    assert len(text) < 100


@pytest.mark.parametrize(
    ("reason", "code", "status"),
    [
        (Reason.PARSE, -32700, 400),
        (Reason.INVALID_REQUEST, -32600, 400),
        (Reason.METHOD_NOT_FOUND, -32601, 404),
        (Reason.INVALID_PARAMS, -32602, 400),
        (Reason.UNKNOWN_TOOL, -32602, 400),
        (Reason.UNKNOWN_PROMPT, -32602, 400),
        (Reason.RESOURCE_NOT_FOUND, -32602, 400),
        (Reason.CURSOR, -32602, 400),
        (Reason.INTERNAL, -32603, 200),
        (Reason.ORIGIN, -32600, 403),
        (Reason.HOST, -32600, 421),
        (Reason.MEDIA_TYPE, -32600, 415),
        (Reason.NOT_ACCEPTABLE, -32600, 406),
        (Reason.BODY_TOO_LARGE, -32600, 413),
        (Reason.HEADERS_TOO_LARGE, -32600, 431),
        (Reason.HTTP_METHOD, -32600, 405),
        (Reason.OVERLOADED, -32603, 503),
    ],
)
def test_statuses_are_those_of_the_table(reason: Reason, code: int, status: int) -> None:
    # HM-17, HM-18, HM-19, EC-10, EC-11
    assert (REASONS[reason].code, REASONS[reason].status) == (code, status)


def test_a_failure_says_its_reasons_text_unless_it_has_its_own() -> None:
    assert Fail(Reason.UNKNOWN_TOOL).text == REASONS[Reason.UNKNOWN_TOOL].text
    own = Fail(Reason.UNKNOWN_TOOL, "No such tool here.", {"name": "x"})
    assert (own.text, own.data, str(own)) == ("No such tool here.", {"name": "x"}, "No such tool here.")


@pytest.mark.parametrize("code", [-32768, -32700, -32603, -32099, -32020, -32002, -32000])
def test_reserved_codes_are_not_an_authors(code: int) -> None:
    # EC-12
    with pytest.raises(ValueError, match="reserve"):
        Fail.custom(code, "mine")


@pytest.mark.parametrize("code", [-32769, -31999, -1, 0, 1, 4711])
def test_other_codes_are(code: int) -> None:
    # EC-12
    fail = Fail.custom(code, "mine", [1])
    assert (fail.code, fail.reason, fail.text, fail.data) == (code, Reason.CUSTOM, "mine", [1])


def test_a_missing_resource_is_a_protocol_error_that_may_name_its_uri() -> None:
    # RS-05
    assert NotFound().data is None
    assert NotFound("a://b").data == {"uri": "a://b"}
    assert NotFound().reason is Reason.RESOURCE_NOT_FOUND


def test_one_root_catches_everything() -> None:
    for error in (Fail(Reason.PARSE), NotFound(), ToolError("x"), RegistrationError("x")):
        assert isinstance(error, CallboardError)
    assert issubclass(RegistrationError, TypeError)


def test_a_tool_error_carries_what_the_model_reads() -> None:
    # TL-12
    error = ToolError(["a", "b"], structured={"n": 1})
    assert (error.content, error.structured) == (["a", "b"], {"n": 1})


@pytest.mark.parametrize("code", ["5", 5.5, None, True])
def test_a_code_is_an_integer(code: Any) -> None:
    # JR-08
    with pytest.raises((ValueError, TypeError)):
        Fail.custom(code, "mine")

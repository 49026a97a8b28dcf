"""Formatters, filters and the count of a flood: nothing that is logged can pass for something else."""

import io
import json
import logging
import re
import string
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_lines import FORGED, NASTY, check_json, check_text
from source_tree import modules

from callboard import logs
from callboard.logs import EVENTS, REQUEST, Flood, JsonFormatter, TextFormatter, clean, configure, is_configured, render_fields, report
from callboard.telemetry.events import RequestStarted

# Whatever a client can put into a text, and what matters here above all.
HOSTILE = st.one_of(st.text(st.characters(), max_size=40), st.text(NASTY + " =\"'\\%{}", max_size=40), st.just(NASTY))


def make_record(message: Any, *arguments: Any, name: str = "callboard", error: BaseException | None = None) -> logging.LogRecord:
    """A record as a logger makes it."""
    info: Any = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord(name, logging.ERROR, __file__, 1, message, arguments, info)


def raised(error: BaseException) -> BaseException:
    """An exception that has been raised."""
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, which is as before when the test is over."""
    logger = logging.getLogger()
    others = [logging.getLogger(name) for name in ("callboard.requests", "uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi")]
    kept = [(each, each.level, each.handlers[:], each.propagate) for each in (logger, *others)]
    yield logger
    for each, level, handlers, propagate in kept:
        each.setLevel(level)
        each.handlers[:] = handlers
        each.propagate = propagate


@pytest.fixture
def flood(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of what counts security events."""
    clock = [0.0]
    monkeypatch.setattr(logs, "_flood", Flood(clock=lambda: clock[0]))
    return clock


@given(HOSTILE)
def test_a_clean_text_is_one_printable_line(text: str) -> None:
    # SA13
    assert clean(text).isprintable()
    if text.isprintable():
        assert clean(text) == text


def test_what_is_escaped_can_be_read() -> None:
    assert clean("a\nb\x1b[1m\u202e\ud800") == r"a\nb\x1b[1m\u202e\ud800"
    assert clean("x" * 50, 10) == "x" * 10 + "... (40 characters more)"


@given(st.dictionaries(st.text(string.ascii_lowercase, min_size=1), HOSTILE, min_size=1, max_size=4))
def test_fields_can_be_told_apart(fields: dict[str, str]) -> None:
    line = render_fields({name: clean(value) for name, value in fields.items()})
    found: list[tuple[str, str]] = []
    while line:
        name, _, rest = line.partition("=")
        if rest.startswith('"'):
            value, end = json.JSONDecoder().raw_decode(rest)
        else:
            value = rest.partition(" ")[0]
            end = len(value)
        found.append((name, value))
        line = rest[end:].removeprefix(" ")
    assert found == [(name, clean(value)) for name, value in fields.items()]


@given(HOSTILE, HOSTILE, HOSTILE)
def test_no_message_and_no_exception_forges_a_line(message: str, argument: str, text: str) -> None:
    record = make_record("%s %r " + message.replace("%", "%%"), argument, argument, error=raised(ValueError(text)))
    check_text(TextFormatter().format(record))
    found = check_json(JsonFormatter().format(record))
    assert found["error"]["type"] == "ValueError"
    assert all(line.isprintable() for line in found["error"]["traceback"].split("\n"))


@given(HOSTILE)
def test_names_and_levels_of_others_are_clean_too(text: str) -> None:
    record = make_record("x", name=text)
    record.levelname = text
    assert all(line.isprintable() for line in TextFormatter().format(record).split("\n"))
    assert "\n" not in TextFormatter().format(record)
    check_json(JsonFormatter().format(record))


@given(HOSTILE, HOSTILE)
def test_handlers_of_others_are_safe_where_the_logger_is_ours(message: str, text: str) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger = logging.getLogger("callboard")
    logger.addHandler(handler)
    try:
        logger.error("%s", message, exc_info=raised(ValueError(text)))
    finally:
        logger.removeHandler(handler)
    first, *rest = stream.getvalue().removesuffix("\n").split("\n")
    assert first.isprintable()
    assert all(line.startswith("    | ") and line.isprintable() for line in rest)


class NastyError(Exception):
    """An exception whose own methods do harm."""

    def __init__(self, harm: Any) -> None:
        super().__init__("x")
        self.harm = harm

    def __str__(self) -> str:
        if isinstance(self.harm, BaseException):
            raise self.harm
        return str(self.harm)


def nested(depth: int) -> BaseException:
    """A group in a group in a group."""
    errors: list[Exception] = [ValueError("innermost")]
    for _ in range(depth):
        errors = [ExceptionGroup(NASTY, errors)]
    return errors[0]


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(NastyError(ValueError("no")), id="str raises"),
        pytest.param(NastyError(SystemExit(3)), id="str exits"),
        pytest.param(NastyError("\n".join([FORGED] * 100_000)), id="very many lines"),
        pytest.param(NastyError("x" * 10_000_000), id="ten million characters"),
        pytest.param(NastyError(NASTY * 1000), id="control characters"),
        pytest.param(nested(3), id="a group"),
        pytest.param(nested(5_000), id="groups nested deeper than functions"),
        pytest.param(SystemExit(NASTY), id="exit"),
        pytest.param(type("E\n" + FORGED, (Exception,), {})("x"), id="the class's name"),
        pytest.param(UnicodeDecodeError("utf-8", b"\xff" * 100, 0, 1, NASTY), id="unicode"),
    ],
)
def test_every_exception_can_be_logged(error: BaseException) -> None:
    # SA35
    record = make_record("it failed", error=raised(error))
    text = TextFormatter().format(record)
    assert len(check_text(text)) > 1
    assert len(text) < 250_000
    assert check_json(JsonFormatter().format(record))["error"]["traceback"]


def test_a_line_end_at_the_end_is_none() -> None:
    assert check_text(TextFormatter().format(make_record("Exception in ASGI application\n")))[0].endswith("application")


def test_notes_and_causes_of_an_exception_are_clean() -> None:
    error = ValueError("x")
    error.add_note(NASTY)
    error.__cause__ = KeyError(NASTY)
    check_text(TextFormatter().format(make_record("it failed", error=raised(error))))


def test_a_message_that_does_not_fit_its_arguments_is_told() -> None:
    class Mute:
        def __str__(self) -> str:
            raise RuntimeError("no")

    for record in (make_record("%d", "x"), make_record("%s", Mute()), make_record("%s %s", 1)):
        assert "can't be shown" in check_text(TextFormatter().format(record))[0]
        assert "can't be shown" in check_json(JsonFormatter().format(record))["message"]


def test_what_others_say_in_extra_can_not_break_the_json() -> None:
    for strange in (object(), float("nan"), {1: {2}}, b"\xff"):
        record = make_record("x")
        record.__dict__["callboard"] = {"odd": strange, "message": "forged", "time": "never"}
        found = check_json(JsonFormatter().format(record))
        assert found["message"] == "x"
        assert found["time"] != "never"


def test_what_was_logged_in_a_request_has_its_id() -> None:
    token = REQUEST.set(RequestStarted("abc12345", "tools/call", None, "2026-07-28", "http"))
    try:
        assert check_json(JsonFormatter().format(make_record("x")))["request"] == "abc12345"
        assert check_text(TextFormatter().format(make_record("x")))[0].endswith("x [request=abc12345]")
    finally:
        REQUEST.reset(token)
    assert "request" not in check_json(JsonFormatter().format(make_record("x")))


def test_a_flood_is_counted(flood: list[float], caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(1_000):
        report("host", peer="192.0.2.1")
    assert len(caplog.records) == logs.MOST
    report("origin")
    assert len(caplog.records) == logs.MOST + 1  # one kind does not hide another
    flood[0] += logs.SECONDS
    report("host", peer="192.0.2.1")
    missed, last = (record.__dict__["callboard"] for record in caplog.records[-2:])
    assert missed == {"event": "host", "missed": 1_000 - logs.MOST}
    assert last == {"event": "host", "peer": "192.0.2.1"}
    flood[0] += 10 * logs.SECONDS
    report("host")
    assert len(caplog.records) == logs.MOST + 4


@given(HOSTILE)
def test_an_event_is_one_line(text: str) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter())
    logger = logging.getLogger("callboard.security")
    logger.addHandler(handler)
    earlier, logs._flood = logs._flood, Flood()
    try:
        report("session", session=text, reason=text)
    finally:
        logger.removeHandler(handler)
        logs._flood = earlier
    assert len(check_text(stream.getvalue().removesuffix("\n"))) == 1


def test_every_event_is_a_sentence() -> None:
    assert all(text.endswith(".") and text.isprintable() for text in EVENTS.values())


def test_logging_is_set_up_for_all_loggers_and_again(root: logging.Logger) -> None:
    before = root.handlers[:]
    first, second = io.StringIO(), io.StringIO()
    configure(json=True, level="info", stream=first)
    assert is_configured()
    configure(level="debug", requests=False, stream=second)
    assert len(root.handlers) == len(before) + 1
    logging.getLogger("uvicorn.error").debug("up\n%s", FORGED)
    logging.getLogger("somebody.else").warning("x")
    logging.getLogger("callboard.requests").info("nobody asked")
    assert first.getvalue() == ""
    lines = second.getvalue().splitlines()
    assert len(lines) == 2
    assert [line.split()[2] for line in lines] == ["uvicorn.error:", "somebody.else:"]


def test_a_reader_that_is_gone_is_not_told_of_with_the_record(root: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    configure(stream=stream)
    stream.close()
    root.error("secret %s", FORGED)
    assert FORGED not in "".join(capsys.readouterr())


def test_stderr_is_where_logs_go(root: logging.Logger) -> None:
    configure()
    handler = root.handlers[-1]
    assert isinstance(handler, logging.StreamHandler)
    assert handler.stream is sys.stderr


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="critical, error, warning, info, debug, trace"):
        configure(level="loud")


def test_every_logger_of_ours_is_cleaned() -> None:
    named = {
        name for path in modules().values() for name in re.findall(r'getLogger\("(callboard[^"]*)"\)', path.read_text(encoding="utf-8"))
    }
    assert named
    for name in named:
        assert any(isinstance(each, logs.Cleaning) for each in logging.getLogger(name).filters), name

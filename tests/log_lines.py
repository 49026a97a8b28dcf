"""What tests of logs share: hostile texts, checks of a record's two forms, and a handler that keeps everything that is logged."""

import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from callboard import logs
from callboard.logs import Flood, JsonFormatter, TextFormatter

__all__ = ["FORGED", "NASTY", "Taken", "check_json", "check_text", "watch_logs"]

FORGED = "2026-01-01T00:00:00.000Z ERROR callboard: forged"
NASTY = f"a\n{FORGED}\r\x1b[2J\x00\x85\u2028\u2029\u202e\u200f\u2066\ud800\udfff\U000e0041\x7f\ufeff"


def check_text(text: str) -> list[str]:
    """The lines of one record's text: the first a record's, the others behind the margin, all of them printable."""
    lines = text.split("\n")
    assert all(line.isprintable() for line in lines), text
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z [A-Z]+ \S+: ", lines[0]), text
    assert all(line.startswith("    | ") for line in lines[1:]), text
    return lines


def check_json(text: str) -> dict[str, Any]:
    """The one line of JSON of a record."""
    assert text.isascii()
    assert text.isprintable()
    found: dict[str, Any] = json.loads(text)
    assert found["message"].isprintable()
    assert {"time", "level", "logger", "message"} <= found.keys()
    return found


class Taken(logging.Handler):
    """Keeps what is logged, as records and in both forms, each of them checked.

    Attributes:
        lines: The text of each record.
        found: Its JSON.
        records: The records.
    """

    def __init__(self) -> None:
        super().__init__(0)
        self.lines: list[str] = []
        self.found: list[dict[str, Any]] = []
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one."""
        self.records.append(record)
        self.lines.append(TextFormatter().format(record))
        self.found.append(check_json(JsonFormatter().format(record)))

    def check(self) -> None:
        """See that no record passes for more than one."""
        for line in self.lines:
            check_text(line)
        # as a handler of the standard library writes it
        plain = logging.Formatter("%(levelname)s %(name)s %(message)s")
        for record in self.records:
            if record.name.startswith("callboard"):
                first, *rest = plain.format(record).split("\n")
                assert first.isprintable()
                assert all(each.startswith("    | ") and each.isprintable() for each in rest)

    def of(self, logger: str) -> list[dict[str, Any]]:
        """The JSON of each record of one logger."""
        self.check()
        return [each for each in self.found if each["logger"] == logger]

    @property
    def requests(self) -> list[dict[str, Any]]:
        """The lines of requests."""
        return self.of("callboard.requests")

    @property
    def events(self) -> list[dict[str, Any]]:
        """The security events."""
        return self.of("callboard.security")

    @property
    def text(self) -> str:
        """All of it, in both forms."""
        self.check()
        return "\n".join([*self.lines, *map(json.dumps, self.found)])


@contextmanager
def watch_logs(level: int = logging.DEBUG) -> Iterator[Taken]:
    """Keep what all loggers log from a level on, with a fresh count of floods."""
    taken, root = Taken(), logging.getLogger()
    before, flood = root.level, logs._flood
    logs._flood = Flood()
    root.addHandler(taken)
    root.setLevel(level)
    try:
        yield taken
    finally:
        root.removeHandler(taken)
        root.setLevel(before)
        logs._flood = flood
    taken.check()

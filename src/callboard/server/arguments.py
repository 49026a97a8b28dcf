"""From a call's `arguments` to keyword arguments: one decode, and only where that fails a second look that lists everything wrong."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from callboard.server.coercion import Mender, encode_exact, parse_exact, parse_plain
from callboard.server.faults import ArgumentFaults, Finding, covered, show_path
from callboard.server.judge import Judge

__all__ = ["Arguments", "Misfit", "TypedArguments", "Unsupported"]


class Unsupported(Exception):  # noqa: N818 it is caught and turned into a RegistrationError
    """A type has no place in an engine.

    Args:
        culprit: Name of the parameter; None for the result.
        reason: What the engine says.
    """

    def __init__(self, culprit: str | None, reason: str) -> None:
        super().__init__(culprit, reason)
        self.culprit = culprit
        self.reason = reason


MAX_LISTED = 2_000
"""Of arguments with more values than this the first fault of each alone is told. It bounds a hostile call's time."""


class Misfit(ValueError):  # noqa: N818 it becomes a ResultError
    """A result doesn't fit its type. The text says where and what is expected, not what was found.

    Args:
        findings: Where, and what is expected there.
    """

    def __init__(self, findings: Iterable[Finding]) -> None:
        super().__init__("; ".join(f"{show_path(path) or 'the value'}: {expected}" for path, expected in findings))


class Arguments(ABC):
    """A compiled argument list.

    Args:
        input_schema: JSON Schema of the arguments, its root an object (TL-05). What it advertises is what `bind` accepts.
        formats: Formats that count when faults are listed.

    Attributes:
        input_schema: As given.
    """

    def __init__(self, input_schema: dict[str, Any], formats: dict[str, Callable[[str], bool]] | None = None) -> None:
        self.input_schema = input_schema
        self.judge = Judge(input_schema, formats)

    @abstractmethod
    def bind(self, raw: bytes | msgspec.Raw | None) -> dict[str, Any]:
        """Make keyword arguments of a call's `arguments`.

        Args:
            raw: JSON; None (or `UNSET`) is `{}`.

        Raises:
            ArgumentFaults: They don't fit the schema. All faults are listed.
        """


class TypedArguments(Arguments):
    """Arguments that become Python types, with the second look at what the first decode refused."""

    refusals: tuple[type[Exception], ...]
    """What `convert` raises for arguments that don't fit."""

    @abstractmethod
    def convert(self, data: bytes) -> dict[str, Any]:
        """Decode and validate, without a second look.

        Args:
            data: JSON.
        """

    @abstractmethod
    def findings(self, instance: Any, known: list[Finding]) -> Iterable[Finding]:
        """List what the engine has against arguments and JSON Schema can't say.

        Args:
            instance: The arguments as a JSON value.
            known: What the schema has against it.
        """

    def explain(self, raw: bytes | msgspec.Raw) -> dict[str, Any]:
        """Look again at arguments that the engine refused: integral floats are integers, otherwise list every fault.

        Args:
            raw: JSON.

        Raises:
            ArgumentFaults: They don't fit.
        """
        try:
            return self._explain(raw)
        except RecursionError:
            raise ArgumentFaults([((), "nested too deeply")]) from None

    def _explain(self, raw: bytes | msgspec.Raw) -> dict[str, Any]:
        exact = parse_exact(raw)
        mender = Mender(self.input_schema)
        mended = mender.mend(exact)
        data = bytes(raw)
        if mended is not exact:
            data = encode_exact(mended)
            try:
                return self.convert(data)
            except self.refusals:
                pass
        instance = parse_plain(data)
        big = mender.values > MAX_LISTED
        known, complete = self.judge.findings(instance, big=big)
        # per argument: where the schema has said its part, an engine's view of other alternatives only confuses
        more = [] if big and known else [one for one in self.findings(instance, known) if not covered(one[0][:1], known)]
        raise ArgumentFaults(known + more or [((), "do not fit the schema")], complete=complete and not big)

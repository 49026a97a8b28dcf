"""What tools have said of their results: results are held to it, and read by it.

A server that breaks its own word is told of by name (TL-08). Its schemas are hostile until shown otherwise: nothing that they refer to is
fetched (JS-03), and neither reading nor applying them takes more than bounded time (JS-05).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET

from callboard.client.effort import Effort
from callboard.client.errors import InvalidAnswer, Origin
from callboard.client.formats import Reader
from callboard.client.result import ToolResult
from callboard.errors import RegistrationError
from callboard.server.arguments import Misfit
from callboard.server.judge import Judge
from callboard.server.raw_schema import DIALECTS, compile_schema, read_schema
from callboard.server.subschemas import walk
from callboard.wire import v2026_07_28 as v
from callboard.wire import versions

__all__ = ["OutputSchema", "OutputSchemas", "is_wrapper"]

logger = logging.getLogger("callboard.client")

MAX_TOLD: Final = 3
"""How many faults of a result are told."""
MAX_EXPLAINED: Final = 16_384
"""Of a result with more bytes than this the first fault of each part alone is looked for."""
MAX_REASON: Final = 300
"""How many characters of a reason are told, which may repeat a part of the schema."""
MAX_SUBSCHEMAS: Final = 20_000
"""A schema that holds more schemas than this is not looked at any further."""
PATTERN_BYTES: Final = 1_048_576
"""Size of one compiled regular expression."""
BACKTRACKS: Final = 10_000
"""How often one that needs to may try again on one string; the default takes 50 ms."""
_MARK: Final = "x-fastmcp-wrap-result"
_WRAPPED: Final = "result"
_LENIENT: Final = "to take its results unchecked, call it by client.request('tools/call', ...)"


class _Check(NamedTuple):
    judge: Judge
    fits: Callable[[Any], bool]
    effort: Effort


class OutputSchema:
    """One tool's output schema: compiled when the first result comes.

    Args:
        tool: Name of the tool.
        schema: The schema as listed.
        version: Protocol version of the server.

    Attributes:
        schema: As given.
        version: As given.
        wraps: Whether the value proper is under `result`; see `is_wrapper`.
        binding: Whether a result must have structured content: in versions that know it.
    """

    def __init__(self, tool: str, schema: dict[str, Any], version: str) -> None:
        self.schema = schema
        self.version = version
        features = versions.FEATURES.get(version)
        self.binding = features is not None and features.structured_content != "none"
        self.wraps = is_wrapper(tool, schema, version)
        self._tool = tool
        self._reader: Reader | None = None
        self._check: _Check | None = None
        self._refusal = ""
        self._compiled = False
        self._warned = False

    def read(self, structured: Any) -> Any:
        """Make Python values of what strings stand for; see `Reader`."""
        if self._reader is None:
            self._reader = Reader({} if self._is_big() else self.schema)
        return self._reader.read(structured)

    def validate(self, structured: Any, origin: Origin) -> None:
        """Hold structured content to the schema.

        Args:
            structured: A JSON value, or `UNSET` for none.
            origin: The call.

        Raises:
            InvalidAnswer: It is missing or does not fit; the text says where, and what is expected there, not what was found. Or the
                schema refers to something that would have to be fetched (JS-04), or is of an unknown dialect (JS-01).
        """
        if structured is UNSET and not self.binding:
            return
        if not self._compiled:
            self._compiled = True
            self._compile()
        if self._refusal:
            raise InvalidAnswer(f"{self._refusal}; {_LENIENT}", origin)
        if structured is UNSET:
            raise InvalidAnswer("the tool promises structured content by its output schema, and the result has none", origin)
        check = self._check
        if check is None:
            return
        if not check.effort.bears(structured):
            raise InvalidAnswer("the structured content is nested too deeply to be checked", origin)
        if not (check.effort.linear or check.effort.within(structured)):
            self._warn(
                "its results are not checked where that would take long: the alternatives of its output schema lead to the same parts"
            )
            return
        if not check.fits(structured):
            findings, complete = check.judge.findings(structured, big=len(msgspec.json.encode(structured)) > MAX_EXPLAINED)
            told = str(Misfit(findings[:MAX_TOLD])) or "it must fit the schema"
            more = "" if complete and len(findings) <= MAX_TOLD else "; and there may be more"
            raise InvalidAnswer(f"the structured content does not fit the tool's output schema: {told}{more}", origin)

    def _compile(self) -> None:
        """Compile, or find out why not."""
        dialect = self.schema.get("$schema")
        if "$schema" in self.schema and not (isinstance(dialect, str) and dialect in DIALECTS):
            self._refusal = f"the tool's output schema is of the dialect {_shown(dialect)}, which is unknown here"
            return
        what = "its output schema"
        if self._is_big():
            self._warn(f"its results are not checked: {what} has more than {MAX_SUBSCHEMAS} subschemas")
            return
        try:
            document = read_schema(self.schema, what)
            self._check = _build(document, what)
        except RegistrationError as error:
            outside = _outside(self.schema)
            if outside:
                self._refusal = f"the tool's output schema refers to {_shown(outside)}, and nothing is ever fetched"
            else:
                self._warn(f"its results are not checked: {str(error).rstrip('.')[:MAX_REASON]}")

    def _is_big(self) -> bool:
        return any(True for _ in islice(walk(self.schema), MAX_SUBSCHEMAS, None))

    def _warn(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("Tool %r: %s.", self._tool, text)


class OutputSchemas:
    """The output schemas of a server's tools, as far as they have been listed."""

    def __init__(self) -> None:
        self._schemas: dict[str, OutputSchema] = {}
        self._listed: set[str] = set()

    def learn(self, tools: Iterable[v.Tool], version: str, *, whole: bool = False) -> None:
        """Take note of tools; what is compiled of a schema stays as long as the schema does.

        Args:
            tools: As listed.
            version: Protocol version of the server.
            whole: Whether there are no others.
        """
        known = self._schemas
        if whole:
            self._schemas, self._listed = {}, set()
        for tool in tools:
            self._listed.add(tool.name)
            old = known.get(tool.name)
            self._schemas.pop(tool.name, None)
            if isinstance(tool.output_schema, dict):
                same = old is not None and (old.schema, old.version) == (tool.output_schema, version)
                self._schemas[tool.name] = old if old is not None and same else OutputSchema(tool.name, tool.output_schema, version)

    def knows(self, name: str) -> bool:
        """Whether a tool has been listed, so that it is known what it promises."""
        return name in self._listed

    def accept(self, name: str, result: ToolResult, origin: Origin) -> ToolResult:
        """Check a result, and teach it how to be read.

        What a tool says of its failure is held to nothing (A23), nor are results of tools that nobody listed.

        Args:
            name: The tool.
            result: What it answered.
            origin: The call.

        Returns:
            The same result.

        Raises:
            InvalidAnswer: It breaks the tool's output schema; see `OutputSchema.validate`.
        """
        schema = self._schemas.get(name)
        if schema is None or result.is_error is True:
            return result.bind(origin)
        schema.validate(result.structured_content, origin)
        return result.bind(origin, schema)


def is_wrapper(tool: str, schema: dict[str, Any], version: str) -> bool:
    """Whether a schema is one of `{"result": value}`, as servers make where the value proper is no object.

    fastmcp says so. The official Python server does not: its schema has `result` alone, and a title made of the tool's name. Versions
    before 2026-07-28 know objects alone (TL-07), and servers wrap whatever else there is: the title is not asked for there.

    Args:
        tool: Name of the tool.
        schema: Its output schema.
        version: Protocol version of the server.
    """
    if schema.get(_MARK) is True:
        return True
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict) or properties.keys() != {_WRAPPED} or required != [_WRAPPED]:
        return False
    return versions.ERAS.get(version) != "modern" or schema.get("title") == f"{tool}Output"


def _build(document: dict[str, Any], what: str) -> _Check:
    """Compile with patterns that read a string once; where one can't be written so, with patterns that soon give up."""
    import jsonschema_rs

    judge = Judge(document, patterns=jsonschema_rs.RegexOptions(size_limit=PATTERN_BYTES))
    try:
        return _Check(judge, compile_schema(judge, document, what), Effort(judge, backtracks=False))
    except RegistrationError:
        patterns = jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACKS, size_limit=PATTERN_BYTES)
        judge = Judge(document, patterns=patterns)
        return _Check(judge, compile_schema(judge, document, what), Effort(judge, backtracks=True))


def _outside(schema: dict[str, Any]) -> str:
    """The first reference to another document; empty when there is none."""
    found = (ref for _, node in walk(schema) for key in ("$ref", "$dynamicRef") if isinstance(ref := node.get(key), str))
    return next((ref for ref in found if not ref.startswith("#")), "")


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return repr(text[:100])

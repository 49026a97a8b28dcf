"""What a server's listings have said of its tools, as far as calls need it: headers, schemas, whether a call may be repeated or be a task."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from callboard.client.output import OutputSchemas
from callboard.core.headers import HeaderAnnotationError, HeaderParam, compile_param_map, mirror_params
from callboard.wire import v2026_07_28 as v

__all__ = ["Tools"]

logger = logging.getLogger("callboard.client")

TaskSupport = Literal["forbidden", "optional", "required"]


class _Facts(NamedTuple):
    params: tuple[HeaderParam, ...]
    repeatable: bool
    task: TaskSupport


class Tools:
    """See the module; the latest listing counts (HH-22).

    Args:
        target: The server, for the log.

    Attributes:
        outputs: What their results are held to.
    """

    def __init__(self, target: str) -> None:
        self.outputs = OutputSchemas()
        self._target = target
        self._facts: dict[str, _Facts] = {}

    def learn(self, tools: list[v.Tool], page: msgspec.Raw, version: str, *, mirrors: bool) -> list[v.Tool]:
        """Take note of tools.

        Args:
            tools: As listed.
            page: The result they stood in.
            version: The protocol version.
            mirrors: Whether their calls carry headers: then a tool whose annotations break the rules can't be called (HH-14).

        Returns:
            Those that can be called.
        """
        self.outputs.learn(tools, version)
        support = _read_support(page) if b'"taskSupport"' in bytes(page) else {}
        return [tool for tool in tools if self._learn(tool, support.get(tool.name, "forbidden"), mirrors=mirrors)]

    def forget_others(self, tools: list[v.Tool], version: str) -> None:
        """These are all there are."""
        self.outputs.learn(tools, version, whole=True)
        self._facts = {tool.name: self._facts[tool.name] for tool in tools if tool.name in self._facts}

    def headers(self, params: Mapping[str, Any]) -> dict[str, str]:
        """Headers that mirror a call's arguments (HH-09); none for a tool that was not listed (HH-22).

        Raises:
            HeaderValueError: A value can't be written.
        """
        facts = self._facts.get(params.get("name", ""))
        return mirror_params(facts.params, params.get("arguments") or {}) if facts is not None and facts.params else {}

    def may_repeat(self, name: Any) -> bool:
        """Whether a tool says of itself that a second call does no harm."""
        facts = self._facts.get(name)
        return facts is not None and facts.repeatable

    def task_support(self, name: str) -> TaskSupport:
        """Whether a call may be a task of 2025-11-25 (TK-02)."""
        facts = self._facts.get(name)
        return "forbidden" if facts is None else facts.task

    def _learn(self, tool: v.Tool, support: TaskSupport, *, mirrors: bool) -> bool:
        params: tuple[HeaderParam, ...] = ()
        if mirrors:
            try:
                params = compile_param_map(tool.input_schema)
            except HeaderAnnotationError as error:
                self._facts.pop(tool.name, None)
                logger.warning("%s: left out tool %r: %s", self._target, tool.name, error)
                return False
        hints = tool.annotations or v.ToolAnnotations()
        self._facts[tool.name] = _Facts(params, bool(hints.idempotent_hint or hints.read_only_hint), support)
        return True


class _Execution(msgspec.Struct, rename="camel"):
    task_support: Any = "forbidden"


class _Executed(msgspec.Struct):
    name: str
    execution: _Execution = msgspec.field(default_factory=_Execution)


class _Page(msgspec.Struct):
    tools: list[_Executed]


def _read_support(page: msgspec.Raw) -> dict[str, TaskSupport]:
    """`execution.taskSupport` of 2025-11-25, which the current protocol's tools have no place for."""
    try:
        listed = msgspec.json.decode(page, type=_Page).tools
    except msgspec.DecodeError:
        return {}
    return {tool.name: tool.execution.task_support for tool in listed if tool.execution.task_support in ("optional", "required")}

"""The kinds of components that a server can hold."""

from __future__ import annotations

from typing import TypeAlias

from callboard.server.callee import FactFields, Facts
from callboard.server.policy import Policy
from callboard.server.prompt import COMPLETION_CAP, Completer, Prompt
from callboard.server.resource import Resource, Template
from callboard.server.tool import Tool, ToolFields, read_tool_fields, sole_error

__all__ = [
    "COMPLETION_CAP",
    "Completer",
    "Component",
    "FactFields",
    "Facts",
    "Policy",
    "Prompt",
    "Resource",
    "Template",
    "Tool",
    "ToolFields",
    "read_tool_fields",
    "sole_error",
]

Component: TypeAlias = Tool | Prompt | Resource | Template | Completer

"""The kinds of components that a server can hold."""

from __future__ import annotations

from typing import TypeAlias

from callboard.server.callee import FactFields, Facts
from callboard.server.prompt import COMPLETION_CAP, Completer, Prompt
from callboard.server.resource import Resource, Template
from callboard.server.tool import Policy, Tool, sole_error

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
    "sole_error",
]

Component: TypeAlias = Tool | Prompt | Resource | Template | Completer

"""The kinds of components that a server can hold."""

from __future__ import annotations

from typing import TypeAlias

from callboard.server.callee import FactFields, Facts
from callboard.server.policy import Policy
from callboard.server.prompt import COMPLETION_CAP, Completer, Prompt, PromptFields
from callboard.server.repository import Repository, RepositoryTemplate
from callboard.server.resource import RESOURCE, Resource, ResourceFields, Template
from callboard.server.tool import Tool, ToolFields, check_tool_name, read_tool_fields, sole_error

__all__ = [
    "COMPLETION_CAP",
    "RESOURCE",
    "Completer",
    "Component",
    "FactFields",
    "Facts",
    "Policy",
    "Prompt",
    "PromptFields",
    "Repository",
    "RepositoryTemplate",
    "Resource",
    "ResourceFields",
    "Template",
    "Tool",
    "ToolFields",
    "check_tool_name",
    "read_tool_fields",
    "sole_error",
]

Component: TypeAlias = Tool | Prompt | Resource | Template | Repository | Completer

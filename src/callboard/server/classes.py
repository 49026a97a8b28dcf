"""Components written as classes: what a class does says what it is, and its attributes are the options that a decorator would take.

No base class: a tool has `execute`, a repository of resources `prefix` and `read`, a prompt `render`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import is_dataclass
from functools import partial
from typing import Any

from callboard.errors import RegistrationError
from callboard.server.component import (
    RESOURCE,
    Completer,
    Component,
    Prompt,
    PromptFields,
    Repository,
    RepositoryTemplate,
    ResourceFields,
    Tool,
    ToolFields,
    read_tool_fields,
)
from callboard.server.docstring import parse
from callboard.server.policy import ACCESS, sort_options
from callboard.server.signature import read
from callboard.server.state import StateKind

__all__ = ["compile_parts"]

# What makes a class a component, and of which kind.
_ROLES = {"execute": "a tool", "read": "a repository of resources", "render": "a prompt"}
_KINDS = "a tool has `execute`, a repository of resources `prefix` and `read`, a prompt `render`"


def compile_parts(given: Any, *, where: str, strict: bool, state: StateKind | None) -> list[Component]:
    """Make components of what an author hands over.

    Args:
        given: A function, which becomes a tool; a component; or a class for one, or an instance of it.
        where: Who takes it, for error texts.
        strict: Whether arguments that it doesn't take are faults.
        state: The server's state.

    Returns:
        One component, and what completes its arguments.

    Raises:
        RegistrationError: It is none of that; the text says what is missing.
    """
    if isinstance(given, Component):
        if getattr(given, "state", None) not in {None, state}:
            raise RegistrationError(f"{given.source}: it takes the state of another server; make it with state=server.state.")
        return [given]
    roles = [role for role in _ROLES if callable(getattr(given, role, None))]
    if not roles and not isinstance(given, type) and callable(given):
        return [Tool(given, strict=strict, state=state)]
    name = given.__name__ if isinstance(given, type) else type(given).__name__
    if not roles:
        shown = f"the class {name}" if isinstance(given, type) else repr(given)
        more = "; an extension goes to server.extend" if hasattr(given, "settings") else ""
        raise RegistrationError(f"{where} takes a function, a component or a class for one, not {shown}: {_KINDS}{more}.")
    if len(roles) > 1:
        both = " and ".join(f"{_ROLES[role]} ({role})" for role in roles)
        raise RegistrationError(f"{where}: {name} is {both} at once; make two classes of it.")
    return _COMPILE[roles[0]](_Author(_make(given, where)), strict, state)


class _Author:
    """An instance of an author's class.

    Attributes:
        of: The instance.
        name: Its class's name.
    """

    def __init__(self, of: Any) -> None:
        self.of = of
        self.name = type(of).__name__

    def options(self, fields: Iterable[str]) -> dict[str, Any]:
        """Those of its attributes that are options."""
        own = {name: getattr(self.of, name) for name in fields if hasattr(self.of, name)}
        return {"name": _snake_case(self.name), "description": self._describe(), **own}

    def _describe(self) -> str | None:
        """What the class's docstring says, where it is one of its own: dataclasses write some."""
        doc = type(self.of).__doc__
        is_written = is_dataclass(self.of) and doc is not None and doc.startswith(f"{self.name}(")
        return None if doc is None or is_written else parse(doc).description

    def completers(self, owner: str, arguments: tuple[str, ...], state: StateKind | None) -> list[Component]:
        """What completes each of these arguments, where the class has `complete`."""
        complete = getattr(self.of, "complete", None)
        if complete is None or not arguments:
            return []
        if not callable(complete):
            raise RegistrationError(f"{self.name}.complete must be a method, `def complete(self, argument, text)`, not {complete!r}.")
        signature = read(complete)
        if "argument" not in [parameter.name for parameter in signature.parameters]:
            raise RegistrationError(f"{signature.label}: it takes `argument`, the name of what is completed, and the text so far.")
        return [Completer(partial(complete, argument=argument), owner, argument, state=state) for argument in arguments]


def _make(given: Any, where: str) -> Any:
    if not isinstance(given, type):
        return given
    try:
        return given()
    except TypeError as error:
        raise RegistrationError(f"{where}: {given.__name__} can't be made without arguments ({error}); hand over an instance.") from error


def _compile_tool(author: _Author, strict: bool, state: StateKind | None) -> list[Component]:  # noqa: FBT001
    options = read_tool_fields(author.name, author.options(ToolFields.__annotations__))
    return [Tool(author.of.execute, strict=strict, state=state, **options)]


def _compile_prompt(author: _Author, strict: bool, state: StateKind | None) -> list[Component]:  # noqa: FBT001
    facts, policy, _ = sort_options(author.name, author.options(PromptFields.__annotations__), policy=ACCESS)
    prompt = Prompt(author.of.render, facts=facts, policy=policy, strict=strict, state=state)
    return [prompt, *author.completers(prompt.key, prompt.arguments, state)]


def _compile_repository(author: _Author, _strict: bool, state: StateKind | None) -> list[Component]:  # noqa: FBT001
    if not hasattr(author.of, "prefix"):
        raise RegistrationError(f'{author.name} has `read`, but no `prefix`: say what its URIs begin with, like prefix = "docs://".')
    options = author.options(ResourceFields.__annotations__.keys() - {"size"})  # which is of one resource
    facts, policy, own = sort_options(author.name, options, policy=ACCESS, own=RESOURCE)
    cache, annotations, mime_type = own.get("cache"), own.get("annotations"), own.get("mime_type")
    templates = getattr(author.of, "templates", ())
    if isinstance(templates, str) or not isinstance(templates, Collection):
        raise RegistrationError(f"{author.name}: templates is a list of URI templates, not {templates!r}.")
    lister = getattr(author.of, "list", None)
    repository = Repository(author.of.prefix, author.of.read, list=lister, mime_type=mime_type, cache=cache, policy=policy, state=state)
    made = [RepositoryTemplate(repository, uri, facts=facts, mime_type=mime_type, annotations=annotations) for uri in templates]
    completers = [each for template in made for each in author.completers(template.key, template.uri_template.variables, state)]
    return [repository, *made, *completers]


_COMPILE: dict[str, Callable[[_Author, bool, StateKind | None], list[Component]]] = {
    "execute": _compile_tool,
    "read": _compile_repository,
    "render": _compile_prompt,
}


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()

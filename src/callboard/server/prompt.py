"""A prompt, and the completion of its arguments or of a template's variables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Literal, get_origin

from msgspec import UNSET

from callboard.core.outcome import CacheHint, NeedInput, Outcome, Reply
from callboard.errors import RegistrationError
from callboard.server.callee import CONTENT_BLOCKS, Callee, FactFields, Facts, make_definition, open_reply
from callboard.server.context import Context
from callboard.server.policy import AccessFields, Gate, Policy, Visible, make_gate
from callboard.server.signature import members
from callboard.server.state import StateKind
from callboard.server.strings import StringArguments
from callboard.wire import v2026_07_28 as v

__all__ = ["COMPLETION_CAP", "Completer", "Prompt", "PromptFields"]

# CP-03: values of one completion.
COMPLETION_CAP = 100
_NO_MESSAGES = frozenset({int, float, bool, bytes, dict, type(None)})


class PromptFields(FactFields, AccessFields, total=False):
    """The options of a prompt as keyword arguments."""


class Prompt:
    """A prompt: a function from string arguments to messages.

    Attributes:
        key: Its name.
        definition: Its entry in `prompts/list`, encoded.
        source: Name and place of the function.
        arguments: Names of its arguments.
        state: The state that it takes; None when it takes none.
        gate: What lets requests through; None where everybody may have it.
        visible: Says for each request whether it is there; None where it always is.
        listing: How long clients may keep its entry in the list; None for the server's `cache`.
    """

    kind: ClassVar[Literal["prompts"]] = "prompts"
    __slots__ = (
        "_bind",
        "_call",
        "_description",
        "arguments",
        "definition",
        "gate",
        "key",
        "listing",
        "source",
        "state",
        "visible",
    )

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        facts: Facts = Facts(),
        policy: Policy = Policy(),
        strict: bool = True,
        state: StateKind | None = None,
    ) -> None:
        callee = Callee(fn, state)
        signature = callee.signature
        self.key = signature.name if facts.name is None else facts.name
        self.source = signature.label
        self.state = callee.state
        policy.check(self.source)
        self.gate: Gate | None = make_gate(policy, self.source, f"prompts:{self.key}")
        self.visible: Visible | None = policy.visible
        self.listing: CacheHint | None = None
        if wrong := [kind for kind in members(signature.returns) if (get_origin(kind) or kind) in _NO_MESSAGES]:
            raise RegistrationError(
                f"{self.source}: a prompt returns str, content blocks, PromptMessage or a list of them, not {wrong[0]!r}."
            )
        self._call = callee.call
        self._bind = StringArguments(signature, strict=strict).bind
        self.arguments = tuple(parameter.name for parameter in signature.parameters)
        arguments = [
            v.PromptArgument(name=p.name, required=True if p.required else UNSET, description=p.description or UNSET)
            for p in signature.parameters
        ]
        definition, self.definition = make_definition(
            v.Prompt, self.source, name=self.key, arguments=arguments or UNSET, **facts.fields(signature)
        )
        self._description = definition.description

    async def get(self, arguments: Mapping[str, str], ctx: Context) -> Outcome:
        """Make the messages.

        Raises:
            Fail: Arguments are missing or wrong (INVALID_PARAMS).
        """
        value = await self._call(self._bind(arguments), ctx)
        if type(value) is NeedInput:
            return value
        if isinstance(value, Reply):
            value = open_reply(value, ctx, takes_state=self.state is not None, source=self.source)
        reply: dict[str, Any] = {"messages": [_message(item) for item in (value if isinstance(value, list | tuple) else [value])]}
        if self._description is not UNSET:
            reply["description"] = self._description
        return Reply(reply)


def _message(item: Any) -> v.PromptMessage:
    if isinstance(item, v.PromptMessage):
        return item
    if isinstance(item, str):
        return v.PromptMessage(role="user", content=v.TextContent(text=item))
    if isinstance(item, CONTENT_BLOCKS):
        return v.PromptMessage(role="user", content=item)
    raise TypeError(f"A prompt returns str, content blocks, PromptMessage or a list of them, not {type(item).__name__}.")


class Completer:
    """Suggests values for one argument of a prompt or one variable of a template.

    Attributes:
        owner: Name of the prompt, or the URI template.
        argument: Name of the argument.
        source: Name and place of the function.
        state: The state that it takes; None when it takes none.
    """

    __slots__ = ("_call", "_context", "_value", "argument", "owner", "source", "state")

    def __init__(self, fn: Callable[..., Any], owner: str, argument: str, *, state: StateKind | None = None) -> None:
        callee = Callee(fn, state)
        names = [parameter.name for parameter in callee.signature.parameters]
        self.source = callee.signature.label
        self.state = callee.state
        if not names or len(names) > 2:
            raise RegistrationError(f"{self.source}: a completion takes the text so far, and optionally the other arguments as a dict.")
        self._value = names[0]
        self._context = names[1] if len(names) == 2 else None
        self._call = callee.call
        self.owner = owner
        self.argument = argument

    async def complete(self, text: str, arguments: Mapping[str, str], ctx: Context, cap: int) -> Outcome:
        """Suggest values: the first `cap`, how many there are in all, and whether more exist (CP-03)."""
        kwargs: dict[str, Any] = {self._value: text}
        if self._context is not None:
            kwargs[self._context] = dict(arguments)
        found: Any = await self._call(kwargs, ctx)
        if isinstance(found, Reply):
            found = open_reply(found, ctx, takes_state=self.state is not None, source=self.source)
        if isinstance(found, v.Completion):
            return Reply({"completion": found})
        values: list[Any] = [] if found is None else list(found) if isinstance(found, Iterable) else [found]
        if isinstance(found, str) or not all(isinstance(value, str) for value in values[:cap]):
            raise TypeError(f"{self.source}: a completion returns a list of str.")
        return Reply({"completion": {"values": values[:cap], "total": len(values), "hasMore": len(values) > cap}})

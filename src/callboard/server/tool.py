"""A tool: a function, and all that can be known of it before the first call.

Everything that a request needs from it is an attribute: its converter, its definition as bytes, its header map.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import UNSET

from callboard.core.headers import HeaderParam, compile_param_map
from callboard.core.outcome import CacheHint, NeedInput, Outcome, Reply
from callboard.errors import AskError, Fail, Reason, RegistrationError, ToolError
from callboard.server.callee import CONTENT_BLOCKS, Callee, FactFields, Facts, Run, make_definition, open_reply
from callboard.server.context import Context
from callboard.server.msgspec_schema import MsgspecArguments
from callboard.server.policy import AccessFields, Gate, Policy, Visible, limit, make_gate, sort_options
from callboard.server.schema import ArgumentFaults, compile_arguments, compile_raw_schema
from callboard.server.shape import compile_result, encode_value
from callboard.server.signature import Signature
from callboard.server.state import StateKind
from callboard.wire import v2026_07_28 as v

__all__ = ["Tool", "ToolFields", "answer_in_band", "check_tool_name", "read_tool_fields", "sole_error"]


class ToolFields(FactFields, AccessFields, total=False):
    """The options of a tool as keyword arguments: those of its policy, and what its definition says."""

    annotations: v.ToolAnnotations | None
    timeout: float | None
    concurrency: int | None
    cache: CacheHint | None
    idempotent: bool
    task: Literal["never", "allowed", "always"]
    snapshot: bool
    input_schema: Mapping[str, Any] | None
    output_schema: Mapping[str, Any] | None


_POLICY = frozenset(Policy.__struct_fields__)
_OWN = frozenset({"annotations", "snapshot", "input_schema", "output_schema"})


def read_tool_fields(where: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Sort the options of a tool into what `Tool` takes.

    Raises:
        RegistrationError: One of them is unknown; the text lists those there are.
    """
    facts, policy, own = sort_options(where, fields, policy=_POLICY, own=_OWN)
    return {**own, "facts": facts, "policy": policy}


class Tool:
    """A tool.

    Args:
        fn: The function.
        facts: What it says about itself.
        policy: How it may be run.
        annotations: Hints about its behaviour.
        input_schema: Raw JSON Schema of the arguments; then `fn` takes one parameter, the arguments as a dict.
        output_schema: Raw JSON Schema of the structured result.
        strict: Whether arguments that the function doesn't take are faults.
        state: The server's state (`server.state`), which parameters of its type get; None without.
        snapshot: Whether calls of a session run at once, on a copy of its state that is not written back.

    Raises:
        RegistrationError: The function can't be a tool; the text says which part of it and what to do.

    Attributes:
        key: Its name.
        definition: Its entry in `tools/list`, encoded.
        header_params: Arguments that headers mirror (HH-09).
        source: Name and place of the function, for error texts.
        state: The state that it takes; None when it takes none.
        snapshot: As given.
        policy: As given.
        gate: What lets calls through; None where everybody may call it.
        visible: Says for each request whether the tool is there; None where it always is.
        listing: How long clients may keep its entry in the list; None for the server's `cache`.
    """

    kind: ClassVar[Literal["tools"]] = "tools"
    __slots__ = (
        "_arguments",
        "_raw_parameter",
        "_run",
        "_shape",
        "_wraps",
        "definition",
        "gate",
        "header_params",
        "key",
        "listing",
        "policy",
        "snapshot",
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
        annotations: v.ToolAnnotations | None = None,
        input_schema: Mapping[str, Any] | None = None,
        output_schema: Mapping[str, Any] | None = None,
        strict: bool = True,
        state: StateKind | None = None,
        snapshot: bool = False,
    ) -> None:
        callee = Callee(fn, state)
        signature = callee.signature
        self.key = signature.name if facts.name is None else facts.name
        self.source = signature.label
        self.state = callee.state
        self.snapshot = snapshot
        check_tool_name(self.key, self.source)
        policy.check(self.source)
        _check_turn(policy, self.source, takes_state=self.state is not None, snapshot=snapshot)
        self.policy = policy
        self.gate: Gate | None = make_gate(policy, self.source, f"tools:{self.key}")
        self.visible: Visible | None = policy.visible
        self.listing: CacheHint | None = policy.cache
        self._raw_parameter: str | None = None
        for option, schema in (("input_schema", input_schema), ("output_schema", output_schema)):
            if schema is not None and not isinstance(schema, Mapping):
                raise RegistrationError(f"{self.source}: {option} must be a JSON Schema as a mapping, not {schema!r}.")
        if input_schema is None:
            self._arguments = compile_arguments(signature, strict=strict)
        else:
            self._arguments = compile_raw_schema(dict(input_schema), label=self.source)
            self._raw_parameter = _sole_parameter(signature)
        raw_output = None if output_schema is None else dict(output_schema)
        result = compile_result(signature.returns, raw_output_schema=raw_output, label=self.source)
        self._shape = result.shape
        # TL-07: protocols that allow only objects there get it in one
        self._wraps = result.output_schema is not None and result.output_schema.get("type") != "object"
        try:
            self.header_params: tuple[HeaderParam, ...] = compile_param_map(self._arguments.input_schema)
        except ValueError as error:
            raise RegistrationError(f"{self.source}: {error}") from None
        self._run: Run = limit(callee, policy, self.key)
        _, self.definition = make_definition(
            v.Tool,
            self.source,
            name=self.key,
            input_schema=self._arguments.input_schema,
            output_schema=UNSET if result.output_schema is None else result.output_schema,
            annotations=_read_annotations(annotations, policy, self.source),
            **facts.fields(signature),
        )

    @property
    def matches_with_re(self) -> bool:
        """Whether patterns of its arguments run in Python's `re`, which may take for ever; other engines don't."""
        return isinstance(self._arguments, MsgspecArguments)

    async def call(self, raw: msgspec.Raw | None, ctx: Context) -> Outcome:
        """Run the tool: bind, call, shape. What the tool says of its own failure, and faulty arguments, are results (TL-12, TL-13)."""
        try:
            kwargs = self._arguments.bind(raw)
            if self._raw_parameter is not None:
                kwargs = {self._raw_parameter: kwargs}
            returned = await self._run(kwargs, ctx)
            if type(returned) is NeedInput:
                return returned
            if type(returned) is Reply:
                returned = open_reply(returned, ctx, takes_state=self.state is not None, source=self.source)
            content, structured, meta = self._shape(returned)
        except ArgumentFaults as faults:
            return Reply({"content": [v.TextContent(text=str(faults))], "isError": True})
        except ToolError as error:
            return answer_in_band(error)
        except ExceptionGroup as group:
            sole = sole_error(group)
            if isinstance(sole, ToolError):
                return answer_in_band(sole)
            raise
        value: dict[str, Any] = {"content": content}
        if structured is not None:
            value["structuredContent"] = structured
        if meta is not None:
            value["_meta"] = meta
        return Reply(value, None, UNSET, self._wraps)


def sole_error(error: BaseException) -> BaseException:
    """The only exception inside nested groups, as a TaskGroup wraps it. Of several the first, where all are of asks; else the group."""
    leaves: list[BaseException] = []
    waiting = [error]
    while waiting:  # groups may be nested deeper than functions can call each other
        each = waiting.pop()
        if isinstance(each, BaseExceptionGroup):
            waiting += reversed(each.exceptions)
        else:
            leaves.append(each)
    return leaves[0] if len(leaves) == 1 or all(map(_is_of_an_ask, leaves)) else error


def _is_of_an_ask(error: BaseException) -> bool:
    return isinstance(error, AskError) or (isinstance(error, Fail) and error.reason is Reason.MISSING_CAPABILITY)


def answer_in_band(error: ToolError) -> Reply:
    """The result that tells the model of a tool's own failure (TL-12)."""
    content = error.content
    blocks = list(content) if isinstance(content, list | tuple) else [content]
    value: dict[str, Any] = {
        "content": [block if isinstance(block, CONTENT_BLOCKS) else v.TextContent(text=str(block)) for block in blocks],
        "isError": True,
    }
    if error.structured is not None:
        value["structuredContent"] = msgspec.Raw(encode_value(error.structured))
    return Reply(value)


def check_tool_name(name: str, source: str) -> None:
    """Refuse what is no name of a tool (TL-15).

    Raises:
        RegistrationError: It is none.
    """
    if (
        not isinstance(name, str)
        or not 1 <= len(name) <= 128
        or not all(char.isascii() and (char.isalnum() or char in "_-.") for char in name)
    ):
        raise RegistrationError(f"{source}: {name!r} can't name a tool: use 1 to 128 of A-Z a-z 0-9 _ - . (pass name=...).")


def _check_turn(policy: Policy, source: str, *, takes_state: bool, snapshot: bool) -> None:
    if snapshot and not takes_state:
        raise RegistrationError(f"{source}: snapshot=True, but it takes no state: declare a parameter of the type in Server(state=).")
    if policy.task != "never" and takes_state and not snapshot:
        raise RegistrationError(
            f"{source}: task={policy.task!r}, but it takes the session's state, and its turn ends when its request is answered: "
            "give it snapshot=True, or no state."
        )


def _sole_parameter(signature: Signature) -> str:
    if len(signature.parameters) != 1:
        raise RegistrationError(
            f"{signature.label}: with input_schema= the function takes exactly one parameter, the arguments as a dict (and a Context if it likes)."
        )
    return signature.parameters[0].name


def _read_annotations(annotations: v.ToolAnnotations | None, policy: Policy, source: str) -> v.ToolAnnotations | msgspec.UnsetType:
    """The hints that a definition gives, with what the policy says of the same."""
    if annotations is None:
        return v.ToolAnnotations(idempotent_hint=True) if policy.idempotent else UNSET
    if not isinstance(annotations, v.ToolAnnotations):
        raise RegistrationError(
            f"{source}: annotations must be a types.ToolAnnotations, like ToolAnnotations(read_only_hint=True), not {annotations!r}."
        )
    if not policy.idempotent:
        return annotations
    if annotations.idempotent_hint is False:
        raise RegistrationError(f"{source}: idempotent=True, but its annotations say idempotent_hint=False; leave one of them out.")
    return msgspec.structs.replace(annotations, idempotent_hint=True)

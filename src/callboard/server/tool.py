"""A tool: a function, and all that can be known of it before the first call.

Everything that a request needs from it is an attribute: its converter, its definition as bytes, its header map.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import UNSET

from callboard.core.headers import HeaderParam, compile_param_map
from callboard.core.outcome import Reply
from callboard.errors import RegistrationError, ToolError
from callboard.server.callee import CONTENT_BLOCKS, Callee, Facts, Run, make_definition, open_reply
from callboard.server.context import Context
from callboard.server.schema import ArgumentFaults, compile_arguments, compile_raw_schema
from callboard.server.shape import compile_result, encode_value
from callboard.server.signature import Signature
from callboard.server.state import StateKind
from callboard.wire import v2026_07_28 as v

__all__ = ["Policy", "Tool", "sole_error"]


class Policy(msgspec.Struct, kw_only=True, frozen=True):
    """How a tool may be run.

    Attributes:
        timeout: Seconds after which its work is cancelled and the call answered in band; None for no limit.
        concurrency: How many calls of it run at once; more wait. None for no limit.
    """

    timeout: float | None = None
    concurrency: int | None = None


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
    """

    kind: ClassVar[Literal["tools"]] = "tools"
    __slots__ = (
        "_arguments",
        "_raw_parameter",
        "_run",
        "_shape",
        "_wraps",
        "definition",
        "header_params",
        "key",
        "snapshot",
        "source",
        "state",
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
        if snapshot and self.state is None:
            raise RegistrationError(
                f"{self.source}: snapshot=True, but it takes no state: declare a parameter of the type in Server(state=)."
            )
        _check_tool_name(self.key, self.source)
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
        self._run: Run = _limited(callee, policy, self.key)
        _, self.definition = make_definition(
            v.Tool,
            self.source,
            name=self.key,
            input_schema=self._arguments.input_schema,
            output_schema=UNSET if result.output_schema is None else result.output_schema,
            annotations=_check_annotations(annotations, self.source),
            **facts.fields(signature),
        )

    async def call(self, raw: msgspec.Raw | None, ctx: Context) -> Reply:
        """Run the tool: bind, call, shape. What the tool says of its own failure, and faulty arguments, are results (TL-12, TL-13)."""
        try:
            kwargs = self._arguments.bind(raw)
            if self._raw_parameter is not None:
                kwargs = {self._raw_parameter: kwargs}
            returned = await self._run(kwargs, ctx)
            if type(returned) is Reply:
                returned = open_reply(returned, ctx, takes_state=self.state is not None, source=self.source)
            content, structured, meta = self._shape(returned)
        except ArgumentFaults as faults:
            return Reply({"content": [v.TextContent(text=str(faults))], "isError": True})
        except ToolError as error:
            return _failure(error)
        except ExceptionGroup as group:
            sole = sole_error(group)
            if isinstance(sole, ToolError):
                return _failure(sole)
            raise
        value: dict[str, Any] = {"content": content}
        if structured is not None:
            value["structuredContent"] = structured
        if meta is not None:
            value["_meta"] = meta
        return Reply(value, None, UNSET, self._wraps)


def sole_error(error: BaseException) -> BaseException:
    """The only exception inside nested groups, as a TaskGroup wraps it; the group itself when it holds several."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _failure(error: ToolError) -> Reply:
    content = error.content
    blocks = list(content) if isinstance(content, list | tuple) else [content]
    value: dict[str, Any] = {
        "content": [block if isinstance(block, CONTENT_BLOCKS) else v.TextContent(text=str(block)) for block in blocks],
        "isError": True,
    }
    if error.structured is not None:
        value["structuredContent"] = msgspec.Raw(encode_value(error.structured))
    return Reply(value)


def _check_tool_name(name: str, source: str) -> None:
    """TL-15."""
    if (
        not isinstance(name, str)
        or not 1 <= len(name) <= 128
        or not all(char.isascii() and (char.isalnum() or char in "_-.") for char in name)
    ):
        raise RegistrationError(f"{source}: {name!r} can't name a tool: use 1 to 128 of A-Z a-z 0-9 _ - . (pass name=...).")


def _sole_parameter(signature: Signature) -> str:
    if len(signature.parameters) != 1:
        raise RegistrationError(
            f"{signature.label}: with input_schema= the function takes exactly one parameter, the arguments as a dict (and a Context if it likes)."
        )
    return signature.parameters[0].name


def _check_annotations(annotations: v.ToolAnnotations | None, source: str) -> v.ToolAnnotations | msgspec.UnsetType:
    if annotations is None:
        return UNSET
    if not isinstance(annotations, v.ToolAnnotations):
        raise RegistrationError(
            f"{source}: annotations must be a types.ToolAnnotations, like ToolAnnotations(read_only_hint=True), not {annotations!r}."
        )
    return annotations


def _limited(callee: Callee, policy: Policy, name: str) -> Run:
    """Wrap a tool's run in its policy, the wait for a turn inside the time limit."""
    run = callee.call
    if policy.concurrency is not None:
        if type(policy.concurrency) is not int or policy.concurrency < 1:
            raise RegistrationError(f"concurrency must be an integer of at least 1, not {policy.concurrency!r}: no call would ever run.")
        run = _in_turn(run, policy.concurrency, on_thread=not callee.signature.is_async)
    if policy.timeout is not None:
        if not isinstance(policy.timeout, int | float) or policy.timeout <= 0:
            raise RegistrationError(f"timeout must be a number of seconds above 0, not {policy.timeout!r}: no call would ever end well.")
        run = _timed(run, policy.timeout, name)
    return run


def _in_turn(run: Run, concurrency: int, *, on_thread: bool) -> Run:
    turns: dict[asyncio.AbstractEventLoop, asyncio.Semaphore] = {}

    async def run_in_turn(kwargs: dict[str, Any], ctx: Context) -> Any:
        loop = ctx.mount.workers.loop
        if loop not in turns:
            turns.clear()
            turns[loop] = asyncio.Semaphore(concurrency)
        turn = turns[loop]
        if not on_thread:
            async with turn:
                return await run(kwargs, ctx)
        await turn.acquire()
        # A thread can't be stopped: it keeps its turn until it returns, whoever has stopped waiting for it.
        work = asyncio.ensure_future(run(kwargs, ctx))
        work.add_done_callback(partial(_give_turn_back, turn))
        return await asyncio.shield(work)

    return run_in_turn


def _give_turn_back(turn: asyncio.Semaphore, work: asyncio.Future[Any]) -> None:
    turn.release()
    if not work.cancelled():
        work.exception()  # seen, also where nobody waits any more


def _timed(run: Run, seconds: float, name: str) -> Run:
    async def run_timed(kwargs: dict[str, Any], ctx: Context) -> Any:
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await run(kwargs, ctx)
        except TimeoutError:
            if limit.expired():
                ctx.crashed = True  # it was stopped anywhere: what it did to the state is half done
                raise ToolError(f"{name} was stopped: it took longer than {seconds:g} s.") from None
            raise

    return run_timed

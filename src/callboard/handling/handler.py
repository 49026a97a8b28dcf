"""`Handler`: a server as a class with callbacks, and what runs it without any transport."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ForwardRef, Generic, TypeAlias, get_args, get_origin

import msgspec
from msgspec import UNSET
from typing_extensions import TypeVar

from callboard.core.era import Envelope, Request
from callboard.core.exchange import Exchange
from callboard.core.outcome import Outcome, Reply
from callboard.errors import Fail, Reason, RegistrationError, ToolError
from callboard.handling.callbacks import find_callback, optional
from callboard.handling.channel import Channel, Notification
from callboard.handling.loop import HandlerServer
from callboard.server.app import Server
from callboard.server.component import sole_error
from callboard.server.middleware import Layer
from callboard.server.mount import Mount
from callboard.server.signature import accepts
from callboard.server.state import Hello
from callboard.server.workers import Workers
from callboard.wire import v2026_07_28 as v
from callboard.wire.jsonrpc import RequestId, encode
from callboard.wire.versions import LATEST

__all__ = ["Handler", "HandlerSession", "Served", "adapt", "handle_method", "is_handler"]

State = TypeVar("State", default=Any)
_OPTIONS = ("version", "title", "description", "instructions", "icons", "website", "capabilities", "page_size", "middleware")


class Handler(Generic[State]):
    """A server as a class. Every callback may be left out, and may be `def` (then it runs on a thread) or `async def`.

    `Handler[Cart]` says of what type the state is: one that msgspec can read back is kept as bytes, and a callback gets a copy of its own.
    Without a type, or of another one, the state is kept as the object that it is: return a new one with `Reply(value, state=new)` rather
    than change it.

    A request ends with: a result (see `callboard.handler`), `Reply(value, state=, cache=, stop_reason=)` with a result in it, a `Fail` or
    `ToolError`, returned or raised, `NeedInput`, `Deferred`, or `Stop(reason)`. `Stream(state)` lets it go on with `handle_message`.

    Attributes:
        name: Programmatic name; the class's by default.
        capabilities: What to advertise, in place of what the callbacks imply. A handler of whole requests has to say.
        page_size: Items on a page of a list that a callback gives whole.
        middleware: Layers around every request, the first one outermost.
        server_options: Every other option of `Server`, by name: `mask_errors`, `cache`, `bus`, `keys`, ...

    `version`, `title`, `description`, `instructions`, `icons` and `website` say what it is, as those of a Server do.
    """

    name: str = ""
    version: str = "0"
    title: str | None = None
    description: str | None = None
    instructions: str | None = None
    icons: Sequence[v.Icon] = ()
    website: str | None = None
    capabilities: Mapping[str, Any] | None = None
    page_size: int = 50
    middleware: Sequence[Layer] = ()
    server_options: Mapping[str, Any] = MappingProxyType({})

    @property
    def server(self) -> HandlerServer:
        """The server that it is: `publish` and `changed`, and what every Server has, such as `broadcast`, `notify`, `resource_updated`."""
        made: HandlerServer | None = self.__dict__.get("_server")
        if made is None:
            made = self.__dict__["_server"] = HandlerServer(self, _declared_state(type(self)), _read_options(self))
        return made

    @optional
    def lifespan(self, *args: Any, **kwargs: Any) -> Any:
        """`(server)`: gives an async context manager (`@asynccontextmanager`), entered once whatever serves the handler."""

    @optional
    def init(self, hello: Hello) -> Any:
        """The state that a session begins with; without sessions the one of each request. `Stop(reason)` refuses.

        Args:
            hello: Who begins: `params` of `initialize`, `session_id`, bound `options`, `capabilities`, `version`.
        """

    @optional
    def handle_request(self, request: Request, channel: Channel, state: State) -> Any:
        """Answer a whole request, whatever its method; in place of the callbacks for single methods.

        Args:
            request: `method`, and `params` as a type of the protocol; the arguments of a tool as a dict.
            channel: The way to the client, and the mailbox.
            state: The state.
        """

    @optional
    def handle_message(self, message: Any, channel: Channel, state: State) -> Any:
        """Take what came into the mailbox of a request that streams, in the order in which it came.

        Args:
            message: What `channel.send` was given, or `Finished`, `Crashed`, `Published`.
            channel: The request's.
            state: What the last `Stream` said.
        """

    @optional
    def handle_notification(self, notification: Notification, channel: Channel, state: State) -> Any:
        """Hear what a client tells. It has been accepted before; nothing that is returned or raised here reaches anybody."""

    @optional
    def handle_close(self, channel: Channel, state: State) -> Any:
        """A request that streams was ended from outside, or by `channel.close()`. The channel is closed."""

    @optional
    def terminate(self, reason: str, state: State) -> Any:
        """A session has ended, once: `deleted`, `expired`, `shutdown`, `closed`, or what a `Stop` or `Reply(stop_reason=)` said."""

    @optional
    def channels(self, state: State) -> Iterable[str]:
        """Topics that a session hears from its beginning (`server.broadcast`)."""
        raise NotImplementedError

    # Lists: all items, or with a third parameter `params` the page that `params.get("cursor")` asks for.

    @optional
    def list_tools(self, *args: Any, **kwargs: Any) -> Any:
        """`(ctx, state)` or `(ctx, state, params)`: the tools. It is read anew for each call, to see whether there is one of that name."""

    @optional
    def call_tool(self, name: str, arguments: dict[str, Any], ctx: Channel, state: State) -> Any:
        """Run a tool. Arguments are not checked against its schema."""

    @optional
    def list_resources(self, *args: Any, **kwargs: Any) -> Any:
        """`(ctx, state)` or `(ctx, state, params)`: the resources."""

    @optional
    def list_resource_templates(self, *args: Any, **kwargs: Any) -> Any:
        """`(ctx, state)` or `(ctx, state, params)`: the resource templates."""

    @optional
    def read_resource(self, uri: str, ctx: Channel, state: State) -> Any:
        """Contents of a resource, listed or not; None, or `NotFound`, when there is none."""

    @optional
    def list_prompts(self, *args: Any, **kwargs: Any) -> Any:
        """`(ctx, state)` or `(ctx, state, params)`: the prompts."""

    @optional
    def get_prompt(self, name: str, arguments: dict[str, str], ctx: Channel, state: State) -> Any:
        """Messages of a prompt."""

    @optional
    def complete(self, ref: Any, argument: Any, ctx: Channel, state: State) -> Any:
        """Values for an argument.

        Args:
            ref: `types.PromptReference` (`name`) or `types.ResourceTemplateReference` (`uri`).
            argument: Its `name`, and its `value` so far.
            ctx: The request.
            state: The state.
        """

    @optional
    def set_log_level(self, level: str, ctx: Channel, state: State) -> Any:
        """A 2025 client sets its log level; a `Fail` refuses. Deprecated by SEP-2577, see `Context.log`."""

    @optional
    def subscribe(self, uri: str, ctx: Channel, state: State) -> Any:
        """A 2025 client wants to hear of a resource; a `Fail` refuses."""

    @optional
    def unsubscribe(self, uri: str, ctx: Channel, state: State) -> Any:
        """A 2025 client does not want to hear of it any more."""


Served: TypeAlias = Server | Handler[Any] | type[Handler[Any]] | Callable[[], Handler[Any]]
"""What a transport serves: a Server, a Handler, its class, or a function that makes one."""


def is_handler(value: Any) -> bool:
    """Whether something is a handler or the class of one."""
    return isinstance(value, Handler) or (isinstance(value, type) and issubclass(value, Handler) and value is not Handler)


def adapt(served: Any) -> Server:
    """Whatever a transport is given as a Server. A class or a function is called, once and without arguments.

    Raises:
        RegistrationError: It is nothing that can be served.
    """
    if isinstance(served, Server):
        return served
    made = served
    if not isinstance(served, Handler) and callable(served) and (is_handler(served) or not isinstance(served, type)):
        if not accepts(served):
            raise RegistrationError(f"{served!r} is called without arguments: pass what it makes.")
        made = served()
    if not isinstance(made, Handler):
        if inspect.iscoroutine(made):
            made.close()
        raise RegistrationError(f"What is served must be a callboard.Server, or a callboard.Handler or what makes one, not {made!r}.")
    server: Any = made.server
    if not isinstance(server, Server):
        raise RegistrationError(f"{type(made).__qualname__}.server is what every handler has, its Server: give {server!r} another name.")
    return server


def _read_options(handler: Any) -> dict[str, Any]:
    """The options of `Server` that a handler has as attributes."""
    label = type(handler).__qualname__
    if not isinstance(handler.server_options, Mapping):
        raise RegistrationError(f"{label}.server_options must be a mapping of options by name, not {handler.server_options!r}.")
    stated = {"name": handler.name or type(handler).__name__, **{name: getattr(handler, name) for name in _OPTIONS}}
    if (lifespan := find_callback(handler, "lifespan")) is not None:
        stated["lifespan"] = lifespan
    if twice := sorted(stated.keys() & handler.server_options.keys()):
        raise RegistrationError(f"{label}: {twice[0]} is an attribute of a handler, not one of its server_options.")
    return {**stated, **handler.server_options}


def _declared_state(cls: type) -> Any:
    """The type in `Handler[...]` of a class or its bases; UNSET where that says nothing."""
    found = _find_state(cls)
    return UNSET if isinstance(found, TypeVar) or found is Any or found is object else found


def _find_state(cls: type) -> Any:
    for base in cls.__dict__.get("__orig_bases__", cls.__bases__):
        origin = get_origin(base) or base
        if not isinstance(origin, type) or not issubclass(origin, Handler):
            continue
        found = get_args(base)[0] if origin is Handler and get_args(base) else _find_state(origin)
        if isinstance(found, TypeVar):
            given: dict[Any, Any] = dict(zip(getattr(origin, "__parameters__", ()), get_args(base), strict=False))
            found = given.get(found, found)
        if isinstance(found, ForwardRef):
            found = _resolve(found, cls)
        if found is not UNSET:
            return found
    return UNSET


def _resolve(reference: ForwardRef, cls: type) -> Any:
    try:
        return eval(reference.__forward_code__, vars(sys.modules[cls.__module__]))  # noqa: S307 - the author's own annotation
    except Exception as error:
        raise RegistrationError(
            f"{cls.__qualname__}: there is no {reference.__forward_arg__!r} in its module: pass the type itself."
        ) from error


class HandlerSession(msgspec.Struct):
    """What `handle_method` goes on from.

    Attributes:
        state: The state, as the last request left it; UNSET where there is no session: then `init` gives every request its own.
        hello: How the client introduced itself.
    """

    state: Any = UNSET
    hello: Hello = msgspec.field(default_factory=Hello)


async def handle_method(
    handler: Handler[Any],
    method: str,
    params: Mapping[str, Any] | None = None,
    id: RequestId = 1,  # noqa: A002 - JSON-RPC's name for it
    session: HandlerSession | None = None,
) -> tuple[Outcome, HandlerSession]:
    """Run a handler for one request, without any transport: what a client would get, and what the session goes on with.

    Args:
        handler: The handler.
        method: The method; `initialize` runs `init` and begins a session.
        params: Its parameters, as they would go over the wire, without what the current protocol adds to them.
        id: The request's id.
        session: What an earlier call gave; None for a request that stands alone.

    Returns:
        The outcome, a failure included; the session after it.
    """
    known = session or HandlerSession()
    server = handler.server
    workers = Workers(asyncio.get_running_loop())
    try:
        if method == "initialize":
            return await _begin(server, dict(params or {}), known, workers)
        return await _run(server, method, dict(params or {}), id, known, workers)
    finally:
        workers.close()


async def _begin(server: HandlerServer, params: dict[str, Any], known: HandlerSession, workers: Workers) -> tuple[Outcome, HandlerSession]:
    hello = msgspec.structs.replace(
        known.hello,
        capabilities=params.get("capabilities", known.hello.capabilities),
        version=params.get("protocolVersion", known.hello.version),
        params=params,
    )
    try:
        state = server.kind.draft(await server.kind.open(hello, workers))
    except Fail as fail:
        return fail, known
    value: dict[str, Any] = {"serverInfo": server.info, "capabilities": server.capabilities(listens=True)}
    if server.instructions is not None:
        value["instructions"] = server.instructions
    return Reply(value), HandlerSession(state, hello)


async def _run(
    server: HandlerServer, method: str, params: dict[str, Any], request_id: RequestId, known: HandlerSession, workers: Workers
) -> tuple[Outcome, HandlerSession]:
    row = server.methods.get(method)
    if row is None:
        return Fail(Reason.METHOD_NOT_FOUND), known
    try:
        lifted = row.decode(encode(params))
    except msgspec.DecodeError as error:
        return Fail(Reason.INVALID_PARAMS, f"params: {error}"), known
    hello = known.hello
    request = Request(request_id, method, lifted, row, Envelope(hello.version or LATEST, hello.capabilities, hello.client_info))
    mount = Mount(server, workers, values={}, versions=(LATEST,), options=hello.options, listens=False)
    channel = Channel(mount, request, Exchange(_nobody))
    if known.state is not UNSET:
        channel.give_state(server.kind.draft(server.kind.seal(known.state)))
    outcome: Outcome
    try:
        outcome = await server.service(request, channel)
        encode(outcome.value if isinstance(outcome, Reply) else None)
    except Exception as error:  # noqa: BLE001 - a transport would guard, too
        outcome = server.crash(method, error)
        if not isinstance(sole_error(error), Fail | ToolError):
            return outcome, known
    if known.state is not UNSET:
        try:
            known = HandlerSession(server.kind.draft(server.kind.seal(channel.state)), hello)
        except TypeError as error:
            return server.crash(f"{method}: its state", error), known
    return outcome, known


def _nobody() -> None:
    """Nobody waits at the other end."""

"""`Server`: what a program serves. It knows no transport."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeVar, Unpack, overload

from msgspec import UNSET
from typing_extensions import deprecated

from callboard.core.era import Request
from callboard.core.outcome import CacheHint
from callboard.core.uri import UriTemplate
from callboard.errors import Fail, Reason, RegistrationError, StoreError, ToolError
from callboard.logs import clean, request_id
from callboard.server.callee import make_definition
from callboard.server.catalogue import find_watched, tells_at_once, tells_of
from callboard.server.classes import compile_parts
from callboard.server.component import (
    COMPLETION_CAP,
    RESOURCE,
    Completer,
    Component,
    Prompt,
    PromptFields,
    Resource,
    ResourceFields,
    Template,
    Tool,
    ToolFields,
    read_tool_fields,
    sole_error,
)
from callboard.server.context import Context
from callboard.server.dispatch import SERVE, dispatch, find_turn
from callboard.server.extension import Extension, Serve
from callboard.server.journal import Journal, new_id, show_plainly
from callboard.server.lifespan import Lifespan, LifespanFactory
from callboard.server.middleware import Layer, Service, compose
from callboard.server.mounting import Mounted
from callboard.server.policy import ACCESS, sort_options
from callboard.server.provider import FunctionProvider
from callboard.server.pushes import push_log, push_to_session, push_to_topic
from callboard.server.registry import Kind, Provider, Registry
from callboard.server.seals import Seals
from callboard.server.state import HookFields, StateKind, Turn, read_hooks
from callboard.server.subscriptions import Hub, check_kind, deliverable
from callboard.server.task_table import Tasks
from callboard.server.tasks import TaskExtension
from callboard.stores.base import Bus, Store
from callboard.stores.opening import open_store
from callboard.telemetry.events import Sink
from callboard.wire import v2026_07_28 as v
from callboard.wire.methods import METHODS, Method

__all__ = ["Server"]

F = TypeVar("F", bound=Callable[..., Any])
_LABEL = "[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_EXTENSION_ID = re.compile(rf"{_LABEL}(?:\.{_LABEL})*/[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_log = logging.getLogger("callboard")
# Characters of an exception's text that a client gets where errors are not masked.
MAX_SHOWN = 2_000


class Server:
    """A set of tools, resources and prompts, and how they are served.

    Args:
        name: Programmatic name.
        version: Version of the program.
        title: Name for people.
        description: What it is.
        instructions: Advice for the model on how to use it.
        icons: Pictures of it.
        website: Its address for people.
        capabilities: What to advertise, in the protocol's words, in place of what the components imply.
        page_size: Components on one list page.
        lifespan: `lifespan(server)` gives an async context manager; what it yields (a mapping) is in every `ctx.locals`.
            Entered once per server, whatever serves it.
        middleware: Layers around every request, the first one outermost.
        strict_input: Whether arguments that a function doesn't take are faults.
        mask_errors: Whether the text of an unexpected exception is kept from the client (the log has it, under an error id).
        completion_cap: Values that a completion may return; the protocol allows at most 100.
        cache: How long clients may keep lists and resources; private and 0 ms by default.
        state: What a session of a 2025 client keeps between calls: a type, made without arguments, or `(hello) -> value`, whose return
            annotation is the type. Functions get it by declaring a parameter of this type; without a session every request begins anew.
        keys: What seals `requestState`, 32 bytes or more each: the first seals, all open. By default those of the store that the processes
            share, else a random one of this process; several processes without a shared store need the same ones, and with `keys=()` a
            server that got none says so instead of making one.
        ask_timeout: Seconds that a 2025 client has to answer what a call asks.
        request_state_ttl: Seconds that a client of the current protocol has.
        single_use: Whether what a client sends back to go on with a call is taken once only, as `store` remembers (MR-08).
        store: Where it keeps what outlasts a request, and what carries changes and pushes: a `Store`, or the URL of a Redis that all its
            processes share (`redis://`, `rediss://`); this process's memory by default.
        tasks: Where tasks are kept and run, and their limits; `MemoryTasks()`, this process, by default.
        telemetry: Who is told of what happens: `callboard.telemetry.Prometheus()`, `OpenTelemetry()`, another `Sink`, or a list of them.
        **hooks: `channels`, the topics that a session hears, as a list or as `(state) -> list`; `terminate(reason, state)` when a session
            has ended (`deleted`, `expired`, `shutdown`, `closed`); `set_log_level(level, ctx)`, `subscribe(uri, ctx)` and
            `unsubscribe(uri, ctx)` when a 2025 client asks for that: a `Fail` that they raise is the answer.

    Raises:
        RegistrationError: An option can't work.
    """

    # What functions see of a request; those of a handler see more.
    context_type: type[Context] = Context
    # Whether what clients notify is heard.
    hears: bool = False

    def __init__(
        self,
        name: str,
        *,
        version: str = "0",
        title: str | None = None,
        description: str | None = None,
        instructions: str | None = None,
        icons: Sequence[v.Icon] = (),
        website: str | None = None,
        capabilities: Mapping[str, Any] | None = None,
        page_size: int = 50,
        lifespan: LifespanFactory | None = None,
        middleware: Sequence[Layer] = (),
        strict_input: bool = True,
        mask_errors: bool = True,
        completion_cap: int = COMPLETION_CAP,
        cache: CacheHint | None = None,
        state: Any = None,
        keys: Sequence[bytes | str] | None = None,
        ask_timeout: float = 300.0,
        request_state_ttl: float = 3600.0,
        single_use: bool = False,
        store: Store | str | None = None,
        tasks: Tasks | None = None,
        telemetry: Sink | Sequence[Sink] | None = None,
        **hooks: Unpack[HookFields],
    ) -> None:
        _check_options(completion_cap, instructions, ask_timeout)
        _check_part("tasks", tasks, ("start", "find", "answer", "cancel"), "a callboard.tasks.Tasks, like MemoryTasks(ttl=600)")
        self.info = _introduce(name, version, title=title, description=description, icons=icons, website_url=website)
        self.instructions = instructions
        self.cache = cache or CacheHint()
        self.completion_cap = completion_cap
        self.mask_errors = mask_errors
        self.state = state if state is None or isinstance(state, StateKind) else StateKind(state)
        self.hooks = read_hooks(hooks)
        self.store: Store = open_store(store, name)
        self.hub = Hub(self.store.bus, shared=self.store.shared)
        self.ask_timeout = ask_timeout
        self.journal = Journal(keys, telemetry)
        self.seals = Seals(name, keys=keys, ttl=request_state_ttl, single_use=single_use, store=self.store.kv)
        self.registry = Registry(page_size=page_size, changed=self.hub.changed, cache=self.cache, added=self._added)
        self.lifespan = Lifespan(self, lifespan)
        self.strict_input = strict_input
        self._declared = None if capabilities is None else dict(capabilities)
        # Capabilities whose methods are served (EC-10).
        self.offered: Container[str] = self.registry.offered if self._declared is None else self._declared
        # What the eras read a request by, and what serves it: the core's, and those of extensions.
        self.methods: dict[str, Method] = dict(METHODS)
        self.serving: dict[str, Serve] = dict(SERVE)
        self.extensions: dict[str, Extension] = {}
        self.tasks: TaskExtension | None = None
        self._mounted: dict[str, Mounted] = {}
        self._parents: list[Server] = []
        self._tasks = tasks
        self.service: Service = compose(partial(dispatch, self), middleware)

    @property
    def name(self) -> str:
        """Programmatic name."""
        return self.info.name

    @property
    def bus(self) -> Bus:
        """What carries "something changed" and pushes."""
        return self.store.bus

    def keep_in(self, store: Store | str) -> None:
        """Use another store, as `callboard run --store` does, before anything is served: see `Server`."""
        self.store = open_store(store, self.name)
        self.hub.bus, self.hub.shared = self.store.bus, self.store.shared
        self.seals.store = self.store.kv

    def capabilities(self, *, listens: bool, logs: bool = True) -> dict[str, Any]:
        """What `server/discover` advertises (MT-18).

        Args:
            listens: Whether the transport can deliver notifications of change; what can't be delivered is not advertised.
            logs: Whether it can deliver log messages.
        """
        extensions = {name: extension.settings() for name, extension in self.extensions.items()}
        if self._declared is not None:
            return deliverable(self._declared, extensions, listens=listens, logs=logs)
        changes = {"listChanged": True} if listens else {}
        capabilities: dict[str, Any] = {"logging": {}} if logs else {}
        for kind in ("tools", "prompts"):
            if kind in self.registry.offered:
                capabilities[kind] = changes
        if "resources" in self.registry.offered:
            capabilities["resources"] = {**changes, "subscribe": True} if listens else {}
        if "completions" in self.registry.offered:
            capabilities["completions"] = {}
        if extensions:
            capabilities["extensions"] = extensions
        return capabilities

    @overload
    def tool(self, fn: F, /, **options: Unpack[ToolFields]) -> F: ...
    @overload
    def tool(self, /, **options: Unpack[ToolFields]) -> Callable[[F], F]: ...
    def tool(self, fn: F | None = None, /, **options: Unpack[ToolFields]) -> F | Callable[[F], F]:
        """Make a function a tool; the function comes back unchanged.

        Args:
            fn: The function, when used without parentheses.
            **options: `name`, `title`, `description`, `icons`, `meta` of its definition, and

                - `annotations`: Hints about its behaviour (read-only, destructive, idempotent, open world).
                - `visible`: `(ctx) -> bool`, async or not; where it says no, nobody can tell the tool from one that does not exist.
                - `scopes`: What the caller must have been granted.
                - `rate`: Calls of one principal in a time, such as `"10/s"`, `"60/min"` or `(calls, seconds)`; past that 429.
                - `timeout`: Seconds until its work is cancelled and the call answered in band.
                - `concurrency`: Calls of it that run at once; more wait their turn.
                - `cache`: How long clients may keep its entry in the list; the list as a whole as long as the shortest.
                - `idempotent`: Whether it may be run again with the same arguments; a hint for clients too.
                - `task`: Whether a call of it may go on as a task: `never`, `allowed` for clients that know tasks, or `always`.
                - `snapshot`: Whether a call of a session does not wait for those before it, but works on a copy of the state that is not
                  kept.
                - `input_schema`: Raw JSON Schema of the arguments; the function then takes them as one dict.
                - `output_schema`: Raw JSON Schema of the structured result.

        Raises:
            RegistrationError: The function can't be a tool, or its name is taken.
        """
        stated = read_tool_fields("@server.tool", options)

        def register(function: F) -> F:
            self.registry.add(Tool(function, strict=self.strict_input, state=self.state, **stated))
            return function

        return register if fn is None else register(_check_function(fn, "@server.tool"))

    def resource(self, uri: str, **options: Unpack[ResourceFields]) -> Callable[[F], F]:
        """Make a function a resource, or a resource template when the URI has variables.

        Args:
            uri: A URI, or an RFC 6570 template whose variables are parameters of the function.
            **options: `name`, `title`, `description`, `icons`, `meta` of its definition; `visible`, `scopes`, `rate` as of a tool; and

                - `mime_type`: Of its contents; `text/plain` for str, `application/json` for other values, `application/octet-stream` for
                  bytes.
                - `size`: Bytes, when known; only for a plain URI.
                - `annotations`: Audience, priority, last change.
                - `cache`: How long clients may keep its contents; the server's `cache` by default.

        Raises:
            RegistrationError: URI and function don't fit, or the URI is taken.
        """
        _check_uri(uri)
        facts, policy, own = sort_options("@server.resource", options, policy=ACCESS, own=RESOURCE)
        if "{" in uri and own.pop("size", None) is not None:
            raise RegistrationError(f"@server.resource: {uri!r} stands for many resources, so it has no size; leave it out.")

        def register(function: F) -> F:
            make = Template if "{" in uri else Resource
            self.registry.add(make(function, uri, facts=facts, policy=policy, state=self.state, **own))
            return function

        return register

    @overload
    def prompt(self, fn: F, /, **options: Unpack[PromptFields]) -> F: ...
    @overload
    def prompt(self, /, **options: Unpack[PromptFields]) -> Callable[[F], F]: ...
    def prompt(self, fn: F | None = None, /, **options: Unpack[PromptFields]) -> F | Callable[[F], F]:
        """Make a function a prompt: str, content blocks or `types.PromptMessage`s from its arguments.

        Args:
            fn: The function, when used without parentheses.
            **options: `name`, `title`, `description`, `icons`, `meta` of its definition; `visible`, `scopes`, `rate` as of a tool.

        Raises:
            RegistrationError: The function can't be a prompt, or its name is taken.
        """
        facts, policy, _ = sort_options("@server.prompt", options, policy=ACCESS)

        def register(function: F) -> F:
            self.registry.add(Prompt(function, facts=facts, policy=policy, strict=self.strict_input, state=self.state))
            return function

        return register if fn is None else register(_check_function(fn, "@server.prompt"))

    def complete(self, owner: str, argument: str) -> Callable[[F], F]:
        """Make a function the completion of one argument: it takes the text so far and returns a list of values.

        Args:
            owner: Name of the prompt, or the URI template of the resource.
            argument: Name of the argument or variable.

        Raises:
            RegistrationError: The function can't complete, or the argument has a completion already.
        """
        if callable(owner):
            raise RegistrationError(
                '@server.complete needs parentheses: write @server.complete("prompt name or URI template", "argument").'
            )

        def register(function: F) -> F:
            self.registry.add(Completer(function, owner, argument, state=self.state))
            return function

        return register

    def add(self, component: Any) -> None:
        """Add a component; clients that listen hear of it.

        Args:
            component: A function, which becomes a tool; a compiled component; or a class, made without arguments, or an instance of one. A
                tool has `execute`, a repository of resources `prefix` and `read`, and maybe `list`, `templates` and `complete`, a prompt
                `render` and maybe `complete`; their options are attributes of the same names as in the decorators.

        Raises:
            RegistrationError: It can't be added, or its name is taken.
        """
        self.registry.add(*self._compile(component, "server.add"))

    def _compile(self, component: Any, where: str) -> list[Component]:
        return compile_parts(component, where=where, strict=self.strict_input, state=self.state)

    def mount(self, prefix: str, other: Server) -> None:
        """Serve the components of another server too, now and as they come and go: tools and prompts as `prefix_name`, resources as they are.

        They keep their server's options, middleware and lifespan, whose values they find in `ctx.locals`. What fails there fails alone.

        Args:
            prefix: What their names begin with.
            other: The server. Its extensions and its hooks are not served.

        Raises:
            RegistrationError: A name or URI is taken; or the server is this one, has this one mounted, or has a state of its own.
        """
        if not isinstance(other, Server):
            shown = repr(prefix) if isinstance(prefix, str) else '"prefix"'
            raise RegistrationError(f"server.mount takes a Server, not {_shown(other)}: write server.mount({shown}, other).")
        if other.context_type is not Context:
            raise RegistrationError(
                f"server.mount: {other.name!r} is a handler, which answers whole requests; only servers of components can be mounted."
            )
        if other.registry in self.registry.ancestors():
            raise RegistrationError(f"server.mount: {other.name!r} has {self.name!r} mounted, or is it; it can't be part of itself.")
        if other.state not in {None, self.state}:
            text = f"{other.name!r} has a state of its own; give it this server's: Server({other.name!r}, state=server.state)."
            raise RegistrationError(f"server.mount: {text}")
        if taken := self._mounted.get(prefix):
            raise RegistrationError(f"server.mount: {prefix!r} is the prefix of {taken.server.name!r} already, so not of {other.name!r}.")
        mounted = Mounted(prefix, other)
        self.registry.mount(other.registry, mounted)
        self._mounted[prefix] = mounted
        self.lifespan.dependents.append(mounted)
        other._parents.append(self)

    def provide(self, fn: F) -> F:
        """Ask a function for more components with each request: a decorator too.

        Args:
            fn: `(ctx)` -> functions, components or classes, as `server.add` takes them; plain, async or an async generator. What it gives
                depends on who asks; where it fails, its components are absent and the log has the traceback.

        Raises:
            RegistrationError: It can't be called with a Context.
        """
        self.registry.provide(FunctionProvider(fn, cache=self.cache, strict=self.strict_input, state=self.state))
        return fn

    def extend(self, extension: Extension) -> None:
        """Offer an extension of the protocol, such as `Skills`.

        Raises:
            RegistrationError: Its id is none or is there already, one of its methods or components is another's, or the server does not
                advertise what its methods belong to.
        """
        if isinstance(extension, type) or not isinstance(getattr(extension, "id", None), str):
            raise RegistrationError(f'server.extend takes an extension, like Skills("skills"), not {_shown(extension)}.')
        if not _EXTENSION_ID.fullmatch(extension.id):  # EX-01
            raise RegistrationError(
                f"server.extend: {extension.id!r} is no id of an extension: begin it with a domain, like com.example/notes."
            )
        if extension.id in self.extensions:
            raise RegistrationError(f"server.extend: {extension.id} is there already.")
        methods = extension.methods()
        if taken := sorted(methods.keys() & self.methods.keys()):
            raise RegistrationError(f"server.extend: {extension.id} brings {taken[0]}, which is served already.")
        needed = {row.capability for row, _ in methods.values() if row.capability}
        if self._declared is not None and (missing := sorted(needed - self._declared.keys())):  # SK-01
            raise RegistrationError(f"server.extend: {extension.id} needs {missing[0]!r} among the server's capabilities=.")
        self.registry.add(*[part for given in extension.components() for part in self._compile(given, "server.extend")])
        self.extensions[extension.id] = extension
        for name, (row, serve) in methods.items():
            self.methods[name] = row
            self.serving[name] = serve

    def _added(self, part: Component | Provider) -> None:
        """A component has come: with the first tool that may go on as a task comes the extension (EX-03).

        Of what a provider will give nobody knows: there the extension comes where `tasks=` was said.
        """
        is_task = part.policy.task != "never" if isinstance(part, Tool) else self._tasks is not None and not isinstance(part, Component)
        if is_task and self.tasks is None:
            self.tasks = TaskExtension(self._tasks, self)
            self.extend(self.tasks)

    def remove(self, kind: Kind, key: str) -> None:
        """Take a component out; clients that listen hear of it.

        Args:
            kind: `tools`, `resources`, `templates`, `prompts` or `repositories`.
            key: Its name; the URI of a resource, the URI template of a template, the prefix of a repository.

        Raises:
            KeyError: There is none.
        """
        self.registry.remove(kind, key)

    def resource_updated(self, uri: str) -> None:
        """Tell every client that subscribed to this URI, or to a template that it fits, that its contents changed; from any thread."""
        for server in self._publishers():
            server.hub.publish("resources", uri)

    def list_changed(self, kind: Literal["tools", "prompts", "resources"]) -> None:
        """Tell every client that listens to fetch a list again, since what a provider or `visible=` makes of it has changed; from any thread.

        Args:
            kind: Which list.

        Raises:
            ValueError: There is no such list.
        """
        for server in self._publishers():
            server.hub.publish(check_kind(kind))

    def broadcast(self, topic: str, notification: Any) -> None:
        """Tell every session whose `channels` name a topic; from any thread, waiting for nobody.

        Args:
            topic: The topic.
            notification: A `types` notification, or `{"method": ..., "params": ...}`. What can't be encoded is logged and dropped.

        Raises:
            TypeError: An argument is none of that.
        """
        for server in self._publishers():
            push_to_topic(server.bus, topic, notification)

    def notify(self, session_id: str, notification: Any) -> None:
        """Tell one session; from any thread, waiting for nobody. Without effect when there is no such session.

        Args:
            session_id: The session, as `ctx.session_id` or `hello.session_id` had it.
            notification: A `types` notification, or `{"method": ..., "params": ...}`. What can't be encoded is logged and dropped.

        Raises:
            TypeError: An argument is none of that.
        """
        for server in self._publishers():
            push_to_session(server.bus, session_id, notification)

    @deprecated("Logging is deprecated by SEP-2577; removed at the earliest by the first revision of 2027-07-28 or later.", category=None)
    def log(self, session_id: str, level: str, data: Any, logger: str | None = None) -> None:
        """Send a log message to one session, unless its level is above; from any thread, waiting for nobody.

        Deprecated since protocol 2026-07-28 (SEP-2577); see `Context.log`.

        Args:
            session_id: The session, as `ctx.session_id` or `hello.session_id` had it.
            level: One of `debug`, `info`, `notice`, `warning`, `error`, `critical`, `alert`, `emergency`.
            data: Any JSON value. What can't be encoded is logged and dropped.
            logger: Name of the part that speaks.

        Raises:
            ValueError: `level` is none of these.
        """
        for server in self._publishers():
            push_log(server.bus, session_id, level, data, logger)

    def _publishers(self) -> Iterable[Server]:
        """This server and those that it is mounted on, one for each bus."""
        found: dict[Bus, Server] = {}
        above = [self]
        while above:
            server = above.pop()
            found.setdefault(server.bus, server)
            above += server._parents  # noqa: SLF001 - its own class's
        return found.values()

    async def find_watched(self, uri: str, ctx: Context) -> UriTemplate | str | None:
        """What a client that subscribes to a URI hears of: see `catalogue.find_watched`."""
        return await find_watched(self.registry, uri, ctx)

    def tells_at_once(self, uri: str, ctx: Context) -> bool | None:
        """Whether a client that subscribes to a template hears of a URI that fits it: see `catalogue.tells_at_once`."""
        return tells_at_once(self.registry, uri, ctx)

    async def tells_of(self, uri: str, ctx: Context) -> bool:
        """The same where an author has to be asked: see `catalogue.tells_of`."""
        return await tells_of(self.registry, uri, ctx)

    def turn(self, request: Request, *, streams: bool = False) -> Turn:  # noqa: ARG002 - to a handler it matters
        """When a request of a session runs: at once, or after those before it, because what it asks for takes the session's state.

        Args:
            request: The request.
            streams: Whether its client takes a stream; how the answer travels decides nothing here.
        """
        return Turn.NOW if self.state is None else find_turn(self.registry, request)

    def hear(self, mount: Any, message: Any, bind: Any, facts: Any) -> None:
        """Take a notification of a client; only handlers do something with it."""

    def crash(self, where: str, error: BaseException, error_id: str | None = None) -> Fail:
        """Make of an unexpected exception what the client gets, and log the rest (no exception text reaches the wire).

        Args:
            where: What failed, printable.
            error: The exception.
            error_id: What the client and the log call it by; the id of the request that is served, or a random one.
        """
        error = sole_error(error)
        if isinstance(error, Fail):
            return error
        if isinstance(error, StoreError):
            _log.warning("%s: %s", where, error)
            return Fail(Reason.STORE)
        if isinstance(error, ToolError) and (said := show_plainly(error.content)) is not None:
            return Fail(Reason.INTERNAL, said)
        error_id = error_id or request_id() or new_id()
        _log.error("%s failed, error id %s", where, error_id, exc_info=error)
        if self.mask_errors:
            return Fail(Reason.INTERNAL, f"Internal error (id {error_id}).")
        said = show_plainly(error)
        text = type(error).__name__ if said is None else f"{type(error).__name__}: {said}"
        return Fail(Reason.INTERNAL, f"{clean(text, MAX_SHOWN)} (id {error_id}).")


def _introduce(name: str, version: str, *, icons: Sequence[v.Icon], **said: Any) -> v.Implementation:
    if not name or type(name) is not str:
        raise RegistrationError(f"Server needs a name, not {name!r}.")
    fields = {key: text or UNSET for key, text in said.items()}
    given = list(icons) if isinstance(icons, Sequence) else icons  # what is none is refused by name
    info, _ = make_definition(v.Implementation, f"Server {name!r}", name=name, version=version, icons=given or UNSET, **fields)
    return info


def _check_options(completion_cap: int, instructions: str | None, ask_timeout: float) -> None:
    if type(completion_cap) is not int or not 1 <= completion_cap <= COMPLETION_CAP:
        raise RegistrationError(f"completion_cap must be 1 to {COMPLETION_CAP} (CP-03), not {completion_cap!r}.")
    if instructions is not None and type(instructions) is not str:
        raise RegistrationError(f"instructions must be a str, not {instructions!r}.")
    if not isinstance(ask_timeout, int | float) or not ask_timeout > 0:
        raise RegistrationError(f"ask_timeout is a number of seconds above 0, not {ask_timeout!r}.")


def _check_part(name: str, given: Any, methods: Iterable[str], wanted: str) -> None:
    if given is not None and (isinstance(given, type) or not all(callable(getattr(given, method, None)) for method in methods)):
        raise RegistrationError(f"{name} is {wanted}, not {_shown(given)}.")


def _shown(given: Any) -> str:
    return f"the class {given.__name__}" if isinstance(given, type) else type(given).__name__


def _check_function(function: F, where: str) -> F:
    if not callable(function):
        raise RegistrationError(f"{where} takes a function, not {function!r}; a name goes in as name=...")
    if isinstance(function, type):
        raise RegistrationError(f"{where} takes a function, not the class {function.__name__}: make an instance and add its method.")
    return function


def _check_uri(uri: str) -> None:
    """RS-07: without a scheme no client can ask for it."""
    if callable(uri):
        raise RegistrationError('@server.resource needs a URI: write @server.resource("scheme://path").')
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*:[^\s<>\"\\^`|]+", uri):
        raise RegistrationError(
            f"{uri!r} is no absolute URI; begin it with a scheme and percent-encode what URIs can't hold, like docs://{uri.lstrip('/') or 'path'}."
        )

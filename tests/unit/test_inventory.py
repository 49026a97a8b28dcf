"""What there is to see of a program: read off the objects, with nothing of the author's run and nothing secret shown."""

import json
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
import pytest
from source_tree import ROOT

import callboard
from callboard import Context, Handler, Server, cli_doctor, types
from callboard.auth import ApiKeys, BearerTokens, Grant, Principal, Upstream, Verifier
from callboard.doctor import examine
from callboard.inventory import Inventory, PartFacts, take_inventory
from callboard.limits import Limits
from callboard.loader import LoadError, load_program

SECRET = "s3cret-of-nobody-else-0123456789"


def forbidden(*_args: Any, **_kwargs: Any) -> Any:
    raise AssertionError("the author's code ran")


def is_admin(ctx: Context) -> bool:
    return bool(forbidden(ctx))


def look(server: Any, **options: Any) -> Inventory:
    return take_inventory(callboard.asgi(server, **options), is_app=True)


def parts(server: Any) -> dict[str, PartFacts]:
    return {part.name: part for part in look(server).parts}


def test_a_component_and_who_may_use_it() -> None:
    server = Server("s")
    hints = types.ToolAnnotations(destructive_hint=True)
    server.tool(
        forbidden_tool := _named("drop"),
        annotations=hints,
        scopes={"b", "a"},
        visible=is_admin,
        rate="5/min",
        timeout=2,
        concurrency=3,
        task="allowed",
    )
    assert forbidden_tool is not None
    server.resource("x://{a}", scopes=["read"])(_named("page", "a"))
    server.prompt(_named("plan"))
    drop = parts(server)["drop"]
    assert msgspec.structs.asdict(drop) | {"place": ""} == {
        "kind": "tool",
        "name": "drop",
        "place": "",
        "scopes": ("a", "b"),
        "visible": "is_admin",
        "rate": (5, 60.0),
        "timeout": 2,
        "concurrency": 3,
        "task": "allowed",
        "hints": {"destructiveHint": True},
        "patterns": (),
    }
    assert "test_inventory.py" in drop.place
    assert parts(server)["x://{a}"].scopes == ("read",)
    assert parts(server)["plan"].kind == "prompt"


def _named(name: str, *parameters: str) -> Any:
    """A function of that name that must not run."""
    namespace: dict[str, Any] = {"forbidden": forbidden}
    exec(f"def {name}({', '.join(f'{each}: str' for each in parameters)}) -> str: return forbidden()", namespace)
    function = namespace[name]
    function.__code__ = function.__code__.replace(co_filename=__file__)
    return function


def test_a_mounted_component_is_as_its_own_server_has_it() -> None:
    child, parent = Server("child"), Server("parent")
    child.tool(_named("drop"), scopes={"a"}, visible=is_admin)
    parent.mount("sub", child)
    part = parts(parent)["sub_drop"]
    assert (part.scopes, part.visible, part.place.endswith("mounted as 'sub'")) == (("a",), "is_admin", True)


def test_a_repository_stands_for_what_is_in_it() -> None:
    class Shelf:
        prefix = "books://"
        templates = ("books://{name}",)
        scopes = {"read"}  # noqa: RUF012 - what an author writes

        def read(self, uri: str) -> str:
            return str(forbidden(uri))

        def list(self) -> Iterable[str]:
            return list(forbidden())

    server = Server("s")
    server.add(Shelf)
    assert [(part.kind, part.name, part.scopes) for part in look(server).parts] == [("repository", "books://", ("read",))]


Pattern: TypeAlias = Annotated[str, msgspec.Meta(pattern="^(a+)+$")]
Short: TypeAlias = Annotated[str, msgspec.Meta(pattern="^(a+)+$", max_length=9)]


def test_texts_of_any_length_that_python_matches() -> None:
    server = Server("s")

    @server.tool
    def match(one: Pattern, many: list[Pattern], short: Short, none: Pattern | None = None) -> None:
        """Match."""

    @server.tool(input_schema={"type": "object", "properties": {"raw": {"type": "string", "pattern": "^(a+)+$"}}})
    def raw(given: dict[str, Any]) -> None:
        """Match with an engine that does not backtrack."""

    assert set(parts(server)["match"].patterns) == {"one", "many", "none"}
    assert parts(server)["raw"].patterns == ()


def test_nothing_of_the_authors_runs() -> None:
    @asynccontextmanager
    async def lifespan(_server: Server) -> AsyncIterator[dict[str, Any]]:
        yield dict(forbidden())

    class Own(Verifier):
        start = close = find = verify = forbidden

    server = Server("s", lifespan=lifespan)
    server.provide(forbidden)
    server.tool(_named("drop"), visible=is_admin)
    found = look(server, auth=[Own(), Upstream(forbidden)], options=forbidden)
    assert len(found.server.providers) == 1
    assert [verifier.kind for verifier in found.http.auth] == ["Own", "Upstream"]


def test_nothing_secret_is_in_it() -> None:
    server = Server("s", keys=[SECRET], instructions=f"with {SECRET}")
    auth = [BearerTokens({SECRET: Principal("ada")}), ApiKeys({SECRET: "eve"}, header="x-key")]
    found = look(server, auth=auth, options={"key": SECRET})
    shown = json.dumps(msgspec.to_builtins(found))
    assert SECRET not in shown
    assert (found.server.keys, [verifier.header for verifier in found.http.auth]) == ("given", ["authorization", "x-key"])


@pytest.mark.parametrize(
    ("options", "exposure"),
    [
        ({}, "local"),
        ({"hosts": ["localhost"]}, "local"),
        ({"hosts": ["mcp.example.com"]}, "proxied"),
        ({"hosts": ["*"]}, "proxied"),
        ({"allow_remote": True}, "remote"),
    ],
)
def test_who_can_reach_it(options: dict[str, Any], exposure: str) -> None:
    assert look(Server("s"), **options).http.exposure == exposure


def test_how_it_is_protected() -> None:
    class Own(Verifier):
        issuers = ("https://as.example",)

        def facts(self) -> dict[str, Any]:
            return {"audience": "me"}

        async def verify(self, credential: str) -> Grant:
            return Grant(Principal(credential))

    found = look(Server("s"), auth=Own(), resource="https://h.example/mcp", scopes=["b", "a"], versions=["2026-07-28"]).http
    assert (found.resource, found.scopes, found.sessions) == ("https://h.example/mcp", ("a", "b"), None)
    assert found.metadata == ("/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-protected-resource")
    assert found.auth[0].facts == {"audience": "me"}
    assert look(Server("s"), principal=forbidden).http.names_callers
    assert not look(Server("s")).http.names_callers


@pytest.mark.parametrize(
    ("limits", "raised"),
    [
        ({}, ()),
        ({"max_body": 1024, "log_rate": (1, 1.0), "address_rate": "1/s", "uncounted_methods": ["ping"]}, ()),
        ({"max_body": 1 << 30}, ("max_body",)),
        ({"log_rate": None}, ("log_rate",)),
        ({"log_rate": "70000/min"}, ("log_rate",)),
        ({"log_rate": "50000/min"}, ()),
        ({"head_timeout": 60.0}, ("head_timeout",)),
    ],
)
def test_limits_above_their_defaults(limits: dict[str, Any], raised: tuple[str, ...]) -> None:
    assert look(Server("s"), limits=Limits(**limits)).http.raised == raised


def test_a_limit_that_follows_from_another_is_a_number() -> None:
    share = "threads_per_principal"
    found = look(Server("s"))
    assert found.http.limits[share] == 30
    assert "threads_per_principal=30" in cli_doctor._describe_limits(found.http).split()
    assert look(Server("s"), limits=Limits(threads=5)).http.limits[share] == 4
    assert look(Server("s"), limits=Limits(threads_per_principal=7)).http.limits[share] == 7


def test_a_handler_says_nothing_beforehand() -> None:
    class Desk(Handler):
        async def call_tool(self, name: str, arguments: dict[str, Any], ctx: Any, state: Any) -> Any:
            return forbidden(name, arguments, ctx, state)

    found = look(Desk)
    assert found.server.is_handler
    assert found.parts == ()


def test_keys() -> None:
    assert look(Server("s")).server.keys == "random"
    assert look(Server("s", keys=())).server.keys == "none"


def test_options_of_sessions() -> None:
    assert look(Server("s"), session_id=lambda: "x" * 32).http.sessions["session_id"] == "the program's own"  # type: ignore[index]
    assert look(Server("s"), sessions="off").http.sessions["sessions"] == "off"  # type: ignore[index]


EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))


@pytest.fixture
def _loading(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Programs may be loaded; they are gone afterwards."""
    monkeypatch.setenv("DOCS_DIR", str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    for name, module in [*sys.modules.items()]:
        if str(getattr(module, "__file__", None)).startswith(str(ROOT / "examples")):
            del sys.modules[name]


@pytest.mark.usefixtures("_loading")
def test_every_example_can_be_looked_at() -> None:
    """Whatever way a server is written in: what the doctor says of it is complete, and fits into JSON."""
    seen = 0
    for name in EXAMPLES:
        try:
            found = load_program(str(ROOT / "examples" / name))
        except LoadError as error:
            if error.broken:
                raise
            continue
        app = callboard.asgi(found.served) if isinstance(found.served, Server) else found.served
        inventory = take_inventory(app, is_app=False, hosted=found.hosted, routed=found.routed)
        assert msgspec.json.encode([inventory, examine(inventory)])
        assert inventory.parts or inventory.server.is_handler or inventory.server.providers, name
        seen += 1
    assert seen > 30

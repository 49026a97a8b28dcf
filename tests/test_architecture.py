"""Who may import whom. A module imports lower levels only; each exception to a rule is a row here with its reason."""

import ast
import json
import re
import subprocess
import sys
from graphlib import TopologicalSorter

import pytest
from source_tree import GENERATED, ROOT, docstrings, edges, functions, modules, python_files, tree

# Level -> modules (without the leading "callboard."), lowest first. A new module needs a place here.
LEVELS: tuple[tuple[str, ...], ...] = (
    # what the protocol is
    ("auth.principal", "core.urls", "errors", "wire.v2026_07_28", "wire.versions"),
    ("types", "wire.jsonrpc", "wire.methods", "auth.json_object", "auth.verifier", "logs", "server.limits", "telemetry.events"),
    ("auth.claims", "auth.keys", "auth.outbound", "auth.static", "auth.upstream", "auth.metadata", "telemetry.tally"),
    ("auth.introspection", "auth.jwks", "telemetry.otel", "telemetry.prometheus"),
    ("auth.jwt", "auth.guard"),
    # what happens to a message, without input or output
    ("core.exchange", "core.headers", "core.inputs", "core.outcome", "core.peer", "core.seal", "core.sse", "core.task", "core.uri"),
    ("core.era", "core.traversal"),
    ("core.modern",),
    ("stores.base", "stores.topics", "stores.redis_url", "stores.outage"),
    ("stores.memory", "stores.redis_dial"),
    ("stores.redis_link", "stores.redis_script"),
    ("stores.redis_routes", "stores.redis_kv", "stores.scripted"),
    ("stores.redis_bus", "stores.redis_direct"),
    ("stores.redis",),
    ("stores.opening",),
    # what a server makes of functions
    (
        "server.annotation",
        "server.cursor",
        "server.docstring",
        "server.drain",
        "skills.front_matter",
        "server.rates",
        "server.redaction",
        "server.subschemas",
        "server.workers",
    ),
    ("server.shared_places", "server.shared_rates", "skills.folder"),
    ("server.faults", "server.places", "server.signature"),
    ("server.state",),
    ("server.lifespan", "server.mount", "server.sampling", "server.seals"),
    ("server.coercion", "server.judge", "server.pushes"),
    ("server.arguments",),
    ("server.json_schema", "server.raw_schema"),
    ("server.msgspec_schema", "server.pydantic_schema", "server.strings"),
    ("server.schema",),
    ("server.form", "server.shape"),
    # what a function sees of its request
    ("server.asking",),
    ("server.context",),
    ("server.sinks",),
    ("handling.channel", "server.depends", "server.extension", "server.journal", "server.middleware", "server.subscriptions"),
    ("server.callee", "server.fleet", "server.rounds", "server.task_contract", "server.task_record"),
    ("server.policy", "server.task_index", "server.task_table"),
    ("server.task_ledger",),
    ("server.task_shared", "server.task_work"),
    ("server.task_queue",),
    ("server.tasks",),
    ("server.prompt", "server.resource", "server.tool"),
    ("server.repository",),
    ("server.component", "handling.wiremap"),
    ("handling.callbacks", "server.classes", "server.registry", "skills.extension"),
    ("server.catalogue", "server.provider"),
    ("server.dispatch", "server.mounting", "server.task_worker"),
    ("limits", "server.app", "tasks"),
    ("handling.state",),
    ("handling.loop",),
    ("handling.handler",),
    ("handler",),
    # how bytes come and go
    (
        "transport.descriptor",
        "transport.inflate",
        "transport.known",
        "transport.ports",
        "transport.rates",
        "transport.security",
        "transport.signals",
        "transport.slow_clients",
        "transport.stream",
    ),
    ("transport.body", "transport.door", "transport.endpoint"),
    ("transport.health", "transport.refusal", "transport.ending", "transport.access_log", "transport.listening"),
    ("transport.worker_link",),
    ("transport.duty",),
    ("transport.pipe",),
    ("transport.asgi", "transport.memory", "transport.stdio"),
    ("transport.whole_call",),
    ("transport.http_protocol",),
    ("transport.http_server",),
    ("supervisor",),
    # clients of 2025
    ("legacy.lowering", "legacy.rules", "legacy.alarm", "legacy.session", "legacy.tasks"),
    ("legacy.asks", "legacy.codec", "legacy.stored"),
    ("legacy.codec_2024", "legacy.shared_session", "legacy.stored_memory", "legacy.stored_scripts"),
    ("legacy.stored_redis",),
    ("legacy.methods",),
    ("legacy.home",),
    ("legacy.actor", "legacy.lone"),
    ("legacy.batch", "legacy.connection", "legacy.shared", "legacy.table"),
    ("legacy.pipe", "legacy.shared_stream", "legacy.shared_table", "legacy.sse_stream"),
    ("legacy.http",),
    ("legacy.sse_2024",),
    ("compose",),
    ("serving",),
    ("inventory",),
    ("doctor",),
    # the other side, and the command
    ("client.auth", "client.cache", "client.config", "client.errors"),
    ("client.oauth.dpop", "client.oauth.step", "client.oauth.storage", "client.oauth.urls"),
    ("client.oauth.challenge", "client.oauth.names", "client.oauth.redirect"),
    ("client.oauth.metadata",),
    ("client.oauth.token",),
    ("client.oauth.registration",),
    ("client.oauth.code_flow", "client.oauth.pages", "client.oauth.turn"),
    ("client.oauth.kept",),
    ("client.oauth.flow", "client.oauth.grants"),
    ("oauth",),
    ("client.answer", "client.connection", "client.deadline", "client.stdio"),
    (
        "client.changes",
        "client.effort",
        "client.formats",
        "client.http_pool",
        "client.inputs",
        "client.line",
        "client.memory",
        "client.tracing",
    ),
    ("client.answering", "client.dialect", "client.http_events", "client.listing", "client.result", "client.subscription"),
    (
        "client.channel",
        "client.http_answer",
        "client.output",
        "client.post",
        "client.requests",
        "client.sse_2024",
        "client.updates",
        "client.watch",
    ),
    ("client.http", "client.renewal", "client.tools"),
    ("client.negotiate", "client.target", "client.tasks"),
    ("client.opening",),
    ("client.peer",),
    ("client.member",),
    ("client.group",),
    ("client.assembly",),
    ("client.client",),
    ("cli_arguments", "cli_login", "cli_output", "loader", "reloader"),
    ("cli_doctor", "cli_run", "cli_worker"),
    ("cli",),
    ("__main__",),
)
# Importer, imported -> why two modules of one level know each other.
SAME_LEVEL: dict[tuple[str, str], str] = {}
# These may import our own modules inside a function.
LAZY = {"callboard", "callboard.auth", "callboard.compose", "callboard.telemetry"}
# Modules whose own work is a third-party package; everybody else imports one inside the function that needs it.
THIRD_PARTY: dict[str, set[str]] = {
    "callboard.cli": {"click"},
    "callboard.cli_arguments": {"click"},
    "callboard.cli_doctor": {"click"},
    "callboard.cli_login": {"click"},
    "callboard.cli_output": {"click"},
    "callboard.cli_run": {"click"},
    "callboard.cli_worker": {"click"},
}
EVERYWHERE = {"msgspec", "typing_extensions"}
# The sans-IO part (DESIGN.md rule 2): no loop, no clock, no socket, no thread, no randomness, no logging.
IMPURE = {
    "asyncio", "anyio", "concurrent", "datetime", "http", "logging", "multiprocessing", "os", "queue", "random", "sched", "secrets",
    "select", "selectors", "signal", "socket", "socketserver", "ssl", "subprocess", "threading", "time", "uuid", "_thread",
}  # fmt: skip
VAGUE = {"util", "utils", "helper", "helpers", "manager", "managers", "common", "misc", "impl"}
# What `import callboard` must not pull in; each costs more than the package itself.
HEAVY = {"aiohttp", "click", "cryptography", "httptools", "jsonschema_rs", "pydantic", "rich", "starlette", "uvicorn", "uvloop"}
ERROR_CODE = re.compile(r"-326\d\d|-3270\d|-3202\d")

MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|root|Users|work)/\w")

LEVEL = {f"callboard.{name}": level for level, names in enumerate(LEVELS) for name in names}
OURS = sorted(modules())


def own(name: str) -> list[str]:
    """Modules of ours that a module imports."""
    return [edge.module for edge in edges(name) if edge.module in modules() or edge.module.split(".")[0] == "callboard"]


def is_package(name: str) -> bool:
    return modules()[name].name == "__init__.py"


def test_every_module_has_one_level() -> None:
    listed = [f"callboard.{name}" for names in LEVELS for name in names]
    assert len(listed) == len(set(listed)), "a module stands twice in LEVELS"
    unplaced = [name for name in OURS if name not in LEVEL and not is_package(name)]
    assert not unplaced, f"give these a level in LEVELS: {unplaced}"
    gone = [name for name in listed if name not in modules()]
    assert not gone, f"LEVELS names modules that do not exist: {gone}"


@pytest.mark.parametrize("name", [name for name in OURS if name != "callboard"])
def test_imports_go_down(name: str) -> None:
    for target in own(name):
        if is_package(name):
            assert target.startswith(f"{name}."), f"package {name} may gather its own modules only, not {target}"
            continue
        assert target in LEVEL, f"{name} imports {target}, which has no level: import the module that defines the name"
        pair = (name.removeprefix("callboard."), target.removeprefix("callboard."))
        assert LEVEL[target] < LEVEL[name] or (LEVEL[target] == LEVEL[name] and pair in SAME_LEVEL), (
            f"{name} (level {LEVEL[name]}) imports {target} (level {LEVEL[target]}): imports go down"
        )


def test_same_level_edges_are_in_use() -> None:
    for importer, imported in SAME_LEVEL:
        assert f"callboard.{imported}" in own(f"callboard.{importer}"), f"SAME_LEVEL row is stale: {importer} -> {imported}"


def test_no_cycles() -> None:
    TopologicalSorter({name: {target for target in own(name) if target != name} for name in OURS if name not in LAZY}).prepare()


@pytest.mark.parametrize("name", OURS)
def test_own_modules_are_imported_at_the_top(name: str) -> None:
    late = [f"{edge.module} (line {edge.line})" for edge in edges(name) if edge.deferred and edge.module.split(".")[0] == "callboard"]
    assert name in LAZY or not late, f"{name} imports inside a function: {late}"


@pytest.mark.parametrize("name", [name for name in OURS if name.startswith(("callboard.wire", "callboard.core"))])
def test_the_core_does_no_input_or_output(name: str) -> None:
    impure = {edge.module for edge in edges(name) if edge.module.split(".")[0] in IMPURE}
    assert not impure, f"{name} is sans-IO and imports {sorted(impure)}"


@pytest.mark.parametrize("name", OURS)
def test_heavy_packages_load_on_first_use(name: str) -> None:
    allowed = EVERYWHERE | {"callboard"} | THIRD_PARTY.get(name, set()) | sys.stdlib_module_names
    eager = {edge.module for edge in edges(name) if not (edge.deferred or edge.typing_only) and edge.module.split(".")[0] not in allowed}
    assert not eager, f"{name} imports {sorted(eager)} at its top: import it inside the function that needs it, or add a row to THIRD_PARTY"


def test_module_names_say_what_is_inside() -> None:
    vague = [path.relative_to(ROOT) for path in python_files() if path.stem.strip("_") in VAGUE or path.parent.name in VAGUE]
    assert not vague, f"a name for one concept, please: {vague}"


def test_one_class_is_called_context() -> None:
    found = [
        f"{name}.{node.name}"
        for name, path in modules().items()
        if path != GENERATED
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef) and node.name.endswith("Context")
    ]
    assert found == ["callboard.server.context.Context"]


@pytest.mark.parametrize("name", [name for name in OURS if name != "callboard.errors" and modules()[name] != GENERATED])
def test_error_codes_stand_in_errors_alone(name: str) -> None:
    path = modules()[name]
    prose = docstrings(tree(path))
    found = [
        ast.unparse(node)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.UnaryOp | ast.Constant) and id(node) not in prose and ERROR_CODE.search(ast.unparse(node))
    ]
    assert not found, f"{name} writes {found}: take the code from callboard.errors.REASONS"


def loaded_by(statement: str) -> set[str]:
    """Modules that a fresh interpreter holds after a statement, less those it holds without."""
    script = f"import sys; before = set(sys.modules); {statement}; import json; print(json.dumps(sorted(set(sys.modules) - before)))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    return set(json.loads(ran.stdout))


def test_import_pulls_in_msgspec_and_the_standard_library_alone() -> None:
    roots = {module.split(".")[0] for module in loaded_by("import callboard")}
    strangers = roots - sys.stdlib_module_names - EVERYWHERE - {"callboard"}
    assert not strangers, f"import callboard loads {sorted(strangers)}"


@pytest.mark.parametrize("name", ["asgi", "stdio", "run", "Client", "Server"])
def test_naming_a_public_entry_loads_nothing_heavy(name: str) -> None:
    roots = {module.split(".")[0] for module in loaded_by(f"from callboard import {name}")}
    assert not roots & HEAVY


def test_no_file_names_a_path_of_a_machine() -> None:
    texts = [
        *python_files(),
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("*.md"),
        ROOT / "Makefile",
        ROOT / "pyproject.toml",
        ROOT / ".ci" / "run",
    ]
    found = [path.relative_to(ROOT) for path in texts if MACHINE_PATH.search(path.read_text(encoding="utf-8"))]
    assert not found


def test_functions_are_found() -> None:
    """The rules above read the tree; this is their proof that the tree is not empty."""
    assert len(OURS) > 20
    assert sum(1 for path in modules().values() for _ in functions(path)) > 100

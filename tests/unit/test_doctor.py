"""The doctor's judgement, from data alone: what it finds, how bad it takes it to be, and which setting it names."""

import re
from typing import Any

import msgspec
import pytest
from source_tree import ROOT

from callboard.doctor import SEVERITIES, Finding, examine
from callboard.inventory import HttpFacts, Inventory, PartFacts, ServerFacts, VerifierFacts

SERVER = ServerFacts(
    name="s",
    version="1",
    is_handler=False,
    mask_errors=True,
    strict_input=True,
    keys="given",
    store="this process",
    single_use=False,
    providers=(),
    extensions=(),
)
HTTP = HttpFacts(
    path="/mcp",
    exposure="local",
    hosts=("localhost", "127.0.0.1", "[::1]"),
    origins=(),
    cors=False,
    codings=(),
    auth=(),
    names_callers=False,
    resource=None,
    scopes=(),
    metadata=(),
    versions=("2026-07-28",),
    sessions=None,
    sse_path=None,
    json_only=False,
    keep_alive=15.0,
    limits={"address_rate": None, "message_rate": None},
    raised=(),
)
JWT = VerifierFacts(kind="JWT", header="authorization", issuers=("https://as.example",), facts={})
KEYS = VerifierFacts(kind="ApiKeys", header="x-api-key", issuers=(), facts={"secrets": 2})
UPSTREAM = VerifierFacts(kind="Upstream", header="authorization", issuers=(), facts={})
SAFE = {"readOnlyHint": True}
DROP = {"destructiveHint": True}
AUTHED = {"auth": (JWT,), "metadata": ("/.well-known/oauth-protected-resource/mcp",), "resource": "https://h/mcp"}
SESSIONS = {"sessions": "auto", "session_id": "128 random bits"}


def tool(name: str = "t", **facts: Any) -> PartFacts:
    return PartFacts(kind="tool", name=name, place="t() at f.py:1", task="never", **{"hints": SAFE, "timeout": 5.0, **facts})


def judge(
    *parts: PartFacts, server: dict[str, Any] | None = None, workers: int = 1, is_app: bool = True, **http: Any
) -> dict[str, Finding]:
    inventory = Inventory(
        server=msgspec.structs.replace(SERVER, **(server or {})), http=msgspec.structs.replace(HTTP, **http), parts=parts, is_app=is_app
    )
    found = examine(inventory, workers=workers)
    assert len({finding.id for finding in found}) == len(found), "an id stands for one finding"
    return {finding.id: finding for finding in found}


@pytest.mark.parametrize(
    ("id", "severity", "setting", "facts"),
    [
        ("loopback", "ok", "", {}),
        ("open-to-this-machine", "note", "auth=", {}),
        ("open-to-everybody", "danger", "auth=", {"exposure": "remote"}),
        ("open-to-everybody", "danger", "allow_remote=False", {"exposure": "remote", "names_callers": True}),
        ("open-behind-a-proxy", "warning", "Upstream", {"exposure": "proxied"}),
        ("auth", "ok", "", AUTHED),
        ("unencrypted", "note", "TLS", {"auth": (KEYS,), "exposure": "remote"}),
        ("any-host", "warning", "hosts=", {"hosts": ("*",), "exposure": "proxied"}),
        ("any-host", "note", "hosts=", {"hosts": ("*",), "exposure": "proxied", **AUTHED}),
        ("hosts", "ok", "", {}),
        ("origins", "ok", "", {}),
        ("cors-for-nobody", "note", "origins=", {"cors": True}),
        ("unencrypted-origin", "warning", "https", {"origins": ("http://a.example",), **AUTHED}),
        ("open-to-pages", "warning", "auth=", {"origins": ("https://a.example",)}),
        ("upstream", "note", "loopback", {"auth": (UPSTREAM,)}),
        ("upstream", "warning", "loopback", {"auth": (UPSTREAM,), "exposure": "remote"}),
        ("lasting-secrets", "note", "JWT", {"auth": (KEYS,)}),
        ("no-metadata", "note", "issuers", {"auth": (VerifierFacts(kind="Own", header="x", issuers=(), facts={}),)}),
        ("metadata", "ok", "", AUTHED),
        ("metadata-hidden", "warning", "app.metadata_routes", {**AUTHED, "hosted": True, "published": False}),
        ("no-rates", "note", "limits=", {"exposure": "remote", **AUTHED}),
        ("rates", "ok", "", {"limits": {"address_rate": "60/min", "message_rate": None}}),
        ("raised-limits", "note", "limits=", {"raised": ("max_body",)}),
        ("limits", "ok", "", {}),
        ("no-keep-alive", "note", "keep_alive=", {"keep_alive": None}),
        ("owned-sessions", "ok", "", {"sessions": SESSIONS, **AUTHED}),
        ("ownerless-sessions", "note", "auth=", {"sessions": SESSIONS, "exposure": "remote"}),
        ("own-session-ids", "note", "session_id=", {"sessions": {**SESSIONS, "session_id": "the program's own"}}),
        ("old-transport", "note", "sse_path=", {"sse_path": "/sse"}),
    ],
)
def test_how_it_is_put_up(id: str, severity: str, setting: str, facts: dict[str, Any]) -> None:  # noqa: A002 - what it is called
    found = judge(**facts)[id]
    assert found.severity == severity
    assert setting in found.setting
    assert bool(found.setting) == (severity != "ok")


@pytest.mark.parametrize(
    ("id", "severity", "exposure", "server", "workers"),
    [
        ("masked", "ok", "remote", {}, 1),
        ("unmasked", "warning", "local", {"mask_errors": False}, 1),
        ("unmasked", "danger", "proxied", {"mask_errors": False}, 1),
        ("loose-input", "note", "local", {"strict_input": False}, 1),
        ("keys", "ok", "local", {}, 2),
        ("random-keys", "note", "local", {"keys": "random"}, 1),
        ("store-keys", "note", "local", {"keys": "store"}, 2),
        ("random-keys", "warning", "local", {"keys": "random"}, 2),
        ("no-keys", "note", "local", {"keys": "none"}, 1),
        ("handler", "note", "local", {"is_handler": True}, 1),
        ("providers", "note", "local", {"providers": ("p() at f.py:1",)}, 1),
    ],
)
def test_what_the_server_gives_away(
    id: str,  # noqa: A002 - what it is called
    severity: str,
    exposure: str,
    server: dict[str, Any],
    workers: int,
) -> None:
    assert judge(server=server, workers=workers, exposure=exposure)[id].severity == severity


@pytest.mark.parametrize(
    ("id", "severity", "part", "facts"),
    [
        ("scopes-of-nobody", "note", tool(scopes=("a",)), {}),
        ("scopes", "ok", tool(scopes=("a",)), AUTHED),
        ("no-scopes", "note", tool(), AUTHED),
        ("destructive-for-all", "note", tool(hints=DROP), {}),
        ("destructive-for-all", "warning", tool(hints=DROP), AUTHED),
        ("destructive-for-all", "warning", tool(hints=DROP), {"exposure": "proxied"}),
        ("no-annotations", "note", tool(hints=None), {}),
        ("no-timeout", "note", tool(timeout=None), {}),
        ("patterns", "note", tool(patterns=("name",)), {}),
    ],
)
def test_what_its_components_allow(id: str, severity: str, part: PartFacts, facts: dict[str, Any]) -> None:  # noqa: A002 - what it is called
    found = judge(part, **facts)[id]
    assert found.severity == severity
    assert found.parts in {(), ("t",)}


@pytest.mark.parametrize(
    ("id", "part", "facts"),
    [
        ("destructive-for-all", tool(hints=DROP, scopes=("a",)), AUTHED),
        ("destructive-for-all", tool(hints=DROP, visible="is_admin"), AUTHED),
        ("destructive-for-all", tool(hints={**DROP, "readOnlyHint": True}), AUTHED),
        ("scopes-of-nobody", tool(scopes=("a",)), {"names_callers": True}),
        ("no-scopes", tool(), {**AUTHED, "scopes": ("a",)}),
        ("no-scopes", tool(), {}),
        ("no-timeout", PartFacts(kind="prompt", name="p", place="p()"), {}),
        ("no-rates", tool(rate=(5, 60.0)), AUTHED),
        ("no-rates", tool(), {**AUTHED, "exposure": "remote", "limits": {"address_rate": "1/s"}}),
        ("open-to-pages", tool(), {**AUTHED, "origins": ("https://a.example",)}),
        ("unencrypted-origin", tool(), {**AUTHED, "origins": ("http://localhost:6274",)}),
        ("unseen-options", tool(), {}),
        ("unencrypted", tool(), {**AUTHED, "exposure": "remote"}),
        ("unencrypted", tool(), {}),
    ],
)
def test_what_is_well_is_not_found(id: str, part: PartFacts, facts: dict[str, Any]) -> None:  # noqa: A002 - what it is called
    assert id not in judge(part, **facts)


def test_a_server_alone_shows_no_options_of_its_program() -> None:
    assert judge(is_app=False)["unseen-options"].severity == "note"


def test_the_worst_comes_first() -> None:
    found = list(judge(tool(hints=None), exposure="remote", server={"mask_errors": False}, hosts=("*",)).values())
    order = [SEVERITIES.index(finding.severity) for finding in found]
    assert order == sorted(order, reverse=True)
    assert found[0].severity == "danger"


def test_many_names_are_counted() -> None:
    text = judge(*[tool(f"t{number}", hints=None) for number in range(8)])["no-annotations"].text
    assert "t4" in text
    assert "t5" not in text
    assert "3 more" in text


def test_every_finding_is_told_of_in_the_guide() -> None:
    source = (ROOT / "src" / "callboard" / "doctor.py").read_text(encoding="utf-8")
    guide = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    table = guide[guide.index("## What the doctor finds") :]
    told = {name for row in re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE) for name in re.findall(r"`([\w-]+)`", row)} - {"id"}
    assert told == set(re.findall(r'id="([\w-]+)"', source))

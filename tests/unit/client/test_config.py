"""The configuration of several servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard import Server
from callboard.client.config import MAX_BYTES, SSE, Config, ConfigError, ServerSpec, load, parse, prefix_of

ENVIRON = {"TOKEN": "s3cret", "EMPTY": "", "NAME": "weather"}


def one(**given_: Any) -> ServerSpec:
    config = parse({"mcpServers": {"weather": given_}}, ENVIRON)
    assert not config.warnings
    return config.servers[0]


def refused(document: Any, environ: dict[str, str] = ENVIRON) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(document, environ)
    assert "s3cret" not in str(caught.value)
    return str(caught.value)


def refused_one(**given_: Any) -> str:
    told = refused({"mcpServers": {"weather": given_}})
    assert told.startswith("server 'weather': ")
    return told.removeprefix("server 'weather': ")


def test_a_command() -> None:
    spec = one(command="uvx", args=["weather", "--days", "3"], env={"KEY": "a", "PORT": 8080}, cwd="/srv", type="stdio")
    assert (spec.name, spec.prefix) == ("weather", "weather")
    assert spec.target == ["uvx", "weather", "--days", "3"]
    assert (spec.env, spec.cwd, spec.headers, spec.versions, spec.timeout) == ({"KEY": "a", "PORT": "8080"}, "/srv", None, None, None)
    assert one(command="uvx") == one(command="uvx", args=[], env={}, cwd=None, disabled=False, enabled=True, description="d")


@pytest.mark.parametrize(
    "kind", [{}, {"type": "http"}, {"type": "streamable-http"}, {"transport": "streamableHttp"}, {"type": "HTTP", "transport": "http"}]
)
def test_a_url(kind: dict[str, str]) -> None:
    spec = one(url="https://example.com/mcp", headers={"X-A": "b"}, timeout=1500, **kind)
    assert (spec.target, spec.headers, spec.env, spec.versions, spec.timeout) == ("https://example.com/mcp", {"X-A": "b"}, None, None, 1.5)


def test_versions() -> None:
    assert one(url="http://127.0.0.1/sse", type="sse").versions == (SSE,)
    assert one(url="http://127.0.0.1/sse", type="sse", versions=["2025-11-25"]).versions == ("2025-11-25",)
    assert one(command="a", versions="2025-11-25").versions == ("2025-11-25",)


def test_several_and_the_name_that_vs_code_has_for_them() -> None:
    servers = {
        "a": {"command": "x"},
        "off": {"command": "x", "disabled": True},
        "b": {"url": "http://h/"},
        "gone": {"url": "${NO}", "enabled": False},
    }
    for section in ("mcpServers", "servers"):
        assert [spec.name for spec in parse({section: servers, "inputs": [], "theme": "dark"}, {}).servers] == ["a", "b"]


def test_variables() -> None:
    spec = one(
        command="${NAME}", args=["--for=${env:NAME}", "${NO:-x:-y}${EMPTY:-z}", "$NAME", "a$b"], env={"K": "${TOKEN}"}, cwd="/${NAME}"
    )
    assert spec.target == ["weather", "--for=weather", "x:-y", "$NAME", "a$b"]
    assert (spec.env, spec.cwd) == ({"K": "s3cret"}, "/weather")
    spec = one(url="https://${NO:-example.com}/mcp", headers={"Authorization": "Bearer ${TOKEN}"})
    assert (spec.target, spec.headers) == ("https://example.com/mcp", {"Authorization": "Bearer s3cret"})
    assert one(command="${userHome}/a").target == [f"{Path.home()}/a"]
    assert "s3cret" not in repr(spec)
    assert one(command="a", env={"K": "${EMPTY}"}).env == {"K": ""}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("${MISSING}", "'{key}' wants the variable 'MISSING', which is not set: set it, or write ${{MISSING:-default}}"),
        ("${env:MISSING}", "'{key}' wants the variable 'MISSING', which is not set"),
        (
            "${input:key}",
            "'{key}' wants '${{input:key}}', which is unknown here: an editor asks for it; write ${{NAME}} and set the variable",
        ),
        ("${workspaceFolder}", "'{key}' wants the variable 'workspaceFolder', which is not set"),
        ("${A-B}", "'{key}' wants '${{A-B}}', which is unknown here"),
        ("${}", "'{key}' wants '${{}}', which is unknown here"),
        ("${A:-${B}}", "'{key}' holds a ${{ that is not closed, or one inside another"),
        ("s3cret${A", "'{key}' holds a ${{ that is not closed"),
    ],
)
def test_a_variable_that_cannot_be_filled_in(text: str, told: str) -> None:
    assert told.format(key="args[1]") in refused_one(command="a", args=["b", text])
    assert told.format(key="headers.X-A") in refused_one(url="http://h/", headers={"X-A": text})
    assert told.format(key="url") in refused_one(url=text)


@pytest.mark.parametrize(
    ("settings_", "told"),
    [
        ({}, "needs 'command' or 'url'"),
        ({"command": "a", "url": "http://h/"}, "has both 'command' and 'url'"),
        ({"command": ""}, "'command' must be a text with something in it, not an empty text"),
        ({"command": ["s3cret"]}, "'command' must be a text with something in it, not a list"),
        ({"command": "a\0"}, "'command' must be a text"),
        ({"command": "a", "args": "s3cret"}, "'args' must be a list of texts, not a text"),
        ({"command": "a", "args": ["b", 8080]}, r"'args[1]' must be a text, not a number"),
        ({"command": "a", "env": ["s3cret"]}, "'env' must be an object of names and texts, not a list"),
        ({"command": "a", "env": {"K": True}}, "'env.K' must be a text, not true or false"),
        ({"command": "a", "env": {"K": None}}, "'env.K' must be a text, not null"),
        ({"command": "a", "cwd": 7}, "'cwd' must be a text with something in it, not a number"),
        ({"command": "a", "headers": {}}, "'headers' means nothing beside 'command'"),
        ({"url": "http://h/", "env": {}}, "'env' means nothing beside 'url'"),
        ({"url": "ftp://s3cret"}, "'url' must begin with http:// or https://"),
        ({"url": "http://h/", "headers": {"X": 7}}, "'headers.X' must be a text, not a number"),
        ({"url": "http://h/", "type": "stdio"}, "is of the type 'stdio' and has 'url'"),
        ({"command": "a", "transport": "sse"}, "is of the type 'sse' and has 'command'"),
        ({"url": "http://h/", "type": "ws"}, "'type' must be one of 'stdio', 'http', 'sse'"),
        ({"url": "http://h/", "transport": {"type": "http"}}, "'transport' must be one of"),
        ({"url": "http://h/", "type": "http", "transport": "sse"}, "'type' and 'transport' must be one of"),
        ({"command": "a", "timeout": "s3cret"}, "'timeout' must be a number of milliseconds"),
        ({"command": "a", "timeout": 0}, "'timeout' must be a number of milliseconds"),
        ({"command": "a", "timeout": float("nan")}, "'timeout' must be a number of milliseconds"),
        ({"command": "a", "disabled": "yes"}, "'disabled' must be true or false, not a text"),
        ({"command": "a", "versions": []}, "'versions' must be a protocol version or a list of them"),
    ],
)
def test_settings_that_cannot_be_used(settings_: dict[str, Any], told: str) -> None:
    assert refused_one(**settings_).startswith(told)


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({}, "the configuration has no 'mcpServers'"),
        ({"weather": {"command": "a"}}, "the configuration has no 'mcpServers': name the servers under it"),
        ({"mcpServers": {}, "servers": {}}, "the configuration has both 'mcpServers' and 'servers'; keep one"),
        ({"mcpServers": []}, "'mcpServers' must be an object of names and settings, not a list"),
        ({"mcpServers": {}}, "there is no server; add one to 'mcpServers'"),
        ({"mcpServers": {"a": {"command": "x", "disabled": True}}}, "there is no server that is not disabled"),
        ({"mcpServers": {"a": "s3cret"}}, "server 'a': its settings must be an object with 'command' or 'url', not a text"),
        ({"mcpServers": {"a": None}}, "server 'a': its settings must be an object with 'command' or 'url', not null"),
        ({"mcpServers": {"!": {"command": "x"}}}, "server '!': the name needs at least one of A-Z a-z 0-9"),
        ({"mcpServers": {7: {"command": "x"}}}, "server 7: the name needs"),
        ({"mcpServers": {"a" * 65: {"command": "x"}}}, f"server '{'a' * 65}': the name has more than 64 characters"),
    ],
)
def test_a_document_that_cannot_be_used(document: Any, told: str) -> None:
    assert refused(document).startswith(told)


def test_all_mistakes_are_told_at_once() -> None:
    told = refused({"mcpServers": {"a": {}, "b": {"command": "x"}, "c": {"url": "${NO}"}}})
    assert told.splitlines() == [
        "",
        "- server 'a': needs 'command' or 'url'",
        "- server 'c': 'url' wants the variable 'NO', which is not set: set it, or write ${NO:-default}",
    ]
    assert refused({"mcpServers": {f"s{number}": {} for number in range(50)}}).endswith("- and 30 more")


def test_names_of_tools_begin_with_the_name() -> None:
    # TL-15, TL-16
    assert [prefix_of(name) for name in ("weather", "My Server", "io.github.a/b-c", "é", "_a_")] == [
        "weather",
        "My_Server",
        "io.github.a_b-c",
        "",
        "a",
    ]
    told = refused({"mcpServers": {"my server": {"command": "x"}, "my/server": {"command": "x"}, "mine": {"command": "x"}}})
    assert told == "servers 'my server' and 'my/server' would both be called 'my_server'; rename one"


def test_unknown_settings_are_warned_of() -> None:
    config = parse({"mcpServers": {"a": {"command": "x", "envFile": "s3cret", "oauth": {}, "icon": "i"}}}, {})
    assert config.warnings == ("server 'a': unknown settings are passed over: 'envFile', 'oauth'",)


def test_a_server_may_stand_for_itself() -> None:
    server = Server("weather")
    assert parse({"mcpServers": {"a": server}}, {}).servers[0].target is server


def write(folder: Path, text: str | bytes, name: str = "mcp.json") -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_a_file_may_hold_what_editors_allow(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """\ufeff{ // the servers
          "servers": { /* one, */
            "a": {"command": "x", "args": ["http://h//", "/* no */", ",]", "\\\\\\"//", ],
              "env": {"A": "1", /* and */ "B": "2"} },  // done
          },
        }""",
        ".vscode/mcp.json",
    )
    assert load(path, {}).servers[0].target == ["x", "http://h//", "/* no */", ",]", '\\"//']
    assert load(path, {}).servers[0].env == {"A": "1", "B": "2"}
    path = write(
        tmp_path, '{"servers": {"a": {"command": "${workspaceFolder}/x", "cwd": "${workspaceFolderBasename}"}}}', ".cursor/mcp.json"
    )
    assert (load(path, {}).servers[0].target, load(path, {}).servers[0].cwd) == ([f"{tmp_path}/x"], tmp_path.name)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{\n "mcpServers": {s3cret}\n}', "is no JSON at line 2, column 17 (Expecting property name"),
        ('{"mcpServers": {} // {\n', "is no JSON at line"),
        ("[]", 'must hold an object: {"mcpServers": {...}}'),
        ("", "is no JSON at line 1"),
        (b"\xff\xfe", "is no UTF-8 at byte 0"),
        ("[" * 100_000, "is nested too deeply"),
        (" " * (MAX_BYTES + 1), f"has more than {MAX_BYTES} bytes"),
        ('{"mcpServers": {"a": {}, "a": {}}}', "the name 'a' stands twice in one object; rename one"),
        ('{"mcpServers": {"a": {}}}', "server 'a': needs 'command' or 'url'"),
        ('{"mcpServers": {"a": {"command": "x", "timeout": 1e999}}}', "server 'a': 'timeout' must be"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, text: str | bytes, told: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    assert str(caught.value).startswith(f"{path}: {told}")
    assert "s3cret" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path, Path("a\0b")):
        with pytest.raises(ConfigError, match="can't be read"):
            load(path)


def test_the_environment_is_that_of_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLBOARD_TEST_NAME", "x")
    path = write(tmp_path, '{"mcpServers": {"a": {"command": "${CALLBOARD_TEST_NAME}"}}}')
    assert load(path).servers[0].target == parse(json.loads(path.read_text())).servers[0].target == ["x"]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["${A}", "${A:-b}", "http://h/", "sse", "${"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(["command", "args", "env", "cwd", "url", "headers", "type", "transport", "disabled", "timeout", "versions", "x"])
DOCUMENTS = st.fixed_dictionaries(
    {"mcpServers": st.dictionaries(st.text(max_size=4), st.dictionaries(KEYS, JSON, max_size=4) | JSON, max_size=3)}
)


@settings(max_examples=150, deadline=None)
@given(DOCUMENTS | st.dictionaries(st.sampled_from(["mcpServers", "servers", "a"]), JSON))
def test_a_configuration_or_an_error_by_name(document: Any) -> None:
    """TL-16: whatever stands in it."""
    try:
        config = parse(document, {"A": "a"})
    except ConfigError:
        return
    assert isinstance(config, Config)
    assert len({spec.prefix for spec in config.servers}) == len(config.servers) > 0
    assert all(isinstance(spec.target, str) or all(isinstance(word, str) for word in spec.target) for spec in config.servers)


@settings(max_examples=150, deadline=None)
@given(text=st.text(alphabet='{}[]",:/*\\ \nab"mcpServers', max_size=40) | st.binary(max_size=20))
def test_a_file_or_an_error_by_name(tmp_path_factory: pytest.TempPathFactory, text: str | bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ConfigError, match=r"any\.json: "):
        load(path, {})


def test_comments_take_linear_time(tmp_path: Path) -> None:
    for text in ("/*" * 100_000, "," * 200_000, ", /* */" * 50_000, '"' + "\\" * 200_000, ",  " * 100_000, ", //\n" * 100_000):
        with pytest.raises(ConfigError):
            load(write(tmp_path, text), {})

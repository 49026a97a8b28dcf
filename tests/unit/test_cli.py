"""The parts of the command that need no server. What it does with servers is shown in tests/e2e/test_cli.py."""

import json
import logging
import re
from base64 import b64encode
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from callboard import cli, cli_arguments, cli_login, cli_output, types
from callboard.oauth import FileStorage


@pytest.fixture(autouse=True)
def no_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here sees what its user has logged in to."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def outcome(*words: str) -> tuple[int, str]:
    """Exit code and what was printed, stderr included."""
    result = CliRunner().invoke(cli.main, words)
    return result.exit_code, result.output


@pytest.mark.parametrize("option", ["auth", "allow-remote", "json-only"])
def test_what_is_set_in_the_program_is_sent_there(option: str) -> None:
    code, output = outcome("run", "app.py", f"--{option}", "x")
    assert code == 2
    assert f"--{option} is set in the program" in output
    assert f"callboard.asgi(server, {option.replace('-', '_')}=...)" in output


@pytest.mark.parametrize("option", ["--prot", "-auth", "--x"])
def test_an_option_that_nobody_has_is_none(option: str) -> None:
    code, output = outcome("run", "app.py", option, "x")
    assert (code, "No such option" in output) == (2, True)


def test_the_version_and_the_help() -> None:
    code, output = outcome("--version")
    assert (code, re.fullmatch(r"callboard, version \d+\.\d+\.\d+\n", output) is not None) == (0, True)
    assert outcome("--help")[0] == 0
    for command in ("run", "list", "call", "read", "prompt", "listen", "login"):
        code, output = outcome(command, "-h")
        assert code == 0
        assert f"Usage: main {command}" in output


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["nope"], "No such command"),
        (["run"], "PROGRAM"),
        (["run", "app.py", "--port", "70000"], "70000"),
        (["run", "app.py", "--port", "6000"], "x11"),
        (["run", "app.py", "--log-level", "loud"], "loud"),
        (["run", "app.py", "--stdio", "--port", "9000"], "leave out"),
        (["run", "app.py", "--stdio", "--reload"], "leave out"),
        (["run", "no_such_file.py", "--port", "0"], "no file no_such_file.py"),
        (["run", "app.py", "--host", ""], "--host is empty"),
        (["run", "app.py", "--host", "nosuch.invalid"], "Can't serve: nosuch.invalid is no address"),
        (["run", "app.py", "--path", ""], "--path begins with a slash"),
        (["run", "app.py", "--path", "mcp"], "--path begins with a slash"),
        (["run", "app.py", "--path", "/a b"], "no blank"),
        (["run", "app.py", "--path", "/mcp?x=1"], "no blank"),
        (["list", "http://127.0.0.1:9/mcp", "--timeout", "0"], "--timeout"),
        (["call", "http://127.0.0.1:9/mcp", "t", "--timeout", "-1"], "--timeout"),
        (["list", "127.0.0.1:8000/mcp"], "as a URL it is http://127.0.0.1:8000/mcp"),
        (["list", "board.example:80"], "as a URL it is http://board.example:80"),
        (["list", "[::1]:8000/mcp"], "as a URL it is http://[::1]:8000/mcp"),
        (["list", "localhost/mcp"], "as a URL it is http://localhost/mcp"),
        (["list", "ftp://x/mcp"], "only URLs with http:// or https://"),
        (["list", "no_such_file.py"], "Error: there is no file no_such_file.py.\n"),
        (["list", "no_such_folder/file.py:server"], "no file no_such_folder/file.py"),
        (["call", "no_such_module:server", "t"], "Error: there is no module 'no_such_module'"),
        (["list", "no-such-command"], "neither a .py file nor a module"),
        (["list", ""], "TARGET is empty"),
        (["list", "it's"], "No closing quotation"),
        (["list", "http://"], "needs a host"),
        (["list", "app.py", "-H", "X-A: b"], "--header is for a TARGET that is a URL"),
        (["list", "http://127.0.0.1:9/mcp", "--header", "s3cret"], "takes 'NAME: VALUE'"),
        (["list", "http://127.0.0.1:9/mcp", "-H", "Mcp-Name: s3cret"], "Mcp-Name is written by the client"),
        (["call", "http://127.0.0.1:9/mcp", "t", "-H", "X-A: s3cr\u00e9t"], "printable ASCII"),
        (["read", "127.0.0.1:8000/mcp", "a://b"], "as a URL it is http://127.0.0.1:8000/mcp"),
        (["read", "app.py"], "URI"),
        (["read", "app.py", "a://b", "--json", "-o", "file"], "--json and --output don't go together"),
        (["read", "app.py", "a://b", "-o", "no_such_folder/file"], "there is no folder no_such_folder"),
        (["prompt", "app.py"], "NAME"),
        (["prompt", "app.py", "p", "city"], "'city' is no argument: write key=value"),
        (["prompt", "app.py", "p", "a=1", "a=2"], "'a' is given twice"),
        (["prompt", "no_such_file.py", "p"], "no file no_such_file.py"),
        (["listen", "http://127.0.0.1:9/mcp", "--count", "0"], "--count"),
        (["listen", "no_such_file.py", "--uri", "a://b"], "no file no_such_file.py"),
        (["list", "no_such.json"], "no_such.json"),
        (["list", "no_such.json", "-H", "X-A: b"], "--header is for a TARGET that is a URL"),
        (["login", "app.py"], "login is for a URL"),
        (["login", "127.0.0.1:8000/mcp"], "as a URL it is http://127.0.0.1:8000/mcp"),
        (["login", "http://"], "host"),
        (["login", "http://127.0.0.1:9/mcp", "--client-secret", "s3cret"], "--client-secret goes with --client-id"),
        (["login", "http://127.0.0.1:9/mcp", "--client-metadata", "http://x/y"], "--client-metadata"),
        (["login", "http://127.0.0.1:9/mcp", "--issuer", "x"], "--issuer"),
        (["login", "http://127.0.0.1:9/mcp", "--port", "70000"], "70000"),
        (["call", "http://127.0.0.1:9/mcp", "t", "--json-args", "{"], "no JSON"),
        (["call", "http://127.0.0.1:9/mcp", "t", "--json-args", "[]"], "not array"),
        (["call", "http://127.0.0.1:9/mcp", "t", "--json-args", '{"a": NaN}'], "NaN"),
    ],
)
def test_a_wrong_command_is_refused_with_the_reason(words: list[str], expected: str) -> None:
    code, output = outcome(*words)
    assert code == 2
    assert expected in output
    assert "Traceback" not in output
    assert "s3cr" not in output


def test_nobody_answers() -> None:
    code, output = outcome("list", "http://127.0.0.1:9/mcp")
    assert code == 1
    assert output.startswith("Error: server/discover at http://127.0.0.1:9/mcp: can't connect: Connection refused")


SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "number": {"type": "number"},
        "count": {"type": "integer"},
        "flag": {"type": "boolean"},
        "list": {"type": ["array", "null"]},
        "color": {"enum": ["red", "blue"]},
        "level": {"enum": [1, 2]},
        "fixed": {"const": "x"},
        "point": {"$ref": "#/$defs/Point"},
        "name": {"$ref": "#/$defs/a~1b"},
        "any": {},
        "true": True,
        "wide": {"oneOf": [{"type": "integer"}, {}]},
        "both": {"allOf": [{"type": "integer"}, {"minimum": 3}]},
        "loop": {"$ref": "#/properties/loop"},
        "lost": {"$ref": "#/$defs/Nowhere"},
    },
    "$defs": {"Point": {"type": "object"}, "a/b": {"type": "string"}},
}


@pytest.mark.parametrize("text", ["12345", '{"a":1}', "null", "1e5", "", " é=\n", "true", "a=b"])
@pytest.mark.parametrize("key", ["text", "maybe", "color", "fixed", "name"])
def test_a_string_stays_as_it_is(key: str, text: str) -> None:
    """A24."""
    assert cli_arguments.parse_pairs([f"{key}={text}"], SCHEMA) == {key: text}


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ("number=1", 1),
        ("number=1.5", 1.5),
        ("count=-3", -3),
        ("count=3.0", 3.0),
        ("flag=true", True),
        ("list=[1, null]", [1, None]),
        ("list=null", None),
        ("level=2", 2),
        ('point={"x": 1}', {"x": 1}),
        ("any=1", 1),
        ("any=one", "one"),
        ("true=[]", []),
        ("wide=x", "x"),
        ("both=4", 4),
        ("loop=x", "x"),
        ("lost=1", 1),
        ("unknown=x", "x"),
        ("unknown=1", 1),
    ],
)
def test_anything_else_is_json_by_the_schema(pair: str, value: Any) -> None:
    assert list(cli_arguments.parse_pairs([pair], SCHEMA).values()) == [value]


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        (["count=x"], "'count' must be integer, not 'x'"),
        (["count=1.5"], "'count' must be integer"),
        (["count=true"], "'count' must be integer"),
        (["number=NaN"], "'number' must be number"),
        (["flag=1"], "'flag' must be boolean"),
        (["flag=yes"], "'flag' must be boolean"),
        (["list={}"], "'list' must be array or null"),
        (["both=[]"], "'both' must be integer"),
        (["text"], "'text' is no argument: write key=value"),
        (["text=a", "text=b"], "'text' is given twice"),
    ],
)
def test_a_value_that_can_t_be_meant_is_refused(pairs: list[str], expected: str) -> None:
    with pytest.raises(cli_arguments.Refusal) as caught:
        cli_arguments.parse_pairs(pairs, SCHEMA)
    assert expected in str(caught.value)


def test_a_schema_without_properties_takes_anything() -> None:
    assert cli_arguments.parse_pairs(["a=1", "b=x"], {"type": "object"}) == {"a": 1, "b": "x"}


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (["forecast", "history"], "did you mean forecast?"),
        (["add", "sub"], "it has add, sub"),
        ([f"tool_{number}" for number in range(12)], "tool_9, ..."),
        ([], "it has none"),
    ],
)
def test_a_misspelt_tool_gets_a_hint(known: list[str], expected: str) -> None:
    assert cli_arguments.suggest("forcast", known).endswith(expected)


def test_every_block_of_content_has_a_form_in_text() -> None:
    shown = [
        cli_output.show_block(block)
        for block in (
            types.text("a\nb"),
            types.image(b"12345", "image/png"),
            types.audio(b"123", "audio/wav"),
            types.link("a://b", name="b"),
            types.embed("a://c", "inside"),
            types.embed("a://d", b"\0"),
        )
    ]
    assert shown[0] == "a\nb"
    assert "image/png" in shown[1]
    assert "audio/wav" in shown[2]
    assert shown[3] == "b: a://b"
    assert shown[4] == "inside"
    assert "a://d" in shown[5]


def test_a_terminal_gets_no_control_characters_of_a_server_s() -> None:
    text = "a\x1b]0;title\x07\x9b31m\r\nb\tc\rd"
    assert cli_output.printable(text, terminal=False) == text
    assert cli_output.printable(text, terminal=True) == "a\ufffd]0;title\ufffd\ufffd31m\r\nb\tc\ufffdd"


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (
            types.Tool(
                name="t",
                input_schema={
                    "type": "object",
                    "properties": {"city": {}, "days": {"default": 3}, "unit": {"default": "C\x1b"}, "note": {}, "any": True},
                    "required": ["city"],
                },
            ),
            'city, days=3, unit="C\\u001b", [note], [any]',
        ),
        (types.Tool(name="t", input_schema={"type": "object"}), ""),
        (types.Prompt(name="p"), ""),
        (
            types.Prompt(name="p", arguments=[types.PromptArgument(name="a", required=True), types.PromptArgument(name="b")]),
            "a, [b]",
        ),
        (types.Resource(name="r", uri="a://b"), ""),
    ],
)
def test_arguments_are_shown_in_short(item: Any, expected: str) -> None:
    assert cli_output._arguments(item) == expected


def test_a_name_of_a_server_s_can_t_pass_for_two_lines() -> None:
    assert cli_output.one_line("a\tb\nc\rd\x1b\x9b\x7f\u2028e \u00e9") == "a\ufffdb\ufffdc\ufffdd" + 4 * "\ufffd" + "e \u00e9"


def test_json_has_no_control_characters_and_stays_the_same() -> None:
    value = {"a\x9b": ["\x00\x1b[31m\x7f\x85\u2028\\u009b", "\u00e9 \u20ac"]}
    text = cli_output.to_json(value)
    assert not [letter for letter in text if not letter.isprintable()]
    assert json.loads(text) == value
    assert "\u00e9 \u20ac" in text


def test_what_a_resource_holds_as_bytes_and_for_people() -> None:
    text, empty = types.ResourceContents(uri="a://b", text="\u00e9"), types.ResourceContents(uri="a://b", text="")
    blob = types.ResourceContents(uri="a://b", blob=b64encode(b"\0\xff").decode(), mime_type="image/png")
    assert [cli_output.content_bytes(each) for each in (text, empty, blob)] == ["\u00e9".encode(), b"", b"\0\xff"]
    assert [cli_output.show_content(each) for each in (text, empty)] == ["\u00e9", ""]
    assert cli_output.show_content(blob) == "[a://b: image/png, 2 bytes; --output writes them into a file]"
    assert cli_output.content_bytes(types.ResourceContents(uri="a://b")) == b""


@pytest.mark.parametrize("blob", ["A", "AP8", "A?==", "\u00e9", "AP8=\n"])
def test_a_blob_that_is_no_base64_is_a_sentence(blob: str) -> None:
    with pytest.raises(click.ClickException, match="of a://b\ufffd is no base64"):
        cli_output.content_bytes(types.ResourceContents(uri="a://b\n", blob=blob))


def test_an_embedded_text_may_be_empty() -> None:
    assert cli_output.show_block(types.embed("a://c", "")) == ""


def test_warnings_are_told_like_errors(capsys: pytest.CaptureFixture[str]) -> None:
    for level in (logging.INFO, logging.WARNING):
        cli_output.Warnings().handle(logging.LogRecord("x", level, "", 1, "%s is gone", ("a",), None))
    assert capsys.readouterr().err == "a is gone\nWarning: a is gone\n"


def test_the_folder_of_tokens_is_in_the_user_s_configuration(tmp_path: Path) -> None:
    assert cli._tokens_folder() == tmp_path / "config" / "callboard" / "tokens"


async def test_a_login_is_known_by_its_url_alone(tmp_path: Path) -> None:
    """AC-12."""
    identity = cli_login.Identity(client_id="x", issuer="https://as.example")
    await cli_login.remember(tmp_path, "https://Board.example:443/mcp", identity)
    assert await cli_login.kept_login(tmp_path, "https://board.example/mcp/") is not None
    for other in (
        "https://board.example/other",
        "https://board.example",
        "http://board.example/mcp",
        "https://board.example:8443/mcp",
        "https://",
    ):
        assert await cli_login.kept_login(tmp_path, other) is None


async def test_a_secret_is_taken_from_the_environment_and_never_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AC-16."""
    monkeypatch.setenv(cli_login.SECRET, "s3cret")
    identity = cli_login.Identity(client_id="x")
    made = cli_login.make_login(tmp_path, identity, client_secret="s3cret", scopes=(), port=0, no_browser=True)
    await cli_login.remember(tmp_path, "https://board.example/mcp", identity)
    kept = await cli_login.kept_login(tmp_path, "https://board.example/mcp")
    assert "s3cret" not in f"{made!r} {kept!r}"
    assert kept is not None
    assert kept._identity.client_secret == "s3cret"
    assert "s3cret" not in str(await FileStorage(tmp_path).load("callboard login https://board.example/mcp"))


async def test_what_is_kept_in_another_form_is_no_login(tmp_path: Path) -> None:
    await FileStorage(tmp_path).save("callboard login https://board.example/mcp", {"client_id": 5})
    assert await cli_login.kept_login(tmp_path, "https://board.example/mcp") is None


async def test_a_folder_that_can_t_be_used_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(click.ClickException, match="tokens can't be kept in"):
        await cli_login.remember(tmp_path / "file", "https://board.example/mcp", cli_login.Identity())
    with pytest.raises(click.ClickException, match="tokens can't be kept in"):
        await cli_login.kept_login(tmp_path / "file", "https://board.example/mcp")

"""The parts of the command that need no server. What it does with servers is shown in tests/e2e/test_cli.py."""

import re
from typing import Any

import pytest
from click.testing import CliRunner

from callboard import cli, types


def outcome(*words: str) -> tuple[int, str]:
    """Exit code and what was printed, stderr included."""
    result = CliRunner().invoke(cli.main, words)
    return result.exit_code, result.output


def test_the_version_and_the_help() -> None:
    code, output = outcome("--version")
    assert (code, re.fullmatch(r"callboard, version \d+\.\d+\.\d+\n", output) is not None) == (0, True)
    assert outcome("--help")[0] == 0
    for command in ("run", "list", "call"):
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
    assert cli._parse_pairs([f"{key}={text}"], SCHEMA) == {key: text}


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
    assert list(cli._parse_pairs([pair], SCHEMA).values()) == [value]


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
    with pytest.raises(cli.Refusal) as caught:
        cli._parse_pairs(pairs, SCHEMA)
    assert expected in str(caught.value)


def test_a_schema_without_properties_takes_anything() -> None:
    assert cli._parse_pairs(["a=1", "b=x"], {"type": "object"}) == {"a": 1, "b": "x"}


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
    assert cli._suggest("forcast", known).endswith(expected)


def test_every_block_of_content_has_a_form_in_text() -> None:
    shown = [
        cli._show(block)
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
    assert cli._printable(text, terminal=False) == text
    assert cli._printable(text, terminal=True) == "a\ufffd]0;title\ufffd\ufffd31m\r\nb\tc\ufffdd"


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
    assert cli._arguments(item) == expected

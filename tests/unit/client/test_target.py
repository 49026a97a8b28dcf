"""What a client can be pointed at."""

import sys
from pathlib import Path
from typing import Any

import pytest

from callboard import CallboardError, Client, Server
from callboard.client import errors
from callboard.client.errors import ClientError, Origin, ProcessExited, ServerError
from callboard.client.target import connect_to


def named(target: Any) -> str:
    return connect_to(target, max_message=1000).name


def test_a_target_is_named_in_errors(tmp_path: Path) -> None:
    program = tmp_path / "app.py"
    program.touch()
    assert named("http://127.0.0.1:8000/mcp") == "http://127.0.0.1:8000/mcp"
    assert named("HTTPS://[::1]/mcp") == "HTTPS://[::1]/mcp"
    assert named(["python", "my server.py"]) == "python 'my server.py'"
    assert named(Server("weather")) == "weather"
    assert named(program) == named(str(program)) == f"{sys.executable} -m callboard run {program} --stdio"
    assert named(f"{program}:spare") == f"{sys.executable} -m callboard run {program}:spare --stdio"


@pytest.mark.parametrize(
    ("target", "error", "text"),
    [
        ("http://", ValueError, "needs a host"),
        ("http://host:port/mcp", ValueError, "needs a host"),
        ("it's", ValueError, "no closing quotation; give it as a list of words"),
        ("", ValueError, "no target"),
        ("missing.py", ValueError, r"no file missing\.py$"),
        ("missing.py:server", ValueError, r"no file missing\.py$"),
        ([], ValueError, "empty"),
        (["python", 7], TypeError, "list is no target"),
        (None, TypeError, "NoneType is no target"),
        (Server, TypeError, "type is no target"),
    ],
)
def test_what_is_no_target_is_refused_at_once(target: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Client(target)


URL = "http://127.0.0.1:9/mcp"


@pytest.mark.parametrize(
    ("target", "options", "error", "text"),
    [
        (URL, {"headers": {"X-A": "s3cret\r\nHost: b"}}, ValueError, "the value of X-A must be one line"),
        (URL, {"headers": {"X-A": "s3cret\n"}}, ValueError, "the value of X-A must be one line"),
        (URL, {"headers": {"X-A": "s3crét"}}, ValueError, "printable ASCII"),
        (URL, {"headers": {"X-A\n": "b"}}, ValueError, r"'X-A\\n' is no name"),
        (URL, {"headers": {"": "b"}}, ValueError, "'' is no name"),
        (URL, {"headers": {"mcp-name": "b"}}, ValueError, "mcp-name is written by the client"),
        (URL, {"headers": {"MCP-Protocol-Version": "b"}}, ValueError, "written by the client"),
        (URL, {"headers": {"content-type": "text/plain"}}, ValueError, "written by the client"),
        (URL, {"headers": {"Content-Length": "1"}}, ValueError, "written by the client"),
        (URL, {"headers": {"X-A": 1}}, TypeError, "headers: names and values are strings, but 'X-A' is given int"),
        (URL, {"headers": [("X-A", "b")]}, TypeError, "headers must be a mapping of names to values, not list"),
        ("http://u:p@127.0.0.1/", {"headers": {"authorization": "b"}}, ValueError, "a login in the URL"),
        (URL, {"env": {}}, ValueError, "env= is for child processes"),
        (URL, {"cwd": "."}, ValueError, "cwd= is for child processes"),
        (Server("s"), {"headers": {}}, ValueError, "headers= is for HTTP, .*callboard.asgi"),
        (Server("s"), {"env": {}}, ValueError, "env= is for child processes"),
        (Server("s"), {"cwd": "."}, ValueError, "cwd= is for child processes"),
        (["python"], {"headers": {"X-A": "b"}}, ValueError, "headers= is for HTTP: .*env="),
        (["python"], {"env": {"A": None}}, TypeError, "env: names and values are strings, but 'A' is given NoneType"),
        (["python"], {"env": ["A=1"]}, TypeError, "env must be a mapping"),
        (["python"], {"cwd": "no/such/folder"}, ValueError, "no folder no/such/folder"),
    ],
)
def test_an_option_that_can_t_work_is_refused_at_once(target: Any, options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        Client(target, **options)
    assert "s3cr" not in str(caught.value)


def test_every_error_of_a_client_is_one_of_callboard_s() -> None:
    found = [value for name in errors.__all__ if isinstance(value := getattr(errors, name), type) and issubclass(value, Exception)]
    assert len(found) == 11
    assert all(issubclass(each, ClientError) and issubclass(each, CallboardError) for each in found)
    assert [each for each in found if "code" in each.__init__.__code__.co_varnames] == [ServerError]  # EC-13


def test_an_error_names_request_and_server() -> None:
    error = ServerError(-32602, "No.", None, 400, Origin("http://a/mcp", "tools/call", 7, "hi"))
    assert str(error) == "tools/call 'hi' at http://a/mcp: No. (error -32602, HTTP 400)"
    assert (error.target, error.method, error.request_id, error.subject, error.text) == (
        "http://a/mcp", "tools/call", 7, "hi", "No. (error -32602, HTTP 400)",
    )  # fmt: skip


@pytest.mark.parametrize(("returncode", "text"), [(0, "exit code 0"), (-15, "SIGTERM"), (-99, "signal 99")])
def test_an_exit_is_put_into_words(returncode: int, text: str) -> None:
    assert text in str(ProcessExited(returncode, "", Origin("server")))
    assert "without a word" in str(ProcessExited(returncode, "", Origin("server")))


def test_a_text_of_several_words_is_a_command() -> None:
    assert connect_to("python 'my server.py' --stdio", max_message=1).name == "python 'my server.py' --stdio"
    assert connect_to("python server.py", max_message=1).kind == "stdio"
    assert connect_to("true", max_message=1).name == "true"

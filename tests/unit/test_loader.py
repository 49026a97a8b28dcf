"""Finding the server in a program."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from callboard import loader
from callboard.loader import LoadError, load_server, split_place

ONE = "from callboard import Server\n{name} = Server('one')\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory of its own, with what loading leaves behind taken away again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("app.py", ("app.py", "")),
        ("app.py:server", ("app.py", "server")),
        ("package.module:app", ("package.module", "app")),
        ("C:\\apps\\app.py", ("C:\\apps\\app.py", "")),
        ("C:\\apps\\app.py:app", ("C:\\apps\\app.py", "app")),
    ],
)
def test_a_place_is_cut_in_two(place: str, expected: tuple[str, str]) -> None:
    assert split_place(place) == expected


@pytest.mark.parametrize("name", ["server", "app", "mcp", "weather"])
def test_the_server_is_found_in_a_file(folder: Path, name: str) -> None:
    (folder / "prog.py").write_text(ONE.format(name=name) + f"same = {name}\n")
    assert load_server("prog.py").name == "one"
    assert load_server(f"prog.py:{name}").name == "one"


def test_the_usual_name_wins_and_a_name_given_wins_over_it(folder: Path) -> None:
    (folder / "prog.py").write_text("from callboard import Server\nother = Server('other')\nserver = Server('usual')\n")
    assert load_server("prog.py").name == "usual"
    assert load_server("prog.py:other").name == "other"


def test_a_module_is_found_in_the_working_directory(folder: Path) -> None:
    (folder / "pack").mkdir()
    (folder / "pack" / "inner.py").write_text(ONE.format(name="server"))
    assert load_server("pack.inner").name == "one"
    assert load_server("pack.inner:server").name == "one"


def test_a_file_may_import_its_neighbours_and_bear_a_taken_name(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "neighbour.py").write_text("NAME = 'near'\n")
    (folder / "sub" / "json.py").write_text("from callboard import Server\nfrom neighbour import NAME\nserver = Server(NAME)\n")
    assert load_server("sub/json.py").name == "near"
    import json

    assert json.loads("1") == 1


@pytest.mark.parametrize(
    ("text", "place", "expected"),
    [
        (None, "prog.py", "no file prog.py"),
        (None, "prog", "no module 'prog'"),
        (None, "no such.thing", "neither a .py file nor a module"),
        ("x = 1", "prog.py", "no server at its top level"),
        (ONE, "prog.py:nope", "no 'nope'; say which: prog.py:server"),
        ("x = 1", "prog.py:x", "prog.py:x is a int, not a callboard.Server"),
        ("from callboard import Server\na = Server('a')\nb = Server('b')", "prog.py", "several servers; say which: prog.py:a or prog.py:b"),
    ],
)
def test_what_can_t_be_found_is_said_with_the_way_out(folder: Path, text: str | None, place: str, expected: str) -> None:
    if text is not None:
        (folder / "prog.py").write_text(text.format(name="server"))
    with pytest.raises(LoadError) as caught:
        load_server(place)
    assert expected in str(caught.value)
    assert not caught.value.broken


def test_a_program_that_fails_is_blamed_in_its_own_lines(folder: Path) -> None:
    (folder / "prog.py").write_text("def f():\n    return 1 / 0\n\nf()\n")
    with pytest.raises(LoadError) as caught:
        load_server("prog.py")
    text = str(caught.value)
    assert caught.value.broken
    assert "line 4" in text
    assert "line 2" in text
    assert "ZeroDivisionError" in text
    assert "loader.py" not in text
    assert "importlib" not in text


@pytest.mark.parametrize("library", ["venv/lib/python3/site-packages", ".venv/Lib/site-packages", "usr/dist-packages"])
def test_an_environment_in_the_folder_is_not_the_program(folder: Path, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / library).mkdir(parents=True)
    (folder / library / "chores.py").write_text("from callboard import RegistrationError\ndef work():\n    raise RegistrationError('no')\n")
    monkeypatch.syspath_prepend(folder / library)
    (folder / "prog.py").write_text("import chores\n\nchores.work()\n")
    with pytest.raises(LoadError, match=r"^prog\.py, line 3: no$"):
        load_server("prog.py")


def test_this_package_is_not_the_program_wherever_it_lies() -> None:
    package = Path(loader.__file__).parent
    assert not loader._is_theirs(package / "server" / "signature.py", package.parent)
    assert loader._is_theirs(package.parent / "program.py", package.parent)
    assert not loader._is_theirs(Path("/elsewhere/program.py"), package.parent)


def test_a_missing_import_of_a_program_is_the_program_s_failure(folder: Path) -> None:
    (folder / "prog.py").write_text("import no_such_package\n")
    for place in ("prog.py", "prog"):
        with pytest.raises(LoadError, match="No module named 'no_such_package'") as caught:
            load_server(place)
        assert caught.value.broken


def test_a_syntax_error_is_shown(folder: Path) -> None:
    (folder / "prog.py").write_text("def f(:\n")
    with pytest.raises(LoadError, match="SyntaxError"):
        load_server("prog.py")


def test_a_refused_component_is_one_sentence_with_its_place(folder: Path) -> None:
    (folder / "prog.py").write_text(ONE.format(name="server") + "@server.tool\ndef f(*args): ...\n")
    with pytest.raises(LoadError, match=r"prog\.py, line 3") as caught:
        load_server("prog.py")
    assert "Traceback" not in str(caught.value)
    assert "\n" not in str(caught.value)


SHOP = "from callboard import Handler\n\nclass Shop(Handler):\n    name = 'of the class'\n\n    def list_tools(self, ctx, state):\n        return []\n"


@pytest.mark.parametrize(
    ("more", "place", "expected"),
    [
        ("", "prog.py", "of the class"),
        ("", "prog.py:Shop", "of the class"),
        ("shop = Shop()\nshop.name = 'of the object'\n", "prog.py", "of the object"),
        ("from callboard import Server\nserver = Server('server')\n", "prog.py", "server"),
        ("def make():\n    return Shop()\n", "prog.py:make", "of the class"),
    ],
)
def test_a_handler_is_found(folder: Path, more: str, place: str, expected: str) -> None:
    (folder / "prog.py").write_text(SHOP + more)
    assert load_server(place).name == expected


@pytest.mark.parametrize(
    ("more", "place", "text"),
    [
        ("class Other(Shop): ...\n", "prog.py", "several servers"),
        ("class Broken(Shop):\n    def call_tool(self): ...\n", "prog.py:Broken", "prog.py:Broken: Broken.call_tool is called as"),
        ("def make():\n    return 5\n", "prog.py:make", "not 5"),
        ("number = 5\n", "prog.py:number", "is a int, not a callboard.Server or Handler"),
    ],
)
def test_a_handler_that_can_not_be_served_is_told_so(folder: Path, more: str, place: str, text: str) -> None:
    (folder / "prog.py").write_text(SHOP + more)
    with pytest.raises(LoadError, match=text):
        load_server(place)


def test_a_handler_that_was_imported_is_not_the_programs(folder: Path) -> None:
    (folder / "library.py").write_text(SHOP)
    (folder / "prog.py").write_text("from library import Shop\n")
    with pytest.raises(LoadError, match="no server"):
        load_server("prog.py")

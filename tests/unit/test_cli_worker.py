"""`callboard worker`: what it says where it can't run tasks; that it runs them is tested with processes of its own."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from callboard.cli import main
from callboard.cli_worker import worker

PLAIN = "from callboard import Server\nserver = Server('plain')\n"
TOOL = "server.tool(task='allowed', name='pay')(lambda: 1)\n"
LOCAL = f"{PLAIN}{TOOL}"
QUEUED = f"from callboard import Server\nfrom callboard.tasks import DocketTasks\nserver = Server('depot', tasks=DocketTasks())\n{TOOL}"


def run(folder: Path, program: str, *words: str) -> Result:
    """Run the command on a program."""
    (folder / "depot.py").write_text(program)
    return CliRunner().invoke(worker, [str(folder / "depot.py"), *words])


@pytest.fixture(autouse=True)
def plain_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs put their folder first on the path, and are modules."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "depot", raising=False)
    monkeypatch.delenv("CALLBOARD_STORE", raising=False)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        pytest.param(PLAIN, "has no tool with task=", id="no tasks"),
        pytest.param(LOCAL, "runs its tasks in the servers themselves", id="tasks of MemoryTasks"),
        pytest.param(QUEUED, "store='redis://...'", id="no Redis"),
        pytest.param("import nothing_of_that_name\n", "nothing_of_that_name", id="a broken program"),
    ],
)
def test_what_cannot_run_tasks_is_named(tmp_path: Path, program: str, said: str) -> None:
    ran = run(tmp_path, program)
    assert ran.exit_code == (1 if "nothing" in program else 2)
    assert said in ran.output
    assert "Traceback" not in ran.output or "nothing" in program


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    ran = CliRunner().invoke(worker, [str(tmp_path / "nowhere.py")])
    assert (ran.exit_code, "nowhere.py" in ran.output) == (2, True)


@pytest.mark.parametrize("words", [("--store", "http://127.0.0.1"), ("--concurrency", "0"), ("--grace", "-1")])
def test_an_option_that_cannot_work_is_refused(tmp_path: Path, words: tuple[str, str]) -> None:
    ran = run(tmp_path, QUEUED, *words)
    assert (ran.exit_code, "Traceback" in ran.output) == (2, False)


@pytest.mark.parametrize("command", ["run", "worker"])
@pytest.mark.parametrize("named", ["--store", "CALLBOARD_STORE"])
def test_a_store_that_is_none_is_named_by_who_said_it(tmp_path: Path, command: str, named: str) -> None:
    (tmp_path / "depot.py").write_text(QUEUED, encoding="utf-8")
    words, environment = (["--store", "http://x"], {}) if named == "--store" else ([], {named: "http://x"})
    ran = CliRunner().invoke(main, [command, str(tmp_path / "depot.py"), *words], env=environment)
    assert (ran.exit_code, f"Error: {named}: The URL of a store is" in ran.output) == (2, True)


def test_a_redis_that_is_not_there_is_named_without_its_password(tmp_path: Path) -> None:
    pytest.importorskip("docket", reason="pydocket is not installed.")
    ran = run(tmp_path, QUEUED, "--store", "redis://:s3cr3t@127.0.0.1:1/0")
    assert ran.exit_code == 1
    assert "127.0.0.1:1" in ran.output
    assert "s3cr3t" not in ran.output


def test_without_pydocket_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "docket", None)
    ran = run(tmp_path, QUEUED, "--store", "redis://127.0.0.1:1/0")
    assert (ran.exit_code, "callboard[tasks]" in ran.output) == (1, True)

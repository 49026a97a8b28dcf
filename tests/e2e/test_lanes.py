"""Files of tests side by side, each in a fork: whatever befalls one is told, and the exit status says so."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.lanes import FEW

ROOT = Path(__file__).resolve().parents[2]
LAUNCH = """
import sys, pytest
from tools.lanes import Lanes
sys.exit(pytest.main(["-q", "-ra", "-p", "no:cacheprovider", "-p", "no:asyncio", "-W", "error", *sys.argv[1:]], plugins=[Lanes(2)]))
"""
FILES = {
    "test_fails.py": "def test_good(): pass\ndef test_bad(): print('seen'); assert 1 == 2\n",
    "test_dies.py": "import os\ndef test_dies(): os._exit(7)\ndef test_never(): pass\n",
    "test_odd.py": """
import pytest
@pytest.fixture(scope="module")
def kept():
    yield 1
    assert False, "torn down"
def test_skips(): pytest.skip("a reason")
def test_last(kept): pass
""",
    "test_left.py": """
def test_leaves():
    class Left:
        def __del__(self): raise ValueError("nobody sees")
    left = Left()
    left.itself = left
""",
}


def run(folder: Path, *names: str) -> tuple[int, str]:
    command = [sys.executable, "-c", LAUNCH, *names]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=60, check=False)
    return ran.returncode, ran.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("files")
    for name, content in FILES.items():
        (path / name).write_text(content)
    return path


def test_all_that_befalls_a_file_is_told(folder: Path) -> None:
    status, shown = run(folder)
    assert status == pytest.ExitCode.TESTS_FAILED
    for line in (
        "FAILED test_fails.py::test_bad - assert 1 == 2",
        "its process ended with status 7 before the tests of test_dies.py were over",
        "FAILED test_dies.py::test_dies",
        "ERROR test_odd.py::test_last - AssertionError: torn down",
        "SKIPPED [1] test_odd.py:7: a reason",
        "FAILED test_left.py::test_leaves - after the last test of test_left.py:",
        "ValueError: nobody sees",
        "3 failed, 4 passed, 1 skipped, 1 error in",  # what was torn down passed again before that
    ):
        assert line in shown, shown


def test_what_passes_passes(folder: Path) -> None:
    status, shown = run(folder, "test_fails.py::test_good")
    assert (status, "1 passed" in shown) == (pytest.ExitCode.OK, True), shown
    assert run(folder, "-k", "nothing_of_the_kind")[0] == pytest.ExitCode.NO_TESTS_COLLECTED


def test_what_fails_once_is_told_of_and_holds_nothing_up(tmp_path: Path) -> None:
    """Once more, alone; what fails twice has failed."""
    (tmp_path / "test_chance.py").write_text(
        f"""
from pathlib import Path
seen = Path({str(tmp_path / "seen")!r})
def test_first_time_unlucky():
    again = seen.exists()
    seen.touch()
    assert again, "no luck"
def test_good(): pass
"""
    )
    status, shown = run(tmp_path)
    assert (status, "2 passed" in shown) == (pytest.ExitCode.OK, True), shown
    assert "UNSTEADY: test_chance.py::test_first_time_unlucky failed, then passed alone" in shown
    assert "no luck" in shown
    (tmp_path / "seen").unlink()
    (tmp_path / "test_bad.py").write_text("def test_bad(): assert 1 == 2\n")
    status, shown = run(tmp_path)
    assert (status, "1 failed, 2 passed" in shown) == (pytest.ExitCode.TESTS_FAILED, True), shown


def test_where_many_fail_it_is_no_chance(tmp_path: Path) -> None:
    text = f"""
import pytest
from pathlib import Path
@pytest.mark.parametrize("number", range({FEW + 1}))
def test_unlucky(number):
    seen = Path({str(tmp_path)!r}) / str(number)
    again = seen.exists()
    seen.touch()
    assert again
"""
    (tmp_path / "test_chance.py").write_text(text)
    status, shown = run(tmp_path)
    assert (status, f"{FEW + 1} failed in" in shown) == (pytest.ExitCode.TESTS_FAILED, True), shown

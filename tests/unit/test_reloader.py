"""What `--reload` notices. That it restarts is shown in tests/e2e/test_cli.py."""

import os
from pathlib import Path

from callboard.reloader import changed_files, scan


def test_python_files_that_come_go_or_change_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    (tmp_path / "gone.py").write_text("1")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.py").write_text("1")
    before = scan(tmp_path)
    assert changed_files(before, scan(tmp_path)) == []
    (tmp_path / "sub" / "b.py").write_text("22")
    os.utime(tmp_path / "a.py", ns=(1, 1))
    (tmp_path / "gone.py").unlink()
    (tmp_path / "new.py").write_text("")
    assert [Path(path).name for path in changed_files(before, scan(tmp_path))] == ["a.py", "gone.py", "new.py", "b.py"]


def test_what_is_no_source_of_the_program_is_passed_over(tmp_path: Path) -> None:
    for folder in (".venv", "__pycache__", "node_modules", "site-packages"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.py").touch()
    (tmp_path / "notes.md").touch()
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "dangling.py").symlink_to(tmp_path / "nowhere.py")
    assert scan(tmp_path) == {}
    assert scan(tmp_path / "no such folder") == {}

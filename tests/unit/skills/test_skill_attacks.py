"""Attacks on folders of skills: each of these got through once."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard.errors import RegistrationError
from callboard.skills.folder import SkillFolders
from callboard.skills.front_matter import read_front_matter


def write(root: Path, *names: str) -> Path:
    """Writes skills below a folder."""
    for name in names:
        (root / name).mkdir(parents=True)
        (root / name / "SKILL.md").write_text(f"---\nname: {name}\ndescription: d\n---\n")
    return root


def test_a_folder_of_that_name_makes_no_skill(tmp_path: Path) -> None:
    """What lies beside it, such as a key, would be read by whoever guesses its name."""
    root = write(tmp_path, "a")
    (root / "private/SKILL.md").mkdir(parents=True)
    (root / "private/SKILL.md/notes").write_text("secret")
    (root / "private/key").write_text("secret")
    assert list(SkillFolders([root]).files) == ["a/SKILL.md"]


@pytest.mark.parametrize(("link", "target"), [("a/loop", "loop"), ("a/one", "two")])
def test_a_link_that_leads_to_itself_is_no_file(tmp_path: Path, link: str, target: str) -> None:
    root = write(tmp_path, "a")
    (root / link).symlink_to(target)
    (root / "a/two").symlink_to("one")
    with pytest.raises(RegistrationError, match=f"{link}: it is no regular file"):
        SkillFolders([root])


def test_a_link_outside_of_skills_that_leads_to_itself_is_nobodys(tmp_path: Path) -> None:
    root = write(tmp_path, "a")
    (root / "loop").symlink_to("loop")
    assert list(SkillFolders([root]).skills) == ["a/SKILL.md"]


def test_a_path_is_a_file_or_a_folder(tmp_path: Path) -> None:
    """No host could put both on its disk."""
    one, other = write(tmp_path / "1", "a"), write(tmp_path / "2", "a/b")
    (one / "a/b").write_text("x")
    (other / "a/b/SKILL.md").write_text("---\nname: b\ndescription: d\n---\n")
    for folders in ([one, other], [other, one]):
        with pytest.raises(RegistrationError, match=r"a/b is a file in one folder, .*1/a/b, and a folder in another"):
            SkillFolders(folders)


@pytest.mark.parametrize("char", ["\x85", "\u2028", "\u2029"])
@pytest.mark.parametrize("quote", ["'", '"', ""])
def test_what_ends_a_line_in_one_version_of_yaml_alone_is_refused(char: str, quote: str) -> None:
    # SK-02, SK-05: PyYAML makes a space of U+0085, readers of YAML 1.2 keep it
    with pytest.raises(RegistrationError, match="readers of YAML differ about U"):
        read_front_matter(f"---\nname: a\ndescription: {quote}x{char}y{quote}\n---\n", "a", "a/SKILL.md")

"""Skills from folders: what is found, what is refused, and that listings, digests and contents are of the same bytes."""

from __future__ import annotations

import builtins
import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from callboard.core.traversal import check_traversal
from callboard.core.uri import UriTemplate
from callboard.errors import RegistrationError
from callboard.skills.extension import Skills
from callboard.skills.folder import MAX_BYTES, MAX_FILES, SkillFolders
from callboard.skills.front_matter import MAX_DESCRIPTION, read_front_matter

FRONT = "---\nname: {}\ndescription: What it does.\n---\n# Text\n"


def grow(root: Path, files: Mapping[str, str | bytes]) -> Path:
    """Writes files below a folder."""
    for path, content in files.items():
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def skill(path: str, text: str | None = None) -> dict[str, str | bytes]:
    """A SKILL.md in a folder."""
    return {f"{path}/SKILL.md": FRONT.format(path.rpartition("/")[2]) if text is None else text}


def read(yaml_text: str, name: str = "a") -> dict[str, Any]:
    return read_front_matter(f"---\n{yaml_text}\n---\n", name, "a/SKILL.md")


# Front matter


def test_every_field_passes_through() -> None:
    # SK-02
    written = "name: a\ndescription: >\n  Two\n  lines.\nlicense: MIT\nallowed-tools: [Read, 'Bash(git:*)']\nmetadata: {version: '1.0', n: 2.5, on2: true}"
    fields = read(written)
    assert fields == yaml.safe_load(written)
    assert fields["metadata"] == {"version": "1.0", "n": 2.5, "on2": True}


@pytest.mark.parametrize("text", ["---\nname: a\ndescription: d\n---", "\ufeff---\r\nname: a\r\ndescription: d\r\n--- \r\nText"])
def test_fences_as_hosts_read_them(text: str) -> None:
    assert read_front_matter(text, "a", "a/SKILL.md") == {"name": "a", "description": "d"}


@pytest.mark.parametrize("text", ["", "# Text", "---\nname: a", " ---\nname: a\n---\n", "--- \nname: a\n---\n", "---\n---\n"])
def test_without_front_matter_it_is_no_skill(text: str) -> None:
    # SK-02
    with pytest.raises(RegistrationError, match=r"a/SKILL\.md: it must begin with front matter"):
        read_front_matter(text, "a", "a/SKILL.md")


@pytest.mark.parametrize("name", ["a", "0", "a-b-0", "x" * 64])
def test_names_that_are_allowed(name: str) -> None:
    # SK-02
    assert read(f"name: '{name}'\ndescription: d", name)["name"] == name


@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a-", "a--b", "ä", "a.b", "x" * 65, "a/b"])
def test_names_that_are_not(name: str) -> None:
    # SK-02
    with pytest.raises(RegistrationError, match="name must be 1 to 64"):
        read(f"name: '{name}'\ndescription: d", name)


def test_name_and_folder_are_equal() -> None:
    # SK-02
    with pytest.raises(RegistrationError, match="its name is 'a', and its folder 'b'"):
        read("name: a\ndescription: d", "b")


@pytest.mark.parametrize("description", ["''", "'  '", "[d]", "1", "null", "x" * (MAX_DESCRIPTION + 1)])
def test_a_description_says_something(description: str) -> None:
    with pytest.raises(RegistrationError, match="description must say"):
        read(f"name: a\ndescription: {description}")


@pytest.mark.parametrize(
    "value",
    [
        "yes",
        "Off",
        "010",
        "0x1F",
        "0o17",
        "1_000",
        "12:30",
        "2026-07-28",
        ".nan",
        "-.inf",
        "1e3",
        "1.5e3",
        "<<",
        "123456789012345678901",
    ],
)
def test_what_readers_of_yaml_differ_about_is_refused(value: str) -> None:
    # SK-02: a host that reads YAML 1.2 would find another value in the file than in the entry
    with pytest.raises(RegistrationError, match=r"a/SKILL\.md, line 5: readers of YAML differ about .* put it in quotes"):
        read(f"name: a\ndescription: d\nmetadata:\n  x: {value}")
    assert read(f"name: a\ndescription: d\nmetadata:\n  x: '{value}'")["metadata"] == {"x": value}


@pytest.mark.parametrize(
    ("rest", "culprit"),
    [
        ("a: &x [1]\nb: *x", "line 4: it repeats by an alias"),
        ("a: &x [*x]", "line 4: it repeats by an alias"),
        ("name: a", "line 4: 'name' is there twice"),
        ("1: x", "line 4: names of fields must be texts"),
        ("[a]: x", "line 4: names of fields must be texts"),
        ("a: !!set {x}", "line 4: tag:yaml.org,2002:set has no counterpart in JSON"),
        ("a: !!binary aGk=", "line 4: readers of YAML differ"),
        ("a: !!python/object:os.system x", "line 4: readers of YAML differ"),
        ("a: [", "this is no YAML"),
        ("a: \x07", "its front matter can't be read"),
        ('a: "\\uD800"', "its front matter can't be read"),
        ("a: " + "[" * 5000, "its front matter can't be read"),
    ],
)
def test_what_json_does_not_have_is_refused(rest: str, culprit: str) -> None:
    # SK-02
    with pytest.raises(RegistrationError, match=r"a/SKILL\.md") as caught:
        read(f"name: a\ndescription: d\n{rest}")
    assert culprit in str(caught.value)


@pytest.mark.parametrize("text", ["- a", "a", "null", " "])
def test_front_matter_is_fields(text: str) -> None:
    with pytest.raises(RegistrationError, match="must be fields"):
        read(text)


def test_without_pyyaml_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    original = builtins.__import__

    def refuse(name: str, *args: Any, **more: Any) -> Any:
        if name == "yaml":
            raise ImportError(name)
        return original(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(RegistrationError, match=r"pip install 'callboard\[skills\]'"):
        Skills(grow(tmp_path, skill("a")))


# Folders


def test_skills_are_found_at_any_depth_and_in_skills(tmp_path: Path) -> None:
    # SK-02, SK-03
    tree = {
        **skill("a"),
        **skill("team/billing/b"),
        **skill("a/inner/c"),
        "a/inner/note.txt": "n",
        "README.md": "no skill",
        "team/x.md": "no",
    }
    found = SkillFolders([grow(tmp_path, tree)])
    assert {skill.main.uri: [file.path for file in skill.files] for skill in found.skills.values()} == {
        "skill://a/SKILL.md": ["a/SKILL.md", "a/inner/c/SKILL.md", "a/inner/note.txt"],
        "skill://a/inner/c/SKILL.md": ["a/inner/c/SKILL.md"],
        "skill://team/billing/b/SKILL.md": ["team/billing/b/SKILL.md"],
    }
    assert found.folders["team"] == {"billing"}


def test_hidden_files_and_caches_are_left_out(tmp_path: Path) -> None:
    hidden = {"a/.env": "SECRET", "a/.git/config": "x", "a/scripts/__pycache__/x.pyc": "x", **skill(".hidden/b")}
    found = SkillFolders([grow(tmp_path, {**skill("a"), **hidden})])
    assert sorted(found.files) == ["a/SKILL.md"]


def test_several_folders_make_one_space(tmp_path: Path) -> None:
    one = grow(tmp_path / "one", {**skill("acme"), "acme/x.md": "x"})
    other = grow(tmp_path / "other", skill("acme/inner"))
    found = SkillFolders([one, other])
    assert [file.path for file in found.skills["acme/SKILL.md"].files] == ["acme/SKILL.md", "acme/inner/SKILL.md", "acme/x.md"]
    with pytest.raises(RegistrationError, match=r"acme/SKILL\.md is there twice: at .*one.* and at .*one"):
        SkillFolders([one, one])


def test_folders_without_skills_are_mistakes(tmp_path: Path) -> None:
    with pytest.raises(RegistrationError, match="there is no folder"):
        Skills(tmp_path / "skils")
    with pytest.raises(RegistrationError, match=r"has a SKILL\.md"):
        Skills(tmp_path)
    with pytest.raises(RegistrationError, match="is a skill itself: give"):
        Skills(grow(tmp_path, skill("a")) / "a")
    with pytest.raises(RegistrationError, match="needs a folder"):
        Skills()


def test_a_skill_is_text(tmp_path: Path) -> None:
    with pytest.raises(RegistrationError, match="must be UTF-8"):
        Skills(grow(tmp_path, {"a/SKILL.md": b"---\nname: a\ndescription: \xff\n---\n"}))


# Limits


def test_a_skill_has_as_many_files_as_hosts_take(tmp_path: Path) -> None:
    # SK-04
    grow(tmp_path, {**skill("a"), **{f"a/{number:03}.md": "" for number in range(MAX_FILES - 1)}})
    assert len(SkillFolders([tmp_path]).files) == MAX_FILES
    grow(tmp_path, {"a/zz.md": ""})
    with pytest.raises(RegistrationError, match=r"Skill 'a' has 513 files, 'a/zz\.md' is the first beyond 512"):
        SkillFolders([tmp_path])


def test_a_skill_is_as_large_as_hosts_take(tmp_path: Path) -> None:
    # SK-04
    grow(tmp_path, skill("a"))
    rest = MAX_BYTES - (tmp_path / "a/SKILL.md").stat().st_size
    grow(tmp_path, {"a/big.bin": b"\xff" * rest})
    assert sum(len(file.data) for file in SkillFolders([tmp_path]).files.values()) == MAX_BYTES
    grow(tmp_path, {"a/b": "b"})
    with pytest.raises(RegistrationError, match=rf"Skill 'a' has {MAX_BYTES + 1} bytes, .* largest file is 'a/big\.bin' with {rest}"):
        SkillFolders([tmp_path])


def test_what_is_too_large_is_never_read(tmp_path: Path) -> None:
    # SK-04
    with (grow(tmp_path, skill("a")) / "a/huge.bin").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(RegistrationError, match="largest file is 'a/huge"):
        SkillFolders([tmp_path])


# What leads out


def test_links_that_lead_out_are_refused(tmp_path: Path) -> None:
    # SA32
    secret = grow(tmp_path, {"secret": "s"}) / "secret"
    root = grow(tmp_path / "skills", skill("a"))
    (root / "a/link.md").symlink_to(secret)
    with pytest.raises(RegistrationError, match=r"a/link\.md: a link that leads out of"):
        SkillFolders([root])


def test_links_inside_are_files(tmp_path: Path) -> None:
    root = grow(tmp_path, {**skill("a"), "shared.md": "shared"})
    (root / "a/link.md").symlink_to(root / "shared.md")
    assert SkillFolders([root]).files["a/link.md"].data == b"shared"


@pytest.mark.parametrize("target", ["..", ".", "../elsewhere"])
def test_links_to_folders_are_refused(tmp_path: Path, target: str) -> None:
    root = grow(tmp_path, {**skill("a"), "elsewhere/x": "x"})
    (root / "a/loop").symlink_to(target)
    with pytest.raises(RegistrationError, match="a/loop: a link to a folder"):
        SkillFolders([root])


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    root = grow(tmp_path, skill("a"))
    os.mkfifo(root / "a/pipe")
    with pytest.raises(RegistrationError, match="a/pipe: it is no regular file"):
        SkillFolders([root])
    (root / "a/pipe").unlink()
    (root / "a/dead").symlink_to("nowhere")
    with pytest.raises(RegistrationError, match="a/dead: it is no regular file"):
        SkillFolders([root])


@pytest.mark.parametrize("name", ["a\\b.md", "%2e%2e", "new\nline.md", "C:x", b"\xff.md"])
def test_names_that_no_client_could_ask_for_are_refused(tmp_path: Path, name: str | bytes) -> None:
    # SA32
    root = grow(tmp_path, skill("a"))
    (root / "a" / os.fsdecode(name)).write_text("x") if name != "C:x" else grow(root, skill("C:x/b"))
    with pytest.raises(RegistrationError, match="can't stand in a URI safely: rename it"):
        SkillFolders([root])


# Types


@pytest.mark.parametrize(
    ("name", "content", "mime_type"),
    [
        ("x.md", b"", "text/markdown"),
        ("x.MD", b"", "text/markdown"),
        ("x.py", b"", "text/x-python"),
        ("x.yaml", b"", "application/yaml"),
        ("x.png", b"\x89PNG", "image/png"),
        ("x.json", b"{}", "application/json"),
        ("LICENSE", b"MIT", "text/plain"),
        ("x.unknown", b"\xff", "application/octet-stream"),
        ("x.tar.gz", b"\x1f\x8b", "application/octet-stream"),
    ],
)
def test_types_come_of_names(tmp_path: Path, name: str, content: bytes, mime_type: str) -> None:
    root = grow(tmp_path, {**skill("a"), f"a/{name}": content})
    assert SkillFolders([root]).files[f"a/{name}"].mime_type == mime_type


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=6).filter(
    lambda name: name.isprintable() and not name.startswith(".") and name not in {"__pycache__", "SKILL.md"}
)


@given(st.dictionaries(NAMES, st.binary(max_size=40), max_size=4), st.dictionaries(NAMES, st.binary(max_size=40), max_size=3))
def test_digest_size_and_contents_are_of_the_same_bytes(files: dict[str, bytes], inner: dict[str, bytes]) -> None:
    # SK-02, SK-05
    assume(not any(check_traversal({"path": name}) for name in (*files, *inner)))
    assume("sub" not in files)
    tree = {**skill("a"), **{f"a/{name}": data for name, data in files.items()}, **{f"a/sub/{name}": data for name, data in inner.items()}}
    with TemporaryDirectory() as folder:
        root = Path(folder)
        grow(root, tree)
        found = SkillFolders([root])
        grow(root, dict.fromkeys(tree, b"changed"))  # what comes later is not served
    template = UriTemplate("skill://{+path}")
    (listed,) = found.skills.values()
    assert {file.path for file in listed.files} == tree.keys()
    for file in listed.files:
        content = tree[file.path]
        data = content.encode() if isinstance(content, str) else content
        assert (file.data, file.digest) == (data, f"sha256:{sha256(data).hexdigest()}")
        assert template.match(file.uri) == {"path": file.path}
        assert not check_traversal({"path": file.path})

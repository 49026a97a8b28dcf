"""Folders of skills, read once: every file with its bytes, and which folders and skills they make up."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from hashlib import sha256
from mimetypes import MimeTypes
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from callboard.core.traversal import check_traversal
from callboard.errors import RegistrationError
from callboard.skills.front_matter import read_front_matter

__all__ = ["DIRECTORY", "MAX_BYTES", "MAX_FILES", "SKILL_FILE", "Skill", "SkillFile", "SkillFolders", "uri_of"]

SKILL_FILE = "SKILL.md"
"""What makes a folder a skill."""
DIRECTORY = "inode/directory"
"""Media type of a folder."""
MAX_FILES = 512
"""Files of one skill that every host takes (SK-04)."""
MAX_BYTES = 16 * 1024 * 1024
"""Bytes of all files of one skill that every host takes (SK-04)."""

# The standard library's own table, not that of the machine: a file has the same type wherever the server runs.
_TYPES = MimeTypes()
_MORE_TYPES = {
    ".markdown": "text/markdown",
    ".md": "text/markdown",
    ".toml": "application/toml",
    ".ts": "text/x-typescript",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
}
# reg-name of RFC 3986, which the first segment should be; the others are held to the same.
_SAFE = "!$&'()*+,;="


class SkillFile(msgspec.Struct, frozen=True):
    """A file as it was when the server began.

    Attributes:
        path: Its path below the folder of skills, with slashes.
        place: Where it lies, for error texts.
        data: Its bytes.
        is_text: Whether they are UTF-8.
        mime_type: Its media type.
        digest: `sha256:` and 64 hexadecimal digits, of the bytes.
    """

    path: str
    place: Path
    data: bytes
    is_text: bool
    mime_type: str
    digest: str

    @property
    def uri(self) -> str:
        """Its URI."""
        return uri_of(self.path)

    @property
    def name(self) -> str:
        """Last segment of its path."""
        return self.path.rpartition("/")[2]


class Skill(msgspec.Struct, frozen=True):
    """A folder with a SKILL.md.

    Attributes:
        main: Its SKILL.md.
        front_matter: The front matter of that, as JSON.
        files: All its files, those of skills inside it included (SK-02).
    """

    main: SkillFile
    front_matter: dict[str, Any]
    files: tuple[SkillFile, ...]


class SkillFolders:
    """Every skill below some folders, at any depth; skills may lie inside skills.

    Args:
        folders: The folders.

    Raises:
        RegistrationError: There is no skill, or one that hosts would refuse.

    Attributes:
        files: Files of skills by path.
        folders: Path of every folder that is a skill, lies in one or leads to one -> names of what is in it.
        skills: Path of each SKILL.md -> the skill, in the order of the paths.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self.files: dict[str, SkillFile] = {}
        self.folders: dict[str, set[str]] = {}
        places: dict[str, Path] = {}
        for folder in folders:
            root = _check_root(folder)
            self._find(root, root, "", places, inside=False)
        for path in sorted(places.keys() & self.folders.keys()):
            raise RegistrationError(f"Skills: {path} is a file in one folder, {places[path]}, and a folder in another. Rename one.")
        mains = sorted(path for path in places if path.endswith(f"/{SKILL_FILE}"))
        if not mains:
            raise RegistrationError(f"Skills: no folder below {', '.join(map(str, folders))} has a {SKILL_FILE}.")
        members = {main: [path for path in places if path.startswith(main.removesuffix(SKILL_FILE))] for main in mains}
        for main, paths in members.items():
            _check_limits(main, {path: places[path].stat().st_size for path in paths})
        self.files = {path: _read(path, place) for path, place in sorted(places.items())}
        self.skills = {main: self._make_skill(main, paths) for main, paths in members.items()}

    def _find(self, root: Path, folder: Path, path: str, places: dict[str, Path], *, inside: bool) -> bool:
        """Collect the files of a folder that belong to skills; whether it is part of one or leads to one."""
        entries = list(_list_visible(folder))
        inside = inside or any(entry.name == SKILL_FILE and not _is_folder(entry) for entry in entries)
        children = set()
        for entry in entries:
            child = f"{path}/{entry.name}" if path else entry.name
            place = folder / entry.name
            if _is_folder(entry):
                _check_name(child, place)
                if entry.is_symlink():
                    raise RegistrationError(f"{place}: a link to a folder is not followed: put a copy there.")
                if self._find(root, place, child, places, inside=inside):
                    children.add(entry.name)
            elif inside:
                _check_name(child, place)
                _check_file(root, place)
                if child in places:
                    raise RegistrationError(f"Skills: {child} is there twice: at {places[child]} and at {place}. Rename one.")
                places[child] = place
                children.add(entry.name)
        if inside or children:
            self.folders.setdefault(path, set()).update(children)
        return inside or bool(children)

    def _make_skill(self, main: str, paths: list[str]) -> Skill:
        file = self.files[main]
        if not file.is_text:
            raise RegistrationError(f"{file.place}: it must be UTF-8.")
        front_matter = read_front_matter(file.data.decode(), file.place.parent.name, str(file.place))
        return Skill(file, front_matter, tuple(self.files[path] for path in sorted(paths)))


def uri_of(path: str) -> str:
    """URI of a path below a folder of skills."""
    return f"skill://{quote(path, safe=f'/{_SAFE}')}"


def _check_root(folder: Path) -> Path:
    root = folder.resolve()
    if not root.is_dir():
        raise RegistrationError(f"Skills: there is no folder {root}.")
    if (root / SKILL_FILE).exists():
        raise RegistrationError(f"Skills takes the folder that skills lie in, and {root} is a skill itself: give {root.parent}.")
    return root


def _list_visible(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Hidden files and caches are no part of a skill: they come and go without its author."""
    with os.scandir(folder) as entries:
        yield from sorted((e for e in entries if not e.name.startswith(".") and e.name != "__pycache__"), key=lambda e: e.name)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _check_name(path: str, place: Path) -> None:
    """Refuse what no client could ask for: the template of the files holds every URI to the same rule (SA32)."""
    if not path.isprintable() or check_traversal({"path": path}):
        raise RegistrationError(f"{str(place)!r}: a name like this can't stand in a URI safely: rename it.")


def _check_file(root: Path, place: Path) -> None:
    target = Path(os.path.realpath(place))
    if not target.is_relative_to(root):
        raise RegistrationError(f"{place}: a link that leads out of {root}: put a copy there.")
    if not target.is_file():
        raise RegistrationError(f"{place}: it is no regular file: remove it.")


def _check_limits(main: str, sizes: dict[str, int]) -> None:
    skill = main.removesuffix(f"/{SKILL_FILE}")
    way_out = "a host need not take more (SK-04); move out of the folder what the skill does not need"
    if len(sizes) > MAX_FILES:
        first = sorted(sizes)[MAX_FILES]
        raise RegistrationError(f"Skill {skill!r} has {len(sizes)} files, {first!r} is the first beyond {MAX_FILES}: {way_out}.")
    total = sum(sizes.values())
    if total > MAX_BYTES:
        largest = max(sizes, key=lambda path: sizes[path])
        raise RegistrationError(
            f"Skill {skill!r} has {total} bytes, beyond {MAX_BYTES}; its largest file is {largest!r} with {sizes[largest]}: {way_out}."
        )


def _read(path: str, place: Path) -> SkillFile:
    data = place.read_bytes()
    is_text = _is_utf8(data)
    guessed, encoding = _TYPES.guess_type(place.name)
    known = _MORE_TYPES.get(place.suffix.lower()) or (None if encoding else guessed)
    mime_type = known or ("text/plain" if is_text else "application/octet-stream")
    return SkillFile(path, place, data, is_text, mime_type, f"sha256:{sha256(data).hexdigest()}")


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True

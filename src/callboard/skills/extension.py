"""The extension `io.modelcontextprotocol/skills` (SEP-2640): folders of instructions for agents, served as resources.

Files are read once, when the server begins. Digests, listings and contents come of the same bytes, so that none of them can contradict
another (SK-02, SK-05): a host that finds a difference must refuse the skill. What changes on disk is served after a restart.
"""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from callboard.core.era import Request
from callboard.core.outcome import CacheHint, Outcome, Reply
from callboard.errors import Fail, NotFound, Reason, RegistrationError
from callboard.server.component import Component, Facts, Resource, Template
from callboard.server.context import Context
from callboard.server.cursor import cut_page, read_cursor
from callboard.server.extension import Serve
from callboard.skills.folder import DIRECTORY, Skill, SkillFile, SkillFolders, uri_of
from callboard.wire import v2026_07_28 as v
from callboard.wire.jsonrpc import encode
from callboard.wire.methods import Method

__all__ = ["Skills"]


class _SkillParams(msgspec.Struct):
    uri: str
    meta: Raw | UnsetType = msgspec.field(name="_meta", default=UNSET)


class _DirectoryParams(msgspec.Struct):
    uri: str
    cursor: str | UnsetType = UNSET
    meta: Raw | UnsetType = msgspec.field(name="_meta", default=UNSET)


class Skills:
    """Skills from folders: `server.extend(Skills("skills"))`.

    Every folder below, at any depth, that has a SKILL.md is a skill. Its files are resources: each SKILL.md is listed, the others are read
    by their URIs, `skill://<path of the skill>/<path of the file>`. Names that begin with a dot and `__pycache__` are left out.

    Args:
        *folders: Folders that skills lie in.
        directory_read: Whether clients may list folders (`resources/directory/read`).
        cache: How long clients may keep skills and their files; the server's `cache` by default.

    Raises:
        RegistrationError: A folder has no skill, or one that hosts would refuse; or PyYAML is missing.
    """

    id = "io.modelcontextprotocol/skills"

    def __init__(self, *folders: str | os.PathLike[str], directory_read: bool = False, cache: CacheHint | None = None) -> None:
        if not folders:
            raise RegistrationError('Skills needs a folder that skills lie in: Skills("skills").')
        found = SkillFolders([Path(folder) for folder in folders])
        self._directory_read = directory_read
        self._cache = cache
        self._files = found.files
        self._skills = list(found.skills.values())
        self._entries = {skill.main.uri: _encode_entry(skill) for skill in found.skills.values()}
        self._directories = {uri_of(path): _encode_children(found, path) for path in found.folders if path}

    def settings(self) -> dict[str, Any]:
        """What the capabilities say of it."""
        return {"directoryRead": True} if self._directory_read else {}

    def methods(self) -> Mapping[str, tuple[Method, Serve]]:
        """Its methods."""
        rows: dict[str, tuple[Method, Serve]] = {
            "skills/list": (_row("skills/list", v.PaginatedRequestParams, cacheable=True), self._list),
            "skills/get": (_row("skills/get", _SkillParams, cacheable=True), self._get),
        }
        if self._directory_read:
            method = "resources/directory/read"
            rows[method] = _row(method, _DirectoryParams), self._read_directory
        return rows

    def components(self) -> Iterable[Component]:
        """A resource for every SKILL.md, and a template for all files."""
        for skill in self._skills:
            yield self._make_resource(skill)

        async def read_file(path: str) -> v.ResourceContents:
            """A file of a skill, by its path."""
            file = self._files.get(path)
            if file is None:
                raise NotFound
            return _contents(file)

        yield Template(read_file, "skill://{+path}", facts=Facts(name="skill-file"), cache=self._cache)

    def _make_resource(self, skill: Skill) -> Resource:
        file = skill.main

        async def read_skill() -> v.ResourceContents:
            return _contents(file)

        facts = Facts(name=skill.front_matter["name"], description=skill.front_matter["description"])
        resource = Resource(read_skill, file.uri, facts=facts, mime_type=file.mime_type, size=len(file.data), cache=self._cache)
        resource.source = str(file.place)
        return resource

    async def _list(self, server: Any, params: v.PaginatedRequestParams, _request: Request, _ctx: Context) -> Outcome:
        offset = read_cursor("skills", None if params.cursor is UNSET else params.cursor)
        page = cut_page("skills", "skills", list(self._entries.values()), offset, server.registry.page_size)
        return Reply(page, self._cache or server.cache)

    async def _get(self, server: Any, params: _SkillParams, _request: Request, _ctx: Context) -> Outcome:
        entry = self._entries.get(params.uri)
        if entry is None:
            return Fail(Reason.INVALID_PARAMS, "params.uri: there is no skill at it; skills/list has those there are.", {"uri": params.uri})
        return Reply({"skill": Raw(entry)}, self._cache or server.cache)

    async def _read_directory(self, server: Any, params: _DirectoryParams, _request: Request, _ctx: Context) -> Outcome:
        children = self._directories.get(params.uri)
        if children is None:
            return Fail(Reason.INVALID_PARAMS, "params.uri: there is no directory at it.", {"uri": params.uri})
        offset = read_cursor(params.uri, None if params.cursor is UNSET else params.cursor)
        return Reply(cut_page(params.uri, "resources", children, offset, server.registry.page_size))


def _row(method: str, params: type[Any], *, cacheable: bool = False) -> Method:
    return Method(params, msgspec.json.Decoder(params).decode, method.encode(), capability="resources", cacheable=cacheable)


def _encode_entry(skill: Skill) -> bytes:
    resources = [{"uri": file.uri, "digest": file.digest, "size": len(file.data)} for file in skill.files]
    return encode({"uri": skill.main.uri, "frontmatter": skill.front_matter, "resources": resources})


def _encode_children(found: SkillFolders, path: str) -> list[bytes]:
    return [encode(_describe(found, f"{path}/{name}")) for name in sorted(found.folders[path])]


def _describe(found: SkillFolders, path: str) -> v.Resource:
    """What a directory says of something in it: a folder, or a file as `resources/list` would have it."""
    file = found.files.get(path)
    if file is None:
        return v.Resource(uri=uri_of(path), name=path.rpartition("/")[2], mime_type=DIRECTORY)
    resource = v.Resource(uri=file.uri, name=file.name, mime_type=file.mime_type, size=len(file.data))
    if (skill := found.skills.get(path)) is not None:
        resource.name, resource.description = skill.front_matter["name"], skill.front_matter["description"]
    return resource


def _contents(file: SkillFile) -> v.ResourceContents:
    """Text where it is UTF-8, so that the text's bytes are the file's; else a blob."""
    if file.is_text:
        return v.ResourceContents(uri=file.uri, mime_type=file.mime_type, text=file.data.decode())
    return v.ResourceContents(uri=file.uri, mime_type=file.mime_type, blob=b64encode(file.data).decode())

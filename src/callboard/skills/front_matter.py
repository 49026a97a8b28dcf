"""The YAML front matter of a SKILL.md as JSON (SK-02): exactly what the file says, to every reader of YAML."""

from __future__ import annotations

import re
from typing import Any

from callboard.errors import RegistrationError
from callboard.wire.jsonrpc import encode

__all__ = ["read_front_matter"]

_FENCED = re.compile(r"\ufeff?---\r?\n(?P<yaml>.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_NAME = re.compile(r"(?!.*--)[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?")
MAX_DESCRIPTION = 1024
_TAG = "tag:yaml.org,2002:"
# A host compares the entry with what its own reader makes of the file. YAML 1.1 and 1.2 take plain words such as `yes`, `010` or
# `2026-07-28` for different things: those that both take for the same value are these, and no text may look like a number of 1.2.
_SAME_VALUE = re.compile(
    r"~?|null|Null|NULL|true|True|TRUE|false|False|FALSE|[-+]?(?:0|[1-9][0-9]{0,14})|[-+]?[0-9]{1,15}\.[0-9]{1,15}(?:[eE][-+][0-9]{1,2})?"
)
_SOME_BREAK = re.compile("[\x85\u2028\u2029]")  # ends a line in YAML 1.1 alone
_NUMBER = re.compile(r"0o[0-7]+|[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")


def read_front_matter(text: str, folder: str, where: str) -> dict[str, Any]:
    """Read what stands between the first two lines of `---`.

    Args:
        text: Text of the SKILL.md.
        folder: Name of the folder that it lies in.
        where: The file, for error texts.

    Returns:
        Every field as written; `name` and `description` are valid, the others are the host's to judge.

    Raises:
        RegistrationError: It is no front matter, not the same to every reader, or not that of a skill; or PyYAML is missing.
    """
    match = _FENCED.match(text)
    if match is None:
        raise RegistrationError(f"{where}: it must begin with front matter: a line of ---, YAML with name and description, a line of ---.")
    if _SOME_BREAK.search(match["yaml"]):
        raise RegistrationError(f"{where}: readers of YAML differ about U+0085, U+2028 and U+2029: take them out of the front matter.")
    fields = _load(match["yaml"], where)
    name, description = fields.get("name"), fields.get("description")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RegistrationError(
            f"{where}: name must be 1 to 64 of a-z, 0-9 and single hyphens between them, not {name!r}: rename the skill and its folder."
        )
    if name != folder:
        raise RegistrationError(f"{where}: its name is {name!r}, and its folder {folder!r}: they must be equal (SK-02), so rename one.")
    if not isinstance(description, str) or not 0 < len(description.strip()) <= len(description) <= MAX_DESCRIPTION:
        raise RegistrationError(
            f"{where}: description must say in 1 to {MAX_DESCRIPTION} characters what the skill does and when to use it."
        )
    return fields


def _load(text: str, where: str) -> dict[str, Any]:
    try:
        import yaml
    except ImportError:
        raise RegistrationError("Skills needs PyYAML, which is not installed: pip install 'callboard[skills]'.") from None
    try:
        node = yaml.compose(text, yaml.SafeLoader)
        _check(node, where, set())
        fields: Any = yaml.safe_load(text)
        encode(fields)
    except yaml.MarkedYAMLError as error:
        at = "" if error.problem_mark is None else f", line {error.problem_mark.line + 2}"
        raise RegistrationError(f"{where}{at}: this is no YAML: {error.problem or error.context}.") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise RegistrationError(f"{where}: its front matter can't be read: {error}.") from None
    if not isinstance(fields, dict):
        raise RegistrationError(f"{where}: its front matter must be fields such as `name: value`.")
    return fields


def _check(node: Any, where: str, seen: set[int]) -> None:
    """Refuse what is not JSON, and what readers take for different things."""
    if node is None:
        return
    at = f"{where}, line {node.start_mark.line + 2}"
    if id(node) in seen:
        raise RegistrationError(f"{at}: it repeats by an alias what stands elsewhere: write it out.")
    seen.add(id(node))
    kind = node.tag.removeprefix(_TAG)
    if node.id == "scalar":
        if not _is_plain_to_all(kind, node.value, quoted=node.style is not None):
            raise RegistrationError(f"{at}: readers of YAML differ about {node.value[:80]!r}: put it in quotes.")
    elif kind == "seq":
        for item in node.value:
            _check(item, where, seen)
    elif kind == "map":
        _check_fields(node, where, seen)
    else:
        raise RegistrationError(f"{at}: {node.tag} has no counterpart in JSON: write a list, fields or a text.")


def _check_fields(node: Any, where: str, seen: set[int]) -> None:
    keys = set()
    for key, value in node.value:
        _check(key, where, seen)
        at = f"{where}, line {key.start_mark.line + 2}"
        if key.tag != f"{_TAG}str":
            raise RegistrationError(f"{at}: names of fields must be texts: put it in quotes.")
        if key.value in keys:
            raise RegistrationError(f"{at}: {key.value!r} is there twice: remove one.")
        keys.add(key.value)
        _check(value, where, seen)


def _is_plain_to_all(kind: str, text: str, *, quoted: bool) -> bool:
    if quoted:
        return kind == "str"
    if kind == "str":
        return not _NUMBER.fullmatch(text)
    return kind in {"null", "bool", "int", "float"} and _SAME_VALUE.fullmatch(text) is not None

"""URI templates of RFC 6570: all four levels for expansion, and matching in linear time, which the RFC leaves open.

How `match` reads a URI:

* The template is cut where its query (`{?...}` or a literal `?`) and its fragment (`{#...}` or a literal `#`) begin; the URI is cut at its
  first `?` and `#` likewise, but only where the template has such a part. Each part is matched by itself.
* `{name}` takes one or more characters, none of `/ ? #` in the path, none of `& #` in the query. `{+name}` and `{#name}` take anything.
  `{.name}`, `{/name}`, `{;name}`, `{?name}`, `{&name}` may be absent as a whole, and `{/name}` takes one segment.
* A value ends at the first place where the text or operator that follows it in the template occurs. `{name}{.ext}` on `a.tar.gz` gives
  `a` and `tar.gz`. What follows the last expression that can hold a slash is found from the end, so `{+path}/{name}` splits at the last `/`.
* In an expression of several variables, or with `*`, the operator's separator always separates; values are given from left to right, and a
  `*` variable, last of its expression, takes the rest as a list. A single variable without `*` takes the text whole, commas included.
* `{?a,b}`, `{&a,b}` and `{;a,b}` read `name=value` pairs in any order; a name that the template does not have means no match. One `*`
  variable among them takes its own name repeated as a list, or every other name as a dict.
* `{name:3}` takes at most 3 characters, which start the value when the template has the variable in full too.
* Values are percent-decoded exactly once. A bad escape, or bytes that are not UTF-8, mean no match. Literals compare exactly.

No step is ever taken back, so time is linear in the URI. A template whose variables could swallow each other is refused when it is made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias
from urllib.parse import quote, unquote

__all__ = ["MAX_LENGTH", "UriTemplate", "UriTemplateError", "UriValue", "unescape"]

MAX_LENGTH = 65_536
"""Characters of the longest URI that a template is held against (SA33)."""

UriValue: TypeAlias = str | list[str] | dict[str, str]
"""What a variable of a URI matches: text, a list (`*`), or a dict (`{?rest*}`)."""

Expandable: TypeAlias = str | int | float | Sequence[str | int | float | None] | Mapping[str, str | int | float | None] | None
"""What a variable may be given: text, a number, a list, a dict; None, and an empty list or dict, are undefined."""

_RESERVED = ":/?#[]@!$&'()*+,;="
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]+")
_ESCAPES = re.compile(rb"(?:%[0-9A-Fa-f]{2})+")
_VARIABLE = r"(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2})"
_read_variable = re.compile(rf"({_VARIABLE}+(?:\.{_VARIABLE}+)*)(?:(\*)|:([1-9][0-9]{{0,3}}))?").fullmatch
_find_bad_literal = re.compile('[\\x00-\\x20\\x7f"<>\\\\^`|}\ud800-\udfff]|%(?![0-9A-Fa-f]{2})').search
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


class UriTemplateError(ValueError):
    """A URI template can't be read, or can't be matched without guessing.

    Attributes:
        template: The template.
        position: Where the trouble starts, as an index into the template.
    """

    def __init__(self, template: str, position: int, problem: str) -> None:
        super().__init__(f"URI template {template!r}, position {position}: {problem}")
        self.template = template
        self.position = position


class _Operator(NamedTuple):
    """A row of RFC 6570, appendix A."""

    first: str
    sep: str
    named: bool
    if_empty: str
    reserved: bool


_OPERATORS = {
    "": _Operator("", ",", False, "", False),
    "+": _Operator("", ",", False, "", True),
    "#": _Operator("#", ",", False, "", True),
    ".": _Operator(".", ".", False, "", False),
    "/": _Operator("/", "/", False, "", False),
    ";": _Operator(";", ";", True, "", False),
    "?": _Operator("?", "&", True, "=", False),
    "&": _Operator("&", "&", True, "=", False),
}


class _Variable(NamedTuple):
    name: str
    explode: bool
    # Most characters of `{name:n}`; 0 for no limit.
    prefix: int


class _Expression(NamedTuple):
    operator: str
    variables: tuple[_Variable, ...]
    source: str
    position: int


_Part: TypeAlias = str | _Expression


class UriTemplate:
    """A template, compiled once.

    Attributes:
        template: The text it was made from.
        variables: Names of its variables in order, each once.
    """

    __slots__ = ("_head", "_parts", "_zones", "template", "variables")

    def __init__(self, template: str, *, matching: bool = True) -> None:
        """Compile a template.

        Args:
            template: Text in the syntax of RFC 6570.
            matching: Whether `match` will be used. False accepts templates that can only be expanded, `{a}{b}` for example: what a client
                wants, who did not write the template.

        Raises:
            UriTemplateError: Bad syntax; or, for matching, variables that could swallow each other.
        """
        self.template = template
        self._parts = tuple(_parse(template))
        expressions = [part for part in self._parts if isinstance(part, _Expression)]
        self.variables = tuple(dict.fromkeys(variable.name for part in expressions for variable in part.variables))
        self._zones = _compile(template, self._parts) if matching else None
        self._head = self._parts[0].partition("?")[0].partition("#")[0] if self._parts and isinstance(self._parts[0], str) else ""

    def __repr__(self) -> str:
        return f"UriTemplate({self.template!r})"

    def expand(self, values: Mapping[str, Expandable]) -> str:
        """Write the URI for these values.

        Args:
            values: Value by name; a variable without one is undefined.

        Returns:
            The URI.

        Raises:
            ValueError: A list or dict for a variable with a prefix length, or text with a lone surrogate.
        """
        return "".join(part if isinstance(part, str) else _expand(part, values) for part in self._parts)

    def match(self, uri: str) -> dict[str, UriValue] | None:
        """Read the values out of a URI, in time linear in its length.

        Args:
            uri: Any text. Raw non-ASCII characters count as if they were percent-encoded.

        Returns:
            Value by name, without the variables that are absent; None when the URI does not match, or has more than `MAX_LENGTH` characters.

        Raises:
            ValueError: The template was made with `matching=False`.
        """
        if self._zones is None:
            raise ValueError(f"{self!r} was made with matching=False, so it can only be expanded")
        found = _Match()
        try:
            if len(uri) > MAX_LENGTH:
                return None
            if not uri.isascii():
                uri = _BEYOND_ASCII.sub(_escape, uri)
            if not uri.startswith(self._head) or _BAD_ESCAPE.search(uri):
                return None
            for zone, text in zip(self._zones, _cut(self._zones, uri), strict=True):
                if zone is not None and not _match_zone(zone, text, found):
                    return None
        except UnicodeError:
            return None
        return found.values if found.join_prefixes() else None


# Parsing ----------------------------------------------------------------------------------------------------------------------------------


def _parse(template: str) -> Iterator[_Part]:
    position = 0
    while position < len(template):
        start = template.find("{", position)
        literal = template[position:] if start < 0 else template[position:start]
        if bad := _find_bad_literal(literal):
            raise UriTemplateError(
                template, position + bad.start(), f"{bad[0]!r} can't stand in a URI: percent-encode it, or pair the braces"
            )
        if literal:
            yield _quote_reserved(literal)
        if start < 0:
            return
        end = template.find("}", start)
        if end < 0:
            raise UriTemplateError(template, start, "this '{' is never closed")
        yield _parse_expression(template, start, end)
        position = end + 1


def _parse_expression(template: str, start: int, end: int) -> _Expression:
    position = start + 1
    operator = template[position] if template[position] in _OPERATORS else ""
    if template[position] in "=,!@|":
        raise UriTemplateError(template, position, f"operator {template[position]!r} has no meaning yet: use one of + # . / ; ? & or none")
    position += len(operator)
    variables: list[_Variable] = []
    for text in template[position:end].split(","):
        found = _read_variable(text)
        if not found:
            problem = f"{text!r} is not a variable: letters, digits, '_' and inner dots, then nothing, '*' or ':' and a length up to 9999"
            raise UriTemplateError(template, position, problem)
        name, explode, prefix = found.groups()
        variables.append(_Variable(name, bool(explode), int(prefix or 0)))
        position += len(text) + 1
    return _Expression(operator, tuple(variables), template[start : end + 1], start)


# Expansion --------------------------------------------------------------------------------------------------------------------------------


def _quote(text: str) -> str:
    return quote(text, safe="")


def _quote_reserved(text: str) -> str:
    """Keep reserved characters and escapes that are there already (RFC 6570, section 3.2.3)."""
    return quote(_BAD_ESCAPE.sub("%25", text), safe=_RESERVED + "%")


def _expand(expression: _Expression, values: Mapping[str, Expandable]) -> str:
    operator = _OPERATORS[expression.operator]
    texts = [text for variable in expression.variables for text in _expand_variable(operator, variable, values.get(variable.name))]
    return operator.first + operator.sep.join(texts) if texts else ""


def _expand_variable(operator: _Operator, variable: _Variable, value: Expandable) -> list[str]:
    if value is None:
        return []
    encode = _quote_reserved if operator.reserved else _quote
    if isinstance(value, str | int | float):
        text = str(value)
        return [_name(operator, variable.name, encode(text[: variable.prefix or len(text)]))]
    if variable.prefix:
        raise ValueError(
            f"variable {variable.name!r} has a prefix length, which fits text alone: give it a string, not {type(value).__name__}"
        )
    if isinstance(value, Mapping):
        pairs = [(encode(key), encode(str(item))) for key, item in value.items() if item is not None]
        if variable.explode:
            return [_name(operator, key, item) if operator.named else f"{key}={item}" for key, item in pairs]
        items = [text for pair in pairs for text in pair]
    else:
        items = [encode(str(item)) for item in value if item is not None]
        if variable.explode:
            return [_name(operator, variable.name, item) for item in items]
    return [_name(operator, variable.name, ",".join(items))] if items else []


def _name(operator: _Operator, name: str, text: str) -> str:
    if not operator.named:
        return text
    return f"{name}={text}" if text else name + operator.if_empty


# Matching ---------------------------------------------------------------------------------------------------------------------------------


class _Area(NamedTuple):
    """One of the three parts of a URI, and what matching allows there.

    Attributes:
        name: For error messages.
        separator: What structures the area; `{name}` does not take it.
        barred: What would end the area; like the separator, only `{+name}` and `{#name}` take it.
        operators: Operators with a meaning here.
    """

    name: str
    separator: str
    barred: str
    operators: frozenset[str]


_Finder: TypeAlias = "Callable[[str], re.Match[str] | None]"

_AREAS = (
    _Area("path", "/", "?#", frozenset(("", "+", ".", "/", ";"))),
    _Area("query", "&", "#", frozenset(("", "+", "&"))),
    _Area("fragment", "#", "", frozenset(("", "+"))),
)
# What begins the query and the fragment, as a literal or as an operator: the index of its area.
_OPENERS = {"?": 1, "#": 2}
# `{/a}{/b}` expands as `{/a,b}` does, so it is matched as that.
_SAME = frozenset(("..", "//", ";;", "&&", "?&"))
# These may hold the separator of their area.
_WIDE = frozenset(("+", "#", "/"))


class _Step(NamedTuple):
    """An expression, ready to be matched.

    Attributes:
        prefix: Character it begins with when it is there at all; empty when it has none, or its area was cut there.
        separator: What separates its values; empty for one value that is the whole text.
        variables: Its variables.
        names: Variable by name in the URI; None when the operator writes no names.
        rest: `*` variable that takes unknown names; None to refuse them.
        explodes: Whether one of its variables takes a name again and again.
        find_forbidden: Finds what the text may not hold; None for anything goes.
        least: Fewest characters.
        stops: What can follow it: the text ends at the first of them.
        open_end: Whether it may also reach to the end.
        back: Separators in what follows the last wide expression; None for every other expression.
    """

    prefix: str
    separator: str
    variables: tuple[_Variable, ...]
    names: dict[str, _Variable] | None
    rest: str | None
    explodes: bool
    find_forbidden: _Finder | None
    least: int
    stops: tuple[str, ...]
    open_end: bool
    back: int | None


class _Zone(NamedTuple):
    """An area of one template: what it consists of, in order; the literal it ends with; and whether the URI must have it."""

    area: _Area
    steps: tuple[str | _Step, ...]
    suffix: str
    required: bool


_Zones: TypeAlias = "tuple[_Zone | None, _Zone | None, _Zone | None]"


def _compile(template: str, parts: tuple[_Part, ...]) -> _Zones:
    contents: list[list[_Part] | None] = [[], None, None]
    required = [True, False, False]
    index = 0
    tokens = [token for part in parts for token in (re.split("([?#])", part) if isinstance(part, str) else (part,)) if token]
    for token in tokens:
        opened = _OPENERS.get(token if isinstance(token, str) else token.operator, 0)
        if opened > index:
            index = opened
            # An operator may write its `?` or not; a literal always does, and says nothing more.
            required[index] = isinstance(token, str)
            contents[index] = [] if isinstance(token, str) else [token]
        else:
            contents[index] = [*(contents[index] or ()), token]
    path, query, fragment = (
        None if content is None else _compile_zone(template, area, _merge(content), required=need)
        for area, content, need in zip(_AREAS, contents, required, strict=True)
    )
    return path, query, fragment


def _merge(parts: Iterable[_Part]) -> list[_Part]:
    merged: list[_Part] = []
    for part in parts:
        last = merged[-1] if merged else None
        if isinstance(part, str) and isinstance(last, str):
            merged[-1] = last + part
        elif isinstance(part, _Expression) and isinstance(last, _Expression) and last.operator + part.operator in _SAME:
            merged[-1] = last._replace(variables=last.variables + part.variables, source=last.source + part.source)
        else:
            merged.append(part)
    return merged


def _compile_zone(template: str, area: _Area, parts: list[_Part], *, required: bool) -> _Zone:
    opener = None if required else parts[0]
    for part in parts:
        if isinstance(part, _Expression):
            problem = _judge(area, part, opens=part is opener)
            if problem:
                raise UriTemplateError(template, part.position, problem)
    for left, right in pairwise(parts):
        if isinstance(left, _Expression) and (problem := _judge_neighbours(left, right)):
            raise UriTemplateError(template, left.position, problem)
    required = required or len(parts) > 1
    suffix = parts[-1] if parts and isinstance(parts[-1], str) else ""
    parts = parts[: len(parts) - bool(suffix)]
    wide = max((at for at, part in enumerate(parts) if isinstance(part, _Expression) and part.operator in _WIDE), default=-1)
    steps = tuple(
        part if isinstance(part, str) else _compile_step(area, part, parts[at + 1 :], last_wide=at == wide) for at, part in enumerate(parts)
    )
    return _Zone(area, steps, suffix, required)


def _judge(area: _Area, expression: _Expression, *, opens: bool) -> str | None:
    """What keeps an expression from being matched in this area; None for nothing."""
    source, variables = expression.source, expression.variables
    if not opens and expression.operator not in area.operators:
        known = " ".join(f"{{{operator}name}}" for operator in sorted(area.operators))
        return f"{source} can't be matched at this place, the {area.name}: use one of {known}"
    if _OPERATORS[expression.operator].named:
        names = [variable.name for variable in variables]
        return f"{source} has a name twice: give each once" if len(set(names)) < len(names) else None
    if any(variable.explode for variable in variables[:-1]):
        return f"in {source} a '*' variable takes all values that are left: put it last"
    return None


def _judge_neighbours(left: _Expression, right: _Part) -> str | None:
    """Why the place where an expression ends can't be told from what follows; None when it can."""
    if left.operator in {"?", "&"}:
        return f"{left.source} takes the rest of the query: put what follows it in front"
    if isinstance(right, _Expression) and (left.operator in _WIDE or right.operator in {"", "+"}):
        return f"{left.source} and {right.source} could swallow each other: put a literal between them, or join them to one variable"
    return None


def _compile_step(area: _Area, expression: _Expression, after: list[_Part], *, last_wide: bool) -> _Step:
    operator, variables = expression.operator, expression.variables
    row = _OPERATORS[operator]
    exploded = [variable.name for variable in variables if variable.explode]
    stops, open_end = _stops(after)
    forbidden = "" if operator in {"+", "#"} else area.barred if operator in {"/", "?", "&"} else area.separator + area.barred
    return _Step(
        prefix=operator if operator in {".", "/", ";", "&"} else "",
        separator=row.sep if row.named or exploded or len(variables) > 1 or operator == "/" else "",
        variables=variables,
        names={unquote(variable.name): variable for variable in variables} if row.named else None,
        rest=exploded[0] if len(exploded) == 1 else None,
        explodes=bool(exploded),
        find_forbidden=re.compile(f"[{forbidden}]").search if forbidden else None,
        least=1 if operator in {"", "+"} else 0,
        stops=stops,
        open_end=open_end,
        back=sum(part.count(area.separator) for part in after if isinstance(part, str)) if last_wide else None,
    )


def _stops(after: list[_Part]) -> tuple[tuple[str, ...], bool]:
    """What can follow an expression: literals and operators up to the first that must be there; and whether nothing may."""
    stops: list[str] = []
    for part in after:
        if isinstance(part, str):
            return (*stops, part), False
        stops.append(part.operator)
    return tuple(stops), True


def _cut(zones: _Zones, uri: str) -> tuple[str, str | None, str | None]:
    _, query, fragment = zones
    query_text = fragment_text = None
    if fragment is not None:
        uri, mark, text = uri.partition("#")
        fragment_text = text if mark else None
    if query is not None:
        uri, mark, text = uri.partition("?")
        query_text = text if mark else None
    return uri, query_text, fragment_text


def _match_zone(zone: _Zone, text: str | None, match: _Match) -> bool:
    if text is None:
        return not zone.required
    if not text.endswith(zone.suffix):
        return False
    position, end = 0, len(text) - len(zone.suffix)
    for step in zone.steps:
        if isinstance(step, str):
            if not text.startswith(step, position, end):
                return False
            position += len(step)
        else:
            stop = _find_stop(zone.area, step, text, position, end)
            if stop < 0 or not match.take(step, text[position:stop]):
                return False
            position = stop
    return position == end


def _find_stop(area: _Area, step: _Step, text: str, position: int, end: int) -> int:
    """Where the text of an expression ends; -1 when what must follow it does not."""
    start = position + step.least
    if step.back is not None:
        edge = end
        for _ in range(step.back + 1):
            edge = text.rfind(area.separator, position, max(edge, position))
        start = max(start, edge + 1, *(text.rfind(character, position, end) + 1 for character in area.barred))
    found = [at for stop in step.stops if (at := text.find(stop, start, end)) >= 0]
    if found:
        return min(found)
    return end if step.open_end else -1


class _Match:
    """The values found so far."""

    __slots__ = ("prefixes", "values")

    def __init__(self) -> None:
        self.values: dict[str, UriValue] = {}
        self.prefixes: list[tuple[int, str, str]] = []

    def take(self, step: _Step, text: str) -> bool:
        if step.prefix:
            if not text:
                return True
            if not text.startswith(step.prefix):
                return False
            text = text[1:]
        if len(text) < step.least or (step.find_forbidden is not None and step.find_forbidden(text)):
            return False
        return self._take_list(step, text) if step.names is None else self._take_pairs(step, step.names, text)

    def _take_list(self, step: _Step, text: str) -> bool:
        texts = [_decode(item) for item in (text.split(step.separator) if step.separator else (text,))]
        used = 0
        for variable in step.variables:
            if used == len(texts):
                break
            if variable.explode:
                return self._bind(variable.name, texts[used:])
            if not self._bind_text(variable, texts[used]):
                return False
            used += 1
        return used == len(texts)

    def _take_pairs(self, step: _Step, names: dict[str, _Variable], text: str) -> bool:
        if step.rest is None and not step.explodes and text.count(step.separator) >= len(names):
            return False  # a name is twice, or unknown: so many need not be read
        decode = _decode if "%" in text else str
        collected: dict[str, UriValue] = {}
        for pair in text.split(step.separator) if text else ():
            raw_name, _, raw = pair.partition("=")
            name, value = decode(raw_name), decode(raw)
            variable = names.get(name)
            if variable is None:
                others = collected.setdefault(step.rest, {}) if step.rest is not None and name else None
                if not isinstance(others, dict) or name in others:
                    return False
                others[name] = value
            elif variable.explode:
                items = collected.setdefault(variable.name, [])
                if not isinstance(items, list):
                    return False
                items.append(value)
            elif not self._bind_text(variable, value):
                return False
        return all(self._bind(name, value) for name, value in collected.items())

    def _bind_text(self, variable: _Variable, text: str) -> bool:
        if not variable.prefix:
            return self._bind(variable.name, text)
        self.prefixes.append((variable.prefix, variable.name, text))
        return len(text) <= variable.prefix

    def _bind(self, name: str, value: UriValue) -> bool:
        # A variable that stands twice in a template has one value.
        return self.values.setdefault(name, value) == value

    def join_prefixes(self) -> bool:
        for length, name, text in sorted(self.prefixes, reverse=True):
            full = self.values.setdefault(name, text)
            if not isinstance(full, str) or full[:length] != text:
                return False
        return True


def _decode(text: str) -> str:
    return unescape(text).decode() if "%" in text else text


def unescape(text: str) -> bytes:
    """The bytes that a text stands for: each escape is read once, and whole runs of them at once. What is no escape stays as it is."""
    return _ESCAPES.sub(_read_escapes, text.encode())


def _read_escapes(found: re.Match[bytes]) -> bytes:
    return bytes.fromhex(found[0].replace(b"%", b"").decode("ascii"))


def _escape(found: re.Match[str]) -> str:
    return f"%{found[0].encode().hex('%').upper()}"

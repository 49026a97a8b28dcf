"""Values of a URI that would lead out of the place they are for: what a resource's function would meet if nobody looked."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterator, Mapping

from callboard.core.uri import UriValue, unescape

__all__ = ["check_traversal"]

_BETWEEN = "\n"
# What only an absolute path begins with, a `..` segment, a backslash or NUL; of several parts, lines here, each must be free of that.
_leads_out = re.compile(r"(?:\A|\n)(?:/|[A-Za-z]:)|(?:\A|[/\n])\.\.(?:[/\n]|\Z)|[\\\0]").search
_split = re.compile(r"[/\n]").split
# What nearly no value has in it.
_find_strange = re.compile(r"[^A-Za-z0-9 \n_~!$&'()*+,;=@./-]").search
# Names of devices, whatever their extension, in every folder of Windows.
_is_device = re.compile(
    r"(?:con|prn|aux|nul|conin\$|conout\$|(?:com|lpt)[0-9\xb9\xb2\xb3])(?: *\..*)?", re.IGNORECASE | re.DOTALL
).fullmatch
# How often a value may turn out to be escaped once more.
_MAX_DECODINGS = 4


def check_traversal(values: Mapping[str, UriValue], *, windows: bool = sys.platform == "win32") -> str | None:
    r"""Find a value that could lead out of the place a template points at (SA32).

    Refused are: a `..` segment; a backslash; NUL; a leading `/` (so `//host` too); a leading drive letter (`C:`, `C:\`, `C:name`). Of a
    list each item is looked at, and what it is joined by slashes; of a dict keys and values. What begins a line counts as the beginning of
    a value. `a..b` is fine. The same goes for what a value would become if somebody down the line decoded it again, or made plain
    characters of wide ones: `match` decodes once and hands out `%2e%2e%2f` as text, but no name is spelled like that. Escapes that are no
    UTF-8 are refused where they are still escaped: `%c0%ae` is a dot to some readers. On Windows a colon, a segment that is a device
    (`NUL`, `com1.txt`), and one that ends with a dot or blank are refused, too.

    Args:
        values: What `match` gave.
        windows: Whether Windows' rules for file names count.

    Returns:
        Name of the first variable with an unsafe value; None when all are safe.
    """
    for name, value in values.items():
        if isinstance(value, str):
            text = value
        elif isinstance(value, list):
            text = _BETWEEN.join(value if len(value) < 2 or value[0] else ("/", *value))
        else:
            text = _BETWEEN.join((*value, *value.values()))
        # Thousands of parts are looked at as one text: it takes no longer than one of their size.
        if not _is_safe(text, windows=windows):
            return name
    return None


def _is_safe(text: str, *, windows: bool) -> bool:
    if not (windows or ".." in text or f"{_BETWEEN}/" in text or text.startswith("/") or _find_strange(text)):
        return True
    return not any(_leads_out(reading) or (windows and _is_odd(reading)) for reading in _readings(text))


def _is_odd(text: str) -> bool:
    """Whether Windows takes a name for something else."""
    return ":" in text or any(segment.rstrip(". ") != segment or _is_device(segment) for segment in _split(text))


def _readings(text: str) -> Iterator[str]:
    """A text, and what others may make of it; a `..` for what goes on and on, or that only careless readers can read."""
    yield text
    text = _plain(text)
    for _ in range(_MAX_DECODINGS):
        yield text
        if "%" not in text or (again := unescape(text)) == text.encode():
            return
        try:
            text = _plain(again.decode())
        except UnicodeDecodeError:
            break
    yield ".."


def _plain(text: str) -> str:
    """A text with plain characters in place of wide ones, which some file systems and libraries take for the same."""
    return text if text.isascii() else unicodedata.normalize("NFKC", text)

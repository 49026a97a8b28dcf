"""Makes new inputs out of known ones: bytes, words of a grammar, and trees of JSON, all by a seed.

Whoever fuzzes by bytes alone spends nearly all time before the first closing brace. So an input that has a JSON object in it is mostly
changed as a tree, and what is put in anywhere is mostly a word that some parser knows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

__all__ = ["COMMON", "Mutator"]

COMMON: Final = (
    *(
        b"\x00",
        b"\r",
        b"\n",
        b"\r\n",
        b"\t",
        b" ",
        b'"',
        b"\\",
        b"{",
        b"}",
        b"[",
        b"]",
        b":",
        b",",
        b"%",
        b"%00",
        b"%2e%2e%2f",
        b"..",
        b"=",
    ),
    *(
        b"\xff",
        b"\xc3\xa9",
        b"\xe2\x80\xa8",
        b"\xed\xa0\x80",
        b"\xf0\x9f\x98\x80",
        b"\xef\xbb\xbf",
        b"\\ud800",
        b"\\u0000",
        b"\\ud83d\\ude00",
    ),
    *(b"null", b"true", b"1e999", b"-0", b"1.0", b"NaN", b"18446744073709551616", b"9" * 400),
)
VALUES: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**53, -(2**63), 2**64, 10**400, 0.5, 1.0, -0.0, 1e308),
    *("", "a", "\0", "é", "\u2028", "😀", "\ud800", "a" * 300, "../x", "%2e%2e/x", "1", "true", "file:///etc/passwd", "=?base64?YQ==?="),
    *([], {}, [[]], {"": {}}, [None], {"$ref": "#"}, {"_meta": {}}, {"name": "a"}, ["a"] * 100),
)
DEEP: Final = (3, 100, 127, 130, 300)
_read_from = json.JSONDecoder().raw_decode


class Mutator:
    """Makes inputs.

    Args:
        random: Where all chance comes from.
        words: What the grammar knows.
        largest: Bytes of the longest input.
    """

    def __init__(self, random: Random, words: Sequence[bytes] = (), *, largest: int = 65_536) -> None:
        self._random = random
        self._words = (*COMMON, *words, *words)
        self._texts = tuple(word.decode("utf-8", "replace") for word in words) or ("a",)
        self._largest = largest
        self._edits: tuple[Callable[[bytes, bytes], bytes], ...] = (
            *(self._put_word, self._put_word, self._put_word, self._set_byte, self._flip_bit, self._cut, self._cut, self._repeat),
            *(self._cross, self._cross, self._shuffle, self._digits),
        )

    def make(self, known: Sequence[bytes]) -> bytes:
        """A new input.

        Args:
            known: Inputs to start from; at least one.
        """
        random = self._random
        data, other = random.choice(known), random.choice(known)
        chance = random.random()
        if chance < 0.5 and (changed := self._change_tree(data)) is not None:
            data = changed
            if chance < 0.35:
                return data[: self._largest]
        for _ in range(random.choice((1, 1, 1, 2, 3, 5))):
            data = random.choice(self._edits)(data, other)
        if random.random() < 0.0005:
            data = self._swell(data)
        return data[: self._largest]

    # Bytes --------------------------------------------------------------------------------------------------------------------------------

    def _place(self, data: bytes) -> int:
        return self._random.randint(0, len(data))

    def _span(self, data: bytes) -> tuple[int, int]:
        start = self._place(data)
        return start, min(len(data), start + self._random.choice((1, 1, 2, 4, 8, 16, 64)))

    def _put_word(self, data: bytes, _: bytes) -> bytes:
        start, end = self._span(data)
        if self._random.random() < 0.5:
            end = start
        return data[:start] + self._random.choice(self._words) + data[end:]

    def _set_byte(self, data: bytes, _: bytes) -> bytes:
        at = self._place(data)
        return data[:at] + bytes((self._random.randrange(256),)) + data[at + 1 :]

    def _flip_bit(self, data: bytes, _: bytes) -> bytes:
        if not data:
            return b"\0"
        at = self._random.randrange(len(data))
        return data[:at] + bytes((data[at] ^ (1 << self._random.randrange(8)),)) + data[at + 1 :]

    def _cut(self, data: bytes, _: bytes) -> bytes:
        start, end = self._span(data)
        return data[:start] + data[end:] if self._random.random() < 0.9 else data[:start]

    def _repeat(self, data: bytes, _: bytes) -> bytes:
        start, end = self._span(data)
        return data[:start] + data[start:end] * self._random.choice((2, 2, 2, 3, 3, 9)) + data[end:]

    def _cross(self, data: bytes, other: bytes) -> bytes:
        start, end = self._span(data)
        first, last = sorted((self._place(other), self._place(other)))
        return data[:start] + other[first:last] + data[end:]

    def _shuffle(self, data: bytes, _: bytes) -> bytes:
        """Two pieces in each other's place."""
        a, b, c = sorted((self._place(data), self._place(data), self._place(data)))
        return data[:a] + data[b:c] + data[a:b] + data[c:]

    def _digits(self, data: bytes, _: bytes) -> bytes:
        """Another number where there is one."""
        places = [at for at, byte in enumerate(data[:4096]) if 0x30 <= byte <= 0x39]
        if not places:
            return data
        at = self._random.choice(places)
        number = self._random.choice((b"0", b"-1", b"1", b"255", b"65536", b"2147483648", b"9007199254740993", b"1e3", b"00", b"9" * 30))
        return data[:at] + number + data[at + 1 :]

    def _swell(self, data: bytes) -> bytes:
        """A piece so often that whatever takes more than linear time takes very long."""
        start, end = self._span(data)
        piece = data[start:end] or b"["
        return data[:start] + piece * (self._largest // len(piece)) + data[end:]

    # Trees --------------------------------------------------------------------------------------------------------------------------------

    def _change_tree(self, data: bytes) -> bytes | None:
        """The input with one of its JSON objects changed; None where there is none."""
        starts = [at for at in (data.find(b"{"), data.rfind(b'{"jsonrpc')) if at >= 0]
        if not starts:
            return None
        start = self._random.choice(starts)
        try:
            text = data[start:].decode()
            value, end = _read_from(text)
        except (ValueError, RecursionError):
            return None
        for _ in range(self._random.choice((1, 1, 2, 3))):
            value = self._change(value)
        try:
            made = self._write(value)
        except (ValueError, RecursionError):
            return None
        return data[:start] + made + text[end:].encode()

    def _write(self, value: Any) -> bytes:
        chance = self._random.random()
        separators = (",", ":") if chance < 0.8 else (" , ", "\t:\n ")
        text = json.dumps(value, ensure_ascii=chance < 0.5, separators=separators)
        return text.encode("utf-8", "surrogatepass" if chance < 0.02 else "replace")

    def _change(self, value: Any) -> Any:
        """A tree with one place changed."""
        random = self._random
        if isinstance(value, dict) and value and random.random() < 0.85:
            return self._change_dict(value)
        if isinstance(value, list) and value and random.random() < 0.8:
            at = random.randrange(len(value))
            if random.random() < 0.15:
                return value[:at] + value[at + 1 :]
            return [*value[:at], self._change(value[at]), *value[at + random.randint(0, 1) :]]
        return self._other(value)

    def _change_dict(self, value: dict[str, Any]) -> dict[str, Any]:
        random = self._random
        key = random.choice(list(value))
        chance = random.random()
        if chance < 0.1:
            return {name: each for name, each in value.items() if name != key}
        if chance < 0.2:
            return {**value, random.choice(self._texts): self._other(value[key])}
        if chance < 0.25:
            return {(random.choice(self._texts) if name == key else name): each for name, each in value.items()}
        return {**value, key: self._change(value[key])}

    def _other(self, value: Any) -> Any:
        """Something in place of a value."""
        random = self._random
        chance = random.random()
        if chance < 0.35:
            return random.choice(self._texts)
        if chance < 0.45:
            return {random.choice(self._texts): value}
        if chance < 0.5:
            return [value] * random.choice((1, 2, 30))
        if chance < 0.55:
            for _ in range(random.choice(DEEP)):
                value = [value] if random.random() < 0.5 else {"a": value}
            return value
        if chance < 0.65 and isinstance(value, str):
            at = random.randint(0, len(value))
            return value[:at] + random.choice(self._texts) + value[at:]
        if chance < 0.7 and type(value) is int:
            return value + random.choice((-1, 1, 2**53))
        return random.choice(VALUES)

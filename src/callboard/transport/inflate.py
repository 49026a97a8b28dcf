"""Compressed bodies of requests, where a server takes them: never more is unpacked than a body may have (SA09)."""

from __future__ import annotations

import zlib

from callboard.errors import Fail, Reason

__all__ = ["inflate"]

# wbits of zlib: a gzip header; for deflate, a zlib header (RFC 9110 section 8.4.1.2) or, as some senders have it, none.
_GZIP, _ZLIB, _BARE = 31, 15, -15
# A gzip body may be several files one after another; so many and no more.
MAX_MEMBERS = 16


def inflate(body: bytes, coding: str, limit: int) -> bytes | Fail:
    """Unpack a body.

    The work is bounded by the limit, whatever was sent: nothing is unpacked beyond it, so a megabyte that would be a gigabyte costs no more
    than a body of `limit` bytes.

    Args:
        body: As it came.
        coding: `gzip` or `deflate`.
        limit: Bytes that the unpacked body may have.

    Returns:
        The body; a `Fail` (413, 400) for one that is too large, broken off, damaged, or followed by something else.
    """
    unpacked = bytearray()
    for _ in range(MAX_MEMBERS):
        wbits = _GZIP if coding == "gzip" else _ZLIB if _has_zlib_header(body) else _BARE
        unpacker = zlib.decompressobj(wbits)
        try:
            unpacked += unpacker.decompress(body, limit + 1 - len(unpacked))
        except zlib.error:
            return _damaged(coding)
        if len(unpacked) > limit:
            return Fail(Reason.BODY_TOO_LARGE, f"The body has more than {limit} bytes once it is unpacked (max_body).")
        if not unpacker.eof:
            return _damaged(coding)
        body = unpacker.unused_data
        if not body:
            return bytes(unpacked)
        if coding != "gzip":
            break
    return _damaged(coding)


def _has_zlib_header(body: bytes) -> bool:
    # RFC 1950 section 2.2
    return len(body) > 1 and body[0] & 0x0F == 8 and (body[0] << 8 | body[1]) % 31 == 0


def _damaged(coding: str) -> Fail:
    return Fail(Reason.PARSE, f"The body is no {coding} data, or not all of it: it must be what Content-Encoding says.")

"""Compressed bodies: what they hold, and never more than a body may have."""

import gzip
import tracemalloc
import zlib

import pytest

from callboard.errors import Fail, Reason
from callboard.transport.inflate import MAX_MEMBERS, inflate

TEXT = b'{"jsonrpc":"2.0"}' * 100
LIMIT = 4096


def deflate(data: bytes, wbits: int) -> bytes:
    """Compressed with a header of that kind."""
    packer = zlib.compressobj(9, zlib.DEFLATED, wbits)
    return packer.compress(data) + packer.flush()


def refusal(body: bytes, coding: str = "gzip", limit: int = LIMIT) -> Reason:
    """Why a body is refused."""
    found = inflate(body, coding, limit)
    assert isinstance(found, Fail)
    return found.reason


@pytest.mark.parametrize(
    ("body", "coding"),
    [
        pytest.param(gzip.compress(TEXT), "gzip", id="gzip"),
        pytest.param(gzip.compress(TEXT[:700]) + gzip.compress(TEXT[700:]), "gzip", id="two members"),
        pytest.param(zlib.compress(TEXT), "deflate", id="zlib"),
        pytest.param(deflate(TEXT, -15), "deflate", id="bare deflate"),
    ],
)
def test_a_body_is_unpacked(body: bytes, coding: str) -> None:
    # SA09
    assert inflate(body, coding, LIMIT) == TEXT


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_it_fits_up_to_the_limit(coding: str) -> None:
    # SA09: n-1, n, n+1
    for size, fits in ((LIMIT - 1, True), (LIMIT, True), (LIMIT + 1, False)):
        body = gzip.compress(bytes(size)) if coding == "gzip" else zlib.compress(bytes(size))
        if fits:
            assert inflate(body, coding, LIMIT) == bytes(size)
        else:
            assert refusal(body, coding) is Reason.BODY_TOO_LARGE
    assert inflate(gzip.compress(b""), "gzip", 1) == b""


@pytest.mark.parametrize("members", [1, 8])
def test_a_bomb_costs_no_more_than_the_limit(members: int) -> None:
    # SA09: 64 MiB in 64 KiB; several members share one limit
    bomb = gzip.compress(bytes(64 * 2**20 // members)) * members
    limit = 2**20
    tracemalloc.start()
    assert refusal(bomb, limit=limit) is Reason.BODY_TOO_LARGE
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * limit + len(bomb)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        TEXT,
        gzip.compress(TEXT)[:-1],
        gzip.compress(TEXT)[:20],
        gzip.compress(TEXT) + b"x",
        gzip.compress(TEXT)[:-8] + bytes(8),
        zlib.compress(TEXT),
        gzip.compress(b"") * (MAX_MEMBERS + 1),
    ],
)
def test_what_is_damaged_is_refused(body: bytes) -> None:
    assert refusal(body) is Reason.PARSE


@pytest.mark.parametrize("body", [b"", zlib.compress(TEXT)[:-1], zlib.compress(TEXT) + b"x", zlib.compress(TEXT) * 2, gzip.compress(TEXT)])
def test_what_is_no_deflate_is_refused(body: bytes) -> None:
    assert refusal(body, "deflate") is Reason.PARSE

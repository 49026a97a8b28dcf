"""Descriptors of every kind on an event loop that none of them may block."""

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from unit.transport.lines import LIMIT

from callboard.transport.descriptor import CHUNK, Sink, Source, ThreadSink, open_sink

MIB = 1024 * 1024


class Ends:
    """Both ends of a pipe."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        self._open = {self.reading, self.writing}

    def close(self, fd: int) -> None:
        """Close one end."""
        self._open.remove(fd)
        os.close(fd)

    def close_all(self) -> None:
        """Close what is still open."""
        for fd in list(self._open):
            self.close(fd)


@pytest.fixture
def ends() -> Iterator[Ends]:
    both = Ends()
    yield both
    both.close_all()


class Collected:
    """What a source handed over."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.over = asyncio.Event()

    def take(self, data: bytes) -> None:
        self.pieces.append(data)
        if not data:
            self.over.set()

    async def until_over(self) -> bytes:
        await asyncio.wait_for(self.over.wait(), LIMIT)
        return b"".join(self.pieces)


async def test_a_pipe_is_read_to_its_end(ends: Ends) -> None:
    got = Collected()
    Source(ends.reading, got.take).resume()
    os.write(ends.writing, b"one")
    ends.close(ends.writing)
    assert await got.until_over() == b"one"
    assert got.pieces.count(b"") == 1


async def test_a_paused_source_leaves_the_bytes_where_they_are(ends: Ends) -> None:
    got = Collected()
    source = Source(ends.reading, got.take)
    source.resume()
    source.pause()
    os.write(ends.writing, b"one")
    for _ in range(5):
        await asyncio.sleep(0)
    assert got.pieces == []
    source.resume()
    source.resume()
    ends.close(ends.writing)
    assert await got.until_over() == b"one"
    source.resume()
    source.pause()


async def test_a_file_is_read_by_a_thread_piece_by_piece(tmp_path: Path) -> None:
    """epoll takes no files."""
    data = os.urandom(3 * CHUNK + 7)
    path = tmp_path / "data"
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    got = Collected()

    def take_one_at_a_time(piece: bytes) -> None:
        got.take(piece)
        source.pause()
        asyncio.get_running_loop().call_soon(source.resume)

    source = Source(fd, take_one_at_a_time)
    source.resume()
    assert await got.until_over() == data
    assert [len(piece) for piece in got.pieces] == [CHUNK, CHUNK, CHUNK, 7, 0]
    os.close(fd)


async def test_a_paused_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"x" * 2 * CHUNK)
    fd = os.open(path, os.O_RDONLY)
    got = Collected()
    first = asyncio.Event()

    def take(piece: bytes) -> None:
        got.take(piece)
        if not first.is_set():
            source.pause()
            first.set()

    source = Source(fd, take)
    source.resume()
    await asyncio.wait_for(first.wait(), LIMIT)
    await asyncio.to_thread(os.fstat, fd)
    assert os.lseek(fd, 0, os.SEEK_CUR) == CHUNK
    assert len(got.pieces) == 1
    source.resume()
    assert len(await got.until_over()) == 2 * CHUNK
    os.close(fd)


def drain(fd: int, size: int) -> bytes:
    """Read until so many bytes have come, on a thread."""
    data = b""
    while len(data) < size:
        data += os.read(fd, MIB)
    return data


@pytest.mark.parametrize("kind", [Sink, ThreadSink])
async def test_lines_are_written_whole_and_in_order(kind: Any, ends: Ends) -> None:
    sink = kind(ends.writing, pytest.fail)
    for lines in ([b"one"], [b"two", b"three"]):
        if (waiting := sink.write(lines)) is not None:
            await asyncio.wait_for(waiting, LIMIT)
    assert os.read(ends.reading, 100) == b"one\ntwo\nthree\n"
    assert sink.open


@pytest.mark.parametrize("kind", [Sink, ThreadSink])
async def test_a_full_pipe_does_not_block_the_loop(kind: Any, ends: Ends) -> None:
    sink = kind(ends.writing, pytest.fail)
    line = os.urandom(MIB).replace(b"\n", b"")
    waiting = asyncio.ensure_future(sink.write([line]))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not waiting.done(), "nobody reads, and we are still here"
    assert await asyncio.to_thread(drain, ends.reading, len(line) + 1) == line + b"\n"
    await asyncio.wait_for(waiting, LIMIT)
    assert os.get_blocking(ends.writing), "a flag of the open file, which others share"


async def test_a_socket_is_written_without_blocking() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sink = open_sink(ours.fileno(), lambda: pytest.fail("lost"))
        line = b"x" * (4 * MIB)
        written = sink.write([line])
        assert written is not None
        waiting = asyncio.ensure_future(written)
        await asyncio.sleep(0)
        assert not waiting.done()
        assert await asyncio.to_thread(drain, theirs.fileno(), len(line) + 1) == line + b"\n"
        await asyncio.wait_for(waiting, LIMIT)


@pytest.mark.parametrize("kind", [Sink, ThreadSink])
async def test_a_reader_that_goes_away_is_told_once(kind: Any, ends: Ends) -> None:
    lost: list[None] = []
    gone = asyncio.Event()

    def lose() -> None:
        lost.append(None)
        gone.set()

    sink = kind(ends.writing, lose)
    ends.close(ends.reading)
    for _ in range(3):
        if (waiting := sink.write([b"anybody there?"])) is not None:
            await asyncio.wait_for(waiting, LIMIT)
    await asyncio.wait_for(gone.wait(), LIMIT)
    assert lost == [None]
    assert not sink.open


async def test_a_reader_that_goes_away_in_the_middle_frees_the_writer(ends: Ends) -> None:
    lost = asyncio.Event()
    sink = Sink(ends.writing, lost.set)
    waiting = sink.write([b"x" * MIB])
    assert waiting is not None
    ends.close(ends.reading)
    await asyncio.wait_for(waiting, LIMIT)
    assert lost.is_set()


async def test_a_sink_knows_that_nobody_reads_before_it_writes(ends: Ends) -> None:
    sink = Sink(ends.writing, pytest.fail)
    assert sink.open
    ends.close(ends.reading)
    assert not sink.open

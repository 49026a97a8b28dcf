"""Sessions that outlive their workers: `callboard run --workers 2 --store redis://...`, reloaded and told to stop."""

import asyncio
import signal
import sys
import time
from pathlib import Path

from e2e.drain_crowd import LEGACY, Line, in_session, open_session
from e2e.serving import free_port, process, wait_until_listening
from redis_server import RedisServer

LIMIT = 60.0
RUN = [sys.executable, "-m", "callboard", "run", "drain_program.py:app", "--workers", "2"]


async def call_all(port: int, sessions: list[str]) -> set[int]:
    """Call in each session, over a new connection; the workers that answered."""
    lines = [await Line.ask(port, "POST", *in_session(each, "tools/call", name="who", arguments={})) for each in sessions]
    answers = [await line.answer() for line in lines]
    assert all("result" in answer for answer in answers), answers
    return {int(answer["result"]["content"][0]["text"]) for answer in answers}


async def get_all(port: int, sessions: list[str]) -> list[Line]:
    """A GET stream of each session."""
    headers = {"accept": "text/event-stream", "mcp-protocol-version": LEGACY}
    lines = [await Line.ask(port, "GET", {**headers, "mcp-session-id": each}) for each in sessions]
    assert [await line.head() for line in lines] == [200] * len(lines)
    return lines


async def until_said(log: Path, text: str, times: int = 1) -> None:
    """Wait for a line of the log."""
    while log.read_text().count(text) < times:  # noqa: ASYNC110, ASYNC240 - a file has no event, and is small
        await asyncio.sleep(0.02)


async def test_a_reload_takes_no_session_and_the_end_ends_streams(redis_server: RedisServer, tmp_path: Path) -> None:
    """Calls go on in every session while both workers are replaced; told to stop, streams end and the process ends with 0. # SA39, A40"""
    port, log = free_port(), tmp_path / "log"
    with process([*RUN, "--port", str(port), "--store", redis_server.url, "--grace", "20"], log) as started:
        wait_until_listening(started, port, log)
        async with asyncio.timeout(LIMIT):
            await until_said(log, "serves MCP at", 2)
            sessions = [await open_session(port) for _ in range(10)]
            before = await call_all(port, sessions)
            started.send_signal(signal.SIGHUP)
            while "All 2 workers have been replaced." not in log.read_text():
                await call_all(port, sessions)
            assert not await call_all(port, sessions) & before
            streams, began = await get_all(port, sessions), time.monotonic()
            started.send_signal(signal.SIGTERM)
            heard = [await line.rest() for line in streams]
            assert all(each.is_whole for each in heard)
            assert max(each.at for each in heard) - began < 20  # they did not wait for the grace to be over
            await asyncio.to_thread(started.wait, 30)
        assert started.returncode == 0
    assert "Traceback" not in log.read_text()

"""A process that is told to end, with many streams open and calls running: `callboard run`, and the ASGI servers people run (A40, SA39)."""

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from e2e.drain_crowd import Heard, Line, call, check_streams, gather_crowd, many_descriptors, modern, open_session
from e2e.serving import free_port, process, wait_until_listening

LIMIT = 90.0
CALLBOARD = "-m callboard run drain_program.py:app --port {port}"


async def wait_for(started: "subprocess.Popen[Any]", seconds: float) -> float:
    """Seconds until a process has ended."""
    began = time.monotonic()
    while started.poll() is None:
        assert time.monotonic() - began < seconds, "the process does not end"
        await asyncio.sleep(0.01)
    return time.monotonic() - began


async def probe(port: int) -> tuple[int, dict[str, Any]]:
    """Status and body of a readiness probe."""
    line = await Line.ask(port, "GET", {}, path="/readyz")
    return await line.head(), await line.answer()


def text_of(heard: Heard) -> str:
    """The text of a call's result, or of its error."""
    (message,) = heard.messages
    return str(message["error"]["message"] if "error" in message else message["result"]["content"][0]["text"])


async def test_a_crowd_is_seen_off(tmp_path: Path) -> None:
    """1,000 listen streams, 200 GET streams, 20 calls; some of these take longer than the grace, and are told. # A40, SA39, SB-09"""
    port, log = free_port(), tmp_path / "log"
    words = [sys.executable, *CALLBOARD.format(port=port).split(), "--grace", "4"]
    with many_descriptors(), process(words, log) as started:
        wait_until_listening(started, port, log)
        async with asyncio.timeout(LIMIT):
            crowd = await gather_crowd(port, listeners=1000, channels=200)
            short = [await call(port, 1.5) for _ in range(9)] + [await call(port, 1.5, await open_session(port)) for _ in range(8)]
            long = [await call(port, 60), await call(port, 60), await call(port, 60, await open_session(port))]
            half = {**modern("tools/list")[0], "content-type": "application/json", "content-length": "1000"}
            stuck = [await Line.ask(port, "POST", half), await Line.ask(port, "POST", *modern("tools/call", name="flood", arguments={}))]
            assert await probe(port) == (200, {"status": "ok"})
            started.send_signal(signal.SIGTERM)
            listening = await asyncio.gather(*(line.rest() for line in crowd.listening))
            channels = await asyncio.gather(*(line.rest() for line in crowd.channels))
            check_streams(listening, channels)
            assert await probe(port) == (503, {"status": "draining"})
            refused = await (await Line.ask(port, "POST", *modern("tools/list"))).rest()
            assert (refused.status, refused.headers["retry-after"], refused.headers["connection"]) == (503, "1", "close")
            assert text_of(refused) == "The server is shutting down."
            calls = await asyncio.gather(*(line.rest() for line in short))
            assert [text_of(heard) for heard in calls] == ["lingered"] * len(short)
            told = await asyncio.gather(*(line.rest() for line in long))
            assert all(heard.is_whole and heard.messages[0]["error"] for heard in told), told
            last = max(heard.at for heard in told)
            await wait_for(started, 30)
            assert time.monotonic() - last < 2.0
        assert started.returncode == 0
        await asyncio.gather(*(line.rest() for line in stuck))
    printed = log.read_text()
    assert "3 calls did not end within 4 seconds" in printed
    assert printed.count("1 connections are cut") == 2, printed  # those of clients that send half a request, and read nothing
    assert "Traceback" not in printed
    assert "ERROR" not in printed


HANGING = """
import asyncio, contextlib
from callboard import Server, asgi

@contextlib.asynccontextmanager
async def lifespan(server):
    yield
    await asyncio.sleep(1000)

server = Server("s", lifespan=lifespan)
app = asgi(server)
"""


@pytest.mark.parametrize(("again", "code", "said"), [(False, 1, "ERROR callboard: A call, a lifespan"), (True, 0, "Told to stop again")])
async def test_what_hangs_keeps_no_process(again: bool, code: int, said: str, tmp_path: Path) -> None:
    """A lifespan, a hook or a tool that never ends: the process does, some seconds after the grace; told twice, at once."""
    (tmp_path / "prog.py").write_text(HANGING)
    port, log = free_port(), tmp_path / "log"
    words = [sys.executable, "-m", "callboard", "run", "prog.py:app", "--port", str(port), "--grace", "60" if again else "0"]
    with process(words, log, cwd=tmp_path) as started:
        wait_until_listening(started, port, log)
        started.send_signal(signal.SIGTERM)
        while "Waiting for application shutdown" not in log.read_text():  # noqa: ASYNC110 - another process's log
            await asyncio.sleep(0.05)
        if again:
            started.send_signal(signal.SIGTERM)
        await wait_for(started, 30)
        assert started.returncode == code
    assert said in log.read_text()


class Recipe(NamedTuple):
    """How an ASGI server is run so that it drains; docs/run.md has the same.

    Attributes:
        words: What follows `python`.
        code: The exit code that it gives.
    """

    words: str
    code: int


# granian works on no more requests at once than this, of which each open stream is one; 1,024 by default.
ROOM = "--backlog 4096 --backpressure 4096"
RECIPES = {
    "uvicorn": Recipe("-m uvicorn drain_program:app --port {port} --timeout-graceful-shutdown 30", -signal.SIGTERM),
    "uvicorn-workers": Recipe("-m uvicorn drain_program:alone --port {port} --workers 2 --timeout-graceful-shutdown 30", 0),
    "granian": Recipe(f"-m granian --interface asgi --port {{port}} {ROOM} --workers-kill-timeout 30 drain_program:app", 0),
    "hypercorn": Recipe("-m hypercorn drain_program:app --bind 127.0.0.1:{port} --workers 0 --graceful-timeout 30", 0),
    "gunicorn-uvicorn": Recipe(
        "-m gunicorn drain_program:app -k uvicorn_worker.UvicornWorker -b 127.0.0.1:{port} --graceful-timeout 30", 0
    ),
    "gunicorn-asgi": Recipe("-m gunicorn drain_program:app -k asgi -b 127.0.0.1:{port} --graceful-timeout 30", 0),
}


# Sessions need a store that all workers share; gunicorn's own worker sends no head before the first event, which is a keep-alive here.
WITHOUT_CHANNELS = {"uvicorn-workers", "gunicorn-asgi"}


@pytest.mark.parametrize("name", RECIPES)
async def test_asgi_servers_drain_by_themselves(name: str, tmp_path: Path) -> None:
    """They wait for open answers at SIGTERM; the application ends its streams then, so that they don't wait for ever. # A40"""
    recipe, port, log = RECIPES[name], free_port(), tmp_path / "log"
    listeners, channels = (1000, 200) if name == "granian" else (40, 0 if name in WITHOUT_CHANNELS else 10)
    with many_descriptors(), process([sys.executable, *recipe.words.format(port=port).split()], log) as started:
        wait_until_listening(started, port, log)
        async with asyncio.timeout(LIMIT):
            crowd = await gather_crowd(port, listeners=listeners, channels=channels)
            calls = [await call(port, 1.0) for _ in range(20 if name == "granian" else 4)]
            await asyncio.sleep(0.3)  # until they run: a call that has not arrived is none
            started.send_signal(signal.SIGTERM)
            heard = await asyncio.gather(*(line.rest() for line in calls))
            assert [text_of(each) for each in heard] == ["lingered"] * len(calls)
            check_streams(*[await asyncio.gather(*(line.rest() for line in lines)) for lines in (crowd.listening, crowd.channels)])
            await wait_for(started, max(5.0, crowd.opened_in))
        assert started.returncode == recipe.code
    assert "Traceback" not in log.read_text(), log.read_text()

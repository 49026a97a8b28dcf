"""How a worker of tasks says how it is: to who probes it, and in its log."""

import http.client
import json
import sys
import time
from pathlib import Path

import pytest
from e2e.serving import end, free_port, process
from redis_server import RedisServer, needs_redis

pytest.importorskip("docket", reason="pydocket is not installed.")
pytestmark = needs_redis

PROGRAM = """
from callboard import Server
from callboard.tasks import DocketTasks

server = Server("depot", tasks=DocketTasks())
server.tool(task="allowed", name="pay")(lambda: 1)
"""
LIMIT = 30.0


def probe(port: int, path: str) -> tuple[int, str]:
    """Status and word of an answer; 0 where nobody listens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, json.loads(response.read())["status"]
    except OSError:
        return 0, ""
    finally:
        connection.close()


def wait_for(port: int, path: str, wanted: tuple[int, str]) -> None:
    """Probe until the answer is as wanted."""
    until = time.monotonic() + LIMIT
    while (seen := probe(port, path)) != wanted:
        assert time.monotonic() < until, seen
        time.sleep(0.05)


def test_a_worker_is_probed_and_says_once_that_its_redis_is_away(tmp_path: Path) -> None:
    (tmp_path / "depot.py").write_text(PROGRAM, encoding="utf-8")
    port, log = free_port(), tmp_path / "log"
    command = [sys.executable, "-m", "callboard", "worker", "depot.py", "--health-port", str(port), "--log-format", "json"]
    with RedisServer() as redis, process([*command, "--store", redis.url], log, cwd=tmp_path) as worker:
        wait_for(port, "/readyz", (200, "ok"))
        redis.kill()
        wait_for(port, "/readyz", (503, "store"))
        assert probe(port, "/healthz") == (200, "ok")
        time.sleep(3)  # it is tried again every second
        redis.start()
        wait_for(port, "/readyz", (200, "ok"))
        time.sleep(2)
        end(worker)
        assert worker.returncode == 0
    lines = [line for line in log.read_text(encoding="utf-8").splitlines() if not line.startswith("Runs tasks of ")]
    told = [json.loads(line)["message"] for line in lines]
    assert [message.partition(":")[0] for message in told if message.startswith("Tasks ")] == [
        "Tasks can't be taken in, until this is over",
        "Tasks are taken in again.",
    ]
    assert "Traceback" not in log.read_text(encoding="utf-8")
    assert len(told) < 12, told


def test_a_port_for_probes_that_is_taken_is_named(tmp_path: Path) -> None:
    (tmp_path / "depot.py").write_text(PROGRAM, encoding="utf-8")
    with RedisServer() as redis:
        taken = redis.url.rpartition(":")[2].partition("/")[0]
        command = [sys.executable, "-m", "callboard", "worker", "depot.py", "--health-port", taken, "--store", redis.url]
        with process(command, tmp_path / "log", cwd=tmp_path) as worker:
            assert worker.wait(LIMIT) == 1
    (line,) = (tmp_path / "log").read_text(encoding="utf-8").splitlines()
    assert line.startswith("Error: --health-port: ")
    assert taken in line

"""Servers that hand their tasks over, and workers that run them: processes of their own, and a real Redis."""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest
from asgi_driver import JSON, judge, make_headers, make_meta, make_request
from e2e.serving import HERE, end, free_port, process, wait_until_listening
from errands import KNOWING
from redis_server import RedisServer, needs_redis
from rounds import accept

from callboard.server.task_ledger import LOST
from callboard.server.task_worker import STOPPED

pytest.importorskip("docket", reason="pydocket is not installed.")
pytestmark = needs_redis

T = TypeVar("T")
LIMIT = 30.0  # seconds that a test waits for anything
SERVE = [sys.executable, "-m", "callboard", "run", "depot.py", "--log-level", "warning"]
WORK = [sys.executable, "-m", "callboard", "worker", "depot.py", "--log-level", "warning"]


def wait_for(look: Callable[[], T | None]) -> T:
    """What there is to see, once there is."""
    until = time.monotonic() + LIMIT
    while (found := look()) is None:
        assert time.monotonic() < until, "it never came"
        time.sleep(0.05)
    return found


class Site:
    """One serving process.

    Args:
        port: Where it listens.
    """

    def __init__(self, port: int) -> None:
        self.port = port

    def ask(self, method: str, params: JSON, who: str | None = None) -> JSON:
        """Send a request; the answer."""
        meta = make_meta(KNOWING, clientInfo={"name": "tests", "version": "1"}, traceparent=f"00-{'a' * 32}-{'b' * 16}-01")
        message = make_request(method, params, meta=meta)
        headers = {**make_headers(message, host=f"127.0.0.1:{self.port}"), "authorization": "Bearer s3cr3t-credential"}
        if who is not None:
            headers["x-who"] = who
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)
        try:
            connection.request("POST", "/mcp", json.dumps(message), headers)
            answer: JSON = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        judge(answer, method)
        return answer

    def begin(self, tool: str, who: str | None = None, **arguments: Any) -> str:
        """Call a tool; the id of the task that it becomes."""
        result = self.ask("tools/call", {"name": tool, "arguments": arguments}, who)["result"]
        assert result["resultType"] == "task", result
        task_id: str = result["taskId"]
        return task_id

    def get(self, task_id: str, who: str | None = None) -> JSON:
        """How a task stands."""
        found: JSON = self.ask("tasks/get", {"taskId": task_id}, who)["result"]
        return found

    def wait(self, task_id: str, *statuses: str, who: str | None = None) -> JSON:
        """How a task stands, once it stands so."""
        return wait_for(lambda: found if (found := self.get(task_id, who))["status"] in statuses else None)

    def said(self, task_id: str) -> list[str]:
        """Process id, mark and chain of a task that says them."""
        return wait_for(lambda: said if len(said := self.get(task_id).get("statusMessage", "").split(" ")) == 3 else None)


class Estate:
    """A Redis, two serving processes and two workers.

    Args:
        folder: For logs, and for what tools wait for.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stack = ExitStack()
        self.redis = self.stack.enter_context(RedisServer(appendonly="yes", appendfsync="always"))
        os.environ.update(DEPOT=str(folder), CALLBOARD_STORE=self.redis.url)
        self.stack.callback(lambda: [os.environ.pop(name) for name in ("DEPOT", "CALLBOARD_STORE")])
        self.count = 0
        self.workers: list[subprocess.Popen[bytes]] = []
        self.servers: list[subprocess.Popen[bytes]] = []
        self.sites: list[Site] = []
        for _ in range(2):
            self.add_server()
            self.add_worker()
        self.wait_until_serving()

    def run(self, command: list[str]) -> "tuple[subprocess.Popen[bytes], Path]":
        """Start a process; and its log."""
        self.count += 1
        log = self.folder / f"{self.count}.log"
        return self.stack.enter_context(process(command, log, cwd=HERE)), log

    def add_server(self) -> None:
        """Start a serving process."""
        site = Site(free_port())
        started, log = self.run([*SERVE, "--port", str(site.port)])
        self.servers.append(started)
        self.sites.append(site)
        self._log = log

    def add_worker(self) -> None:
        """Start a worker; its readiness shows when it runs something."""
        self.workers.append(self.run([*WORK, "--grace", "0.5"])[0])

    def end_servers(self) -> None:
        """End all serving processes, at once."""
        for server in self.servers:
            server.terminate()
        for server in self.servers:
            end(server)
        self.servers.clear()

    def wait_until_serving(self) -> None:
        """Wait until all servers listen."""
        for started, site in zip(self.servers, self.sites, strict=True):
            wait_until_listening(started, site.port, self._log)


def kinds_of(pid: int, begun: dict[str, str], said: dict[str, list[str]]) -> set[str]:
    """The tools that a worker runs."""
    return {begun[task_id] for task_id, words in said.items() if words[0] == str(pid)}


@pytest.fixture(scope="module")
def estate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Estate]:
    made = Estate(tmp_path_factory.mktemp("depot"))
    with made.stack:
        yield made
        for worker in made.workers:
            worker.terminate()
        made.end_servers()


def test_a_worker_runs_what_a_server_was_called_for(estate: Estate) -> None:
    # TX-05, TX-08, TX-09
    one, other = estate.sites
    added, fell, late = one.begin("add", a=1, b=2), one.begin("fall"), one.begin("dawdle")
    ended = other.wait(added, "completed", "failed")
    assert (ended["status"], ended["result"]["structuredContent"]) == ("completed", 3)
    assert other.wait(fell, "completed")["result"] == {
        "content": [{"type": "text", "text": "It fell."}], "isError": True, "resultType": "complete",
    }  # fmt: skip
    assert "0.2 s" in str(other.wait(late, "completed")["result"])
    faulty = one.begin("add", a="x", b=2)
    assert other.wait(faulty, "completed")["result"]["isError"]


def test_a_function_knows_its_caller_and_no_credential_is_kept(estate: Estate) -> None:
    # AR-10, TX-16
    one, other = estate.sites
    task_id = one.begin("tell", "ann")
    seen = other.wait(task_id, "completed", who="ann")["result"]["structuredContent"]
    assert seen == {
        "who": "ann", "scopes": ["depot:write"], "floor": 2, "shelf": "third", "headers": None,
        "trace": f"00-{'a' * 32}-{'b' * 16}-01", "client": "tests",
    }  # fmt: skip
    for who in ("bob", None):
        assert other.ask("tasks/get", {"taskId": task_id}, who)["error"]["code"] == -32602
    assert b"s3cr3t" not in (estate.redis.folder / "appendonlydir").joinpath("appendonly.aof.1.incr.aof").read_bytes()
    assert task_id.encode() not in estate.redis.cli("KEYS", "*")


def test_it_asks_by_any_server(estate: Estate) -> None:
    # TX-11
    one, other = estate.sites
    task_id = one.begin("confirm")
    asked = other.wait(task_id, "input_required")
    assert (list(asked["inputRequests"]), asked["statusMessage"]) == (["sure"], "Asking.")
    other.ask("tasks/update", {"taskId": task_id, "inputResponses": {"sure": accept(value=True)}})
    assert "yes: True" in str(one.wait(task_id, "completed")["result"])


def test_any_server_cancels(estate: Estate) -> None:
    # TX-10
    one, other = estate.sites
    task_id = one.begin("carry")
    one.said(task_id)
    other.ask("tasks/cancel", {"taskId": task_id})
    assert one.get(task_id)["status"] == "cancelled"


def test_a_worker_that_is_killed_loses_nothing(estate: Estate) -> None:
    """kill -9: what may be begun again is, with what it had made and asked; what may not says why it has failed."""
    one, other = estate.sites
    done = one.begin("add", a=2, b=2)
    one.wait(done, "completed")
    begun: dict[str, str] = {}
    said: dict[str, list[str]] = {}
    victim = None
    while victim is None:  # until one has something of both kinds
        assert len(begun) < 16, said
        for tool in ("carry", "pay") if len(begun) % 4 == 0 else ("pay", "carry"):  # two workers take turns
            task_id = one.begin(tool)
            begun[task_id], said[task_id] = tool, one.said(task_id)
        victim = next((worker for worker in estate.workers if kinds_of(worker.pid, begun, said) == {"carry", "pay"}), None)
    victim.send_signal(signal.SIGKILL)
    victim.wait(10)
    hit = [task_id for task_id in begun if said[task_id][0] == str(victim.pid)]
    for task_id in (task_id for task_id in hit if begun[task_id] == "pay"):
        assert other.wait(task_id, "failed")["error"]["message"] == LOST
    for task_id in (task_id for task_id in hit if begun[task_id] == "carry"):
        again = wait_for(lambda task_id=task_id: new if (new := one.said(task_id))[0] != str(victim.pid) else None)  # type: ignore[misc]
        assert again[1:] == said[task_id][1:], "what ctx.once has made is known, and so is the call"
    (estate.folder / "go").touch()
    for task_id, tool in begun.items():
        if task_id not in hit or tool == "carry":
            assert said[task_id][1] in str(other.wait(task_id, "completed")["result"])
    assert other.get(done)["result"]["structuredContent"] == 4
    (estate.folder / "go").unlink()
    estate.workers.remove(victim)


def test_all_may_be_restarted(estate: Estate) -> None:
    """SIGTERM to everything, kill -9 to the Redis: what was recorded is there, what could not end goes on or says why not."""
    one, _ = estate.sites
    done, carried, paid = one.begin("add", a=3, b=3), one.begin("carry"), one.begin("pay")
    one.wait(done, "completed")
    mark = one.said(carried)[1]
    one.said(paid)
    (worker,) = estate.workers
    end(worker)
    assert worker.returncode == 0
    queued = one.begin("add", a=4, b=4)
    estate.end_servers()
    estate.sites.clear()
    estate.redis.restart(kill=True)
    estate.add_server()
    estate.add_worker()
    estate.wait_until_serving()
    (site,) = estate.sites
    assert site.get(done)["result"]["structuredContent"] == 6
    assert site.get(paid)["error"]["message"] == STOPPED
    (estate.folder / "go").touch()
    assert mark in str(site.wait(carried, "completed")["result"])
    assert site.wait(queued, "completed")["result"]["structuredContent"] == 8

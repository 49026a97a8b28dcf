"""Numbers as Prometheus reads them, held to its own parser."""

import asyncio
import socket
import threading
import urllib.request
from typing import Any

import pytest
from asgi_driver import Client
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse

from callboard import Server, asgi
from callboard.errors import RegistrationError
from callboard.limits import Limits
from callboard.telemetry import Prometheus
from callboard.telemetry.events import Levels as Now
from callboard.telemetry.events import (
    RequestStarted,
    RequestStopped,
    ServerClosed,
    ServerOpened,
    SessionEnded,
    SessionOpened,
    StoreUsed,
    StreamClosed,
    StreamOpened,
    TaskEnded,
    TaskStarted,
)
from callboard.telemetry.prometheus import MAX_PORTS
from callboard.telemetry.tally import BUCKETS, METRICS

HEADERS = {"host": "127.0.0.1:8000"}


def read(sink: Prometheus) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """All samples: name and labels -> number."""
    sink._kept.clear()
    page = sink.render()[0].decode()
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for family in parse(page) for sample in family.samples}


def make_server(sink: Prometheus) -> Server:
    """A server with one tool."""
    server = Server("s", telemetry=sink)

    @server.tool
    async def add(a: int) -> int:
        return a

    return server


async def test_calls_are_counted_by_method_tool_and_outcome() -> None:
    sink = Prometheus()
    client = Client(asgi(make_server(sink)))
    for arguments in ({"a": 1}, {"a": 2}, {"a": "x"}):
        await client.call("add", arguments)
    for number in range(50):
        await client.call(f"made-up-{number}", {})
    found = read(sink)
    requests = {labels: value for (name, labels), value in found.items() if name == "callboard_requests_total"}
    shown = {tuple(dict(labels)[key] for key in ("method", "component", "outcome", "reason")): value for labels, value in requests.items()}
    assert shown == {
        ("tools/call", "add", "ok", ""): 2,
        ("tools/call", "add", "tool_error", ""): 1,
        ("tools/call", "other", "error", "UNKNOWN_TOOL"): 50,
    }
    assert found["callboard_request_duration_seconds_count", (("component", "add"), ("method", "tools/call"))] == 3
    assert found["callboard_request_duration_seconds_bucket", (("component", "add"), ("le", "+Inf"), ("method", "tools/call"))] == 3
    assert found["callboard_sent_bytes_total", ()] > 0
    assert found["callboard_threads", ()] == 40
    assert "made-up" not in sink.render()[0].decode()


def test_every_metric_is_on_the_page_in_both_formats() -> None:
    sink = Prometheus()
    for accept, reader in (("", parse), ("application/openmetrics-text; version=1.0.0", parse_open)):
        page, content_type = sink.render(accept)
        assert content_type.startswith("application/openmetrics-text" if accept else "text/plain")
        families = {family.name: family for family in reader(page.decode())}
        for metric in METRICS.values():
            assert families[metric.prometheus].documentation == metric.text
            assert families[metric.prometheus].type == metric.kind
        assert "process_resident_memory_bytes" in families


def test_a_histogram_is_cumulative() -> None:
    sink = Prometheus()
    for seconds in (0.0005, 0.001, 0.0011, 1.0, 1000.0):
        sink.take(StoreUsed("get", seconds, failed=seconds > 100))
    sink.take(StoreUsed("bus", 0.2, failed=False))
    found = read(sink)
    bounds = {
        float(dict(labels)["le"]): value for (name, labels), value in found.items() if name == "callboard_store_duration_seconds_bucket"
    }
    assert bounds == {bound: sum(value <= bound for value in (0.0005, 0.001, 0.0011, 1.0, 1000.0)) for bound in (*BUCKETS, float("inf"))}
    assert found["callboard_store_duration_seconds_sum", (("operation", "get"),)] == pytest.approx(1001.0026)
    assert found["callboard_store_errors_total", (("operation", "get"),)] == 1
    assert found["callboard_bus_lag_seconds_count", ()] == 1


def test_what_is_open_goes_up_and_down() -> None:
    sink = Prometheus()
    for session in ("a", "b"):
        sink.take(SessionOpened(session, "2025-11-25", "http"))
        sink.take(StreamOpened("get"))
    assert read(sink)["callboard_sessions", ()] == read(sink)["callboard_streams", (("kind", "get"),)] == 2
    sink.take(SessionEnded("a", "deleted", 3.0))
    sink.take(StreamClosed("get", 3.0))
    found = read(sink)
    assert found["callboard_sessions", ()] == found["callboard_streams", (("kind", "get"),)] == 1
    assert found["callboard_sessions_opened_total", (("transport", "http"),)] == 2
    assert found["callboard_session_duration_seconds_sum", (("reason", "deleted"),)] == 3.0


def test_how_long_a_client_listens_is_no_latency() -> None:
    sink = Prometheus()
    sink.take(RequestStopped(RequestStarted("r", "subscriptions/listen", None, "2026-07-28", "http"), "cancelled", 3600.0))
    found = read(sink)
    assert found["callboard_request_duration_seconds_count", (("component", ""), ("method", "subscriptions/listen"))] == 0
    labels = (("component", ""), ("method", "subscriptions/listen"), ("outcome", "cancelled"), ("reason", ""))
    assert found["callboard_requests_total", labels] == 1


def test_tasks_have_numbers() -> None:
    sink = Prometheus()
    sink.take(TaskStarted("work"))
    sink.take(TaskEnded("work", "completed", 2.0))
    sink.take(TaskEnded("work", "failed", None))
    found = read(sink)
    assert found["callboard_tasks_started_total", (("component", "work"),)] == 1
    assert found["callboard_tasks_ended_total", (("component", "work"), ("status", "failed"))] == 1
    assert found["callboard_task_duration_seconds_count", (("component", "work"),)] == 1


def test_label_values_are_bounded_whoever_makes_them_up() -> None:
    """SA07: neither reasons of authors nor components that come and go fill the memory."""
    sink = Prometheus()
    for number in range(6_000):
        started = RequestStarted("r", "tools/call", f"tool-{number}", "2026-07-28", "http")
        sink.take(RequestStopped(started, "ok", 0.1))
        sink.take(SessionEnded("s", f"reason-{number}", 1.0))
    found = read(sink)
    assert len({labels for (name, labels) in found if name == "callboard_requests_total"}) == 5_001
    assert len({labels for (name, labels) in found if name == "callboard_sessions_ended_total"}) == 501
    assert found["callboard_request_duration_seconds_count", (("component", "other"), ("method", "tools/call"))] == 1_000
    assert sum(value for (name, _), value in found.items() if name == "callboard_sessions_ended_total") == 6_000


def test_hostile_label_values_make_no_line_of_their_own() -> None:
    sink = Prometheus()
    hostile = 'a"} 1\ncallboard_requests_total{method="x'
    sink.take(SessionEnded("s", hostile, None))
    found = read(sink)
    assert found["callboard_sessions_ended_total", (("reason", hostile),)] == 1
    assert not any(name == "callboard_requests_total" for name, _ in found)


def test_servers_behind_several_transports_are_weighed_once() -> None:
    sink = Prometheus()

    def levels() -> Now:
        return Now(in_flight=3)

    for _ in range(2):
        sink.take(ServerOpened("s", "1", levels))
    sink.take(ServerOpened("t", "1", lambda: Now(in_flight=4)))
    assert read(sink)["callboard_in_flight", ()] == 7
    sink.take(ServerClosed("t"))
    assert read(sink)["callboard_in_flight", ()] == 3


def test_threads_count_together() -> None:
    sink = Prometheus()
    started = RequestStarted("r", "tools/call", "add", "2026-07-28", "http")

    def count() -> None:
        for _ in range(2_000):
            sink.take(RequestStopped(started, "ok", 0.1))

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read(sink)["callboard_request_duration_seconds_count", (("component", "add"), ("method", "tools/call"))] == 8_000


async def test_the_page_is_beside_the_endpoint_and_says_no_more_than_numbers() -> None:
    app = asgi(make_server(Prometheus(path="/metrics")), cors=True)
    client = Client(app, path="/metrics")
    got = client.start(b"", HEADERS, verb="GET")
    await asyncio.wait({got.task}, timeout=10)
    assert got.sent[0]["status"] == 200
    assert dict(got.sent[0]["headers"])[b"content-type"].startswith(b"text/plain")
    assert list(parse(got.sent[1]["body"].decode()))
    for verb, status, size in (("HEAD", 200, False), ("POST", 405, False)):
        exchange = client.start(b"", {**HEADERS, "content-type": "application/json"}, verb=verb)
        await asyncio.wait({exchange.task}, timeout=10)
        assert exchange.sent[0]["status"] == status
        assert bool(exchange.sent[1]["body"]) == size
    stranger = client.start(b"", {"host": "evil.example"}, verb="GET")
    await asyncio.wait({stranger.task}, timeout=10)
    assert stranger.sent[0]["status"] in {403, 421}
    assert app.metadata_routes == []
    await app.aclose()


async def test_without_a_path_there_is_no_page() -> None:
    exchange = Client(asgi(make_server(Prometheus())), path="/metrics").start(b"", HEADERS, verb="GET")
    await asyncio.wait({exchange.task}, timeout=10)
    assert exchange.sent[0]["status"] == 404


async def test_each_worker_takes_the_next_port() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        first = taken.getsockname()[1]
        if first > 65_000:
            pytest.skip("the system gave a port near the last one")
        sinks = [Prometheus(port=first) for _ in range(2)]
        apps = [asgi(make_server(sink)) for sink in sinks]
        for app in apps:
            await Client(app).call("add", {"a": 1})
        ports = [sink.port for sink in sinks]
        assert None not in ports
        assert len(set(ports)) == 2
        assert all(first < port < first + MAX_PORTS for port in ports if port)
        page = await asyncio.to_thread(lambda: urllib.request.urlopen(f"http://127.0.0.1:{ports[1]}/metrics", timeout=10).read())
        assert 'component="add"' in page.decode()
    for app in apps:
        await app.aclose()
    assert [sink.port for sink in sinks] == [None, None]
    for thread in threading.enumerate():
        if thread.name == "callboard-metrics-end":
            await asyncio.to_thread(thread.join, 10)


async def test_a_registry_of_the_authors_is_shown_as_a_whole() -> None:
    registry = CollectorRegistry()
    Counter("orders", "Orders.", registry=registry).inc(3)
    sink = Prometheus(registry=registry)
    assert read(sink)["orders_total", ()] == 3
    with pytest.raises(RegistrationError, match="has these metrics already"):
        Prometheus(registry=registry)


@pytest.mark.parametrize("options", [{"port": -1}, {"port": "9464"}, {"port": True}, {"path": "metrics"}, {"path": "/"}])
def test_what_can_not_work_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(RegistrationError, match="Prometheus: p"):
        Prometheus(**options)


async def test_a_page_is_not_made_for_everybody_who_asks() -> None:
    """SA39: what it costs is not for clients to decide."""
    sink = Prometheus()
    client = Client(asgi(make_server(sink), limits=Limits()))
    before = sink.render()[0]
    await client.call("add", {"a": 1})
    assert sink.render()[0] is before

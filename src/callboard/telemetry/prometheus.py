"""Metrics for Prometheus: a page that shows what a server's events have added up to."""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any

from callboard.errors import RegistrationError
from callboard.telemetry.events import ServerClosed, ServerOpened
from callboard.telemetry.tally import BUCKETS, METRICS, Metric, Spread, Tally

__all__ = ["MAX_PORTS", "Prometheus"]

_log = logging.getLogger("callboard")
MAX_PORTS = 64
"""Ports that are tried: each worker of a server takes the first that is free."""
# Seconds that a page is shown again: what it costs to make one is not for everybody who asks to decide.
_KEPT = 1.0
_OPEN = "application/openmetrics-text;version=1.0.0"
_BOUNDS = [*(f"{bound:g}" if bound < 1 else f"{bound:.1f}" for bound in BUCKETS), "+Inf"]


class Prometheus(Tally):
    """A sink whose numbers Prometheus reads: `Server(telemetry=Prometheus(port=9464))`.

    It shows nothing by itself: say `port` or `path`, or put `page` where you like. Who reads the page learns the names of all tools and how
    much each is used, so keep it from strangers.

    Args:
        port: A port of its own, on a thread of its own, so that it answers while the event loop is busy. With several workers each takes the
            first of 64 ports from this one on that is free: scrape all of them. None for no port.
        host: The address of that port; only this machine by default.
        path: Where the server's own application shows the page, such as `/metrics`; None for nowhere. Not with several workers: a scrape
            would meet now one, now another.
        registry: A `prometheus_client.CollectorRegistry` to add the metrics to, so that the page shows yours as well. One of its own by
            default, with the process's memory, CPU time and descriptors.

    Raises:
        RegistrationError: An option can't work, or prometheus-client is not installed.

    Attributes:
        pages: Path -> it, as the server's application shows it.
        port: The port that it listens on; None as long as it does not.
    """

    def __init__(self, *, port: int | None = None, host: str = "127.0.0.1", path: str | None = None, registry: Any = None) -> None:
        try:
            import prometheus_client
            import prometheus_client.core
        except ImportError:
            raise RegistrationError("Prometheus needs prometheus-client: pip install 'callboard[telemetry]'.") from None
        if port is not None and (type(port) is not int or not 0 <= port <= 65_535):
            raise RegistrationError(f"Prometheus: port is a number from 0 (any that is free) to 65535, not {port!r}.")
        if path is not None and (not isinstance(path, str) or not path.startswith("/") or path == "/"):
            raise RegistrationError(f"Prometheus: path is a path like '/metrics', not {path!r}.")
        Tally.__init__(self)
        self._client = prometheus_client
        self._wanted, self._host = port, host
        self._serving = 0
        self._listening: tuple[Any, threading.Thread] | None = None
        self._kept: dict[str, tuple[float, bytes]] = {}
        self._rendering = threading.Lock()
        if registry is None:
            registry = prometheus_client.CollectorRegistry()
            prometheus_client.ProcessCollector(registry=registry)
        try:
            registry.register(self)
        except ValueError as error:
            raise RegistrationError(
                f"Prometheus: this registry has these metrics already; one sink can serve several servers. ({error})"
            ) from None
        self._registry = registry
        self.port: int | None = None
        self.pages: dict[str, Callable[..., Awaitable[None]]] = {} if path is None else {path: self.page}

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The page and its content type.

        Args:
            accept: HTTP `Accept`: OpenMetrics where it asks for that, else the text format. Nothing else of it counts: who asks decides neither
                how many pages are kept, nor what a header says.
        """
        from prometheus_client.exposition import choose_encoder

        encode, content_type = choose_encoder(_OPEN if "application/openmetrics-text" in accept else "")
        with self._rendering:
            made, page = self._kept.get(content_type, (float("-inf"), b""))
            if time.monotonic() - made > _KEPT:
                page = encode(self._registry)
                self._kept[content_type] = time.monotonic(), page
        return page, content_type

    def collect(self) -> Iterator[Any]:
        """All metrics, as `prometheus_client` takes them."""
        for metric in METRICS.values():
            yield self._make_family(metric)

    def describe(self) -> Iterator[Any]:
        """All metrics, without numbers: what a registry compares with others."""
        for metric in METRICS.values():
            yield self._begin_family(metric)

    async def page(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        """Serve one ASGI scope."""
        del receive
        method = scope.get("method", "")
        status, body, headers = 405, b"", [(b"allow", b"GET, HEAD")]
        if method in {"GET", "HEAD"}:
            accept = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"accept"), "")
            body, content_type = await asyncio.to_thread(self.render, accept[:1_000])
            status, headers = 200, [(b"content-type", content_type.encode("latin-1")), (b"cache-control", b"no-store")]
        headers += [(b"content-length", b"%d" % len(body)), (b"x-content-type-options", b"nosniff")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if method == "HEAD" else body})

    def _begin_family(self, metric: Metric) -> Any:
        core = self._client.core
        kinds = {"counter": core.CounterMetricFamily, "gauge": core.GaugeMetricFamily, "histogram": core.HistogramMetricFamily}
        return kinds[metric.kind](metric.prometheus, metric.text, labels=metric.labels)

    def _make_family(self, metric: Metric) -> Any:
        family = self._begin_family(metric)
        for labels, value in self.samples(metric.name):
            if isinstance(value, Spread):
                seen, buckets = 0, []
                for bound, count in zip(_BOUNDS, value.counts, strict=True):
                    seen += count
                    buckets.append((bound, seen))
                family.add_metric(labels, buckets=buckets, sum_value=value.total)
            else:
                family.add_metric(labels, value)
        return family

    # A port of its own

    def _open(self, event: ServerOpened) -> None:
        Tally._open(self, event)  # noqa: SLF001 - its own class's
        self._serving += 1
        if self._listening is None and self._wanted is not None:
            self._listen(self._wanted)

    def _close(self, event: ServerClosed) -> None:
        Tally._close(self, event)  # noqa: SLF001 - its own class's
        self._serving -= 1
        if not self._serving:
            self._stop()

    def _listen(self, first: int) -> None:
        ports = [0] if not first else range(first, min(first + MAX_PORTS, 65_536))
        for port in ports:
            try:
                server, thread = self._client.start_http_server(port, addr=self._host, registry=self._registry)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    continue
                _log.exception("Prometheus: nothing can be shown on %s, port %d.", self._host, port)
                return
            self._listening = server, thread
            self.port = server.server_address[1]
            _log.info("Metrics are at http://%s:%d/metrics.", self._host, self.port)
            return
        _log.error("Prometheus: no port from %d on is free on %s: metrics are not shown.", first, self._host)

    def _stop(self) -> None:
        """Close the port: its thread takes half a second to hear of it, which nobody should wait for."""
        if self._listening is not None:
            listening, self._listening, self.port = self._listening, None, None
            threading.Thread(target=_end, args=listening, name="callboard-metrics-end").start()


def _end(server: Any, thread: threading.Thread) -> None:
    server.shutdown()
    server.server_close()
    thread.join()

"""A fleet, event by event: calls with state that meet workers and their Redis, each of which does one thing at a time.

A call is served by its worker in `trips` + 1 pieces; between them it waits for a script of the Redis, `network` away on either side. Commands that
a worker sends at once travel together, so that a piece is cheaper the more calls the worker has: its price lies between what was measured
with one call at a time and what was measured with many.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence
from typing import NamedTuple

TIMEOUT = 2.0  # seconds that a command may take; then its call is told 503
DEAD_AFTER = 5.0  # seconds until the turn of a worker that is gone is given to the next one
SHAPE = 4.0  # of the gamma distribution of all service times: their deviation is half their mean


class Service(NamedTuple):
    """What a call takes, in seconds.

    Attributes:
        worker_busy: CPU of the worker, where it has many at once.
        worker_alone: CPU of the worker, where it has only this one.
        redis: CPU of the Redis.
        trips: Times that it asks the Redis.
        network: From worker to Redis, one way.
    """

    worker_busy: float
    worker_alone: float
    redis: float
    trips: int = 2
    network: float = 200e-6


class Trouble(NamedTuple):
    """Something that goes wrong.

    Attributes:
        begin: When, in seconds.
        end: When it is over.
        slower: How many times as long the Redis takes meanwhile; 1 for as ever, infinite where it stands still.
        lost: Workers that are gone meanwhile.
    """

    begin: float
    end: float
    slower: float = 1.0
    lost: int = 0


class Seen(NamedTuple):
    """What a simulation saw.

    Attributes:
        served: Calls that were answered.
        seconds: How long it was looked at.
        p50: Median time of a call, in seconds.
        p99: Its 99th percentile.
        worker: Share of the time that the workers were busy.
        redis: Share of the time that the Redis was busy.
        again: Calls whose worker died, and that were made once more.
        refused: Calls that were told 503 as the Redis took too long.
        recovered: Seconds from the end of the trouble until no call was slow (three times the median of before); 0 without trouble.
    """

    served: int
    seconds: float
    p50: float
    p99: float
    worker: float
    redis: float
    again: int
    refused: int
    recovered: float


class _Call:
    __slots__ = ("begun", "connection", "generation", "piece", "worker")

    def __init__(self, begun: float, worker: int, generation: int, connection: int) -> None:
        self.begun = begun
        self.worker = worker
        self.generation = generation
        self.connection = connection
        self.piece = 0


class Simulation:
    """One run.

    Args:
        service: What a call takes.
        workers: How many there are.
        cores: Cores that these share; None for one each.
        trouble: What goes wrong; None for nothing.
        seed: Of its random numbers.

    Attributes:
        times: When each call was answered, and the time it took.
    """

    def __init__(self, service: Service, workers: int, *, cores: int | None = None, trouble: Trouble | None = None, seed: int = 1) -> None:
        self._service = service
        self._workers = workers
        self._cores = cores or workers
        self._trouble = trouble
        self._random = random.Random(seed)
        self._events: list[tuple[float, int, str, _Call | None]] = []
        self._number = 0
        self._core_free = [0.0] * self._cores
        self._in_flight = [0] * workers
        self._generations = [0] * workers
        self._living = list(range(workers))
        self._redis_free = 0.0
        self._worker_used = self._redis_used = 0.0
        self.times: list[tuple[float, float]] = []
        self._again = self._refused = 0
        self._closed = False
        self._until = 0.0
        self._gap = 0.0

    def run(self, seconds: float, *, rate: float = 0.0, connections: int = 0) -> Seen:
        """Let calls come for a while.

        Args:
            seconds: For how long.
            rate: Calls per second that come of themselves, at random.
            connections: In place of a rate: clients that each make the next call once the last one is answered.

        Raises:
            ValueError: Neither or both were given.
        """
        if (rate > 0) == (connections > 0):
            raise ValueError("Give either a rate or a number of connections.")
        self._until, self._closed = seconds, connections > 0
        if self._closed:
            for connection in range(connections):
                self._begin(0.0, connection, 0.0)
        else:
            self._gap = 1 / rate
            self._push(self._random.expovariate(rate), "come", None)
        trouble = self._trouble
        if trouble is not None and trouble.lost:
            self._push(trouble.begin, "lose", None)
            self._push(trouble.end, "replace", None)
        happen = {"come": self._come, "worked": self._worked, "asked": self._asked, "lose": self._lose, "replace": self._replace}
        while self._events:
            now, _, what, call = heapq.heappop(self._events)
            if now > seconds:
                break
            happen[what](now, call)
        return self._sum_up(seconds)

    def _push(self, when: float, what: str, call: _Call | None) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, what, call))

    def _draw(self, mean: float) -> float:
        return self._random.gammavariate(SHAPE, mean / SHAPE)

    def _come(self, now: float, _call: _Call | None) -> None:
        self._begin(now, 0, now)
        self._push(now + self._random.expovariate(1 / self._gap), "come", None)

    def _begin(self, now: float, connection: int, begun: float) -> None:
        """A call comes to one of the workers; a connection stays with its own while that lives."""
        living = self._living
        worker = living[connection % len(living)] if self._closed else self._random.choice(living)
        self._in_flight[worker] += 1
        self._work(now, _Call(begun, worker, self._generations[worker], connection))

    def _work(self, now: float, call: _Call) -> None:
        """A piece of the call on its worker's core, after all that came before."""
        service, worker = self._service, call.worker
        most = service.worker_busy + (service.worker_alone - service.worker_busy) / max(1, self._in_flight[worker])
        takes = self._draw(most / (service.trips + 1))
        core = worker % self._cores
        self._core_free[core] = done = max(now, self._core_free[core]) + takes
        self._worker_used += takes
        self._push(done, "worked", call)

    def _worked(self, now: float, call: _Call | None) -> None:
        assert call is not None
        if self._generations[call.worker] != call.generation:
            self._make_again(now, call)
        elif call.piece == self._service.trips:
            self._in_flight[call.worker] -= 1
            self.times.append((now, now - call.begun))
            self._go_on(now, call)
        else:
            call.piece += 1
            self._ask(now + self._service.network, call)

    def _ask(self, now: float, call: _Call) -> None:
        """A script of the Redis, after all that came before."""
        trouble = self._trouble
        slower = trouble.slower if trouble is not None and trouble.begin <= now < trouble.end else 1.0
        takes = self._draw(self._service.redis / self._service.trips)
        start = max(now, self._redis_free)
        if trouble is not None and math.isinf(slower):
            start = max(start, trouble.end)
        else:
            takes *= slower
        self._redis_free = start + takes
        self._redis_used += takes
        if self._redis_free - now > TIMEOUT:
            self._refused += 1
            self._in_flight[call.worker] -= 1
            self._go_on(now + TIMEOUT, call)
        else:
            self._push(self._redis_free + self._service.network, "asked", call)

    def _asked(self, now: float, call: _Call | None) -> None:
        assert call is not None
        if self._generations[call.worker] != call.generation:
            self._make_again(now, call)
        else:
            self._work(now, call)

    def _go_on(self, now: float, call: _Call) -> None:
        if self._closed:
            self._begin(now, call.connection, now)

    def _make_again(self, now: float, call: _Call) -> None:
        """Its worker is gone: the client tries again, and waits for the turn that the dead one had."""
        self._again += 1
        worker = self._random.choice(self._living)
        self._in_flight[worker] += 1
        again = _Call(call.begun, worker, self._generations[worker], call.connection)
        again.piece = 1
        dead_since = self._trouble.begin if self._trouble is not None else now
        self._push(max(now, dead_since + DEAD_AFTER), "asked", again)

    def _lose(self, _now: float, _call: _Call | None) -> None:
        assert self._trouble is not None
        for worker in self._living[len(self._living) - min(self._trouble.lost, len(self._living) - 1) :]:
            self._generations[worker] += 1
            self._in_flight[worker] = 0
        self._living = [worker for worker in self._living if not self._generations[worker]]

    def _replace(self, now: float, _call: _Call | None) -> None:
        for worker in set(range(self._workers)) - set(self._living):
            self._core_free[worker % self._cores] = now
        self._living = list(range(self._workers))

    def _sum_up(self, seconds: float) -> Seen:
        times = sorted(took for _, took in self.times) or [0.0]
        return Seen(
            served=len(self.times),
            seconds=seconds,
            p50=times[len(times) // 2],
            p99=times[len(times) * 99 // 100],
            worker=self._worker_used / seconds / self._cores,
            redis=self._redis_used / seconds,
            again=self._again,
            refused=self._refused,
            recovered=self._find_recovery(),
        )

    def _find_recovery(self) -> float:
        trouble = self._trouble
        if trouble is None:
            return 0.0
        before = sorted(took for when, took in self.times if when < trouble.begin)
        if not before:
            return 0.0
        slow = 3 * before[len(before) * 99 // 100]
        return max((when - trouble.end for when, took in self.times if when > trouble.end and took > slow), default=0.0)


def capacity(service: Service, workers: int, *, cores: int | None = None) -> float:
    """Calls per second at which something is busy all the time: the workers' cores or the Redis."""
    return min((cores or workers) / service.worker_busy, 1 / service.redis)


def sweep(service: Service, workers: int, loads: Sequence[float], *, calls: int = 20_000, seed: int = 1) -> dict[float, Seen]:
    """Latency at some loads, as shares of `capacity`, each looked at for so many calls."""
    most = capacity(service, workers)
    return {load: Simulation(service, workers, seed=seed).run(calls / (load * most), rate=load * most) for load in loads}


def show(service: Service, workers: int) -> str:
    """Latency against load, a lost worker and a slow Redis, as text."""
    most = capacity(service, workers)
    lines = [
        (
            f"{workers} workers and one Redis carry {most:,.0f} calls with state a second at most"
            f" ({service.worker_busy * 1e6:,.0f} us of a worker, {service.redis * 1e6:,.0f} us of the Redis each):"
        ),
        "   load    calls/s    p50 ms    p99 ms   workers   Redis",
    ]
    for load, seen in sweep(service, workers, (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)).items():
        lines.append(f"  {load:5.0%} {load * most:10,.0f} {seen.p50 * 1e3:9.2f} {seen.p99 * 1e3:9.2f} {seen.worker:9.0%} {seen.redis:7.0%}")
    troubles = (
        (0.6, "a worker dies, another one is there after 2 s", Trouble(1.0, 3.0, lost=1)),
        (0.8, "a worker dies, another one is there after 2 s", Trouble(1.0, 3.0, lost=1)),
        (0.6, "the Redis is 5 times as slow for 2 s", Trouble(1.0, 3.0, slower=5.0)),
        (0.6, "the Redis stands still for 1 s", Trouble(1.0, 2.0, slower=math.inf)),
    )
    for load, name, trouble in troubles:
        seen = Simulation(service, workers, trouble=trouble).run(10.0, rate=load * most)
        lines.append(
            f"at {load:.0%}, {name}: p99 {seen.p99 * 1e3:,.1f} ms, {seen.again:,} calls made again, {seen.refused:,} told 503,"
            f" as before {seen.recovered:.1f} s after it"
        )
    return "\n".join(lines)

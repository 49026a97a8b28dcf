"""From what one call, session and stream costs to a fleet: how much of everything, and what is full first.

    python -m benchmarks.capacity --sessions 1e6 --calls 1e5
    python -m benchmarks.capacity --sessions 1e6 --calls 1e5 --sticky --ttl 120 --tool-us 500
    python -m benchmarks.capacity --simulate                         # latency against load, a lost worker, a slow Redis
    python -m benchmarks.capacity --help

The prices are in benchmarks/costs.json, measured by `python -m benchmarks.costs`; `--costs` takes another machine's. docs/scale.md explains it.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import fleet_simulation as simulation

COSTS = Path(__file__).with_name("costs.json")
KINDS = ("modern", "modern streamed", "session", "state", "streamed")
MIB, GIB = 2**20, 2**30
WORKER_BASE = 60 * MIB  # a process that has served, without sessions and streams
OWN_DESCRIPTORS = 40  # of a worker: loop, listening sockets, its connections to the Redis
PER_WORKER = 3  # connections to a Redis
BUS_BYTES = 64 * MIB  # what the Bus may take in the Redis
FULL = 0.999
MOST = 1e3  # times the traffic that is looked at


class Traffic(NamedTuple):
    """What a fleet has to carry.

    Attributes:
        sessions: Sessions of 2025 clients that are open.
        calls_s: Calls per second, of all kinds.
        shares: Kind, one of `KINDS`, to its share of them; they add up to 1.
        lifetime: Seconds from a session's beginning to its end.
        ttl: Seconds that an idle session lives (`session_ttl`).
        get_streams: Sessions that have a GET stream open.
        listens: Listen streams that are open.
        changes_s: Changes per second that are told to all (list_changed, resource updates, pushes to a topic).
        messages_s: Further messages per second on the Bus, which concern nobody here.
        tool_us: CPU of the server's own function, in microseconds.
        connections: Connections that are open, streams among them.
        connects_s: New connections per second.
        tls: Whether workers speak TLS themselves.
        sticky: Whether what is in front sends a session to the same worker each time.
        extra_bytes: Bytes that arguments and results have more than "hello world".
    """

    sessions: float = 1e6
    calls_s: float = 1e5
    shares: Mapping[str, float] = {"modern": 0.4, "modern streamed": 0.0, "session": 0.35, "state": 0.2, "streamed": 0.05}
    lifetime: float = 3600.0
    ttl: float = 300.0
    get_streams: float = 1e5
    listens: float = 5e4
    changes_s: float = 0.1
    messages_s: float = 10.0
    tool_us: float = 100.0
    connections: float = 3e5
    connects_s: float = 1e3
    tls: bool = False
    sticky: bool = False
    extra_bytes: float = 2000.0

    def rate(self, *kinds: str) -> float:
        """Calls per second of some kinds."""
        return self.calls_s * sum(self.shares.get(kind, 0.0) for kind in kinds)

    def scaled(self, factor: float) -> Traffic:
        """The same with more, or less, of everything that grows with the number of clients."""
        grown = ("sessions", "calls_s", "get_streams", "listens", "connections", "connects_s", "messages_s")
        return self._replace(**{name: getattr(self, name) * factor for name in grown})


class Machines(NamedTuple):
    """What there is to carry it with.

    Attributes:
        floor_us: What a call on the raw floor costs there, in microseconds: the speed of a core.
        cores: Of one machine; each worker has one.
        memory: Bytes of one machine.
        worker_full: Share of its core that a worker should be busy at most.
        redis_full: Share of its core that a Redis should be busy at most.
        redis_memory: Bytes that one Redis should keep at most.
        redis_clients: Connections that a Redis takes (`maxclients`).
        descriptors: That one worker may have open.
        network: Bytes per second of one machine, each way.
    """

    floor_us: float = 100.0
    cores: float = 16
    memory: float = 64 * GIB
    worker_full: float = 0.6
    redis_full: float = 0.5
    redis_memory: float = 16 * GIB
    redis_clients: float = 10_000
    descriptors: float = 65_536
    network: float = 1.25e9


class Costs:
    """Prices, at the speed of some core.

    Args:
        found: What `benchmarks.costs` wrote.
        floor_us: What a call on the raw floor costs on that core, in microseconds; None for as much as it did when the prices were measured.

    Attributes:
        floor_us: That.
        speed: How many times as long everything takes there.
    """

    def __init__(self, found: Mapping[str, Any], floor_us: float | None = None) -> None:
        self._found = found
        measured: float = found["requests"]["floor"]["worker_us"]["median"]
        self.floor_us = measured if floor_us is None else floor_us
        self.speed = self.floor_us / measured

    def worker(self, kind: str) -> float:
        """Microseconds of a worker for one request."""
        return float(self._found["requests"][_row(kind)]["worker_floors"]["median"]) * self.floor_us

    def redis(self, kind: str) -> float:
        """Microseconds of the Redis for it."""
        return float(self._found["requests"][_row(kind)]["redis_floors"]["median"]) * self.floor_us

    def redis_bytes(self, kind: str) -> float:
        """Bytes between worker and Redis for it."""
        row = self._found["requests"][_row(kind)]
        return float(row["redis_in"] + row["redis_out"])

    def micro(self, part: str, name: str) -> float:
        """A price in microseconds that is no request's."""
        return max(0.0, float(self._found[part][name])) * self.speed

    def size(self, part: str, name: str) -> float:
        """A price in bytes, or a ratio."""
        return float(self._found[part][name])

    def wire(self, kind: str, direction: str) -> float:
        """Bytes of a request or its answer."""
        return float(self._found["bytes"]["modern" if kind.startswith("modern") else "session"][direction])


class Limit(NamedTuple):
    """Something that is full one day.

    Attributes:
        name: What.
        carries: How many times the traffic one of it carries.
        need: How many of it the traffic needs.
        add: What to do when it is full.
    """

    name: str
    carries: float
    need: float
    add: str


class Fleet(NamedTuple):
    """What some traffic needs.

    Attributes:
        workers: How many; infinite where no number is enough.
        machines: Machines for them.
        worker_us: Part of a worker's work to microseconds of all workers' CPU per second.
        redis_us: The same of the Redis.
        worker_memory: Bytes of one worker.
        copies: Sessions that one worker remembers.
        redis_nodes: How many Redis.
        redis_memory: Bytes in all of them.
        redis_clients: Connections to the busiest of them.
        descriptors: Of one worker.
        network_in: Bytes per second, of requests.
        network_out: Bytes per second, of answers.
        redis_network: Bytes per second between workers and Redis.
        limits: What is full, first things first.
    """

    workers: float
    machines: float
    worker_us: dict[str, float]
    redis_us: dict[str, float]
    worker_memory: float
    copies: float
    redis_nodes: float
    redis_memory: float
    redis_clients: float
    descriptors: float
    network_in: float
    network_out: float
    redis_network: float
    limits: list[Limit]


def _row(kind: str) -> str:
    """The row of the prices that a kind of call has."""
    return f"{kind}, redis" if kind in {"session", "state", "streamed"} else kind


def share_of_copies(traffic: Traffic, workers: float) -> float:
    """Share of all sessions that one worker remembers: those that had a call there within `ttl`."""
    if not traffic.sessions:
        return 0.0
    if traffic.sticky:
        return 1 / workers
    each = traffic.rate("session", "state", "streamed") / traffic.sessions
    # A session is remembered where it was opened, and where it is called.
    return max(1 / workers, 1 - math.exp(-each * traffic.ttl / workers))


def first_calls(traffic: Traffic, workers: float) -> float:
    """Calls per second that meet a worker which does not know their session (yet, or any more)."""
    if traffic.sticky or not traffic.sessions or workers <= 1:
        return 0.0
    return traffic.rate("session", "state", "streamed") * (1 - share_of_copies(traffic, workers))


def touches(traffic: Traffic, workers: float) -> float:
    """Times per second that a worker tells the Redis that a session lives on: once in a quarter of `ttl` at most, in each worker."""
    if not traffic.sessions:
        return 0.0
    calls = traffic.rate("session", "streamed")
    copies = share_of_copies(traffic, workers) * traffic.sessions * workers
    return min(calls, copies * 4 / traffic.ttl)


def weigh_workers(traffic: Traffic, costs: Costs, workers: float) -> dict[str, float]:
    """Microseconds per second of the CPU of all workers, by what it is for."""
    opened, plain = traffic.sessions / traffic.lifetime, costs.worker("modern")
    per_change = (
        costs.micro("idle", "change_us") * workers
        + costs.micro("streams", "listen_event_us") * traffic.listens
        + costs.micro("streams", "get_event_us") * traffic.get_streams
    )
    quiet_streams = (
        costs.micro("streams", "listen_quiet_us") * traffic.listens + costs.micro("streams", "get_quiet_us") * traffic.get_streams
    )
    return {
        "calls": sum(traffic.rate(kind) * costs.worker(kind) for kind in KINDS),
        "your functions": traffic.calls_s * traffic.tool_us,
        "connections": traffic.connects_s * plain * costs.size("tls", f"{'' if traffic.tls else 'plain_'}connection_ratio"),
        "TLS": traffic.calls_s * plain * (costs.size("tls", "call_ratio") - 1) if traffic.tls else 0.0,
        "sessions that begin and end": opened * (costs.worker("life of a session, redis") - costs.worker("session")),
        "sessions met for the first time, and forgotten": first_calls(traffic, workers)
        * max(0.0, costs.micro("idle", "first_call_us") - costs.worker("session") + costs.micro("idle", "forget_us")),
        "changes told to all": traffic.changes_s * per_change,
        "quiet streams": quiet_streams,
        "Bus and messages": (traffic.messages_s + traffic.changes_s + opened) * costs.micro("bus", "one_us") * workers,
        "doing nothing": workers * costs.micro("idle", "quiet_us"),
    }


def weigh_redis(traffic: Traffic, costs: Costs, workers: float) -> tuple[dict[str, float], dict[str, float]]:
    """Microseconds per second of Redis: what a cluster spreads, and what stays with one node whatever there is."""
    opened = traffic.sessions / traffic.lifetime
    small = costs.micro("index", "place_us") / 2  # a script of two commands or three, many on their way at once
    looks = workers / min(traffic.ttl / 4, 5.0) + 2 * traffic.sessions / traffic.ttl
    places = costs.micro("index", "place_us")
    spread = {
        "calls": sum(traffic.rate(kind) * costs.redis(kind) for kind in ("session", "state", "streamed")),
        "sessions that begin and end": opened * max(0.0, costs.redis("life of a session, redis") - places),
        "sessions met for the first time": first_calls(traffic, workers) * small,
        "signs of life of sessions": touches(traffic, workers) * small,
        "changes in GET streams": traffic.changes_s * traffic.get_streams * costs.micro("streams", "get_event_redis_us"),
    }
    single = {
        "index of sessions": opened * places + looks * costs.micro("index", "look_us"),
        "Bus": (traffic.messages_s + traffic.changes_s) * costs.micro("bus", "reader_redis_us") * (workers + 2),
        "ends of sessions, told to all": opened * costs.micro("bus", "hearer_redis_us") * workers,
        "signs of life of workers": workers * costs.micro("idle", "quiet_redis_us"),
    }
    return spread, single


def count_workers(traffic: Traffic, costs: Costs, machines: Machines) -> float:
    """The fewest workers that are not too busy; infinite where each would be busy with the others' messages alone."""
    workers = 1.0
    for _ in range(200):
        needed = math.ceil(sum(weigh_workers(traffic, costs, workers).values()) / 1e6 / machines.worker_full)
        if needed <= workers:
            return workers
        if needed > 1e6:
            return math.inf
        workers = float(needed)
    return workers


def measure_memory(traffic: Traffic, costs: Costs, workers: float) -> float:
    """Bytes of one worker."""
    copies = share_of_copies(traffic, workers) * traffic.sessions
    streams = (traffic.get_streams * costs.size("streams", "get_bytes") + traffic.listens * costs.size("streams", "listen_bytes")) / workers
    plain = max(0.0, traffic.connections - traffic.get_streams - traffic.listens) / workers * costs.size("streams", "listen_bytes")
    return WORKER_BASE + copies * costs.size("idle", "copy_bytes") + streams + plain


def plan(traffic: Traffic, costs: Costs, machines: Machines) -> Fleet:
    """What some traffic needs.

    Args:
        traffic: What is asked.
        costs: Prices at the speed of the machines' cores.
        machines: What there is.
    """
    workers = count_workers(traffic, costs, machines)
    counted = min(workers, 1e6)
    by_part = weigh_workers(traffic, costs, counted)
    spread, single = weigh_redis(traffic, costs, counted)
    worker_memory = measure_memory(traffic, costs, counted)
    stored = traffic.sessions * (costs.size("idle", "redis_bytes")) + BUS_BYTES
    busy = sum(spread.values()) / 1e6 / machines.redis_full
    alone = sum(single.values()) / 1e6 / machines.redis_full
    # A cluster's slots can be moved until its nodes are equally busy; what stays with one node has to fit there.
    nodes = max(1, math.ceil(max(busy + alone, stored / machines.redis_memory, PER_WORKER * counted / machines.redis_clients)))
    incoming = sum(traffic.rate(kind) * (costs.wire(kind, "request") + traffic.extra_bytes / 2) for kind in KINDS)
    outgoing = sum(traffic.rate(kind) * (costs.wire(kind, "answer") + traffic.extra_bytes / 2) for kind in KINDS)
    per_machine = min(machines.cores, machines.memory * 0.8 / worker_memory)
    return Fleet(
        workers=workers,
        machines=math.ceil(max(counted / max(per_machine, 1e-9), max(incoming, outgoing) / machines.network)),
        worker_us=by_part,
        redis_us={**spread, **single},
        worker_memory=worker_memory,
        copies=share_of_copies(traffic, counted) * traffic.sessions,
        redis_nodes=nodes if alone <= 1 else math.inf,
        redis_memory=stored,
        redis_clients=PER_WORKER * counted,
        descriptors=traffic.connections / counted + OWN_DESCRIPTORS,
        network_in=incoming,
        network_out=outgoing,
        redis_network=sum(traffic.rate(kind) * costs.redis_bytes(kind) for kind in ("session", "state", "streamed")),
        limits=list_limits(traffic, costs, machines),
    )


def list_limits(traffic: Traffic, costs: Costs, machines: Machines) -> list[Limit]:
    """What one of each thing carries, the smallest first: the order in which a growing service meets its limits.

    Each is looked at alone, with as many of all others as it takes.
    """

    def fullness(factor: float) -> dict[str, float]:
        grown = traffic.scaled(factor)
        workers = count_workers(grown, costs, machines)
        if math.isinf(workers):
            return dict.fromkeys(_ADD, math.inf)
        spread, single = weigh_redis(grown, costs, workers)
        parts = weigh_workers(grown, costs, workers)
        stored = grown.sessions * costs.size("idle", "redis_bytes") + BUS_BYTES
        own = (parts["Bus and messages"] + parts["doing nothing"]) / workers
        return {
            "one worker": sum(weigh_workers(grown, costs, 1.0).values()) / 1e6 / machines.worker_full,
            "one machine": workers / machines.cores,
            "one Redis: CPU": (sum(spread.values()) + sum(single.values())) / 1e6 / machines.redis_full,
            "one Redis: memory": stored / machines.redis_memory,
            "the node with index and Bus: CPU": sum(single.values()) / 1e6 / machines.redis_full,
            "connections of one Redis": PER_WORKER * workers / machines.redis_clients,
            "memory of a worker": measure_memory(grown, costs, workers) / (machines.memory * 0.8 / machines.cores),
            "what every worker does for all": own / 1e6 / machines.worker_full,
        }

    end = _find_factor(lambda factor: count_workers(traffic.scaled(factor), costs, machines) < math.inf, MOST)
    limits = []
    for name, add in _ADD.items():
        carries = _find_factor(lambda factor, name=name: fullness(factor)[name] <= 1, end)  # type: ignore[misc]
        # Where no number of workers is enough it is what each does for all, and nothing else is met any more.
        met = carries < end * FULL or name == "what every worker does for all"
        limits.append(Limit(name, carries if met and carries < MOST else math.inf, fullness(1.0)[name], add))
    return sorted(limits, key=lambda limit: limit.carries)


def _find_factor(fits: Callable[[float], bool], most: float) -> float:
    """The largest traffic, as a multiple, that fits."""
    low, high = 1e-6, most
    if fits(high):
        return high
    for _ in range(24):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


_ADD = {
    "one worker": "more workers: `--workers`, one for each core",
    "one machine": "more machines behind a load balancer, one Redis for all",
    "one Redis: CPU": "a Redis cluster: sessions are spread over its nodes",
    "one Redis: memory": "a cluster, or a shorter `session_ttl`, fewer kept events (`session_buffer`)",
    "the node with index and Bus: CPU": "several fleets, each with a Redis of its own, and clients spread over them",
    "connections of one Redis": "`maxclients`",
    "memory of a worker": "a balancer that sends a session to the same worker; a shorter `session_ttl`",
    "what every worker does for all": "fewer messages to all, or several fleets",
}


def show(traffic: Traffic, fleet: Fleet, machines: Machines) -> str:
    """The fleet as text."""
    lines = [
        (
            f"{traffic.sessions:,.0f} sessions, {traffic.calls_s:,.0f} calls/s, {traffic.get_streams:,.0f} GET and {traffic.listens:,.0f} listen streams"
            f"; a core does a call on the raw floor in {machines.floor_us:g} us"
        ),
        "",
        f"workers            {_number(fleet.workers)} ({machines.worker_full:.0%} busy), on {fleet.machines:,.0f} machines of {machines.cores:g} cores",
        f"memory of a worker {fleet.worker_memory / MIB:,.0f} MiB, with {fleet.copies:,.0f} sessions that it remembers",
        (
            f"Redis              {_number(fleet.redis_nodes)} node(s) ({machines.redis_full:.0%} busy), {fleet.redis_memory / GIB:,.2f} GiB,"
            f" {fleet.redis_clients:,.0f} connections"
        ),
        f"descriptors        {fleet.descriptors:,.0f} in a worker"
        + (" (more than it may have)" if fleet.descriptors > machines.descriptors else ""),
        (
            f"network            {fleet.network_in / 1e6:,.0f} MB/s in, {fleet.network_out / 1e6:,.0f} MB/s out,"
            f" {fleet.redis_network / 1e6:,.0f} MB/s to and from Redis"
        ),
        "",
        "cores, all workers:",
        *(f"  {used / 1e6:9.2f}  {part}" for part, used in fleet.worker_us.items()),
        "cores, Redis:",
        *(f"  {used / 1e6:9.2f}  {part}" for part, used in fleet.redis_us.items()),
        "",
        "what is full first, and at how many times this traffic:",
        *(f"  {_times(limit.carries):>10}  {limit.name}: {limit.add}" for limit in fleet.limits),
    ]
    return "\n".join(lines)


def _number(count: float) -> str:
    return "no number of them is enough:" if math.isinf(count) else f"{count:,.0f}"


def _times(factor: float) -> str:
    return "not met" if math.isinf(factor) else f"{factor:.3g}"


def read_costs(path: Path, floor_us: float | None = None) -> Costs:
    """Prices from a file that `benchmarks.costs` wrote.

    Args:
        path: The file.
        floor_us: What a call on the raw floor costs, in microseconds; None for as much as it did when the prices were measured.
    """
    return Costs(json.loads(path.read_text(encoding="utf-8")), floor_us)


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given = Traffic()
    parser.add_argument("--sessions", type=float, default=given.sessions, help="open sessions of 2025 clients (1e6)")
    parser.add_argument("--calls", type=float, default=given.calls_s, help="calls per second (1e5)")
    for kind in KINDS:
        default = given.shares[kind]
        parser.add_argument(f"--{kind.replace(' ', '-')}", type=float, default=default, help=f"share of them of this kind ({default:g})")
    parser.add_argument("--lifetime", type=float, default=given.lifetime, help="seconds that a session is used (3600)")
    parser.add_argument("--ttl", type=float, default=given.ttl, help="session_ttl (300)")
    parser.add_argument("--get-streams", type=float, help="open GET streams (a tenth of the sessions)")
    parser.add_argument("--listens", type=float, help="open listen streams (half of that)")
    parser.add_argument("--connections", type=float, help="open connections (twice the streams)")
    parser.add_argument("--changes", type=float, default=given.changes_s, help="changes per second that all are told (0.1)")
    parser.add_argument("--messages", type=float, default=given.messages_s, help="other messages per second on the Bus (10)")
    parser.add_argument("--tool-us", type=float, default=given.tool_us, help="CPU of your own function, microseconds (100)")
    parser.add_argument("--extra-bytes", type=float, default=given.extra_bytes, help="bytes of arguments and results (2000)")
    parser.add_argument("--connects", type=float, help="new connections per second (a hundredth of the calls)")
    parser.add_argument("--tls", action="store_true", help="workers speak TLS themselves")
    parser.add_argument("--sticky", action="store_true", help="a session comes to the same worker each time")
    machines = Machines()
    parser.add_argument(
        "--floor-us", type=float, help="a call on the raw floor on one core there, microseconds (as when the prices were measured)"
    )
    parser.add_argument("--cores", type=float, default=machines.cores, help="of a machine (16)")
    parser.add_argument("--memory", type=float, default=machines.memory / GIB, help="GiB of a machine (64)")
    parser.add_argument("--redis-memory", type=float, default=machines.redis_memory / GIB, help="GiB that one Redis should keep (16)")
    parser.add_argument("--costs", type=Path, default=COSTS, help="prices (benchmarks/costs.json)")
    parser.add_argument("--simulate", action="store_true", help="latency against load for one Redis and its workers, too")
    parser.add_argument("--workers", type=int, default=8, help="workers that are simulated (8)")
    return parser.parse_args(words)


def understand(options: argparse.Namespace) -> tuple[Traffic, Machines]:
    """Traffic and machines of some options; shares are scaled so that they add up to 1.

    Raises:
        ValueError: There is no kind of call with a share.
    """
    shares = {kind: float(getattr(options, kind.replace(" ", "_"))) for kind in KINDS}
    total = sum(shares.values())
    if total <= 0 or min(shares.values()) < 0:
        raise ValueError("The shares of the kinds of calls must not be negative, and one must be more than 0.")
    gets = options.sessions / 10 if options.get_streams is None else options.get_streams
    listens = gets / 2 if options.listens is None else options.listens
    traffic = Traffic(
        sessions=options.sessions,
        calls_s=options.calls,
        shares={kind: share / total for kind, share in shares.items()},
        lifetime=options.lifetime,
        ttl=options.ttl,
        get_streams=gets,
        listens=listens,
        changes_s=options.changes,
        messages_s=options.messages,
        tool_us=options.tool_us,
        connections=2 * (gets + listens) if options.connections is None else options.connections,
        connects_s=options.calls / 100 if options.connects is None else options.connects,
        tls=options.tls,
        sticky=options.sticky,
        extra_bytes=options.extra_bytes,
    )
    machines = Machines(
        floor_us=options.floor_us, cores=options.cores, memory=options.memory * GIB, redis_memory=options.redis_memory * GIB
    )
    return traffic, machines


def make_service(costs: Costs, tool_us: float) -> simulation.Service:
    """What a call with state takes of a worker and of its Redis, for the simulation: seconds."""
    busy, alone = costs.worker("state"), costs.worker("state, redis, one at a time")
    return simulation.Service(
        worker_busy=(busy + tool_us) / 1e6,
        worker_alone=max(alone, busy) / 1e6 + tool_us / 1e6,
        redis=costs.redis("state") / 1e6,
        trips=2,
        network=200e-6,
    )


def main() -> None:
    """Print the fleet, and what is full first."""
    options = parse()
    try:
        traffic, machines = understand(options)
    except ValueError as error:
        sys.exit(str(error))
    costs = read_costs(options.costs, options.floor_us)
    machines = machines._replace(floor_us=costs.floor_us)
    print(show(traffic, plan(traffic, costs, machines), machines))
    if options.simulate:
        print()
        print(simulation.show(make_service(costs, traffic.tool_us), options.workers))


if __name__ == "__main__":
    main()

"""What benchmarks/capacity.py makes of prices: fleets that grow as they must, limits in their order, and queues as theory has them."""

import json
import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks import capacity, fleet_simulation
from benchmarks.capacity import Costs, Machines, Traffic, count_workers, plan, share_of_copies, show, understand, weigh_redis, weigh_workers
from benchmarks.fleet_simulation import Service, Simulation, Trouble

FLOOR = 25.0
SERVICE = Service(worker_busy=200e-6, worker_alone=400e-6, redis=40e-6)


@dataclass
class Prices:
    """Round prices: a call costs 2 floors, one with state 6 and a Redis 1."""

    session_bytes: float = 2_000.0

    def found(self) -> dict[str, Any]:
        """As `benchmarks.costs` writes them."""
        floors = {"floor": (1, 0), "modern": (2, 0), "modern streamed": (3, 0), "session, redis": (3, 0.1), "state, redis": (6, 1)}
        floors |= {"streamed, redis": (7, 1), "life of a session, redis": (30, 5), "state, redis, one at a time": (12, 2)}
        requests = {
            name: {
                "worker_us": {"median": worker * FLOOR},
                "worker_floors": {"median": worker},
                "redis_floors": {"median": redis},
                "redis_in": 500,
                "redis_out": 200,
            }
            for name, (worker, redis) in floors.items()
        }
        streams = {"listen_bytes": 20_000, "get_bytes": 20_000, "listen_quiet_us": 1, "get_quiet_us": 1}
        streams |= {"listen_event_us": 10, "get_event_us": 20, "get_event_redis_us": 10}
        idle = {"redis_bytes": self.session_bytes, "copy_bytes": 2_000, "first_call_us": 200, "first_call_redis_us": 10}
        idle |= {"quiet_us": 2_000, "quiet_redis_us": 100, "forget_us": 10, "change_us": 200}
        return {
            "requests": requests,
            "streams": streams,
            "idle": idle,
            "bytes": {"modern": {"request": 600, "answer": 400}, "session": {"request": 400, "answer": 300}},
            "bus": {"many_us": 10, "many_redis_us": 15, "one_us": 100, "one_redis_us": 60, "reader_redis_us": 10, "hearer_redis_us": 5},
            "tls": {"call_ratio": 1.5, "connection_ratio": 9.0, "plain_connection_ratio": 1.0},
            "index": {"place_us": 20, "look_us": 5},
        }

    def costs(self, floor_us: float = FLOOR) -> Costs:
        """For a core of some speed."""
        return Costs(self.found(), floor_us)


def quiet(**more: Any) -> Traffic:
    """Modern calls and nothing else."""
    nothing = Traffic(
        sessions=0, shares={"modern": 1.0}, get_streams=0, listens=0, changes_s=0, messages_s=0, connections=0, connects_s=0, tool_us=0
    )
    return nothing._replace(**more)


def test_calls_alone_need_their_cpu() -> None:
    costs = Prices().costs()
    machines = Machines(floor_us=FLOOR, worker_full=0.5)
    # 10,000 calls of 50 us are half a core; each worker's own 2 ms a second come on top.
    assert count_workers(quiet(calls_s=10_000.0), costs, machines) == 2
    assert count_workers(quiet(calls_s=9_900.0), costs, machines) == 1
    assert count_workers(quiet(calls_s=1_000_000.0), costs, machines) == pytest.approx(100, abs=1)


def test_a_core_of_twice_the_speed_halves_the_fleet() -> None:
    slow, fast = (plan(quiet(), Prices().costs(floor), Machines(floor_us=floor)) for floor in (FLOOR, FLOOR / 2))
    assert slow.workers == pytest.approx(2 * fast.workers, abs=1)


def test_tls_costs_calls_and_connections() -> None:
    costs = Prices().costs()
    plain, secure = (weigh_workers(quiet(calls_s=1_000.0, connects_s=100.0, tls=tls), costs, 1) for tls in (False, True))
    assert plain["TLS"] == 0
    assert secure["TLS"] == pytest.approx(0.5 * plain["calls"])
    assert secure["connections"] == pytest.approx(9 * plain["connections"])


def test_calls_of_2026_need_no_redis() -> None:
    spread, single = weigh_redis(quiet(), Prices().costs(), 10)
    assert sum(spread.values()) == 0
    assert set(single) - {name for name, used in single.items() if used} >= {"Bus", "ends of sessions, told to all"}


def test_without_stickiness_each_worker_remembers_most_sessions() -> None:
    traffic = Traffic()
    assert share_of_copies(traffic, 1) == 1
    assert 1 / 50 < share_of_copies(traffic, 50) < 1
    assert share_of_copies(traffic._replace(sticky=True), 50) == 1 / 50
    shorter = share_of_copies(traffic._replace(ttl=30.0), 50)
    assert shorter < share_of_copies(traffic, 50) / 2


def test_what_every_worker_does_for_all_can_be_too_much() -> None:
    # One message that keeps each worker busy for more than the share it may be busy: no number of workers helps.
    fleet = plan(Traffic(messages_s=7_000.0), Prices().costs(), Machines(floor_us=FLOOR))
    assert math.isinf(fleet.workers)
    assert "no number of them is enough" in show(Traffic(messages_s=7_000.0), fleet, Machines(floor_us=FLOOR))


def test_what_is_told_to_all_costs_messages_times_workers() -> None:
    traffic, costs = quiet(messages_s=100.0, sessions=3_600.0), Prices().costs()
    (_, few), (_, many) = (weigh_redis(traffic, costs, workers) for workers in (10, 20))
    # Each worker reads each of 100 messages for 10 us, and hears of one session's end a second for 5.
    assert many["Bus"] - few["Bus"] == pytest.approx(10 * 100 * 10)
    assert many["ends of sessions, told to all"] == pytest.approx(20 * 5)
    assert weigh_workers(traffic, costs, 20)["Bus and messages"] == pytest.approx(20 * 101 * 100)


def test_more_traffic_never_needs_less() -> None:
    costs, machines = Prices().costs(), Machines(floor_us=FLOOR)
    fleets = [plan(Traffic().scaled(factor), costs, machines) for factor in (0.001, 0.01, 0.1, 1.0)]
    for smaller, larger in pairwise(fleets):
        assert larger.workers >= smaller.workers
        assert larger.redis_nodes >= smaller.redis_nodes
        assert larger.network_out > smaller.network_out


def test_limits_come_in_the_order_in_which_they_are_met() -> None:
    limits = plan(Traffic(), Prices().costs(), Machines(floor_us=FLOOR)).limits
    assert [limit.carries for limit in limits] == sorted(limit.carries for limit in limits)
    assert limits[0].name == "one worker"
    names = [limit.name for limit in limits]
    assert names.index("one worker") < names.index("one machine")


def test_large_sessions_fill_the_memory_of_the_redis_first() -> None:
    def order(prices: Prices) -> list[str]:
        return [limit.name for limit in plan(Traffic(), prices.costs(), Machines(floor_us=FLOOR)).limits if "one Redis" in limit.name]

    assert order(Prices())[0] == "one Redis: CPU"
    assert order(Prices(session_bytes=1_000_000))[0] == "one Redis: memory"


def test_a_cluster_is_as_large_as_its_load() -> None:
    costs, machines = Prices().costs(), Machines(floor_us=FLOOR)
    fleet = plan(Traffic(), costs, machines)
    assert fleet.redis_nodes >= 2
    assert sum(fleet.redis_us.values()) / 1e6 / fleet.redis_nodes <= machines.redis_full


def test_the_parts_of_a_workers_load_are_none_negative() -> None:
    for used in weigh_workers(Traffic(), Prices().costs(), 20).values():
        assert used >= 0


def test_options_become_traffic() -> None:
    traffic, machines = understand(
        capacity.parse(["--sessions", "1000", "--calls", "50", "--modern", "3", "--state", "1", "--session", "0", "--streamed", "0"])
    )
    assert traffic.shares == {"modern": 0.75, "modern streamed": 0.0, "session": 0.0, "state": 0.25, "streamed": 0.0}
    assert (traffic.get_streams, traffic.listens, traffic.connections) == (100, 50, 300)
    assert machines.cores == 16
    nothing = [word for kind in capacity.KINDS for word in (f"--{kind.replace(' ', '-')}", "0")]
    with pytest.raises(ValueError, match="shares"):
        understand(capacity.parse(nothing))


def test_the_prices_that_are_kept_are_whole() -> None:
    costs = capacity.read_costs(capacity.COSTS)
    fleet = plan(Traffic(), costs, Machines())
    assert 0 < fleet.workers < 10_000
    assert costs.worker("modern") < costs.worker("state")
    about = json.loads(Path(capacity.COSTS).read_text(encoding="utf-8"))["about"]
    assert {"date", "commit", "load", "rounds"} <= set(about)


def test_a_queue_waits_as_theory_says() -> None:
    # One worker without a Redis is M/G/1: by Pollaczek and Khinchine a call waits load * (1 + 1/4) / 2 / (1 - load) of its own time.
    alone = Service(worker_busy=1e-3, worker_alone=1e-3, redis=0.0, trips=0, network=0.0)
    for load in (0.3, 0.6, 0.8):
        simulation = Simulation(alone, 1, seed=3)
        seen = simulation.run(20.0, rate=load / 1e-3)
        assert seen.worker == pytest.approx(load, rel=0.05)
        mean = sum(took for _, took in simulation.times) / len(simulation.times)
        assert mean == pytest.approx(1e-3 * (1 + load * 1.25 / 2 / (1 - load)), rel=0.12)


def test_clients_that_wait_for_answers_fill_what_is_slowest() -> None:
    for workers in (2, 8):
        seen = Simulation(SERVICE, workers).run(0.5, connections=32 * workers)
        assert seen.served / seen.seconds == pytest.approx(fleet_simulation.capacity(SERVICE, workers), rel=0.1)
    shared = Simulation(SERVICE, 2, cores=1).run(0.5, connections=64)
    assert shared.served / shared.seconds == pytest.approx(5_000, rel=0.1)


def test_past_the_knee_calls_wait() -> None:
    seen = fleet_simulation.sweep(SERVICE, 4, (0.3, 0.97), calls=8_000)
    assert seen[0.97].p99 > 3 * seen[0.3].p99


def test_calls_of_a_worker_that_died_are_made_again_after_its_time() -> None:
    seen = Simulation(SERVICE, 4, trouble=Trouble(1.0, 2.0, lost=1), seed=2).run(7.0, rate=3_000.0)
    assert 0 < seen.again < 20
    assert 3.5 < seen.recovered < 4.5  # five seconds after its death


def test_a_redis_that_stands_still_holds_up_all_and_is_caught_up_with() -> None:
    still = Simulation(SERVICE, 4, trouble=Trouble(1.0, 2.0, slower=math.inf)).run(7.0, rate=1_500.0)
    assert still.refused == 0
    assert 0.5 < still.p99 < 2.0
    assert 0 < still.recovered < 3.0
    longer = Simulation(SERVICE, 4, trouble=Trouble(1.0, 5.0, slower=math.inf)).run(7.0, rate=1_500.0)
    assert longer.refused > 300


def test_a_simulation_wants_one_kind_of_load() -> None:
    with pytest.raises(ValueError, match="either"):
        Simulation(SERVICE, 1).run(1.0)


def test_what_is_printed_names_the_limits(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    prices = tmp_path / "costs.json"
    prices.write_text(json.dumps(Prices().found()), encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["capacity", "--costs", str(prices), "--floor-us", "25"])
    capacity.main()
    printed = capsys.readouterr().out
    for limit in ("one worker", "one machine", "one Redis: CPU", "the node with index and Bus"):
        assert limit in printed

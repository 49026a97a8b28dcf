"""A thousand listen streams: a list_changed reaches the last one within 1.5 times the raw floor's time; a stream takes 20 KB at most."""

import select
import time
from statistics import median

from benchmarks.contenders import Process, callboard, raw_floor
from benchmarks.harness import Bound, Options, Report, ratio, run_claim, serving
from benchmarks.traffic import Listener, ask, call, open_connection

STREAMS = 1000
TIMEOUT = 20.0
SETTLE = 0.5  # seconds of quiet before memory is read
NOTE = b"list_changed"


def reach_all(listeners: list[Listener], process: Process) -> list[float]:
    """Broadcast once; milliseconds until the note reached each listener, sorted."""
    connection = open_connection(process.port)
    poll = select.epoll()
    waiting = {listener.socket.fileno(): listener.socket for listener in listeners}
    for descriptor in waiting:
        poll.register(descriptor, select.EPOLLIN)
    times: list[float] = []
    begin = time.perf_counter()
    ask(connection, call("broadcast", {}))
    while waiting and time.perf_counter() < begin + TIMEOUT:
        for descriptor, _ in poll.poll(1.0):
            if NOTE in waiting[descriptor].recv(1 << 16):
                poll.unregister(descriptor)
                del waiting[descriptor]
                times.append((time.perf_counter() - begin) * 1e3)
    poll.close()
    connection.close()
    if waiting:
        raise RuntimeError(f"{process.name}: the note did not reach {len(waiting)} of {STREAMS} listeners")
    return times


def weigh(process: Process) -> tuple[list[Listener], float]:
    """Open the streams; KiB of resident memory for each."""
    connection = open_connection(process.port)
    for _ in range(200):
        ask(connection, call("aecho", {"text": "hello world"}))
    connection.close()
    before = process.rss_kb()
    listeners = [Listener(process.port, number) for number in range(STREAMS)]
    time.sleep(SETTLE)
    return listeners, (process.rss_kb() - before) / STREAMS


def measure(options: Options) -> Report:
    """Weigh and time both, in turns."""
    with serving([callboard(), raw_floor(options.floors)]) as processes:
        opened = {name: weigh(process) for name, process in processes.items()}
        seen: dict[str, list[list[float]]] = {name: [] for name in processes}
        for _ in range(max(options.rounds, 5)):
            for name, process in processes.items():
                seen[name].append(reach_all(opened[name][0], process))
        for listeners, _ in opened.values():
            for listener in listeners:
                listener.close()
    rows = {
        name: {
            "kb_per_stream": opened[name][1],
            "first_ms": median(times[0] for times in runs),
            "median_ms": median(times[STREAMS // 2] for times in runs),
            "last_ms": median(times[-1] for times in runs),
        }
        for name, runs in seen.items()
    }
    return Report(
        rows,
        [
            Bound("time to the last of 1,000 listeners, Callboard / raw floor", ratio(rows, "callboard", "asgi", "last_ms"), 1.5),
            Bound("KB of memory per listen stream", rows["callboard"]["kb_per_stream"], 20),
        ],
    )


if __name__ == "__main__":
    run_claim(measure)

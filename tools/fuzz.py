"""Feeds the drivers of tests/fuzz/drivers.py with inputs that it makes up, and keeps what makes one fail.

    python -m tools.fuzz [driver ...] [--runs N] [--seconds S] [--seed N] [--jobs N] [--engine atheris]
    python -m tools.fuzz decode --replay tests/fuzz/corpus/decode/fault-1234abcd     one input, with the whole traceback
    python -m tools.fuzz decode --runs 200000 --grow     and keep what reached new lines in the corpus

`make fuzz DRIVER=decode RUNS=1000000 SEED=1` does the same. Without drivers all of them run, each in a process of its own. A run is over after so many
inputs, or so many seconds, whichever comes first. The same seed, driver and corpus make the same inputs.

An input fails when the driver raises, takes more than a second of CPU time, or ends its process. It is made smaller, stored in the driver's corpus, and
printed with the command that repeats it. Exit status 0 when none has failed.
"""

from __future__ import annotations

import argparse
import gc
import mmap
import os
import signal
import struct
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from itertools import count
from pathlib import Path
from random import Random
from types import CodeType, FrameType, FunctionType
from typing import Any, Final, NamedTuple

from fuzz.drivers import CORPUS, DRIVERS, Driver, corpus_of
from fuzz.mutation import Mutator

import callboard

ROOT: Final = Path(__file__).resolve().parent.parent
WORK: Final = ROOT / ".cache" / "fuzz"
SOURCE: Final = str(Path(callboard.__file__).parent)
LIMIT: Final = 1.0  # seconds of CPU time for one input
STALLED: Final = 60.0  # seconds without a new input: what waits without using any CPU time
SAMPLE: Final = 16  # every so many inputs one is traced, since that is slow; later on there is little to find
EARLY: Final = 20_000
SMALL: Final = 4096  # bytes up to which an input is traced, and kept for others to be made of it
TRIES: Final = 400  # to make a failing input smaller
SLOT: Final = 1 << 20  # bytes that a process has to say what it is at
FAULTS: Final = 5  # of one driver that are looked for before it gives up


class HangError(BaseException):
    """An input takes too long. No `except Exception` holds it up."""


class Fault(NamedTuple):
    """How an input failed: what is raised, and where."""

    kind: str
    place: str
    text: str


class Watch:
    """Runs a driver, and raises within it when it takes too long.

    Args:
        driver: The driver.
    """

    def __init__(self, driver: Driver) -> None:
        self._run = driver.run
        self.slowest = 0.0
        signal.signal(signal.SIGPROF, self._ring)

    def _ring(self, *_: Any) -> None:
        raise HangError(f"more than {LIMIT:g} s of CPU time")

    def run(self, data: bytes) -> Fault | None:
        """How an input fails; None when it does not."""
        began = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, LIMIT)
        try:
            self._run(data)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is a fault
            signal.setitimer(signal.ITIMER_PROF, 0)
            return tell(error)
        signal.setitimer(signal.ITIMER_PROF, 0)
        took = time.process_time() - began
        self.slowest = max(self.slowest, took)
        return Fault("HangError", "", f"{took:.1f} s of CPU time") if took > LIMIT else None


def tell(error: BaseException) -> Fault:
    """What an exception says, and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    place = next((f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames)), "")
    return Fault(type(error).__name__, "" if isinstance(error, HangError) else place, f"{error}"[:2000])


class Lines:
    """Which lines of the product have run, asked of a few inputs only. A code object is left alone once all its lines have."""

    def __init__(self) -> None:
        self._left: dict[CodeType, set[int]] = {}
        self.found = 0

    def trace(self, run: Callable[[], Any]) -> bool:
        """Run something; whether it reached a line that nothing before did."""
        before = self.found
        sys.settrace(self._enter)
        try:
            run()
        finally:
            sys.settrace(None)
        return self.found > before

    def _enter(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        code = frame.f_code
        left = self._left.get(code)
        if left is None:
            ours = code.co_filename.startswith(SOURCE)
            left = self._left[code] = {line for _, _, line in code.co_lines() if line} if ours else set()
        return self._step if left else None

    def _step(self, frame: FrameType, event: str, _argument: Any) -> Any:
        left = self._left[frame.f_code]
        if event == "line" and frame.f_lineno in left:
            left.discard(frame.f_lineno)
            self.found += 1
        return self._step if left else None


class Slot:
    """Where a process says which input it is at, so that another one can tell if it ends or hangs.

    Args:
        name: The driver's.
    """

    def __init__(self, name: str) -> None:
        WORK.mkdir(parents=True, exist_ok=True)
        self.path = WORK / f"{name}.{os.getpid()}.slot"
        self.path.write_bytes(bytes(SLOT))
        with self.path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), SLOT)

    def say(self, number: int, data: bytes) -> None:
        """Say what comes next."""
        data = data[: SLOT - 16]
        self._memory[: 16 + len(data)] = struct.pack("<qq", number, len(data)) + data

    @staticmethod
    def read(path: Path) -> tuple[int, bytes]:
        """What was said last: a number, and the input."""
        text = path.read_bytes()
        number, size = struct.unpack_from("<qq", text)
        return number, text[16 : 16 + size]


class Run:
    """Feeds one driver.

    Args:
        name: The driver's.
        seed: What all chance comes from.
        grow: Whether to keep what reached new lines.
    """

    def __init__(self, name: str, *, seed: int, grow: bool) -> None:
        self._name = name
        self._driver = DRIVERS[name]
        self._watch = Watch(self._driver)
        self._mutator = Mutator(Random(f"{name} {seed}"), self._driver.words, largest=self._driver.largest)
        self._lines = Lines()
        self._slot = Slot(name)
        self._grow = grow
        self._seed = seed
        self._faults: set[tuple[str, str]] = set()
        self._known = [path.read_bytes() for path in corpus_of(name)] or [b""]

    def feed(self, runs: int, seconds: float) -> int:
        """Feed it what is known, then what is made of that; gives how many different faults there were."""
        began = time.monotonic()
        kept = list(self._known)
        number = rested = 0
        for number, data in enumerate(self._inputs(runs)):
            if number % 64 == 0 and time.monotonic() - began > seconds:
                break
            self._slot.say(number, data)
            traced = (number < len(kept) or number % (SAMPLE if number < EARLY else 8 * SAMPLE) == 0) and len(data) <= SMALL
            fault, new = self._trace(data) if traced else (self._watch.run(data), False)
            if fault is not None:
                self._report(data, fault)
            elif new and number >= len(kept):
                self._known.append(data)
            if number == len(kept):
                gc.collect()
                gc.freeze()  # what has been imported by now stays
            if number == 2000:
                rested = memory()
            if len(self._faults) >= FAULTS:
                break
        took = time.monotonic() - began
        grown = memory() - rested if number > 2000 else 0
        told = f"{self._name}, seed {self._seed}: {number + 1} inputs in {took:.0f} s ({time.process_time():.0f} s of CPU time), the slowest took {self._watch.slowest:.2f} s"
        more = f"{self._lines.found} lines of the product, {len(self._known)} inputs known, {grown / 2**20:+.0f} MiB; {len(self._faults)} faults"
        print(f"{told}; {more}", flush=True)
        if self._grow:
            self._keep(kept)
        self._slot.path.unlink()
        return len(self._faults)

    def _inputs(self, runs: int) -> Iterator[bytes]:
        yield from list(self._known)
        for _ in range(runs):
            yield self._mutator.make(self._known)

    def _trace(self, data: bytes) -> tuple[Fault | None, bool]:
        found: list[Fault | None] = []
        new = self._lines.trace(lambda: found.append(self._watch.run(data)))
        if found[0] is not None and found[0].kind == HangError.__name__:
            found[0] = self._watch.run(data)  # to be traced takes its time
        return found[0], new

    def _report(self, data: bytes, fault: Fault) -> None:
        if (fault.kind, fault.place) in self._faults:
            return
        self._faults.add((fault.kind, fault.place))
        small = self._shrink(data, fault)
        report(self._name, small, fault)

    def _shrink(self, data: bytes, fault: Fault) -> bytes:
        """A smaller input that fails in the same way."""
        tries, size = 0, len(data) // 2
        limit = time.monotonic() + 20
        while size and tries < TRIES and time.monotonic() < limit:
            at = 0
            while at < len(data) and tries < TRIES:
                tries += 1
                shorter = data[:at] + data[at + size :]
                again = self._watch.run(shorter)
                if again is not None and again[:2] == fault[:2]:
                    data = shorter
                else:
                    at += size
            size //= 2
        return data

    def _keep(self, before: list[bytes]) -> None:
        """Store the new inputs that together reach all lines that any did, the shortest first."""
        lines = Lines()
        for data in before:
            lines.trace(lambda data=data: self._watch.run(data))  # type: ignore[misc]
        added = [data for data in sorted(self._known[len(before) :], key=len) if lines.trace(lambda data=data: self._watch.run(data))]  # type: ignore[misc]
        for data in added:
            store(self._name, data, "")
        print(f"{self._name}: {len(added)} inputs more in the corpus", flush=True)


def memory() -> int:
    """Bytes of memory that this process has in use; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0


def store(name: str, data: bytes, prefix: str) -> Path:
    """Put an input into a driver's corpus."""
    path = CORPUS / name / (prefix + sha256(data).hexdigest()[:8])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def report(name: str, data: bytes, fault: Fault) -> None:
    """Store an input that fails, and say how to repeat it."""
    path = store(name, data, "fault-").relative_to(ROOT)
    print(f"{name}: FAULT {fault.kind} at {fault.place}: {fault.text}\n  {data[:300]!r}", flush=True)
    print(f"  again: PYTHONPATH=tests {Path(sys.executable).name} -m tools.fuzz {name} --replay {path}", flush=True)


def supervise(name: str, arguments: Sequence[str]) -> int:
    """Run one driver in a process of its own; gives its exit status, 1 when it stalled or ended by a signal."""
    with subprocess.Popen([sys.executable, "-m", "tools.fuzz", name, "--here", *arguments], cwd=ROOT) as process:
        slot = WORK / f"{name}.{process.pid}.slot"
        number, since = -1, time.monotonic()
        for _ in count():
            try:
                status = process.wait(0.5)
            except subprocess.TimeoutExpired:
                now = Slot.read(slot)[0] if slot.exists() else -1
                if now != number or now < 0:  # it is still being loaded
                    number, since = now, time.monotonic()
                elif time.monotonic() - since > STALLED:
                    process.kill()
                    break
                continue
            if status >= 0:
                return status
            break
    fault = Fault("Stalled" if process.returncode == -signal.SIGKILL else f"Signal {-process.returncode}", "", "see the input")
    report(name, Slot.read(slot)[1] if slot.exists() else b"", fault)
    return 1


def replay(name: str, path: Path) -> int:
    """Feed a driver one input; what it raises is raised here."""
    began = time.process_time()
    DRIVERS[name].run(path.read_bytes())
    took = time.process_time() - began
    print(f"{name}: no fault; {took:.2f} s of CPU time")
    return took > LIMIT


def run_atheris(name: str, runs: int, seconds: float, seed: int) -> int:
    """Feed one driver by libFuzzer, which is guided by every branch; never returns. It needs `pip install atheris`, which has wheels for Linux alone."""
    import atheris  # type: ignore[import-untyped] # installed by whoever wants it

    folder = WORK / f"atheris-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    driver = DRIVERS[name]
    known = [path.read_bytes() for path in corpus_of(name)] or [b""]

    def change(data: bytes, largest: int, chance: int) -> bytes:
        if chance % 4 == 0:
            return bytes(atheris.Mutate(data, largest))
        return Mutator(Random(chance), driver.words, largest=largest).make([data, *known[:8]])

    options = [
        f"-runs={runs}",
        f"-max_total_time={int(seconds)}",
        f"-seed={seed}",
        "-timeout=10",
        "-max_len=8192",
        f"-artifact_prefix={folder}/",
    ]
    for function in [each for each in gc.get_objects() if isinstance(each, FunctionType) and each.__code__.co_filename.startswith(SOURCE)]:
        atheris.instrument_func(function)  # pyright: ignore[reportAttributeAccessIssue] # made when it is loaded
    atheris.Setup([sys.argv[0], *options, str(folder), str(CORPUS / name)], driver.run, custom_mutator=change)
    atheris.Fuzz()
    return 0


def read_arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(prog="tools.fuzz", description="Feeds drivers with inputs that it makes up.")
    parser.add_argument("drivers", nargs="*", help=f"out of {', '.join(DRIVERS)}; all by default")
    parser.add_argument("--runs", type=int, default=100_000, help="inputs for each driver")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="longest time for each driver")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="drivers at once")
    parser.add_argument("--engine", choices=("own", "atheris"), default="own")
    parser.add_argument("--grow", action="store_true", help="keep what reached new lines in the corpus")
    parser.add_argument("--replay", type=Path, help="one input")
    parser.add_argument("--here", action="store_true", help="in this process")
    found = parser.parse_args()
    if unknown := set(found.drivers) - DRIVERS.keys():
        parser.error(f"there is no driver {min(unknown)!r}; there are {', '.join(DRIVERS)}")
    if (found.here or found.replay or found.engine == "atheris") and len(found.drivers) != 1:
        parser.error("name one driver")
    return found


def main() -> int:
    """Run what the command line asks for."""
    asked = read_arguments()
    if asked.replay:
        return replay(asked.drivers[0], asked.replay)
    if asked.engine == "atheris":
        return run_atheris(asked.drivers[0], asked.runs, min(asked.seconds, 1e9), asked.seed)
    if asked.here:
        return min(Run(asked.drivers[0], seed=asked.seed, grow=asked.grow).feed(asked.runs, asked.seconds), 1)
    passed = ["--runs", str(asked.runs), "--seconds", str(asked.seconds), "--seed", str(asked.seed), *(["--grow"] if asked.grow else [])]
    with ThreadPoolExecutor(asked.jobs) as lanes:
        ended = list(lanes.map(lambda name: supervise(name, passed), asked.drivers or DRIVERS))
    return max(ended)


if __name__ == "__main__":
    sys.exit(main())

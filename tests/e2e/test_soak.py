"""A look at what benchmarks/soak.py does for half an hour: mixed load with aborts on two workers with a Redis, after which nothing is left of it."""

import os
import subprocess
import sys

from redis_server import require_program
from source_tree import ROOT


def test_nothing_is_left_of_a_short_soak() -> None:
    """No wrong answer, no error in the log, no task, descriptor or key more after the second load than after the first."""
    require_program()
    words = [sys.executable, "-m", "benchmarks.soak", "--minutes", "0.35", "--cycle", "10", "--actors", "8"]
    ran = subprocess.run(words, cwd=ROOT, env={**os.environ}, capture_output=True, text=True, timeout=180, check=False)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-2000:]
    assert ran.stdout.count(" scenarios  ") >= 2, ran.stdout
    assert ran.stdout.endswith("PASS\n")
